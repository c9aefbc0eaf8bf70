"""Documents out of files, lists, tables and datasets: clean, in NFC, one after the other in constant memory."""

from __future__ import annotations

import glob
import itertools
import lzma
import os
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from ..errors import Error
from ..text.normalise import CleaningReport, compose_and_count, scrub_text
from . import tables
from .text_files import COMPRESSED_SUFFIXES, decode_chunks, iterate_lines, limit_bytes, read_chunks, slice_text

CORPUS_LANGUAGES = ("en", "ko")
TEXT_SUFFIXES = (".txt", ".text", ".md")
FILE_SUFFIXES = (*TEXT_SUFFIXES, *tables.TABLE_SUFFIXES)
DOCUMENT_UNITS = ("auto", "line", "block", "file")
MAX_DOCUMENT_CHARACTERS = 1_000_000  # characters of a document
MAX_FILE_BYTES = 1 << 31  # bytes, unpacked, of a text that is read as a whole
MAX_BLOCK_LINES = 500  # lines between two blank ones: with more, a blank line is an accident


def find_files(inputs: Any) -> list[Path]:
    """The files of a path, glob or folder, or of several, sorted; what is missing, empty or unknown is an error."""
    several = isinstance(inputs, Iterable) and not isinstance(inputs, str | os.PathLike)
    found: set[Path] = set()
    for item in inputs if several else [inputs]:
        if not isinstance(item, str | os.PathLike):
            raise Error(f"a path is a string, got {type(item).__name__}", fix="give paths, globs or folders")
        found.update(expand_path(os.fspath(item)))
    if not found:
        raise Error("there are no files to read", fix="give at least one path")
    return sorted(found)


def expand_path(name: str) -> list[Path]:
    """The files of one path, glob or folder."""
    path = Path(name)
    if path.is_dir():
        inside = [p for p in path.rglob("*") if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        what = "in this folder"
    elif path.exists():
        return [check_readable(path)]
    else:
        inside, what = [Path(p) for p in glob.glob(name, recursive=True)], "by this name"
        if not inside and not glob.has_magic(name):
            raise Error("there is no such file", where=name, fix="look at the path")
    files = [check_readable(p) for p in inside if find_suffix(p) and p.is_file() and p.stat().st_size]
    if not files:
        raise Error(f"there is nothing to read {what}", where=name, fix=f"formers reads {describe_suffixes()}")
    return files


def check_readable(path: Path) -> Path:
    """A path that can be read, or the reason why not."""
    if not path.is_file():
        raise Error("this is not a file", where=path, fix="give a file, a folder or a glob")
    if not find_suffix(path):
        raise Error(
            f"files of the form {path.suffix or path.name!r} are not known",
            where=path,
            fix=f"name it {describe_suffixes()}",
        )
    if not path.stat().st_size:
        raise Error("the file is empty", where=path, fix="leave it out")
    if not os.access(path, os.R_OK):
        raise Error("the file may not be read", where=path, fix="look at its permissions")
    return path


def find_suffix(path: Path) -> str | None:
    """The suffix that says how to read a file, without the compression's; None if it is not known."""
    suffixes = [s.lower() for s in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in FILE_SUFFIXES else None


def describe_suffixes() -> str:
    """The suffixes in words."""
    return f"{' '.join(FILE_SUFFIXES)}, each also with {' '.join(COMPRESSED_SUFFIXES)}"


def read_documents(
    source: Any,
    *,
    unit: Literal["auto", "line", "block", "file"] = "auto",
    column: str | None = None,
    changes: CleaningReport | None = None,
    max_characters: int = MAX_DOCUMENT_CHARACTERS,
    skip: bool = False,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    header: bool | None = None,
    keep_empty: bool = False,
) -> Iterator[str]:
    """The documents of a source: a path, glob or folder, a list of Path, strings, records, a DataFrame, a dataset.

    In text files a document is a line, a block between blank lines, or the file; "auto" takes blocks where blank lines
    stand between them. In tables it is a row's `column`, by its name or its number from 0; `delimiter` stands between
    the columns of csv files and their kind, and `header=False` says that the first row names none. Documents longer
    than `max_characters` are cut. `changes` counts; a broken row is an error, or, with `skip`, counted and left
    out. A row of a table without text is left out, or, with `keep_empty`, an empty text.
    """
    if unit not in DOCUMENT_UNITS:
        raise Error(f"there is no unit {unit!r}", fix="choose " + ", ".join(DOCUMENT_UNITS))
    if max_characters < 1:
        raise Error(
            f"a document has at least one character, max_characters is {max_characters}",
            fix=f"take {MAX_DOCUMENT_CHARACTERS}",
        )
    changes = CleaningReport() if changes is None else changes
    if is_path_source(source):
        wants = tables.TableOptions(column, changes, skip, encoding, delimiter, header)
        files = find_files(source)
        check_columns(files, wants)
        return itertools.chain.from_iterable(read_file(path, unit, max_characters, wants, keep_empty) for path in files)
    return clean_values(tables.extract_python_texts(source, column, changes, skip), max_characters, changes, keep_empty)


def is_path_source(source: Any) -> bool:
    """A source is named by paths: a string, a Path, a list of Path. Anything else holds its text in memory."""
    many = isinstance(source, list | tuple) and bool(source) and all(isinstance(p, os.PathLike) for p in source)
    return many or isinstance(source, str | os.PathLike)


def check_columns(files: Iterable[Path], wants: tables.TableOptions) -> None:
    """Refuse a column of files that are all plain text and have none."""
    if wants.column is not None and not any(has_columns(path, wants) for path in files):
        fix = "leave --column out, or say what stands between columns: --delimiter ';'"
        raise Error(f"this is plain text and has no column {wants.column!r}", where=next(iter(files)), fix=fix)


def has_columns(path: Path, wants: tables.TableOptions) -> bool:
    """Whether a file is read as a table: by its name, or because a delimiter or a column of a text file is named."""
    if find_suffix(path) not in TEXT_SUFFIXES or wants.delimiter is not None:
        return True
    return wants.column is not None and tables.is_tab_separated(path, wants.encoding)


def read_file(path: Path, unit: str, longest: int, wants: tables.TableOptions, blank: bool) -> Iterator[str]:
    """The documents of one file."""
    changes = wants.changes
    if has_columns(path, wants):
        yield from clean_values(tables.read_table(path, str(find_suffix(path)), wants), longest, changes, blank)
        return
    pieces = decode_chunks(read_chunks(path), changes, wants.encoding, path)
    yield from split_documents(pieces, unit, longest, changes)


def read_lines(path: Path, encoding: str = "utf-8", changes: CleaningReport | None = None) -> list[str]:
    """The lines of a text file, as many as it has: a blank one is an empty string. `changes` counts."""
    changes = changes or CleaningReport()
    found = read_text(path, encoding, changes).removesuffix("\n").split("\n")
    return ["" if line.isspace() else compose_and_count(line, changes) for line in found]


def read_text(path: Path, encoding: str = "utf-8", changes: CleaningReport | None = None) -> str:
    """A text file as it is; `changes` counts what was left out."""
    return "".join(
        decode_chunks(limit_bytes(read_chunks(path), MAX_FILE_BYTES, path), changes or CleaningReport(), encoding, path)
    )


def split_documents(pieces: Iterator[str], unit: str, longest: int, changes: CleaningReport) -> Iterator[str]:
    """Documents out of pieces of clean text."""
    if unit == "auto":
        head = next(pieces, "")
        pieces = itertools.chain([head], pieces)
        unit = guess_unit(head)
        changes.add_note(f"a {unit} is a document")
    found = iterate_lines(pieces, longest, changes)
    texts = (
        (text for text, _ in found) if unit == "line" else join_blocks(found, longest, changes, blank=unit == "block")
    )
    for document in texts:
        if document and not document.isspace():
            changes.documents += 1
            yield document
        else:
            changes.empty += 1


def guess_unit(head: str) -> Literal["line", "block"]:
    """Blocks, if blank lines stand between lines of text, and not too seldom."""
    found = [bool(line.strip()) for line in head.strip().split("\n")]
    gaps = sum(a and not b for a, b in itertools.pairwise(found))
    return "block" if gaps and sum(found) <= MAX_BLOCK_LINES * (gaps + 1) else "line"


def join_blocks(
    found: Iterable[tuple[str, bool]], longest: int, changes: CleaningReport, blank: bool = True
) -> Iterator[str]:
    """Lines put together up to a blank one (or to the end), and cut where they are longer than `longest`."""
    block: list[str] = []
    length = 0
    for line, ended in found:
        empty = blank and (not line or line.isspace())
        if block and (empty or length + len(line) > longest):
            changes.cut += not empty
            yield "\n".join(block)
            block, length = [], 0
        if not empty and (block or line):
            block.append(line)
            length += len(line) + 1
        if block and not ended:
            yield "\n".join(block)
            block, length = [], 0
    if block:
        yield "\n".join(block)


def clean_values(values: Iterable[Any], longest: int, changes: CleaningReport, blank: bool = False) -> Iterator[str]:
    """Documents out of a table's values: clean, composed, none of them too long, nor empty unless `blank` is asked."""
    for value in values:
        text = value.replace("\r\n", "\n").replace("\r", "\n") if "\r" in value else value
        changes.carriage += value.count("\r")
        *long, last = slice_text(scrub_text(text, changes), longest)
        changes.cut += len(long)
        for part in (*long, last):
            if part and not part.isspace():
                changes.documents += 1
                yield compose_and_count(part, changes)
            else:
                changes.empty += 1
                if blank:
                    yield ""


def load_bundled_corpus(language: Literal["en", "ko"] = "en") -> tuple[list[str], CleaningReport]:
    """The small corpus that comes with formers (data/corpus/README.md names its source and licence)."""
    if language not in CORPUS_LANGUAGES:
        raise Error(f"there is no bundled corpus for {language!r}", fix="choose " + " or ".join(CORPUS_LANGUAGES))
    packed = resources.files("formers.data").joinpath("corpus", f"{language}.txt.xz").read_bytes()
    return split_blocks(lzma.decompress(packed).decode("utf-8"))


def split_blocks(text: str) -> tuple[list[str], CleaningReport]:
    """Blocks between blank lines, cleaned and normalised, and what was changed."""
    changes = CleaningReport()
    return list(
        split_documents(
            decode_chunks([text.encode("utf-8", "surrogatepass")], changes), "block", MAX_DOCUMENT_CHARACTERS, changes
        )
    ), changes


def hold_out_documents(documents: list[str], every: int = 20) -> tuple[list[str], list[str]]:
    """Held-out documents (each twentieth) apart from the rest."""
    held = documents[every - 1 :: every]
    if not held:
        raise Error(f"{len(documents)} documents are too few to hold some out", fix=f"give at least {every} documents")
    return [d for i, d in enumerate(documents) if i % every != every - 1], held
