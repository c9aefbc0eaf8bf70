"""Plans: which spans of a store make example n. A plan knows lengths, so packing is a function of it.

E examples, S spans, N tokens, D examples of one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..batch import Batch
from ..errors import Error
from .counter_rng import draw_integers, draw_uniform, shuffle_indices
from .store import Store

SHIFT_DRAW = 0xDA7B  # what a random number is for


@dataclass(frozen=True)
class Plan:
    """Example n is made of the spans span_offsets[n] … span_offsets[n+1] - 1, and span s is the store's tokens
    begin[s]:end[s]."""

    begin: np.ndarray  # (S,) int64
    end: np.ndarray  # (S,) int64
    span_offsets: np.ndarray  # (E+1,) int64
    label: np.ndarray  # (E,) int8: what the plan has decided about an example (NSP, SOP); -1 if nothing

    def __len__(self) -> int:
        return len(self.label)

    def slice_examples(self, low: int, high: int) -> Plan:
        """The examples low … high - 1 alone, numbered from 0."""
        first = np.asarray(self.span_offsets[low : high + 1])
        spans = slice(int(first[0]), int(first[-1]))
        return Plan(self.begin[spans], self.end[spans], first - first[0], self.label[low:high])

    @property
    def lengths(self) -> np.ndarray:
        """(E,) tokens of each example as it stands in the store."""
        reach = np.concatenate(([0], np.cumsum(self.end - self.begin)))
        return np.diff(reach[self.span_offsets])


@dataclass(frozen=True)
class RawExamples:
    """Examples as they stand in the store, packed one after the other, before anything is added or hidden."""

    ids: np.ndarray  # (N,) int64
    starts: np.ndarray  # (D+1,) int64
    span_index: np.ndarray  # (N,) int64: which span of its example a token is from, counted from 0
    sentence_starts: np.ndarray  # (N,) bool: a sentence begins here
    unit_bits: np.ndarray | None  # (N,) uint8: PHRASE and ENTITY bits, where a unit begins (data/store.py)
    label: np.ndarray  # (D,) the plan's decisions
    sample: np.ndarray  # (D,) the global number of each example, running over all epochs


@dataclass(frozen=True)
class BatchShape:
    """What every batch is filled up to, so that torch.compile sees one shape; `source_tokens` are the encoder's
    side."""

    documents: int
    tokens: int
    labels: int  # where a loss is; 0: at every token
    longest: int  # no document is longer
    source_tokens: int = 0
    source_longest: int = 0


class Objective(Protocol):
    """What a loader needs of an objective."""

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Which spans make the examples of an epoch, in the order in which they are used."""
        ...

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """(E, 3) at most so many tokens, places and source tokens of each example once it is corrupted."""
        ...

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """The shape of batches with room for `total` tokens (on the larger side) of examples like a plan's."""
        ...

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """The batch that the model sees, in numpy, not filled up: special tokens added, hidden what is to be found.

        Every draw is a function of (seed, raw.sample, place): data/counter_rng.py.
        """
        ...

    def count_labels(self, batch: Batch) -> dict[str, int]:
        """How many places each named loss has, known before the model has run."""
        ...

    def loss(self, model: Any, batch: Batch) -> Any:
        """The named losses as (sum, count)."""
        ...


def plan_windows(store: Store, length: int, seed: int, epoch: int, *, across: bool = False) -> Plan:
    """Documents cut into windows of `length`, in random order; a document's last window reaches back to be full.

    `across` cuts the whole store as if it were one document.
    """
    edges = store.starts[[0, -1]] if across else store.starts
    return cut_windows(edges[:-1], edges[1:], length, seed, epoch)


def cut_windows(begin: np.ndarray, end: np.ndarray, length: int, seed: int, epoch: int) -> Plan:
    """Stretches cut into windows of `length`, in random order; the last window of each reaches back to be full.

    From the second epoch on the cuts are elsewhere: the inner windows are moved by some tokens, as many as before, and
    the last of them may leave a gap to the end of it that this epoch does not see.
    """
    count = -(-(end - begin) // length)  # windows of each stretch
    owner, turn = np.repeat(np.arange(len(count)), count), ragged_arange(count)
    moved = draw_integers(length, seed, epoch, np.arange(len(count)), SHIFT_DRAW)[owner] if epoch else 0
    stop = np.maximum(begin[owner] + (turn + 1) * length - moved, begin[owner] + length)
    stop = np.where(turn == count[owner] - 1, end[owner], np.minimum(stop, end[owner]))
    start = np.maximum(stop - length, begin[owner])
    keep = stop - start > 1
    start, stop = start[keep], stop[keep]
    order = shuffle_indices(len(start), seed, epoch, 0xDA7A)
    return plan_single_spans(start[order], stop[order])


def ragged_arange(sizes: np.ndarray) -> np.ndarray:
    """(D,) sizes → (N,) the place of each entry in its example."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def plan_streams(store: Store, length: int, num_streams: int, *, extra: int = 0) -> Plan:
    """For models that carry their state over: the store cut into `rows` streams, and example t · rows + r is window t
    of stream r, so that a batch of `rows` examples goes on where the batch before it ended.

    `extra` tokens behind each window are handed over too (1: the last token's successor). Over several ranks, `rows` is
    the number of all streams and a multiple of those in a batch times the ranks: each rank then keeps its own.
    """
    size = (len(store.tokens) - extra) // num_streams  # of a stream
    count = size // length
    if count < 1:
        raise Error(
            f"{len(store.tokens):,} tokens are too few for {num_streams} streams of windows of {length}",
            fix="take fewer rows, shorter windows or more text",
        )
    begin = (np.arange(count)[:, None] * length + np.arange(num_streams) * size).ravel()
    return plan_single_spans(begin, begin + length + extra)


def make_stream_shape(streams: int, rows: int, length: int) -> BatchShape:
    """The shape of batches that take a window of `rows` streams each (0: of all), so that every so many batches the
    same streams go on."""
    rows = rows or streams
    if streams % rows:
        raise Error(f"{streams} streams do not make batches of {rows}", fix="take a multiple")
    return BatchShape(rows, rows * length, 0, length)


def bucket_by_length(
    lengths: np.ndarray, seed: int, epoch: int, *, bucket_size: int = 256, spread: float = 0.1
) -> np.ndarray:
    """An order of examples in which neighbours are of similar length, for tasks: runs of them, in random order.

    Lengths are sorted after a random factor of 1 ± `spread`, so that every epoch has other neighbours.
    """
    lengths = np.asarray(lengths)
    noisy = lengths * (1 + spread * (2 * draw_uniform(seed, epoch, np.arange(len(lengths)), 0xB0C7) - 1))
    order = np.argsort(noisy, kind="stable")
    offset = int(draw_integers(bucket_size, seed, epoch, 0xB0C8))  # where runs are cut differs too
    edges = np.unique(np.concatenate(([0], np.arange(offset, len(order), bucket_size), [len(order)])))
    pieces = np.split(order, edges[1:-1])
    return (
        np.concatenate([pieces[i] for i in shuffle_indices(len(pieces), seed, epoch, 0xB0C9)]) if len(order) else order
    )


def estimate_documents(total: int, sizes: np.ndarray, headroom: float = 1.25) -> int:
    """How many documents batches of `total` tokens should have room for, and a few for the rest of the tokens."""
    return int(np.ceil(headroom * total / max(1.0, sizes.mean()))) + 2 if len(sizes) else 1


def plan_single_spans(begin: np.ndarray, end: np.ndarray) -> Plan:
    """A plan of examples of one span each."""
    return Plan(begin, end, np.arange(len(begin) + 1), np.full(len(begin), -1, np.int8))


def gather_examples(store: Store, plan: Plan, numbers: Sequence[int] | np.ndarray, samples: np.ndarray) -> RawExamples:
    """The examples `numbers` of a plan out of the store."""
    numbers = np.asarray(numbers, np.int64)
    first = plan.span_offsets[numbers]
    count = plan.span_offsets[numbers + 1] - first  # spans of each example
    owner = np.repeat(np.arange(len(numbers)), count)
    turn = ragged_arange(count)
    spans = first[owner] + turn
    begin, end = plan.begin[spans], plan.end[spans]
    sizes = end - begin
    ids, sentence, unit = store.read_spans(begin, end)
    lengths = np.bincount(owner, sizes, len(numbers)).astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return RawExamples(
        ids, starts, np.repeat(turn, sizes), sentence, unit, plan.label[numbers].astype(np.int64), samples
    )
