"""Label filters: a classifier must still predict the label of a new example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import Error
from ..former import Former
from ..tasks.api import get_task
from ..tasks.examples import flatten

Row = dict[str, Any]
LabelFilter = Callable[[list[Row]], list[bool]]


def make_label_filter(keep: Any, rows: Sequence[Row], min_probability: float) -> LabelFilter:
    """Says of rows whether a classifier gives them the label that they have, or all of them and no other, each with
    the probability `min_probability` at least: "linear" learns from the rows, a Former has learnt from such rows
    before."""
    if keep is None:
        return lambda new: [True] * len(new)
    if isinstance(keep, Former):
        shares = make_model_scorer(keep, rows)
    elif isinstance(keep, str) and keep == "linear":
        shares = make_linear_scorer(rows)
    else:
        raise Error(f"{keep!r} does not judge labels", fix="take 'linear', a fine-tuned model, or None")
    several = any(isinstance(row["label"], list) for row in rows)

    def keep_label(new: list[Row]) -> list[bool]:
        return [
            has_same_label(found, row["label"], several, min_probability)
            for found, row in zip(shares(new), new, strict=True)
        ]

    return keep_label


def has_same_label(shares: Mapping[str, float], label: Any, several: bool, sure: float) -> bool:
    """Return whether a classifier's probabilities confirm a row's label or labels."""
    own = flatten([label])
    if not several:
        return shares[own[0]] >= max(sure, *shares.values())
    seen = {name for name, share in shares.items() if share > 0.5}
    return seen == set(own) and all(shares[name] >= sure for name in own)


def make_linear_scorer(rows: Sequence[Row]) -> Callable[[list[Row]], list[dict[str, float]]]:
    """Train a linear model on the rows; returns a function from rows to label probabilities."""
    from ..evaluation.metrics import LinearBaseline

    model = LinearBaseline(rows)
    return lambda new: [dict(zip(model.labels, row.tolist(), strict=True)) for row in model.predict_probabilities(new)]


def make_model_scorer(keep: Former, rows: Sequence[Row]) -> Callable[[list[Row]], list[dict[str, float]]]:
    """Check that a fine-tuned model has the labels of the rows; returns a function from rows to probabilities."""
    task = get_task(keep, "classify")
    known, own = set(task.labels or keep.labels), set(flatten(row["label"] for row in rows))
    if known != own:
        said = [", ".join(sorted(names)[:8]) for names in (known, own)]
        what = f"this judge knows the labels {said[0]}, and the examples have {said[1]}"
        raise Error(what, fix="take a model that was trained on such examples, or 'linear'")
    if (task.kind == "many") != (several := any(isinstance(row["label"], list) for row in rows)):
        what = "the examples have several labels each" if several else "the judge gives several labels"
        raise Error(f"{what}, and {'the judge gives one' if several else 'the examples have one'}", fix="take 'linear'")

    def shares(new: list[Row]) -> list[dict[str, float]]:
        texts = [(row["text"], row["other"]) if row.get("other") else row["text"] for row in new]
        return [one.probabilities for one in keep.classify(texts)]

    return shares
