"""Waiting for a page whose policy forbids the strings that playwright's own wait would evaluate in it."""

from __future__ import annotations

import time
from typing import Any


def wait_until(page: Any, expression: str, seconds: float = 20.0) -> None:
    """Wait until an expression is true in the page."""
    until = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({expression})"):
        assert time.monotonic() < until, f"still false after {seconds} s: {expression}"
        page.wait_for_timeout(20)
