"""Log-probabilities token by token: against plain logits, transformers' loss, any batch, windows and memories."""

from __future__ import annotations

import math

import pytest
import torch

from formers import Error
from formers.inspection.likelihood import likelihood, likelihood_ids
from formers.registry import MEMBERS
from tests.inspection.test_embed import TEXTS, member
from tests.inspection.test_embed import tokenizer_of as tokenizer
from tests.models.test_family import make

LONG = " ".join([TEXTS[0], TEXTS[1]] * 6)


def speaker(name, **more):
    """A small member with its pretraining head, and a tokenizer."""
    sizes = {"vocab": 400, "cutoffs": (), "characters": 262, "slots": 50, "context": 40, **more}
    known = {k: v for k, v in sizes.items() if hasattr(MEMBERS[name].family.config(), k)}
    f = make(name, **known)
    f.tokenizer = tokenizer(f)
    return f


SPEAKERS = [n for n in MEMBERS if n not in ("vectors", "textcnn")]


@pytest.mark.parametrize("name", SPEAKERS)
def test_every_family_in_any_batch(name):
    f = speaker(name)
    texts = [(TEXTS[1], t) for t in TEXTS] if f.pair else [*TEXTS, TEXTS[0] + " cat"]
    whole = likelihood(f, texts, batch=8)
    ones = [likelihood(f, text) for text in texts]
    for one, some, other in zip(ones, likelihood(f, texts, batch=2), whole, strict=True):
        assert len(one.tokens) == len(one.logs) == len(one.spans)
        assert one.logs.isfinite().all()
        assert (one.logs <= 0).all()
        for found in (some, other):
            assert (found.logs - one.logs).abs().max() <= 1e-4 if len(one.logs) else True
            assert torch.equal(found.right, one.right)


def test_a_decoder_by_its_logits():
    f = speaker("gpt2")
    ids = f.tokenizer.encode(TEXTS[0], special=False)
    front = f.tokenizer.id("bos") if f.tokenizer.id("bos") is not None else f.config.bos
    with torch.inference_mode():
        scores = f.logits(torch.tensor([[front, *ids]]))[0, :-1].log_softmax(-1)
    found = likelihood(f, TEXTS[0])
    torch.testing.assert_close(found.logs, scores[range(len(ids)), ids], rtol=0, atol=1e-5)
    assert found.total == pytest.approx(float(scores[range(len(ids)), ids].sum()), abs=1e-4)
    assert found.perplexity == pytest.approx(math.exp(-found.total / len(ids)))
    tail = likelihood(f, [TEXTS[0]], begins=[len("The cat sat")])[0]
    assert TEXTS[0][tail.spans[0][0] :].startswith((" on", "on"))
    torch.testing.assert_close(tail.logs, found.logs[-len(tail.logs) :], rtol=0, atol=1e-5)


@pytest.mark.parametrize("stride", [None, 1, 7, 40, 99])
def test_strides(stride):
    f = speaker("gpt2")
    ids = [f.tokenizer.id("bos") if f.tokenizer.id("bos") is not None else f.config.bos]
    ids += f.tokenizer.encode(LONG, special=False)
    found = likelihood(f, LONG, stride=stride)
    assert len(found.logs) == len(ids) - 1
    context, step = 40, min(stride or 20, 40)
    done, want = 0, []
    while done < len(ids) - 1:  # the loop of Hugging Face's guide to perplexity, by hand
        end = min(len(ids) - 1, done + (step if done else context))
        low = max(0, end - context)
        with torch.inference_mode():
            scores = f.logits(torch.tensor([ids[low:end]]))[0, done - low :].log_softmax(-1)
        want += scores[range(end - done), ids[done + 1 : end + 1]].tolist()
        done = end
    torch.testing.assert_close(found.logs, torch.tensor(want), rtol=0, atol=1e-5)


def test_rows_of_ids():
    f, xl = speaker("gpt2"), speaker("transformer_xl", memory=99)
    ids = [5, 9, 30, 7, 8]
    for g in (f, xl):
        with torch.inference_mode():
            want = g.logits(torch.tensor([ids]))[0, :-1].log_softmax(-1)[range(4), ids[1:]]
        for found in (*likelihood_ids(g, [ids]), *likelihood_ids(g, [ids], segment=2)):
            torch.testing.assert_close(found, want, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["transformer_xl", "xlnet"])
def test_memories(name, monkeypatch):
    f = speaker(name, memory=500)
    whole = likelihood(f, [LONG, TEXTS[0]])
    monkeypatch.setattr("formers.inspection.likelihood.SEGMENT", 9)
    parts = likelihood(f, [LONG, TEXTS[0]])
    for a, b in zip(whole, parts, strict=True):  # with a memory as long as the text nothing is lost
        torch.testing.assert_close(a.logs, b.logs, rtol=0, atol=2e-4)
    short = likelihood(f, LONG, memory=1)
    assert (short.logs - whole[0].logs).abs().max() > 1e-3


def test_masked_by_hand():
    f = speaker("bert")
    ids = f.tokenizer.encode(TEXTS[0])
    want = []
    for at in range(1, len(ids) - 1):
        row = list(ids)
        row[at] = f.tokenizer.id("mask")
        with torch.inference_mode():
            said = f.logits(torch.tensor([row]))
        said = said["mlm"] if isinstance(said, dict) else said
        want.append(float(said[0, at].log_softmax(-1)[ids[at]]))
    torch.testing.assert_close(likelihood(f, TEXTS[0], batch=3).logs, torch.tensor(want), rtol=0, atol=1e-5)
    both = likelihood(f, [TEXTS[0]], begins=[len(TEXTS[0]) - 8], together=True)[0]
    assert both.logs.sum() != pytest.approx(sum(want[-len(both.logs) :]))
    assert len(likelihood(f, LONG).logs) == len(f.tokenizer.encode(LONG, special=False))


@pytest.mark.parametrize(("name", "kind"), [("gpt2", "GPT2LMHeadModel"), ("bert", "BertForMaskedLM"), ("t5", "T5")])
def test_as_transformers(name, kind, tmp_path):
    import transformers

    import formers

    f = speaker(name)
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
            assert -likelihood(f, TEXTS[0]).logs.mean() == pytest.approx(loss, abs=1e-5)
        elif name == "t5":
            source, target = (torch.tensor([f.tokenizer.encode(t)]) for t in (TEXTS[0], TEXTS[1]))
            loss = float(theirs(input_ids=source, labels=target).loss)
            assert -likelihood(f, (TEXTS[0], TEXTS[1])).logs.mean() == pytest.approx(loss, abs=1e-5)
        else:
            ids = torch.tensor([f.tokenizer.encode(TEXTS[0])])
            hidden = ids.clone()
            hidden[0, 3] = f.tokenizer.id("mask")
            want = float(theirs(hidden).logits[0, 3].log_softmax(-1)[ids[0, 3]])
            assert float(likelihood(f, TEXTS[0]).logs[2]) == pytest.approx(want, abs=1e-5)


def test_refusals():
    gpt, bert, t5 = speaker("gpt2"), speaker("bert"), speaker("t5")
    for call, word in (
        (lambda: likelihood(member("bert"), "x"), "no language model"),
        (lambda: likelihood(gpt, ["x", 3]), "text 2"),
        (lambda: likelihood(gpt, ["x"], begins=[1, 2]), "2 begins"),
        (lambda: likelihood(gpt, "x", batch=0), "at least 1"),
        (lambda: likelihood(t5, "x"), "no pair"),
        (lambda: likelihood(bert, [LONG], together=True), "too long"),
    ):
        with pytest.raises(Error, match=word):
            call()
    assert likelihood(gpt, "").total == 0


def test_what_is_no_text_is_refused():
    bert = speaker("bert")
    for call in (lambda: bert.score(None), lambda: bert.fill(7), lambda: bert.score(b"cat"), lambda: bert.embed({})):
        with pytest.raises(Error, match="is no text"):
            call()
