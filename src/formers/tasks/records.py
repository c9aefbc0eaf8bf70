"""Records with named columns out of files, lists, DataFrames and datasets, whole: a training set fits into memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data import readers, tables
from ..data.streams import PACKED, decoded
from ..errors import Error
from ..text.normalise import Changes
from .columns import PLAIN, are_names
from .conll import MARKS, Layout, find_layout, read_sentences

CONLL = (".conll", ".conll03", ".iob", ".iob2", ".bio", ".bioes")
LONGEST = 1 << 30  # characters of a JSON file that is one value
MOST, ROWS = 1 << 31, 5_000_000  # bytes, unpacked, and rows of a table, which is kept in memory


@dataclass
class Table:
    """Rows as dictionaries with the number of each (its line, where it has one), and where they come from."""

    rows: list[tuple[int, dict[str, Any]]]
    where: object
    changes: Changes
    names: list[str] = field(default_factory=list)
    classes: dict[str, list[str]] = field(default_factory=dict)  # a HF dataset's names of numbered labels
    plain: bool = False  # running text, which has no columns
    headed: bool = False  # the first row of a file was taken for the names of the columns, and nobody said so

    def __post_init__(self) -> None:
        self.names = self.names or list(dict.fromkeys(str(name) for _, row in self.rows for name in row))

    @property
    def header_hint(self) -> str:
        """What to add to an error about the columns, where the first row looks like data."""
        return tables.suggest_no_header(self.names, (row for _, row in self.rows[:200])) if self.headed else ""


def read_table(
    source: Any,
    names: Sequence[str] | None = None,
    *,
    task: str | None = None,
    skip: bool = False,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    header: bool | None = None,
    column: str | None = None,
) -> Table:
    """All records of a source; `names` are those of the columns of a file without a first row of names, or of tuples.
    `task` and `column` help to tell tagged words and tables from running text."""
    changes = Changes()
    wants = tables.Wants(column, changes, skip, encoding, delimiter, header, MOST)
    if not readers.by_path(source):
        return of_python(source, names, changes)
    files = [Path(source)] if conll(source) and Path(source).is_file() else readers.find(source)
    parts = [of_file(path, names, wants, task) for path in files]
    if odd := next((part for part in parts if part.names != parts[0].names), None):
        both = f"{tables.listed(parts[0].names)} and {tables.listed(odd.names)}"
        raise Error(f"these files have different columns: {both}", where=odd.where, fix="read them one by one")
    rows = [row for part in parts for row in part.rows]
    return Table(rows, source, changes, parts[0].names, plain=all(part.plain for part in parts), headed=parts[0].headed)


def conll(source: Any) -> bool:
    """A file with a word and its tag in each line, by its name."""
    if isinstance(source, list | tuple):
        return False
    suffixes = [s.lower() for s in Path(source).suffixes if s.lower() not in PACKED]
    return bool(suffixes) and suffixes[-1] in CONLL


def of_file(path: Path, names: Sequence[str] | None, wants: tables.Wants, task: str | None) -> Table:
    """The records of one file, by its form and its content."""
    form = readers.form(path)
    if form in tables.PARQUET:
        rows = of_parquet(path, wants)
    elif form in tables.JSON:
        rows = of_json(path, wants)
    else:
        layout = tagged_layout(path, names, wants, task)
        if layout is not None and layout.sentences:
            bare = "" if layout.header else ", and there is no header"
            wants.changes.note(f"words and tags stand between spaces{bare}")
            named = None if layout.header else layout.names
            return of_separated(path, ".tsv", named, wants)
        if layout is not None:
            wants.changes.note(layout.said())
            known = list(layout.header if wants.column in layout.header else names or layout.names)
            sentences = read_sentences(path, layout, wants, known)
            return Table(list(limited(sentences, path)), path, wants.changes, known)
        if conll(path):
            raise Error("there are no words with tags in it", where=path, fix="a line has a word and its tag")
        if form not in readers.TEXT or names or wants.delimiter is not None or is_named(path, wants):
            return of_separated(path, str(form), names, wants)
        texts = readers.read(path, changes=wants.changes, encoding=wants.encoding)
        found = list(limited(((i, {"text": text}) for i, text in enumerate(texts, 1)), path))
        return Table(found, path, wants.changes, plain=True)
    return Table(flattened(list(limited(rows, path))), path, wants.changes)


def tagged_layout(path: Path, names: Sequence[str] | None, wants: tables.Wants, task: str | None) -> Layout | None:
    """Where words and tags stand in a file; None if it is another table."""
    marks: list[str | None] = list(MARKS) if wants.delimiter is None else [wants.delimiter]
    if conll(path) or (not names and wants.delimiter in (None, "\t", " ") and readers.form(path) != ".csv"):
        marks.insert(0, None)
    lines = tables.head_lines(path, wants.encoding)
    found = find_layout(lines, conll(path) or task == "tag", marks, wants.header)
    return found if found is None or not names or len(names) == found.width else None


def is_named(path: Path, wants: tables.Wants) -> bool:
    """Whether a text file is a table: tabs in every line, and a first line that names columns, or somebody who does."""
    if not tables.is_tabbed(path, wants.encoding):
        return False
    first = next(line for line in tables.head_lines(path, wants.encoding) if line.strip())
    return wants.header is not None or wants.column is not None or are_names(first.split("\t"))


def limited(rows: Iterable[Any], path: Path) -> Iterator[Any]:
    """Rows, up to as many as are kept in memory; more are an error."""
    for number, row in enumerate(rows):
        if number >= ROWS:
            raise Error(f"there are more than {ROWS:,} rows, and all are kept in memory", where=path, fix="give fewer")
        yield row


def flattened(rows: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Rows in which a table under a label's name, as in KLUE-STS, becomes columns: labels.label, labels.real-label."""
    for _, row in rows:
        for name in [n for n in row if n.lower() in PLAIN and isinstance(row[n], Mapping)]:
            row |= {f"{name}.{key}": value for key, value in row.pop(name).items()}
    return rows


def of_separated(path: Path, form: str, named: Sequence[str] | None, wants: tables.Wants) -> Table:
    """The records of a csv or tsv file; a row with more or fewer fields than the first is broken."""
    names, rows = tables.open_separated(path, form, wants, named)
    headed = named is None and wants.header is None
    if len(set(names)) < len(names):
        hint = tables.suggest_no_header(names, []) if headed else ""
        raise Error(
            f"two columns have one name: {tables.listed(names)}", where=path, fix=f"give each its own name{hint}"
        )
    found = []
    for number, row in limited(rows, path):
        if len(row) == len(names):
            found.append((number, dict(zip(names, row, strict=True))))
        elif row:
            wants.broken(f"a row has {len(row)} fields, {len(names)} are named", f"{path}, line {number}")
    return Table(found, path, wants.changes, names, headed=headed)


def of_json(path: Path, wants: tables.Wants) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of JSON lines, of one list of records, or of SQuAD's form."""
    if readers.form(path) == ".json":
        whole = "".join(decoded(wants.chunks(path), wants.changes, wants.encoding, path))
        try:
            value = json.loads(whole, strict=False) if len(whole) < LONGEST else None
        except (ValueError, RecursionError):
            value = None  # then it is lines, whose reader says what is wrong with which
        if isinstance(value, dict) and isinstance(value.get("data"), list):
            value = value["data"]
        if isinstance(value, list):
            wants.changes.lines += len(value)
            if value and isinstance(value[0], dict) and "paragraphs" in value[0]:
                yield from of_squad(value, path)
            else:
                yield from records(value, None, path)
            return
    for number, value in tables.json_lines(path, wants):
        yield number, value if isinstance(value, dict) else {"text": value}


def of_squad(articles: list[Any], where: object) -> Iterator[tuple[int, dict[str, Any]]]:
    """One record for each question of SQuAD's nested form (1.1 and 2.0), and of KorQuAD's, which is the same."""
    number = 0
    for article in articles:
        for paragraph in article.get("paragraphs", []):
            for asked in paragraph.get("qas", []):
                number += 1
                lacking = [n for n in ("question", "id") if n not in asked] + ["context"] * ("context" not in paragraph)
                if lacking:
                    raise Error(f"there is no {lacking[0]!r}", where=f"{where}, question {number}", fix="repair it")
                yield number, {"context": paragraph["context"], **asked}


def of_parquet(path: Path, wants: tables.Wants) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of a parquet file."""
    with tables.parquet(path) as table:
        rows = table.read().to_pylist()
    wants.changes.lines += len(rows)
    yield from enumerate(rows, 1)


def divided(source: Any) -> tuple[Any, Any]:
    """The training part and the validation part, if there is one, of a source that has several (a DatasetDict)."""
    if not isinstance(source, Mapping) or "train" not in source:
        return source, None
    return source["train"], next((source[name] for name in ("validation", "valid", "dev") if name in source), None)


def of_python(source: Any, header: Sequence[str] | None, changes: Changes) -> Table:
    """The records of a list, a DataFrame (pandas or polars) or a dataset."""
    classes: dict[str, list[str]] = {}
    if isinstance(source, Mapping):
        names = tables.listed(source)
        raise Error(f"this holds several parts: {names}", fix="hand in one of them, such as data['train']")
    if hasattr(source, "iloc") and hasattr(source, "to_dict"):  # pandas
        rows = source.to_dict("records")
    elif hasattr(source, "to_dicts"):  # polars
        rows = source.to_dicts()
    else:
        for name, feature in (getattr(source, "features", None) or {}).items():  # of a HF dataset
            inner = getattr(feature, "feature", feature)
            if getattr(inner, "names", None) and not isinstance(inner, Mapping):
                classes[name] = list(inner.names)
        if isinstance(source, str | bytes) or not isinstance(source, Iterable):
            raise Error(f"examples cannot be read from {type(source).__name__}", fix="give a path, rows or a dataset")
        rows = list(source)
    changes.lines += len(rows)
    return Table(flattened(list(records(rows, header, None))), None, changes, classes=classes)


def records(rows: Iterable[Any], header: Sequence[str] | None, where: object) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows as dictionaries: strings are texts, tuples get the names of `header`, or 0, 1 and so on."""
    for number, row in enumerate(rows, 1):
        if isinstance(row, Mapping):
            yield number, {str(name): value for name, value in row.items()}
        elif isinstance(row, str):
            yield number, {"text": row}
        elif isinstance(row, list | tuple):
            names = header or [str(i) for i in range(len(row))]
            if len(names) != len(row):
                where = f"{where or 'the examples'}, row {number}"
                raise Error(f"a row has {len(row)} values, {len(names)} are named", where=where, fix="repair it")
            yield number, dict(zip(names, row, strict=True))
        else:
            where = f"{where or 'the examples'}, row {number}"
            raise Error(f"an example is no {type(row).__name__}", where=where, fix="give dictionaries or tuples")
