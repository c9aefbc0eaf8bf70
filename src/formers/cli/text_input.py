"""How commands read text files: options that they share."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import Error

TextUnit = Literal["auto", "line", "block", "file"]  # what is one text in a file


@Parameter(name="*")
@dataclass(frozen=True)
class TextFileOptions:
    """How text files are read."""

    column: Annotated[
        str | None,
        Parameter(help="The column or key with the text, in tables and jsonl, or its number; two for pairs: de,en."),
    ] = None
    encoding: Annotated[str, Parameter(help="Encoding of text files: utf-8, cp949, utf-16, …")] = "utf-8"
    skip: Annotated[bool, Parameter(help="Skip broken rows of tables and count them, instead of stopping.")] = False
    delimiter: Annotated[
        str | None, Parameter(help="The column separator of a table: ';', tab, '|'; detected by default.")
    ] = None
    header: Annotated[
        bool | None,
        Parameter(
            negative="--no-header", help="The first row names the columns; with --no-header they are numbered from 0."
        ),
    ] = None

    def to_keywords(self) -> dict[str, Any]:
        """Return the options as keywords of read_documents and formers.prepare."""
        return asdict(self)

    def to_overrides(self) -> dict[str, Any]:
        """What was said, under the dotted names of settings; what was left out is not there."""
        usual = TextFileOptions()
        return {f"data.{key}": value for key, value in asdict(self).items() if value != getattr(usual, key)}


def read_stdin(encoding: str) -> str:
    """Read the standard input as text."""
    if sys.stdin is None or sys.stdin.isatty():
        raise Error("there is no text", fix="give it behind the model, with --file, or by a pipe")
    try:
        data = getattr(sys.stdin, "buffer", None)
        said = sys.stdin.read() if data is None else data.read().decode(encoding)
    except UnicodeDecodeError as error:
        from ..data.text_files import guess_encoding, make_encoding_error

        raise make_encoding_error(guess_encoding(error.object), encoding, "the standard input") from None
    except LookupError as error:
        raise Error(f"the standard input is no text ({error})", fix="say --encoding") from None
    if not said.strip():
        raise Error("the standard input is empty", fix="give some text")
    return said


def read_whole_text(file: Path, reading: TextFileOptions) -> str:
    """A text file or a pipe as it is, so that places count in it; of a table, the texts of its column."""
    from ..data.readers import read_text
    from ..tasks.example_tables import read_table
    from ..text.normalise import CleaningReport

    if str(file) == "-":
        return read_stdin(reading.encoding)
    if path := find_plain_file(file, reading):
        changes = CleaningReport()
        found = read_text(path, reading.encoding, changes)
        print_skipped(file, changes)
        return found
    table = read_table(file, **reading.to_keywords())
    if reading.column is None and "context" in table.column_names:
        fix = "formers evaluate judges a model by them; of one context give the text, or --column context"
        raise Error("holds questions with contexts of their own", where=file, fix=fix)
    return "\n".join(extract_texts(table, reading, pairs=False)[0])


def split_tab_pairs(texts: Iterable[Any]) -> list[Any]:
    """Texts, of which one with a tab is a pair."""
    return [tuple(t.split("\t", 1)) if isinstance(t, str) and "\t" in t else t for t in texts]


def find_plain_file(file: Path, reading: TextFileOptions) -> Path | None:
    """The only file here, if it is plain text and no column of it is asked for."""
    from ..data.readers import TEXT_SUFFIXES, find_files, find_suffix

    paths = find_files(file)
    if reading.column is not None or reading.delimiter is not None:
        return None
    return paths[0] if len(paths) == 1 and find_suffix(paths[0]) in TEXT_SUFFIXES else None


def read_file_texts(file: Path, reading: TextFileOptions, unit: TextUnit = "line") -> list[str]:
    """The texts of a file: the column of a table, or lines of a text file ("-": a pipe), where a blank row or line is
    an empty text, so that answers stand beside their questions."""
    from ..data.readers import read_documents, read_lines
    from ..text.normalise import CleaningReport

    if str(file) == "-":
        return ["" if line.isspace() else line for line in read_stdin(reading.encoding).splitlines()]
    path, changes = find_plain_file(file, reading) if unit == "line" else None, CleaningReport()
    how: dict[str, Any] = {"unit": unit, "keep_empty": unit == "line", "changes": changes, **reading.to_keywords()}
    found = read_lines(path, reading.encoding, changes) if path else list(read_documents(file, **how))
    print_skipped(file, changes)
    if not any(found):
        raise Error("holds no text", where=file, fix="give a file with some words")
    return found


def print_skipped(file: Path, changes: Any) -> None:
    """Say on the standard error what of a file was left out: bytes that are no text, broken rows."""
    from .terminal import SafeConsole, escape_line

    if told := changes.describe_losses():
        SafeConsole(stderr=True).print(f"{escape_line(file)}: {', '.join(told)}")


def read_inputs(file: Path, reading: TextFileOptions, words: bool = False) -> tuple[list[Any], str]:
    """What a file ("-": a pipe) asks about, and a note on how it was read: texts and pairs, or for `words` texts and
    lists of words; a blank line or row is an empty one. A pair has two columns of a table, or a tab in a line."""
    from ..data.tables import read_head_lines
    from ..tasks.example_tables import find_layout, is_conll_path, read_table

    if str(file) == "-":
        return read_file_texts(file, reading), ""
    path = None if is_conll_path(file) else find_plain_file(file, reading)
    if path is not None and not (words and find_layout(read_head_lines(path, reading.encoding), False)):
        return read_file_texts(file, reading), ""
    table = read_table(file, **reading.to_keywords())
    return extract_words(table, reading) if words else extract_texts(table, reading, pairs=True)


def extract_words(table: Any, reading: TextFileOptions) -> tuple[list[Any], str]:
    """The words of each row of a table, whatever their tags are; where there are none, its texts."""
    from ..data.tables import resolve_column
    from ..tasks.examples import TablePreview, is_list

    look = TablePreview(table, table.column_names)
    column = look.find_first("words") if reading.column is None else resolve_column(reading.column, table.column_names)
    if column not in table.column_names or not look.has_lists(column):
        return extract_texts(table, reading, pairs=False)
    lists = (row[column] if is_list(row.get(column)) else () for _, row in table.rows)
    return [[str(word) for word in words if str(word).strip()] for words in lists], ""


def extract_texts(table: Any, reading: TextFileOptions, pairs: bool) -> tuple[list[Any], str]:
    """The texts or pairs of the rows of a table."""
    from ..data.tables import pick_text_column, split_column_names
    from ..tasks.examples import ExampleBuilder, TablePreview, find_unlabelled

    if reading.column is not None:
        column = pick_text_column(
            [dict.fromkeys(table.column_names)], reading.column, table.changes, table.where
        )  # it is there
        roles = dict(zip(("text", "other"), split_column_names(column, table.column_names), strict=False))
    else:
        roles = find_unlabelled(TablePreview(table, table.column_names))
    if not roles or (len(roles) > 1 and not pairs):
        what = "which column is the text? There are " + ", ".join(map(repr, table.column_names))
        fix = "say --column NAME" + (", or --column ONE,TWO for pairs" if pairs else "")
        raise Error(what, where=table.where, fix=fix)
    reader = ExampleBuilder(table, "classify", roles, False, None)
    rows = [reader.make_labelled_text(place, record) for place, record in table.rows]
    if not any(rows):
        raise Error(f"no row can be used: {reader.describe_skipped()}", where=table.where, fix="say --column NAME")
    note = f"the text is the column {' + '.join(map(repr, roles.values()))}"
    found = ["" if r is None else r["text"] if r["other"] is None else (r["text"], r["other"]) for r in rows]
    return found, "; ".join((note, *table.changes.describe_losses()))
