"""How commands read text files: the same options everywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import Error

Unit = Literal["auto", "line", "block", "file"]  # what is one text in a file


@Parameter(name="*")
@dataclass(frozen=True)
class Reading:
    """How files are read."""

    column: Annotated[
        str | None,
        Parameter(help="The column or key with the text, in tables and jsonl, or its number; two for pairs: de,en."),
    ] = None
    encoding: Annotated[str, Parameter(help="How text files are encoded: utf-8, cp949, utf-16, …")] = "utf-8"
    skip: Annotated[bool, Parameter(help="Count broken rows of tables and leave them out, instead of stopping.")] = (
        False
    )
    delimiter: Annotated[
        str | None, Parameter(help="What stands between the columns of a table: ';', tab, '|'; found by default.")
    ] = None
    header: Annotated[
        bool | None,
        Parameter(
            negative="--no-header", help="The first row names the columns; with --no-header they are numbered from 0."
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """As formers.data.readers.read and formers.prepare want them."""
        return asdict(self)

    def given(self) -> dict[str, Any]:
        """What was said, under the dotted names of settings; what was left out is not there."""
        usual = Reading()
        return {f"data.{key}": value for key, value in asdict(self).items() if value != getattr(usual, key)}


def piped(encoding: str) -> str:
    """What comes in by a pipe."""
    if sys.stdin is None or sys.stdin.isatty():
        raise Error("there is no text", fix="give it behind the model, with --file, or by a pipe")
    try:
        data = getattr(sys.stdin, "buffer", None)
        said = sys.stdin.read() if data is None else data.read().decode(encoding)
    except UnicodeDecodeError as error:
        from ..data.streams import likely_encoding, other_encoding

        raise other_encoding(likely_encoding(error.object), encoding, "the standard input") from None
    except LookupError as error:
        raise Error(f"the standard input is no text ({error})", fix="say --encoding") from None
    if not said.strip():
        raise Error("the standard input is empty", fix="give some text")
    return said


def whole(file: Path, reading: Reading) -> str:
    """A text file or a pipe as it is, so that places count in it; of a table, the texts of its column."""
    from ..data.readers import text
    from ..tasks.records import read_table
    from ..text.normalise import Changes

    if str(file) == "-":
        return piped(reading.encoding)
    if path := plain(file, reading):
        changes = Changes()
        found = text(path, reading.encoding, changes)
        tell_losses(file, changes)
        return found
    table = read_table(file, **reading.options())
    if reading.column is None and "context" in table.names:
        fix = "formers evaluate judges a model by them; of one context give the text, or --column context"
        raise Error("holds questions with contexts of their own", where=file, fix=fix)
    return "\n".join(of_texts(table, reading, pairs=False)[0])


def paired(texts: Iterable[Any]) -> list[Any]:
    """Texts, of which one with a tab is a pair."""
    return [tuple(t.split("\t", 1)) if isinstance(t, str) and "\t" in t else t for t in texts]


def plain(file: Path, reading: Reading) -> Path | None:
    """The only file here, if it is plain text and no column of it is asked for."""
    from ..data.readers import TEXT, find, form

    paths = find(file)
    if reading.column is not None or reading.delimiter is not None:
        return None
    return paths[0] if len(paths) == 1 and form(paths[0]) in TEXT else None


def lines(file: Path, reading: Reading, unit: Unit = "line") -> list[str]:
    """The texts of a file: the column of a table, or lines of a text file ("-": a pipe), where a blank row or line is
    an empty text, so that answers stand beside their questions."""
    from ..data.readers import read, rows
    from ..text.normalise import Changes

    if str(file) == "-":
        return ["" if line.isspace() else line for line in piped(reading.encoding).splitlines()]
    path, changes = plain(file, reading) if unit == "line" else None, Changes()
    how: dict[str, Any] = {"unit": unit, "blank": unit == "line", "changes": changes, **reading.options()}
    found = rows(path, reading.encoding, changes) if path else list(read(file, **how))
    tell_losses(file, changes)
    if not any(found):
        raise Error("holds no text", where=file, fix="give a file with some words")
    return found


def tell_losses(file: Path, changes: Any) -> None:
    """Say on the standard error what of a file was left out: bytes that are no text, broken rows."""
    from ..tasks.examples import losses
    from .screen import Screen, show_line

    if told := losses(changes):
        Screen(stderr=True).print(f"{show_line(file)}: {', '.join(told)}")


def items(file: Path, reading: Reading, words: bool = False) -> tuple[list[Any], str]:
    """What a file ("-": a pipe) asks about, and a note on how it was read: texts and pairs, or for `words` texts and
    lists of words; a blank line or row is an empty one. A pair has two columns of a table, or a tab in a line."""
    from ..data.tables import head_lines
    from ..tasks.conll import find_layout
    from ..tasks.records import conll, read_table

    if str(file) == "-":
        return lines(file, reading), ""
    path = None if conll(file) else plain(file, reading)
    if path is not None and not (words and find_layout(head_lines(path, reading.encoding), False)):
        return lines(file, reading), ""
    table = read_table(file, **reading.options())
    return of_words(table, reading) if words else of_texts(table, reading, pairs=True)


def of_words(table: Any, reading: Reading) -> tuple[list[Any], str]:
    """The words of each row of a table, whatever their tags are; where there are none, its texts."""
    from ..data.tables import by_number
    from ..tasks.columns import WORDS, Look, is_list

    look = Look(table, table.names)
    column = look.first(WORDS) if reading.column is None else by_number(reading.column, table.names)
    if column not in table.names or not look.lists(column):
        return of_texts(table, reading, pairs=False)
    lists = (row[column] if is_list(row.get(column)) else () for _, row in table.rows)
    return [[str(word) for word in words if str(word).strip()] for words in lists], ""


def of_texts(table: Any, reading: Reading, pairs: bool) -> tuple[list[Any], str]:
    """The texts or pairs of the rows of a table."""
    from ..data.tables import names_in, pick
    from ..tasks.columns import Look, unlabelled
    from ..tasks.examples import Reader, losses

    if reading.column is not None:
        column = pick([dict.fromkeys(table.names)], reading.column, table.changes, table.where)  # it is there
        roles = dict(zip(("text", "other"), names_in(column, table.names), strict=False))
    else:
        roles = unlabelled(Look(table, table.names))
    if not roles or (len(roles) > 1 and not pairs):
        what = "which column is the text? There are " + ", ".join(map(repr, table.names))
        fix = "say --column NAME" + (", or --column ONE,TWO for pairs" if pairs else "")
        raise Error(what, where=table.where, fix=fix)
    reader = Reader(table, "classify", roles, False, None)
    rows = [reader.labelled_text(place, record) for place, record in table.rows]
    if not any(rows):
        raise Error(f"no row can be used: {reader.lost()}", where=table.where, fix="say --column NAME")
    note = f"the text is the column {' + '.join(map(repr, roles.values()))}"
    found = ["" if r is None else r["text"] if r["other"] is None else (r["text"], r["other"]) for r in rows]
    return found, "; ".join((note, *losses(table.changes)))
