"""Several sources of examples as one, each with a rate (Raffel et al. 2019, §3.5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from ..batch import Array, Batch, BatchShape
from ..errors import Error
from ..protocols import AnySource, ExamplePlan
from ..ragged_arrays import compute_starts
from .counter_rng import shuffle_indices
from .plans import TokenSource

ORDER_DRAW = 130  # what a random number is for
TaskPlanType = TypeVar("TaskPlanType", bound="TaskPlan")


class TaskPlan(ExamplePlan, Protocol):
    """A plan out of which a mixture can take examples."""

    def select_examples(self: TaskPlanType, numbers: np.ndarray) -> TaskPlanType:
        """Return a plan of some examples alone, in this order."""

    @staticmethod
    def concatenate(plans: Sequence[Any]) -> Any:  # dynamic: plans of the class itself
        """Return one plan of the examples of several plans of one source."""


@dataclass(frozen=True)
class MixturePlan:
    """Which examples of a mixture are whose: those at `rows[t]` are the examples of `parts[t]`, in this order."""

    rows: tuple[np.ndarray, ...]
    parts: tuple[TaskPlan, ...]

    def __len__(self) -> int:
        return sum(map(len, self.rows))

    def slice_examples(self, low: int, high: int) -> MixturePlan:
        """Return a plan of the examples low … high - 1 alone, numbered from 0."""
        edges = [np.searchsorted(rows, (low, high)).tolist() for rows in self.rows]
        return MixturePlan(
            tuple(rows[a:b] - low for rows, (a, b) in zip(self.rows, edges, strict=True)),
            tuple(part.slice_examples(a, b) for part, (a, b) in zip(self.parts, edges, strict=True)),
        )


@dataclass(frozen=True)
class Mixture:
    """Each epoch takes its exact share of every task's examples, in random order; a task resumes where it stopped.
    `rates` are shares; None takes T5's: as many as a task has examples, at most `cap`, to the power of 1/temperature.
    All tasks are two-sided, or none is, and they train one part of the head: any task's objective computes the loss."""

    sources: tuple[AnySource, ...] = field(repr=False)
    rates: tuple[float, ...] | None = None
    temperature: float = 1.0
    cap: int | None = None
    epoch_examples: int | None = None  # examples of an epoch; None: as many as all tasks have together

    def __post_init__(self) -> None:
        if not self.sources:
            raise Error("a mixture needs at least one source of examples", fix="give a source for each task")
        if self.rates is not None and (len(self.rates) != len(self.sources) or min(self.rates) <= 0):
            raise Error("a mixture needs a rate above 0 for each task", fix="leave out what is not wanted")
        if len({source.store.fingerprint for source in self.sources if isinstance(source, TokenSource)}) > 1:
            raise Error("the stores of a mixture have different tokenizers", fix="prepare them with one")

    def compute_rates(self, counts: np.ndarray) -> np.ndarray:
        """Return the mixing rate of each task, given how many examples each has; their sum is 1."""
        shares = counts.astype(float) if self.cap is None else np.minimum(counts, self.cap).astype(float)
        shares = shares ** (1 / self.temperature) if self.rates is None else np.asarray(self.rates, float)
        return shares / shares.sum()

    def compute_quotas(self, counts: np.ndarray) -> np.ndarray:
        """Return how many examples of each task make an epoch; what rounding leaves goes to the largest remainders."""
        exact = self.compute_rates(counts) * (self.epoch_examples or counts.sum())
        whole = exact.astype(np.int64)
        rest = round(float(exact.sum())) - int(whole.sum())
        whole[np.argsort(whole - exact, kind="stable")[:rest]] += 1
        return whole

    def plan_epoch(self, seed: int, epoch: int) -> MixturePlan:
        """Choose the examples of all tasks and shuffle them together."""
        first = [source.plan_epoch(seed, 0) for source in self.sources]
        counts = np.array([len(plan) for plan in first])
        if not counts.all():
            raise Error("a task of the mixture has no examples", fix="leave it out, or give it data")
        quotas = self.compute_quotas(counts)
        task = np.repeat(np.arange(len(quotas)), quotas)
        order = shuffle_indices(len(task), seed, epoch, ORDER_DRAW)
        begins, rows, parts = compute_starts(quotas), [], []
        for number, source in enumerate(self.sources):
            at = epoch * quotas[number] + np.arange(quotas[number])  # examples of the task, counted over all epochs
            plans = []
            for turn in np.unique(at // counts[number]).tolist():
                plan = first[number] if turn == 0 else source.plan_epoch(seed, turn)
                plans.append(plan.select_examples((at % counts[number])[at // counts[number] == turn]))
            rows.append(np.flatnonzero(task[order] == number))
            chosen = first[number].concatenate(plans) if plans else first[number].slice_examples(0, 0)
            parts.append(chosen.select_examples(order[rows[-1]] - begins[number]))
        return MixturePlan(tuple(rows), tuple(parts))

    def measure_sizes(self, plan: MixturePlan) -> np.ndarray:
        """Measure (E, 3) tokens, places with a loss and source tokens, each task's its own way."""
        sizes = np.zeros((len(plan), 3), np.int64)
        for source, rows, part in zip(self.sources, plan.rows, plan.parts, strict=True):
            sizes[rows] = source.measure_sizes(part)
        return sizes

    def choose_shape(self, total: int, plan: MixturePlan) -> BatchShape:
        """Choose room for the usual mix, and for the longest example of any task."""
        shapes = [s.choose_shape(total, part) for s, part in zip(self.sources, plan.parts, strict=True) if len(part)]
        mean = self.measure_sizes(plan).mean(0)
        larger = max(mean[0], mean[2])
        longest, far = max(s.longest for s in shapes), max(s.source_longest for s in shapes)
        labels = 0 if not all(s.labels for s in shapes) else max(s.labels for s in shapes)
        return BatchShape(
            sum(s.documents for s in shapes), max(longest, int(np.ceil(total * mean[0] / larger))), labels, longest,
            max(far, int(np.ceil(total * mean[2] / larger))) if far else 0, far,
        )  # fmt: skip

    def make_batch(self, plan: MixturePlan, samples: np.ndarray, seed: int) -> Batch:
        """Let each task make a batch of its examples; they stand together, task by task."""
        tasks = zip(self.sources, plan.rows, plan.parts, strict=True)
        return concatenate_batches([s.make_batch(part, samples[rows], seed) for s, rows, part in tasks if len(rows)])


def concatenate_batches(batches: Sequence[Batch]) -> Batch:
    """Put packed batches one after the other; they must have the same fields."""
    shift = compute_starts(np.array([len(b.ids) for b in batches]))
    joined: dict[str, Array] = {}
    fields = [batch.to_dict() for batch in batches]
    for name in fields[0]:
        values = [one[name] for one in fields]
        if all(v is None for v in values):
            continue
        if any(v is None for v in values):
            raise Error(f"tasks of a mixture differ in {name}", fix="mix tasks of one kind")
        if name == "starts":
            rest = [v[1:] + base for v, base in zip(values, shift, strict=False)]
            joined[name] = np.concatenate((values[0][:1], *rest))
        elif name == "chosen":
            joined[name] = np.concatenate([v + base for v, base in zip(values, shift, strict=False)])
        elif name in ("longest", "has_reversed_half"):
            joined[name] = max(values)
        else:
            joined[name] = concatenate_batches(values) if name == "source" else np.concatenate(values)
    return Batch(**joined)
