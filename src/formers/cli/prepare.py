"""formers prepare: text into a token store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from ..config import parse_byte_size
from ..errors import Error
from .common import OverwriteFlag
from .terminal import SafeConsole, escape_line, show_progress
from .text_input import TextFileOptions

if TYPE_CHECKING:
    from ..data.store import Store

SMALL_CORPUS_BYTES = 8 << 20  # bytes that are not worth processes of their own


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
    overwrite: OverwriteFlag = False,
    reading: TextFileOptions | None = None,
) -> None:
    """Turn text into a token store: memory-mapped, checksummed, the same for any number of workers.

    After an interruption, the same command continues, without --overwrite. Under torchrun each rank prepares some of
    the files.

    formers prepare corpus.txt.zst --tokenizer my-bert --out corpus-store
    formers prepare data/*.jsonl --column text --tokenizer tokenizer.json --out store --held-out 1% --workers 8
    formers prepare old.csv --encoding cp949 --skip --tokenizer my-bert --out store
    formers prepare ko.txt --unit line --splitter kiwi --units kiwi --tokenizer my-ernie --out store

    Parameters
    ----------
    tokenizer
        A tokenizer.json, or a folder with one: a model, a store, a Hugging Face checkpoint.
    out
        The store: a new folder, or an unfinished one; an existing store is replaced only with --overwrite.
    unit
        What a document is in text files: a line, a block between blank lines, or a file. auto decides for each file.
    splitter
        How sentences are split: rules, kiwi (Korean, extra ko), tabs (pairs: a source, a tab, its target), or none.
    units
        Mark phrases and entities for ERNIE: kiwi (Korean), learn (phrases of this text), or a file, one phrase a line.
    held_out
        The fraction of documents to hold out for validation, as 1% or 0.01: the part "held" of the store.
    deduplicate
        Drop duplicate documents: exact ones, or also near duplicates.
    tests
        Test files to check for contamination: how many of their examples share text with the documents is reported.
    tests_column
        The column or key with the text, in test files that are tables.
    drop_tests
        Drop documents that share text with a test example.
    shard_size
        Approximate size of a file of tokens.
    workers
        Processes that encode; by default one for each core, none for a small text.
    """
    from ..data.readers import find_files
    from ..interop.prepare import prepare as build_store
    from ..interop.tokenizer_files import load_tokenizer

    if not files:
        raise Error("there is nothing to read", fix="give files, folders or globs")
    found, pieces = find_files(list(files)), load_tokenizer(tokenizer)
    volume = sum(path.stat().st_size for path in found)
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = 0 if volume < SMALL_CORPUS_BYTES else workers
    console = SafeConsole(stderr=True)
    try:
        with show_progress(console, "prepare", delay_seconds=2) as tell:
            store = build_store(
                found, pieces, out, overwrite=overwrite, unit=unit, workers=workers,
                **(reading or TextFileOptions()).to_keywords(),
                splitter=None if splitter == "none" else splitter, units=units, held_out=parse_fraction(held_out),
                deduplicate=None if deduplicate == "no" else deduplicate, tests=tests,
                tests_column=tests_column, drop_tests=drop_tests, shard=parse_shard_tokens(shard_size), tell=tell,
            )  # fmt: skip
    except KeyboardInterrupt:
        again = "the same command without --overwrite" if overwrite else "the same command"
        kept = f"finished shards stay in {escape_line(out)}; {again} goes on from there"
        back = overwrite and (out / "store.json").is_file()
        console.print(f"formers: {f'the earlier store stays in {escape_line(out)}' if back else kept}")
        raise
    except Error as error:
        if overwrite or not (error.fix or "").startswith("choose another directory") or not is_store(out):
            raise
        raise Error(error.what, where=error.where, fix="choose another --out, or --overwrite replaces it") from None
    print_store_summary(store, out)
    for note in pieces.notes:
        console.print(f"Note: {note}")


def is_store(path: Path) -> bool:
    """Whether a folder holds a store, or one that was begun."""
    return (path / "store.json").is_file() or (path / "begun.json").is_file()


def print_store_summary(store: Store | None, out: Path) -> None:
    """Say what is there now."""
    from ..data.preparation.corpus_filters import FILTER_DESCRIPTIONS as LEFT
    from ..data.preparation.document_encoder import COUNT_DESCRIPTIONS
    from ..data.store import describe_unknown
    from ..text.normalise import CHANGE_DESCRIPTIONS as CHANGED

    words = {**CHANGED, **LEFT, **COUNT_DESCRIPTIONS}
    console = SafeConsole()
    where = escape_line(out)
    if store is None or store.directory is None:
        console.print(f"{where}: this rank's share is done; the last rank to end writes store.json")
        return
    for part, about in store.directory.metadata["parts"].items():
        sizes = ", ".join(f"{about[name]:,} {name}" for name in ("documents", "sentences", "tokens") if name in about)
        console.print(f"{where} ({part}): {sizes} in {len(about['shards'])} shards")
    counts = {**store.directory.metadata["counts"]}
    notes, seen = counts.pop("notes", []), counts.pop("tests", None)
    told = [f"{count:,} {words.get(name, name)}" for name, count in counts.items() if count] + list(notes)
    if told:
        console.print("read: " + ", ".join(told))
    if (line := describe_unknown(store, store.tokenizer)) is not None:
        console.print(Text(line, "bold yellow"))
    for name, test in (seen or {"tests": {}})["tests"].items():
        short = f" ({test['short']:,} too short to tell)" if test["short"] else ""
        found = f"{test['found']:,} of {test['examples']:,} examples"
        console.print(f"{escape_line(name)}: {found} share text with the documents{short}")


def parse_fraction(text: str) -> float:
    """A fraction as people write it: 1%, 0.01."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise Error(f"{text!r} is not a share", fix="write 1% or 0.01") from None


def parse_shard_tokens(text: str) -> int:
    """A size of two-byte tokens, as people write it: 256MB, 1GB."""
    return max(1, parse_byte_size(text) // 2)
