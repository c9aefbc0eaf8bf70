"""Convolutions along packed documents, and the bound on the rows of a weight. N tokens, D documents."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..batch import Layout


class Convolutions(nn.Module):
    """Filters of several widths side by side; none looks across the end of its document.

    A window of h words starts at each word from which h are left; the words after those give the last window once more,
    which a maximum over the document does not notice. A document shorter than h has one window, filled up with zeros.
    """

    def __init__(self, width: int, filters: int, sizes: Sequence[int]):
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(width, filters, h) for h in sizes)
        self.sizes = tuple(sizes)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(N, width) → (N, sizes · filters)"""
        gap = max(self.sizes) - 1  # zeros behind each document: its windows meet them and not its neighbour
        slots = torch.arange(layout.total, device=x.device) + layout.document * gap
        line = x.new_zeros(layout.total + layout.rows * gap, x.shape[1]).index_copy(0, slots, x).T[None]
        maps = []
        for h, conv in zip(self.sizes, self.filters, strict=True):
            last = (layout.lengths[layout.document] - h).clamp(min=0)  # where the last window starts
            back = (layout.position - last).clamp(min=0)
            maps.append(conv(line)[0].T.index_select(0, slots - back))
        return torch.cat(maps, 1)


@torch.no_grad()
def bound_rows(weight: Tensor, most: float) -> None:
    """Scale down, in place, the rows whose length is above `most`; the others stay as they are (Hinton et al. 2012)."""
    length = weight.norm(dim=1, keepdim=True)
    weight.copy_(torch.where(length > most, weight * (most / length), weight))
