"""XLNet's scores: Transformer-XL's distances, and whether two tokens are of one segment."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .door import Sight
from .positions import Distances, slid


class Related(Sight):
    """A sight that knows how its tokens are related.

    `places` (K + Q, dim) stand for the distances K - 1 … -Q, `back` for those of the second half of the rows, if its
    text is back to front; `differs` (rows, 1, Q, K) says whether a key's segment is another than its query's.
    """

    back: Tensor | None = None
    differs: Tensor | None = None
    segments: tuple[Tensor, Tensor] | None = None  # of queries (N,) and of keys, the same unrolled


class Relations(Distances):
    """(q + u)·k + (q + v)·W r(distance) + (q + s)·segment[differs] (Yang et al. 2019, §2.5). A hook of Attention."""

    def __init__(self, dim: int, heads: int, head_dim: int):
        super().__init__(dim, heads, head_dim)
        self.s = nn.Parameter(torch.empty(heads, head_dim))
        self.segment = nn.Parameter(torch.empty(2, heads, head_dim))

    def forward(self, q: Tensor, k: Tensor, scale: float, sight: Sight) -> tuple[Tensor, Tensor]:
        """Queries (rows, H, Q, D) and keys (rows, H, K, D) → queries, and the bias (rows, H, Q, K)"""
        assert isinstance(sight, Related)
        u, v, s = (self.left(b).to(q.dtype)[:, None] for b in (self.biases.u, self.biases.v, self.s))  # (H, 1, D)
        half = q.shape[0] if sight.back is None else (q.shape[0] + 1) // 2
        parts = zip(((q + v)[:half], (q + v)[half:]), (sight.places, sight.back), strict=True)
        bias = torch.cat(
            [slid(part @ self.keys(places, q), k.shape[2]) for part, places in parts if places is not None]
        )
        if sight.differs is not None:
            scores = (q + s) @ self.left(self.segment, 1).permute(1, 2, 0).to(q.dtype)  # (rows, H, Q, 2)
            bias = bias + torch.where(sight.differs, scores[..., 1:], scores[..., :1])
        return q + u, bias * scale

    def scores(self, q: Tensor, scale: float, sight: Sight) -> tuple[Tensor, Tensor, Tensor | None]:
        """As Transformer-XL's; of the segments only the difference counts, softmax takes no notice of the rest"""
        queries, scores, _ = super().scores(q, scale, sight)
        if getattr(sight, "segments", None) is None:
            return queries, scores, None
        s, segment = self.left(self.s).to(q.dtype), self.left(self.segment, 1).to(q.dtype)  # (H, D), (2, H, D)
        return queries, scores, ((q + s) * ((segment[1] - segment[0]) * scale)).sum(-1).T
