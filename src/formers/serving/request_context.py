"""The way of a request from its route to a model and back: off the event loop, with a deadline, and given up as soon as
its client is gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ..config import JSONObject
from ..generation.options import Options
from .batching import Ticket, VerbInput, VerbResult
from .completions import Completion, ScoredToken, make_prompt, make_sampling_options, score_prompt, start_completion
from .metrics import ServerMetrics
from .responses import Overloaded, RequestError
from .served_models import ModelLease, ModelTable, Operation, ResultT, ServedModel, make_operation
from .settings import ServerSettings


@dataclass
class ServerState:
    """What the routes of one server share."""

    settings: ServerSettings
    models: ModelTable
    metrics: ServerMetrics
    is_draining: bool = False


class Vectors(NamedTuple):
    """Vectors of texts, and the number of tokens of each text."""

    rows: list[np.ndarray]
    token_counts: list[int]


def get_state(request: Request) -> ServerState:
    """Return what the routes of this server share."""
    return request.app.state.server


def add_log_facts(request: Request, **facts: object) -> None:
    """Add facts to the request's log line: names and numbers, nothing of a text."""
    request.scope.setdefault("log_facts", {}).update(facts)


async def wait_until_gone(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def count_seconds_left(request: Request) -> float:
    """Count the seconds until the request's deadline, which runs from its arrival."""
    return max(0.0, request.scope["deadline"] - time.monotonic())


def make_timeout(request: Request) -> Overloaded:
    """Make the error of a request whose time is over."""
    seconds = get_state(request).settings.limits.request_seconds
    return Overloaded(f"no answer within {seconds:g} seconds", status=503)


async def wait_for_answer(request: Request, future: Future[ResultT]) -> ResultT:
    """Wait for a result; give it up when the client is gone or the request's time is over."""
    answer = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(wait_until_gone(request))
    try:
        futures: set[asyncio.Future[ResultT] | asyncio.Future[None]] = {answer, gone}
        await asyncio.wait(futures, timeout=count_seconds_left(request), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if gone.done():
            raise RequestError("the client is gone", status=499, kind="gone")
        raise make_timeout(request)
    finally:
        answer.cancel()
        gone.cancel()


async def compute_texts(
    request: Request, served: ServedModel, operation: Operation,
    prepare: Callable[[], tuple[list[VerbInput], list[int]]],
) -> tuple[list[VerbResult], list[int]]:  # fmt: skip
    """Compute an operation on the texts of a request; returns the results and the numbers of tokens.

    `prepare` gives the inputs and their tokens. It runs on a worker thread, which hands them to the model's queue
    itself: the event loop is not on the way, and a single request does not wait for it.
    """
    models = get_state(request).models
    with ModelLease(models, served) as lease:

        def submit() -> Ticket:
            inputs, costs = prepare()
            lease.mark_queued()
            return served.submit(operation, inputs, costs)

        ticket: Ticket = await models.run(submit)
        add_log_facts(request, model=served.name, texts=len(ticket.inputs), tokens=sum(ticket.costs))
        return await wait_for_answer(request, ticket.future), ticket.costs


async def embed_texts(
    request: Request, served: ServedModel, texts: Sequence[str], *, truncate: bool = False, normalise: bool = True,
    level: str = "embed",
) -> Vectors:  # fmt: skip
    """Embed texts as `formers.embed` does, in batches that other requests share; `level` "embed_tokens" gives the
    vectors of all tokens."""
    state = get_state(request)
    check_text_count(state, texts)
    how = {"pool": state.settings.pool, "normalise": normalise} if level == "embed" else {}
    operation = make_operation(level, **how)
    return Vectors(*await compute_texts(request, served, operation, lambda: served.tokenize(texts, truncate)))


async def run_verb(
    request: Request, served: ServedModel, verb: str, inputs: Sequence[VerbInput], **options: Hashable
) -> list[VerbResult]:
    """Run a verb of formers on inputs (texts, pairs of texts, …), in batches that other requests share."""
    served.check_verb(verb)
    state = get_state(request)
    check_text_count(state, inputs)

    def count_costs() -> tuple[list[VerbInput], list[int]]:
        costs = []
        for number, one in enumerate(inputs, 1):
            costs.append(served.count_tokens(*list_strings(one)))
            served.check_cost(costs[-1], f"text {number}")
        return list(inputs), costs

    return (await compute_texts(request, served, make_operation(verb, **options), count_costs))[0]


def list_strings(value: VerbInput) -> list[str]:
    """List the strings of a text, a pair, or a question with its choices."""
    return [value] if isinstance(value, str) else [text for part in value for text in list_strings(part)]


def check_text_count(state: ServerState, texts: Sequence[object]) -> None:
    """Refuse a request without texts, and one with too many."""
    if not texts:
        raise RequestError("there are no texts", kind="empty", fix="give at least one")
    if len(texts) > (limit := state.settings.limits.max_texts):
        what = f"the request has {len(texts):,} texts, and {limit:,} are allowed"
        raise RequestError(what, status=413, fix="send them in several requests, or start with --max-texts")


class TextEvent(NamedTuple):
    """A change of a text that is being generated: a new piece with its tokens, and at the end why it ended."""

    completion: Completion
    piece: str
    tokens: list[ScoredToken]
    finish_reason: str | None


@dataclass
class GenerationRequest:
    """Texts to be generated: `num_samples` for each prompt, drawn by `given` options; with `num_top`, the likeliest
    tokens beside each one are recorded, with `echo` those of the prompt too."""

    prompts: Sequence[str | list[int]]
    given: JSONObject = field(default_factory=dict)
    max_new_tokens: int | None = None
    num_samples: int = 1
    num_top: int | None = None
    echo: bool = False
    streams: bool = False
    forced_ids: Sequence[int] = ()  # the first new tokens of each text, taken as they are


class GenerationStream(StreamingResponse):
    """The events of a run as an answer. It frees the run also when its client was gone before the first event: an
    iterator that was never begun has nothing that could do so."""

    def __init__(self, run: GenerationRun, events: AsyncIterator[bytes]):
        super().__init__(events, media_type="text/event-stream")
        self.run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, and free the run."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.run.stop()


class GenerationRun:
    """The texts of one request at work: `async with GenerationRun(...) as run`, then `run.events()` or `run.finish()`.

    Leaving it frees the slots of all texts that are not finished, within one step.
    """

    def __init__(self, request: Request, served: ServedModel, wanted: GenerationRequest):
        served.check_verb("generate")
        self.request, self.served, self.wanted, self.state = request, served, wanted, get_state(request)
        self.lease = ModelLease(self.state.models, served)
        self.queue: asyncio.Queue[TextEvent] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()
        self.completions: list[Completion] = []
        self.prompt_ids: list[list[int]] = []
        self.prompt_tokens: list[list[ScoredToken]] = []
        self.is_stopped = False

    async def __aenter__(self) -> GenerationRun:
        self.lease.__enter__()
        try:
            await self.state.models.run(self.start)
            self.lease.mark_queued()
            if self.wanted.echo and self.wanted.num_top is not None:
                assert self.served.engine is not None
                for ids in self.prompt_ids:
                    score = self.served.engine.run_between_steps(self.make_scorer(ids))
                    self.prompt_tokens.append(await wait_for_answer(self.request, score))
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(self, *what: object) -> None:
        self.stop()

    def make_scorer(self, ids: list[int]) -> Callable[[], list[ScoredToken]]:
        """Make the function that scores a prompt."""
        return lambda: score_prompt(self.served.former, ids, self.wanted.num_top or 0)

    def start(self) -> None:
        """Encode the prompts and submit all texts; runs on a worker thread."""
        generation, served = self.wanted, self.served
        limit_new = generation.max_new_tokens
        limit_new = None if limit_new is None else limit_new + len(generation.forced_ids)
        prompts = [make_prompt(served, prompt, limit_new) for prompt in generation.prompts]
        self.prompt_ids = [ids for ids, _ in prompts]
        if generation.max_new_tokens == 0:
            self.add_finished_texts()
            return
        if (count := len(prompts) * generation.num_samples) > (limit := self.state.settings.limits.max_texts):
            what = f"the request asks for {count:,} texts, and {limit:,} are allowed"
            raise RequestError(what, status=413, fix="send several requests")
        served.check_queue(count)
        options: Options = make_sampling_options(generation.given, max(1, *(count for _, count in prompts)))
        for ids, count in prompts:
            for sample in range(generation.num_samples):
                one = Completion(len(self.completions), ids, count, generation.num_top, self.receive_change)
                one.forced_ids = generation.forced_ids
                self.completions.append(one)
                start_completion(served, one, options, sample)
        add_log_facts(self.request, model=served.name, texts=len(self.completions), tokens=self.num_prompt_tokens)

    def add_finished_texts(self) -> None:
        """Answer a request for no new tokens, which asks for the prompt's own scores."""
        for index, ids in enumerate(self.prompt_ids):
            one = Completion(index, ids, 0, self.wanted.num_top, self.receive_change, finish_reason="length")
            self.completions.append(one)
            self.receive_change(one, "", [])

    def receive_change(self, completion: Completion, piece: str, tokens: list[ScoredToken]) -> None:
        """Hand a change to the event loop; runs on the engine's thread. Without streaming, the end alone counts."""
        if self.wanted.streams or completion.finish_reason is not None:
            event = TextEvent(completion, piece, tokens, completion.finish_reason)
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self.loop.call_soon_threadsafe(self.queue.put_nowait, event)

    async def events(self) -> AsyncIterator[TextEvent]:
        """Yield the changes of all texts as they come, until the last is finished."""
        left = len(self.completions)
        while left:
            try:
                event = await asyncio.wait_for(self.queue.get(), count_seconds_left(self.request))
            except TimeoutError:
                raise make_timeout(self.request) from None
            left -= event.finish_reason is not None
            if event.finish_reason is not None and event.completion.error is not None:
                raise event.completion.error
            yield event

    async def finish(self) -> list[Completion]:
        """Wait for all texts; give them up when the client is gone."""

        async def read_all() -> None:
            async for _ in self.events():
                pass

        reading, gone = asyncio.ensure_future(read_all()), asyncio.ensure_future(wait_until_gone(self.request))
        try:
            await asyncio.wait({reading, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise RequestError("the client is gone", status=499, kind="gone")
            reading.result()
        finally:
            reading.cancel()
            gone.cancel()
        return self.completions

    def stop(self) -> None:
        """Free the slots of texts that are not finished, and the model; once."""
        if self.is_stopped:
            return
        self.is_stopped = True
        for one in self.completions:
            one.cancel()
        self.lease.__exit__()

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(map(len, self.prompt_ids))

    @property
    def num_new_tokens(self) -> int:
        """The tokens of all texts so far."""
        return sum(len(one.token_ids) for one in self.completions)
