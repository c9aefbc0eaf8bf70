"""What a beam search adds to the score of a finished text (Wu et al. 2016, §7): score = log p / length + coverage."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def length_penalty(length: Any, alpha: float) -> Any:
    """((5 + length) / 6)^α: log p is divided by it; α = 0 does nothing, 1 takes nearly the mean (eq. 14)."""
    return ((5 + length) / 6) ** alpha


def coverage_penalty(weights: Tensor, keep: Tensor | None = None, beta: float = 0.2) -> Tensor:
    """β · Σᵢ log min(Σⱼ pᵢⱼ, 1) of attention weights (..., target, source): source words never looked at cost most.

    `keep` (..., source) is False where the source is padding.
    """
    seen = weights.sum(-2).clamp(max=1.0).log()  # (..., source)
    return beta * (seen if keep is None else torch.where(keep, seen, 0.0)).sum(-1)
