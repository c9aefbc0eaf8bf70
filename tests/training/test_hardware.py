"""Free memory of the machine or its container, and the limit that follows it."""

from __future__ import annotations

import resource
import sys
import time

import pytest
import torch

from formers.training import hardware
from formers.training.hardware import get_free_memory, limit_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and cgroups")
CPU, FREE = torch.device("cpu"), 50 * 2**20


def get_limit():
    return resource.getrlimit(resource.RLIMIT_DATA)


def make_container(folder, monkeypatch, limit):
    """4,000 bytes are used, 3,000 of them for cached files."""
    (folder / "most").write_text(f"{limit}\n")
    (folder / "used").write_text("4000\n")
    (folder / "memory.stat").write_text("anon 1000\nold 1000\nnew 2000\n")
    monkeypatch.setattr(hardware, "CGROUPS", [(str(folder), "most", "used", ("old", "new"))])


def test_a_container_can_have_less_than_its_machine(tmp_path, monkeypatch):
    make_container(tmp_path, monkeypatch, FREE + 1000)
    assert get_free_memory() == FREE


def test_a_container_without_a_limit_has_its_machine(tmp_path, monkeypatch):
    make_container(tmp_path, monkeypatch, "max")
    assert get_free_memory() > FREE


def test_nothing_is_limited_where_free_memory_is_unknown(tmp_path, monkeypatch):
    make_container(tmp_path, monkeypatch, "not a number")
    before = get_limit()
    with limit_memory(CPU):
        assert get_free_memory() is None
        assert get_limit() == before


def test_the_limit_of_before_is_restored():
    before = get_limit()
    first, second = limit_memory(CPU), limit_memory(CPU)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert get_limit() != before
    second.__exit__(None, None, None)
    assert get_limit() == before


def test_a_system_that_refuses_a_limit_has_none(monkeypatch):
    def refuse(*_):
        raise OSError("not allowed")

    monkeypatch.setattr(hardware, "read_bytes", refuse)
    monkeypatch.setattr(hardware, "get_free_memory", lambda: FREE)
    before = get_limit()
    with limit_memory(CPU):
        assert get_limit() == before


def test_the_limit_follows_what_is_free(monkeypatch):
    free = [FREE]
    monkeypatch.setattr(hardware, "get_free_memory", lambda: free[0])
    monkeypatch.setattr(hardware, "LIMIT_SECONDS", 0.01)
    with limit_memory(CPU):
        low, _ = get_limit()
        with pytest.raises(RuntimeError, match="allocate"):
            torch.ones(FREE)
        free[0], deadline = 50 * FREE, time.monotonic() + 10
        while (high := get_limit()[0]) < low + 20 * FREE and time.monotonic() < deadline:
            time.sleep(0.01)
        assert high >= low + 20 * FREE
        assert torch.ones(FREE).numel() == FREE
