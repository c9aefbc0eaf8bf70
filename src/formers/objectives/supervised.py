"""Supervised learning: the losses of a task's answers, for the same training loop as all objectives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import IGNORE_INDEX, Batch
from ..data.encoded_examples import EncodedSource
from ..protocols import Losses, Model
from .scheduled_sampling import ONLY_TARGET, ScheduledSampling
from .token_losses import BaseObjective, compute_token_loss, upcast_logits


@dataclass(frozen=True)
class Supervised(BaseObjective):
    """A head's part learns the answers of the examples of `source`; `task_kind` is the task's (task.py).
    `class_weights` are those of classes (of several labels: of each label's yes, then of each label's no); `target_std`
    is the standard deviation of numbers; `lm_weight` is the share of a language model's loss on the same text (GPT, eq.
    5); `sampling` says which inputs of a recurrent decoder are its own predictions, where it writes a text."""

    source: EncodedSource = field(compare=False, repr=False)
    task_kind: str
    part: str
    class_weights: tuple[float, ...] = ()
    target_std: float = 1.0
    label_smoothing: float = 0.0
    lm_weight: float = 0.0
    sampling: ScheduledSampling = ONLY_TARGET

    def count_labels(self, batch: Batch) -> dict[str, int]:
        """Return how many answers, and tokens of the language model, there are."""
        counts = {self.part: int(select_answered(self.task_kind, batch).sum())}
        if self.lm_weight:
            sizes = batch.starts[1:] - batch.starts[:-1]
            counts["lm"] = int((sizes - 1)[(batch.sample >= 0) & (sizes > 0)].sum())
        return counts

    def prepare_step_batch(self, batch: Batch, step: int) -> Batch:
        """Draw which inputs of the decoder are its own predictions, where it writes a text."""
        return self.sampling.draw_predicted_inputs(batch, step) if self.task_kind == "text" else batch

    def loss(self, model: Model, batch: Batch) -> Losses:
        """Compute the summed loss of the answers, and that of the language model."""
        if self.task_kind == "text":
            hidden = self.sampling.compute_hidden(model, batch, self.part)
            return {self.part: compute_token_loss(model, batch, self.part, hidden, self.label_smoothing)}
        hidden = model(batch)
        losses = {self.part: self.compute_head_loss(model.logits(hidden, batch, self.part), batch)}
        if self.lm_weight:
            losses["lm"] = self.compute_lm_loss(model, hidden, batch)
        return losses

    def compute_head_loss(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute the summed loss of what a head answers, and how many answers count."""
        logits, answer_mask = upcast_logits(logits), select_answered(self.task_kind, batch)
        ways = {
            "many": self.compute_multilabel_loss, "number": self.compute_regression_loss, "span": compute_span_loss,
            "choice": compute_choice_loss,
        }  # fmt: skip
        if self.task_kind in ways:
            return ways[self.task_kind](logits, batch, answer_mask), answer_mask.sum()
        weight = logits.new_tensor(self.class_weights) if self.class_weights else None
        answers = batch.labels if self.task_kind == "tags" else batch.document_labels
        if self.task_kind == "class" and batch.labels is not None:
            logits = sum_over_documents(logits, batch)
        total = F.cross_entropy(
            logits, answers, weight, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=self.label_smoothing
        )
        return total, answer_mask.sum()

    def compute_multilabel_loss(self, logits: Tensor, batch: Batch, answer_mask: Tensor) -> Tensor:
        """Compute the loss of each label on its own: yes or no."""
        labels = torch.where(answer_mask[:, None], batch.document_labels, 0.0)
        weight = None
        if self.class_weights:
            yes, no = logits.new_tensor(self.class_weights).chunk(2)
            weight = torch.where(labels > 0, yes, no)
        each = F.binary_cross_entropy_with_logits(logits, labels, weight, reduction="none").mean(1)
        return torch.where(answer_mask, each, 0.0).sum()

    def compute_regression_loss(self, logits: Tensor, batch: Batch, answer_mask: Tensor) -> Tensor:
        """Compute squared distances, in deviations of the training data."""
        logits = logits if batch.labels is None else sum_over_documents(logits, batch)
        far = (logits[:, 0] - batch.document_labels[:, 0]) / self.target_std
        return torch.where(answer_mask, far, 0.0).square().sum()

    def compute_lm_loss(self, model: Model, hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute a share of the language model's loss: each token but a document's first, from those before it."""
        document = batch.layout.document_ids
        follows = (document == document.roll(-1)) & (batch.sample >= 0)[document]
        follows[-1] = False
        labels = torch.where(follows, batch.ids.roll(-1), IGNORE_INDEX)
        logits = upcast_logits(model.logits(hidden, part="lm"))
        total = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORE_INDEX)
        return self.lm_weight * total, follows.sum()


def select_answered(kind: str, batch: Batch) -> Any:  # dynamic: of numpy in the loader, of torch in the model
    """Return which answers are asked for, in numpy or torch."""
    if kind in ("tags", "text"):
        return batch.labels != IGNORE_INDEX
    if kind in ("many", "span"):
        return batch.document_labels[:, 0] != IGNORE_INDEX
    if kind == "number":
        return batch.document_labels[:, 1] > 0
    return batch.document_labels == 1 if kind == "choice" else batch.document_labels != IGNORE_INDEX


def sum_over_documents(logits: Tensor, batch: Batch) -> Tensor:
    """Sum (D, C) answers over the documents of each example; every document gets its example's sum."""
    owner = find_example_ids(batch, len(logits))
    return torch.zeros_like(logits).index_add(0, owner, logits * (owner >= 0)[:, None])[owner]


def find_example_ids(batch: Batch, documents: int) -> Tensor:
    """Return (D,) the example of each document; dummy documents have one of their own."""
    real = batch.labels != IGNORE_INDEX
    chosen, labels = (torch.where(real, some, documents - 1) for some in (batch.chosen, batch.labels))
    return torch.arange(documents, device=batch.ids.device).index_copy(0, chosen, labels)


def compute_span_loss(logits: Tensor, batch: Batch, answer_mask: Tensor) -> Tensor:
    """Compute the loss of an answer's first and last token among all tokens of the document, in equal shares."""
    layout = batch.layout
    grid = layout.unpack(logits)  # (D, T, 2)
    real = torch.arange(layout.longest, device=logits.device) < layout.lengths[:, None]
    grid = grid.masked_fill(~real[..., None], torch.finfo(grid.dtype).min)
    sides = [
        F.cross_entropy(grid[..., i], batch.document_labels[:, i], reduction="sum", ignore_index=IGNORE_INDEX)
        for i in (0, 1)
    ]
    return (sides[0] + sides[1]) / 2


def compute_choice_loss(logits: Tensor, batch: Batch, answer_mask: Tensor) -> Tensor:
    """Compute the loss of the right one among the documents of an example."""
    scores, owner = logits[:, 0], find_example_ids(batch, len(logits))
    most = torch.full_like(scores, -torch.inf).scatter_reduce(0, owner, scores.detach(), "amax")
    total = torch.zeros_like(scores).index_add(0, owner, (scores - most[owner]).exp())
    return torch.where(answer_mask, (total.clamp(min=1e-30).log() + most)[owner] - scores, 0.0).sum()


def compute_class_weights(answers: np.ndarray, count: int) -> tuple[float, ...]:
    """Compute weights that make rare classes count as much as frequent ones; their mean over the examples is 1."""
    seen = np.bincount(answers[answers >= 0], minlength=count).astype(float)
    return tuple((seen.sum() / np.maximum(1, count * seen)).tolist())


def compute_label_weights(answers: np.ndarray, count: int) -> tuple[float, ...]:
    """Compute class weights of (E, C) yes-or-no labels: those of all positives, then those of all negatives."""
    each = [compute_class_weights(answers[answers[:, i] >= 0, i].astype(np.int64), 2) for i in range(count)]
    return (*(yes for _, yes in each), *(no for no, _ in each))
