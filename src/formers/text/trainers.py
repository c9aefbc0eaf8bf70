"""The tokenizers that formers trains, by name."""

from __future__ import annotations

from collections.abc import Iterable

from ..config import suggest
from ..errors import Error
from .tokenizer import Tokenizer


def train(kind: str, lines: Iterable[str], size: int) -> Tokenizer:
    """Train a tokenizer of a kind: bpe (byte-level) or wordpiece."""
    from . import bpe, wordpiece

    kinds = {"bpe": bpe.train, "wordpiece": wordpiece.train}
    if kind not in kinds:
        raise Error(f"formers does not train {kind!r} tokenizers", fix=suggest(kind, kinds))
    return kinds[kind](lines, size)
