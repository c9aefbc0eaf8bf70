"""The projected LSTM: one packed loop against a plain one, forward and backward, in every form it runs in."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from formers.batch import Layout
from formers.nn.recurrent import projected_lstm
from formers.nn.recurrent.convolution import CharacterCNN
from formers.nn.recurrent.projected_lstm import BidirectionalSteps, LSTMState, ProjectedLSTM

STARTS = [0, 3, 3, 8, 10, 11]


def make_layout(starts=STARTS, longest=6):
    return Layout(torch.tensor(starts, dtype=torch.int32), longest, starts[-1])


def build_lstm(**clips):
    lstm = ProjectedLSTM(4, 6, 3, **clips).double()
    g = torch.Generator().manual_seed(1)
    for parameter in lstm.parameters():
        torch.nn.init.normal_(parameter, generator=g)
    return lstm


def run_plainly(lstm, x, starts, h0=None, c0=None):
    """Document by document, direction by direction, step by step."""
    sides, last = [], []
    for way in (0, 1):
        found = {}
        for row, (low, high) in enumerate(pairwise(starts)):
            h = x.new_zeros(3) if h0 is None else h0[way, row]
            c = x.new_zeros(6) if c0 is None else c0[way, row]
            for t in range(low, high) if way == 0 else range(high - 1, low - 1, -1):
                j, i, f, o = (torch.cat((x[t], h)) @ lstm.weight[way] + lstm.bias[way]).chunk(4)
                c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
                c = c.clamp(-lstm.cell_clip, lstm.cell_clip)
                h = ((torch.sigmoid(o) * torch.tanh(c)) @ lstm.project[way]).clamp(-lstm.clip, lstm.clip)
                found[t] = h
            last.append((h, c))
        sides.append(torch.stack([found[t] for t in range(len(x))]))
    return torch.cat(sides, -1), last


@pytest.mark.parametrize("clips", [{}, {"cell_clip": 0.5, "clip": 0.4}, {"cell_clip": 0.5}, {"clip": 0.4}])
def test_forward_and_backward(clips):
    lstm, steps = build_lstm(**clips), BidirectionalSteps(make_layout())
    x = torch.randn(11, 4, dtype=torch.double, requires_grad=True)
    leaves, factors = [x, *lstm.parameters()], torch.randn(11, 6, dtype=torch.double)
    got, (want, _) = steps.join_directions(lstm(steps.split_directions(x), steps)), run_plainly(lstm, x, STARTS)
    torch.testing.assert_close(got, want)
    if "clip" in clips:
        assert (got.abs() == 0.4).any()
    ours = torch.autograd.grad((got * factors).sum(), leaves)
    theirs = torch.autograd.grad((want * factors).sum(), leaves)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_the_states():
    lstm, steps = build_lstm(cell_clip=0.7, clip=0.5), BidirectionalSteps(make_layout())
    x = torch.randn(11, 4, dtype=torch.double)
    h, c = (torch.randn(2, 5, n, dtype=torch.double, requires_grad=True) for n in (3, 6))

    def run(h, c):
        start = [s.index_select(1, steps.document_order) for s in (h, c)]
        weights = (lstm.weight, lstm.bias, lstm.project)
        found = projected_lstm.run_recurrence(
            steps.split_directions(x), *weights, *start, steps.step_counts, 0.7, 0.5, True
        )
        return tuple(s.index_select(1, steps.document_rank) for s in found[1:3])

    got = run(h, c)
    _, last = run_plainly(lstm, x, STARTS, h, c)
    for part in (0, 1):
        want = torch.stack([pair[part] for pair in last]).view(2, 5, -1)
        torch.testing.assert_close(got[part], want)
        torch.testing.assert_close(
            torch.autograd.grad(got[part].sin().sum(), (h, c), retain_graph=True),
            torch.autograd.grad(want.sin().sum(), (h, c), retain_graph=True),
        )
    assert torch.equal(got[0][:, 1], h[:, 1])  # an empty document leaves its state as it was


def test_without_a_backward_pass_nothing_is_kept(monkeypatch):
    lstm, steps = build_lstm(), BidirectionalSteps(make_layout())
    x = steps.split_directions(torch.randn(11, 4, dtype=torch.double))
    with_gradient = lstm(x, steps)
    assert with_gradient.requires_grad
    for rows in (1, 4, 512):  # the gates of so many tokens at once
        monkeypatch.setattr(projected_lstm, "GATE_BLOCK_TOKENS", rows)
        with torch.no_grad():
            torch.testing.assert_close(lstm(x, steps), with_gradient)
    weights = (lstm.weight, lstm.bias, lstm.project)
    zeros = x.new_zeros(2, 5, 3), x.new_zeros(2, 5, 6)
    with torch.no_grad():
        *_, gates, cells = projected_lstm.run_recurrence(x, *weights, *zeros, steps.step_counts, 1.0, 1.0, False)
    assert gates.numel() == cells.numel() == 0


def test_the_operation_is_well_formed():
    lstm, steps = build_lstm(cell_clip=0.5, clip=0.4), BidirectionalSteps(make_layout())
    x = steps.split_directions(torch.randn(11, 4, dtype=torch.double)).requires_grad_()
    given = x, lstm.weight, lstm.bias, lstm.project, x.new_zeros(2, 5, 3), x.new_zeros(2, 5, 6), steps.step_counts
    torch.library.opcheck(projected_lstm.run_recurrence, (*given, 0.5, 0.4, True))
    torch.library.opcheck(
        projected_lstm.run_recurrence, (*given, 0.5, 0.4, False), test_utils=("test_schema", "test_faketensor")
    )


def test_steps_put_the_longest_first_and_come_back():
    steps = BidirectionalSteps(make_layout())
    assert steps.step_counts.tolist() == [4, 3, 2, 1, 1, 0]  # nobody has a sixth token
    assert steps.document_order.tolist() == [2, 0, 3, 4, 1]
    x = torch.arange(11.0)[:, None]
    split = steps.split_directions(x)
    assert split[0, :4, 0].tolist() == [3, 0, 8, 10]  # the first tokens, and from the other side the last ones
    assert split[1, :4, 0].tolist() == [7, 2, 9, 10]
    assert torch.equal(steps.join_directions(split), x.repeat(1, 2))


def test_half_precision_keeps_its_cells_exact():
    lstm, steps, state = build_lstm(cell_clip=3.0, clip=3.0), BidirectionalSteps(make_layout()), LSTMState()
    x = torch.randn(11, 4, dtype=torch.double)
    want, _ = run_plainly(lstm, x, STARTS)
    half = lstm.to(torch.bfloat16)
    got = steps.join_directions(half(steps.split_directions(x.bfloat16()), steps, state))
    assert got.dtype == torch.bfloat16
    assert state.layers[0][1].dtype == torch.float32
    assert (got.double() - want).norm() / want.norm() < 0.03
    got.sum().backward()
    assert all(p.grad.isfinite().all() for p in half.parameters())


def test_under_autocast():
    lstm, steps = build_lstm().float(), BidirectionalSteps(make_layout())
    x = torch.randn(11, 4)
    with torch.autocast("cpu", torch.bfloat16):
        got = lstm(steps.split_directions(x.bfloat16()), steps)
        got.sum().backward()
    assert got.dtype == torch.bfloat16
    assert lstm.weight.grad.dtype == torch.float32


def test_characters_once_and_without_their_padding():
    cnn = CharacterCNN(30, 4, ((1, 3), (4, 5)), 1, 6).double()
    for parameter in cnn.parameters():
        torch.nn.init.normal_(parameter)
    ids = torch.full((6, 20), 29)
    for row, word in enumerate(([1, 2, 3], [4], [1, 2, 3], [5, 6, 7, 8, 9, 29, 29, 2], [], [0, 0, 1])):
        ids[row, : len(word)] = torch.tensor(word, dtype=torch.long)
    words, _ = cnn.deduplicate_words(ids)
    assert words.shape == (5, 8 + 4)
    table = torch.cat((torch.zeros(1, 4, dtype=torch.double), cnn.character.weight[1:]))
    x = table[ids].transpose(1, 2)
    x = torch.relu(torch.cat([filters(x).max(-1).values for filters in cnn.filters], -1))
    gate = torch.sigmoid(cnn.highways[0].gate(x))
    want = cnn.project(gate * torch.relu(cnn.highways[0].transform(x)) + (1 - gate) * x)
    torch.testing.assert_close(cnn(ids), want)
    factors = torch.randn_like(want)
    leaves = list(cnn.parameters())
    ours, theirs = (torch.autograd.grad((out * factors).sum(), leaves) for out in (cnn(ids), want))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    full = torch.randint(1, 29, (3, 20))  # no padding to leave out
    assert cnn.deduplicate_words(full)[0].shape == (3, 20)
