"""Learning-rate schedules: functions of the step alone (so that resuming needs no state) to shares of the highest rate.

A new one is a function and an entry of SCHEDULES, which the settings are checked against.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..config import suggest_name
from ..errors import Error

Schedule = Callable[[int], float]


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
    """The share of the learning rate at each step: a linear warm-up, then the shape of that name."""
    if name not in SCHEDULES:
        raise Error(f"there is no schedule {name!r}", fix=suggest_name(name, SCHEDULES))
    if steps < 1 or warmup < 0:
        raise Error(f"{steps} steps with {warmup} of warm-up make no run", fix="give at least one step")
    shape = SCHEDULES[name]

    def get_lr_scale(step: int) -> float:
        return max(0.0, min((step + 1) / max(1, warmup), 1.0) if step < warmup else shape(step, steps, warmup))

    return get_lr_scale
