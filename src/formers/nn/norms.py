"""Norms that keep the type of what they are given: autocast computes them in fp32 and would hand that on."""

from __future__ import annotations

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
        bias, eps = getattr(norm, "bias", None), norm.eps
        first, second = decode.attempt(
            "add_norm", lambda: decode.add_norm(x, y, weight, bias, eps, layer), lambda: plain(x, y, norm)
        )
        return first, second
    return plain(x, y, norm)


def plain(x: Tensor, y: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The same by two kernels."""
    total = x + y
    return total, norm(total)
