"""The loop: one for all objectives and families. It never loses a step.

A step takes `accumulate` batches, sums their gradients as if they were one batch, and moves the weights only if the
gradient is a number. What is needed to go on is written by training/checkpoint.py; the position in the data is one
number.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..errors import Error
from ..tasks.heads import Model
from .optim import optimizer
from .schedule import schedule
from .settings import Train
from .state import Tensors, flat, nested, put, random_state, set_random_state, weights
from .step import Step
from .world import World

Source = Callable[[int], Iterator[tuple[Batch, int]]]  # batches from a position on, each with the position behind it
USUAL = 50  # gradients by which a spike is judged


class Diverged(Error):
    """Too many steps in a row gave no number."""


@dataclass
class Report:
    """One step, as it is told."""

    step: int  # how many are done
    losses: dict[str, float]  # the mean of each
    loss: float  # their sum
    norm: float  # of the gradient, before clipping
    lr: float
    tokens: int  # in all
    seconds: float  # in all
    skipped: bool = False


@dataclass
class Trainer:
    """A model on its way: weights, moments, generators, position. `train` takes steps, `state` is all there is."""

    model: Model
    objective: Any
    settings: Train
    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        s = self.settings
        self.device = next(self.model.parameters()).device
        self.type = working_type(s.precision, self.device)
        self.step, self.position, self.tokens, self.seconds, self.skipped = 0, 0, 0, 0.0, 0
        self.norms: deque[float] = deque(maxlen=USUAL)
        self.wrapped = self.world.wrap(Step(self.model, self.objective))
        self.optimizer = optimizer(s.optimizer, self.model, s.lr, decay=s.decay, betas=s.betas, eps=s.eps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.type == torch.float16)
        self.share = schedule(s.schedule, s.steps, s.warmup)
        self.average = {n: t.detach().clone() for n, t in weights(self.model).items()} if s.ema else {}
        on = self.device.type == "cuda" if s.compile is None else s.compile
        self.run = compiled(self.wrapped) if on else self.wrapped
        self.generators: Tensors | None = None

    @contextlib.contextmanager
    def own_generators(self) -> Iterator[None]:
        """Dropout draws from the run's own generators; the caller's are where they were."""
        before = random_state()
        if self.generators is None:
            torch.manual_seed(self.settings.seed + 1_000_003 * self.world.rank)
        else:
            set_random_state(self.generators)
        try:
            yield
        finally:
            self.generators = random_state()
            set_random_state(before)

    def train(self, source: Source, until: int | None = None) -> Iterator[Report]:
        """Steps, one after the other, from where the run stands; between two of them everything may be saved."""
        batches = source(self.position)
        try:
            while self.step < (self.settings.steps if until is None else until):
                began = time.perf_counter()
                taken, position = [], self.position
                for _ in range(self.settings.batches(self.step)):
                    batch, position = next(batches)
                    taken.append(batch)
                with self.own_generators():
                    report = self.move(taken)
                self.position, self.step = position, self.step + 1
                self.seconds += time.perf_counter() - began
                report.step, report.seconds = self.step, self.seconds
                yield report
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def move(self, batches: list[Batch]) -> Report:
        """One step: gradients of all batches, divided by the number of places of all, then the weights."""
        s = self.settings
        counts = self.world.total([self.objective.counts(batch) for batch in batches])
        lr = s.lr * self.share(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.wrapped.train()
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            with self.world.last(self.wrapped, number == len(batches) - 1):
                for name, total in self.backward(batch.to(self.device), counts).items():
                    sums[name] = sums.get(name, torch.zeros_like(total)) + total
        self.scaler.unscale_(self.optimizer)
        norm = float(self.world.norm(self.model, s.clip or math.inf))
        losses = self.world.mean(sums, counts)
        self.tokens += self.world.count(sum(len(batch.ids) for batch in batches))
        skip = self.odd(norm, sum(losses.values()))
        if not skip:
            self.scaler.step(self.optimizer)
            if self.average:
                self.follow()
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return Report(self.step, losses, sum(losses.values()), norm, lr, self.tokens, 0.0, skip)

    def backward(self, batch: Batch, counts: dict[str, float]) -> dict[str, Tensor]:
        """Add a batch's share of the gradient; the summed losses."""
        with torch.autocast(self.device.type, dtype=self.type, enabled=self.type != torch.float32):
            losses = self.run(batch)
        share = sum(total * (self.world.size / max(1.0, counts[name])) for name, (total, _) in losses.items())
        self.scaler.scale(share).backward()
        return {name: total.detach() for name, (total, _) in losses.items()}

    def odd(self, norm: float, loss: float) -> bool:
        """Should this step be left out? Too many in a row that are no numbers end the run."""
        if math.isfinite(norm) and math.isfinite(loss):
            self.skipped = 0
            usual = statistics.median(self.norms) if len(self.norms) == USUAL else math.inf
            if self.settings.spike and norm > self.settings.spike * usual:
                return True
            self.norms.append(norm)
            return False
        self.skipped += 1
        if self.skipped >= self.settings.skips and self.type != torch.float16:
            raise Diverged(
                f"{self.skipped} steps in a row gave no number, the last at step {self.step}, example {self.position}",
                fix="resume with a lower train.lr; the checkpoint before is whole",
            )
        return True

    @torch.no_grad()
    def follow(self) -> None:
        """The moving average takes one step towards the weights."""
        for name, tensor in weights(self.model).items():
            if tensor.is_floating_point():
                self.average[name].lerp_(tensor, 1 - self.settings.ema)

    def state(self) -> tuple[dict[str, Tensors], dict[str, Any]]:
        """All that is needed to go on: tensors by file, and the rest."""
        moments, rest = flat(self.optimizer.state_dict())
        groups = {"model": weights(self.model), "optimizer": moments, "generators": self.generators or random_state()}
        if self.average:
            groups["average"] = self.average
        plain = {name: getattr(self, name) for name in ("step", "position", "tokens", "seconds", "skipped")}
        return groups, {
            **plain, "norms": list(self.norms), "optimizer": rest, "scaler": self.scaler.state_dict(),
            "begun": self.generators is not None,
        }  # fmt: skip

    def restore(self, groups: dict[str, Tensors], state: dict[str, Any]) -> None:
        """Stand where a saved state stood."""
        put(self.model, groups["model"])
        moments = {name: tensor.to(self.device) for name, tensor in groups["optimizer"].items()}
        self.optimizer.load_state_dict(nested(moments, state["optimizer"]))
        self.generators = dict(groups["generators"]) if state["begun"] else None
        for name in ("step", "position", "tokens", "seconds", "skipped"):
            setattr(self, name, state[name])
        self.norms = deque(state["norms"], maxlen=USUAL)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        for name, tensor in groups.get("average", {}).items():
            self.average[name].copy_(tensor)


def working_type(precision: str, device: torch.device) -> torch.dtype:
    """The type in which products are computed."""
    if precision == "auto":
        good = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if good else torch.float32
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def compiled(step: Any) -> Callable[[Batch], Any]:
    """The step through torch.compile; where that fails, the step as it is, and a word about it."""
    fast = torch.compile(step)
    failed = False

    def run(batch: Batch) -> Any:
        nonlocal failed
        if not failed:
            try:
                return fast(batch)
            except Exception as error:  # torch has no common class for what goes wrong here
                failed = True
                said = " ".join(str(error).split())[:200]
                warnings.warn(f"not compiled, and slower for it: {type(error).__name__}: {said}", stacklevel=2)
        return step(batch)

    return run
