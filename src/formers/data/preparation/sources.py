"""What formers prepare is given: files in groups that make shards of their own, or a list, table or dataset."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import ProgressCallback
from ...errors import Error
from ...text.normalise import CleaningReport
from ..readers import find_files, is_path_source, read_documents

EDGE_BYTES = 1 << 16  # bytes at either end of a file that tell whether it is the same
HASH_CHUNK = 1 << 20  # bytes that are summed up at a time
GROUP_BYTES = 64 << 20  # bytes of small files that go into one group


class SourceChanged(Error):
    """Text is not what a store was made of."""


@dataclass(frozen=True)
class DocumentSource:
    """Groups of documents, each read on its own."""

    groups: list[Any]  # of each: a list of files, or documents in memory
    fingerprints: list[dict[str, Any]]  # what tells whether a file has changed
    read_options: Mapping[str, Any]  # unit, column, encoding, skip: as `read_documents` wants them

    def read_group(self, group: int, changes: CleaningReport) -> Iterator[str]:
        """The documents of a group."""
        return read_documents(self.groups[group], changes=changes, **self.read_options)

    @property
    def is_rereadable(self) -> bool:
        """Can it be read more than once?"""
        return not isinstance(self.groups[0], Iterator)

    def list_files(self, group: int) -> list[Path]:
        """The files of a group; none if it is text in memory."""
        files = self.groups[group]
        return files if isinstance(files, list) and files and isinstance(files[0], Path) else []

    def estimate_bytes(self, packed: Mapping[str, float], group: int) -> int:
        """About how many bytes of text a group has; 0 if it is not known."""
        return int(sum(p.stat().st_size * packed.get(p.suffix.lower(), 1.0) for p in self.list_files(group)))


def open_source(source: Any, **how: Any) -> DocumentSource:
    """A source by what it is: paths (a string, a Path, a list of Path), or documents in memory."""
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


def stamp_file(path: Path) -> dict[str, Any]:
    """A file's name and size, and a hash of both its ends: what can be told of a large file at once."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        whole = hashlib.sha256(file.read(EDGE_BYTES))
        file.seek(max(0, size - EDGE_BYTES))
        whole.update(file.read(EDGE_BYTES))
    return {"name": path.name, "bytes": size, "ends": whole.hexdigest()}


def hash_file(path: Path, stopped: threading.Event | None = None) -> str:
    """The SHA-256 of a whole file."""
    whole = hashlib.sha256()
    with open(path, "rb") as file:
        while (data := file.read(HASH_CHUNK)) and not (stopped and stopped.is_set()):
            whole.update(data)
    return whole.hexdigest()


class FileHasher:
    """What tells for certain whether files change: a thread reads them once more, beside the work on them."""

    def __init__(self, files: Sequence[Path]):
        self.files, self.hashes = files, list[str]()
        self.modified_times = [path.stat().st_mtime_ns for path in files]
        self.stop_event = threading.Event()
        self.thread = threading.Thread(target=self.hash_files, daemon=True, name="formers-sums")
        self.thread.start()

    def hash_files(self) -> None:
        """The sum of each file."""
        for path in self.files:
            self.hashes.append(hash_file(path, self.stop_event))

    def stop(self) -> None:
        """End, whether all is read or not."""
        self.stop_event.set()
        self.thread.join()

    def collect_stamps(self) -> list[dict[str, Any]]:
        """Of each file its sum, and when it was last written to; an error if that was in the meantime."""
        self.thread.join()
        if len(self.hashes) < len(self.files):
            raise Error("cannot be read", where=self.files[len(self.hashes)], fix="look at its permissions")
        for path, time in zip(self.files, self.modified_times, strict=True):
            if path.stat().st_mtime_ns != time:
                raise Error(
                    "was changed while it was read", where=path, fix="run the same again when it stays as it is"
                )
        return [{"sha256": sum, "time": time} for sum, time in zip(self.hashes, self.modified_times, strict=True)]


def check_unchanged(files: Sequence[Path], known: Sequence[Mapping[str, Any]], tell: ProgressCallback) -> None:
    """Refuse files that are not what a store was made of. One that was not written to since is believed."""
    for number, (path, was) in enumerate(zip(files, known, strict=True)):
        if path.stat().st_mtime_ns != was.get("time"):
            tell("comparing", number, len(files), path.name)
            if hash_file(path) != was["sha256"]:
                fix = "choose another directory for the new text, or remove this one"
                raise SourceChanged("has changed since a store was made of it", where=path, fix=fix)
