"""Other processes for texts."""

from __future__ import annotations

import multiprocessing
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any


class Workers(ProcessPoolExecutor):
    """Processes that do not read the script that started them: without an `if __name__` guard it would run again in
    each. They know the functions of modules only."""

    def __init__(self, workers: int, **how: Any):
        super().__init__(workers, multiprocessing.get_context("spawn"), **how)

    def submit(self, *work: Any, **how: Any) -> Any:
        """Give a worker something to do; the first time, they are started."""
        with scriptless():
            return super().submit(*work, **how)


@contextmanager
def scriptless() -> Iterator[None]:
    """Meanwhile, whoever looks for the main script finds none."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
