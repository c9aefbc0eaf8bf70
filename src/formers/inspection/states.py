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
from ..errors import Error
from ..former import Former
from ..tasks.encoding import (
    Span,
    TokenizedText,
    find_nearest_window,
    make_windows,
    tokenize_texts,
)
from ..tasks.word_vectors import check_vectors_finite, look_up_words
from ..text.tokenizer import Template


@dataclass(frozen=True)
class TextStates:
    """Vectors of the tokens of a text and of the marks around it, and which tokens have one (word vectors do not know
    all words)."""

    tokenized: TokenizedText
    vectors: Tensor  # (T, dim)
    prefix_vectors: Tensor
    suffix_vectors: Tensor
    known_mask: Tensor  # (T,) bool


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
    """Yield the number of each text and its states, the longest texts first; `mix` reduces the layers to one.

    A token of a long text has the vector that it gets in the window in whose middle it is nearest; marks have the mean
    of theirs.
    """
    if batch < 1:
        raise Error(f"a batch cannot have {batch} texts", fix="take 32")
    pieces = tokenize_texts(former, texts)
    if former.definition.is_static:
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
    """Compute the states of texts that are read together, window by window."""
    places = [make_windows(former, piece, window) for piece in group]
    rows = [
        torch.cat((p.prefix_ids, p.ids[low:high], p.suffix_ids))
        for p, spans in zip(group, places, strict=True)
        for low, high in spans
    ]
    parts = [part for piece, spans in zip(group, places, strict=True) for part in locate_window_parts(piece, spans)]
    frame = former.tokenizer.get_template() if former.tokenizer is not None and former.can_read_segments else None
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


def make_segment_rows(frame: Template, rows: Sequence[Tensor]) -> Tensor:
    """Make the segments (B, T) of single texts with their marks; XLNet's last mark has its own."""
    before, own, _, _, after = frame.segments
    made = [torch.tensor([*before, *[own] * (len(row) - len(before) - len(after)), *after]) for row in rows]
    return pad_sequence(made, batch_first=True)


def locate_window_parts(piece: TokenizedText, spans: list[Span]) -> list[tuple[Span, Span, Span]]:
    """Return for each window the slots of the marks before, of the tokens nearest to its middle, and of the marks
    after."""
    first, end = len(piece.prefix_ids), len(piece.suffix_ids)
    own = np.searchsorted(find_nearest_window(spans, np.arange(len(piece.ids))), np.arange(len(spans) + 1)).tolist()
    found = []
    for (low, high), a, b in zip(spans, own, own[1:], strict=False):
        last = first + high - low
        found.append(((0, first), (first + a - low, first + b - low), (last, last + end)))
    return found
