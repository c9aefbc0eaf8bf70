"""One run at a time in a directory. The operating system lets go of a lock when its holder dies, however it dies."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ..errors import Error


@contextmanager
def hold_lock(path: Path, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a lock file; if another run holds it, refuse and say which. `shared` lets others share it likewise."""
    while True:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
        if not try_lock(file.fileno(), shared, wait):
            holder = read_lock_holder(file)
            file.close()
            raise Error(f"is in use by {holder}", where=path.parent, fix="wait for it, or choose another directory")
        if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            break
        file.close()  # the holder before us has just taken the file away: begin again
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
    finally:
        if not shared or try_lock(file.fileno(), False, False):  # of those who share it, the last one takes it away
            path.unlink(missing_ok=True)
        file.close()


def read_lock_holder(file: TextIO) -> str:
    """Who holds a lock; one that has just taken it needs a moment to write its name."""
    for _ in range(100):
        file.seek(0)
        if name := file.read().strip():
            return name
        time.sleep(0.01)
    return "another run"


def is_locked(path: Path) -> bool:
    """Does anybody hold this lock?"""
    if not path.exists():
        return False
    with open(path, "a+", encoding="utf-8") as file:
        return not try_lock(file.fileno(), True, False)


def try_lock(file_descriptor: int, shared: bool, wait: bool) -> bool:
    """Take the lock of an open file."""
    try:
        if os.name == "posix":
            import fcntl

            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(file_descriptor, kind if wait else kind | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(file_descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    return True
