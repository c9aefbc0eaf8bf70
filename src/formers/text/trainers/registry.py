"""The kinds of tokenizers that formers trains."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import signature
from typing import Any

from ...config import suggest_name
from ...errors import Error
from ..tokenizer import Tokenizer

TRAINER_MODULES = {  # and the module that trains it
    "bpe": "formers.text.trainers.bpe",
    "wordpiece": "formers.text.trainers.wordpiece",
    "unigram": "formers.text.trainers.unigram",
    "jamo": "formers.text.trainers.bpe",
    "words": "formers.text.word_level",
    "characters": "formers.text.character_ids",
}
MAX_VOCAB_SIZE, MAX_WORKERS = 1 << 24, 1024  # pieces, processes


def train_by_kind(kind: str, lines: Iterable[str], vocab_size: int, **options: Any) -> Tokenizer:
    """Train a tokenizer of a kind (bpe, wordpiece, unigram, jamo, words, characters).

    Options are those of the kind's own `train`; all have `style` (whose special tokens), `workers` and `tell`. The
    result is the same, byte for byte, however many processes count the words.
    """
    if kind not in TRAINER_MODULES:
        raise Error(f"formers does not train {kind!r} tokenizers", fix=suggest_name(kind, TRAINER_MODULES))
    for name, value, most in (
        ("vocab_size", vocab_size, MAX_VOCAB_SIZE),
        ("workers", options.get("workers"), MAX_WORKERS),
    ):
        if value is not None and not 1 <= value <= most:
            raise Error(f"{name} cannot be {value:,}", fix=f"take 1 to {most:,}")
    if (alphabet := options.get("alphabet")) is not None and not 1 <= alphabet <= vocab_size:
        raise Error(f"an alphabet cannot have {alphabet:,} characters", fix=f"take 1 to {vocab_size:,}, the vocab_size")
    learn = import_module(TRAINER_MODULES[kind]).train
    known = [name for name in signature(learn).parameters if name != "jamo"]  # that is a kind, here
    for name in options:
        if name not in known:
            raise Error(f"{kind} has no option {name!r}", fix=suggest_name(name, known[2:]))
    return learn(lines, vocab_size, **options, **({"jamo": True} if kind == "jamo" else {}))
