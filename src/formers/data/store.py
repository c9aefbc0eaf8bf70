"""The token store: all documents' ids in one array, and where each document and sentence begins.

In memory (`Store.from_documents`), or on disk (`formers prepare`, `Store.open`): a directory with store.json, the
tokenizer, and shards of tokens. Files of arrays are written whole or not at all and memory-mapped: NAME.bin holds
arrays one after the other, and NAME.json beside it says which, their SHA-256, and a CRC-32 of each block of 64 KiB, so
that a block is checked when it is first read and a damaged file can say where.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from .. import atomic_files
from ..atomic_files import FolderKind, read_checked_json, to_checked_json, write_atomically
from ..config import JSONObject, JSONValue
from ..errors import Error
from ..ragged_arrays import compute_starts, expand_ranges
from ..text.tokenizer import Tokenizer
from .preparation.document_encoder import (
    OLD_VALIDATION_PART,
    VALIDATION_PART,
    UnitFinder,
    encode_documents,
    get_splitter,
    rename_parts,
)

BLOCK_BYTES = 1 << 16
ALIGNMENT = 64
ALLOWED_DTYPES = ("uint8", "uint16", "uint32", "int8", "int64")
REBUILD_HINT = "make the store again (formers prepare), or leave the damage out: Store.open(path, damaged='skip')"
STORE_FORMAT = 1
MAX_UNKNOWN_RATIO = 0.02  # share of unknown tokens from which on they are spoken of
Places = TypeVar("Places", int, np.ndarray)
LazyArray = np.ndarray | Callable[[], np.ndarray]
STORE_FOLDER = FolderKind(
    "store",
    ("store.json", "begun.json", "inputs.json", "tokenizer.json", "phrases.txt", "lock", "lock-*", "plans", "train-*",
     f"{VALIDATION_PART}-*", f"{OLD_VALIDATION_PART}-*", "done-*.json", "*.tmp"),
    ("store.json", "begun.json"), frozenset({"format", "fingerprint", "seal"}), ("store.json", "done-*.json"),
)  # fmt: skip


def describe_damaged_block(block: int) -> str:
    """Say which block of a file is damaged."""
    return f"the block at offset {block * BLOCK_BYTES:,} is not as it was written"


class ArrayFileWriter:
    """Writes NAME.bin array by array, each in chunks, under another name until `close` is called."""

    def __init__(self, path: Path):
        self.path, self.bytes_written = path, 0
        self.arrays: dict[str, JSONObject] = {}
        self.temporary_path = atomic_files.get_temporary_path(path)
        self.file = open(self.temporary_path, "wb")  # noqa: SIM115
        self.sha256, self.block_crc = hashlib.sha256(), 0
        self.block_crcs: list[int] = []

    def add_array(self, name: str, dtype: npt.DTypeLike, chunks: Iterable[np.ndarray]) -> None:
        """Append the next array, whole or its next chunks."""
        kind = np.dtype(dtype)
        if name not in self.arrays:
            self.write_bytes(b"\0" * (-self.bytes_written % ALIGNMENT))
            self.arrays[name] = {"at": self.bytes_written, "count": 0, "dtype": kind.name}
        for chunk in chunks:
            self.write_bytes(np.ascontiguousarray(chunk, kind.newbyteorder("<")).view(np.uint8).data)
            self.arrays[name]["count"] += len(chunk)

    def write_bytes(self, data: bytes | memoryview) -> None:
        """Write bytes, with the sum of each full block."""
        self.sha256.update(data)
        done = 0
        while done < len(data):
            step = min(len(data) - done, BLOCK_BYTES - self.bytes_written % BLOCK_BYTES)
            self.block_crc = zlib.crc32(data[done : done + step], self.block_crc)
            done += step
            self.bytes_written += step
            if self.bytes_written % BLOCK_BYTES == 0:
                self.block_crcs.append(self.block_crc)
                self.block_crc = 0
        self.file.write(data)

    def close(self) -> JSONObject:
        """Finish the file; what it holds, to be written down."""
        if self.bytes_written % BLOCK_BYTES:
            self.block_crcs.append(self.block_crc)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        atomic_files.rename_durably(self.temporary_path, self.path)
        sums = np.array(self.block_crcs, "<u4").tobytes().hex()
        about = {"bytes": self.bytes_written, "sha256": self.sha256.hexdigest(), "arrays": self.arrays}
        write_atomically(self.path.with_suffix(".json"), to_checked_json({**about, "block": BLOCK_BYTES, "sums": sums}))
        return about

    def discard(self) -> None:
        """Leave nothing behind."""
        self.file.close()
        self.temporary_path.unlink(missing_ok=True)


class ArrayFileReader:
    """A memory-mapped file of arrays. `verify`: check each block when it is first read."""

    def __init__(
        self, path: Path, about: Mapping[str, JSONValue], *, verify: bool = True, allow_truncated: bool = False
    ):
        self.path, self.header, self.verify = path, about, verify
        try:
            size = path.stat().st_size
            if size != about["bytes"] and not allow_truncated:
                what = f"has {size:,} bytes where {about['bytes']:,} were written: damaged from offset "
                raise Error(f"{what}{min(size, about['bytes']):,} on", where=path, fix=REBUILD_HINT)
            with open(path, "rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            if not (allow_truncated and isinstance(error, FileNotFoundError)):
                raise Error(f"cannot be read ({error.strerror})", where=path, fix=REBUILD_HINT) from None
            data = b""
        self.mapped_bytes: mmap.mmap | bytes = data
        self.verified_blocks = np.zeros(-(-about["bytes"] // BLOCK_BYTES), bool)

    @cached_property
    def block_crcs(self) -> np.ndarray:
        """The sum of each block, as it was written."""
        beside = self.path.with_suffix(".json")
        record = read_checked_json(beside)
        if record.get("sha256") != self.header["sha256"] or len(record["sums"]) != 8 * len(self.verified_blocks):
            raise Error(f"does not belong to {self.path.name}", where=beside, fix=REBUILD_HINT)
        return np.frombuffer(bytes.fromhex(record["sums"]), "<u4")

    def get_array(self, name: str) -> np.ndarray:
        """Return one of the arrays, as much of it as is there; nothing is read yet."""
        header = self.header["arrays"][name]
        kind = np.dtype(header["dtype"]).newbyteorder("<")
        end = header["at"] + header["count"] * kind.itemsize
        if kind.name not in ALLOWED_DTYPES or header["at"] < 0 or end > self.header["bytes"]:
            raise Error(f"the array {name!r} cannot be there", where=self.path, fix=REBUILD_HINT)
        count = max(0, min(header["count"], (len(self.mapped_bytes) - header["at"]) // kind.itemsize))
        return np.frombuffer(self.mapped_bytes, kind, count, header["at"] if count else 0)

    def find_blocks(self, name: str, begin: Places, end: Places) -> tuple[Places, Places]:
        """Return the first and last block of the places begin … end - 1 of an array."""
        header = self.header["arrays"][name]
        size = np.dtype(header["dtype"]).itemsize
        return (header["at"] + begin * size) // BLOCK_BYTES, (header["at"] + end * size - 1) // BLOCK_BYTES

    def verify_range(self, name: str, begin: int, end: int) -> None:
        """Check the blocks that hold these places, those that were not checked yet."""
        if not self.verify or begin >= end:
            return
        first, last = self.find_blocks(name, begin, end)
        if not self.verified_blocks[first : last + 1].all():
            for block in range(first, last + 1):
                self.verify_block(name, block)

    def verify_block(self, name: str, block: int) -> None:
        """Check a block, unless that was done before."""
        if self.verify and not self.verified_blocks[block] and not self.is_block_intact(block):
            raise Error(f"{describe_damaged_block(block)} (array {name!r})", where=self.path, fix=REBUILD_HINT)

    def is_block_intact(self, block: int) -> bool:
        """Return whether a block is as it was written."""
        size = min(BLOCK_BYTES, self.header["bytes"] - block * BLOCK_BYTES)
        data = self.mapped_bytes[block * BLOCK_BYTES : block * BLOCK_BYTES + size]
        self.verified_blocks[block] = len(data) == size and zlib.crc32(data) == self.block_crcs[block]
        return bool(self.verified_blocks[block])

    def find_damaged_blocks(self) -> list[int]:
        """Read everything; the blocks that are not as they were written."""
        bad = [block for block in range(len(self.verified_blocks)) if not self.is_block_intact(block)]
        extra = len(self.mapped_bytes) > self.header["bytes"]
        if not bad and (extra or hashlib.sha256(self.mapped_bytes).hexdigest() != self.header["sha256"]):
            bad = [len(self.verified_blocks) - 1 if len(self.verified_blocks) else 0]
        return bad


class ChainedArray:
    """Arrays of several files, used as if they were one."""

    def __init__(self, parts: list[tuple[ArrayFileReader, str, int, int]], dtype: npt.DTypeLike):
        """Join parts, each (file, array, begin, end)."""
        self.readers = [(reader, name, begin) for reader, name, begin, _ in parts]
        self.arrays = [reader.get_array(name)[begin:end] for reader, name, begin, end in parts]
        self.offsets = np.cumsum([0, *(end - begin for *_, begin, end in parts)], dtype=np.int64)
        self.dtype = np.dtype(dtype)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        out = np.empty(len(self), dtype or self.dtype)
        self.copy_spans(out, np.array([0]), np.array([len(self)]))
        return out

    def __getitem__(self, where: Any) -> Any:  # dynamic: as numpy indexes, and returns, arrays or scalars
        if isinstance(where, slice):
            begin, end, step = where.indices(len(self))
            if step < 0:
                return np.asarray(self)[where]
            out = np.empty(max(0, end - begin), self.dtype)
            self.copy_spans(out, np.array([begin]), np.array([begin + len(out)]))
            return out[::step]
        slots = np.asarray(where, np.int64)
        slots = np.where(slots < 0, slots + len(self), slots)
        if slots.size and not 0 <= slots.min() <= slots.max() < len(self):
            raise IndexError("out of range")
        out = np.empty(slots.shape, self.dtype)
        owner = np.searchsorted(self.offsets, slots, side="right") - 1
        for part in np.unique(owner):
            mine, (reader, name, offset) = owner == part, self.readers[part]
            inside = slots[mine] - self.offsets[part]
            for block in np.unique(reader.find_blocks(name, offset + inside, offset + inside + 1)[0]).tolist():
                reader.verify_block(name, block)
            out[mine] = self.arrays[part][inside]
        return out[()]

    def copy_spans(self, out: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
        """Copy the places begin[i] … end[i] - 1, one span after the other, into `out`."""
        owner = np.searchsorted(self.offsets, begin, side="right") - 1
        at = 0
        for low, high, part in zip(begin.tolist(), end.tolist(), owner.tolist(), strict=True):
            while low < high:
                first, stop = int(self.offsets[part]), int(self.offsets[part + 1])
                size = min(high, stop) - low
                if size > 0:
                    reader, name, offset = self.readers[part]
                    inside = low - first
                    reader.verify_range(name, offset + inside, offset + inside + size)
                    out[at : at + size] = self.arrays[part][inside : inside + size]
                    at, low = at + size, low + size
                part += 1


TokenArray = np.ndarray | ChainedArray


class Store:
    """Tokens of many documents, one after the other; document d is tokens[starts[d]:starts[d+1]]."""

    def __init__(
        self,
        tokens: TokenArray,  # (total,)
        starts: LazyArray,  # (documents + 1,) int64, or a function that gives it when it is first asked for
        vocab: int,
        fingerprint: str,  # of the tokenizer
        sentences: LazyArray | None = None,  # (sentences + 1,) int64; every document begins one. None: it is one
        units: TokenArray | None = None,  # (total,) uint8: PHRASE and ENTITY bits
    ):
        self.tokens, self.vocab, self.fingerprint, self.unit_bits = tokens, vocab, fingerprint, units
        self._starts, self._sentences = starts, sentences
        self.directory: StoreDirectory | None = None  # where it lies on disk
        self.skipped_documents = 0  # documents that were left out because they are damaged

    @cached_property
    def starts(self) -> np.ndarray:
        """(documents + 1,) where documents begin, and the end of all."""
        return self._starts() if callable(self._starts) else self._starts

    @cached_property
    def sentences(self) -> np.ndarray | None:
        """(sentences + 1,) where sentences begin; None if they were not looked for."""
        return self._sentences() if callable(self._sentences) else self._sentences

    @property
    def sentence_starts(self) -> np.ndarray:
        """(sentences + 1,) where sentences begin, and the end of all."""
        return self.starts if self.sentences is None else self.sentences

    def read_spans(self, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Read the tokens of spans one after the other, where a sentence begins among them, and the units."""
        begin, end = np.asarray(begin, np.int64), np.asarray(end, np.int64)
        sizes = end - begin
        reach = np.cumsum(sizes)
        total = int(reach[-1]) if len(reach) else 0
        ids, first = np.empty(total, np.int64), np.zeros(total, bool)
        copy_spans(self.tokens, ids, begin, end)
        edges = self.sentence_starts
        low, high = np.searchsorted(edges, begin), np.searchsorted(edges, end)  # sentences that begin in a span
        count = high - low
        first[edges[expand_ranges(low, count)] - np.repeat(begin - (reach - sizes), count)] = True
        units = None
        if self.unit_bits is not None:
            units = np.empty(total, np.uint8)
            copy_spans(self.unit_bits, units, begin, end)
        return ids, first, units

    @cached_property
    def content_hash(self) -> str:
        """What tells two stores apart: a hash over their content."""
        if self.directory is not None:
            return self.directory.hash_content(self.skipped_documents)
        whole = hashlib.sha256(f"{self.vocab} {self.fingerprint}".encode())
        for array in (self.tokens, self.starts, self.sentences, self.unit_bits):
            whole.update(b"-" if array is None else np.ascontiguousarray(array).view(np.uint8).data)
        return whole.hexdigest()

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuse a tokenizer that did not make this store, even one of the same size."""
        if tokenizer.fingerprint != self.fingerprint:
            what = f"was made with another tokenizer ({self.fingerprint[:12]}…, not {tokenizer.fingerprint[:12]}…)"
            where = "the store" if self.directory is None else self.directory.path
            fix = "use the tokenizer that lies in the store, or prepare the text with this one"
            raise Error(what, where=where, fix=fix)

    @staticmethod
    def from_documents(
        documents: Sequence[str], tokenizer: Tokenizer, *, sentences: str | None = None, units: UnitFinder | None = None
    ) -> Store:
        """Encode documents; special tokens are the objective's business, except an end mark, if there is one.
        `sentences` = "rules" or "kiwi" marks where they begin; `units` is a function text → (begin, end, kind)."""
        encoded_documents = encode_documents(documents, tokenizer, get_splitter(sentences), units)
        if not len(encoded_documents.ids):
            raise Error("there is no text to learn from", fix="give documents that are not empty")
        starts = compute_starts(encoded_documents.lengths)
        marks = (
            None
            if encoded_documents.sentence_starts is None
            else np.append(encoded_documents.sentence_starts, len(encoded_documents.ids))
        )
        return Store(
            encoded_documents.ids, starts, len(tokenizer), tokenizer.fingerprint, marks, encoded_documents.unit_bits
        )

    @staticmethod
    def open(
        path: str | Path, part: Literal["train", "validation"] = "train", *, tokenizer: Tokenizer | None = None,
        verify: bool = True, damaged: Literal["stop", "skip"] = "stop",
    ) -> Store:  # fmt: skip
        """Memory-map a store. `verify` checks each block when it is first read; `damaged="skip"` reads everything now
        and leaves out the documents that are damaged, with a warning that says how many."""
        store = StoreDirectory(Path(path), part, verify, damaged).open_store()
        if tokenizer is not None:
            store.check_tokenizer(tokenizer)
        return store

    def verify(self) -> None:
        """Read everything and compare it with the sums; the first damaged shard is an error that names the offset."""
        for reader in self.directory.open_readers() if self.directory is not None else ():
            for block in reader.find_damaged_blocks():
                fix = "make the store again, or leave the damage out: Store.open(path, damaged='skip')"
                raise Error(describe_damaged_block(block), where=reader.path, fix=fix)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made a store on disk."""
        if self.directory is None:
            fix = "keep the one that you gave to Store.from_documents"
            raise Error("a store in memory has no tokenizer of its own", fix=fix)
        return self.directory.load_tokenizer()

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[object, ...]]:
        if self.directory is not None:  # another process maps the same files
            home = self.directory
            return StoreDirectory.reopen_store, (home.path, home.part, home.verify, home.damaged, self.content_hash)
        return Store, (self.tokens, self.starts, self.vocab, self.fingerprint, self.sentences, self.unit_bits)


def describe_unknown(store: Store, tokenizer: Tokenizer) -> str | None:
    """Say what share of a store's tokens is unknown and what to do about it; None where there are few."""
    if (unknown := tokenizer.id("unk")) is None:
        return None
    if store.directory is None:
        count, total = int(np.count_nonzero(store.tokens[:] == unknown)), len(store.tokens)
    else:
        about = store.directory.metadata
        count, total = about["counts"].get("unknown", 0), sum(part["tokens"] for part in about["parts"].values())
    if count <= MAX_UNKNOWN_RATIO * total:
        return None
    lack, fix = "it was made for other text", "train one on this (formers tokenizer train) and name it with --tokenizer"
    if tokenizer.model_options.get("type") == "WordLevel":
        lack = f"{len(tokenizer):,} words are too few for this text"
        fix = "train a tokenizer of parts of words (formers tokenizer train unigram, or bpe) and name it with "
        fix += "--tokenizer, or take more words (pretrain --data.vocab_size)"
    return f"{count / total:.0%} of the tokens are unknown to the tokenizer: {lack}; {fix}"


def copy_spans(array: TokenArray, out: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
    """Copy spans of an array, one after the other, into `out`."""
    if isinstance(array, ChainedArray):
        return array.copy_spans(out, begin, end)
    at = 0
    for low, high in zip(begin.tolist(), end.tolist(), strict=True):
        stop = at + high - low
        out[at:stop] = array[low:high]
        at = stop


class StoreDirectory:
    """A store's directory."""

    def __init__(self, path: Path, part: str, verify: bool, damaged: str):
        self.path, self.part, self.verify, self.damaged = path, part, verify, damaged
        if not (file := path / "store.json").is_file():
            begun = (path / "begun.json").is_file()
            fix = "it is not finished: run the same formers prepare again" if begun else "make one with formers prepare"
            raise Error("is not a token store", where=path, fix=fix)
        self.metadata = read_checked_json(file)
        if (version := self.metadata.get("format")) != STORE_FORMAT:
            older = isinstance(version, int) and version < STORE_FORMAT
            fix = "prepare the text again" if older else "it was made by a newer formers: pip install --upgrade formers"
            raise Error(f"is a store of format {version!r}; this formers reads {STORE_FORMAT}", where=path, fix=fix)
        self.parts = rename_parts(self.metadata["parts"])
        if part not in self.parts:
            raise Error(f"has no part {part!r}", where=path, fix="prepare it with --validation 1%")
        self.part_metadata: Mapping[str, JSONValue] = self.parts[part]

    def open_store(self) -> Store:
        """Open the store, with nothing read yet but store.json."""
        skip = self.damaged == "skip"
        table = self.part_metadata["tables"]
        tables = ArrayFileReader(self.resolve_file(table["name"]), table)
        shards = [
            ArrayFileReader(self.resolve_file(s["name"]), s, verify=self.verify, allow_truncated=skip)
            for s in self.part_metadata["shards"]
        ]

        def read_table(name: str) -> np.ndarray:
            tables.verify_range(name, 0, tables.header["arrays"][name]["count"])
            return tables.get_array(name)

        dtype = np.dtype(self.metadata["dtype"])
        has = tables.header["arrays"]
        spans = [(reader, 0, reader.header["arrays"]["tokens"]["count"]) for reader in shards]
        starts: LazyArray = lambda: read_table("starts")  # noqa: E731
        sentences: LazyArray | None = (lambda: read_table("sentences")) if "sentences" in has else None
        left = 0
        if skip:
            marks = read_table("sentences") if sentences is not None else None
            spans, starts, sentences, left = drop_damaged(shards, read_table("starts"), marks)
        tokens = ChainedArray([(reader, "tokens", begin, end) for reader, begin, end in spans], dtype)
        units = None
        if self.metadata["options"].get("units"):
            units = ChainedArray([(reader, "units", begin, end) for reader, begin, end in spans], np.uint8)
        store = Store(tokens, starts, self.metadata["vocab"], self.metadata["fingerprint"], sentences, units)
        store.directory, store.skipped_documents = self, left
        if left:
            warnings.warn(f"{self.path}: {left:,} damaged documents are left out", stacklevel=3)
        return store

    def resolve_file(self, name: str) -> Path:
        """Return a file of this directory, and of no other."""
        if Path(name).name != name:
            raise Error(f"{name!r} is not the name of a file here", where=self.path / "store.json")
        return self.path / name

    def open_readers(self) -> list[ArrayFileReader]:
        """Return all files of this part."""
        files = (self.part_metadata["tables"], *self.part_metadata["shards"])
        return [ArrayFileReader(self.resolve_file(file["name"]), file) for file in files]

    def hash_content(self, skipped: int) -> str:
        """Return a hash over the content of this part."""
        files = (self.part_metadata["tables"], *self.part_metadata["shards"])
        sums = [self.metadata["fingerprint"], *(file["sha256"] for file in files), str(skipped)]
        return hashlib.sha256(" ".join(sums).encode()).hexdigest()

    def load_tokenizer(self) -> Tokenizer:
        """Load the tokenizer beside the shards, if it is still the one that made them."""
        file = self.path / "tokenizer.json"
        try:
            tokenizer = Tokenizer(file.read_bytes().decode("utf-8"), self.metadata["special"], where=file)
        except (OSError, UnicodeDecodeError):
            raise Error("cannot be read", where=file, fix="make the store again: formers prepare") from None
        if tokenizer.fingerprint != self.metadata["fingerprint"]:
            raise Error("is not the tokenizer that made this store", where=file, fix="prepare the text again")
        return tokenizer

    @staticmethod
    def reopen_store(path: Path, part: str, verify: bool, damaged: str, identity: str) -> Store:
        """Open a pickled store in another process, and check that its files have not changed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store = StoreDirectory(path, part, verify, damaged).open_store()
        if store.content_hash != identity:
            raise Error("has changed while it was in use", where=path, fix="start again from the store as it is now")
        return store


def drop_damaged(
    shards: list[ArrayFileReader], starts: np.ndarray, sentences: np.ndarray | None
) -> tuple[list[tuple[ArrayFileReader, int, int]], np.ndarray, np.ndarray | None, int]:
    """Return the spans, starts and sentences of shards without the documents that touch a damaged block, and how many
    were left out."""
    keep, spans, base = np.ones(len(starts) - 1, bool), [], 0
    for reader in shards:
        total = reader.header["arrays"]["tokens"]["count"]
        low, high = np.searchsorted(starts, (base, base + total))
        begin, end = starts[low:high] - base, starts[low + 1 : high + 1] - base
        bad = np.zeros(len(reader.verified_blocks) + 1, np.int64)
        bad[[b + 1 for b in reader.find_damaged_blocks()]] = 1
        bad = np.cumsum(bad)  # damaged blocks before each
        for name in ("tokens", "units"):
            if name in reader.header["arrays"] and len(begin):
                first, last = reader.find_blocks(name, begin, end)
                keep[low:high] &= bad[last + 1] == bad[first]
        good = np.flatnonzero(keep[low:high])
        for run in np.split(good, np.flatnonzero(np.diff(good) > 1) + 1) if len(good) else []:
            spans.append((reader, int(begin[run[0]]), int(end[run[-1]])))
        base += total
    lengths = np.diff(starts)
    left = int((~keep).sum())
    if sentences is not None:
        owner = np.searchsorted(starts, sentences[:-1], side="right") - 1
        sentences = (sentences[:-1] - np.cumsum(np.where(keep, 0, lengths))[owner])[keep[owner]]
    starts = compute_starts(lengths[keep])
    if not len(starts) - 1:
        raise Error("nothing of this store is left undamaged", where=shards[0].path.parent, fix="prepare it again")
    return spans, starts, None if sentences is None else np.append(sentences, starts[-1]), left
