"""Optimizers and learning rates."""

from __future__ import annotations

import torch
from torch import nn


def adamw(
    model: nn.Module, lr: float, decay: float = 0.01, betas: tuple[float, float] = (0.9, 0.98)
) -> torch.optim.Optimizer:
    """Fused AdamW; norms and biases do not decay."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, fused=True)


def trapezoid(step: int, steps: int, warmup: int, decay: float = 0.2) -> float:
    """The share of the learning rate at a step: linear warm-up, a plateau, and a linear way down over the last fifth
    (warm-up, stable, decay). Small masked models need the plateau: they learn late, and then all at once."""
    down = (steps - step) / max(1.0, decay * steps)
    return max(0.0, min((step + 1) / max(1, warmup), 1.0, down))
