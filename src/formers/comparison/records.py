"""One record for each job of a comparison: what was done, with what result, on which machine. The report is made of
records alone.

FOLDER/comparison.json     what the comparison is asked to do
FOLDER/corpus/             the text: train, valid and test documents, the same for every family
FOLDER/data/FORM/          tokenizer and token stores, for each form of the text that some family reads
FOLDER/runs/JOB/           run folders of pretraining and fine-tuning
FOLDER/records/JOB.json    the records
FOLDER/logs/               what the worker processes printed
FOLDER/report.html, .md, *.svg
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from ..atomic_files import write_atomically
from ..config import JSONObject
from ..errors import Error

RECORD_FORMAT = 1
Status = Literal["done", "refused", "failed"]


@dataclass(frozen=True)
class Record:
    """What became of a job. "refused" is final: the library cannot do this, or the run diverged; "failed" is what may
    succeed another time, such as a process that was killed."""

    job: str
    kind: str
    status: Status
    family: str | None = None
    budget: str | None = None
    seed: int | None = None
    task: str | None = None
    factor: float | None = None
    seconds: float = 0.0  # wall time, with everything
    together: int = 1  # jobs that ran at the same time, at most
    result: JSONObject = field(default_factory=dict)
    error: str = ""
    machine: JSONObject = field(default_factory=dict)
    format: int = RECORD_FORMAT

    @property
    def is_final(self) -> bool:
        """Whether the job need not be run again."""
        return self.status != "failed"


class RecordFolder:
    """The records of a comparison, by the names of their jobs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder / "records"

    def get_path(self, job: str) -> Path:
        """Return the file of a job's record."""
        return self.path / f"{job}.json"

    def write(self, record: Record) -> None:
        """Write a record, whole or not at all."""
        path = self.get_path(record.job)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(record), ensure_ascii=False, indent=1) + "\n")

    def read(self, job: str) -> Record | None:
        """Read the record of a job; None if there is none."""
        path = self.get_path(job)
        return parse_record(path.read_text(encoding="utf-8"), path) if path.is_file() else None

    def read_result(self, job: str) -> JSONObject:
        """Read the result of a job that is done."""
        record = self.read(job)
        if record is None or record.status != "done":
            raise Error(f"{job} has no result", where=self.folder, fix="run the comparison again")
        return record.result

    def read_all(self) -> list[Record]:
        """Read all records, in the order of their names."""
        files = sorted(self.path.rglob("*.json")) if self.path.is_dir() else []
        return [parse_record(path.read_text(encoding="utf-8"), path) for path in files]


def parse_record(text: str, where: object = None) -> Record:
    """Read a record out of JSON."""
    try:
        record = Record(**json.loads(text))
        good = record.format == RECORD_FORMAT and isinstance(record.result, dict)
    except (ValueError, TypeError):
        good = False
    if not good:
        raise Error("this is not a record of a comparison", where=where, fix="remove it: its job is then run again")
    return record


def write_record_lines(path: Path, records: Iterable[Record]) -> None:
    """Write records into one file, a line each."""
    lines = (json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(lines))


def read_record_lines(path: Path) -> list[Record]:
    """Read a file of records, a line each; none if there is no file."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    return [parse_record(line, path) for line in lines if line]
