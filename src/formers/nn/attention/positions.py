"""Position schemes that are more than a table of embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from .masks import DistanceBias

if TYPE_CHECKING:
    from .context import AttentionContext


@dataclass(frozen=True)
class RotaryEmbedding:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864): pairs of a head's first `rotary_dim` numbers are turned by
    an angle that grows with the position, so that a score depends on the distance alone. A pair is two neighbours
    (`is_interleaved`, GPT-J) or the same place in both halves (GPT-NeoX)."""

    rotary_dim: int
    is_interleaved: bool = False
    base: float = 10000.0

    def compute_angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) → cos and sin, (N, 1, rotary_dim / 2)"""
        power = torch.arange(0, self.rotary_dim, 2, device=positions.device).float() / self.rotary_dim
        angle = positions[:, None, None] * self.base**-power
        return angle.cos(), angle.sin()

    def rotate(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """(N, H, D) → (N, H, D)"""
        cos, sin = (t.to(x.dtype) for t in angles)
        first, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        # (N, H, rotary_dim / 2)
        a, b = first.unflatten(-1, (-1, 2)).unbind(-1) if self.is_interleaved else first.chunk(2, -1)
        turned = (a * cos - b * sin, b * cos + a * sin)
        both = torch.stack(turned, -1).flatten(-2) if self.is_interleaved else torch.cat(turned, -1)
        return torch.cat((both, rest), -1)


@dataclass(frozen=True)
class SinusoidalPositions:
    """Fixed positions (Vaswani et al. 2017, §3.5): sin and cos of position / 10000^(2i/dim), alternating as in the
    paper or, with `halves`, all sines before all cosines as in its released code and in Marian."""

    dim: int
    halves: bool = False

    def __call__(self, positions: Tensor) -> Tensor:
        """(N,) → (N, dim)"""
        half = (self.dim + 1) // 2
        power = torch.arange(half, device=positions.device, dtype=torch.float64) * (2 / self.dim)
        angle = positions[:, None] / 10000**power  # (N, half); in double precision: far positions turn often
        parts = angle.sin(), angle.cos()[:, : self.dim // 2]
        if self.halves:
            return torch.cat(parts, -1).float()
        return torch.stack((parts[0], angle.cos()), -1).flatten(1)[:, : self.dim].float()


class BucketBias(nn.Module, DistanceBias):
    """T5's relative position bias: one learned number for each (log-spaced distance bucket, head). An index function
    that owns parameters. T5 §2.1; shared by all layers of a stack."""

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.buckets, self.max_distance, self.bidirectional = buckets, max_distance, bidirectional

    def compute_bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance key - query."""
        count, base = self.buckets, torch.zeros_like(distance)
        if self.bidirectional:
            count //= 2
            base, distance = (distance > 0) * count, distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = count // 2  # near distances have a bucket each, far ones share log-spaced buckets up to `max_distance`
        ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        spread = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
        return base + torch.where(distance < exact, distance, spread)

    def forward(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Evaluate at each place."""
        return self.weight[self.compute_bucket(k - q), h]

    def compute_distance_bias(self, low: int, high: int, device: torch.device) -> Tensor:
        """(heads, high - low) the bias at each distance in [low, high). A product with a one-hot matrix, whose backward
        is a product again; indexing the table would scatter."""
        bucket = self.compute_bucket(torch.arange(low, high, device=device))
        return self.weight.T @ nn.functional.one_hot(bucket, self.buckets).T.to(self.weight.dtype)


class QueryBiases(nn.Module):
    """Transformer-XL's u and v, added to the query in the content and in the distance term of a score."""

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.u = nn.Parameter(torch.empty(heads, head_dim))
        self.v = nn.Parameter(torch.empty(heads, head_dim))


class DistanceTerms(NamedTuple):
    """What makes the scores of packed queries: scale · (queries · key + distance_queries · encodings), where a query
    and a key meet at the row of their distance, + segment_scores if the key's segment is another one."""

    queries: Tensor  # (N, H, D)
    distance_queries: Tensor  # (N, H, D)
    encodings: Tensor  # (W, H, D), by falling distance
    segment_scores: Tensor | None = None  # (H, N), with the scale in them


class RelativeScores(nn.Module):
    """Relative positions of Transformer-XL (Dai et al. 2019, §3.3): a score is (q + u)·k + (q + v)·W_kR·R(distance). A
    hook of Attention; R stands in the context's `relative`. Layers may share their biases."""

    def __init__(self, dim: int, heads: int, head_dim: int, biases: QueryBiases | None = None):
        super().__init__()
        self.r = nn.Linear(dim, heads * head_dim, bias=False)
        self.biases = QueryBiases(heads, head_dim) if biases is None else biases
        self.heads = heads
        self.kept_heads: tuple[int, ...] | None = None  # heads that are left after pruning; the weights stay whole

    def forward(self, q: Tensor, k: Tensor, scale: float, attn_context: AttentionContext) -> tuple[Tensor, Tensor]:
        """Queries (rows, H, Q, D) and keys (rows, H, K, D) → queries, and the bias (rows, H, Q, K)"""
        assert attn_context.relative is not None
        encodings, share = attn_context.relative.encodings, 0.0 if attn_context.relative.has_uniform_weights else 1.0
        u, v = (self.select_heads(bias).to(q.dtype)[:, None] for bias in (self.biases.u, self.biases.v))  # (H, 1, D)
        scores = (q + v) * (scale * share) @ self.project_encodings(encodings, q)  # (rows, H, Q, K + 1)
        return (q + u) * share, shift_relative_scores(scores, k.shape[2])

    def compute_distance_terms(self, q: Tensor, scale: float, attn_context: AttentionContext) -> DistanceTerms:
        """Compute from packed queries (N, H, D) what a kernel makes their scores of."""
        assert attn_context.relative is not None
        encodings, share = attn_context.relative.encodings, 0.0 if attn_context.relative.has_uniform_weights else 1.0
        u, v = (self.select_heads(bias).to(q.dtype) for bias in (self.biases.u, self.biases.v))  # (H, D)
        r = self.project_encodings(encodings, q).permute(2, 0, 1)
        return DistanceTerms((q + u) * share, (q + v) * share, r)

    def project_encodings(self, places: Tensor, q: Tensor) -> Tensor:
        """(W, dim) encodings → (H, D, W) in the type of the queries"""
        r = self.r(places).unflatten(-1, (self.heads, q.shape[-1]))  # (W, H, D)
        return self.select_heads(r, 1).permute(1, 2, 0).to(q.dtype)

    def select_heads(self, t: Tensor, axis: int = 0) -> Tensor:
        """Select the heads that are left after pruning, along an axis."""
        return t if self.kept_heads is None else t.index_select(axis, torch.tensor(self.kept_heads, device=t.device))


def shift_relative_scores(scores: Tensor, keys: int) -> Tensor:
    """(…, Q, W) scores by falling distance → (…, Q, keys) by key: query i reads from column Q - 1 - i on. Rows of W
    numbers, read as rows of W - 1 from the first one's start on, begin one column earlier each: no copy."""
    queries, width = scores.shape[-2:]
    flat = scores.flatten(-2)[..., queries - 1 : queries * width - 1]
    return flat.unflatten(-1, (queries, width - 1))[..., :keys]
