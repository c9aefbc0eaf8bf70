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
        weight = tied if self.weight is None else self.weight
        width = weight.shape[0]
        rest = -width % 64 if x.is_cuda and width % 8 and torch.is_grad_enabled() else 0
        if not rest:
            return F.linear(x, weight, self.bias)
        # Rows of an odd length keep a GPU from its fast products: a vocabulary is filled up while training.
        bias = None if self.bias is None else F.pad(self.bias, (0, rest))
        return F.linear(x, F.pad(weight, (0, 0, 0, rest)), bias)[..., :width]
