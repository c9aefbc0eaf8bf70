"""The output layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Output(nn.Module):
    """The last layer; its weight is handed in when it is tied to the token embedding."""

    def __init__(self, dim: int, width: int, *, bias: bool, tied: bool, frozen: bool = False):
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(width, dim))
        self.bias = nn.Parameter(torch.empty(width), requires_grad=not frozen) if bias else None

    def forward(self, x: Tensor, tied: Tensor) -> Tensor:
        """(M, dim) → (M, width)"""
        return F.linear(x, tied if self.weight is None else self.weight, self.bias)
