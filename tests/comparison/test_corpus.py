"""One corpus for all: its parts have no document in common, and the pieces are the same in every style."""

from __future__ import annotations

import pytest

from formers.comparison.corpus import read_part, train_common_tokenizer, write_corpus
from formers.comparison.settings import choose_text_form
from formers.errors import Error

DOCUMENTS = [
    f"Text number {n} has words. It goes on about {n * n} things! Does it end? 끝이 {n}번 있다." for n in range(60)
]


def test_the_parts(tmp_path):
    sizes = write_corpus([*DOCUMENTS, DOCUMENTS[0]], tmp_path / "corpus", 300)
    parts = {part: read_part(tmp_path / "corpus", part) for part in ("train", "valid", "test")}
    every = [text for texts in parts.values() for text in texts]
    assert len(set(every)) == len(every)
    assert all(parts.values())
    assert sum(len(text.split()) for text in parts["train"]) == sizes["train"]["words"] <= 300
    pairs = (tmp_path / "corpus" / "train.pairs.txt").read_text().splitlines()
    assert len(pairs) == 3 * len(parts["train"])
    assert all(line.count("\t") == 1 for line in pairs)
    short = read_part(tmp_path / "corpus", "train", 100)
    assert sum(map(len, short)) == 100


def test_too_little_text(tmp_path):
    with pytest.raises(Error, match="too few documents"):
        write_corpus(DOCUMENTS[:3], tmp_path / "corpus", None)
    assert not (tmp_path / "corpus").exists()


def test_the_same_pieces_in_every_style(tmp_path):
    write_corpus(DOCUMENTS, tmp_path / "corpus", None)
    text, pieces = "It has 17 things, 끝이 있다", {}
    for family in ("bert", "gpt", "gpt2", "t5", "xlnet", "transformer_xl"):
        tokenizer = train_common_tokenizer(choose_text_form(family), family, tmp_path / "corpus", 350)
        ids = tokenizer.backend.encode(text, add_special_tokens=False).ids
        pieces[family] = [tokenizer.get_token_text(i) for i in ids]
        assert len(tokenizer) == 350 + len(choose_special_tokens(family))
    assert len(pieces["gpt2"]) > 5
    assert all(row == pieces["gpt2"] for row in pieces.values())


def choose_special_tokens(family):
    from formers.registry import find_family

    return find_family(family).definition.tokenizer_style.special_tokens
