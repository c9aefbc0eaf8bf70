"""Trainer: takes optimizer steps and holds all that a checkpoint must have; one for all objectives and families.

A step takes `accumulate` batches, sums their gradients as if they were one batch, and changes the weights only if the
loss and the gradient are finite. executor.py carries it out; what a checkpoint holds is listed in checkpoint/local.py.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..config import count_noun
from ..errors import Error
from ..model import Model
from ..nn.block import BlockStack
from ..protocols import Listener, Objective
from .checkpoint.local import (
    SHARDED_GROUPS,
    Tensors,
    TrainerState,
    flatten_state,
    get_rng_state,
    get_weights,
    set_rng_state,
    set_weights,
    unflatten_state,
)
from .distributed.process_group import ProcessGroup
from .executor import CarriedStates, Executor, StepValues
from .optimizer import MAX_UPDATED, AdamThenSGD, build_schedule, split_updates
from .train_config import TrainConfig

# (phase, position) → batches, each with the position after it
BatchSource = Callable[[int, int], Iterator[tuple[Batch, int]]]
SPIKE_WINDOW = 50  # gradients by which a spike is recognised


class Diverged(Error):
    """Raised after too many consecutive steps with a loss or gradient that is not finite."""

    exit_code = 3


@dataclass
class StepOutcome:
    """The values of a step, once the device has computed them."""

    losses: dict[str, float]  # the mean of each
    grad_norm: float | None  # before clipping; None where it is not computed (word vectors)
    is_skipped: bool = False


@dataclass
class StepResult:
    """One step. On a GPU its losses and norm may not be computed yet: reading them waits for the device."""

    step: int  # how many are done
    lr: float
    tokens: int  # in all, of both sides
    read_outcome: Callable[[], StepOutcome]
    seconds: float = 0.0  # in all
    example_range: tuple[int, int] = (0, 0)  # of the data: from, to

    @cached_property
    def outcome(self) -> StepOutcome:
        """Its losses, norm and whether it was skipped."""
        return self.read_outcome()

    @property
    def has_outcome(self) -> bool:
        """Whether the outcome has been read."""
        return "outcome" in vars(self)  # dynamic: a cached property is there once it was read

    @property
    def losses(self) -> dict[str, float]:
        """The mean of each loss."""
        return self.outcome.losses

    @property
    def loss(self) -> float:
        """The sum of the losses."""
        return sum(self.outcome.losses.values())

    @property
    def grad_norm(self) -> float | None:
        """The norm of the gradient before clipping; None where it is not computed."""
        return self.outcome.grad_norm

    @property
    def is_skipped(self) -> bool:
        """Whether the weights were left as they were."""
        return self.outcome.is_skipped


class WeightAverage:
    """An exponential moving average (EMA) of a model's weights."""

    def __init__(self, model: nn.Module, decay: float):
        self.model, self.decay = model, decay
        own = get_weights(model)
        self.weights = {name: tensor.detach().clone() for name, tensor in own.items()}
        moved = [(self.weights[name], tensor) for name, tensor in own.items() if tensor.is_floating_point()]
        parts = split_updates([tensor for _, tensor in moved], MAX_UPDATED)
        self.parts = [([moved[n][0] for n in part], [moved[n][1] for n in part]) for part in parts]

    @torch.no_grad()
    def update(self, step: int, is_skipped: Tensor | None = None) -> None:
        """Move the average towards the weights, `step` steps having been done before; fast at first, so that it leaves
        the point where it began. It stays if `is_skipped`, a flag on the device, is set: the host need not know."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        # Moved by 0 it keeps its values: the weights of a skipped step are finite. One kernel multiplies many tensors
        # by a number on the device; a lerp by it would be a kernel for each.
        own_share = share if is_skipped is None else torch.where(is_skipped, 0.0, share)
        for averages, tensors in self.parts:
            moves = torch._foreach_sub(tensors, averages)
            torch._foreach_mul_(moves, own_share)
            torch._foreach_add_(averages, moves)

    @contextlib.contextmanager
    def use_weights(self) -> Iterator[None]:
        """Replace the model's weights by the average within the block."""
        own = {name: tensor.detach().clone() for name, tensor in get_weights(self.model).items()}
        set_weights(self.model, self.weights)
        try:
            yield
        finally:
            set_weights(self.model, own)


@dataclass
class Trainer:
    """A model in training: weights, optimizer state, generators, position in the data. `train` takes steps, `get_state`
    returns all that is needed to resume. `objectives` are those of the phases: with short examples, if the settings ask
    for it, and with long ones."""

    model: Model
    objectives: Sequence[Objective]
    config: TrainConfig
    world: ProcessGroup = field(default_factory=ProcessGroup)
    lr_scales: Mapping[str, float] = field(default_factory=dict)  # of the learning rate, by the name of a weight
    listeners: Sequence[Listener] = ()  # notified of every change of the weights, in this order
    should_stop: bool = False  # early stopping: the validation metric has stopped improving

    def __post_init__(self) -> None:
        s = self.config
        self.model.float()  # a checkpoint may be published in half precision: small steps would be lost in it
        self.step, self.tokens, self.seconds, self.bad_steps = 0, 0, 0.0, 0
        self.positions = [0, 0]  # in the data, of each phase; a run that is prolonged goes back to the first
        self.recent_norms: deque[float] = deque(maxlen=SPIKE_WINDOW)
        stacks = [part for part in self.model.modules() if isinstance(part, BlockStack)]
        for stack in stacks:
            stack.checkpoint_activations = s.activation_checkpointing
        if s.activation_checkpointing and not stacks:
            warnings.warn("this family has no blocks: train.activation_checkpointing does nothing", stacklevel=2)
        self.executor = Executor(self.model, self.objectives, s, self.world, self.lr_scales)
        self.lr_schedule = build_schedule(
            s.schedule, s.steps, s.warmup_steps, min_lr_ratio=s.min_lr_ratio, decay_steps=s.decay_steps,
            decay_start=s.decay_start, decay_every=s.decay_every,
        )  # fmt: skip
        self.ema = WeightAverage(self.model, s.ema) if s.ema else None
        self.carried_states = CarriedStates(self.model, self.objectives[-1], s.carry_memory)
        self.rng_states: Tensors | None = None  # None before the first step
        self.last_result: StepResult | None = None  # whose outcome may not have been read yet

    @property
    def is_sharded(self) -> bool:
        """Whether each process has only a part of some weights, and of a checkpoint."""
        return self.executor.strategy.is_sharded

    @contextlib.contextmanager
    def use_run_rng(self) -> Iterator[None]:
        """Draw dropout from the run's own generators within the block; the caller's stay where they were. Entered for
        each step, not once for `train`: what is drawn between two steps (samples, an evaluation, the caller's own
        numbers) must neither depend on the run nor change it. On a CPU that costs 4 microseconds a step."""
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
        """Take steps, one after the other, from where the run stands; between two of them everything may be saved.
        Where nothing must be decided by the host, the outcome of a step is read after the next one was launched."""
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
                previous = self.last_result
                with self.use_run_rng():
                    result = self.train_step(taken, self.objectives[-1 if phase else 0])
                result.example_range, self.positions[phase] = (self.positions[phase], position), position
                self.step += 1
                result.step, self.last_result = self.step, result
                if self.reads_late and previous is not None:
                    self.check_divergence(previous)
                self.seconds += time.perf_counter() - began
                result.seconds = self.seconds
                yield result
                if not self.reads_late:
                    self.check_divergence(result)
            if self.reads_late and self.last_result is not None:
                self.check_divergence(self.last_result)
        finally:
            close_batches(batches)

    @property
    def reads_late(self) -> bool:
        """Whether a step's outcome may be read after the next step was launched. Listeners are not told of skipped
        steps, so where there are any, the outcome is read before."""
        return self.executor.skips_on_device and self.carried_states.can_undo_on_device and not self.listeners

    def train_step(self, batches: Sequence[Batch], objective: Objective) -> StepResult:
        """Take one step: gradients of all batches, divided by the number of labels of all, then the weights."""
        counts = self.world.sum_counts(
            [{**objective.count_labels(batch), "": batch.count_tokens()} for batch in batches]
        )
        self.tokens += int(counts.pop(""))
        lr = self.config.get_peak_lr(self.step) * self.lr_schedule(self.step)
        if isinstance(optimizer := self.executor.optimizer, AdamThenSGD):
            optimizer.choose_method(self.config.uses_sgd(self.step))
        weights = {name: self.world.size / max(1.0, count) for name, count in counts.items()}
        before, reads_late = self.carried_states.snapshot(), self.reads_late
        batches = [objective.prepare_step_batch(batch, self.step) for batch in batches]
        values = self.executor.start_step(batches, self.carried_states, objective, weights, lr)
        result = StepResult(self.step, lr, self.tokens, lambda: self.compute_outcome(values, counts))
        skip = not reads_late and result.is_skipped
        self.executor.finish_step(skip)
        if reads_late and self.carried_states.streams:
            self.carried_states.undo_where(self.executor.get_skip_flag(), before)
        if skip:
            self.carried_states.roll_back(before)
            return result
        for listener in self.listeners:
            listener.on_update(self.step)
        if self.ema is not None:
            self.ema.update(self.step, self.executor.get_skip_flag() if self.executor.skips_on_device else None)
        return result

    def compute_outcome(self, values: StepValues, counts: Mapping[str, float]) -> StepOutcome:
        """Wait for a step's values and decide whether it is skipped; called once for each step, in their order."""
        norm, sums = values.read()
        totals = self.world.sum_over_ranks(list(sums.values()))
        losses = {name: total / max(1.0, counts[name]) for name, total in zip(sums, totals, strict=True)}
        return StepOutcome(losses, norm, self.should_skip_step(norm, sum(losses.values())))

    def should_skip_step(self, norm: float, loss: float) -> bool:
        """Decide whether a step is skipped: it is not finite, or its gradient is a spike."""
        if math.isfinite(norm) and math.isfinite(loss):
            self.bad_steps = 0
            usual = statistics.median(self.recent_norms) if len(self.recent_norms) == SPIKE_WINDOW else math.inf
            self.recent_norms.append(norm)  # a spike too: gradients that stay long become the usual ones
            return bool(self.config.spike_factor) and norm > self.config.spike_factor * usual
        self.bad_steps += 1
        return True

    def check_divergence(self, result: StepResult) -> None:
        """Read a step's outcome, and end the run if too many steps in a row were not finite."""
        limit = self.config.max_bad_steps * (5 if self.executor.scaler.is_enabled() else 1)
        for step in (result, self.last_result or result):  # the last one was launched before this one was read
            _ = step.outcome
            if self.bad_steps < limit:
                return
        low, high = step.example_range
        what = f"{count_noun(self.bad_steps, 'step')} in a row had a loss or gradient that is not finite"
        fix = "continue with --resume and a lower train.lr; it goes back to a checkpoint before them"
        raise Diverged(f"{what}, the last at step {step.step}, examples {low} to {high}", fix=fix)

    def use_ema_weights(self) -> AbstractContextManager[None]:
        """Replace the model's weights by their moving average within the block, if there is one."""
        return contextlib.nullcontext() if self.ema is None else self.ema.use_weights()

    def get_state(self) -> tuple[dict[str, Tensors], TrainerState]:
        """Return what a checkpoint holds: tensors by file, and the rest, which goes into state.json. A collective call:
        every rank must make it."""
        if self.last_result is not None:
            _ = self.last_result.outcome  # it counts the steps that were not finite
        moments, optimizer = flatten_state(self.executor.optimizer.state_dict())
        # Each process has restored all states: where another one has trained a state, that one replaces the main one's.
        memories, carried = self.carried_states.get_state(include_restored=self.world.is_main)
        groups = {
            "model": get_weights(self.model),
            "optimizer": moments,
            "ema": {} if self.ema is None else self.ema.weights,
            "rng": self.world.gather_by_rank(self.rng_states or {}),
            "carried_state": {n.partition("/")[2]: t for n, t in self.world.gather_by_rank(memories).items()},
        }
        state: TrainerState = {
            "step": self.step, "tokens": self.tokens, "seconds": self.seconds, "bad_steps": self.bad_steps,
            "positions": list(self.positions), "recent_norms": list(self.recent_norms), "optimizer": optimizer,
            "scaler": self.executor.scaler.state_dict(), "carried_state": carried,
        }  # fmt: skip
        return {name: group for name, group in groups.items() if group}, state

    def restore_state(
        self, groups: Mapping[str, Tensors], state: Mapping[str, object], shard_folder: Path | None = None
    ) -> None:
        """Restore a saved state. A collective call: every rank must make it; all but the first may pass empty tensors.
        Each rank reads its own shards from `shard_folder`."""
        saved, optimizer, scatter = cast(TrainerState, state), self.executor.optimizer, self.world.scatter_tensor
        weights, params = get_weights(self.model), [p for group in optimizer.param_groups for p in group["params"]]

        def get_reference(group: str, name: str) -> Tensor:
            return params[int(name.split("/")[1])] if group == "optimizer" else weights[name]

        def place(whole: Tensor, like: Tensor) -> Tensor:
            return scatter(whole, like) if shard_folder is None else whole  # else each has read its own

        if shard_folder is not None:
            from .checkpoint import sharded

            outline = {name: groups[name] for name in SHARDED_GROUPS if name in groups}
            groups = {**groups, **(
                sharded.load_shards(shard_folder, outline, get_reference) if self.is_sharded
                else sharded.load_full_tensors(shard_folder)
            )}  # fmt: skip
        set_weights(self.model, groups["model"], place)
        moments = groups.get("optimizer", {})
        moments = {name: place(tensor, get_reference("optimizer", name)) for name, tensor in moments.items()}
        optimizer.load_state_dict(unflatten_state(moments, saved["optimizer"]))
        generators, rank_prefix = {n: scatter(t).cpu() for n, t in groups.get("rng", {}).items()}, f"{self.world.rank}/"
        own = {n.removeprefix(rank_prefix): t for n, t in generators.items() if n.startswith(rank_prefix)}
        self.rng_states = own or None
        self.step, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]
        self.bad_steps, self.positions = saved["bad_steps"], list(saved["positions"])
        self.recent_norms = deque(saved["recent_norms"], maxlen=SPIKE_WINDOW)
        self.last_result = None
        if self.executor.scaler.is_enabled():
            self.executor.scaler.load_state_dict(saved["scaler"])
        if self.ema is not None:
            for name, tensor in groups.get("ema", {}).items():
                self.ema.weights[name].copy_(place(tensor, self.ema.weights[name]))
        memories = {name: scatter(tensor) for name, tensor in groups.get("carried_state", {}).items()}
        self.carried_states.restore_state(memories, saved["carried_state"], self.world.device)


def close_batches(batches: Iterator[object]) -> None:
    """Close a generator of batches, and with it the workers that fill it."""
    if isinstance(batches, Generator):
        batches.close()
