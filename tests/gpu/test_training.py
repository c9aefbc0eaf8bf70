"""On a GPU: the loop, compiled and recorded, trains as on a CPU; a step that is not finite leaves no trace."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

import formers
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.training.distributed.process_group import ProcessGroup
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer
from tests.training.family_trainers import build_family_trainer, load_family_batches
from tests.training.toy_trainer import OBJECTIVE, STORE, NonFiniteObjective, build_toy_model

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
CUDA = ProcessGroup(device=torch.device("cuda"))
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic runs need it before the first product


def on_gpu(name, **more):
    """The same trainer on the GPU."""
    cpu = build_family_trainer(name)
    for part in cpu.model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    settings = {
        **{
            f: getattr(cpu.config, f)
            for f in ("steps", "batch_tokens", "accumulate", "seq_length", "lr", "warmup_steps")
        },
        **more,
    }
    gpu = build_family_trainer(name)
    for part in gpu.model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return cpu, Trainer(gpu.model.cuda(), gpu.objectives, TrainConfig(precision="fp32", **settings), CUDA)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "xlnet", "transformer_xl"])
def test_as_on_a_cpu(name):
    cpu, gpu = on_gpu(name)
    want = [r.loss for r in cpu.train(load_family_batches(cpu))]
    got = [r.loss for r in gpu.train(load_family_batches(gpu))]
    assert gpu.executor.is_compiled
    carried = name in ("xlnet", "transformer_xl")
    assert bool(gpu.executor.cuda_graphs) == (not carried)
    if not carried:
        assert all(one.graph is not None for one in gpu.executor.cuda_graphs.values()), "it was recorded"
    assert got == pytest.approx(want, abs=0.02)


def test_continues_from_its_state():
    def make():
        t = Trainer(
            build_toy_model().cuda(), [OBJECTIVE], TrainConfig(steps=16, batch_tokens=128, seq_length=16, lr=1e-2), CUDA
        )
        return t, lambda phase, position: load_batches(TokenSource(STORE, OBJECTIVE), 128, 0, position)

    whole, src = make()
    want = [r.loss for r in whole.train(src)]
    first, src = make()
    got = [r.loss for r in first.train(src, 8)]
    second, src = make()
    second.restore_state(*first.get_state())
    got += [r.loss for r in second.train(src)]
    assert got == pytest.approx(want, abs=0.05)


@pytest.mark.parametrize("kind", [math.nan, math.inf])
def test_what_is_not_finite_leaves_no_trace(kind):
    t = Trainer(build_toy_model(dropout=0.0).cuda(), [NonFiniteObjective({3, 4, 9}, kind)], TrainConfig(
        steps=14, batch_tokens=128, seq_length=16, lr=1e-2, max_bad_steps=3, compile=False), CUDA)  # fmt: skip
    assert t.executor.skips_on_device
    skipped, frozen = [], None
    for report in t.train(lambda phase, position: load_batches(TokenSource(STORE, OBJECTIVE), 128, 0, position)):
        groups = t.get_state()[0]
        now = {**{f"m{k}": v for k, v in groups["model"].items()}, **groups["optimizer"]}
        if report.is_skipped:
            skipped.append(report.step - 1)
            assert all(torch.equal(now[key], frozen[key]) for key in now)
        frozen = {key: value.clone() for key, value in now.items()}
    assert skipped == [3, 4, 9]


def test_a_run_on_a_gpu(tmp_path):
    text = [" ".join(np.random.default_rng(i).choice(["one", "two", "three", "four"], 200)) for i in range(40)]
    run = formers.pretrain(
        "gpt2", text, out=tmp_path / "run", model={"dim": 32, "layers": 2, "heads": 2, "context": 32, "ff": 64},
        train={"steps": 80, "batch_tokens": 512, "seq_length": 32, "workers": 2, "warmup_steps": 5, "lr": 5e-3},
        data={"vocab_size": 300},
    )  # fmt: skip
    assert run.score.loss < run.baseline.loss
    assert formers.load(tmp_path / "run" / "model").config.layers == 2


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "elmo"])
def test_deterministic_is_the_same_twice(family, tmp_path):
    text = [" ".join(str(i * j % 17) for i in range(40)) for j in range(60)]
    tables = {"train": {"steps": 8, "batch_tokens": 512, "deterministic": True}, "data": {"vocab_size": 300}}
    said: list[str] = []
    one, two = (
        formers.pretrain(family, text, out=tmp_path / f"{i}", device="cuda", say=said.append, **tables)
        for i in range(2)
    )
    for (name, a), b in zip(one.former.model.named_parameters(), two.former.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert sum(" s without" in words for words in said) == 2  # what it costs is said
