"""Documents out of files, lists, tables and datasets: clean, in NFC, one after the other in constant memory.

A file's suffix gives its format. To add one, enter its suffixes in FILE_FORMATS and a function that gives the texts
of such a file in TEXT_READERS; for examples of tasks, tasks/example_tables.py reads rows.
"""

from __future__ import annotations

import codecs
import csv
import glob
import itertools
import json
import lzma
import os
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..config import Settings
from ..errors import Error
from ..text.normalise import CleaningReport, compose_and_count, scrub_text
from . import text_files
from .text_files import (
    COMPRESSION_SUFFIXES,
    HEAD_BYTES,
    decode_chunks,
    limit_bytes,
    read_chunks,
    slice_text,
    split_lines,
)

CORPUS_LANGUAGES = ("en", "ko")
BUNDLED_CORPORA = {f"formers/corpus-{language}": language for language in CORPUS_LANGUAGES}
DOCUMENT_UNITS = ("auto", "line", "block", "file")
MAX_DOCUMENT_CHARACTERS = 1_000_000  # characters of a document
MAX_FILE_BYTES = 1 << 31  # bytes, unpacked, of a text that is read as a whole
MAX_BLOCK_LINES = 500  # lines between two blank ones: with more, a blank line is an accident
# A column of one of these names is the text; tasks know more names (COLUMN_NAMES in tasks/example_tables.py).
TEXT_COLUMN_NAMES = (
    "text", "document", "content", "sentence", "body", "article", "review", "comment", "paragraph", "본문", "내용",
)  # fmt: skip
FILE_FORMATS = {
    ".txt": "text", ".text": "text", ".md": "text", ".jsonl": "json", ".ndjson": "json", ".json": "json",
    ".csv": "delimited", ".tsv": "delimited", ".tab": "delimited", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
DELIMITED_SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
MAX_RECORD_CHARACTERS = 1 << 25  # characters of a row; the text inside may be as long
SAMPLE_ROWS = 20  # rows that are looked at to find the column
COLUMN_HINT = "say --column NAME, or column='NAME'"
DELIMITER_NAMES = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
NUMBER_CHARACTERS = frozenset("0123456789+-.,eE%/: ")
MAX_NAME_CHARACTERS = 40  # characters; what is longer is no name of a column


@dataclass(frozen=True)
class TableOptions:
    """What a caller wants of a table."""

    column: str | None
    changes: CleaningReport
    skip_broken: bool = False
    encoding: str = "utf-8"
    delimiter: str | None = None  # between columns; None: as the file's name and its first line say
    header: bool | None = None  # whether the first row names the columns; None: it does, unless the content says no
    max_bytes: int | None = None  # bytes, unpacked, that a file may have
    hashes: dict[Path, str] | None = None  # gets the SHA-256 of each file that was read in order

    def __post_init__(self) -> None:
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", DELIMITER_NAMES.get(self.delimiter.lower(), self.delimiter))
            if len(str(self.delimiter)) != 1 or self.delimiter in ('"', "\n", "\r"):
                fix = "give one character, or tab, comma, semicolon, pipe, space"
                raise Error(f"{self.delimiter!r} cannot stand between columns", fix=fix)

    def read_limited(self, path: Path) -> Iterator[bytes]:
        """Return the bytes of a file, up to as many as it may have; more are an error."""
        parts = read_chunks(path, self.hashes)
        return parts if self.max_bytes is None else limit_bytes(parts, self.max_bytes, path)

    def report_broken_row(self, what: str, where: object, line: int) -> None:
        """Raise an error for a row that cannot be read, or count it."""
        if not self.skip_broken:
            fix = "repair it, or leave broken rows out: --skip, or skip=True"
            raise Error(what, where=f"{where}, line {line}", fix=fix)
        self.changes.skipped += 1


def find_files(inputs: object) -> list[Path]:
    """Find the files of paths, globs or folders, sorted; what is missing, empty or unknown is an error."""
    paths: set[Path] = set()
    for item in inputs if isinstance(inputs, Iterable) and not isinstance(inputs, str | os.PathLike) else [inputs]:
        if not isinstance(item, str | os.PathLike):
            raise Error(f"a path is a string, got {type(item).__name__}", fix="give paths, globs or folders")
        paths.update(expand_path(os.fspath(item)))
    if not paths:
        raise Error("there are no files to read", fix="give at least one path")
    return sorted(paths)


def expand_path(name: str) -> list[Path]:
    """Return the files of one path, glob, folder or bundled corpus; what exists by the name of a corpus comes first."""
    path = Path(name)
    if path.as_posix() in BUNDLED_CORPORA and not path.exists():
        return [find_bundled_corpus(BUNDLED_CORPORA[path.as_posix()])]
    if path.is_dir():
        inside = [p for p in path.rglob("*") if not any(part.startswith(".") for part in p.relative_to(path).parts)]
        what = "in this folder"
    elif path.exists():
        return [check_readable(path)]
    else:
        inside, what = [Path(p) for p in glob.glob(name, recursive=True)], "by this name"
        if not inside and not glob.has_magic(name):
            fix = "check the path"
            if path.as_posix().startswith("formers/"):
                fix = f"the texts that come with formers are {' and '.join(BUNDLED_CORPORA)}"
            raise Error("there is no such file", where=name, fix=fix)
    if not (files := [check_readable(p) for p in inside if find_suffix(p) and p.is_file() and p.stat().st_size]):
        raise Error(f"there is nothing to read {what}", where=name, fix=f"formers reads {describe_suffixes()}")
    return files


def check_readable(path: Path) -> Path:
    """Return a path that can be read; an error says why one cannot."""
    if not path.is_file():
        raise Error("this is not a file", where=path, fix="give a file, a folder or a glob")
    if not find_suffix(path):
        what = f"files of the form {path.suffix or path.name!r} are not known"
        raise Error(what, where=path, fix=f"name it {describe_suffixes()}")
    if not path.stat().st_size:
        raise Error("the file is empty", where=path, fix="leave it out")
    if not os.access(path, os.R_OK):
        raise Error("the file may not be read", where=path, fix="look at its permissions")
    return path


def find_suffix(path: Path) -> str | None:
    """Return the suffix that says how to read a file, without the compression's; None if it is not known."""
    suffixes = [s.lower() for s in path.suffixes[-2:]]
    if suffixes and suffixes[-1] in COMPRESSION_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in FILE_FORMATS else None


def find_format(path: Path) -> str:
    """Return how a file is read: "text", "json", "delimited" or "parquet"; "" if its suffix is not known."""
    return FILE_FORMATS.get(find_suffix(path) or "", "")


def describe_suffixes() -> str:
    """Return the suffixes in words."""
    return f"{' '.join(FILE_FORMATS)}, each also with {' '.join(COMPRESSION_SUFFIXES)}"


def read_documents(
    source: object, *, unit: Literal["auto", "line", "block", "file"] = "auto", column: str | None = None,
    changes: CleaningReport | None = None, max_characters: int = MAX_DOCUMENT_CHARACTERS, skip: bool = False,
    encoding: str = "utf-8", delimiter: str | None = None, header: bool | None = None, keep_empty: bool = False,
    hashes: dict[Path, str] | None = None,
) -> Iterator[str]:  # fmt: skip
    """Read the documents of a source: a path, glob or folder, a list of Path, strings, records, a DataFrame, a dataset.

    In text files a document is a line, a block between blank lines, or the file; "auto" takes blocks where blank lines
    stand between them. In tables it is a row's `column`, by its name or its number from 0; `delimiter` stands between
    the columns of csv files and their kind, and `header=False` says that the first row names none. Documents longer
    than `max_characters` are cut. `changes` counts; a broken row is an error, or, with `skip`, counted and left
    out. A row of a table without text is left out, or, with `keep_empty`, an empty text. `hashes` gets the SHA-256 of
    each file at its end, except of parquet files, which are not read in order.
    """
    if unit not in DOCUMENT_UNITS:
        raise Error(f"there is no unit {unit!r}", fix="choose " + ", ".join(DOCUMENT_UNITS))
    if max_characters < 1:
        what = f"a document has at least one character, max_characters is {max_characters}"
        raise Error(what, fix=f"take {MAX_DOCUMENT_CHARACTERS}")
    changes = CleaningReport() if changes is None else changes
    if is_path_source(source):
        wants = TableOptions(column, changes, skip, encoding, delimiter, header, hashes=hashes)
        files = find_files(source)
        check_columns(files, wants)
        return itertools.chain.from_iterable(read_file(path, unit, max_characters, wants, keep_empty) for path in files)
    return clean_values(extract_python_texts(source, column, changes, skip), max_characters, changes, keep_empty)


def is_path_source(source: object) -> bool:
    """Return whether a source is named by paths: a string, a Path, a list of Path. Anything else is text in memory."""
    many = isinstance(source, list | tuple) and bool(source) and all(isinstance(p, os.PathLike) for p in source)
    return many or isinstance(source, str | os.PathLike)


def check_columns(files: Iterable[Path], wants: TableOptions) -> None:
    """Refuse a column of files that are all plain text and have none."""
    if wants.column is not None and not any(has_columns(path, wants) for path in files):
        fix = "leave --column out, or say what stands between columns: --delimiter ';'"
        raise Error(f"this is plain text and has no column {wants.column!r}", where=next(iter(files)), fix=fix)


def has_columns(path: Path, wants: TableOptions) -> bool:
    """Return whether a file is read as a table: by its name, or because a delimiter or a column is named."""
    if find_format(path) != "text" or wants.delimiter is not None:
        return True
    return wants.column is not None and is_tab_separated(path, wants.encoding)


def read_file(path: Path, unit: str, longest: int, wants: TableOptions, blank: bool) -> Iterator[str]:
    """Return the documents of one file."""
    if has_columns(path, wants):
        read_texts = TEXT_READERS.get(find_format(path), read_delimited_texts)  # a text file may have columns
        return clean_values(read_texts(path, wants), longest, wants.changes, blank)
    pieces = decode_chunks(wants.read_limited(path), wants.changes, wants.encoding, path)
    return split_documents(pieces, unit, longest, wants.changes)


def read_lines(path: Path, encoding: str = "utf-8", changes: CleaningReport | None = None) -> list[str]:
    """Read the lines of a text file, as many as it has: a blank one is an empty string. `changes` counts."""
    changes = changes or CleaningReport()
    lines = read_text(path, encoding, changes).removesuffix("\n").split("\n")
    return ["" if line.isspace() else compose_and_count(line, changes) for line in lines]


def read_text(path: Path, encoding: str = "utf-8", changes: CleaningReport | None = None) -> str:
    """Read a text file as it is; `changes` counts what was left out."""
    data = limit_bytes(read_chunks(path), MAX_FILE_BYTES, path)
    return "".join(decode_chunks(data, changes or CleaningReport(), encoding, path))


def split_documents(pieces: Iterator[str], unit: str, longest: int, changes: CleaningReport) -> Iterator[str]:
    """Yield documents out of pieces of clean text."""
    if unit == "auto":
        head = next(pieces, "")
        pieces = itertools.chain([head], pieces)
        unit = guess_unit(head)
        changes.add_note(f"a {unit} is a document")
    lines = text_files.iterate_lines(pieces, longest, changes)
    blocks = join_blocks(lines, longest, changes, blank=unit == "block")
    for document in (text for text, _ in lines) if unit == "line" else blocks:
        if document and not document.isspace():
            changes.documents += 1
            yield document
        else:
            changes.empty += 1


def guess_unit(head: str) -> Literal["line", "block"]:
    """Guess the unit: blocks, if blank lines stand between lines of text, and not too seldom."""
    has_text = [bool(line.strip()) for line in head.strip().split("\n")]
    gaps = sum(a and not b for a, b in itertools.pairwise(has_text))
    return "block" if gaps and sum(has_text) <= MAX_BLOCK_LINES * (gaps + 1) else "line"


def join_blocks(
    blocks: Iterable[tuple[str, bool]], longest: int, changes: CleaningReport, blank: bool = True
) -> Iterator[str]:
    """Yield lines put together up to a blank one (or to the end), and cut where they are longer than `longest`."""
    block: list[str] = []
    length = 0
    for line, ended in blocks:
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


def clean_values(values: Iterable[str], longest: int, changes: CleaningReport, blank: bool = False) -> Iterator[str]:
    """Yield documents out of a table's values: clean, composed, none too long, nor empty unless `blank` is asked."""
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
    """Return the small corpus that comes with formers (data/corpus/README.md names its source and licence)."""
    if language not in CORPUS_LANGUAGES:
        raise Error(f"there is no bundled corpus for {language!r}", fix="choose " + " or ".join(CORPUS_LANGUAGES))
    return split_blocks(lzma.decompress(find_bundled_corpus(language).read_bytes()).decode("utf-8"))


def find_bundled_corpus(language: str) -> Path:
    """Return the file of a corpus that comes with formers."""
    return Path(__file__).parent / "corpus" / f"{language}.txt.xz"


def split_blocks(text: str) -> tuple[list[str], CleaningReport]:
    """Return the blocks between blank lines, cleaned and normalised, and what was changed."""
    changes = CleaningReport()
    pieces = decode_chunks([text.encode("utf-8", "surrogatepass")], changes)
    return list(split_documents(pieces, "block", MAX_DOCUMENT_CHARACTERS, changes)), changes


# --- tables


def pick_text_column(
    rows: Sequence[Mapping[str, object]], column: str | None, changes: CleaningReport, where: object
) -> str:
    """Return the column that holds the text, by its name or as the only one with words in it."""
    names = list(dict.fromkeys(name for row in rows for name in row if name is not None))
    if column is not None:
        if column in names:
            return column
        named = [resolve_column(one, names) for one in column.split(",")]  # one, or several by commas: a pair
        if None not in named:
            return ",".join(map(str, named))
        what = f"there is no column {column!r}; there are {format_names(names)}"
        raise Error(what, where=where, fix="choose one of these")
    is_word = lambda value: isinstance(value, str) and not NUMBER_CHARACTERS.issuperset(value)  # noqa: E731
    wordy = [name for name in names if any(is_word(row.get(name)) for row in rows)]
    text_column = next((n for known in TEXT_COLUMN_NAMES for n in names if str(n).lower() == known), None)
    text_column = text_column or (wordy[0] if len(wordy) == 1 else names[0] if len(names) == 1 else None)
    if text_column is None:
        raise Error(f"which column is the text? There are {format_names(names)}", where=where, fix=COLUMN_HINT)
    changes.add_note(f"the column {text_column!r} is the text")
    return text_column


def resolve_column(column: str, names: Sequence[str]) -> str | None:
    """Find a column by its name, in any form of Unicode, else by its number, from 0; None if there is no such."""
    if column in names:
        return column
    alike = {unicodedata.normalize("NFC", name): name for name in names}
    if (name := alike.get(unicodedata.normalize("NFC", column))) is not None:
        return name
    return names[int(column)] if column.isdecimal() and column.isascii() and int(column) < len(names) else None


def split_column_names(chosen: str, names: Iterable[object]) -> list[str]:
    """Return the columns that are meant: one, or several by commas."""
    return [chosen] if chosen in set(names) else chosen.split(",")


def join_pair(values: Sequence[str]) -> str:
    """Return the sides of a pair as one text, with tabs between them and in no other place."""
    return values[0] if len(values) == 1 else "\t".join(" ".join(value.split()) for value in values)


def format_names(names: Iterable[object]) -> str:
    """Format names in words."""
    return ", ".join(repr(n) for n in names) or "none"


def extract_texts(
    rows: Iterator[tuple[int, object]], column: str | None, where: object, wants: TableOptions
) -> Iterator[str]:
    """Yield the text of each row; a row may be a string itself. Rows are (number, value)."""
    first = list(itertools.islice(rows, SAMPLE_ROWS))
    records = [row for _, row in first if isinstance(row, Mapping)]
    chosen = pick_text_column(records, column, wants.changes, where) if records else ""
    pair = split_column_names(chosen, {name for row in records for name in row}) if "," in chosen else []
    for number, row in itertools.chain(first, rows):
        value = row
        if len(pair) > 1 and isinstance(row, Mapping):
            if odd := [name for name in pair if not isinstance(row.get(name), str)]:
                wants.report_broken_row(f"there is no text in {odd[0]!r}", where, number)
            else:
                yield join_pair([row[name] for name in pair])
            continue
        if isinstance(row, Mapping):
            if chosen not in row:
                wants.report_broken_row(f"there is no {chosen!r}", where, number)
                continue
            value = row[chosen]
        if isinstance(value, str) or value is None or value != value:  # a missing value, NaN in a DataFrame
            yield value if isinstance(value, str) else ""
        else:
            wants.report_broken_row(f"the text must be a string, not {type(value).__name__}", where, number)


def number_lines(path: Path, wants: TableOptions) -> Iterator[tuple[int, str]]:
    """Yield numbered lines; one that is too long for a row is broken, and is skipped without holding it."""
    number, passing = 1, False
    pieces = decode_chunks(wants.read_limited(path), wants.changes, wants.encoding, path)
    for text, ended in split_lines(pieces, MAX_RECORD_CHARACTERS):
        wants.changes.lines += ended
        if not ended and not passing:
            wants.report_broken_row(f"a row has more than {MAX_RECORD_CHARACTERS:,} characters", path, number)
        if ended and not passing:
            yield number, text
        number, passing = number + ended, not ended


def read_json_lines(path: Path, wants: TableOptions) -> Iterator[tuple[int, object]]:
    """Yield the values of a file with JSON in each line."""
    for number, text in number_lines(path, wants):
        if not text.strip():
            continue
        if number == 1 and text.strip() in ("[", "{"):
            fix = "make lines of it: jq -c '.[]' FILE"
            raise Error("this is one JSON value over many lines, not JSON lines", where=path, fix=fix)
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError) as e:
            wants.report_broken_row(f"this is not JSON ({e})", path, number)
            continue
        if isinstance(value, str | Mapping):
            yield number, value
        else:
            wants.report_broken_row(f"a line is a record or a string, not {type(value).__name__}", path, number)


def read_delimited_texts(path: Path, wants: TableOptions) -> Iterator[str]:
    """Yield the texts of a csv or tsv file, or of a text file with columns."""
    names, rows = open_delimited(path, str(find_suffix(path)), wants)
    first = list(itertools.islice(rows, SAMPLE_ROWS))
    records: list[Settings] = [dict(zip(names, row, strict=False)) for _, row in first] or [dict.fromkeys(names)]
    try:
        chosen = pick_text_column(records, wants.column, wants.changes, path)
    except Error as e:
        hint = suggest_no_header(names, records) if wants.header is None else ""
        raise Error(e.what, where=e.where, fix=f"{e.fix}{hint}") from None
    at = [names.index(name) for name in split_column_names(chosen, names)]
    for number, row in itertools.chain(first, rows):
        if len(row) == len(names):
            yield join_pair([row[i] for i in at])
        elif row:  # not a blank line
            wants.report_broken_row(f"a row has {len(row)} fields, the first one {len(names)}", path, number)


def suggest_no_header(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Advise on an error about the columns of a file whose first row was taken for their names: the option for a
    file without a header, if that row looks like data. One of the names is then a number, a sentence, very long, or a
    value of its own column."""
    seen = {(name, str(row.get(name))) for row in rows for name in names}
    for name in filter(str.strip, names):
        sentence = len(name) > MAX_NAME_CHARACTERS or (" " in name.strip() and name.strip()[-1] in ".!?\u3002")
        if sentence or NUMBER_CHARACTERS.issuperset(name) or (name, name) in seen:
            return "; the first row looks like data: if the file has no header, add --no-header (or header=False)"
    return ""


def open_delimited(
    path: Path, form: str, wants: TableOptions, column_names: Sequence[str] | None = None
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the columns and the numbered rows of a csv or tsv file. The first row names the columns, unless they are
    given by `column_names` or there is no header: then they are numbered from 0."""
    mark = detect_delimiter(path, form, wants)
    rows = read_tsv_rows(path, wants) if mark == "\t" else read_csv_rows(path, wants, mark)
    if column_names:
        return list(column_names), rows
    _, first = start = next(rows, (0, []))
    if wants.header is False:
        return [str(i) for i in range(len(first))], itertools.chain([start], rows)
    return first, rows


def detect_delimiter(path: Path, form: str, wants: TableOptions) -> str:
    """Return the delimiter: as given, by the file's name or, of a csv file without commas, by its first line."""
    if wants.delimiter is not None:
        return wants.delimiter
    usual = DELIMITED_SUFFIXES.get(form, "\t")
    first = next((line for line in read_head_lines(path, wants.encoding) if line.strip()), "")
    delimiter = max("\t;|", key=first.count)
    if usual != "," or "," in first or delimiter not in first:
        return usual
    wants.changes.add_note(f"a {name_delimiter(delimiter)} stands between columns")
    return delimiter


def name_delimiter(mark: str) -> str:
    """Return a delimiter in words."""
    return next((name for name, known in DELIMITER_NAMES.items() if known == mark and name.isalpha()), repr(mark))


def read_head_lines(path: Path, encoding: str) -> list[str]:
    """Return the first whole lines of a file, some 64 kB of it, to look at before it is read."""
    data = b""
    for chunk in read_chunks(path):
        data += chunk
        if len(data) > HEAD_BYTES:
            break
    if encoding == "utf-8":
        text_files.check_file_kind(data, path)
    decoder = codecs.getincrementaldecoder(text_files.check_encoding_name(encoding))("ignore")
    text = decoder.decode(data[:HEAD_BYTES]).removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if len(data) > HEAD_BYTES else lines


def is_tab_separated(path: Path, encoding: str) -> bool:
    """Return whether the first lines of a text file have columns: as many tabs in each, and at least one."""
    counts = {line.count("\t") for line in read_head_lines(path, encoding)[:SAMPLE_ROWS] if line.strip()}
    return len(counts) == 1 and counts != {0}


def read_csv_rows(path: Path, wants: TableOptions, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield rows of a csv file, whose fields may have several lines."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_CHARACTERS))
    reader = csv.reader((text + "\n" for _, text in number_lines(path, wants)), delimiter=delimiter)
    while True:
        number = reader.line_num + 1
        try:
            yield number, next(reader)
        except csv.Error as e:
            wants.report_broken_row(f"this is not a row of a csv file ({e})", path, number)
        except StopIteration:
            return


def read_tsv_rows(path: Path, wants: TableOptions) -> Iterator[tuple[int, list[str]]]:
    """Yield rows of a tsv file: always one line. Quotes around a whole field are taken off."""
    width = 0
    for number, text in number_lines(path, wants):
        row = text.split("\t") if text else []
        if '"' in text:
            if len(row) > width > 0:  # a tab inside quotes
                row = next(csv.reader([text], delimiter="\t"))
            row = [unquote_field(f) if f[:1] == '"' else f for f in row]
        width = width or len(row)
        yield number, row


def unquote_field(field: str) -> str:
    """Return a field without the quotes around it, if that is what they are."""
    inner = field[1:-1].replace('""', "")
    return field[1:-1].replace('""', '"') if len(field) > 1 and field[-1] == '"' and '"' not in inner else field


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:  # dynamic: pyarrow is optional
    """Open a parquet file; a packed one is unpacked on the disk first."""
    text_files.import_optional("pyarrow", "parquet files")
    import pyarrow
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as folder:
        plain = path
        if path.suffix.lower() in COMPRESSION_SUFFIXES:
            plain = Path(folder, "table.parquet")
            with plain.open("wb") as file:
                file.writelines(read_chunks(path))
        try:
            yield pyarrow.parquet.ParquetFile(plain, pre_buffer=False, buffer_size=1 << 20)
        except (pyarrow.ArrowException, OSError) as e:
            raise Error(f"the parquet file is damaged ({e})", where=path, fix="fetch or make it again") from e


def read_parquet_texts(path: Path, wants: TableOptions) -> Iterator[str]:
    """Yield the texts of a parquet file, some rows at a time."""
    with open_parquet(path) as table:
        import pyarrow

        known = find_text_columns(table.schema_arrow, pyarrow)
        names = split_column_names(pick_text_column([known], wants.column, wants.changes, path), known)
        for batch in table.iter_batches(batch_size=256, columns=names):
            wants.changes.lines += len(batch)
            columns = (batch.column(name).cast(pyarrow.string()).cast(pyarrow.binary()) for name in names)
            for row in zip(*(column.to_pylist() for column in columns), strict=True):
                # Bytes that are not UTF-8 arrive as lone surrogates.
                yield join_pair([(value or b"").decode("utf-8", "surrogateescape") for value in row])


def find_text_columns(schema: Any, pyarrow: Any) -> dict[str, str | None]:  # dynamic: pyarrow is optional
    """Return the columns, those with strings as if there were words in them."""
    wordy = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
    kinds = {f.name: f.type.value_type if pyarrow.types.is_dictionary(f.type) else f.type for f in schema}
    return {name: "words" if any(is_one(kind) for is_one in wordy) else None for name, kind in kinds.items()}


def extract_python_texts(
    source: object, column: str | None, changes: CleaningReport, skip: bool = False
) -> Iterator[str]:
    """Yield the texts of strings, records, a DataFrame or a dataset."""
    wants = TableOptions(column, changes, skip)
    rows: Any = source  # dynamic: a DataFrame or a dataset of a library that need not be installed
    if isinstance(source, Mapping):  # a DatasetDict, a dictionary of lists
        what = f"this holds several parts: {format_names(source)}"
        raise Error(what, fix="pass one of them, such as data['train']")
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        what = f"documents cannot be read from {type(source).__name__}"
        raise Error(what, fix="give paths, strings, rows or a dataset")
    if isinstance(source, list | tuple) and source and all(is_file_name(item) for item in source):
        raise Error("these strings look like file names", fix="hand in Path objects, or find_files([...])")
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # dynamic: a DataFrame
        first = [*rows.head(SAMPLE_ROWS).to_dict("records"), dict.fromkeys(rows.columns)]
        name = pick_text_column(first, column, changes, None)
        pair = split_column_names(name, rows.columns)
        rows = rows[name] if len(pair) == 1 else rows[pair].to_dict("records")
    elif hasattr(source, "select_columns") and getattr(source, "features", None):  # dynamic: a dataset of HF
        types = {n: str(getattr(f, "dtype", "")) for n, f in rows.features.items()}  # dynamic: lists have none
        kinds = {name: "words" if "string" in kind else None for name, kind in types.items()}
        column = pick_text_column([kinds], column, changes, None)
        rows = rows.select_columns(split_column_names(column, kinds))
    yield from extract_texts(number_rows(rows, changes), column, "the documents", wants)


def number_rows(rows: Iterable[object], changes: CleaningReport) -> Iterator[tuple[int, object]]:
    """Number rows from 1, and count them."""
    for number, row in enumerate(rows, 1):
        changes.lines += 1
        yield number, row


def is_file_name(item: object) -> bool:
    """Return whether a string is the name of a file rather than a text."""
    suffixes = tuple(FILE_FORMATS.keys() - {".text", ".md"})
    return isinstance(item, str) and not any(c.isspace() for c in item) and item.lower().endswith(suffixes)


TEXT_READERS: dict[str, Callable[[Path, TableOptions], Iterator[str]]] = {
    "json": lambda path, wants: extract_texts(read_json_lines(path, wants), wants.column, path, wants),
    "delimited": read_delimited_texts, "parquet": read_parquet_texts,
}  # fmt: skip
