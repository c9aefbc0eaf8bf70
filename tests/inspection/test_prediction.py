"""Predictions of every family: they are the likelihood that scoring computes, and the last layer's is the answer."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch

from formers import Error
from formers.evaluation.likelihood import compute_likelihood
from formers.inspection.prediction import predict_tokens
from formers.inspection.recording import find_final_norm, record_pass
from formers.inspection.sides import encode_inputs
from formers.registry import FAMILIES
from formers.verbs import LM_PARTS
from tests.small_models import get_verb_model as model

TEXT = "the cat sat on the mat"
LANGUAGE_MODELS = [
    (name, head) for name in FAMILIES for head in ("lm", "mlm", "pretraining", "double")
    if head in FAMILIES[name].definition.build_heads(FAMILIES[name].definition.config_class())
    and not (head == "lm" and FAMILIES[name].definition.can_be_causal and not FAMILIES[name].definition.is_two_stream)
]  # fmt: skip


def predict(f, text=TEXT, second=None, **how):
    return predict_tokens(f, encode_inputs(f, text, second), **how)


@pytest.mark.parametrize(("name", "head"), LANGUAGE_MODELS)
def test_surprisal_is_the_likelihood(name, head):
    """-log p of every token that scoring counts, which reads the text without a template around it."""
    f = model(name, head)
    made = predict(f, second="the mat" if f.is_encoder_decoder else None)
    want = compute_likelihood(f, (TEXT, "the mat") if f.is_encoder_decoder else TEXT).log_probs
    tokens = encode_inputs(f, TEXT, "the mat" if f.is_encoder_decoder else None).sides[made.side].tokens
    if name == "xlnet":  # the template's marks follow the text, and scoring begins with one
        ids = encode_inputs(f, TEXT).batch.ids[None]
        segments = torch.tensor([encode_inputs(f, TEXT).sides["text"].segments])
        with torch.no_grad():
            logits = f.logits(ids, segments=segments, order=torch.arange(len(tokens))[None])[0].log_softmax(-1)
        torch.testing.assert_close(made.log_probs, logits.gather(1, ids[0, :, None])[:, 0], atol=1e-5, rtol=1e-5)
        return
    if name == "elmo":
        want = want[: len(made.log_probs)]
    got = made.log_probs[: len(want)] if head in ("mlm", "pretraining") else made.log_probs[-len(want) :]
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(made.surprisal, -made.log_probs / math.log(2))
    assert all(0 <= position < len(tokens) for position in (*made.positions, *made.targets))


@pytest.mark.parametrize(("name", "head"), LANGUAGE_MODELS)
def test_the_last_layer_read_by_the_norm_and_the_head_is_the_answer(name, head):
    """The states of the last layer are those before the final norm: the norm is computed again."""
    f = model(name, head)
    second = "the mat" if f.is_encoder_decoder else None
    inputs = encode_inputs(f, TEXT, second)
    part = LM_PARTS[head]
    order = torch.arange(len(inputs.label_ids)) if f.is_two_stream else None
    recording = record_pass(f, inputs, order, with_hidden=True)
    made = predict_tokens(f, inputs, masked=False)
    if name in ("seq2seq", "gnmt"):
        assert not made.layers  # their layers have other widths than their output
        return
    with torch.no_grad():
        last = (recording.states.get("query") or recording.states.get("decoder") or recording.states["encoder"])[-1]
        norm = find_final_norm(f.model.body)
        assert (norm is not None) == ((recording.hidden - last).abs().max() > 1e-3)
        read = f.model.logits(last if norm is None else norm(last), part=part)
        assert torch.equal(read, f.model.logits(recording.hidden, part=part))
    assert [layer.layer for layer in made.layers] == list(range(f.config.layers + 1))
    assert made.layers[-1].kl_to_final.max() <= 1e-6
    torch.testing.assert_close(made.layers[-1].probability, made.log_probs.exp(), atol=1e-6, rtol=0)
    assert [row[0].id for row in made.layers[-1].top] == [row[0].id for row in made.top]
    assert made.layers[0].kl_to_final.max() > 1e-4
    assert not made.layers[0].is_changed.any()
    before, after = made.layers[-2], made.layers[-1]
    pairs = zip(before.top, after.top, strict=True)
    assert after.is_changed.tolist() == [a[0].id != b[0].id for a, b in pairs]


def test_a_masked_token_is_predicted_without_itself():
    f = model("bert", "mlm")
    ids = f.tokenizer.encode(TEXT)
    made = predict(f)
    assert made.method == "masked"
    for at, log_prob, row in zip(made.positions, made.log_probs, made.top, strict=True):
        hidden = torch.tensor([ids])
        hidden[0, at] = f.tokenizer.id("mask")
        with torch.no_grad():
            want = f.logits(hidden)[0, at].log_softmax(-1)
        assert log_prob == pytest.approx(float(want[ids[at]]), abs=1e-5)
        assert row[0].probability == pytest.approx(float(want[: len(f.tokenizer)].max().exp()), abs=1e-5)
    plain = predict(f, masked=False)
    assert plain.method == "unmasked"
    assert not torch.allclose(plain.log_probs, made.log_probs)
    long = " ".join([TEXT] * 5)
    assert predict(f, long).method == "masked"


def test_a_long_text_is_not_hidden_token_by_token(monkeypatch):
    monkeypatch.setattr("formers.inspection.effort.MAX_DEFAULT_FLOPS", {False: 10.0})
    f = model("bert", "mlm")
    assert predict(f).method == "unmasked"
    assert predict(f, masked=True).method == "masked"


def test_blanks_have_no_right_token():
    f = model("bert", "mlm")
    made = predict(f, "the ___ sat")
    blank = made.positions.index(2)
    assert made.log_probs[blank].isnan()
    assert made.log_probs[[i for i in range(len(made.positions)) if i != blank]].isfinite().all()
    guesses = f.fill("the ___ sat")
    assert [one.text for one in made.top[blank]] == [one.token for one in guesses]
    assert made.to_dict()["surprisal"][blank] is None


def test_what_comes_next():
    f = model("gpt2", "lm")
    inputs = encode_inputs(f, TEXT)
    made = predict_tokens(f, inputs)
    with torch.no_grad():
        best = f.logits(inputs.batch.ids[None])[0, -1, : len(f.tokenizer)].argmax()
    assert made.next[0].id == int(best)
    assert made.positions == list(range(len(inputs.label_ids) - 1))
    assert made.targets == [at + 1 for at in made.positions]


def test_heads_of_tasks_give_labels():
    f = model("bert", "classify")
    made = predict(f)
    assert made.method == "labels"
    want = f.classify(TEXT)
    assert made.labels[0].text == want.label
    assert sum(one.probability for one in made.labels) == pytest.approx(1.0)
    tags = predict(model("bert", "tag"))
    assert len(tags.top) == len(tags.positions) == 8
    answers = predict(model("bert", "answer"))
    assert {one.text for one in answers.top[0]} == {"start", "end"}
    assert sum(next(c.probability for c in row if c.text == "start") for row in answers.top) == pytest.approx(1.0)
    assert predict(model("bert", "none")) is None


def test_a_masked_model_without_a_mask_token():
    f = model("bert", "mlm")
    f = dataclasses.replace(f, tokenizer=copy.copy(f.tokenizer))
    f.tokenizer.special = {role: token for role, token in f.tokenizer.special.items() if role != "mask"}
    with pytest.raises(Error, match="no mask token"):
        f.inspect(TEXT, views="prediction")
