"""Attributions of every family: completeness, occlusion and value zeroing by hand, contrast, deletion curves."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from formers import Error
from formers.inspection.attribution import METHODS, Explainer, attribute, choose_target
from formers.inspection.sides import encode_inputs
from formers.nn.head_pruning import find_attentions
from formers.registry import FAMILIES
from tests.small_models import get_verb_model as model

SENTENCES = ["the cat sat on the mat", "오늘은 날씨가 좋습니다", "log the cat"]
HEADS = [
    (name, head) for name, member in FAMILIES.items() if name != "vectors"
    for head in (member.definition.pretraining_head, "classify")
    if head in member.definition.build_heads(member.definition.config_class()) and (name, head) not in (
        ("bart", "classify"), ("mbart", "classify"))  # their end mark is no token of the test's tokenizer
]  # fmt: skip


def explain(f, text=SENTENCES[0], second=None, **how):
    return attribute(f, encode_inputs(f, text, second), **how)


@pytest.mark.parametrize(("name", "head"), dict.fromkeys(HEADS))
def test_integrated_gradients_are_complete(name, head):
    """The attributions sum to what the tokens change, to 1 %, on both sides together."""
    if name == "switch":
        pytest.skip("a token that changes its expert on the way makes the value jump: there is nothing to integrate")
    f = model(name, head)
    for text in SENTENCES:
        second = "the mat" if f.is_encoder_decoder and head != "classify" else None
        made = explain(f, text, second, methods=["integrated_gradients"])
        scores = made.methods["integrated_gradients"]
        total = sum(float(values.sum()) for values in scores.sides.values())
        assert scores.gap <= 0.01
        change = made.value - made.baseline
        assert total == pytest.approx(change, abs=0.011 * abs(change) + 1e-5)
        assert set(scores.sides) == set(encode_inputs(f, text, second).sides)
        for side, values in scores.sides.items():
            special = [token.is_special for token in encode_inputs(f, text, second).sides[side].tokens]
            assert not values[special].any()


@pytest.mark.parametrize(("name", "head"), dict.fromkeys(HEADS))
def test_every_method_has_a_deletion_curve(name, head):
    f = model(name, head)
    made = explain(f)
    attentive = bool(find_attentions(f.model.body))
    assert list(made.methods) == [m for m in METHODS if attentive or m != "value_zeroing"]
    for scores in made.methods.values():
        curve = scores.deletion
        assert curve.shares[0] == 0
        assert curve.shares[-1] == 1
        assert curve.score[0] == pytest.approx(made.value, abs=1e-5)
        assert curve.random[0] == pytest.approx(made.value, abs=1e-5)
        assert curve.score[-1] == pytest.approx(made.baseline, abs=1e-4)
        assert curve.random[-1] == pytest.approx(made.baseline, abs=1e-4)
        assert all(values.isfinite().all() for values in scores.sides.values())


def test_occlusion_by_hand():
    """A masked model's token, with each other token replaced by padding in turn."""
    f = model("bert", "mlm")
    ids = f.tokenizer.encode(SENTENCES[0])
    made = explain(f, position=2)
    hidden = torch.tensor([ids])
    hidden[0, 2] = f.tokenizer.id("mask")
    assert made.target.id == ids[2]
    with torch.no_grad():
        value = f.logits(hidden)[0, 2, ids[2]]
        assert made.value == pytest.approx(float(value), abs=1e-5)
        for at in (1, 3, 5):
            other = hidden.clone()
            other[0, at] = f.tokenizer.id("pad")
            drop = value - f.logits(other)[0, 2, ids[2]]
            assert made.methods["occlusion"].sides["text"][at] == pytest.approx(float(drop), abs=1e-5)
    assert made.methods["occlusion"].sides["text"][[0, 2, 7]].abs().sum() == 0  # marks and the hidden token itself
    assert made.replacement == "[PAD]"


def test_value_zeroing_by_hand():
    """No token reads from one whose values are zero: the same as weights of zero in every layer."""
    f = model("gpt2", "lm")
    inputs = encode_inputs(f, SENTENCES[0])
    made = attribute(f, inputs, methods=["value_zeroing"])
    at = 3
    hooks = []
    for block in f.model.body.blocks:

        def drop(module, given, output):
            q, k, v = output.chunk(3, -1)
            v = v.clone()
            v[at] = 0.0
            return torch.cat((q, k, v), -1)

        hooks.append(block.attn.qkv.register_forward_hook(drop))
    with torch.no_grad():
        value = f.model.logits(f.model(inputs.batch))[-1, made.target.id]
    for hook in hooks:
        hook.remove()
    assert made.methods["value_zeroing"].sides["text"][at] == pytest.approx(made.value - float(value), abs=1e-5)


def test_gradients_by_hand():
    f = model("gpt2", "lm")
    inputs = encode_inputs(f, SENTENCES[0])
    made = attribute(f, inputs, methods=["input_x_gradient"])
    table = f.model.body.embed.token
    x = table(inputs.batch.ids).detach().requires_grad_()
    hook = table.register_forward_hook(lambda module, given, output: x)
    value = f.model.logits(f.model(inputs.batch))[-1, made.target.id]
    hook.remove()
    want = (torch.autograd.grad(value, x)[0] * x).sum(-1).detach()
    got = made.methods["input_x_gradient"].sides["text"]
    removable = [i for i, token in enumerate(inputs.sides["text"].tokens) if not token.is_special]
    torch.testing.assert_close(got[removable], want[removable], atol=1e-6, rtol=1e-4)


def test_a_contrast_is_the_difference_of_two():
    f = model("gpt2", "lm")
    first, second = (explain(f, target=name, methods=["occlusion"]) for name in (" the", "t"))
    both = explain(f, target=" the", contrast="t", methods=["occlusion", "integrated_gradients"])
    assert both.value == pytest.approx(first.value - second.value, abs=1e-5)
    want = first.methods["occlusion"].sides["text"] - second.methods["occlusion"].sides["text"]
    torch.testing.assert_close(both.methods["occlusion"].sides["text"], want, atol=1e-5, rtol=0)
    assert both.methods["integrated_gradients"].gap <= 0.01
    assert both.to_dict()["target"]["contrast"]["text"] == "t"
    labels = explain(model("bert", "classify"), target="LABEL_1", contrast="LABEL_0", methods=["occlusion"])
    assert labels.target.text == "LABEL_1"


def test_a_decoder_reads_nothing_that_follows():
    f = model("gpt2", "lm")
    inputs = encode_inputs(f, SENTENCES[0])
    made = attribute(f, inputs, position=3)
    for scores in made.methods.values():
        assert not scores.sides["text"][3:].any()
    assert made.target.id == inputs.label_ids[3]


def test_both_sides_of_an_encoder_decoder():
    f = model("t5", "lm")
    made = explain(f, second="the mat sat", position=3, methods=["occlusion"])
    sides = made.methods["occlusion"].sides
    assert sides["source"].abs().max() > 0
    assert sides["target"][1:3].abs().max() > 0
    assert not sides["target"][3:].any()


def test_a_faithful_order_falls_faster_than_chance():
    """Removing what occlusion calls important hurts more than random removal, on a model with one decisive token."""
    f = model("textcnn", "classify")
    made = explain(f, "the cat sat on the mat and the log", methods=["occlusion"])
    curve = made.methods["occlusion"].deletion
    assert curve.score[1:6].mean() < curve.random[1:6].mean()


def test_nothing_replaced_is_the_text_bit_for_bit():
    f = model("bert", "mlm")
    with torch.no_grad():
        explainer = Explainer(f, *choose_target(f, encode_inputs(f, SENTENCES[0]), None, None, 2))
        batch = explainer.inputs.get_batch()
        want = f.model.logits(f.model(batch)[[2]], part="mlm")[0, explainer.target.id]
        assert torch.equal(explainer.compute_values(explainer.make_shares(1))[0], want)


def test_refusals():
    f = model("gpt2", "lm")
    for how, word in (
        ({"target": "the cat sat"}, "is not one token but"), ({"target": -1}, "is not a token"),
        ({"position": 0}, "is not predicted"), ({"position": 99}, "is not predicted"),
        ({"methods": ["shap"]}, "no attribution 'shap'"),
    ):  # fmt: skip
        with pytest.raises(Error, match=word):
            explain(f, **how)
    with pytest.raises(Error, match="no label 'good'"):
        explain(model("bert", "classify"), target="good")
    assert explain(model("bert", "none")) is None


@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_a_frozen_model_has_no_gradients(kind):
    """Gradients through prepacked layers would be wrong in silence."""
    f = model("bert", "mlm")
    f = dataclasses.replace(f, model=copy.deepcopy(f.model)).freeze(kind)
    with pytest.raises(Error, match="frozen for inference has no gradients"):
        explain(f)
    assert explain(f, methods=["occlusion", "value_zeroing"]).methods["occlusion"].sides["text"].abs().max() > 0
    view = f.inspect(SENTENCES[0])
    assert (view.attention["encoder"].value_norms is None) == (kind == "int8")
    assert view.to_dict()["attention"]["encoder"]["weights"]
