"""Where words begin in a text of pieces."""

from __future__ import annotations

import numpy as np

from ..text.tokenizer import Tokenizer

BEGINS, ENDS = 1, 2  # bits: a piece begins a word; it ends one, so that the next begins another (GPT-1)


def word_marks(tokenizer: Tokenizer) -> np.ndarray:
    """(vocab,) what each piece says of words."""
    return (BEGINS * tokenizer.word_starts + ENDS * tokenizer.word_ends).astype(np.uint8)


def begins(ids: np.ndarray, marks: np.ndarray | None, first: np.ndarray) -> np.ndarray:
    """(N,) bool: a word begins here; the first token of a sentence always begins one."""
    if marks is None:
        return np.ones(len(ids), bool)
    known = marks[ids]
    found = (known & BEGINS > 0) | first
    found[1:] |= known[:-1] & ENDS > 0
    return found
