"""The loop: one for all objectives and families. It never loses a step.

A step takes `accumulate` batches, sums their gradients as if they were one batch, and moves the weights only if the
gradient is a number. What is needed to go on is written by training/checkpoint.py; the position in the data is one
number for each length of examples.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..errors import Error
from ..nn.block import Stack
from ..nn.tiles import guard
from ..tasks.heads import Model
from .checkpoint import CUT
from .memories import Memories
from .optim import optimizer
from .replay import Recorded
from .schedule import schedule
from .settings import Train
from .state import Tensors, flat, nested, put, random_state, set_random_state, weights
from .step import Step
from .world import World

Source = Callable[[int, int], Iterator[tuple[Batch, int]]]  # (phase, position) → batches, each with the position behind
USUAL = 50  # gradients by which a spike is judged
PLAIN = ("step", "tokens", "seconds", "skipped")


class Diverged(Error):
    """Too many steps in a row gave no number."""

    code = 3


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
    examples: tuple[int, int] = (0, 0)  # of the data: from, to
    skipped: bool = False


@dataclass
class Trainer:
    """A model on its way: weights, moments, generators, position. `train` takes steps, `state` is all there is.

    `objectives` are those of the phases: with short examples, if the settings ask for it, and with long ones.
    """

    model: Model
    objectives: Sequence[Any]
    settings: Train
    world: World = field(default_factory=World)
    shares: Mapping[str, float] = field(default_factory=dict)  # of the learning rate, by the name of a weight
    after: Callable[[], None] | None = None  # what a model wants done to its weights after each step (TextCNN)
    enough: bool = False  # a look at held-out examples says that more steps do not help

    def __post_init__(self) -> None:
        s = self.settings
        self.model.float()  # a checkpoint may be published in half precision: small steps would be lost in it
        self.device = self.world.device
        self.type = working_type(s.precision, self.device)
        self.step, self.tokens, self.seconds, self.skipped = 0, 0, 0.0, 0
        self.positions = [0, 0]  # in the data, of each phase; a run that is prolonged goes back to the first
        self.norms: deque[float] = deque(maxlen=USUAL)
        stacks = [part for part in self.model.modules() if isinstance(part, Stack)]
        for stack in stacks:
            stack.checkpointing = s.checkpointing
        if s.checkpointing and not stacks:
            warnings.warn("this family has no blocks: train.checkpointing does nothing", stacklevel=2)
        self.inner = Step(self.model, self.objectives[-1])
        self.wrapped = self.world.wrap(self.inner)
        self.optimizer = optimizer(
            s.optimizer, self.model, s.lr, decay=s.decay, betas=(s.betas[0], s.betas[1]), eps=s.eps, shares=self.shares
        )
        if s.parallel == "experts":  # weights that are shared and such that are not cannot be moved in one operation
            for group in self.optimizer.param_groups:
                group.update({name: False for name in ("fused", "foreach") if name in group})
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.type == torch.float16)
        self.share = schedule(s.schedule, s.steps, s.warmup)
        self.average = {n: t.detach().clone() for n, t in weights(self.model).items()} if s.ema else {}
        self.memories = Memories(self.model, self.objectives[-1], s.carry)
        self.compiled = self.device.type == "cuda" if s.compile is None else s.compile
        if self.compiled:
            torch.compiler.reset()  # torch compiles one function for so many models only, and then none, with no error
            self.inner.compile(dynamic=False)  # batches have one shape
        alone = self.device.type == "cuda" and self.world.size == 1 and not self.scaler.is_enabled()
        self.blind = alone and s.optimizer in ("adam", "adamw") and not s.spike
        self.graphs = alone and self.compiled and not s.checkpointing
        self.recorded: dict[Any, Recorded] = {}
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
        s, phase = self.settings, self.settings.phase(self.step)
        batches = source(phase, self.positions[phase])
        try:
            while self.step < (s.steps if until is None else until):
                began = time.perf_counter()
                if phase != (phase := s.phase(self.step)):
                    close(batches)
                    batches = source(phase, self.positions[phase])
                taken, position = [], self.positions[phase]
                for _ in range(s.batches(self.step, self.world.size) // self.world.size):
                    batch, position = next(batches)
                    taken.append(batch)
                with self.own_generators():
                    report = self.move(taken, self.objectives[-1 if phase else 0])
                report.examples, self.positions[phase] = (self.positions[phase], position), position
                self.step += 1
                self.seconds += time.perf_counter() - began
                report.step, report.seconds = self.step, self.seconds
                yield report
                self.check(report)
        finally:
            close(batches)

    def move(self, batches: list[Batch], objective: Any) -> Report:
        """One step: gradients of all batches, divided by the number of places of all, then the weights."""
        s = self.settings
        counts = self.world.total([{**objective.counts(batch), "": len(batch.ids)} for batch in batches])
        tokens = int(counts.pop(""))
        lr = s.lr * self.share(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("share", 1.0)
        self.wrapped.train()
        sums: dict[str, Tensor] = {}
        before = self.memories.copy()
        for number, batch in enumerate(batches):
            with self.world.last(self.wrapped, number == len(batches) - 1):
                for name, total in self.backward(batch, objective, counts).items():
                    sums[name] = sums.get(name, torch.zeros_like(total)) + total
        self.scaler.unscale_(self.optimizer)
        names = sorted(sums)
        seen = [self.world.norm(self.model, s.clip or math.inf), *(sums[name] for name in names)]
        told = torch.stack([value.double() for value in seen])
        if self.blind:  # the device itself leaves out what is no number: nobody has to wait for its answer
            self.optimizer.found_inf = (~told.sum().isfinite()).float()  # type: ignore[attr-defined]
            self.optimizer.step()
        norm, *totals = told.tolist()  # a step's one wait
        losses = {n: t / max(1.0, counts[n]) for n, t in zip(names, self.world.add(totals), strict=True)}
        self.tokens += tokens
        skip = self.odd(norm, sum(losses.values()))
        if skip:
            self.memories.back(before)
        if not self.blind and not skip:
            self.scaler.step(self.optimizer)
        if self.after is not None and not skip:
            self.after()
        if self.average and not skip:
            self.follow()
        self.scaler.update()  # it has seen by itself what is no number, and lowers the scale
        self.optimizer.zero_grad(set_to_none=not self.recorded)
        return Report(self.step, losses, sum(losses.values()), norm, lr, self.tokens, 0.0, skipped=skip)

    def backward(self, batch: Batch, objective: Any, counts: Mapping[str, float]) -> dict[str, Tensor]:
        """Add a batch's share of the gradient; the summed losses."""
        memory = self.memories.of(batch)
        moved = batch.to(self.device)
        if memory is None and self.graphs and self.compiled:
            return self.record(moved, objective, counts)
        losses = self.forward(moved, memory, objective)
        share = sum(total * (self.world.size / max(1.0, counts[name])) for name, (total, _) in losses.items())
        self.scaler.scale(share).backward()
        return {name: total.detach() for name, (total, _) in losses.items()}

    def record(self, batch: Batch, objective: Any, counts: Mapping[str, float]) -> dict[str, Tensor]:
        """The same by a CUDA graph: after a few steps the whole pass there and back is started at once."""
        key = self.objectives.index(objective), batch.ids.shape
        if key not in self.recorded:
            self.recorded[key] = Recorded(lambda one: self.forward(one, None, objective), self.device)
        return self.recorded[key](batch, {name: 1 / max(1.0, count) for name, count in counts.items()})

    def forward(self, batch: Batch, memory: Any, objective: Any, judge: bool = False) -> Any:
        """The losses of a batch, compiled if that works on this machine."""
        other, fast = None if objective is self.objectives[-1] else objective, self.inner._compiled_call_impl
        with torch.autocast(
            self.device.type, dtype=self.type, enabled=self.type != torch.float32, cache_enabled=not self.graphs
        ):
            if judge:  # seldom, and of another shape: not worth a compilation of its own
                self.inner._compiled_call_impl = None
            try:
                return self.wrapped(batch, memory, other, judge)
            except Exception as error:  # torch has no common class for what goes wrong while it compiles
                if isinstance(error, Error | torch.OutOfMemoryError) or not self.compiled or judge:
                    raise
                self.compiled, self.inner._compiled_call_impl, fast = False, None, None
                said = " ".join(str(error).split())[:200]
                warnings.warn(f"not compiled, and slower for it: {type(error).__name__}: {said}", stacklevel=2)
            finally:
                self.inner._compiled_call_impl = fast
            return self.wrapped(batch, memory, other, judge)

    def odd(self, norm: float, loss: float) -> bool:
        """Should this step be left out?"""
        if math.isfinite(norm) and math.isfinite(loss):
            self.skipped = 0
            usual = statistics.median(self.norms) if len(self.norms) == USUAL else math.inf
            self.norms.append(norm)  # a spike too: gradients that stay long become the usual ones
            return bool(self.settings.spike) and norm > self.settings.spike * usual
        self.skipped += 1
        return True

    def check(self, report: Report) -> None:
        """End the run if too many steps in a row were no numbers."""
        if self.skipped >= self.settings.skips * (5 if self.scaler.is_enabled() else 1):
            low, high = report.examples
            last = f"the last at step {report.step}, examples {low} to {high}"
            raise Diverged(
                f"{self.skipped} steps in a row gave no number, {last}",
                fix="go on with --resume and a lower train.lr; it goes back to a checkpoint before them",
            )

    @torch.no_grad()
    def follow(self) -> None:
        """The moving average takes one step towards the weights: at first large ones, not to stay where they began."""
        share = 1 - min(self.settings.ema, (1 + self.step) / (10 + self.step))
        for name, tensor in weights(self.model).items():
            if tensor.is_floating_point():
                self.average[name].lerp_(tensor, share)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """For a while, the weights are their moving average, if there is one."""
        if not self.average:
            yield
            return
        own = {name: tensor.detach().clone() for name, tensor in weights(self.model).items()}
        put(self.model, self.average)
        try:
            yield
        finally:
            put(self.model, own)

    def state(self) -> tuple[dict[str, Tensors], dict[str, Any]]:
        """All that is needed to go on: tensors by file, and the rest. Every process must ask."""
        moments, rest = flat(self.optimizer.state_dict())
        memories, about = self.memories.state()
        groups = {
            "model": weights(self.model),
            "optimizer": moments,
            "average": self.average,
            "generators": self.world.everyones(self.generators or random_state()),
            "memories": {name.partition("/")[2]: t for name, t in self.world.everyones(memories).items()},
        }
        plain = {name: getattr(self, name) for name in PLAIN}
        return {name: group for name, group in groups.items() if group}, {
            **plain, "positions": list(self.positions), "norms": list(self.norms), "optimizer": rest,
            "scaler": self.scaler.state_dict(), "begun": self.generators is not None, "memories": about,
        }  # fmt: skip

    def restore(self, groups: Mapping[str, Tensors], state: Mapping[str, Any], parts: Path | None = None) -> None:
        """Stand where a saved state stood. Every process must ask; all but the first may give tensors of no content.
        What was written in `parts`, each reads for itself."""
        own, params = weights(self.model), [p for group in self.optimizer.param_groups for p in group["params"]]

        def like(group: str, name: str) -> Any:
            return params[int(name.split("/")[1])] if group == "optimizer" else own[name]

        parted: Any = self.world.parted
        if parts is not None:
            cut = {name: tensors for name, tensors in groups.items() if name in CUT}
            groups = {**groups, **self.world.filled(parts, cut, like)}
        keep = parted if parts is None else lambda whole, like: whole
        put(self.model, groups["model"], keep)
        moments = {name: keep(tensor, like("optimizer", name)) for name, tensor in groups.get("optimizer", {}).items()}
        self.optimizer.load_state_dict(nested(moments, state["optimizer"]))
        mine = f"{self.world.rank}/"
        own = {n: parted(t).cpu() for n, t in groups["generators"].items()}
        own = {n.removeprefix(mine): t for n, t in own.items() if n.startswith(mine)}
        self.generators = own if state["begun"] and own else None
        for name in PLAIN:
            setattr(self, name, state[name])
        self.positions = [0, 0]
        if "positions" in state:
            self.positions[:] = state["positions"]
        else:  # an older checkpoint knows one
            self.positions[self.settings.phase(self.step)] = state["position"]
        self.norms = deque(state["norms"], maxlen=USUAL)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        for name, tensor in groups.get("average", {}).items():
            self.average[name].copy_(keep(tensor, self.average[name]))
        memories = {name: parted(tensor) for name, tensor in groups.get("memories", {}).items()}
        self.memories.restore(memories, state["memories"], self.device)


def close(batches: Any) -> None:
    """Let the workers behind an iterator go."""
    if hasattr(batches, "close"):
        batches.close()


def working_type(precision: str, device: torch.device) -> torch.dtype:
    """The type in which products are computed."""
    if precision == "auto":
        good = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if good else torch.float32
    found = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    guard(found, device)
    return found
