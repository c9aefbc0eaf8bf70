"""Norms that keep the type of what they are given: autocast computes them in fp32 and would hand that on."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from . import decode


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


def add_norm(x: Tensor, y: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """x + y, and its norm; for reading alone, on a GPU in one kernel."""
    layer, weight = type(norm) is LayerNorm, getattr(norm, "weight", None)
    alike = weight is not None and x.dtype == y.dtype == weight.dtype
    if alike and (layer or type(norm) is RMSNorm) and isinstance(norm.eps, float) and decode.ready(x.device):
        both: Any = decode.add_norm(x, y, weight, getattr(norm, "bias", None), norm.eps, layer)
        return both[0], both[1]
    total = x + y
    return total, norm(total)
