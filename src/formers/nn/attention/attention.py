"""Multi-head attention: the only one in the library. N tokens (packed), H heads, D head dim."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .context import AttentionContext, HeadVectors
from .dispatch import KeptHeads, RelativeHook, attend, compute_attention_weights, to_grid
from .positions import RotaryEmbedding


class ProjectedHeads(NamedTuple):
    """Queries (N, H, D), and the keys and values that they attend to: packed likewise, or of a cache as (rows, K, H, D)
    with those of new tokens that are yet to be written there (kv_cache.CachedKV)."""

    q: Tensor
    k: Tensor
    v: Tensor
    unwritten_kv: tuple[Tensor, Tensor] | None = None


class Attention(nn.Module):
    """softmax(q·kᵀ·scale + bias)·v in H heads (Vaswani et al. 2017, §3.2).

    Self-attention keeps q, k and v in one matrix, one product instead of three; cross attention keeps q and kv.
    `out_bias` is that of the output if it differs from the others'; `rotary` turns queries and keys by their position;
    `relative(q, k, scale, attn_context) → (q′, bias)` is the hook for scores that depend on the query (Transformer-XL).
    """

    def __init__(
        self, dim: int, heads: int, *, head_dim: int | None = None, bias: bool = True, out_bias: bool | None = None,
        scale: float | None = None, dropout: float = 0.0, cross: bool = False, rotary: RotaryEmbedding | None = None,
        relative: RelativeHook | None = None,
    ):  # fmt: skip
        super().__init__()
        self.heads, self.head_dim = heads, head_dim or dim // heads
        self.original_heads = heads  # before any was pruned (nn/head_pruning.py)
        self.kept_heads: tuple[int, ...] | None = None  # which of them are left; None: all
        inner = self.heads * self.head_dim
        if cross:
            self.q, self.kv = nn.Linear(dim, inner, bias=bias), nn.Linear(dim, 2 * inner, bias=bias)
        else:
            self.qkv = nn.Linear(dim, 3 * inner, bias=bias)
        self.o = nn.Linear(inner, dim, bias=bias if out_bias is None else out_bias)
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.dropout, self.relative, self.rotary, self.is_cross = dropout, relative, rotary, cross

    def forward(
        self, x: Tensor, attn_context: AttentionContext, layer: int = 0, memory_states: Tensor | None = None
    ) -> Tensor:
        """(N, dim) → (N, dim); `memory_states` (rows, M, dim) are remembered states that are seen as well."""
        project = self.project_cross if self.is_cross else self.project_self
        q, k, v, unwritten_kv = project(x, attn_context, layer)
        if memory_states is not None:
            k, v = self.prepend_memory(memory_states, k, v, attn_context)
        return self.o(self.attend_heads(q, k, v, attn_context, layer, unwritten_kv).flatten(1))

    def attend_heads(
        self, q: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext, layer: int,
        unwritten_kv: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend in all heads, (N, H, D); record the weights if they are captured."""
        dropout = self.dropout if self.training else 0.0
        y = attend(q, k, v, attn_context, self.scale, dropout, self.relative, self.get_kept_heads(), unwritten_kv)
        self.record_heads(q, k, v, attn_context)
        if attn_context.head_mask is None:
            return y
        factors = attn_context.head_mask[layer]
        factors = factors if self.kept_heads is None else factors[list(self.kept_heads)]
        return y * factors.to(y.dtype)[:, None]

    def record_heads(self, q: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext) -> None:
        """Record the weights of all heads, computed beside the kernel, and what they are made of, if asked to."""
        capture = attn_context.capture
        if capture is None or not capture.with_attention:
            return
        weights = compute_attention_weights(q, k, attn_context, self.scale, self.relative, self.get_kept_heads())
        capture.record_attention(attn_context.stack_name, weights)
        if capture.with_vectors:
            capture.record_vectors(attn_context.stack_name, self.describe_heads(q, k, v, attn_context))

    def get_kept_heads(self) -> KeptHeads | None:
        """Return which heads are left and how many there were, if any was pruned."""
        return None if self.kept_heads is None else (self.original_heads, self.kept_heads)

    def describe_heads(self, q: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext) -> HeadVectors:
        """Lay out queries and keys as grids, and measure the values after the output projection."""
        length = attn_context.key_length
        query, key = to_grid(q, attn_context.query_layout), to_grid(k, attn_context.key_layout)[:, :, :length]
        if self.relative is not None:
            query = self.relative(query, key, self.scale, attn_context)[0]
        if not isinstance(self.o, nn.Linear):  # weights of 8 bits
            return HeadVectors(query, key, self.scale, None)
        # ‖v W‖² = v (W Wᵀ) vᵀ: a head is much narrower than the model.
        kind = torch.promote_types(v.dtype, torch.float32)
        outputs = self.o.weight.to(kind).unflatten(1, (self.heads, self.head_dim)).permute(1, 2, 0)  # (H, D, dim)
        values = to_grid(v, attn_context.key_layout)[:, :, :length].to(kind)
        squares = (values @ (outputs @ outputs.transpose(-1, -2)) * values).sum(-1)
        return HeadVectors(query, key, self.scale, squares.clamp(min=0).sqrt())

    def project_self(self, x: Tensor, attn_context: AttentionContext, layer: int) -> ProjectedHeads:
        """Return queries, keys and values (N, H, D); with a past, all keys and values as (rows, K, H, D)."""
        q, k, v = self.split_heads(self.qkv(x), 3)
        if self.rotary is not None:
            angles = attn_context.get_rotary_angles(self.rotary)
            q, k = self.rotary.rotate(q, angles), self.rotary.rotate(k, angles)
        if attn_context.cache is not None:
            past = attn_context.cache[layer].append_tokens(k, v, attn_context.query_layout)
            if attn_context.past_lengths is not None:
                return ProjectedHeads(q, *past)
        return ProjectedHeads(q, k, v)

    def prepend_memory(
        self, memory_states: Tensor, k: Tensor, v: Tensor, attn_context: AttentionContext
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values (rows, M + Q, H, D): those of remembered states (rows, M, dim), then new (N, H, D)."""
        old, layout = self.project_parts(memory_states, 1, 3), attn_context.query_layout  # the memory has no queries
        return torch.cat((old[0], layout.unpack(k)), 1), torch.cat((old[1], layout.unpack(v)), 1)

    def project_parts(self, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        """Project to queries (0), keys (1) and values (2), of these only those from first to last."""
        rows = slice(first * self.heads * self.head_dim, last * self.heads * self.head_dim)
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return self.split_heads(F.linear(x, self.qkv.weight[rows], bias), last - first)

    def project_cross(self, x: Tensor, attn_context: AttentionContext, layer: int) -> ProjectedHeads:
        """Return queries (N, H, D), and keys and values of the encoder's output, kept by a cache as (rows, K, H, D)."""
        q = self.split_heads(self.q(x), 1)[0]
        share = None if attn_context.cache is None else attn_context.cache[layer]
        if share is not None and share.cross_kv is not None:
            return ProjectedHeads(q, *share.cross_kv)
        assert attn_context.encoder_output is not None
        k, v = self.split_heads(self.kv(attn_context.encoder_output), 2)
        if share is not None:
            share.cross_kv = attn_context.key_layout.unpack(k), attn_context.key_layout.unpack(v)
        return ProjectedHeads(q, k, v)

    def get_head_parts(self) -> dict[str, int]:
        """Return the parameters that are made of heads: how many parts their rows have, 0 where columns are heads."""
        rows, own = {"q": 1, "kv": 2, "qkv": 3}, dict(self.named_parameters())
        names = {f"{name}.{kind}": parts for name, parts in rows.items() for kind in ("weight", "bias")}
        return {name: parts for name, parts in {**names, "o.weight": 0}.items() if name in own}

    def split_heads(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(…, parts·H·D) → parts × (…, H, D)"""
        return x.unflatten(-1, (parts, self.heads, self.head_dim)).unbind(-3)
