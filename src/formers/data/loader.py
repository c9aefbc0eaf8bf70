"""Batches: examples of a plan, corrupted and packed to a fixed shape.

The position in the data is one number, the next global example; examples are numbered through all epochs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..batch import Batch
from ..errors import Error
from .plans import Objective, Shape, gather
from .store import Store

IGNORED = -100


def filled(batch: Batch, shape: Shape) -> Batch:
    """The batch with dummy documents, none longer than an example, and ignored places up to the fixed shape."""
    source = batch.source
    if source is not None:
        inner = Shape(shape.documents, shape.source, 0, shape.source_longest)
        source = filled(source.replace(sample=batch.sample), inner).replace(sample=None, labels=None)
    old, documents = len(batch.ids), len(batch.starts) - 1
    rest, rows = shape.tokens - old, shape.documents - documents
    size = np.minimum(np.maximum(rest - np.arange(rows) * shape.longest, 0), shape.longest)
    if rest < 0 or rows < 0 or size.sum() < rest:
        raise Error(f"{old} tokens in {documents} documents do not fit into {shape}", fix="take larger batches")
    grown = {
        name: np.concatenate((value, np.zeros((rest, *value.shape[1:]), value.dtype)))
        for name in ("ids", "positions", "segments", "tasks", "order")
        if (value := getattr(batch, name)) is not None
    }
    starts = np.concatenate((batch.starts, batch.starts[-1] + np.cumsum(size))).astype(np.int32)
    if shape.places:
        free = shape.places - len(batch.labels)
        chosen, labels = np.pad(batch.chosen, (0, free)), np.pad(batch.labels, (0, free), constant_values=IGNORED)
    else:
        chosen, labels = batch.chosen, batch.labels
        if labels is not None:
            labels = np.pad(labels, (0, rest), constant_values=IGNORED)
    answers = None if batch.answers is None else np.pad(batch.answers, (0, rows), constant_values=IGNORED)
    sample = np.pad(batch.sample, (0, rows), constant_values=-1)
    return batch.replace(
        **grown, starts=starts, longest=shape.longest, source=source, chosen=chosen, labels=labels, sample=sample,
        answers=answers,
    )  # fmt: skip


def batches(
    store: Store, objective: Objective, total: int, seed: int = 0, position: int = 0, epochs: int | None = None
) -> Iterator[tuple[Batch, int]]:
    """Batches of `total` tokens from a position on, each with the position behind it; without end unless `epochs` says.

    Every epoch has the same number of examples, and a batch stays within one epoch.
    """
    plan = objective.plan(store, seed, 0)
    count, shape = len(plan), objective.shape(total, plan)
    limits = np.array([shape.tokens, shape.places or shape.tokens, shape.source])
    epoch = position // count
    while epochs is None or epoch < epochs:
        plan = objective.plan(store, seed, epoch)
        reach = np.concatenate((np.zeros((1, 3), np.int64), np.cumsum(objective.sizes(plan), 0)))
        n = position - epoch * count
        while n < count:
            stops = [np.searchsorted(reach[:, i], reach[n, i] + limits[i], side="right") - 1 for i in range(3)]
            stop = int(min(*stops, n + shape.documents))
            if stop == n:
                raise Error(
                    f"an example of {' + '.join(map(str, reach[n + 1] - reach[n]))} tokens, places and source tokens "
                    f"does not fit into a batch of {limits}",
                    fix="take larger batches or shorter examples",
                )
            numbers = np.arange(n, stop)
            raw = gather(store, plan, numbers, epoch * count + numbers)
            n, position = stop, epoch * count + stop
            yield filled(objective.corrupt(raw, seed), shape), position
        epoch += 1
