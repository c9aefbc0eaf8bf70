"""Which column of a table plays which part, and which task that makes."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ..data.tables import NAMES, NUMBER, by_number, listed
from ..errors import Error
from .entities import find_scheme

TASKS = ("classify", "regress", "tag", "answer", "choose", "translate", "summarise", "lm")
# The parts that a task needs, and those that it may have beside them.
NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "classify": (("text", "label"), ("other",)),
    "regress": (("text", "label"), ("other",)),
    "tag": (("words", "tags"), ()),
    "answer": (("question", "context"), ("answers", "id", "start", "possible")),
    "choose": (("choices", "label"), ("text", "other")),
    "translate": (("text", "target"), ()),
    "summarise": (("text", "target"), ()),
    "lm": (("text",), ()),
}
PAIRS = (
    ("a", "b"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"),
    ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text1", "text2"), ("question", "sentence"),
    ("question", "passage"), ("query", "passage"), ("query", "text"), ("text", "other"),
    ("sen1", "sen2"), ("문장1", "문장2"),
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "category", "gold_label", "sentiment", "intent", "emotion", "topic", "rating", "stars",
    "y", "target", "레이블", "라벨", "분류", "감정", "등급", "평점", "평가",
)  # fmt: skip
PLAIN = ("label", "labels", "class", "gold_label")  # these are meant, whatever stands beside them
SCORES = (
    "labels.real-label", "labels.label", "label.real-label", "label.label", "score", "similarity", "similarity_score",
    "relatedness_score", "value", "점수", "유사도",
)  # fmt: skip
WORDS = ("words", "tokens", "word", "token")
TAGS = ("tags", "ner_tags", "pos_tags", "ner", "labels", "ner_labels", "tag", "pos")
QUESTIONS, CONTEXTS = ("question", "query", "질문"), ("context", "passage", "paragraph", "document", "text", "지문")
ANSWERS = ("answers", "answer", "답", "정답")
CHOICES = ("choices", "options", "endings", "candidates", "보기")
CHOICE = re.compile(r"(?:choice|option|ending|answer|sol|alternative)_?\d+", re.IGNORECASE)
STEMS = ("text", "ctx", "question", "premise", "context", "article", "startphrase", "goal", "sent1", "질문")
SUMMARIES = ("summary", "highlights", "abstract", "headline", "subject", "title", "요약", "제목")
SOURCES = (*NAMES, "source", "src", "input", "question", "prompt")
TARGETS = ("target", "tgt", "output", "answer", "response", "completion", "reply")
LANGUAGE = re.compile(r"[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")
TEXTS = (*NAMES, "tweet", "utterance", "message", "question", "title", "premise", "data", "문장", "문서", "리뷰")
IDS = re.compile(r"(?:.*_)?(?:id|idx|index|guid|pairid)|unnamed: \d+|", re.IGNORECASE)


def are_names(fields: Iterable[str]) -> bool:
    """Whether all fields of a row are names that columns have, so that the row is a header."""
    pairs = {name for pair in PAIRS for name in pair}
    known = {*TEXTS, *LABELS, *SCORES, *WORDS, *TAGS, *ANSWERS, *CONTEXTS, *SUMMARIES, *SOURCES, *TARGETS, *pairs}
    return all(name.strip().lower() in known or IDS.fullmatch(name.strip()) for name in fields)


def find_roles(
    table: Any, task: str | None, given: Mapping[str, Any], plain_text: bool = True
) -> tuple[str, dict[str, Any]]:
    """The task and its columns by part; `given` is what was said by hand: names of columns, or their numbers from 0.
    Without `plain_text`, the task lm is taken only if it is named."""
    given = {part: resolved(column, table.names) for part, column in given.items()}
    check_given(table, task, given)
    left = [name for name in table.names if name not in set(flat(given.values()))]
    look = Look(table, left)
    for name in (task,) if task else (name for name in FINDERS if plain_text or name != "lm"):
        if not set(given) <= set(flat(NEEDS[name])):
            continue
        rest = {  # where the label is said, the text is looked for, and so on
            "label": lambda: texts_of(look, []), "target": lambda: source(look),
            "tags": lambda: {k: v for k, v in {"words": look.first(WORDS)}.items() if v},
            "words": lambda: {k: v for k, v in {"tags": look.first(TAGS)}.items() if v},
        }  # fmt: skip
        alone = next((find() for part, find in rest.items() if part in given and "text" not in given), {})
        roles = {**FINDERS[name](look), **alone, **given}
        if all(part in roles for part in NEEDS[name][0]):
            return name, roles
    if task == "lm" and set(found := unlabelled(look)) == {"text"}:  # where it is said, labels do not matter
        return task, found
    if task in ("classify", "regress") and (label := look.first((*SCORES, *LABELS))):
        check_values(look.values(label), label, task, table.where)
    task = task or ("tag" if "words" in table.names else None)
    what = f"which columns are {' and '.join(NEEDS[task][0])}" if task else "what are these columns for"
    known = ",".join(f"{part}=COLUMN" for part in NEEDS[task or "classify"][0])
    if task is None and not plain_text:
        what, known = what_is_missing(look, known)
    fix = f"name them, for example --columns {known}, or columns={{...}}; a number counts columns from 0"
    if table.plain and task != "lm":
        fix = "this is plain text: give a csv, tsv or jsonl file, or say what parts its columns: --delimiter tab"
    if task is None and not plain_text:
        fix += "; plain text without labels: --task lm"
    raise Error(f"{what}? There are {listed(table.names)}", where=table.where, fix=fix + table.header_hint)


def resolved(column: Any, names: list[str]) -> Any:
    """A column by its name where a number was given; a list of them likewise. What is not there stays as it is."""
    if isinstance(column, list | tuple):
        return [resolved(one, names) for one in column]
    return by_number(str(column), names) or column


def what_is_missing(look: Look, known: str) -> tuple[str, str]:
    """What to say of a table that fits no task, and which columns to name where only one choice is left."""
    texts = lm(look)
    rest = [name for name in look.names if name not in texts.values() and not IDS.fullmatch(name)]
    if not texts:
        return "what are these columns for", known
    label = rest[0] if len(rest) == 1 else "COLUMN"
    return "which column has the labels", shlex.quote(f"text={texts['text']},label={label}")


def check_values(values: Iterable[Any], label: str, task: str, where: object) -> None:
    """Refuse a column of labels whose name fits a task and whose values do not."""
    if task == "classify" and fractions(values):
        raise Error(f"the labels in {label!r} are numbers with fractions", where=where, fix="take the task regress")
    odd = next((v for v in values if not missing(v) and number(v) is None), None)
    if task == "regress" and odd is not None:
        raise Error(f"the label {str(odd)[:40]!r} in {label!r} is no number", where=where, fix="repair it")


def check_given(table: Any, task: str | None, given: Mapping[str, Any]) -> None:
    """Refuse parts and columns that are not there."""
    if task is not None and task not in TASKS:
        raise Error(f"there is no task {task!r}", fix="choose " + ", ".join(TASKS))
    parts = set(flat(NEEDS[task])) if task else {part for need in NEEDS.values() for part in flat(need)}
    for part, column in given.items():
        if part not in parts:
            raise Error(f"{task or 'no task'} has no part {part!r}", fix="choose " + ", ".join(sorted(parts)))
        for name in flat([column]):
            if name not in table.names:
                what = f"there is no column {name!r}; there are {listed(table.names)}"
                raise Error(what, where=table.where, fix="choose one of these" + table.header_hint)


def flat(values: Iterable[Any]) -> list[str]:
    """Names out of a list of names and lists of names."""
    return [n for value in values for n in (value if isinstance(value, list | tuple) else [value])]


class Look:
    """A look at the first rows of a table, for the finders."""

    def __init__(self, table: Any, names: list[str]):
        self.names, self.rows = names, [row for _, row in table.rows[:200]]
        self.lower = {name.lower(): name for name in reversed(names)}
        self.numbered = table.classes

    def first(self, known: Iterable[str], but: Iterable[str] = ()) -> str | None:
        """The first known name that is there."""
        found = (self.lower[n] for n in known if n in self.lower)
        return next((name for name in found if name not in set(but)), None)

    def values(self, name: str) -> list[Any]:
        """What stands in a column."""
        return [row[name] for row in self.rows if row.get(name) is not None]

    def wordy(self, name: str) -> bool:
        """There are words in a column."""
        return any(isinstance(v, str) and not NUMBER.issuperset(v) for v in self.values(name))

    def running(self, name: str) -> bool:
        """There is running text in a column: most values differ, and have several words."""
        texts = [v for v in self.values(name) if isinstance(v, str)]
        several = sum(" " in v.strip() for v in texts)
        return len(texts) > 0 and 2 * several >= len(texts) and (len(set(texts)) > len(texts) / 2)

    def lists(self, name: str | None) -> bool:
        """There are lists in a column."""
        return name is not None and bool(v := self.values(name)) and all(is_list(x) for x in v)


def is_list(value: Any) -> bool:
    """A list, a tuple or an array, not a string."""
    return isinstance(value, list | tuple) or (hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1)


def texts_of(look: Look, but: Iterable[str]) -> dict[str, Any]:
    """The text, or the two texts of a pair."""
    taken = set(but)
    for one, two in PAIRS:
        there = one in look.lower and two in look.lower and not {look.lower[one], look.lower[two]} & taken
        if there and not all(map(missing, look.values(look.lower[two]))):
            return {"text": look.lower[one], "other": look.lower[two]}
    if text := look.first(TEXTS, taken):
        return {"text": text}
    wordy = [n for n in look.names if n not in taken and not IDS.fullmatch(n) and look.wordy(n)]
    return {"text": wordy[0]} if len(wordy) == 1 else {}


def unlabelled(look: Look) -> dict[str, Any]:
    """The text or the pair beside whatever looks like a label."""
    return texts_of(look, [look.lower[name] for name in (*LABELS, *SCORES) if name in look.lower])


def classify(look: Look) -> dict[str, Any]:
    """A label that is a name, a number without fraction, or a list of such."""
    known = [look.lower[n] for n in LABELS if n in look.lower and not look.running(look.lower[n])]
    label = known[0] if len(known) == 1 or (known and known[0].lower() in PLAIN) else None
    if label is None and look.names == ["0", "1"]:
        label = "1" if not look.running("1") and not look.lists("0") else None
    if label is None and look.names == ["0", "1", "2"]:
        return {"text": "0", "other": "1", "label": "2"} if not fractions(look.values("2")) else {}
    if label is None or (fractions(look.values(label)) and label not in look.numbered):
        return {}
    return {**texts_of(look, [label]), "label": label}


def regress(look: Look) -> dict[str, Any]:
    """A label that is a number."""
    tuples = {"text": "0", "other": "1"} if look.names == ["0", "1", "2"] else {"text": "0"}
    label = look.first((*SCORES, *LABELS)) or (look.names[-1] if look.names in (["0", "1"], ["0", "1", "2"]) else None)
    if label is None or not (values := look.values(label)) or any(number(v) is None for v in values if not missing(v)):
        return {}
    return {**(tuples if label.isdigit() else texts_of(look, [label])), "label": label}


def number(value: Any) -> float | None:
    """A value as a number, if it is one: finite, and no list."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def fractions(values: Iterable[Any]) -> bool:
    """All values are numbers, and one of them is no whole number."""
    found = [number(v) for v in values if not missing(v)]
    return bool(found) and all(v is not None for v in found) and any(v != round(v) for v in found if v)


def missing(value: Any) -> bool:
    """None, NaN or an empty field."""
    return value is None or (isinstance(value, float) and value != value) or (isinstance(value, str) and not value)


def tag(look: Look) -> dict[str, Any]:
    """Words and their tags, in lists, or between spaces where as many tags of entities stand beside words."""
    tuples = look.names == ["0", "1"]
    words, tags = ("0", "1") if tuples else (look.first(WORDS), look.first(TAGS))
    if look.lists(words) and look.lists(tags):
        return {"words": words, "tags": tags}
    for tags in look.names:
        beside = [tokens(value) for value in look.values(tags)]
        flat_ = [tag for row in beside for tag in row]
        if len(flat_) == len(beside) or find_scheme(flat_) not in ("prefix", "suffix"):
            continue
        for words in look.names:
            if words != tags and list(map(len, map(tokens, look.values(words)))) == list(map(len, beside)):
                return {"words": words, "tags": tags}
    return {}


def tokens(value: Any) -> list[str]:
    """A list of words or tags, which may be one string with spaces between them."""
    return [str(v) for v in value] if is_list(value) else value.split() if isinstance(value, str) else []


def answer(look: Look) -> dict[str, Any]:
    """A question, the text with its answer, and the answers."""
    question = look.first(QUESTIONS)
    context = look.first(CONTEXTS, [question or ""])
    found = look.first(ANSWERS)
    if not question or not context or (found is None and look.first(LABELS)):
        return {}
    parts = {"answers": found, "id": look.first(("id", "guid")), "start": look.first(("answer_start", "start"))}
    parts["possible"] = look.first(("is_impossible",))
    return {"question": question, "context": context, **{k: v for k, v in parts.items() if v}}


def choose(look: Look) -> dict[str, Any]:
    """Choices in a list or in columns that are numbered, and which is right."""
    several = [n for n in look.names if CHOICE.fullmatch(n)]
    choices = look.first(CHOICES) or (several if len(several) > 1 else None)
    label = look.first((*LABELS, "answer", "answerkey", "gold", "정답"))
    if not choices or not label:
        return {}
    stem = look.first(STEMS, flat([choices]))
    found = {"choices": choices, "label": label}
    return {**found, **({"text": stem} if stem else {})}


def translate(look: Look) -> dict[str, Any]:
    """Two languages, or a source and a target."""
    if "translation" in look.lower and all(isinstance(v, Mapping) for v in look.values(look.lower["translation"])):
        return {"text": look.lower["translation"], "target": look.lower["translation"]}
    codes = [n for n in look.names if LANGUAGE.fullmatch(n) and look.wordy(n) and not IDS.fullmatch(n)]
    if len(codes) == 2 and len(codes) == len([n for n in look.names if look.wordy(n)]) and "text" not in codes:
        return {"text": codes[0], "target": codes[1]}
    target = look.first(TARGETS) or ("1" if look.names == ["0", "1"] and look.wordy("1") else None)
    text = look.first(SOURCES, [target or ""]) or ("0" if target == "1" else None)
    return {"text": text, "target": target} if target and text and look.wordy(target) else {}


def source(look: Look) -> dict[str, Any]:
    """The text beside a target."""
    wordy = [n for n in look.names if not IDS.fullmatch(n) and look.wordy(n)]
    text = look.first(SOURCES) or (wordy[0] if len(wordy) == 1 else None)
    return {"text": text} if text else {}


def summarise(look: Look) -> dict[str, Any]:
    """A text and its summary."""
    target = look.first((*SUMMARIES, "target")) or ("1" if look.names == ["0", "1"] else None)
    text = look.first(TEXTS, [target or ""]) or ("0" if target == "1" else None)
    return {"text": text, "target": target} if target and text and look.wordy(target) else {}


def lm(look: Look) -> dict[str, Any]:
    """A text, and nothing that could be its label."""
    if look.first((*LABELS, *SCORES)):
        return {}
    wordy = [n for n in look.names if not IDS.fullmatch(n) and look.wordy(n)]
    named = look.first(NAMES)
    return {"text": named or wordy[0]} if len(wordy) == 1 or named else {}


FINDERS = {
    "answer": answer, "tag": tag, "choose": choose, "classify": classify, "regress": regress, "translate": translate,
    "summarise": summarise, "lm": lm,
}  # fmt: skip
