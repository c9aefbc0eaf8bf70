"""Progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..config import Tell
from .screen import Screen, show_line


@contextmanager
def progress(console: Screen, title: str, quiet: float = 0.0) -> Iterator[Tell]:
    """A function to report (what, done, of how many, detail). What takes less than `quiet` seconds leaves no trace."""
    if not console.is_terminal:
        yield lines(console, title, quiet)
        return
    columns = (
        TextColumn("{task.description:<22}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Progress(*columns, console=console, transient=quiet > 0) as bar:
        tasks: dict[str, int] = {}

        def tell(what: str, done: int, of: int, detail: str) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(f"{title}: {what}", total=of, detail="")
            bar.update(tasks[what], completed=done, total=of, detail=show_line(detail))  # type: ignore[arg-type]

        yield tell


def lines(console: Screen, title: str, quiet: float = 0.0, every: float = 10.0) -> Tell:
    """A line at the beginning and end of each stage, and every ten seconds in between."""
    last: dict[str, float] = {}
    began: list[float] = []  # when something was told for the first time

    def tell(what: str, done: int, of: int, detail: str) -> None:
        now = time.monotonic()
        if not began:
            began.append(now)
        if now - began[0] < quiet:
            return
        if what not in last or done == of or now - last[what] >= every:
            last[what] = now
            console.print(f"{title}: {what} {done:,}/{of:,}" + (f", {show_line(detail)}" if detail else ""))

    return tell
