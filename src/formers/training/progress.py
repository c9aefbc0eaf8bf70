"""The line that a run prints of its progress: loss, perplexity, speed, share of the peak, memory, time left."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from ..config import ProgressCallback
from .hardware import estimate_flops_per_token, get_peak_memory, measure_peak_flops
from .trainer import StepResult, Trainer


class ProgressMeter:
    """Reports each step: loss, perplexity (or what `describe_metric` says), speed, share of the machine's peak, memory
    and the time that is left."""

    def __init__(self, trainer: Trainer, tell: ProgressCallback, describe_metric: Callable[[], str] | None = None):
        self.trainer, self.tell, self.describe_metric = trainer, tell, describe_metric
        self.peak_flops = measure_peak_flops(trainer.world.device, trainer.executor.dtype)
        self.flops_per_token = estimate_flops_per_token(trainer.model, trainer.config.seq_length)
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
        used = get_peak_memory(self.trainer.world.device) / 2**30
        words = (
            f"loss {result.loss:.3f}", perplexity if self.describe_metric is None else self.describe_metric(),
            f"{speed:,.0f} tokens/s", f"{self.compute_mfu(speed):.0%} of peak", f"{used:.1f} GiB",
            format_time_left((steps - end[2]) * spent / max(1, taken)), "skipped" if result.is_skipped else "",
        )  # fmt: skip
        self.tell("training", result.step, steps, ", ".join(filter(None, words)))

    def compute_mfu(self, speed: float) -> float:
        """Return the share of the machine's peak at so many tokens a second of all processes."""
        return speed / self.trainer.world.size * self.flops_per_token / self.peak_flops


def format_time_left(seconds: float) -> str:
    """Format the time that is left in words."""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"
