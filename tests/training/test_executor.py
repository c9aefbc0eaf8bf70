"""Recorded steps, as far as a machine without a GPU can tell: what a replay reads. The rest is in tests/gpu."""

from __future__ import annotations

import pytest
import torch

from formers import Error
from formers.batch import Batch
from formers.training.executor import GraphedStep, clone_batch, list_tensors


class Graph:
    """Stands for a recorded step that adds up what it reads."""

    def __init__(self, replay):
        self.owner = replay

    def replay(self):
        self.owner.static_loss.fill_(sum(int(t.sum()) for t in list_tensors(self.owner.static_batch)))


def batch(fill, size=3):
    ids = torch.full((2, size), fill)
    return Batch.from_padded(ids, source=Batch.from_padded(ids + 1)).replace(labels=ids.flatten())


def recorded():
    replay = GraphedStep(lambda batch: torch.zeros(()), lambda: None)
    replay.static_batch, replay.static_loss, replay.graph = clone_batch(batch(0)), torch.zeros(()), Graph(replay)
    return replay


def test_a_replay_reads_the_new_batch_and_leaves_it_alone():
    replay, given = recorded(), batch(7)
    starts = int(given.starts.sum())
    assert float(replay(given)) == 6 * (7 + 8 + 7) + 2 * starts
    assert float(replay(batch(1))) == 6 * (1 + 2 + 1) + 2 * starts
    assert given.ids.unique().tolist() == [7]


def test_another_shape_is_refused():
    with pytest.raises(Error, match=r"given \(8,\) in place of \(6,\)"):
        recorded()(batch(1, size=4))


def test_a_batch_of_its_own_shares_nothing():
    first = batch(3)
    second = clone_batch(first)
    for a, b in zip(list_tensors(first), list_tensors(second), strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()
    assert len(list_tensors(first)) == 5
    assert second.longest == first.longest
