"""Special tokens around and between the spans of examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.plans import RawExamples

TokenIds = tuple[int, ...]
ExampleFrame = tuple[TokenIds, TokenIds]  # marks before and behind an example


@dataclass(frozen=True)
class FramedExamples:
    """Examples with their marks: ids (N,), where they begin, and the slot of each token of the store among them."""

    ids: np.ndarray
    starts: np.ndarray  # (D+1,)
    token_slots: np.ndarray  # (tokens of the store,)
    raw: RawExamples

    def scatter_values(self, values: np.ndarray, fill: int = 0) -> np.ndarray:
        """What is known of the store's tokens as (N,), with `fill` at the marks."""
        carried = np.full(len(self.ids), fill, values.dtype)
        carried[self.token_slots] = values
        return carried

    @property
    def span_starts(self) -> np.ndarray:
        """(N,) bool: a span or a sentence begins here."""
        raw = self.raw
        first = raw.sentence_starts.copy()
        first[raw.starts[:-1]] = True
        first[1:] |= raw.span_index[1:] != raw.span_index[:-1]
        return self.scatter_values(first)


def add_special_tokens(
    raw: RawExamples, front: TokenIds = (), back: TokenIds = (), after_spans: tuple[TokenIds, ...] = ()
) -> FramedExamples:
    """Marks before and behind each example, and those behind each of its spans (the last entry serves all others).
    No example is empty."""
    rows, count = len(raw.starts) - 1, len(raw.ids)
    where, marks = [], []
    if after_spans and count:
        last = np.ones(count, bool)  # of a span
        last[:-1] = raw.span_index[1:] != raw.span_index[:-1]
        last[raw.starts[1:] - 1] = True
        ends = np.flatnonzero(last)
        turn = np.minimum(raw.span_index[ends], len(after_spans) - 1)
        size = np.array([len(b) for b in after_spans])[turn]
        where.append(np.repeat(ends + 1, size))
        table = np.zeros((len(after_spans), max(map(len, after_spans))), np.int64)
        for row, some in enumerate(after_spans):
            table[row, : len(some)] = some
        marks.append(table[turn][np.arange(table.shape[1]) < size[:, None]])
    for at, some in ((raw.starts[1:], back), (raw.starts[:-1], front)):  # what is behind comes before the next in front
        where.append(np.repeat(at, len(some)))
        marks.append(np.tile(np.asarray(some, np.int64), rows))
    spots, values = np.concatenate(where), np.concatenate(marks)
    rank = np.argsort(spots, kind="stable")
    before = np.cumsum(np.bincount(spots, minlength=count + 1))  # marks up to the one in front of each token
    slots = np.arange(count) + before[:count]
    ids = np.empty(count + len(spots), np.int64)
    ids[slots] = raw.ids
    ids[spots[rank] + np.arange(len(spots))] = values[rank]
    starts = raw.starts + before[raw.starts]
    starts[:-1] -= len(front)  # the marks in front of an example are part of it
    return FramedExamples(ids, starts.astype(np.int64), slots, raw)
