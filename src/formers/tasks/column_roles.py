"""Which column of a table plays which part, and which task that makes."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ..data.readers import NUMBER_CHARACTERS, TEXT_COLUMN_NAMES, format_names, resolve_column
from ..errors import Error
from .tagging import find_scheme

TASK_NAMES = ("classify", "regress", "tag", "answer", "choose", "translate", "summarise", "lm")
# The parts that a task needs, and those that it may have beside them.
TASK_COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "classify": (("text", "label"), ("other",)),
    "regress": (("text", "label"), ("other",)),
    "tag": (("words", "tags"), ()),
    "answer": (("question", "context"), ("answers", "id", "start", "possible")),
    "choose": (("choices", "label"), ("text", "other")),
    "translate": (("text", "target"), ()),
    "summarise": (("text", "target"), ()),
    "lm": (("text",), ()),
}
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
EXACT_LABEL_NAMES = ("label", "labels", "class", "gold_label")  # these are meant, whatever stands beside them
SCORE_NAMES = (
    "labels.real-label", "labels.label", "label.real-label", "label.label", "score", "similarity", "similarity_score",
    "relatedness_score", "value", "점수", "유사도",
)  # fmt: skip
WORD_NAMES = ("words", "tokens", "word", "token")
TAG_NAMES = ("tags", "ner_tags", "pos_tags", "ner", "labels", "ner_labels", "tag", "pos")
QUESTION_NAMES, CONTEXT_NAMES = (
    ("question", "query", "질문"),
    ("context", "passage", "paragraph", "document", "text", "지문"),
)
ANSWER_NAMES = ("answers", "answer", "답", "정답")
CHOICE_NAMES = ("choices", "options", "endings", "candidates", "보기")
CHOICE_COLUMN = re.compile(r"(?:choice|option|ending|answer|sol|alternative)_?\d+", re.IGNORECASE)
STEM_NAMES = ("text", "ctx", "question", "premise", "context", "article", "startphrase", "goal", "sent1", "질문")
SUMMARY_NAMES = ("summary", "highlights", "abstract", "headline", "subject", "title", "요약", "제목")
SOURCE_NAMES = (*TEXT_COLUMN_NAMES, "source", "src", "input", "question", "prompt")
TARGET_NAMES = ("target", "tgt", "output", "answer", "response", "completion", "reply")
LANGUAGE_COLUMN = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
ANY_TEXT_NAMES = (
    *TEXT_COLUMN_NAMES,
    "tweet",
    "utterance",
    "message",
    "question",
    "title",
    "premise",
    "data",
    "문장",
    "문서",
    "리뷰",
)
ID_COLUMN = re.compile(r"(?:.*_)?(?:id|idx|index|guid|pairid)|unnamed: \d+|", re.IGNORECASE)


def are_column_names(fields: Iterable[str]) -> bool:
    """Whether all fields of a row are names that columns have, so that the row is a header."""
    pairs = {name for pair in PAIR_NAMES for name in pair}
    known = {
        *ANY_TEXT_NAMES,
        *LABEL_NAMES,
        *SCORE_NAMES,
        *WORD_NAMES,
        *TAG_NAMES,
        *ANSWER_NAMES,
        *CONTEXT_NAMES,
        *SUMMARY_NAMES,
        *SOURCE_NAMES,
        *TARGET_NAMES,
        *pairs,
    }
    return all(name.strip().lower() in known or ID_COLUMN.fullmatch(name.strip()) for name in fields)


def find_roles(
    table: Any, task: str | None, given: Mapping[str, Any], plain_text: bool = True
) -> tuple[str, dict[str, Any]]:
    """The task and its columns by part; `given` is what was said by hand: names of columns, or their numbers from 0.
    Without `plain_text`, the task lm is taken only if it is named."""
    given = {part: resolve_columns(column, table.column_names) for part, column in given.items()}
    check_columns(table, task, given)
    left = [name for name in table.column_names if name not in set(flatten(given.values()))]
    look = TablePreview(table, left)
    for name in (task,) if task else (name for name in FINDERS if plain_text or name != "lm"):
        if not set(given) <= set(flatten(TASK_COLUMNS[name])):
            continue
        rest = {  # where the label is said, the text is looked for, and so on
            "label": lambda: find_texts(look, []), "target": lambda: find_source(look),
            "tags": lambda: {k: v for k, v in {"words": look.find_first(WORD_NAMES)}.items() if v},
            "words": lambda: {k: v for k, v in {"tags": look.find_first(TAG_NAMES)}.items() if v},
        }  # fmt: skip
        alone = next((find() for part, find in rest.items() if part in given and "text" not in given), {})
        roles = {**FINDERS[name](look), **alone, **given}
        if all(part in roles for part in TASK_COLUMNS[name][0]):
            return name, roles
    if task == "lm" and set(found := find_unlabelled(look)) == {"text"}:  # where it is said, labels do not matter
        return task, found
    if task in ("classify", "regress") and (label := look.find_first((*SCORE_NAMES, *LABEL_NAMES))):
        check_label_values(look.get_values(label), label, task, table.where)
    task = task or ("tag" if "words" in table.column_names else None)
    what = f"which columns are {' and '.join(TASK_COLUMNS[task][0])}" if task else "what are these columns for"
    known = ",".join(f"{part}=COLUMN" for part in TASK_COLUMNS[task or "classify"][0])
    if task is None and not plain_text:
        what, known = describe_missing(look, known)
    fix = f"name them, for example --columns {known}, or columns={{...}}; a number counts columns from 0"
    if table.is_plain_text and task != "lm":
        fix = "this is plain text: give a csv, tsv or jsonl file, or say what parts its columns: --delimiter tab"
    if task is None and not plain_text:
        fix += "; plain text without labels: --task lm"
    raise Error(f"{what}? There are {format_names(table.column_names)}", where=table.where, fix=fix + table.header_hint)


def resolve_columns(column: Any, names: list[str]) -> Any:
    """A column by its name where a number was given; a list of them likewise. What is not there stays as it is."""
    if isinstance(column, list | tuple):
        return [resolve_columns(one, names) for one in column]
    return resolve_column(str(column), names) or column


def describe_missing(look: TablePreview, known: str) -> tuple[str, str]:
    """What to say of a table that fits no task, and which columns to name where only one choice is left."""
    texts = find_lm(look)
    rest = [name for name in look.column_names if name not in texts.values() and not ID_COLUMN.fullmatch(name)]
    if not texts:
        return "what are these columns for", known
    label = rest[0] if len(rest) == 1 else "COLUMN"
    return "which column has the labels", shlex.quote(f"text={texts['text']},label={label}")


def check_label_values(values: Iterable[Any], label: str, task: str, where: object) -> None:
    """Refuse a column of labels whose name fits a task and whose values do not."""
    if task == "classify" and has_fractions(values):
        raise Error(f"the labels in {label!r} are numbers with fractions", where=where, fix="take the task regress")
    odd = next((v for v in values if not is_missing(v) and parse_number(v) is None), None)
    if task == "regress" and odd is not None:
        raise Error(f"the label {str(odd)[:40]!r} in {label!r} is no number", where=where, fix="repair it")


def check_columns(table: Any, task: str | None, given: Mapping[str, Any]) -> None:
    """Refuse parts and columns that are not there."""
    if task is not None and task not in TASK_NAMES:
        raise Error(f"there is no task {task!r}", fix="choose " + ", ".join(TASK_NAMES))
    parts = (
        set(flatten(TASK_COLUMNS[task])) if task else {part for need in TASK_COLUMNS.values() for part in flatten(need)}
    )
    for part, column in given.items():
        if part not in parts:
            raise Error(f"{task or 'no task'} has no part {part!r}", fix="choose " + ", ".join(sorted(parts)))
        for name in flatten([column]):
            if name not in table.column_names:
                what = f"there is no column {name!r}; there are {format_names(table.column_names)}"
                raise Error(what, where=table.where, fix="choose one of these" + table.header_hint)


def flatten(values: Iterable[Any]) -> list[str]:
    """Names out of a list of names and lists of names."""
    return [n for value in values for n in (value if isinstance(value, list | tuple) else [value])]


class TablePreview:
    """A look at the first rows of a table, for the finders."""

    def __init__(self, table: Any, names: list[str]):
        self.column_names, self.rows = names, [row for _, row in table.rows[:200]]
        self.by_lower = {name.lower(): name for name in reversed(names)}
        self.class_names = table.class_names

    def find_first(self, known: Iterable[str], exclude: Iterable[str] = ()) -> str | None:
        """The first known name that is there."""
        found = (self.by_lower[n] for n in known if n in self.by_lower)
        return next((name for name in found if name not in set(exclude)), None)

    def get_values(self, name: str) -> list[Any]:
        """What stands in a column."""
        return [row[name] for row in self.rows if row.get(name) is not None]

    def has_words(self, name: str) -> bool:
        """There are words in a column."""
        return any(isinstance(v, str) and not NUMBER_CHARACTERS.issuperset(v) for v in self.get_values(name))

    def has_running_text(self, name: str) -> bool:
        """There is running text in a column: most values differ, and have several words."""
        texts = [v for v in self.get_values(name) if isinstance(v, str)]
        several = sum(" " in v.strip() for v in texts)
        return len(texts) > 0 and 2 * several >= len(texts) and (len(set(texts)) > len(texts) / 2)

    def has_lists(self, name: str | None) -> bool:
        """There are lists in a column."""
        return name is not None and bool(v := self.get_values(name)) and all(is_list(x) for x in v)


def is_list(value: Any) -> bool:
    """A list, a tuple or an array, not a string."""
    return isinstance(value, list | tuple) or (hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1)


def find_texts(look: TablePreview, exclude: Iterable[str]) -> dict[str, Any]:
    """The text, or the two texts of a pair."""
    taken = set(exclude)
    for one, two in PAIR_NAMES:
        there = one in look.by_lower and two in look.by_lower and not {look.by_lower[one], look.by_lower[two]} & taken
        if there and not all(map(is_missing, look.get_values(look.by_lower[two]))):
            return {"text": look.by_lower[one], "other": look.by_lower[two]}
    if text := look.find_first(ANY_TEXT_NAMES, taken):
        return {"text": text}
    wordy = [n for n in look.column_names if n not in taken and not ID_COLUMN.fullmatch(n) and look.has_words(n)]
    return {"text": wordy[0]} if len(wordy) == 1 else {}


def find_unlabelled(look: TablePreview) -> dict[str, Any]:
    """The text or the pair beside whatever looks like a label."""
    return find_texts(look, [look.by_lower[name] for name in (*LABEL_NAMES, *SCORE_NAMES) if name in look.by_lower])


def find_classify(look: TablePreview) -> dict[str, Any]:
    """A label that is a name, a number without fraction, or a list of such."""
    known = [
        look.by_lower[n] for n in LABEL_NAMES if n in look.by_lower and not look.has_running_text(look.by_lower[n])
    ]
    label = known[0] if len(known) == 1 or (known and known[0].lower() in EXACT_LABEL_NAMES) else None
    if label is None and look.column_names == ["0", "1"]:
        label = "1" if not look.has_running_text("1") and not look.has_lists("0") else None
    if label is None and look.column_names == ["0", "1", "2"]:
        return {"text": "0", "other": "1", "label": "2"} if not has_fractions(look.get_values("2")) else {}
    if label is None or (has_fractions(look.get_values(label)) and label not in look.class_names):
        return {}
    return {**find_texts(look, [label]), "label": label}


def find_regress(look: TablePreview) -> dict[str, Any]:
    """A label that is a number."""
    tuples = {"text": "0", "other": "1"} if look.column_names == ["0", "1", "2"] else {"text": "0"}
    label = look.find_first((*SCORE_NAMES, *LABEL_NAMES)) or (
        look.column_names[-1] if look.column_names in (["0", "1"], ["0", "1", "2"]) else None
    )
    if (
        label is None
        or not (values := look.get_values(label))
        or any(parse_number(v) is None for v in values if not is_missing(v))
    ):
        return {}
    return {**(tuples if label.isdigit() else find_texts(look, [label])), "label": label}


def parse_number(value: Any) -> float | None:
    """A value as a number, if it is one: finite, and no list."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def has_fractions(values: Iterable[Any]) -> bool:
    """All values are numbers, and one of them is no whole number."""
    found = [parse_number(v) for v in values if not is_missing(v)]
    return bool(found) and all(v is not None for v in found) and any(v != round(v) for v in found if v)


def is_missing(value: Any) -> bool:
    """None, NaN or an empty field."""
    return value is None or (isinstance(value, float) and value != value) or (isinstance(value, str) and not value)


def find_tag(look: TablePreview) -> dict[str, Any]:
    """Words and their tags, in lists, or between spaces where as many tags of entities stand beside words."""
    tuples = look.column_names == ["0", "1"]
    words, tags = ("0", "1") if tuples else (look.find_first(WORD_NAMES), look.find_first(TAG_NAMES))
    if look.has_lists(words) and look.has_lists(tags):
        return {"words": words, "tags": tags}
    for tags in look.column_names:
        beside = [split_tokens(value) for value in look.get_values(tags)]
        flat_ = [tag for row in beside for tag in row]
        if len(flat_) == len(beside) or find_scheme(flat_) not in ("prefix", "suffix"):
            continue
        for words in look.column_names:
            if words != tags and list(map(len, map(split_tokens, look.get_values(words)))) == list(map(len, beside)):
                return {"words": words, "tags": tags}
    return {}


def split_tokens(value: Any) -> list[str]:
    """A list of words or tags, which may be one string with spaces between them."""
    return [str(v) for v in value] if is_list(value) else value.split() if isinstance(value, str) else []


def find_answer(look: TablePreview) -> dict[str, Any]:
    """A question, the text with its answer, and the answers."""
    question = look.find_first(QUESTION_NAMES)
    context = look.find_first(CONTEXT_NAMES, [question or ""])
    found = look.find_first(ANSWER_NAMES)
    if not question or not context or (found is None and look.find_first(LABEL_NAMES)):
        return {}
    parts = {
        "answers": found,
        "id": look.find_first(("id", "guid")),
        "start": look.find_first(("answer_start", "start")),
    }
    parts["possible"] = look.find_first(("is_impossible",))
    return {"question": question, "context": context, **{k: v for k, v in parts.items() if v}}


def find_choose(look: TablePreview) -> dict[str, Any]:
    """Choices in a list or in columns that are numbered, and which is right."""
    several = [n for n in look.column_names if CHOICE_COLUMN.fullmatch(n)]
    choices = look.find_first(CHOICE_NAMES) or (several if len(several) > 1 else None)
    label = look.find_first((*LABEL_NAMES, "answer", "answerkey", "gold", "정답"))
    if not choices or not label:
        return {}
    stem = look.find_first(STEM_NAMES, flatten([choices]))
    found = {"choices": choices, "label": label}
    return {**found, **({"text": stem} if stem else {})}


def find_translate(look: TablePreview) -> dict[str, Any]:
    """Two languages, or a source and a target."""
    if "translation" in look.by_lower and all(
        isinstance(v, Mapping) for v in look.get_values(look.by_lower["translation"])
    ):
        return {"text": look.by_lower["translation"], "target": look.by_lower["translation"]}
    codes = [
        n
        for n in look.column_names
        if LANGUAGE_COLUMN.fullmatch(n) and look.has_words(n) and not ID_COLUMN.fullmatch(n)
    ]
    if (
        len(codes) == 2
        and len(codes) == len([n for n in look.column_names if look.has_words(n)])
        and "text" not in codes
    ):
        return {"text": codes[0], "target": codes[1]}
    target = look.find_first(TARGET_NAMES) or ("1" if look.column_names == ["0", "1"] and look.has_words("1") else None)
    text = look.find_first(SOURCE_NAMES, [target or ""]) or ("0" if target == "1" else None)
    return {"text": text, "target": target} if target and text and look.has_words(target) else {}


def find_source(look: TablePreview) -> dict[str, Any]:
    """The text beside a target."""
    wordy = [n for n in look.column_names if not ID_COLUMN.fullmatch(n) and look.has_words(n)]
    text = look.find_first(SOURCE_NAMES) or (wordy[0] if len(wordy) == 1 else None)
    return {"text": text} if text else {}


def find_summarise(look: TablePreview) -> dict[str, Any]:
    """A text and its summary."""
    target = look.find_first((*SUMMARY_NAMES, "target")) or ("1" if look.column_names == ["0", "1"] else None)
    text = look.find_first(ANY_TEXT_NAMES, [target or ""]) or ("0" if target == "1" else None)
    return {"text": text, "target": target} if target and text and look.has_words(target) else {}


def find_lm(look: TablePreview) -> dict[str, Any]:
    """A text, and nothing that could be its label."""
    if look.find_first((*LABEL_NAMES, *SCORE_NAMES)):
        return {}
    wordy = [n for n in look.column_names if not ID_COLUMN.fullmatch(n) and look.has_words(n)]
    named = look.find_first(TEXT_COLUMN_NAMES)
    return {"text": named or wordy[0]} if len(wordy) == 1 or named else {}


FINDERS = {
    "answer": find_answer, "tag": find_tag, "choose": find_choose, "classify": find_classify,
    "regress": find_regress, "translate": find_translate, "summarise": find_summarise, "lm": find_lm,
}  # fmt: skip
