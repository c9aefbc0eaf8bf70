"""Step 1 of a task's data: any source becomes a `Table`.

`read_table(source)` reads files, lists, DataFrames and datasets whole, since a training set fits into memory: rows with
named columns, as they stand in the source. examples.py takes over from there.

Files of tagged words have one word in each line with its tag beside it (CoNLL, KLUE-NER, Naver's challenge), or a
sentence and its tags in two columns (KoELECTRA's Naver NER). The content says which it is, not the file's name.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, TypeVar

from ..config import JSONObject
from ..data import readers
from ..data.readers import TEXT_COLUMN_NAMES
from ..data.text_files import COMPRESSION_SUFFIXES, decode_chunks
from ..errors import Error
from ..text.normalise import CleaningReport
from .tagging import OUTSIDE_TAGS, PREFIX_TAG, SUFFIX_TAG

PAIR_NAMES = (
    ("a", "b"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text1", "text2"), ("question", "sentence"),
    ("question", "passage"), ("query", "passage"), ("query", "text"), ("text", "other"),
    ("sen1", "sen2"), ("문장1", "문장2"),
)  # fmt: skip
LABEL_NAMES = (
    "label", "labels", "class", "category", "gold_label", "sentiment", "intent", "emotion", "topic", "rating", "stars",
    "y", "target", "레이블", "라벨", "분류", "감정", "등급", "평점", "평가",
)  # fmt: skip
EXACT_LABEL_NAMES = ("label", "labels", "class", "gold_label")  # these are labels, whatever the other columns are
# The names that a column has by what it holds, the likeliest first.
COLUMN_NAMES: dict[str, tuple[str, ...]] = {
    "plain text": TEXT_COLUMN_NAMES,
    "text": (
        *TEXT_COLUMN_NAMES, "tweet", "utterance", "message", "question", "title", "premise", "data", "문장", "문서",
        "리뷰",
    ),
    "label": LABEL_NAMES,
    "score": (
        "labels.real-label", "labels.label", "label.real-label", "label.label", "score", "similarity",
        "similarity_score", "relatedness_score", "value", "점수", "유사도",
    ),
    "words": ("words", "tokens", "word", "token"),
    "tags": ("tags", "ner_tags", "pos_tags", "ner", "labels", "ner_labels", "tag", "pos"),
    "question": ("question", "query", "질문"),
    "context": ("context", "passage", "paragraph", "document", "text", "지문"),
    "answers": ("answers", "answer", "답", "정답"),
    "id": ("id", "guid"),
    "start": ("answer_start", "start"),
    "possible": ("is_impossible",),
    "choices": ("choices", "options", "endings", "candidates", "보기"),
    "choice label": (*LABEL_NAMES, "answer", "answerkey", "gold", "정답"),
    "stem": ("text", "ctx", "question", "premise", "context", "article", "startphrase", "goal", "sent1", "질문"),
    "source": (*TEXT_COLUMN_NAMES, "source", "src", "input", "question", "prompt"),
    "target": ("target", "tgt", "output", "answer", "response", "completion", "reply"),
    "summary": ("summary", "highlights", "abstract", "headline", "subject", "title", "요약", "제목", "target"),
}  # fmt: skip
HEADER_PARTS = ("text", "label", "score", "words", "tags", "answers", "context", "summary", "source", "target")
ID_COLUMN = re.compile(r"(?:.*_)?(?:id|idx|index|guid|pairid)|unnamed: \d+|", re.IGNORECASE)


def are_column_names(fields: Iterable[str]) -> bool:
    """Return whether all fields of a row are names that columns have, so that the row is a header."""
    known = {name for part in HEADER_PARTS for name in COLUMN_NAMES[part]}.union(*PAIR_NAMES)
    return all(name.strip().lower() in known or ID_COLUMN.fullmatch(name.strip()) for name in fields)


MIN_AGREEMENT = 0.9  # of the lines must agree, the rest may be damaged
BARE_TAGS = frozenset("BIESLUO")
# Between the columns of a csv file; elsewhere it is tabs or else spaces that are tried first.
DELIMITERS = (",", ";", "\t")


@dataclass(frozen=True)
class TagLayout:
    """Where words and tags stand in a file."""

    word_column: int  # the column with the word
    tag_column: int | None  # the column with its tag; None: it is not known which
    num_columns: int  # columns
    has_sentence_lines: bool = False  # a line is a whole sentence: words and tags stand between spaces
    header: tuple[str, ...] = ()  # the names of the columns, if the first line holds them
    has_scheme: bool = True  # tags are of the kind B-PER or PER-B
    delimiter: str | None = None  # what stands between the columns; None: tabs, or else white space

    @property
    def column_names(self) -> list[str]:
        """The columns: "words" and "tags" by what they hold, the others by number."""
        known = {self.word_column: "words", self.tag_column: "tags"}
        return [known.get(column, str(column)) for column in range(self.num_columns)]

    def describe(self) -> str:
        """Describe the layout for a note."""
        where = "" if self.tag_column is None else f", the tag in column {self.tag_column} of {self.num_columns}"
        mark = self.delimiter
        between = "" if mark is None else f", a {readers.name_delimiter(mark)} stands between columns"
        return f"one word a line, the word in column {self.word_column}{where} (columns count from 0){between}"


def find_layout(
    lines: Sequence[str], expect_tags: bool, delimiters: Sequence[str | None] = (None, *DELIMITERS),
    header: bool | None = None,
) -> TagLayout | None:  # fmt: skip
    """Find a file's layout by its first lines; None if these are not tagged words. Without `expect_tags`, tags must be
    of the kind B-PER or PER-B. `delimiters` are what may stand between columns, None for tabs or else white space. A
    file with another delimiter could be any table: there must be blank lines between sentences, and no spaces in words
    and tags. `header` says whether the first line names the columns, if that is known."""
    has_blank_lines = any(not line.strip() for line in "\n".join(lines).strip().split("\n"))
    for mark in delimiters:
        layout = find_column_layout(lines, expect_tags, mark, header)
        if layout is not None and (mark is None or (has_blank_lines and has_single_words(lines, layout))):
            return layout
    return None


def has_single_words(lines: Sequence[str], layout: TagLayout) -> bool:
    """Return whether nearly every line has one word and one tag, without spaces in them."""
    rows = [split_fields(line, layout.delimiter, layout.num_columns) for line in lines]
    rows = [parts for parts in rows if len(parts) == layout.num_columns]
    single = sum(" " not in parts[layout.word_column] and " " not in parts[layout.tag_column or -1] for parts in rows)
    return single >= MIN_AGREEMENT * len(rows)


def find_column_layout(
    lines: Sequence[str], expect_tags: bool, delimiter: str | None, header: bool | None
) -> TagLayout | None:
    """Find the layout of lines with `delimiter` between their columns, as `find_layout` describes it."""
    words = [line for line in lines if not is_tabbed_comment(line) and not line.startswith(("# ", "-DOCSTART-"))]
    rows = [parts for line in words if (parts := split_fields(line, delimiter))]
    if not rows:
        return None
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width < 2 or (count < MIN_AGREEMENT * len(rows) and not expect_tags):
        return None
    usual = [parts for parts in rows if len(parts) == width]
    whole = [line for line in lines if line.strip()]
    if delimiter is None and (layout := find_sentence_layout(whole, expect_tags)) is not None:
        return layout
    numbers = [parts[0] for parts in usual]
    first = 1 if width > 2 and (is_word_index(numbers) or is_word_index(numbers[1:])) else 0
    for skipped in (False, True) if header is None else (header,):
        columns = {c: [parts[c] for parts in usual[skipped:]] for c in range(width) if c != first}
        tags = [c for c, values in columns.items() if are_tags(values, expect_tags)]
        if tags and header is None and not is_tag(usual[0][tags[-1]]):
            skipped = True
        if tags:
            return TagLayout(first, tags[-1], width, header=tuple(usual[0]) if skipped else (), delimiter=delimiter)
    if not expect_tags:
        return None
    names = tuple(usual[0]) if header or (header is None and are_column_names(usual[0])) else ()
    tag = 1 - first if width == 2 else None
    return TagLayout(first, tag, width, header=names, has_scheme=False, delimiter=delimiter)


def find_sentence_layout(lines: Sequence[str], expect_tags: bool) -> TagLayout | None:
    """Find the layout of lines of whole sentences: as many tags between spaces in one column as words in another."""
    rows = [line.split("\t") for line in lines if "\t" in line]
    width = Counter(map(len, rows)).most_common(1)[0][0] if len(rows) >= MIN_AGREEMENT * len(lines) and rows else 0
    for header in (False, True):
        usual = [row for row in rows[header:] if len(row) == width]
        for tags in range(width):
            tag_rows = [row[tags].split() for row in usual]
            values = [tag for row in tag_rows for tag in row]
            if 3 * sum(len(row) > 1 for row in tag_rows) < len(tag_rows) or not are_tags(values, expect_tags):
                continue
            for words in range(width):
                same = sum(len(row[words].split()) == len(row[tags].split()) for row in usual)
                if words != tags and same >= MIN_AGREEMENT * len(usual):
                    names = tuple(rows[0]) if header else ()
                    return TagLayout(words, tags, width, has_sentence_lines=True, header=names)
    return None


def split_fields(line: str, delimiter: str | None = None, width: int | None = None) -> list[str]:
    """Split a line into columns at tabs, else at white space, or at `delimiter`. A word of white space
    alone stays (KLUE's). Where `width` is 2, a delimiter that is a word itself need not stand in quotes."""
    if delimiter is not None and delimiter != "\t":
        try:
            parts = next(csv.reader([line], delimiter=delimiter), [])
        except csv.Error:  # longer than a field may be
            parts = line.split(delimiter)
        if width == 2 and len(parts) != width and delimiter in line:
            parts = line.rsplit(delimiter, 1)
        return [part.strip() for part in parts] if line.strip() else []
    if delimiter is None and "\t" not in line:
        return line.split()
    parts = line.split("\t")
    return [part.strip() or (" " if part else "") for part in parts] if any(part.strip() for part in parts) else []


def is_tabbed_comment(line: str) -> bool:
    """Return whether a line is a comment, as in "## klue-ner-v1_00001 TAB the sentence" or "# text = ...": its
    first column, between tabs, is a # followed by words."""
    return line.startswith("#") and len(line.split("\t", 1)[0].split()) > 1 and "\t" in line


def is_word_index(values: Sequence[str]) -> bool:
    """Return whether a column numbers the words of each sentence."""
    numbers = [int(v) if v.isdecimal() and v.isascii() else -1 for v in values]
    follow = sum(b == a + 1 or b in (0, 1) for a, b in itertools.pairwise(numbers))
    return len(numbers) > 1 and -1 not in numbers and follow >= MIN_AGREEMENT * (len(numbers) - 1)


def is_tag(value: str) -> bool:
    """Return whether a value is the tag of an entity, O, or a bare B or I."""
    known = value in BARE_TAGS or value in OUTSIDE_TAGS
    return known or bool(PREFIX_TAG.fullmatch(value) or SUFFIX_TAG.fullmatch(value))


def are_tags(values: Sequence[str], expect_tags: bool) -> bool:
    """Return whether nearly all values are entity tags, and some not O; with `expect_tags`, bare B and I will do."""
    for pattern in (PREFIX_TAG, SUFFIX_TAG):
        count = sum(value not in OUTSIDE_TAGS and bool(pattern.fullmatch(value)) for value in values)
        if count and count + sum(value in OUTSIDE_TAGS for value in values) >= MIN_AGREEMENT * len(values):
            return True
    return expect_tags and set(values) <= BARE_TAGS and len(set(values)) > 1


def read_tagged_sentences(
    path: Path, layout: TagLayout, wants: readers.TableOptions, names: Sequence[str]
) -> Iterator[TableRow]:
    """Read sentences of a file with a word in each line: the number of the first line, and a list for each column under
    its name. Blank lines and -DOCSTART- end a sentence, comments are skipped."""
    columns: list[list[str]] = [[] for _ in names]
    start, waiting = 1, bool(layout.header)
    for number, line in readers.number_lines(path, wants):
        parts = split_fields(line, layout.delimiter, layout.num_columns)
        if parts and waiting:
            waiting = False
        elif not parts or parts[0] == "-DOCSTART-":
            if columns[0]:
                yield start, dict(zip(names, columns, strict=True))
            columns = [[] for _ in names]
        elif not is_comment(line, parts, layout):
            if len(parts) != layout.num_columns or not parts[layout.word_column] or not parts[layout.tag_column or -1]:
                what = f"a line has a word and its tag in {layout.num_columns} columns, and this one has {len(parts)}"
                wants.report_broken_row(what, path, number)
                continue
            start = start if columns[0] else number
            for column, part in zip(columns, parts, strict=True):
                column.append(part)
    if columns[0]:
        yield start, dict(zip(names, columns, strict=True))


def is_comment(line: str, parts: Sequence[str], layout: TagLayout) -> bool:
    """Return whether a line that begins with # is a comment and no word #."""
    if not line.startswith("#"):
        return False
    if is_tabbed_comment(line) or len(parts) != layout.num_columns or layout.tag_column is None:
        return True
    return layout.has_scheme and not is_tag(parts[layout.tag_column])


TableRow = tuple[int, JSONObject]  # the number of a row (its line, where it has one), and its values by column
CONLL_SUFFIXES = (".conll", ".conll03", ".iob", ".iob2", ".bio", ".bioes")
RowType = TypeVar("RowType")
MAX_JSON_CHARS = 1 << 30  # characters of a JSON file that is one value
MAX_TABLE_BYTES, MAX_TABLE_ROWS = 1 << 31, 5_000_000  # bytes, unpacked, and rows of a table, which is kept in memory


class FileOptions(TypedDict, total=False):
    """How files are read."""

    column: str | None  # that holds the text
    encoding: str
    skip: bool  # leave broken rows out, and count them
    delimiter: str | None  # between columns; None: as the file says
    header: bool | None  # whether the first row names the columns; None: as the content says


@dataclass
class Table:
    """The rows of a source, and where they come from."""

    rows: list[TableRow]
    where: object
    changes: CleaningReport
    column_names: list[str] = field(default_factory=list)
    class_names: dict[str, list[str]] = field(default_factory=dict)  # a HF dataset's names of numbered labels
    is_plain_text: bool = False  # running text, which has no columns
    has_assumed_header: bool = False  # the first row was taken for the names of the columns, without a setting

    def __post_init__(self) -> None:
        self.column_names = self.column_names or list(dict.fromkeys(str(name) for _, row in self.rows for name in row))

    @property
    def header_hint(self) -> str:
        """What to add to an error about the columns, where the first row looks like data."""
        first_rows = [row for _, row in self.rows[:200]]
        return readers.suggest_no_header(self.column_names, first_rows) if self.has_assumed_header else ""


def read_table(
    source: object, names: Sequence[str] | None = None, *, task: str | None = None, column: str | None = None,
    skip: bool = False, encoding: str = "utf-8", delimiter: str | None = None, header: bool | None = None,
) -> Table:  # fmt: skip
    """Read all rows of a source; `names` are those of the columns of a file without a first row of names, or of tuples.
    `task` and `column` help to tell tagged words and tables from running text."""
    changes = CleaningReport()
    wants = readers.TableOptions(column, changes, skip, encoding, delimiter, header, MAX_TABLE_BYTES)
    if not readers.is_path_source(source):
        return read_python_table(source, names, changes)
    path = None if isinstance(source, list | tuple) else Path(str(source))
    is_conll = path is not None and is_conll_path(path) and path.is_file()
    files = [path] if path is not None and is_conll else readers.find_files(source)
    parts = [read_table_file(path, names, wants, task) for path in files]
    if differing := next((part for part in parts if part.column_names != parts[0].column_names), None):
        both = f"{readers.format_names(parts[0].column_names)} and {readers.format_names(differing.column_names)}"
        raise Error(f"these files have different columns: {both}", where=differing.where, fix="read them one by one")
    rows, is_plain = [row for part in parts for row in part.rows], all(part.is_plain_text for part in parts)
    return dataclasses.replace(parts[0], rows=rows, where=source, is_plain_text=is_plain)


def is_conll_path(source: object) -> bool:
    """Return whether a file has, by its name, a word and its tag in each line."""
    if isinstance(source, list | tuple):
        return False
    suffixes = [s.lower() for s in Path(str(source)).suffixes if s.lower() not in COMPRESSION_SUFFIXES]
    return bool(suffixes) and suffixes[-1] in CONLL_SUFFIXES


def read_table_file(path: Path, names: Sequence[str] | None, wants: readers.TableOptions, task: str | None) -> Table:
    """Read the table of one file, by its form and its content."""
    form = readers.find_suffix(path)
    rows: Iterable[TableRow]
    if readers.find_format(path) == "parquet":
        with readers.open_parquet(path) as table:
            listed = table.read().to_pylist()
        wants.changes.lines += len(listed)
        rows = enumerate(listed, 1)
    elif readers.find_format(path) == "json":
        rows = read_json_rows(path, wants)
    else:
        layout = find_file_layout(path, names, wants, task)
        if layout is not None and layout.has_sentence_lines:
            bare = "" if layout.header else ", and there is no header"
            wants.changes.add_note(f"words and tags stand between spaces{bare}")
            return read_separated(path, ".tsv", None if layout.header else layout.column_names, wants)
        if layout is not None:
            wants.changes.add_note(layout.describe())
            known = list(layout.header if wants.column in layout.header else names or layout.column_names)
            sentences = read_tagged_sentences(path, layout, wants, known)
            return Table(list(limit_rows(sentences, path)), path, wants.changes, known)
        if is_conll_path(path):
            raise Error("there are no words with tags in it", where=path, fix="a line has a word and its tag")
        if readers.find_format(path) != "text" or names or wants.delimiter is not None or is_named_table(path, wants):
            return read_separated(path, str(form), names, wants)
        texts = readers.read_documents(path, changes=wants.changes, encoding=wants.encoding)
        table_rows = list(limit_rows(((i, {"text": text}) for i, text in enumerate(texts, 1)), path))
        return Table(table_rows, path, wants.changes, is_plain_text=True)
    return Table(flatten_labels(list(limit_rows(rows, path))), path, wants.changes)


def find_file_layout(
    path: Path, names: Sequence[str] | None, wants: readers.TableOptions, task: str | None
) -> TagLayout | None:
    """Find where words and tags stand in a file; None if it is another table."""
    marks: list[str | None] = list(DELIMITERS) if wants.delimiter is None else [wants.delimiter]
    may_be_spaced = not names and wants.delimiter in (None, "\t", " ") and readers.find_suffix(path) != ".csv"
    if is_conll_path(path) or may_be_spaced:
        marks.insert(0, None)
    lines = readers.read_head_lines(path, wants.encoding)
    layout = find_layout(lines, is_conll_path(path) or task == "tag", marks, wants.header)
    return layout if layout is None or not names or len(names) == layout.num_columns else None


def is_named_table(path: Path, wants: readers.TableOptions) -> bool:
    """Return whether a text file is a table: tabs in every line, and columns named by the first line or the caller."""
    if not readers.is_tab_separated(path, wants.encoding):
        return False
    first = next(line for line in readers.read_head_lines(path, wants.encoding) if line.strip())
    return wants.header is not None or wants.column is not None or are_column_names(first.split("\t"))


def limit_rows(rows: Iterable[RowType], path: Path) -> Iterator[RowType]:
    """Yield rows, up to as many as are kept in memory; more are an error."""
    for number, row in enumerate(rows):
        if number >= MAX_TABLE_ROWS:
            what = f"there are more than {MAX_TABLE_ROWS:,} rows, and all are kept in memory"
            raise Error(what, where=path, fix="give fewer")
        yield row


def flatten_labels(rows: list[TableRow]) -> list[TableRow]:
    """Turn a table under a label's name, as in KLUE-STS, into columns: labels.label, labels.real-label."""
    for _, row in rows:
        for name in [n for n in row if n.lower() in EXACT_LABEL_NAMES and isinstance(row[n], Mapping)]:
            row |= {f"{name}.{key}": value for key, value in row.pop(name).items()}
    return rows


def read_separated(path: Path, form: str, named: Sequence[str] | None, wants: readers.TableOptions) -> Table:
    """Read the table of a csv or tsv file; a row with more or fewer fields than the first is broken."""
    names, rows = readers.open_delimited(path, form, wants, named)
    headed = named is None and wants.header is None
    if len(set(names)) < len(names):
        fix = "give each its own name" + (readers.suggest_no_header(names, []) if headed else "")
        raise Error(f"two columns have one name: {readers.format_names(names)}", where=path, fix=fix)
    records = []
    for number, row in limit_rows(rows, path):
        if len(row) == len(names):
            records.append((number, dict(zip(names, row, strict=True))))
        elif row:
            wants.report_broken_row(f"a row has {len(row)} fields, {len(names)} are named", path, number)
    return Table(records, path, wants.changes, names, has_assumed_header=headed)


def read_json_rows(path: Path, wants: readers.TableOptions) -> Iterator[TableRow]:
    """Read the rows of JSON lines, of one list of records, or of SQuAD's form."""
    if readers.find_suffix(path) == ".json":
        whole = "".join(decode_chunks(wants.read_limited(path), wants.changes, wants.encoding, path))
        try:
            value = json.loads(whole, strict=False) if len(whole) < MAX_JSON_CHARS else None
        except (ValueError, RecursionError):
            value = None  # then it is lines, whose reader says what is wrong with which
        if isinstance(value, dict) and isinstance(value.get("data"), list):
            value = value["data"]
        if isinstance(value, list):
            wants.changes.lines += len(value)
            if value and isinstance(value[0], dict) and "paragraphs" in value[0]:
                yield from read_squad(value, path)
            else:
                yield from number_rows(value, None, path)
            return
    for number, value in readers.read_json_lines(path, wants):
        yield number, value if isinstance(value, dict) else {"text": value}


def read_squad(articles: list[JSONObject], where: object) -> Iterator[TableRow]:
    """Yield one row for each question of SQuAD's nested form (1.1 and 2.0), and of KorQuAD's, which is the same."""
    number = 0
    for article in articles:
        for paragraph in article.get("paragraphs", []):
            for item in paragraph.get("qas", []):
                number += 1
                item = {"id": item["guid"], **item} if "guid" in item else item  # KLUE-MRC
                lacking = [n for n in ("question", "id") if n not in item] + ["context"] * ("context" not in paragraph)
                if lacking:
                    raise Error(f"there is no {lacking[0]!r}", where=f"{where}, question {number}", fix="repair it")
                yield number, {"context": paragraph["context"], **item}


def split_source(source: object) -> tuple[object, object]:
    """Return the training part and the validation part, if any, of a source that has several (a DatasetDict)."""
    if not isinstance(source, Mapping) or "train" not in source:
        return source, None
    return source["train"], next((source[name] for name in ("validation", "valid", "dev") if name in source), None)


def read_python_table(source: object, header: Sequence[str] | None, changes: CleaningReport) -> Table:
    """Read the table of a list, a DataFrame (pandas or polars) or a dataset."""
    classes: dict[str, list[str]] = {}
    if isinstance(source, Mapping):
        names = readers.format_names(source)
        raise Error(f"this holds several parts: {names}", fix="pass one of them, such as data['train']")
    if hasattr(source, "iloc") and hasattr(source, "to_dict"):  # dynamic: pandas, which need not be installed
        rows = source.to_dict("records")
    elif hasattr(source, "to_dicts"):  # dynamic: polars, which need not be installed
        rows = source.to_dicts()
    else:
        for name, feature in (getattr(source, "features", None) or {}).items():  # dynamic: of a dataset of HF
            inner = getattr(feature, "feature", feature)  # dynamic: a feature of it, or of a list
            if not isinstance(inner, Mapping) and (labels := getattr(inner, "names", None)):  # dynamic: of a ClassLabel
                classes[name] = list(labels)
        if isinstance(source, str | bytes) or not isinstance(source, Iterable):
            raise Error(f"examples cannot be read from {type(source).__name__}", fix="give a path, rows or a dataset")
        rows = list(source)
    changes.lines += len(rows)
    return Table(flatten_labels(list(number_rows(rows, header, None))), None, changes, class_names=classes)


def number_rows(rows: Iterable[object], header: Sequence[str] | None, where: object) -> Iterator[TableRow]:
    """Yield rows as dictionaries: strings are texts, tuples get the names of `header`, or 0, 1 and so on."""
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
            raise Error(
                f"an example cannot be of type {type(row).__name__}", where=where, fix="give dictionaries or tuples"
            )
