"""Worker processes that make batches ahead of time, handed over in order.

Each worker has a pipe of its own, so that one that dies leaves no lock behind: its pipe ends, and that is an error at
once. A worker has one task at a time, so that neither side ever waits for the other to read. Results go through the
pipe too: a batch is about ten bytes a token, and copying it is a hundredth of the work of making it.
"""

from __future__ import annotations

import functools
import multiprocessing
import queue
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from ..errors import Error
from ..text.worker_processes import exit_with_parent

WorkFunction = Callable[[Any], Any]


class WorkerPool:
    """`count` processes that do `work` on tasks; at most `ahead` results wait to be fetched."""

    def __init__(self, count: int, work: WorkFunction, ahead: int, start: str | None = None):
        self.result_queue: queue.Queue[tuple[str, Any]] = queue.Queue(max(1, ahead))
        self.stop_event, self.thread = threading.Event(), threading.Thread()
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(start or ("fork" if "fork" in methods else "spawn"))
        forked = context.get_start_method() == "fork"
        main = threading.current_thread() is threading.main_thread()
        with warnings.catch_warnings():  # of threads in a process that forks: a worker touches nothing of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            for _ in range(count):
                mine, other = context.Pipe()
                others = [*self.pipes, mine] if forked else []
                given = (other, work, others, main)
                process = context.Process(target=run_worker, args=given, daemon=True, name="formers-loader")
                process.start()
                other.close()  # now only the worker holds it: when it dies, the pipe ends
                self.pipes.append(mine)
                self.processes.append(process)

    def map(self, tasks: Iterator[Any], finish: WorkFunction = lambda result: result) -> Iterator[Any]:
        """The results of the tasks, in order. `finish` is done to each in a thread of this process."""
        self.thread = threading.Thread(
            target=self.run_dispatcher, args=(tasks, finish), daemon=True, name="formers-loader"
        )
        self.thread.start()
        while True:
            kind, value = self.result_queue.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value

    def run_dispatcher(self, tasks: Iterator[Any], finish: WorkFunction) -> None:
        """Hand out tasks, take in results, and put them into order."""
        try:
            for value in self.iterate_results(tasks):
                if not self.offer_result(("result", finish(value))):
                    return
            self.offer_result(("end", None))
        except BaseException as error:  # whatever it is, the reader must hear of it
            self.offer_result(("error", error))

    def iterate_results(self, tasks: Iterator[Any]) -> Iterator[Any]:
        """Results in order; a worker gets a new task as soon as it has handed in the last."""
        idle: list[Any] = list(self.pipes)
        busy: dict[Any, int] = {}  # the number of the task that each has
        done: dict[int, Any] = {}
        given = taken = 0
        more = True
        while more or busy:
            while more and idle and given < taken + 2 * len(self.pipes):
                try:
                    task = next(tasks)
                except StopIteration:
                    more = False
                    break
                pipe = idle.pop()
                self.call_pipe(pipe, functools.partial(pipe.send, task))
                busy[pipe] = given
                given += 1
            ready: list[Any] = wait(list(busy), 0.2)
            for pipe in ready:
                good, value = self.call_pipe(pipe, pipe.recv)
                if not good:
                    raise value
                done[busy.pop(pipe)] = value
                idle.append(pipe)
            while taken in done:
                yield done.pop(taken)
                taken += 1
            if self.stop_event.is_set():
                return

    def call_pipe(self, pipe: Connection, how: Callable[[], Any]) -> Any:
        """Send or receive; if the other end is gone, say which worker and how it ended."""
        try:
            return how()
        except (EOFError, OSError):
            process = self.processes[self.pipes.index(pipe)]
            process.join(5)
            code = process.exitcode
            end = f"was ended by signal {-code} ({signal.Signals(-code).name})" if code and code < 0 else "ended"
            raise Error(
                f"loader worker {process.pid} {end}",
                fix="is there enough memory? take fewer workers, and go on from the last position",
            ) from None

    def offer_result(self, item: tuple[str, Any]) -> bool:
        """Put something in front of the reader, unless nobody reads any more."""
        while not self.stop_event.is_set():
            try:
                self.result_queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def close(self) -> None:
        """End the workers and the thread, and leave nothing behind."""
        self.stop_event.set()
        if self.thread.ident is not None:
            self.thread.join()
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()  # it holds nothing that must be put in order
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self.pipes, self.processes = [], []


def run_worker(pipe: Connection, work: WorkFunction, others: list[Connection], by_main_thread: bool) -> None:
    """Do tasks until the pipe ends or the main process is gone. Ctrl-C is for the main process alone."""
    exit_with_parent(by_main_thread=by_main_thread)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "SIGHUP"):  # a closed terminal sends it to all: the main process decides
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for other in others:
        other.close()
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (True, work(task))
        except Exception as error:
            answer = (False, error)
        try:
            pipe.send(answer)
        except (BrokenPipeError, OSError):
            return
        except Exception as error:  # it cannot be pickled
            pipe.send((False, Error(f"a loader worker failed: {type(error).__name__}: {error}")))
