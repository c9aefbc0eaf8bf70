"""The machine under a run: what it is, how much it can do, and how much of that is used."""

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
from .distributed.process_group import ProcessGroup
from .train_config import TrainConfig
from .trainer import StepResult, Trainer


class ProgressMeter:
    """Tells of each step: loss, perplexity (or what `measure` says), speed, share of the machine's peak, memory and the
    time that is left."""

    def __init__(self, trainer: Trainer, tell: ProgressCallback, measure: Callable[[], str] | None = None):
        self.trainer, self.tell, self.describe_metric = trainer, tell, measure
        self.peak_flops = measure_peak_flops(trainer.world.device, trainer.executor.dtype)
        self.flops_per_token = estimate_flops_per_token(trainer.model, trainer.config.seq_length)
        self.recent: deque[tuple[float, int, int]] = deque(maxlen=50)  # seconds, tokens, step

    def __call__(self, report: StepResult) -> None:
        """One step."""
        self.recent.append((report.seconds, report.tokens, report.step))
        begin, end = self.recent[0], self.recent[-1]
        if len(self.recent) == 1:  # of a run that goes on, all that it has done before
            begin = (0.0, 0, 0)
        spent, tokens, taken = (last - first for first, last in zip(begin, end, strict=True))
        speed = tokens / max(1e-9, spent)
        steps = self.trainer.config.steps
        each = spent / max(1, taken)
        part = next((v for k, v in report.losses.items() if k in ("lm", "mlm")), report.loss)
        measure = (
            f"perplexity {math.exp(min(part, 50.0)):,.1f}" if self.describe_metric is None else self.describe_metric()
        )
        words = ", ".join(filter(None, (f"loss {report.loss:.3f}", measure, f"{speed:,.0f} tokens/s")))
        used = get_peak_memory(self.trainer.world.device) / 2**30
        words += f", {self.compute_mfu(speed):.0%} of peak, {used:.1f} GiB, {format_time_left((steps - end[2]) * each)}"
        self.tell("training", report.step, steps, words + (", left out" if report.skipped else ""))

    def compute_mfu(self, speed: float) -> float:
        """The share of the machine's peak that so many tokens a second of all processes are."""
        return speed / self.trainer.world.size * self.flops_per_token / self.peak_flops


@contextmanager
def explain_out_of_memory(settings: TrainConfig, parameters: int | None, device: torch.device) -> Iterator[None]:
    """What does not fit into memory is one error, with sizes and what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = " ".join(str(error).split())
        if not is_out_of_memory(error):
            raise
        wanted = re.search(r"allocate ([\d.,]+ ?[KMGT]?i?(B|bytes))", said)
        more = f", {wanted[1]} more were asked for" if wanted else ""
        size = (
            "the model"
            if parameters is None
            else f"about {parameters:,} parameters ({16 * parameters:,} bytes to train)"
        )
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
        set_deterministic(True)
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
        set_deterministic(before)


def set_deterministic(on: bool) -> None:
    """Deterministic algorithms on or off; the first call takes torch seconds, so none is made that changes nothing."""
    if torch.are_deterministic_algorithms_enabled() != on:
        torch.use_deterministic_algorithms(on)


def format_time_left(seconds: float) -> str:
    """A time in words."""
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"


def describe_hardware(world: ProcessGroup) -> dict[str, Any]:
    """What run.json and the report say of it."""
    device = world.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "formers": __version__, "torch": torch.__version__, "python": platform.python_version(),
        "system": platform.platform(), "device": str(device.type), "name": name, "processes": world.size,
        "threads": torch.get_num_threads(), "command": sys.argv[1:],
    }  # fmt: skip


def get_peak_memory(device: torch.device) -> int:
    """The most bytes that were in use so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_peak_flops(device: torch.device, kind: torch.dtype) -> float:
    """Operations a second of a large product in a type, measured for about a tenth of a second."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.ones(size, size, device=device, dtype=kind)
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
    """Until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def estimate_flops_per_token(model: nn.Module, length: int) -> float:
    """Operations of training on one token, about: six for each weight of a matrix that it meets, and attention."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    weights = sum(p.numel() for p in model.parameters() if p.dim() > 1 and id(p) not in tables)
    config: Any = getattr(getattr(model, "body", None), "config", None)
    layers, dim = getattr(config, "layers", 0), getattr(config, "dim", 0)
    return 6.0 * weights + 12.0 * layers * dim * length
