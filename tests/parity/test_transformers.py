"""Equal to transformers: outputs and gradients, every head class, odd shapes, padding on both sides, both ways."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import formers
from formers.inputs import ModelInputs
from formers.registry import find_family
from tests.parity.cases import (
    CASES,
    Case,
    build_reference,
    compare_gradients,
    draw_inputs,
    list_padding_sides,
    make_config,
    prune_one_head_per_layer,
    pull_outputs,
    rename_extra_inputs,
    run_formers,
    run_transformers,
)  # fmt: skip
from tests.tolerance import assert_near

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
# Of untied models: second names that their forward never reads.
UNUSED = ("cls.predictions.bias", "lm_head.bias", "predictions.bias", "shared.weight", "model.shared.weight")
# What an encoder alone, and sides that do not share although they could, say otherwise.
OTHERWISE = ("num_decoder_layers", "num_sparse_decoder_layers", "share_encoder_decoder_embeddings")


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def pair(request, tmp_path_factory):
    case: Case = request.param
    model = build_reference(case)
    path = tmp_path_factory.mktemp(case.name) / "hf"
    model.save_pretrained(path)
    return case, model, formers.load(path), path


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_outputs_and_gradients(pair, training):
    case, model, former, _ = pair
    model.train(training)
    former.model.train(training)
    for side in list_padding_sides(case):
        given = draw_inputs(case, side)
        model.zero_grad()
        former.model.zero_grad()
        want, got = run_transformers(case, model, given), run_formers(former, given)
        assert want.keys() == got.keys()
        for name in want:
            assert want[name].shape == got[name].shape
            assert want[name].abs().max() > 0.05, "a comparison of nothing"
            assert (want[name] - got[name]).abs().max() <= 1e-5, (side, name)
        pull_outputs(want).backward()
        pull_outputs(got).backward()
        compare_gradients(model, former)


def test_export_loads_in_transformers_and_agrees(pair, tmp_path):
    case, model, former, _ = pair
    formers.export(former, tmp_path / "out")
    again, info = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not {name for name in info["missing_keys"] if case.family != "Marian" or "embed_positions" not in name}
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    state = again.state_dict()
    for name, value in model.state_dict().items():
        if name not in UNUSED or model.config.tie_word_embeddings:
            assert torch.equal(value, state[name]), name
    model.eval()
    again.eval()
    given = draw_inputs(case)
    with torch.no_grad():
        first, second = run_transformers(case, model, given), run_transformers(case, again, given)
    for name in first:
        assert_near(second[name], first[name], model)
    for key, value in model.config.to_dict().items():
        if key not in ("transformers_version", "_name_or_path", "dtype", "tie_word_embeddings", *OTHERWISE):
            assert again.config.to_dict().get(key) == value, key


def test_round_trips_are_bit_exact(pair, tmp_path):
    _, _, former, path = pair
    formers.export(former, tmp_path / "hf")
    back = formers.load(tmp_path / "hf")
    formers.save(former, tmp_path / "own")
    own = formers.load(tmp_path / "own")
    for other in (back, own):
        assert (other.family, other.head, other.config, other.labels) == (
            former.family,
            former.head,
            former.config,
            former.labels,
        )
        for (name, value), (same, again) in zip(
            former.model.state_dict().items(), other.model.state_dict().items(), strict=True
        ):
            assert name == same
            assert torch.equal(value, again)
    first, second = (load_file(p / "model.safetensors") for p in (path, tmp_path / "hf"))
    copies = {
        v: k
        for k, v in find_family(former.family)
        .definition.hf_format.build_key_map(former.config, former.head)
        .tied.items()
    }
    for name, value in second.items():
        if name not in UNUSED or former.config.tied:  # of tied tensors they keep one, not always the same
            original = name if name in first else copies[name.removeprefix("transformer.")]
            assert torch.equal(first[original], value), name


def test_hidden_states_of_every_layer(pair):
    case, model, former, _ = pair
    if case.choices or case.shifts:
        pytest.skip("covered by the other heads")
    given = draw_inputs(case)
    keep = given.get("target_keep", given["keep"])
    model.eval()
    former.model.eval()
    call = {"input_ids": given["ids"], "attention_mask": given["keep"].long(), "output_hidden_states": True}
    call |= rename_extra_inputs(given)
    if case.family == "Roberta":
        call["position_ids"] = torch.arange(11)[None] + model.config.pad_token_id + 1
    if "target" in given:
        call |= {"decoder_input_ids": given["target"], "decoder_attention_mask": keep.long()}
    with torch.no_grad():
        out = model(**call)
        states = out.decoder_hidden_states if case.pair else out.hidden_states
        got = former.hidden(**given, layer=None)
        assert len(states) == len(got)
        for layer, (want, have) in enumerate(zip(states, got, strict=True)):
            assert (want * keep[..., None] - have).abs().max() <= 1e-5, layer
            assert torch.equal(former.hidden(**given, layer=layer), have)
        assert torch.equal(former.hidden(**given), got[-1])


def test_attention_weights(pair):
    case, model, former, _ = pair
    if case.choices or case.shifts:
        pytest.skip("covered by the other heads")
    from formers.nn.attention.context import Capture

    given = draw_inputs(case)
    if case.family == "Roberta":
        given["keep"] = torch.ones_like(given["keep"])
        given["ids"][given["ids"] <= 2] = 9
    model.eval().set_attn_implementation("eager")
    former.model.eval()
    call = {"input_ids": given["ids"], "attention_mask": given["keep"].long(), "output_attentions": True}
    call |= rename_extra_inputs(given)
    if "target" in given:
        call |= {"decoder_input_ids": given["target"], "decoder_attention_mask": given["target_keep"].long()}
    with torch.no_grad():
        out, capture = model(**call), Capture(with_attention=True)
        former.model(former.pack_inputs(ModelInputs(**given))[0], capture=capture)
    model.set_attn_implementation("eager" if case.family == "SwitchTransformers" else "sdpa")
    kinds = {"encoder": ("encoder_attentions", given["keep"], given["keep"])} if case.pair else {}
    if case.pair:
        kinds |= {
            "decoder": ("decoder_attentions", given["target_keep"], given["target_keep"]),
            "cross": ("cross_attentions", given["target_keep"], given["keep"]),
        }
    else:
        kinds = {next(iter(capture.attention_weights)): ("attentions", given["keep"], given["keep"])}
    for kind, (name, queries, keys) in kinds.items():
        assert len(capture.attention_weights[kind]) == len(getattr(out, name))
        for got, want in zip(capture.attention_weights[kind], getattr(out, name), strict=True):
            real = queries[:, None, :, None] & keys[:, None, None, :]
            padded = torch.zeros_like(want)
            padded[..., : got.shape[-2], : got.shape[-1]] = got
            assert ((want - padded) * real).abs().max() <= 1e-5


def has_several_heads(case: Case) -> bool:
    """There is more than one head."""
    settings = make_config(case)
    names = ("n_head", "num_heads", "num_attention_heads", "encoder_attention_heads")
    return all(settings.get(name, 2) > 1 for name in names)


PRUNED = {(case.family, case.ending): case for case in CASES if has_several_heads(case)}


@pytest.mark.filterwarnings("ignore:layers .* share one block")
@pytest.mark.parametrize("case", PRUNED.values(), ids=lambda case: case.name)
def test_what_is_pruned_loads_in_transformers_and_agrees(case, tmp_path):
    model, given = build_reference(case).eval(), draw_inputs(case)
    model.save_pretrained(tmp_path / "hf")
    former = formers.load(tmp_path / "hf")
    if case.family == "Albert":  # a block that layers share loses the heads of all of them
        former.prune({0: [0]})
    else:
        prune_one_head_per_layer(former)
    formers.export(former, tmp_path / "out")
    again = type(model).from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        whole, want, got = (
            run_transformers(case, model, given),
            run_transformers(case, again, given),
            run_formers(former, given),
        )
    for name in want:
        assert (want[name] - whole[name]).abs().max() > 1e-3, "nothing was pruned"
        assert (want[name] - got[name]).abs().max() <= 1e-5, name


@pytest.mark.parametrize(("tied", "scaled", "shared"), [(1, 1, 1), (0, 1, 1), (1, 0, 1), (0, 0, 1), (0, 0, 0)])
def test_switch_transformers_however_tied(tied, scaled, shared, tmp_path):
    sizes = {"vocab": 40, "dim": 12, "layers": 2, "heads": 3, "head_dim": 4, "ff": 16, "sparse": 1, "capacity": 9}
    how = {"tied": bool(tied), "scaled": bool(scaled), "shared": bool(shared)}
    former = formers.build("switch", **sizes, **how)
    formers.export(former, tmp_path / "out")
    model = transformers.SwitchTransformersForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    ids, target = torch.tensor([[5, 6, 7, 1]]), torch.tensor([[0, 9, 8]])
    with torch.no_grad():
        want, got = model(input_ids=ids, decoder_input_ids=target).logits, former.logits(ids, target=target)
        assert (want - got).abs().max() <= 1e-5
        assert (formers.load(tmp_path / "out").logits(ids, target=target) - got).abs().max() <= 1e-5
