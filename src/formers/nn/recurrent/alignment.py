"""Alignments of recurrent decoders: attention from a state over the source. R documents, T queries each, L the longest
source document; the encoder's output is packed (S, width)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ...batch import Layout
from .rnn import PackedSteps

ScoreKind = Literal["dot", "general", "concat"]


class DotScore(nn.Module):
    """s · h (Luong et al. 2015, §3.1)"""

    def project_keys(self, encoder_output: Tensor) -> Tensor:
        """Compute what does not depend on the query, (S, width) → (S, dim), once for all of them."""
        return encoder_output

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """(R, T, dim), (R, L, dim) → (R, T, L)"""
        return query @ keys.transpose(1, 2)


class GeneralScore(DotScore):
    """s · W h (Luong et al. 2015, §3.1)"""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.memory = nn.Linear(width, dim, bias=False)

    def project_keys(self, encoder_output: Tensor) -> Tensor:
        """W h"""
        return self.memory(encoder_output)


class AdditiveScore(nn.Module):
    """v · tanh(W s + U h) (Bahdanau et al. 2015, A.1.2); Luong's concat is the same, with W and U as one matrix."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.query = nn.Linear(dim, dim, bias=False)
        self.memory = nn.Linear(width, dim, bias=False)
        self.out = nn.Linear(dim, 1, bias=False)

    def project_keys(self, encoder_output: Tensor) -> Tensor:
        """U h"""
        return self.memory(encoder_output)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """(R, T, dim), (R, L, dim) → (R, T, L)"""
        return self.out(torch.tanh(self.query(query)[:, :, None] + keys[:, None])).squeeze(-1)


class LocalWindow(nn.Module):
    """A window of ± `window` words around a place in the source (Luong et al. 2015, §3.2). local-m puts the place at
    the target's own position; local-p predicts it and favours what is near by a Gaussian. Places count from 1, as in
    the paper. A target longer than its source attends to the source's end."""

    def __init__(self, dim: int, window: int, *, predict: bool):
        super().__init__()
        self.window = window
        self.inner = nn.Linear(dim, dim, bias=False) if predict else None
        self.out = nn.Linear(dim, 1, bias=False) if predict else None

    def compute_centre(self, query: Tensor, position: Tensor, lengths: Tensor) -> Tensor:
        """Queries (R, T, dim) at positions (R, T), counted from 0 → places (R, T) in sources of these lengths (R,)"""
        if self.inner is None or self.out is None:
            return torch.minimum(position + 1, lengths[:, None])
        return lengths[:, None] * torch.sigmoid(self.out(torch.tanh(self.inner(query))).squeeze(-1).float())


@dataclass(frozen=True)
class AlignmentSource:
    """Source of the queries: keys (R, L, dim), the output itself (R, L, width), and the documents' lengths (R,)."""

    keys: Tensor
    values: Tensor
    lengths: Tensor

    def select_rows(self, rows: Tensor | slice) -> AlignmentSource:
        """Select documents by their numbers or by a slice."""
        return AlignmentSource(self.keys[rows], self.values[rows], self.lengths[rows])


class Alignment(nn.Module):
    """weights = softmax(score(s, h)) over a document, or over a window of it; context = Σ weights · h."""

    def __init__(self, score: DotScore | AdditiveScore, local: LocalWindow | None = None):
        super().__init__()
        self.score, self.local = score, local

    def prepare_source(self, encoder_output: Tensor, layout: Layout) -> AlignmentSource:
        """Prepare a packed encoder output (S, width) for attention."""
        keys = layout.unpack(self.score.project_keys(encoder_output))
        return AlignmentSource(keys, layout.unpack(encoder_output), layout.lengths)

    def forward(self, query: Tensor, source: AlignmentSource, position: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (R, T, dim), the target's positions (R, T) → contexts (R, T, width) and weights (R, T, L)"""
        scores = self.score(query, source.keys).float()
        place = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        # An empty source has one word, which is zero: no word at all would turn into NaN.
        seen = place <= source.lengths.clamp(min=1)[:, None, None]
        distance = None
        if self.local is not None:
            distance = place - self.local.compute_centre(query, position, source.lengths)[..., None]  # (R, T, L)
            seen = seen & (distance.abs() <= self.local.window)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        if distance is not None and self.local is not None and self.local.inner is not None:
            weights = weights * torch.exp(-2 * (distance / self.local.window) ** 2)  # eq. 10, σ = window / 2
        weights = weights.to(query.dtype)
        return weights @ source.values, weights

    def attend_all(
        self, query: Tensor, source: AlignmentSource, layout: Layout, past_lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Packed queries (N, dim) → contexts (N, width) and weights (N, L), after `past_lengths` (R,) target words"""
        at = torch.arange(layout.longest, device=query.device).expand(layout.rows, -1)
        at = at if past_lengths is None else at + past_lengths[:, None]
        context, weights = self(layout.unpack(query), source, at)
        return layout.pack(context), layout.pack(weights)

    def build_step_attention(
        self, source: AlignmentSource, steps: PackedSteps, past_lengths: Tensor | None
    ) -> Callable[[int, Tensor], tuple[Tensor, Tensor]]:
        """Return the attention for `run_steps`: (step, queries (n, dim)) → contexts (n, width) and weights (n, L)"""
        there = source if steps.is_static else source.select_rows(steps.document_order)
        zeros = steps.layout.starts.new_zeros(steps.layout.rows)
        before = steps.sort_documents(zeros if past_lengths is None else past_lengths)

        def attend_step(t: int, query: Tensor) -> tuple[Tensor, Tensor]:
            n = len(query)
            context, weights = self(query[:, None], there.select_rows(slice(n)), before[:n, None] + t)
            return context[:, 0], weights[:, 0]

        return attend_step


def build_score(kind: ScoreKind | Literal["additive"], dim: int, width: int) -> DotScore | AdditiveScore:
    """Build a score by its name, of states (dim) against an encoder's output (width)."""
    if kind == "dot":
        return DotScore()
    return GeneralScore(dim, width) if kind == "general" else AdditiveScore(dim, width)
