"""Transformer-XL equals transformers 4.35.2 (golden files, make_golden_xl.py) and the equations of its paper."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import formers
from formers import Error
from formers.generation.decoding import Options, continue_ids
from formers.nn.attention.attention import Attention
from formers.nn.attention.context import AttentionContext, RelativeInputs
from formers.nn.attention.masks import WindowMask, causal, combine_masks
from formers.nn.attention.positions import RelativeScores, SinusoidalPositions
from formers.nn.attention.segment_memory import SegmentMemory
from formers.registry import find_family
from tests.nn.packing import make_layout
from tests.parity.make_golden_xl import pull_outputs

FOLDERS = sorted((Path(__file__).parent / "golden").glob("TransfoXL-*"))
BIN = "pytorch_model.bin"


def load_golden(folder):
    return formers.load(folder, pickle=(folder / BIN).exists())


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def golden(request):
    return load_golden(request.param), load_file(request.param / "segments.safetensors"), request.param


def test_there_are_golden_files():
    assert len(FOLDERS) >= 8
    assert sum(f.stat().st_size for folder in FOLDERS for f in folder.iterdir()) < 1_000_000


def compute_outputs(f, ids, memory):
    return f.hidden(ids, memory=memory) if f.head == "none" else f.logits(ids, memory=memory)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("start", ["zeros", "empty"])
def test_segments_with_a_memory(golden, start, training):
    f, kept, _ = golden
    f.model.train(training)
    f.model.zero_grad()
    memory, outputs = SegmentMemory(2, f.config.memory, zeros=start == "zeros"), []
    for i in range(3):
        outputs.append(compute_outputs(f, kept[f"ids.{i}"], memory))
        want = kept[f"{start}.output.{i}"]
        assert want.abs().max() > 0.05, "a comparison of nothing"
        assert outputs[-1].shape == want.shape
        assert (outputs[-1] - want).abs().max() <= 1e-5, i
    for layer in range(f.config.layers) if f.config.memory else ():
        want = kept[f"{start}.memory.{layer}"]
        assert memory.hidden_states[layer].shape == want.shape
        assert (memory.hidden_states[layer] - want).abs().max() <= 1e-5
        assert not memory.hidden_states[layer].requires_grad
    pull_outputs(outputs).backward()
    compare_gradients(f, {n.split(".gradient.")[1]: g for n, g in kept.items() if n.startswith(f"{start}.gradient.")})
    if f"{start}.losses" in kept:
        last = kept["ids.2"]
        with torch.no_grad():
            found = -f.logits(last, memory=memory)[:, :-1].gather(-1, last[:, 1:, None])[..., 0]
        # Theirs come cluster by cluster, so only as a set are they the same.
        losses = kept[f"{start}.losses"]
        assert (found.flatten().sort().values - losses.flatten().sort().values).abs().max() <= 1e-5
        assert abs(found.mean() - kept[f"{start}.loss"]) <= 1e-5


def compare_gradients(f, gradients):
    parameters = dict(f.model.named_parameters())
    compared = set()
    for move in find_family(f.family).definition.hf_format.build_key_map(f.config, f.head).map_tensors(parameters):
        for name, gradient in move.save(parameters[move.ours].grad).items():
            scale = max(1.0, float(gradients[name].abs().max()))
            assert gradients[name].any() or (f.config.has_uniform_attention and "dec_attn.r_" in name), name
            assert (gradient - gradients[name]).abs().max() / scale <= 1e-5, name
            compared.add(name)
    assert compared == set(gradients)


def test_a_padded_row_is_classified_by_its_last_token():
    folder = next(f for f in FOLDERS if "Classification" in f.name)
    f, kept = load_golden(folder), load_file(folder / "segments.safetensors")
    ids = kept["padded.ids"]
    got = f.logits(ids, ids != 0, memory=SegmentMemory(2, f.config.memory, zeros=True))
    assert (got - kept["padded.output"]).abs().max() <= 1e-5


@pytest.mark.filterwarnings("ignore:transformers 5 has no Transformer-XL")
def test_round_trips_are_bit_exact(golden, tmp_path):
    f, _, folder = golden
    formers.export(f, tmp_path / "hf")
    formers.save(f, tmp_path / "own")
    for other in (formers.load(tmp_path / "hf"), formers.load(tmp_path / "own")):
        assert (other.family, other.head, other.config, other.labels) == (f.family, f.head, f.config, f.labels)
        for (name, value), (same, again) in zip(
            f.model.state_dict().items(), other.model.state_dict().items(), strict=True
        ):
            assert name == same
            assert torch.equal(value, again)
    written = load_file(tmp_path / "hf" / "model.safetensors")
    if not (folder / BIN).exists():
        theirs = load_file(folder / "model.safetensors")
        theirs.pop("transformer.pos_emb.inv_freq" if f.head != "none" else "pos_emb.inv_freq")
        assert set(written) == set(theirs)
        assert all(torch.equal(value, theirs[name]) for name, value in written.items())
    before, after = (json.loads((p / "config.json").read_text()) for p in (folder, tmp_path / "hf"))
    dropped = {"torch_dtype", "transformers_version"}
    assert {k: after.get(k) for k in before.keys() - dropped} == {k: before[k] for k in before.keys() - dropped}


def test_a_tied_copy_that_differs_is_refused(tmp_path):
    old, pre = (next(f for f in FOLDERS if f.name.endswith(end)) for end in ("-old", "-pre"))
    copies = [  # that file has them all; in the other one table and one projection serve all clusters
        (old, "crit.out_projs.0", "word_emb.emb_projs.0"),
        (old, "crit.out_layers.1.weight", "word_emb.emb_layers.1.weight"),
        (old, "transformer.layers.1.dec_attn.r_w_bias", "r_w_bias"),
        (pre, "crit.out_projs.2", "word_emb.emb_projs.0"),
        (pre, "crit.out_layers.0.weight", "word_emb.emb_layers.0.weight"),
    ]
    for folder, copy, source in copies:
        tensors = torch.load(old / BIN, weights_only=True) if folder == old else load_file(pre / "model.safetensors")
        value = tensors[f"transformer.{source}"]
        assert folder == pre or torch.equal(tensors[copy], value)
        for change in (0, 1):
            where = tmp_path / f"{folder.name}-{copy}-{change}"
            where.mkdir()
            shutil.copy(folder / "config.json", where)
            changed = {**tensors, copy: value + change}
            save_file({name: t.clone() for name, t in changed.items()}, where / "model.safetensors")
        formers.load(tmp_path / f"{folder.name}-{copy}-0")
        with pytest.raises(Error, match=f"{copy.replace('.', '[.]')}' should be a copy"):
            formers.load(where)


def test_the_published_config(tmp_path):
    """The words of the file on the hub, with those that later releases no longer know."""
    theirs = {
        "adaptive": True, "architectures": ["TransfoXLLMHeadModel"], "attn_type": 0, "clamp_len": 1000,
        "cutoffs": [20000, 40000, 200000], "d_embed": 1024, "d_head": 64, "d_inner": 4096, "d_model": 1024,
        "div_val": 4, "dropatt": 0.0, "dropout": 0.1, "eos_token_id": 0, "ext_len": 0, "init": "normal",
        "init_range": 0.01, "init_std": 0.02, "layer_norm_epsilon": 1e-05, "mem_len": 1600, "model_type": "transfo-xl",
        "n_head": 16, "n_layer": 18, "n_token": 267735, "pre_lnorm": False, "proj_init_std": 0.01, "same_length": True,
        "sample_softmax": -1, "tgt_len": 128, "tie_projs": [False, True, True, True], "tie_weight": True,
        "untie_r": True, "vocab_size": 267735,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 250}},
    }  # fmt: skip
    from formers.interop.huggingface import IRRELEVANT_KEYS

    family = find_family("transfo-xl").definition
    ours = family.hf_format.config_map.read_config(theirs, where=tmp_path, irrelevant_everywhere=IRRELEVANT_KEYS)
    assert (
        family.config_class(**{k: tuple(v) if isinstance(v, list) else v for k, v in ours.items()})
        == family.config_class()
    )
    for key, value in (("sample_softmax", 10), ("attn_type", 1)):
        with pytest.raises(Error, match=f"{key}: formers cannot honour {value}"):
            family.hf_format.config_map.read_config(
                {**theirs, key: value}, where=tmp_path, irrelevant_everywhere=IRRELEVANT_KEYS
            )
    untied = {k: v for k, v in theirs.items() if k != "tie_projs"} | {"proj_share_all_but_first": False}
    ours = family.hf_format.config_map.read_config(untied, where=tmp_path, irrelevant_everywhere=IRRELEVANT_KEYS)
    assert family.config_class(tied_projections=ours["tied_projections"]).projection_ties == (False,) * 4


def test_the_published_size():
    with torch.device("meta"):
        f = formers.build("transformer_xl", preset="transfo-xl-wt103")
    assert sum(p.numel() for p in f.model.parameters()) == 285_205_322


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cutoffs": (5, 5)}, r"cut-offs \[5, 5\] must rise"),
        ({"cutoffs": (60,)}, r"cut-offs \[60\] must rise .* vocabulary of 47"),
        ({"cutoffs": (5, 9, 20), "shrink": 4}, "in each of 4 clusters, have no width"),
        ({"dim": 13}, "dim must be even"),
        ({"tied_projections": (True,) * 4}, "4 tied_projections are more than the 3 clusters"),
        ({"order": "parallel"}, "order cannot be parallel"),
        ({"clamp": 0}, "clamp must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused(settings, message):
    sizes = {"vocab": 47, "cutoffs": (5, 9), "embed": 12, "shrink": 2, "dim": 12, "layers": 1, "heads": 2, "ff": 9}
    formers.build("transformer_xl", **sizes)
    with pytest.raises(Error, match=message) as error:
        formers.build("transformer_xl", **{**sizes, **settings})
    assert "\n" not in str(error.value)


def attend_as_in_paper(attention, x, held, lengths, remembered, clamp, width):
    """One layer's attention as the paper's §3.3 writes it, one pair of tokens at a time: the four terms (a) to (d).

    x (N, dim) has documents of these lengths, held (rows, M, dim) what the rows remember, at the right end.
    """
    heads, size = attention.heads, attention.head_dim
    wq, wk, wv = attention.qkv.weight.view(3, heads, size, -1)
    wr, u, v = (
        attention.relative.r.weight.view(heads, size, -1),
        attention.relative.biases.u,
        attention.relative.biases.v,
    )
    dim, rows, start = x.shape[1], [], 0
    for row, length in enumerate(lengths):
        new = x[start : start + length]
        past = held[row, held.shape[1] - remembered[row] :]
        seen, start = torch.cat((past, new)), start + length
        for i in range(len(past), len(seen)):
            out = []
            for h in range(heads):
                query, scores, values = wq[h] @ seen[i], [], []
                for j in range(max(0, i - width + 1), i + 1):
                    distance = min(i - j, clamp)
                    angles = [distance / 10000 ** (2 * k / dim) for k in range(dim // 2)]
                    place = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=x.dtype)
                    key, by_place = wk[h] @ seen[j], wr[h] @ place
                    terms = query @ key, query @ by_place, u[h] @ key, v[h] @ by_place
                    scores.append(sum(terms) / math.sqrt(size))
                    values.append(wv[h] @ seen[j])
                out.append(torch.stack(scores).softmax(0) @ torch.stack(values))
            rows.append(attention.o.weight @ torch.cat(out))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("lengths", "seen"), [((3, 3), (4, 4)), ((3, 1, 4), (2, 0, 5)), ((2, 0, 3), (5, 1, 0)), ((1, 1), (2, 3))]
)
def test_the_equations_of_the_paper(lengths, seen):
    torch.manual_seed(3)
    dim, heads, size, clamp, width = 6, 2, 3, 4, 5
    attention = Attention(dim, heads, head_dim=size, bias=False, relative=RelativeScores(dim, heads, size)).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter)
    memory, states = SegmentMemory(len(lengths), 5), torch.randn(sum(seen), dim, dtype=torch.float64)
    before = make_layout(seen)
    memory.start_batch(before)
    memory.recall_layer(0, states)
    memory.advance(before)
    x = torch.randn(sum(lengths), dim, dtype=torch.float64, requires_grad=True)
    far = torch.arange(memory.used_slots + max(lengths) - 1, -2, -1)
    encodings = SinusoidalPositions(dim, halves=True)(far.clamp(max=clamp)).double()
    attn_context = AttentionContext.start_pass(
        make_layout(lengths), mask=combine_masks(causal, WindowMask(width)), segment_memory=memory,
        relative=RelativeInputs(encodings),
    )  # fmt: skip
    held = memory.recall_layer(0, x)
    got, want = attention(x, attn_context, 0, held), attend_as_in_paper(attention, x, held, lengths, seen, clamp, width)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)  # the places are in single precision
    leaves, pull = [x, *attention.parameters()], torch.randn_like(want)
    for one, other in zip(*(torch.autograd.grad(o, leaves, pull) for o in (got, want)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_without_a_memory_all_tokens_are_read_again():
    """What transformers' generate does where nothing is kept: every step reads the whole text."""
    f = load_golden(next(folder for folder in FOLDERS if folder.name.endswith("-alike")))
    ids = [3, 17, 5]
    for _ in range(4):
        ids.append(int(f.logits(torch.tensor([ids]))[0, -1].argmax()))
    for options in (Options(temperature=0.0), Options(temperature=0.0, num_beams=1)):
        assert continue_ids(f, [ids[:3], ids[:3]], 4, options) == [ids[3:]] * 2
    one, other = (f.logits(torch.tensor([row]))[0, 0] for row in ([3, 17], [3, 5]))
    assert not torch.allclose(one, other), "a token sees those after it, as in the reference"
