"""The fused loss over a vocabulary, its kernel run in numpy: losses and gradients against plain cross-entropy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import formers
from formers.batch import Batch
from formers.nn import layers
from formers.nn import linear_cross_entropy as fused
from formers.nn.layers import is_slow_width, pad_outputs
from formers.objectives.token_losses import compute_token_loss
from tests.nn import slow_triton


@pytest.fixture
def numpy_kernel(monkeypatch):
    found = slow_triton.load_kernels("linear_cross_entropy_triton")
    monkeypatch.setattr(fused, "load_kernels", lambda: found)
    monkeypatch.setattr(fused, "overwrite_by_torch", fused.overwrite_by_kernel)
    monkeypatch.setattr(fused, "COLUMNS", 16)  # several blocks, the last one not full


def compute_plain(x, weight, bias, labels, smoothing):
    return F.cross_entropy(F.linear(x, weight, bias), labels, reduction="sum", label_smoothing=smoothing)


def compare_with_plain(rows, width, with_bias, smoothing):
    """Compare losses and gradients, a quarter of the labels ignored, with those of plain cross-entropy."""
    torch.manual_seed(0)
    inputs = [torch.randn(rows, 8), torch.randn(width, 8), torch.randn(width) if with_bias else None]
    labels = torch.randint(0, width, (rows,))
    labels[min(1, rows - 1) :: 4] = -100  # of a single row, all
    results = []
    for compute in (lambda *a: fused.fused_loss(*a)[0], compute_plain):
        leaves = [None if t is None else t.clone().requires_grad_() for t in inputs]
        total = compute(*leaves, labels, smoothing)
        (total * 0.3).backward()
        results.append([total.detach(), *(t.grad for t in leaves if t is not None)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "width", "piece"), [(5, 37, 128), (300, 64, 128), (3, 7, 512), (1, 130, 512)])
def test_losses_and_gradients(numpy_kernel, monkeypatch, rows, width, piece, with_bias, smoothing):
    monkeypatch.setattr(fused, "CPU_PIECE_ROWS", piece)
    compare_with_plain(rows, width, with_bias, smoothing)


def test_huge_logits_do_not_overflow(numpy_kernel):
    x, weight = torch.tensor([[1.0], [-1.0]]), torch.tensor([[1e4], [-1e4], [0.0]])
    total, d_x, _, _ = fused.fused_loss(x, weight, None, torch.tensor([0, 0]), 0.0)
    assert total.item() == pytest.approx(2e4)
    torch.testing.assert_close(d_x, torch.tensor([[0.0], [-2e4]]))


def test_on_a_cpu_in_bf16_and_with_gradients_only():
    x, weight = torch.randn(2, 4), torch.nn.Parameter(torch.randn(8192, 4))
    assert not fused.can_fuse_loss(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert fused.can_fuse_loss(x, weight)
        assert not fused.can_fuse_loss(x, torch.nn.Parameter(torch.randn(100, 4)))
        with torch.no_grad():
            assert not fused.can_fuse_loss(x, weight)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(5, 37), (300, 64), (1, 130), (513, 100)])
def test_pieces_on_a_cpu(monkeypatch, rows, width, with_bias, smoothing):
    """Losses and gradients of several pieces, the last one not full, in float32."""
    monkeypatch.setattr(fused, "CPU_PIECE_ROWS", 4)
    compare_with_plain(rows, width, with_bias, smoothing)


def test_a_model_trained_in_bf16_on_a_cpu_takes_it_and_agrees(monkeypatch):
    sizes = {"vocab": 5000, "dim": 64, "layers": 2, "heads": 4, "dropout": 0.0, "attention_dropout": 0.0}
    model = formers.build("gpt2", head="lm", seed=1, embed_dropout=0.0, **sizes).model.train()
    ids = torch.randint(5, 5000, (4, 32))
    batch = Batch.from_padded(ids).replace(labels=ids.flatten())
    calls, results, loss = [], [], fused.linear_cross_entropy
    monkeypatch.setattr("formers.model.linear_cross_entropy", lambda *a: calls.append(1) or loss(*a))
    for in_bf16 in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
            total, count = compute_token_loss(model, batch, "lm")
        grads = torch.autograd.grad(total / count, list(model.parameters()), allow_unused=True, materialize_grads=True)
        results.append((total.detach(), torch.cat([g.flatten().float() for g in grads])))
    assert len(calls) == 1
    for got, want in zip(*results, strict=True):
        assert float((got - want).norm() / want.norm()) < 2e-2


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
