"""What is known of the machine: free memory, of the machine or of a container, and the limit that follows it."""

from __future__ import annotations

import resource
import sys

import pytest
import torch

from formers.training import hardware
from formers.training.hardware import get_free_memory, limit_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells")
FREE = 50 * 2**20


@pytest.mark.parametrize(("limit", "is_limited"), [("max", False), (str(FREE + 1000), True)])
def test_a_container_can_have_less_than_its_machine(limit, is_limited, tmp_path, monkeypatch):
    (tmp_path / "most").write_text(limit + "\n")
    (tmp_path / "used").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\nfile 2000\nlazy 2000\n")
    monkeypatch.setattr(hardware, "CGROUPS", [(str(tmp_path), "most", "used", "lazy")])
    assert (get_free_memory() == FREE) is is_limited


def test_nothing_is_limited_where_linux_does_not_tell(tmp_path, monkeypatch):
    (tmp_path / "most").write_text("not a number")
    monkeypatch.setattr(hardware, "CGROUPS", [(str(tmp_path), "most", "used", "lazy")])
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limit_memory(torch.device("cpu")):
        assert get_free_memory() is None
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_the_limit_is_that_of_before_at_the_end():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limit_memory(torch.device("cpu")):
        assert resource.getrlimit(resource.RLIMIT_DATA) != before
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_the_limit_follows_what_is_free(monkeypatch):
    free = [FREE]
    monkeypatch.setattr(hardware, "get_free_memory", lambda: free[0])
    monkeypatch.setattr(hardware, "LIMIT_SECONDS", 0.01)
    with limit_memory(torch.device("cpu")):
        with pytest.raises(RuntimeError, match="allocate"):
            torch.ones(FREE)
        free[0] = 50 * FREE
        for _ in range(1000):
            if resource.getrlimit(resource.RLIMIT_DATA)[0] > 20 * FREE:
                break
            torch.ones(1000, 1000).sum()
        assert torch.ones(FREE).numel() == FREE
