"""The parts of a task's examples: to learn from, to choose by, to be judged by; read, held out and kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.draws import shuffled
from ..data.readers import by_path
from ..errors import Error
from ..tasks.examples import Examples, read_examples
from .tuning import Data

PARTS = ("train", "valid", "test")


def read_parts(
    data: Data, task: str | None, sources: dict[str, Any], columns: Any, path: Path | None
) -> dict[str, Examples]:
    """The examples of each part; without held-out ones, some of the training examples are held out."""
    parts: dict[str, Examples] = {}
    for name in PARTS:
        kept = None if path is None else path / "data" / f"{name}.jsonl"
        source = sources[name] if sources[name] is not None else getattr(data, name)
        if source is None and kept is not None and kept.is_file():
            source, columns = kept, None
        if source is None:
            continue
        limit = data.limit if name == "train" else None
        parts[name] = read_examples(source, task, columns or data.columns, limit=limit)
        task = parts[name].task
    if "train" not in parts:
        raise Error("there are no examples to learn from", fix="give --train FILE")
    if "valid" not in parts:
        parts = {**held_out(parts["train"], data.held_out), **{k: v for k, v in parts.items() if k == "test"}}
    return parts


def held_out(examples: Examples, share: float) -> dict[str, Examples]:
    """Training examples parted by chance, the same in every run."""
    rows, size = examples.rows, round(share * len(examples.rows))
    if not 0 < size < len(rows):
        raise Error(f"of {len(rows)} examples none can be held out", fix="give more, or --valid FILE")
    order = shuffled(len(rows), 0, 0, 0x4E1D).tolist()
    out = set(order[:size])
    words = f"{size:,} of the training examples, held out"
    return {
        "train": replace(examples, rows=[row for i, row in enumerate(rows) if i not in out]),
        "valid": replace(examples, rows=[row for i, row in enumerate(rows) if i in out], said=words),
    }


def keep(path: Path, sources: Mapping[str, Any], parts: Mapping[str, Examples]) -> None:
    """Examples that came out of memory are kept, so that the run can go on without them."""
    (path / "data").mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        if source is not None and not by_path(source):
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in read_again(source, name, parts))
            (path / "data" / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def read_again(source: Any, name: str, parts: Mapping[str, Examples]) -> list[dict[str, Any]]:
    """The rows of a part as they were given, held-out ones included."""
    rows = parts[name].rows
    if name == "train" and "held out" in parts["valid"].said:
        rows = [*rows, *parts["valid"].rows]
    return [bare(row) for row in rows]


def bare(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what it does not have."""
    return {key: value for key, value in row.items() if value is not None}


def identity(examples: Examples) -> str:
    """What tells whether examples have changed."""
    text = json.dumps(examples.rows, ensure_ascii=False, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
