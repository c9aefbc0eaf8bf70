"""Splitting into words: the same in Python and in the Rust library; fastText's own numbers of n-grams."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.models import transformer_xl
from formers.registry import train_tokenizer
from formers.text.word_level import build_word_tokenizer, choose_cutoffs, hash_ngrams, split_words, train_words

HASHES = {
    "<a>": 1087600, "<wh": 167652, "where": 969176, "<한국": 1124397, "국>": 1787587, "café>": 761685, "é>": 1996781,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop: the long-term plan, i.e. 3%!", "don't stop : the long-term plan , i . e . 3 % !"),
        ("이 영화 정말 재미있어요!! ㅋㅋㅋ", "이 영화 정말 재미있어요 ! ! ㅋㅋㅋ"),
        ("“최고”의 영화…『기생충』、좋다。", "“ 최고 ” 의 영화 … 『 기생충 』 、 좋다 。"),
        ("a\u00a0b\u3000c\td\r\ne", "a b c d e"),
        ("'quoted' - dash -", "' quoted ' - dash -"),
        ("", ""),
    ],
)
def test_split(text, words):
    assert split_words(text) == words.split()
    assert split_words(unicodedata.normalize("NFD", text)) == words.split()


def test_case():
    assert split_words("Seoul ΟΔΟΣ", lower=False) == ["Seoul", "ΟΔΟΣ"]
    assert split_words("Seoul ΟΔΟΣ") == ["seoul", "οδοσ"]


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cn", "Co")), max_size=40))
def test_rust_splits_alike(text):
    words = split_words(text)
    known = [*dict.fromkeys(words), "[UNK]"]
    ids = build_word_tokenizer(known).encode(text)
    assert [known[i] for i in ids] == words


def test_a_tokenizer_of_words():
    made = build_word_tokenizer(["a", "b", "[UNK]"], lower=False)
    assert made.encode("a b A x") == [0, 1, 2, 2]
    assert made.decode([0, 1]) == "a b"
    assert made.id("unk") == 2


def test_grams():
    """fastText's numbers with 2,000,000 buckets, noted from gensim, which reads its files."""
    assert len(hash_ngrams("where", 3, 6, 100)) == 5 + 4 + 3 + 2
    assert len(hash_ngrams("한국", 1, 2, 100)) == 2 + 3  # no lone < and >
    assert hash_ngrams("", 3, 6, 100) == []
    assert hash_ngrams("a", 3, 3, 2_000_000) == [HASHES["<a>"]]
    for piece, number in HASHES.items():
        word = piece.strip("<>")
        assert number in hash_ngrams(word, 1, 6, 2_000_000), piece


def test_the_most_frequent_words_come_first():
    made = train_words(["b b b a a c", "b c c d"], 6, style=transformer_xl.STYLE)
    assert [made.get_token_text(i) for i in range(len(made))] == ["<eos>", "<unk>", "b", "c", "a", "d"]
    assert made.encode("a b x") == [4, 2, 1, 0]
    assert len(train_words(["b b a"], 60, style=transformer_xl.STYLE, min_count=2)) == 3
    made = train_tokenizer("words", ["don't, 'A'"], 60)
    assert made.decode(made.encode("don't A")) == "don't A"
    with pytest.raises(Error, match="leave no room"):
        train_words(["a"], 2, style=transformer_xl.STYLE)


def test_types_of_wikitext(data):
    """The figure others published: words seen fewer than 3 times are unknown, one end mark a line."""
    import lzma

    with lzma.open(data / "lm/wikitext2.train.txt.xz", "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")
    made = train_words(lines, 10**6, style=transformer_xl.STYLE, min_count=3)
    assert len(made) == 33278


def test_cutoffs():
    assert choose_cutoffs(267735) == (20000, 40000, 200000)
    assert choose_cutoffs(33278) == (2000, 5000, 20000)
    assert choose_cutoffs(10) == (1, 7) or all(0 < c < 10 for c in choose_cutoffs(10))
