"""What a model is worth: its losses and right guesses on held-out text, beside those of a unigram."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..batch import Batch
from ..data.store import Store
from ..objectives.tokens import IGNORED
from .memories import Memories
from .step import Step


@dataclass(frozen=True)
class Score:
    """Nats per predicted token, the share of right guesses, and every loss and share by its name."""

    loss: float
    accuracy: float
    all: dict[str, float] = field(default_factory=dict)


Forward = Callable[[Batch, Any, Any, bool], Any]


@torch.no_grad()
def evaluate(
    model: Any,
    objective: Any,
    batches: Iterable[Batch],
    forward: Forward | None = None,
    add: Callable[[list[float]], list[float]] = list,
    device: torch.device | None = None,
) -> Score:
    """The model's score on batches; several processes `add` theirs up, and `forward` is then the one they share."""
    device, was = device or next(model.parameters()).device, model.training
    run: Any = forward or Step(model, objective)
    model.eval()
    sums: dict[str, list[float]] = {}
    memories = Memories(model, objective)
    for batch in batches:
        for name, pair in run(batch.to(device), memories.of(batch), objective, True).items():
            known = sums.setdefault(name, [0.0, 0.0])
            for i, value in enumerate(pair):
                known[i] += float(value)
    model.train(was)
    names = sorted(sums)
    flat = add([value for name in names for value in sums[name]])
    means = {name: flat[2 * i] / max(1.0, flat[2 * i + 1]) for i, name in enumerate(names)}
    part = getattr(objective, "part", "")
    return Score(means.get(part, math.nan), means.get(f"{part}/right", math.nan), means)


def unigram(store: Store, batches: Iterable[Batch]) -> Score:
    """What knowing only how frequent each token is would give: counts of the training text, plus one."""
    counts = np.ones(store.vocab)
    for low in range(0, len(store.tokens), 1 << 24):
        counts += np.bincount(np.asarray(store.tokens[low : low + (1 << 24)]), minlength=store.vocab)
    labels = np.concatenate([batch.labels[batch.labels != IGNORED] for batch in batches])
    return Score(float(-np.log(counts / counts.sum())[labels].mean()), float((labels == counts.argmax()).mean()))
