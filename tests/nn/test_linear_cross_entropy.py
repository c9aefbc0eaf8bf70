"""The fused loss over a vocabulary, its kernel run in numpy: losses and gradients against plain cross-entropy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from formers.nn import layers
from formers.nn import linear_cross_entropy as fused
from formers.nn.layers import is_slow_width, pad_outputs
from tests.nn import slow_triton


@pytest.fixture
def numpy_kernel(monkeypatch):
    found = slow_triton.load_kernels("linear_cross_entropy_triton")
    monkeypatch.setattr(fused, "load_kernels", lambda: found)
    monkeypatch.setattr(fused, "COLUMNS", 16)  # several blocks, the last one not full


def compute_plain(x, weight, bias, labels, smoothing):
    return F.cross_entropy(F.linear(x, weight, bias), labels, reduction="sum", label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "width", "piece"), [(5, 37, 1), (300, 64, 1), (3, 7, 2**29), (1, 130, 2**29)])
def test_losses_and_gradients(numpy_kernel, monkeypatch, rows, width, piece, with_bias, smoothing):
    monkeypatch.setattr(fused, "PIECE_BYTES", piece)
    torch.manual_seed(0)
    inputs = [torch.randn(rows, 8), torch.randn(width, 8), torch.randn(width) if with_bias else None]
    labels = torch.randint(0, width, (rows,))
    labels[::4] = -100
    results = []
    for compute in (lambda *a: fused.fused_loss(*a)[0], compute_plain):
        leaves = [None if t is None else t.clone().requires_grad_() for t in inputs]
        total = compute(*leaves, labels, smoothing)
        (total * 0.3).backward()
        results.append([total.detach(), *(t.grad for t in leaves if t is not None)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_huge_logits_do_not_overflow(numpy_kernel):
    x, weight = torch.tensor([[1.0], [-1.0]]), torch.tensor([[1e4], [-1e4], [0.0]])
    total, d_x, _, _ = fused.fused_loss(x, weight, None, torch.tensor([0, 0]), 0.0)
    assert total.item() == pytest.approx(2e4)
    torch.testing.assert_close(d_x, torch.tensor([[0.0], [-2e4]]))


def test_not_on_a_cpu_nor_without_gradients():
    x, weight = torch.randn(2, 4), torch.nn.Parameter(torch.randn(8192, 4))
    assert not fused.can_fuse_loss(x, weight)


def test_the_output_layer_is_padded_by_one_rule(numpy_kernel, monkeypatch):
    """Generation and the fused loss take widths from layers.py: with another multiple, the loss's rows are longer."""
    weight, bias = torch.randn(37, 8), torch.randn(37)
    assert [t.shape for t in pad_outputs(weight, bias)] == [(64, 8), (64,)]
    assert pad_outputs(weight[:3], None)[1] is None
    assert [is_slow_width(n) for n in (50257, 50304, 8, 63)] == [True, False, False, True]
    widths, mm = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, **more: widths.append(a.shape[1]) or mm(a, b, **more))
    monkeypatch.setattr(layers, "VOCAB_MULTIPLE", 40)
    fused.fused_loss(torch.randn(2, 8), weight, bias, torch.tensor([1, 2]), 0.0)
    assert widths == [40]
