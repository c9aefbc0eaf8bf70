"""Log-probabilities token by token: against plain logits, transformers' loss, any batch, windows and memories."""

from __future__ import annotations

import math

import pytest
import torch

from formers import Error
from formers.evaluation import likelihood
from formers.evaluation.likelihood import (
    Ending,
    can_share_prefixes,
    compute_ending_likelihoods,
    compute_id_log_probs,
    compute_likelihood,
)
from formers.registry import FAMILIES
from tests.small_models import TEXTS, build_embedding_model, build_language_model

LONG = " ".join([TEXTS[0], TEXTS[1]] * 6)


SPEAKERS = [n for n in FAMILIES if n not in ("vectors", "textcnn")]


@pytest.mark.parametrize("name", SPEAKERS)
def test_every_family_in_any_batch(name):
    f = build_language_model(name)
    texts = [(TEXTS[1], t) for t in TEXTS] if f.is_encoder_decoder else [*TEXTS, TEXTS[0] + " cat"]
    whole = compute_likelihood(f, texts, batch_size=8)
    ones = [compute_likelihood(f, text) for text in texts]
    for one, some, other in zip(ones, compute_likelihood(f, texts, batch_size=2), whole, strict=True):
        assert len(one.tokens) == len(one.log_probs) == len(one.spans)
        assert one.log_probs.isfinite().all()
        assert (one.log_probs <= 0).all()
        for found in (some, other):
            assert (found.log_probs - one.log_probs).abs().max() <= 1e-4 if len(one.log_probs) else True
            assert torch.equal(found.is_top, one.is_top)


def test_a_decoder_by_its_logits():
    f = build_language_model("gpt2")
    ids = f.tokenizer.encode(TEXTS[0], special=False)
    front = f.tokenizer.id("bos") if f.tokenizer.id("bos") is not None else f.config.bos
    with torch.inference_mode():
        scores = f.logits(torch.tensor([[front, *ids]]))[0, :-1].log_softmax(-1)
    found = compute_likelihood(f, TEXTS[0])
    torch.testing.assert_close(found.log_probs, scores[range(len(ids)), ids], rtol=0, atol=1e-5)
    assert found.total_log_prob == pytest.approx(float(scores[range(len(ids)), ids].sum()), abs=1e-4)
    assert found.perplexity == pytest.approx(math.exp(-found.total_log_prob / len(ids)))
    tail = compute_likelihood(f, [TEXTS[0]], char_starts=[len("The cat sat")])[0]
    assert TEXTS[0][tail.spans[0][0] :].startswith((" on", "on"))
    torch.testing.assert_close(tail.log_probs, found.log_probs[-len(tail.log_probs) :], rtol=0, atol=1e-5)


@pytest.mark.parametrize("stride", [None, 1, 7, 40, 99])
def test_strides(stride):
    f = build_language_model("gpt2")
    ids = [f.tokenizer.id("bos") if f.tokenizer.id("bos") is not None else f.config.bos]
    ids += f.tokenizer.encode(LONG, special=False)
    found = compute_likelihood(f, LONG, stride=stride)
    assert len(found.log_probs) == len(ids) - 1
    context, step = 40, min(stride or 20, 40)
    done, want = 0, []
    while done < len(ids) - 1:  # the loop of Hugging Face's guide to perplexity, by hand
        end = min(len(ids) - 1, done + (step if done else context))
        low = max(0, end - context)
        with torch.inference_mode():
            scores = f.logits(torch.tensor([ids[low:end]]))[0, done - low :].log_softmax(-1)
        want += scores[range(end - done), ids[done + 1 : end + 1]].tolist()
        done = end
    torch.testing.assert_close(found.log_probs, torch.tensor(want), rtol=0, atol=1e-5)


def test_rows_of_ids():
    f, xl = build_language_model("gpt2"), build_language_model("transformer_xl", memory=99)
    ids = [5, 9, 30, 7, 8]
    for g in (f, xl):
        with torch.inference_mode():
            want = g.logits(torch.tensor([ids]))[0, :-1].log_softmax(-1)[range(4), ids[1:]]
        for found in (*compute_id_log_probs(g, [ids]), *compute_id_log_probs(g, [ids], segment=2)):
            torch.testing.assert_close(found, want, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["transformer_xl", "xlnet"])
def test_memories(name, monkeypatch):
    f = build_language_model(name, memory=500)
    whole = compute_likelihood(f, [LONG, TEXTS[0]])
    monkeypatch.setattr("formers.evaluation.likelihood.SEGMENT_LENGTH", 9)
    parts = compute_likelihood(f, [LONG, TEXTS[0]])
    for a, b in zip(whole, parts, strict=True):  # with a memory as long as the text nothing is lost
        torch.testing.assert_close(a.log_probs, b.log_probs, rtol=0, atol=2e-4)
    short = compute_likelihood(f, LONG, memory_length=1)
    assert (short.log_probs - whole[0].log_probs).abs().max() > 1e-3


def test_masked_by_hand():
    f = build_language_model("bert")
    ids = f.tokenizer.encode(TEXTS[0])
    want = []
    for at in range(1, len(ids) - 1):
        row = list(ids)
        row[at] = f.tokenizer.id("mask")
        with torch.inference_mode():
            said = f.logits(torch.tensor([row]))
        said = said["mlm"] if isinstance(said, dict) else said
        want.append(float(said[0, at].log_softmax(-1)[ids[at]]))
    torch.testing.assert_close(
        compute_likelihood(f, TEXTS[0], batch_size=3).log_probs, torch.tensor(want), rtol=0, atol=1e-5
    )
    both = compute_likelihood(f, [TEXTS[0]], char_starts=[len(TEXTS[0]) - 8], mask_together=True)[0]
    assert both.log_probs.sum() != pytest.approx(sum(want[-len(both.log_probs) :]))
    assert len(compute_likelihood(f, LONG).log_probs) == len(f.tokenizer.encode(LONG, special=False))


@pytest.mark.parametrize(("name", "kind"), [("gpt2", "GPT2LMHeadModel"), ("bert", "BertForMaskedLM"), ("t5", "T5")])
def test_as_transformers(name, kind, tmp_path):
    import transformers

    import formers

    f = build_language_model(name)
    if name == "bert":
        formers.save(f, tmp_path / "own")
        f = formers.load(tmp_path / "own", head="mlm")
    formers.export(f, tmp_path / "hf")
    maker = transformers.AutoModelForSeq2SeqLM if name == "t5" else getattr(transformers, kind)
    theirs = maker.from_pretrained(tmp_path / "hf").eval()
    with torch.inference_mode():
        if name == "gpt2":
            ids = torch.tensor([[f.tokenizer.id("bos") or f.config.bos, *f.tokenizer.encode(TEXTS[0], special=False)]])
            loss = float(theirs(ids, labels=ids).loss)
            assert -compute_likelihood(f, TEXTS[0]).log_probs.mean() == pytest.approx(loss, abs=1e-5)
        elif name == "t5":
            source, target = (torch.tensor([f.tokenizer.encode(t)]) for t in (TEXTS[0], TEXTS[1]))
            loss = float(theirs(input_ids=source, labels=target).loss)
            assert -compute_likelihood(f, (TEXTS[0], TEXTS[1])).log_probs.mean() == pytest.approx(loss, abs=1e-5)
        else:
            ids = torch.tensor([f.tokenizer.encode(TEXTS[0])])
            hidden = ids.clone()
            hidden[0, 3] = f.tokenizer.id("mask")
            want = float(theirs(hidden).logits[0, 3].log_softmax(-1)[ids[0, 3]])
            assert float(compute_likelihood(f, TEXTS[0]).log_probs[2]) == pytest.approx(want, abs=1e-5)


def test_refusals():
    gpt, bert, t5 = build_language_model("gpt2"), build_language_model("bert"), build_language_model("t5")
    for call, word in (
        (lambda: compute_likelihood(build_embedding_model("bert"), "x"), "not a language model"),
        (lambda: compute_likelihood(gpt, ["x", 3]), "text 2"),
        (lambda: compute_likelihood(gpt, ["x"], char_starts=[1, 2]), "2 char_starts"),
        (lambda: compute_likelihood(gpt, "x", batch_size=0), "at least 1"),
        (lambda: compute_likelihood(t5, "x"), "not a pair"),
        (lambda: compute_likelihood(bert, [LONG], mask_together=True), "too long"),
    ):
        with pytest.raises(Error, match=word):
            call()
    assert compute_likelihood(gpt, "").total_log_prob == 0


def test_what_is_no_text_is_refused():
    bert = build_language_model("bert")
    for call in (lambda: bert.score(None), lambda: bert.fill(7), lambda: bert.score(b"cat"), lambda: bert.embed({})):
        with pytest.raises(Error, match="is not text"):
            call()


@pytest.mark.parametrize("name", SPEAKERS)
def test_endings_share_what_they_begin_with(name, monkeypatch):
    """Prompts of different lengths with endings of one and several tokens, read once and read whole."""
    monkeypatch.setattr(likelihood, "MIN_SHARED_PREFIX", 3)
    f = build_language_model(name)
    groups = [
        [Ending(f"{prompt}{ending}", len(prompt)) for ending in (" cat", " the dog", " 좋아요")]
        for prompt in ("The cat sat", "The cat sat on the mat.", "The cat was", "x")
    ]
    shared = compute_ending_likelihoods(f, groups, batch_size=3)
    for some, others in zip(shared, compute_ending_likelihoods(f, groups, share_prefixes=False), strict=True):
        for one, other in zip(some, others, strict=True):
            assert one.tokens == other.tokens
            torch.testing.assert_close(one.log_probs, other.log_probs, rtol=0, atol=1e-4)
            assert torch.equal(one.is_top, other.is_top)
    assert can_share_prefixes(f) == name.startswith(("gpt", "bloom"))
