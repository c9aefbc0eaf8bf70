"""Optimizers and learning rates, against their papers' formulas written out in numpy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import formers
from formers import Error
from formers.training.optimizer import (
    DEVICE_SKIPPING_OPTIMIZERS,
    OPTIMIZERS,
    SCHEDULES,
    build_optimizer,
    build_param_groups,
    build_schedule,
    split_updates,
)


def build_layer(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4))
    model[1].weight.data.uniform_(0.5, 2)
    return model


def draw_gradients(steps, shape, seed=3):
    return np.random.default_rng(seed).normal(size=(steps, *shape)).astype(np.float32)


def move_weights(name, steps=4, lr=0.1, decay=0.2, **more):
    """The weights of a layer after some steps with given gradients, and those before."""
    model = build_layer()
    chosen = build_optimizer(name, model, lr, weight_decay=decay, betas=(0.8, 0.9), eps=1e-6)
    before = [p.detach().numpy().copy() for p in model.parameters()]
    for g in range(steps):
        for number, p in enumerate(model.parameters()):
            p.grad = torch.from_numpy(draw_gradients(steps, tuple(p.shape), number)[g])
        chosen.step()
    return before, [p.detach().numpy() for p in model.parameters()]


def run_adam(w, grads, lr, decay, length):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        u = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-6) + decay * w
        w = w - lr * length(w, u) * u
    return w


RATES = {"sgd": 0.02, "adadelta": 20.0}
LENGTHS = {
    "adamw": lambda w, u: 1.0,
    "lamb": lambda w, u: np.linalg.norm(w) / np.linalg.norm(u) if np.linalg.norm(w) and np.linalg.norm(u) else 1.0,
    "rms-adamw": lambda w, u: max(1e-3, math.sqrt((w**2).mean())),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_as_the_paper_says(name):
    """Norms and biases do not decay, matrices do."""
    before, after = move_weights(name)
    for number, (w, got) in enumerate(zip(before, after, strict=True)):
        decay = 0.2 if w.ndim > 1 else 0.0
        want = run_adam(w, draw_gradients(4, w.shape, number), 0.1, decay, LENGTHS[name])
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns_and_continues_from_its_state(name):
    """A quadratic goes down; saved and loaded half way, the weights end up the same to the last bit."""

    def run(cut):
        torch.manual_seed(1)
        model = nn.Linear(6, 6)
        chosen = build_optimizer(name, model, RATES.get(name, 0.05), weight_decay=0.0)
        x = torch.randn(32, 6)
        want = x @ torch.randn(6, 6) * 0.3
        losses = []
        for step in range(60):
            if step == cut:
                kept = chosen.state_dict()
                chosen = build_optimizer(name, model, RATES.get(name, 0.05), weight_decay=0.0)
                chosen.load_state_dict(kept)
            loss = (model(x) - want).square().mean()
            chosen.zero_grad()
            loss.backward()
            chosen.step()
            losses.append(float(loss.detach()))
        return losses, model.weight.detach()

    losses, weight = run(None)
    again, same = run(30)
    assert losses == again
    assert torch.equal(weight, same)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("family", "names"),
    [("elmo", ["layers.0.bias"]), ("xlnet", ["relative.s", "biases.u", "biases.v"]), ("t5", ["encoder.bias.weight"])],
)
def test_biases_of_more_than_one_axis_do_not_decay(family, names):
    with torch.device("meta"):
        model = formers.build(family).model
    decay = {id(p): group["weight_decay"] for group in build_param_groups(model, 0.5) for p in group["params"]}
    seen = {name: decay[id(p)] for name, p in model.named_parameters() if p.dim() > 1}
    for name in names:
        found = [value for full, value in seen.items() if full.endswith(name)]
        assert found
        assert set(found) == {0.0}, name
    assert sum(value == 0.5 for value in seen.values()) > 5


def test_what_is_frozen_stays():
    model = build_layer()
    model[0].weight.requires_grad_(False)
    assert all(p is not model[0].weight for g in build_optimizer("adamw", model, 1.0).param_groups for p in g["params"])
    with pytest.raises(Error, match="nothing to train"):
        build_optimizer("adamw", nn.Linear(2, 2).requires_grad_(False), 1.0)
    with pytest.raises(Error, match="there is no optimizer 'adamx'"):
        build_optimizer("adamx", model, 1.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    share = build_schedule(name, 100, 10)
    values = [share(step) for step in range(100)]
    assert values[:10] == ([1.0] * 10 if name == "rsqrt" else [(i + 1) / 10 for i in range(10)])
    assert max(values) == pytest.approx(1.0)
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(values[10:]))
    end = {"constant": 1.0, "linear": 1 / 90, "cosine": 0.1, "inverse_sqrt": math.sqrt(0.1), "wsd": 0.05,
           "rsqrt": math.sqrt(0.1), "halving": 0.5**5}[name]  # fmt: skip
    assert values[-1] == pytest.approx(end, abs=1e-3)
    assert build_schedule(name, 100, 0)(0) == pytest.approx(1.0, abs=0.02)


def test_noam_is_the_papers_formula():
    dim, warmup = 512, 4000
    share = build_schedule("inverse_sqrt", 10**6, warmup)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        want = dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert (dim * warmup) ** -0.5 * share(step - 1) == pytest.approx(want, rel=1e-6)
    for wrong in ({"name": "liner"}, {"steps": 0}, {"warmup": -1}):
        with pytest.raises(Error):
            build_schedule(**{"name": "linear", "steps": 5, "warmup": 1, **wrong})


def test_t5s_rate_is_constant_for_ten_thousand_steps():
    """Raffel et al. 2019, §3.1.2: 1/√max(n, k) with k = 10⁴."""
    share = build_schedule("rsqrt", 2**19, 10_000)
    for step in (1, 2, 9_999, 10_000, 10_001, 40_000, 2**19):
        assert 0.01 * share(step - 1) == pytest.approx(max(step, 10_000) ** -0.5, rel=1e-9)


def test_a_cosine_ends_where_it_is_told_and_when():
    to_zero = build_schedule("cosine", 1000, 100, min_lr_ratio=0.0)
    assert to_zero(999) < 1e-5
    assert to_zero(550) == pytest.approx(0.5, abs=1e-6)
    early = build_schedule("cosine", 300, 0, decay_steps=260)  # GPT-3, appendix B: 260 of 300 billion tokens
    assert [early(step) for step in (260, 299)] == [pytest.approx(0.1)] * 2
    assert early(130) == pytest.approx(0.55, abs=1e-6)
    late = build_schedule("linear", 100, 0, decay_steps=200)
    assert late(100) == 0.5


def test_halving_begins_after_some_epochs():
    """Luong et al. 2015, §4.1: after five epochs of ten, the rate is halved every epoch."""
    share = build_schedule("halving", 1000, 0, decay_start=500, decay_every=100)
    assert [share(epoch * 100 + 50) for epoch in range(10)] == [1] * 5 + [0.5**n for n in range(1, 6)]
    usual = build_schedule("halving", 1200, 0)
    assert [usual(step) for step in (0, 799, 800, 899, 900, 1199)] == [1, 1, 0.5, 0.5, 0.25, 0.0625]


def compute_adafactor(w, grads, lr):
    """Algorithm 4 of Shazeer & Stern (2018) for one matrix, in numpy."""
    w, rows, columns = w.astype(np.float64), 0.0, 0.0
    for t, g in enumerate(grads.astype(np.float64), 1):
        beta, squares = 1 - t**-0.8, g * g + 1e-30
        rows = beta * rows + (1 - beta) * squares.sum(1)
        columns = beta * columns + (1 - beta) * squares.sum(0)
        u = g / np.sqrt(np.outer(rows, columns) / rows.sum())
        u /= max(1.0, np.sqrt((u * u).mean()))
        w = w - lr * max(1e-3, np.sqrt((w * w).mean())) * u
    return w


@pytest.mark.parametrize("shape", [(130, 150), (150, 130), (3, 128, 128)])
def test_adafactor_is_the_papers(shape):
    rng = np.random.default_rng(0)
    weight, grads = rng.normal(size=shape).astype(np.float32), rng.normal(size=(4, *shape)).astype(np.float32)
    grads[1] *= 40  # what a second moment has not seen yet is clipped
    model = nn.Module()
    model.weight = nn.Parameter(torch.from_numpy(weight.copy()))
    chosen = build_optimizer("adafactor", model, 0.3, weight_decay=0.0)
    for g in grads:
        model.weight.grad = torch.from_numpy(g)
        chosen.step()
    kept = sum(t.numel() for t in chosen.state[model.weight].values())
    assert kept == 1 + (sum(shape) if len(shape) == 2 else 2 * 3 * 128), "means of rows and columns alone"
    if len(shape) == 2:
        assert np.allclose(model.weight.detach().numpy(), compute_adafactor(weight, grads, 0.3), atol=2e-5)


def test_adafactor_keeps_the_squares_of_small_weights_whole():
    model = nn.Linear(127, 200)
    chosen = build_optimizer("adafactor", model, 0.1, weight_decay=0.0)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    chosen.step()
    assert {tuple(state["square_mean"].shape) for state in chosen.state.values()} == {(200, 127), (200,)}
    before = model.weight.detach().clone()
    chosen.step()  # the squares are all 1: the update is a step of lr · RMS(w) down
    assert torch.allclose(before - model.weight, 0.1 * before.norm() / before.numel() ** 0.5, rtol=1e-4)


def test_adadelta_is_the_papers():
    """Zeiler 2012, algorithm 1, with Bahdanau's ρ = 0.95 and ε = 1e-6."""
    model, (x, want) = nn.Linear(1, 1, bias=False), (0.0, 0.0)
    w = model.weight.item()
    chosen = build_optimizer("adadelta", model, 1.0, weight_decay=0.0, betas=(0.9, 0.95), eps=1e-6)
    for g in (0.5, -2.0, 0.1):
        model.weight.grad = torch.full((1, 1), g)
        chosen.step()
        x = 0.95 * x + 0.05 * g * g
        move = -math.sqrt(want + 1e-6) / math.sqrt(x + 1e-6) * g
        want, w = 0.95 * want + 0.05 * move * move, w + move
        assert model.weight.item() == pytest.approx(w, rel=1e-5)


def test_adam_gives_way_to_sgd():
    """Wu et al. 2016, §8.3: Adam first, then SGD at a rate of its own; no moment is kept from then on."""
    model = nn.Linear(3, 2)
    chosen, twin = build_optimizer("adam-sgd", model, 0.1, weight_decay=0.0, betas=(0.9, 0.999)), nn.Linear(3, 2)
    twin.load_state_dict(model.state_dict())
    adam = torch.optim.Adam(twin.parameters(), lr=0.1)
    for step in range(3):
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
            q.grad = p.grad.clone()
        chosen.choose_method(False)
        chosen.step()
        adam.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-5)
    before = model.weight.detach().clone()
    chosen.choose_method(True)
    for group in chosen.param_groups:
        group["lr"] = 0.5
    chosen.step()
    assert torch.equal(model.weight, before - 0.5 * model.weight.grad)
    assert not chosen.state


def run_with_spoilt_gradients(name, bad, is_told, as_tensor, steps=6):
    """Train weights of several shapes with given gradients, of which some entries are not finite at the steps `bad`.
    The optimizer is told so on the device, or those steps are left out. Return weights and state after each step."""
    torch.manual_seed(0)
    model = nn.ParameterList([torch.randn(130, 150), torch.randn(70, 90), torch.randn(9)])
    chosen = build_optimizer(name, model, 0.05, weight_decay=0.1, betas=(0.8, 0.9))
    if as_tensor:
        for group in chosen.param_groups:
            group["lr"] = torch.tensor(group["lr"])
    history = []
    for step in range(steps):
        g = torch.Generator().manual_seed(step)
        for p in model:
            p.grad = torch.randn(p.shape, generator=g)
            if step in bad:
                p.grad[0], p.grad[-1] = math.nan, math.inf
        if is_told:
            chosen.found_inf = torch.tensor(float(step in bad))
        if is_told or step not in bad:
            chosen.step()
        states = [{n: t.clone() for n, t in chosen.state[p].items()} if p in chosen.state else {} for p in model]
        history.append(([p.detach().clone() for p in model], states))
    return history


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("bad", [(), (2, 3), (0, 4)])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ("adagrad", "adadelta", "sgd")])
def test_steps_are_skipped_on_the_device(name, bad, as_tensor):
    """A gradient that is not finite moves no weight, no moment and no counter, and later steps do not see it. Other
    steps are those of an optimizer that is told nothing, to the last bit."""
    assert name in DEVICE_SKIPPING_OPTIMIZERS
    if as_tensor and name in ("adam", "adamw"):
        pytest.skip("torch's own take a tensor on a GPU")
    got, want = (run_with_spoilt_gradients(name, bad, is_told, as_tensor) for is_told in (True, False))
    for step, ((weights, states), (want_weights, want_states)) in enumerate(zip(got, want, strict=True)):
        assert all(torch.equal(a, b) for a, b in zip(weights, want_weights, strict=True)), step
        for state, want_state in zip(states, want_states, strict=True):
            for key, value in state.items():  # a first step that is skipped leaves an empty state
                assert torch.equal(value, want_state.get(key, torch.zeros_like(value))), (step, key)


class HostWatcher(TorchFunctionMode):
    """Notes calls that take a tensor of the host or make one of a value there: a graph refuses to record the copy."""

    def __init__(self):
        super().__init__()
        self.on_host = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in pytree.tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        makes_copy = func in (torch.tensor, torch.as_tensor) or any(t.device.type == "cpu" for t in tensors)
        self.on_host += [str(func)] if makes_copy else []
        return out


@pytest.mark.parametrize("name", ["adafactor", "rms-adamw", "lamb"])
def test_a_step_could_be_recorded(name):
    """Another device stands for a GPU, with a rate and a flag that lie there: all is computed there, nothing is copied
    from the host, and nobody asks for a value, which that device does not have."""
    model = nn.ParameterList([torch.empty(shape, device="meta") for shape in ((130, 150), (70, 90), (9,))])
    chosen = build_optimizer(name, model, 0.05, weight_decay=0.1)
    for group in chosen.param_groups:
        group["lr"] = torch.empty((), device="meta")
    chosen.found_inf = torch.empty((), device="meta")
    for p in model:
        p.grad = torch.empty_like(p)
    chosen.step()  # this one makes the state
    with HostWatcher() as watcher:
        chosen.step()
    assert watcher.on_host == []


class OperationCounter(TorchDispatchMode):
    """Counts operations; one of lists of equal shapes is one kernel on a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        lists = [a for a in args if isinstance(a, list) and a and isinstance(a[0], torch.Tensor)]
        is_fused = all(x.shape == y.shape for part in lists for x, y in zip(lists[0], part, strict=True))
        self.count += 1 if is_fused or not func.__name__.startswith("_foreach") else len(lists[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["rms-adamw", "lamb", "adam-sgd"])
def test_a_step_takes_few_operations_whatever_the_number_of_weights(name):
    """Of weights that are scaled each by a number of its own, one for each; the rest is done for all at once."""
    model = nn.ParameterList([torch.randn(7, 5) for _ in range(100)])
    chosen = build_optimizer(name, model, 0.05, weight_decay=0.1)
    chosen.found_inf = torch.zeros(())
    for p in model:
        p.grad = torch.randn_like(p)
    chosen.step()  # this one makes the state
    with OperationCounter() as counter:
        chosen.step()
    assert counter.count < 100 + 40


class FakeShard:
    """A tensor of so many numbers, of which this process has a part."""

    full_tensor = None

    def __init__(self, size):
        self.size = size

    def numel(self):
        return self.size


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=12), st.integers(1, 12))
def test_runs_of_updates(kinds, most):
    """Each tensor is in one run; runs hold tensors of one kind, and no more numbers than allowed or one tensor; and
    none could have been added to the run before."""
    tensors = [FakeShard(size) if sharded else torch.empty(size) for sharded, size in kinds]
    parts = split_updates(tensors, most)
    assert sorted(place for part in parts for place in part) == list(range(len(kinds)))
    assert all(parts)
    for part in parts:
        assert len({kinds[place][0] for place in part}) == 1
        assert len(part) == 1 or sum(kinds[place][1] for place in part) <= most
    for one, two in itertools.pairwise(parts):
        if kinds[one[0]][0] == kinds[two[0]][0]:
            assert sum(kinds[place][1] for place in (*one, two[0])) > most


def test_a_change_of_method_is_skipped_on_the_device_too():
    model = nn.Linear(3, 2)
    chosen = build_optimizer("adam-sgd", model, 0.1)
    chosen.choose_method(True)
    before = model.weight.detach().clone()
    for p in model.parameters():
        p.grad = torch.full_like(p, math.nan)
    chosen.found_inf = torch.ones(())
    chosen.step()
    assert torch.equal(model.weight, before)
