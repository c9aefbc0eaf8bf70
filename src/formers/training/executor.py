"""How a training step is carried out: dtypes, compilation, CUDA graphs, gradients and the update of the weights.

The trainer decides what is run and what to do with the result. Work that needs no decision of the host belongs in
`Executor.start_step`, whose values stay on the device until the trainer reads them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ..batch import IGNORE_INDEX, Batch
from ..errors import Error
from ..model import Model
from ..nn.attention.segment_memory import SegmentMemory
from ..nn.block import BlockStack
from ..nn.cpu_inference import check_cpu_bf16
from ..nn.fp8 import check_fp8, use_fp8_linear
from ..nn.recurrent.projected_lstm import LSTMState
from ..objectives.token_losses import select_chosen
from ..protocols import Losses, Objective
from .checkpoint.local import Tensors, flatten_state, unflatten_state
from .distributed.process_group import ProcessGroup
from .distributed.strategies import select_strategy
from .optimizer import CAPTURABLE_OPTIMIZERS, DEVICE_SKIPPING_OPTIMIZERS, build_optimizer
from .train_config import TrainConfig

WARMUP_BATCHES = 3  # batches that run as usual before one is recorded as a CUDA graph
NEVER_CAPTURE = 2**62  # as many, where recording has failed
# Blocks compiled one by one halve the first step (GPT-2 17 s in place of 26, T5 45 of 74; H200) and cost 1 to 3 % of
# speed (T5 and Switch nothing). The whole step is compiled where that pays: after about ten minutes of training.
MAX_WHOLE_BLOCKS = 23  # blocks of the deepest model that is compiled as a whole
MIN_WHOLE_STEPS = 10_000  # steps of the shortest run that compiles a whole step
CAPTURE_MODE = "thread_local"  # the loader's thread keeps pinning memory meanwhile, on which "global" fails
T = TypeVar("T")
CompiledCall = Callable[..., Any]  # dynamic: a module's forward as torch compiled it
Memory = SegmentMemory | LSTMState  # what a family carries from batch to batch


class StatefulModel:
    """A model as an objective sees it (protocols.Model), with its memory of earlier batches; keeps its last hidden
    states."""

    def __init__(self, model: Model, memory: Memory | None):
        self.model, self.state_options = model, {} if memory is None else {memory.forward_argument: memory}
        self.training, self.body, self.parts, self.logits = model.training, model.body, model.parts, model.logits

    def __call__(self, batch: Batch, **options: Any) -> Tensor:  # dynamic: a body's own options
        """Compute hidden states."""
        self.hidden = self.model(batch, **self.state_options, **options)
        return self.hidden


class Step(nn.Module):
    """A model and its objective; the one module that is compiled, replicated or sharded. `forward` returns the named
    losses as (sum, count)."""

    def __init__(self, model: Model, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self, batch: Batch, memory: Memory | None = None, objective: Objective | None = None,
        count_correct_tokens: bool = False,
    ) -> Losses:  # fmt: skip
        """Compute the losses of a batch; `count_correct_tokens` adds NAME/accuracy."""
        objective = objective or self.objective
        if memory is None and not count_correct_tokens:
            return objective.loss(self.model, batch)
        model = StatefulModel(self.model, memory)
        losses = objective.loss(model, batch)
        return {**losses, **count_correct(model, batch, objective)} if count_correct_tokens else losses


@torch.no_grad()
def count_correct(model: StatefulModel, batch: Batch, objective: Objective) -> Losses:
    """Count the tokens and documents whose label is guessed right, from the hidden states of the last pass."""
    part, pair_part, hidden = objective.part, objective.pair_part, model.hidden
    if part not in model.parts or model.parts[part].spec.directions > 1:
        return {}
    batch = objective.keep_own_labels(batch)
    guess = model.logits(select_chosen(hidden, batch), part=part).argmax(-1)
    counts = {f"{part}/accuracy": ((guess == batch.labels).sum(), (batch.labels != IGNORE_INDEX).sum())}
    if pair_part is not None and batch.document_labels is not None:
        guess, labels = model.logits(hidden, batch, part=pair_part).argmax(-1), batch.document_labels
        counts[f"{pair_part}/accuracy"] = (guess == labels).sum(), (labels != IGNORE_INDEX).sum()
    return counts


class CarriedStates:
    """What a run carries from batch to batch, for families that have a memory or a state (Transformer-XL, XLNet, ELMo):
    one state for each group of streams that make a batch, in the process that trains those streams."""

    def __init__(self, model: Model, objective: Objective, carry: bool = True):
        self.model, self.streams = model, objective.num_streams if carry else 0
        self.rows, self.reuse = objective.streams_per_batch or self.streams, objective.reuse_length
        self.active: dict[int, Memory] = {}
        self.restored: dict[int, Memory] = {}  # from a checkpoint, until their streams are trained

    def make_empty(self) -> Memory:
        """Make the state of a group of streams that have read nothing yet."""
        if issubclass(self.model.state_class, SegmentMemory):
            return SegmentMemory(self.rows, self.model.body.config.memory or 0, reuse=self.reuse)
        return LSTMState(self.rows)

    def select_for_batch(self, batch: Batch) -> Memory | None:
        """Return the state of a batch's streams; None if nothing is carried over."""
        if not self.streams:
            return None
        group = int(batch.sample[0]) % self.streams // self.rows
        if group not in self.active:
            self.active[group] = self.restored.pop(group) if group in self.restored else self.make_empty()
        return self.active[group]

    def snapshot(self) -> tuple[dict[int, Memory], dict[int, Memory]]:
        """Copy the states, for roll_back."""
        active, restored = ({n: memory.copy() for n, memory in own.items()} for own in (self.active, self.restored))
        return active, restored

    def roll_back(self, before: tuple[dict[int, Memory], dict[int, Memory]]) -> None:
        """Restore a snapshot, so that a skipped step leaves no trace."""
        self.active, self.restored = before

    @property
    def can_undo_on_device(self) -> bool:
        """Whether undo_where can take a step back: states keep their shapes once every group's memory is full. Only
        true of a process that trains all streams."""
        known = [*self.active.values(), *self.restored.values()]
        is_full = all(isinstance(memory, SegmentMemory) and not memory.is_filling for memory in known)
        return not self.streams or (is_full and len(known) == self.streams // self.rows)

    def undo_where(self, undo: Tensor, before: tuple[dict[int, Memory], dict[int, Memory]]) -> None:
        """Restore a snapshot if `undo`, a flag on the device, is set."""
        for group, memory in self.active.items():
            earlier = before[0].get(group) or before[1][group]
            assert isinstance(memory, SegmentMemory)
            assert isinstance(earlier, SegmentMemory)
            if memory.lengths is not earlier.lengths:  # it was used in this step
                memory.undo_where(undo, earlier)

    def get_state(self, include_restored: bool = True) -> tuple[Tensors, object]:
        """Return the tensors of all states as GROUP/NAME, and what else they hold, which is equal for all. Restored
        states whose streams were not trained since are among them, if `include_restored`."""
        tensors: Tensors = {}
        rest: object = {}
        for group, memory in ({**self.restored, **self.active} if include_restored else self.active).items():
            memory_tensors, rest = flatten_state(memory.get_state())
            tensors |= {f"{group}/{name}": tensor for name, tensor in memory_tensors.items()}
        return tensors, rest

    def restore_state(self, tensors: Mapping[str, Tensor], rest: object, device: torch.device) -> None:
        """Restore the states that get_state returned, in whichever process."""
        self.active, self.restored = {}, {}
        for group in sorted({int(name.split("/")[0]) for name in tensors}):
            own = {n.partition("/")[2]: t.to(device) for n, t in tensors.items() if n.startswith(f"{group}/")}
            self.restored[group] = self.make_empty()
            self.restored[group].restore_state(unflatten_state(own, rest))


class GraphedStep(Generic[T]):
    """A function of a batch that is recorded as one CUDA graph, so that all its kernels are launched at once.
    `run(batch)` may take a whole training step and returns tensors. If it updates the weights, its optimizer must be
    capturable, and a learning rate that changes must be a tensor. The first batches run as usual, then one is recorded;
    from there on every batch must have the same shapes."""

    def __init__(self, run: Callable[[Batch], T], device: torch.device | None = None, warmup: int = WARMUP_BATCHES):
        self.run, self.device, self.warmup_left = run, device, warmup
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch) -> T:
        """Run a batch, which may still lie on the host; return its values, which the next one overwrites."""
        if self.graph is not None:
            self.copy_batch(batch)
        elif self.warmup_left > 0:
            self.warmup_left -= 1
            return self.run_on_side_stream(batch)
        else:
            self.static_batch = clone_batch(batch if self.device is None else batch.to(self.device))
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode=CAPTURE_MODE):
                self.static_values = self.run(self.static_batch)
        self.graph.replay()
        return self.static_values

    def run_on_side_stream(self, batch: Batch) -> T:
        """Run a batch on a stream of its own, as recording requires of those before it."""
        stream, now = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(now)
        with torch.cuda.stream(stream):
            values = self.run(batch)
        now.wait_stream(stream)
        return values

    def copy_batch(self, batch: Batch) -> None:
        """Copy another batch into the tensors that the graph reads."""
        for static, new in zip(list_tensors(self.static_batch), list_tensors(batch), strict=True):
            if static.shape != new.shape:
                what = f"a recorded step was given {tuple(new.shape)} in place of {tuple(static.shape)}"
                raise Error(what, fix="give batches of one shape, or make a new GraphedStep")
            static.copy_(new, non_blocking=True)


def clone_batch(batch: Batch) -> Batch:
    """Copy a batch and its tensors."""
    copied = {name: value.clone() for name, value in batch.to_dict().items() if isinstance(value, Tensor)}
    return batch.replace(**copied, source=None if batch.source is None else clone_batch(batch.source))


def list_tensors(batch: Batch) -> list[Tensor]:
    """List all tensors of a batch and its source, in one order."""
    tensors = []
    for value in batch.to_dict().values():
        tensors += list_tensors(value) if isinstance(value, Batch) else [value] if isinstance(value, Tensor) else []
    return tensors


def list_compile_regions(model: nn.Module) -> list[nn.Module]:
    """List the parts of a model that can be compiled on their own: each block of a stack, and whatever holds no stack.
    Blocks of one kind share what is compiled."""
    if isinstance(model, BlockStack):
        return list(model)
    holds_others = isinstance(model, nn.ModuleDict) or any(isinstance(part, BlockStack) for part in model.modules())
    if not holds_others:
        return [model]
    return [region for part in model.children() for region in list_compile_regions(part)]


class StepValues:
    """The norm of a step's gradient and the sums of its losses, on their way from the device to the host."""

    def __init__(self, names: Sequence[str], values: Tensor):
        self.names, self.event = names, torch.cuda.Event() if values.is_cuda else None
        # A copy: the next replay of a graph overwrites the values. Into pinned memory, so that the host does not wait.
        self.values = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
        self.values.copy_(values, non_blocking=True)
        if self.event is not None:
            self.event.record()

    def read(self) -> tuple[float, dict[str, float]]:
        """Wait for the values: the norm, and the sum of each loss."""
        if self.event is not None:
            self.event.synchronize()
        norm, *sums = self.values.tolist()
        return norm, dict(zip(self.names, sums, strict=True))


class Executor:
    """Carries out training steps on one device: `start_step` computes gradients, `finish_step` applies them. Between
    the two, the host reads the values of the step and may decide to skip it. Where the optimizer itself skips steps
    that are not finite (`skips_on_device`), the host need not read them before the next step is launched."""

    def __init__(
        self, model: Model, objectives: Sequence[Objective], config: TrainConfig, world: ProcessGroup,
        lr_scales: Mapping[str, float],
    ):  # fmt: skip
        s = config
        self.model, self.objectives, self.grad_clip, self.device = model, objectives, s.grad_clip, world.device
        self.dtype = choose_dtype(s.precision, self.device)
        if s.precision == "fp8" and not use_fp8_linear(model):
            raise Error("no layer of this model can compute in 8-bit floats", fix="--train.precision bf16")
        self.strategy = select_strategy(world, s.parallel)
        self.step_module = Step(model, objectives[-1])
        self.parallel_module = self.strategy.wrap_step(self.step_module)
        self.optimizer = build_optimizer(
            s.optimizer, model, s.lr, weight_decay=s.weight_decay, betas=(s.betas[0], s.betas[1]), eps=s.eps,
            lr_scales=lr_scales,
        )  # fmt: skip
        if s.parallel == "expert":  # sharded weights and others cannot be updated in one operation
            for group in self.optimizer.param_groups:
                group.update({name: False for name in ("fused", "foreach") if name in group})
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.is_compiled = self.device.type == "cuda" if s.compile is None else bool(s.compile)
        self.compiled_modules = select_compiled_modules(self.step_module, s) if self.is_compiled else []
        if self.is_compiled:
            torch.compiler.reset()  # else torch stops compiling after a few models, without an error
        for module in self.compiled_modules:
            module.compile(dynamic=False)  # batches have one shape
        alone = self.device.type == "cuda" and world.size == 1 and not self.scaler.is_enabled()
        self.skips_on_device = alone and s.optimizer in DEVICE_SKIPPING_OPTIMIZERS and not s.spike_factor
        self.uses_cuda_graphs = alone and self.is_compiled and not s.activation_checkpointing
        self.can_record_update = s.optimizer in CAPTURABLE_OPTIMIZERS
        # Recorded functions by name, objective and shape. What differs from step to step, a graph reads from here.
        self.cuda_graphs: dict[tuple[str, int, torch.Size], GraphedStep[Any]] = {}  # dynamic: of a batch or a step
        self.graph_weights: dict[str, Tensor] = {}
        self.graph_lrs = [torch.empty((), device=self.device) for _ in self.optimizer.param_groups]
        self.has_accumulated = False
        self.step_values: Tensor | None = None  # of the last step, on the device

    def start_step(
        self, batches: Sequence[Batch], carried_states: CarriedStates, objective: Objective,
        loss_weights: Mapping[str, float], lr: float,
    ) -> StepValues:  # fmt: skip
        """Add up the gradients of a step's batches and clip them; where steps are skipped on the device, apply them."""
        for group, graph_lr in zip(self.optimizer.param_groups, self.graph_lrs, strict=True):
            group["lr"] = lr * group.get("lr_scale", 1.0)
            graph_lr.fill_(group["lr"])
        if not (self.parallel_module.training and self.model.training):
            self.parallel_module.train()
        memories = [carried_states.select_for_batch(batch) for batch in batches]
        recorded = self.uses_cuda_graphs and self.is_compiled and all(memory is None for memory in memories)
        if recorded:
            self.set_graph_weights(loss_weights)
        # Gradients that many batches are added up in must stay where they are; those of one batch need not be kept.
        self.has_accumulated |= len(batches) > 1
        if recorded and self.skips_on_device and self.can_record_update and not self.has_accumulated:
            names, self.step_values = self.run_recorded("step", self.take_step, batches[0], objective)
            return StepValues(names, self.step_values)
        sums: dict[str, Tensor] = {}
        for number, (batch, memory) in enumerate(zip(batches, memories, strict=True)):
            with self.strategy.sync_gradients(self.parallel_module, number == len(batches) - 1):
                if recorded:
                    totals = self.run_recorded("gradient", self.compute_recorded_gradient, batch, objective)
                else:
                    totals = self.compute_gradient(batch.to(self.device), memory, objective, loss_weights)
                for name, total in totals.items():
                    sums[name] = sums.get(name, torch.zeros_like(total)) + total
        names, self.step_values = self.clip_and_update(sums)
        return StepValues(names, self.step_values)

    def clip_and_update(self, sums: Mapping[str, Tensor]) -> tuple[list[str], Tensor]:
        """Clip the gradients and, where steps are skipped on the device, apply them. Return the names of the losses,
        and on the device the norm of the gradient with the sums of the losses after it."""
        self.scaler.unscale_(self.optimizer)
        names = sorted(sums)
        norm = self.strategy.clip_grad_norm(self.model, self.grad_clip or math.inf)
        values = torch.stack([value.double() for value in (norm, *(sums[name] for name in names))])
        if self.skips_on_device:  # the optimizer leaves non-finite gradients out itself: no host sync is needed
            self.optimizer.found_inf = find_non_finite(values).float()  # type: ignore[attr-defined]
            self.optimizer.step()
        return names, values

    def get_skip_flag(self) -> Tensor:
        """Return, on the device, whether the optimizer has skipped the last step itself. Computed from the step's own
        values: the optimizer's `found_inf` belongs to the graph that was recorded last, not to the one that ran."""
        assert self.step_values is not None
        return find_non_finite(self.step_values)

    def finish_step(self, skip: bool) -> None:
        """Apply the gradients unless the step is skipped, and clear them."""
        if not self.skips_on_device and not skip:
            self.scaler.step(self.optimizer)
        self.scaler.update()  # it has noted non-finite gradients itself, and lowers the scale
        self.optimizer.zero_grad(set_to_none=not self.cuda_graphs)

    def take_step(self, batch: Batch, objective: Objective) -> tuple[list[str], Tensor]:
        """Take a whole step of one batch: gradients, clipping and the update, from values that a graph can read."""
        self.optimizer.zero_grad(set_to_none=True)
        sums = self.compute_recorded_gradient(batch, objective)
        # The rate is a tensor that a graph reads; the settings, which a checkpoint holds, are as in any run afterwards.
        groups, is_captured = self.optimizer.param_groups, torch.cuda.is_current_stream_capturing()
        lrs = [group["lr"] for group in groups]
        for group, graph_lr in zip(groups, self.graph_lrs, strict=True):
            group.update(lr=graph_lr, capturable=is_captured)
        try:
            outcome = self.clip_and_update(sums)
        finally:
            for group, lr in zip(groups, lrs, strict=True):
                group.update(lr=lr, capturable=False)
        self.optimizer.zero_grad(set_to_none=True)
        return outcome

    def compute_recorded_gradient(self, batch: Batch, objective: Objective) -> dict[str, Tensor]:
        """Run a batch forward and backward with weights of the losses that a graph can read."""
        return self.compute_gradient(batch.to(self.device), None, objective, self.graph_weights)

    def set_graph_weights(self, loss_weights: Mapping[str, float]) -> None:
        """Copy the weights of the losses into the tensors that graphs read."""
        for name, weight in loss_weights.items():
            if name not in self.graph_weights:
                self.graph_weights[name] = torch.empty((), device=self.device)
            self.graph_weights[name].fill_(weight)

    def run_recorded(self, name: str, run: Callable[[Batch, Objective], T], batch: Batch, objective: Objective) -> T:
        """Run a function of a batch as a CUDA graph once it has been recorded, and as it is if that fails."""
        batch = batch if isinstance(batch.ids, Tensor) else batch.to("cpu")  # numpy: a graph reads tensors
        key = name, self.objectives.index(objective), batch.ids.shape
        if key not in self.cuda_graphs:
            self.cuda_graphs[key] = GraphedStep(lambda one: run(one, objective), self.device)
        graph: GraphedStep[T] = self.cuda_graphs[key]
        try:
            return graph(batch)
        except RuntimeError as error:  # something in this model waits for the host: it cannot be recorded
            if graph.warmup_left or isinstance(error, torch.OutOfMemoryError):
                raise
            message = " ".join(str(error).split())[:150]
            warnings.warn(f"this step runs without a CUDA graph, a little slower: {message}", stacklevel=2)
            graph.graph, graph.warmup_left = None, NEVER_CAPTURE
            return graph(batch)

    def compute_gradient(
        self, batch: Batch, memory: Memory | None, objective: Objective, loss_weights: Mapping[str, float | Tensor]
    ) -> dict[str, Tensor]:
        """Run a batch forward and backward, gradients added up where they are; return its summed losses."""
        losses = self.forward(batch, memory, objective)
        first, *more = (total * loss_weights[name] for name, (total, _) in losses.items())
        self.scaler.scale(sum(more, start=first)).backward()
        return {name: total.detach() for name, (total, _) in losses.items()}

    def forward(self, batch: Batch, memory: Memory | None, objective: Objective, count_correct: bool = False) -> Losses:
        """Compute the losses of a batch, compiled if that works on this machine."""
        other = None if objective is self.objectives[-1] else objective
        compiled_calls = [module._compiled_call_impl for module in self.compiled_modules]
        # Rare batches of other shapes are not worth a compilation of their own.
        is_rare = count_correct or (memory is not None and memory.is_filling)
        with self.autocast(cache_enabled=not self.uses_cuda_graphs):
            if is_rare:
                self.set_compiled_calls([None] * len(compiled_calls))
            try:
                return self.parallel_module(batch, memory, other, count_correct)
            except Exception as error:  # torch has no common class for what goes wrong while it compiles
                if isinstance(error, Error | torch.OutOfMemoryError) or not self.is_compiled or is_rare:
                    raise
                self.is_compiled, compiled_calls = False, [None] * len(compiled_calls)
                message = " ".join(str(error).split())[:200]
                warnings.warn(f"this step runs uncompiled and slower: {type(error).__name__}: {message}", stacklevel=2)
            finally:
                self.set_compiled_calls(compiled_calls)
            return self.parallel_module(batch, memory, other, count_correct)

    def set_compiled_calls(self, calls: Sequence[CompiledCall | None]) -> None:
        """Set the compiled functions of the compiled modules; None runs a module uncompiled."""
        for module, call in zip(self.compiled_modules, calls, strict=True):
            module._compiled_call_impl = call

    def autocast(self, cache_enabled: bool = True) -> torch.autocast:
        """Compute products in the run's dtype within the block."""
        enabled = self.dtype != torch.float32
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=enabled, cache_enabled=cache_enabled)


def find_non_finite(values: Tensor) -> Tensor:
    """Return, on the device, whether any of a step's values is not finite."""
    return ~values.sum().isfinite()


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype in which products are computed."""
    if precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bf16 else torch.float32
    if precision == "fp8":  # of linear layers in blocks; bf16 is for all else
        check_fp8(device)
        return torch.bfloat16
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    check_cpu_bf16(dtype, device)
    return dtype


def select_compiled_modules(step: Step, config: TrainConfig) -> list[nn.Module]:
    """Return the modules that are compiled: the whole step, or each block and what stands around the blocks. By default
    deep models and short runs take the second way: the compiler's time grows with every layer of the first. Blocks that
    have a memory are not alike: each has its own part of it."""
    has_memory = issubclass(step.model.state_class, SegmentMemory)
    num_blocks = 0 if has_memory else sum(len(part) for part in step.modules() if isinstance(part, BlockStack))
    by_block = config.compile == "blocks"
    if config.compile is None:
        by_block = num_blocks > MAX_WHOLE_BLOCKS or config.steps < MIN_WHOLE_STEPS
    return list_compile_regions(step.model) if num_blocks and by_block else [step]
