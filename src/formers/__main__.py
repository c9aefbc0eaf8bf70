"""Where the command begins (formers, python -m formers): with Ctrl-C, before anything is imported that takes time."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from . import errors

SHOW_CURSOR = "\x1b[?25h"  # the cursor, which a progress bar hides


def main() -> object:
    """Run the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored, as by nohup
        signal.signal(signal.SIGINT, handle_interrupt)
    os.environ["RUST_BACKTRACE"] = "0"  # a panic of the tokenizers library is one line of ours
    from .text import backend_safety

    backend_safety.HIDE_PANICS = True
    from .cli.main import main as run_command

    return run_command()


def handle_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; during an import exit at once, since a half-imported module would raise other errors."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            message = f"formers: interrupted{errors.CONTINUE_ADVICE}\n"
            os.write(2, f"{SHOW_CURSOR if sys.stderr.isatty() else ''}{message}".encode())
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
