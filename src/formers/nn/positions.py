"""Position schemes that are more than a table of embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class BucketBias(nn.Module):
    """T5's relative position bias: one learned number for each (log-spaced distance bucket, head).

    An index function that owns parameters. T5 §2.1; shared by all layers of a stack.
    """

    def __init__(self, heads: int, buckets: int = 32, far: int = 128, bidirectional: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.buckets, self.far, self.bidirectional = buckets, far, bidirectional

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each distance key - query."""
        count, base = self.buckets, torch.zeros_like(distance)
        if self.bidirectional:
            count //= 2
            base, distance = (distance > 0) * count, distance.abs()
        else:
            distance = (-distance).clamp(min=0)
        exact = count // 2  # near distances have a bucket each, far ones share log-spaced buckets up to `far`
        ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.far / exact)
        spread = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
        return base + torch.where(distance < exact, distance, spread)

    def forward(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The bias at each place."""
        return self.weight[self.bucket(k - q), h]

    def row(self, low: int, high: int, device: torch.device) -> Tensor:
        """(heads, high - low) the bias at each distance in [low, high).

        A product with a one-hot matrix, whose backward is a product again; indexing the table would scatter.
        """
        bucket = self.bucket(torch.arange(low, high, device=device))
        return self.weight.T @ nn.functional.one_hot(bucket, self.buckets).T.to(self.weight.dtype)
