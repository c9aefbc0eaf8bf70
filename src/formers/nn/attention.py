"""Multi-head attention: the only one in the library. N tokens (packed), H heads, D head dim."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .door import Relative, Sight, attend, weights
from .positions import Rotary


class Attention(nn.Module):
    """softmax(q·kᵀ·scale + bias)·v in H heads (Vaswani et al. 2017, §3.2).

    Self-attention keeps q, k and v in one matrix, one product instead of three; cross attention keeps q and kv.
    `out_bias` is that of the output if it differs from the others'; `rotary` turns queries and keys by their position;
    `relative(q, k, scale, sight=sight) → (q′, bias)` is the hook for scores that depend on the query (Transformer-XL).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        cross: bool = False,
        rotary: Rotary | None = None,
        relative: Callable[..., tuple[Tensor, Tensor]] | None = None,
    ):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim or dim // heads
        self.total = heads  # before any was pruned (nn/prune.py)
        self.kept: tuple[int, ...] | None = None  # which of them are left; None: all
        inner = self.heads * self.head_dim
        if cross:
            self.q, self.kv = nn.Linear(dim, inner, bias=bias), nn.Linear(dim, 2 * inner, bias=bias)
        else:
            self.qkv = nn.Linear(dim, 3 * inner, bias=bias)
        self.o = nn.Linear(inner, dim, bias=bias if out_bias is None else out_bias)
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.dropout, self.relative, self.rotary, self.cross = dropout, relative, rotary, cross

    def forward(self, x: Tensor, sight: Sight, layer: int = 0, held: Tensor | None = None) -> Tensor:
        """(N, dim) → (N, dim); `held` (rows, M, dim) are remembered states that are seen as well."""
        q, k, v = self.look(x, sight, layer) if self.cross else self.project(x, sight, layer)
        if held is not None:
            k, v = self.join(held, k, v, sight)
        return self.o(self.mix(q, k, v, sight, layer).flatten(1))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, layer: int) -> Tensor:
        """What the heads make of queries, keys and values: (N, H, D)."""
        relative: Relative | None = self.relative and functools.partial(self.relative, sight=sight)
        dropout = self.dropout if self.training else 0.0
        kept = None if self.kept is None else (self.total, self.kept)
        y = attend(q, k, v, sight, self.scale, dropout, relative, kept)  # (N, H, D)
        if sight.probe is not None and sight.probe.attention:
            sight.probe.weight(sight.kind, weights(q, k, sight, self.scale, relative, kept))
        if sight.heads is None:
            return y
        mask = sight.heads[layer] if self.kept is None else sight.heads[layer, list(self.kept)]
        return y * mask.to(y.dtype)[:, None]

    def project(self, x: Tensor, sight: Sight, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (N, H, D); with a past, all keys and values as (rows, K, H, D)."""
        q, k, v = self.split(self.qkv(x), 3)
        if self.rotary is not None:
            angles = sight.angles(self.rotary)
            q, k = self.rotary.turn(q, angles), self.rotary.turn(k, angles)
        if sight.cache is not None:
            past = sight.cache[layer].append(k, v, sight.query)
            k, v = (k, v) if sight.past is None else past
        return q, k, v

    def join(self, held: Tensor, k: Tensor, v: Tensor, sight: Sight) -> tuple[Tensor, Tensor]:
        """Keys and values (rows, M + Q, H, D) of remembered states (rows, M, dim) and of new tokens (N, H, D)."""
        old = self.some(held, 1, 3)  # no queries are asked of what is past
        return torch.cat((old[0], sight.query.unpack(k)), 1), torch.cat((old[1], sight.query.unpack(v)), 1)

    def some(self, x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        """Of queries (0), keys (1) and values (2), those from first to last."""
        rows = slice(first * self.heads * self.head_dim, last * self.heads * self.head_dim)
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return self.split(F.linear(x, self.qkv.weight[rows], bias), last - first)

    def look(self, x: Tensor, sight: Sight, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (N, H, D), and keys and values of the memory, which a cache keeps as (rows, K, H, D)."""
        q = self.split(self.q(x), 1)[0]
        share = None if sight.cache is None else sight.cache[layer]
        if share is not None and share.source is not None:
            return q, *share.source
        assert sight.memory is not None
        k, v = self.split(self.kv(sight.memory), 2)
        if share is not None:
            share.source = sight.key.unpack(k), sight.key.unpack(v)
        return q, k, v

    def parts(self) -> dict[str, int]:
        """Its parameters that are made of heads: how many parts their rows have, 0 where the columns are heads."""
        rows, own = {"q": 1, "kv": 2, "qkv": 3}, dict(self.named_parameters())
        names = {f"{name}.{kind}": parts for name, parts in rows.items() for kind in ("weight", "bias")}
        return {name: parts for name, parts in {**names, "o.weight": 0}.items() if name in own}

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(…, parts·H·D) → parts × (…, H, D)"""
        return x.unflatten(-1, (parts, self.heads, self.head_dim)).unbind(-3)
