"""What a model is worth: its loss and accuracy on held-out text, beside those of a unigram."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..batch import Batch
from ..data.store import Store
from ..objectives.tokens import IGNORED, token_hits
from ..tasks.heads import Model


@dataclass(frozen=True)
class Score:
    """Nats per predicted token, and the share of right guesses."""

    loss: float
    accuracy: float


@torch.inference_mode()
def evaluate(model: Model, objective: Any, batches: Iterable[Batch]) -> Score:
    """The model's score on batches."""
    device, was = next(model.parameters()).device, model.training
    model.eval()
    sums = np.array([token_hits(model, batch.to(device), objective.part) for batch in batches]).sum(0)
    model.train(was)
    return Score(float(sums[0] / sums[2]), float(sums[1] / sums[2]))


def unigram(store: Store, batches: Iterable[Batch]) -> Score:
    """What knowing only how frequent each token is would give: counts of the training text, plus one."""
    counts = np.bincount(store.tokens, minlength=store.vocab).astype(np.float64) + 1
    labels = np.concatenate([batch.labels[batch.labels != IGNORED] for batch in batches])
    return Score(float(-np.log(counts / counts.sum())[labels].mean()), float((labels == counts.argmax()).mean()))
