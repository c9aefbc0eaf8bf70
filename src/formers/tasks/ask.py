"""The verbs of fine-tuned models: text in, answers out, one or many at once. A model is handed in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..config import Tell, shown
from ..errors import Error
from ..text.words import WORD
from . import predict
from .encode import encode
from .inputs import rows_of
from .reading import Reader
from .task import Task, task_of

CHARACTER = re.compile(r"\S")


@dataclass(frozen=True)
class Labelled:
    """The likeliest label of a text, and the probability of every label; of models for several labels, `labels` are
    those that are likelier than not."""

    label: str
    probability: float
    probabilities: dict[str, float]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Word:
    """A word of a text, text[start:end], and its tag."""

    word: str
    tag: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Answer:
    """A place of a context, context[start:end], that answers a question; start -1 and no text: there is no answer.
    Probabilities are shares among the likeliest: five, or as many as were asked for, if those are more."""

    text: str
    start: int
    end: int
    probability: float
    score: float


@dataclass(frozen=True)
class Choice:
    """The number of the likeliest choice, its text, and the probability of every choice."""

    index: int
    text: str
    probabilities: tuple[float, ...]


def classify(former: Any, texts: Any, *, long: str | None = None, tell: Tell | None = None) -> Any:
    """The label of a text, or of each of many; a pair of texts is a tuple. Long texts are read in windows, whose
    probabilities are averaged; long="error" refuses them."""
    task = asked(former, "classify", long)
    rows, one = text_rows(texts, task)
    shares = read(former, task, rows, tell)
    made = [labelled(task.labels or former.labels, row, task) for row in shares.tolist()]
    return made[0] if one else made


def labelled(labels: Sequence[str], shares: Sequence[float], task: Task) -> Labelled:
    """Probabilities with their names."""
    best = max(range(len(shares)), key=shares.__getitem__)
    several = tuple(n for n, s in zip(labels, shares, strict=True) if s > 0.5) if task.kind == "many" else ()
    return Labelled(labels[best], shares[best], dict(zip(labels, shares, strict=True)), several)


def score(former: Any, texts: Any, *, long: str | None = None, tell: Tell | None = None) -> Any:
    """The number that a model gives a text or a pair (a tuple): its similarity, its rating; a list for many."""
    task = asked(former, "regress", long)
    rows, one = text_rows(texts, task)
    found = read(former, task, rows, tell)[:, 0].tolist()
    return found[0] if one else found


def read(former: Any, task: Task, rows: list[dict[str, Any]], tell: Tell | None) -> Any:
    """(rows, width) what a head that reads whole texts says, or a decoder that writes labels."""
    reader = Reader.of(former, task)
    if task.words:
        return predict.label_words(former, rows, task.labels, lambda some: encode(task, some, reader), tell)
    data = encode(task, rows, reader, former.labels)
    return predict.whole(task, data, predict.outputs(former, data, predict.part_of(former, task), tell))


def tag(former: Any, texts: Any, *, tell: Tell | None = None) -> Any:
    """The words of a text with their tags and where they stand in it; a list of words is taken as it is (`start` then
    counts in the words joined by spaces). A list of texts, or of lists of words, gives a list."""
    task = asked(former, "tag", None)
    one = isinstance(texts, str)
    given = [texts] if one else rows_of(texts)
    if not given:
        return []
    found = [list(cut(text, number, task.characters)) for number, text in enumerate(given)]
    rows = [{"words": [word for word, _ in row]} for row in found]
    data = encode(task, rows, Reader.of(former, task), former.labels)
    said = predict.outputs(former, data, predict.part_of(former, task), tell)
    made = []
    for row, (tags, sure) in zip(found, predict.tags(data, said, [len(row) for row in found]), strict=True):
        made.append([
            Word(word, former.labels[max(0, t)], start, start + len(word), p)
            for (word, start), t, p in zip(row, tags.tolist(), sure.tolist(), strict=True)
        ])  # fmt: skip
    return made[0] if one else made


def cut(text: Any, number: int, characters: bool = False) -> Iterator[tuple[str, int]]:
    """The words of a text, or its characters but spaces, and where each begins."""
    if isinstance(text, str):
        check(text, number)
        found = [(match[0], match.start()) for match in (CHARACTER if characters else WORD).finditer(text)]
        yield from found or [(text.strip(), len(text) - len(text.lstrip()))]
        return
    at = 0
    for word in text:
        if not isinstance(word, str) or not word.strip():
            raise Error(f"text {number + 1} has a word that is none: {shown(word)}", fix="leave empty words out")
        yield word, at
        at += len(word) + 1


def answer(
    former: Any, question: Any, context: Any = None, *, best: int = 1, abstain: bool | None = None,
    long: str | None = None, tell: Tell | None = None,
) -> Any:  # fmt: skip
    """Where in its context the answer to a question stands: an Answer, or with best > 1 a list of them.

    Many at once: a list of (question, context). A long context is read in windows; of a question that fills more than
    half of one, a warning says that its end is cut off, and long="error" refuses both. `abstain` lets "no answer" be
    one; by default as the model was trained.
    """
    task = asked(former, "answer", long)
    task = task if abstain is None else dataclasses.replace(task, abstains=abstain)
    if best < 1:
        raise Error(f"there are no {best} best answers", fix="ask for 1 or more")
    one = isinstance(question, str)
    pairs = [(question, context)] if one else rows_of(question)
    rows = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or len(pair) != 2 or isinstance(pair, str) or pair[1] is None:
            raise Error(f"question {number + 1} has no context", fix="give answer(question, context), or pairs of them")
        for text in pair:
            check(text, number)
        rows.append({"question": pair[0], "context": pair[1]})
    reader = Reader.of(former, task)
    data = encode(task, rows, reader, ())
    said = predict.outputs(former, data, predict.part_of(former, task), tell)
    found = predict.spans(task, data, said, [row["context"] for row in rows], max(best, 5), reader.tokenizer.left)
    made = []
    for some in found:
        shares = predict.softmax(predict.np.array([s.score for s in some] or [0.0]))
        listed = [Answer(s.text, s.start, s.end, float(p), s.score) for s, p in zip(some, shares, strict=False)]
        made.append(listed[:best] if best > 1 else listed[0] if listed else Answer("", -1, -1, 1.0, 0.0))
    return made[0] if one else made


def choose(
    former: Any, question: Any, choices: Any = None, *, long: str | None = None, tell: Tell | None = None
) -> Any:
    """Which choice goes on with a text or answers it; many at once: a list of (question, choices). Of a text that is
    too long the beginning is left out, and a warning says so; long="error" refuses it."""
    task = asked(former, "choose", long)
    one = isinstance(question, str)
    pairs = [(question, choices)] if one else rows_of(question)
    rows = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or len(pair) != 2 or isinstance(pair, str) or isinstance(pair[1], str):
            raise Error(f"question {number + 1} has no choices", fix="give choose(question, choices), or pairs of them")
        check(pair[0], number)
        rows.append({"text": pair[0], "choices": list(pair[1] or ())})
    data = encode(task, rows, Reader.of(former, task), ())
    said = predict.outputs(former, data, predict.part_of(former, task), tell)
    made = []
    for row, shares in zip(rows, predict.choices(said), strict=True):
        best = int(shares.argmax())
        made.append(Choice(best, str(row["choices"][best]), tuple(shares.tolist())))
    return made[0] if one else made


def asked(former: Any, name: str, long: str | None) -> Task:
    """The model's task, with another way to take long texts if one is asked for."""
    task = task_of(former, name)
    if long is None:
        return task
    if long not in ("windows", "cut", "error"):
        raise Error(f"long texts cannot be taken as {long!r}", fix="choose windows, cut or error")
    return dataclasses.replace(task, long=cast(Any, long))


def text_rows(texts: Any, task: Task) -> tuple[list[dict[str, Any]], bool]:
    """Texts and pairs as rows, and whether it was one alone."""
    one = isinstance(texts, str | tuple | Mapping)
    rows = []
    for number, text in enumerate([texts] if one else rows_of(texts)):
        if isinstance(text, Mapping):
            text = (text.get("text"), text.get("other")) if text.get("other") is not None else text.get("text")
        pair = text if isinstance(text, tuple | list) else (text, None)
        if len(pair) != 2:
            raise Error(f"text {number + 1} is neither a text nor a pair", fix="give strings, or tuples of two")
        check(pair[0], number)
        if pair[1] is not None:
            check(pair[1], number)
        if task.pair is not None and task.pair != (pair[1] is not None):
            what, fix = ("stands alone", "pairs") if task.pair else ("is a pair", "single texts")
            raise Error(f"text {number + 1} {what}, and this model has learned from {fix}", fix=f"give {fix}")
        rows.append({"text": pair[0], "other": pair[1]})
    if not rows:
        raise Error("there are no texts", fix="give at least one")
    return rows, one


def check(text: Any, number: int) -> None:
    """Refuse what is no text."""
    if not isinstance(text, str):
        raise Error(f"text {number + 1} is no text but {shown(text)}", fix="give strings")
    if not text.strip():
        raise Error(f"text {number + 1} is empty", fix="leave empty texts out")
