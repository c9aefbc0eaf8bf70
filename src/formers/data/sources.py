"""What formers prepare is given: files in groups that make shards of their own, or a list, table or dataset."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Tell
from ..errors import Error
from ..text.normalise import Changes
from .readers import by_path, find, read

EDGE = 1 << 16  # bytes at either end of a file that tell whether it is the same
PIECE = 1 << 20  # bytes that are summed up at a time
HEAP = 64 << 20  # bytes of small files that go into one group


class Changed(Error):
    """Text is not what a store was made of."""


@dataclass(frozen=True)
class Source:
    """Groups of documents, each read on its own."""

    groups: list[Any]  # of each: a list of files, or documents in memory
    stamps: list[dict[str, Any]]  # what tells whether a file has changed
    how: Mapping[str, Any]  # unit, column, encoding, skip: as `read` wants them

    def read(self, group: int, changes: Changes) -> Iterator[str]:
        """The documents of a group."""
        return read(self.groups[group], changes=changes, **self.how)

    @property
    def again(self) -> bool:
        """Can it be read more than once?"""
        return not isinstance(self.groups[0], Iterator)

    def files(self, group: int) -> list[Path]:
        """The files of a group; none if it is text in memory."""
        files = self.groups[group]
        return files if isinstance(files, list) and files and isinstance(files[0], Path) else []

    def size(self, packed: Mapping[str, float], group: int) -> int:
        """About how many bytes of text a group has; 0 if it is not known."""
        return int(sum(p.stat().st_size * packed.get(p.suffix.lower(), 1.0) for p in self.files(group)))


def opened(source: Any, **how: Any) -> Source:
    """A source by what it is: paths (a string, a Path, a list of Path), or documents in memory."""
    if by_path(source):
        files = find(source)
        groups: list[list[Path]] = []
        full = HEAP
        for path in files:  # small files share a group; a large one has its own
            size = path.stat().st_size
            if full + size > HEAP:
                groups.append([])
                full = 0
            groups[-1].append(path)
            full += size
        return Source(groups, [stamp(path) for path in files], how)
    return Source([source], [{"name": f"a {type(source).__name__} in memory"}], how)


def stamp(path: Path) -> dict[str, Any]:
    """A file's name and size, and a hash of both its ends: what can be told of a large file at once."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        whole = hashlib.sha256(file.read(EDGE))
        file.seek(max(0, size - EDGE))
        whole.update(file.read(EDGE))
    return {"name": path.name, "bytes": size, "ends": whole.hexdigest()}


def digest(path: Path, stopped: threading.Event | None = None) -> str:
    """The SHA-256 of a whole file."""
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        while (data := file.read(PIECE)) and not (stopped and stopped.is_set()):
            whole.update(data)
    return whole.hexdigest()


class Sums:
    """What tells for certain whether files change: a thread reads them once more, beside the work on them."""

    def __init__(self, files: Sequence[Path]):
        self.files, self.found = files, list[str]()
        self.times = [path.stat().st_mtime_ns for path in files]
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True, name="formers-sums")
        self.thread.start()

    def run(self) -> None:
        """The sum of each file."""
        for path in self.files:
            self.found.append(digest(path, self.stopped))

    def stop(self) -> None:
        """End, whether all is read or not."""
        self.stopped.set()
        self.thread.join()

    def all(self) -> list[dict[str, Any]]:
        """Of each file its sum, and when it was last written to; an error if that was in the meantime."""
        self.thread.join()
        if len(self.found) < len(self.files):
            raise Error("cannot be read", where=self.files[len(self.found)], fix="look at its permissions")
        for path, time in zip(self.files, self.times, strict=True):
            if path.stat().st_mtime_ns != time:
                raise Error(
                    "was changed while it was read", where=path, fix="run the same again when it stays as it is"
                )
        return [{"sha256": sum, "time": time} for sum, time in zip(self.found, self.times, strict=True)]


def prove(files: Sequence[Path], known: Sequence[Mapping[str, Any]], tell: Tell) -> None:
    """Refuse files that are not what a store was made of. One that was not written to since is believed."""
    for number, (path, was) in enumerate(zip(files, known, strict=True)):
        if path.stat().st_mtime_ns != was.get("time"):
            tell("comparing", number, len(files), path.name)
            if digest(path) != was["sha256"]:
                fix = "choose another directory for the new text, or remove this one"
                raise Changed("has changed since a store was made of it", where=path, fix=fix)
