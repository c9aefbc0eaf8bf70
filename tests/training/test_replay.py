"""Recorded steps, as far as a machine without a GPU can tell: what a replay reads. The rest is in tests/gpu."""

from __future__ import annotations

import pytest
import torch

from formers import Error
from formers.batch import Batch
from formers.training.replay import Replay, own, tensors


class Graph:
    """Stands for a recorded step that adds up what it reads."""

    def __init__(self, replay):
        self.owner = replay

    def replay(self):
        self.owner.value.fill_(sum(int(t.sum()) for t in tensors(self.owner.batch)))


def batch(fill, size=3):
    ids = torch.full((2, size), fill)
    return Batch.of(ids, source=Batch.of(ids + 1)).replace(labels=ids.flatten())


def recorded():
    replay = Replay(lambda batch: torch.zeros(()), lambda: None)
    replay.batch, replay.value, replay.graph = own(batch(0)), torch.zeros(()), Graph(replay)
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
    second = own(first)
    for a, b in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()
    assert len(tensors(first)) == 5
    assert second.longest == first.longest
