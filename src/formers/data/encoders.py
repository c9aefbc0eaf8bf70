"""Processes that encode chunks of documents, in order, each with one thread."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Error
from ..text.tokenizer import Tokenizer
from ..text.workers import Workers
from .encode import Encoded, Units, encode, splitter
from .hygiene import Held

Reached = tuple[int, str, int]  # documents so far, a hash of their text, bytes of this chunk


@dataclass(frozen=True)
class Options:
    """What decides the bytes of a store beside its text and tokenizer."""

    splitter: str | None = "rules"
    units: str | None = None
    held_out: float = 0.0
    deduplicate: str | None = None
    shard: int = 128 << 20  # tokens
    unit: str | None = None
    column: str | None = None
    drop_tests: bool = False
    encoding: str = "utf-8"
    skip: bool = False
    tests_column: str | None = None
    delimiter: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise Error(f"a share of {self.held_out} cannot be held out", fix="give for example 0.01 or 1%")
        if not 0 < self.shard < 2**32:
            raise Error(f"a shard cannot have {self.shard:,} tokens", fix="take for example 100 million")
        for name, known in (("splitter", ("rules", "kiwi", "tabs")), ("deduplicate", ("exact", "near"))):
            if getattr(self, name) not in (None, *known):
                fix = "choose " + " or ".join(known) + ", or leave it out"
                raise Error(f"there is no {name} {getattr(self, name)!r}", fix=fix)


class Pool:
    """Encodes chunks in order, here (workers = 0) or in processes of its own."""

    def __init__(self, workers: int, tokenizer: Tokenizer, options: Options, where: Path):
        self.workers = workers
        self.work = (tokenizer.text, dict(tokenizer.special), options, where)
        self.pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Pool:
        if self.workers:
            self.pool = Workers(self.workers, initializer=start, initargs=self.work)
        else:
            begin_work(*self.work)
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)

    def map(self, chunks: Iterable[tuple[Reached, list[str]]]) -> Iterator[tuple[Reached, dict[str, Encoded]]]:
        """The chunks' arrays, in the chunks' order; a few chunks are ahead."""
        if self.pool is None:
            for reached, texts in chunks:
                yield reached, work(texts)
            return
        ahead: deque[tuple[Reached, Future[dict[str, Encoded]]]] = deque()
        try:
            for reached, texts in chunks:
                ahead.append((reached, self.pool.submit(work, texts)))
                if len(ahead) > 2 * self.workers:
                    reached, future = ahead.popleft()
                    yield reached, future.result()
            while ahead:
                reached, future = ahead.popleft()
                yield reached, future.result()
        except BrokenProcessPool:
            raise Error(
                "a worker process ended before its work was done",
                fix="is there enough memory? take fewer workers, and run the same again: finished shards stay",
            ) from None


TOOLS: tuple[Any, ...] = ()  # of this process: tokenizer, splitter, units, which documents are held out


def start(*given: Any) -> None:
    """What a worker process begins with: one thread, and Ctrl-C is for the main process alone."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    begin_work(*given)


def begin_work(text: str, special: dict[str, str], options: Options, where: Path) -> None:
    """Make the tools that `work` uses in this process."""
    global TOOLS
    units: Units | None = None
    if options.units == "kiwi":
        from ..text.korean import units
    elif options.units:
        from .phrases import finder, read

        units = finder(read(where / "phrases.txt" if options.units == "learn" else Path(options.units)))
    held = Held(share=options.held_out) if options.held_out else None
    TOOLS = (Tokenizer(text, special), splitter(options.splitter), units, held)


def work(texts: list[str]) -> dict[str, Encoded]:
    """One chunk's arrays, for each part."""
    tokenizer, split, units, held = TOOLS
    if held is None:
        return {"train": encode(texts, tokenizer, split, units)}
    sides: dict[str, list[str]] = {"train": [], "held": []}
    for text in texts:
        sides["held" if held(text) else "train"].append(text)
    return {part: encode(documents, tokenizer, split, units) for part, documents in sides.items()}
