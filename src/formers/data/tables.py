"""Rows of tables: JSON lines, csv, tsv, parquet, records, DataFrames, datasets. One column of them is the text."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Error
from ..text.normalise import CleaningReport
from .text_files import (
    COMPRESSED_SUFFIXES,
    HEAD_BYTES,
    check_encoding_name,
    check_file_kind,
    decode_chunks,
    import_optional,
    limit_bytes,
    read_chunks,
    split_lines,
)

TEXT_COLUMN_NAMES = (
    "text",
    "document",
    "content",
    "sentence",
    "body",
    "article",
    "review",
    "comment",
    "paragraph",
    "본문",
    "내용",
)
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
DELIMITED_SUFFIXES = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET_SUFFIXES = (".parquet", ".pq")
TABLE_SUFFIXES = (*JSON_SUFFIXES, *DELIMITED_SUFFIXES, *PARQUET_SUFFIXES)
MAX_RECORD_CHARACTERS = 1 << 25  # characters of a row; the text inside may be as long
SAMPLE_ROWS = 20  # rows that are looked at to find the column
COLUMN_HINT = "say --column NAME, or column='NAME'"
DELIMITER_NAMES = {
    "tab": "\t",
    "\\t": "\t",
    "comma": ",",
    "semicolon": ";",
    "pipe": "|",
    "space": " ",
}  # names of delimiters
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

    def __post_init__(self) -> None:
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", DELIMITER_NAMES.get(self.delimiter.lower(), self.delimiter))
            if len(str(self.delimiter)) != 1 or self.delimiter in ('"', "\n", "\r"):
                fix = "give one character, or tab, comma, semicolon, pipe, space"
                raise Error(f"{self.delimiter!r} cannot stand between columns", fix=fix)

    def read_limited(self, path: Path) -> Iterator[bytes]:
        """The bytes of a file, up to as many as it may have; more are an error."""
        return read_chunks(path) if self.max_bytes is None else limit_bytes(read_chunks(path), self.max_bytes, path)

    def report_broken_row(self, what: str, where: str) -> None:
        """A row that cannot be read: an error, or counted."""
        if not self.skip_broken:
            raise Error(what, where=where, fix="repair it, or leave broken rows out: --skip, or skip=True")
        self.changes.skipped += 1


def read_table(path: Path, form: str, options: TableOptions) -> Iterator[str]:
    """The texts of a file with a table in it."""
    if form in PARQUET_SUFFIXES:
        yield from read_parquet_texts(path, options)
    elif form in JSON_SUFFIXES:
        yield from extract_texts(read_json_lines(path, options), options.column, options.changes, path, options)
    else:
        yield from read_delimited_texts(path, form, options)


def pick_text_column(
    rows: Sequence[Mapping[str, Any]], column: str | None, changes: CleaningReport, where: object
) -> str:
    """The column that holds the text, by its name or as the only one with words in it."""
    names = list(dict.fromkeys(name for row in rows for name in row if name is not None))
    if column is not None:
        if column in names:
            return column
        named = [resolve_column(one, names) for one in column.split(",")]  # one, or several by commas: a pair
        if None not in named:
            return ",".join(map(str, named))
        raise Error(
            f"there is no column {column!r}; there are {format_names(names)}", where=where, fix="choose one of these"
        )
    wordy = [
        n
        for n in names
        if any(isinstance(row.get(n), str) and not NUMBER_CHARACTERS.issuperset(row[n]) for row in rows)
    ]
    found = next((n for known in TEXT_COLUMN_NAMES for n in names if str(n).lower() == known), None)
    found = found or (wordy[0] if len(wordy) == 1 else names[0] if len(names) == 1 else None)
    if found is None:
        raise Error(f"which column is the text? There are {format_names(names)}", where=where, fix=COLUMN_HINT)
    changes.add_note(f"the column {found!r} is the text")
    return found


def resolve_column(column: str, names: Sequence[str]) -> str | None:
    """The column that is meant: by its name, in any form of Unicode, else by its number, which counts from 0; None if
    there is no such."""
    if column in names:
        return column
    alike = {unicodedata.normalize("NFC", name): name for name in names}
    if (name := alike.get(unicodedata.normalize("NFC", column))) is not None:
        return name
    return names[int(column)] if column.isdecimal() and column.isascii() and int(column) < len(names) else None


def split_column_names(chosen: str, names: Iterable[Any]) -> list[str]:
    """The columns that are meant: one, or several by commas."""
    return [chosen] if chosen in set(names) else chosen.split(",")


def join_pair(values: Sequence[str]) -> str:
    """The sides of a pair as one text, with tabs between them and in no other place."""
    return values[0] if len(values) == 1 else "\t".join(" ".join(value.split()) for value in values)


def format_names(names: Iterable[Any]) -> str:
    """Names in words."""
    return ", ".join(repr(n) for n in names) or "none"


def extract_texts(
    rows: Iterator[Any], column: str | None, changes: CleaningReport, where: object, wants: TableOptions
) -> Iterator[str]:
    """The text of each row; a row may be a string itself. Rows are (number, value)."""
    first = list(itertools.islice(rows, SAMPLE_ROWS))
    records = [row for _, row in first if isinstance(row, Mapping)]
    chosen = pick_text_column(records, column, changes, where) if records else ""
    pair = split_column_names(chosen, {name for row in records for name in row}) if "," in chosen else []
    for number, row in itertools.chain(first, rows):
        value = row
        if len(pair) > 1 and isinstance(row, Mapping):
            if odd := [name for name in pair if not isinstance(row.get(name), str)]:
                wants.report_broken_row(f"there is no text in {odd[0]!r}", f"{where}, line {number}")
            else:
                yield join_pair([row[name] for name in pair])
            continue
        if isinstance(row, Mapping):
            if chosen not in row:
                wants.report_broken_row(f"there is no {chosen!r}", f"{where}, line {number}")
                continue
            value = row[chosen]
        if isinstance(value, str) or value is None or value != value:  # a missing value, NaN in a DataFrame
            yield value if isinstance(value, str) else ""
        else:
            wants.report_broken_row(f"the text is no string but {type(value).__name__}", f"{where}, line {number}")


def number_lines(path: Path, wants: TableOptions) -> Iterator[tuple[int, str]]:
    """Numbered lines; one that is too long for a row is broken, and is passed over without holding it."""
    number, passing = 1, False
    for text, ended in split_lines(
        decode_chunks(wants.read_limited(path), wants.changes, wants.encoding, path), MAX_RECORD_CHARACTERS
    ):
        wants.changes.lines += ended
        if not ended and not passing:
            wants.report_broken_row(
                f"a row has more than {MAX_RECORD_CHARACTERS:,} characters", f"{path}, line {number}"
            )
        if ended and not passing:
            yield number, text
        number, passing = number + ended, not ended


def read_json_lines(path: Path, wants: TableOptions) -> Iterator[tuple[int, Any]]:
    """The values of a file with JSON in each line."""
    for number, text in number_lines(path, wants):
        if not text.strip():
            continue
        if number == 1 and text.strip() in ("[", "{"):
            fix = "make lines of it: jq -c '.[]' FILE"
            raise Error("this is one JSON value over many lines, not JSON lines", where=path, fix=fix)
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError) as e:
            wants.report_broken_row(f"this is not JSON ({e})", f"{path}, line {number}")
            continue
        if isinstance(value, str | Mapping):
            yield number, value
        else:
            wants.report_broken_row(
                f"a line is a record or a string, not {type(value).__name__}", f"{path}, line {number}"
            )


def read_delimited_texts(path: Path, form: str, wants: TableOptions) -> Iterator[str]:
    """The texts of a csv or tsv file."""
    names, rows = open_delimited(path, form, wants)
    first = list(itertools.islice(rows, SAMPLE_ROWS))
    records: list[dict[str, Any]] = [dict(zip(names, row, strict=False)) for _, row in first] or [dict.fromkeys(names)]
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
            wants.report_broken_row(
                f"a row has {len(row)} fields, the first one {len(names)}", f"{path}, line {number}"
            )


def suggest_no_header(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """What to add to an error about the columns of a file whose first row was taken for their names: the option for a
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
    """The columns and the numbered rows of a csv or tsv file. The first row names the columns, unless they are
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
    """What stands between the columns of a file: as told, as its name says, or, where a csv file has no comma in its
    first line, the mark that is there."""
    if wants.delimiter is not None:
        return wants.delimiter
    usual = DELIMITED_SUFFIXES.get(form, "\t")
    first = next((line for line in read_head_lines(path, wants.encoding) if line.strip()), "")
    found = max("\t;|", key=first.count)
    if usual != "," or "," in first or found not in first:
        return usual
    wants.changes.add_note(f"a {name_delimiter(found)} stands between columns")
    return found


def name_delimiter(mark: str) -> str:
    """A delimiter in words."""
    return next((name for name, known in DELIMITER_NAMES.items() if known == mark and name.isalpha()), repr(mark))


def read_head_lines(path: Path, encoding: str) -> list[str]:
    """The first whole lines of a file, some 64 kB of it, to look at before it is read."""
    data = b""
    for chunk in read_chunks(path):
        data += chunk
        if len(data) > HEAD_BYTES:
            break
    if encoding == "utf-8":
        check_file_kind(data, path)
    decoder = codecs.getincrementaldecoder(check_encoding_name(encoding))("ignore")
    found = (
        decoder.decode(data[:HEAD_BYTES]).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    )
    return found[:-1] if len(data) > HEAD_BYTES else found


def is_tab_separated(path: Path, encoding: str) -> bool:
    """Whether the first lines of a text file have columns: as many tabs in each, and at least one."""
    counts = {line.count("\t") for line in read_head_lines(path, encoding)[:SAMPLE_ROWS] if line.strip()}
    return len(counts) == 1 and counts != {0}


def read_csv_rows(path: Path, wants: TableOptions, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Rows of a csv file, whose fields may have several lines."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_CHARACTERS))
    source = (text + "\n" for _, text in number_lines(path, wants))
    reader = csv.reader(source, delimiter=delimiter)
    while True:
        number = reader.line_num + 1
        try:
            yield number, next(reader)
        except csv.Error as e:
            wants.report_broken_row(f"this is not a row of a csv file ({e})", f"{path}, line {number}")
        except StopIteration:
            return


def read_tsv_rows(path: Path, wants: TableOptions) -> Iterator[tuple[int, list[str]]]:
    """Rows of a tsv file: always one line. Quotes around a whole field are taken off."""
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
    """A field without the quotes around it, if that is what they are."""
    inner = field[1:-1].replace('""', "")
    return field[1:-1].replace('""', '"') if len(field) > 1 and field[-1] == '"' and '"' not in inner else field


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A parquet file, opened; a packed one is unpacked on the disk first."""
    import_optional("pyarrow", "parquet files")
    import pyarrow
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as folder:
        plain = path
        if path.suffix.lower() in COMPRESSED_SUFFIXES:
            plain = Path(folder, "table.parquet")
            with plain.open("wb") as file:
                file.writelines(read_chunks(path))
        try:
            yield pyarrow.parquet.ParquetFile(plain, pre_buffer=False, buffer_size=1 << 20)
        except (pyarrow.ArrowException, OSError) as e:
            raise Error(f"the parquet file is damaged ({e})", where=path, fix="fetch or make it again") from e


def read_parquet_texts(path: Path, wants: TableOptions) -> Iterator[str]:
    """The texts of a parquet file, some rows at a time."""
    with open_parquet(path) as table:
        import pyarrow

        known = find_text_columns(table.schema_arrow, pyarrow)
        names = split_column_names(pick_text_column([known], wants.column, wants.changes, path), known)
        for batch in table.iter_batches(batch_size=256, columns=names):
            wants.changes.lines += len(batch)
            sides = zip(*(decode_column(batch.column(name), pyarrow) for name in names), strict=True)
            yield from (join_pair(row) for row in sides)


def find_text_columns(schema: Any, pyarrow: Any) -> dict[str, str | None]:
    """The columns, those with strings as if there were words in them."""
    wordy = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
    kinds = {f.name: f.type.value_type if pyarrow.types.is_dictionary(f.type) else f.type for f in schema}
    return {name: "words" if any(is_one(kind) for is_one in wordy) else None for name, kind in kinds.items()}


def decode_column(column: Any, pyarrow: Any) -> list[str]:
    """Strings of a column; bytes that are not UTF-8 arrive as lone surrogates."""
    raw = column.cast(pyarrow.string()).cast(pyarrow.binary()).to_pylist()
    return [(value or b"").decode("utf-8", "surrogateescape") for value in raw]


def extract_python_texts(source: Any, column: str | None, changes: CleaningReport, skip: bool = False) -> Iterator[str]:
    """The texts of strings, records, a DataFrame or a dataset."""
    wants = TableOptions(column, changes, skip)
    rows: Any = source
    if isinstance(source, Mapping):  # a DatasetDict, a dictionary of lists
        raise Error(
            f"this holds several parts: {format_names(source)}", fix="hand in one of them, such as data['train']"
        )
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise Error(
            f"documents cannot be read from {type(source).__name__}", fix="give paths, strings, rows or a dataset"
        )
    if isinstance(source, list | tuple) and source and all(is_file_name(item) for item in source):
        raise Error("these strings look like file names", fix="hand in Path objects, or find_files([...])")
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # a DataFrame
        name = pick_text_column(
            [*rows.head(SAMPLE_ROWS).to_dict("records"), dict.fromkeys(rows.columns)], column, changes, None
        )
        pair = split_column_names(name, rows.columns)
        rows = rows[name] if len(pair) == 1 else rows[pair].to_dict("records")
    elif hasattr(source, "select_columns") and getattr(source, "features", None):  # a dataset of HF
        kinds = {n: "words" if "string" in str(getattr(f, "dtype", "")) else None for n, f in rows.features.items()}
        rows = rows.select_columns(
            split_column_names(column := pick_text_column([kinds], column, changes, None), kinds)
        )
    yield from extract_texts(number_rows(rows, changes), column, changes, "the documents", wants)


def is_file_name(item: Any) -> bool:
    """Whether a string is the name of a file rather than a text."""
    return (
        isinstance(item, str)
        and not any(c.isspace() for c in item)
        and item.lower().endswith((*TABLE_SUFFIXES, ".txt"))
    )


def number_rows(rows: Iterable[Any], changes: CleaningReport) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers."""
    for number, row in enumerate(rows, 1):
        changes.lines += 1
        yield number, row
