"""The tokenizers that formers trains, by kind or by the family that they are for."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import signature
from typing import Any

from ..config import suggest
from ..errors import Error
from .templates import FAMILY
from .tokenizer import Tokenizer

KINDS = {  # and the module that trains it
    "bpe": "bpe",
    "wordpiece": "wordpiece",
    "unigram": "unigram",
    "jamo": "bpe",
    "words": "words",
    "characters": "chars",
}
LARGEST, WORKERS = 1 << 24, 1024  # pieces, processes


def train(kind: str, lines: Iterable[str], size: int, **options: Any) -> Tokenizer:
    """Train a tokenizer of a kind (bpe, wordpiece, unigram, jamo, words, characters) or of a family (bert, t5, …).

    Options are those of the kind's own `train`; all have `style` (whose special tokens), `workers` and `tell`. The
    result is the same, byte for byte, however many processes count the words.
    """
    if kind in FAMILY:
        kind, style = FAMILY[kind]
        options.setdefault("style", style)
    if kind not in KINDS:
        raise Error(f"formers does not train {kind!r} tokenizers", fix=suggest(kind, [*KINDS, *FAMILY]))
    for name, value, most in (("size", size, LARGEST), ("workers", options.get("workers"), WORKERS)):
        if value is not None and not 1 <= value <= most:
            raise Error(f"{name} cannot be {value:,}", fix=f"take 1 to {most:,}")
    if (alphabet := options.get("alphabet")) is not None and not 1 <= alphabet <= size:
        raise Error(f"an alphabet cannot have {alphabet:,} characters", fix=f"take 1 to {size:,}, the size")
    learn = import_module(f"{__package__}.{KINDS[kind]}").train
    known = [name for name in signature(learn).parameters if name != "jamo"]  # that is a kind, here
    for name in options:
        if name not in known:
            raise Error(f"{kind} has no option {name!r}", fix=suggest(name, known[2:]))
    return learn(lines, size, **options, **({"jamo": True} if kind == "jamo" else {}))
