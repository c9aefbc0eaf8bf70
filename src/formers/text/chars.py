"""Words as characters, the way ELMo reads them: the bytes of UTF-8 between two word marks, in 50 slots.

Of the ids, 1 to 256 are bytes plus one, 257 and 258 stand for a sentence's begin and end, 259 and 260 for a word's, and
261 fills the slots that are left. Id 0 is no character at all; models add nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..config import Tell
from ..errors import Error
from . import words as word_level
from .tokenizer import Tokenizer

SLOTS = 50  # of a word, its two marks included: 48 bytes, or 16 syllables of Hangul
SHIFT = 1  # published files count from 0 and leave that number to padding when they are read
BEGIN, END, WORD, WORD_END, PAD = (SHIFT + i for i in range(256, 261))


def word(text: str, slots: int = SLOTS) -> list[int]:
    """The ids of one word. Bytes that do not fit are cut, in the middle of a character if need be."""
    inner = text.encode("utf-8", "ignore")[: slots - 2]
    if not inner:
        raise Error(f"{text!r} has no characters", fix="leave empty words out")
    return fill([SHIFT + byte for byte in inner], slots)


def fill(inner: list[int], slots: int) -> list[int]:
    """Ids between the two word marks, padded."""
    return [WORD, *inner, WORD_END, *[PAD] * (slots - 2 - len(inner))]


def sentence(words: Sequence[str], slots: int = SLOTS, *, marks: bool = True) -> np.ndarray:
    """(words, slots) ids; with `marks`, two more words say where the sentence begins and ends."""
    if isinstance(words, str):
        raise Error("a sentence is a list of words, not one string", fix="split it: text.split()")
    if slots < 3:
        raise Error(f"a word needs at least 3 slots, got {slots}", fix=f"take {SLOTS}")
    rows = [word(text, slots) for text in words]
    if marks:
        rows = [fill([BEGIN], slots), *rows, fill([END], slots)]
    return np.array(rows, dtype=np.int64).reshape(-1, slots)


def grid(
    sentences: Sequence[Sequence[str]], slots: int = SLOTS, *, marks: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Ids (rows, words, slots) of several sentences and keep (rows, words), True where there is a word."""
    rows = [sentence(words, slots, marks=marks) for words in sentences]
    longest = max(map(len, rows), default=0)
    ids, keep = np.zeros((len(rows), longest, slots), np.int64), np.zeros((len(rows), longest), bool)
    for number, row in enumerate(rows):
        ids[number, : len(row)], keep[number, : len(row)] = row, True
    return ids, keep


def spell(ids: Sequence[int]) -> str:
    """The text of one word's ids; marks are left out, and half a character at the cut shows as �."""
    return bytes(i - SHIFT for i in map(int, ids) if SHIFT <= i < BEGIN).decode("utf-8", "replace")


def train(
    lines: Iterable[str],
    size: int = 50_000,
    *,
    style: str = "elmo",
    least: int = 1,
    lower: bool = False,
    workers: int | None = None,
    tell: Tell | None = None,
) -> Tokenizer:
    """The words that an ELMo predicts. What it reads are characters, which nobody has to learn: `sentence` and `grid`
    make them out of the same words (words.split with lower=False)."""
    return word_level.train(lines, size, style=style, least=least, lower=lower, workers=workers, tell=tell)
