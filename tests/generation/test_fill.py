"""Filling blanks: the likeliest tokens, pieces joined to their words, and what is said of texts without a blank."""

from __future__ import annotations

import math

import pytest
import torch

import formers
from formers import Error
from formers.generation import fill as fill_module
from formers.generation.decoding import Hypothesis
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


def test_a_piece_that_continues_is_joined_to_its_word():
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


LINES = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog sat"] * 3


def build_span_model(family):
    """A random encoder-decoder with the tokenizer of its family."""
    kind = "bpe" if family == "bart" else "unigram"
    tokenizer = train_tokenizer(kind, LINES, 400, style=family)
    f = formers.build(family, head="lm", vocab=len(tokenizer), dim=16, layers=1, heads=2, ff=20, init=0.3, seed=3,
                      pad=tokenizer.id("pad"), eos=tokenizer.id("eos"),
                      **({"context": 40, "bos": tokenizer.id("bos"), "start": tokenizer.id("eos")}
                         if family == "bart" else {"head_dim": 8, "start": tokenizer.id("pad")}),
                      **({"sparse": 1, "decoder_sparse": 1, "experts": 2} if family == "switch" else {}))  # fmt: skip
    f.tokenizer = tokenizer
    return f


@pytest.mark.parametrize("family", ["t5", "mt5", "switch"])
def test_t5_fills_a_blank_with_several_pieces(family):
    f = build_span_model(family)
    guesses = f.fill("the cat ___ the mat", top_k=3)
    assert len(guesses) == 3
    assert guesses[0].probability >= guesses[1].probability >= guesses[2].probability > 0
    assert all(guess.text == f"the cat {guess.token} the mat" for guess in guesses)
    assert f.fill("the cat <extra_id_0> the mat", top_k=3) == guesses


def test_t5_fills_several_blanks_one_after_the_other():
    f = build_span_model("t5")
    first, second = f.fill("the ___ sat on ___", top_k=2)
    assert first[0].text == second[0].text == f"the {first[0].token} sat on {second[0].token}"
    assert second[1].text.startswith(f"the {first[0].token} sat on ")
    both = f.fill(["a ___", "the ___ sat on ___"], top_k=2)
    assert both[1] == [first, second]


def test_bart_fills_a_blank_where_the_text_continues():
    f = build_span_model("bart")
    guesses = f.fill("the cat ___ the mat", top_k=3)
    assert 1 <= len(guesses) <= 3
    assert all(guess.text == f"the cat {guess.token} the mat" for guess in guesses)
    assert f.fill(f"the cat {f.tokenizer.special['mask']} the mat", top_k=3) == guesses
    first, second = f.fill("the ___ sat on ___", top_k=2)
    assert first[0].text == second[0].text == f"the {first[0].token} sat on {second[0].token}"


@pytest.mark.parametrize("family", ["t5", "switch", "bart"])
def test_a_span_of_several_pieces_ends_where_the_text_continues(family):
    """A model that has learned a text by heart restores what is hidden, and nothing more."""
    f = build_span_model(family)
    if family != "bart":
        source, target = (f.tokenizer.encode(text) for text in
                          ("a <extra_id_0> sat", "<extra_id_0> cat and a dog<extra_id_1>"))  # fmt: skip
        asked = slice(1, -1)  # after the sentinel, with the next one
    else:
        source, target = (f.tokenizer.encode(text) for text in
                          (f"a {f.tokenizer.special['mask']} sat", "a cat and a dog sat"))  # fmt: skip
        asked = slice(len(f.tokenizer.encode("a")) - 1, -1)
    optimizer = torch.optim.Adam(f.model.parameters(), 1e-2)
    for _ in range(80):
        logits = f.logits(torch.tensor([source]), target=torch.tensor([[f.config.start, *target[:-1]]]))[0]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, torch.tensor(target)).backward()
        optimizer.step()
    best = f.fill("a ___ sat")[0]
    assert (best.token, best.text) == ("cat and a dog", "a cat and a dog sat")
    with torch.no_grad():
        logits = f.logits(torch.tensor([source]), target=torch.tensor([[f.config.start, *target[:-1]]]))[0]
    chances = logits.log_softmax(-1)[torch.arange(len(target)), torch.tensor(target)]
    assert best.probability == pytest.approx(math.exp(chances[asked].sum()), rel=1e-2)


def test_equal_spans_of_other_pieces_are_one_guess(monkeypatch):
    f = build_span_model("t5")
    whole, cut = f.tokenizer.encode("cat", special=False), [f.tokenizer.backend.token_to_id(x) for x in ("▁", *"cat")]
    assert whole != cut
    assert None not in cut
    found = [Hypothesis(ids, math.log(p)) for ids, p in ((whole, 0.5), (cut, 0.25))]
    monkeypatch.setattr(fill_module, "decode_batch", lambda batch, constraints: [found])
    (guess,) = f.fill("the ___ sat")
    assert (guess.token, guess.probability) == ("cat", pytest.approx(0.75))


def test_spans_say_what_is_wrong():
    for family in ("t5", "bart"):
        f = build_span_model(family)
        with pytest.raises(Error, match="0 blanks|no mask token"):
            f.fill("no blank")
        with pytest.raises(Error, match="must be text"):
            f.fill([1])
        f.task = {"name": "translate"}
        with pytest.raises(Error, match="does not fill"):
            f.fill("the ___")
    f = build_span_model("t5")
    with pytest.raises(Error, match="no <extra_id_100> for a text of 100 blanks"):
        f.fill("___ a " * 100)
