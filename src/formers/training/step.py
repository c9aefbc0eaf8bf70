"""Step: the one module that the trainer wraps. Compile, DDP and sharding see only it and the blocks inside."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..batch import Batch
from ..tasks.heads import Model


class Step(nn.Module):
    """A model and what it is trained on; forward gives the named losses as (sum, count)."""

    def __init__(self, model: Model, objective: Any):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The losses of a batch."""
        return self.objective.loss(self.model, batch)
