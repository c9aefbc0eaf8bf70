"""Optimizers and learning-rate schedules by name: fused AdamW and those that single papers ask for.

A new one is an entry of OPTIMIZERS or SCHEDULES, which the settings are checked against; an optimizer that skips
non-finite gradients on the device (`found_inf`) also of DEVICE_SKIPPING_OPTIMIZERS, one whose step can be recorded as
part of a CUDA graph also of CAPTURABLE_OPTIMIZERS, a schedule whose warmup is its time scale also of
WARMUP_SCALED_SCHEDULES, one whose rate does not rise in it also of FLAT_WARMUP_SCHEDULES.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import Settings, suggest_name
from ..errors import Error
from .adamw8bit import AdamW8bit
from .skipping_optimizer import SkipMask, SkippingOptimizer

MAX_UPDATED = 2**26  # numbers that are updated at once: each needs 4 bytes for a moment, 8 with weight decay


class ScaledAdam(SkippingOptimizer):
    """Adam's direction times `compute_scales(weights, directions)` and the learning rate, with decoupled weight
    decay."""

    def __init__(
        self, groups: list[Settings], lr: float, betas: tuple[float, float], eps: float,
        compute_scales: Callable[[list[Tensor], list[Tensor]], Tensor],
    ):  # fmt: skip
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.compute_scales = compute_scales

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step without a host sync."""
        mask = self.build_skip_mask()
        for group in self.param_groups:
            for params in list_updates(group):
                moves = compute_adam_moves(self.state, params, group, mask)
                scales = self.compute_scales(params, moves) * count_in(group["lr"], mask)
                torch._foreach_mul_(moves, list(scales.unbind()))
                torch._foreach_add_(params, moves)


def split_updates(tensors: Sequence[Tensor], most: int) -> list[list[int]]:
    """Return the places of tensors in runs that one operation updates: of at most so many numbers, or one tensor.
    Shards and whole tensors cannot be mixed."""
    parts: list[list[int]] = []
    for sharded in (False, True):
        count: float = math.inf
        for place, tensor in enumerate(tensors):
            if is_sharded(tensor) != sharded:
                continue
            if count + tensor.numel() > most:
                parts.append([])
                count = 0
            parts[-1].append(place)
            count += tensor.numel()
    return parts


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is one process's view of a distributed one."""
    return hasattr(tensor, "full_tensor")  # dynamic: a DTensor, whose module a torch without torch.distributed lacks


def list_updates(group: Settings) -> list[list[Tensor]]:
    """List the weights of a group that have a gradient, in runs that one operation updates."""
    params = [p for p in group["params"] if p.grad is not None]
    return [[params[place] for place in part] for part in split_updates(params, MAX_UPDATED)]


def count_in(lr: float | Tensor, mask: SkipMask | None) -> float | Tensor:
    """Return the learning rate, 0 in a skipped step."""
    return lr if mask is None else lr * mask.counted


def compute_adam_moves(
    states: Mapping[Tensor, Settings], params: list[Tensor], group: Settings, mask: SkipMask | None
) -> list[Tensor]:  # fmt: skip
    """Update the moments of weights by their gradients, and return where Adam goes with a rate of 1: -m / (√v + ε),
    both without their bias, and in a skipped step 0; less the weight decay. Torch's fused kernels do it for many
    weights at once: they move zeros in place of the weights."""
    own = [states[p] for p in params]
    for state, p in zip(own, params, strict=True):
        if not state:
            state["step"] = torch.zeros((), device=p.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
    steps, means, squares = ([state[name] for state in own] for name in ("step", "exp_avg", "exp_avg_sq"))
    moves = list(torch._foreach_mul(params, 0.0))
    torch._foreach_add_(steps, [steps[0].new_ones(()) if mask is None else mask.counted] * len(steps))
    gradients, (first, second) = [p.grad for p in params if p.grad is not None], group["betas"]
    torch._fused_adam_(
        moves, gradients, means, squares, [], steps, lr=1.0, beta1=first, beta2=second, weight_decay=0.0,
        eps=group["eps"], amsgrad=False, maximize=False, found_inf=None if mask is None else mask.is_skipped.float(),
    )  # fmt: skip
    if group["weight_decay"]:
        torch._foreach_sub_(moves, torch._foreach_mul(params, group["weight_decay"]))
    return moves


def scale_by_norm_ratios(weights: list[Tensor], directions: list[Tensor]) -> Tensor:
    """Return ‖w‖ / ‖direction‖ of each weight, or 1 where either is zero (LAMB: You et al. 2019, algorithm 2)."""
    own, new = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, directions))
    return torch.where((own > 0) & (new > 0), own / new, torch.ones_like(own))


def scale_by_rms(weights: list[Tensor], directions: list[Tensor]) -> Tensor:
    """Return RMS(w) of each weight, at least 1e-3, so that the rate is relative as Adafactor's is (Shazeer & Stern
    2018, §8)."""
    return compute_rms(weights).clamp(min=1e-3)


def compute_rms(tensors: list[Tensor]) -> Tensor:
    """Return the root of each tensor's mean square."""
    roots = [math.sqrt(tensor.numel()) for tensor in tensors]
    return torch.stack(torch._foreach_div(torch._foreach_norm(tensors), roots))


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


class Adafactor(SkippingOptimizer):
    """Adafactor (Shazeer & Stern 2018, algorithm 4) as T5 was trained with it: no momentum, β₂ = 1 - t^-0.8, updates
    clipped at RMS 1 and scaled by RMS(w). The squared gradients of a matrix are kept as the means of its rows and
    columns if both of its largest axes have at least 128 entries, as in Mesh TensorFlow; smaller ones are kept whole.
    torch's own factors every matrix, keeps a larger ε and lowers any rate to 1/√t."""

    def __init__(self, groups: list[Settings], lr: float):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step without a host sync."""
        mask = self.build_skip_mask()
        for group in self.param_groups:
            for params in list_updates(group):
                moves = [compute_adafactor_direction(self.state[p], p, mask) for p in params]
                scales = scale_by_rms(params, moves) / compute_rms(moves).clamp(min=1.0)
                torch._foreach_mul_(moves, list(scales.unbind()))
                if group["weight_decay"]:
                    torch._foreach_add_(moves, torch._foreach_mul(params, group["weight_decay"]))
                torch._foreach_mul_(moves, count_in(group["lr"], mask))
                torch._foreach_sub_(params, moves)


def compute_adafactor_direction(state: Settings, p: Tensor, mask: SkipMask | None) -> Tensor:
    """Update a weight's means of squared gradients, and return the gradient over their root; in a skipped step 0."""
    assert p.grad is not None
    grad = p.grad if mask is None else mask.drop(p.grad)
    axes, squares = find_factored_axes(p), grad.square() + 1e-30
    if not state:
        state["step"] = torch.zeros((), device=p.device)
        means = {"row_mean": squares.mean(axes[1]), "column_mean": squares.mean(axes[0])} if axes else {}
        state |= {n: torch.zeros_like(t) for n, t in (means or {"square_mean": squares}).items()}
    state["step"] += 1 if mask is None else mask.counted
    share = state["step"] ** -0.8  # of the new squares: 1 - β₂
    if mask is not None:
        share = mask.drop(share)
    if axes:
        rows = move_mean(state["row_mean"], squares.mean(axes[1]), share)
        columns = move_mean(state["column_mean"], squares.mean(axes[0]), share)
        axis = axes[0] - (axes[1] < axes[0])  # of the rows' means, which have lost the other axis
        factor = (rows / rows.mean(axis, keepdim=True)).rsqrt().unsqueeze(axes[1])
        direction = grad * factor * columns.rsqrt().unsqueeze(axes[0])
    else:
        direction = grad * move_mean(state["square_mean"], squares, share).rsqrt()
    return direction if mask is None else mask.drop(direction)  # 0 over 0 before the first step that counts


def move_mean(mean: Tensor, new: Tensor, share: Tensor) -> Tensor:
    """Move a running mean in place by a share of the new values."""
    return mean.mul_(1 - share).add_(new * share)


def find_factored_axes(weight: Tensor) -> tuple[int, int] | None:
    """Return the two largest axes of a weight, the larger one last; None if the smaller has fewer than 128 entries."""
    order = sorted(range(weight.dim()), key=lambda axis: weight.shape[axis])[-2:]
    return (order[0], order[1]) if len(order) == 2 and weight.shape[order[0]] >= 128 else None


class AdamThenSGD(SkippingOptimizer):
    """Adam without decay, and from some step on plain SGD (Wu et al. 2016, §8.3). The trainer says by `uses_sgd` which
    of the two a step takes, since the learning rate changes with it."""

    def __init__(self, groups: list[Settings], lr: float, betas: tuple[float, float], eps: float):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "uses_sgd": False})

    def choose_method(self, uses_sgd: bool) -> None:
        """Choose Adam or SGD for the following steps. SGD keeps no moments, so those of Adam are dropped."""
        for group in self.param_groups:
            group["uses_sgd"] = uses_sgd
        if uses_sgd:
            self.state.clear()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step without a host sync."""
        mask = self.build_skip_mask()
        for group in self.param_groups:
            if group["uses_sgd"]:
                for p in (p for p in group["params"] if p.grad is not None):
                    update = (p.grad + group["weight_decay"] * p) * group["lr"]
                    p.sub_(update if mask is None else mask.drop(update))
                continue
            for params in list_updates(group):
                moves = compute_adam_moves(self.state, params, group, mask)
                torch._foreach_mul_(moves, count_in(group["lr"], mask))
                torch._foreach_add_(params, moves)


OptimizerFactory = Callable[[list[Settings], float, tuple[float, float], float], torch.optim.Optimizer]
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "adamw": lambda groups, lr, betas, eps: torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True),
    "adamw8bit": lambda groups, lr, betas, eps: AdamW8bit(groups, lr, betas, eps),
    "adam": lambda groups, lr, betas, eps: torch.optim.Adam(groups, lr=lr, betas=betas, eps=eps, fused=True),
    "adafactor": lambda groups, lr, betas, eps: Adafactor(groups, lr),  # for T5
    "rms-adamw": lambda groups, lr, betas, eps: ScaledAdam(groups, lr, betas, eps, scale_by_rms),  # for T5
    "lamb": lambda groups, lr, betas, eps: ScaledAdam(groups, lr, betas, eps, scale_by_norm_ratios),  # for ALBERT
    "adagrad": lambda groups, lr, betas, eps: torch.optim.Adagrad(groups, lr=lr, initial_accumulator_value=1.0),
    # Bahdanau et al. 2015 and Cho et al. 2014: ρ is the second of the betas, and the rate 1.
    "adadelta": lambda groups, lr, betas, eps: torch.optim.Adadelta(groups, lr=lr, rho=betas[1], eps=eps),
    "adam-sgd": lambda groups, lr, betas, eps: AdamThenSGD(groups, lr, betas, eps),  # for GNMT
    "sgd": lambda groups, lr, betas, eps: torch.optim.SGD(groups, lr=lr, momentum=betas[0]),
}
DEVICE_SKIPPING_OPTIMIZERS = {"adam", "adamw", "adamw8bit", "adafactor", "rms-adamw", "lamb", "adam-sgd"}
CAPTURABLE_OPTIMIZERS = {"adam", "adamw", "adafactor", "rms-adamw", "lamb"}


def build_optimizer(
    name: str, model: nn.Module, lr: float, *, weight_decay: float = 0.01, betas: tuple[float, float] = (0.9, 0.98),
    eps: float = 1e-8, lr_scales: Mapping[str, float] | None = None,
) -> torch.optim.Optimizer:  # fmt: skip
    """Build the optimizer of a name for a model's weights; SGD's momentum is the first of the betas."""
    if name not in OPTIMIZERS:
        raise Error(f"there is no optimizer {name!r}", fix=suggest_name(name, OPTIMIZERS))
    if not (param_groups := build_param_groups(model, weight_decay, lr_scales)):
        raise Error("there is nothing to train: all weights are frozen", fix="unfreeze some of them")
    return OPTIMIZERS[name](param_groups, lr, betas, eps)


@dataclass(frozen=True)
class ScheduleSpan:
    """The steps of a schedule, and how low the rate falls."""

    steps: int  # of the run
    warmup: int
    min_lr_ratio: float = 0.1  # what is left of the highest rate at the end of a cosine
    decay_steps: int | None = None  # the step at which linear and cosine end; None: the last
    decay_start: int | None = None  # the first step with half of the rate; None: after two thirds of the steps
    decay_every: int | None = None  # steps until it is halved again; None: a fourth of the rest

    @property
    def end(self) -> int:
        """The step at which the decay ends."""
        return self.decay_steps or self.steps

    @property
    def share(self) -> Callable[[int], float]:
        """The share of the decay that is done at a step, from 0 to 1."""
        return lambda step: min(1.0, (step - self.warmup) / max(1, self.end - self.warmup))

    def count_halvings(self, step: int) -> int:
        """Return how often the rate has been halved."""
        start = self.decay_start if self.decay_start is not None else 2 * self.steps // 3
        every = self.decay_every or max(1, (self.steps - start) // 4)
        return 0 if step < start else 1 + (step - start) // every


# (step, span) → factor on the highest rate after the warmup. It depends on the step alone, so resuming needs no state.
SCHEDULES: dict[str, Callable[[int, ScheduleSpan], float]] = {
    "constant": lambda step, span: 1.0,
    # BERT: linearly to zero
    "linear": lambda step, span: (span.end - step) / max(1, span.end - span.warmup),
    # GPT-3: along half a cosine wave to a tenth; GPT-1: to zero
    "cosine": lambda step, span: (
        span.min_lr_ratio + (1 - span.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * span.share(step)))
    ),
    # Transformer: as 1/√step (the Noam schedule is this times a constant)
    "inverse_sqrt": lambda step, span: math.sqrt(max(1, span.warmup) / max(1, step + 1, span.warmup)),
    # T5: as inverse_sqrt, but constant instead of rising in the first `warmup` steps
    "rsqrt": lambda step, span: math.sqrt(max(1, span.warmup) / max(1, step + 1, span.warmup)),
    # Sutskever, Luong, GNMT: constant, then halved again and again
    "halving": lambda step, span: 0.5 ** span.count_halvings(step),
    # Warm-up, stable, decay: a plateau, and a straight line down over the last fifth. Small masked models need the
    # plateau: they learn late, and then all at once.
    "wsd": lambda step, span: min(1.0, (span.steps - step) / max(1.0, 0.2 * span.steps)),
}
WARMUP_SCALED_SCHEDULES = {"inverse_sqrt", "rsqrt"}  # a shorter run keeps their warmup
FLAT_WARMUP_SCHEDULES = {"rsqrt"}  # the rate does not rise in the warmup


def build_schedule(
    name: str, steps: int, warmup: int, *, min_lr_ratio: float = 0.1, decay_steps: int | None = None,
    decay_start: int | None = None, decay_every: int | None = None,
) -> Callable[[int], float]:  # fmt: skip
    """Return the factor on the learning rate by step: a linear warmup, then the schedule of that name; the rest are
    fields of ScheduleSpan."""
    if name not in SCHEDULES:
        raise Error(f"there is no schedule {name!r}", fix=suggest_name(name, SCHEDULES))
    if steps < 1 or warmup < 0:
        what = f"a schedule needs a step or more, got {steps} steps with {warmup} of warmup"
        raise Error(what, fix="give at least one step")
    shape, span = SCHEDULES[name], ScheduleSpan(steps, warmup, min_lr_ratio, decay_steps, decay_start, decay_every)
    rising = 0 if name in FLAT_WARMUP_SCHEDULES else warmup
    return lambda step: max(0.0, (step + 1) / max(1, warmup) if step < rising else shape(step, span))
