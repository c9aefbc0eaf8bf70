"""Alignments of recurrent decoders: where in the source a state looks.

R documents, T queries each, L the longest source document; the memory is packed (S, width).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..batch import Layout
from .recurrent import Steps

Score = Literal["dot", "general", "concat"]


class Dot(nn.Module):
    """s · h (Luong et al. 2015, §3.1)"""

    def keys(self, memory: Tensor) -> Tensor:
        """What of the memory does not depend on the query, (S, width) → (S, dim): made once."""
        return memory

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """(R, T, dim), (R, L, dim) → (R, T, L)"""
        return query @ keys.transpose(1, 2)


class General(Dot):
    """s · W h (Luong et al. 2015, §3.1)"""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.memory = nn.Linear(width, dim, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """W h"""
        return self.memory(memory)


class Additive(nn.Module):
    """v · tanh(W s + U h) (Bahdanau et al. 2015, A.1.2). Luong's concat, v · tanh(W [s; h]), is the same thing: there W
    and U are one matrix, and s is the current state."""

    def __init__(self, dim: int, width: int, inner: int | None = None):
        super().__init__()
        self.query = nn.Linear(dim, inner or dim, bias=False)
        self.memory = nn.Linear(width, inner or dim, bias=False)
        self.out = nn.Linear(inner or dim, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """U h"""
        return self.memory(memory)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """(R, T, dim), (R, L, inner) → (R, T, L)"""
        return self.out(torch.tanh(self.query(query)[:, :, None] + keys[:, None])).squeeze(-1)


class Local(nn.Module):
    """A window of ± `window` words around a place in the source (Luong et al. 2015, §3.2).

    local-m puts the place at the target's own position; local-p predicts it and favours what is near by a Gaussian.
    Places count from 1, as in the paper. A target longer than its source looks at the source's end.
    """

    def __init__(self, dim: int, window: int, *, predict: bool):
        super().__init__()
        self.window = window
        self.inner = nn.Linear(dim, dim, bias=False) if predict else None
        self.out = nn.Linear(dim, 1, bias=False) if predict else None

    def centre(self, query: Tensor, position: Tensor, lengths: Tensor) -> Tensor:
        """Queries (R, T, dim) at positions (R, T), counted from 0 → places (R, T) in sources of these lengths (R,)"""
        if self.inner is None or self.out is None:
            return torch.minimum(position + 1, lengths[:, None])
        return lengths[:, None] * torch.sigmoid(self.out(torch.tanh(self.inner(query))).squeeze(-1).float())


@dataclass(frozen=True)
class Source:
    """What the queries look at: keys (R, L, dim), the memory itself (R, L, width), and the documents' lengths (R,)."""

    keys: Tensor
    values: Tensor
    lengths: Tensor

    def take(self, rows: Tensor) -> Source:
        """These documents, in this order."""
        return Source(*(x.index_select(0, rows) for x in (self.keys, self.values, self.lengths)))

    def head(self, n: int) -> Source:
        """The first n documents."""
        return Source(self.keys[:n], self.values[:n], self.lengths[:n])


class Alignment(nn.Module):
    """weights = softmax(score(s, h)) over a document, or over a window of it; context = Σ weights · h."""

    def __init__(self, score: Dot | Additive, local: Local | None = None):
        super().__init__()
        self.score, self.local = score, local

    def source(self, memory: Tensor, layout: Layout) -> Source:
        """Make a packed memory (S, width) ready to be looked at."""
        return Source(layout.unpack(self.score.keys(memory)), layout.unpack(memory), layout.lengths)

    def forward(self, query: Tensor, source: Source, position: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (R, T, dim), the target's positions (R, T) → contexts (R, T, width) and weights (R, T, L)"""
        scores = self.score(query, source.keys).float()
        place = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        # An empty source has one word, which is zero: no word at all would turn into NaN.
        seen = place <= source.lengths.clamp(min=1)[:, None, None]
        distance = None
        if self.local is not None:
            distance = place - self.local.centre(query, position, source.lengths)[..., None]  # (R, T, L)
            seen = seen & (distance.abs() <= self.local.window)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        if distance is not None and self.local is not None and self.local.inner is not None:
            weights = weights * torch.exp(-2 * (distance / self.local.window) ** 2)  # eq. 10, σ = window / 2
        weights = weights.to(query.dtype)
        return weights @ source.values, weights

    def at_once(self, query: Tensor, source: Source, layout: Layout, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """Packed queries (N, dim) → contexts (N, width) and weights (N, L); `past` (R,) target words came before."""
        at = torch.arange(layout.longest, device=query.device).expand(layout.rows, -1)
        context, weights = self(layout.unpack(query), source, at if past is None else at + past[:, None])
        return layout.pack(context), layout.pack(weights)

    def by_step(
        self, source: Source, steps: Steps, past: Tensor | None
    ) -> Callable[[int, Tensor], tuple[Tensor, Tensor]]:
        """The same inside a `walk`: (step, queries (n, dim)) → contexts (n, width) and weights (n, L)"""
        there = source if steps.fixed else source.take(steps.order)
        before = steps.first(steps.layout.starts.new_zeros(steps.layout.rows) if past is None else past)

        def look(t: int, query: Tensor) -> tuple[Tensor, Tensor]:
            n = len(query)
            context, weights = self(query[:, None], there.head(n), before[:n, None] + t)
            return context[:, 0], weights[:, 0]

        return look


def score(kind: Score | Literal["additive"], dim: int, width: int) -> Dot | Additive:
    """A score by its name, of states (dim) against a memory (width)."""
    if kind == "dot":
        return Dot()
    return General(dim, width) if kind == "general" else Additive(dim, width)
