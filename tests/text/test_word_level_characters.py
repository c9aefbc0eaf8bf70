"""Words as characters: hand-made examples."""

from __future__ import annotations

import numpy as np
import pytest

from formers import Error
from formers.registry import train_tokenizer
from formers.text import word_level


def pad_ids(*ids):
    return [*ids, *[261] * (50 - len(ids))]


def test_words_by_hand():
    assert word_level.encode_word("cat") == pad_ids(259, 100, 98, 117, 260)
    # 한 is ED 95 9C in UTF-8; every byte counts one more
    assert word_level.encode_word("한") == pad_ids(259, 0xED + 1, 0x95 + 1, 0x9C + 1, 260)
    assert word_level.encode_word("é!") == pad_ids(259, 0xC3 + 1, 0xA9 + 1, 0x21 + 1, 260)
    assert word_level.encode_word("\x00\x7f") == pad_ids(259, 1, 128, 260)


def test_sentences_by_hand():
    rows = word_level.encode_sentence(["I", "가"])
    assert rows.shape == (4, 50)
    assert rows.dtype == np.int64
    assert rows[0].tolist() == pad_ids(259, 257, 260)
    assert rows[1].tolist() == pad_ids(259, 74, 260)
    assert rows[2].tolist() == pad_ids(259, 0xEA + 1, 0xB0 + 1, 0x80 + 1, 260)
    assert rows[3].tolist() == pad_ids(259, 258, 260)
    assert word_level.encode_sentence(["I"], marks=False).tolist() == [pad_ids(259, 74, 260)]
    assert word_level.encode_sentence([], marks=False).shape == (0, 50)
    assert word_level.encode_sentence([]).shape == (2, 50)


def decode_word(ids):
    """The text of one word's ids, without marks."""
    return bytes(int(i) - 1 for i in ids if 1 <= i <= 256).decode("utf-8", "replace")


def test_long_words_are_cut_after_48_bytes():
    full = word_level.encode_word("가" * 16)
    assert full[0] == 259
    assert full[-1] == 260
    assert 261 not in full
    assert word_level.encode_word("가" * 40) == full
    assert word_level.encode_word("a" * 48) == word_level.encode_word("a" * 60)
    assert word_level.encode_word("a" * 47)[-2:] == [260, 261]
    split = word_level.encode_word("a" + "가" * 16)  # 49 bytes: the last syllable loses a byte
    assert split[-3:] == [0xEA + 1, 0xB0 + 1, 260]
    assert decode_word(split) == "a" + "가" * 15 + "�"
    assert word_level.encode_word("abc", slots=4) == [259, 98, 99, 260]


def test_grid():
    ids, keep = word_level.encode_sentences([["밥", "을"], ["a"]])
    assert ids.shape == (2, 4, 50)
    assert keep.tolist() == [[True] * 4, [True, True, True, False]]
    assert not ids[1, 3].any()
    assert [decode_word(word) for word in ids[0]] == ["", "밥", "을", ""]
    assert word_level.encode_sentences([["a"]], slots=9, marks=False)[0].shape == (1, 1, 9)


def test_spelled_back():
    for word in ("안녕하세요", "naïve", "😀", "a"):
        assert decode_word(word_level.encode_word(word)) == word
    assert word_level.encode_word("x\ud800") == word_level.encode_word("x")  # half of a character is left out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: word_level.encode_word(""), "'' has no characters"),
        (lambda: word_level.encode_sentence("the cat"), "a sentence is a list of words"),
        (lambda: word_level.encode_sentence(["a"], slots=2), "at least 3 slots"),
    ],
)
def test_what_is_no_word(call, message):
    with pytest.raises(Error, match=message):
        call()


def test_words_of_an_elmo():
    made = train_tokenizer("characters", ["the cat sat", "the dog 안녕"], 6)
    assert [made.get_token_text(i) for i in range(4)] == ["<S>", "</S>", "<UNK>", "the"]
    text = word_level.split_words("the cat 안녕", lower=False)
    assert word_level.encode_sentence(text).shape == (5, 50)
    assert len(made.encode("the cat 안녕", special=False)) == len(text)
