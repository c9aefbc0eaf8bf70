"""Convolutions: over short sequences, for words out of their characters (Kim et al. 2016), and along packed documents.
Also the bound on the rows of a weight. N tokens, D documents."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...batch import Layout
from ..layers import get_activation


class Highway(nn.Module):
    """g · relu(transform(x)) + (1 - g) · x with g = σ(gate(x)) (Srivastava et al. 2015)."""

    def __init__(self, dim: int):
        super().__init__()
        self.transform, self.gate = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(N, dim) → (N, dim)"""
        return torch.lerp(x, F.relu(self.transform(x)), torch.sigmoid(self.gate(x)))


class CharacterCNN(nn.Module):
    """Words out of their characters: filters of several widths, each at its best place (max over time, Collobert et al.
    2011), highways, a projection. Id 0 is padding: a vector of zeros."""

    def __init__(
        self, characters: int, width: int, filters: Sequence[Sequence[int]], highways: int, out: int, act: str = "relu"
    ):
        super().__init__()
        total = sum(number for _, number in filters)
        self.character = nn.Embedding(characters, width)
        self.filters = nn.ModuleList(nn.Conv1d(width, number, size) for size, number in filters)
        self.highways = nn.ModuleList(Highway(total) for _ in range(highways))
        self.project = nn.Linear(total, out)
        self.max_filter_width, self.act = max(size for size, _ in filters), get_activation(act)

    def forward(self, ids: Tensor) -> Tensor:
        """(N, slots) → (N, out)"""
        ids, again = (ids, None) if torch.compiler.is_compiling() else self.deduplicate_words(ids)
        table = F.pad(self.character.weight[1:], (0, 0, 1, 0))
        x = F.embedding(ids, table).transpose(1, 2)
        x = self.act(torch.cat([conv(x).amax(-1) for conv in self.filters], -1))
        for highway in self.highways:
            x = highway(x)
        x = self.project(x)
        return x if again is None else x.index_select(0, again)

    def deduplicate_words(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Leave out what would be computed twice: a word that comes again, and the columns in which every word repeats
        its last character (the padding) beyond one window of the widest filter. Also return which word each was."""
        words, again = ids.unique(dim=0, return_inverse=True)
        changing = (words != words[:, -1:]).any(0).nonzero()
        columns = (int(changing[-1]) + 1 if len(changing) else 0) + self.max_filter_width
        return words[:, :columns], again


class PackedConv(nn.Module):
    """Filters of several widths side by side; none reads across the end of its document. A window of h words starts at
    each word from which h are left; the words after those give the last window once more, which a maximum over the
    document does not notice. A document shorter than h has one window, filled up with zeros. With `centred` every word
    is in the middle of its own window, which is filled up with zeros at both ends of the document."""

    def __init__(self, width: int, filters: int, sizes: Sequence[int], *, centred: bool = False):
        super().__init__()
        self.centred = centred
        self.filters = nn.ModuleList(nn.Conv1d(width, filters, h) for h in sizes)
        self.sizes = tuple(sizes)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(N, width) → (N, sizes · filters)"""
        gap = max(self.sizes) - 1  # zeros after each document: its windows meet them and not its neighbour
        slots = torch.arange(layout.num_tokens, device=x.device) + layout.document_ids * gap
        line = x.new_zeros(layout.num_tokens + layout.rows * gap, x.shape[1]).index_copy(0, slots, x).T[None]
        maps = []
        for h, conv in zip(self.sizes, self.filters, strict=True):
            if self.centred:
                maps.append(conv(F.pad(line, ((h - 1) // 2, h // 2)))[0].T.index_select(0, slots))
                continue
            last = (layout.lengths[layout.document_ids] - h).clamp(min=0)  # where the last window starts
            back = (layout.positions - last).clamp(min=0)
            maps.append(conv(line)[0].T.index_select(0, slots - back))
        return torch.cat(maps, 1)


@torch.no_grad()
def clip_row_norms(weight: Tensor, most: float) -> None:
    """Scale down, in place, the rows whose length is above `most`; the others stay as they are (Hinton et al. 2012)."""
    length = weight.norm(dim=1, keepdim=True)
    weight.copy_(torch.where(length > most, weight * (most / length), weight))
