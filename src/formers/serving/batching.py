"""Dynamic batching: texts of different requests that want the same of a model are computed together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .responses import Overloaded

OperationT = TypeVar("OperationT", bound=Hashable)
VerbInput = Any  # dynamic: what the operation reads, by its verb: a text, a pair, a question with choices, ids
VerbResult = Any  # dynamic: what the verb answers for one input
BatchFunction = Callable[[OperationT, list[VerbInput]], Sequence[VerbResult]]  # a result for each input


@dataclass(eq=False)
class Ticket(Generic[OperationT]):
    """A request's texts in the queue; `future` gets their results in order."""

    operation: OperationT
    inputs: list[VerbInput]
    costs: list[int]  # tokens of each input
    arrival: float = field(default_factory=time.monotonic)
    future: Future[list[VerbResult]] = field(default_factory=Future)
    next_input: int = 0  # the first that no batch has taken yet
    queue_seconds: float | None = None  # from the arrival to the first batch
    inference_seconds: float = 0.0  # of all batches that its inputs were in
    results: list[VerbResult] = field(default_factory=list)

    def cancel(self) -> None:
        """Give up: what is not computed yet will not be."""
        if not self.future.done():
            self.future.cancel()


class BatchScheduler(Generic[OperationT]):
    """A thread that computes the oldest waiting texts, with all others of the same operation that fit beside them.

    A batch holds up to `max_tokens` tokens (one longer text is a batch of its own). It waits for others at most
    `max_delay` seconds from its oldest text's arrival, and only while `expects_more()` says that some are on the way:
    a request that is alone does not wait. Where a batch fails, its requests are computed one by one, so that only the
    one at fault gets the error. `on_batch` is told the texts and tokens of each batch, `on_answer` the seconds that an
    answered request has waited and was computed.
    """

    def __init__(
        self, run_batch: BatchFunction[OperationT], max_tokens: int = 16_384, max_waiting: int = 512,
        max_delay: float = 0.002, expects_more: Callable[[], bool] = lambda: False,
        on_batch: Callable[[int, int], None] | None = None, on_answer: Callable[[float, float], None] | None = None,
    ):  # fmt: skip
        self.run_batch, self.expects_more, self.on_batch, self.on_answer = run_batch, expects_more, on_batch, on_answer
        self.max_tokens, self.max_waiting, self.max_delay = max_tokens, max_waiting, max_delay
        self.waiting: deque[Ticket[OperationT]] = deque()
        self.condition = threading.Condition()
        self.is_stopping = False
        self.thread = threading.Thread(target=self.run_loop, daemon=True, name="formers-batches")
        self.thread.start()

    def submit(self, operation: OperationT, inputs: list[VerbInput], costs: list[int]) -> Ticket[OperationT]:
        """Queue the inputs of a request; raises Overloaded if too many requests wait."""
        ticket = Ticket(operation, inputs, costs)
        if not inputs:
            ticket.future.set_result([])
            return ticket
        with self.condition:
            if len(self.waiting) >= self.max_waiting:  # those whose clients are gone hold no place
                self.waiting = deque(one for one in self.waiting if not one.future.done())
            if len(self.waiting) >= self.max_waiting:
                raise Overloaded(f"{len(self.waiting)} requests are waiting for this model")
            if self.is_stopping:
                raise Overloaded("this server is stopping", status=503)
            self.waiting.append(ticket)
            self.condition.notify()
        return ticket

    def run_loop(self) -> None:
        """Compute batches until the scheduler is stopped and nothing waits."""
        while (batch := self.take_batch()) is not None:
            self.compute_batch(batch)

    def take_batch(self) -> list[tuple[Ticket[OperationT], int, int]] | None:
        """Wait for the next batch and take it: tickets with the first and last number of their inputs."""
        with self.condition:
            while True:
                while self.waiting and self.waiting[0].future.done():
                    self.waiting.popleft()
                if self.waiting:
                    rest = self.waiting[0].arrival + self.max_delay - time.monotonic()
                    if rest <= 0 or self.count_next_tokens() >= self.max_tokens or not self.expects_more():
                        return self.collect_parts()
                    self.condition.wait(min(rest, 0.0005))
                elif self.is_stopping:
                    return None
                else:
                    self.condition.wait()

    def count_next_tokens(self) -> int:
        """Count the tokens that wait for the operation of the oldest ticket."""
        operation = self.waiting[0].operation
        return sum(sum(one.costs[one.next_input :]) for one in self.waiting if one.operation == operation)

    def collect_parts(self) -> list[tuple[Ticket[OperationT], int, int]]:
        """Take inputs of the oldest ticket's operation, in order of arrival, up to the token budget."""
        operation, budget = self.waiting[0].operation, self.max_tokens
        parts, rest = list[tuple[Ticket[OperationT], int, int]](), deque[Ticket[OperationT]]()
        for ticket in self.waiting:
            if ticket.future.done():
                continue
            low = high = ticket.next_input
            if ticket.operation == operation:
                while high < len(ticket.inputs) and (ticket.costs[high] <= budget or not (parts or high > low)):
                    budget -= ticket.costs[high]
                    high += 1
            if high > low:
                ticket.next_input = high
                parts.append((ticket, low, high))
            if high < len(ticket.inputs):
                rest.append(ticket)
                if ticket.operation == operation:
                    budget = 0  # later requests do not overtake this one
        self.waiting = rest
        return parts

    def compute_batch(self, parts: list[tuple[Ticket[OperationT], int, int]]) -> None:
        """Compute a batch and hand out its results; after a failure, each request's inputs alone."""
        began = time.monotonic()
        for ticket, _, _ in parts:
            if ticket.queue_seconds is None:
                ticket.queue_seconds = began - ticket.arrival
        inputs = [one for ticket, low, high in parts for one in ticket.inputs[low:high]]
        try:
            results = list(self.run_batch(parts[0][0].operation, inputs))
            assert len(results) == len(inputs), "a result for each input"
        except Exception as error:
            if len(parts) > 1:
                for part in parts:
                    self.compute_batch([part])
            else:
                self.finish(parts[0][0], error)
            return
        seconds = time.monotonic() - began
        if self.on_batch is not None:
            self.on_batch(len(inputs), sum(sum(ticket.costs[low:high]) for ticket, low, high in parts))
        at = 0
        for ticket, low, high in parts:
            ticket.results.extend(results[at : at + high - low])
            at += high - low
            ticket.inference_seconds += seconds
            if len(ticket.results) == len(ticket.inputs):
                self.finish(ticket)

    def finish(self, ticket: Ticket[OperationT], error: Exception | None = None) -> None:
        """Hand a request its results or its error, unless it was cancelled meanwhile."""
        if not ticket.future.set_running_or_notify_cancel():
            return
        if error is None:
            if self.on_answer is not None:
                self.on_answer(ticket.queue_seconds or 0.0, ticket.inference_seconds)
            ticket.future.set_result(ticket.results)
        else:
            ticket.future.set_exception(error)

    def stop(self) -> None:
        """Compute what waits, take nothing more, and end the thread."""
        with self.condition:
            self.is_stopping = True
            self.condition.notify()
        if self.thread is not threading.current_thread():
            self.thread.join()
