"""Where the command begins: with Ctrl-C, before anything is imported that takes time."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

SHOWN = "\x1b[?25h"  # the cursor, which a progress bar hides


def main() -> Any:
    """Run the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it ignored
        signal.signal(signal.SIGINT, interrupt)
    os.environ["RUST_BACKTRACE"] = "0"  # a panic of the tokenizers library is one line of ours
    from ..text import panics

    panics.HIDE = True
    from .main import main as command

    return command()


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C, as always; within an import the end at once, for a module cut in the middle gives errors of its own."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, f"{SHOWN if sys.stderr.isatty() else ''}formers: interrupted\n".encode())
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt
