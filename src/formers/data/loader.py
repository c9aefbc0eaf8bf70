"""Batches: examples of a source, packed to a fixed shape, by worker processes ahead of time.

The position in the data is one number, the next global example; examples are numbered through all epochs. Which
examples make a batch depends on the plan and the position alone: not on workers, nor on ranks.

Each worker has a pipe of its own, so that one that dies leaves no lock behind: its pipe ends, and that is an error at
once. A worker has one task at a time, so that neither side ever waits for the other to read. Results go through the
pipe too: a batch is about ten bytes a token, and copying it is a hundredth of the work of making it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import multiprocessing
import queue
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar, cast

import numpy as np
import torch

from ..batch import IGNORE_INDEX, Array, Batch, BatchShape
from ..errors import Error
from ..protocols import AnySource, ExamplePlan, ExampleSource, PlanType
from ..text.worker_processes import exit_with_parent

SIZE_BLOCK = 4096  # examples whose sizes are asked for at a time


def pad_array(value: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """Pad an array to a size."""
    if size < len(value):
        raise Error(f"{len(value)} do not fit into {size}", fix="take larger batches")
    out = np.full((size, *value.shape[1:]), fill, value.dtype)
    out[: len(value)] = value
    return out


def pad_batch(batch: Batch, shape: BatchShape) -> Batch:
    """Pad a batch to the fixed shape with dummy documents, none longer than an example, and ignored places."""
    source = batch.source
    if source is not None:
        inner = BatchShape(shape.documents, shape.source_tokens, 0, shape.source_longest)
        source = pad_batch(source.replace(sample=batch.sample), inner).replace(sample=None, labels=None)
    old, documents = len(batch.ids), len(batch.starts) - 1
    rest, rows = shape.tokens - old, shape.documents - documents
    size = np.minimum(np.maximum(rest - np.arange(max(0, rows)) * shape.longest, 0), shape.longest)
    if rest < 0 or rows < 0 or size.sum() < rest:
        raise Error(f"{old} tokens in {documents} documents do not fit into {shape}", fix="take larger batches")
    per_token, fields = ("ids", "positions", "segments", "tasks", "order"), batch.to_dict()
    changes: dict[str, Array] = {
        name: pad_array(value, shape.tokens) for name in per_token if (value := fields[name]) is not None
    }
    changes["starts"] = np.concatenate((batch.starts, batch.starts[-1] + np.cumsum(size))).astype(np.int32)
    if batch.labels is not None:
        changes["labels"] = pad_array(batch.labels, shape.labels or shape.tokens, IGNORE_INDEX)
    if shape.labels:
        changes["chosen"] = pad_array(batch.chosen, shape.labels)
    if batch.document_labels is not None:
        changes["document_labels"] = pad_array(batch.document_labels, shape.documents, IGNORE_INDEX)
    sample = pad_array(batch.sample, shape.documents, -1)
    return batch.replace(**changes, longest=shape.longest, source=source, sample=sample)


def blank_batch(batch: Batch) -> Batch:
    """Return a batch of the same shape that asks for nothing: for a rank that has none while others have."""
    both = (batch.labels, batch.document_labels)
    labels, document_labels = (None if old is None else np.full_like(old, IGNORE_INDEX) for old in both)
    return batch.replace(labels=labels, document_labels=document_labels, sample=np.full_like(batch.sample, -1))


@dataclass(frozen=True)
class BatchTask:
    """One batch to be made: its examples' part of the plan, and their global numbers from `sample` on."""

    plan: ExamplePlan
    first_sample: int
    is_blank: bool = False


def make_batch(source: AnySource, shape: BatchShape, seed: int, task: BatchTask) -> Batch:
    """Make the batch of a task, in this process or in a worker."""
    samples = task.first_sample + np.arange(len(task.plan))
    batch = pad_batch(source.make_batch(task.plan, samples, seed), shape)
    return blank_batch(batch) if task.is_blank else batch


def pack_examples(
    source: ExampleSource[PlanType], plan: PlanType, shape: BatchShape, n: int
) -> Iterator[tuple[int, int]]:
    """Yield runs of examples from n on that fit into a batch each: in order, as many as possible."""
    limits = np.array([shape.tokens, shape.labels or shape.tokens, shape.source_tokens])
    count, low, high = len(plan), 0, 0
    while n < count:
        if high < min(count, n + shape.documents) or not high:
            low, high = n, min(count, n + max(SIZE_BLOCK, 4 * shape.documents))
            reach = np.zeros((high - low + 1, 3), np.int64)
            np.cumsum(source.measure_sizes(plan.slice_examples(low, high)), 0, out=reach[1:])
        used = reach[n - low : n - low + shape.documents + 1] - reach[n - low]  # (k, 3) by the first k - 1 examples
        fits = (used <= limits).all(1)
        # What is left over goes into dummy documents, none longer than an example: there must be enough of them.
        rows = shape.documents - np.arange(len(used))
        fits &= rows * shape.longest >= shape.tokens - used[:, 0]
        if shape.source_tokens:
            fits &= rows * shape.source_longest >= shape.source_tokens - used[:, 2]
        stop = n + (int(np.argmin(fits)) if not fits.all() else len(fits)) - 1
        if stop <= n:
            size, room = (" + ".join(map(str, numbers)) for numbers in (used[min(1, len(used) - 1)], limits))
            what = (
                f"an example does not fit into a batch: {size} tokens, predicted tokens and source tokens, room {room}"
            )
            raise Error(what, fix="take larger batches (train.batch_tokens) or shorter examples (train.seq_length)")
        yield n, stop
        n = stop


def plan_epoch(source: ExampleSource[PlanType], seed: int, epoch: int, count: int | None = None) -> PlanType:
    """Plan an epoch, which must have examples; `count` is how many the first epoch had."""
    plan = source.plan_epoch(seed, epoch)
    if count is not None and len(plan) != count:
        what = f"epoch {epoch} has {len(plan):,} examples, the first one {count:,}"
        raise Error(what, fix="report this: every epoch of an objective must have as many")
    if not len(plan):
        raise Error("no example can be made of this text", fix="give more text, or shorter examples")
    return plan


def plan_tasks(
    source: ExampleSource[PlanType], plan: PlanType, shape: BatchShape, seed: int, position: int, epochs: int | None
) -> Iterator[tuple[BatchTask, int]]:
    """Yield tasks from a position on, each with the position after it. `plan` is that of the first epoch."""
    count = len(plan)
    for epoch in itertools.count(position // count):
        if epochs is not None and epoch >= epochs:
            return
        if epoch:
            plan = plan_epoch(source, seed, epoch, count)
        base = epoch * count
        for low, high in pack_examples(source, plan, shape, max(0, position - base)):
            yield BatchTask(plan.slice_examples(low, high), base + low), base + high


def select_rank_tasks(todo: Iterator[tuple[BatchTask, int]], rank: int, ranks: int) -> Iterator[tuple[BatchTask, int]]:
    """Yield every `ranks`-th task, with the position after what all ranks do meanwhile. All ranks get as many: at the
    end of the last epoch, one that would get none gets a batch that asks for nothing."""
    while round_ := list(itertools.islice(todo, ranks)):
        last, position = round_[-1]
        yield round_[rank][0] if rank < len(round_) else dataclasses.replace(last, is_blank=True), position


def load_batches(
    source: AnySource, batch_tokens: int, seed: int = 0, position: int = 0, epochs: int | None = None, *,
    workers: int = 0, rank: int = 0, ranks: int = 1, prefetch: int | None = None, pin: bool = False,
    start_method: str | None = None,
) -> Iterator[tuple[Batch, int]]:  # fmt: skip
    """Yield batches of `batch_tokens` tokens of a source from a position on, each with the position after it; without
    end unless `epochs` says.

    Every epoch has the same number of examples, and a batch stays within one epoch. Of the sequence of batches, number
    k goes to rank k % ranks; the position is then the one after the batches of all ranks. `workers` processes make up
    to `prefetch` batches ahead (two each by default); `pin` puts them into memory that a GPU can fetch from.
    `start_method` is how processes are started: fork where there is one, else spawn.
    """
    if not 0 <= rank < ranks:
        raise Error(f"rank {rank} is not one of {ranks}", fix="ranks count from 0")
    if position < 0:
        raise Error(f"a position counts from 0, got {position}", fix="give the next global example")
    plan = plan_epoch(source, seed, 0)
    shape = source.choose_shape(batch_tokens, plan)
    todo = select_rank_tasks(plan_tasks(source, plan, shape, seed, position, epochs), rank, ranks)
    make, finish = functools.partial(make_batch, source, shape, seed), pin_batch if pin else (lambda batch: batch)
    if not workers:
        for task, position in todo:
            yield finish(make(task)), position
        return
    pool = WorkerPool(workers, make, 2 * workers if prefetch is None else prefetch, start_method)
    positions: deque[int] = deque()  # after the tasks that were handed out, in order

    def record_positions() -> Iterator[BatchTask]:
        for task, position in todo:
            positions.append(position)
            yield task

    try:
        for batch in pool.map(record_positions(), finish):
            yield batch, positions.popleft()
    finally:
        pool.close()


def pin_batch(batch: Batch) -> Batch:
    """Return the batch as torch tensors in page-locked memory, from which a copy to a GPU need not be waited for."""
    arrays = {name: value for name, value in batch.to_dict().items() if isinstance(value, np.ndarray)}
    changes: dict[str, Array] = {name: torch.from_numpy(array).pin_memory() for name, array in arrays.items()}
    return batch.replace(**changes, source=None if batch.source is None else pin_batch(batch.source))


# --- worker processes

Work = Any  # dynamic: a task for a worker, or its result
WorkFunction = Callable[[Work], Work]
T = TypeVar("T")


class WorkerPool:
    """`count` processes that do `work` on tasks; at most `ahead` results wait to be fetched."""

    def __init__(self, count: int, work: WorkFunction, ahead: int, start: str | None = None):
        self.result_queue: queue.Queue[tuple[str, Work]] = queue.Queue(max(1, ahead))
        self.stop_event, self.thread = threading.Event(), threading.Thread()
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        methods = multiprocessing.get_all_start_methods()
        kind = start or ("fork" if "fork" in methods else "spawn")
        context: Any = multiprocessing.get_context(kind)  # dynamic: their common class has no Process
        forked = context.get_start_method() == "fork"
        main = threading.current_thread() is threading.main_thread()
        with warnings.catch_warnings():  # of threads in a process that forks: a worker touches nothing of theirs
            warnings.simplefilter("ignore", DeprecationWarning)
            for _ in range(count):
                mine, other = context.Pipe()
                arguments = (other, work, [*self.pipes, mine] if forked else [], main)
                process = context.Process(target=run_worker, args=arguments, daemon=True, name="formers-loader")
                process.start()
                other.close()  # now only the worker holds it: when it dies, the pipe ends
                self.pipes.append(mine)
                self.processes.append(process)

    def map(self, tasks: Iterator[Work], finish: WorkFunction = lambda result: result) -> Iterator[Work]:
        """Yield the results of the tasks, in order. `finish` is done to each in a thread of this process."""
        arguments = (tasks, finish)
        self.thread = threading.Thread(target=self.run_dispatcher, args=arguments, daemon=True, name="formers-loader")
        self.thread.start()
        while True:
            kind, value = self.result_queue.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value

    def run_dispatcher(self, tasks: Iterator[Work], finish: WorkFunction) -> None:
        """Hand out tasks, take in results, and put them into order."""
        try:
            for value in self.iterate_results(tasks):
                if not self.offer_result(("result", finish(value))):
                    return
            self.offer_result(("end", None))
        except BaseException as error:  # whatever it is, the reader must hear of it
            self.offer_result(("error", error))

    def iterate_results(self, tasks: Iterator[Work]) -> Iterator[Work]:
        """Yield results in order; a worker gets a new task as soon as it has handed in the last."""
        idle: list[Connection] = list(self.pipes)
        busy: dict[Connection, int] = {}  # the number of the task that each has
        done: dict[int, Work] = {}
        num_sent = taken = 0
        more = True
        while more or busy:
            while more and idle and num_sent < taken + 2 * len(self.pipes):
                try:
                    task = next(tasks)
                except StopIteration:
                    more = False
                    break
                pipe = idle.pop()
                self.call_pipe(pipe, functools.partial(pipe.send, task))
                busy[pipe] = num_sent
                num_sent += 1
            for pipe in cast("list[Connection]", wait(list(busy), 0.2)):
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

    def call_pipe(self, pipe: Connection, how: Callable[[], T]) -> T:
        """Send or receive; if the other end is gone, say which worker and how it ended."""
        try:
            return how()
        except (EOFError, OSError):
            process = self.processes[self.pipes.index(pipe)]
            process.join(5)
            code = process.exitcode
            end = f"was ended by signal {-code} ({signal.Signals(-code).name})" if code and code < 0 else "ended"
            fix = "is there enough memory? take fewer workers, and resume from the last position"
            raise Error(f"loader worker {process.pid} {end}", fix=fix) from None

    def offer_result(self, item: tuple[str, Work]) -> bool:
        """Put something in front of the reader, unless nobody reads any more."""
        while not self.stop_event.is_set():
            with suppress(queue.Full):
                self.result_queue.put(item, timeout=0.1)
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
    if sys.platform != "win32":  # a closed terminal sends it to all: the main process decides
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
