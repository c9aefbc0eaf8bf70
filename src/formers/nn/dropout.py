"""Dropout whose random numbers are cheap where they cost the most: in a compiled step on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """torch's dropout; compiled for a GPU, what is dropped is drawn from a hash of a seed and the place.

    The generator that a compiled step would use, ten rounds for each number, takes three times as long as reading and
    writing the numbers themselves.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(…) → (…)"""
        drawn = self.training and 0 < self.p < 1 and x.is_cuda and torch.compiler.is_compiling()
        return hashed(x, self.p) if drawn and x.numel() < 2**31 else super().forward(x)


def hashed(x: Tensor, p: float) -> Tensor:
    """Dropout by a hash of 32 bits (two products, three shifts); the seed comes from torch's generator."""
    seed = torch.randint(-(2**31), 2**31 - 1, (1,), device=x.device, dtype=torch.int32)
    place = torch.arange(x.numel(), device=x.device, dtype=torch.int32).view(x.shape)
    h = place ^ seed
    h = (h ^ ((h >> 16) & 0xFFFF)) * 0x7FEB352D
    h = (h ^ ((h >> 15) & 0x1FFFF)) * -0x7B935975  # 0x846CA68B, signed
    h = (h ^ ((h >> 16) & 0xFFFF)) & 0x7FFFFFFF
    return torch.where(h >= round(p * 2**31), x * (1 / (1 - p)), 0.0)
