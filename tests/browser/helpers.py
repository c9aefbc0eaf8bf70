"""Waiting for a page whose policy forbids the strings that playwright's own wait would evaluate in it."""

from __future__ import annotations

import time
from typing import Any

COUNT_COLOURS = """canvas => {
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""
SECONDS = 120.0  # a machine that does other work as well may take long


def wait_until(page: Any, expression: str, seconds: float = SECONDS) -> None:
    """Wait until an expression is true in the page."""
    until = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({expression})"):
        assert time.monotonic() < until, f"still false after {seconds} s: {expression}"
        page.wait_for_timeout(20)


def wait_until_drawn(canvas: Any, seconds: float = SECONDS) -> None:
    """Wait until a canvas has more than a few colours: a blank one has one."""
    until = time.monotonic() + seconds
    while (colours := canvas.evaluate(COUNT_COLOURS)) <= 4:
        assert time.monotonic() < until, f"the canvas has {colours} colours"
        canvas.page.wait_for_timeout(20)
