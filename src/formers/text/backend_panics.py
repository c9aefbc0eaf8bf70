"""Panics of the Rust library, which prints them itself before Python hears of them.

Imported by the command line before anything that takes time: only the standard library is needed here.
"""

from __future__ import annotations

import atexit
import functools
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HIDE_PANICS = False  # the command line says True: there, an error is one line


@contextmanager
def hide_panic() -> Iterator[None]:
    """Keep what the Rust library itself prints of a panic off the standard error, where the command line asks for it.

    Only while no other thread of Python may print there; what else was printed meanwhile follows at the end.
    """
    if not HIDE_PANICS or not hasattr(os, "pread") or threading.active_count() > 1:
        yield
        return
    try:
        kept, file = os.dup(2), open_scratch_file(os.getpid())
    except OSError:  # it is closed, or there is no room for a file
        yield
        return
    os.dup2(file.fileno(), 2)
    said = True
    try:
        yield
    except BaseException as error:
        said = type(error).__name__ != "PanicException"
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        if size := os.fstat(file.fileno()).st_size:
            if said:
                os.write(2, os.pread(file.fileno(), size, 0))
            os.ftruncate(file.fileno(), 0)


@functools.cache
def open_scratch_file(process: int) -> Any:
    """A file without a name for what a process prints while nobody looks."""
    file = tempfile.TemporaryFile("ab", buffering=0)  # noqa: SIM115
    atexit.register(file.close)  # left to Python, it may be complained of when all filters of warnings are gone
    return file
