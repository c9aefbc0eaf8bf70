"""Batches: examples of a source, packed to a fixed shape, by worker processes ahead of time.

The position in the data is one number, the next global example; examples are numbered through all epochs. Which
examples make a batch depends on the plan and the position alone: not on workers, nor on ranks.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..batch import IGNORE_INDEX, Batch, BatchShape
from ..errors import Error
from ..protocols import ExamplePlan, ExampleSource, PlanType
from .worker_pool import WorkerPool

SIZE_BLOCK = 4096  # examples whose sizes are asked for at a time


def pad_array(value: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """An array made longer."""
    if size < len(value):
        raise Error(f"{len(value)} do not fit into {size}", fix="take larger batches")
    out = np.full((size, *value.shape[1:]), fill, value.dtype)
    out[: len(value)] = value
    return out


def pad_batch(batch: Batch, shape: BatchShape) -> Batch:
    """The batch with dummy documents, none longer than an example, and ignored places up to the fixed shape."""
    source = batch.source
    if source is not None:
        inner = BatchShape(shape.documents, shape.source_tokens, 0, shape.source_longest)
        source = pad_batch(source.replace(sample=batch.sample), inner).replace(sample=None, labels=None)
    old, documents = len(batch.ids), len(batch.starts) - 1
    rest, rows = shape.tokens - old, shape.documents - documents
    size = np.minimum(np.maximum(rest - np.arange(max(0, rows)) * shape.longest, 0), shape.longest)
    if rest < 0 or rows < 0 or size.sum() < rest:
        raise Error(f"{old} tokens in {documents} documents do not fit into {shape}", fix="take larger batches")
    changes: dict[str, Any] = {
        name: pad_array(value, shape.tokens)
        for name in ("ids", "positions", "segments", "tasks", "order")
        if (value := getattr(batch, name)) is not None
    }
    changes["starts"] = np.concatenate((batch.starts, batch.starts[-1] + np.cumsum(size))).astype(np.int32)
    if batch.labels is not None:
        changes["labels"] = pad_array(batch.labels, shape.labels or shape.tokens, IGNORE_INDEX)
    if shape.labels:
        changes["chosen"] = pad_array(batch.chosen, shape.labels)
    if batch.document_labels is not None:
        changes["document_labels"] = pad_array(batch.document_labels, shape.documents, IGNORE_INDEX)
    sample = pad_array(batch.sample, shape.documents, -1)
    return batch.replace(**changes, longest=shape.longest, source=source, sample=sample)


def blank_batch(batch: Batch) -> Batch:
    """A batch of the same shape that asks for nothing: for a rank that has none while others have."""
    blank = {
        name: np.full_like(value, IGNORE_INDEX)
        for name in ("labels", "document_labels")
        if (value := getattr(batch, name)) is not None
    }
    return batch.replace(**blank, sample=np.full_like(batch.sample, -1))


@dataclass(frozen=True)
class BatchTask:
    """One batch to be made: its examples' part of the plan, and their global numbers from `sample` on."""

    plan: ExamplePlan
    first_sample: int
    is_blank: bool = False


@dataclass(frozen=True)
class BatchMaker:
    """What makes batches of tasks, in this process or in a worker."""

    source: ExampleSource[Any]
    shape: BatchShape
    seed: int

    def __call__(self, task: BatchTask) -> Batch:
        """One batch."""
        samples = task.first_sample + np.arange(len(task.plan))
        batch = pad_batch(self.source.make_batch(task.plan, samples, self.seed), self.shape)
        return blank_batch(batch) if task.is_blank else batch


def pack_examples(
    source: ExampleSource[PlanType], plan: PlanType, shape: BatchShape, n: int
) -> Iterator[tuple[int, int]]:
    """Runs of examples from n on that fit into a batch each: in order, as many as possible."""
    limits = np.array([shape.tokens, shape.labels or shape.tokens, shape.source_tokens])
    count, low, high = len(plan), 0, 0
    while n < count:
        if high < min(count, n + shape.documents) or not high:
            low, high = n, min(count, n + max(SIZE_BLOCK, 4 * shape.documents))
            reach = np.zeros((high - low + 1, 3), np.int64)
            np.cumsum(source.measure_sizes(plan.slice_examples(low, high)), 0, out=reach[1:])
        used = reach[n - low : n - low + shape.documents + 1] - reach[n - low]  # (k, 3) by the first k - 1 examples
        fits = (used <= limits).all(1)
        # What is left over goes into dummy documents, none longer than an example: there must be enough of them.
        rows = shape.documents - np.arange(len(used))
        fits &= rows * shape.longest >= shape.tokens - used[:, 0]
        if shape.source_tokens:
            fits &= rows * shape.source_longest >= shape.source_tokens - used[:, 2]
        stop = n + (int(np.argmin(fits)) if not fits.all() else len(fits)) - 1
        if stop <= n:
            sizes = " + ".join(map(str, used[1])) if len(used) > 1 else "?"
            raise Error(
                f"an example of {sizes} tokens, places and source tokens does not fit into a batch of {limits}",
                fix="take larger batches or shorter examples",
            )
        yield n, stop
        n = stop


def plan_epoch(source: ExampleSource[PlanType], seed: int, epoch: int, count: int | None = None) -> PlanType:
    """Plan an epoch, which must have examples; `count` is how many the first epoch had."""
    plan = source.plan_epoch(seed, epoch)
    if count is not None and len(plan) != count:
        what = f"epoch {epoch} has {len(plan):,} examples, the first one {count:,}"
        raise Error(what, fix="report this: every epoch of an objective must have as many")
    if not len(plan):
        raise Error("no example can be made of this text", fix="give more text, or shorter examples")
    return plan


def plan_tasks(
    source: ExampleSource[PlanType], plan: PlanType, shape: BatchShape, seed: int, position: int, epochs: int | None
) -> Iterator[tuple[BatchTask, int]]:
    """Batches to be made from a position on, each with the position behind it. `plan` is that of the first epoch."""
    count = len(plan)
    for epoch in itertools.count(position // count):
        if epochs is not None and epoch >= epochs:
            return
        if epoch:
            plan = plan_epoch(source, seed, epoch, count)
        base = epoch * count
        for low, high in pack_examples(source, plan, shape, max(0, position - base)):
            yield BatchTask(plan.slice_examples(low, high), base + low), base + high


def select_rank_tasks(todo: Iterator[tuple[BatchTask, int]], rank: int, ranks: int) -> Iterator[tuple[BatchTask, int]]:
    """Every `ranks`-th task, with the position behind what all ranks do meanwhile. All ranks get as many: at the end of
    the last epoch, one that would get none gets a batch that asks for nothing."""
    while round_ := list(itertools.islice(todo, ranks)):
        last, position = round_[-1]
        yield round_[rank][0] if rank < len(round_) else dataclasses.replace(last, is_blank=True), position


def load_batches(
    source: ExampleSource[Any],
    batch_tokens: int,
    seed: int = 0,
    position: int = 0,
    epochs: int | None = None,
    *,
    workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
    prefetch: int | None = None,
    pin: bool = False,
    start_method: str | None = None,
) -> Iterator[tuple[Batch, int]]:
    """Batches of `batch_tokens` tokens of a source from a position on, each with the position behind it; without end
    unless `epochs` says.

    Every epoch has the same number of examples, and a batch stays within one epoch. Of the sequence of batches, number
    k goes to rank k % ranks; the position is then the one behind the batches of all ranks. `workers` processes make up
    to `prefetch` batches ahead (two each by default); `pin` puts them into memory that a GPU can fetch from.
    `start_method` is how processes are started: fork where there is one, else spawn.
    """
    if not 0 <= rank < ranks:
        raise Error(f"rank {rank} is not one of {ranks}", fix="ranks count from 0")
    if position < 0:
        raise Error(f"a position counts from 0, got {position}", fix="give the next global example")
    plan = plan_epoch(source, seed, 0)
    shape = source.choose_shape(batch_tokens, plan)
    todo = select_rank_tasks(plan_tasks(source, plan, shape, seed, position, epochs), rank, ranks)
    make, finish = BatchMaker(source, shape, seed), pin_batch if pin else (lambda batch: batch)
    if not workers:
        for task, position in todo:
            yield finish(make(task)), position
        return
    crew = WorkerPool(workers, make, 2 * workers if prefetch is None else prefetch, start_method)
    behind: deque[int] = deque()  # positions of the tasks that were handed out, in order

    def record_positions() -> Iterator[BatchTask]:
        for task, position in todo:
            behind.append(position)
            yield task

    try:
        for batch in crew.map(record_positions(), finish):
            yield batch, behind.popleft()
    finally:
        crew.close()


def pin_batch(batch: Batch) -> Batch:
    """The batch as torch tensors in page-locked memory, from which a copy to a GPU need not be waited for."""

    def pin_value(value: Any) -> Any:
        if isinstance(value, Batch):
            return pin_batch(value)
        return torch.from_numpy(value).pin_memory() if isinstance(value, np.ndarray) else value

    return Batch(**{f.name: pin_value(getattr(batch, f.name)) for f in dataclasses.fields(batch)})
