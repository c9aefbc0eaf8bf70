"""What a token, its position and its segment contribute to the first hidden state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Batch, Layout
from .attention.positions import SinusoidalPositions
from .layers import Dropout


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Activations in the type that autocast works in, from the first to the last layer: half the memory traffic of a
    residual stream in fp32. Half precision of the fp16 kind would overflow; it stays in fp32."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16:
        return x.to(torch.bfloat16)
    return x


class Embeddings(nn.Module):
    """token + position + segment (+ task), then a norm, dropout and (ALBERT) a projection up to the model's width.

    `scale` multiplies the tokens, `token` is a table of another kind or shared with another side, `sinusoids` stand in
    for a learned table of positions. The first row that positions use is `offset` (RoBERTa, BART: 2).
    """

    def __init__(
        self, width: int, vocab: int, *, positions: int = 0, segments: int = 0, offset: int = 0,
        sinusoids: SinusoidalPositions | None = None, scale: float = 1.0, token: nn.Module | None = None,
        norm: nn.Module | None = None, dropout: float = 0.0, up: int | None = None,
    ):  # fmt: skip
        super().__init__()
        self.token: Any = nn.Embedding(vocab, width) if token is None else token
        self.position = nn.Embedding(positions + offset, width) if positions else None
        self.segment = nn.Embedding(segments, width) if segments else None
        self.task: nn.Embedding | None = None  # of ERNIE 2.0, which sets it
        self.sinusoids, self.scale = sinusoids, scale
        self.norm, self.dropout, self.position_offset = norm, Dropout(dropout), offset
        self.up = nn.Linear(width, up) if up else None

    def forward(self, batch: Batch, layout: Layout, past_lengths: Tensor | None = None) -> Tensor:
        """(N,) → (N, width or up); `past_lengths` (D,) tokens of each document came before these."""
        x = self.token(batch.ids)
        x = x if self.scale == 1.0 else x * self.scale
        if self.segment is not None:
            x = x + (self.segment.weight[0] if batch.segments is None else self.segment(batch.segments))
        elif batch.segments is not None:  # GPT-2's way: segment ids are tokens
            x = x + self.token(batch.segments)
        if self.task is not None:
            x = x + (self.task.weight[0] if batch.tasks is None else self.task(batch.tasks))
        if self.position is not None or self.sinusoids is not None:
            x = self.add_positions(x, batch.positions, layout, past_lengths)
        x = self.dropout(to_autocast_dtype(x if self.norm is None else self.norm(x)))
        return x if self.up is None else self.up(x)

    def add_positions(self, x: Tensor, positions: Tensor | None, layout: Layout, past_lengths: Tensor | None) -> Tensor:
        """Add the positions. Rows of one length share the table's first rows, whose gradient is then a plain sum."""
        if self.sinusoids is not None:
            at = layout.positions if positions is None else positions
            return x + self.sinusoids(at if past_lengths is None else at + past_lengths[layout.document_ids]).to(
                x.dtype
            )
        assert self.position is not None
        if positions is None and past_lengths is None and layout.is_uniform:
            table = self.position.weight[self.position_offset : self.position_offset + layout.longest]
            return (x.unflatten(0, (layout.rows, layout.longest)) + table).flatten(0, 1)
        at = layout.positions if positions is None else positions
        return x + self.position(
            (at if past_lengths is None else at + past_lengths[layout.document_ids]) + self.position_offset
        )
