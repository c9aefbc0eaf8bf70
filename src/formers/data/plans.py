"""Plans: which spans of a store make example n. A plan knows lengths, so packing is a function of it. Large plans are
kept beside their store: made once, then memory-mapped by every run and rank.

E examples, S spans, N tokens, D examples of one batch.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from .. import ragged_arrays
from ..atomic_files import hold_lock, read_checked_json
from ..batch import Batch, BatchShape
from ..errors import Error
from ..protocols import Objective
from ..ragged_arrays import compute_starts, expand_ranges, ragged_arange
from . import counter_rng
from .counter_rng import draw_integers, draw_uniform, shuffle_indices
from .store import ArrayFileReader, ArrayFileWriter, Store

MIN_CACHED_EXAMPLES = 1 << 18  # examples; smaller plans are made anew each time
TokenIds = tuple[int, ...]
ExampleFrame = tuple[TokenIds, TokenIds]  # marks before and after an example
PLAN_DTYPES = {"begin": np.int64, "end": np.int64, "span_offsets": np.int64, "label": np.int8}
SHIFT_DRAW = 0xDA7B  # what a random number is for


@dataclass(frozen=True)
class Plan:
    """Example n is the spans span_offsets[n] … span_offsets[n+1] - 1; span s is the store's tokens begin[s]:end[s]."""

    begin: np.ndarray  # (S,) int64
    end: np.ndarray  # (S,) int64
    span_offsets: np.ndarray  # (E+1,) int64
    label: np.ndarray  # (E,) int8: what the plan has decided about an example (NSP, SOP); -1 if nothing

    def __len__(self) -> int:
        return len(self.label)

    def slice_examples(self, low: int, high: int) -> Plan:
        """Return the examples low … high - 1 alone, numbered from 0."""
        first = np.asarray(self.span_offsets[low : high + 1])
        spans = slice(int(first[0]), int(first[-1]))
        return Plan(self.begin[spans], self.end[spans], first - first[0], self.label[low:high])

    def select_examples(self, numbers: np.ndarray) -> Plan:
        """Return a plan of some examples alone, in this order."""
        count = self.span_offsets[numbers + 1] - self.span_offsets[numbers]
        spans = expand_ranges(self.span_offsets[numbers], count)
        return Plan(self.begin[spans], self.end[spans], compute_starts(count), self.label[numbers])

    @staticmethod
    def concatenate(plans: Sequence[Plan]) -> Plan:
        """Return one plan of the examples of several plans over one store."""
        arrays = ((p.begin, p.end, np.diff(p.span_offsets), p.label) for p in plans)
        begin, end, count, label = (np.concatenate(some) for some in zip(*arrays, strict=True))
        return Plan(begin, end, compute_starts(count), label)

    @property
    def lengths(self) -> np.ndarray:
        """(E,) tokens of each example as it stands in the store."""
        return np.diff(compute_starts(self.end - self.begin)[self.span_offsets])


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


class TextObjective(Objective, Protocol):
    """An objective that makes its examples out of a token store."""

    @property
    def length(self) -> int:
        """The most tokens of an example, on either side."""

    @property
    def decoder_start(self) -> int | None:
        """The token that the decoder starts with; None without a decoder."""

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Choose the spans that make the examples of an epoch, in the order of their use."""

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Measure (E, 3) tokens, places with a loss and source tokens: the most that a corrupted example can have."""

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Choose the shape of batches with room for `total` tokens (on the larger side) of examples like a plan's."""

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Make the numpy batch that the model sees, unpadded: special tokens added, tokens hidden. Every draw is a
        function of (seed, raw.sample, place): data/counter_rng.py."""


@dataclass(frozen=True)
class TokenSource:
    """A token store and the objective that makes examples of it (protocols.ExampleSource)."""

    store: Store
    objective: TextObjective

    def plan_epoch(self, seed: int, epoch: int) -> Plan:
        """Let the objective plan an epoch; large plans of stores on disk are kept beside them."""
        if self.store.directory is None:
            return self.objective.plan(self.store, seed, epoch)
        return load_or_build_plan(self.store, self.objective, seed, epoch)

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Measure (E, 3) tokens, places with a loss and source tokens."""
        return self.objective.measure_sizes(plan)

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Choose the shape of batches of about `total` tokens."""
        return self.objective.choose_shape(total, plan)

    def make_batch(self, plan: Plan, samples: np.ndarray, seed: int) -> Batch:
        """Read the plan's examples from the store and corrupt them."""
        return self.objective.corrupt(gather_examples(self.store, plan, np.arange(len(plan)), samples), seed)


def plan_windows(store: Store, length: int, seed: int, epoch: int, *, across: bool = False) -> Plan:
    """Cut documents into windows of `length`, in random order; a document's last window reaches back to be full.
    `across` cuts the whole store as if it were one document."""
    edges = store.starts[[0, -1]] if across else store.starts
    return cut_windows(edges[:-1], edges[1:], length, seed, epoch)


def cut_windows(begin: np.ndarray, end: np.ndarray, length: int, seed: int, epoch: int) -> Plan:
    """Cut stretches into windows of `length`, in random order; the last window of each reaches back to be full. From
    the second epoch on the cuts are elsewhere: the inner windows are moved by some tokens, as many as before, and the
    last of them may leave a gap to the end of it that this epoch does not see."""
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


def plan_texts(store: Store, end: int | None, length: int, seed: int, epoch: int, across: bool = False) -> Plan:
    """Return windows of `length` tokens in random order, without the store's end marks: of each document, or `across`
    documents, which are joined end to end with nothing between them. An example then has a span for each of them."""
    begin, stop = store.starts[:-1], store.starts[1:] - find_ended_documents(store, end)
    if not across:
        return cut_windows(begin, stop, length, seed, epoch)
    begin, stop = begin[stop > begin], stop[stop > begin]
    reach = compute_starts(stop - begin)
    whole = cut_windows(reach[:1], reach[-1:], length, seed, epoch)  # of the joined text
    first = np.searchsorted(reach, whole.begin, side="right") - 1
    count = np.searchsorted(reach, whole.end) - first  # documents that each window touches
    document, window = expand_ranges(first, count), np.repeat(np.arange(len(whole)), count)
    shift = (begin - reach[:-1])[document]
    low, high = np.maximum(whole.begin[window], reach[document]), np.minimum(whole.end[window], reach[document + 1])
    return Plan(low + shift, high + shift, compute_starts(count), whole.label)


def find_ended_documents(store: Store, end: int | None) -> np.ndarray:
    """Return (documents,) bool: the last token is this end mark. On disk all end with the tokenizer's."""
    begin, stop = store.starts[:-1], store.starts[1:]
    if end is None:
        return np.zeros(len(stop), bool)
    if store.directory is not None:
        return np.full(len(stop), store.tokenizer.id("eos") == end)
    return (np.asarray(store.tokens[np.maximum(stop - 1, 0)]) == end) & (stop > begin)


def plan_whole_sentences(store: Store, mark: int | None, length: int, seed: int, epoch: int) -> Plan:
    """Pack whole sentences that follow each other into examples of at most `length` tokens, across documents, in random
    order (RoBERTa §4.2: FULL-SENTENCES). Documents keep their end marks as separators; an example does not end with
    one. A sentence that is longer than an example is cut. All epochs have the same examples."""
    edges = np.asarray(store.sentence_starts).astype(np.int64)
    pieces = -(-np.diff(edges) // length)  # of each sentence
    edges = np.append(np.repeat(edges[:-1], pieces) + ragged_arange(pieces) * length, edges[-1])
    following = np.searchsorted(edges, edges + length, side="right") - 1  # the edge that an example reaches
    firsts, at = [], 0
    while at < len(edges) - 1:
        firsts.append(at)
        at = int(following[at])
    begin = edges[firsts]
    end = np.append(begin[1:], edges[-1])
    end -= np.isin(end, store.starts[1:][find_ended_documents(store, mark)])
    keep = end - begin > 1
    order = shuffle_indices(int(keep.sum()), seed, epoch, 0xDA7A)
    return plan_single_spans(begin[keep][order], end[keep][order])


@dataclass(frozen=True)
class SentenceTable:
    """The sentences of a store: sentence s is tokens[begin[s]:end[s]], and token_offsets[s] tokens come before it."""

    begin: np.ndarray  # (S,)
    end: np.ndarray  # (S,)
    token_offsets: np.ndarray  # (S+1,)
    document_begins: np.ndarray  # (D,) the first sentence of each document that has any
    document_ends: np.ndarray  # (D,) and the one after its last

    @staticmethod
    def from_store(store: Store, mark: int | None = None) -> SentenceTable:
        """List the sentences that are not empty; a document's end mark belongs to none."""
        edges = np.asarray(store.sentence_starts)
        begin, end = edges[:-1], edges[1:].copy()
        last = np.searchsorted(edges, store.starts[1:][find_ended_documents(store, mark)]) - 1
        end[last] -= 1  # of each document's last sentence
        keep = end > begin
        begin, end = begin[keep], end[keep]
        first = np.flatnonzero(np.diff(np.searchsorted(store.starts, begin, side="right") - 1, prepend=-1))
        return SentenceTable(begin, end, compute_starts(end - begin), first, np.append(first[1:], len(begin)))

    def find_stop(self, sentence: np.ndarray, tokens: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the sentence after those that are collected until there are so many tokens, or the document ends."""
        stop = np.searchsorted(self.token_offsets, self.token_offsets[sentence] + np.maximum(tokens, 1))
        return np.minimum(stop, last)


def plan_streams(store: Store, length: int, num_streams: int, *, extra: int = 0) -> Plan:
    """Plan for models that carry their state over: the store is cut into streams, and example t · rows + r is window t
    of stream r, so that a batch of `rows` examples continues where the batch before it ended. `extra` tokens after each
    window are handed over too (1: the last token's successor). Over several ranks, `rows` is the number of all streams
    and a multiple of those in a batch times the ranks: each rank then keeps its own."""
    size = (len(store.tokens) - extra) // num_streams  # of a stream
    if (count := size // length) < 1:
        what = f"{len(store.tokens):,} tokens are too few for {num_streams} streams of windows of {length}"
        raise Error(what, fix="take fewer rows, shorter windows or more text")
    begin = (np.arange(count)[:, None] * length + np.arange(num_streams) * size).ravel()
    return plan_single_spans(begin, begin + length + extra)


def make_stream_shape(streams: int, rows: int, length: int) -> BatchShape:
    """Choose the shape of batches that take a window of each of `rows` streams (0: of all)."""
    rows = rows or streams
    if streams % rows:
        raise Error(f"{streams} streams do not make batches of {rows}", fix="take a multiple")
    return BatchShape(rows, rows * length, 0, length)


def bucket_by_length(
    lengths: np.ndarray, seed: int, epoch: int, *, bucket_size: int = 256, spread: float = 0.1
) -> np.ndarray:
    """Return an order of examples in which neighbours are of similar length, for tasks: runs of them, in random order.
    Lengths are sorted after a random factor of 1 ± `spread`, so that every epoch has other neighbours."""
    lengths = np.asarray(lengths)
    noisy = lengths * (1 + spread * (2 * draw_uniform(seed, epoch, np.arange(len(lengths)), 0xB0C7) - 1))
    order = np.argsort(noisy, kind="stable")
    offset = int(draw_integers(bucket_size, seed, epoch, 0xB0C8))  # where runs are cut differs too
    edges = np.unique(np.concatenate(([0], np.arange(offset, len(order), bucket_size), [len(order)])))
    pieces = np.split(order, edges[1:-1])
    return np.concatenate([pieces[i] for i in shuffle_indices(len(pieces), seed, epoch, 0xB0C9)])


def estimate_documents(total: int, sizes: np.ndarray, headroom: float = 1.25, longest: int = 0) -> int:
    """Estimate how many documents batches of `total` tokens have, with a few for the rest of the tokens. Where all
    examples have the `longest` size, as many as fit exactly: batches are whole grids, for which attention has faster
    kernels."""
    if longest and len(sizes) and total % longest == 0 and (sizes == longest).all():
        return total // longest
    return int(np.ceil(headroom * total / max(1.0, sizes.mean()))) + 2 if len(sizes) else 1


def plan_single_spans(begin: np.ndarray, end: np.ndarray) -> Plan:
    """Return a plan of examples of one span each."""
    return Plan(begin, end, np.arange(len(begin) + 1), np.full(len(begin), -1, np.int8))


def gather_examples(store: Store, plan: Plan, numbers: Sequence[int] | np.ndarray, samples: np.ndarray) -> RawExamples:
    """Read the examples `numbers` of a plan out of the store."""
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
    label = plan.label[numbers].astype(np.int64)
    return RawExamples(ids, compute_starts(lengths), np.repeat(turn, sizes), sentence, unit, label, samples)


@dataclass(frozen=True)
class FramedExamples:
    """Examples with their marks: ids (N,), where they begin, and the slot of each token of the store among them."""

    ids: np.ndarray
    starts: np.ndarray  # (D+1,)
    token_slots: np.ndarray  # (tokens of the store,)
    raw: RawExamples

    def scatter_values(self, values: np.ndarray, fill: int = 0) -> np.ndarray:
        """Return what is known of the store's tokens as (N,), with `fill` at the marks."""
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
    """Add marks around each example (none is empty) and after its spans (the last entry serves all others)."""
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
    for at, some in ((raw.starts[1:], back), (raw.starts[:-1], front)):  # one's back comes before the next one's front
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


def load_or_build_plan(store: Store, objective: TextObjective, seed: int, epoch: int) -> Plan:
    """Read a plan out of the store's folder `plans`, or make it now and, if it is large, put it there."""
    assert store.directory is not None
    folder = store.directory.path / "plans"
    name = hash_plan_inputs(store, objective, seed)
    file = folder / f"{name}-{epoch}.bin"
    if (plan := read_plan(file)) is not None:
        return plan
    if len(store.tokens) < MIN_CACHED_EXAMPLES or not os.access(store.directory.path, os.W_OK):
        return objective.plan(store, seed, epoch)
    folder.mkdir(exist_ok=True)
    with hold_lock(folder / f"{name}.lock", wait=True):  # one makes it, the others wait for it
        if (plan := read_plan(file)) is not None:
            return plan
        plan = objective.plan(store, seed, epoch)
        if len(plan) < MIN_CACHED_EXAMPLES:
            return plan
        save_plan(plan, file)
        for old in folder.glob(f"{name}-{epoch - 2}.*"):
            old.unlink(missing_ok=True)
    return read_plan(file) or plan


def hash_plan_inputs(store: Store, objective: TextObjective, seed: int) -> str:
    """Hash what a plan depends on: the store, the objective and its code, the seed."""
    whole = hashlib.sha256(f"{store.content_hash} {objective!r} {seed} ".encode())
    objectives = sorted(Path(inspect.getfile(type(objective))).parent.glob("*.py"))  # they share their code
    for file in (*map(str, objectives), __file__, str(counter_rng.__file__), str(ragged_arrays.__file__)):
        whole.update(Path(file).read_bytes())
    return whole.hexdigest()[:24]


def save_plan(plan: Plan, file: Path) -> None:
    """Write a plan whole or not at all; on a full disk there is none."""
    writer = ArrayFileWriter(file)
    try:
        for name, dtype in PLAN_DTYPES.items():
            writer.add_array(name, dtype, [vars(plan)[name]])  # dynamic: PLAN_DTYPES names its arrays
        writer.close()
    except OSError:
        writer.discard()


def read_plan(file: Path) -> Plan | None:
    """Read a plan that was written, if it is there and undamaged."""
    if not file.exists():
        return None
    try:
        reader = ArrayFileReader(file, read_checked_json(file.with_suffix(".json")))
        for name in PLAN_DTYPES:
            reader.verify_range(name, 0, reader.header["arrays"][name]["count"])
        return Plan(*(reader.get_array(name) for name in PLAN_DTYPES))
    except (Error, KeyError):
        return None  # it is made again
