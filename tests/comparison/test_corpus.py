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
    with pytest.raises(Error, match="too little text"):
        write_corpus(DOCUMENTS[:1], tmp_path / "corpus", None)
    assert not (tmp_path / "corpus").exists()


def test_few_documents_are_cut_into_sections_of_whole_sentences(tmp_path):
    """A book without blank lines can be raced on; nothing of it is lost."""
    book = " ".join(DOCUMENTS)
    sizes = write_corpus([book, "A short one."], tmp_path / "corpus", None)
    sections = [text for part in ("train", "valid", "test") for text in read_part(tmp_path / "corpus", part)]
    assert sizes["cut_documents"] == 2
    assert len(sections) >= 20
    assert sorted(" ".join(sections).split()) == sorted(f"{book} A short one.".split())
    assert all(text[-1] in ".!?" for text in sections)
    assert write_corpus(DOCUMENTS, tmp_path / "whole", None)["cut_documents"] == 0


def test_the_fingerprint_is_of_text_and_split(tmp_path):
    marks = [
        write_corpus(documents, tmp_path / str(number), words)["fingerprint"]
        for number, (documents, words) in enumerate([(DOCUMENTS, None), (DOCUMENTS, 300), (DOCUMENTS[::-1], None)])
    ]
    assert len(set(marks)) == 3
    assert write_corpus(DOCUMENTS, tmp_path / "again", None)["fingerprint"] == marks[0]


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
