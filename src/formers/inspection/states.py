"""The hidden states of whole texts, however long: a long one is read in windows that overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..config import ProgressCallback
from ..errors import Error, NonFinite
from ..former import Former
from ..tasks.task_encoder import can_read_segments
from ..tasks.word_vectors import look_up_words
from ..text import character_ids, word_level
from ..text.normalise import normalise
from ..text.tokenizer import Template

DEFAULT_WINDOW = 1024  # tokens at once, for attention without a limit of its own
Span = tuple[int, int]


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of a text as the model reads it, where each begins and ends, and the ids (or characters, or nothing)
    that stand for them, with the family's marks before and after."""

    text: str
    tokens: list[str]
    spans: list[Span]
    ids: Tensor  # (T,) or (T, slots)
    prefix_ids: Tensor
    suffix_ids: Tensor


@dataclass(frozen=True)
class TextStates:
    """What a model makes of a text: a vector for each token, for the marks before and after it, and which tokens have
    one (word vectors do not know all words)."""

    tokenized: TokenizedText
    vectors: Tensor  # (T, dim)
    prefix_vectors: Tensor
    suffix_vectors: Tensor
    known_mask: Tensor  # (T,) bool


def tokenize_texts(former: Former, texts: Sequence[str]) -> list[TokenizedText]:
    """The tokens of texts, composed to NFC first."""
    whole = [normalise(text) for text in texts]
    none = torch.zeros(0, dtype=torch.long)
    if hasattr(former.config, "slots"):  # ELMo
        slots, found = former.config.slots, []
        marks = [
            torch.tensor([character_ids.pad_word([mark], slots)])
            for mark in (character_ids.SENTENCE_BEGIN, character_ids.SENTENCE_END)
        ]
        for text in whole:
            spans, names = find_words(text)
            ids = torch.from_numpy(character_ids.encode_sentence(names, slots, marks=False))
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
    """Where the words and punctuation marks of a text are, and what they are."""
    found = list(word_level.WORD_PATTERN.finditer(text))
    return [m.span() for m in found], [m.group() for m in found]


def has_static_vectors(former: Former) -> bool:
    """Word vectors: no context, and words are looked up."""
    return hasattr(former.model.body, "word") and former.family == "vectors"


@torch.inference_mode()
def compute_states(
    former: Former,
    texts: Sequence[str],
    mix: Callable[[Tensor], Tensor],
    batch: int = 32,
    window: int | None = None,
    layer: int | None = -1,
    tell: ProgressCallback | None = None,
) -> Iterator[tuple[int, TextStates]]:
    """The number of each text and its states, the longest texts first; `mix` makes one layer of those that are read.

    A token of a long text has the vector that it gets in the window in whose middle it is nearest; marks have the mean
    of theirs.
    """
    if batch < 1:
        raise Error(f"a batch cannot have {batch} texts", fix="take 32")
    pieces = tokenize_texts(former, texts)
    if has_static_vectors(former):
        for number, one in enumerate(pieces):
            vectors, known = look_up_words(former, one.tokens)
            check_vectors_finite(vectors)
            empty = vectors.new_zeros(0, former.config.dim).float().cpu()
            yield number, TextStates(one, vectors.float().cpu(), empty, empty, known.cpu())
        return
    for number, one in enumerate(pieces):
        if not len(one.ids) + len(one.prefix_ids) + len(one.suffix_ids):
            raise Error(f"text {number + 1} is empty", fix="leave empty texts out")
    order = sorted(range(len(pieces)), key=lambda i: -len(pieces[i].ids))
    done = 0
    for low in range(0, len(order), batch):
        group = order[low : low + batch]
        yield from zip(
            group, compute_group_states(former, [pieces[i] for i in group], mix, batch, window, layer), strict=True
        )
        done += len(group)
        if tell is not None:
            tell("reading", done, len(order), "texts")


def compute_group_states(
    former: Former,
    group: list[TokenizedText],
    mix: Callable[[Tensor], Tensor],
    batch: int,
    window: int | None,
    layer: Any,
) -> list[TextStates]:
    """The states of some texts that are read at once, window by window."""
    places = [make_windows(former, piece, window) for piece in group]
    rows = [
        torch.cat((p.prefix_ids, p.ids[low:high], p.suffix_ids))
        for p, spans in zip(group, places, strict=True)
        for low, high in spans
    ]
    parts = [part for piece, spans in zip(group, places, strict=True) for part in locate_window_parts(piece, spans)]
    frame = former.tokenizer.get_template() if former.tokenizer is not None and can_read_segments(former) else None
    read: list[tuple[Tensor, ...]] = []
    for low in range(0, len(rows), batch):
        some = rows[low : low + batch]
        keep = pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in some], batch_first=True)
        beside: dict[str, Any] = {} if frame is None else {"segments": make_segment_rows(frame, some)}
        hidden = mix(former.hidden(pad_sequence(some, batch_first=True), keep, layer=layer, **beside)).float()
        own = parts[low : low + batch]  # copies, so that the rest is free
        read += [tuple(x[a:b].to("cpu", copy=True) for a, b in cuts) for x, cuts in zip(hidden, own, strict=True)]
    found, at = [], 0
    for piece, spans in zip(group, places, strict=True):
        before, vectors, after = zip(*read[at : at + len(spans)], strict=True)
        whole, first, last = torch.cat(vectors), torch.stack(before).mean(0), torch.stack(after).mean(0)
        check_vectors_finite(whole, first, last)
        found.append(TextStates(piece, whole, first, last, torch.ones(len(whole), dtype=torch.bool)))
        at += len(spans)
    return found


def check_vectors_finite(*some: Tensor) -> None:
    """Raise NonFinite if a vector holds NaN or infinity."""
    if not all(bool(vectors.isfinite().all()) for vectors in some):
        raise NonFinite("vectors")


def make_segment_rows(frame: Template, rows: Sequence[Tensor]) -> Tensor:
    """The segments of single texts with their marks, (B, T): XLNet's last mark has one of its own."""
    before, own, _, _, after = frame.segments
    made = [torch.tensor([*before, *[own] * (len(row) - len(before) - len(after)), *after]) for row in rows]
    return pad_sequence(made, batch_first=True)


def locate_window_parts(piece: TokenizedText, spans: list[Span]) -> list[tuple[Span, Span, Span]]:
    """Where in what is read of each window the marks before, the tokens that are nearest to its middle, and the marks
    after are."""
    first, end = len(piece.prefix_ids), len(piece.suffix_ids)
    own = np.searchsorted(find_nearest_window(spans, np.arange(len(piece.ids))), np.arange(len(spans) + 1)).tolist()
    found = []
    for (low, high), a, b in zip(spans, own, own[1:], strict=False):
        last = first + high - low
        found.append(((0, first), (first + a - low, first + b - low), (last, last + end)))
    return found


def find_nearest_window(spans: list[Span], places: Any) -> np.ndarray:
    """The number of the window whose middle is nearest to each place; of two that are as near, the first."""
    middles = np.array([(low + high - 1) / 2 for low, high in spans])
    return np.searchsorted((middles[1:] + middles[:-1]) / 2, places)


def make_windows(former: Former, piece: TokenizedText, window: int | None) -> list[Span]:
    """Where the windows of a text lie: half of each is in the next one too."""
    limit = getattr(former.config, "context", None)
    limit = limit if limit is not None else DEFAULT_WINDOW if hasattr(former.config, "heads") else None
    if window is not None:
        limit = window if limit is None or not hasattr(former.config, "context") else min(window, limit)
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
