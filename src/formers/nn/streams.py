"""Two streams of one text (XLNet): content, which knows its token, and query, which knows only where it stands.

N tokens (packed), M places of the query stream, T the longest document.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..batch import Layout
from .attention import Attention
from .door import Sight, fusible
from .relative import Related


def order_tables(order: Tensor | None, layout: Layout) -> tuple[Tensor | None, Tensor | None]:
    """Who sees whom in either stream, (rows, T, T), by a factorisation order (N,): content sees what comes no later in
    it, query what comes before. Tokens of one order are revealed together; no order hides nothing."""
    if order is None:
        return None, None
    grid = layout.unpack(order)  # (rows, T)
    return grid[:, None] <= grid[..., None], grid[:, None] < grid[..., None]


def see_tables(see: Tensor) -> tuple[Tensor, Tensor]:
    """The same by a table of pairs; content always sees itself."""
    return see | torch.eye(see.shape[-1], dtype=torch.bool, device=see.device), see


class Streams(Related):
    """What the content stream sees, and beside it `other`, what the query stream sees.

    The query stream stands at the slots `at` (M,) (None: at all), where it lies behind the content stream in one tensor
    (N + M, dim). A slot that is there more than once, to fill up, counts once; a slot of -1 asks for nothing.
    """

    other: Related | None = None
    few: Related | None = None  # the same as `other`, of the asked places alone

    def add(self, other: Related, at: Tensor | None) -> None:
        """Let there be a query stream."""
        self.other, self.lost, self.at = other, other.blind()[:, None, None], at
        if at is not None:
            at = at.sort().values  # document by document
            asked, self.at = (at >= 0).float(), at.clamp(min=0)
            self.share = asked / asked.new_zeros(self.query.total).index_add(0, self.at, asked)[self.at].clamp(min=1)

    def pick(self, order: Tensor, segments: Tensor | None) -> None:
        """Know the masks as orders (N,), for a kernel that takes some places only; `segments` (N,) are those, too."""
        assert self.other is not None
        self.order, self.other.order = (order, order), (order - 1, order)
        if segments is not None:
            self.segments = self.other.segments = segments, segments
        if self.at is not None:
            starts = torch.searchsorted(self.at, self.query.starts.long()).to(torch.int32)
            few = Layout(starts, self.query.longest, self.at.shape[0])
            self.few = Related(few, self.query, mask=self.other.mask, heads=self.heads, probe=self.probe, kind="query")
            self.few.places, self.few.where = self.places, self.query.position[self.at]
            self.few.order = order[self.at] - 1, order
            self.few.segments = None if segments is None else (segments[self.at], segments)

    def spread(self, x: Tensor) -> Tensor:
        """(M, …) of the query stream → (N, …), zero where nobody asks."""
        if self.at is None:
            return x
        share = self.share.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        return x.new_zeros(self.query.total, *x.shape[1:]).index_add(0, self.at, x * share)

    def collect(self, x: Tensor) -> Tensor:
        """(N, …) → (M, …)"""
        return x if self.at is None else x.index_select(0, self.at)


class TwoStream(Attention):
    """Attention of both streams over the keys and values of the content stream (§2.3, eq. of g and h)."""

    def forward(self, x: Tensor, sight: Sight, layer: int = 0, held: Tensor | None = None) -> Tensor:
        """(N, dim), or (N + M, dim) of both → the same; `held` (rows, K, dim) are remembered states."""
        assert isinstance(sight, Streams)
        content, query = x[: sight.query.total], x[sight.query.total :]
        q, k, v = self.project(content, sight, layer)
        if held is not None:
            k, v = self.join(held, k, v, sight)
        y = self.mix(q, k, v, sight, layer)
        if sight.other is not None:
            q = self.some(query, 0, 1)[0]
            if sight.few is not None and fusible(q, sight.few, self.dropout, self.relative):
                z = self.mix(q, k, v, sight.few, layer)
            else:
                z = sight.collect(self.mix(sight.spread(q), k, v, sight.other, layer).masked_fill(sight.lost, 0.0))
            y = torch.cat((y, z))
        return self.o(y.flatten(1))
