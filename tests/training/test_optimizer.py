"""Optimizers and learning rates, against their papers' formulas written out in numpy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import formers
from formers import Error
from formers.training.optimizer import OPTIMIZERS, SCHEDULES, build_optimizer, build_param_groups, build_schedule


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
        chosen = build_optimizer(name, model, 0.02 if name == "sgd" else 0.05, weight_decay=0.0)
        x = torch.randn(32, 6)
        want = x @ torch.randn(6, 6) * 0.3
        losses = []
        for step in range(60):
            if step == cut:
                kept = chosen.state_dict()
                chosen = build_optimizer(name, model, 0.02 if name == "sgd" else 0.05, weight_decay=0.0)
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
    assert values[:10] == [(i + 1) / 10 for i in range(10)]
    assert max(values) == pytest.approx(1.0)
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(values[10:]))
    end = {"constant": 1.0, "linear": 1 / 90, "cosine": 0.1, "inverse_sqrt": math.sqrt(0.1), "wsd": 0.05}[name]
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
