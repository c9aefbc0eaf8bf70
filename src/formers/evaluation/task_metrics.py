"""Metrics: one function for each task, which returns its main metric first. A new metric is a key of that result.

All are between 0 and 1 (correlations between -1 and 1), but BLEU and chrF, which are points out of 100 as sacrebleu
prints them, and the errors of regress.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Error
from ..tasks.tagging import find_entities, find_scheme
from .text_metrics import bleu, rouge, score_answers

LOWER_IS_BETTER = ("loss", "perplexity", "mse", "mae")


def to_cost(name: str, value: float) -> float:
    """Return a metric as a cost: the lower, the better."""
    return value if name in LOWER_IS_BETTER else -value


def compute_metrics(task: str, truths: Sequence[Any], guesses: Sequence[Any], **more: Any) -> dict[str, float]:
    """Compute the metrics of a task; checkpoints are chosen by the first.

    classify, choose: `positive`, the label that binary F1 is of. tag: lists of tags. answer: truths are lists of right
    answers, empty where there is none; `language` is "en" or "ko", found by itself if not said. translate: `tokenize`,
    `lowercase` of sacrebleu. summarise: `units`, words, characters or morphemes.
    """
    if task not in METRICS:
        raise Error(f"there is no metric for the task {task!r}", fix="choose " + ", ".join(METRICS))
    truths, guesses = list(truths), list(guesses)
    if len(truths) != len(guesses):
        raise Error(f"there are {len(truths)} truths and {len(guesses)} guesses", fix="give one guess for each truth")
    if not truths:
        raise Error("there is nothing to judge", fix="give at least one example")
    try:
        return METRICS[task](truths, guesses, **more)
    except TypeError as e:
        if "unexpected keyword" not in str(e):
            raise
        raise Error(f"the measures of {task} do not take this ({e})", fix="leave it out") from None


def score_labels(truths: list[Any], guesses: list[Any], positive: Any = None) -> dict[str, float]:
    """Accuracy, F1 and Matthews' correlation of one label each; of several labels each, F1 and whole matches."""
    if any(is_label_list(v) for v in (*truths, *guesses)):
        return score_multilabel(truths, guesses)
    right = sum(map(_is_equal, truths, guesses))
    scores = f1_by_label(
        Counter(truths), Counter(guesses), Counter(t for t, g in zip(truths, guesses, strict=True) if t == g)
    )
    found = {"accuracy": right / len(truths), "f1_macro": sum(scores.values()) / len(scores)}
    if positive is not None:
        if positive not in scores:
            raise Error(f"no example has the label {positive!r}", fix="there are " + ", ".join(map(repr, scores)))
        found["f1"] = scores[positive]
    return {**found, "matthews": matthews(truths, guesses)}


def _is_equal(a: Any, b: Any) -> bool:
    return bool(a == b)


def is_label_list(value: Any) -> bool:
    """A list of labels."""
    return isinstance(value, list | tuple | set | frozenset)


def score_multilabel(truths: list[Any], guesses: list[Any]) -> dict[str, float]:
    """Several labels for each example: F1 over all of them, the mean over labels, and how often all are right."""
    if not all(is_label_list(v) for v in (*truths, *guesses)):
        raise Error("some examples have one label, others a list", fix="give a list for each")
    pairs = [(set(t), set(g)) for t, g in zip(truths, guesses, strict=True)]
    true, said, both = (
        Counter(x for row in rows for x in row)
        for rows in ([t for t, _ in pairs], [g for _, g in pairs], [t & g for t, g in pairs])
    )
    scores = f1_by_label(true, said, both)
    macro = sum(scores.values()) / len(scores) if scores else 1.0
    return {
        "f1_micro": f1(both.total(), said.total(), true.total()),
        "f1_macro": macro,
        "exact": sum(t == g for t, g in pairs) / len(pairs),
    }


def f1(both: float, said: float, true: float) -> float:
    """The harmonic mean of precision and recall; 0 where there is nothing at all."""
    return 2 * both / (said + true) if said + true else 0.0


def f1_by_label(true: Counter[Any], said: Counter[Any], both: Counter[Any]) -> dict[Any, float]:
    """F1 of each label that is there or was said."""
    return {label: f1(both[label], said[label], true[label]) for label in {**true, **said}}


def matthews(truths: list[Any], guesses: list[Any]) -> float:
    """Correlation of two labellings, of any number of labels (Gorodkin 2004); 0 where one of them never varies."""
    true, said, n = Counter(truths), Counter(guesses), len(truths)
    right = sum(map(_is_equal, truths, guesses))
    covariance = right * n - sum(true[label] * said[label] for label in true)
    spread = (n * n - sum(c * c for c in said.values())) * (n * n - sum(c * c for c in true.values()))
    return covariance / math.sqrt(spread) if spread else 0.0


def score_numbers(truths: list[float], guesses: list[float]) -> dict[str, float]:
    """Spearman's and Pearson's correlation, mean squared and mean absolute error."""
    gaps = [t - g for t, g in zip(truths, guesses, strict=True)]
    return {
        "spearman": pearson(rank_values(truths), rank_values(guesses)),
        "pearson": pearson(truths, guesses),
        "mse": math.fsum(g * g for g in gaps) / len(gaps),
        "mae": math.fsum(map(abs, gaps)) / len(gaps),
    }


def pearson(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's correlation; 0 where one side never varies."""
    if min(a) == max(a) or min(b) == max(b):
        return 0.0
    x, y = ([v - math.fsum(side) / len(side) for v in side] for side in (a, b))
    sizes = math.hypot(*x) * math.hypot(*y)
    return max(-1.0, min(1.0, math.fsum(p * q for p, q in zip(x, y, strict=True)) / sizes)) if sizes else 0.0


def rank_values(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            found[place] = (start + end - 1) / 2
        start = end
    return found


def score_tags(truths: list[Sequence[str]], guesses: list[Sequence[str]]) -> dict[str, float]:
    """F1, precision and recall of whole entities, and accuracy by word; of tags without entities, accuracy and F1."""
    for number, (true, said) in enumerate(zip(truths, guesses, strict=True), 1):
        if len(true) != len(said):
            raise Error(
                f"example {number} has {len(true)} tags, its guess {len(said)}", fix="give one tag for each word"
            )
    flat = [t for row in truths for t in row], [g for row in guesses for g in row]
    if not flat[0]:
        raise Error("there is nothing to judge", fix="give at least one word")
    accuracy = sum(map(_is_equal, *flat)) / len(flat[0])
    if (scheme := find_scheme({*flat[0], *flat[1]})) is None:  # parts of speech
        return score_labels(*flat)
    there, seen = (
        {(n, *e) for n, row in enumerate(rows) for e in find_entities(row, scheme == "suffix")}
        for rows in (truths, guesses)
    )
    both = len(there & seen)
    return {
        "f1": f1(both, len(seen), len(there)),
        "precision": both / len(seen) if seen else 0.0,
        "recall": both / len(there) if there else 0.0,
        "accuracy": accuracy,
    }


METRICS: dict[str, Callable[..., dict[str, float]]] = {
    "classify": score_labels, "regress": score_numbers, "tag": score_tags, "answer": score_answers,
    "choose": score_labels, "translate": bleu, "summarise": rouge,
}  # fmt: skip
