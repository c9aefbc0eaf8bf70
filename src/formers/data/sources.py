"""What formers prepare is given: files in groups that make shards of their own, or a list, table or dataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..text.normalise import Changes
from .readers import find, read

EDGE = 1 << 16  # bytes at either end of a file that tell whether it is the same
HEAP = 64 << 20  # bytes of small files that go into one group


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

    def size(self, packed: Mapping[str, float], group: int) -> int:
        """About how many bytes of text a group has; 0 if it is not known."""
        files = self.groups[group]
        if not (isinstance(files, list) and files and isinstance(files[0], Path)):
            return 0
        return int(sum(p.stat().st_size * packed.get(p.suffix.lower(), 1.0) for p in files))


def opened(source: Any, **how: Any) -> Source:
    """A source by what it is: paths (a string, a Path, a list of Path), or documents in memory."""
    if isinstance(source, str | os.PathLike) or (
        isinstance(source, list | tuple) and source and all(isinstance(p, os.PathLike) for p in source)
    ):
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
    """A file's name and size, and a hash of both its ends: cheap, and it notices what people do to files."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        whole = hashlib.sha256(file.read(EDGE))
        file.seek(max(0, size - EDGE))
        whole.update(file.read(EDGE))
    return {"name": path.name, "bytes": size, "ends": whole.hexdigest()}
