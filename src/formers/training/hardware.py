"""The machine under a run: what it is, how fast it can be, and how much of that is used."""

from __future__ import annotations

import math
import os
import platform
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .. import __version__
from ..config import ProgressCallback
from ..errors import Error, is_out_of_memory
from ..nn.attention.attention import Attention
from .distributed.process_group import ProcessGroup
from .train_config import TrainConfig
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
        if len(self.recent) == 1:  # of a run that goes on, all that it has done before
            begin = (0.0, 0, 0)
        spent, tokens, taken = (last - first for first, last in zip(begin, end, strict=True))
        speed, steps = tokens / max(1e-9, spent), self.trainer.config.steps
        loss = next((v for k, v in result.losses.items() if k in ("lm", "mlm")), result.loss)
        perplexity = f"perplexity {math.exp(min(loss, 50.0)):,.1f}"
        used = get_peak_memory(self.trainer.world.device) / 2**30
        words = (
            f"loss {result.loss:.3f}", perplexity if self.describe_metric is None else self.describe_metric(),
            f"{speed:,.0f} tokens/s", f"{self.compute_mfu(speed):.0%} of peak", f"{used:.1f} GiB",
            format_time_left((steps - end[2]) * spent / max(1, taken)), "skipped" if result.skipped else "",
        )  # fmt: skip
        self.tell("training", result.step, steps, ", ".join(filter(None, words)))

    def compute_mfu(self, speed: float) -> float:
        """Return the share of the machine's peak at so many tokens a second of all processes."""
        return speed / self.trainer.world.size * self.flops_per_token / self.peak_flops


@contextmanager
def explain_out_of_memory(settings: TrainConfig, parameters: int | None, device: torch.device) -> Iterator[None]:
    """Turn an allocation that fails within the block into one error with sizes and what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        request = re.search(r"allocate ([\d.,]+ ?[KMGT]?i?(B|bytes))", " ".join(str(error).split()))
        more = f", {request[1]} more were asked for" if request else ""
        size = "the model"
        if parameters is not None:
            size = f"about {parameters:,} parameters ({16 * parameters:,} bytes to train)"
        raise Error(
            f"out of memory on {device}: {size} and batches of {settings.batch_tokens:,} tokens;"
            f" {get_peak_memory(device) / 2**30:.1f} GiB in use at most{more}",
            fix="--train.activation_checkpointing true (also with --resume), or begin anew with a smaller"
            " --train.batch_tokens (and a larger --train.accumulate, to keep the size of a step), --train.precision"
            " bf16 or a smaller model",
        ) from None


@contextmanager
def use_deterministic(wanted: bool) -> Iterator[None]:
    """Make torch deterministic within the block if `wanted`; its earlier settings are restored."""
    before = torch.are_deterministic_algorithms_enabled()
    if wanted:  # torch looks at this at its first product on a GPU, and refuses to go on without
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if not before:  # the call takes torch seconds, so none is made that changes nothing
            torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if not wanted or "deterministic" not in str(error):
            raise
        said = " ".join(str(error).split())[:120]
        late = "CuBLAS" in str(error)
        what = "this process has used the GPU before" if late else "not every operation gives the same bits here"
        fix = "begin a new one, or set CUBLAS_WORKSPACE_CONFIG=:4096:8 for it" if late else "leave deterministic out"
        raise Error(f"{what} ({said})", fix=fix) from None
    finally:
        if torch.are_deterministic_algorithms_enabled() != before:
            torch.use_deterministic_algorithms(before)


def format_time_left(seconds: float) -> str:
    """Format the time that is left in words."""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


def describe_hardware(world: ProcessGroup) -> dict[str, Any]:
    """Describe machine and software for run.json and the report."""
    device = world.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "formers": __version__, "torch": torch.__version__, "python": platform.python_version(),
        "system": platform.platform(), "device": str(device.type), "name": name, "processes": world.size,
        "threads": torch.get_num_threads(), "command": sys.argv[1:],
    }  # fmt: skip


def get_peak_memory(device: torch.device) -> int:
    """Return the most bytes that were in use so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measure for about a tenth of a second how many operations a second a large product takes."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.ones(size, size, device=device, dtype=dtype)
    a @ a  # the first one also sets things up
    best, until = 0.0, time.perf_counter() + 0.1
    while not best or time.perf_counter() < until:
        synchronize_device(device)
        began = time.perf_counter()
        a @ a
        synchronize_device(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def synchronize_device(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def estimate_flops_per_token(model: nn.Module, length: int) -> float:
    """Estimate the operations of training on one token: six for each weight of a matrix that it meets, and attention
    to `length` tokens."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    weights = sum(p.numel() for p in model.parameters() if p.dim() > 1 and id(p) not in tables)
    attention = sum(m.heads * m.head_dim for m in model.modules() if isinstance(m, Attention))
    return 6.0 * weights + 12.0 * attention * length
