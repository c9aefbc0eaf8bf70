"""The body that most families share: embeddings, a stack of blocks, a last norm."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ..batch import Batch
from .attention.context import AttentionContext
from .attention.kv_cache import KVCache
from .attention.masks import IndexFunction
from .block import BlockStack
from .capture import Capture
from .embeddings import Embeddings


class TransformerBody(nn.Module):
    """ids → embed → blocks → norm (if any). A mask of None lets a token see both sides.

    `masks` has one mask for all layers, or one for each (GPT-3); `bias` is added to the scores of all (BLOOM).
    """

    def __init__(
        self, embed: Embeddings, blocks: BlockStack, norm: nn.Module | None = None, *,
        masks: Sequence[IndexFunction | None], bias: IndexFunction | None = None, stack_name: str = "decoder",
    ):  # fmt: skip
        super().__init__()
        self.embed, self.blocks, self.norm = embed, blocks, norm
        self.masks, self.bias, self.stack_name = tuple(masks), bias, stack_name

    @property
    def embedding_table(self) -> Tensor:
        """The token embeddings that an output layer may be tied to."""
        return self.embed.token.weight

    def forward(
        self, batch: Batch, *, cache: KVCache | None = None, head_mask: Tensor | None = None,
        capture: Capture | None = None,
    ) -> Tensor:  # fmt: skip
        """(N,) → (N, dim)"""
        layout = batch.layout
        attn_contexts = {
            mask: AttentionContext.start_pass(
                layout, mask=mask, bias=self.bias, positions=batch.positions, cache=cache, head_mask=head_mask,
                capture=capture, stack_name=self.stack_name,
            )
            for mask in self.masks
        }  # fmt: skip
        attn_context = attn_contexts[self.masks[0]]
        layers = attn_context if len(attn_contexts) == 1 else [attn_contexts[mask] for mask in self.masks]
        x = self.blocks(self.embed(batch, layout, attn_context.past_lengths), layers)
        if cache is not None:
            cache.advance(layout)
        return x if self.norm is None else self.norm(x)
