"""On a GPU: steps replayed from a CUDA graph train like steps run one by one."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.batch import Batch
from formers.training.executor import GraphedStep

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
SIZES = {"vocab": 128, "context": 32, "dim": 64, "layers": 2, "heads": 4}
QUIET = {"dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0}


def train_steps(recorded, batches, **settings):
    model = formers.build("gpt2", seed=1, **SIZES, **settings).to("cuda").model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, capturable=True)

    def step(batch):
        loss = (model.logits(model(batch)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    run = GraphedStep(step, warmup=2) if recorded else step
    losses = [float(run(batch)) for batch in batches]
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


def test_as_without():
    torch.manual_seed(0)
    batches = [Batch.from_padded(torch.randint(0, 128, (4, 16), device="cuda")) for _ in range(6)]
    (got, weights), (want, expected) = train_steps(True, batches, **QUIET), train_steps(False, batches, **QUIET)
    assert got == pytest.approx(want, rel=1e-4)
    assert len(set(want)) == 6
    torch.testing.assert_close(weights, expected, atol=1e-3, rtol=1e-3)


def test_dropout_is_drawn_anew():
    batch = Batch.from_padded(torch.randint(0, 128, (4, 16), device="cuda"))
    model = formers.build("gpt2", seed=1, **SIZES, **QUIET | {"dropout": 0.5}).to("cuda").model.train()

    def step(batch):
        loss = (model.logits(model(batch)) ** 2).mean()
        loss.backward()
        return loss.detach()

    replay = GraphedStep(step, warmup=1)  # nothing is learned: only dropout differs
    assert len({float(replay(batch)) for _ in range(6)}) == 6


def test_another_shape_is_refused():
    batches = [Batch.from_padded(torch.randint(0, 128, (4, size), device="cuda")) for size in (16, 16, 16, 12)]
    with pytest.raises(formers.Error, match="recorded"):
        train_steps(True, batches, **QUIET)
