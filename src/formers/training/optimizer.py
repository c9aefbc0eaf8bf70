"""Optimizers and learning-rate schedules by name: fused AdamW and those that single papers ask for.

A new one is an entry of OPTIMIZERS or SCHEDULES, which the settings are checked against; an optimizer that skips
non-finite gradients on the device (`found_inf`) also of DEVICE_SKIPPING_OPTIMIZERS, a schedule whose warmup is its
time scale also of WARMUP_SCALED_SCHEDULES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ..config import Settings, suggest_name
from ..errors import Error


class ScaledAdam(torch.optim.Optimizer):
    """Adam's direction times `scale(weight, direction)` and the learning rate, with decoupled weight decay."""

    def __init__(
        self, groups: list[Settings], lr: float, betas: tuple[float, float], eps: float,
        scale: Callable[[Tensor, Tensor], Tensor],
    ):  # fmt: skip
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.compute_scale = scale

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
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
                p.sub_(direction * (group["lr"] * self.compute_scale(p, direction)))


def scale_by_norm_ratio(weight: Tensor, direction: Tensor) -> Tensor:
    """Return ‖w‖ / ‖direction‖, or 1 where either is zero (LAMB: You et al. 2019, algorithm 2)."""
    own, new = weight.norm(), direction.norm()
    return torch.where((own > 0) & (new > 0), own / new, torch.ones_like(own))


def scale_by_rms(weight: Tensor, direction: Tensor) -> Tensor:
    """Return RMS(w), at least 1e-3, so that the rate is relative as Adafactor's is (Shazeer & Stern 2018, §8)."""
    return (weight.norm() / math.sqrt(weight.numel())).clamp(min=1e-3)


def build_param_groups(model: nn.Module, decay: float, lr_scales: Mapping[str, float] | None = None) -> list[Settings]:
    """Group weights by decay and learning rate. Matrices decay; norms and biases do not, those of many heads or
    directions neither. `lr_scales` are factors on the learning rate by a weight's name."""
    param_groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            no_decay = p.dim() <= 1 or "bias" in name or name.endswith("relative.s")  # XLNet's r_s_bias
            param_groups.setdefault(((lr_scales or {}).get(name, 1.0), not no_decay), []).append(p)
    return [
        {"params": params, "weight_decay": decay if decays else 0.0, **({} if scale == 1.0 else {"lr_scale": scale})}
        for (scale, decays), params in sorted(param_groups.items(), key=lambda item: item[0], reverse=True)
    ]


OptimizerFactory = Callable[[list[Settings], float, tuple[float, float], float], torch.optim.Optimizer]
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "adamw": lambda groups, lr, betas, eps: torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True),
    "adam": lambda groups, lr, betas, eps: torch.optim.Adam(groups, lr=lr, betas=betas, eps=eps, fused=True),
    "adafactor": lambda groups, lr, betas, eps: torch.optim.Adafactor(groups, lr=lr),
    "rms-adamw": lambda groups, lr, betas, eps: ScaledAdam(groups, lr, betas, eps, scale_by_rms),  # for T5
    "lamb": lambda groups, lr, betas, eps: ScaledAdam(groups, lr, betas, eps, scale_by_norm_ratio),  # for ALBERT
    "adagrad": lambda groups, lr, betas, eps: torch.optim.Adagrad(groups, lr=lr, initial_accumulator_value=1.0),
    "sgd": lambda groups, lr, betas, eps: torch.optim.SGD(groups, lr=lr, momentum=betas[0]),
}
DEVICE_SKIPPING_OPTIMIZERS = {"adam", "adamw"}


def build_optimizer(
    name: str, model: nn.Module, lr: float, *, weight_decay: float = 0.01, betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8, lr_scales: Mapping[str, float] | None = None,
) -> torch.optim.Optimizer:  # fmt: skip
    """Build the optimizer of a name for a model's weights; SGD's momentum is the first of the betas."""
    if name not in OPTIMIZERS:
        raise Error(f"there is no optimizer {name!r}", fix=suggest_name(name, OPTIMIZERS))
    if not (param_groups := build_param_groups(model, weight_decay, lr_scales)):
        raise Error("there is nothing to train: all weights are frozen", fix="leave some of them free")
    return OPTIMIZERS[name](param_groups, lr, betas, eps)


# (step, steps, warmup steps) → factor on the highest rate after the warmup. It depends on the step alone, so resuming
# needs no state.
SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "constant": lambda step, steps, warmup: 1.0,
    # BERT: linearly to zero
    "linear": lambda step, steps, warmup: (steps - step) / max(1, steps - warmup),
    # GPT-3: along half a cosine wave to a tenth
    "cosine": lambda step, steps, warmup: (
        0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))
    ),
    # T5: as 1/√step (the Noam schedule is this times a constant)
    "inverse_sqrt": lambda step, steps, warmup: math.sqrt(max(1, warmup) / max(1, step + 1, warmup)),
    # Warm-up, stable, decay: a plateau, and a straight line down over the last fifth. Small masked models need the
    # plateau: they learn late, and then all at once.
    "wsd": lambda step, steps, warmup: min(1.0, (steps - step) / max(1.0, 0.2 * steps)),
}
WARMUP_SCALED_SCHEDULES = {"inverse_sqrt"}  # a shorter run keeps their warmup


def build_schedule(name: str, steps: int, warmup: int) -> Callable[[int], float]:
    """Return the factor on the learning rate by step: a linear warmup, then the schedule of that name."""
    if name not in SCHEDULES:
        raise Error(f"there is no schedule {name!r}", fix=suggest_name(name, SCHEDULES))
    if steps < 1 or warmup < 0:
        raise Error(f"{steps} steps with {warmup} of warmup make no run", fix="give at least one step")
    shape = SCHEDULES[name]
    return lambda step: max(0.0, (step + 1) / max(1, warmup) if step < warmup else shape(step, steps, warmup))
