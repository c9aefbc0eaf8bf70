"""The end of formers prepare: one table of all documents and sentences, and store.json, written last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Error
from .shards import Reader, Writer, put, seal, unseal

STEP = 1 << 20  # numbers that are moved at a time


def records(where: Path, group: int) -> list[dict[str, Any]]:
    """What the finished shards of a group say, in order; a damaged note counts as none."""
    out: list[dict[str, Any]] = []
    while (file := where / f"done-{group:05d}-{len(out):05d}.json").exists():
        try:
            out.append(unseal(file))
        except Error:
            break
    return out


def finish(where: Path, groups: int, more: dict[str, Any]) -> None:
    """Put the shards of all groups together. Nothing is moved: the tables say where documents begin. `more` counts go
    beside those of the groups."""
    notes = [note for group in range(groups) for note in records(where, group)]
    about, parts = unseal(where / "begun.json"), {}
    for part in ("train", "held"):
        shards = [note["parts"][part] for note in notes if part in note["parts"]]
        if shards:
            parts[part] = {"shards": shards, "tables": tables(where, part, shards), **sizes(shards)}
    if "train" not in parts:
        raise Error("there is no text to learn from", where=where, fix="give documents that are not empty")
    files = [file for note in notes for file in note.get("files", [])]
    put(where / "inputs.json", seal({"times": [file["time"] for file in files]}))  # other copies have other times
    sums = [file["sha256"] for file in files]
    put(where / "store.json", seal({**about, "files": sums, "counts": counted(notes) | more, "parts": parts}))
    for stale in (*where.glob("done-*.json"), *where.glob("*.tmp")):
        stale.unlink(missing_ok=True)
    (where / "begun.json").unlink(missing_ok=True)


def made_of(where: Path) -> list[dict[str, Any]]:
    """Of each input file of a finished store its SHA-256, and when it was last written to, if that is known."""
    sums = unseal(where / "store.json").get("files", [])
    try:
        times = unseal(where / "inputs.json").get("times")
    except Error:  # it is not there, or damaged: the files are read to be compared
        times = None
    times = times if isinstance(times, list) and len(times) == len(sums) else [None] * len(sums)
    return [{"sha256": sum, "time": time} for sum, time in zip(sums, times, strict=True)]


def counted(notes: list[dict[str, Any]]) -> dict[str, Any]:
    """The counts of the readers and of hygiene, over all groups."""
    total: Counter[str] = Counter()
    words: list[str] = []
    for note in notes:
        for key, value in note.get("counts", {}).items():
            if isinstance(value, int):
                total[key] += value
            elif isinstance(value, list):
                words += [word for word in value if word not in words]
    return {**total, "notes": words}


def sizes(shards: list[dict[str, Any]]) -> dict[str, int]:
    """How much there is of everything."""
    names = {"tokens": "tokens", "starts": "documents", "sentences": "sentences"}
    return {
        word: sum(shard["arrays"][name]["count"] for shard in shards)
        for name, word in names.items()
        if name in shards[0]["arrays"]
    }


def tables(where: Path, part: str, shards: list[dict[str, Any]]) -> dict[str, Any]:
    """Where documents and sentences begin, over all shards."""
    writer = Writer(where / f"{part}-tables.bin")
    for name in ("starts", "sentences"):
        if name in shards[0]["arrays"]:
            writer.add(name, np.int64, moved(where, name, shards))
    return {"name": writer.path.name, **writer.close()}


def moved(where: Path, name: str, shards: list[dict[str, Any]]) -> Iterator[np.ndarray]:
    """The places of one shard after the other, counted from the beginning of all, and the end of all."""
    base = 0
    for shard in shards:
        reader = Reader(where / shard["name"], shard)
        count = shard["arrays"][name]["count"]
        array = reader.array(name)
        for at in range(0, count, STEP):
            reader.ready(name, at, min(count, at + STEP))
            yield array[at : at + STEP].astype(np.int64) + base
        base += shard["arrays"]["tokens"]["count"]
    yield np.array([base], np.int64)
