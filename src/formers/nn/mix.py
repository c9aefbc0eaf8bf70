"""A learned mix of all layers, for a task (ELMo §3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..family import Norm


class Mix(nn.Module):
    """γ · Σ softmax(s)ᵢ · hᵢ. Layers may be normed first: each token on its own, or (as ELMo's code has it) all tokens
    of the batch by one mean and variance."""

    def __init__(self, layers: int, norm: Norm = "plain"):
        super().__init__()
        self.weight, self.scale, self.norm = nn.Parameter(torch.empty(layers)), nn.Parameter(torch.empty(1)), norm

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """layers × (N, dim) → (N, dim)"""
        shares = self.weight.float().softmax(0).to(layers[0].dtype)
        total = torch.zeros_like(layers[0])
        for share, x in zip(shares, layers, strict=True):
            if self.norm != "plain":
                x = F.layer_norm(x, x.shape[-1 if self.norm == "token" else 0 :], eps=1e-12).to(x.dtype)
            total = total + share * x
        return self.scale * total
