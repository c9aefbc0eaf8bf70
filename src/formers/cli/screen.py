"""What commands print: the only place where text meets a terminal.

Text from outside (file names, run.json, labels, vocabulary pieces, model outputs, error messages, cells of tables) is
never markup, and control characters in it are shown (\\x1b), not sent. What a program reads behind a pipe is the text
as it is, except that half a character (a lone surrogate), which no encoding has, is written as \\udc80.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

# Control characters but newline and tab, marks that turn the direction of text around, and lone surrogates.
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
BREAKS = re.compile("[\t\n\u2028\u2029]")


class Screen(Console):
    """A console that takes every string for text: no markup, no emoji codes, no control characters. Styles come as
    `rich.text.Text`. Lines longer than the terminal are left to it; with `wrap`, words are kept whole (for tables)."""

    def __init__(self, *, stderr: bool = False, wrap: bool = False, quiet: bool = False):
        super().__init__(
            stderr=stderr, quiet=quiet, soft_wrap=not wrap, markup=False, emoji=False, highlight=False
        )  # fmt: skip

    def _check_buffer(self) -> None:
        """Write what was printed; a terminal that was closed is no reason to end a run before it has saved."""
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.quiet = True

    def render_str(self, text: str, **how: Any) -> Text:
        """Turn a string into text, control characters shown."""
        return super().render_str(show_controls(text), **{**how, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Turn anything into segments; those that are no commands of rich's own hold no control characters."""
        for segment in super().render(renderable, options):
            if segment.control or COMMANDS.search(segment.text) is None:
                yield segment
            else:
                yield Segment(show_controls(segment.text), segment.style)


def show_controls(text: str) -> str:
    """Write control characters out, as \\x1b; newlines and tabs stay."""
    return COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def show_line(text: object) -> str:
    """Write out newlines and tabs too: a name stays on one line, whatever it holds."""
    return BREAKS.sub(lambda found: ascii(found[0])[1:-1], show_controls(str(text)))


def print_text(text: str, end: str = "\n") -> None:
    """Print a result: as it is behind a pipe, with control characters shown on a terminal."""
    print(show_controls(text) if sys.stdout.isatty() else text, end=end, flush=True)


def print_json(value: Any, indent: int | None = None) -> None:
    """Print a value as JSON, on one line unless `indent` is given; a control character is always an escape of JSON."""
    wide = str(getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    text = to_json(value, ensure_ascii=not wide, indent=indent)
    print(COMMANDS.sub(lambda found: json.dumps(found[0])[1:-1], text), flush=True)


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Return valid JSON; a number that is not finite, for which JSON has no word, is null."""
    return json.dumps(finite(value), ensure_ascii=ensure_ascii, indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    """Replace the floats of a nested value that are not finite by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def accept_any_text() -> None:
    """Let the standard output write every string: what its encoding does not have becomes an escape, not an error."""
    with contextlib.suppress(AttributeError, ValueError, OSError):  # it is closed, or not a file
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
