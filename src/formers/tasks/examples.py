"""Step 2 of a task's data: a `Table` becomes `Examples`.

`build_examples(table)` recognises which column is what, and which task that makes, and gives every row one form:

classify, regress  text, other (or None), label: a name, a list of names, or a number
tag                words, tags
answer             id, question, context, answers (each text and start), possible
choose             text, other (or None), choices, label: the number of the right one
translate, summarise  text, target
lm                 text

`read_examples(source)` takes steps 1 (example_tables.py) and 2 at once; encoding.py takes over from there.
"""

from __future__ import annotations

import itertools
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, Unpack, cast

from ..config import Settings, count_noun
from ..data.readers import NUMBER_CHARACTERS, format_names, resolve_column
from ..errors import Error
from ..text.normalise import CleaningReport, compose_and_count, compose_nfc, scrub_text
from .example_tables import COLUMN_NAMES, EXACT_LABEL_NAMES, ID_COLUMN, PAIR_NAMES, FileOptions, Table, read_table
from .tagging import OUTSIDE_TAGS, find_scheme

# The parts that a task needs, and those that it may have beside them.
TASK_COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "classify": (("text", "label"), ("other",)), "regress": (("text", "label"), ("other",)),
    "tag": (("words", "tags"), ()), "answer": (("question", "context"), ("answers", "id", "start", "possible")),
    "choose": (("choices", "label"), ("text", "other")), "translate": (("text", "target"), ()),
    "summarise": (("text", "target"), ()), "lm": (("text",), ()),
}  # fmt: skip

Row = Settings  # a row of a table by its columns, or an example in the form of its task
Columns = Mapping[str, object] | Sequence[str] | str | None  # which column is what (`read_examples`)
Roles = Settings  # part of an example (text, label, …) → its column, or several
CHOICE_COLUMN = re.compile(r"(?:choice|option|ending|answer|sol|alternative)_?\d+", re.IGNORECASE)
LANGUAGE_COLUMN = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
MAX_LABELS = 100_000  # different labels of a training set
MISSING_LABELS = ("", "-")  # labels of those that have none: an empty field, SNLI's mark


@dataclass(frozen=True)
class Examples:
    """Rows in the form of a task, a summary of them, and the labels in order (of classify and tag)."""

    task: str
    rows: list[Row]
    summary: str
    labels: tuple[str, ...] = ()
    multilabel: bool = False  # a row may have several labels
    source_rows: tuple[int, ...] = ()  # where the rows stood, if they were taken out of others

    def __len__(self) -> int:
        return len(self.rows)


def read_examples(
    source: object, task: str | None = None, columns: Columns = None, *,
    needs_labels: bool = True, label_separator: str | None = None, limit: int | None = None,
    allow_plain_text: bool = True, **reading: Unpack[FileOptions],
) -> Examples:  # fmt: skip
    """Read the examples of a path, rows, a DataFrame or a dataset; the task is found by the columns if none is named.

    `columns` says what is what: {"text": "document"}, "text=document label=class"; a list names the columns of a table
    without names; a number counts columns from 0. `reading` is how files are read: encoding, skip, delimiter, header,
    and `column`, which is short for the text alone, or two for a pair. A list under "label" makes one label of each
    column that is 1. `needs_labels=False` takes rows without labels too (their label is None); else they are left out
    and counted. `label_separator` parts several labels in one field. `allow_plain_text=False` refuses a table without
    labels, unless the task lm is named.
    """
    if limit is not None and limit < 1:
        raise Error(f"cannot take {limit} examples", fix="give a limit of 1 or more, or leave it out")
    columns_by_role, names = parse_columns(columns)
    columns_by_role = {**parse_text_column(reading.get("column"), task), **columns_by_role}
    kind = task or ("tag" if {"words", "tags"} & set(columns_by_role) else None)
    reading["column"] = reading.get("column") or next(iter(flatten_names(columns_by_role.values())), None)
    table = read_table(source, names, task=kind, **reading)
    return build_examples(
        table, task, columns_by_role, needs_labels=needs_labels, label_separator=label_separator, limit=limit,
        allow_plain_text=allow_plain_text,
    )  # fmt: skip


def build_examples(
    table: Table, task: str | None = None, given: Mapping[str, object] | None = None, *, needs_labels: bool = True,
    label_separator: str | None = None, limit: int | None = None, allow_plain_text: bool = True,
) -> Examples:  # fmt: skip
    """Build the examples of a table; options are those of `read_examples`, with columns `given` by part."""
    if not table.rows:
        raise Error("there are no examples", where=table.where, fix="give at least one row")
    if needs_labels:
        task, roles = find_roles(table, task, given or {}, allow_plain_text)
    else:
        task, roles = find_unlabelled_roles(table, task, given or {})
    builder = ExampleBuilder(table, task, roles, needs_labels, label_separator)
    if not (rows := builder.build_rows(limit)):
        what = f"no row can be used: {builder.describe_skipped()}; the columns are {format_names(table.column_names)}"
        raise Error(what, where=table.where, fix="name them by hand, for example --columns text=COLUMN,label=COLUMN")
    labels = order_labels(rows, task, table.class_names.get(str(roles.get("tags" if task == "tag" else "label"))))
    several = task == "classify" and any(isinstance(row["label"], list) for row in rows)
    return Examples(task, rows, builder.describe(rows, labels), labels, several)


def parse_text_column(column: str | None, task: str | None) -> dict[str, str]:
    """Return the parts that --column names: the text (of tags the words), and with a comma its second side."""
    if column is None:
        return {}
    first, mark, second = column.partition(",")
    if not mark:
        return {"words" if task == "tag" else "text": first}
    return {"text": first, "target" if task in ("translate", "summarise") else "other": second}


def check_labels(examples: Examples) -> None:
    """Refuse labels that cannot be learned: more than MAX_LABELS, or so many that most rows have one of their own."""
    count, rows = len(examples.labels), len(examples.rows)
    if count > MAX_LABELS or (count > 100 and 2 * count > rows):
        what = f"there are {count:,} different {'tags' if examples.task == 'tag' else 'labels'} in {rows:,} rows"
        shown = ", ".join(repr(label[:20]) for label in examples.labels[:3])
        fix = f"at most {MAX_LABELS:,} can be learned; name the right column: --columns label=COLUMN"
        raise Error(f"{what} ({shown} …)", where=examples.summary.partition(", ")[0], fix=fix)


def parse_columns(columns: Columns) -> tuple[Settings, list[str] | None]:
    """Parse `columns`: parts and their columns, or the names of all columns."""
    if isinstance(columns, str):
        pairs = [part.partition("=") for part in columns.replace(",", " ").split()]
        if malformed := [name for name, mark, value in pairs if not mark or not value]:
            fix = 'say for example "text=document label=class"'
            raise Error(f"{malformed[0]!r} is not of the form part=column", fix=fix)
        roles: Settings = {}
        for name, _, value in pairs:  # a part that is named twice has several columns
            roles[name] = [*flatten_names([roles[name]]), value] if name in roles else value
        return roles, None
    if columns is None or isinstance(columns, Mapping):
        return dict(columns or {}), None
    return {}, [str(name) for name in columns]


def find_unlabelled_roles(table: Table, task: str | None, given: Mapping[str, object]) -> tuple[str, Roles]:
    """Find the columns where there may be no labels."""
    try:
        return find_roles(table, task, given)
    except Error:
        if task not in ("classify", "regress", "choose", "translate", "summarise"):
            raise
        part = "target" if task in ("translate", "summarise") else "label"
        bare = Table([(n, {**row, part: None}) for n, row in table.rows], table.where, table.changes)
        task_name, roles = find_roles(bare, task, {**given, part: part})
        return task_name, {name: column for name, column in roles.items() if name != part}


class ExampleBuilder:
    """Turns the rows of a table into examples, and counts those that it leaves out. A method makes the example of one
    row, given its number and its columns; None if it is left out."""

    def __init__(self, table: Table, task: str, roles: Roles, needs_labels: bool, label_separator: str | None):
        self.table, self.task, self.roles = table, task, roles
        self.needs_labels, self.label_separator = needs_labels, label_separator
        self.skip_counts: Counter[str] = Counter()
        self.changes: CleaningReport = table.changes
        column, label = roles.get("choices"), roles.get("label")
        zero = any(parse_number(row.get(str(label))) == 0 for _, row in table.rows)
        # WinoGrande calls option1 "1", COPA calls choice1 "0"
        numbered = column if is_list(column) and not zero else ()
        self.choice_marks = ["".join(filter(str.isdigit, name)) for name in numbered or ()]

    def build_rows(self, limit: int | None) -> list[Row]:
        """Build the examples, up to `limit`."""
        rows = (EXAMPLE_BUILDERS[self.task](self, place, record) for place, record in self.table.rows)
        return list(itertools.islice((row for row in rows if row is not None), limit))

    def make_error(self, what: str, place: int) -> Error:
        """Return an error that names the row."""
        return Error(what, where=f"{self.table.where or 'the examples'}, row {place}", fix="repair it, or leave it out")

    def skip_row(self, why: str) -> Row | None:
        """Count a row that is left out, and give None for it."""
        self.skip_counts[why] += 1
        return None

    def describe_skipped(self) -> str:
        """Describe what was left out."""
        return ", ".join(f"{count:,} {why}" for why, count in self.skip_counts.items()) or "none was left out"

    def get_text(self, part: str, record: Row, place: int) -> str:
        """Return a text, clean and in NFC; a missing one is empty."""
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
            raise self.make_error(f"the {part} in {column!r} is not text but {type(value).__name__}", place)
        return self.clean_text(value)

    def clean_text(self, value: str) -> str:
        """Return one text without control characters, in NFC."""
        return compose_and_count(scrub_text(value, self.changes), self.changes)

    def get_label(self, record: Row, place: int) -> str | float | list[str] | None:
        """Return a name, a list of names or a number; None where there is none."""
        if (column := self.roles.get("label")) is None:
            return None
        if isinstance(column, list | tuple):
            return [name for name in column if is_true(record.get(name))]
        value = record.get(column)
        if is_list(value):
            return [self.to_label_name(v, column) for v in value if not is_missing(v)]
        if is_missing(value) or str(value).strip() in MISSING_LABELS:
            return None
        if isinstance(value, Mapping | bytes):
            raise self.make_error(f"the label in {column!r} is not a name but {type(value).__name__}", place)
        if value == -1 and column in self.table.class_names:  # GLUE's test sets
            return None
        if self.task == "regress":
            if (number := parse_number(value)) is None:
                raise self.make_error(f"the label {str(value)[:40]!r} is not a number", place)
            return number
        if self.label_separator is not None:
            return [self.clean_text(part.strip()) for part in str(value).split(self.label_separator) if part.strip()]
        return self.to_label_name(value, column)

    def to_label_name(self, value: object, column: str) -> str:
        """Return a label as a name: 1.0 (a table with gaps) is "1", a dataset's number its name."""
        if (names := self.table.class_names.get(column)) and isinstance(value, int) and 0 <= value < len(names):
            return names[value]
        number = parse_number(value)
        if (
            number is not None
            and not isinstance(value, bool)
            and number == round(number)
            and not str(value).isdecimal()
        ):
            return str(round(number))
        return self.clean_text(str(value).strip())

    def make_labelled_text(self, place: int, record: Row) -> Row | None:
        """Make a row of classify or regress."""
        text, label = self.get_text("text", record, place), self.get_label(record, place)
        other = self.get_text("other", record, place) if "other" in self.roles else None
        if not text.strip() or (other is not None and not other.strip()):
            return self.skip_row("without text")
        if label is None and self.needs_labels:
            return self.skip_row("without label")
        return {"text": text, "other": other, "label": label}

    def make_tagged_words(self, place: int, record: Row) -> Row | None:
        """Make a row of tag; words without a character are left out with their tags."""
        words, tags = (self.split_words(record.get(self.roles[part]), place) for part in ("words", "tags"))
        if len(words) != len(tags):
            raise self.make_error(
                f"there are {count_noun(len(words), 'word')} and {count_noun(len(tags), 'tag')}", place
            )
        names = [self.to_label_name(tag, self.roles["tags"]) for tag in tags]
        pairs = [(w, t) for w, t in zip((self.clean_text(str(w)) for w in words), names, strict=True) if w.strip()]
        self.skip_counts["words of spaces alone"] += len(words) - len(pairs)
        self.skip_counts += Counter()  # zeros go
        if not pairs:
            return self.skip_row("without words")
        return {"words": [w for w, _ in pairs], "tags": [t for _, t in pairs]}

    def split_words(self, value: object, place: int) -> list[object]:
        """Return the words or tags of a cell: a list, or a text in which spaces separate them."""
        if not isinstance(value, str) and not is_list(value):
            raise self.make_error("words and tags are lists, or stand between spaces", place)
        return [*value.split()] if isinstance(value, str) else list(value)

    def make_question(self, place: int, record: Row) -> Row | None:
        """Make a row of answer: SQuAD's nested answers, a dataset's two lists, or one answer and its start."""
        question, context = self.get_text("question", record, place), self.get_text("context", record, place)
        if not question.strip() or not context.strip():
            return self.skip_row("without question or context")
        raw = str(record[self.roles["context"]])
        listed = parse_answers(record.get(self.roles.get("answers", "")), record.get(self.roles.get("start", "")))
        located_answers = [self.locate_answer(text, start, raw, context) for text, start in listed]
        answers = [answer for answer in located_answers if answer is not None]
        if located_answers and not answers and self.needs_labels:
            return self.skip_row("whose answer is not in the text")
        if not listed and self.needs_labels and "answers" not in self.roles:
            raise self.make_error("there is no answer", place)
        possible = not is_true(record.get(self.roles.get("possible", ""))) and bool(answers or not self.needs_labels)
        name = str(record.get(self.roles.get("id", ""), place))
        return {"id": name, "question": question, "context": context, "answers": answers, "possible": possible}

    def locate_answer(self, text: str, start: int | None, raw: str, context: str) -> Settings | None:
        """Return an answer and where it begins in the clean text: at its given start, else at the nearest one."""
        text = self.clean_text(text)
        if not text.strip():
            return None
        near = 0 if start is None else len(compose_nfc(scrub_text(raw[:start], CleaningReport())))
        if start is not None and context.startswith(text, near):
            return {"text": text, "start": near}
        before, after = context.rfind(text, 0, near + len(text)), context.find(text, near)
        places = [p for p in (before, after) if p >= 0]
        return {"text": text, "start": min(places, key=lambda p: abs(p - near))} if places else None

    def make_choice(self, place: int, record: Row) -> Row | None:
        """Make a row of choose; the label is a number from 0, a letter, or the right choice itself."""
        column = self.roles["choices"]
        value: object = [record.get(n) for n in column] if is_list(column) else record.get(column)
        marks: list[str] = []
        if isinstance(value, Mapping):  # ARC: {"text": [...], "label": ["A", ...]}
            marks, value = [str(mark) for mark in value.get("label", [])], value.get("text")
        if not is_list(value) or len(list(value)) < 2:
            raise self.make_error("there are fewer than two choices", place)
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

    def make_pair(self, place: int, record: Row) -> Row | None:
        """Make a row of translate or summarise."""
        text = self.get_text("text", record, place)
        target = self.get_text("target", record, place) if "target" in self.roles else None
        if not text.strip() or (self.needs_labels and not (target or "").strip()):
            return self.skip_row("without text or target")
        return {"text": text, "target": target}

    def make_plain_text(self, place: int, record: Row) -> Row | None:
        """Make a row of lm."""
        text = self.get_text("text", record, place)
        return {"text": text} if text.strip() else self.skip_row("without text")

    def describe(self, rows: list[Row], labels: tuple[str, ...]) -> str:
        """Summarise the columns, labels and counts in one line."""
        parts = [
            f"{part} = column {' + '.join(map(repr, flatten_names([column])))}" for part, column in self.roles.items()
        ]
        kinds = f": {count_noun(len(labels), 'tag' if self.task == 'tag' else 'label')}" if labels else ""
        if self.task == "regress" and (values := [row["label"] for row in rows if row["label"] is not None]):
            kinds = f": {min(values):g} to {max(values):g}"
        left = f"; left out: {self.describe_skipped()}" if self.skip_counts else ""
        more = "".join(f"; {text}" for text in (*self.changes.describe_losses(), *self.changes.notes))
        return f"{self.task}: {', '.join(parts)}{kinds}, {count_noun(len(rows), 'example')}{left}{more}"


EXAMPLE_BUILDERS: dict[str, Callable[[ExampleBuilder, int, Row], Row | None]] = {
    "classify": ExampleBuilder.make_labelled_text, "regress": ExampleBuilder.make_labelled_text,
    "tag": ExampleBuilder.make_tagged_words, "answer": ExampleBuilder.make_question,
    "choose": ExampleBuilder.make_choice, "translate": ExampleBuilder.make_pair, "summarise": ExampleBuilder.make_pair,
    "lm": ExampleBuilder.make_plain_text,
}  # fmt: skip


def is_true(value: object) -> bool:
    """Return whether a value is the 1 of a column that says whether a label holds."""
    return value is not None and value == value and str(value).strip().lower() not in ("", "0", "0.0", "false", "no")


def parse_answers(value: object, start: object) -> list[tuple[str, int | None]]:
    """Parse answers and where they begin, out of the forms that they have."""
    if isinstance(value, Mapping):
        sides = value.get("text"), value.get("answer_start")
        texts, starts = (list(v) if is_list(v) else [v] for v in sides)
        pairs = list(itertools.zip_longest(texts, starts[: len(texts)]))
    elif is_list(value):
        answers = [v if isinstance(v, Mapping) else {"text": v} for v in value]
        pairs = [(v.get("text"), v.get("answer_start", v.get("start"))) for v in answers]
    else:
        pairs = [(value, start)]
    return [(str(text), parse_position(at)) for text, at in pairs if not is_missing(text)]


def parse_position(value: object) -> int | None:
    """Parse a place in a text, if it is one."""
    number = parse_number(value)
    return None if number is None or number < 0 else int(number)


def find_choice_index(label: object, choices: list[str], marks: list[str]) -> int | None:
    """Find the number of the choice that a label names."""
    word = str(label).strip()
    if word in marks:
        return marks.index(word)
    if (value := parse_number(label)) is not None and value == round(value) and 0 <= value < len(choices):
        return int(value)
    if word in choices:
        return choices.index(word)
    letter = len(word) == 1 and word.isascii() and word.isalpha() and ord(word.upper()) - 65 < len(choices)
    return ord(word.upper()) - 65 if letter else None


def order_labels(rows: Iterable[Row], task: str, names: list[str] | None) -> tuple[str, ...]:
    """Return the labels in order: a dataset's own, else by number or by letters; O is the first of tags."""
    if task not in ("classify", "tag"):
        return ()
    values = {
        v for row in rows for v in flatten_names([row["tags"] if task == "tag" else row["label"]]) if v is not None
    }
    if names and values <= set(names):
        return tuple(names)
    outside = OUTSIDE_TAGS if task == "tag" else ("O",)
    order = lambda v: (v not in outside, not v.isdecimal(), int(v) if v.isdecimal() else 0, v)  # noqa: E731
    return tuple(sorted(values, key=order))


def make_label_prefix(row: Mapping[str, object], label_names: Mapping[str, str]) -> str:
    """Return what a label-conditional model reads before a text: the names of its labels and a colon."""
    return f"{', '.join(label_names.get(label, label) for label in flatten_names([row['label']])) or '-'}: "


def find_roles(
    table: Table, task: str | None, columns_by_role: Mapping[str, object], plain_text: bool = True
) -> tuple[str, Roles]:
    """Find the task and its columns by part; `columns_by_role` is set by hand: names of columns, or their numbers from
    0. Without `plain_text`, the task lm is taken only if it is named."""
    columns_by_role = {part: resolve_columns(column, table.column_names) for part, column in columns_by_role.items()}
    check_columns(table, task, columns_by_role)
    preview = TablePreview(
        table, [name for name in table.column_names if name not in set(flatten_names(columns_by_role.values()))]
    )
    for name in (task,) if task else (name for name in FINDERS if plain_text or name != "lm"):
        if not set(columns_by_role) <= set(flatten_names(TASK_COLUMNS[name])):
            continue
        rest: dict[str, Callable[[], Roles]] = {  # if the label is given, find the text, and so on
            "label": lambda: find_texts(preview, []), "target": lambda: find_source(preview),
            "tags": lambda: drop_missing(words=preview.find_first("words")),
            "words": lambda: drop_missing(tags=preview.find_first("tags")),
        }  # fmt: skip
        alone = next(
            (find() for part, find in rest.items() if part in columns_by_role and "text" not in columns_by_role), {}
        )
        roles = {**FINDERS[name](preview), **alone, **columns_by_role}
        if all(part in roles for part in TASK_COLUMNS[name][0]):
            return name, roles
    if task == "lm" and set(text_roles := find_unlabelled(preview)) == {"text"}:  # then labels do not matter
        return task, text_roles
    if task in ("classify", "regress") and (label := preview.find_first("score", "label")):
        check_label_values(preview.get_values(label), label, task, table.where)
    task = task or ("tag" if "words" in table.column_names else None)
    what = f"which columns are {' and '.join(TASK_COLUMNS[task][0])}" if task else "what are these columns for"
    known = ",".join(f"{part}=COLUMN" for part in TASK_COLUMNS[task or "classify"][0])
    if task is None and not plain_text:
        what, known = describe_missing(preview, known)
    fix = f"name them, for example --columns {known}, or columns={{...}}; a number counts columns from 0"
    if table.is_plain_text and task != "lm":
        fix = "this is plain text: give a csv, tsv or jsonl file, or say what parts its columns: --delimiter tab"
    if task is None and not plain_text:
        fix += "; plain text without labels: --task lm"
    raise Error(f"{what}? There are {format_names(table.column_names)}", where=table.where, fix=fix + table.header_hint)


def drop_missing(**roles: str | list[str] | None) -> Roles:
    """Return roles without those that no column plays."""
    return {part: column for part, column in roles.items() if column}


def resolve_columns(column: object, names: list[str]) -> Any:  # dynamic: what was given, where no column has its name
    """Replace the number of a column, or each of a list, by its name; what is not a column stays as it is."""
    if isinstance(column, list | tuple):
        return [resolve_columns(one, names) for one in column]
    return resolve_column(str(column), names) or column


def describe_missing(preview: TablePreview, known: str) -> tuple[str, str]:
    """Describe a table that fits no task, and which columns to name where only one choice is left."""
    texts = find_lm(preview)
    rest = [name for name in preview.column_names if name not in texts.values() and not ID_COLUMN.fullmatch(name)]
    if not texts:
        return "what are these columns for", known
    label = rest[0] if len(rest) == 1 else "COLUMN"
    return "which column has the labels", shlex.quote(f"text={texts['text']},label={label}")


def check_label_values(values: Iterable[object], label: str, task: str, where: object) -> None:
    """Refuse a column of labels whose name fits a task and whose values do not."""
    if task == "classify" and has_fractions(values):
        raise Error(f"the labels in {label!r} are numbers with fractions", where=where, fix="take the task regress")
    not_number = next((v for v in values if not is_missing(v) and parse_number(v) is None), None)
    if task == "regress" and not_number is not None:
        raise Error(f"the label {str(not_number)[:40]!r} in {label!r} is not a number", where=where, fix="repair it")


def check_columns(table: Table, task: str | None, given: Mapping[str, object]) -> None:
    """Refuse parts and columns that are not there."""
    if task is not None and task not in TASK_COLUMNS:
        raise Error(f"there is no task {task!r}", fix="choose " + ", ".join(TASK_COLUMNS))
    needs = [TASK_COLUMNS[task]] if task else TASK_COLUMNS.values()
    parts = {part for need in needs for part in flatten_names(need)}
    for part, column in given.items():
        if part not in parts:
            raise Error(f"{task or 'no task'} has no part {part!r}", fix="choose " + ", ".join(sorted(parts)))
        for name in flatten_names([column]):
            if name not in table.column_names:
                what = f"there is no column {name!r}; there are {format_names(table.column_names)}"
                raise Error(what, where=table.where, fix="choose one of these" + table.header_hint)


def flatten_names(values: Iterable[Any]) -> list[str]:  # dynamic: names and lists of names
    """Return the names of a list of names and lists of names."""
    return [n for value in values for n in (value if isinstance(value, list | tuple) else [value])]


class TablePreview:
    """The first rows of a table, for the finders."""

    def __init__(self, table: Table, names: list[str]):
        self.column_names, self.rows = names, [row for _, row in table.rows[:200]]
        self.by_lower = {name.lower(): name for name in reversed(names)}
        self.class_names = table.class_names

    def find_first(self, *parts: str, exclude: Iterable[str] = ()) -> str | None:
        """Find the first column that by its name (COLUMN_NAMES) holds one of some parts."""
        return next((name for name in self.list_known(*parts) if name not in set(exclude)), None)

    def list_known(self, *parts: str) -> list[str]:
        """List the columns that by their names hold one of some parts, the likeliest first."""
        return [self.by_lower[name] for part in parts for name in COLUMN_NAMES[part] if name in self.by_lower]

    def list_wordy(self) -> list[str]:
        """List the columns with words in them, except identifiers."""
        return [name for name in self.column_names if not ID_COLUMN.fullmatch(name) and self.has_words(name)]

    def get_values(self, name: str) -> list[Any]:  # dynamic: cells of a table
        """Return the values of a column, without missing ones."""
        return [row[name] for row in self.rows if row.get(name) is not None]

    def has_words(self, name: str) -> bool:
        """Return whether there are words in a column."""
        return any(isinstance(v, str) and not NUMBER_CHARACTERS.issuperset(v) for v in self.get_values(name))

    def has_running_text(self, name: str) -> bool:
        """Return whether there is running text in a column: most values differ, and have several words."""
        texts = [v for v in self.get_values(name) if isinstance(v, str)]
        several = sum(" " in v.strip() for v in texts)
        return len(texts) > 0 and 2 * several >= len(texts) and (len(set(texts)) > len(texts) / 2)

    def has_lists(self, name: str | None) -> bool:
        """Return whether there are lists in a column."""
        return name is not None and bool(v := self.get_values(name)) and all(is_list(x) for x in v)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:  # dynamic: cells of a table
    """Return whether a value is a list, a tuple or an array, not a string."""
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1  # dynamic: an array of any library


def find_texts(preview: TablePreview, exclude: Iterable[str]) -> Roles:
    """Find the text, or the two texts of a pair."""
    taken = set(exclude)
    for names in PAIR_NAMES:
        columns = [preview.by_lower[name] for name in names if name in preview.by_lower]
        is_free = len(columns) == 2 and not taken.intersection(columns)
        if is_free and not all(map(is_missing, preview.get_values(columns[1]))):
            return {"text": columns[0], "other": columns[1]}
    if text := preview.find_first("text", exclude=taken):
        return {"text": text}
    wordy = [name for name in preview.list_wordy() if name not in taken]
    return {"text": wordy[0]} if len(wordy) == 1 else {}


def find_unlabelled(preview: TablePreview) -> Roles:
    """Find the text or the pair beside whatever looks like a label."""
    return find_texts(preview, preview.list_known("label", "score"))


def find_classify(preview: TablePreview) -> Roles:
    """Find a label that is a name, a number without fraction, or a list of such."""
    known = [name for name in preview.list_known("label") if not preview.has_running_text(name)]
    label = known[0] if len(known) == 1 or (known and known[0].lower() in EXACT_LABEL_NAMES) else None
    if label is None and preview.column_names == ["0", "1"]:
        label = "1" if not preview.has_running_text("1") and not preview.has_lists("0") else None
    if label is None and preview.column_names == ["0", "1", "2"]:
        return {"text": "0", "other": "1", "label": "2"} if not has_fractions(preview.get_values("2")) else {}
    if label is None or (has_fractions(preview.get_values(label)) and label not in preview.class_names):
        return {}
    return {**find_texts(preview, [label]), "label": label}


def find_regress(preview: TablePreview) -> Roles:
    """Find a label that is a number."""
    tuples = {"text": "0", "other": "1"} if preview.column_names == ["0", "1", "2"] else {"text": "0"}
    last = preview.column_names[-1] if preview.column_names in (["0", "1"], ["0", "1", "2"]) else None
    label = preview.find_first("score", "label") or last
    values = [] if label is None else preview.get_values(label)
    if label is None or not values or any(parse_number(v) is None for v in values if not is_missing(v)):
        return {}
    return {**(tuples if label.isdigit() else find_texts(preview, [label])), "label": label}


def parse_number(value: object) -> float | None:
    """Parse a value as a number, if it is one: finite, and no list."""
    try:
        number = float(cast(str, value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def has_fractions(values: Iterable[object]) -> bool:
    """Return whether all values are numbers and one of them is not whole."""
    numbers = [parse_number(v) for v in values if not is_missing(v)]
    return bool(numbers) and all(v is not None for v in numbers) and any(v != round(v) for v in numbers if v)


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN or an empty field."""
    return value is None or (isinstance(value, float) and value != value) or (isinstance(value, str) and not value)


def find_tag(preview: TablePreview) -> Roles:
    """Find words and their tags, in lists, or between spaces where as many tags of entities stand beside words."""
    tuples = preview.column_names == ["0", "1"]
    words, tags = ("0", "1") if tuples else (preview.find_first("words"), preview.find_first("tags"))
    if preview.has_lists(words) and preview.has_lists(tags):
        return {"words": words, "tags": tags}
    for tags in preview.column_names:
        beside = [split_tokens(value) for value in preview.get_values(tags)]
        flat_ = [tag for row in beside for tag in row]
        if len(flat_) == len(beside) or find_scheme(flat_) not in ("prefix", "suffix"):
            continue
        for words in preview.column_names:
            if words != tags and list(map(len, map(split_tokens, preview.get_values(words)))) == list(map(len, beside)):
                return {"words": words, "tags": tags}
    return {}


def split_tokens(value: object) -> list[str]:
    """Return a list of words or tags, which may be one string with spaces between them."""
    return [str(v) for v in value] if is_list(value) else value.split() if isinstance(value, str) else []


def find_answer(preview: TablePreview) -> Roles:
    """Find a question, the text with its answer, and the answers."""
    question = preview.find_first("question")
    context = preview.find_first("context", exclude=[question or ""])
    column = preview.find_first("answers")
    if not question or not context or (column is None and preview.find_first("label")):
        return {}
    return drop_missing(
        question=question, context=context, answers=column, id=preview.find_first("id"),
        start=preview.find_first("start"), possible=preview.find_first("possible"),
    )  # fmt: skip


def find_choose(preview: TablePreview) -> Roles:
    """Find choices in a list or in columns that are numbered, and which is right."""
    several = [n for n in preview.column_names if CHOICE_COLUMN.fullmatch(n)]
    choices = preview.find_first("choices") or (several if len(several) > 1 else None)
    label = preview.find_first("choice label")
    if not choices or not label:
        return {}
    return drop_missing(choices=choices, label=label, text=preview.find_first("stem", exclude=flatten_names([choices])))


def find_translate(preview: TablePreview) -> Roles:
    """Find two languages, or a source and a target."""
    both = preview.by_lower.get("translation")
    if both is not None and all(isinstance(value, Mapping) for value in preview.get_values(both)):
        return {"text": both, "target": both}
    codes = [name for name in preview.list_wordy() if LANGUAGE_COLUMN.fullmatch(name)]
    if len(codes) == 2 and "text" not in codes and len([n for n in preview.column_names if preview.has_words(n)]) == 2:
        return {"text": codes[0], "target": codes[1]}
    is_bare_pair = preview.column_names == ["0", "1"] and preview.has_words("1")
    target = preview.find_first("target") or ("1" if is_bare_pair else None)
    text = preview.find_first("source", exclude=[target or ""]) or ("0" if target == "1" else None)
    return {"text": text, "target": target} if target and text and preview.has_words(target) else {}


def find_source(preview: TablePreview) -> Roles:
    """Find the text beside a target."""
    wordy = preview.list_wordy()
    return drop_missing(text=preview.find_first("source") or (wordy[0] if len(wordy) == 1 else None))


def find_summarise(preview: TablePreview) -> Roles:
    """Find a text and its summary."""
    target = preview.find_first("summary") or ("1" if preview.column_names == ["0", "1"] else None)
    text = preview.find_first("text", exclude=[target or ""]) or ("0" if target == "1" else None)
    return {"text": text, "target": target} if target and text and preview.has_words(target) else {}


def find_lm(preview: TablePreview) -> Roles:
    """Find a text, and nothing that could be its label."""
    if preview.find_first("label", "score"):
        return {}
    wordy, named = preview.list_wordy(), preview.find_first("plain text")
    return {"text": named or wordy[0]} if len(wordy) == 1 or named else {}


FINDERS = {
    "answer": find_answer, "tag": find_tag, "choose": find_choose, "classify": find_classify,
    "regress": find_regress, "translate": find_translate, "summarise": find_summarise, "lm": find_lm,
}  # fmt: skip
