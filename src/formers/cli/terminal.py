"""What commands print: the only place where text meets a terminal.

Text from outside (file names, run.json, labels, vocabulary pieces, model outputs, error messages, cells of tables) is
never markup, and control characters in it are shown (\x1b), not sent. What a program reads from a pipe is the text
as it is, except that half a character (a lone surrogate), which no encoding has, is written as \udc80. Progress is a
bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from ..config import ProgressCallback, Settings

# Control characters but newline and tab, marks that turn the direction of text around, and lone surrogates.
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LINE_BREAKS = re.compile("[\t\n\u2028\u2029]")
LINE_INTERVAL_SECONDS = 10.0  # seconds between two lines of progress


class SafeConsole(Console):
    """A console that takes every string for text: no markup, no emoji codes, no control characters. Styles come as
    `rich.text.Text`. Lines longer than the terminal are left to it; with `wrap`, words are kept whole (for tables)."""

    def __init__(self, *, stderr: bool = False, wrap: bool = False, quiet: bool = False):
        super().__init__(stderr=stderr, quiet=quiet, soft_wrap=not wrap, markup=False, emoji=False, highlight=False)

    def _check_buffer(self) -> None:
        """Write what was printed; a terminal that was closed is no reason to end a run before it has saved."""
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.quiet = True

    def render_str(self, text: str, **how: Any) -> Text:  # dynamic: the options of rich
        """Turn a string into text, control characters shown."""
        return super().render_str(escape_controls(text), **{**how, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Turn anything into segments; those that are no commands of rich's own hold no control characters."""
        for segment in super().render(renderable, options):
            if segment.control or CONTROL_CHARACTERS.search(segment.text) is None:
                yield segment
            else:
                yield Segment(escape_controls(segment.text), segment.style)


def escape_controls(text: str) -> str:
    """Write control characters out, as \\x1b; newlines and tabs stay."""
    return CONTROL_CHARACTERS.sub(lambda found: ascii(found[0])[1:-1], text)


def escape_line(text: object) -> str:
    """Write out newlines and tabs too: a name stays on one line, whatever it holds."""
    return LINE_BREAKS.sub(lambda found: ascii(found[0])[1:-1], escape_controls(str(text)))


def print_text(text: str, end: str = "\n") -> None:
    """Print a result: as it is into a pipe, with control characters shown on a terminal."""
    print(escape_controls(text) if sys.stdout.isatty() else text, end=end, flush=True)


def print_table(
    rows: Iterable[Sequence[str | Text]], titles: Sequence[str] = (), *, caption: str = "",
    no_wrap: Collection[str] = (),
) -> None:  # fmt: skip
    """Print rows as a table without rules; in a pipe a row is one line, on a terminal `no_wrap` columns stay whole."""
    cells = [[cell if isinstance(cell, Text) else Text(escape_line(cell)) for cell in row] for row in rows]
    console = SafeConsole(wrap=True)
    if console.is_terminal:
        columns = [Column(title, no_wrap=title in no_wrap) for title in titles]
        look: Settings = {"title": caption or None, "title_justify": "left", "title_style": "bold"}
        table = Table(*columns, box=None, pad_edge=False, show_header=bool(titles), **look)
        for row in cells:
            table.add_row(*row)
        return console.print(table)
    lines = [[Text(title) for title in titles], *cells] if titles else cells
    widths = [max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)]
    console = SafeConsole()
    if caption:
        console.print(caption)
    for row in lines:
        padded = (cell.plain + " " * (width - cell.cell_len) for cell, width in zip(row, widths, strict=True))
        console.print("  ".join(padded).rstrip())
    return None


def pad_cells(text: str, width: int) -> str:
    """Fill a text up to a number of columns of the terminal, of which a Hangul syllable takes two."""
    return text + " " * max(0, width - cell_len(text))


def print_json(value: object, indent: int | None = None) -> None:
    """Print a value as JSON, on one line unless `indent` is given; a control character is always an escape of JSON."""
    wide = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = to_json(value, ensure_ascii=not wide, indent=indent)
    print(CONTROL_CHARACTERS.sub(lambda found: json.dumps(found[0])[1:-1], text), flush=True)


def to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Return valid JSON; a number that is not finite, for which JSON has no word, is null."""
    return json.dumps(replace_non_finite(value), ensure_ascii=ensure_ascii, indent=indent, allow_nan=False)


def replace_non_finite(value: object) -> object:
    """Replace the floats of a nested value that are not finite by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: replace_non_finite(item) for key, item in value.items()}
    return [replace_non_finite(item) for item in value] if isinstance(value, list | tuple) else value


def escape_unencodable() -> None:
    """Let the standard output write every string: what its encoding does not have becomes an escape, not an error."""
    with contextlib.suppress(AttributeError, ValueError, OSError):  # it is closed, or not a file
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


@contextmanager
def show_progress(console: SafeConsole, title: str, delay_seconds: float = 0.0) -> Iterator[ProgressCallback]:
    """Give a callback for progress (what, done, of how many, detail), silent for the first `delay_seconds`."""
    if not console.is_terminal:
        yield build_line_reporter(console, title, delay_seconds)
        return
    columns = (
        TextColumn("{task.description:<22}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(), TextColumn("{task.fields[detail]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=delay_seconds > 0) as bar:
        tasks: dict[str, int] = {}

        def report_progress(what: str, done: int, of: int, detail: str) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(f"{title}: {what}", total=of, detail="")
            bar.update(tasks[what], completed=done, total=of, detail=escape_line(detail))  # type: ignore[arg-type]

        yield report_progress


def build_line_reporter(console: SafeConsole, title: str, delay_seconds: float = 0.0) -> ProgressCallback:
    """Build a callback that prints a line at the beginning and end of each stage, and every ten seconds in between."""
    last: dict[str, float] = {}
    began: list[float] = []  # when something was told for the first time

    def report_progress(what: str, done: int, of: int, detail: str) -> None:
        now = time.monotonic()
        if not began:
            began.append(now)
        if now - began[0] < delay_seconds:
            return
        if what not in last or done == of or now - last[what] >= LINE_INTERVAL_SECONDS:
            last[what] = now
            console.print(f"{title}: {what} {done:,}/{of:,}" + (f", {escape_line(detail)}" if detail else ""))

    return report_progress
