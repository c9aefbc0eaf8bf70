"""bf16 on a processor that reports AMX that does not work: oneDNN is kept from it in time, or one line says so."""

from __future__ import annotations

import os
import signal

import pytest
import torch

import formers
from formers import Error
from formers.nn import cpu_inference, cpu_kernels
from formers.training.executor import choose_dtype

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """A machine with AMX announced, and the answers of its trials."""
    answers: list[bool] = []
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    monkeypatch.delenv(cpu_inference.ISA_VARIABLE, raising=False)
    monkeypatch.setattr(cpu_inference, "is_bf16_fatal", lambda: answers.pop(0))
    for known in (cpu_inference.is_amx_broken, cpu_inference.disable_amx):
        known.cache_clear()
    yield answers
    for known in (cpu_inference.is_amx_broken, cpu_inference.disable_amx):
        known.cache_clear()


def test_tiles_that_work_are_used(machine):
    machine += [False]
    cpu_inference.check_cpu_bf16(torch.bfloat16, CPU)
    cpu_inference.check_cpu_bf16(torch.bfloat16, CPU)  # it is tried once
    assert cpu_inference.ISA_VARIABLE not in os.environ
    assert not machine


def test_others_are_left_alone(machine):
    for dtype, device in (
        (torch.float32, CPU),
        (torch.float16, CPU),
        (None, CPU),
        (torch.bfloat16, torch.device("meta")),
    ):
        cpu_inference.check_cpu_bf16(dtype, device)  # a trial would be one too many
    machine += [True, False]
    cpu_inference.check_cpu_bf16(torch.bfloat16, CPU)
    assert os.environ[cpu_inference.ISA_VARIABLE] == cpu_inference.ISA_WITHOUT_AMX
    assert not machine
    cpu_inference.check_cpu_bf16(torch.bfloat16, CPU)


@pytest.mark.parametrize("ask", [
    lambda f, path: f.to(None, torch.bfloat16),
    lambda f, path: f.freeze("bf16"),
    lambda f, path: formers.load(path, dtype=torch.bfloat16, device="cpu"),
    lambda f, path: choose_dtype("bf16", CPU),
])  # fmt: skip
def test_too_late_is_an_error(ask, machine, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    f = formers.build("gpt2", vocab=20, dim=8, layers=1, heads=2, context=8)
    formers.save(f, tmp_path / "model")
    machine += [True, True]
    with pytest.raises(Error, match="reports AMX") as error:
        ask(f, tmp_path / "model")
    assert f"{cpu_inference.ISA_VARIABLE}={cpu_inference.ISA_WITHOUT_AMX}" in str(error.value)
    assert cpu_inference.ISA_VARIABLE not in os.environ
    assert f.dtype == torch.float32


@pytest.mark.parametrize(("trials", "taken"), [([False], True), ([True, False], True), ([True, True], False)])
def test_eight_bits_by_onednn_where_it_does_no_harm(trials, taken, machine, monkeypatch):
    monkeypatch.setattr(cpu_inference, "is_saturating", lambda kernel: False)  # on any processor
    machine += trials
    for _ in range(2):  # the second asks nothing
        assert cpu_inference.can_use_onednn() == (taken and torch.backends.mkldnn.is_available())
    assert not machine


def test_a_trial_dies_alone(monkeypatch):
    assert not cpu_inference.is_bf16_fatal()  # conftest.py keeps it from tiles
    monkeypatch.setattr(torch, "mm", lambda *_: os.kill(os.getpid(), signal.SIGILL))
    assert cpu_inference.is_bf16_fatal()
    monkeypatch.setattr(torch, "mm", lambda *_: signal.pause())  # a child that hangs says nothing
    monkeypatch.setattr(cpu_kernels, "TRIAL_SECONDS", 0.05)
    assert not cpu_inference.is_bf16_fatal()
