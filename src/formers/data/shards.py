"""Files of arrays on disk: written whole or not at all, memory-mapped, and checked block by block.

A file NAME.bin holds arrays one after the other, and NAME.json beside it says which, their SHA-256, and a CRC-32 of
each block of 64 KiB: a damaged file can say where, and a block is checked when it is first read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..config import table
from ..errors import Error

BLOCK = 1 << 16
ALIGN = 64
TYPES = ("uint8", "uint16", "uint32", "int8", "int64")
AGAIN = "make the store again (formers prepare), or leave the damage out: Store.open(path, damaged='skip')"


def seal(values: Mapping[str, Any]) -> str:
    """JSON that carries a checksum of itself."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return json.dumps({**values, "seal": hashlib.sha256(text.encode()).hexdigest()}, indent=1, ensure_ascii=False)


def unseal(path: Path) -> dict[str, Any]:
    """What a sealed file says, if it is still what was written."""
    try:
        values = table(path.read_bytes().decode("utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "it is not UTF-8"
        raise Error(f"cannot be read ({what})", where=path, fix="make the store again: formers prepare") from None
    found = values.pop("seal", None)
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    if found != hashlib.sha256(text.encode()).hexdigest():
        raise Error("is not as it was written", where=path, fix="make the store again: formers prepare")
    return values


def put(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    settle(temporary, path)


def settle(temporary: Path, path: Path) -> None:
    """Give a finished file its name, and have that written down too."""
    os.replace(temporary, path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Writer:
    """Writes NAME.bin array by array, each in chunks, under another name until `close` is called."""

    def __init__(self, path: Path):
        self.path, self.size = path, 0
        self.arrays: dict[str, dict[str, Any]] = {}
        self.temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self.file = open(self.temporary, "wb")  # noqa: SIM115
        self.whole, self.sum = hashlib.sha256(), 0
        self.sums: list[int] = []

    def add(self, name: str, dtype: Any, chunks: Iterable[np.ndarray]) -> None:
        """The next array, whole or its next chunks."""
        kind = np.dtype(dtype)
        if name not in self.arrays:
            self.write(b"\0" * (-self.size % ALIGN))
            self.arrays[name] = {"at": self.size, "count": 0, "dtype": kind.name}
        for chunk in chunks:
            self.write(np.ascontiguousarray(chunk, kind.newbyteorder("<")).view(np.uint8).data)
            self.arrays[name]["count"] += len(chunk)

    def write(self, data: Any) -> None:
        """Bytes, with the sum of each full block."""
        self.whole.update(data)
        done = 0
        while done < len(data):
            step = min(len(data) - done, BLOCK - self.size % BLOCK)
            self.sum = zlib.crc32(data[done : done + step], self.sum)
            done += step
            self.size += step
            if self.size % BLOCK == 0:
                self.sums.append(self.sum)
                self.sum = 0
        self.file.write(data)

    def close(self) -> dict[str, Any]:
        """Finish the file; what it holds, to be written down."""
        if self.size % BLOCK:
            self.sums.append(self.sum)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        settle(self.temporary, self.path)
        sums = np.array(self.sums, "<u4").tobytes().hex()
        about = {"bytes": self.size, "sha256": self.whole.hexdigest(), "arrays": self.arrays}
        put(self.path.with_suffix(".json"), seal({**about, "block": BLOCK, "sums": sums}))
        return about

    def drop(self) -> None:
        """Leave nothing behind."""
        self.file.close()
        self.temporary.unlink(missing_ok=True)


class Reader:
    """A memory-mapped file of arrays. `verify`: check each block when it is first read."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, verify: bool = True, short: bool = False):
        self.path, self.about, self.verify = path, about, verify
        try:
            size = path.stat().st_size
            if size != about["bytes"] and not short:
                what = f"has {size:,} bytes where {about['bytes']:,} were written"
                raise Error(f"{what}: damaged from offset {min(size, about['bytes']):,} on", where=path, fix=AGAIN)
            with open(path, "rb") as file:
                self.data: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            if not (short and isinstance(error, FileNotFoundError)):
                raise Error(f"cannot be read ({error.strerror})", where=path, fix=AGAIN) from None
            self.data = b""
        self.good = np.zeros(-(-about["bytes"] // BLOCK), bool)
        self._sums: np.ndarray | None = None

    @property
    def sums(self) -> np.ndarray:
        """The sum of each block, as it was written."""
        if self._sums is None:
            beside = self.path.with_suffix(".json")
            said = unseal(beside)
            if said.get("sha256") != self.about["sha256"] or len(said["sums"]) != 8 * len(self.good):
                raise Error(f"does not belong to {self.path.name}", where=beside, fix=AGAIN)
            self._sums = np.frombuffer(bytes.fromhex(said["sums"]), "<u4")
        return self._sums

    def array(self, name: str) -> np.ndarray:
        """One of the arrays, as much of it as is there; nothing is read yet."""
        said = self.about["arrays"][name]
        kind = np.dtype(said["dtype"]).newbyteorder("<")
        if kind.name not in TYPES or said["at"] < 0 or said["at"] + said["count"] * kind.itemsize > self.about["bytes"]:
            raise Error(f"the array {name!r} cannot be there", where=self.path, fix=AGAIN)
        count = max(0, min(said["count"], (len(self.data) - said["at"]) // kind.itemsize))
        return np.frombuffer(self.data, kind, count, said["at"] if count else 0)

    def blocks(self, name: str, begin: Any, end: Any) -> tuple[Any, Any]:
        """The first and last block of the places begin … end - 1 of an array."""
        said = self.about["arrays"][name]
        size = np.dtype(said["dtype"]).itemsize
        return (said["at"] + begin * size) // BLOCK, (said["at"] + end * size - 1) // BLOCK

    def ready(self, name: str, begin: int, end: int) -> None:
        """Check the blocks that hold these places, those that were not checked yet."""
        if not self.verify or begin >= end:
            return
        first, last = self.blocks(name, begin, end)
        if not self.good[first : last + 1].all():
            for block in range(first, last + 1):
                self.prove(name, block)

    def prove(self, name: str, block: int) -> None:
        """Check a block, unless that was done before."""
        if self.verify and not self.good[block] and not self.sound(block):
            what = f"the block at offset {block * BLOCK:,} is not as it was written"
            raise Error(f"{what} (array {name!r})", where=self.path, fix=AGAIN)

    def sound(self, block: int) -> bool:
        """Is this block as it was written?"""
        size = min(BLOCK, self.about["bytes"] - block * BLOCK)
        data = self.data[block * BLOCK : block * BLOCK + size]
        self.good[block] = len(data) == size and zlib.crc32(data) == self.sums[block]
        return bool(self.good[block])

    def check(self) -> list[int]:
        """Read everything; the blocks that are not as they were written."""
        bad = [block for block in range(len(self.good)) if not self.sound(block)]
        extra = len(self.data) > self.about["bytes"]
        if not bad and (extra or hashlib.sha256(self.data).hexdigest() != self.about["sha256"]):
            bad = [len(self.good) - 1 if len(self.good) else 0]
        return bad


class Pieces:
    """Arrays of several files, used as if they were one."""

    def __init__(self, parts: list[tuple[Reader, str, int, int]], dtype: Any):
        """Each part is (file, array, begin, end)."""
        self.readers = [(reader, name, begin) for reader, name, begin, _ in parts]
        self.arrays = [reader.array(name)[begin:end] for reader, name, begin, end in parts]
        self.edges = np.cumsum([0, *(end - begin for *_, begin, end in parts)], dtype=np.int64)
        self.dtype = np.dtype(dtype)

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        out = np.empty(len(self), dtype or self.dtype)
        self.fill(out, np.array([0]), np.array([len(self)]))
        return out

    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, slice):
            begin, end, step = where.indices(len(self))
            if step < 0:
                return np.asarray(self)[where]
            out = np.empty(max(0, end - begin), self.dtype)
            self.fill(out, np.array([begin]), np.array([begin + len(out)]))
            return out[::step]
        slots = np.asarray(where, np.int64)
        slots = np.where(slots < 0, slots + len(self), slots)
        if slots.size and not 0 <= slots.min() <= slots.max() < len(self):
            raise IndexError("out of range")
        out = np.empty(slots.shape, self.dtype)
        owner = np.searchsorted(self.edges, slots, side="right") - 1
        for part in np.unique(owner):
            mine, (reader, name, offset) = owner == part, self.readers[part]
            inside = slots[mine] - self.edges[part]
            for block in np.unique(reader.blocks(name, offset + inside, offset + inside + 1)[0]).tolist():
                reader.prove(name, block)
            out[mine] = self.arrays[part][inside]
        return out[()]

    def fill(self, out: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
        """The places begin[i] … end[i] - 1, one span after the other, into `out`."""
        owner = np.searchsorted(self.edges, begin, side="right") - 1
        at = 0
        for low, high, part in zip(begin.tolist(), end.tolist(), owner.tolist(), strict=True):
            while low < high:
                first, stop = int(self.edges[part]), int(self.edges[part + 1])
                size = min(high, stop) - low
                if size > 0:
                    reader, name, offset = self.readers[part]
                    inside = low - first
                    reader.ready(name, offset + inside, offset + inside + size)
                    out[at : at + size] = self.arrays[part][inside : inside + size]
                    at, low = at + size, low + size
                part += 1
