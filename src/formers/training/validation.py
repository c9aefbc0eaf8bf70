"""Validation: a model's losses and accuracy on validation text, and those of a unigram."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..data.store import Store
from ..model import Model
from ..protocols import Losses, Objective
from .executor import CarriedStates, Memory, Step


@dataclass(frozen=True)
class Score:
    """Nats per predicted token, the accuracy, and every loss and share by its name."""

    loss: float
    accuracy: float
    metrics: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def from_means(means: dict[str, float], objective: Objective) -> Score:
        """Pick the loss and accuracy of an objective's own part out of the means of all."""
        part = objective.part
        return Score(means.get(part, math.nan), means.get(f"{part}/accuracy", math.nan), means)


COUNT_BLOCK_TOKENS, MAX_COUNT_BLOCKS = 1 << 22, 32  # tokens that are counted at a time, and how many times
# (batch, memory, objective, count correct tokens) → losses: Executor.forward, or a Step
ForwardFunction = Callable[[Batch, Memory | None, Objective, bool], Losses]


@torch.no_grad()
def evaluate(
    model: Model, objective: Objective, batches: Iterable[Batch], forward: ForwardFunction | None = None,
    sum_over_ranks: Callable[[list[float]], list[float]] = list, device: torch.device | None = None,
) -> Score:  # fmt: skip
    """Score a model on batches; several processes add theirs up with `sum_over_ranks`, and `forward` is then the one
    that they share."""
    device, was_training = device or next(model.parameters()).device, model.training
    run = forward or Step(model, objective)
    model.eval()
    sums: dict[str, Tensor] = {}
    memories = CarriedStates(model, objective)
    for batch in batches:
        for name, pair in run(batch.to(device), memories.select_for_batch(batch), objective, True).items():
            sums[name] = sums.get(name, 0) + torch.stack([value.double() for value in pair])
    model.train(was_training)
    names = sorted(sums)
    flat = sum_over_ranks([value for name in names for value in sums[name].tolist()])
    return Score.from_means({name: flat[2 * i] / max(1.0, flat[2 * i + 1]) for i, name in enumerate(names)}, objective)


def compute_unigram_baseline(store: Store, objective: Objective, batches: Iterable[Batch]) -> Score:
    """Score a guess by token frequencies alone: counts of the training text (of a large one, of parts of it from its
    beginning to its end), plus one."""
    counts, places = np.ones(store.vocab), range(0, len(store.tokens), COUNT_BLOCK_TOKENS)
    for low in places[:: -(-len(places) // MAX_COUNT_BLOCKS)] if places else ():
        counts += np.bincount(np.asarray(store.tokens[low : low + COUNT_BLOCK_TOKENS]), minlength=store.vocab)
    labels = np.concatenate([objective.select_labels(batch) for batch in batches])
    return Score(float(-np.log(counts / counts.sum())[labels].mean()), float((labels == counts.argmax()).mean()))
