"""The parts of a task's examples: for training, validation and test; read, held out and kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ...config import JSONValue, count_noun
from ...data.counter_rng import shuffle_indices
from ...data.readers import is_path_source
from ...errors import Error
from ...tasks.example_tables import FileOptions
from ...tasks.examples import Columns, Examples, check_labels, flatten_names, order_labels, read_examples
from ..config_merge import FinetuneDataConfig

SPLITS = ("train", "valid", "test")
FEW_SHARED = 0.01  # of a part's examples that may be among another's without a warning
# What rows may share that must not be both trained and evaluated on; if it is always one of so few, it is no context
# but the same instruction in front of all.
SHARED_CONTEXTS = {"answer": ("context", 1), "choose": ("text", 20)}


def read_splits(
    data: FinetuneDataConfig, task: str | None, sources: Mapping[str, object], columns: Columns, run: Path | None
) -> dict[str, Examples]:
    """Read the examples of each part; if only training examples are given, some are held out. A resumed `run` (its
    folder) has saved those that came from memory."""
    parts: dict[str, Examples] = {}
    settings = {"train": data.train, "valid": data.valid, "test": data.test}
    for name in SPLITS:
        source = sources[name] if sources[name] is not None else settings[name]
        if source is None and run is not None:
            source = load_saved_examples(run, name, task or "classify")
        if source is None:
            continue
        parts[name] = read_split(source, task, columns or data.columns, data.label_separator, **data.reader_options)
        task = parts[name].task
    if "train" not in parts:
        raise Error("there are no examples to learn from", fix="give --train FILE")
    check_labels(parts["train"])
    if data.limit is not None:
        parts["train"] = sample_examples(parts["train"], data.limit)
    if "valid" not in parts:
        parts = {**hold_out(parts["train"], data.valid_fraction), **{k: v for k, v in parts.items() if k == "test"}}
    return parts


def find_overlap(parts: Mapping[str, Examples]) -> list[tuple[str, str, int, int]]:
    """(part, earlier part, rows in common, rows of the part) for parts that share examples: rows whose text is the same
    but for case and spaces, whatever their labels are."""
    keys = {name: [hash_content(row) for row in part.rows] for name, part in parts.items()}
    overlaps = []
    for name, before in (("valid", "train"), ("test", "train"), ("test", "valid")):
        if name in keys and before in keys:
            known = set(keys[before])
            if shared := sum(key in known for key in keys[name]):
                overlaps.append((name, before, shared, len(keys[name])))
    return overlaps


def hash_content(row: Mapping[str, JSONValue]) -> bytes:
    """Hash a row's texts without case and spaces, to find rows with the same content."""
    fields = [row.get(key) for key in ("text", "other", "question", "context")]
    parts = [str(field or "") for field in (*fields, *(row.get("choices") or ()), "".join(row.get("words") or ()))]
    text = "\0".join("".join(part.casefold().split()) for part in parts)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def format_overlap_warnings(overlaps: Sequence[tuple[str, str, int, int]], what: str = "examples") -> list[str]:
    """Return a line for each pair of parts that share examples, or documents of plain text: a warning unless they are
    so few that they hardly move a metric."""
    lines = []
    for name, before, shared, count in overlaps:
        words = f"{shared:,} of {count:,} {name} {what} {'is' if shared == 1 else 'are'} among the {before} {what} too"
        if shared <= FEW_SHARED * count:
            lines.append(f"note: {words}")
        else:
            lines.append(f"warning: {words} ({shared / count:.0%}): the metrics say little about new texts")
    return lines


def read_split(
    source: object, task: str | None, columns: Columns, between: str | None, **reading: Unpack[FileOptions]
) -> Examples:
    """Read the labelled examples of one source; plain text is refused: only the task lm learns from it."""
    if not isinstance(source, Examples):
        return read_examples(source, task, columns, label_separator=between, allow_plain_text=False, **reading)
    if source.task == "lm" and task != "lm":
        raise Error("these examples are plain text without labels", fix="name the task: --task lm, or task='lm'")
    return source


def wrap_labels_in_lists(examples: Examples) -> Examples:
    """Turn the label of each example into a list of labels."""
    rows = [{**row, "label": flatten_names([row["label"]])} for row in examples.rows]
    return replace(examples, rows=rows, multilabel=True)


def sample_examples(examples: Examples, limit: int) -> Examples:
    """Return `limit` of the examples, drawn at random, in their order: a file may be sorted by its labels."""
    count = len(examples.rows)
    if count <= limit:
        return examples
    places = sorted(shuffle_indices(count, 0, 0, 0xD4A3).tolist()[:limit])
    summary = f"{examples.summary}, of which {limit:,} are drawn"
    return replace(examples, rows=[examples.rows[i] for i in places], summary=summary)


def group_by_context(examples: Examples) -> list[list[int]]:
    """Group the numbers of rows that stay together: all questions about one context; without contexts, single rows."""
    (key, max_shared), groups = SHARED_CONTEXTS.get(examples.task, ("", 0)), dict[object, list[int]]()
    for place, row in enumerate(examples.rows):
        groups.setdefault(row.get(key) or place, []).append(place)
    return list(groups.values()) if len(groups) > max_shared else [[place] for place in range(len(examples.rows))]


def hold_out(examples: Examples, share: float) -> dict[str, Examples]:
    """Split training examples at random, in the same way in every run."""
    rows, size = examples.rows, round(share * len(examples.rows))
    if not 0 < size < len(rows):
        raise Error(f"{count_noun(len(rows), 'example')}: too few to hold some out", fix="give more, or --valid FILE")
    groups, out = group_by_context(examples), set[int]()
    for number in shuffle_indices(len(groups), 0, 0, 0x4E1D).tolist():
        if len(out) + len(groups[number]) <= size:
            out.update(groups[number])
    smallest: list[int] = min(groups, key=len)
    out = out or {*smallest}
    words = f"{len(out):,} of the training examples, held out"
    if len(groups) < len(rows):
        words += f"; none of their {sum(group[0] in out for group in groups):,} contexts is trained on"
    return {
        "train": select_examples(examples, [i for i in range(len(rows)) if i not in out], examples.summary),
        "valid": select_examples(examples, sorted(out), words),
    }


def select_examples(examples: Examples, places: Sequence[int], summary: str) -> Examples:
    """Return some of the examples, with the labels of all."""
    return replace(examples, rows=[examples.rows[i] for i in places], summary=summary, source_rows=tuple(places))


def save_examples(path: Path, sources: Mapping[str, object], parts: Mapping[str, Examples]) -> None:
    """Save examples that came out of memory, so that the run can resume without them."""
    (path / "data").mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        if source is not None and not is_path_source(source):
            kept_parts = [parts[name]]
            if name == "train" and sources["valid"] is None and parts["valid"].source_rows:
                kept_parts.append(parts["valid"])  # it was held out: the rows go back to their places
            rows = [row for part in kept_parts for row in part.rows]
            if len(kept_parts) > 1:
                places = [place for part in kept_parts for place in part.source_rows]
                rows = [rows[i] for i in sorted(range(len(rows)), key=places.__getitem__)]
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (path / "data" / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def load_saved_examples(run: Path, name: str, task: str, labels: Sequence[str] = ()) -> Examples | None:
    """Load the examples of a part that a run has saved; None if there are none."""
    file = run / "data" / f"{name}.jsonl"
    if not file.is_file():
        return None
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
    except ValueError as error:
        raise Error(f"the run's own examples cannot be read ({error})", where=file, fix="begin a new run") from None
    several = task == "classify" and any(isinstance(row["label"], list) for row in rows)
    summary = f"{task}: {count_noun(len(rows), 'example')} that the run has saved"
    return Examples(task, rows, summary, tuple(labels) or order_labels(rows, task, None), several)


def fingerprint_examples(examples: Examples) -> str:
    """Return a hash that tells whether examples have changed."""
    text = json.dumps(examples.rows, ensure_ascii=False, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
