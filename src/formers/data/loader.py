"""Plans and batches: which spans of the store make example n, and how examples are packed to a fixed size.

The position in the data is one number, the next global example; examples are numbered through all epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..batch import Batch
from ..errors import Error
from .draws import shuffled
from .store import Store


@dataclass(frozen=True)
class Plan:
    """Example n is tokens[begin[n]:end[n]] between the objective's frame marks."""

    begin: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.begin)


class Objective(Protocol):
    """What a loader needs of an objective."""

    frame: tuple[tuple[int, ...], tuple[int, ...]]  # marks before and behind an example

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Which spans make the examples of an epoch."""
        ...

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """Hide what is to be predicted."""
        ...


def windows(store: Store, length: int, seed: int, epoch: int) -> Plan:
    """Documents cut into windows of `length`, in random order; a document's last window reaches back to be full."""
    begins, ends = [], []
    for low, high in zip(store.starts[:-1], store.starts[1:], strict=True):
        begin = np.arange(low, max(low + 1, high), length)
        end = np.minimum(begin + length, high)
        begins.append(np.maximum(end - length, low))
        ends.append(end)
    begin, end = np.concatenate(begins), np.concatenate(ends)
    keep = end - begin > 1
    order = shuffled(int(keep.sum()), seed, epoch, 0xDA7A)
    return Plan(begin[keep][order], end[keep][order])


def pack(
    store: Store,
    plan: Plan,
    numbers: np.ndarray,
    samples: np.ndarray,
    frame: tuple[tuple[int, ...], tuple[int, ...]],
    total: int,
) -> Batch:
    """Examples one after the other; dummy documents, none longer than an example, fill up to `total` tokens, so that
    all batches have one shape."""
    front, back = (np.asarray(part, np.int64) for part in frame)
    rows = [np.concatenate((front, store.tokens[plan.begin[n] : plan.end[n]], back)) for n in numbers]
    lengths = np.array([len(row) for row in rows])
    longest = int((plan.end - plan.begin).max()) + len(front) + len(back)
    left = total - int(lengths.sum())
    fill = np.array([longest] * (left // longest) + [left % longest] * (left % longest > 0), np.int64)
    starts = np.concatenate(([0], np.cumsum(np.append(lengths, fill)))).astype(np.int32)
    ids = np.concatenate((*rows, np.zeros(left, np.int64)))
    return Batch(ids, starts, longest, sample=np.append(samples, np.full(len(fill), -1)))


def batches(
    store: Store, objective: Objective, total: int, seed: int = 0, position: int = 0, epochs: int | None = None
) -> Iterator[tuple[Batch, int]]:
    """Batches of `total` tokens from a position on, each with the position behind it; without end unless `epochs` says.

    Every epoch has the same number of examples, and a batch stays within one epoch.
    """
    count, extra = len(objective.plan(store, seed, 0)), sum(map(len, objective.frame))
    epoch = position // count
    while epochs is None or epoch < epochs:
        plan = objective.plan(store, seed, epoch)
        reach = np.cumsum(plan.end - plan.begin + extra)  # tokens up to and including each example
        n = position - epoch * count
        while n < count:
            stop = int(np.searchsorted(reach, (reach[n - 1] if n else 0) + total, side="right"))
            if stop == n:
                size = int(plan.end[n] - plan.begin[n]) + extra
                raise Error(
                    f"an example of {size} tokens does not fit into a batch of {total}",
                    fix="take larger batches or shorter examples",
                )
            numbers = np.arange(n, stop)
            packed = pack(store, plan, numbers, epoch * count + numbers, objective.frame, total)
            n, position = stop, epoch * count + stop
            yield objective.corrupt(packed, seed), position
        epoch += 1
