"""Filling blanks: the likeliest tokens, pieces joined to their words, and what is said of texts without a blank."""

from __future__ import annotations

import pytest
import torch

import formers
from formers import Error
from formers.generation.fill import fill
from formers.registry import train_tokenizer
from tests.generation.small_decoders import build_decoder


def build_bert(head="mlm"):
    f = formers.build("bert", head=head, vocab=80, context=16, dim=16, layers=1, heads=2, ff=20, init=0.3)
    f.tokenizer = train_tokenizer("wordpiece", ["the cat sat on the mat", "the dog sat on the log"] * 3, 80)
    return f


@pytest.mark.parametrize("head", ["mlm", "pretraining"])
def test_fill(head):
    f = build_bert(head)
    guesses = fill(f, "the ___ sat", top_k=3)
    assert len(guesses) == 3
    assert guesses[0].probability >= guesses[1].probability >= guesses[2].probability > 0
    ids = f.tokenizer.encode("the [MASK] sat")
    logits = f.logits(torch.tensor([ids]))
    logits = logits if head == "mlm" else logits["mlm"]
    best = logits[0, ids.index(f.tokenizer.id("mask"))].softmax(-1)
    assert guesses[0].token == f.tokenizer.get_token_text(int(best.argmax()))
    assert guesses[0].probability == pytest.approx(best.max().item())
    assert fill(f, "the [MASK] sat", top_k=3) == guesses
    assert len(fill(f, "the ___ sat", top_k=1000)) == len(f.tokenizer) < 80


def test_a_piece_that_goes_on_is_joined_to_its_word():
    f = build_bert()
    found = {guess.token: guess.text for guess in fill(f, "the ___ sat", top_k=1000)}
    inside = [token for token in found if token.startswith("##")]
    assert inside
    for token in inside:
        assert found[token] == f"the{token[2:]} sat"
    assert found["the"] == "the the sat"
    assert found["[SEP]"] == "the [SEP] sat"
    two = {g.token: g.text for g in fill(f, "___ sat ___", top_k=1000)[1]}
    first = fill(f, "___ sat ___", top_k=1)[0][0].text.split()[0]
    assert two[inside[0]] == f"{first} sat{inside[0][2:]}"
    assert fill(f, "___ sat", top_k=1000)[0].text[:1].strip(), "nothing stands before the first word"


def test_fill_says_what_is_wrong():
    f = build_bert()
    for text in ("no blank", ["the ___", ""]):
        with pytest.raises(Error, match="the text has 0 blanks"):
            fill(f, text)
    with pytest.raises(Error, match="must be text"):
        fill(f, [1])
    with pytest.raises(Error, match="top_k must be at least 1"):
        fill(f, "the ___", top_k=0)
    with pytest.raises(Error, match="tokens are more than the context of 16"):
        fill(f, "___ " * 20)
    with pytest.raises(Error, match="does not fill. It can embed, inspect, neighbours"):
        fill(build_bert("none"), "the ___")
    with pytest.raises(Error, match="does not fill"):
        fill(build_decoder("gpt2"), "the ___")
    f.tokenizer = None
    with pytest.raises(Error, match="no mask token"):
        fill(f, "the ___")
