"""Labelled examples out of any table: which column is what is looked at and said, and every row has one form.

classify, regress  text, other (or None), label: a name, a list of names, or a number
tag                words, tags
answer             id, question, context, answers (each text and start), possible
choose             text, other (or None), choices, label: the number of the right one
translate, summarise  text, target
lm                 text
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.readers import format_names
from ..errors import Error
from ..text.normalise import CHANGE_DESCRIPTIONS, CleaningReport, compose_and_count, scrub_text
from .column_roles import find_roles, flatten, is_list, is_missing, parse_number
from .example_tables import Table, read_table
from .tagging import OUTSIDE_TAGS

REPORTED_LOSSES = ("undecodable", "replaced", "skipped")  # losses that are told with what was understood
MAX_LABELS = 100_000  # different labels of a training set
MISSING_LABELS = ("", "-")  # labels of those that have none: an empty field, SNLI's mark


@dataclass(frozen=True)
class Examples:
    """Rows in one form, what they are for, what was understood, and the labels in order (of classify and tag)."""

    task: str
    rows: list[dict[str, Any]]
    summary: str
    labels: tuple[str, ...] = ()
    multilabel: bool = False  # a row may have several labels
    source_rows: tuple[int, ...] = ()  # where the rows stood, if they were taken out of others

    def __len__(self) -> int:
        return len(self.rows)


def read_examples(
    source: Any,
    task: str | None = None,
    columns: Mapping[str, Any] | Sequence[str] | str | None = None,
    *,
    needs_labels: bool = True,
    label_separator: str | None = None,
    limit: int | None = None,
    column: str | None = None,
    allow_plain_text: bool = True,
    **reading: Any,
) -> Examples:
    """The examples of a path, rows, a DataFrame or a dataset; the task is found by the columns if none is named.

    `columns` says what is what: {"text": "document"}, "text=document label=class"; a list names the columns of a table
    without names; a number counts columns from 0. `column` is short for the text alone, or two for a pair.
    `reading` is how files are read: encoding, skip, delimiter, header. A list under "label" makes one label of each
    column that is 1. `needs_labels=False` takes rows without labels too (their label is None); else they are left out
    and counted. `label_separator` parts several labels in one field. `allow_plain_text=False` refuses a table without
    labels, unless the task lm is named.
    """
    if limit is not None and limit < 1:
        raise Error(f"cannot take {limit} examples", fix="give a limit of 1 or more, or leave it out")
    given, names = parse_columns(columns)
    given = {**parse_text_column(column, task), **given}
    kind = task or ("tag" if {"words", "tags"} & set(given) else None)
    table = read_table(source, names, task=kind, column=column or next(iter(flatten(given.values())), None), **reading)
    if not table.rows:
        raise Error("there are no examples", where=table.where, fix="give at least one row")
    task, roles = (
        find_unlabelled_roles(table, task, given)
        if not needs_labels
        else find_roles(table, task, given, allow_plain_text)
    )
    reader = ExampleBuilder(table, task, roles, needs_labels, label_separator)
    rows = reader.build_rows(limit)
    if not rows:
        what = f"no row can be used: {reader.describe_skipped()}; the columns are {format_names(table.column_names)}"
        raise Error(what, where=table.where, fix="name them by hand, for example --columns text=COLUMN,label=COLUMN")
    labels = order_labels(rows, task, table.class_names.get(str(roles.get("tags" if task == "tag" else "label"))))
    several = task == "classify" and any(isinstance(row["label"], list) for row in rows)
    return Examples(task, rows, reader.describe(rows, labels), labels, several)


def parse_text_column(column: str | None, task: str | None) -> dict[str, str]:
    """The parts that --column names: the text (of tags the words), and with a comma its second side."""
    if column is None:
        return {}
    first, mark, second = column.partition(",")
    if not mark:
        return {"words" if task == "tag" else "text": first}
    return {"text": first, "target" if task in ("translate", "summarise") else "other": second}


def check_labels(examples: Examples) -> None:
    """Refuse labels that cannot be learnt: more than MAX_LABELS, or so many that most rows have one of their own."""
    count, rows = len(examples.labels), len(examples.rows)
    if count > MAX_LABELS or (count > 100 and 2 * count > rows):
        what = f"there are {count:,} different {'tags' if examples.task == 'tag' else 'labels'} in {rows:,} rows"
        shown = ", ".join(repr(label[:20]) for label in examples.labels[:3])
        fix = f"at most {MAX_LABELS:,} are learnt; name the right column: --columns label=COLUMN"
        raise Error(f"{what} ({shown} …)", where=examples.summary.partition(", ")[0], fix=fix)


def parse_columns(columns: Any) -> tuple[dict[str, Any], list[str] | None]:
    """What was said about columns: parts and their columns, or the names of all columns."""
    if isinstance(columns, str):
        pairs = [part.partition("=") for part in columns.replace(",", " ").split()]
        if odd := [name for name, mark, value in pairs if not mark or not value]:
            raise Error(f"{odd[0]!r} is no part=column", fix='say for example "text=document label=class"')
        found: dict[str, Any] = {}
        for name, _, value in pairs:  # a part that is named twice has several columns
            found[name] = [*flatten([found[name]]), value] if name in found else value
        return found, None
    if columns is None or isinstance(columns, Mapping):
        return dict(columns or {}), None
    return {}, [str(name) for name in columns]


def find_unlabelled_roles(table: Table, task: str | None, given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The columns where there may be no labels."""
    try:
        return find_roles(table, task, given)
    except Error:
        if task not in ("classify", "regress", "choose", "translate", "summarise"):
            raise
        part = "target" if task in ("translate", "summarise") else "label"
        bare = Table([(n, {**row, part: None}) for n, row in table.rows], table.where, table.changes)
        found, roles = find_roles(bare, task, {**given, part: part})
        return found, {name: column for name, column in roles.items() if name != part}


class ExampleBuilder:
    """Turns records into rows, and counts those that it leaves out."""

    def __init__(self, table: Table, task: str, roles: dict[str, Any], labelled: bool, between: str | None):
        self.table, self.task, self.roles, self.needs_labels, self.label_separator = (
            table,
            task,
            roles,
            labelled,
            between,
        )
        self.skip_counts: Counter[str] = Counter()
        self.changes: CleaningReport = table.changes
        column, label = roles.get("choices"), roles.get("label")
        zero = any(parse_number(row.get(str(label))) == 0 for _, row in table.rows)
        # WinoGrande calls option1 "1", COPA calls choice1 "0"
        self.choice_marks = (
            [] if zero or not is_list(column) else ["".join(filter(str.isdigit, n)) for n in column or ()]
        )

    def build_rows(self, limit: int | None) -> list[dict[str, Any]]:
        """The rows, up to `limit`."""
        make: Callable[[int, dict[str, Any]], dict[str, Any] | None] = getattr(self, ROW_BUILDERS[self.task])
        rows: list[dict[str, Any]] = []
        for place, record in self.table.rows:
            if limit is not None and len(rows) >= limit:
                break
            if (row := make(place, record)) is not None:
                rows.append(row)
        return rows

    def make_error(self, what: str, place: int) -> Error:
        """An error that names the row."""
        return Error(what, where=f"{self.table.where or 'the examples'}, row {place}", fix="repair it, or leave it out")

    def skip_row(self, why: str) -> dict[str, Any] | None:
        """Count a row that is left out, and give None for it."""
        self.skip_counts[why] += 1
        return None

    def describe_skipped(self) -> str:
        """What was left out, in words."""
        return ", ".join(f"{count:,} {why}" for why, count in self.skip_counts.items()) or "none was left out"

    def get_text(self, part: str, record: dict[str, Any], place: int) -> str:
        """A text: clean and in NFC; a missing one is empty."""
        column = self.roles.get(part)
        value = record.get(str(column)) if column is not None else None
        if isinstance(value, Mapping) and self.task in ("translate", "summarise"):  # {"en": …, "ko": …}
            sides = list(value.values())
            if len(sides) != 2:
                raise self.make_error(f"there are {len(sides)} languages in {column!r}, not two", place)
            value = sides[part == "target"]
        if is_missing(value):
            return ""
        if not isinstance(value, str):
            if isinstance(value, int | float):
                return str(value)
            raise self.make_error(f"the {part} in {column!r} is no text but {type(value).__name__}", place)
        return self.clean_text(value)

    def clean_text(self, value: str) -> str:
        """One text without odd characters, in NFC."""
        return compose_and_count(scrub_text(value, self.changes), self.changes)

    def get_label(self, record: dict[str, Any], place: int) -> Any:
        """A name, a list of names or a number; None where there is none."""
        column = self.roles.get("label")
        if column is None:
            return None
        if isinstance(column, list | tuple):
            return [name for name in column if is_true(record.get(name))]
        value: Any = record.get(column)
        if is_list(value):
            return [self.to_label_name(v, column) for v in value if not is_missing(v)]
        if is_missing(value) or str(value).strip() in MISSING_LABELS:
            return None
        if isinstance(value, Mapping | bytes):
            raise self.make_error(f"the label in {column!r} is no name but {type(value).__name__}", place)
        if value == -1 and column in self.table.class_names:  # GLUE's test sets
            return None
        if self.task == "regress":
            if (found := parse_number(value)) is None:
                raise self.make_error(f"the label {str(value)[:40]!r} is no number", place)
            return found
        if self.label_separator is not None:
            return [self.clean_text(part.strip()) for part in str(value).split(self.label_separator) if part.strip()]
        return self.to_label_name(value, column)

    def to_label_name(self, value: Any, column: str) -> str:
        """A label as a name: 1.0 (a table with gaps) is "1", a dataset's number its name."""
        if (names := self.table.class_names.get(column)) and isinstance(value, int) and 0 <= value < len(names):
            return names[value]
        found = parse_number(value)
        if found is not None and not isinstance(value, bool) and found == round(found) and not str(value).isdecimal():
            return str(round(found))
        return self.clean_text(str(value).strip())

    def make_labelled_text(self, place: int, record: dict[str, Any]) -> dict[str, Any] | None:
        """A row of classify or regress."""
        text, label = self.get_text("text", record, place), self.get_label(record, place)
        other = self.get_text("other", record, place) if "other" in self.roles else None
        if not text.strip() or (other is not None and not other.strip()):
            return self.skip_row("without text")
        if label is None and self.needs_labels:
            return self.skip_row("without label")
        return {"text": text, "other": other, "label": label}

    def make_tagged_words(self, place: int, record: dict[str, Any]) -> dict[str, Any] | None:
        """A row of tag; words without a character are left out with their tags."""
        given: list[Any] = [record.get(self.roles[part]) for part in ("words", "tags")]
        if not all(is_list(value) or isinstance(value, str) for value in given):
            raise self.make_error("words and tags are lists, or stand between spaces", place)
        words, tags = (value.split() if isinstance(value, str) else list(value) for value in given)
        if len(words) != len(tags):
            raise self.make_error(f"there are {len(words)} words and {len(tags)} tags", place)
        names = [self.to_label_name(tag, self.roles["tags"]) for tag in tags]
        pairs = [(w, t) for w, t in zip((self.clean_text(str(w)) for w in words), names, strict=True) if w.strip()]
        self.skip_counts["words of spaces alone"] += len(words) - len(pairs)
        self.skip_counts += Counter()  # zeros go
        if not pairs:
            return self.skip_row("without words")
        return {"words": [w for w, _ in pairs], "tags": [t for _, t in pairs]}

    def make_question(self, place: int, record: dict[str, Any]) -> dict[str, Any] | None:
        """A row of answer: SQuAD's nested answers, a dataset's two lists, or one answer and its start."""
        question, context = self.get_text("question", record, place), self.get_text("context", record, place)
        if not question.strip() or not context.strip():
            return self.skip_row("without question or context")
        raw = str(record[self.roles["context"]])
        listed = parse_answers(record.get(self.roles.get("answers", "")), record.get(self.roles.get("start", "")))
        found = [self.locate_answer(text, start, raw, context) for text, start in listed]
        answers = [answer for answer in found if answer is not None]
        if found and not answers and self.needs_labels:
            return self.skip_row("whose answer is not in the text")
        if not listed and self.needs_labels and "answers" not in self.roles:
            raise self.make_error("there is no answer", place)
        possible = not is_true(record.get(self.roles.get("possible", ""))) and bool(answers or not self.needs_labels)
        name = str(record.get(self.roles.get("id", ""), place))
        return {"id": name, "question": question, "context": context, "answers": answers, "possible": possible}

    def locate_answer(self, text: str, start: int | None, raw: str, context: str) -> dict[str, Any] | None:
        """An answer and where it begins in the clean text: where it was said, else the nearest place."""
        text = self.clean_text(text)
        if not text.strip():
            return None
        near = (
            0 if start is None else len(compose_and_count(scrub_text(raw[:start], CleaningReport()), CleaningReport()))
        )
        if start is not None and context.startswith(text, near):
            return {"text": text, "start": near}
        before, behind = context.rfind(text, 0, near + len(text)), context.find(text, near)
        places = [p for p in (before, behind) if p >= 0]
        return {"text": text, "start": min(places, key=lambda p: abs(p - near))} if places else None

    def make_choice(self, place: int, record: dict[str, Any]) -> dict[str, Any] | None:
        """A row of choose; the label is a number from 0, a letter, or the right choice itself."""
        column = self.roles["choices"]
        value: Any = [record.get(n) for n in column] if is_list(column) else record.get(column)
        marks: list[str] = []
        if isinstance(value, Mapping):  # ARC: {"text": [...], "label": ["A", ...]}
            marks = [str(mark) for mark in value.get("label", [])]
            value = value.get("text")
        if not is_list(value) or len(list(value)) < 2:
            raise self.make_error("there are no two choices", place)
        if gap := next((i for i, v in enumerate(value, 1) if is_missing(v)), None):
            raise self.make_error(f"choice {gap} is missing", place)
        choices = [self.clean_text(str(v)) for v in value]
        label = record.get(self.roles["label"]) if "label" in self.roles else None
        if is_missing(label) or str(label).strip() in (*MISSING_LABELS, "-1"):
            if self.needs_labels:
                return self.skip_row("without label")
            right = None
        elif (right := find_choice_index(label, choices, marks or self.choice_marks)) is None:
            raise self.make_error(f"the label {str(label)[:40]!r} is none of {len(choices)} choices", place)
        other = self.get_text("other", record, place) if "other" in self.roles else None
        return {"text": self.get_text("text", record, place), "other": other, "choices": choices, "label": right}

    def make_pair(self, place: int, record: dict[str, Any]) -> dict[str, Any] | None:
        """A row of translate or summarise."""
        text = self.get_text("text", record, place)
        target = self.get_text("target", record, place) if "target" in self.roles else None
        if not text.strip() or (self.needs_labels and not (target or "").strip()):
            return self.skip_row("without text or target")
        return {"text": text, "target": target}

    def make_plain_text(self, place: int, record: dict[str, Any]) -> dict[str, Any] | None:
        """A row of lm."""
        text = self.get_text("text", record, place)
        return {"text": text} if text.strip() else self.skip_row("without text")

    def describe(self, rows: list[dict[str, Any]], labels: tuple[str, ...]) -> str:
        """What was understood, in one line."""
        parts = [f"{part} = column {' + '.join(map(repr, flatten([column])))}" for part, column in self.roles.items()]
        kinds = f": {len(labels):,} {'tags' if self.task == 'tag' else 'labels'}" if labels else ""
        if self.task == "regress" and (values := [row["label"] for row in rows if row["label"] is not None]):
            kinds = f": {min(values):g} to {max(values):g}"
        left = f"; left out: {self.describe_skipped()}" if self.skip_counts else ""
        more = "".join(f"; {text}" for text in (*describe_losses(self.changes), *self.changes.notes))
        return f"{self.task}: {', '.join(parts)}{kinds}, {len(rows):,} examples{left}{more}"


def describe_losses(changes: CleaningReport) -> list[str]:
    """What of a file was left out, in words: bytes that are no text, rows that are broken."""
    return [f"{count:,} {CHANGE_DESCRIPTIONS[name]}" for name in REPORTED_LOSSES if (count := getattr(changes, name))]


ROW_BUILDERS = {
    "classify": "make_labelled_text", "regress": "make_labelled_text", "tag": "make_tagged_words",
    "answer": "make_question", "choose": "make_choice", "translate": "make_pair", "summarise": "make_pair",
    "lm": "make_plain_text",
}  # fmt: skip


def is_true(value: Any) -> bool:
    """A 1 of a column that says whether a label holds."""
    return value is not None and value == value and str(value).strip().lower() not in ("", "0", "0.0", "false", "no")


def parse_answers(value: Any, start: Any) -> list[tuple[str, int | None]]:
    """Answers and where they begin, out of the forms that they have."""
    if isinstance(value, Mapping):
        sides: tuple[Any, Any] = value.get("text"), value.get("answer_start")
        texts, starts = (list(v) if is_list(v) else [v] for v in sides)
        return [
            (str(t), parse_position(starts[i]) if i < len(starts) else None)
            for i, t in enumerate(texts)
            if not is_missing(t)
        ]
    if is_list(value):
        found = [v if isinstance(v, Mapping) else {"text": v} for v in value]
        pairs = [(v.get("text"), v.get("answer_start", v.get("start"))) for v in found]
        return [(str(text), parse_position(at)) for text, at in pairs if not is_missing(text)]
    return [] if is_missing(value) else [(str(value), parse_position(start))]


def parse_position(value: Any) -> int | None:
    """A place in a text, if it is one."""
    found = parse_number(value)
    return None if found is None or found < 0 else int(found)


def find_choice_index(label: Any, choices: list[str], marks: list[str]) -> int | None:
    """Which choice a label means."""
    word = str(label).strip()
    if word in marks:
        return marks.index(word)
    if (value := parse_number(label)) is not None and value == round(value) and 0 <= value < len(choices):
        return int(value)
    if word in choices:
        return choices.index(word)
    letter = len(word) == 1 and word.isascii() and word.isalpha() and ord(word.upper()) - 65 < len(choices)
    return ord(word.upper()) - 65 if letter else None


def order_labels(rows: Iterable[dict[str, Any]], task: str, names: list[str] | None) -> tuple[str, ...]:
    """The labels in order: a dataset's own, else by number or by letters; O is the first of tags."""
    if task not in ("classify", "tag"):
        return ()
    values = {v for row in rows for v in flatten([row["tags"] if task == "tag" else row["label"]]) if v is not None}
    if names and values <= set(names):
        return tuple(names)
    outside = OUTSIDE_TAGS if task == "tag" else ("O",)
    order = lambda v: (v not in outside, not v.isdecimal(), int(v) if v.isdecimal() else 0, v)  # noqa: E731
    return tuple(sorted(values, key=order))


def make_label_prefix(row: Mapping[str, Any], label_names: Mapping[str, str]) -> str:
    """Return what a label-conditional model reads before a text: the names of its labels and a colon."""
    names = [label_names.get(label, label) for label in flatten([row["label"]])]
    return f"{', '.join(names) or '-'}: "
