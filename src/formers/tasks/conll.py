"""Files of tagged words: one word in each line with its tag beside it (CoNLL, KLUE-NER, Naver's challenge), or a
sentence and its tags in two columns (KoELECTRA's Naver NER). The content says which it is, not the file's name."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data import tables
from .columns import are_names
from .entities import OUTSIDE, PREFIX, SUFFIX

SHARE = 0.9  # of the lines must agree, the rest may be damaged
BARE = frozenset("BIESLUO")
MARKS = (",", ";", "\t")  # between the columns of a csv file; elsewhere it is tabs or else spaces that are tried first


@dataclass(frozen=True)
class Layout:
    """Where words and tags stand in a file."""

    words: int  # the column with the word
    tags: int | None  # the column with its tag; None: it is not known which
    width: int  # columns
    sentences: bool = False  # a line is a whole sentence: words and tags stand between spaces
    header: tuple[str, ...] = ()  # the names of the columns, if the first line holds them
    schemed: bool = True  # tags are of the kind B-PER or PER-B
    mark: str | None = None  # what stands between the columns; None: tabs, or else white space

    @property
    def names(self) -> list[str]:
        """The columns: "words" and "tags" by what they hold, the others by number."""
        known = {self.words: "words", self.tags: "tags"}
        return [known.get(column, str(column)) for column in range(self.width)]

    def said(self) -> str:
        """The layout in words."""
        where = "" if self.tags is None else f", the tag in column {self.tags} of {self.width}"
        between = "" if self.mark is None else f", a {tables.mark_name(self.mark)} stands between columns"
        return f"one word a line, the word in column {self.words}{where} (columns count from 0){between}"


def find_layout(
    lines: Sequence[str], sure: bool, marks: Sequence[str | None] = (None, *MARKS), header: bool | None = None
) -> Layout | None:
    """The layout of a file by its first lines; None if these are no tagged words. Where it is not `sure` that they are,
    tags must be of the kind B-PER or PER-B.

    `marks` are what may stand between columns, None for tabs or else white space. A file with another mark could be any
    table: there must be blank lines between sentences, and no spaces in words and tags. `header` says whether the first
    line names the columns, if that is known.
    """
    for mark in marks:
        layout = find_columns(lines, sure, mark, header)
        if layout is not None and (mark is None or (has_gaps(lines) and has_single_words(lines, layout))):
            return layout
    return None


def has_gaps(lines: Sequence[str]) -> bool:
    """Whether blank lines stand between other lines, as between sentences."""
    return any(not line.strip() for line in "\n".join(lines).strip().split("\n"))


def has_single_words(lines: Sequence[str], layout: Layout) -> bool:
    """Whether nearly every line has one word and one tag, without spaces in them."""
    rows = [parts for line in lines if len(parts := fields(line, layout.mark, layout.width)) == layout.width]
    single = sum(" " not in parts[layout.words] and " " not in parts[layout.tags or -1] for parts in rows)
    return single >= SHARE * len(rows)


def find_columns(lines: Sequence[str], sure: bool, mark: str | None, header: bool | None) -> Layout | None:
    """The layout of lines with `mark` between their columns, as `find_layout` describes it."""
    words = [line for line in lines if not is_note(line) and not line.startswith(("# ", "-DOCSTART-"))]
    rows = [parts for line in words if (parts := fields(line, mark))]
    if not rows:
        return None
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width < 2 or (count < SHARE * len(rows) and not sure):
        return None
    usual = [parts for parts in rows if len(parts) == width]
    if mark is None and (found := in_sentences([line for line in lines if line.strip()], sure)) is not None:
        return found
    numbers = [parts[0] for parts in usual]
    first = 1 if width > 2 and (counts_up(numbers) or counts_up(numbers[1:])) else 0
    for skipped in (False, True) if header is None else (header,):
        tags = [c for c in range(width) if c != first and are_tags([parts[c] for parts in usual[skipped:]], sure)]
        if tags and header is None and not is_tag(usual[0][tags[-1]]):
            skipped = True
        if tags:
            return Layout(first, tags[-1], width, header=tuple(usual[0]) if skipped else (), mark=mark)
    if not sure:
        return None
    names = tuple(usual[0]) if header or (header is None and are_names(usual[0])) else ()
    return Layout(first, 1 - first if width == 2 else None, width, header=names, schemed=False, mark=mark)


def in_sentences(lines: Sequence[str], sure: bool) -> Layout | None:
    """The layout of lines that are whole sentences: as many tags between spaces in one column as words in another."""
    rows = [line.split("\t") for line in lines if "\t" in line]
    width = Counter(map(len, rows)).most_common(1)[0][0] if len(rows) >= SHARE * len(lines) and rows else 0
    for header in (False, True):
        usual = [row for row in rows[header:] if len(row) == width]
        for tags in range(width):
            given = [row[tags].split() for row in usual]
            if 3 * sum(len(row) > 1 for row in given) < len(given) or not are_tags(
                [tag for row in given for tag in row], sure
            ):
                continue
            for words in range(width):
                same = sum(len(row[words].split()) == len(row[tags].split()) for row in usual)
                if words != tags and same >= SHARE * len(usual):
                    return Layout(words, tags, width, sentences=True, header=tuple(rows[0]) if header else ())
    return None


def fields(line: str, mark: str | None = None, width: int | None = None) -> list[str]:
    """The columns of a line, between tabs or else between white space, or between `mark`. A word of white space alone
    stays (KLUE's). Where `width` is 2, a mark that is a word itself need not stand in quotes."""
    if mark is not None and mark != "\t":
        try:
            parts = next(csv.reader([line], delimiter=mark), [])
        except csv.Error:  # longer than a field may be
            parts = line.split(mark)
        if width == 2 and len(parts) != width and mark in line:
            parts = line.rsplit(mark, 1)
        return [part.strip() for part in parts] if line.strip() else []
    if mark is None and "\t" not in line:
        return line.split()
    parts = line.split("\t")
    return [part.strip() or (" " if part else "") for part in parts] if any(part.strip() for part in parts) else []


def is_note(line: str) -> bool:
    """Whether a line is no word but a comment, as in "## klue-ner-v1_00001 TAB the sentence" or "# text = ...": its
    first column, between tabs, is a # with words behind it."""
    return line.startswith("#") and len(line.split("\t", 1)[0].split()) > 1 and "\t" in line


def counts_up(values: Sequence[str]) -> bool:
    """Whether a column numbers the words of each sentence."""
    numbers = [int(v) if v.isdecimal() and v.isascii() else -1 for v in values]
    follow = sum(b == a + 1 or b in (0, 1) for a, b in itertools.pairwise(numbers))
    return len(numbers) > 1 and -1 not in numbers and follow >= SHARE * (len(numbers) - 1)


def is_tag(value: str) -> bool:
    """Whether a value is the tag of an entity, O, or a bare B or I."""
    return value in BARE or value in OUTSIDE or bool(PREFIX.fullmatch(value) or SUFFIX.fullmatch(value))


def are_tags(values: Sequence[str], sure: bool) -> bool:
    """Whether values are tags of entities, nearly all of them, and some not O; where it is `sure` that there are tags,
    bare B and I will do."""
    for pattern in (PREFIX, SUFFIX):
        found = sum(value not in OUTSIDE and bool(pattern.fullmatch(value)) for value in values)
        if found and found + sum(value in OUTSIDE for value in values) >= SHARE * len(values):
            return True
    return sure and set(values) <= BARE and len(set(values)) > 1


def read_sentences(
    path: Path, layout: Layout, wants: tables.Wants, names: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The sentences of a file with a word in each line: the number of the first line, and a list for each column under
    its name. Blank lines and -DOCSTART- end a sentence, comments are passed over."""
    columns: list[list[str]] = [[] for _ in names]
    start, waiting = 1, bool(layout.header)
    for number, line in tables.whole_lines(path, wants):
        parts = fields(line, layout.mark, layout.width)
        if parts and waiting:
            waiting = False
        elif not parts or parts[0] == "-DOCSTART-":
            if columns[0]:
                yield start, dict(zip(names, columns, strict=True))
            columns = [[] for _ in names]
        elif not is_comment(line, parts, layout):
            if len(parts) != layout.width or not parts[layout.words] or not parts[layout.tags or -1]:
                what = f"a line has a word and its tag: {layout.width} columns are wanted, here are {len(parts)}"
                wants.broken(what, f"{path}, line {number}")
                continue
            start = start if columns[0] else number
            for column, part in zip(columns, parts, strict=True):
                column.append(part)
    if columns[0]:
        yield start, dict(zip(names, columns, strict=True))


def is_comment(line: str, parts: Sequence[str], layout: Layout) -> bool:
    """Whether a line that begins with # is a comment and no word #."""
    if not line.startswith("#"):
        return False
    if is_note(line) or len(parts) != layout.width or layout.tags is None:
        return True
    return layout.schemed and not is_tag(parts[layout.tags])
