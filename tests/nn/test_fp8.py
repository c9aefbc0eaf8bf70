"""Linear layers in 8-bit floats, against the casts written out in numpy; torch multiplies them on a CPU as well."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import formers
from formers import Error
from formers.nn import fp8
from formers.nn.fp8 import Fp8Linear, cast_to_fp8, check_fp8, use_fp8_linear
from formers.training.distributed.process_group import ProcessGroup
from formers.training.runs.run import check_parallel_settings
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer
from tests.training.toy_trainer import OBJECTIVE, train_to_end

CPU = torch.device("cpu")


def round_to_float(x, mantissa, lowest, largest):
    """Round to a float of some mantissa bits whose lowest exponent is given, to even where two are as near."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 1e-300))), lowest)
    unit = 2.0 ** (exponent - mantissa)
    return np.clip(np.round(x / unit) * unit, -largest, largest)


def emulate_cast(x, dtype):
    """Scale, round and scale back, in double precision."""
    mantissa, lowest, largest = {torch.float8_e4m3fn: (3, -6, 448.0), torch.float8_e5m2: (2, -14, 57344.0)}[dtype]
    x = x.detach().double().numpy()
    scale = max(np.abs(x).max() / largest, 1e-12)
    return round_to_float(x / scale, mantissa, lowest, largest) * scale


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_cast_uses_the_whole_range(dtype):
    x = torch.randn(40, 32, generator=torch.Generator().manual_seed(0)) * 1e-3
    codes, scale = cast_to_fp8(x, dtype)
    assert codes.dtype == dtype
    assert float(codes.float().abs().max()) == torch.finfo(dtype).max
    np.testing.assert_allclose(codes.double().numpy() * float(scale), emulate_cast(x, dtype), rtol=1e-5, atol=1e-9)
    zeros, scale = cast_to_fp8(torch.zeros(4, 4), dtype)
    assert float(zeros.float().abs().max()) == 0
    assert float(scale) > 0


@pytest.mark.parametrize("rows", [32, 21])
def test_products_are_those_of_the_casts(rows):
    torch.manual_seed(0)
    layer = nn.Linear(48, 32)
    layer.__class__ = Fp8Linear
    x = torch.randn(rows, 48, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    pull = torch.randn(rows, 32).bfloat16()
    y.backward(pull)
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    x8, w8, g8 = emulate_cast(x, e4m3), emulate_cast(layer.weight, e4m3), emulate_cast(pull, e5m2)
    bias = layer.bias.detach().double().numpy()
    np.testing.assert_allclose(y.detach().double().numpy(), x8 @ w8.T + bias, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(layer.weight.grad.numpy(), g8.T @ x8, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(x.grad.numpy(), g8 @ w8, rtol=0.02, atol=0.01)
    np.testing.assert_allclose(layer.bias.grad.numpy(), pull.double().sum(0).numpy(), rtol=0.02, atol=0.05)
    exact = x.detach().double().numpy() @ layer.weight.detach().double().numpy().T + bias
    assert 0.001 < np.abs(y.detach().double().numpy() - exact).max() < 0.2, "it is not the exact product, and near it"


def test_without_gradients_it_is_a_linear_layer():
    layer = nn.Linear(32, 32)
    x = torch.randn(4, 32)
    want = layer(x)
    layer.__class__ = Fp8Linear
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert torch.equal(layer(x), want)
    assert torch.equal(layer.eval()(x), want)


def test_only_linear_layers_of_blocks_change():
    model = formers.build("t5", vocab=64, dim=32, layers=2, heads=2, head_dim=16, ff=64).model
    names = set(model.state_dict())
    count = use_fp8_linear(model)
    found = {name for name, part in model.named_modules() if isinstance(part, Fp8Linear)}
    assert len(found) == count == 2 * 4 + 2 * 7  # qkv, o, up, down; the decoder's cross attention has q, kv, o
    assert all(".blocks." in name for name in found)
    assert set(model.state_dict()) == names
    odd = formers.build("gpt2", vocab=64, context=8, dim=24, layers=1, heads=2).model
    assert use_fp8_linear(odd) == 0


def build_trainer(**settings):
    """Build a trainer of a GPT-2 whose sides are multiples of 16."""
    rates = dict.fromkeys(("dropout", "attention_dropout", "embed_dropout"), 0.0)
    model = formers.build("gpt2", vocab=30, context=16, dim=32, layers=2, heads=2, init=0.1, **rates).model
    base = {"steps": 40, "lr": 1e-2, "warmup_steps": 5, "batch_tokens": 128, "seq_length": 16, "schedule": "wsd"}
    return Trainer(model, [OBJECTIVE], TrainConfig(**{**base, **settings}))


def test_a_model_learns_as_in_bf16(monkeypatch):
    monkeypatch.setattr(fp8, "has_fp8", lambda device: True)
    half = [r.loss for r in train_to_end(build_trainer(precision="bf16"))]
    t = build_trainer(precision="fp8")
    eight = [r.loss for r in train_to_end(t)]
    assert eight != half
    assert np.abs(np.array(eight) - np.array(half)).max() < 0.15
    assert all(p.dtype == torch.float32 for p in t.model.parameters())


def test_it_is_refused_where_there_is_none(monkeypatch):
    with pytest.raises(Error, match="cpu does not support 8-bit floats. --train.precision bf16"):
        check_fp8(CPU)
    with pytest.raises(Error, match="8-bit floats"):
        build_trainer(precision="fp8")
    monkeypatch.setattr(fp8, "has_fp8", lambda device: True)
    model = formers.build("gpt2", vocab=30, context=16, dim=24, layers=1, heads=2).model
    with pytest.raises(Error, match="no layer of this model can compute in 8-bit floats"):
        Trainer(model, [OBJECTIVE], TrainConfig(steps=1, precision="fp8"))


def test_shards_are_refused():
    with pytest.raises(Error, match="fp8 does not support sharded weights"):
        check_parallel_settings(
            TrainConfig(steps=1, accumulate=2, precision="fp8", parallel="fsdp"), ProcessGroup(size=2)
        )
