"""Experts against a reference that takes one token after the other, straight from the paper's section 2."""

from __future__ import annotations

import math

import pytest
import torch

import formers
from formers.batch import Batch
from formers.nn.attention.context import AttentionContext, Capture
from formers.nn.experts import Experts, compute_balance_loss
from formers.nn.layers import FeedForward
from formers.training.config_merge import get_finetune_recipe
from formers.training.runs.task_model import set_expert_dropout
from tests.nn.packing import make_layout

DIM, WIDE, COUNT = 6, 10, 4
LENGTHS = [9, 1, 24, 5]


def build_experts(**more):
    layer = Experts(DIM, WIDE, COUNT, **more)
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=g))
    return layer


def route_documents(layer, x, lengths, capacity):
    """Each document on its own: route, count, skip what is over, multiply by the probability."""
    rows, start = [], 0
    for n in lengths:
        taken = [0] * COUNT
        for token in x[start : start + n]:
            p = torch.softmax(layer.router.weight @ token, 0)
            best = max(range(COUNT), key=p.tolist().__getitem__)
            taken[best] += 1
            if taken[best] > capacity(n):
                rows.append(torch.zeros(DIM))
            else:
                rows.append(p[best] * (layer.down[best] @ torch.relu(layer.up[best] @ token)))
        start += n
    return torch.stack(rows)


def by_factor(factor):
    return lambda n: max(4, min(n, int(n * factor / COUNT)))


@pytest.mark.parametrize(
    ("more", "training", "capacity"),
    [
        ({"capacity": 2}, False, lambda n: 2),
        ({"capacity": 2}, True, lambda n: 2),
        ({}, False, by_factor(2.0)),
        ({}, True, by_factor(1.25)),
        ({"factors": (0.5, 1.5)}, True, by_factor(0.5)),
    ],
    ids=["fixed", "fixed train", "eval", "train", "other factors"],
)
def test_outputs_gradients_and_dropped_tokens(more, training, capacity):
    layer = build_experts(**more).train(training)
    x = (torch.randn(sum(LENGTHS), DIM) + layer.router.weight[1].detach()).requires_grad_()  # one expert is liked most
    out = layer(x, AttentionContext(make_layout(LENGTHS)))
    want = route_documents(layer, x, LENGTHS, capacity)
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)
    leaves = [x, *layer.parameters()]
    pull = torch.randn_like(out)
    for a, b in zip(torch.autograd.grad(out, leaves, pull), torch.autograd.grad(want, leaves, pull), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    dropped = (out == 0).all(1)
    assert dropped.any(), "a test of overflow in which nothing overflows"
    assert not dropped.all()


def test_factors_of_the_settings_bound_training_and_evaluation():
    """§2.2, and the released code's second factor: with 3 experts and 30 tokens, 5 and 20 instead of 12 and 20."""
    sizes = {"vocab": 50, "dim": 16, "layers": 4, "heads": 2, "head_dim": 8, "ff": 16, "sparse": 2, "experts": 3}
    f = formers.build("switch", capacity_factor=0.5, eval_capacity_factor=2.0, **sizes)
    layers = [part for part in f.model.modules() if isinstance(part, Experts)]
    assert len(layers) == 4
    for is_training, tokens in ((True, 5), (False, 20)):
        f.model.train(is_training)
        assert [layer.compute_capacity(make_layout([30])).tolist() for layer in layers] == [[tokens]] * 4


def test_with_a_cache_nothing_is_dropped():
    from formers.nn.attention.kv_cache import KVCache

    layer, x = build_experts(capacity=1), torch.randn(9, DIM)
    out = layer(x, AttentionContext.start_pass(make_layout([9]), cache=KVCache(1, 9)))
    torch.testing.assert_close(out, route_documents(layer, x, [9], lambda n: n), atol=1e-5, rtol=1e-5)


def test_balance_loss():
    """Equation 4 to 6: 1 when all are equal, E when one takes all, and a gradient through the probabilities alone."""
    even = torch.full((8, COUNT), 1 / COUNT)
    assert compute_balance_loss(even, torch.arange(8) % COUNT) == pytest.approx(1.0)
    one = torch.eye(COUNT)[[2] * 8]
    assert compute_balance_loss(one, torch.full((8,), 2)) == pytest.approx(COUNT)
    logits = torch.randn(8, COUNT, requires_grad=True)
    p = logits.softmax(-1)
    chosen = p.argmax(-1)
    total = 0.0
    for i in range(COUNT):
        f = sum(int(c) == i for c in chosen) / 8
        total = total + f * sum(p[t, i] for t in range(8)) / 8
    (want,) = torch.autograd.grad(COUNT * total, logits, retain_graph=True)
    (got,) = torch.autograd.grad(compute_balance_loss(p, chosen), logits)
    torch.testing.assert_close(got, want)


def test_routing_is_seen_before_overflow():
    f = formers.build("switch", vocab=30, dim=12, layers=4, heads=2, head_dim=4, ff=10, experts=3, sparse=2, capacity=1)
    capture = Capture(routing=[])
    batch = Batch.from_padded(torch.randint(2, 30, (2, 7)))
    f.model(Batch.from_padded(torch.randint(2, 30, (2, 5)), source=batch), capture=capture)
    assert [tuple(p.shape) for p, _ in capture.routing] == [(14, 3)] * 2 + [(10, 3)] * 2
    assert all(torch.equal(p.argmax(-1), c) for p, c in capture.routing)


def test_jitter_is_on_the_routers_input_alone():
    layer = build_experts(jitter=0.4, capacity=99).train()
    x = torch.randn(400, DIM)
    seen = Capture(routing=[])
    out = layer(x, AttentionContext(make_layout([400]), capture=seen))
    probability, chosen = seen.routing[0]
    exact = torch.softmax(x @ layer.router.weight.T, -1)
    assert not torch.allclose(probability, exact, atol=1e-3)
    for i in range(0, 400, 37):  # the expert itself reads the token as it is
        if out[i].any():
            e = int(chosen[i])
            want = probability[i, e] * (layer.down[e] @ torch.relu(layer.up[e] @ x[i]))
            torch.testing.assert_close(out[i], want, atol=1e-5, rtol=1e-5)
    layer.eval()
    torch.testing.assert_close(layer.route(x), exact, atol=1e-6, rtol=1e-5)
    torch.manual_seed(0)
    layer.train()
    ratio = (layer.route(torch.ones(1, DIM)).log() - layer.route(torch.ones(1, DIM)).log()).abs().max()
    assert 0 < float(ratio.detach()) < 2 * 0.4 * float(layer.router.weight.detach().abs().sum(1).max()) + 1


def test_the_router_alone_stays_in_fp32():
    """§2.4, selective precision: what leaves the layer has half of the bytes again."""
    layer, x = build_experts().to(torch.bfloat16), torch.randn(3, DIM, dtype=torch.bfloat16)
    assert layer.route(x).dtype == torch.float32
    assert layer(x, AttentionContext(make_layout([3]))).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build_experts().route(torch.randn(3, DIM)).dtype == torch.float32


def test_sizes_and_first_weights():
    with torch.device("meta"):
        f = formers.build("switch", ff=2048, sparse=3)
    assert sum(p.numel() for p in f.model.parameters()) == 317_312_256
    f = formers.build("switch", vocab=500, dim=64, layers=2, heads=2, head_dim=32, ff=128, sparse=1, experts=4)
    up = f.model.body.encoder.blocks[1].ff.up
    assert up.detach().std() == pytest.approx(math.sqrt(0.1 / 64), rel=0.05)
    assert f.model.body.embed.token.weight.detach().std() == pytest.approx(1.0, rel=0.05)


def test_experts_have_a_dropout_of_their_own():
    """§2.4: less dropout in the rest of the model, more inside the experts."""
    sizes = {"vocab": 50, "dim": 16, "layers": 2, "heads": 2, "head_dim": 8, "ff": 16, "sparse": 1, "experts": 2}
    f = formers.build("switch", dropout=0.1, expert_dropout=0.4, **sizes)
    rates = {part.dropout.p for part in f.model.modules() if isinstance(part, Experts)}
    assert rates == {0.4}
    assert {part.dropout.p for part in f.model.modules() if isinstance(part, FeedForward)} == {0.1}
    alike = formers.build("switch", dropout=0.1, **sizes)
    assert {part.dropout.p for part in alike.model.modules() if isinstance(part, Experts)} == {0.1}
    with pytest.raises(formers.Error, match="expert_dropout"):
        formers.build("switch", expert_dropout=1.5, **sizes)


def test_fine_tuning_raises_the_dropout_of_the_experts():
    sizes = {"vocab": 50, "dim": 16, "layers": 2, "heads": 2, "head_dim": 8, "ff": 16, "sparse": 1, "experts": 2}
    for task, wanted in (("translate", 0.4), ("classify", 0.4)):
        assert get_finetune_recipe("switch", task, "some-folder", False)["tune"]["expert_dropout"] == wanted
    assert "expert_dropout" not in get_finetune_recipe("t5", "translate", "some-folder", False)["tune"]
    f = formers.build("switch", **sizes)
    set_expert_dropout(f, 0.4)
    assert {part.dropout.p for part in f.model.modules() if isinstance(part, Experts)} == {0.4}
    with pytest.raises(formers.Error, match="has no experts"):
        set_expert_dropout(formers.build("gpt2", vocab=50, dim=16, layers=1, heads=2), 0.4)
    set_expert_dropout(f, None)
