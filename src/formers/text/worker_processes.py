"""Other processes for texts, and how every process that formers starts ends when the one that started it dies."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

PARENT_CHECK_SECONDS = 0.5  # seconds between two checks of the parent
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
Item = TypeVar("Item")
Result = TypeVar("Result")


class ProcessPool(ProcessPoolExecutor):
    """Processes that do not read the script that started them: without an `if __name__` guard it would run again in
    each. They know the functions of modules only, and end when this process does, even if it is killed."""

    def __init__(self, workers: int, initializer: Callable[..., None] | None = None, initargs: tuple[object, ...] = ()):
        first = (threading.current_thread() is threading.main_thread(), initializer, initargs)
        super().__init__(workers, multiprocessing.get_context("spawn"), initializer=init_worker, initargs=first)

    def submit(self, *work: Any, **how: Any) -> Any:  # dynamic: as the executor declares it
        """Give a worker something to do; the first time, they are started."""
        with hide_main_script():
            return super().submit(*work, **how)

    def map_ahead(
        self, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
    ) -> Iterator[tuple[Item, Future[Result]]]:
        """Give each item with its future, in order; items are read at most `ahead` before the one that is given. Where
        processes do not start or one of them died, the future raises BrokenProcessPool."""
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        for item in items:
            try:
                job = self.submit(function, item)
            except BrokenProcessPool as error:
                job = Future()
                job.set_exception(error)
            waiting.append((item, job))
            if len(waiting) > ahead:
                yield waiting.popleft()
        yield from waiting


def init_worker(by_main_thread: bool, initializer: Callable[..., None] | None, initargs: tuple[object, ...]) -> None:
    """Run first in each process of `ProcessPool`."""
    exit_with_parent(by_main_thread=by_main_thread)
    if initializer is not None:
        initializer(*initargs)


def exit_with_parent(parent: int | None = None, by_main_thread: bool = True) -> None:
    """End this process as soon as the one that started it is gone, even if that was killed without a word.

    Linux sends a signal, but when the thread that started this process ends, so it is asked for only where that was
    the main thread (or one that waits for this process). Elsewhere, and in any case, a thread checks the parent:
    multiprocessing's sentinel, and who the parent is, for a sibling may hold the other end of the sentinel open.
    `parent` is the id of the starter where multiprocessing does not know it."""
    starter = multiprocessing.parent_process()
    if parent is None:
        parent = starter.pid if starter is not None else os.getppid()
    direct = os.name == "posix" and os.getppid() == parent  # a fork server may stand between
    if by_main_thread and direct and sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library of another kind: the thread is enough
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def is_gone() -> bool:
        return (direct and os.getppid() != parent) or (starter is not None and not starter.is_alive())

    def watch() -> None:
        never = threading.Event()
        while not is_gone():
            never.wait(PARENT_CHECK_SECONDS)
        os._exit(1)

    if (os.name == "posix" and starter is None and not direct) or is_gone():  # it died before this line
        os._exit(1)
    threading.Thread(target=watch, daemon=True, name="formers-parent").start()


@contextmanager
def hide_main_script() -> Iterator[None]:
    """Hide the main script meanwhile from whatever looks for it."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
