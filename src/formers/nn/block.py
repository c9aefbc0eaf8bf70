"""The block in its four orders, stacks of blocks, and the body of an encoder or a decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..batch import Batch
from .attention.attention import Attention
from .attention.context import AttentionContext, Capture
from .attention.kv_cache import KVCache, is_decode_step
from .attention.masks import IndexFunction
from .experts import Experts
from .layers import Dropout, Embeddings, FeedForward, add_norm

NormOrder = Literal["pre", "post", "parallel", "normed"]


class Block(nn.Module):
    """Attention, cross attention (if any) and feed-forward, each with a residual connection.

    pre       x = x + attn(norm(x));  x = x + ff(norm(x))      GPT-2, BLOOM, T5
    post      x = norm(x + attn(x));  x = norm(x + ff(x))      Transformer, GPT-1, BERT, BART
    parallel  x = x + attn(norm(x)) + ff(norm′(x))             GPT-NeoX; GPT-J, where norm′ is norm
    normed    n = norm(x); x = n + attn(n); the same with ff   BLOOM with apply_residual_connection_post_layernorm
    """

    def __init__(
        self, attn: Attention, ff: nn.Module, norm: Callable[[], nn.Module], *, norm_order: NormOrder = "pre",
        cross: Attention | None = None, shared_norm: bool = False, dropout: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        self.attn, self.cross, self.ff, self.norm_order = attn, cross, ff, norm_order
        self.attn_norm = norm()
        self.cross_norm = None if cross is None else norm()
        self.ff_norm = self.attn_norm if shared_norm else norm()
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, attn_context: AttentionContext, cross_context: AttentionContext | None = None, layer: int = 0,
        recompute: bool = False,
    ) -> Tensor:  # fmt: skip
        """(N, dim) → (N, dim); `cross_context` is that of the cross attention. With `recompute` the backward pass
        computes inner values again, which then need not be kept."""
        run = self.run_checkpointed if recompute else self.run_layers
        return run(x, attn_context, cross_context, layer)

    def run_layers(
        self, x: Tensor, attn_context: AttentionContext, cross_context: AttentionContext | None, layer: int
    ) -> Tensor:
        """Run attention and feed-forward, each with its residual connection."""
        memory_states, memory = None, attn_context.segment_memory
        if memory is not None:
            memory_states = memory.recall_layer(layer, x[: attn_context.query_layout.num_tokens])
        if memory_states is not None and self.norm_order != "post":  # what is remembered is a layer's input, not normed
            memory_states = self.attn_norm(memory_states)
        if self.norm_order == "parallel":
            attended = self.attn(self.attn_norm(x), attn_context, layer, memory_states)
            return x + self.dropout(attended) + self.dropout(self.ff(self.ff_norm(x)))
        is_decoding = is_decode_pass(self, attn_context, x.dtype)
        x = self.add_residual(
            x, self.attn_norm, lambda n: self.attn(n, attn_context, layer, memory_states), is_decoding
        )
        if self.cross is not None and cross_context is not None:
            cross, norm = self.cross, cast(nn.Module, self.cross_norm)
            x = self.add_residual(x, norm, lambda n: cross(n, cross_context, layer), is_decoding)
        return self.add_residual(x, self.ff_norm, lambda n: self.run_feed_forward(n, attn_context), is_decoding)

    def run_checkpointed(
        self, x: Tensor, attn_context: AttentionContext, cross_context: AttentionContext | None, layer: int
    ) -> Tensor:
        """Run a block whose inner values the backward pass computes again: by then the memory has gone on, and what the
        layers share of a learned bias is not theirs alone. Both passes begin with contexts as they are now, so that
        they are the same function to a compiler."""
        has_table = attn_context.bias is not None and not isinstance(attn_context.bias, nn.Module)
        if x.is_cuda and has_table:  # for FlexAttention, whose mask torch cannot compile inside of a checkpoint
            attn_context.get_block_mask()
        memory = attn_context.segment_memory
        copied = None if memory is None else memory.copy()  # stays as it is now while the other continues

        def run(x: Tensor) -> Tensor:
            cross = None if cross_context is None else cross_context.copy_for_recompute(None)
            return self.run_layers(x, attn_context.copy_for_recompute(copied), cross, layer)

        x = checkpoint(run, x, use_reentrant=False)
        if memory is not None and copied is not None:
            memory.merge_new_states(copied)
        return x

    def run_feed_forward(self, x: Tensor, attn_context: AttentionContext) -> Tensor:
        """(N, dim) → (N, dim); experts have to know the documents."""
        return self.ff(x, attn_context) if isinstance(self.ff, Experts) else self.ff(x)

    def decode_step(
        self, x: Tensor, normed: Tensor, attn_context: AttentionContext, cross_context: AttentionContext | None,
        layer: int, after: nn.Module | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Run a pre-norm block for inference alone, each sum in one kernel with the norm that comes after it: x goes
        in with its own norm, and comes out with that of the next block, `after`."""
        y = self.attn(normed, attn_context, layer)
        if self.cross is not None and cross_context is not None:
            x, normed = add_norm(x, y, cast(nn.Module, self.cross_norm))
            y = self.cross(normed, cross_context, layer)
        x, normed = add_norm(x, y, self.ff_norm)
        y = self.run_feed_forward(normed, attn_context)
        return (x + y, x) if after is None else add_norm(x, y, after)

    def add_residual(
        self, x: Tensor, norm: nn.Module, layer: Callable[[Tensor], Tensor], is_decoding: bool = False
    ) -> Tensor:
        """Run a layer with a residual connection; the norm comes before the layer, before both, or after the sum."""
        if self.norm_order == "post":
            y = self.dropout(layer(x))
            return add_norm(x, y, norm)[1] if is_decoding else norm(x + y)
        normed = norm(x)
        return (normed if self.norm_order == "normed" else x) + self.dropout(layer(normed))


class BlockStack(nn.ModuleList):
    """Blocks run in turn; `layer_order` names the block of each layer, so that layers can share one (ALBERT)."""

    def __init__(self, blocks: Iterable[nn.Module], layer_order: Sequence[int] | None = None):
        super().__init__(blocks)
        self.layer_order = tuple(range(len(self)) if layer_order is None else layer_order)
        self.checkpoint_activations = False  # in training, compute a block's inner values again instead of keeping them

    def forward(
        self, x: Tensor, attn_contexts: AttentionContext | Sequence[AttentionContext],
        cross_context: AttentionContext | None = None,
    ) -> Tensor:  # fmt: skip
        """(N, dim) → (N, dim); one context for all layers, or one for each."""
        first = attn_contexts if isinstance(attn_contexts, AttentionContext) else attn_contexts[0]
        if is_decode_pass(self, first, x.dtype) and all(isinstance(b, Block) and b.norm_order == "pre" for b in self):
            return self.run_decode_step(x, attn_contexts, cross_context)
        for layer, index in enumerate(self.layer_order):
            attn_context = attn_contexts if isinstance(attn_contexts, AttentionContext) else attn_contexts[layer]
            if attn_context.capture is not None:  # XLNet's second stream lies after the first
                attn_context.capture.record_hidden(attn_context.stack_name, x[: attn_context.query_layout.num_tokens])
            recompute = self.checkpoint_activations and self.training and torch.is_grad_enabled()
            # A number that nothing reads would keep torch from compiling one block for all layers.
            has_number = any(c is not None and c.differs_by_layer for c in (attn_context, cross_context))
            x = self[index](x, attn_context, cross_context, layer if has_number else 0, recompute)
        return x

    def run_decode_step(
        self, x: Tensor, attn_contexts: AttentionContext | Sequence[AttentionContext],
        cross_context: AttentionContext | None,
    ) -> Tensor:  # fmt: skip
        """Run the blocks with fewer kernels: a sum and the norm after it are one."""
        blocks = [cast(Block, self[index]) for index in self.layer_order]
        afters = [block.attn_norm for block in blocks[1:]] + [None]
        normed = blocks[0].attn_norm(x)
        for layer, (block, after) in enumerate(zip(blocks, afters, strict=True)):
            attn_context = attn_contexts if isinstance(attn_contexts, AttentionContext) else attn_contexts[layer]
            x, normed = block.decode_step(x, normed, attn_context, cross_context, layer, after)
        return x


@torch.no_grad()
def scale_residual_branches(model: nn.Module, factor: float) -> None:
    """Multiply the last matrix of every residual branch of the post-norm blocks by a factor, in place. A deep post-norm
    stack whose branches begin as strong as its input forgets the input within a few layers, and then learns nothing but
    token frequencies (Liu et al. 2020, arXiv:2004.08249; Wang et al. 2022, arXiv:2203.00555)."""
    last_layers: dict[int, nn.Linear] = {}  # each once, also where blocks share a layer
    for block in model.modules():
        if isinstance(block, Block) and block.norm_order == "post":
            layers = [attention.o for attention in (block.attn, block.cross) if attention is not None]
            layers += [block.ff.down] if isinstance(block.ff, FeedForward) else []
            last_layers |= {id(layer): layer for layer in layers}
    for layer in last_layers.values():
        layer.weight.mul_(factor)


def is_decode_pass(module: nn.Module, attn_context: AttentionContext, dtype: torch.dtype) -> bool:
    """Return True for single-token inference with no capture attached where the fast decoding path applies."""
    if module.training or torch.is_grad_enabled():
        return False
    plain = attn_context.capture is None and attn_context.segment_memory is None
    return plain and is_decode_step(attn_context.query_layout, dtype)


class TransformerBody(nn.Module):
    """ids → embed → blocks → norm (if any). A mask of None lets a token see both sides. `masks` has one mask for all
    layers, or one for each (GPT-3); `bias` is added to the scores of all (BLOOM)."""

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
        return self.embed.token_weight

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
