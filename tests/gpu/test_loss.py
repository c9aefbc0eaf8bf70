"""On a GPU: the loss that keeps no logits, against plain cross-entropy in fp32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import formers
from formers.batch import Batch
from formers.nn import linear_cross_entropy as fused
from formers.objectives.token_losses import compute_token_loss

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "width"), [(513, 50257), (4000, 30522), (100, 4096)])
def test_loss_and_gradients(rows, width, smoothing, monkeypatch):
    monkeypatch.setattr(fused, "PIECE_BYTES", 2**26)  # several pieces
    torch.manual_seed(0)
    x = torch.randn(rows, 64, device="cuda")
    weight, bias = torch.randn(width, 64, device="cuda") * 0.3, torch.randn(width, device="cuda")
    labels = torch.randint(0, width, (rows,), device="cuda")
    labels[::5] = -100
    results = []
    for is_fused in (True, False):
        leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
        if is_fused:
            total = fused.linear_cross_entropy(*leaves, labels, smoothing)
        else:
            total = F.cross_entropy(F.linear(*leaves), labels, reduction="sum", label_smoothing=smoothing)
        (total / rows).backward()
        results.append([total.detach(), *(t.grad for t in leaves)])
    for got, want in zip(*results, strict=True):
        assert float((got - want).norm() / want.norm()) < 1e-2


@pytest.mark.parametrize(("family", "part"), [("gpt2", "lm"), ("bert", "mlm")])
def test_models_take_it_and_agree(family, part, monkeypatch):
    sizes = {"vocab": 5000, "dim": 64, "layers": 2, "heads": 4, "dropout": 0.0, "attention_dropout": 0.0}
    f = formers.build(family, head=part, seed=1, **sizes, **({"embed_dropout": 0.0} if family == "gpt2" else {}))
    model = f.to("cuda").model.train()
    ids = torch.randint(5, 5000, (4, 32))
    batch = Batch.from_padded(ids).replace(labels=ids.flatten()).to("cuda")
    calls, results = [], []
    loss = fused.linear_cross_entropy
    monkeypatch.setattr("formers.model.linear_cross_entropy", lambda *a: calls.append(1) or loss(*a))
    for can_fuse in (True, False):
        if not can_fuse:
            monkeypatch.setattr("formers.model.can_fuse_loss", lambda x, weight: False)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            total, count = compute_token_loss(model, batch, part)
        grads = torch.autograd.grad(total / count, list(model.parameters()), allow_unused=True, materialize_grads=True)
        results.append((total.detach(), torch.cat([g.flatten().float() for g in grads])))
    assert len(calls) == 1
    for got, want in zip(*results, strict=True):
        assert float((got - want).norm() / want.norm()) < 2e-2
