"""Examples of a task as numbers, one after the other, and batches out of them.

E examples, D documents (an example has several where choices are compared), N tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..batch import Batch

IGNORED = -100
Part = tuple[np.ndarray, np.ndarray]  # entries, and where each document's begin


@dataclass(frozen=True)
class Encoded:
    """Examples ready for a model: what it reads, and what is asked of it."""

    ids: np.ndarray  # (N,) tokens, or (N, slots) characters
    starts: np.ndarray  # (D+1,)
    first: np.ndarray  # (E+1,) the documents of each example
    row: np.ndarray  # (E,) the row of the data that an example is, or is a window of
    segments: np.ndarray | None = None  # (N,)
    labels: np.ndarray | None = None  # (N,) of tokens
    answers: np.ndarray | None = None  # (D, ...) of documents
    target: Part | None = None  # the text that a decoder writes for each document
    places: np.ndarray | None = None  # (N, 2) where a token stands in its text; -1: nowhere

    def __len__(self) -> int:
        return len(self.row)

    @property
    def sizes(self) -> np.ndarray:
        """(E,) tokens of each example."""
        return self.starts[self.first[1:]] - self.starts[self.first[:-1]]

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return int(np.diff(self.starts).max(initial=1))

    @property
    def grouped(self) -> bool:
        """Some example has several documents."""
        return len(self.first) != len(self.starts) or bool((np.diff(self.first) != 1).any())

    def take(self, examples: np.ndarray, samples: np.ndarray | None = None) -> Batch:
        """A batch of some examples, not filled up. With several documents each, `labels` is the example of each."""
        counts = self.first[examples + 1] - self.first[examples]
        documents = spread(self.first[examples], counts)
        sizes = self.starts[documents + 1] - self.starts[documents]
        slots, starts = spread(self.starts[documents], sizes), reach(sizes)
        labels = None if self.labels is None else self.labels[slots].astype(np.int64)
        chosen = None
        if self.grouped:
            labels, chosen = np.repeat(np.arange(len(examples)), counts), np.arange(len(documents))
        return Batch(
            self.ids[slots].astype(np.int64), starts.astype(np.int32), int(sizes.max(initial=1)), chosen=chosen,
            segments=None if self.segments is None else self.segments[slots].astype(np.int64), labels=labels,
            answers=None if self.answers is None else self.answers[documents],
            sample=np.repeat(examples if samples is None else samples, counts),
        )  # fmt: skip

    def written(self, examples: np.ndarray, start: int, samples: np.ndarray | None = None) -> Batch:
        """A batch of texts that a decoder writes, each from its source, behind a start token."""
        assert self.target is not None
        near, (ids, starts) = self.take(examples, samples), self.target
        sizes = starts[examples + 1] - starts[examples]
        target = ids[spread(starts[examples], sizes)].astype(np.int64), reach(sizes)
        longest = near.longest, int(sizes.max(initial=1))
        return two_sided((near.ids, near.starts), target, start, near.sample, longest)


@dataclass
class Sheet:
    """Collects examples; `done` packs them."""

    ids: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    places: list[np.ndarray] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    targets: list[np.ndarray] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def document(
        self, ids: Sequence[int] | np.ndarray, segments: Any = None, answer: Any = None, labels: Any = None,
        places: Any = None, target: Any = None,
    ) -> None:  # fmt: skip
        """One document of the next example."""
        self.ids.append(np.asarray(ids, np.int32))
        for held, value in ((self.segments, segments), (self.labels, labels), (self.places, places)):
            if value is not None:
                held.append(np.asarray(value, np.int32))
        if answer is not None:
            self.answers.append(answer)
        if target is not None:
            self.targets.append(np.asarray(target, np.int32))

    def example(self, row: int, documents: int = 1) -> None:
        """The last documents are an example of a row."""
        self.rows.append(row)
        self.counts.append(documents)

    def done(self) -> Encoded:
        """All of them, packed."""
        join = lambda parts: np.concatenate(parts) if parts else None  # noqa: E731
        target = None
        if self.targets:
            target = np.concatenate(self.targets), reach(np.array([len(t) for t in self.targets]))
        sizes = np.array([len(ids) for ids in self.ids])
        return Encoded(
            np.concatenate(self.ids) if self.ids else np.zeros(0, np.int32), reach(sizes),
            reach(np.array(self.counts)), np.array(self.rows, np.int64), join(self.segments), join(self.labels),
            np.stack(self.answers) if self.answers else None, target, join(self.places),
        )  # fmt: skip


def shifted(batch: Batch, start: int | None, wraps: bool = False) -> Batch:
    """For an encoder-decoder: the decoder reads the source once more, one to the right, behind the start token or (with
    `wraps`: mBART) the document's own last token."""
    ids = np.roll(batch.ids, 1)
    ids[batch.starts[:-1]] = batch.ids[batch.starts[1:] - 1] if wraps else start
    return batch.replace(ids=ids, source=Batch(batch.ids, batch.starts, batch.longest))


def two_sided(
    source: tuple[np.ndarray, np.ndarray],
    target: tuple[np.ndarray, np.ndarray],
    start: int,
    sample: np.ndarray,
    longest: tuple[int, int],
) -> Batch:
    """(ids, starts) of the source and of the target → a batch whose labels are the target."""
    labels, starts = target
    ids = np.empty_like(labels)
    ids[1:] = labels[:-1]
    ids[starts[:-1]] = start
    side = Batch(*source, longest[0])
    return Batch(ids, starts, longest[1], source=side, labels=labels, sample=sample)


def reach(sizes: np.ndarray) -> np.ndarray:
    """(n,) sizes → (n+1,) where each begins, and the end of all."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def spread(begin: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The numbers begin[i] … begin[i] + sizes[i] - 1 of all i, one after the other."""
    turn = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(begin, sizes) + turn


def portions(sizes: np.ndarray, tokens: int) -> Iterator[np.ndarray]:
    """Examples in runs of similar length, each of about so many tokens once it is filled up."""
    order = np.argsort(sizes, kind="stable")
    low = 0
    while low < len(order):
        high = low + 1
        while high < len(order) and (high + 1 - low) * sizes[order[high]] <= tokens:
            high += 1
        yield order[low:high]
        low = high
