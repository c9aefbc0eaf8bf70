"""Step: the one module that the trainer wraps. Compile, DDP and sharding see only it and the blocks inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..data.loader import IGNORED
from ..nn.memory import Memory
from ..objectives.tokens import at_chosen
from ..tasks.heads import Model
from .memories import replica

Losses = dict[str, tuple[Tensor, Tensor]]


class Recalling:
    """A model as an objective sees it, with what it remembers of the batches before."""

    def __init__(self, model: Model, memory: Any):
        self.model, self.memory = model, memory

    def __call__(self, batch: Batch, **how: Any) -> Tensor:
        """Hidden states."""
        return self.model(batch, **{"memory" if isinstance(self.memory, Memory) else "cache": self.memory}, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class Step(nn.Module):
    """A model and what it is trained on; forward gives the named losses as (sum, count)."""

    def __init__(self, model: Model, objective: Any):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, memory: Any = None, objective: Any = None, judge: bool = False) -> Losses:
        """The losses of a batch; to `judge` adds the right guesses as name/right."""
        objective, found = objective or self.objective, {}
        if judge:  # a memory moves on with every pass: this one has a copy
            found = right(self.recalling(None if memory is None else replica(memory)), batch, objective)
        return {**objective.loss(self.recalling(memory), batch), **found}

    def recalling(self, memory: Any) -> Any:
        """The model, with what it remembers."""
        return self.model if memory is None else Recalling(self.model, memory)


@torch.no_grad()
def right(model: Model, batch: Batch, objective: Any) -> Losses:
    """How many tokens are guessed right, and how many documents' answers."""
    found: Losses = {}
    part, answer = getattr(objective, "part", ""), getattr(objective, "answer", None)
    if part not in model.parts or model.parts[part].head.ways > 1:
        return found
    hidden = model(batch)
    guess = model.logits(at_chosen(hidden, batch), part=part).argmax(-1)
    found[f"{part}/right"] = (guess == batch.labels).sum(), (batch.labels != IGNORED).sum()
    if answer is not None and batch.answers is not None:
        guess = model.logits(hidden, batch, part=answer).argmax(-1)
        found[f"{answer}/right"] = (guess == batch.answers).sum(), (batch.answers != IGNORED).sum()
    return found
