"""Shared by all tests: one thread per worker, no network, the long forms on request."""

from __future__ import annotations

import os
import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell without job control ignores it in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # some virtual machines announce AMX and crash on it
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "formers", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("formers")


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="the full counts of the fault tests")
    parser.addoption("--book", action="store_true", help="the commands of every page of the book")


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "full" in item.keywords and not config.getoption("--full"):
            item.add_marker(pytest.mark.skip(reason="long form: make faults"))
        if item.get_closest_marker("book") and not config.getoption("--book"):
            item.add_marker(pytest.mark.skip(reason="every page: make book"))
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device: make gpu"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def full(request) -> bool:
    return request.config.getoption("--full")


@pytest.fixture(scope="session")
def data():
    """The folder of real data, if this machine has it."""
    from pathlib import Path

    where = os.environ.get("FORMERS_DATA")
    if not where or not Path(where).is_dir():
        pytest.skip("FORMERS_DATA is not set")
    return Path(where)
