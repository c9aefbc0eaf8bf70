"""The fused kernels' arithmetic, run in numpy: outputs and gradients against plain attention in torch."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.batch import Batch
from formers.nn.attention import two_stream
from formers.nn.attention.dispatch import force_kernel
from formers.nn.attention.kernels import biased_flash, relative_flash
from formers.nn.attention.segment_memory import SegmentMemory
from tests.nn import slow_triton
from tests.nn.attention.kernels.biased_flash_cases import (
    CASES,
    accumulate_starts,
    compare_with_plain,
)


@pytest.fixture
def numpy_kernels(monkeypatch):
    found = slow_triton.load_kernels()
    monkeypatch.setattr(biased_flash, "load_kernels", lambda: found)
    for name in ("FORWARD_TILES", "SHIFTED_TILES", "QUERY_GRAD_TILES", "KEY_GRAD_TILES"):
        monkeypatch.setattr(biased_flash, name, (4, 8, 1, 1))  # blocks that documents do not fill
    relative = slow_triton.load_kernels("attention.kernels.relative_flash_triton")
    monkeypatch.setattr(relative_flash, "load_kernels", lambda: relative)
    for name in ("FORWARD_TILES", "QUERY_GRAD_TILES", "KEY_GRAD_TILES", "ENCODING_GRAD_TILES"):
        monkeypatch.setattr(relative_flash, name, (4, 1, 1))
    monkeypatch.setattr(relative_flash, "KEY_GRAD_TILES", (8, 1, 1))  # its blocks are its own
    monkeypatch.setattr(relative_flash, "TARGET_PROGRAMS", 32)  # documents in several parts


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("numpy_kernels")
def test_as_plain_attention(name, dropout):
    compare_with_plain(name, dropout)


@pytest.mark.parametrize("kernel", ["biased_flash", "relative_flash"])
@pytest.mark.parametrize("family", ["xlnet", "transfo-xl"])
@pytest.mark.usefixtures("numpy_kernels")
def test_models_as_by_the_dense_path(family, kernel):
    """Scores by distance, of XLNet in both streams."""
    sizes = {"vocab": 32, "dim": 32, "layers": 2, "heads": 2, "ff": 48, "dropout": 0.0}
    more = {"cutoffs": (8,), "same_length": False} if family == "transfo-xl" else {}
    model = formers.build(family, seed=1, **sizes, **more).model.train()
    keep = torch.arange(11) < torch.tensor([[11], [4], [7]])
    torch.manual_seed(0)
    batch = Batch.from_padded(torch.randint(2, 32, keep.shape), keep).replace(keep=None)
    if family == "xlnet":
        order = torch.cat([torch.randperm(n) for n in (11, 4, 7)])
        batch = batch.replace(order=order, segments=torch.randint(0, 3, order.shape))
    found, pull = [], torch.randn(22, 32)
    for name in (kernel, "dense"):
        with force_kernel(name):
            out = model(batch)
        grads = torch.autograd.grad(out, list(model.parameters()), pull, allow_unused=True, materialize_grads=True)
        found.append(torch.cat([out.detach().flatten(), *(g.flatten() for g in grads)]))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("numpy_kernels")
def test_dropout_is_even_and_independent():
    """One head, many pairs: the rate is right, and neighbours do not follow each other."""
    n = 128
    q = torch.zeros(n, 1, n)
    eye = torch.eye(n)[:, None]
    torch.manual_seed(1)
    out = biased_flash.biased_flash_attention(q, q, eye, (accumulate_starts([n]),) * 2, (n, n), 1.0, dropout=0.25)[:, 0]
    gone = (out == 0).float()
    assert abs(float(gone.mean()) - 0.25) < 0.02
    centred = gone - gone.mean()
    for shifted in (centred.roll(1, 0), centred.roll(1, 1), centred.roll((1, 1), (0, 1)), centred.T):
        assert abs(float((centred * shifted).mean()) / 0.1875) < 0.04
    assert float(gone.mean(0).std()) < 0.06
    assert float(gone.mean(1).std()) < 0.06


@pytest.mark.parametrize(
    ("family", "kernel", "asks_targets"),
    [
        ("xlnet", "biased_flash", False),
        ("xlnet", "biased_flash", True),
        ("xlnet", "relative_flash", False),
        ("transfo-xl", "biased_flash", False),
        ("transfo-xl", "relative_flash", False),
    ],
)
@pytest.mark.usefixtures("numpy_kernels")
def test_segments_with_a_memory_as_by_the_dense_path(family, kernel, asks_targets, monkeypatch):
    """Rows of one length with as many remembered states each, of XLNet with segments; its query stream at all places,
    or at the targets alone, as on a GPU."""
    if asks_targets:
        monkeypatch.setattr(two_stream, "choose_kernel", lambda call: "biased_flash")
    sizes = {"vocab": 32, "dim": 32, "layers": 2, "heads": 2, "ff": 48, "dropout": 0.0, "memory": 6}
    more = {"cutoffs": (8,), "same_length": False} if family == "transfo-xl" else {}
    model = formers.build(family, seed=1, **sizes, **more).model.train()
    torch.manual_seed(0)
    batches = [Batch.from_padded(torch.randint(2, 32, (3, 7))) for _ in range(2)]
    if family == "xlnet":
        orders = [torch.cat([torch.randperm(7).clamp(max=4) for _ in range(3)]) for _ in batches]
        chosen = torch.tensor([1, 5, 9, 12, 16]) if asks_targets else None
        batches = [
            batch.replace(order=order.clamp(min=0), segments=torch.randint(0, 3, (21,)), chosen=chosen)
            for batch, order in zip(batches, orders, strict=True)
        ]
    found, pull = [], torch.randn(21, 32)
    for name in (kernel, "dense"):
        memory = SegmentMemory(3, 6, reuse=4)
        if name == "dense":
            monkeypatch.undo()
        with force_kernel(name if name == "dense" else None):
            model(batches[0], memory=memory)  # the first segment, which has nothing before it
        with force_kernel(name):
            out = model(batches[1], memory=memory)
        grads = torch.autograd.grad(out, list(model.parameters()), pull, allow_unused=True, materialize_grads=True)
        found.append(torch.cat([out.detach().flatten(), *(g.flatten() for g in grads)]))
        assert memory.used_slots == 6
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
