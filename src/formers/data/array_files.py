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

from ..config import parse_json_object
from ..errors import Error

BLOCK_BYTES = 1 << 16
ALIGNMENT = 64
ALLOWED_DTYPES = ("uint8", "uint16", "uint32", "int8", "int64")
REBUILD_HINT = "make the store again (formers prepare), or leave the damage out: Store.open(path, damaged='skip')"


def to_checked_json(values: Mapping[str, Any]) -> str:
    """JSON that carries a checksum of itself."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return json.dumps({**values, "seal": hashlib.sha256(text.encode()).hexdigest()}, indent=1, ensure_ascii=False)


def read_checked_json(path: Path) -> dict[str, Any]:
    """What a sealed file says, if it is still what was written."""
    try:
        values = parse_json_object(path.read_bytes().decode("utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "it is not UTF-8"
        raise Error(f"cannot be read ({what})", where=path, fix="make the store again: formers prepare") from None
    found = values.pop("seal", None)
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    if found != hashlib.sha256(text.encode()).hexdigest():
        raise Error("is not as it was written", where=path, fix="make the store again: formers prepare")
    return values


def write_atomically(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    rename_durably(temporary, path)


def rename_durably(temporary: Path, path: Path) -> None:
    """Give a finished file its name, and have that written down too."""
    os.replace(temporary, path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class ArrayFileWriter:
    """Writes NAME.bin array by array, each in chunks, under another name until `close` is called."""

    def __init__(self, path: Path):
        self.path, self.bytes_written = path, 0
        self.arrays: dict[str, dict[str, Any]] = {}
        self.temporary_path = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self.file = open(self.temporary_path, "wb")  # noqa: SIM115
        self.sha256, self.block_crc = hashlib.sha256(), 0
        self.block_crcs: list[int] = []

    def add_array(self, name: str, dtype: Any, chunks: Iterable[np.ndarray]) -> None:
        """The next array, whole or its next chunks."""
        kind = np.dtype(dtype)
        if name not in self.arrays:
            self.write_bytes(b"\0" * (-self.bytes_written % ALIGNMENT))
            self.arrays[name] = {"at": self.bytes_written, "count": 0, "dtype": kind.name}
        for chunk in chunks:
            self.write_bytes(np.ascontiguousarray(chunk, kind.newbyteorder("<")).view(np.uint8).data)
            self.arrays[name]["count"] += len(chunk)

    def write_bytes(self, data: Any) -> None:
        """Bytes, with the sum of each full block."""
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

    def close(self) -> dict[str, Any]:
        """Finish the file; what it holds, to be written down."""
        if self.bytes_written % BLOCK_BYTES:
            self.block_crcs.append(self.block_crc)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        rename_durably(self.temporary_path, self.path)
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

    def __init__(self, path: Path, about: Mapping[str, Any], *, verify: bool = True, allow_truncated: bool = False):
        self.path, self.header, self.verify = path, about, verify
        try:
            size = path.stat().st_size
            if size != about["bytes"] and not allow_truncated:
                what = f"has {size:,} bytes where {about['bytes']:,} were written"
                raise Error(
                    f"{what}: damaged from offset {min(size, about['bytes']):,} on", where=path, fix=REBUILD_HINT
                )
            with open(path, "rb") as file:
                self.mapped_bytes: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            if not (allow_truncated and isinstance(error, FileNotFoundError)):
                raise Error(f"cannot be read ({error.strerror})", where=path, fix=REBUILD_HINT) from None
            self.mapped_bytes = b""
        self.verified_blocks = np.zeros(-(-about["bytes"] // BLOCK_BYTES), bool)
        self._block_crcs: np.ndarray | None = None

    @property
    def block_crcs(self) -> np.ndarray:
        """The sum of each block, as it was written."""
        if self._block_crcs is None:
            beside = self.path.with_suffix(".json")
            said = read_checked_json(beside)
            if said.get("sha256") != self.header["sha256"] or len(said["sums"]) != 8 * len(self.verified_blocks):
                raise Error(f"does not belong to {self.path.name}", where=beside, fix=REBUILD_HINT)
            self._block_crcs = np.frombuffer(bytes.fromhex(said["sums"]), "<u4")
        return self._block_crcs

    def get_array(self, name: str) -> np.ndarray:
        """One of the arrays, as much of it as is there; nothing is read yet."""
        said = self.header["arrays"][name]
        kind = np.dtype(said["dtype"]).newbyteorder("<")
        if (
            kind.name not in ALLOWED_DTYPES
            or said["at"] < 0
            or said["at"] + said["count"] * kind.itemsize > self.header["bytes"]
        ):
            raise Error(f"the array {name!r} cannot be there", where=self.path, fix=REBUILD_HINT)
        count = max(0, min(said["count"], (len(self.mapped_bytes) - said["at"]) // kind.itemsize))
        return np.frombuffer(self.mapped_bytes, kind, count, said["at"] if count else 0)

    def find_blocks(self, name: str, begin: Any, end: Any) -> tuple[Any, Any]:
        """The first and last block of the places begin … end - 1 of an array."""
        said = self.header["arrays"][name]
        size = np.dtype(said["dtype"]).itemsize
        return (said["at"] + begin * size) // BLOCK_BYTES, (said["at"] + end * size - 1) // BLOCK_BYTES

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
            what = f"the block at offset {block * BLOCK_BYTES:,} is not as it was written"
            raise Error(f"{what} (array {name!r})", where=self.path, fix=REBUILD_HINT)

    def is_block_intact(self, block: int) -> bool:
        """Is this block as it was written?"""
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

    def __init__(self, parts: list[tuple[ArrayFileReader, str, int, int]], dtype: Any):
        """Each part is (file, array, begin, end)."""
        self.readers = [(reader, name, begin) for reader, name, begin, _ in parts]
        self.arrays = [reader.get_array(name)[begin:end] for reader, name, begin, end in parts]
        self.offsets = np.cumsum([0, *(end - begin for *_, begin, end in parts)], dtype=np.int64)
        self.dtype = np.dtype(dtype)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        out = np.empty(len(self), dtype or self.dtype)
        self.copy_spans(out, np.array([0]), np.array([len(self)]))
        return out

    def __getitem__(self, where: Any) -> Any:
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
        """The places begin[i] … end[i] - 1, one span after the other, into `out`."""
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
