"""Attention of a text, and models that have none."""

from __future__ import annotations

import pytest
import torch

import formers
from formers import Error
from formers.inspection.attention import attention
from formers.registry import train_tokenizer

TOKENIZER = train_tokenizer("wordpiece", ["the cat sat on the mat"] * 3, 60)


@pytest.mark.parametrize(
    ("family", "kinds"),
    [("gpt2", ["decoder"]), ("bert", ["encoder"]), ("t5", ["encoder", "decoder", "cross"])],
    ids=["gpt2", "bert", "t5"],
)
def test_attention(family, kinds):
    more = {"ff": 16} if family != "t5" else {"ff": 16, "head_dim": 4}
    f = formers.build(family, vocab=60, dim=8, layers=2, heads=2, **more)
    f.tokenizer = TOKENIZER
    looked = attention(f, "the cat sat")
    pieces = ["the", "cat", "sat"] if family == "gpt2" else ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert looked.tokens == pieces  # a language model's text has no template around it
    assert list(looked.weights) == kinds
    table = looked.weights[kinds[0]]
    assert table.shape == (2, 2, len(looked.tokens), len(looked.tokens))
    torch.testing.assert_close(table.sum(-1), torch.ones(table.shape[:-1]))
    assert (table.triu(1).abs().sum() == 0) == (family == "gpt2")
    size = len(pieces)
    shown = f"Attention({size} pieces: {' '.join(pieces)}; weights['{kinds[0]}'] (2, 2, {size}, {size})"
    assert repr(looked).startswith(shown)
    assert "…; weights" in repr(attention(f, "the cat sat " * 9))
    with pytest.raises(Error, match="no tokenizer"):
        attention(formers.build(family, vocab=60, dim=8, layers=1, heads=2, **more), "x")


@pytest.mark.parametrize("family", ["seq2seq", "textcnn"])
def test_no_attention_to_look_at(family):
    f = formers.build(family, vocab=60, embed=8)
    f.tokenizer = TOKENIZER
    with pytest.raises(Error, match=f"{family} has no attention within a text"):
        attention(f, "the cat sat")


def test_elmo_has_no_attention():
    f = formers.build("elmo", vocab=60, dim=8, cell=8, layers=1, char_dim=4, filters=[[1, 4]], highways=1)
    f.tokenizer = TOKENIZER
    with pytest.raises(Error, match="elmo has no attention within a text"):
        attention(f, "the cat sat")
