"""The output layer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Output(nn.Module):
    """The last layer; its weight is handed in when it is tied to the token embedding."""

    def __init__(self, dim: int, width: int, *, bias: bool, tied: bool, frozen: bool = False):
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(width, dim))
        self.bias = nn.Parameter(torch.empty(width), requires_grad=not frozen) if bias else None
        self.wide: tuple[Tensor, Tensor | None] | None = None  # weight and bias filled up, while someone reads with it

    def forward(self, x: Tensor, tied: Tensor) -> Tensor:
        """(M, dim) → (M, width)"""
        weight = tied if self.weight is None else self.weight
        width = weight.shape[0]
        wide = self.wide
        if wide is not None:
            return F.linear(x, *wide)[..., :width]
        rest = -width % 64 if x.is_cuda and width % 8 and torch.is_grad_enabled() else 0
        if not rest:
            return F.linear(x, weight, self.bias)
        # Rows of an odd length keep a GPU from its fast products: a vocabulary is filled up while training.
        return F.linear(x, *self.filled(weight, rest))[..., :width]

    def filled(self, weight: Tensor, rest: int) -> tuple[Tensor, Tensor | None]:
        """A weight and the bias with so many more outputs."""
        return F.pad(weight, (0, 0, 0, rest)), None if self.bias is None else F.pad(self.bias, (0, rest))

    @contextlib.contextmanager
    def widened(self, wide: tuple[Tensor, Tensor | None] | None) -> Iterator[None]:
        """Read with a weight and bias that were filled up once, for many steps."""
        self.wide = wide
        try:
            yield
        finally:
            self.wide = None
