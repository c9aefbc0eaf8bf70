"""The processes of a run: alone, or several under torchrun that share every step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class World:
    """This process alone; training/distributed.py has the ones with company."""

    rank: int = 0
    size: int = 1

    def wrap(self, step: nn.Module) -> nn.Module:
        """The module that sees all processes' gradients."""
        return step

    @contextlib.contextmanager
    def last(self, step: nn.Module, last: bool) -> Iterator[None]:
        """Gradients are exchanged after the last batch of a step only."""
        yield

    def total(self, counts: Sequence[dict[str, int]]) -> dict[str, float]:
        """How many places each loss has in the whole step, over all processes."""
        names = sorted({name for count in counts for name in count})
        return dict(zip(names, self.add([sum(c.get(name, 0) for c in counts) for name in names]), strict=True))

    def mean(self, sums: dict[str, Tensor], counts: dict[str, float]) -> dict[str, float]:
        """The mean of each loss over the step."""
        names = sorted(sums)
        totals = self.add(torch.stack([sums[name].double() for name in names]).tolist()) if names else []
        return {name: total / max(1.0, counts[name]) for name, total in zip(names, totals, strict=True)}

    def add(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over all processes."""
        return [float(v) for v in values]

    def count(self, tokens: int) -> int:
        """Tokens of all processes."""
        return int(self.add([tokens])[0])

    def norm(self, model: nn.Module, most: float) -> Tensor:
        """The norm of the gradient, which is cut to at most `most`."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), most)

    def any(self, flag: bool) -> bool:
        """Does any process say so?"""
        return bool(self.add([float(flag)])[0])

    def weights(self, model: Any) -> Any:
        """The model's weights, whole."""
        return model
