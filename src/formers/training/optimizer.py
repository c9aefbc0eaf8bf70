"""Optimizers and learning-rate schedules by name: fused AdamW and those that single papers ask for.

A new schedule is a function and an entry of SCHEDULES, which the settings are checked against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..config import suggest_name
from ..errors import Error


class ScaledAdam(torch.optim.Optimizer):
    """Adam's direction, its length tied to that of the weights, with decoupled weight decay."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ):
        super().__init__(list(groups), {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    def compute_step_scale(self, weight: Tensor, direction: Tensor) -> Tensor:
        """Return the factor on a direction, beside the learning rate."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step without a host sync."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros((), device=p.device)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                mean, square, t = state["exp_avg"], state["exp_avg_sq"], state["step"]
                mean.lerp_(p.grad, 1 - first)
                square.mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                direction = (mean / (1 - first**t)) / ((square / (1 - second**t)).sqrt() + group["eps"])
                direction = direction + group["weight_decay"] * p
                p.sub_(direction * (group["lr"] * self.compute_step_scale(p, direction)))


class LAMB(ScaledAdam):
    """You et al. 2019, algorithm 2: each layer moves by a share of its own norm (ALBERT's large batches)."""

    def compute_step_scale(self, weight: Tensor, direction: Tensor) -> Tensor:
        """‖w‖ / ‖direction‖, or 1 where either is zero."""
        own, new = weight.norm(), direction.norm()
        return torch.where((own > 0) & (new > 0), own / new, torch.ones_like(own))


class RMSAdamW(ScaledAdam):
    """AdamW whose rate is relative to the root mean square of the weights, as Adafactor's is: what T5 needs of it."""

    def compute_step_scale(self, weight: Tensor, direction: Tensor) -> Tensor:
        """RMS(w), at least 1e-3 (Shazeer & Stern 2018, §8)."""
        return (weight.norm() / math.sqrt(weight.numel())).clamp(min=1e-3)


def build_param_groups(
    model: nn.Module, decay: float, lr_scales: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Group weights by decay and learning rate. Matrices decay; norms and biases do not, those of many heads or
    directions neither. `lr_scales` are factors on the learning rate by a weight's name."""
    parts: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            still = p.dim() <= 1 or "bias" in name or name.endswith("relative.s")  # XLNet's r_s_bias
            parts.setdefault(((lr_scales or {}).get(name, 1.0), not still), []).append(p)
    return [
        {"params": params, "weight_decay": decay if decays else 0.0, **({} if scale == 1.0 else {"lr_scale": scale})}
        for (scale, decays), params in sorted(parts.items(), key=lambda item: item[0], reverse=True)
    ]


OptimizerFactory = Callable[[list[dict[str, Any]], float, tuple[float, float], float], torch.optim.Optimizer]
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "adamw": lambda parts, lr, betas, eps: torch.optim.AdamW(parts, lr=lr, betas=betas, eps=eps, fused=True),
    "adam": lambda parts, lr, betas, eps: torch.optim.Adam(parts, lr=lr, betas=betas, eps=eps, fused=True),
    "adafactor": lambda parts, lr, betas, eps: torch.optim.Adafactor(parts, lr=lr),
    "rms-adamw": lambda parts, lr, betas, eps: RMSAdamW(parts, lr, betas, eps),
    "lamb": lambda parts, lr, betas, eps: LAMB(parts, lr, betas, eps),
    "adagrad": lambda parts, lr, betas, eps: torch.optim.Adagrad(parts, lr=lr, initial_accumulator_value=1.0),
    "sgd": lambda parts, lr, betas, eps: torch.optim.SGD(parts, lr=lr, momentum=betas[0]),
}


def build_optimizer(
    name: str,
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8,
    lr_scales: Mapping[str, float] | None = None,
) -> torch.optim.Optimizer:
    """Build the optimizer of a name for a model's weights; SGD's momentum is the first of the betas."""
    if name not in OPTIMIZERS:
        raise Error(f"there is no optimizer {name!r}", fix=suggest_name(name, OPTIMIZERS))
    parts = build_param_groups(model, weight_decay, lr_scales)
    if not parts:
        raise Error("there is nothing to train: all weights are frozen", fix="leave some of them free")
    return OPTIMIZERS[name](parts, lr, betas, eps)


Schedule = Callable[[int], float]  # step → factor on the highest rate; of the step alone, so resuming needs no state


def constant(step: int, steps: int, warmup: int) -> float:
    """Stay at the full rate after the warm-up."""
    return 1.0


def linear(step: int, steps: int, warmup: int) -> float:
    """Decay linearly to zero (BERT)."""
    return (steps - step) / max(1, steps - warmup)


def cosine(step: int, steps: int, warmup: int, min_ratio: float = 0.1) -> float:
    """Decay along half a cosine wave to a tenth (GPT-3)."""
    share = min(1.0, (step - warmup) / max(1, steps - warmup))
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * share))


def inverse_sqrt(step: int, steps: int, warmup: int) -> float:
    """Decay as 1/√step after the warm-up (T5; the Noam schedule is this times a constant)."""
    return math.sqrt(max(1, warmup) / max(1, step + 1, warmup))


def warmup_stable_decay(step: int, steps: int, warmup: int, decay: float = 0.2) -> float:
    """Warm-up, stable, decay: a plateau, and a straight line down over the last fifth. Small masked models need the
    plateau: they learn late, and then all at once."""
    return min(1.0, (steps - step) / max(1.0, decay * steps))


SCHEDULES = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "inverse_sqrt": inverse_sqrt,
    "wsd": warmup_stable_decay,
}


def build_schedule(name: str, steps: int, warmup: int) -> Schedule:
    """Return the schedule of a name: a linear warm-up, then its own shape."""
    if name not in SCHEDULES:
        raise Error(f"there is no schedule {name!r}", fix=suggest_name(name, SCHEDULES))
    if steps < 1 or warmup < 0:
        raise Error(f"{steps} steps with {warmup} of warm-up make no run", fix="give at least one step")
    shape = SCHEDULES[name]

    def get_lr_scale(step: int) -> float:
        return max(0.0, min((step + 1) / max(1, warmup), 1.0) if step < warmup else shape(step, steps, warmup))

    return get_lr_scale
