"""The fused kernels as triton reads them, by its interpreter on a CPU: needs triton 3.7 (`pip install triton`, 200 MB),
which is no part of the extras. All cases: see tests/nn/slow_triton.py."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = (  # a table, an order, segments, dropout, documents that do not fill their blocks, a cache
    "test_biased_flash.py::test_as_plain_attention[table causal-0.0]",
    "test_biased_flash.py::test_as_plain_attention[encodings and segments-0.0]",
    "test_biased_flash.py::test_as_plain_attention[encodings causal-0.3]",
    "test_decode.py::test_what_is_new_is_seen_and_written[True-1]",
    "test_decode.py::test_a_sum_and_its_norm",
)


def find_triton() -> tuple[int, ...]:
    """Return the version of triton that is installed; (0,) without any."""
    if importlib.util.find_spec("triton") is None:
        return (0,)
    return tuple(int(part) for part in importlib.metadata.version("triton").split(".")[:2])


@pytest.mark.skipif(find_triton() < (3, 7), reason="needs triton 3.7: older interpreters fail with numpy 2.4")
def test_by_the_interpreter_of_triton():
    """In a process of its own: what triton is imported for cannot be changed later."""
    command = [sys.executable, "-m", "pytest", *(str(HERE / case) for case in CASES)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
