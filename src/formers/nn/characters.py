"""Convolutions over short sequences, and words out of their characters (Kim et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .feedforward import activation


class Filters(nn.ModuleList):
    """Filters of several widths side by side, each at its best place: max over time (Collobert et al. 2011)."""

    def __init__(self, width: int, filters: Sequence[Sequence[int]]):
        super().__init__(nn.Conv1d(width, number, size) for size, number in filters)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) → (N, number of all filters)"""
        x = x.transpose(1, 2)
        return torch.cat([filters(x).amax(-1) for filters in self], -1)


class Highway(nn.Module):
    """g · relu(transform(x)) + (1 - g) · x with g = σ(gate(x)) (Srivastava et al. 2015)."""

    def __init__(self, dim: int):
        super().__init__()
        self.transform, self.gate = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(N, dim) → (N, dim)"""
        return torch.lerp(x, F.relu(self.transform(x)), torch.sigmoid(self.gate(x)))


class CharacterCNN(nn.Module):
    """Words out of their characters: convolutions, highways, a projection. Id 0 is no character: a vector of zeros."""

    def __init__(
        self, characters: int, width: int, filters: Sequence[Sequence[int]], highways: int, out: int, act: str = "relu"
    ):
        super().__init__()
        total = sum(number for _, number in filters)
        self.character = nn.Embedding(characters, width)
        self.filters = Filters(width, filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(highways))
        self.project = nn.Linear(total, out)
        self.widest, self.act = max(size for size, _ in filters), activation(act)

    def forward(self, ids: Tensor) -> Tensor:
        """(N, slots) → (N, out)"""
        ids, again = (ids, None) if torch.compiler.is_compiling() else self.shorter(ids)
        table = F.pad(self.character.weight[1:], (0, 0, 1, 0))
        x = self.act(self.filters(F.embedding(ids, table)))
        for highway in self.highways:
            x = highway(x)
        x = self.project(x)
        return x if again is None else x.index_select(0, again)

    def shorter(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same words without what would be computed twice: a word that comes again, and the columns in which every
        word repeats its last character (the padding) beyond one window of the widest filter."""
        words, again = ids.unique(dim=0, return_inverse=True)
        changing = (words != words[:, -1:]).any(0).nonzero()
        columns = (int(changing[-1]) + 1 if len(changing) else 0) + self.widest
        return words[:, :columns], again
