"""Several tasks as one (Raffel et al. 2019, §3.5.2): each has its own store and objective, and a rate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.draws import shuffled
from ..data.plans import Plan, Raw, Shape
from ..data.store import Store
from ..errors import Error
from ..tasks.heads import Model
from .ragged import edges, owners, spread

LABELS = 4  # a plan's decisions are -1 … 2
ORDER = 130  # what a random number is for


class Joined(Store):
    """Stores that answer as one: the tokens of the second are numbered behind those of the first."""

    def __init__(self, stores: Sequence[Store]):
        if len({s.fingerprint for s in stores}) != 1:
            raise Error("the stores of a mixture have different tokenizers", fix="prepare them with one")
        starts = edges(np.array([s.starts[-1] for s in stores]))
        super().__init__(np.zeros(0, np.int64), starts, stores[0].vocab, stores[0].fingerprint)
        self.stores = tuple(stores)

    def take(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The tokens of spans one after the other, each from the store that it lies in."""
        which = np.searchsorted(self.starts, begin, side="right") - 1
        sizes = end - begin
        at = edges(sizes)
        ids, sentence = np.empty(at[-1], np.int64), np.empty(at[-1], bool)
        unit = None if any(s.units is None for s in self.stores) else np.empty(at[-1], np.uint8)
        for number, store in enumerate(self.stores):
            mine = which == number
            slots = spread(at[:-1][mine], sizes[mine])
            base = self.starts[number]
            ids[slots], sentence[slots], some = store.take(begin[mine] - base, end[mine] - base)
            if unit is not None:
                unit[slots] = some
        return ids, sentence, unit


@dataclass(frozen=True)
class Mixture:
    """Each epoch takes its exact share of every task's examples, in random order; a task goes on where it stopped.

    `rates` are shares; None takes T5's: as many as a task has examples, at most `cap`, to the power of 1/temperature.
    Use `mixture.store` as the store. All tasks are two-sided, or none is.
    """

    stores: tuple[Store, ...] = field(compare=False, repr=False)
    objectives: tuple[Any, ...]
    rates: tuple[float, ...] | None = None
    temperature: float = 1.0
    cap: int | None = None
    size: int | None = None  # examples of an epoch; None: as many as all tasks have together

    def __post_init__(self) -> None:
        if not self.stores or len(self.stores) != len(self.objectives) or len(self.stores) > 127 // LABELS:
            raise Error("a mixture needs a store for each objective, and 31 at most", fix="give pairs of them")
        if self.rates is not None and (len(self.rates) != len(self.stores) or min(self.rates) <= 0):
            raise Error("a mixture needs a rate above 0 for each task", fix="leave out what is not wanted")

    @property
    def store(self) -> Joined:
        """What a loader reads."""
        return Joined(self.stores)

    @property
    def part(self) -> str:
        """The head that all tasks share."""
        return self.objectives[0].part

    def quota(self, counts: np.ndarray) -> np.ndarray:
        """How many examples of each task make an epoch; what rounding leaves goes to the largest remainders."""
        shares = counts.astype(float) if self.cap is None else np.minimum(counts, self.cap).astype(float)
        shares = shares ** (1 / self.temperature) if self.rates is None else np.asarray(self.rates, float)
        exact = shares / shares.sum() * (self.size or counts.sum())
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
        for task, number in enumerate(self.quota(counts)):
            at = epoch * number + np.arange(number)
            for turn in np.unique(at // counts[task]):
                plan = first[task] if turn == 0 else self.objectives[task].plan(self.stores[task], seed, int(turn))
                some = (at % counts[task])[at // counts[task] == turn]
                many = plan.first[some + 1] - plan.first[some]
                spans = spread(plan.first[some], many)
                base = store.starts[task]
                begin.append(plan.begin[spans] + base)
                end.append(plan.end[spans] + base)
                size.append(many)
                label.append(task * LABELS + plan.label[some].astype(np.int64) + 1)
        sizes, labels = np.concatenate(size), np.concatenate(label)
        order = shuffled(len(labels), seed, epoch, ORDER)
        spans = spread(edges(sizes)[:-1][order], sizes[order])
        return Plan(
            np.concatenate(begin)[spans], np.concatenate(end)[spans], edges(sizes[order]), labels[order].astype(np.int8)
        )

    def parts(self, plan: Plan) -> list[tuple[np.ndarray, Plan]]:
        """The examples of each task in a plan, and a plan of them alone."""
        found = []
        for task in range(len(self.objectives)):
            rows = np.flatnonzero(plan.label // LABELS == task)
            many = plan.first[rows + 1] - plan.first[rows]
            spans = spread(plan.first[rows], many)
            label = (plan.label[rows] % LABELS - 1).astype(np.int8)
            found.append((rows, Plan(plan.begin[spans], plan.end[spans], edges(many), label)))
        return found

    def sizes(self, plan: Plan) -> np.ndarray:
        """Each task's own."""
        sizes = np.zeros((len(plan), 3), np.int64)
        for objective, (rows, part) in zip(self.objectives, self.parts(plan), strict=True):
            sizes[rows] = objective.sizes(part)
        return sizes

    def shape(self, total: int, plan: Plan) -> Shape:
        """Room for the usual mix, and for the longest example of any task."""
        tasks = zip(self.objectives, self.parts(plan), strict=True)
        shapes = [o.shape(total, part) for o, (rows, part) in tasks if len(rows)]
        mean = self.sizes(plan).mean(0)
        larger = max(mean[0], mean[2])
        longest, far = max(s.longest for s in shapes), max(s.source_longest for s in shapes)
        places = 0 if not all(s.places for s in shapes) else max(s.places for s in shapes)
        return Shape(
            sum(s.documents for s in shapes), max(longest, int(np.ceil(total * mean[0] / larger))), places, longest,
            max(far, int(np.ceil(total * mean[2] / larger))) if far else 0, far,
        )  # fmt: skip

    def corrupt(self, raw: Raw, seed: int) -> Batch:
        """Each task corrupts its own examples, which then stand together, task by task."""
        owner, done = owners(raw.starts), []
        for task, objective in enumerate(self.objectives):
            mine = raw.label // LABELS == task
            if mine.any():
                keep = mine[owner]
                starts = edges(np.diff(raw.starts)[mine])
                unit = None if raw.unit is None else raw.unit[keep]
                label = raw.label[mine] % LABELS - 1
                some = Raw(raw.ids[keep], starts, raw.span[keep], raw.sentence[keep], unit, label, raw.sample[mine])
                done.append(objective.corrupt(some, seed))
        return together(done)

    def counts(self, batch: Batch) -> dict[str, int]:
        """As the first task counts."""
        return self.objectives[0].counts(batch)

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """All tasks answer in the same way: that of the first."""
        return self.objectives[0].loss(model, batch)


def together(batches: Sequence[Batch]) -> Batch:
    """Packed batches one after the other; they must have the same fields."""
    shift = edges(np.array([len(b.ids) for b in batches]))
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
            joined[name] = together(values) if name == "source" else np.concatenate(values)
    return Batch(**joined)
