"""Words as characters, the way ELMo reads them: the bytes of UTF-8 between two word marks, in 50 slots.

Of the ids, 1 to 256 are bytes plus one, 257 and 258 stand for a sentence's begin and end, 259 and 260 for a word's, and
261 fills the slots that are left. Id 0 is no character at all; models add nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..config import ProgressCallback
from ..errors import Error
from . import word_level
from .tokenizer import Tokenizer

WORD_SLOTS = 50  # of a word, its two marks included: 48 bytes, or 16 syllables of Hangul
BYTE_SHIFT = 1  # published files count from 0 and leave that number to padding when they are read
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, SLOT_PAD = (BYTE_SHIFT + i for i in range(256, 261))


def encode_word(text: str, slots: int = WORD_SLOTS) -> list[int]:
    """The ids of one word. Bytes that do not fit are cut, in the middle of a character if need be."""
    inner = text.encode("utf-8", "ignore")[: slots - 2]
    if not inner:
        raise Error(f"{text!r} has no characters", fix="leave empty words out")
    return pad_word([BYTE_SHIFT + byte for byte in inner], slots)


def pad_word(inner: list[int], slots: int) -> list[int]:
    """Ids between the two word marks, padded."""
    return [WORD_BEGIN, *inner, WORD_END, *[SLOT_PAD] * (slots - 2 - len(inner))]


def encode_sentence(words: Sequence[str], slots: int = WORD_SLOTS, *, marks: bool = True) -> np.ndarray:
    """(words, slots) ids; with `marks`, two more words say where the sentence begins and ends."""
    if isinstance(words, str):
        raise Error("a sentence is a list of words, not one string", fix="split it: text.split()")
    if slots < 3:
        raise Error(f"a word needs at least 3 slots, got {slots}", fix=f"take {WORD_SLOTS}")
    rows = [encode_word(text, slots) for text in words]
    if marks:
        rows = [pad_word([SENTENCE_BEGIN], slots), *rows, pad_word([SENTENCE_END], slots)]
    return np.array(rows, dtype=np.int64).reshape(-1, slots)


def encode_sentences(
    sentences: Sequence[Sequence[str]], slots: int = WORD_SLOTS, *, marks: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Ids (rows, words, slots) of several sentences and keep (rows, words), True where there is a word."""
    rows = [encode_sentence(words, slots, marks=marks) for words in sentences]
    longest = max(map(len, rows), default=0)
    ids, keep = np.zeros((len(rows), longest, slots), np.int64), np.zeros((len(rows), longest), bool)
    for number, row in enumerate(rows):
        ids[number, : len(row)], keep[number, : len(row)] = row, True
    return ids, keep


def decode_word(ids: Sequence[int]) -> str:
    """The text of one word's ids; marks are left out, and half a character at the cut shows as �."""
    return bytes(i - BYTE_SHIFT for i in map(int, ids) if BYTE_SHIFT <= i < SENTENCE_BEGIN).decode("utf-8", "replace")


def train(
    lines: Iterable[str],
    vocab_size: int = 50_000,
    *,
    style: str = "elmo",
    min_count: int = 1,
    lower: bool = False,
    workers: int | None = None,
    tell: ProgressCallback | None = None,
) -> Tokenizer:
    """The words that an ELMo predicts. What it reads are characters, which nobody has to learn: `encode_sentence` and
    `encode_sentences` make them out of the same words (word_level.split_words with lower=False)."""
    return word_level.train(
        lines, vocab_size, style=style, min_count=min_count, lower=lower, workers=workers, tell=tell
    )
