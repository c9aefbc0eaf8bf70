"""The verbs of fine-tuned models: text in, answers out, one or many at once.

Below them, what the verbs share with evaluation: the outputs of a model's head for encoded examples, in batches of
similar length, and the answers that follow from them.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..config import JSONObject, ProgressCallback, build_config, count_noun, format_value
from ..data.encoded_examples import EncodedExamples, group_by_length, shift_right
from ..errors import Error, NonFinite
from ..former import Former
from ..inputs import get_start_token, list_texts
from ..task import TASKS, LongTextMode, Task, choose_length
from ..text.normalise import compose_with_origins, normalise
from ..verbs import check_verb
from .encoding import TaskEncoder, encode_examples
from .examples import Row
from .tagging import find_entities, find_scheme, split_words

TextOrPair = str | tuple[str, str] | Mapping[str, str]
Texts = TextOrPair | Iterable[TextOrPair]
Words = str | Sequence[str]  # a text, or its words
NON_SPACE = re.compile(r"\S")
TASK_VERBS = {name: "generate" if name == "lm" else "score" if name == "regress" else name for name in TASKS}


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
    probability: float  # NaN until it is compared with others
    score: float


@dataclass(frozen=True)
class Choice:
    """The number of the likeliest choice, its text, and the probability of every choice."""

    index: int
    text: str
    probabilities: tuple[float, ...]


def classify(
    former: Former, texts: Texts, *, task: str | None = None, long: str | None = None,
    tell: ProgressCallback | None = None,
) -> Any:  # dynamic: one for a text, a list for many  # fmt: skip
    """Predict the label of a text, or of each of many; a pair is a tuple. Long texts are read in windows, whose
    probabilities are averaged; long="error" refuses them. `task` names one of a model that learned a mixture."""
    former = former.select_task(task)
    own_task = resolve_task(former, "classify", long)
    rows, one = make_text_rows(texts, own_task)
    labels, results = own_task.labels or former.labels, []
    for shares in predict_rows(former, own_task, rows, tell).tolist():
        best = max(range(len(shares)), key=shares.__getitem__)
        several = tuple(n for n, s in zip(labels, shares, strict=True) if s > 0.5) if own_task.kind == "many" else ()
        results.append(Classification(labels[best], shares[best], dict(zip(labels, shares, strict=True)), several))
    return results[0] if one else results


def predict_scores(
    former: Former, texts: Texts, *, task: str | None = None, long: str | None = None,
    tell: ProgressCallback | None = None,
) -> Any:  # dynamic: one for a text, a list for many  # fmt: skip
    """Predict the number of a text or a pair (a tuple): its similarity, its rating; a list for many. `task` names one
    of a model that learned a mixture."""
    former = former.select_task(task)
    own_task = resolve_task(former, "regress", long)
    rows, one = make_text_rows(texts, own_task)
    answers = predict_rows(former, own_task, rows, tell)
    scores = read_numbers(own_task.labels, answers) if own_task.label_as_text else answers[:, 0].tolist()
    return scores[0] if one else scores


def read_numbers(labels: Sequence[str], shares: np.ndarray) -> list[float]:
    """Return the likeliest number of each row, given (rows, numbers) how likely a decoder is to write each."""
    return [float(labels[best]) for best in shares.argmax(1)]


def predict_rows(former: Former, task: Task, rows: list[Row], tell: ProgressCallback | None) -> np.ndarray:
    """Compute (rows, width) outputs of a head over whole texts, or a decoder's shares of the labels."""
    if task.label_as_text:
        return check_finite(score_label_words(former, task, rows, tell))
    return average_windows(task, *compute_task_outputs(former, task, rows, tell))


def compute_task_outputs(
    former: Former, task: Task, rows: Sequence[Row], tell: ProgressCallback | None
) -> tuple[EncodedExamples, list[np.ndarray]]:
    """Encode rows, and compute the outputs of the task's head for each example, which must be finite."""
    data = encode_examples(task, rows, TaskEncoder.from_former(former, task), former.labels)
    return data, check_finite(compute_outputs(former, data, get_head_part(former, task), tell))


def tag(
    former: Former, texts: str | Iterable[Words], *, entities: bool = False, tell: ProgressCallback | None = None
) -> Any:  # dynamic: one for a text, a list for many
    """Return the words of a text with their tags and places, or with `entities` what the tags mark: an Entity
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
    if not (text_rows := [texts] if one else list_texts(texts)):
        return []
    words = [list(split_text(text, number, task)) for number, text in enumerate(text_rows)]
    rows: list[Row] = [{"words": [normalise(word) for word, _ in row]} for row in words]
    data, outputs = compute_task_outputs(former, task, rows, tell)
    results: list[list[TaggedWord]] = []
    for row, (tags, probabilities) in zip(words, predict_tags(data, outputs, [len(row) for row in words]), strict=True):
        each = zip(row, tags.tolist(), probabilities.tolist(), strict=True)
        results.append([TaggedWord(w, former.labels[max(0, t)], at, at + len(w), p) for (w, at), t, p in each])
    if entities:
        named = [list(group_entities(row, text, scheme)) for row, text in zip(results, text_rows, strict=True)]
        return named[0] if one else named
    return results[0] if one else results


def group_entities(words: Sequence[TaggedWord], text: Words, scheme: str | None) -> Iterator[Entity]:
    """Yield the entities that tagged words make up."""
    whole = text if isinstance(text, str) else " ".join(text)
    for label, first, last in find_entities([word.tag for word in words], suffix=scheme == "suffix"):
        members = words[first : last + 1]
        start, end = members[0].start, members[-1].end
        yield Entity(whole[start:end], label, start, end, sum(word.probability for word in members) / len(members))


def split_text(text: Words, number: int, task: Task) -> Iterator[tuple[str, int]]:
    """Split a text into words, or its characters but spaces where the model learned those, and where each begins."""
    if isinstance(text, str):
        check_text(number, text)
        if task.tags_characters:
            words = [(match[0], match.start()) for match in NON_SPACE.finditer(text)]
        else:
            words = list(split_words(text, task.detached_marks, frozenset(task.mark_words)))
        yield from words or [(text.strip(), len(text) - len(text.lstrip()))]
        return
    at = 0
    for word in text:
        if not isinstance(word, str) or not word.strip():
            raise Error(
                f"text {number + 1} has an empty word, or one that is not text: {format_value(word)}",
                fix="leave empty words out",
            )
        yield word, at
        at += len(word) + 1


def answer(
    former: Former, question: str | Iterable[object], context: str | None = None, *, best: int = 1,
    abstain: bool | None = None, long: str | None = None, tell: ProgressCallback | None = None,
) -> Any:  # dynamic: one for a text, a list for many  # fmt: skip
    """Find the answer to a question in its context: an Answer, or with best > 1 a list of them.

    Many at once: a list of (question, context). A long context is read in windows; of a question that fills more than
    half of one, a warning says that its end is cut off, and long="error" refuses both. `abstain` lets "no answer" be
    one; by default as the model was trained.
    """
    task = resolve_task(former, "answer", long)
    task = task if abstain is None else dataclasses.replace(task, allows_no_answer=abstain)
    if best < 1:
        raise Error(f"best must be at least 1, got {best}", fix="ask for 1 or more")
    one = isinstance(question, str)
    pairs = [(question, context)] if one else list_texts(question)
    rows: list[Row] = []
    places: list[list[int] | None] = []  # where the characters of a context stood before it was composed
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or len(pair) != 2 or isinstance(pair, str) or pair[1] is None:
            raise Error(f"question {number + 1} has no context", fix="give answer(question, context), or pairs of them")
        check_text(number, *pair)
        context, origins = compose_with_origins(pair[1])
        rows.append({"question": normalise(pair[0]), "context": context})
        places.append(origins)
    data, outputs = compute_task_outputs(former, task, rows, tell)
    spans = predict_spans(former, task, data, outputs, [row["context"] for row in rows], max(best, 5))
    results = []
    for candidates, pair, origins in zip(spans, pairs, places, strict=True):
        shares = softmax(np.array([s.score for s in candidates] or [0.0]))
        listed = [locate_answer(s, float(p), pair[1], origins) for s, p in zip(candidates, shares, strict=False)]
        results.append(listed[:best] if best > 1 else listed[0] if listed else Answer("", -1, -1, 1.0, 0.0))
    return results[0] if one else results


def locate_answer(span: Answer, probability: float, context: str, origins: list[int] | None) -> Answer:
    """Return an answer that refers to the context as the caller gave it."""
    if origins is None or span.start < 0:
        return dataclasses.replace(span, probability=probability)
    start, end = origins[span.start], origins[span.end]
    return Answer(context[start:end], start, end, probability, span.score)


def choose(
    former: Former, question: str | Iterable[object], choices: Sequence[str] | None = None, *, long: str | None = None,
    tell: ProgressCallback | None = None,
) -> Any:  # dynamic: one for a text, a list for many  # fmt: skip
    """Choose what continues a text or answers it; many at once: a list of (question, choices). Of a text that is
    too long the beginning is left out, and a warning says so; long="error" refuses it."""
    task = resolve_task(former, "choose", long)
    one = isinstance(question, str)
    pairs = [(question, choices)] if one else list_texts(question)
    rows = []
    for number, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or len(pair) != 2 or isinstance(pair, str) or isinstance(pair[1], str):
            raise Error(f"question {number + 1} has no choices", fix="give choose(question, choices), or pairs of them")
        check_text(number, pair[0], *(pair[1] or ()))
        rows.append({"text": normalise(pair[0]), "choices": [normalise(choice) for choice in pair[1] or ()]})
    _, outputs = compute_task_outputs(former, task, rows, tell)
    results = []
    for pair, shares in zip(pairs, predict_choices(outputs), strict=True):
        best = int(shares.argmax())
        results.append(Choice(best, str(list(pair[1])[best]), tuple(shares.tolist())))
    return results[0] if one else results


def resolve_task(former: Former, name: str, long: str | None) -> Task:
    """Return the model's task, with another `long` if one is given."""
    check_verb(former, TASK_VERBS[name])
    task = get_task(former, name)
    if long not in (None, *get_args(LongTextMode)):
        raise Error(f"long must be windows, cut or error, got {long!r}", fix="choose windows, cut or error")
    return task if long is None else dataclasses.replace(task, long=cast(LongTextMode, long))


def get_task(former: Former, name: str) -> Task:
    """Return a loaded model's task, which must have that name; a model of another library gets the default values."""
    if saved := former.task or find_mixture_task(former, name):
        if saved["name"] != name:
            raise Error(f"this model was trained to {saved['name']}", fix=f"use {TASK_VERBS[saved['name']]}")
        return build_config(Task, dict(saved), where="task")
    kinds, heads = TASKS[name]
    if former.head.split("@")[0].split("+")[0] != heads:
        what = f"this {former.family} has the head {former.head!r}, which does not {name}"
        raise Error(what, fix=f"fine-tune it first: formers finetune MODEL --task {name} --train FILE")
    if name in ("classify", "regress") and (len(former.labels) == 1) != (name == "regress"):
        what = f"this model has {count_noun(len(former.labels), 'label')}"
        raise Error(what, fix="use classify" if name == "regress" else "use score")
    return Task(name=name, kind=kinds[0], length=choose_length(former.context))


def find_mixture_task(former: Former, name: str) -> JSONObject:
    """Return the only task of a mixture that has this verb; an Error where there are several. Empty without one."""
    tasks = {task_name: task for task_name, task in former.tasks.items() if task["name"] == name}
    if len(tasks) > 1:
        first = next(iter(tasks))
        what = f"this model has {len(tasks)} tasks to {name}: {', '.join(tasks)}"
        raise Error(what, fix=f"name one: --task {first}, or task='{first}'")
    return next(iter(tasks.values()), {})


def make_text_rows(texts: Texts, task: Task) -> tuple[list[Row], bool]:
    """Return texts and pairs as rows, and whether a single one was given."""
    one = isinstance(texts, str | tuple | Mapping)
    rows = []
    for number, text in enumerate([texts] if one else list_texts(texts)):
        if isinstance(text, Mapping):
            text = (text.get("text"), text.get("other")) if text.get("other") is not None else text.get("text")
        pair = text if isinstance(text, tuple | list) else (text, None)
        if len(pair) != 2:
            raise Error(f"text {number + 1} is neither a text nor a pair", fix="give strings, or tuples of two")
        check_text(number, *pair[: 1 if pair[1] is None else 2])
        if task.takes_pairs is not None and task.takes_pairs != (pair[1] is not None):
            what, fix = ("stands alone", "pairs") if task.takes_pairs else ("is a pair", "single texts")
            raise Error(f"text {number + 1} {what}, and this model has learned from {fix}", fix=f"give {fix}")
        rows.append({"text": normalise(pair[0]), "other": None if pair[1] is None else normalise(pair[1])})
    if not rows:
        raise Error("there are no texts", fix="give at least one")
    return rows, one


def check_text(number: int, *texts: object) -> None:
    """Refuse empty texts, and what is not a string."""
    for text in texts:
        if not isinstance(text, str):
            raise Error(f"text {number + 1} is not text but {format_value(text)}", fix="give strings")
        if not text.strip():
            raise Error(f"text {number + 1} is empty", fix="leave empty texts out")


BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536}  # of a batch
Outputs = TypeVar("Outputs", np.ndarray, list[np.ndarray])


def get_head_part(former: Former, task: Task) -> str:
    """Return the part of the head that does a task."""
    names = list(former.model.parts)
    return task.head if task.head in names else names[0]


@contextmanager
def switch_to_eval(former: Former) -> Iterator[None]:
    """Run a model without dropout and gradients within the block; its mode is restored."""
    was = former.model.training
    former.model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        former.model.train(was)


def group_examples(
    former: Former, data: EncodedExamples, tell: ProgressCallback | None, what: str = "reading", unit: str = ""
) -> Iterator[np.ndarray]:
    """Yield the numbers of examples of similar length, as many as fit into a batch of the model's device."""
    done = 0
    for group in group_by_length(data.lengths, BATCH_TOKENS.get(former.device.type, BATCH_TOKENS["cpu"])):
        yield group
        done += len(group)
        if tell is not None:
            tell(what, done, len(data), unit)


def compute_outputs(
    former: Former, data: EncodedExamples, part: str, tell: ProgressCallback | None = None,
    on_batch: Callable[[Tensor, Batch], None] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """Compute the outputs of a head's part for each example: (documents, width), or (tokens, width) without
    pooling. `on_batch` is called with the outputs of each batch, and the batch."""
    rows: list[np.ndarray] = [np.zeros(0)] * len(data)
    pools, wraps = former.model.parts[part].spec.pool is not None, former.definition.starts_with_last_token
    with switch_to_eval(former):
        for group in group_examples(former, data, tell):
            batch = data.make_batch(group)
            if former.is_encoder_decoder:
                batch = shift_right(batch, None if wraps else get_start_token(former.config), wraps)
            moved = batch.to(former.device)
            outputs = former.model.logits(former.model(moved), moved, part)
            if on_batch is not None:
                on_batch(outputs, moved)
            counts = np.cumsum(np.diff(data.example_starts)[group])
            edges = counts if pools else batch.starts[counts]
            for number, one in zip(group, np.split(outputs.float().cpu().numpy(), edges[:-1]), strict=True):
                rows[number] = one
    return rows


def check_finite(outputs: Outputs) -> Outputs:
    """Return the outputs of a head; raise NonFinite if they hold NaN or infinity."""
    if not all(np.isfinite(one).all() for one in outputs):
        raise NonFinite("outputs of its head")
    return outputs


def softmax(scores: np.ndarray) -> np.ndarray:
    """Normalise along the last axis."""
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def average_windows(task: Task, data: EncodedExamples, outputs: Sequence[np.ndarray]) -> np.ndarray:
    """Compute (rows, width) probabilities of classes or labels, or the number: the mean over the windows of a row."""
    scores = np.stack([one.sum(0) for one in outputs]).astype(np.float64)
    if task.kind != "number":
        scores = softmax(scores) if task.kind == "class" else 1 / (1 + np.exp(-scores))
    count = int(data.row_index.max(initial=-1)) + 1
    total, seen = np.zeros((count, scores.shape[1])), np.bincount(data.row_index, minlength=count)
    np.add.at(total, data.row_index, scores)
    return total / np.maximum(1, seen)[:, None]


def score_label_words(
    former: Former, task: Task, rows: Sequence[Row], tell: ProgressCallback | None = None
) -> np.ndarray:
    """Compute (rows, labels) how likely a decoder is to write each label after a text, as shares of all labels."""
    labelled = [{**row, "label": label} for row in rows for label in task.labels]
    data = encode_examples(task, labelled, TaskEncoder.from_former(former, task))
    totals, start = np.zeros(len(data)), get_start_token(former.config)
    with switch_to_eval(former):
        for group in group_examples(former, data, tell, unit="labels"):
            batch = data.make_target_batch(group, start).to(former.device)
            scores = former.model.logits(former.model(batch), part="lm").float().log_softmax(-1)
            each = scores.gather(1, batch.labels[:, None])[:, 0]
            total = torch.zeros(len(group), device=each.device).index_add(0, batch.layout.document_ids, each)
            totals[group] = total.cpu().numpy()
    return softmax(totals.reshape(len(rows), len(task.labels)))


def predict_choices(outputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return of each question the probabilities of its choices."""
    return [softmax(one[:, 0].astype(np.float64)) for one in outputs]


def predict_tags(
    data: EncodedExamples, outputs: Sequence[np.ndarray], words: Sequence[int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return of each row the tags of its words and their probabilities; a word without a token has tag -1."""
    taggings = [(np.full(n, -1), np.zeros(n)) for n in words]
    assert data.offsets is not None
    for number, scores in enumerate(outputs):
        word = data.offsets[data.starts[number] : data.starts[number + 1], 0]
        here = np.flatnonzero(word >= 0)
        shares = softmax(scores[here].astype(np.float64))
        tag, share = taggings[data.row_index[number]]
        tag[word[here]], share[word[here]] = shares.argmax(-1), shares.max(-1)
    return taggings


def predict_spans(
    former: Former, task: Task, data: EncodedExamples, outputs: Sequence[np.ndarray], contexts: Sequence[str],
    best: int = 5,
) -> list[list[Answer]]:  # fmt: skip
    """Find each question's best places, over all windows of its context; no answer is one of them, if the task allows
    it. Its score is the lowest that a window gives it (BERT, §4.3)."""
    candidates: list[list[Answer]] = [[] for _ in contexts]
    empty = [np.inf] * len(contexts)
    pads_left = former.tokenizer is not None and former.tokenizer.is_left_padded
    for number, scores in enumerate(outputs):
        row = int(data.row_index[number])
        no_answer = len(scores) - 1 if pads_left else 0
        empty[row] = min(empty[row], float(scores[no_answer, 0] + scores[no_answer, 1]))
        assert data.offsets is not None
        places = data.offsets[data.starts[number] : data.starts[number + 1]]
        candidates[row] += find_candidates(scores, places, contexts[row], task.max_answer_tokens, best)
    answers = []
    for row, found_spans in enumerate(candidates):
        unique = {(s.start, s.end): s for s in sorted(found_spans, key=lambda s: s.score)}
        if task.allows_no_answer and np.isfinite(empty[row]):
            unique[-1, -1] = Answer("", -1, -1, math.nan, empty[row])
        answers.append(sorted(unique.values(), key=lambda s: -s.score)[:best])
    return answers


def find_candidates(scores: np.ndarray, places: np.ndarray, context: str, most: int, best: int) -> Iterator[Answer]:
    """Find the best places of one window: a beginning and an end that is not before it, nor too far after it."""
    inside = np.flatnonzero(places[:, 0] >= 0)
    if not len(inside):
        return
    low = inside[0]
    both = scores[inside, 0][:, None] + scores[inside, 1][None, :]
    reach = np.arange(len(inside))[None, :] - np.arange(len(inside))[:, None]
    both = np.where((reach >= 0) & (reach < most), both, -np.inf)
    for flat in np.argsort(both, axis=None)[::-1][:best]:
        a, b = divmod(int(flat), len(inside))
        if np.isfinite(both[a, b]):
            first, last = int(places[low + a, 0]), int(places[low + b, 1])
            text = context[first:last]
            first += len(text) - len(text.lstrip())
            yield Answer(text.strip(), first, first + len(text.strip()), math.nan, float(both[a, b]))
