"""The verbs of fine-tuned models: text in, answers out, one or many at once. A model is handed in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..config import ProgressCallback, format_value
from ..data.encoded_examples import EncodedExamples
from ..errors import Error
from ..inputs import list_texts
from ..task import Task, get_task
from ..text.normalise import compose_with_origins, normalise
from ..verbs import check_verb
from . import prediction
from .tagging import find_entities as find_entities
from .tagging import find_scheme, split_words
from .task_encoder import TaskEncoder, encode

NON_SPACE = re.compile(r"\S")


@dataclass(frozen=True)
class Classification:
    """The likeliest label of a text, and the probability of every label; of models for several labels, `labels` are
    those that are likelier than not."""

    label: str
    probability: float
    probabilities: dict[str, float]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaggedWord:
    """A word of a text, text[start:end], and its tag."""

    word: str
    tag: str
    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class Entity:
    """An entity of a text, text[start:end], what it is, and the mean probability of its words' tags."""

    text: str
    label: str
    start: int
    end: int
    score: float


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


def classify(former: Any, texts: Any, *, long: str | None = None, tell: ProgressCallback | None = None) -> Any:
    """The label of a text, or of each of many; a pair of texts is a tuple. Long texts are read in windows, whose
    probabilities are averaged; long="error" refuses them."""
    task = resolve_task(former, "classify", long)
    rows, one = make_text_rows(texts, task)
    shares = predict_rows(former, task, rows, tell)
    made = [build_classification(task.labels or former.labels, row, task) for row in shares.tolist()]
    return made[0] if one else made


def build_classification(labels: Sequence[str], probabilities: Sequence[float], task: Task) -> Classification:
    """Probabilities with their names."""
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    several = tuple(n for n, s in zip(labels, probabilities, strict=True) if s > 0.5) if task.kind == "many" else ()
    return Classification(labels[best], probabilities[best], dict(zip(labels, probabilities, strict=True)), several)


def predict_scores(former: Any, texts: Any, *, long: str | None = None, tell: ProgressCallback | None = None) -> Any:
    """The number that a model gives a text or a pair (a tuple): its similarity, its rating; a list for many."""
    task = resolve_task(former, "regress", long)
    rows, one = make_text_rows(texts, task)
    found = predict_rows(former, task, rows, tell)[:, 0].tolist()
    return found[0] if one else found


def predict_rows(former: Any, task: Task, rows: list[dict[str, Any]], tell: ProgressCallback | None) -> Any:
    """(rows, width) what a head that reads whole texts says, or a decoder that writes labels."""
    reader = TaskEncoder.from_former(former, task)
    if task.label_as_text:
        shares = prediction.score_label_words(former, rows, task.labels, lambda some: encode(task, some, reader), tell)
        prediction.check_finite(shares)
        return shares
    data = encode(task, rows, reader, former.labels)
    return prediction.average_windows(task, data, compute_finite_outputs(former, data, task, tell))


def compute_finite_outputs(former: Any, data: EncodedExamples, task: Task, tell: ProgressCallback | None) -> list[Any]:
    """Return what the head of a task says of each example, all of it finite."""
    said = prediction.compute_outputs(former, data, prediction.get_head_part(former, task), tell)
    prediction.check_finite(said)
    return said


def tag(former: Any, texts: Any, *, entities: bool = False, tell: ProgressCallback | None = None) -> Any:
    """The words of a text with their tags and where they stand in it, or with `entities` what the tags mark: an Entity
    for each person, place and so on.

    A text is cut into words as those of the training data were; a list of words is taken as it is (`start` then counts
    in the words joined by spaces). A list of texts, or of lists of words, gives a list.
    """
    task = resolve_task(former, "tag", None)
    scheme = find_scheme(former.labels)
    if entities and scheme is None:
        what = f"the tags of this model ({', '.join(former.labels[:4])}, …) mark no entities"
        raise Error(what, fix="leave entities out, to get the tag of each word")
    one = isinstance(texts, str)
    given = [texts] if one else list_texts(texts)
    if not given:
        return []
    found = [list(split_text(text, number, task)) for number, text in enumerate(given)]
    rows = [{"words": [normalise(word) for word, _ in row]} for row in found]
    data = encode(task, rows, TaskEncoder.from_former(former, task), former.labels)
    said = compute_finite_outputs(former, data, task, tell)
    made = []
    for row, (tags, sure) in zip(found, prediction.predict_tags(data, said, [len(row) for row in found]), strict=True):
        made.append([
            TaggedWord(word, former.labels[max(0, t)], start, start + len(word), p)
            for (word, start), t, p in zip(row, tags.tolist(), sure.tolist(), strict=True)
        ])  # fmt: skip
    if entities:
        grouped = [list(group_entities(row, text, scheme)) for row, text in zip(made, given, strict=True)]
        return grouped[0] if one else grouped
    return made[0] if one else made


def group_entities(words: Sequence[TaggedWord], text: Any, scheme: str | None) -> Iterator[Entity]:
    """Yield the entities that tagged words make up."""
    whole = text if isinstance(text, str) else " ".join(text)
    for label, first, last in find_entities([word.tag for word in words], suffix=scheme == "suffix"):
        some = words[first : last + 1]
        start, end = some[0].start, some[-1].end
        yield Entity(whole[start:end], label, start, end, sum(word.probability for word in some) / len(some))


def split_text(text: Any, number: int, task: Task) -> Iterator[tuple[str, int]]:
    """The words of a text, or its characters but spaces where the model learned those, and where each begins."""
    if isinstance(text, str):
        check_text(text, number)
        if task.tags_characters:
            found = [(match[0], match.start()) for match in NON_SPACE.finditer(text)]
        else:
            found = list(split_words(text, task.detached_marks, frozenset(task.mark_words)))
        yield from found or [(text.strip(), len(text) - len(text.lstrip()))]
        return
    at = 0
    for word in text:
        if not isinstance(word, str) or not word.strip():
            raise Error(f"text {number + 1} has a word that is none: {format_value(word)}", fix="leave empty words out")
        yield word, at
        at += len(word) + 1


def answer(
    former: Any, question: Any, context: Any = None, *, best: int = 1, abstain: bool | None = None,
    long: str | None = None, tell: ProgressCallback | None = None,
) -> Any:  # fmt: skip
    """Where in its context the answer to a question stands: an Answer, or with best > 1 a list of them.

    Many at once: a list of (question, context). A long context is read in windows; of a question that fills more than
    half of one, a warning says that its end is cut off, and long="error" refuses both. `abstain` lets "no answer" be
    one; by default as the model was trained.
    """
    task = resolve_task(former, "answer", long)
    task = task if abstain is None else dataclasses.replace(task, allows_no_answer=abstain)
    if best < 1:
        raise Error(f"there are no {best} best answers", fix="ask for 1 or more")
    one = isinstance(question, str)
    pairs = [(question, context)] if one else list_texts(question)
    rows: list[dict[str, Any]] = []
    places: list[list[int] | None] = []  # where the characters of a context stood before it was composed
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or len(pair) != 2 or isinstance(pair, str) or pair[1] is None:
            raise Error(f"question {number + 1} has no context", fix="give answer(question, context), or pairs of them")
        for text in pair:
            check_text(text, number)
        context, origins = compose_with_origins(pair[1])
        rows.append({"question": normalise(pair[0]), "context": context})
        places.append(origins)
    reader = TaskEncoder.from_former(former, task)
    data = encode(task, rows, reader, ())
    said = compute_finite_outputs(former, data, task, tell)
    found = prediction.predict_spans(
        task, data, said, [row["context"] for row in rows], max(best, 5), reader.tokenizer.is_left_padded
    )
    made = []
    for some, pair, origins in zip(found, pairs, places, strict=True):
        shares = prediction.softmax(prediction.np.array([s.score for s in some] or [0.0]))
        listed = [to_answer(s, float(p), pair[1], origins) for s, p in zip(some, shares, strict=False)]
        made.append(listed[:best] if best > 1 else listed[0] if listed else Answer("", -1, -1, 1.0, 0.0))
    return made[0] if one else made


def to_answer(span: prediction.AnswerSpan, probability: float, context: str, origins: list[int] | None) -> Answer:
    """Return an answer that refers to the context as the caller gave it."""
    if origins is None or span.start < 0:
        return Answer(span.text, span.start, span.end, probability, span.score)
    start, end = origins[span.start], origins[span.end]
    return Answer(context[start:end], start, end, probability, span.score)


def choose(
    former: Any, question: Any, choices: Any = None, *, long: str | None = None, tell: ProgressCallback | None = None
) -> Any:
    """Which choice goes on with a text or answers it; many at once: a list of (question, choices). Of a text that is
    too long the beginning is left out, and a warning says so; long="error" refuses it."""
    task = resolve_task(former, "choose", long)
    one = isinstance(question, str)
    pairs = [(question, choices)] if one else list_texts(question)
    rows = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or len(pair) != 2 or isinstance(pair, str) or isinstance(pair[1], str):
            raise Error(f"question {number + 1} has no choices", fix="give choose(question, choices), or pairs of them")
        check_text(pair[0], number)
        for choice in pair[1] or ():
            check_text(choice, number)
        rows.append({"text": normalise(pair[0]), "choices": [normalise(choice) for choice in pair[1] or ()]})
    data = encode(task, rows, TaskEncoder.from_former(former, task), ())
    said = compute_finite_outputs(former, data, task, tell)
    made = []
    for pair, shares in zip(pairs, prediction.predict_choices(said), strict=True):
        best = int(shares.argmax())
        made.append(Choice(best, str(list(pair[1])[best]), tuple(shares.tolist())))
    return made[0] if one else made


def resolve_task(former: Any, name: str, long: str | None) -> Task:
    """The model's task, with another way to take long texts if one is asked for."""
    check_verb(former, "score" if name == "regress" else name)
    task = get_task(former, name)
    if long is None:
        return task
    if long not in ("windows", "cut", "error"):
        raise Error(f"long texts cannot be taken as {long!r}", fix="choose windows, cut or error")
    return dataclasses.replace(task, long=cast(Any, long))


def make_text_rows(texts: Any, task: Task) -> tuple[list[dict[str, Any]], bool]:
    """Texts and pairs as rows, and whether it was one alone."""
    one = isinstance(texts, str | tuple | Mapping)
    rows = []
    for number, text in enumerate([texts] if one else list_texts(texts)):
        if isinstance(text, Mapping):
            text = (text.get("text"), text.get("other")) if text.get("other") is not None else text.get("text")
        pair = text if isinstance(text, tuple | list) else (text, None)
        if len(pair) != 2:
            raise Error(f"text {number + 1} is neither a text nor a pair", fix="give strings, or tuples of two")
        check_text(pair[0], number)
        if pair[1] is not None:
            check_text(pair[1], number)
        if task.takes_pairs is not None and task.takes_pairs != (pair[1] is not None):
            what, fix = ("stands alone", "pairs") if task.takes_pairs else ("is a pair", "single texts")
            raise Error(f"text {number + 1} {what}, and this model has learned from {fix}", fix=f"give {fix}")
        rows.append({"text": normalise(pair[0]), "other": None if pair[1] is None else normalise(pair[1])})
    if not rows:
        raise Error("there are no texts", fix="give at least one")
    return rows, one


def check_text(text: Any, number: int) -> None:
    """Refuse what is no text."""
    if not isinstance(text, str):
        raise Error(f"text {number + 1} is no text but {format_value(text)}", fix="give strings")
    if not text.strip():
        raise Error(f"text {number + 1} is empty", fix="leave empty texts out")
