"""Packed recurrent layers equal torch's own, document by document; alignments stay inside their documents."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from formers.batch import Layout
from formers.generation.beam import compute_coverage_penalty, compute_length_penalty
from formers.nn.recurrent.alignment import AdditiveScore, Alignment, DotScore, GeneralScore, LocalWindow
from formers.nn.recurrent.rnn import (
    PackedSteps,
    RecurrentLayer,
    RecurrentStack,
    get_reversed_slots,
    order_steps,
    run_steps,
)
from tests.nn.packing import make_layout

OWN = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def build_torch_module(layer, kind):
    """torch's module with the same weights."""
    net = OWN[kind](layer.ahead.read.in_features, layer.dim, bidirectional=layer.behind is not None)
    for cell, end in zip(layer.cells, ("", "_reverse"), strict=False):
        for name, w in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), cell.kernel_weights, strict=True):
            getattr(net, f"{name}_l0{end}").data = w.detach().clone()
    return net


lengths_ = st.lists(st.integers(0, 6), min_size=1, max_size=6)


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("both", [False, True])
@settings(max_examples=20)
@given(lengths=lengths_, slack=st.integers(0, 2), given_state=st.booleans(), seed=st.integers(0, 99))
def test_a_packed_layer_is_torchs_for_each_document(kind, both, lengths, slack, given_state, seed):
    torch.manual_seed(seed)
    layer = RecurrentLayer(kind, 3, 4, bidirectional=both)
    net, here = build_torch_module(layer, kind), make_layout(lengths, slack)
    x = torch.randn(sum(lengths), 3)
    state = tuple(torch.randn(len(lengths), layer.out_dim) for _ in range(layer.state_parts)) if given_state else None
    y, after = layer(x, PackedSteps(here), state)
    begin = layer.build_zero_state(x, len(lengths)) if state is None else state
    for d, n in enumerate(lengths):
        ends = [b[d] for b in begin]
        if n:
            hx = [b[d].view(-1, 1, 4) for b in begin]
            at = int(here.starts[d])
            want, end = net(x[at : at + n, None], tuple(hx) if layer.state_parts == 2 else hx[0])
            torch.testing.assert_close(y[at : at + n], want[:, 0], atol=1e-6, rtol=1e-5)
            ends = [e.flatten() for e in (end if layer.state_parts == 2 else (end,))]
        for got, want in zip(after, ends, strict=True):
            torch.testing.assert_close(got[d], want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", OWN)
@given(lengths=lengths_.filter(any), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_both_ways_of_running_agree(kind, lengths, seed):
    """The unrolled way is what torch.compile gets: fixed shapes, all documents as long as the longest."""
    torch.manual_seed(seed)
    layer, here = RecurrentLayer(kind, 3, 4, bidirectional=True), make_layout(lengths)
    x, state = (
        torch.randn(sum(lengths), 3),
        tuple(torch.randn(len(lengths), 8) for _ in range(2 if kind == "lstm" else 1)),
    )
    packed, fixed = PackedSteps(here), PackedSteps(here)
    fixed.is_static, fixed.step_sizes = True, [here.rows] * here.longest
    results = []
    for steps in (packed, fixed):
        own = x.clone().requires_grad_()
        y, after = layer(own, steps, state)
        layer.zero_grad()
        (y.sum() + sum(s.square().sum() for s in after)).backward()
        results.append((y, *after, own.grad, *(p.grad.clone() for p in layer.parameters())))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_nothing_is_computed_for_documents_that_have_ended():
    seen = []

    def step(t, x, state):
        seen.append(len(x))
        return (x,), (state[0] + x,)

    here = make_layout([2, 0, 4, 1])
    x = torch.arange(7.0)[:, None]
    (y,), (total,) = run_steps(PackedSteps(here), x, (torch.zeros(4, 1),), step)
    assert seen == [3, 2, 1, 1]
    assert torch.equal(y, x)
    assert total.flatten().tolist() == [0 + 1, 0, 2 + 3 + 4 + 5, 6]


def test_layers_with_residuals_and_dropout():
    torch.manual_seed(0)
    layers = RecurrentStack([RecurrentLayer("gru", 4, 4) for _ in range(3)], dropout=0.5, first_residual=1).eval()
    here, x = make_layout([3, 2]), torch.randn(5, 4)
    want = x
    for i, layer in enumerate(layers):
        y, _ = layer(want, PackedSteps(here))
        want = y + want if i >= 1 else y
    got, after = layers(x, PackedSteps(here))
    torch.testing.assert_close(got, want)
    assert len(after) == 3
    layers.train()
    assert not torch.equal(layers(x, PackedSteps(here))[0], layers(x, PackedSteps(here))[0])
    alone = RecurrentStack([RecurrentLayer("gru", 4, 4)], dropout=0.5).train()  # dropout is between layers only
    assert torch.equal(alone(x, PackedSteps(here))[0], alone(x, PackedSteps(here))[0])


# ------------------------------------------------------------------ alignments


@pytest.mark.parametrize("score", [lambda: DotScore(), lambda: GeneralScore(4, 4), lambda: AdditiveScore(4, 4)])
@pytest.mark.parametrize("local", [None, True, False])
@settings(max_examples=15)
@given(lengths=lengths_.filter(any), seed=st.integers(0, 99))
def test_weights_stay_inside_a_document(score, local, lengths, seed):
    torch.manual_seed(seed)
    align = Alignment(score(), None if local is None else LocalWindow(4, 2, predict=local))
    here, memory = make_layout(lengths), torch.randn(sum(lengths), 4)
    query, position = torch.randn(len(lengths), 3, 4), torch.arange(3).expand(len(lengths), 3)
    context, weights = align(query, align.prepare_source(memory, here), position)
    assert context.isfinite().all()
    for d, n in enumerate(lengths):
        if n == 0:
            assert not context[d].any()
            continue
        assert not weights[d, :, n:].any()
        assert (weights[d].sum(-1) <= 1 + 1e-5).all()
        if not local:  # a Gaussian takes some away
            torch.testing.assert_close(weights[d].sum(-1), torch.ones(3))
        at = int(here.starts[d])
        alone, _ = align(query[d : d + 1], align.prepare_source(memory[at : at + n], make_layout([n])), position[:1])
        torch.testing.assert_close(context[d], alone[0], atol=1e-6, rtol=1e-5)


def test_local_m_follows_the_target_to_the_sources_end():
    align, here = Alignment(DotScore(), LocalWindow(4, 1, predict=False)), make_layout([4])
    _, weights = align(torch.zeros(1, 7, 4), align.prepare_source(torch.randn(4, 4), here), torch.arange(7)[None])
    picture = ["".join("x" if w else "." for w in row) for row in weights[0].tolist()]
    assert picture == ["xx..", "xxx.", ".xxx", "..xx", "..xx", "..xx", "..xx"]


# ------------------------------------------------------------------ GNMT's penalties


def test_penalties():
    assert compute_length_penalty(1, 0.7) == pytest.approx(1.0)
    assert compute_length_penalty(7, 1.0) == pytest.approx(2.0)
    assert compute_length_penalty(100, 0.0) == 1.0
    weights = torch.tensor([[0.5, 0.4, 0.1], [0.7, 0.1, 0.2]])  # seen: 1.2 → 1, 0.5, 0.3
    want = 0.2 * (torch.tensor(0.5).log() + torch.tensor(0.3).log())
    torch.testing.assert_close(compute_coverage_penalty(weights), want)
    padded = torch.nn.functional.pad(weights, (0, 2))
    keep = torch.tensor([True, True, True, False, False])
    torch.testing.assert_close(compute_coverage_penalty(padded, keep), want)
    torch.testing.assert_close(compute_coverage_penalty(padded[None], keep[None]), want[None])


def test_the_order_of_steps():
    """Longest documents first, also where `longest` is a loose bound; the reverse of a slot is in its document."""
    lengths = torch.tensor([2, 0, 4, 1])
    here = Layout(torch.cat((torch.zeros(1), lengths.cumsum(0))).int(), 6, 7)
    order, rank, counts, places = order_steps(here)
    assert order.tolist() == [2, 0, 3, 1]
    assert rank.tolist() == [1, 3, 0, 2]
    assert counts.tolist() == [3, 2, 1, 1, 0, 0]
    assert places.tolist() == [1, 4, 0, 3, 5, 6, 2]
    assert PackedSteps(here).step_sizes == [3, 2, 1, 1]
    assert PackedSteps(here).step_order.tolist() == [2, 0, 6, 3, 1, 4, 5]
    assert get_reversed_slots(here).tolist() == [1, 0, 5, 4, 3, 2, 6]
