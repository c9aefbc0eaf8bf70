"""Several tasks as one (Raffel et al. 2019, §3.5.2): each has its own store and objective, and a rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.counter_rng import shuffle_indices
from ..data.plans import BatchShape, Plan, RawExamples
from ..data.store import Store
from ..errors import Error
from ..protocols import Model
from .ragged_arrays import compute_row_ids, compute_starts, expand_ranges
from .token_losses import LabelCounting

LABELS_PER_TASK = 4  # a plan's decisions are -1 … 2
ORDER_DRAW = 130  # what a random number is for


class JoinedStore(Store):
    """Stores that answer as one: the tokens of the second are numbered behind those of the first."""

    def __init__(self, stores: Sequence[Store]):
        if len({s.fingerprint for s in stores}) != 1:
            raise Error("the stores of a mixture have different tokenizers", fix="prepare them with one")
        starts = compute_starts(np.array([s.starts[-1] for s in stores]))
        super().__init__(np.zeros(0, np.int64), starts, stores[0].vocab, stores[0].fingerprint)
        self.stores = tuple(stores)

    def read_spans(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The tokens of spans one after the other, each from the store that it lies in."""
        which = np.searchsorted(self.starts, begin, side="right") - 1
        sizes = end - begin
        at = compute_starts(sizes)
        ids, sentence = np.empty(at[-1], np.int64), np.empty(at[-1], bool)
        unit = None if any(s.unit_bits is None for s in self.stores) else np.empty(at[-1], np.uint8)
        for number, store in enumerate(self.stores):
            mine = which == number
            slots = expand_ranges(at[:-1][mine], sizes[mine])
            base = self.starts[number]
            ids[slots], sentence[slots], some = store.read_spans(begin[mine] - base, end[mine] - base)
            if unit is not None:
                unit[slots] = some
        return ids, sentence, unit


@dataclass(frozen=True)
class Mixture(LabelCounting):
    """Each epoch takes its exact share of every task's examples, in random order; a task goes on where it stopped.

    `rates` are shares; None takes T5's: as many as a task has examples, at most `cap`, to the power of 1/temperature.
    Use `mixture.store` as the store. All tasks are two-sided, or none is.
    """

    stores: tuple[Store, ...] = field(compare=False, repr=False)
    objectives: tuple[Any, ...]
    rates: tuple[float, ...] | None = None
    temperature: float = 1.0
    cap: int | None = None
    epoch_examples: int | None = None  # examples of an epoch; None: as many as all tasks have together

    def __post_init__(self) -> None:
        if not self.stores or len(self.stores) != len(self.objectives) or len(self.stores) > 127 // LABELS_PER_TASK:
            raise Error("a mixture needs a store for each objective, and 31 at most", fix="give pairs of them")
        if self.rates is not None and (len(self.rates) != len(self.stores) or min(self.rates) <= 0):
            raise Error("a mixture needs a rate above 0 for each task", fix="leave out what is not wanted")

    @property
    def store(self) -> JoinedStore:
        """What a loader reads."""
        return JoinedStore(self.stores)

    @property
    def part(self) -> str:  # type: ignore[override]  # derived: it is that of every task
        """The head that all tasks share."""
        return self.objectives[0].part

    def compute_quotas(self, counts: np.ndarray) -> np.ndarray:
        """How many examples of each task make an epoch; what rounding leaves goes to the largest remainders."""
        shares = counts.astype(float) if self.cap is None else np.minimum(counts, self.cap).astype(float)
        shares = shares ** (1 / self.temperature) if self.rates is None else np.asarray(self.rates, float)
        exact = shares / shares.sum() * (self.epoch_examples or counts.sum())
        whole = exact.astype(np.int64)
        rest = round(float(exact.sum())) - int(whole.sum())
        whole[np.argsort(whole - exact, kind="stable")[:rest]] += 1
        return whole

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Examples of all tasks; the label holds the task as well."""
        first = [o.plan(s, seed, 0) for o, s in zip(self.objectives, self.stores, strict=True)]
        counts = np.array([len(p) for p in first])
        if not counts.all():
            raise Error("a task of the mixture has no examples", fix="leave it out, or give it data")
        begin, end, size, label = [], [], [], []
        for task, number in enumerate(self.compute_quotas(counts)):
            at = epoch * number + np.arange(number)
            for turn in np.unique(at // counts[task]):
                plan = first[task] if turn == 0 else self.objectives[task].plan(self.stores[task], seed, int(turn))
                some = (at % counts[task])[at // counts[task] == turn]
                many = plan.span_offsets[some + 1] - plan.span_offsets[some]
                spans = expand_ranges(plan.span_offsets[some], many)
                base = store.starts[task]
                begin.append(plan.begin[spans] + base)
                end.append(plan.end[spans] + base)
                size.append(many)
                label.append(task * LABELS_PER_TASK + plan.label[some].astype(np.int64) + 1)
        sizes, labels = np.concatenate(size), np.concatenate(label)
        order = shuffle_indices(len(labels), seed, epoch, ORDER_DRAW)
        spans = expand_ranges(compute_starts(sizes)[:-1][order], sizes[order])
        return Plan(
            np.concatenate(begin)[spans],
            np.concatenate(end)[spans],
            compute_starts(sizes[order]),
            labels[order].astype(np.int8),
        )

    def split_by_task(self, plan: Plan) -> list[tuple[np.ndarray, Plan]]:
        """The examples of each task in a plan, and a plan of them alone."""
        found = []
        for task in range(len(self.objectives)):
            rows = np.flatnonzero(plan.label // LABELS_PER_TASK == task)
            many = plan.span_offsets[rows + 1] - plan.span_offsets[rows]
            spans = expand_ranges(plan.span_offsets[rows], many)
            label = (plan.label[rows] % LABELS_PER_TASK - 1).astype(np.int8)
            found.append((rows, Plan(plan.begin[spans], plan.end[spans], compute_starts(many), label)))
        return found

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Each task's own."""
        sizes = np.zeros((len(plan), 3), np.int64)
        for objective, (rows, part) in zip(self.objectives, self.split_by_task(plan), strict=True):
            sizes[rows] = objective.measure_sizes(part)
        return sizes

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Room for the usual mix, and for the longest example of any task."""
        tasks = zip(self.objectives, self.split_by_task(plan), strict=True)
        shapes = [o.choose_shape(total, part) for o, (rows, part) in tasks if len(rows)]
        mean = self.measure_sizes(plan).mean(0)
        larger = max(mean[0], mean[2])
        longest, far = max(s.longest for s in shapes), max(s.source_longest for s in shapes)
        labels = 0 if not all(s.labels for s in shapes) else max(s.labels for s in shapes)
        return BatchShape(
            sum(s.documents for s in shapes), max(longest, int(np.ceil(total * mean[0] / larger))), labels, longest,
            max(far, int(np.ceil(total * mean[2] / larger))) if far else 0, far,
        )  # fmt: skip

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Each task corrupts its own examples, which then stand together, task by task."""
        owner, done = compute_row_ids(raw.starts), []
        for task, objective in enumerate(self.objectives):
            mine = raw.label // LABELS_PER_TASK == task
            if mine.any():
                keep = mine[owner]
                starts = compute_starts(np.diff(raw.starts)[mine])
                unit = None if raw.unit_bits is None else raw.unit_bits[keep]
                label = raw.label[mine] % LABELS_PER_TASK - 1
                some = RawExamples(
                    raw.ids[keep],
                    starts,
                    raw.span_index[keep],
                    raw.sentence_starts[keep],
                    unit,
                    label,
                    raw.sample[mine],
                )
                done.append(objective.corrupt(some, seed))
        return concatenate_batches(done)

    def count_labels(self, batch: Batch) -> dict[str, int]:
        """Count the labels; all tasks count as the first does."""
        return self.objectives[0].count_labels(batch)

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """All tasks answer in the same way: that of the first."""
        return self.objectives[0].loss(model, batch)


def concatenate_batches(batches: Sequence[Batch]) -> Batch:
    """Packed batches one after the other; they must have the same fields."""
    shift = compute_starts(np.array([len(b.ids) for b in batches]))
    joined: dict[str, Any] = {}
    for name in (f.name for f in dataclasses.fields(Batch)):
        values = [getattr(b, name) for b in batches]
        if all(v is None for v in values):
            continue
        if any(v is None for v in values):
            raise Error(f"tasks of a mixture differ in {name}", fix="mix tasks of one kind")
        if name == "starts":
            rest = [v[1:] + base for v, base in zip(values, shift, strict=False)]
            joined[name] = np.concatenate((values[0][:1], *rest))
        elif name == "chosen":
            joined[name] = np.concatenate([v + base for v, base in zip(values, shift, strict=False)])
        elif name == "longest":
            joined[name] = max(values)
        else:
            joined[name] = concatenate_batches(values) if name == "source" else np.concatenate(values)
    return Batch(**joined)
