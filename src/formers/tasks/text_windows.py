"""Texts as a model reads them: their tokens with places in the text, and overlapping windows over long ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import Error
from ..former import Former
from ..text import word_level
from ..text.normalise import normalise

DEFAULT_WINDOW = 1024  # tokens at once, for attention without a limit of its own
Span = tuple[int, int]


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of a text, their character spans, and their ids (or characters, or nothing), with the family's marks
    before and after."""

    text: str
    tokens: list[str]
    spans: list[Span]
    ids: Tensor  # (T,) or (T, slots)
    prefix_ids: Tensor
    suffix_ids: Tensor


def tokenize_texts(former: Former, texts: Sequence[str]) -> list[TokenizedText]:
    """Tokenize texts, composed to NFC first, with the family's marks beside them."""
    whole = [normalise(text) for text in texts]
    none = torch.zeros(0, dtype=torch.long)
    if former.definition.reads_characters:  # ELMo
        slots, found = former.config.slots, []
        marks = [
            torch.tensor([word_level.pad_word([mark], slots)])
            for mark in (word_level.SENTENCE_BEGIN, word_level.SENTENCE_END)
        ]
        for text in whole:
            spans, names = find_words(text)
            ids = torch.from_numpy(word_level.encode_sentence(names, slots, marks=False))
            found.append(TokenizedText(text, names, spans, ids, *marks))
        return found
    if has_static_vectors(former):
        return [
            TokenizedText(text, names, spans, none, none, none) for text in whole for spans, names in [find_words(text)]
        ]
    if former.tokenizer is None:
        raise Error(f"this {former.family} has no tokenizer", fix="load it with its tokenizer, or use hidden(ids)")
    frame = former.tokenizer.get_template()
    before, after = (torch.tensor(part, dtype=torch.long) for part in (frame.before, frame.after))
    rows = former.tokenizer.encode_batch_with_offsets(whole, special=False, parse_special=False)
    return [
        TokenizedText(
            text,
            [former.tokenizer.get_token_text(i) for i in ids],
            spans,
            torch.tensor(ids, dtype=torch.long),
            before,
            after,
        )
        for text, (ids, spans) in zip(whole, rows, strict=True)
    ]


def find_words(text: str) -> tuple[list[Span], list[str]]:
    """Find the words and punctuation marks of a text: their spans and their strings."""
    found = list(word_level.WORD_PATTERN.finditer(text))
    return [m.span() for m in found], [m.group() for m in found]


def has_static_vectors(former: Former) -> bool:
    """Return whether this is a table of word vectors, which look up words without context."""
    return former.definition.is_static


def find_nearest_window(spans: list[Span], places: Any) -> np.ndarray:
    """Return the window whose middle is nearest to each place; of two equally near, the first."""
    middles = np.array([(low + high - 1) / 2 for low, high in spans])
    return np.searchsorted((middles[1:] + middles[:-1]) / 2, places)


def make_windows(former: Former, piece: TokenizedText, window: int | None) -> list[Span]:
    """Cut a text into windows that fit the context, each half in the next one."""
    limit = former.context
    limit = limit if limit is not None else DEFAULT_WINDOW if hasattr(former.config, "heads") else None
    if window is not None:
        limit = window if limit is None or former.context is None else min(window, limit)
    total = len(piece.ids)
    if limit is None:
        return [(0, total)]
    room = limit - len(piece.prefix_ids) - len(piece.suffix_ids)
    if room < 1:
        raise Error(f"a window of {limit} tokens has no room for text", fix="take a larger one")
    if total <= room:
        return [(0, total)]
    step = max(1, room // 2)
    last = total - room
    return [(low, low + room) for low in [*range(0, last, step), last]]
