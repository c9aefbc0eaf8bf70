"""The tokenizers that formers trains, by kind or by the family that they are for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..config import suggest
from ..errors import Error
from .templates import FAMILY
from .tokenizer import Tokenizer


def train(kind: str, lines: Iterable[str], size: int, **options: Any) -> Tokenizer:
    """Train a tokenizer of a kind (bpe, wordpiece, unigram, words, characters), or the one of a family (bert, t5, …).

    Options are those of the kind's own `train`; all have `style` (whose special tokens), `workers` and `tell`. The
    result is the same, byte for byte, however many processes count the words.
    """
    from . import bpe, wordpiece

    kinds = {"bpe": bpe.train, "wordpiece": wordpiece.train}
    if kind in FAMILY:
        kind, style = FAMILY[kind]
        options.setdefault("style", style)
    if kind not in kinds:
        raise Error(f"formers does not train {kind!r} tokenizers", fix=suggest(kind, [*kinds, *FAMILY]))
    try:
        return kinds[kind](lines, size, **options)
    except TypeError as error:
        if "keyword argument" not in str(error):
            raise
        raise Error(f"{kind}: {error}", fix="see the options of the kind") from None
