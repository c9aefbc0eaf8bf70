"""formers prepare: text into a token store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from ..config import size
from ..errors import Error
from .common import Overwrite
from .progress import progress
from .reading import Reading
from .screen import Screen, show_line

SMALL = 8 << 20  # bytes that are not worth processes of their own


def prepare(
    *files: Annotated[
        str, Parameter(help="Files, folders or globs: txt, jsonl, csv, tsv, parquet; also .gz .xz .zst.")
    ],
    tokenizer: Path,
    out: Path,
    unit: Literal["auto", "line", "block", "file"] = "auto",
    splitter: Literal["rules", "kiwi", "tabs", "none"] = "rules",
    units: str | None = None,
    held_out: str = "0",
    deduplicate: Literal["exact", "near", "no"] = "no",
    tests: list[str] | None = None,
    tests_column: str | None = None,
    drop_tests: bool = False,
    shard_size: str = "256MB",
    workers: int | None = None,
    overwrite: Overwrite = False,
    reading: Reading | None = None,
) -> None:
    """Turn text into a token store: memory-mapped, checksummed, the same for any number of workers.

    A run that was stopped goes on with the same command, without --overwrite. Under torchrun each rank takes its share
    of the files.

    formers prepare corpus.txt.zst --tokenizer my-bert --out corpus-store
    formers prepare data/*.jsonl --column text --tokenizer tokenizer.json --out store --held-out 1% --workers 8
    formers prepare old.csv --encoding cp949 --skip --tokenizer my-bert --out store
    formers prepare ko.txt --unit line --splitter kiwi --units kiwi --tokenizer my-ernie --out store

    Parameters
    ----------
    tokenizer
        A tokenizer.json, or a folder with one: a model, a store, a Hugging Face checkpoint.
    out
        The store: a new folder, or that of a run that did not end; another store is replaced with --overwrite only.
    unit
        What a document is in text files: a line, a block between blank lines, a file. auto looks at each file.
    splitter
        How sentences are found: rules, kiwi (Korean, extra ko), tabs (pairs: a source, a tab, its target), or none.
    units
        Mark phrases and entities for ERNIE: kiwi (Korean), learn (phrases of this text), or a file, one phrase a line.
    held_out
        The share of documents to hold out, as 1% or 0.01: the part "held" of the store.
    deduplicate
        Leave out documents that came before: exact, or near (also nearly the same).
    tests
        Test files that are looked for in the text: how many of their examples share text with it is said and kept.
    tests_column
        The column or key with the text, in test files that are tables.
    drop_tests
        Leave out the documents that share text with a test.
    shard_size
        About how large one file of tokens is.
    workers
        Processes that encode; as many as there are cores by default, none for a small text.
    """
    from ..data.readers import find
    from ..interop.prepare import prepare as make
    from ..interop.tokenizers import load_tokenizer

    if not files:
        raise Error("there is nothing to read", fix="give files, folders or globs")
    found, pieces = find(list(files)), load_tokenizer(tokenizer)
    volume = sum(path.stat().st_size for path in found)
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = 0 if volume < SMALL else workers
    console = Screen(stderr=True)
    try:
        with progress(console, "prepare", quiet=2) as tell:
            store = make(
                found, pieces, out, overwrite=overwrite, unit=unit, workers=workers, **(reading or Reading()).options(),
                splitter=None if splitter == "none" else splitter, units=units, held_out=share(held_out),
                deduplicate=None if deduplicate == "no" else deduplicate, tests=tests,
                tests_column=tests_column, drop_tests=drop_tests, shard=tokens(shard_size), tell=tell,
            )  # fmt: skip
    except KeyboardInterrupt:
        again = "the same command without --overwrite" if overwrite else "the same command"
        kept = f"finished shards stay in {show_line(out)}; {again} goes on from there"
        back = overwrite and (out / "store.json").is_file()
        console.print(f"formers: {f'the earlier store stays in {show_line(out)}' if back else kept}")
        raise
    except Error as error:
        if overwrite or not (error.fix or "").startswith("choose another directory") or not is_store(out):
            raise
        raise Error(error.what, where=error.where, fix="choose another --out, or --overwrite replaces it") from None
    report(store, out)
    for note in pieces.notes:
        console.print(f"Note: {note}")


def is_store(path: Path) -> bool:
    """Whether a folder holds a store, or one that was begun."""
    return (path / "store.json").is_file() or (path / "begun.json").is_file()


def report(store: Any, out: Path) -> None:
    """Say what is there now."""
    from ..data.encode import TOLD
    from ..data.hygiene import WORDS as LEFT
    from ..data.store import describe_unknown
    from ..text.normalise import WORDS as CHANGED

    words = {**CHANGED, **LEFT, **TOLD}
    console = Screen()
    home, where = getattr(store, "home", None), show_line(out)
    if home is None:
        console.print(f"{where}: this rank's share is done; the last rank to end writes store.json")
        return
    for part, about in home.about["parts"].items():
        sizes = ", ".join(f"{about[name]:,} {name}" for name in ("documents", "sentences", "tokens") if name in about)
        console.print(f"{where} ({part}): {sizes} in {len(about['shards'])} shards")
    counts = {**home.about["counts"]}
    notes, seen = counts.pop("notes", []), counts.pop("tests", None)
    told = [f"{count:,} {words.get(name, name)}" for name, count in counts.items() if count] + list(notes)
    if told:
        console.print("read: " + ", ".join(told))
    if (line := describe_unknown(store, store.tokenizer)) is not None:
        console.print(Text(line, "bold yellow"))
    for name, test in (seen or {"tests": {}})["tests"].items():
        short = f" ({test['short']:,} too short to tell)" if test["short"] else ""
        found = f"{test['found']:,} of {test['examples']:,} examples"
        console.print(f"{show_line(name)}: {found} share text with the documents{short}")


def share(text: str) -> float:
    """A share as people write it: 1%, 0.01."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise Error(f"{text!r} is not a share", fix="write 1% or 0.01") from None


def tokens(text: str) -> int:
    """A size of two-byte tokens, as people write it: 256MB, 1GB."""
    return max(1, size(text) // 2)
