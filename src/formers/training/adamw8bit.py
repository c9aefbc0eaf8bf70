"""AdamW with moments of 8 bits: two bytes of optimizer state for a weight in place of eight.

Each block of 256 values is divided by its largest and rounded to one of 255 numbers that lie the closer the smaller
they are (dynamic quantisation: Dettmers et al. 2021, arXiv:2110.02861). Two things differ from the paper. The root of
the second moment is kept, not the moment itself: the update divides by the root, so seven decades of it matter, not
three and a half. And rounding is stochastic, by a hash of step and place: a moment that changes by a percent in a step
would otherwise never leave its number. The hash makes a resumed run bitwise equal.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import Settings
from ..nn.gpu_support import has_triton
from .skipping_optimizer import SkipMask, SkippingOptimizer

BLOCK_SIZE = 256  # values that share a scale
MIN_QUANTISED = (
    4096  # smaller tensors keep moments in fp32: norms and biases, where rounding costs most and saves least
)
PIECE_SIZE = 1 << 25  # values updated at a time, so that the moments of a large table never exist in fp32 at once
DECADES = 7  # powers of ten that the numbers reach down
HASH_FACTORS = 0x9E3779B1, 0x85EBCA77, 0x27D4EB2F  # odd, of 32 bits
WORD = 0xFFFFFFFF


@functools.cache
def build_levels(is_signed: bool, device: torch.device) -> Tensor:
    """Return the 255 numbers in [-1, 1] or [0, 1] that a code stands for, in order: zero, and in each decade twice as
    many, evenly spaced, as in the one below it. 1 and -1 are among them, so that the largest value of a block stays.
    They stay on the device: a copy for each weight and step would make the host wait."""
    levels: list[float] = []
    for decade in range(DECADES):
        count = 2 ** (decade if is_signed else decade + 1)
        edges = torch.linspace(0.1, 1.0, count + 1, dtype=torch.float64)
        levels += ((edges[:-1] + edges[1:]) / 2 * 10.0**decade).tolist()
    levels = [level / max(levels) for level in levels]
    both = sorted([0.0, *levels, *(-level for level in levels if is_signed)])
    return torch.tensor(both, dtype=torch.float32, device=device)


def dequantise(codes: Tensor, scales: Tensor, levels: Tensor) -> Tensor:
    """(blocks, 256) codes and (blocks,) scales → values"""
    return levels[codes.int()] * scales[:, None]


def quantise(values: Tensor, levels: Tensor, dither: Tensor) -> tuple[Tensor, Tensor]:
    """(blocks, 256) values → codes and (blocks,) scales, rounded up where `dither` (blocks, 256), from 0 to below 1, is
    less than the way to the number above."""
    scales = values.abs().amax(1)
    relative = values / torch.where(scales > 0, scales, 1.0)[:, None]
    above = find_levels(relative, levels).clamp(1, len(levels) - 1)  # levels[above - 1] < relative <= levels[above]
    low, high = levels[above - 1], levels[above]
    codes = torch.where(relative - low > dither * (high - low), above, above - 1)
    return codes.to(torch.uint8), scales


def find_levels(values: Tensor, levels: Tensor) -> Tensor:
    """Return how many levels are lower than each value, as torch.bucketize does; torch 2.11 cannot compile that one in
    a kernel that looks for the largest value as well."""
    if not torch.compiler.is_compiling():
        return torch.bucketize(values, levels)
    num_lower = torch.zeros_like(values, dtype=torch.int32)
    for step in (128, 64, 32, 16, 8, 4, 2, 1):  # up to 255
        more = num_lower + step
        is_lower = (more <= len(levels)) & (levels[(more - 1).clamp(max=len(levels) - 1)] < values)
        num_lower = torch.where(is_lower, more, num_lower)
    return num_lower


def draw_dither(like: Tensor, first: int, step: Tensor, salt: int) -> Tensor:
    """Return numbers from 0 to below 1 of the shape of `like`, by a hash of their places, which begin at `first`. They
    are cut to 32 bits before they are multiplied: a compiler would take the product for an index of 32 bits, which the
    factor does not fit (torch 2.11 with triton 3.6)."""
    places = (torch.arange(like.numel(), device=like.device).view(like.shape) + first) & WORD
    word = (places * HASH_FACTORS[0] + step.long() * HASH_FACTORS[1] + salt * HASH_FACTORS[2]) & WORD
    for shift in (15, 13):
        word = ((word ^ (word >> shift)) * HASH_FACTORS[1]) & WORD
    return ((word ^ (word >> 16)) >> 8).float() / 2**24


class StepNumbers(NamedTuple):
    """The numbers of one step as tensors in fp32: a compiler would take Python's floats for doubles."""

    mean_share: Tensor  # of the new gradient in the moments
    square_share: Tensor
    lr: Tensor  # over the bias of the mean
    weight_factor: Tensor  # what weight decay leaves
    root_bias: Tensor
    eps: Tensor
    is_skipped: Tensor  # a bool: nothing may change


def compute_step_numbers(step: Tensor, lr: Tensor, group: Settings, mask: SkipMask | None) -> StepNumbers:
    """Compute the numbers of a step, with no copy from the host."""

    def fill(value: float) -> Tensor:
        return torch.full((), value, dtype=torch.float32, device=step.device)

    first, second = group["betas"]
    bias, root_bias = 1 - first**step, (1 - second**step).sqrt()
    is_skipped = torch.zeros_like(step, dtype=torch.bool) if mask is None else mask.is_skipped
    return StepNumbers(
        fill(1 - first), fill(1 - second), lr / bias, 1 - lr * group["weight_decay"], root_bias, fill(group["eps"]),
        is_skipped,
    )  # fmt: skip


def update_blocks(
    weight: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor, Tensor, Tensor], signed: Tensor, unsigned: Tensor,
    step: Tensor, first: int, numbers: StepNumbers,
) -> None:  # fmt: skip
    """Take AdamW's step in (blocks, 256) weights, in place; `moments` are the codes and scales of both. If it is
    skipped, all stay: codes too, which rounding would change even without a gradient."""
    mean_codes, mean_scales, root_codes, root_scales = moments
    mean = dequantise(mean_codes, mean_scales, signed)
    mean = mean + (gradient - mean) * numbers.mean_share
    square = dequantise(root_codes, root_scales, unsigned).square()
    root = (square + (gradient.square() - square) * numbers.square_share).sqrt()
    moved = weight * numbers.weight_factor - numbers.lr * mean / (root / numbers.root_bias + numbers.eps)
    weight.copy_(torch.where(numbers.is_skipped, weight, moved))
    for values, levels, codes, scales, salt in (
        (mean, signed, mean_codes, mean_scales, 0), (root, unsigned, root_codes, root_scales, 1),
    ):  # fmt: skip
        new_codes, new_scales = quantise(values, levels, draw_dither(values, first, step, salt))
        if salt:  # a root of zero beside a mean that is not would make the next step endless
            new_codes = new_codes.clamp(min=1)
        codes.copy_(torch.where(numbers.is_skipped, codes, new_codes))
        scales.copy_(torch.where(numbers.is_skipped, scales, new_scales))


@functools.cache
def get_update(device_type: str) -> Callable[..., None]:
    """Return update_blocks, on a GPU with triton as one kernel for pieces of any size, if that can be compiled."""
    if device_type != "cuda" or not has_triton():
        return update_blocks
    update: Callable[..., None] = torch.compile(update_blocks, dynamic=True)

    def try_compiled(*arguments: Any) -> None:  # dynamic: those of update_blocks
        nonlocal update
        try:
            update(*arguments)
        except Exception as error:  # torch has no common class for what goes wrong while it compiles
            if update is update_blocks or isinstance(error, torch.OutOfMemoryError):
                raise
            reason = " ".join(str(error).split())[:200]
            what = f"adamw8bit runs uncompiled and slower: {type(error).__name__}: {reason}"
            warnings.warn(what, stacklevel=2)
            update = update_blocks
            update(*arguments)

    return try_compiled


class AdamW8bit(SkippingOptimizer):
    """AdamW whose moments are kept as codes (uint8) and scales (fp32) of blocks."""

    def __init__(self, groups: list[Settings], lr: float, betas: tuple[float, float], eps: float):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step without a host sync."""
        mask = self.build_skip_mask()
        for group in self.param_groups:
            lr = group["lr"]
            if not isinstance(lr, Tensor):  # filled by a kernel: a copy from the host would wait for the device
                lr = torch.full((), lr, dtype=torch.float32, device=group["params"][0].device)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(build_moments(p))
                state["step"] += 1 if mask is None else mask.counted
                if "mean_codes" in state:
                    self.update_quantised(p, state, lr, group, mask)
                else:
                    update_full(p, state, lr, group, mask)

    def update_quantised(self, p: Tensor, state: Settings, lr: Tensor, group: Settings, mask: SkipMask | None) -> None:
        """Update a weight piece by piece; the last block is filled up with zeros."""
        levels = [build_levels(is_signed, p.device) for is_signed in (True, False)]
        weight, gradient, update = p.view(-1), p.grad.reshape(-1), get_update(p.device.type)  # type: ignore[union-attr]
        numbers = compute_step_numbers(state["step"], lr, group, mask)
        moments = [state[name] for name in ("mean_codes", "mean_scales", "root_codes", "root_scales")]
        for first in range(0, p.numel(), PIECE_SIZE):
            piece = weight[first : first + PIECE_SIZE]
            rest = -len(piece) % BLOCK_SIZE
            own, slope = (F.pad(t, (0, rest)) if rest else t for t in (piece, gradient[first : first + PIECE_SIZE]))
            blocks = slice(first // BLOCK_SIZE, (first + len(own)) // BLOCK_SIZE)
            update(  # a compiler would take a place of 0 or 1 for a constant
                own.view(-1, BLOCK_SIZE), slope.view(-1, BLOCK_SIZE), tuple(t[blocks] for t in moments), *levels,
                state["step"], first + 2, numbers,
            )  # fmt: skip
            if rest:
                piece.copy_(own[: len(piece)])

    def load_state_dict(self, state_dict: Settings) -> None:
        """Restore a state; torch would turn the codes into floats."""
        own = state_dict["state"]
        codes = {n: {k: v for k, v in one.items() if v.dtype == torch.uint8} for n, one in own.items()}
        rest = {n: {k: v for k, v in one.items() if v.dtype != torch.uint8} for n, one in own.items()}
        super().load_state_dict({**state_dict, "state": rest})
        params = [p for group in self.param_groups for p in group["params"]]
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        for number, p in zip(numbers, params, strict=True):
            self.state[p].update({name: code.to(p.device) for name, code in codes.get(number, {}).items()})


def build_moments(p: Tensor) -> Settings:
    """Return the moments of a weight before its first step."""
    step = torch.zeros((), device=p.device)
    if p.numel() < MIN_QUANTISED:
        return {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
    blocks = math.ceil(p.numel() / BLOCK_SIZE)
    codes: dict[str, Tensor] = {}
    for name in ("mean", "root"):
        codes[f"{name}_codes"] = torch.zeros(blocks, BLOCK_SIZE, dtype=torch.uint8, device=p.device)
        codes[f"{name}_scales"] = torch.zeros(blocks, device=p.device)
    return {"step": step, **codes}


def update_full(p: Tensor, state: Settings, lr: Tensor, group: Settings, mask: SkipMask | None) -> None:
    """Take AdamW's step with moments in fp32."""
    first, second = group["betas"]
    mean, square, t, grad = state["exp_avg"], state["exp_avg_sq"], state["step"], p.grad
    new_mean = torch.lerp(mean, grad, 1 - first)  # type: ignore[arg-type]
    new_square = (square * second).addcmul_(grad, grad, value=1 - second)
    new = p * (1 - lr * group["weight_decay"])
    new.sub_(lr * (new_mean / (1 - first**t)) / ((new_square / (1 - second**t)).sqrt() + group["eps"]))
    for tensor, changed in ((mean, new_mean), (square, new_square), (p, new)):
        tensor.copy_(changed if mask is None else torch.where(mask.is_skipped, tensor, changed))
