"""formers prepare: documents to a token store, in constant memory, on any number of processes and machines.

The input files make groups, each group its own shards, and shards are cut at fixed places of the text: so the store is
the same for any number of workers and ranks. Each finished shard says how far it got; after a kill, the text before it
is read again but not encoded again. Whoever finds the last group finished writes one table of all documents and
sentences, and store.json last.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...atomic_files import hash_file, hold_lock, read_checked_json, to_checked_json, write_atomically
from ...config import JSONObject, ProgressCallback, Settings
from ...errors import Error
from ...text.normalise import CleaningReport
from ...text.tokenizer import Tokenizer
from ..readers import COLUMN_HINT, find_files, is_path_source, read_documents
from ..store import STORE_FORMAT, ArrayFileReader, ArrayFileWriter, Store
from ..text_files import COMPRESSION_SUFFIXES
from . import document_encoder
from .corpus_filters import ContaminationIndex, Deduplicator, FilterCounts
from .document_encoder import (
    OLD_VALIDATION_PART,
    VALIDATION_PART,
    Chunk,
    EncodedDocuments,
    EncoderPool,
    PrepareOptions,
    choose_id_dtype,
    rename_parts,
)

CHUNK_CHARACTERS = 1 << 19  # characters that are encoded at a time
MAX_WORKERS = 1024
EDGE_BYTES = 1 << 16  # bytes at either end of a file that tell whether it is the same
GROUP_BYTES = 64 << 20  # bytes of small files that go into one group
NEAR_DUPLICATE_THRESHOLD = 0.8  # from this likeness on (0 to 1) two documents are nearly the same


def prepare(
    source: object, tokenizer: Tokenizer, out: str | Path, *, unit: str | None = None, column: str | None = None,
    encoding: str = "utf-8", skip: bool = False, delimiter: str | None = None, header: bool | None = None,
    workers: int = 0, splitter: str | None = "rules", units: str | None = None, validation: float = 0.0,
    deduplicate: str | None = None, tests: object = None, tests_column: str | None = None, drop_tests: bool = False,
    shard: int = 128 << 20, rank: int | None = None, ranks: int | None = None, tell: ProgressCallback | None = None,
    phrases: Callable[[], Sequence[str]] | None = None,
) -> Store | None:  # fmt: skip
    """Make a token store of files, or of a list, DataFrame or dataset of documents; resume where an earlier run ended.

    `workers` = 0 encodes in this process, on the tokenizer's own threads. Under torchrun (RANK, WORLD_SIZE) each rank
    takes its share of the files; the answer is None for a rank that ends before others. `unit`, `column`, `encoding`,
    `skip`, `delimiter` and `header` are those of `read_documents`. `validation` is the share of documents that become
    the validation part. `units` is kiwi, learn or a file of phrases. Learning reads the text once before, unless
    `phrases` has learned them in such a reading. `tests` (files, or {name: texts}) are looked for in the text: what is
    found is counted, and left out with `drop_tests`.
    """
    rank, ranks = resolve_rank(rank, ranks)
    if not 0 <= workers <= MAX_WORKERS:
        fix = f"0 encodes in this process, {MAX_WORKERS:,} are the most"
        raise Error(f"there cannot be {workers:,} workers", fix=fix)
    where = Path(out)
    options = PrepareOptions(
        splitter, units, validation, deduplicate, shard, unit, column, drop_tests, encoding, skip, tests_column,
        delimiter, header,
    )  # fmt: skip
    # What is wrong with a list is said before anything is begun.
    if units is not None and units not in ("kiwi", "learn") and not document_encoder.read_phrases(Path(units)):
        raise Error("the list of phrases is empty", where=units, fix="one phrase a line")
    tell = tell or (lambda *_: None)
    reading = {"encoding": encoding, "skip": skip, "delimiter": delimiter, "header": header}
    entry = open_source(source, unit=unit or "auto", column=column, **reading)
    with ExitStack() as stack:
        new = [folder for folder in (where, *where.parents) if not folder.exists()]
        try:
            where.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise Error(f"cannot be made ({reason})", where=where, fix="choose another directory") from None
        stack.enter_context(hold_lock(where / "lock", shared=ranks > 1))
        if ranks > 1:
            stack.enter_context(hold_lock(where / f"lock-{rank}"))
        else:
            stack.enter_context(remove_empty_store(where, new))
            remove_unfinished(where)
        if not begin_store(where, tokenizer, options, entry, tests):
            check_unchanged([path for group in entry.numbers for path in entry.list_files(group)],
                            read_input_stamps(where), tell)  # fmt: skip
            return Store.open(where, tokenizer=tokenizer)
        watch = None if tests is None else build_contamination_index(tests, column=tests_column, **reading)
        if units == "learn" and not (where / "phrases.txt").exists():
            if ranks > 1 or isinstance(entry.groups[0], Iterator):  # which can be read only once
                fix = "give files, and one process; then --units FILE"
                raise Error("phrases are learned in a pass of their own", fix=fix)
            texts = (text for group in entry.numbers for text in entry.read_group(group, CleaningReport()))
            learned = document_encoder.learn_phrases(texts) if phrases is None else phrases()
            write_atomically(where / "phrases.txt", "".join(f"{phrase}\n" for phrase in learned))
        pool = stack.enter_context(EncoderPool(workers, tokenizer, options, where))
        PrepareRun(where, tokenizer, options, entry, rank, ranks, tell, watch).encode_groups(pool)
        ends = [read_shard_records(where, group)[-1:] for group in entry.numbers]
        if all(end and end[0]["last"] for end in ends):
            finish_store(where, len(ends), {} if watch is None else {"tests": dataclasses.asdict(watch.build_report())})
            return Store.open(where, tokenizer=tokenizer)
    return None


def resolve_rank(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """Return this process's number among those that share the work: as given, or as torchrun sets it."""
    try:
        ranks = int(os.environ.get("WORLD_SIZE", 1)) if ranks is None else ranks
        rank = int(os.environ.get("RANK", 0)) if rank is None else rank
    except ValueError:
        raise Error("RANK and WORLD_SIZE must be whole numbers", where="the environment") from None
    if not 0 <= rank < ranks:
        raise Error(f"rank {rank} is not one of {ranks}", fix="ranks count from 0")
    return rank, ranks


@contextmanager
def remove_empty_store(where: Path, new: Sequence[Path]) -> Iterator[None]:
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


def remove_unfinished(where: Path) -> None:
    """Take away what a run left that had finished nothing, so that other settings are welcome; of one that was stopped
    after it had finished the store, the notes that the store does not need."""
    if (where / "store.json").exists():
        remove_notes(where)
    elif (where / "begun.json").exists() and not any(where.glob("done-*.json")):
        for name in ("begun.json", "phrases.txt", "train-*", f"{VALIDATION_PART}-*", f"{OLD_VALIDATION_PART}-*"):
            for stale in where.glob(name):
                stale.unlink()


def begin_store(
    where: Path, tokenizer: Tokenizer, options: PrepareOptions, source: DocumentSource, tests: object
) -> bool:
    """Write down what is to be made, or compare with what an earlier run began. False: it is finished already."""
    request = {
        "format": STORE_FORMAT, "fingerprint": tokenizer.fingerprint, "special": dict(tokenizer.special),
        "vocab": len(tokenizer), "dtype": np.dtype(choose_id_dtype(len(tokenizer))).name,
        "options": dataclasses.asdict(options), "sources": source.fingerprints, "tests": stamp_tests(tests),
        "phrases": None if options.units in (None, "kiwi", "learn") else hash_file(Path(options.units)),
    }  # fmt: skip
    done, begun = where / "store.json", where / "begun.json"
    if done.exists() or begun.exists():
        there = read_checked_json(done if done.exists() else begun)
        for key, value in request.items():
            if there.get(key) != value:
                what = {"fingerprint": "tokenizer", "sources": "input"}.get(key, key)
                kind, fix = SourceChanged if key == "sources" else Error, "choose another directory, or remove this one"
                raise kind(f"holds a store that was begun with other settings ({what})", where=where, fix=fix)
        if done.exists() and any("bytes" not in stamp for stamp in source.fingerprints):
            what = "holds a finished store, and text in memory cannot be compared with it"
            raise Error(what, where=where, fix="choose another directory, or open it: formers.Store.open")
        return not done.exists()
    own = ("lock", "tokenizer.json")  # of a run that was killed before it had begun
    if strange := [p.name for p in where.iterdir() if not p.name.startswith(own) and not p.name.endswith(".tmp")]:
        raise Error(f"is not empty ({strange[0]})", where=where, fix="choose another directory")
    write_atomically(where / "tokenizer.json", tokenizer.json_text)
    write_atomically(begun, to_checked_json(request))
    return True


class SourceChanged(Error):
    """Text is not what a store was made of."""


@dataclass(frozen=True)
class DocumentSource:
    """Groups of documents, each read on its own."""

    groups: Sequence[object]  # of each: a list of files, or documents in memory
    fingerprints: list[JSONObject]  # what tells whether a file has changed
    read_options: Settings  # unit, column, encoding, skip: as `read_documents` wants them

    @property
    def numbers(self) -> range:
        """The numbers of the groups."""
        return range(len(self.groups))

    def read_group(self, group: int, changes: CleaningReport, hashes: dict[Path, str] | None = None) -> Iterator[str]:
        """Return the documents of a group; `hashes` gets the sums of its files."""
        return read_documents(self.groups[group], changes=changes, hashes=hashes, **self.read_options)

    def list_files(self, group: int) -> list[Path]:
        """Return the files of a group; none if it is text in memory."""
        files = self.groups[group]
        return files if isinstance(files, list) and files and isinstance(files[0], Path) else []

    def estimate_bytes(self, group: int) -> int:
        """Estimate how many bytes of text a group has; 0 if it is not known."""
        ratios = COMPRESSION_SUFFIXES
        return int(sum(p.stat().st_size * ratios.get(p.suffix.lower(), 1.0) for p in self.list_files(group)))


def open_source(source: object, **how: object) -> DocumentSource:
    """Open a source: paths (a string, a Path, a list of Path), or documents in memory."""
    if is_path_source(source):
        files = find_files(source)
        groups: list[list[Path]] = []
        full = GROUP_BYTES
        for path in files:  # small files share a group; a large one has its own
            size = path.stat().st_size
            if full + size > GROUP_BYTES:
                groups.append([])
                full = 0
            groups[-1].append(path)
            full += size
        return DocumentSource(groups, [stamp_file(path) for path in files], how)
    return DocumentSource([source], [{"name": f"a {type(source).__name__} in memory"}], how)


def stamp_file(path: Path) -> JSONObject:
    """Return a file's name and size, and a hash of both its ends: what can be told of a large file at once."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        whole = hashlib.sha256(file.read(EDGE_BYTES))
        file.seek(max(0, size - EDGE_BYTES))
        whole.update(file.read(EDGE_BYTES))
    return {"name": path.name, "bytes": size, "ends": whole.hexdigest()}


def stamp_read_files(modified_times: Mapping[Path, int], hashes: Mapping[Path, str]) -> list[JSONObject]:
    """Return each file's sum, which reading it gave (a parquet file is read for it), and when it was last written to;
    an error if that was in the meantime."""
    stamps = [{"sha256": hashes.get(path) or hash_file(path), "time": time} for path, time in modified_times.items()]
    for path, modified in modified_times.items():
        if path.stat().st_mtime_ns != modified:
            raise Error("was changed while it was read", where=path, fix="run the same again when it stays as it is")
    return stamps


def check_unchanged(files: Sequence[Path], known: Sequence[Mapping[str, object]], tell: ProgressCallback) -> None:
    """Refuse files that are not what a store was made of. One that was not written to since is believed."""
    for number, (path, was) in enumerate(zip(files, known, strict=True)):
        if path.stat().st_mtime_ns != was.get("time"):
            tell("comparing", number, len(files), path.name)
            if hash_file(path) != was["sha256"]:
                fix = "choose another directory for the new text, or remove this one"
                raise SourceChanged("has changed since a store was made of it", where=path, fix=fix)


class PrepareRun:
    """One process's share of the work."""

    def __init__(
        self, where: Path, tokenizer: Tokenizer, options: PrepareOptions, entry: DocumentSource, rank: int, ranks: int,
        tell: ProgressCallback, watch: ContaminationIndex | None = None,
    ):  # fmt: skip
        self.directory, self.tokenizer, self.options, self.source = where, tokenizer, options, entry
        self.rank, self.ranks, self.tell, self.contamination_index = rank, ranks, tell, watch
        self.parts = ("train", VALIDATION_PART) if options.held_out else ("train",)
        self.bytes_done, self.start_time = 0, time.monotonic()
        self.bytes_total = sum(entry.estimate_bytes(group) for group in entry.numbers[rank::ranks])

    def encode_groups(self, pool: EncoderPool) -> None:
        """Encode every group that is ours and not finished. To find duplicates or tests, all text is read."""
        near = NEAR_DUPLICATE_THRESHOLD if self.options.deduplicate == "near" else None
        fresh = Deduplicator(near=near) if self.options.deduplicate else None
        for group in self.source.numbers:
            done = read_shard_records(self.directory, group)
            mine, finished = group % self.ranks == self.rank, bool(done and done[-1]["last"])
            if mine and finished:
                check_unchanged(self.source.list_files(group), done[-1]["files"], self.tell)
            should_encode = mine and not finished
            if should_encode or fresh is not None or self.contamination_index is not None:
                changes, counts, hashes = CleaningReport(), FilterCounts(), dict[Path, str]()
                documents = self.source.read_group(group, changes, hashes)
                if fresh is not None:
                    documents = fresh(documents, counts)
                if self.contamination_index is not None:
                    documents = self.contamination_index.filter_documents(documents, counts, self.options.drop_tests)
                if should_encode:
                    self.encode_group(group, documents, changes, counts, hashes, done, pool)
                else:
                    deque(documents, maxlen=0)

    def encode_group(
        self, group: int, documents: Iterable[str], changes: CleaningReport, counts: FilterCounts,
        hashes: Mapping[Path, str], done: list[JSONObject], pool: EncoderPool,
    ) -> None:  # fmt: skip
        """Encode one group's documents and cut them into shards."""
        for stale in self.directory.glob(f"*{group:05d}-*.tmp"):
            stale.unlink(missing_ok=True)
        number, after = len(done), done[-1] if done else {"documents": 0, "text": ""}
        shard: ShardWriter | None = None
        at = after["documents"], after["text"]
        modified_times = {path: path.stat().st_mtime_ns for path in self.source.list_files(group)}
        try:
            for reached, chunk in pool.map(chunk_documents(documents, after, self.directory)):
                shard = shard or ShardWriter(self.directory, f"{group:05d}-{number:05d}", self.parts, self.tokenizer)
                shard.add_documents(chunk)
                at = reached[:2]
                self.report_progress(reached[2])
                if shard.tokens >= self.options.shard:
                    shard.close({"documents": at[0], "text": at[1], "last": False})
                    shard, number = None, number + 1
            shard = shard or ShardWriter(self.directory, f"{group:05d}-{number:05d}", self.parts, self.tokenizer)
            counted = {**dataclasses.asdict(changes), "exact": counts.exact, "near": counts.near,
                       "seen_in_tests": counts.seen_in_tests}  # fmt: skip
            end = {"documents": at[0], "text": at[1], "last": True}
            shard.close({**end, "counts": counted, "files": stamp_read_files(modified_times, hashes)})
            shard = None
        finally:
            if shard is not None:
                shard.discard()

    def report_progress(self, size: int) -> None:
        """Report progress, with speed and the time that is left."""
        self.bytes_done += size
        speed = self.bytes_done / max(1e-3, time.monotonic() - self.start_time)
        total = max(self.bytes_total, self.bytes_done)
        left = f", about {(total - self.bytes_done) / speed:,.0f} s left" if self.bytes_total > self.bytes_done else ""
        self.tell("encoding", self.bytes_done, total, f"{self.bytes_done / 1e6:,.0f} MB, {speed / 1e6:.1f} MB/s{left}")


def build_contamination_index(tests: object, **how: Any) -> ContaminationIndex:  # dynamic: read_documents' options
    """Index tests, by their names or those of their files, whose column has an option of its own."""
    try:
        if not isinstance(tests, Mapping):
            tests = {path.name: read_documents([path], **how) for path in find_files(tests)}
        return ContaminationIndex(tests)
    except Error as e:
        fix = "say --tests-column NAME, or tests_column='NAME'" if (e.fix or "").startswith(COLUMN_HINT) else e.fix
        raise Error(e.what, where=e.where, fix=fix) from None


def stamp_tests(tests: object) -> list[str] | list[list[str]] | None:
    """Return what tells whether tests are the same: of a table its names, of files what tells them apart."""
    if tests is None or isinstance(tests, Mapping):
        return None if tests is None else sorted(map(str, tests))
    return [[path.name, hash_file(path)] for path in find_files(tests)]


def chunk_documents(documents: Iterable[str], last_record: JSONObject, where: Path) -> Iterator[Chunk]:
    """Yield documents in chunks, from the one on where finished shards end; their text must still be what it was."""
    whole, seen, rows, size, volume = hashlib.sha256(), 0, [], 0, 0
    for text in documents:
        data = text.encode("utf-8", "surrogatepass")
        whole.update(data)
        whole.update(b"\0")
        seen += 1
        if seen <= last_record["documents"]:
            if seen == last_record["documents"] and whole.hexdigest() != last_record["text"]:
                break
            continue
        rows.append(text)
        size += len(text)
        volume += len(data)
        if size >= CHUNK_CHARACTERS:
            yield (seen, whole.hexdigest(), volume), rows
            rows, size, volume = [], 0, 0
    last_number = last_record["documents"]
    if seen < last_number or (seen == last_number and seen and whole.hexdigest() != last_record["text"]):
        fix = "remove this directory and prepare the text again"
        raise Error("the text has changed since the finished shards were made", where=where, fix=fix)
    if rows:
        yield (seen, whole.hexdigest(), volume), rows


class ShardWriter:
    """A shard while it is written: one file for each part."""

    def __init__(self, where: Path, name: str, parts: Sequence[str], tokenizer: Tokenizer):
        self.directory, self.name, self.dtype = where, name, choose_id_dtype(len(tokenizer))
        self.writers = {part: ArrayFileWriter(where / f"{part}-{name}.bin") for part in parts}
        self.pending: dict[str, dict[str, list[np.ndarray]]] = {part: {} for part in parts}
        self.token_counts = dict.fromkeys(parts, 0)
        self.counts: Counter[str] = Counter()  # by shard: a resumed run has not seen them all

    @property
    def tokens(self) -> int:
        """Tokens of the first part, by which shards are cut."""
        return self.token_counts["train"]

    def add_documents(self, chunk: dict[str, EncodedDocuments]) -> None:
        """Append documents; their tokens go to disk at once."""
        for part, piece in chunk.items():
            base, held, writer = self.token_counts[part], self.pending[part], self.writers[part]
            writer.add_array("tokens", self.dtype, [piece.ids])
            begins = np.cumsum(piece.lengths) - piece.lengths
            held.setdefault("starts", []).append((begins + base).astype(np.uint32))
            if piece.sentence_starts is not None:
                held.setdefault("sentences", []).append((piece.sentence_starts + base).astype(np.uint32))
            if piece.unit_bits is not None:
                held.setdefault("units", []).append(piece.unit_bits)
            self.token_counts[part] = base + len(piece.ids)
            self.counts.update(piece.counts)

    def close(self, reached: JSONObject) -> None:
        """Finish the files, then say so."""
        about = {}
        for part, writer in self.writers.items():
            if not self.token_counts[part]:
                writer.discard()
                continue
            for name, pieces in self.pending[part].items():
                writer.add_array(name, np.uint8 if name == "units" else np.uint32, pieces)
            about[part] = {"name": writer.path.name, **writer.close()}
        note = to_checked_json({**reached, "counts": {**reached.get("counts", {}), **self.counts}, "parts": about})
        write_atomically(self.directory / f"done-{self.name}.json", note)

    def discard(self) -> None:
        """Leave nothing behind of a shard that was not finished."""
        for writer in self.writers.values():
            writer.discard()


COPY_CHUNK = 1 << 20  # numbers that are moved at a time


def read_shard_records(where: Path, group: int) -> list[JSONObject]:
    """Return what the finished shards of a group say, in order; a damaged note counts as none."""
    out: list[JSONObject] = []
    while (file := where / f"done-{group:05d}-{len(out):05d}.json").exists():
        try:
            record = read_checked_json(file)
        except Error:
            break
        out.append({**record, "parts": rename_parts(record["parts"])})
    return out


def finish_store(where: Path, groups: int, more: JSONObject) -> None:
    """Put the shards of all groups together, with `more` counts. Nothing is moved: tables say where documents begin."""
    notes = [note for group in range(groups) for note in read_shard_records(where, group)]
    about, parts = read_checked_json(where / "begun.json"), {}
    for part in ("train", VALIDATION_PART):
        if shards := [note["parts"][part] for note in notes if part in note["parts"]]:
            sizes = {
                word: sum(shard["arrays"][name]["count"] for shard in shards)
                for name, word in (("tokens", "tokens"), ("starts", "documents"), ("sentences", "sentences"))
                if name in shards[0]["arrays"]
            }
            parts[part] = {"shards": shards, "tables": write_tables(where, part, shards), **sizes}
    if "train" not in parts:
        raise Error("there is no text to learn from", where=where, fix="give documents that are not empty")
    files = [file for note in notes for file in note.get("files", [])]
    # Beside store.json, because other copies of the files have other times.
    write_atomically(where / "inputs.json", to_checked_json({"times": [file["time"] for file in files]}))
    about |= {"files": [file["sha256"] for file in files], "counts": sum_counts(notes) | more, "parts": parts}
    write_atomically(where / "store.json", to_checked_json(about))
    remove_notes(where)


def remove_notes(where: Path) -> None:
    """Remove what a finished store does not need."""
    for stale in (where / "begun.json", *where.glob("done-*.json"), *where.glob("*.tmp")):
        stale.unlink(missing_ok=True)


def read_input_stamps(where: Path) -> list[JSONObject]:
    """Return the SHA-256 of each input file of a finished store, and when it was last written to, if that is known."""
    sums = read_checked_json(where / "store.json").get("files", [])
    try:
        times = read_checked_json(where / "inputs.json").get("times")
    except Error:  # it is not there, or damaged: the files are read to be compared
        times = None
    times = times if isinstance(times, list) and len(times) == len(sums) else [None] * len(sums)
    return [{"sha256": sum, "time": time} for sum, time in zip(sums, times, strict=True)]


def sum_counts(notes: list[JSONObject]) -> JSONObject:
    """Return the counts of the readers and of hygiene, over all groups."""
    total: Counter[str] = Counter()
    words: list[str] = []
    for note in notes:
        for key, value in note.get("counts", {}).items():
            if isinstance(value, int):
                total[key] += value
            elif isinstance(value, list):
                words += [word for word in value if word not in words]
    return {**total, "notes": words}


def write_tables(where: Path, part: str, shards: list[JSONObject]) -> JSONObject:
    """Write where documents and sentences begin, over all shards."""
    writer = ArrayFileWriter(where / f"{part}-tables.bin")
    for name in ("starts", "sentences"):
        if name in shards[0]["arrays"]:
            writer.add_array(name, np.int64, shift_positions(where, name, shards))
    return {"name": writer.path.name, **writer.close()}


def shift_positions(where: Path, name: str, shards: list[JSONObject]) -> Iterator[np.ndarray]:
    """Yield the places of one shard after the other, counted from the beginning of all, and the end of all."""
    base = 0
    for shard in shards:
        reader = ArrayFileReader(where / shard["name"], shard)
        count = shard["arrays"][name]["count"]
        array = reader.get_array(name)
        for at in range(0, count, COPY_CHUNK):
            reader.verify_range(name, at, min(count, at + COPY_CHUNK))
            yield array[at : at + COPY_CHUNK].astype(np.int64) + base
        base += shard["arrays"]["tokens"]["count"]
    yield np.array([base], np.int64)
