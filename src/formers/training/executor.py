"""Step: the one module that the trainer wraps. Compile, DDP and sharding see only it and the blocks inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..batch import IGNORE_INDEX, Batch
from ..model import Model
from ..objectives.token_losses import select_chosen
from ..protocols import Objective

Losses = dict[str, tuple[Tensor, Tensor]]


class StatefulModel:
    """A model as an objective sees it, with what it remembers of the batches before; its last states are kept."""

    def __init__(self, model: Model, memory: Any):
        self.model, self.state_options = model, {} if memory is None else {memory.forward_argument: memory}

    def __call__(self, batch: Batch, **how: Any) -> Tensor:
        """Hidden states."""
        self.hidden = self.model(batch, **self.state_options, **how)
        return self.hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class Step(nn.Module):
    """A model and what it is trained on; forward gives the named losses as (sum, count)."""

    def __init__(self, model: Model, objective: Any):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self, batch: Batch, memory: Any = None, objective: Any = None, count_correct_tokens: bool = False
    ) -> Losses:
        """The losses of a batch; `count_correct_tokens` adds the right guesses as name/right."""
        objective = objective or self.objective
        if memory is None and not count_correct_tokens:
            return objective.loss(self.model, batch)
        model = StatefulModel(self.model, memory)
        losses = objective.loss(model, batch)
        return {**losses, **count_correct(model, batch, objective)} if count_correct_tokens else losses


@torch.no_grad()
def count_correct(model: Any, batch: Batch, objective: Objective) -> Losses:
    """How many tokens are guessed right, and how many documents' answers, by the states of the pass before."""
    found: Losses = {}
    part, answer = objective.part, objective.pair_part
    if part not in model.parts or model.parts[part].spec.directions > 1:
        return found
    hidden = model.hidden
    guess = model.logits(select_chosen(hidden, batch), part=part).argmax(-1)
    found[f"{part}/right"] = (guess == batch.labels).sum(), (batch.labels != IGNORE_INDEX).sum()
    if answer is not None and batch.document_labels is not None:
        guess = model.logits(hidden, batch, part=answer).argmax(-1)
        found[f"{answer}/right"] = (guess == batch.document_labels).sum(), (batch.document_labels != IGNORE_INDEX).sum()
    return found
