"""XLNet, equal to transformers: every head, memory, permutations and targets, segments, padding on the left; and equal
to the paper's equations, written out token by token, where transformers has no such thing (`order`)."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import formers
from formers.batch import Batch
from formers.generation.decoding import Options, continue_ids
from formers.inputs import ModelInputs
from formers.nn.attention.context import Capture
from formers.nn.attention.segment_memory import SegmentMemory
from tests.parity.cases import compare_gradients, prune_one_head_per_layer, pull_outputs
from tests.parity.xlnet_reference import VOCAB, build_reference
from tests.tolerance import assert_near

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

CLASSES = {
    "Model": "none", "LMHeadModel": "lm", "ForSequenceClassification": "classify", "ForTokenClassification": "tag",
    "ForMultipleChoice": "choose", "ForQuestionAnsweringSimple": "answer", "ForQuestionAnswering": "beam",
}  # fmt: skip
EVERY = [(ending, seed) for ending in CLASSES for seed in (0, 1, 2)]


def save_and_load(model, path):
    model.save_pretrained(path)
    return formers.load(path)


def draw_inputs(seed=0, choices=False, tokens=9, pad="left"):
    """Rows of different lengths and three segments."""
    g = torch.Generator().manual_seed(seed + 7)
    shape = (2, 3, tokens) if choices else (4, tokens)
    ids, segments = (torch.randint(0, n, shape, generator=g) for n in (VOCAB, 3))
    keep = torch.ones(shape, dtype=torch.bool)
    keep[0, ..., :3], keep[-1, ..., :1] = pad == "none", pad == "none"
    return {"ids": ids, "keep": keep.flip(-1) if pad == "right" else keep, "segments": segments}


def rename_inputs(given):
    return {"input_ids": given["ids"], "attention_mask": given["keep"].float(), "token_type_ids": given["segments"]}


def run_transformers(ending, model, given, **more):
    out, real = model(**rename_inputs(given), **more), given["keep"][..., None]
    if ending == "Model":
        return {"hidden": out.last_hidden_state * real}
    if ending == "ForQuestionAnsweringSimple":
        return {"answer": torch.stack((out.start_logits, out.end_logits), -1) * real}
    if ending == "ForQuestionAnswering":
        names = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index", "cls_logits")
        return dict(zip(("start", "start_index", "end", "end_index", "cls"), (out[n] for n in names), strict=True))
    return {"logits": out.logits * real if out.logits.shape[:-1] == given["keep"].shape else out.logits}


def run_formers(former, given, **more):
    if former.head == "none":
        return {"hidden": former.hidden(**given)}
    got = former.logits(**given, **more)
    return got if isinstance(got, dict) else {"answer" if former.head == "answer" else "logits": got}


def select_floats(outputs):
    return {name: value for name, value in outputs.items() if value.is_floating_point()}


def assert_agreement(model, former, want, got):
    """Outputs and gradients are the same."""
    assert want.keys() == got.keys()
    for name, value in want.items():
        assert value.shape == got[name].shape, name
        if not value.is_floating_point():
            assert torch.equal(value, got[name]), name
            continue
        assert value.abs().max() > 0.05, "a comparison of nothing"
        assert (value - got[name]).abs().max() <= 1e-5, name
    model.zero_grad()
    former.model.zero_grad()
    pull_outputs(select_floats(want)).backward()
    pull_outputs(select_floats(got)).backward()
    compare_gradients(model, former)


@pytest.fixture(scope="module", params=EVERY, ids=lambda p: f"XLNet{p[0]}-{p[1]}")
def pair(request, tmp_path_factory):
    ending, seed = request.param
    model = build_reference(ending, seed)
    path = tmp_path_factory.mktemp("xlnet") / "hf"
    former = save_and_load(model, path)
    assert former.head == CLASSES[ending]
    return ending, seed, model, former, path


def list_padding_sides(ending, model):
    """transformers pools the last column or the first, padded or not, and its beam takes padding for tokens."""
    if ending == "ForQuestionAnswering":
        return ["none"]
    if ending in ("ForSequenceClassification", "ForMultipleChoice"):
        return ["right" if model.config.summary_type == "first" else "left", "none"]
    return ["left", "right"]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_outputs_and_gradients(pair, training):
    ending, seed, model, former, _ = pair
    model.train(training)
    former.model.train(training)
    for side in list_padding_sides(ending, model):
        given = draw_inputs(seed, ending == "ForMultipleChoice", pad=side)
        assert_agreement(model, former, run_transformers(ending, model, given), run_formers(former, given))


def test_export_loads_in_transformers_and_agrees(pair, tmp_path):
    ending, seed, model, former, path = pair
    formers.export(former, tmp_path / "out")
    again, info = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    for key, value in model.config.to_dict().items():
        if key not in ("transformers_version", "_name_or_path", "dtype"):
            assert again.config.to_dict()[key] == value, key
    first, second = (load_file(p / "model.safetensors") for p in (path, tmp_path / "out"))
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert set(first) - set(second) <= {"lm_loss.weight"}
    model.eval()
    given = draw_inputs(seed, ending == "ForMultipleChoice", pad=list_padding_sides(ending, model)[0])
    with torch.no_grad():
        one, other = run_transformers(ending, model, given), run_transformers(ending, again.eval(), given)
    for name in one:
        assert_near(other[name], one[name], model)


def test_a_model_of_our_own_exports(tmp_path):
    """No original config to lean on: every key is written from our settings."""
    f = formers.build(
        "xlnet", vocab=40, dim=12, layers=2, heads=3, ff=20, clamp=4, causal=True, summary_act=None, memory=5, reuse=3
    )
    formers.export(f, tmp_path / "hf")
    model = transformers.XLNetLMHeadModel.from_pretrained(tmp_path / "hf").eval()
    c = model.config
    assert (c.attn_type, c.clamp_len, c.summary_activation, c.mem_len, c.reuse_len, c.d_head) == ("uni", 4, "", 5, 3, 4)
    ids = torch.arange(14).view(2, 7)
    assert (model(ids).logits - f.logits(ids)).abs().max() <= 1e-5
    assert formers.load(tmp_path / "hf").config == f.config


SPECIAL = [
    {}, {"attn_type": "uni"}, {"attn_type": "uni", "same_length": True}, {"bi_data": True}, {"clamp_len": 2},
    {"mem_len": None}, {"reuse_len": 3}, {"mem_len": 4, "reuse_len": 2, "bi_data": True},
    {"mem_len": 4, "reuse_len": 2, "attn_type": "uni", "clamp_len": 3},
]  # fmt: skip


@pytest.mark.parametrize("special", SPECIAL, ids=str)
@pytest.mark.parametrize("streams", [False, True], ids=["one-stream", "two-streams"])
def test_memory_over_three_segments(special, streams, tmp_path):
    model = build_reference("LMHeadModel", 0, **special)
    former = save_and_load(model, tmp_path)
    rows = (
        1 if special.get("attn_type") == "uni" else 4
    )  # where transformers cannot add a mask of several rows to its own
    memory, mems = SegmentMemory(rows, former.config.memory or 100, reuse=former.config.reuse), None
    without = []
    for segment in range(3):
        given = draw_inputs(segment, tokens=[7, 5, 6][segment], pad="none")
        more = draw_permutation(given["keep"], segment) if streams else {}
        given, more = ({name: value[:rows] for name, value in some.items()} for some in (given, more))
        out = model(**rename_inputs(given), **more, mems=mems, use_mems=True)
        got = former.logits(**given, **more, memory=memory)
        if not (streams and segment == 0 and special.get("same_length")):  # where no query may see anything
            assert_agreement(model, former, {"logits": out.logits}, {"logits": got})
        mems = out.mems
        assert len(mems) == len(memory.hidden_states)
        for layer, states in enumerate(mems):  # (length, rows, dim)
            assert (states.transpose(0, 1) - memory.hidden_states[layer]).abs().max() <= 1e-5
            assert not memory.hidden_states[layer].requires_grad
        without.append((former.logits(**given, **more) - got).abs().max())
    assert without[0] == 0
    assert min(without[1:]) > 1e-3, "the memory changed nothing"


def draw_permutation(keep, seed, targets=3):
    """A permutation mask in which every target sees something, and where to predict."""
    g = torch.Generator().manual_seed(seed + 50)
    rows, tokens = keep.shape
    hidden = (torch.rand(rows, tokens, tokens, generator=g) < 0.5).float()
    mapping = torch.zeros(rows, targets, tokens)
    for row in range(rows):
        real = keep[row].nonzero().flatten()
        places = real[torch.randperm(len(real), generator=g)[: targets + 1]]
        hidden[row, :, places[-1]] = 0.0
        mapping[row, torch.arange(targets), places[:targets]] = 1.0
    return {"perm_mask": hidden, "target_mapping": mapping}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("pad", ["none", "left", "right"])
def test_permutation_mask_and_targets(seed, pad, tmp_path):
    model = build_reference("LMHeadModel", seed)
    former = save_and_load(model, tmp_path)
    given = draw_inputs(seed, pad=pad)
    both = draw_permutation(given["keep"], seed)
    for names in (("perm_mask", "target_mapping"), ("perm_mask",), ("target_mapping",)):
        more = {name: both[name] for name in names}
        for training in (False, True):
            model.train(training)
            former.model.train(training)
            out, got = model(**rename_inputs(given), **more).logits, former.logits(**given, **more)
            out = out if "target_mapping" in names else out * given["keep"][..., None]
            assert_agreement(model, former, {"logits": out}, {"logits": got})


def test_targets_that_ask_for_nothing(tmp_path):
    """Rows of zeros fill a target mapping up; they disturb nobody and answer nothing."""
    model = build_reference("LMHeadModel", 0)
    former = save_and_load(model, tmp_path)
    given = draw_inputs(0)
    more = draw_permutation(given["keep"], 0)
    more["target_mapping"] = torch.cat((more["target_mapping"], torch.zeros(4, 2, 9)), 1)
    want, got = model(**rename_inputs(given), **more).logits[:, :3], former.logits(**given, **more)
    assert (want - got[:, :3]).abs().max() <= 1e-5
    assert got.shape == (4, 5, VOCAB)
    assert not got[:, 3:].any()


def test_hidden_states_and_attention_weights(tmp_path):
    model = build_reference("LMHeadModel", 1)
    former = save_and_load(model, tmp_path)
    given = draw_inputs(1, pad="none")
    capture = Capture(with_attention=True)
    with torch.no_grad():
        out = model(**rename_inputs(given), output_hidden_states=True, output_attentions=True)
        states = former.hidden(**given, layer=None)
        former.model(former.pack_inputs(ModelInputs(**given))[0], capture=capture)
        assert len(states) == len(out.hidden_states)
        for want, got in zip(out.hidden_states, states, strict=True):
            assert (want - got).abs().max() <= 1e-5
        for want, got in zip(out.attentions, capture.attention_weights["content"], strict=True):
            assert (want - got).abs().max() <= 1e-5
        more, capture = draw_permutation(given["keep"], 1), Capture(with_attention=True, with_hidden=True)
        out = model(**rename_inputs(given), **more, output_attentions=True, output_hidden_states=True)
        batch = former.pack_inputs(ModelInputs(**given))[0]
        from formers.inputs import apply_permutation

        batch, how = apply_permutation(former.definition, batch, (4, 9), more)
        former.model(batch, capture=capture, **how)
    asked = more["target_mapping"].sum(1).bool()  # (rows, tokens)
    for (content, query), one, two in zip(
        out.attentions, capture.attention_weights["content"], capture.attention_weights["query"], strict=True
    ):
        assert (content - one).abs().max() <= 1e-5
        assert ((query - two).transpose(1, 2)[asked]).abs().max() <= 1e-5
    for want, got in zip(out.hidden_states[:-2:2], capture.hidden_states["content"], strict=True):
        assert (want - batch.unpack(got)).abs().max() <= 1e-5


def test_masked_heads(tmp_path):
    """A switched-off head is a zero in the output projection's columns."""
    model = build_reference("LMHeadModel", 0)
    former = save_and_load(model, tmp_path)
    given = draw_inputs(0)
    mask = torch.tensor([[1, 0, 1], [0, 1, 1]])
    more = draw_permutation(given["keep"], 0)
    got = former.logits(**given, **more, heads=mask)
    with torch.no_grad():
        for layer, on in zip(model.transformer.layer, mask, strict=True):
            layer.rel_attn.o *= on[:, None]
    assert (model(**rename_inputs(given), **more).logits - got).abs().max() <= 1e-5


PARTS = ("biases.u", "biases.v", "s", "r.weight", "segment")


def run_as_in_paper(f, ids, order, segments=None):
    """The two streams of one document by the paper's equations, one token, head and key at a time (§2.3, §2.5, and the
    four terms of Transformer-XL's scores), with Python loops. Returns h and g of the last layer, (T, dim)."""
    c, state = f.config, dict(f.model.body.named_parameters())
    width, tokens = c.dim // c.heads, len(ids)

    def norm(x, name):
        y = (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + c.eps)
        return y * state[name + ".weight"] + state[name + ".bias"]

    def encode(distance):
        angles = [distance / 10000 ** (2 * i / c.dim) for i in range(c.dim // 2)]
        return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)

    def attend(query, i, content, seen, name):
        wq, wk, wv = state[f"{name}.attn.qkv.weight"].chunk(3)
        u, v, s, wr, segment = (state[f"{name}.attn.relative.{x}"] for x in PARTS)
        out = []
        for head in range(c.heads):
            part = slice(head * width, (head + 1) * width)
            q, scores = wq[part] @ query, []
            for j in seen:
                score = (q + u[head]) @ (wk[part] @ content[j]) + (q + v[head]) @ (wr[part] @ encode(i - j))
                if segments is not None:
                    score = score + (q + s[head]) @ segment[int(segments[i] != segments[j]), head]
                scores.append(score / math.sqrt(width))
            share = torch.softmax(torch.stack(scores), 0) if seen else []
            out.append(sum((a * (wv[part] @ content[j]) for a, j in zip(share, seen, strict=True)), q * 0))
        x = norm(query + state[f"{name}.attn.o.weight"] @ torch.cat(out), f"{name}.attn_norm")
        inner = torch.nn.functional.gelu(state[f"{name}.ff.up.weight"] @ x + state[f"{name}.ff.up.bias"])
        return norm(x + state[f"{name}.ff.down.weight"] @ inner + state[f"{name}.ff.down.bias"], f"{name}.ff_norm")

    h = [state["embed.token.weight"][i] for i in ids]
    g = [state["blank"][0]] * tokens
    for layer in range(c.layers):
        name = f"blocks.{layer}"
        before = [[j for j in range(tokens) if order[j] < order[i]] for i in range(tokens)]
        known = [[j for j in range(tokens) if order[j] <= order[i]] for i in range(tokens)]
        g, h = (
            [attend(g[i], i, h, before[i], name) for i in range(tokens)],
            [attend(h[i], i, h, known[i], name) for i in range(tokens)],
        )
    return torch.stack(h), torch.stack(g)


def build_small_xlnet(seed):
    f = formers.build("xlnet", vocab=19, dim=6, layers=2, heads=[1, 3, 2][seed], ff=7, dropout=0.0, seed=seed)
    g = torch.Generator().manual_seed(seed)
    for p in f.model.parameters():
        with torch.no_grad():
            p.add_(torch.randn(p.shape, generator=g) * 0.4)
    return f.to(dtype=torch.float64)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_order_by_the_papers_equations(seed):
    f, g = build_small_xlnet(seed), torch.Generator().manual_seed(seed)
    lengths = (5, 1, 4)
    orders = [torch.randperm(5, generator=g), torch.tensor([3]), torch.tensor([0, 2, 0, 1])]  # 0 twice: both are given
    ids = [torch.randint(0, 19, (n,), generator=g) for n in lengths]
    segments = [torch.randint(0, 2, (n,), generator=g) for n in lengths]
    starts = torch.tensor([0, 5, 6, 10], dtype=torch.int32)
    batch = Batch(torch.cat(ids), starts, 5, segments=torch.cat(segments), order=torch.cat(orders))
    want = torch.cat([run_as_in_paper(f, *one)[1] for one in zip(ids, orders, segments, strict=True)])
    got = f.model(batch)
    assert (want - got).abs().max() <= 1e-5
    pull_outputs({"g": want}).backward()
    expected = {name: p.grad.clone() for name, p in f.model.body.named_parameters()}
    f.model.zero_grad()
    pull_outputs({"g": got}).backward()
    for name, p in f.model.body.named_parameters():
        assert (expected[name] - p.grad).abs().max() <= 1e-5, name
    some = batch.replace(chosen=torch.tensor([7, 2, 0, 0, 0]))  # filled up with zeros, as objectives do
    f.model.zero_grad()
    part = f.model(some)
    assert (part[[7, 2, 0]] - want[[7, 2, 0]]).abs().max() <= 1e-5
    assert not part[[1, 3, 4, 5, 6, 8, 9]].any()
    part[[7, 2, 0]].sum().backward()
    filled = {name: p.grad.clone() for name, p in f.model.body.named_parameters()}
    f.model.zero_grad()
    f.model(batch)[[7, 2, 0]].sum().backward()
    for name, p in f.model.body.named_parameters():
        assert (filled[name] - p.grad).abs().max() <= 1e-5, name


def test_order_and_the_same_permutation_mask_agree():
    f = build_small_xlnet(1)
    ids, order = torch.arange(8).view(2, 4), torch.tensor([[2, 0, 3, 1], [0, 1, 2, 3]])
    keep = torch.tensor([[True] * 4, [False, True, True, True]])
    hidden = (order[:, :, None] <= order[:, None, :]).long()
    got = f.logits(ids, keep, perm_mask=hidden, target_mapping=torch.eye(4).expand(2, -1, -1)[:, 1:])
    assert torch.allclose(got, f.logits(ids, keep, order=order)[:, 1:])


def test_nothing_leaks_from_a_higher_order():
    """By gradient: the query stream at a place depends on the tokens of a lower order only, in every layer."""
    f, seen = build_small_xlnet(2), []
    order = torch.tensor([4, 1, 0, 3, 2])
    hook = f.model.body.embed.token.register_forward_hook(lambda m, a, out: seen.append(out) or out.retain_grad())
    for place in range(5):
        hidden = f.model(Batch(torch.arange(5), torch.tensor([0, 5], dtype=torch.int32), 5, order=order))
        (hidden[place] * torch.arange(6)).sum().backward()
        reached = seen[-1].grad.abs().sum(-1) > 0
        assert torch.equal(reached, order < order[place])
    hook.remove()


def test_memory_of_rows_of_different_lengths():
    """Ragged segments, some rows empty: each row as if it were alone."""
    f, g = build_small_xlnet(0), torch.Generator().manual_seed(3)
    rows = [[torch.randint(0, 19, (n,), generator=g) for n in lengths] for lengths in ((4, 2, 3), (1, 5, 2), (3, 0, 4))]
    memory, got = SegmentMemory(3, 4, reuse=3), []
    for segment in range(3):
        ids = [row[segment] for row in rows]
        starts = torch.tensor([0, *torch.tensor([len(i) for i in ids]).cumsum(0).tolist()], dtype=torch.int32)
        got.append(f.model(Batch(torch.cat(ids), starts, 5), memory=memory).split([len(i) for i in ids]))
    for number, row in enumerate(rows):
        alone = SegmentMemory(1, 4, reuse=3)
        for segment, ids in enumerate(row):
            if len(ids):
                starts = torch.tensor([0, len(ids)], dtype=torch.int32)
                one = f.model(Batch(ids, starts, len(ids)), memory=alone)
                assert (one - got[segment][number]).abs().max() <= 1e-9, (number, segment)
    assert memory.lengths.tolist() == [4, 4, 4]


def test_a_failed_pass_leaves_the_memory_alone():
    f, memory, ids = build_small_xlnet(0), SegmentMemory(2, 4), torch.arange(6).view(2, 3)
    first = f.logits(ids, memory=memory)
    before = memory.hidden_states[0].clone()
    with pytest.raises(formers.Error, match="the memory has 2 rows, the batch 1"):
        f.logits(ids[:1], memory=memory)
    assert torch.equal(memory.hidden_states[0], before)
    assert not torch.allclose(f.logits(ids, memory=memory), first)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"perm": 1}, "logits does not take 'perm'"),
        ({"perm_mask": torch.zeros(2, 3)}, r"perm_mask \(2, 3\) does not fit ids \(2, 3\)"),
        ({"target_mapping": torch.ones(2, 1, 3)}, "must name one real token"),
        ({"order": torch.zeros(2, 3), "perm_mask": torch.zeros(2, 3, 3)}, "order says already"),
    ],
    ids=["name", "shape", "one-hot", "twice"],
)
def test_errors_of_the_streams(given, message):
    with pytest.raises(formers.Error, match=message):
        build_small_xlnet(0).logits(torch.arange(6).view(2, 3), **given)


def test_errors_elsewhere():
    from formers.nn.attention.kv_cache import KVCache

    ids = torch.arange(6).view(2, 3)
    with pytest.raises(formers.Error, match="GPT2 has no second stream"):
        formers.build("gpt2", preset="gpt2-mini").logits(ids, order=ids)
    with pytest.raises(formers.Error, match="keeps earlier tokens in a KVCache"):
        formers.build("gpt2", preset="gpt2-mini").logits(ids, memory=SegmentMemory(2, 3))
    with pytest.raises(formers.Error, match="keeps earlier tokens in a SegmentMemory"):
        build_small_xlnet(0).logits(ids, memory=KVCache(2, 8))
    with pytest.raises(formers.Error, match="cannot reuse 0 tokens"):
        SegmentMemory(1, 4, reuse=0)
    with pytest.raises(formers.Error, match="dim must be even"):
        formers.build("xlnet", dim=9, heads=3)
    for head in ("classify", "beam"):
        f = formers.build("xlnet", preset="xlnet-mini", head=head)
        with pytest.raises(formers.Error, match=f"head '{head}' reads whole texts"):
            f.logits(ids, target_mapping=torch.eye(3).expand(2, -1, -1))


def test_beam_of_a_short_text(tmp_path):
    """Fewer tokens than beginnings asked for: the rest has probability 0 and no column; padding is never an answer."""
    f = save_and_load(build_reference("ForQuestionAnswering", 0), tmp_path)
    ids, keep = torch.arange(10).view(2, 5), torch.tensor([[False] * 3 + [True] * 2, [True] * 5])
    got = f.logits(ids, keep)
    assert got["start_index"][0, 2] == -1
    assert got["start"][0, 2] == 0
    assert set(got["start_index"][0, :2].tolist()) == {3, 4}
    assert got["end_index"].shape == (2, 6)
    assert (got["end_index"][0].view(2, 3)[:, 2] == -1).all()
    assert set(got["end_index"][0].view(2, 3)[:, :2].flatten().tolist()) == {3, 4}
    alone = f.logits(ids[:1, 3:])
    for name in ("start", "end", "cls"):
        assert (alone[name][0] - got[name][0]).abs().max() <= 1e-6


@pytest.mark.parametrize(("preset", "parameters"), [("xlnet-base", 116_750_336), ("xlnet-large", 360_300_800)])
def test_published_sizes(preset, parameters):
    with torch.device("meta"):
        f = formers.build("xlnet", preset=preset)
    assert sum(p.numel() for p in f.model.parameters()) == parameters


# xlnet-base-cased's config.json, with the sizes made small, and what older and converted files say besides.
PUBLISHED = {
    "architectures": ["XLNetLMHeadModel"], "attn_type": "bi", "bi_data": False, "bos_token_id": 1, "clamp_len": -1,
    "d_head": 4, "d_inner": 13, "d_model": 12, "dropout": 0.1, "end_n_top": 5, "eos_token_id": 2,
    "ff_activation": "gelu", "initializer_range": 0.02, "layer_norm_eps": 1e-12, "mem_len": None, "model_type": "xlnet",
    "n_head": 3, "n_layer": 2, "pad_token_id": 5, "reuse_len": None, "same_length": False, "start_n_top": 5,
    "summary_activation": "tanh", "summary_last_dropout": 0.1, "summary_type": "last", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 250}}, "untie_r": True,
    "vocab_size": 61,
}  # fmt: skip
OLDER = {
    "dropatt": 0.1, "init": "normal", "init_range": 0.1, "init_std": 0.02, "max_position_embeddings": 512,
    "n_token": 61, "same_length": True, "finetuning_task": None, "num_labels": 2, "output_past": True,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["published", "bare", "gamma", "tied copy", "older"])
def test_files_as_published(kind, tmp_path):
    model = build_reference("LMHeadModel", 0, d_inner=13, ff_activation="gelu")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    changed = {}
    for name, value in tensors.items():
        name = name.removeprefix("transformer.") if kind == "bare" else name
        if kind == "gamma":
            name = name.replace("layer_norm.weight", "layer_norm.gamma").replace("layer_norm.bias", "layer_norm.beta")
        changed[name] = value
    if kind == "tied copy":
        changed["lm_loss.weight"] = tensors["transformer.word_embedding.weight"].clone()
    save_file(changed, tmp_path / "model.safetensors")
    config = {k: v for k, v in (PUBLISHED | OLDER).items() if k != "vocab_size"} if kind == "older" else PUBLISHED
    (tmp_path / "config.json").write_text(json.dumps(config))
    f = formers.load(tmp_path)
    given = draw_inputs(0)
    assert (run_transformers("LMHeadModel", model, given)["logits"] - f.logits(**given)).abs().max() <= 1e-5
    formers.export(f, tmp_path / "again")
    kept = json.loads((tmp_path / "again" / "config.json").read_text())
    assert {key: kept.get(key, "lost") for key in PUBLISHED if key != "vocab_size"} == {
        key: config[key] for key in PUBLISHED if key != "vocab_size"
    }


def test_a_config_without_sizes_is_the_large_model(tmp_path):
    """What transformers takes for absent keys."""
    from formers.models.xlnet import HF_CONFIG

    ours = formers.config.build_config(
        formers.registry.find_family("xlnet").definition.config_class, HF_CONFIG.read_config({}, where="here")
    )
    theirs = transformers.XLNetConfig()
    assert (ours.dim, ours.layers, ours.heads, ours.ff, ours.memory) == (
        theirs.d_model, theirs.n_layer, theirs.n_head, theirs.d_inner, theirs.mem_len,
    )  # fmt: skip
    with pytest.raises(formers.Error, match="untie_r: formers cannot honour False"):
        HF_CONFIG.read_config({"untie_r": False}, where="here")


@pytest.mark.parametrize("more", [{}, {"attn_type": "uni"}, {"mem_len": None}, {"mem_len": 3}], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_token_for_token(more, seed, tmp_path):
    """The query stream guesses the token after the last, and the last two are read anew at each step."""
    model = build_reference("LMHeadModel", seed, **more)
    f = save_and_load(model, tmp_path)
    f.config = dataclasses.replace(f.config, eos=None)
    g, prompts, wants = torch.Generator().manual_seed(seed), [], []
    for length in (1, 2, 5, 9):
        ids = torch.randint(6, VOCAB, (1, length), generator=g)
        want = model.generate(ids, do_sample=False, max_new_tokens=9, eos_token_id=None, pad_token_id=0)[0, length:]
        assert continue_ids(f, ids.tolist(), 9, Options(temperature=0)) == [want.tolist()]
        prompts, wants = [*prompts, ids[0].tolist()], [*wants, want.tolist()]
    assert continue_ids(f, prompts, 9, Options(temperature=0)) == wants  # side by side as alone
    assert len({token for want in wants for token in want}) > 1


@pytest.mark.parametrize("ending", CLASSES)
def test_what_is_pruned_loads_in_transformers_and_agrees(ending, tmp_path):
    model, given = build_reference(ending, 0), draw_inputs(choices=ending == "ForMultipleChoice", pad="none")
    former = save_and_load(model, tmp_path / "hf")
    prune_one_head_per_layer(former)
    formers.export(former, tmp_path / "out")
    again = type(model).from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        whole, want, got = (
            run_transformers(ending, model, given),
            run_transformers(ending, again, given),
            run_formers(former, given),
        )
    assert any((want[name] - whole[name]).abs().max() > 1e-3 for name in select_floats(want)), "nothing was pruned"
    for name, value in want.items():
        assert (value - got[name]).abs().max() <= 1e-5, name
