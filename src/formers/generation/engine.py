"""Continuous batching: requests of different lengths share a model's steps, and join or leave at any step (Yu et al.
2022, "Orca", §3)."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import Error
from ..former import Former
from ..nn.attention.kv_cache import KVCache
from .decoding import (
    DecodingBatch,
    are_finite,
    begin_sequence,
    build_id_constraints,
    check_prompts,
    check_rows_finite,
)
from .logits_processors import Constraints, get_end_ids
from .options import Options
from .runner import Runner
from .sampling import pick_tokens

PREFILL_TOKENS = 2048  # of prompts that are read together: more are no faster, and hold up the texts that grow
Result = TypeVar("Result")
TokenChooser = Callable[[Tensor, Sequence[int], int], int]  # logits (vocab,), the text so far and the step → a token
TokenListener = Callable[["Request", int | None], None]  # is called with each new token, and with None at the end


class Request:
    """A sequence that is being generated: iterate over its new tokens as they come, or wait for all of them.

    With a `listener`, each token goes to it instead, on the engine's thread.
    """

    def __init__(
        self, prompt: list[int], text: list[int], tokens: int, choose: TokenChooser,
        listener: TokenListener | None = None,
    ):  # fmt: skip
        self.prompt_ids, self.token_ids, self.max_new_tokens, self.choose_token = prompt, text, tokens, choose
        self.listener = listener
        self.prompt_length = len(text)
        self.window_start = 0  # where what is read of the text begins
        self.is_cancelled = False
        self.error: BaseException | None = None
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[int]:
        while (token := self._queue.get()) is not None:
            yield token
        if self.error is not None:
            raise self.error

    def result(self) -> list[int]:
        """Wait for all new tokens, and return them without the end mark."""
        return list(self)

    def cancel(self) -> None:
        """Free the slot before the next step; tokens so far are kept."""
        self.is_cancelled = True

    def put_token(self, token: int | None) -> None:
        """Pass one more token to the reader; None is the end. A listener that fails ends only its own request."""
        if self.listener is None:
            self._queue.put(token)
            return
        try:
            self.listener(self, token)
        except Exception as error:
            self.error = self.error or error
            self.cancel()


class Engine:
    """A model with `num_slots` slots for requests of up to `cache_size` tokens each. Submit from any thread.

    `with Engine(former) as engine:` runs in a thread of its own; else call `step()` until it returns False. Every
    request gets the output that it would get alone."""

    def __init__(self, former: Former, num_slots: int = 8, cache_size: int | None = None):
        context = former.context
        self.former, self.cache_size = former, cache_size or context or 1024
        self.context = min(context or self.cache_size, self.cache_size)
        if not issubclass(former.state_class, KVCache):
            raise Error(f"{former.family} has no KV cache, which continuous batching needs", fix="use generate")
        self.runner, self.num_slots = Runner(former, num_slots, self.cache_size), num_slots
        self.prepare_queue(former)

    def prepare_queue(self, former: Former) -> None:
        """Start without requests."""
        self.end_ids = get_end_ids(former)
        self.active_requests: dict[int, Request] = {}
        self.waiting_requests: deque[Request] = deque()  # appended to by any thread, emptied by the engine's
        self.waiting_calls: queue.SimpleQueue[tuple[Future[object], Callable[[], object]]] = queue.SimpleQueue()
        self._wake_event, self._is_stopping = threading.Event(), False
        self._thread: threading.Thread | None = None

    def submit(
        self, prompt: Sequence[int], max_new_tokens: int = 64, choose: Options | TokenChooser = Options(),
        listener: TokenListener | None = None,
    ) -> Request:  # fmt: skip
        """Request up to `max_new_tokens` tokens after a prompt (or source), chosen by options or by a function."""
        ids = check_prompts(self.former, [prompt], max_new_tokens)[0]
        if len(ids) > self.cache_size:
            what = f"{len(ids)} tokens do not fit into {self.cache_size}"
            raise Error(what, fix="make an engine with a larger cache_size")
        if isinstance(choose, Options):
            if choose.rows_per_prompt > 1:
                fix = "submit one for each sample, with its own seed; without beams"
                raise Error("a request generates one text", fix=fix)
            choose = make_chooser(build_id_constraints(self.former, choose, max_new_tokens))
        request = Request(ids, begin_sequence(self.former, ids), max_new_tokens, choose, listener)
        self.waiting_requests.append(request)
        self._wake_event.set()
        return request

    def run_between_steps(self, function: Callable[[], Result]) -> Future[Result]:
        """Call a function that reads the model on the engine's thread, where no step runs at the same time."""
        future: Future[Any] = Future()  # dynamic: one queue holds calls of any result
        self.waiting_calls.put((future, function))
        self._wake_event.set()
        return future

    def run_waiting_calls(self) -> None:
        """Run the functions that wait for the model."""
        while not self.waiting_calls.empty():
            future, function = self.waiting_calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

    @torch.inference_mode()
    def step(self) -> bool:
        """Generate one token for every active request; returns whether any request is left."""
        self.run_waiting_calls()
        for slot, request in list(self.active_requests.items()):
            if request.is_cancelled:
                self.release_slot(slot)
        for request in [one for one in list(self.waiting_requests) if one.is_cancelled]:  # they need no slot to end
            self.waiting_requests.remove(request)
            request.put_token(None)
        new = self.admit_requests()
        active = {slot: request.token_ids[-1:] for slot, request in self.active_requests.items() if slot not in new}
        new_ids = [active.get(slot, []) for slot in range(self.num_slots)]
        if any(new_ids):
            self.runner.limit_slots(max(self.count_cached_tokens(request) for request in self.active_requests.values()))
            logits = self.runner.score_next(new_ids)
            new |= {slot: logits[slot] for slot, row in enumerate(new_ids) if row}
        for slot, row in new.items():
            self.append_token(slot, row)
        return bool(self.active_requests or self.waiting_requests)

    def admit_requests(self) -> dict[int, Tensor]:
        """Admit waiting requests to free slots, and read the last half of a sequence that has filled its context."""
        free, new = [i for i in range(self.num_slots) if i not in self.active_requests], list[int]()
        for slot, request in self.active_requests.items():
            if len(request.token_ids) - request.window_start > self.context:
                request.window_start = len(request.token_ids) - (self.context // 2 or 1)
                new.append(slot)
        while free and self.waiting_requests:
            request = self.waiting_requests.popleft()
            slot = free.pop(0)
            self.active_requests[slot] = request
            request.window_start = max(0, len(request.token_ids) - self.context)
            new.append(slot)
        logits_by_slot: dict[int, Tensor] = {}
        while new:
            group = self.select_prefill_group(new)
            del new[: len(group)]
            logits_by_slot |= self.try_prefill(group)
        return logits_by_slot

    def try_prefill(self, slots: Sequence[int]) -> dict[int, Tensor]:
        """Prefill slots together; if that fails, each alone, so that only the request at fault gets the error."""
        try:
            return self.prefill_slots(slots)
        except Exception as error:
            if len(slots) > 1:
                return {slot: row for one in slots for slot, row in self.try_prefill([one]).items()}
            self.active_requests[slots[0]].error = error
            self.release_slot(slots[0])
            return {}

    def select_prefill_group(self, slots: Sequence[int]) -> list[int]:
        """Select the first slots whose sequences are read together: up to `PREFILL_TOKENS` tokens, and for an
        encoder-decoder, whose sources lie in the cache as well, one."""
        group, total = list[int](), 0
        for slot in slots:
            request = self.active_requests[slot]
            total += len(request.token_ids) - request.window_start
            if group and (total > PREFILL_TOKENS or self.former.is_encoder_decoder):
                break
            group.append(slot)
        return group

    def prefill_slots(self, slots: Sequence[int]) -> dict[int, Tensor]:
        """Read the sequences of requests with a runner of their own, and copy its cache into their slots."""
        requests = [self.active_requests[slot] for slot in slots]
        texts = [request.token_ids[request.window_start :] for request in requests]
        sources = [request.prompt_ids for request in requests] if self.former.is_encoder_decoder else None
        prefill_runner = Runner(self.former, len(texts), max(map(len, texts)), sources)
        logits = prefill_runner.score_next(texts)
        for row, slot in enumerate(slots):
            self.runner.adopt_row(slot, prefill_runner, row)
        return dict(zip(slots, logits, strict=True))

    def count_cached_tokens(self, request: Request) -> int:
        """Count the tokens of a request that the cache holds: all but the newest."""
        return len(request.token_ids) - request.window_start - 1

    def append_token(self, slot: int, logits: Tensor) -> None:
        """Choose a request's next token and hand it out."""
        request = self.active_requests[slot]
        step = len(request.token_ids) - request.prompt_length
        try:
            token = request.choose_token(logits, request.token_ids, step)
        except Exception as error:
            request.error = error
            return self.release_slot(slot)
        if token in self.end_ids:
            return self.release_slot(slot)
        request.token_ids.append(token)
        request.put_token(token)
        if step + 1 >= request.max_new_tokens:
            self.release_slot(slot)

    def release_slot(self, slot: int) -> None:
        """End a request and free its slot."""
        self.clear_slot(slot)
        self.active_requests.pop(slot).put_token(None)

    def clear_slot(self, slot: int) -> None:
        """Forget what the request in a slot has read."""
        self.runner.clear_row(slot)

    def run_loop(self) -> None:
        """Step while there are requests; an exception ends all active ones."""
        while not self._is_stopping:
            self._wake_event.wait()
            self._wake_event.clear()
            try:
                while not self._is_stopping and self.step():
                    pass
            except BaseException as error:
                for slot, request in list(self.active_requests.items()):
                    request.error = error
                    self.release_slot(slot)
                self._wake_event.set()  # others may be waiting
        unfinished = Error("the engine was stopped before the text was finished", fix="ask again")
        while self.active_requests:  # a text that is cut short is not handed out as a whole one
            slot, request = next(iter(self.active_requests.items()))
            request.error = None if request.is_cancelled else unfinished
            self.release_slot(slot)
        while self.waiting_requests:
            request = self.waiting_requests.popleft()
            request.error = None if request.is_cancelled else unfinished
            request.put_token(None)
        while not self.waiting_calls.empty():
            self.waiting_calls.get()[0].cancel()

    def __enter__(self) -> Engine:
        self._is_stopping, self._thread = False, threading.Thread(target=self.run_loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self._is_stopping = True
        self._wake_event.set()
        if self._thread is not None:
            self._thread.join()


class SequentialEngine(Engine):
    """An engine for families without a KV cache (Transformer-XL, XLNet): one request after the other."""

    def __init__(self, former: Former):
        self.former, self.cache_size, self.num_slots = former, former.context or 2**24, 1
        self.batch: DecodingBatch | None = None
        self.prepare_queue(former)

    def admit_requests(self) -> dict[int, Tensor]:
        """Admit the next waiting request if none is active, and compute the logits of the active one's next token."""
        if not self.active_requests and self.waiting_requests:
            request = self.waiting_requests.popleft()
            self.active_requests[0] = request
            self.batch = DecodingBatch(self.former, [request.prompt_ids], request.max_new_tokens)
        if self.batch is None:
            return {}
        return {0: self.batch.score_next()[0]}

    def append_token(self, slot: int, logits: Tensor) -> None:
        """Choose the request's next token and hand it out."""
        request = self.active_requests[slot]
        super().append_token(slot, logits)
        if self.batch is not None:
            self.batch.append_tokens(request.token_ids[-1:])

    def clear_slot(self, slot: int) -> None:
        """Forget what the request has read."""
        self.batch = None


def build_engine(former: Former, num_slots: int = 8, cache_size: int | None = None) -> Engine:
    """Build the engine that fits the family: continuous batching needs a KV cache."""
    if issubclass(former.state_class, KVCache):
        return Engine(former, num_slots, cache_size)
    return SequentialEngine(former)


def make_chooser(constraints: Constraints, sample: int = 0) -> TokenChooser:
    """Make the token chooser of one request; a draw depends on the seed, the sample's number and the step alone."""

    def choose(logits: Tensor, text: Sequence[int], step: int) -> int:
        history = torch.tensor([list(text)], device=logits.device) if constraints.has_history_rules else None
        scores = logits[None].float()
        picked = pick_tokens(constraints.apply(scores, history, step), constraints.options, step, sample)
        token, finite = torch.cat((picked, are_finite(scores))).tolist()
        check_rows_finite([finite], [1])
        return token

    return choose
