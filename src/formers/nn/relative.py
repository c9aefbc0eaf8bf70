"""Scores that depend on the query and on where a key lies relative to it (Transformer-XL, XLNet).

H heads, D head dim, Q queries and K keys of a row, J = Q + K distances.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Relation:
    """What the layers of one pass share: encodings of the distances K, K - 1, … 1 - Q of a key behind its query, and
    whether a key's segment differs from its query's. `back` encodes the distances of the second half of the rows,
    whose text is reversed (None: there is no such half)."""

    ahead: Tensor  # (J, dim)
    back: Tensor | None = None  # (J, dim)
    differs: Tensor | None = None  # (rows, 1, Q, K) bool


class RelativeScores(nn.Module):
    """(q + u)·k + (q + v)·W r(distance) + (q + s)·segment[differs], all times the scale: Dai et al. 2019, §3.3, and the
    relative segments of Yang et al. 2019, §2.5. The first part is left to the kernel."""

    def __init__(self, dim: int, heads: int, head_dim: int):
        super().__init__()
        self.r = nn.Linear(dim, heads * head_dim, bias=False)
        self.u, self.v, self.s = (nn.Parameter(torch.empty(heads, head_dim)) for _ in range(3))
        self.segment = nn.Parameter(torch.empty(2, heads, head_dim))

    def forward(self, q: Tensor, k: Tensor, scale: float, relation: Relation) -> tuple[Tensor, Tensor]:
        """(rows, H, Q, D), (rows, H, K, D) → queries (rows, H, Q, D) and a bias (rows, H, Q, K)"""
        u, v, s, segment = (p.to(q.dtype) for p in (self.u, self.v, self.s, self.segment))
        keys, half = k.shape[2], q.shape[0] if relation.back is None else (q.shape[0] + 1) // 2
        parts = zip((q[:half], q[half:]), (relation.ahead, relation.back), strict=True)
        bias = torch.cat([self.place(part + v[:, None], r, keys) for part, r in parts if r is not None])
        if relation.differs is not None:
            same, other = torch.einsum("bhqd,shd->sbhq", q + s[:, None], segment)[..., None]
            bias = bias + torch.where(relation.differs, other, same)
        return q + u[:, None], bias * scale

    def place(self, q: Tensor, distances: Tensor, keys: int) -> Tensor:
        """The part of the positions: (rows, H, Q, D), (J, dim) → (rows, H, Q, K)"""
        r = self.r(distances).unflatten(-1, self.u.shape)  # (J, H, D)
        return shift(torch.einsum("bhqd,jhd->bhqj", q, r.to(q.dtype)), keys)


def shift(scores: Tensor, keys: int) -> Tensor:
    """(…, Q, J) scores at distances K, K - 1, … of each query → (…, Q, K) scores of each key.

    Query i of the last Q of K slots and key j are at entry Q - i + j; in a row-major line, that is Q + i·(J - 1) + j.
    """
    queries, distances = scores.shape[-2:]
    return scores.flatten(-2)[..., queries:].unflatten(-1, (queries, distances - 1))[..., :keys]
