"""AdamW with moments of 8 bits: close to AdamW, small, and the same bits after a restart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from formers import Error
from formers.training import adamw8bit
from formers.training.adamw8bit import BLOCK_SIZE, build_levels, dequantise, draw_dither, find_levels, quantise
from formers.training.distributed.process_group import ProcessGroup
from formers.training.optimizer import build_optimizer
from formers.training.runs.run import check_parallel_settings
from formers.training.train_config import TrainConfig
from tests.training.toy_trainer import build_toy_trainer, has_equal_weights, train_to_end


@pytest.mark.parametrize("is_signed", [True, False])
def test_numbers_reach_down_seven_decades(is_signed):
    """The published map: of each decade's 10 % to 100 %, evenly, twice as many as of the decade below."""
    levels = build_levels(is_signed, torch.device("cpu"))
    assert len(levels) == 255
    assert torch.equal(levels, levels.sort().values)
    assert float(levels[-1]) == 1.0
    assert float(levels[0]) == (-1.0 if is_signed else 0.0)
    positive = levels[levels > 0].numpy()
    counts = [int(((positive > 10.0 ** -(n + 1)) & (positive <= 10.0**-n)).sum()) for n in range(7)]
    assert counts == [(1 if is_signed else 2) * 2**n for n in reversed(range(7))]


def test_rounding_is_unbiased_and_no_further_than_the_next_number():
    g = torch.Generator().manual_seed(0)
    values = torch.randn(64, BLOCK_SIZE, generator=g) * torch.rand(64, 1, generator=g)
    levels = build_levels(True, torch.device("cpu"))
    mean = torch.zeros_like(values)
    for step in range(200):
        codes, scales = quantise(values, levels, draw_dither(values, 2, torch.tensor(float(step)), 0))
        assert codes.dtype == torch.uint8
        mean += dequantise(codes, scales, levels) / 200
    near = (mean - values).abs() / scales[:, None]
    assert float(near.max()) < 0.2 * float(levels.diff().max()), "the mean of many roundings is the value"
    again, _ = quantise(dequantise(codes, scales, levels), levels, draw_dither(values, 2, torch.tensor(7.0), 0))
    assert (again != codes).float().mean() < 1e-4, "a number of the list stays"


@pytest.mark.parametrize("is_signed", [True, False])
def test_levels_are_found_in_a_compiled_step_as_by_torch(is_signed):
    levels = build_levels(is_signed, torch.device("cpu"))
    just_above, just_below = (torch.nextafter(levels, torch.tensor(end)) for end in (2.0, -2.0))
    values = torch.cat((levels, just_above, just_below, torch.randn(1000), torch.tensor([-7.0, 0.0, 7.0])))
    compiled = torch.compile(find_levels, backend="eager", fullgraph=True)
    assert torch.equal(compiled(values, levels).long(), torch.bucketize(values, levels))


def test_dither_is_uniform_and_differs_by_step_and_place():
    like = torch.empty(512, BLOCK_SIZE)
    one, two = (draw_dither(like, 2, torch.tensor(step), 0) for step in (1.0, 2.0))
    assert 0 <= float(one.min()) < float(one.max()) < 1
    counts = torch.histc(one, 16, 0, 1) / one.numel()
    assert float((counts - 1 / 16).abs().max()) < 2e-3
    for a, b in (
        (one, two),
        (one[1:], one[:-1]),
        (one[:, 1:], one[:, :-1]),
        (one, draw_dither(like, 2, torch.tensor(1.0), 1)),
    ):
        assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 0.02
    assert torch.equal(draw_dither(like[:1], 2 + BLOCK_SIZE, torch.tensor(1.0), 0), one[1:2]), "pieces do not matter"


def test_places_are_multiplied_as_numbers_not_as_indices():
    """Inductor folds sums and products of an arange into index expressions, which triton computes with 32 bits: factors
    beyond them do not compile there. Operations on bits end such an expression."""
    graph = make_fx(lambda like: draw_dither(like, 2, torch.tensor(1.0), 1))(torch.empty(4, BLOCK_SIZE)).graph
    folded, indices = {"arange", "view", "add", "sub", "mul", "_to_copy"}, set()
    for node in graph.nodes:
        name = getattr(node.target, "overloadpacket", node).__name__ if node.op == "call_function" else ""
        if name == "arange" or (name in folded and indices & set(node.all_input_nodes)):
            factors = [number for number in node.args if isinstance(number, int)]
            assert all(abs(number) < 2**31 for number in factors), node.format_node()
            indices.add(node)
    assert indices, "places are counted"


def run_optimizer(name, steps=60, piece=None, monkeypatch=None):
    """Fit a linear map of more weights than stay in fp32; return the losses and the optimizer."""
    if piece is not None:
        monkeypatch.setattr(adamw8bit, "PIECE_SIZE", piece)
    torch.manual_seed(1)
    model = nn.Linear(70, 90)  # 6,300 weights: the last block is not full
    chosen = build_optimizer(name, model, 0.01, weight_decay=0.1)
    x = torch.randn(256, 70)
    want = x @ torch.randn(70, 90) * 0.3
    losses = []
    for _ in range(steps):
        loss = (model(x) - want).square().mean()
        chosen.zero_grad()
        loss.backward()
        chosen.step()
        losses.append(float(loss.detach()))
    return losses, chosen, model


def test_is_close_to_adamw(monkeypatch):
    exact, eight = run_optimizer("adamw")[0], run_optimizer("adamw8bit")[0]
    assert exact != eight
    assert np.abs(np.array(exact) - np.array(eight)).max() < 0.02 * exact[0]
    assert eight[-1] < 0.3 * eight[0]
    pieces = run_optimizer("adamw8bit", piece=4 * BLOCK_SIZE, monkeypatch=monkeypatch)[0]
    assert pieces == eight, "the size of the pieces changes nothing"


def test_weights_decay_as_in_adamw():
    """With gradients of zero only the decay is left."""
    for name in ("adamw", "adamw8bit"):
        model = nn.Linear(80, 80)
        before = model.weight.detach().clone()
        chosen = build_optimizer(name, model, 0.1, weight_decay=0.5)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        chosen.step()
        torch.testing.assert_close(model.weight.detach(), before * (1 - 0.1 * 0.5))


def test_a_rare_gradient_makes_no_endless_step():
    """A weight whose gradients are a millionth of its neighbours' may move on by the noise of rounding, and no more."""
    model = nn.Linear(80, 80, bias=False)
    before, slope = model.weight.detach().clone(), torch.ones(80, 80)
    slope[:, ::2] = 1e-6
    slope[:, ::4] = 1e-7
    chosen = build_optimizer("adamw8bit", model, 1e-3, weight_decay=0.0, eps=1e-12)
    for step in range(20):
        model.weight.grad = slope * (step < 10)
        chosen.step()
    assert float((model.weight.detach() - before).abs().max()) < 0.15


def test_state_takes_two_bytes_a_weight():
    _, chosen, model = run_optimizer("adamw8bit", steps=2)
    state = chosen.state[model.weight]
    size = sum(t.nbytes for t in state.values())
    assert size <= 2.2 * model.weight.numel()
    assert {t.dtype for name, t in state.items() if name.endswith("codes")} == {torch.uint8}
    small = chosen.state[model.bias]
    assert {t.dtype for t in small.values()} == {torch.float32}, "small tensors keep fp32"
    exact = TrainConfig(steps=1)
    assert TrainConfig(steps=1, optimizer="adamw8bit").bytes_per_parameter < exact.bytes_per_parameter == 12


def test_restored_state_keeps_its_codes():
    _, chosen, model = run_optimizer("adamw8bit", steps=3)
    saved = chosen.state_dict()
    fresh = build_optimizer("adamw8bit", model, 0.01, weight_decay=0.1)
    fresh.load_state_dict(saved)
    for p in model.parameters():
        for name, value in chosen.state[p].items():
            assert fresh.state[p][name].dtype == value.dtype, name
            assert torch.equal(fresh.state[p][name], value), name


def test_a_trainer_continues_bit_for_bit(monkeypatch):
    monkeypatch.setattr(adamw8bit, "MIN_QUANTISED", 64)  # the toy's weights are small
    whole, first, second = (build_toy_trainer(steps=12, optimizer="adamw8bit") for _ in range(3))
    told = [r.loss for r in train_to_end(whole)]
    train_to_end(first, 5)
    groups, state = first.get_state()
    assert any(t.dtype == torch.uint8 for t in groups["optimizer"].values())
    saved = {name: {k: t.clone() for k, t in group.items()} for name, group in groups.items()}
    train_to_end(second, 2)
    second.restore_state(saved, state)
    assert [r.loss for r in train_to_end(second)] == told[5:]
    assert has_equal_weights(whole, second)


def test_the_loss_curve_of_a_model_is_close(monkeypatch):
    monkeypatch.setattr(adamw8bit, "MIN_QUANTISED", 64)
    exact, eight = (
        np.array([r.loss for r in train_to_end(build_toy_trainer(dropout=0.0, optimizer=name))])
        for name in ("adamw", "adamw8bit")
    )
    assert np.abs(exact - eight).max() < 0.15
    assert np.abs(exact - eight).mean() < 0.05
    assert eight[-1] < 0.5


def test_shards_are_refused():
    train = TrainConfig(steps=1, accumulate=2, optimizer="adamw8bit", parallel="fsdp")
    with pytest.raises(Error, match="adamw8bit keeps its moments by blocks"):
        check_parallel_settings(train, ProcessGroup(size=2))
    check_parallel_settings(TrainConfig(steps=1, accumulate=2, optimizer="adamw8bit"), ProcessGroup(size=2))
