"""An output file that grows record by record and survives being stopped: what is done is not done again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import Error


class ResumableFile:
    """Writes OUT.part, with OUT.part.json beside it, which says what for; `finish` gives it its name.

    A part that was made for the same is gone on with, one that was made for something else is begun anew. Records are
    lines, or of `size` bytes each; half a record at the end is taken off. OUT itself is replaced with `overwrite` only.
    """

    def __init__(self, out: Path, description: Any, size: int | None = None, overwrite: bool = False):
        if out.exists() and not overwrite:
            raise Error("this file is there already", where=out, fix="give another name, or say overwrite")
        if not out.parent.is_dir():
            raise Error("there is no such folder", where=out.parent, fix="make it first")
        self.out_path, self.record_bytes = out, size
        self.part_path, note = Path(f"{out}.part"), Path(f"{out}.part.json")
        self.description_path = note
        text = json.dumps(description, sort_keys=True, ensure_ascii=False)
        if not (note.exists() and self.part_path.exists() and note.read_text(encoding="utf-8") == text):
            self.part_path.write_bytes(b"")
            note.write_text(text, encoding="utf-8")
        self.records_done = self.truncate_partial_record()
        self.file: IO[bytes] = self.part_path.open("ab")

    def truncate_partial_record(self) -> int:
        """How many whole records there are; the rest goes."""
        length = self.part_path.stat().st_size
        if self.record_bytes is not None:
            os.truncate(self.part_path, length // self.record_bytes * self.record_bytes)
            return length // self.record_bytes
        count, end = 0, 0
        with self.part_path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    count, end = count + 1, end + len(line)
        os.truncate(self.part_path, end)
        return count

    def read_records(self) -> Iterator[Any]:
        """The lines that are there, as JSON says them."""
        self.file.flush()
        with self.part_path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    def write_records(self, *records: bytes | dict[str, Any]) -> None:
        """Some more; they are safe when this returns, unless the machine itself stops."""
        for record in records:
            raw = record if isinstance(record, bytes) else json.dumps(record, ensure_ascii=False).encode() + b"\n"
            self.file.write(raw)
        self.file.flush()
        self.records_done += len(records)

    def finish(self, convert: Callable[[Path, IO[bytes]], None] | None = None) -> None:
        """Everything is there: the file gets its name; `convert` writes it in another form first."""
        os.fsync(self.file.fileno())
        self.file.close()
        made = self.part_path
        if convert is not None:
            made = Path(f"{self.out_path}.new")
            with made.open("wb") as file:
                convert(self.part_path, file)
                os.fsync(file.fileno())
        os.replace(made, self.out_path)
        self.part_path.unlink(missing_ok=True)
        self.description_path.unlink(missing_ok=True)

    def __enter__(self) -> ResumableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
