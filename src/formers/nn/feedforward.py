"""The position-wise feed-forward layer, and the activations by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import Error
from .dropout import Dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "linear": lambda x: x,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """An activation by its name."""
    if name not in ACTIVATIONS:
        raise Error(f"unknown activation {name!r}", fix="known: " + ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """down(act(up(x))), or gated: down(act(gate(x)) · up(x)) (Shazeer 2020)."""

    def __init__(
        self, dim: int, hidden: int, act: str = "gelu", *, gated: bool = False, bias: bool = True, dropout: float = 0.0
    ):
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.gate = nn.Linear(dim, hidden, bias=bias) if gated else None
        self.down = nn.Linear(hidden, dim, bias=bias)
        self.act, self.dropout = activation(act), Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, dim) → (N, dim)"""
        hidden = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        return self.down(self.dropout(hidden))
