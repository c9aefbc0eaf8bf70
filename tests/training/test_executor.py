"""Recorded steps, as far as a machine without a GPU can tell: what a replay reads, and that a trainer's steps are the
same with graphs. The rest is in tests/gpu."""

from __future__ import annotations

import contextlib

import pytest
import torch

from formers import Error
from formers.batch import Batch
from formers.training.executor import WARMUP_BATCHES, GraphedStep, clone_batch, list_tensors

from .test_training import run, same, trainer


class Graph:
    """Stands for a recorded step that adds up what it reads."""

    def __init__(self, replay):
        self.owner = replay

    def replay(self):
        self.owner.static_values.fill_(sum(int(t.sum()) for t in list_tensors(self.owner.static_batch)))


def batch(fill, size=3):
    ids = torch.full((2, size), fill)
    return Batch.from_padded(ids, source=Batch.from_padded(ids + 1)).replace(labels=ids.flatten())


def recorded():
    replay = GraphedStep(lambda batch: torch.zeros(()))
    replay.static_batch, replay.static_values, replay.graph = clone_batch(batch(0)), torch.zeros(()), Graph(replay)
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


def use_graphs(t, monkeypatch, capture):
    """Let a trainer on a CPU record its steps: a graph that computes at each replay, and not while it is recorded."""

    class Computing:
        def replay(self):
            owner = next(one for one in t.executor.cuda_graphs.values() if one.graph is self)
            for name, value in owner.run(owner.static_batch).items():
                owner.static_values[name].copy_(value)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Computing)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(GraphedStep, "run_on_side_stream", lambda self, batch: self.run(batch))
    t.executor.uses_cuda_graphs = t.executor.is_compiled = True


def test_recorded_steps_train_as_others(monkeypatch):
    """Batches of unequal numbers of labels too: the weights of losses differ from step to step."""
    settings = {"steps": 8, "dropout": 0.0, "accumulate": 2, "batch_rampup_steps": 6, "ema": 0.5}
    plain, recorded = trainer(**settings), trainer(**settings)
    captures = []

    @contextlib.contextmanager
    def capture(graph, capture_error_mode):
        captures.append(graph)
        before = [None if p.grad is None else p.grad.clone() for p in recorded.model.parameters()]
        yield
        for p, grad in zip(recorded.model.parameters(), before, strict=True):
            p.grad = grad

    use_graphs(recorded, monkeypatch, capture)
    assert [r.losses for r in run(recorded)] == [r.losses for r in run(plain)]
    assert same(plain, recorded)
    assert len(captures) == 1
    (graph,) = recorded.executor.cuda_graphs.values()
    assert graph.warmup_left == 0


def test_what_cannot_be_recorded_goes_on_without(monkeypatch):
    plain, t = (trainer(steps=6, dropout=0.0) for _ in range(2))
    attempts = []

    @contextlib.contextmanager
    def capture(graph, capture_error_mode):
        attempts.append(graph)
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    use_graphs(t, monkeypatch, capture)
    with pytest.warns(UserWarning, match="not recorded, and a little slower for it: operation not permitted") as said:
        assert [r.losses for r in run(t)] == [r.losses for r in run(plain)]
    assert len(attempts) == len(said) == 1, "it is tried once"
    assert WARMUP_BATCHES < 6
