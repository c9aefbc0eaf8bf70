"""What a token, its position and its segment contribute to the first hidden state."""

from __future__ import annotations

from torch import Tensor, nn

from ..batch import Batch, Layout


class Embeddings(nn.Module):
    """token + position + segment, then a norm, dropout and (ALBERT) a projection up to the model's width.

    `tables` sizes the learned tables by name; the first row that positions use is `offset` (RoBERTa, BART: 2).
    """

    def __init__(
        self,
        width: int,
        vocab: int,
        *,
        positions: int = 0,
        segments: int = 0,
        offset: int = 0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        up: int | None = None,
    ):
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(positions + offset, width) if positions else None
        self.segment = nn.Embedding(segments, width) if segments else None
        self.norm, self.dropout, self.offset = norm, nn.Dropout(dropout), offset
        self.up = nn.Linear(width, up) if up else None

    def forward(self, batch: Batch, layout: Layout, past: Tensor | None = None) -> Tensor:
        """(N,) → (N, width or up); `past` (D,) tokens of each document came before these."""
        x = self.token(batch.ids)
        if self.segment is not None:
            x = x + (self.segment.weight[0] if batch.segments is None else self.segment(batch.segments))
        elif batch.segments is not None:  # GPT-2's way: segment ids are tokens
            x = x + self.token(batch.segments)
        if self.position is not None:
            at = layout.position if batch.positions is None else batch.positions
            x = x + self.position((at if past is None else at + past[layout.document]) + self.offset)
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.up is None else self.up(x)
