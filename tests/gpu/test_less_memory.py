"""On a GPU: 8-bit moments, 8-bit floats, and recomputed blocks that are compiled one by one train as without them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import formers
from formers.nn.fp8 import Fp8Linear, has_fp8
from formers.objectives.causal import CausalLM
from formers.training.distributed.process_group import ProcessGroup
from formers.training.optimizer import build_optimizer
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer
from tests.training.toy_trainer import load_toy_batches

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
CUDA = ProcessGroup(device=torch.device("cuda"))
QUIET = dict.fromkeys(("dropout", "attention_dropout", "embed_dropout"), 0.0)
CONFIG = TrainConfig(steps=8, lr=1e-3, warmup_steps=2, batch_tokens=512, seq_length=128)


def train_losses(family, **settings):
    """Train a small model of four layers; return the losses and the trainer."""
    sizes = {"vocab": 30, "dim": 64, "layers": 4, "heads": 2, "init": 0.1}
    sizes |= {} if family == "bloom" else {"context": 128, **QUIET}
    model = formers.build(family, **sizes).model.cuda()
    t = Trainer(model, [CausalLM(128)], dataclasses.replace(CONFIG, **settings), CUDA)
    return [r.loss for r in t.train(load_toy_batches(t))], t


@pytest.mark.parametrize("family", ["gpt2", "bloom"])
def test_recomputed_blocks_are_compiled(family):
    want, _ = train_losses(family, compile=False)
    for recompute in (False, True):
        got, t = train_losses(family, compile="blocks", activation_checkpointing=recompute)
        assert t.executor.is_compiled
        assert got == pytest.approx(want, abs=0.02)


def test_8bit_moments_as_on_a_cpu():
    def move(device):
        torch.manual_seed(0)
        model = nn.Linear(300, 200).to(device)  # the last block is not full
        chosen = build_optimizer("adamw8bit", model, 1e-2)
        g = torch.Generator().manual_seed(1)
        for _ in range(5):
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=g).to(device)
            chosen.step()
        return model.weight.detach().cpu()

    torch.testing.assert_close(move("cuda"), move("cpu"), atol=1e-3, rtol=0)
    exact, _ = train_losses("gpt2", compile="blocks")
    eight, _ = train_losses("gpt2", compile="blocks", optimizer="adamw8bit")
    assert eight == pytest.approx(exact, abs=0.05)


@pytest.mark.skipif(not (torch.cuda.is_available() and has_fp8(torch.device("cuda"))), reason="no 8-bit floats")
def test_8bit_floats_as_in_bf16():
    torch.manual_seed(0)
    layer, x = nn.Linear(256, 128).cuda(), torch.randn(96, 256, device="cuda", requires_grad=True)
    found = []
    for kind in (nn.Linear, Fp8Linear):
        layer.__class__, layer.weight.grad, x.grad = kind, None, None
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x)
        y.float().square().sum().backward()
        found.append([t.detach().float() for t in (y, layer.weight.grad, x.grad)])
    for exact, eight in zip(*found, strict=True):
        assert float((exact - eight).norm() / exact.norm()) < 0.1
    half, _ = train_losses("gpt2", precision="bf16")
    eight, _ = train_losses("gpt2", precision="fp8")
    assert eight != half
    assert np.abs(np.array(eight) - np.array(half)).max() < 0.1
