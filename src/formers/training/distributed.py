"""Several processes of one run under torchrun: copies of the model (DDP), or shards of it (FSDP2).

Every process takes its share of a step's batches. Gradients are averaged by torch, and each loss is multiplied by the
number of processes before it is divided by the places of all: what comes out is the gradient of one large batch.

A checkpoint holds whole tensors, whatever the number of processes: one format, with a sum over every file, that any
number of processes can go on from. The first process gathers it, tensor by tensor.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import Error
from .settings import Parallel
from .state import Tensors
from .world import World

PATIENCE = datetime.timedelta(hours=6)  # the others wait while the first one prepares the data


@dataclass
class Copies(World):
    """Each process has the whole model (DDP)."""

    def wrap(self, step: nn.Module) -> nn.Module:
        """Gradients are exchanged during the backward pass; a head's part that an objective leaves out has none."""
        where = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(
            step, device_ids=where, broadcast_buffers=False, find_unused_parameters=True
        )

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

    def everyones(self, tensors: Tensors) -> Tensors:
        """What each process has of its own, by rank, in the first one."""
        found: list[Any] = [None] * self.size
        dist.gather_object({k: t.cpu() for k, t in tensors.items()}, found if self.first else None)
        return {f"{rank}/{k}": t for rank, mine in enumerate(found) if mine for k, t in mine.items()}

    def wait(self) -> None:
        """Until all are here."""
        dist.barrier()

    def close(self) -> None:
        """Part from the others."""
        dist.destroy_process_group()


class Shards(Copies):
    """Each process has a part of every weight, gradient and moment (FSDP2); blocks are put together when needed."""

    def wrap(self, step: nn.Module) -> nn.Module:
        """Shard the blocks, then what is left."""
        from torch.distributed.fsdp import fully_shard

        from ..nn.block import Block

        for part in step.modules():
            if isinstance(part, Block):
                fully_shard(part)
        return cast(nn.Module, fully_shard(step))

    @contextlib.contextmanager
    def last(self, step: nn.Module, last: bool) -> Iterator[None]:
        """Gradients are exchanged after the last batch of a step only."""
        step.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield

    def norm(self, model: nn.Module, most: float) -> Tensor:
        """The norm over all shards."""
        return whole(super().norm(model, most))

    def whole(self, tensors: Tensors) -> Tensors:
        """Weights or moments put together; every process must ask, the first one keeps them."""
        found = {}
        for name, tensor in tensors.items():
            full = whole(tensor).cpu()
            if self.first:
                found[name] = full
        return found

    def parted(self, whole: Tensor, like: Any) -> Tensor:
        """This process's part of a tensor, cut as another is."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor) or whole.shape != like.shape:
            return whole
        return distribute_tensor(whole.to(self.device), like.device_mesh, like.placements)


def whole(tensor: Any) -> Tensor:
    """A sharded tensor put together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def together(parallel: Parallel = "copies", device: torch.device | None = None) -> World:
    """The processes of this run, by torchrun's variables; alone without them."""
    size, rank, local = (int(os.environ.get(name, least)) for name, least in
                         (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))  # fmt: skip
    if device is None or (device.type == "cuda" and device.index is None):
        kind = "cuda" if torch.cuda.is_available() and (device is None or device.type == "cuda") else "cpu"
        device = torch.device("cuda", local) if kind == "cuda" else torch.device("cpu")
    if size == 1:
        return World(device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        try:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        except (RuntimeError, ValueError) as error:
            said = " ".join(str(error).split())[:150]
            raise Error(f"the processes do not find each other ({said})", fix="start them with torchrun") from None
    return (Shards if parallel == "shards" else Copies)(rank, size, device)
