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
from ..text.normalise import Changes
from .streams import HEAD, PACKED, check_kind, chunks, decodable, decoded, limited, need, parts

NAMES = ("text", "document", "content", "sentence", "body", "article", "review", "comment", "paragraph", "본문", "내용")
JSON = (".jsonl", ".ndjson", ".json")
SEPARATED = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")
FORMS = (*JSON, *SEPARATED, *PARQUET)
RECORD = 1 << 25  # characters of a row; the text inside may be as long
SAMPLE = 20  # rows that are looked at to find the column
WHICH = "say --column NAME, or column='NAME'"
MARKS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}  # names of delimiters
NUMBER = frozenset("0123456789+-.,eE%/: ")
LONG_NAME = 40  # characters; what is longer is no name of a column


@dataclass(frozen=True)
class Wants:
    """What a caller wants of a table."""

    column: str | None
    changes: Changes
    skip: bool = False
    encoding: str = "utf-8"
    delimiter: str | None = None  # between columns; None: as the file's name and its first line say
    header: bool | None = None  # whether the first row names the columns; None: it does, unless the content says no
    most: int | None = None  # bytes, unpacked, that a file may have

    def __post_init__(self) -> None:
        if self.delimiter is not None:
            object.__setattr__(self, "delimiter", MARKS.get(self.delimiter.lower(), self.delimiter))
            if len(str(self.delimiter)) != 1 or self.delimiter in ('"', "\n", "\r"):
                fix = "give one character, or tab, comma, semicolon, pipe, space"
                raise Error(f"{self.delimiter!r} cannot stand between columns", fix=fix)

    def chunks(self, path: Path) -> Iterator[bytes]:
        """The bytes of a file, up to as many as it may have; more are an error."""
        return chunks(path) if self.most is None else limited(chunks(path), self.most, path)

    def broken(self, what: str, where: str) -> None:
        """A row that cannot be read: an error, or counted."""
        if not self.skip:
            raise Error(what, where=where, fix="repair it, or leave broken rows out: --skip, or skip=True")
        self.changes.skipped += 1


def of_file(path: Path, form: str, wants: Wants) -> Iterator[str]:
    """The texts of a file with a table in it."""
    if form in PARQUET:
        yield from of_parquet(path, wants)
    elif form in JSON:
        yield from texts(json_lines(path, wants), wants.column, wants.changes, path, wants)
    else:
        yield from of_separated(path, form, wants)


def pick(rows: Sequence[Mapping[str, Any]], column: str | None, changes: Changes, where: object) -> str:
    """The column that holds the text, by its name or as the only one with words in it."""
    names = list(dict.fromkeys(name for row in rows for name in row if name is not None))
    if column is not None:
        if column in names:
            return column
        named = [by_number(one, names) for one in column.split(",")]  # one, or several by commas: a pair
        if None not in named:
            return ",".join(map(str, named))
        raise Error(f"there is no column {column!r}; there are {listed(names)}", where=where, fix="choose one of these")
    wordy = [n for n in names if any(isinstance(row.get(n), str) and not NUMBER.issuperset(row[n]) for row in rows)]
    found = next((n for known in NAMES for n in names if str(n).lower() == known), None)
    found = found or (wordy[0] if len(wordy) == 1 else names[0] if len(names) == 1 else None)
    if found is None:
        raise Error(f"which column is the text? There are {listed(names)}", where=where, fix=WHICH)
    changes.note(f"the column {found!r} is the text")
    return found


def by_number(column: str, names: Sequence[str]) -> str | None:
    """The column that is meant: by its name, in any form of Unicode, else by its number, which counts from 0; None if
    there is no such."""
    if column in names:
        return column
    alike = {unicodedata.normalize("NFC", name): name for name in names}
    if (name := alike.get(unicodedata.normalize("NFC", column))) is not None:
        return name
    return names[int(column)] if column.isdecimal() and column.isascii() and int(column) < len(names) else None


def names_in(chosen: str, names: Iterable[Any]) -> list[str]:
    """The columns that are meant: one, or several by commas."""
    return [chosen] if chosen in set(names) else chosen.split(",")


def joined(values: Sequence[str]) -> str:
    """The sides of a pair as one text, with tabs between them and in no other place."""
    return values[0] if len(values) == 1 else "\t".join(" ".join(value.split()) for value in values)


def listed(names: Iterable[Any]) -> str:
    """Names in words."""
    return ", ".join(repr(n) for n in names) or "none"


def texts(rows: Iterator[Any], column: str | None, changes: Changes, where: object, wants: Wants) -> Iterator[str]:
    """The text of each row; a row may be a string itself. Rows are (number, value)."""
    first = list(itertools.islice(rows, SAMPLE))
    records = [row for _, row in first if isinstance(row, Mapping)]
    chosen = pick(records, column, changes, where) if records else ""
    pair = names_in(chosen, {name for row in records for name in row}) if "," in chosen else []
    for number, row in itertools.chain(first, rows):
        value = row
        if len(pair) > 1 and isinstance(row, Mapping):
            if odd := [name for name in pair if not isinstance(row.get(name), str)]:
                wants.broken(f"there is no text in {odd[0]!r}", f"{where}, line {number}")
            else:
                yield joined([row[name] for name in pair])
            continue
        if isinstance(row, Mapping):
            if chosen not in row:
                wants.broken(f"there is no {chosen!r}", f"{where}, line {number}")
                continue
            value = row[chosen]
        if isinstance(value, str) or value is None or value != value:  # a missing value, NaN in a DataFrame
            yield value if isinstance(value, str) else ""
        else:
            wants.broken(f"the text is no string but {type(value).__name__}", f"{where}, line {number}")


def whole_lines(path: Path, wants: Wants) -> Iterator[tuple[int, str]]:
    """Numbered lines; one that is too long for a row is broken, and is passed over without holding it."""
    number, passing = 1, False
    for text, ended in parts(decoded(wants.chunks(path), wants.changes, wants.encoding, path), RECORD):
        wants.changes.lines += ended
        if not ended and not passing:
            wants.broken(f"a row has more than {RECORD:,} characters", f"{path}, line {number}")
        if ended and not passing:
            yield number, text
        number, passing = number + ended, not ended


def json_lines(path: Path, wants: Wants) -> Iterator[tuple[int, Any]]:
    """The values of a file with JSON in each line."""
    for number, text in whole_lines(path, wants):
        if not text.strip():
            continue
        if number == 1 and text.strip() in ("[", "{"):
            fix = "make lines of it: jq -c '.[]' FILE"
            raise Error("this is one JSON value over many lines, not JSON lines", where=path, fix=fix)
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError) as e:
            wants.broken(f"this is not JSON ({e})", f"{path}, line {number}")
            continue
        if isinstance(value, str | Mapping):
            yield number, value
        else:
            wants.broken(f"a line is a record or a string, not {type(value).__name__}", f"{path}, line {number}")


def of_separated(path: Path, form: str, wants: Wants) -> Iterator[str]:
    """The texts of a csv or tsv file."""
    names, rows = open_separated(path, form, wants)
    first = list(itertools.islice(rows, SAMPLE))
    records: list[dict[str, Any]] = [dict(zip(names, row, strict=False)) for _, row in first] or [dict.fromkeys(names)]
    try:
        chosen = pick(records, wants.column, wants.changes, path)
    except Error as e:
        hint = suggest_no_header(names, records) if wants.header is None else ""
        raise Error(e.what, where=e.where, fix=f"{e.fix}{hint}") from None
    at = [names.index(name) for name in names_in(chosen, names)]
    for number, row in itertools.chain(first, rows):
        if len(row) == len(names):
            yield joined([row[i] for i in at])
        elif row:  # not a blank line
            wants.broken(f"a row has {len(row)} fields, the first one {len(names)}", f"{path}, line {number}")


def suggest_no_header(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """What to add to an error about the columns of a file whose first row was taken for their names: the option for a
    file without a header, if that row looks like data. One of the names is then a number, a sentence, very long, or a
    value of its own column."""
    seen = {(name, str(row.get(name))) for row in rows for name in names}
    for name in filter(str.strip, names):
        sentence = len(name) > LONG_NAME or (" " in name.strip() and name.strip()[-1] in ".!?\u3002")
        if sentence or NUMBER.issuperset(name) or (name, name) in seen:
            return "; the first row looks like data: if the file has no header, add --no-header (or header=False)"
    return ""


def open_separated(
    path: Path, form: str, wants: Wants, named: Sequence[str] | None = None
) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The columns and the numbered rows of a csv or tsv file. The first row names the columns, unless they are `named`
    or there is no header: then they are numbered from 0."""
    mark = delimiter_of(path, form, wants)
    rows = tsv_rows(path, wants) if mark == "\t" else csv_rows(path, wants, mark)
    if named:
        return list(named), rows
    _, first = start = next(rows, (0, []))
    if wants.header is False:
        return [str(i) for i in range(len(first))], itertools.chain([start], rows)
    return first, rows


def delimiter_of(path: Path, form: str, wants: Wants) -> str:
    """What stands between the columns of a file: as told, as its name says, or, where a csv file has no comma in its
    first line, the mark that is there."""
    if wants.delimiter is not None:
        return wants.delimiter
    usual = SEPARATED.get(form, "\t")
    first = next((line for line in head_lines(path, wants.encoding) if line.strip()), "")
    found = max("\t;|", key=first.count)
    if usual != "," or "," in first or found not in first:
        return usual
    wants.changes.note(f"a {mark_name(found)} stands between columns")
    return found


def mark_name(mark: str) -> str:
    """A delimiter in words."""
    return next((name for name, known in MARKS.items() if known == mark and name.isalpha()), repr(mark))


def head_lines(path: Path, encoding: str) -> list[str]:
    """The first whole lines of a file, some 64 kB of it, to look at before it is read."""
    data = b""
    for chunk in chunks(path):
        data += chunk
        if len(data) > HEAD:
            break
    if encoding == "utf-8":
        check_kind(data, path)
    decoder = codecs.getincrementaldecoder(decodable(encoding))("ignore")
    found = decoder.decode(data[:HEAD]).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return found[:-1] if len(data) > HEAD else found


def is_tabbed(path: Path, encoding: str) -> bool:
    """Whether the first lines of a text file have columns: as many tabs in each, and at least one."""
    counts = {line.count("\t") for line in head_lines(path, encoding)[:SAMPLE] if line.strip()}
    return len(counts) == 1 and counts != {0}


def csv_rows(path: Path, wants: Wants, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Rows of a csv file, whose fields may have several lines."""
    csv.field_size_limit(max(csv.field_size_limit(), RECORD))
    source = (text + "\n" for _, text in whole_lines(path, wants))
    reader = csv.reader(source, delimiter=delimiter)
    while True:
        number = reader.line_num + 1
        try:
            yield number, next(reader)
        except csv.Error as e:
            wants.broken(f"this is not a row of a csv file ({e})", f"{path}, line {number}")
        except StopIteration:
            return


def tsv_rows(path: Path, wants: Wants) -> Iterator[tuple[int, list[str]]]:
    """Rows of a tsv file: always one line. Quotes around a whole field are taken off."""
    width = 0
    for number, text in whole_lines(path, wants):
        row = text.split("\t") if text else []
        if '"' in text:
            if len(row) > width > 0:  # a tab inside quotes
                row = next(csv.reader([text], delimiter="\t"))
            row = [unquoted(f) if f[:1] == '"' else f for f in row]
        width = width or len(row)
        yield number, row


def unquoted(field: str) -> str:
    """A field without the quotes around it, if that is what they are."""
    inner = field[1:-1].replace('""', "")
    return field[1:-1].replace('""', '"') if len(field) > 1 and field[-1] == '"' and '"' not in inner else field


@contextmanager
def parquet(path: Path) -> Iterator[Any]:
    """A parquet file, opened; a packed one is unpacked on the disk first."""
    need("pyarrow", "parquet files")
    import pyarrow
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as folder:
        plain = path
        if path.suffix.lower() in PACKED:
            plain = Path(folder, "table.parquet")
            with plain.open("wb") as file:
                file.writelines(chunks(path))
        try:
            yield pyarrow.parquet.ParquetFile(plain, pre_buffer=False, buffer_size=1 << 20)
        except (pyarrow.ArrowException, OSError) as e:
            raise Error(f"the parquet file is damaged ({e})", where=path, fix="fetch or make it again") from e


def of_parquet(path: Path, wants: Wants) -> Iterator[str]:
    """The texts of a parquet file, some rows at a time."""
    with parquet(path) as table:
        import pyarrow

        known = columns(table.schema_arrow, pyarrow)
        names = names_in(pick([known], wants.column, wants.changes, path), known)
        for batch in table.iter_batches(batch_size=256, columns=names):
            wants.changes.lines += len(batch)
            sides = zip(*(values(batch.column(name), pyarrow) for name in names), strict=True)
            yield from (joined(row) for row in sides)


def columns(schema: Any, pyarrow: Any) -> dict[str, str | None]:
    """The columns, those with strings as if there were words in them."""
    wordy = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
    kinds = {f.name: f.type.value_type if pyarrow.types.is_dictionary(f.type) else f.type for f in schema}
    return {name: "words" if any(is_one(kind) for is_one in wordy) else None for name, kind in kinds.items()}


def values(column: Any, pyarrow: Any) -> list[str]:
    """Strings of a column; bytes that are not UTF-8 arrive as lone surrogates."""
    raw = column.cast(pyarrow.string()).cast(pyarrow.binary()).to_pylist()
    return [(value or b"").decode("utf-8", "surrogateescape") for value in raw]


def of_python(source: Any, column: str | None, changes: Changes, skip: bool = False) -> Iterator[str]:
    """The texts of strings, records, a DataFrame or a dataset."""
    wants = Wants(column, changes, skip)
    rows: Any = source
    if isinstance(source, Mapping):  # a DatasetDict, a dictionary of lists
        raise Error(f"this holds several parts: {listed(source)}", fix="hand in one of them, such as data['train']")
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise Error(
            f"documents cannot be read from {type(source).__name__}", fix="give paths, strings, rows or a dataset"
        )
    if isinstance(source, list | tuple) and source and all(named(item) for item in source):
        raise Error("these strings look like file names", fix="hand in Path objects, or find([...])")
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # a DataFrame
        name = pick([*rows.head(SAMPLE).to_dict("records"), dict.fromkeys(rows.columns)], column, changes, None)
        pair = names_in(name, rows.columns)
        rows = rows[name] if len(pair) == 1 else rows[pair].to_dict("records")
    elif hasattr(source, "select_columns") and getattr(source, "features", None):  # a dataset of HF
        kinds = {n: "words" if "string" in str(getattr(f, "dtype", "")) else None for n, f in rows.features.items()}
        rows = rows.select_columns(names_in(column := pick([kinds], column, changes, None), kinds))
    yield from texts(counted(rows, changes), column, changes, "the documents", wants)


def named(item: Any) -> bool:
    """Whether a string is the name of a file rather than a text."""
    return isinstance(item, str) and not any(c.isspace() for c in item) and item.lower().endswith((*FORMS, ".txt"))


def counted(rows: Iterable[Any], changes: Changes) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers."""
    for number, row in enumerate(rows, 1):
        changes.lines += 1
        yield number, row
