"""What a model's head says of examples, in batches of similar length, and what that means for the rows of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..config import ProgressCallback
from ..data.encoded_examples import EncodedExamples, group_by_length, shift_right
from ..errors import NonFinite
from ..inputs import get_start_token
from ..task import Task

BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536}  # of a batch


def get_head_part(former: Any, task: Task) -> str:
    """The part of the head that does a task."""
    names = list(former.model.parts)
    return task.head if task.head in names else names[0]


@torch.no_grad()
def compute_outputs(
    former: Any,
    data: EncodedExamples,
    part: str,
    tell: ProgressCallback | None = None,
    on_batch: Callable[[Any, Any], None] | None = None,
) -> list[np.ndarray]:
    """Of each example what the head's part says: (documents, width), or (tokens, width) if it does not pool. `on_batch`
    gets what it says of each batch, and the batch."""
    rows: list[Any] = [None] * len(data)
    pools, pair = former.model.parts[part].spec.pool is not None, former.is_encoder_decoder
    size, done = BATCH_TOKENS.get(former.device.type, BATCH_TOKENS["cpu"]), 0
    was = former.model.training
    former.model.eval()
    try:
        for some in group_by_length(data.lengths, size):
            batch = data.make_batch(some)
            if pair:
                wraps = former.definition.starts_with_last_token
                batch = shift_right(batch, None if wraps else get_start_token(former.config), wraps)
            moved = batch.to(former.device)
            said = former.model.logits(former.model(moved), moved, part)
            if on_batch is not None:
                on_batch(said, moved)
            logits = said.float().cpu().numpy()
            counts = np.diff(data.example_starts)[some]
            edges = np.cumsum(counts) if pools else batch.starts[np.cumsum(counts)]
            for number, one in zip(some, np.split(logits, edges[:-1]), strict=True):
                rows[number] = one
            done += len(some)
            if tell is not None:
                tell("reading", done, len(data), "")
    finally:
        former.model.train(was)
    return rows


def check_finite(said: Sequence[np.ndarray] | np.ndarray) -> None:
    """Raise NonFinite if what a head says holds NaN or infinity."""
    if not all(np.isfinite(one).all() for one in said):
        raise NonFinite("what its head says")


def softmax(scores: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def average_windows(task: Task, data: EncodedExamples, said: Sequence[np.ndarray]) -> np.ndarray:
    """(rows, width): probabilities of classes or labels, or the number; the mean over the windows of a row."""
    scores = np.stack([one.sum(0) for one in said]).astype(np.float64)
    if task.kind != "number":
        scores = softmax(scores) if task.kind == "class" else 1 / (1 + np.exp(-scores))
    count = int(data.row_index.max(initial=-1)) + 1
    total, seen = np.zeros((count, scores.shape[1])), np.bincount(data.row_index, minlength=count)
    np.add.at(total, data.row_index, scores)
    return total / np.maximum(1, seen)[:, None]


@torch.no_grad()
def score_label_words(
    former: Any,
    rows: Sequence[Any],
    labels: Sequence[str],
    encode: Callable[[Any], EncodedExamples],
    tell: ProgressCallback | None = None,
) -> np.ndarray:
    """(rows, labels) how likely a decoder is to write each label behind a text, as shares of all labels."""
    data = encode([{**row, "label": label} for row in rows for label in labels])
    found, start, done = np.zeros(len(data)), get_start_token(former.config), 0
    was = former.model.training
    former.model.eval()
    for some in group_by_length(data.lengths, BATCH_TOKENS.get(former.device.type, BATCH_TOKENS["cpu"])):
        batch = data.make_target_batch(some, start).to(former.device)
        scores = former.model.logits(former.model(batch), part="lm").float().log_softmax(-1)
        each = scores.gather(1, batch.labels[:, None])[:, 0]
        total = torch.zeros(len(some), device=each.device).index_add(0, batch.layout.document_ids, each)
        found[some] = total.cpu().numpy()
        done += len(some)
        if tell is not None:
            tell("reading", done, len(data), "labels")
    former.model.train(was)
    return softmax(found.reshape(len(rows), len(labels)))


def predict_choices(said: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Of each question the probabilities of its choices."""
    return [softmax(one[:, 0].astype(np.float64)) for one in said]


def predict_tags(
    data: EncodedExamples, said: Sequence[np.ndarray], words: Sequence[int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each row the tags of its words and their probabilities; a word without a token has tag -1."""
    found = [(np.full(n, -1), np.zeros(n)) for n in words]
    assert data.offsets is not None
    for number, scores in enumerate(said):
        word = data.offsets[data.starts[number] : data.starts[number + 1], 0]
        here = np.flatnonzero(word >= 0)
        shares = softmax(scores[here].astype(np.float64))
        tag, share = found[data.row_index[number]]
        tag[word[here]], share[word[here]] = shares.argmax(-1), shares.max(-1)
    return found


@dataclass(frozen=True)
class AnswerSpan:
    """A place in a context, from a character to a character; `start` -1: there is no answer."""

    text: str
    start: int
    end: int
    score: float


def predict_spans(
    task: Task,
    data: EncodedExamples,
    said: Sequence[np.ndarray],
    contexts: Sequence[str],
    best: int = 5,
    pads_left: bool = False,
) -> list[list[AnswerSpan]]:
    """Of each question the best places, over all windows of its context; no answer is one of them, if the task allows
    it. Its score is the lowest that a window gives it (BERT, §4.3)."""
    found: list[list[AnswerSpan]] = [[] for _ in contexts]
    empty = [np.inf] * len(contexts)
    for number, scores in enumerate(said):
        row = int(data.row_index[number])
        nowhere = len(scores) - 1 if pads_left else 0
        empty[row] = min(empty[row], float(scores[nowhere, 0] + scores[nowhere, 1]))
        assert data.offsets is not None
        places = data.offsets[data.starts[number] : data.starts[number + 1]]
        found[row] += find_candidates(scores, places, contexts[row], task.max_answer_tokens, best)
    made = []
    for row, some in enumerate(found):
        unique = {(s.start, s.end): s for s in sorted(some, key=lambda s: s.score)}
        if task.allows_no_answer and np.isfinite(empty[row]):
            unique[-1, -1] = AnswerSpan("", -1, -1, empty[row])
        made.append(sorted(unique.values(), key=lambda s: -s.score)[:best])
    return made


def find_candidates(scores: np.ndarray, places: np.ndarray, context: str, most: int, best: int) -> Iterator[AnswerSpan]:
    """The best places of one window: a beginning and an end that is not before it, nor too far behind."""
    inside = np.flatnonzero(places[:, 0] >= 0)
    if not len(inside):
        return
    low = inside[0]
    begin, end = scores[inside, 0], scores[inside, 1]
    both = begin[:, None] + end[None, :]
    reach = np.arange(len(inside))[None, :] - np.arange(len(inside))[:, None]
    both = np.where((reach >= 0) & (reach < most), both, -np.inf)
    for flat in np.argsort(both, axis=None)[::-1][:best]:
        a, b = divmod(int(flat), len(inside))
        if np.isfinite(both[a, b]):
            first, last = int(places[low + a, 0]), int(places[low + b, 1])
            text = context[first:last]
            first += len(text) - len(text.lstrip())
            yield AnswerSpan(text.strip(), first, first + len(text.strip()), float(both[a, b]))
