"""The trunk that most members share: embeddings, a stack of blocks, a last norm."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..batch import Batch
from .block import Stack
from .cache import Cache
from .door import Sight
from .embeddings import Embeddings
from .masks import Index
from .probe import Probe


class Trunk(nn.Module):
    """ids → embed → blocks → norm (if any). A mask of None lets a token see both sides.

    `masks` has one mask for all layers, or one for each (GPT-3); `bias` is added to the scores of all (BLOOM).
    """

    def __init__(
        self,
        embed: Embeddings,
        blocks: Stack,
        norm: nn.Module | None = None,
        *,
        masks: Sequence[Index | None],
        bias: Index | None = None,
        kind: str = "decoder",
    ):
        super().__init__()
        self.embed, self.blocks, self.norm = embed, blocks, norm
        self.masks, self.bias, self.kind = tuple(masks), bias, kind

    @property
    def table(self) -> Tensor:
        """The token embeddings that an output layer may be tied to."""
        return self.embed.token.weight

    def forward(
        self, batch: Batch, *, cache: Cache | None = None, heads: Tensor | None = None, probe: Probe | None = None
    ) -> Tensor:
        """(N,) → (N, dim)"""
        layout = batch.layout
        sights = {
            mask: Sight(
                layout, mask=mask, bias=self.bias, positions=batch.positions, cache=cache, heads=heads, probe=probe,
                kind=self.kind,
            )
            for mask in self.masks
        }  # fmt: skip
        sight = sights[self.masks[0]]
        layers = sight if len(sights) == 1 else [sights[mask] for mask in self.masks]
        x = self.blocks(self.embed(batch, layout, sight.past), layers)
        if cache is not None:
            cache.advance(layout)
        return x if self.norm is None else self.norm(x)
