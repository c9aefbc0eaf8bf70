"""Recorded steps, as far as a machine without a GPU can tell: what a replay reads, and that a trainer's steps are the
same with graphs and with blocks that are compiled one by one. The rest is in tests/gpu."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import types
import warnings

import pytest
import torch
import torch._dynamo as dynamo
from torch import nn
from torch._dynamo.backends.debugging import aot_eager

import formers
from formers import Error
from formers.batch import Batch
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.nn.block import Block
from formers.objectives.causal import CausalLM
from formers.training.config_merge import configure_pretraining
from formers.training.executor import (
    WARMUP_BATCHES,
    Executor,
    GraphedStep,
    Step,
    StepValues,
    clone_batch,
    list_tensors,
    select_compiled_modules,
)
from formers.training.optimizer import DEVICE_SKIPPING_OPTIMIZERS
from formers.training.train_config import TrainConfig
from formers.training.trainer import Diverged, Trainer
from tests.training import family_trainers
from tests.training.family_trainers import build_family_trainer, load_family_batches
from tests.training.toy_trainer import (
    OBJECTIVE,
    STORE,
    NonFiniteObjective,
    build_toy_model,
    build_toy_trainer,
    has_equal_weights,
    load_toy_batches,
    train_to_end,
)


class Graph:
    """Stands for a recorded step that adds up what it reads."""

    def __init__(self, replay):
        self.owner = replay

    def replay(self):
        self.owner.static_values.fill_(sum(int(t.sum()) for t in list_tensors(self.owner.static_batch)))


def make_batch(fill, size=3):
    ids = torch.full((2, size), fill)
    return Batch.from_padded(ids, source=Batch.from_padded(ids + 1)).replace(labels=ids.flatten())


def make_recorded_step():
    replay = GraphedStep(lambda batch: torch.zeros(()))
    replay.static_batch, replay.static_values, replay.graph = clone_batch(make_batch(0)), torch.zeros(()), Graph(replay)
    return replay


def test_a_replay_reads_the_new_batch_and_leaves_it_alone():
    replay, given = make_recorded_step(), make_batch(7)
    starts = int(given.starts.sum())
    assert float(replay(given)) == 6 * (7 + 8 + 7) + 2 * starts
    assert float(replay(make_batch(1))) == 6 * (1 + 2 + 1) + 2 * starts
    assert given.ids.unique().tolist() == [7]


def test_another_shape_is_refused():
    with pytest.raises(Error, match=r"given \(8,\) in place of \(6,\)"):
        make_recorded_step()(make_batch(1, size=4))


def test_a_batch_of_its_own_shares_nothing():
    first = make_batch(3)
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
            values = owner.run(owner.static_batch)
            if isinstance(values, dict):
                for name, value in values.items():
                    owner.static_values[name].copy_(value)
            else:  # of a whole step: the names of its losses, and their values
                owner.static_values[1].copy_(values[1])

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Computing)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(GraphedStep, "run_on_side_stream", lambda self, batch: self.run(batch))
    t.executor.uses_cuda_graphs = t.executor.is_compiled = True


def test_recorded_steps_train_as_others(monkeypatch):
    """Batches of unequal numbers of labels too: the weights of losses differ from step to step."""
    settings = {"steps": 8, "dropout": 0.0, "accumulate": 2, "batch_rampup_steps": 6, "ema": 0.5}
    plain, recorded = build_toy_trainer(**settings), build_toy_trainer(**settings)
    captures = []

    @contextlib.contextmanager
    def capture(graph, capture_error_mode):
        captures.append(graph)
        before = [None if p.grad is None else p.grad.clone() for p in recorded.model.parameters()]
        yield
        for p, grad in zip(recorded.model.parameters(), before, strict=True):
            p.grad = grad

    use_graphs(recorded, monkeypatch, capture)
    assert [r.losses for r in train_to_end(recorded)] == [r.losses for r in train_to_end(plain)]
    assert has_equal_weights(plain, recorded)
    assert len(captures) == 1
    (graph,) = recorded.executor.cuda_graphs.values()
    assert graph.warmup_left == 0


def skip_on_device(t, monkeypatch):
    """Let a trainer on a CPU leave it to the optimizer to skip steps, as on a GPU."""
    for group in t.executor.optimizer.param_groups:
        group.update({name: value for name, value in (("fused", True), ("foreach", False)) if name in group})
    t.executor.skips_on_device = True
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "rms-adamw", "lamb"])
def test_whole_steps_are_recorded_where_the_device_skips_bad_steps(name, monkeypatch):
    plain, recorded = (build_toy_trainer(steps=9, dropout=0.0, ema=0.5, optimizer=name) for _ in range(2))
    for t in (plain, recorded):
        skip_on_device(t, monkeypatch)
    captures = []

    @contextlib.contextmanager
    def capture(graph, capture_error_mode):
        captures.append(graph)
        optimizer = recorded.executor.optimizer
        weights = [p.detach().clone() for p in recorded.model.parameters()]
        state = {p: {k: v.clone() for k, v in one.items()} for p, one in optimizer.state.items()}
        yield  # nothing is computed while a graph is recorded
        with torch.no_grad():
            for p, before in zip(recorded.model.parameters(), weights, strict=True):
                p.copy_(before)
                for name, value in state[p].items():
                    optimizer.state[p][name].copy_(value)

    use_graphs(recorded, monkeypatch, capture)
    got, want = train_to_end(recorded), train_to_end(plain)
    assert len(captures) == 1
    assert [key[0] for key in recorded.executor.cuda_graphs] == ["step"]
    torch.testing.assert_close([r.loss for r in got], [r.loss for r in want], rtol=1e-5, atol=0)  # the rate is in fp32
    for a, b in zip(plain.model.parameters(), recorded.model.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=1e-4, atol=1e-3
        )  # a key's bias has no gradient but rounding: Adam moves it
    groups = recorded.executor.optimizer.param_groups
    assert all(isinstance(group["lr"], float) and not group["capturable"] for group in groups)
    assert all(p.grad is None for p in recorded.model.parameters())


def test_outcomes_are_read_after_the_next_launch(monkeypatch):
    """No step waits for its own values, and they come in order, whoever reads them when."""
    t, events = build_toy_trainer(steps=5, dropout=0.0), []
    skip_on_device(t, monkeypatch)
    start, read = Executor.start_step, StepValues.read

    def note_start(self, *args):
        events.append("start")
        values = start(self, *args)
        values.number = events.count("start")
        return values

    monkeypatch.setattr(Executor, "start_step", note_start)
    monkeypatch.setattr(StepValues, "read", lambda self: events.append(self.number) or read(self))
    results = train_to_end(t)
    assert events == ["start", "start", 1, "start", 2, "start", 3, "start", 4, 5]
    assert [r.step for r in results] == [1, 2, 3, 4, 5]
    assert results[0].loss > 0
    assert events[-1] == 5, "an outcome is read once"


def test_a_saved_state_knows_its_last_step(monkeypatch):
    t = build_toy_trainer(steps=3, dropout=0.0)
    skip_on_device(t, monkeypatch)
    next(steps := t.train(load_toy_batches(t)))
    with torch.no_grad():
        next(t.model.parameters()).fill_(float("nan"))
    next(steps)
    assert t.get_state()[1]["bad_steps"] == 1


def test_late_reading_ends_a_run_that_diverges(monkeypatch):
    t = build_toy_trainer(steps=20, dropout=0.0, max_bad_steps=3)
    skip_on_device(t, monkeypatch)
    with torch.no_grad():
        next(t.model.parameters()).fill_(float("nan"))
    with pytest.raises(Diverged, match="4 steps in a row .* the last at step 4"):
        train_to_end(t)
    assert t.step - t.bad_steps == 0, "checkpoints before the first of them are good"


def test_what_cannot_be_recorded_continues_without(monkeypatch):
    plain, t = (build_toy_trainer(steps=6, dropout=0.0) for _ in range(2))
    attempts = []

    @contextlib.contextmanager
    def capture(graph, capture_error_mode):
        attempts.append(graph)
        raise RuntimeError("operation not permitted when stream is capturing")
        yield

    use_graphs(t, monkeypatch, capture)
    with pytest.warns(
        UserWarning, match="this step runs without a CUDA graph, a little slower: operation not permitted"
    ) as said:
        assert [r.losses for r in train_to_end(t)] == [r.losses for r in train_to_end(plain)]
    assert len(attempts) == len(said) == 1, "it is tried once"
    assert WARMUP_BATCHES < 6


def train_compiled(name, compile_setting, monkeypatch, **settings):
    """Train two steps of a family of five layers without dropout; return the losses and how often was compiled."""
    small = family_trainers.select_sizes

    def select_deeper(*given, **more):
        sizes = small(*given, **more)
        return {**sizes, "layers": 5, **{key: 0.0 for key in sizes if "dropout" in key}}

    graphs, original = [], nn.Module.compile

    def compile_block(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    def compile_counted(module, **how):
        original(module, backend=compile_block if isinstance(module, Block) else "aot_eager", fullgraph=True, **how)

    with monkeypatch.context() as patch:
        patch.setattr(family_trainers, "select_sizes", select_deeper)
        patch.setattr(nn.Module, "compile", compile_counted)
        dynamo.reset()
        t = build_family_trainer(name)
        config = dataclasses.replace(t.config, steps=2, compile=compile_setting, **settings)
        t = Trainer(t.model, t.objectives, config)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            losses = [r.loss for r in t.train(load_family_batches(t))]
        assert not [str(one.message) for one in said if "runs uncompiled" in str(one.message)]
    return losses, len(graphs)


@pytest.mark.parametrize(("name", "kept", "again"), [("gpt2", 2, 1), ("t5", 4, 2)])
def test_one_compilation_serves_all_layers(name, kept, again, monkeypatch):
    """At most two for each stack: the first layer may compute what the others read. Recomputed layers share nothing."""
    plain, none = train_compiled(name, False, monkeypatch)
    assert none == 0
    for most, recompute in ((kept, False), (again, True)):
        losses, count = train_compiled(name, "blocks", monkeypatch, activation_checkpointing=recompute)
        assert 0 < count <= most, f"activation_checkpointing {recompute}"
        assert losses == plain


def select(family, setting, steps=100_000, **sizes):
    """Build a step of a small model; return it with what is compiled of it."""
    step = Step(formers.build(family, dim=8, heads=2, vocab=30, **sizes).model, CausalLM(16))
    config = TrainConfig(steps=steps, batch_tokens=16, seq_length=16, lr=1e-3, warmup_steps=1, compile=setting)
    return step, select_compiled_modules(step, config)


def count_blocks(modules):
    return sum(isinstance(module, Block) for module in modules)


def test_deep_models_and_short_runs_compile_blocks_by_default():
    step, chosen = select("gpt2", None, layers=24, context=16)
    assert count_blocks(chosen) == 24
    step, chosen = select("gpt2", True, layers=24, context=16)
    assert chosen == [step]
    step, chosen = select("gpt2", None, layers=2, context=16)
    assert chosen == [step]
    step, chosen = select("gpt2", "blocks", layers=2, context=16)
    assert count_blocks(chosen) == 2
    step, chosen = select("gpt2", None, steps=9_999, layers=2, context=16)
    assert count_blocks(chosen) == 2
    assert step.model.body.embed in chosen, "what stands around the blocks is compiled too"
    step, chosen = select("transformer_xl", "blocks", layers=2, ff=16, head_dim=4, embed=8, cutoffs=())
    assert chosen == [step], "blocks that have a memory are not alike"


def test_how_to_compile_is_checked():
    made = configure_pretraining("gpt2", None, {"train.compile": "blocks"})
    assert made.train.compile == "blocks"
    with pytest.raises(Error, match="compile"):
        configure_pretraining("gpt2", None, {"train.compile": "layers"})


def test_a_memory_that_fills_up_is_compiled_once(monkeypatch):
    """Every length that it has on the way would be another compilation, of a minute each on a GPU."""
    graphs = []

    def count_graph(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda module, **how: original(module, backend=count_graph, **how))
    dynamo.reset()
    t = build_family_trainer("transformer_xl")
    t = Trainer(t.model, t.objectives, dataclasses.replace(t.config, steps=6, compile=True))
    fillings = []
    for _ in t.train(load_family_batches(t)):
        fillings += [memory.is_filling for memory in t.carried_states.active.values()]
    assert not all(fillings), "the memory never filled up: nothing is seen"
    assert len(graphs) == 1


def train_with_spoilt_steps(bad, late, monkeypatch):
    """Train a Transformer-XL whose loss is not finite at some steps; with `late` their outcomes are read a step later,
    where that can be done. Return the trainer, and for each step whether that was so."""
    t = build_family_trainer("transformer_xl", ema=0.5)
    skip_on_device(t, monkeypatch)
    if not late:
        monkeypatch.setattr(Trainer, "reads_late", False)
    real, read_late = type(t.objectives[0]).loss, [True] * t.config.steps

    def loss(self, model, batch):
        read_late[t.step] &= t.reads_late
        found = real(self, model, batch)
        return {name: (total * math.nan if t.step in bad else total, count) for name, (total, count) in found.items()}

    monkeypatch.setattr(type(t.objectives[0]), "loss", loss)
    list(t.train(load_family_batches(t)))
    return t, read_late


def test_a_memory_is_taken_back_on_the_device(monkeypatch):
    """The host need not wait for the outcome of a step of a model with a memory, once every memory is full."""
    bad = (5, 6, 9)  # counted from 0
    with monkeypatch.context() as patches:
        want, read_late = train_with_spoilt_steps(bad, False, patches)
    assert not any(read_late)
    got, read_late = train_with_spoilt_steps(bad, True, monkeypatch)
    assert read_late == [False, *[True] * (len(read_late) - 1)], "memories that fill up change their shapes"
    assert has_equal_weights(got, want)
    assert all(torch.equal(got.ema.weights[name], average) for name, average in want.ema.weights.items())
    (found, rest), (kept, same_rest) = got.carried_states.get_state(), want.carried_states.get_state()
    assert rest == same_rest
    assert set(found) == set(kept)
    assert all(torch.equal(found[name], kept[name]) for name in kept)
    assert got.bad_steps == want.bad_steps == 0


@pytest.mark.parametrize("name", sorted(DEVICE_SKIPPING_OPTIMIZERS))
def test_what_the_device_skips_leaves_no_trace(name, monkeypatch):
    """Weights, moments and averages are those of a run that waits for each step and then decides."""
    trained = []
    for skips in (False, True):
        config = TrainConfig(steps=12, batch_tokens=128, seq_length=16, ema=0.5, optimizer=name, lr=1e-3)
        t = Trainer(build_toy_model(dropout=0.0), [NonFiniteObjective({0, 4, 5, 9})], config)
        if skips:
            skip_on_device(t, monkeypatch)
            assert t.reads_late
        results = list(t.train(lambda phase, at: load_batches(TokenSource(STORE, OBJECTIVE), 128, 0, at)))
        assert [r.step for r in results if r.is_skipped] == [1, 5, 6, 10]
        trained.append(t)
    want, got = trained
    assert has_equal_weights(got, want)
    assert all(torch.equal(got.ema.weights[key], average) for key, average in want.ema.weights.items())
    found, kept = (one.get_state()[0].get("optimizer", {}) for one in trained)
    assert set(found) == set(kept)
    assert all(torch.equal(moment, kept[key]) for key, moment in found.items())


def test_a_skip_is_read_from_the_step_itself(monkeypatch):
    """A graph that is replayed leaves its flag in its values; the optimizer has that of the graph recorded last."""
    t = build_toy_trainer(steps=2, dropout=0.0, ema=0.5)
    skip_on_device(t, monkeypatch)
    train_to_end(t)
    t.executor.optimizer.found_inf = torch.ones(())
    assert not t.executor.get_skip_flag()
    t.executor.step_values = torch.tensor([math.nan, 1.0])
    assert t.executor.get_skip_flag()


def test_listeners_make_a_run_wait(monkeypatch):
    """What a listener does need not leave the weights of a skipped step as they are."""
    t, steps = build_toy_trainer(steps=2), []
    skip_on_device(t, monkeypatch)
    assert t.reads_late
    t.listeners = [types.SimpleNamespace(on_update=steps.append)]
    assert not t.reads_late


def test_only_updates_that_can_be_recorded_are(monkeypatch):
    """Other optimizers follow a recorded gradient, and their outcome is read late nevertheless."""
    t = build_toy_trainer(steps=9, dropout=0.0, optimizer="adam-sgd", lr=1e-3)
    plain = build_toy_trainer(steps=9, dropout=0.0, optimizer="adam-sgd", lr=1e-3)
    skip_on_device(t, monkeypatch)

    @contextlib.contextmanager
    def capture(graph, capture_error_mode):
        before = [None if p.grad is None else p.grad.clone() for p in t.model.parameters()]
        yield
        for p, grad in zip(t.model.parameters(), before, strict=True):
            p.grad = grad

    use_graphs(t, monkeypatch, capture)
    assert t.reads_late
    assert [r.losses for r in train_to_end(t)] == [r.losses for r in train_to_end(plain)]
    assert [key[0] for key in t.executor.cuda_graphs] == ["gradient"]
    assert has_equal_weights(t, plain)
