"""Norms that keep the type of what they are given: autocast computes them in fp32 and would hand that on."""

from __future__ import annotations

from torch import Tensor, nn


class LayerNorm(nn.LayerNorm):
    """(x - mean) / √(variance + eps) · weight + bias (Ba et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, dim) → (N, dim)"""
        return super().forward(x).to(x.dtype)


class RMSNorm(nn.RMSNorm):
    """x / √(mean of squares + eps) · weight (Zhang & Sennrich 2019), in the type of the weight."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, dim) → (N, dim)"""
        return super().forward(x.to(self.weight.dtype)).to(x.dtype)
