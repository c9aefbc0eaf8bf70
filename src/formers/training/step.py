"""Step: the one module that the trainer wraps. Compile, DDP and sharding see only it and the blocks inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..data.loader import IGNORED
from ..objectives.tokens import at_chosen
from ..tasks.heads import Model

Losses = dict[str, tuple[Tensor, Tensor]]


class Watched:
    """A model as an objective sees it, with what it remembers of the batches before; its last states are kept."""

    def __init__(self, model: Model, memory: Any):
        self.model, self.how = model, {} if memory is None else {memory.argument: memory}

    def __call__(self, batch: Batch, **how: Any) -> Tensor:
        """Hidden states."""
        self.hidden = self.model(batch, **self.how, **how)
        return self.hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class Step(nn.Module):
    """A model and what it is trained on; forward gives the named losses as (sum, count)."""

    def __init__(self, model: Model, objective: Any):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, memory: Any = None, objective: Any = None, judge: bool = False) -> Losses:
        """The losses of a batch; to `judge` adds the right guesses as name/right."""
        objective = objective or self.objective
        if memory is None and not judge:
            return objective.loss(self.model, batch)
        model = Watched(self.model, memory)
        losses = objective.loss(model, batch)
        return {**losses, **right(model, batch, objective)} if judge else losses


@torch.no_grad()
def right(model: Any, batch: Batch, objective: Any) -> Losses:
    """How many tokens are guessed right, and how many documents' answers, by the states of the pass before."""
    found: Losses = {}
    part, answer = getattr(objective, "part", ""), getattr(objective, "answer", None)
    if part not in model.parts or model.parts[part].head.ways > 1:
        return found
    hidden = model.hidden
    guess = model.logits(at_chosen(hidden, batch), part=part).argmax(-1)
    found[f"{part}/right"] = (guess == batch.labels).sum(), (batch.labels != IGNORED).sum()
    if answer is not None and batch.answers is not None:
        guess = model.logits(hidden, batch, part=answer).argmax(-1)
        found[f"{answer}/right"] = (guess == batch.answers).sum(), (batch.answers != IGNORED).sum()
    return found
