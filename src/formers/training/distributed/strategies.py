"""How the processes of a run share a model: copies of it (DDP), shards (FSDP2), or the experts of each layer.

With copies, torch averages the gradients, and a checkpoint holds whole tensors: the first process writes it, or reads
it and hands it out tensor by tensor, and no other one needs to see it. Of shards, every process writes and reads its
own part (training/checkpoint/sharded.py). Both have a checksum of every file, and any number of processes can resume
from them with any strategy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import Error
from ...nn.block import Block
from ...nn.experts import Experts
from ..train_config import Parallel
from .process_group import ProcessGroup


class Strategy(Protocol):
    """How a step's module is spread over the processes, and how their gradients are combined."""

    is_sharded: bool  # each process has only a part of some weights, and of a checkpoint

    def wrap_step(self, step: nn.Module) -> nn.Module:
        """Return the module whose backward pass sees the gradients of all processes."""

    def sync_gradients(self, step: nn.Module, is_last_batch: bool) -> AbstractContextManager[None]:
        """Exchange gradients after the last batch of a step only."""

    def clip_grad_norm(self, model: nn.Module, max_norm: float) -> Tensor:
        """Clip the gradient to `max_norm`; return its norm before."""


class DataParallel:
    """Each process has the whole model (DDP); a single process exchanges nothing."""

    is_sharded = False

    def __init__(self, world: ProcessGroup):
        self.world = world

    def wrap_step(self, step: nn.Module) -> nn.Module:
        """Exchange gradients during the backward pass; a head's part that an objective leaves out has none."""
        if self.world.size == 1:
            return step
        device, parallel = self.world.device, nn.parallel.DistributedDataParallel
        where = [device.index] if device.type == "cuda" else None
        # torch warns, past Python's filters, if all parameters are used: this one never is.
        step.register_parameter("unused", nn.Parameter(torch.zeros(1, device=device)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the newest torch has another word for broadcast_buffers
            return parallel(step, device_ids=where, broadcast_buffers=False, find_unused_parameters=True)

    def sync_gradients(self, step: nn.Module, is_last_batch: bool) -> AbstractContextManager[None]:
        """Exchange gradients after the last batch of a step only."""
        if self.world.size == 1 or is_last_batch:
            return nullcontext()
        return step.no_sync()  # type: ignore[operator]

    def clip_grad_norm(self, model: nn.Module, max_norm: float) -> Tensor:
        """Clip the gradient, which all processes have whole."""
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)


class FullySharded:
    """Each process has a part of every weight, gradient and moment (FSDP2); blocks are gathered when needed."""

    is_sharded = True

    def wrap_step(self, step: nn.Module) -> nn.Module:
        """Shard the blocks, then the rest."""
        from torch.distributed.fsdp import fully_shard

        for part in step.modules():
            if isinstance(part, Block):
                fully_shard(part)
        return cast(nn.Module, fully_shard(step))

    def sync_gradients(self, step: nn.Module, is_last_batch: bool) -> AbstractContextManager[None]:
        """Exchange gradients after the last batch of a step only."""
        step.set_requires_gradient_sync(is_last_batch)  # type: ignore[operator]
        return nullcontext()

    def clip_grad_norm(self, model: nn.Module, max_norm: float) -> Tensor:
        """Clip by the norm over all shards."""
        from torch.distributed.tensor import DTensor

        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm


class ExpertParallel:
    """Each process has some of the experts, and a copy of all else (Fedus et al. 2021, §5.4). Tokens travel to their
    experts, so that an expert's gradient already comes from the tokens of all processes; the rest is left to
    DataParallel."""

    is_sharded = True

    def __init__(self, world: ProcessGroup):
        self.world, self.data_parallel = world, DataParallel(world)

    def wrap_step(self, step: nn.Module) -> nn.Module:
        """Keep this process's experts, and wrap the rest for DDP."""
        from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

        size = self.world.size
        layers = [(name, part) for name, part in step.named_modules() if isinstance(part, Experts)]
        if not layers or any(layer.num_experts % size for _, layer in layers):
            what = f"{layers[0][1].num_experts} experts" if layers else "a model without experts"
            raise Error(f"{what} cannot be shared by {size} processes", fix="--train.parallel ddp, or fsdp")
        mesh = init_device_mesh(self.world.device.type, (size,))
        for _, layer in layers:
            for name, weight in (("up", layer.up), ("down", layer.down)):
                part = nn.Parameter(distribute_tensor(weight.detach(), mesh, [Shard(0)]))
                part.register_hook(lambda gradient: gradient / size)  # DDP takes the mean of all else
                setattr(layer, name, part)
            # How many tokens go where depends on the data: nothing to compile.
            layer.remote_dispatch = torch.compiler.disable(self.dispatch_tokens)
        ignored = [f"{prefix}.{name}" for prefix, _ in layers for name in ("up", "down")]
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(step, ignored)
        return self.data_parallel.wrap_step(step)

    def sync_gradients(self, step: nn.Module, is_last_batch: bool) -> AbstractContextManager[None]:
        """Exchange the gradients of what is copied after the last batch of a step only."""
        return self.data_parallel.sync_gradients(step, is_last_batch)

    def clip_grad_norm(self, model: nn.Module, max_norm: float) -> Tensor:
        """Clip by the norm over the experts of all processes and one copy of the other weights."""
        from torch.distributed.tensor import DTensor

        copied, own = [], []
        for p in model.parameters():
            if isinstance(p.grad, DTensor):
                own.append(p.grad.to_local())
            elif p.grad is not None:
                copied.append(p.grad)
        squares = [torch.zeros((), device=self.world.device) for _ in range(2)]
        for total, gradients in zip(squares, (copied, own), strict=True):
            for gradient in gradients:
                total += gradient.float().square().sum()
        dist.all_reduce(squares[1])
        norm = (squares[0] + squares[1]).sqrt()
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        for gradient in (*copied, *own):
            gradient.mul_(scale)
        return norm

    def dispatch_tokens(self, layer: Experts, x: Tensor, chosen: Tensor) -> Tensor:
        """(N, dim) → (N, dim): send every token to the process that has its expert, and back."""
        size, order = self.world.size, chosen.argsort(stable=True)
        leave = torch.bincount(chosen, minlength=layer.num_experts).view(size, -1)  # (processes, their experts)
        come = torch.empty_like(leave)
        dist.all_to_all_single(come, leave)
        out, back = leave.sum(1).tolist(), come.sum(1).tolist()
        guests = exchange_rows(x.index_select(0, order), out, back)
        own = torch.arange(leave.shape[1], device=x.device).repeat(size).repeat_interleave(come.flatten())
        y = exchange_rows(layer.run_experts(guests, own), back, out)
        return torch.zeros_like(y).index_copy(0, order, y)


def exchange_rows(x: Tensor, out: list[int], back: list[int]) -> Tensor:
    """Send rows to all processes, `out` to each, and receive `back` from each. Gradients go the other way."""
    from torch.distributed.nn.functional import all_to_all_single

    return all_to_all_single(x.new_empty(sum(back), x.shape[1]), x.contiguous(), back, out)


def select_strategy(world: ProcessGroup, parallel: Parallel) -> Strategy:
    """Return the strategy by which these processes share a model."""
    strategies: dict[Parallel, Callable[[], Strategy]] = {
        "ddp": lambda: DataParallel(world), "fsdp": FullySharded, "expert": lambda: ExpertParallel(world),
    }  # fmt: skip
    return strategies["ddp" if world.size == 1 else parallel]()
