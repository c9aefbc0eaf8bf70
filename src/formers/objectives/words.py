"""Where words begin, by the pieces of a vocabulary."""

from __future__ import annotations

import numpy as np

from ..text.tokenizer import Tokenizer

INSIDE, BLANKS = "##", ("▁", "Ġ", "Ċ", "ĉ")  # WordPiece marks what goes on, the others what begins


def word_starts(tokenizer: Tokenizer) -> np.ndarray:
    """(vocab,) bool: this piece begins a word."""
    known = getattr(tokenizer, "word_starts", None)
    if known is not None:
        return np.asarray(known() if callable(known) else known, bool)
    pieces = [tokenizer.rust.id_to_token(i) or "" for i in range(len(tokenizer))]
    inside = np.array([p.startswith(INSIDE) and len(p) > len(INSIDE) for p in pieces])
    blank = np.array([p.startswith(BLANKS) for p in pieces])
    special = np.isin(pieces, list(tokenizer.special.values()))
    if inside.any():
        return ~inside
    return blank | special if blank.any() else np.ones(len(pieces), bool)


def begins(ids: np.ndarray, starts: np.ndarray | None, first: np.ndarray) -> np.ndarray:
    """(N,) bool: a word begins here; the first token of a sentence always begins one."""
    return np.ones(len(ids), bool) if starts is None else starts[ids] | first
