"""Loaded models that answer requests: each with a queue of batches and, if it generates, an engine."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePath
from typing import TypeVar

import numpy as np
import torch

from ..config import Settings
from ..errors import Error
from ..former import Former
from ..generation.engine import Engine, build_engine
from ..inspection.embed import compute_states, embed
from ..tasks.encoding import TokenizedText, tokenize_texts
from ..verbs import can_generate, list_verbs, resolve_verb
from .batching import BatchScheduler, Ticket, VerbInput, VerbResult
from .metrics import ServerMetrics
from .responses import Overloaded, RequestError
from .settings import ServerSettings

ResultT = TypeVar("ResultT")
ModelLoader = Callable[[str], Former]
logger = logging.getLogger("formers.serving")


@dataclass(frozen=True)
class Operation:
    """What is computed of texts: a verb of formers (or one of the two kinds of vectors), with its options."""

    name: str
    options: tuple[tuple[str, Hashable], ...] = ()

    def run(self, former: Former, inputs: list[VerbInput]) -> Sequence[VerbResult]:
        """Compute the results of inputs, one for each."""
        how: Settings = dict(self.options)
        if self.name == "embed":
            return embed(former, inputs, **how).numpy()
        if self.name == "embed_tokens":
            return embed_all_tokens(former, inputs)
        verb: Callable[..., VerbResult] = resolve_verb(self.name)
        if self.name == "inspect":  # which takes one text
            return [verb(former, text, **how) for text in inputs]
        return verb(former, inputs, **how)


def make_operation(name: str, /, **options: Hashable) -> Operation:
    """Make an operation; options that are None are left to the verb."""
    return Operation(name, tuple(sorted((k, v) for k, v in options.items() if v is not None)))


def embed_all_tokens(former: Former, texts: Sequence[TokenizedText]) -> list[np.ndarray]:
    """Compute the vectors of all tokens of each text, marks such as [CLS] included: (tokens, dim)."""
    vectors: dict[int, np.ndarray] = {}
    for number, states in compute_states(former, texts, lambda x: x):
        vectors[number] = torch.cat((states.prefix_vectors, states.vectors, states.suffix_vectors)).numpy()
    return [vectors[number] for number in range(len(texts))]


class ServedModel:
    """A model under a name. `version` tells two loadings of it apart; it stays until its last request is answered."""

    def __init__(
        self, name: str, source: str, former: Former, settings: ServerSettings, metrics: ServerMetrics, loading: int = 0
    ):
        self.name, self.source, self.former, self.settings, self.metrics = name, source, former, settings, metrics
        former.model.eval()
        self.version = f"{former.fingerprint[:12]}.{loading}"
        self.created, self.verbs = int(time.time()), list_verbs(former)
        self.lock = threading.Lock()  # of the two numbers, which the event loop and the workers change
        self.num_requests = 0  # that hold this model now
        self.num_arriving = 0  # that have not reached a queue yet
        self.is_retired = self.is_closed = False
        limits = settings.limits
        self.scheduler: BatchScheduler[Operation] = BatchScheduler(
            lambda operation, inputs: operation.run(former, inputs), limits.max_batch_tokens, limits.max_queue,
            limits.batch_delay_seconds, lambda: self.num_arriving > 0, metrics.record_batch, metrics.record_answer,
        )  # fmt: skip
        self.engine: Engine | None = None
        if can_generate(former) and former.tokenizer is not None:
            self.engine = build_engine(former, limits.max_sequences, self.max_tokens)
            self.engine.__enter__()
            metrics.running.labels(name).set_function(lambda: self.num_running)
            metrics.waiting.labels(name).set_function(lambda: self.num_waiting)

    @property
    def num_running(self) -> int:
        """The number of texts that are being generated."""
        return 0 if self.engine is None else len(self.engine.active_requests)

    @property
    def num_waiting(self) -> int:
        """The number of texts that wait to be generated."""
        return 0 if self.engine is None else len(self.engine.waiting_requests)

    @property
    def max_tokens(self) -> int:
        """The most tokens that the model reads at once."""
        limit = self.settings.limits.max_tokens
        return limit if self.former.context is None else self.former.context

    @property
    def is_reranker(self) -> bool:
        """True for a cross-encoder: a head with one number, which reads pairs."""
        takes_pairs = self.former.task.get("takes_pairs", True)
        return len(self.former.labels) == 1 and "score" in self.verbs and takes_pairs is not False

    def check_verb(self, name: str) -> None:
        """Refuse a verb that this model does not answer."""
        if name not in self.verbs:
            fix = f"it can {', '.join(self.verbs)}"
            raise RequestError(f"the model {self.name!r} does not {name}", fix=fix, code="unsupported_model")

    def tokenize(self, texts: Sequence[str], truncate: bool = False) -> tuple[list[TokenizedText], list[int]]:
        """Tokenize texts to be embedded; returns them with their numbers of tokens, marks included.

        A text that is longer than the model's context is cut only where `truncate` asks for it; otherwise it will be
        read in windows.
        """
        began = time.perf_counter()
        pieces = tokenize_texts(self.former, texts)
        context = self.former.context
        if truncate and context is not None:
            pieces = [cut_text(piece, context) for piece in pieces]
        costs = [len(p.tokens) + len(p.prefix_ids) + len(p.suffix_ids) for p in pieces]
        for number, cost in enumerate(costs, 1):
            self.check_cost(cost, f"text {number}")
            if cost == 0 and not self.former.definition.is_static:
                raise RequestError(f"text {number} is empty", kind="empty", fix="leave empty texts out")
        self.metrics.tokenization.observe(time.perf_counter() - began)
        return pieces, costs

    def check_cost(self, tokens: int, what: str) -> None:
        """Refuse a text that is longer than a whole batch."""
        self.metrics.input_lengths.observe(tokens)
        if tokens > (limit := self.settings.limits.max_batch_tokens):
            fix = "send it in parts, or start with --max-batch-tokens"
            raise RequestError(f"{what} has {tokens:,} tokens, and {limit:,} are allowed", status=413, fix=fix)

    def count_tokens(self, *texts: str) -> int:
        """Count the tokens of a text, or of several that are read together."""
        tokenizer = self.former.tokenizer
        if tokenizer is None:
            return sum(len(text.split()) for text in texts)
        return sum(len(tokenizer.encode(text)) for text in texts)

    def submit(self, operation: Operation, inputs: list[VerbInput], costs: list[int]) -> Ticket[Operation]:
        """Queue inputs for a batch."""
        return self.scheduler.submit(operation, inputs, costs)

    def check_queue(self, count: int) -> None:
        """Refuse more texts to generate than may wait."""
        if self.num_waiting and self.num_waiting + count > self.settings.limits.max_queue:
            raise Overloaded(f"{self.num_waiting} texts wait to be generated")

    def acquire(self) -> bool:
        """Count a request that begins to use this model; returns False if the model is closed."""
        with self.lock:
            self.num_requests += not self.is_closed
            self.num_arriving += not self.is_closed
            return not self.is_closed

    def try_retire(self) -> bool:
        """Close the model to requests if none holds it; returns whether it is closed."""
        with self.lock:
            self.is_closed = not self.num_requests
            return self.is_closed

    def close(self) -> None:
        """End the threads, after all that waits is answered."""
        self.scheduler.stop()
        if self.engine is not None:
            while self.num_running or self.num_waiting:
                time.sleep(0.005)
            self.engine.__exit__()


def cut_text(piece: TokenizedText, context: int) -> TokenizedText:
    """Cut a text at the end so that it fits into the context with its marks."""
    room = max(0, context - len(piece.prefix_ids) - len(piece.suffix_ids))
    if len(piece.tokens) <= room:
        return piece
    end = piece.spans[room - 1][1] if room else 0
    tokens, spans = piece.tokens[:room], piece.spans[:room]
    return TokenizedText(piece.text[:end], tokens, spans, piece.ids[:room], piece.prefix_ids, piece.suffix_ids)


class ModelTable:
    """The models of a server, by name. Reloading replaces them one by one; an old one ends with its last request."""

    def __init__(self, sources: Sequence[str], load: ModelLoader, settings: ServerSettings, metrics: ServerMetrics):
        self.load, self.settings, self.metrics, self.loading = load, settings, metrics, 0
        self.sources = name_sources(sources)
        self.models: dict[str, ServedModel] = {}
        self.retired: set[ServedModel] = set()
        self.workers = ThreadPoolExecutor(2, "formers-tokenize")
        self.lock = threading.Lock()  # one reload at a time
        self.retired_lock = threading.Lock()  # a reload and the event loop change the set
        metrics.watch_queues(lambda: sum(len(one.scheduler.waiting) for one in self.models.values()))

    def load_all(self) -> None:
        """Load every model, or load it again; a model that cannot be loaded again stays as it was."""
        with self.lock:
            for name, source in self.sources.items():
                try:
                    former = self.load_apart(source)
                except Exception as error:
                    if name not in self.models:
                        raise
                    reason = str(error) if isinstance(error, Error) else type(error).__name__
                    logger.error("reload failed", extra={"facts": {"model": name, "reason": reason}})
                    continue
                self.replace(ServedModel(name, source, former, self.settings, self.metrics, self.loading))
            self.loading += 1

    def load_apart(self, source: str) -> Former:
        """Load a model in a thread that ends with it. OpenMP keeps a team for every thread that has computed, and with
        more threads in teams than cores it sends them to sleep after each operation: a request took 3 ms longer."""
        with ThreadPoolExecutor(1, "formers-load") as loader:
            return loader.submit(self.load, source).result()

    def replace(self, new: ServedModel) -> None:
        """Serve a model in place of the one of its name."""
        old = self.models.get(new.name)
        self.models = {**self.models, new.name: new}
        logger.info("model", extra={"facts": {"model": new.name, "version": new.version, "verbs": list(new.verbs)}})
        if old is not None:
            old.is_retired = True
            with self.retired_lock:
                self.retired.add(old)
            self.close_retired()

    def close_retired(self) -> None:
        """Close replaced models that no request holds any more; a request that comes too late is told so."""
        with self.retired_lock:
            idle = [one for one in self.retired if one.try_retire()]
            self.retired.difference_update(idle)
        for old in idle:
            threading.Thread(target=old.close, daemon=True).start()

    def find(self, name: str | None = None, verb: str | None = None) -> ServedModel:
        """Find a model by its name, or without one the first that answers a verb."""
        if name is not None and name != "":
            if (served := self.models.get(name)) is None:
                known = ", ".join(self.models)
                raise RequestError("there is no such model", status=404, fix=f"choose {known}", code="model_not_found")
            if verb is not None:
                served.check_verb(verb)
            return served
        models = list(self.models.values())
        fitting = [one for one in models if verb is None or verb in one.verbs]
        if not fitting:
            models[0].check_verb(verb or "")
        return fitting[0]

    def close(self) -> None:
        """Close all models."""
        with self.retired_lock:
            retired = list(self.retired)
        for one in (*self.models.values(), *retired):
            one.close()
        self.workers.shutdown(wait=False)

    async def run(self, function: Callable[..., ResultT], *arguments: object) -> ResultT:
        """Run a function on a worker thread, so that the event loop continues."""
        return await asyncio.get_running_loop().run_in_executor(self.workers, function, *arguments)


class ModelLease:
    """A model for the time of one request: `with ModelLease(table, model):`. It counts as arriving until it says that
    its texts are in a queue."""

    def __init__(self, table: ModelTable, model: ServedModel):
        self.table, self.model, self.is_arriving = table, model, True

    def __enter__(self) -> ModelLease:
        if not self.model.acquire():
            raise Overloaded("the model is being replaced", status=503)
        return self

    def mark_queued(self) -> None:
        """Say that the request's texts are in a queue."""
        with self.model.lock:
            self.model.num_arriving -= self.is_arriving
            self.is_arriving = False

    def __exit__(self, *what: object) -> None:
        self.mark_queued()
        with self.model.lock:
            self.model.num_requests -= 1
        if self.model.is_retired:
            self.table.close_retired()


def name_sources(sources: Sequence[str]) -> dict[str, str]:
    """Name each model by the last part of its path, or by NAME in NAME=PATH; names must differ."""
    named: dict[str, str] = {}
    for source in sources:
        name, equal, path = source.partition("=")
        if not equal:
            path = source
            parts = PurePath(source.removeprefix("hub:")).parts
            name = next((part for part in reversed(parts) if part not in ("model", ".", "..", "/")), "model")
        if not name or "/" in name or not name.isprintable():
            raise Error(f"{name!r} cannot name a model", fix="write NAME=PATH with letters, digits, - and _")
        if name in named:
            raise Error(f"two models are named {name!r}", fix=f"name one of them: other-name={path}")
        named[name] = path
    if not named:
        raise Error("there is no model to serve", fix="give at least one: formers serve MODEL")
    return named
