"""The loop: it learns, the same twice; many batches make one large step; a step that is not finite leaves no trace."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import formers
from formers import Error
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.data.store import Store
from formers.model import estimate_flops_per_token
from formers.nn.attention.segment_memory import SegmentMemory
from formers.objectives.causal import CausalLM
from formers.training import trainer
from formers.training.checkpoint.local import CHECKPOINT_FORMAT, TrainerState
from formers.training.executor import Step
from formers.training.progress import ProgressMeter
from formers.training.train_config import TrainConfig
from formers.training.trainer import Diverged, StepOutcome, StepResult, Trainer, WeightAverage
from formers.training.validation import Score, compute_unigram_baseline, evaluate
from tests.training.family_trainers import build_family_trainer, load_family_batches
from tests.training.ranks import LABELLED
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


def test_learns_and_is_the_same_twice():
    one, two = build_toy_trainer(), build_toy_trainer()
    told = train_to_end(one)
    assert [r.loss for r in told] == [r.loss for r in train_to_end(two)]
    assert has_equal_weights(one, two)
    assert told[0].loss > 3
    assert told[-1].loss < 0.5
    assert 0.95 * 60 * 128 < told[-1].tokens < 60 * 128  # without what fills batches up
    assert [r.step for r in told] == list(range(1, 61))
    assert [r.loss for r in train_to_end(build_toy_trainer(seed=1))] != [r.loss for r in told]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"schedule": "cosine", "min_lr_ratio": 0.0}, [(1 + math.cos(math.pi * i / 8)) / 2 for i in range(8)]),
        ({"schedule": "cosine", "min_lr_ratio": 0.5, "decay_steps": 2}, [1, 0.75, *[0.5] * 6]),
        ({"schedule": "halving", "decay_start": 3, "decay_every": 2}, [1, 1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8]),
        ({"schedule": "rsqrt", "warmup_steps": 2}, [1, 1, *[(2 / i) ** 0.5 for i in range(3, 9)]]),
        ({"optimizer": "adam-sgd", "switch_step": 6, "switch_lr": 5e-6}, [*[1] * 6, 5, 5]),
    ],
    ids=["GPT-1", "GPT-3", "Luong", "T5", "GNMT"],
)
def test_a_run_has_the_rates_and_methods_of_its_settings(given, expected):
    t = build_toy_trainer(**{"steps": 8, "lr": 1e-6, "warmup_steps": 0, "schedule": "constant", **given})
    methods = []
    for result in t.train(load_toy_batches(t)):
        assert result.lr == pytest.approx(1e-6 * expected[result.step - 1])
        methods.append(t.executor.optimizer.param_groups[0].get("uses_sgd"))
    assert len(methods) == 8
    assert methods == ([False] * 6 + [True] * 2 if "switch_step" in given else [None] * 8)


def test_training_does_not_disturb_the_callers_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_to_end(build_toy_trainer(steps=2))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "rms-adamw", "lamb", "adagrad", "sgd"])
def test_continues_from_its_state_bit_for_bit(optimizer):
    settings = {"steps": 12, "optimizer": optimizer, "ema": 0.9}
    whole = build_toy_trainer(**settings)
    told = train_to_end(whole)
    first = build_toy_trainer(**settings)
    train_to_end(first, 5)
    groups, state = first.get_state()
    saved = {name: {k: t.clone() for k, t in group.items()} for name, group in groups.items()}
    second = build_toy_trainer(seed=0, **settings)
    train_to_end(second, 2)  # it has been elsewhere
    second.restore_state(saved, state)
    assert [r.loss for r in train_to_end(second)] == [r.loss for r in told[5:]]
    assert has_equal_weights(whole, second)
    assert all(torch.equal(whole.ema.weights[name], second.ema.weights[name]) for name in whole.ema.weights)
    assert not all(
        torch.equal(whole.ema.weights[n], p) for n, p in whole.model.named_parameters() if n in whole.ema.weights
    )


def test_a_step_of_many_batches_is_one_large_batch():
    """Documents of unequal length: only counts over the whole step make it exact."""
    sizes = np.random.default_rng(0).integers(3, 16, 400)
    tokens = np.random.default_rng(1).integers(0, 30, sizes.sum()).astype(np.uint16)
    ragged = Store(tokens, np.append(0, np.cumsum(sizes)), 30, "x")
    t = build_toy_trainer(
        dropout=0.0, accumulate=4, steps=1, grad_clip=0.0, optimizer="sgd", warmup_steps=0, schedule="constant",
        betas=(0.0, 0.9),
    )  # fmt: skip
    taken = list(itertools.islice(load_toy_batches(t, ragged)(1, 0), 4))
    before = {n: p.detach().clone() for n, p in t.model.named_parameters()}
    report = next(t.train(load_toy_batches(t, ragged)))
    reference = build_toy_model(0, 0.0)
    total, count = 0.0, 0
    for batch, _ in taken:
        loss, places = OBJECTIVE.loss(reference, batch.to("cpu"))["lm"]
        total, count = total + loss, count + int(places)
    (total / count).backward()
    assert report.loss == pytest.approx(float(total.detach()) / count, abs=1e-6)
    for name, p in reference.named_parameters():
        moved = before[name] - dict(t.model.named_parameters())[name]
        decay = 0.01 * before[name] if p.dim() > 1 else 0.0
        assert torch.allclose(moved, 1e-2 * (p.grad + decay), atol=1e-7), name
    assert t.positions == [0, taken[-1][1]]


def test_batches_of_a_step_grow():
    s = TrainConfig(steps=10, accumulate=4, batch_rampup_steps=6)
    assert [s.count_batches(i) for i in range(8)] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [s.count_batches(i, 2) for i in range(8)] == [2, 2, 2, 2, 4, 4, 4, 4]
    t = build_toy_trainer(steps=8, accumulate=4, batch_rampup_steps=6)
    assert np.diff([0, *(r.tokens for r in train_to_end(t))]).tolist() == [128 * n for n in (1, 1, 2, 2, 3, 3, 4, 4)]


def test_short_examples_first():
    s = TrainConfig(steps=10, seq_length=16, short_length=8, batch_tokens=128)
    assert [s.get_phase_length(s.get_phase(i)) for i in range(10)] == [8] * 9 + [16]
    t = Trainer(build_toy_model(), [CausalLM(8), OBJECTIVE], s)
    seen = []

    def told(phase, position):
        source = TokenSource(STORE, t.objectives[-1 if phase else 0])
        for batch, position_after in load_batches(source, 128, 0, position):
            seen.append((phase, position, batch.longest))
            yield batch, position_after

    list(t.train(told))
    assert seen == [(0, 0, 8)] * 9 + [(1, 0, 16)]
    half = Trainer(build_toy_model(), [CausalLM(8), OBJECTIVE], s)
    list(half.train(told, 9))
    again = Trainer(build_toy_model(), [CausalLM(8), OBJECTIVE], s)
    again.restore_state(*half.get_state())
    list(again.train(told))
    assert has_equal_weights(t, again)
    assert t.positions == again.positions


def test_a_longer_run_sees_no_short_examples_twice():
    """Steps 10 → 20: short, one step of long ones, short again, long ones. Each length continues where it was."""
    s, goals = TrainConfig(steps=10, seq_length=16, short_length=8, batch_tokens=128), [CausalLM(8), OBJECTIVE]
    t = Trainer(build_toy_model(), goals, s)
    told = train_to_end(t)
    more = Trainer(build_toy_model(), goals, dataclasses.replace(s, steps=20))
    more.restore_state(*t.get_state())
    told += train_to_end(more)
    size, seen = {0: 128 // 8, 1: 128 // 16}, {0: [], 1: []}
    for report in told:
        seen[0 if report.step < 10 or 10 < report.step <= 18 else 1].append(report.example_range)
    for phase, examples in seen.items():
        assert examples == [(i * size[phase], (i + 1) * size[phase]) for i in range(len(examples))], phase
    assert more.positions == [17 * size[0], 3 * size[1]]


@pytest.mark.parametrize("kind", [math.nan, math.inf])
def test_what_is_not_finite_leaves_no_trace(kind):
    bad = {3, 4, 9}
    t = Trainer(
        build_toy_model(dropout=0.0),
        [NonFiniteObjective(bad, kind)],
        TrainConfig(steps=14, batch_tokens=128, seq_length=16, lr=1e-2, max_bad_steps=3, ema=0.5),
    )
    src = lambda phase, position: load_batches(TokenSource(STORE, OBJECTIVE), 128, 0, position)  # noqa: E731
    skipped = []
    frozen = None
    for report in t.train(src):
        if report.is_skipped:
            skipped.append(report.step - 1)
            now = {**{f"m{i}": v for i, v in t.get_state()[0]["model"].items()}, **t.get_state()[0]["optimizer"]}
            assert all(torch.equal(now[key], frozen[key]) for key in now), "neither a weight nor a moment has moved"
            assert report.example_range[1] > report.example_range[0]
        groups = t.get_state()[0]
        frozen = {
            **{f"m{i}": v.clone() for i, v in groups["model"].items()},
            **{k: v.clone() for k, v in groups["optimizer"].items()},
        }
    assert skipped == sorted(bad), "and no other step is left out"
    assert all(torch.isfinite(p).all() for p in t.model.parameters())


class Following:
    """A listener that notes when it is told, and whether the average has followed by then."""

    def __init__(self):
        self.steps, self.averages, self.trainer = [], [], None

    def on_update(self, step):
        self.steps.append(step)
        self.averages.append({n: t.clone() for n, t in self.trainer.ema.weights.items()})


def test_listeners_hear_of_every_step_that_changed_the_weights():
    listener = Following()
    settings = TrainConfig(steps=6, batch_tokens=128, seq_length=16, lr=1e-2, ema=0.5)
    t = Trainer(build_toy_model(dropout=0.0), [NonFiniteObjective({2})], settings, listeners=[listener])
    listener.trainer, before = t, {n: p.clone() for n, p in t.ema.weights.items()}
    list(t.train(lambda phase, position: load_batches(TokenSource(STORE, OBJECTIVE), 128, 0, position)))
    assert listener.steps == [0, 1, 3, 4, 5], "step 2 was skipped"
    assert all(torch.equal(before[n], v) for n, v in listener.averages[0].items()), "the average comes last"
    weights = {n: p.detach().clone() for n, p in t.model.named_parameters()}
    with t.use_ema_weights():
        assert all(torch.equal(p, t.ema.weights[n]) for n, p in t.model.named_parameters() if n in t.ema.weights)
        assert any(not torch.equal(p, weights[n]) for n, p in t.model.named_parameters())
    assert all(torch.equal(p, weights[n]) for n, p in t.model.named_parameters())


class ListOperations(TorchDispatchMode):
    """Notes the names of operations, and whether one takes lists of tensors of unequal shapes."""

    def __init__(self):
        super().__init__()
        self.names, self.has_unequal_shapes = [], False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        lists = [[t.shape for t in argument] for argument in args if isinstance(argument, list)]
        self.has_unequal_shapes |= any(shapes != lists[0] for shapes in lists)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("most", [trainer.MAX_UPDATED, 500])
def test_an_average_that_the_device_may_leave_is_moved_by_fused_kernels(most, monkeypatch):
    """torch runs lists of tensors of unequal shapes one by one. The numbers are the formula's."""
    monkeypatch.setattr(trainer, "MAX_UPDATED", most)
    model = build_toy_model()
    average, begun = WeightAverage(model, 0.75), {n: p.detach().double() for n, p in model.named_parameters()}
    numbers = [[t.numel() for t in averages] for averages, _ in average.parts]
    assert sum(map(len, numbers)) == len(average.weights)
    assert all(sum(part) <= most or len(part) == 1 for part in numbers)
    assert (len(numbers) > 1) == (most < sum(map(sum, numbers)))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    for is_skipped in (torch.tensor(False), torch.tensor(True), torch.tensor(False)):
        before = {n: t.clone() for n, t in average.weights.items()}
        with ListOperations() as seen:
            average.update(100, is_skipped)
        assert not seen.has_unequal_shapes
        assert seen.names.count("_foreach_add_") == len(average.parts)
        assert len(seen.names) < 3 * len(average.parts) + 6, "no kernel for each weight"
        assert not is_skipped or all(torch.equal(before[n], t) for n, t in average.weights.items())
    for name, p in model.named_parameters():
        want = 0.75**2 * begun[name] + (1 - 0.75**2) * p.detach().double()
        torch.testing.assert_close(average.weights[name].double(), want, rtol=1e-6, atol=1e-6)


def test_a_step_is_computed_then_applied_or_skipped():
    """The values of a step are there before the weights change, and the host may still decide against it."""
    t = build_toy_trainer(dropout=0.0)
    batch = next(load_toy_batches(t)(1, 0))[0]
    begun = {n: p.detach().clone() for n, p in t.model.named_parameters()}

    def start():
        return t.executor.start_step([batch], t.carried_states, OBJECTIVE, {"lm": 1 / 120}, 1e-2)

    values = start()
    norm, sums = values.read()
    assert norm > 0
    assert set(sums) == {"lm"}
    assert all(p.grad is not None for p in t.model.parameters())
    t.executor.finish_step(skip=True)
    assert all(torch.equal(p, begun[n]) for n, p in t.model.named_parameters())
    assert all(p.grad is None for p in t.model.parameters())
    assert start().read() == (norm, sums), "nothing of the skipped step is left"
    t.executor.finish_step(skip=False)
    assert not any(torch.equal(p, begun[n]) for n, p in t.model.named_parameters())


def test_names_on_disk():
    """What a checkpoint is called is a format: another name needs another CHECKPOINT_FORMAT."""
    t = build_toy_trainer(steps=2, ema=0.5)
    assert "rng" not in t.get_state()[0], "generators that were not used yet have no state"
    train_to_end(t)
    groups, state = t.get_state()
    assert list(groups) == ["model", "optimizer", "ema", "rng"]
    assert set(groups["rng"]) >= {"0/cpu"}
    assert {name.split("/")[0] for name in groups["optimizer"]} == {"state"}
    assert list(state) == list(TrainerState.__annotations__)
    assert set(state) == {
        "step", "tokens", "seconds", "bad_steps", "positions", "recent_norms", "optimizer", "scaler", "carried_state",
    }  # fmt: skip
    assert CHECKPOINT_FORMAT == 2


@pytest.mark.parametrize("name", ["transformer_xl", "elmo"])
def test_memories_name_what_they_keep(name):
    t = build_family_trainer(name)
    list(t.train(load_family_batches(t), 2))
    tensors, rest = t.carried_states.get_state()
    keys = {n.partition("/")[2] for n in tensors}
    if name == "elmo":
        assert keys == {f"layers/{i}/{part}" for i in range(len(rest["layers"])) for part in "hc"}
    else:
        assert set(rest) == {"used_slots", "has_equal_rows", "lengths", "hidden_states"}
        assert keys == {"lengths", *(f"hidden_states/{i}" for i in range(len(rest["hidden_states"])))}
    again = build_family_trainer(name)
    again.carried_states.restore_state(tensors, json.loads(json.dumps(rest)), torch.device("cpu"))
    assert set(again.carried_states.restored) == set(t.carried_states.active)
    again.carried_states.active = again.carried_states.restored
    found, same_rest = again.carried_states.get_state()
    assert same_rest == rest
    assert set(found) == set(tensors)
    assert all(torch.equal(found[n], tensors[n]) for n in tensors)
    before = again.carried_states.snapshot()
    for memory in again.carried_states.active.values():
        memory.reorder_rows(torch.zeros(memory.rows if name != "elmo" else 4, dtype=torch.long))
    again.carried_states.roll_back(before)
    assert all(torch.equal(t, tensors[n]) for n, t in again.carried_states.get_state()[0].items())


@pytest.mark.parametrize("name", ["transformer_xl", "elmo"])
def test_a_resumed_run_keeps_memories_that_it_has_not_used_yet(name):
    """Saved after a step that trained some of the streams, or none, a run has the memories of the others still."""
    t = build_family_trainer(name, accumulate=1)
    list(t.train(load_family_batches(t), 2))
    groups, state = copy.deepcopy(t.get_state())
    again = build_family_trainer(name, accumulate=1)
    again.restore_state(groups, state)
    restored = again.get_state()[0]["carried_state"]
    assert {n.split("/")[0] for n in restored} == {"0", "1"}
    assert all(torch.equal(restored[n], tensor) for n, tensor in groups["carried_state"].items())
    list(again.train(load_family_batches(again), 3))
    assert len(again.carried_states.active) == 1, "a step trains half of the streams"
    last = build_family_trainer(name, accumulate=1)
    last.restore_state(*again.get_state())
    found, want = ([r.losses for r in one.train(load_family_batches(one), 6)] for one in (last, t))
    assert found == want[1:]
    assert has_equal_weights(last, t)


def test_too_many_of_them_end_the_run():
    t = Trainer(
        build_toy_model(),
        [NonFiniteObjective(range(2, 99))],
        TrainConfig(steps=14, batch_tokens=128, seq_length=16, max_bad_steps=3),
    )
    with pytest.raises(
        Diverged,
        match=r"3 steps in a row had a loss or gradient that is not finite, the last at step 5, examples \d+ to \d+",
    ) as error:
        list(t.train(lambda phase, position: load_batches(TokenSource(STORE, OBJECTIVE), 128, 0, position)))
    assert error.value.exit_code == 3


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_spike_is_left_out(precision):
    settings = TrainConfig(steps=60, batch_tokens=128, seq_length=16, lr=1e-3, spike_factor=20.0, precision=precision)
    t = Trainer(build_toy_model(dropout=0.0), [NonFiniteObjective({55}, 1e3)], settings)
    t.executor.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=precision == "fp16")  # room for the spike
    left, before = [], {}
    for report in t.train(lambda phase, position: load_batches(TokenSource(STORE, OBJECTIVE), 128, 0, position)):
        now = {**t.get_state()[0]["model"], **t.get_state()[0]["optimizer"]}
        if report.is_skipped:
            left.append(report.step)
            assert all(torch.equal(now[name], before[name]) for name in now)
        before = {name: tensor.clone() for name, tensor in now.items()}
    assert left == [56]


def test_gradients_that_stay_long_are_not_left_out_for_ever():
    t = Trainer(
        build_toy_model(dropout=0.0),
        [NonFiniteObjective(range(55, 999), 1e3)],
        TrainConfig(steps=99, batch_tokens=128, seq_length=16, spike_factor=20.0),
    )
    told = list(t.train(lambda phase, position: load_batches(TokenSource(STORE, OBJECTIVE), 128, 0, position)))
    left = [r.step for r in told if r.is_skipped]
    assert left[0] == 56
    assert len(left) < 30


def test_fp16_learns_and_continues_with_its_scale():
    full, half = build_toy_trainer(steps=20, dropout=0.0), build_toy_trainer(steps=20, dropout=0.0, precision="fp16")
    assert train_to_end(half)[-1].loss == pytest.approx(train_to_end(full)[-1].loss, abs=0.3)
    first, second = (
        build_toy_trainer(steps=20, dropout=0.0, precision="fp16"),
        build_toy_trainer(steps=20, dropout=0.0, precision="fp16"),
    )
    train_to_end(first, 11)
    second.restore_state(*first.get_state())
    assert second.executor.scaler.get_scale() == first.executor.scaler.get_scale()
    train_to_end(second)
    assert has_equal_weights(half, second)


def test_half_precision_on_a_cpu():
    full, half = build_toy_trainer(steps=20, dropout=0.0), build_toy_trainer(steps=20, dropout=0.0, precision="bf16")
    a, b = [r.loss for r in train_to_end(full)], [r.loss for r in train_to_end(half)]
    assert a != b
    assert b[-1] == pytest.approx(a[-1], abs=0.1)
    assert all(p.dtype == torch.float32 for p in half.model.parameters())


def test_without_a_compiler_it_continues(monkeypatch):
    """What torch.compile cannot do is done without it, and said."""
    plain = [r.loss for r in train_to_end(build_toy_trainer(steps=3, dropout=0.0))]
    t = build_toy_trainer(steps=3, dropout=0.0, compile=True)

    def fail_to_compile(*_, **__):
        raise RuntimeError("no compiler here")

    t.executor.step_module._compiled_call_impl = fail_to_compile
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [r.loss for r in train_to_end(t)] == plain
    assert sum("runs uncompiled" in str(w.message) for w in said) == 1


def test_every_run_of_a_process_is_compiled(monkeypatch):
    """torch stops compiling a function after some models, in silence: seeds, folds and comparisons are many."""
    import torch._dynamo as dynamo

    graphs, original = [], Step.compile
    backend = lambda graph, _: graphs.append(graph) or graph.forward  # noqa: E731
    monkeypatch.setattr(Step, "compile", lambda step, **how: original(step, backend=backend, **how))
    with dynamo.config.patch(recompile_limit=1):
        for seed in range(3):
            before = len(graphs)
            train_to_end(build_toy_trainer(seed, steps=1, compile=True))
            assert len(graphs) > before, f"run {seed} was not compiled"


def test_checkpointing_changes_nothing_but_memory():
    one, two = build_toy_trainer(steps=3), build_toy_trainer(steps=3, activation_checkpointing=True)
    calls = []
    two.model.body.blocks[0].ff.register_forward_hook(lambda *_: calls.append(1))
    assert [r.loss for r in train_to_end(one)] == [r.loss for r in train_to_end(two)]
    assert len(calls) == 6, "every step computes it twice"
    assert has_equal_weights(one, two)
    with pytest.warns(UserWarning, match="no blocks"):
        Trainer(
            formers.build("textcnn", vocab=50, labels=2).model,
            [OBJECTIVE],
            TrainConfig(steps=1, activation_checkpointing=True),
        )


def test_step_gives_sums_and_counts():
    batch = next(load_batches(TokenSource(STORE, OBJECTIVE), 128))[0].to("cpu")
    out = Step(build_toy_model(), OBJECTIVE)(batch)
    total, count = out["lm"]
    assert count == 120
    assert total.requires_grad


def test_a_step_judges_in_one_pass():
    """Right guesses beside the losses, from the same states: a memory moves on once."""
    batch = next(load_batches(TokenSource(STORE, OBJECTIVE), 128))[0].to("cpu")
    made, calls = build_toy_model(), []
    made.body.register_forward_hook(lambda *_: calls.append(1))
    out = Step(made.eval(), OBJECTIVE)(batch, count_correct_tokens=True)
    assert len(calls) == 1
    guess = made.logits(made(batch)).argmax(-1)
    assert [int(v) for v in out["lm/accuracy"]] == [int((guess == batch.labels).sum()), 120]
    torch.testing.assert_close(out["lm"][0], OBJECTIVE.loss(made, batch)["lm"][0])
    small = {"dim": 16, "layers": 1, "heads": 2, "head_dim": 8, "ff": 16, "embed": 16, "cutoffs": (), "memory": 4}
    xl = formers.build("transformer_xl", vocab=30, clamp=None, same_length=False, eos=None, **small).model.eval()
    goal = CausalLM(16, num_streams=4, streams_per_batch=4)
    segment = next(load_batches(TokenSource(STORE, goal), 64))[0].to("cpu")
    judged, plain = SegmentMemory(4, 4), SegmentMemory(4, 4)
    for _ in range(2):
        out, want = Step(xl, goal)(segment, judged, count_correct_tokens=True), Step(xl, goal)(segment, plain)
        torch.testing.assert_close(out["lm"][0], want["lm"][0])
    assert int(out["lm/accuracy"][1]) == 64
    torch.testing.assert_close(judged.hidden_states[0], plain.hidden_states[0])


def test_of_a_large_text_parts_are_counted(monkeypatch):
    from formers.training import validation as module

    tests = [batch for batch, _ in itertools.islice(load_batches(TokenSource(STORE, OBJECTIVE), 128), 3)]
    whole = compute_unigram_baseline(STORE, OBJECTIVE, tests)
    monkeypatch.setattr(module, "COUNT_BLOCK_TOKENS", 90)
    monkeypatch.setattr(module, "MAX_COUNT_BLOCKS", 5)
    assert compute_unigram_baseline(STORE, OBJECTIVE, tests).loss == pytest.approx(whole.loss, abs=0.1)


def test_unigram_and_evaluate():
    tests = [batch for batch, _ in itertools.islice(load_batches(TokenSource(STORE, OBJECTIVE), 128), 3)]
    base = compute_unigram_baseline(STORE, OBJECTIVE, tests)
    assert base.loss == pytest.approx(np.log(30), abs=0.02)
    assert base.accuracy == pytest.approx(1 / 30, abs=0.02)
    t = build_toy_trainer()
    train_to_end(t)
    score = evaluate(t.model, OBJECTIVE, tests)
    assert t.model.training
    assert isinstance(score, Score)
    assert score.loss < 0.3
    assert score.accuracy > 0.95


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "steps must be"), ({"lr": -1.0}, "rate must be above 0"), ({"short_length": 16}, "not shorter"),
        ({"batch_tokens": 8}, "does not fit into a batch of 8"), ({"betas": (0.9,)}, "betas are two"),
        ({"ema": 2.0}, "ema"),
        ({"optimizer": "adamm"}, "there is no optimizer"), ({"schedule": "cosin"}, "there is no schedule"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(settings, words):
    with pytest.raises(Error, match=words):
        build_toy_trainer(**settings)


def test_the_time_left_of_a_resumed_run():
    """Its first step is not taken for all the time that it has spent before."""
    told = []
    meter = ProgressMeter(build_toy_trainer(steps=100), lambda *words: told.append(words[-1]))
    meter(StepResult(41, 1e-3, 41 * 128, lambda: StepOutcome({"lm": 1.0}, 1.0), seconds=41 * 0.5))
    meter(StepResult(42, 1e-3, 42 * 128, lambda: StepOutcome({"lm": 1.0}, 1.0), seconds=42 * 0.5))
    assert [words.rsplit(", ", 1)[-1] for words in told] == ["30 s left", "29 s left"]
    assert all("256 tokens/s" in words for words in told)


def test_no_share_of_the_peak_is_above_one():
    """Other programs may slow down the measurement of the peak."""
    meter = ProgressMeter(build_toy_trainer(steps=100), lambda *words: None, flops=(10.0, 1000.0))
    assert meter.compute_mfu(50.0) == 0.5
    assert meter.compute_mfu(150.0) is None


def test_operations_of_a_token_count_attention():
    made = build_toy_model()
    matrices = estimate_flops_per_token(made, 0)
    assert estimate_flops_per_token(made, 100) - matrices == 12 * 16 * 100, "one layer of width 16"
    weights = sum(p.numel() for n, p in made.named_parameters() if p.dim() > 1 and "embed" not in n)
    tied = made.body.embedding_table.numel()
    assert matrices == 6 * (weights + tied), "the output layer shares the embeddings, and is a product nevertheless"
    assert estimate_flops_per_token(made, 0, predicted_share=0.25) == 6 * (weights + tied / 4)


def test_operations_count_shared_blocks_experts_and_sides():
    """ALBERT's block is used by every layer, a token meets one expert, and one side of an encoder-decoder."""
    sizes = {"vocab": 30, "dim": 16, "heads": 2, "ff": 32}

    def estimate(family, **more):
        made = formers.build(family, **sizes, **{k: v for k, v in more.items() if k != "target_share"})
        return estimate_flops_per_token(made.model, 10, 0.0, more.get("target_share", 0.5))

    two, four = (estimate("albert", layers=n, embed=8) for n in (2, 4))
    one = estimate("albert", layers=1, embed=8)
    assert four - two == pytest.approx(2 * (two - one))
    assert two - one > 6 * 16 * 16 * 4
    few, many = (estimate("switch", layers=2, sparse=1, experts=n, head_dim=8) for n in (2, 4))
    assert many - few == pytest.approx(6 * 16 * 2), "two more rows of the routers, each met by half of the tokens"
    source, target = (estimate("t5", layers=2, head_dim=8, target_share=share) for share in (0.0, 1.0))
    assert target > source > 0, "a decoder has cross attention besides"
    assert estimate("t5", layers=2, head_dim=8) == pytest.approx((source + target) / 2)


def test_a_rule_of_the_family_holds_in_training(tmp_path):
    """TextCNN limits the norms of its last layer after each step: it follows the weights as a listener."""
    settings = {
        "model.embed": 8, "model.filters": 4, "model.max_norm": 0.05, "train.lr": 1e-2, "data.vocab_size": 300,
        "tune.epochs": 1, "tune.batch_size": 8, "tune.seq_length": 24,
    }  # fmt: skip
    largest = []
    for name, limit in (("bound", 0.05), ("free", 50.0)):
        overrides = settings | {"model.max_norm": limit}
        formers.finetune("textcnn", LABELLED, task="classify", out=tmp_path / name, overrides=overrides, device="cpu")
        weight = formers.load(tmp_path / name / "model").model.heads["classify"].out.weight
        largest.append(float(weight.detach().norm(dim=1).max()))
    assert largest[0] <= 0.05 * 1.001
    assert largest[1] > 0.06
