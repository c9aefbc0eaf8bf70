"""The loss of tokens against torch's own, and its gradient."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

import formers
from formers.batch import IGNORE_INDEX, Batch
from formers.objectives.causal import CausalLM
from formers.objectives.token_losses import compute_token_loss
from tests.objectives.toys import draw_text


def test_loss():
    f = formers.build("gpt2", vocab=20, context=8, dim=8, layers=1, heads=2, init=0.5)
    asked = CausalLM(4).corrupt(draw_text([4], low=5), 0)
    asked = asked.replace(ids=asked.ids % 20, labels=np.where(asked.labels < 0, IGNORE_INDEX, asked.labels % 20)).to(
        "cpu"
    )
    total, count = compute_token_loss(f.model, asked, "lm")
    logits = f.logits(asked.ids[None])[0]
    assert count == 3
    torch.testing.assert_close(total, F.cross_entropy(logits[:3], asked.ids[1:], reduction="sum"))
    named = CausalLM(4).loss(f.model, asked)
    assert list(named) == ["lm"]
    torch.testing.assert_close(named["lm"][0], total)


def test_loss_gradcheck():
    f = formers.build("bert", head="mlm", vocab=9, context=6, dim=4, layers=1, heads=2, ff=6, init=0.5)
    f.to(dtype=torch.float64)
    batch = Batch(
        torch.tensor([2, 5, 4, 3]), torch.tensor([0, 4], dtype=torch.int32), 4,
        chosen=torch.tensor([2, 1, 0]), labels=torch.tensor([7, 5, IGNORE_INDEX]),
    )  # fmt: skip
    weight = f.model.body.blocks[0].attn.qkv.weight

    def loss(value):
        total, count = torch.func.functional_call(
            _Loss(f.model), {"model.body.blocks.0.attn.qkv.weight": value}, (batch,)
        )
        return total / count

    assert torch.autograd.gradcheck(loss, (weight.detach().requires_grad_(),))


class _Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return compute_token_loss(self.model, batch, "mlm")
