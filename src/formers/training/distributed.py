"""Several processes of one run under torchrun: copies of the model (DDP), or shards of it (FSDP2).

Every process takes its share of a step's batches. Gradients are averaged by torch, and each loss is multiplied by the
number of processes before it is divided by the places of all: what comes out is the gradient of one large batch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import Error
from .world import World

Way = Literal["auto", "ddp", "fsdp"]


@dataclass
class Copies(World):
    """Each process has the whole model (DDP)."""

    device: torch.device = torch.device("cpu")

    def wrap(self, step: nn.Module) -> nn.Module:
        """Gradients are exchanged during the backward pass."""
        where = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(step, device_ids=where, broadcast_buffers=False)

    @contextlib.contextmanager
    def last(self, step: nn.Module, last: bool) -> Iterator[None]:
        """Gradients are exchanged after the last batch of a step only."""
        with contextlib.nullcontext() if last else step.no_sync():  # type: ignore[operator]
            yield

    def add(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over all processes."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Every process's tensors, on all of them; each has the same names."""
        out = {}
        for name, tensor in tensors.items():
            parts = [torch.empty_like(tensor, device=self.device) for _ in range(self.size)]
            dist.all_gather(parts, tensor.to(self.device))
            out |= {f"{rank}/{name}": part.to(tensor.device) for rank, part in enumerate(parts)}
        return out

    def wait(self) -> None:
        """Until all are here."""
        dist.barrier()


class Shards(Copies):
    """Each process has a part of every weight, gradient and moment (FSDP2); blocks are put together when needed."""

    def wrap(self, step: nn.Module) -> nn.Module:
        """Shard the blocks, then what is left."""
        from torch.distributed.fsdp import fully_shard

        from ..nn.block import Block

        for part in step.modules():
            if isinstance(part, Block):
                fully_shard(part)
        return fully_shard(step)

    @contextlib.contextmanager
    def last(self, step: nn.Module, last: bool) -> Iterator[None]:
        """Gradients are exchanged after the last batch of a step only."""
        step.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield

    def norm(self, model: nn.Module, most: float) -> Tensor:
        """The norm over all shards."""
        return whole(super().norm(model, most))

    def full(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights or moments put together; every process must ask."""
        return {name: whole(tensor) for name, tensor in tensors.items()}


def whole(tensor: Any) -> Tensor:
    """A sharded tensor put together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def together(way: Way = "auto") -> World:
    """The processes of this run, by torchrun's variables; alone without them."""
    size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if size == 1:
        return World()
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        try:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        except (RuntimeError, ValueError) as error:
            said = " ".join(str(error).split())[:150]
            raise Error(f"the processes do not find each other ({said})", fix="start them with torchrun") from None
    kind = Shards if way == "fsdp" else Copies
    return kind(rank, size, device)
