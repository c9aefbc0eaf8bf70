"""The loop: one for all objectives and families. It never loses a step.

A step takes `accumulate` batches, sums their gradients as if they were one batch, and moves the weights only if the
gradient is a number. What is needed to go on is written by training/checkpoint/local.py; the position in the data is
one number for each length of examples.
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
from ..model import Model
from ..nn.block import BlockStack
from ..nn.cpu_inference import check_cpu_bf16
from .carried_state import CarriedStates
from .checkpoint.local import SHARDED_GROUPS
from .checkpoint.state import (
    Tensors,
    flatten_state,
    get_rng_state,
    get_weights,
    set_rng_state,
    set_weights,
    unflatten_state,
)
from .cuda_graph import GraphedBackward
from .distributed.process_group import ProcessGroup
from .executor import Step
from .optimizer import build_optimizer
from .schedule import build_schedule
from .train_config import TrainConfig

BatchSource = Callable[
    [int, int], Iterator[tuple[Batch, int]]
]  # (phase, position) → batches, each with the position behind
SPIKE_WINDOW = 50  # gradients by which a spike is judged
# Names in state.json, and the counters of Trainer that they hold.
COUNTER_FIELDS = {"step": "step", "tokens": "tokens", "seconds": "seconds", "skipped": "bad_steps"}


class Diverged(Error):
    """Too many steps in a row gave no number."""

    exit_code = 3


@dataclass
class StepResult:
    """One step, as it is told."""

    step: int  # how many are done
    losses: dict[str, float]  # the mean of each
    loss: float  # their sum
    grad_norm: float  # of the gradient, before clipping
    lr: float
    tokens: int  # in all
    seconds: float  # in all
    example_range: tuple[int, int] = (0, 0)  # of the data: from, to
    skipped: bool = False


@dataclass
class Trainer:
    """A model on its way: weights, moments, generators, position. `train` takes steps, `get_state` is all there is.

    `objectives` are those of the phases: with short examples, if the settings ask for it, and with long ones.
    """

    model: Model
    objectives: Sequence[Any]
    config: TrainConfig
    world: ProcessGroup = field(default_factory=ProcessGroup)
    lr_scales: Mapping[str, float] = field(default_factory=dict)  # of the learning rate, by the name of a weight
    step_hook: Callable[[], None] | None = None  # what a model wants done to its weights after each step (TextCNN)
    should_stop: bool = False  # a look at held-out examples says that more steps do not help

    def __post_init__(self) -> None:
        s = self.config
        self.model.float()  # a checkpoint may be published in half precision: small steps would be lost in it
        self.device = self.world.device
        self.dtype = choose_dtype(s.precision, self.device)
        self.step, self.tokens, self.seconds, self.bad_steps = 0, 0, 0.0, 0
        self.positions = [0, 0]  # in the data, of each phase; a run that is prolonged goes back to the first
        self.recent_norms: deque[float] = deque(maxlen=SPIKE_WINDOW)
        stacks = [part for part in self.model.modules() if isinstance(part, BlockStack)]
        for stack in stacks:
            stack.checkpoint_activations = s.activation_checkpointing
        if s.activation_checkpointing and not stacks:
            warnings.warn("this family has no blocks: train.activation_checkpointing does nothing", stacklevel=2)
        self.step_module = Step(self.model, self.objectives[-1])
        self.parallel_module = self.world.wrap_step(self.step_module)
        self.optimizer = build_optimizer(
            s.optimizer,
            self.model,
            s.lr,
            weight_decay=s.weight_decay,
            betas=(s.betas[0], s.betas[1]),
            eps=s.eps,
            lr_scales=self.lr_scales,
        )
        if s.parallel == "expert":  # weights that are shared and such that are not cannot be moved in one operation
            for group in self.optimizer.param_groups:
                group.update({name: False for name in ("fused", "foreach") if name in group})
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.lr_schedule = build_schedule(s.schedule, s.steps, s.warmup_steps)
        self.ema_weights = {n: t.detach().clone() for n, t in get_weights(self.model).items()} if s.ema else {}
        self.carried_states = CarriedStates(self.model, self.objectives[-1], s.carry_memory)
        self.is_compiled = self.device.type == "cuda" if s.compile is None else s.compile
        if self.is_compiled:
            torch.compiler.reset()  # torch compiles one function for so many models only, and then none, with no error
            self.step_module.compile(dynamic=False)  # batches have one shape
        alone = self.device.type == "cuda" and self.world.size == 1 and not self.scaler.is_enabled()
        self.skips_on_device = alone and s.optimizer in ("adam", "adamw") and not s.spike_factor
        self.uses_cuda_graphs = alone and self.is_compiled and not s.activation_checkpointing
        self.cuda_graphs: dict[Any, GraphedBackward] = {}
        self.rng_states: Tensors | None = None

    @contextlib.contextmanager
    def use_run_rng(self) -> Iterator[None]:
        """Dropout draws from the run's own generators; the caller's are where they were."""
        before = get_rng_state()
        if self.rng_states is None:
            torch.manual_seed(self.config.seed + 1_000_003 * self.world.rank)
        else:
            set_rng_state(self.rng_states)
        try:
            yield
        finally:
            self.rng_states = get_rng_state()
            set_rng_state(before)

    def train(self, source: BatchSource, until: int | None = None) -> Iterator[StepResult]:
        """Steps, one after the other, from where the run stands; between two of them everything may be saved."""
        s, phase = self.config, self.config.get_phase(self.step)
        batches = source(phase, self.positions[phase])
        try:
            while self.step < (s.steps if until is None else until):
                began = time.perf_counter()
                if phase != (phase := s.get_phase(self.step)):
                    close_batches(batches)
                    batches = source(phase, self.positions[phase])
                taken, position = [], self.positions[phase]
                for _ in range(s.count_batches(self.step, self.world.size) // self.world.size):
                    batch, position = next(batches)
                    taken.append(batch)
                with self.use_run_rng():
                    report = self.train_step(taken, self.objectives[-1 if phase else 0])
                report.example_range, self.positions[phase] = (self.positions[phase], position), position
                self.step += 1
                self.seconds += time.perf_counter() - began
                report.step, report.seconds = self.step, self.seconds
                yield report
                self.check_divergence(report)
        finally:
            close_batches(batches)

    def train_step(self, batches: list[Batch], objective: Any) -> StepResult:
        """One step: gradients of all batches, divided by the number of places of all, then the weights."""
        s = self.config
        counts = self.world.sum_counts([{**objective.count_labels(batch), "": len(batch.ids)} for batch in batches])
        tokens = int(counts.pop(""))
        lr = s.lr * self.lr_schedule(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("share", 1.0)
        self.parallel_module.train()
        sums: dict[str, Tensor] = {}
        before = self.carried_states.snapshot()
        for number, batch in enumerate(batches):
            with self.world.sync_gradients(self.parallel_module, number == len(batches) - 1):
                for name, total in self.backward(batch, objective, counts).items():
                    sums[name] = sums.get(name, torch.zeros_like(total)) + total
        self.scaler.unscale_(self.optimizer)
        names = sorted(sums)
        seen = [self.world.clip_grad_norm(self.model, s.grad_clip or math.inf), *(sums[name] for name in names)]
        told = torch.stack([value.double() for value in seen])
        if self.skips_on_device:  # the device itself leaves out what is no number: nobody has to wait for its answer
            self.optimizer.found_inf = (~told.sum().isfinite()).float()  # type: ignore[attr-defined]
            self.optimizer.step()
        norm, *totals = told.tolist()  # a step's one wait
        losses = {n: t / max(1.0, counts[n]) for n, t in zip(names, self.world.sum_over_ranks(totals), strict=True)}
        self.tokens += tokens
        skip = self.should_skip_step(norm, sum(losses.values()))
        if skip:
            self.carried_states.roll_back(before)
        if not self.skips_on_device and not skip:
            self.scaler.step(self.optimizer)
        if self.step_hook is not None and not skip:
            self.step_hook()
        if self.ema_weights and not skip:
            self.update_ema()
        self.scaler.update()  # it has seen by itself what is no number, and lowers the scale
        self.optimizer.zero_grad(set_to_none=not self.cuda_graphs)
        return StepResult(self.step, losses, sum(losses.values()), norm, lr, self.tokens, 0.0, skipped=skip)

    def backward(self, batch: Batch, objective: Any, counts: Mapping[str, float]) -> dict[str, Tensor]:
        """Add a batch's share of the gradient; the summed losses."""
        memory = self.carried_states.select_for_batch(batch)
        moved = batch.to(self.device)
        if memory is None and self.uses_cuda_graphs and self.is_compiled:
            return self.backward_with_graph(moved, objective, counts)
        losses = self.forward(moved, memory, objective)
        share = sum(total * (self.world.size / max(1.0, counts[name])) for name, (total, _) in losses.items())
        self.scaler.scale(share).backward()
        return {name: total.detach() for name, (total, _) in losses.items()}

    def backward_with_graph(self, batch: Batch, objective: Any, counts: Mapping[str, float]) -> dict[str, Tensor]:
        """Run forward and backward as one CUDA graph, recorded after a few steps."""
        key = self.objectives.index(objective), batch.ids.shape
        if key not in self.cuda_graphs:
            self.cuda_graphs[key] = GraphedBackward(lambda one: self.forward(one, None, objective), self.device)
        return self.cuda_graphs[key](batch, {name: 1 / max(1.0, count) for name, count in counts.items()})

    def forward(self, batch: Batch, memory: Any, objective: Any, count_correct: bool = False) -> Any:
        """The losses of a batch, compiled if that works on this machine."""
        other, fast = None if objective is self.objectives[-1] else objective, self.step_module._compiled_call_impl
        with torch.autocast(
            self.device.type,
            dtype=self.dtype,
            enabled=self.dtype != torch.float32,
            cache_enabled=not self.uses_cuda_graphs,
        ):
            if count_correct:  # seldom, and of another shape: not worth a compilation of its own
                self.step_module._compiled_call_impl = None
            try:
                return self.parallel_module(batch, memory, other, count_correct)
            except Exception as error:  # torch has no common class for what goes wrong while it compiles
                if isinstance(error, Error | torch.OutOfMemoryError) or not self.is_compiled or count_correct:
                    raise
                self.is_compiled, self.step_module._compiled_call_impl, fast = False, None, None
                said = " ".join(str(error).split())[:200]
                warnings.warn(f"not compiled, and slower for it: {type(error).__name__}: {said}", stacklevel=2)
            finally:
                self.step_module._compiled_call_impl = fast
            return self.parallel_module(batch, memory, other, count_correct)

    def should_skip_step(self, norm: float, loss: float) -> bool:
        """Should this step be left out?"""
        if math.isfinite(norm) and math.isfinite(loss):
            self.bad_steps = 0
            usual = statistics.median(self.recent_norms) if len(self.recent_norms) == SPIKE_WINDOW else math.inf
            self.recent_norms.append(norm)  # a spike too: gradients that stay long become the usual ones
            return bool(self.config.spike_factor) and norm > self.config.spike_factor * usual
        self.bad_steps += 1
        return True

    def check_divergence(self, report: StepResult) -> None:
        """End the run if too many steps in a row were no numbers."""
        if self.bad_steps >= self.config.max_bad_steps * (5 if self.scaler.is_enabled() else 1):
            low, high = report.example_range
            last = f"the last at step {report.step}, examples {low} to {high}"
            raise Diverged(
                f"{self.bad_steps} steps in a row gave no number, {last}",
                fix="go on with --resume and a lower train.lr; it goes back to a checkpoint before them",
            )

    @torch.no_grad()
    def update_ema(self) -> None:
        """The moving average takes one step towards the weights: at first large ones, not to stay where they began."""
        share = 1 - min(self.config.ema, (1 + self.step) / (10 + self.step))
        for name, tensor in get_weights(self.model).items():
            if tensor.is_floating_point():
                self.ema_weights[name].lerp_(tensor, share)

    @contextlib.contextmanager
    def use_ema_weights(self) -> Iterator[None]:
        """For a while, the weights are their moving average, if there is one."""
        if not self.ema_weights:
            yield
            return
        own = {name: tensor.detach().clone() for name, tensor in get_weights(self.model).items()}
        set_weights(self.model, self.ema_weights)
        try:
            yield
        finally:
            set_weights(self.model, own)

    def get_state(self) -> tuple[dict[str, Tensors], dict[str, Any]]:
        """Return what a checkpoint holds: tensors by file (`average` is the EMA, `generators` the RNG states), and the
        rest, which goes into state.json. A collective call: every rank must make it."""
        moments, rest = flatten_state(self.optimizer.state_dict())
        memories, about = self.carried_states.get_state()
        groups = {
            "model": get_weights(self.model),
            "optimizer": moments,
            "average": self.ema_weights,
            "generators": self.world.gather_by_rank(self.rng_states or get_rng_state()),
            "memories": {name.partition("/")[2]: t for name, t in self.world.gather_by_rank(memories).items()},
        }
        plain = {name: getattr(self, attribute) for name, attribute in COUNTER_FIELDS.items()}
        return {name: group for name, group in groups.items() if group}, {
            **plain, "positions": list(self.positions), "norms": list(self.recent_norms), "optimizer": rest,
            "scaler": self.scaler.state_dict(), "begun": self.rng_states is not None, "memories": about,
        }  # fmt: skip

    def restore_state(
        self, groups: Mapping[str, Tensors], state: Mapping[str, Any], shard_folder: Path | None = None
    ) -> None:
        """Restore a saved state. A collective call: every rank must make it; all but the first may pass empty tensors.
        Each rank reads its own shards from `shard_folder`."""
        own, params = get_weights(self.model), [p for group in self.optimizer.param_groups for p in group["params"]]

        def find_reference_tensor(group: str, name: str) -> Any:
            return params[int(name.split("/")[1])] if group == "optimizer" else own[name]

        parted: Any = self.world.scatter_tensor
        if shard_folder is not None:
            cut = {name: tensors for name, tensors in groups.items() if name in SHARDED_GROUPS}
            groups = {**groups, **self.world.load_shards(shard_folder, cut, find_reference_tensor)}
        keep = parted if shard_folder is None else lambda whole, like: whole
        set_weights(self.model, groups["model"], keep)
        moments = {
            name: keep(tensor, find_reference_tensor("optimizer", name))
            for name, tensor in groups.get("optimizer", {}).items()
        }
        self.optimizer.load_state_dict(unflatten_state(moments, state["optimizer"]))
        mine = f"{self.world.rank}/"
        own = {n: parted(t).cpu() for n, t in groups["generators"].items()}
        own = {n.removeprefix(mine): t for n, t in own.items() if n.startswith(mine)}
        self.rng_states = own if state["begun"] and own else None
        for name, attribute in COUNTER_FIELDS.items():
            setattr(self, attribute, state[name])
        self.positions = [0, 0]
        if "positions" in state:
            self.positions[:] = state["positions"]
        else:  # an older checkpoint knows one
            self.positions[self.config.get_phase(self.step)] = state["position"]
        self.recent_norms = deque(state["norms"], maxlen=SPIKE_WINDOW)
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        for name, tensor in groups.get("average", {}).items():
            self.ema_weights[name].copy_(keep(tensor, self.ema_weights[name]))
        memories = {name: parted(tensor) for name, tensor in groups.get("memories", {}).items()}
        self.carried_states.restore_state(memories, state["memories"], self.device)


def close_batches(batches: Any) -> None:
    """Let the workers behind an iterator go."""
    if hasattr(batches, "close"):
        batches.close()


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """The type in which products are computed."""
    if precision == "auto":
        good = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if good else torch.float32
    found = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    check_cpu_bf16(found, device)
    return found
