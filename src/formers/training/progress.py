"""The progress line of a run: loss, perplexity, speed, share of the peak, memory, time left."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from ..config import ProgressCallback
from .hardware import get_peak_memory
from .loop import LoopTrainer
from .trainer import StepResult


class ProgressMeter:
    """Reports each step: loss, perplexity (or what `describe_metric` says), speed, share of the machine's peak, memory
    and the time that is left. `flops` are the operations of a token, and the machine's peak in a second."""

    def __init__(
        self, trainer: LoopTrainer, tell: ProgressCallback, describe_metric: Callable[[], str] | None = None,
        flops: tuple[float, float] | None = None,
    ):  # fmt: skip
        self.trainer, self.tell, self.describe_metric, self.flops = trainer, tell, describe_metric, flops
        self.recent: deque[tuple[float, int, int]] = deque(maxlen=50)  # seconds, tokens, step

    def __call__(self, result: StepResult) -> None:
        """Report a step."""
        self.recent.append((result.seconds, result.tokens, result.step))
        begin, end = self.recent[0], self.recent[-1]
        if len(self.recent) == 1:  # of a resumed run, all that it has done before
            begin = (0.0, 0, 0)
        spent, tokens, taken = (last - first for first, last in zip(begin, end, strict=True))
        speed, steps = tokens / max(1e-9, spent), self.trainer.config.steps
        loss = next((v for k, v in result.losses.items() if k in ("lm", "mlm")), result.loss)
        perplexity = f"perplexity {math.exp(min(loss, 50.0)):,.1f}"
        mfu, used = self.compute_mfu(speed), get_peak_memory(self.trainer.world.device) / 2**30
        words = (
            f"loss {result.loss:.3f}", perplexity if self.describe_metric is None else self.describe_metric(),
            f"{speed:,.0f} tokens/s", "" if mfu is None else f"{mfu:.0%} of peak", f"{used:.1f} GiB",
            format_time_left((steps - end[2]) * spent / max(1, taken)), "skipped" if result.is_skipped else "",
        )  # fmt: skip
        self.tell("training", result.step, steps, ", ".join(filter(None, words)))

    def compute_mfu(self, speed: float) -> float | None:
        """Return the share of the machine's peak at a speed in tokens a second of all processes; None if unknown, or if
        other programs slowed the measurement of the peak down so much that the share would be above 1."""
        share = 0.0 if self.flops is None else speed / self.trainer.world.size * self.flops[0] / self.flops[1]
        return share if 0.0 < share <= 1.0 else None


def format_duration(seconds: float) -> str:
    """Format a duration in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_time_left(seconds: float) -> str:
    """Format the time that is left in words."""
    return f"{format_duration(seconds)} left"
