"""Continuous batching: requests of different lengths share a model's steps, and come and go at any of them (Yu et al.
2022, "Orca", §3)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import Error
from ..former import Former
from ..nn.cache import Cache
from ..tasks.inputs import start_token
from .engine import are_finite, check_rows
from .options import Options
from .rules import Rules, end_marks
from .runner import Runner
from .sample import check, law_of

Choose = Callable[[Tensor, Sequence[int], int], int]  # logits (vocab,), the text so far and the step → a token


class Request:
    """A text that is being continued: iterate over its new tokens as they come, or wait for all of them."""

    def __init__(self, prompt: list[int], text: list[int], tokens: int, choose: Choose):
        self.prompt, self.text, self.tokens, self.choose = prompt, text, tokens, choose
        self.begun = len(text)
        self.window = 0  # where what is read of the text begins
        self.cancelled = False
        self.fault: BaseException | None = None
        self._pieces: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[int]:
        while (token := self._pieces.get()) is not None:
            yield token
        if self.fault is not None:
            raise self.fault

    def result(self) -> list[int]:
        """All new tokens, without the end mark."""
        return list(self)

    def cancel(self) -> None:
        """Give the place free before the next step; what was written stays."""
        self.cancelled = True

    def put(self, token: int | None) -> None:
        """One more token; None is the end."""
        self._pieces.put(token)


class Engine:
    """A model with `slots` places for requests, each of up to `size` tokens. Submit from any thread.

    `with Engine(former) as engine:` works in a thread of its own; else call `step()` until it says that nothing is
    left. Every request gets the text that it would get alone.
    """

    def __init__(self, former: Former, slots: int = 8, size: int | None = None):
        context = getattr(former.config, "context", None)
        self.former, self.size = former, size or context or 1024
        self.context = min(context or self.size, self.size)
        if not issubclass(former.state, Cache):
            what = f"{former.family} keeps hidden states, and its rows cannot come and go"
            raise Error(what, fix="generate with it text by text")
        self.runner = Runner(former, slots, self.size)
        self.ends = end_marks(former)
        self.running: dict[int, Request] = {}
        self.waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._work, self._stop = threading.Event(), False
        self._thread: threading.Thread | None = None

    def submit(self, prompt: Sequence[int], tokens: int = 64, choose: Options | Choose = Options()) -> Request:
        """Ask for up to `tokens` more tokens, chosen by options or by a function; of encoder-decoders the prompt is the
        source."""
        ids = check(self.former, [prompt], tokens)[0]
        if len(ids) > self.size:
            raise Error(f"{len(ids)} tokens do not fit into {self.size}", fix="make an engine of a larger size")
        if isinstance(choose, Options) and choose.each > 1:
            raise Error("a request is one text", fix="submit one for each sample, with seeds of their own; no beams")
        pick = picking(law_of(self.former, choose, tokens)) if isinstance(choose, Options) else choose
        text = [start_token(self.former.config)] if self.former.pair else list(ids)
        request = Request(ids, text, tokens, pick)
        self.waiting.put(request)
        self._work.set()
        return request

    @torch.inference_mode()
    def step(self) -> bool:
        """One token for every request that has a place; whether there is any."""
        for slot, request in list(self.running.items()):
            if request.cancelled:
                self.leave(slot)
        new = self.join()
        fed = [[self.running[i].text[-1]] if i in self.running and i not in new else [] for i in range(self.slots)]
        if any(fed):
            logits = self.runner.read(fed)
            new |= {slot: logits[slot] for slot, row in enumerate(fed) if row}
        for slot, row in new.items():
            self.add(slot, row)
        return bool(self.running) or not self.waiting.empty()

    @property
    def slots(self) -> int:
        """How many requests have a place at most."""
        return len(self.runner.starts) - 1

    def join(self) -> dict[int, Tensor]:
        """Give free places to those who wait, and read anew the last half of a text that has filled its context."""
        free, found = [i for i in range(self.slots) if i not in self.running], {}
        while free and not self.waiting.empty():
            request = self.waiting.get()
            if request.cancelled:
                request.put(None)
                continue
            slot = free.pop(0)
            self.running[slot] = request
            request.window = max(0, len(request.text) - self.context)
            found[slot] = self.enter(slot)
        for slot, request in self.running.items():
            if slot not in found and len(request.text) - request.window > self.context:
                request.window = len(request.text) - (self.context // 2 or 1)
                found[slot] = self.enter(slot)
        return found

    def enter(self, slot: int) -> Tensor:
        """Read a text by itself, and put what was read into a place."""
        request = self.running[slot]
        text = request.text[request.window :]
        alone = Runner(self.former, 1, len(text), [request.prompt] if self.former.pair else None)
        logits = alone.read([text])[0]
        assert isinstance(alone.state, Cache)
        self.runner.take(slot, alone, self.size)
        return logits

    def add(self, slot: int, logits: Tensor) -> None:
        """Choose a request's next token."""
        request = self.running[slot]
        step = len(request.text) - request.begun
        try:
            token = request.choose(logits, request.text, step)
        except Exception as error:
            request.fault = error
            return self.leave(slot)
        if token in self.ends:
            return self.leave(slot)
        request.text.append(token)
        request.put(token)
        if step + 1 >= request.tokens:
            self.leave(slot)

    def leave(self, slot: int) -> None:
        """A request ends, and its place is free."""
        self.runner.drop(slot)
        self.running.pop(slot).put(None)

    def work(self) -> None:
        """Step as long as there is something to do; a fault ends all requests with it."""
        while not self._stop:
            self._work.wait()
            self._work.clear()
            try:
                while not self._stop and self.step():
                    pass
            except BaseException as error:
                for slot, request in list(self.running.items()):
                    request.fault = error
                    self.leave(slot)
                self._work.set()  # others may be waiting
        while self.running:
            self.leave(next(iter(self.running)))
        while not self.waiting.empty():
            self.waiting.get().put(None)

    def __enter__(self) -> Engine:
        self._stop, self._thread = False, threading.Thread(target=self.work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *what: Any) -> None:
        self._stop = True
        self._work.set()
        if self._thread is not None:
            self._thread.join()


def picking(law: Rules) -> Choose:
    """The choice of one request under rules; a draw depends on the seed and the step alone."""

    def choose(logits: Tensor, text: Sequence[int], step: int) -> int:
        page = torch.tensor([list(text)], device=logits.device) if law.reads else None
        scores = logits[None].float()
        token, finite = torch.cat((law.options.pick(law.apply(scores, page, step), step), are_finite(scores))).tolist()
        check_rows([finite], [1])
        return token

    return choose
