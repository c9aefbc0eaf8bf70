"""Examples of a task as numbers, one after the other, and batches out of them.

E examples, D documents (an example has several where choices are compared), N tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..batch import Batch, BatchShape
from ..ragged_arrays import compute_starts, expand_ranges
from .counter_rng import shuffle_indices
from .plans import bucket_by_length, estimate_documents

PackedArrays = tuple[np.ndarray, np.ndarray]  # entries, and where each document's begin


@dataclass(frozen=True)
class EncodedExamples:
    """Examples ready for a model: what it reads, and what is asked of it."""

    ids: np.ndarray  # (N,) tokens, or (N, slots) characters
    starts: np.ndarray  # (D+1,)
    example_starts: np.ndarray  # (E+1,) the documents of each example
    row_index: np.ndarray  # (E,) the row of the data that an example is, or is a window of
    segments: np.ndarray | None = None  # (N,)
    labels: np.ndarray | None = None  # (N,) of tokens
    answers: np.ndarray | None = None  # (D, ...) of documents
    target: PackedArrays | None = None  # the text that a decoder writes for each document
    offsets: np.ndarray | None = None  # (N, 2) where a token stands in its text; -1: nowhere

    def __len__(self) -> int:
        return len(self.row_index)

    @property
    def lengths(self) -> np.ndarray:
        """(E,) tokens of each example."""
        return self.starts[self.example_starts[1:]] - self.starts[self.example_starts[:-1]]

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return int(np.diff(self.starts).max(initial=1))

    @property
    def has_groups(self) -> bool:
        """Some example has several documents."""
        return len(self.example_starts) != len(self.starts) or bool((np.diff(self.example_starts) != 1).any())

    def make_batch(self, examples: np.ndarray, samples: np.ndarray | None = None) -> Batch:
        """Make a batch of some examples, not padded. With several documents each, `labels` is the example of each."""
        counts = self.example_starts[examples + 1] - self.example_starts[examples]
        documents = expand_ranges(self.example_starts[examples], counts)
        sizes = self.starts[documents + 1] - self.starts[documents]
        slots, starts = expand_ranges(self.starts[documents], sizes), compute_starts(sizes)
        labels = None if self.labels is None else self.labels[slots].astype(np.int64)
        chosen = None
        if self.has_groups:
            labels, chosen = np.repeat(np.arange(len(examples)), counts), np.arange(len(documents))
        return Batch(
            self.ids[slots].astype(np.int64), starts.astype(np.int32), int(sizes.max(initial=1)), chosen=chosen,
            segments=None if self.segments is None else self.segments[slots].astype(np.int64), labels=labels,
            document_labels=None if self.answers is None else self.answers[documents],
            sample=np.repeat(examples if samples is None else samples, counts),
        )  # fmt: skip

    def make_target_batch(self, examples: np.ndarray, start: int, samples: np.ndarray | None = None) -> Batch:
        """Make a batch of texts that a decoder writes, each from its source, after a start token."""
        assert self.target is not None
        near, (ids, starts) = self.make_batch(examples, samples), self.target
        sizes = starts[examples + 1] - starts[examples]
        target = ids[expand_ranges(starts[examples], sizes)].astype(np.int64), compute_starts(sizes)
        longest = near.longest, int(sizes.max(initial=1))
        return make_seq2seq_batch((near.ids, near.starts), target, start, near.sample, longest)


@dataclass(frozen=True)
class ExampleOrder:
    """A plan of encoded examples: their numbers in the order of their use."""

    examples: np.ndarray  # (E,)

    def __len__(self) -> int:
        return len(self.examples)

    def slice_examples(self, low: int, high: int) -> ExampleOrder:
        """Return the examples low … high - 1 alone."""
        return ExampleOrder(self.examples[low:high])

    def select_examples(self, numbers: np.ndarray) -> ExampleOrder:
        """Return some examples alone, in this order."""
        return ExampleOrder(self.examples[numbers])

    @staticmethod
    def concatenate(plans: Sequence[ExampleOrder]) -> ExampleOrder:
        """Return the examples of several plans one after the other."""
        return ExampleOrder(np.concatenate([plan.examples for plan in plans]))


@dataclass(frozen=True)
class EncodedSource:
    """Encoded examples as a loader takes them (protocols.ExampleSource). With `writes_target`, a decoder writes the
    examples' targets, after the token `start`. With `shift_source`, it reads the source once more, after that token
    (or, with `wrap_last_token`, after its last token: mBART)."""

    data: EncodedExamples = field(repr=False)
    writes_target: bool = False
    start: int | None = None
    shift_source: bool = False
    wrap_last_token: bool = False

    @property
    def target_lengths(self) -> np.ndarray | None:
        """(E,) tokens that a decoder writes for each example; None if it writes none."""
        return np.diff(self.data.target[1]) if self.writes_target and self.data.target is not None else None

    def plan_epoch(self, seed: int, epoch: int) -> ExampleOrder:
        """Shuffle all examples; texts to be written stand beside others of their length."""
        if (target := self.target_lengths) is not None:
            return ExampleOrder(bucket_by_length(self.data.lengths + target, seed, epoch))
        return ExampleOrder(shuffle_indices(len(self.data), seed, epoch, 0xDA7A))

    def measure_sizes(self, plan: ExampleOrder) -> np.ndarray:
        """Measure (E, 3) tokens, documents (where an example has several) and tokens of the source."""
        own = self.data.lengths[plan.examples]
        count = np.diff(self.data.example_starts)[plan.examples] if self.data.has_groups else np.zeros_like(own)
        if (target := self.target_lengths) is not None:
            return np.stack((target[plan.examples], count, own), 1)
        return np.stack((own, count, own if self.shift_source else np.zeros_like(own)), 1)

    def choose_shape(self, total: int, plan: ExampleOrder) -> BatchShape:
        """Choose room for about `total` tokens on the larger side."""
        sizes, longest, most = self.measure_sizes(plan), self.data.longest, int(self.data.lengths.max(initial=1))
        if (target := self.target_lengths) is not None:
            writes = int(target.max(initial=1))
            larger = max(sizes[:, 0].mean(), sizes[:, 2].mean())
            near, far = (max(m, int(np.ceil(total * sizes[:, c].mean() / larger))) for c, m in ((2, most), (0, writes)))
            rows = estimate_documents(total, np.array([larger]), 3.0) + int(np.ceil(max(near / longest, far / writes)))
            return BatchShape(rows, far, 0, writes, near, longest)
        tokens = max(total, most)
        rows = estimate_documents(tokens, sizes[:, 0] / np.maximum(1, sizes[:, 1]), 1.5)
        places = max(rows, int(sizes[:, 1].max(initial=0))) if self.data.has_groups else 0
        rows = max(rows, places) + int(np.ceil(tokens / longest))
        return BatchShape(rows, tokens, places, longest, *((tokens, longest) if self.shift_source else (0, 0)))

    def make_batch(self, plan: ExampleOrder, samples: np.ndarray, seed: int = 0) -> Batch:
        """Make a batch of some examples, for a decoder on both sides; nothing is drawn."""
        if self.writes_target:
            assert self.start is not None
            return self.data.make_target_batch(plan.examples, self.start, samples)
        batch = self.data.make_batch(plan.examples, samples)
        return shift_right(batch, self.start, self.wrap_last_token) if self.shift_source else batch


@dataclass
class ExampleCollector:
    """Collects examples; `pack` packs them."""

    ids: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    offsets: list[np.ndarray] = field(default_factory=list)
    answers: list[npt.ArrayLike] = field(default_factory=list)
    targets: list[np.ndarray] = field(default_factory=list)
    document_counts: list[int] = field(default_factory=list)
    row_indices: list[int] = field(default_factory=list)

    def add_document(
        self, ids: npt.ArrayLike, segments: npt.ArrayLike | None = None, answer: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None, offsets: npt.ArrayLike | None = None,
        target: npt.ArrayLike | None = None,
    ) -> None:  # fmt: skip
        """Add a document of the next example."""
        columns = (self.ids, ids), (self.segments, segments), (self.labels, labels), (self.offsets, offsets)
        for column, value in (*columns, (self.targets, target)):
            if value is not None:
                column.append(np.asarray(value, np.int32))
        if answer is not None:
            self.answers.append(answer)

    def add_example(self, row: int, documents: int = 1) -> None:
        """Make the last documents an example of a row."""
        self.row_indices.append(row)
        self.document_counts.append(documents)

    def pack(self) -> EncodedExamples:
        """Pack all examples."""
        join = lambda parts: np.concatenate(parts) if parts else None  # noqa: E731
        measure = lambda parts: compute_starts(np.array([len(part) for part in parts]))  # noqa: E731
        return EncodedExamples(
            np.concatenate(self.ids) if self.ids else np.zeros(0, np.int32), measure(self.ids),
            compute_starts(np.array(self.document_counts)), np.array(self.row_indices, np.int64),
            join(self.segments), join(self.labels), np.stack(self.answers) if self.answers else None,
            (np.concatenate(self.targets), measure(self.targets)) if self.targets else None, join(self.offsets),
        )  # fmt: skip


def shift_right(batch: Batch, start: int | None, wraps_last: bool = False) -> Batch:
    """Let a decoder read the source once more, one to the right, after the start token or (with `wraps_last`: mBART)
    the document's own last token."""
    ids = np.roll(batch.ids, 1)
    ids[batch.starts[:-1]] = batch.ids[batch.starts[1:] - 1] if wraps_last else start
    return batch.replace(ids=ids, source=Batch(batch.ids, batch.starts, batch.longest))


def make_seq2seq_batch(
    source: PackedArrays, target: PackedArrays, start: int, sample: np.ndarray, longest: tuple[int, int]
) -> Batch:
    """Make a batch of (ids, starts) of the source and of the target, which is the labels."""
    labels, starts = target
    ids = np.roll(labels, 1)
    ids[starts[:-1]] = start
    return Batch(ids, starts, longest[1], source=Batch(*source, longest[0]), labels=labels, sample=sample)


def group_by_length(sizes: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Yield examples in runs of similar length, each of about so many tokens once it is filled up."""
    order = np.argsort(sizes, kind="stable")
    low = 0
    while low < len(order):
        high = low + 1
        while high < len(order) and (high + 1 - low) * sizes[order[high]] <= max_tokens:
            high += 1
        yield order[low:high]
        low = high
