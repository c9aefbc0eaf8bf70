"""formers prepare: documents to a token store, in constant memory, on any number of processes and machines.

The input files make groups, each group its own shards, and shards are cut at fixed places of the text: so the store is
the same for any number of workers and ranks. Each finished shard says how far it got; after a kill, the text before it
is read again but not encoded again. Whoever finds the last group finished writes store.json.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Tell
from ..errors import Error
from ..text.normalise import Changes
from ..text.tokenizer import Tokenizer
from .encode import Encoded, width
from .encoders import Options, Pool, Reached
from .finish import finish, made_of, records
from .hygiene import Seen
from .lock import locked
from .near import Near
from .overlap import Watch
from .overlap import batches as together
from .phrases import learn
from .phrases import read as read_phrases
from .readers import find, read
from .shards import Writer, put, seal, unseal
from .sources import Changed, Source, Sums, digest, opened, prove
from .store import FORMAT, Store
from .tables import WHICH

CHUNK = 1 << 19  # characters that are encoded at a time
WORKERS = 1024
LIKE = 0.8  # from this likeness on (0 to 1) two documents are nearly the same
PACKED = {".gz": 3.0, ".xz": 4.0, ".zst": 3.5}  # about how much larger text is than its file


def prepare(
    source: Any,
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    unit: str | None = None,
    column: str | None = None,
    encoding: str = "utf-8",
    skip: bool = False,
    delimiter: str | None = None,
    header: bool | None = None,
    workers: int = 0,
    splitter: str | None = "rules",
    units: str | None = None,
    held_out: float = 0.0,
    deduplicate: str | None = None,
    tests: Any = None,
    tests_column: str | None = None,
    drop_tests: bool = False,
    shard: int = 128 << 20,
    rank: int | None = None,
    ranks: int | None = None,
    tell: Tell | None = None,
) -> Store | None:
    """Make a token store of files, or of a list, DataFrame or dataset of documents; go on where an earlier run ended.

    `workers` = 0 encodes in this process, on the tokenizer's own threads. Under torchrun (RANK, WORLD_SIZE) each rank
    takes its share of the files; the answer is None for a rank that ends before others. `unit`, `column`, `encoding`,
    `skip`, `delimiter` and `header` are those of `read`. `held_out` is the share of documents that become the part
    "held". `units` is kiwi, learn or a file of phrases. `tests` (files, or {name: texts}) are looked for in the text:
    what is found is counted, and left out with `drop_tests`.
    """
    rank, ranks = place(rank, ranks)
    if not 0 <= workers <= WORKERS:
        fix = f"0 encodes in this process, {WORKERS:,} are the most"
        raise Error(f"there cannot be {workers:,} workers", fix=fix)
    where = Path(out)
    options = Options(
        splitter, units, held_out, deduplicate, shard, unit, column, drop_tests, encoding, skip, tests_column,
        delimiter, header,
    )  # fmt: skip
    if units not in (None, "kiwi", "learn"):
        read_phrases(Path(units))  # what is wrong with it is said before anything is begun
    tell = tell or (lambda *_: None)
    entry = opened(source, unit=unit or "auto", column=column, encoding=encoding, skip=skip, delimiter=delimiter,
                   header=header)  # fmt: skip
    with ExitStack() as stack:
        new = [folder for folder in (where, *where.parents) if not folder.exists()]
        try:
            where.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise Error(
                f"cannot be made ({getattr(error, 'strerror', error)})", where=where, fix="choose another directory"
            ) from None
        stack.enter_context(locked(where / "lock", shared=ranks > 1))
        if ranks > 1:
            stack.enter_context(locked(where / f"lock-{rank}"))
        if ranks == 1:
            stack.enter_context(leave_no_empty_store(where, new))
            clear(where)
        if not begin(where, tokenizer, options, entry, tests):
            prove([path for group in range(len(entry.groups)) for path in entry.files(group)], made_of(where), tell)
            return Store.open(where, tokenizer=tokenizer)
        watch = None if tests is None else watch_over(tests, column=tests_column, encoding=encoding, skip=skip,
                                                          delimiter=delimiter, header=header)  # fmt: skip
        if units == "learn" and not (where / "phrases.txt").exists():
            if ranks > 1 or not entry.again:
                raise Error(
                    "phrases are learned in a pass of their own", fix="give files, and one process; then --units FILE"
                )
            found = (text for group in range(len(entry.groups)) for text in entry.read(group, Changes()))
            put(where / "phrases.txt", "".join(f"{phrase}\n" for phrase in learn(found)))
        run = Run(where, tokenizer, options, entry, rank, ranks, tell, watch)
        pool = stack.enter_context(Pool(workers, tokenizer, options, where))
        run.all(pool)
        ends = [records(where, group)[-1:] for group in range(len(entry.groups))]
        if all(end and end[0]["last"] for end in ends):
            finish(where, len(ends), {} if watch is None else {"tests": watch.report().dict()})
            return Store.open(where, tokenizer=tokenizer)
    return None


def place(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """This process's number among those that share the work: as told, or as torchrun says."""
    try:
        ranks = int(os.environ.get("WORLD_SIZE", 1)) if ranks is None else ranks
        rank = int(os.environ.get("RANK", 0)) if rank is None else rank
    except ValueError:
        raise Error("RANK and WORLD_SIZE must be whole numbers", where="the environment") from None
    if not 0 <= rank < ranks:
        raise Error(f"rank {rank} is not one of {ranks}", fix="ranks count from 0")
    return rank, ranks


@contextmanager
def leave_no_empty_store(where: Path, new: Sequence[Path]) -> Iterator[None]:
    """Remove `where`, if it is among the `new` folders, when a run fails before any part of the store is finished."""
    try:
        yield
    except Error:
        if where in new and not any(where.glob("done-*.json")) and not (where / "store.json").exists():
            shutil.rmtree(where, ignore_errors=True)
        for folder in new:
            with suppress(OSError):  # not empty, or gone
                folder.rmdir()
        raise


def clear(where: Path) -> None:
    """Take away what a run left that had finished nothing, so that other settings are welcome."""
    if (where / "begun.json").exists() and not any(where.glob("done-*.json")):
        for name in ("begun.json", "phrases.txt", "train-*", "held-*"):
            for stale in where.glob(name):
                stale.unlink()


def begin(where: Path, tokenizer: Tokenizer, options: Options, entry: Source, tests: Any) -> bool:
    """Write down what is to be made, or compare with what an earlier run began. False: it is finished already."""
    asked = {
        "format": FORMAT, "fingerprint": tokenizer.fingerprint, "special": dict(tokenizer.special),
        "vocab": len(tokenizer), "dtype": np.dtype(width(len(tokenizer))).name,
        "options": dataclasses.asdict(options), "sources": entry.stamps, "tests": stamps(tests),
        "phrases": None if options.units in (None, "kiwi", "learn") else digest(Path(options.units)),
    }  # fmt: skip
    done, begun = where / "store.json", where / "begun.json"
    if done.exists() or begun.exists():
        there = unseal(done if done.exists() else begun)
        for key, value in asked.items():
            if there.get(key) != value:
                what = {"fingerprint": "tokenizer", "sources": "input"}.get(key, key)
                raise (Changed if key == "sources" else Error)(
                    f"holds a store that was begun with other settings ({what})", where=where,
                    fix="choose another directory, or remove this one",
                )  # fmt: skip
        if done.exists() and any("bytes" not in stamp for stamp in entry.stamps):
            what = "holds a finished store, and text in memory cannot be compared with it"
            raise Error(what, where=where, fix="choose another directory, or open it: formers.Store.open")
        return not done.exists()
    own = ("lock", "tokenizer.json")  # of a run that was killed before it had begun
    strange = [p.name for p in where.iterdir() if not p.name.startswith(own) and not p.name.endswith(".tmp")]
    if strange:
        raise Error(f"is not empty ({strange[0]})", where=where, fix="choose another directory")
    put(where / "tokenizer.json", tokenizer.text)
    put(begun, seal(asked))
    return True


class Run:
    """One process's share of the work."""

    def __init__(
        self, where: Path, tokenizer: Tokenizer, options: Options, entry: Source, rank: int, ranks: int, tell: Tell,
        watch: Watch | None = None,
    ):  # fmt: skip
        self.where, self.tokenizer, self.options, self.entry = where, tokenizer, options, entry
        self.rank, self.ranks, self.tell, self.watch = rank, ranks, tell, watch
        self.parts = ("train", "held") if options.held_out else ("train",)
        self.bytes, self.began = 0, time.monotonic()
        self.total = sum(entry.size(PACKED, g) for g in range(len(entry.groups)) if g % ranks == rank)

    def all(self, pool: Pool) -> None:
        """Every group that is ours and not finished. To find duplicates or tests, all text is read."""
        fresh = Fresh(self.options.deduplicate) if self.options.deduplicate else None
        for group in range(len(self.entry.groups)):
            done = records(self.where, group)
            mine, finished = group % self.ranks == self.rank, bool(done and done[-1]["last"])
            if mine and finished:
                prove(self.entry.files(group), done[-1]["files"], self.tell)
            wanted = mine and not finished
            if wanted or fresh is not None or self.watch is not None:
                changes, counts = Changes(), {"exact": 0, "near": 0, "seen_in_tests": 0}
                documents = self.entry.read(group, changes)
                if fresh is not None:
                    documents = fresh(documents, counts)
                if self.watch is not None:
                    documents = watched(documents, self.watch, counts, self.options.drop_tests)
                if wanted:
                    self.group(group, documents, changes, counts, done, pool)
                else:
                    deque(documents, maxlen=0)

    def group(
        self, group: int, documents: Iterable[str], changes: Changes, counts: dict[str, int],
        done: list[dict[str, Any]], pool: Pool,
    ) -> None:  # fmt: skip
        """Encode one group's documents and cut them into shards."""
        for stale in self.where.glob(f"*{group:05d}-*.tmp"):
            stale.unlink(missing_ok=True)
        number, after = len(done), done[-1] if done else {"documents": 0, "text": ""}
        shard: Shard | None = None
        at = after["documents"], after["text"]
        sums = Sums(self.entry.files(group))
        try:
            for reached, made in pool.map(chunks(documents, after, self.where)):
                shard = shard or Shard(self.where, f"{group:05d}-{number:05d}", self.parts, self.tokenizer)
                shard.add(made)
                at = reached[:2]
                self.say(reached[2])
                if shard.tokens >= self.options.shard:
                    shard.close({"documents": at[0], "text": at[1], "last": False})
                    shard, number = None, number + 1
            shard = shard or Shard(self.where, f"{group:05d}-{number:05d}", self.parts, self.tokenizer)
            counted = {**dataclasses.asdict(changes), **counts}
            shard.close({"documents": at[0], "text": at[1], "last": True, "counts": counted, "files": sums.all()})
            shard = None
        finally:
            sums.stop()
            if shard is not None:
                shard.drop()

    def say(self, size: int) -> None:
        """Progress, with speed and the time that is left."""
        self.bytes += size
        seconds = max(1e-3, time.monotonic() - self.began)
        speed = self.bytes / seconds
        total = max(self.total, self.bytes)
        left = f", about {(total - self.bytes) / speed:,.0f} s left" if self.total > self.bytes else ""
        self.tell("encoding", self.bytes, total, f"{self.bytes / 1e6:,.0f} MB, {speed / 1e6:.1f} MB/s{left}")


def watched(documents: Iterable[str], watch: Watch, counts: dict[str, int], drop: bool) -> Iterator[str]:
    """Documents held against the tests; those that share text with one are counted, and left out if asked."""
    for batch in together(documents):
        for text, touched in zip(batch, watch.meets(batch), strict=True):
            counts["seen_in_tests"] += touched
            if not (touched and drop):
                yield text


def watch_over(tests: Any, **how: Any) -> Watch:
    """The tests to hold documents against; the column of their files has an option of its own."""
    try:
        return Watch(named(tests, **how))
    except Error as e:
        fix = "say --tests-column NAME, or tests_column='NAME'" if (e.fix or "").startswith(WHICH) else e.fix
        raise Error(e.what, where=e.where, fix=fix) from None


def named(tests: Any, **how: Any) -> dict[str, Iterable[str]]:
    """Tests by name: a table of texts as it is, files by their names."""
    return dict(tests) if isinstance(tests, Mapping) else {path.name: read([path], **how) for path in find(tests)}


def stamps(tests: Any) -> list[Any] | None:
    """What tells whether tests are the same: of a table its names, of files what tells them apart."""
    if tests is None:
        return None
    return (
        sorted(map(str, tests)) if isinstance(tests, Mapping) else [[path.name, digest(path)] for path in find(tests)]
    )


class Fresh:
    """Documents without those that came before, over all groups of the input."""

    def __init__(self, kind: str):
        self.seen, self.like = Seen(), Near(LIKE) if kind == "near" else None

    def __call__(self, documents: Iterable[str], counts: dict[str, int]) -> Iterator[str]:
        """Those of one group, in order; the others are counted."""
        for batch in together(documents):
            for text, new in zip(batch, self.seen.new(batch), strict=True):
                if new and (self.like is None or self.like.new(text)):
                    yield text
                else:
                    counts["near" if new else "exact"] += 1


def chunks(documents: Iterable[str], after: dict[str, Any], where: Path) -> Iterator[tuple[Reached, list[str]]]:
    """Documents in chunks, from the one on where finished shards end; their text must still be what it was."""
    whole, seen, rows, size, volume = hashlib.sha256(), 0, [], 0, 0
    for text in documents:
        data = text.encode("utf-8", "surrogatepass")
        whole.update(data)
        whole.update(b"\0")
        seen += 1
        if seen <= after["documents"]:
            if seen == after["documents"] and whole.hexdigest() != after["text"]:
                break
            continue
        rows.append(text)
        size += len(text)
        volume += len(data)
        if size >= CHUNK:
            yield (seen, whole.hexdigest(), volume), rows
            rows, size, volume = [], 0, 0
    if seen < after["documents"] or (seen == after["documents"] and seen and whole.hexdigest() != after["text"]):
        raise Error(
            "the text has changed since the finished shards were made", where=where,
            fix="remove this directory and prepare the text again",
        )  # fmt: skip
    if rows:
        yield (seen, whole.hexdigest(), volume), rows


class Shard:
    """A shard while it is written: one file for each part."""

    def __init__(self, where: Path, name: str, parts: Sequence[str], tokenizer: Tokenizer):
        self.where, self.name, self.dtype = where, name, width(len(tokenizer))
        self.writers = {part: Writer(where / f"{part}-{name}.bin") for part in parts}
        self.held: dict[str, dict[str, list[np.ndarray]]] = {part: {} for part in parts}
        self.length = dict.fromkeys(parts, 0)
        self.counts: Counter[str] = Counter()  # by shard: a run that goes on has not seen them all

    @property
    def tokens(self) -> int:
        """Tokens of the first part, by which shards are cut."""
        return self.length["train"]

    def add(self, made: dict[str, Encoded]) -> None:
        """Append documents; their tokens go to disk at once."""
        for part, piece in made.items():
            base, held, writer = self.length[part], self.held[part], self.writers[part]
            writer.add("tokens", self.dtype, [piece.ids])
            begins = np.cumsum(piece.lengths) - piece.lengths
            held.setdefault("starts", []).append((begins + base).astype(np.uint32))
            if piece.sentences is not None:
                held.setdefault("sentences", []).append((piece.sentences + base).astype(np.uint32))
            if piece.units is not None:
                held.setdefault("units", []).append(piece.units)
            self.length[part] = base + len(piece.ids)
            self.counts.update(piece.counts)

    def close(self, reached: dict[str, Any]) -> None:
        """Finish the files, then say so."""
        about = {}
        for part, writer in self.writers.items():
            if not self.length[part]:
                writer.drop()
                continue
            for name, pieces in self.held[part].items():
                writer.add(name, np.uint8 if name == "units" else np.uint32, pieces)
            about[part] = {"name": writer.path.name, **writer.close()}
        counts = {**reached.get("counts", {}), **self.counts}
        put(self.where / f"done-{self.name}.json", seal({**reached, "counts": counts, "parts": about}))

    def drop(self) -> None:
        """Leave nothing behind of a shard that was not finished."""
        for writer in self.writers.values():
            writer.drop()
