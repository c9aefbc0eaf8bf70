"""Several processes of one run under torchrun: copies of the model (DDP), or shards of it (FSDP2).

Every process takes its share of a step's batches. Gradients are averaged by torch, and each loss is multiplied by the
number of processes before it is divided by the places of all: what comes out is the gradient of one large batch.

A checkpoint of copies holds whole tensors: the first process writes it, or reads and hands it out, tensor by tensor,
and no other one needs to see it. Of shards, every process writes and reads its own part
(training/checkpoint/sharded.py). Both have a sum over every file, and any number of processes can go on from them, cut
as they like.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...errors import Error
from ...former import choose_device
from ..checkpoint.state import Tensors
from ..train_config import Parallel
from .process_group import ProcessGroup, T

PREPARE_TIMEOUT = datetime.timedelta(hours=6)  # while the first one prepares the data
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)  # for each other, at any other time
RENDEZVOUS_TIMEOUT = datetime.timedelta(minutes=10)  # until all have been started
RETRY_INTERVAL = datetime.timedelta(seconds=1)  # after which the others ask the first one again
LOST_PEER_WORDS = (
    "gloo",
    "connection",
    "timed out",
    "broken pipe",
    "nccl",
)  # what torch says when another process is gone


@dataclass
class DataParallel(ProcessGroup):
    """Each process has the whole model (DDP)."""

    prepare_group: Any = None  # the group in which the others wait for the first
    owns_group: bool = False  # the processes found each other here, and part here

    def wrap_step(self, step: nn.Module) -> nn.Module:
        """Gradients are exchanged during the backward pass; a head's part that an objective leaves out has none."""
        where = [self.device.index] if self.device.type == "cuda" else None
        # torch complains, past Python's filters, if all parameters are used: so one is there that never is.
        step.register_parameter("unused", nn.Parameter(torch.zeros(1, device=self.device)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the newest torch has another word for broadcast_buffers
            return nn.parallel.DistributedDataParallel(
                step, device_ids=where, broadcast_buffers=False, find_unused_parameters=True
            )

    @contextlib.contextmanager
    def sync_gradients(self, step: nn.Module, is_last_batch: bool) -> Iterator[None]:
        """Gradients are exchanged after the last batch of a step only."""
        with contextlib.nullcontext() if is_last_batch else step.no_sync():  # type: ignore[operator]
            yield

    def sum_over_ranks(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over all processes; they are on the CPU, and no GPU is waited for."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def gather_by_rank(self, tensors: Tensors) -> Tensors:
        """What each process has of its own, by rank, in the first one."""
        found: list[Any] = [None] * self.size
        dist.gather_object({k: t.cpu() for k, t in tensors.items()}, found if self.is_main else None)
        return {f"{rank}/{k}": t for rank, mine in enumerate(found) if mine for k, t in mine.items()}

    def scatter_tensor(self, whole: Tensor, like: Any = None) -> Tensor:
        """A tensor of the first process; the others give an empty one of its shape."""
        whole = torch.empty_like(whole, device=self.device) if whole.is_meta else whole.to(self.device)
        dist.broadcast(whole, 0)
        return whole

    def broadcast_from_main(self, make: Callable[[], T]) -> T:
        """What the first process finds, told to all; what goes wrong there goes wrong for all."""
        said: list[Any] = [None, None]
        failed: BaseException | None = None
        if self.is_main:
            try:
                said[0] = make()
            except BaseException as error:
                failed, said[1] = error, summarise_error(error)
        with explain_lost_peer(self):
            dist.broadcast_object_list(said, 0, group=self.prepare_group)
        if failed is not None:
            raise failed
        if said[1] is not None:
            what, where, fix, code = said[1]
            told = Error(what, where=where, fix=fix)
            told.exit_code = code
            raise told
        return said[0]

    def barrier(self) -> None:
        """Until all are here."""
        dist.barrier(group=self.prepare_group)

    def close(self) -> None:
        """Part from the others."""
        if self.owns_group:
            dist.destroy_process_group()


class FullySharded(DataParallel):
    """Each process has a part of every weight, gradient and moment (FSDP2); blocks are put together when needed."""

    is_sharded = True

    def wrap_step(self, step: nn.Module) -> nn.Module:
        """Shard the blocks, then what is left."""
        from torch.distributed.fsdp import fully_shard

        from ...nn.block import Block

        for part in step.modules():
            if isinstance(part, Block):
                fully_shard(part)
        return cast(nn.Module, fully_shard(step))

    @contextlib.contextmanager
    def sync_gradients(self, step: nn.Module, is_last_batch: bool) -> Iterator[None]:
        """Gradients are exchanged after the last batch of a step only."""
        step.set_requires_gradient_sync(is_last_batch)  # type: ignore[operator]
        yield

    def clip_grad_norm(self, model: nn.Module, max_norm: float) -> Tensor:
        """The norm over all shards."""
        return gather_full_tensor(super().clip_grad_norm(model, max_norm))

    def load_shards(
        self, folder: Path, outline: Mapping[str, Tensors], like: Callable[[str, str], Any]
    ) -> dict[str, Tensors]:
        """This process's parts of the tensors in a folder, cut as others are."""
        from torch.distributed.tensor import DTensor

        from ..checkpoint import sharded

        def make_empty_like(tensor: Tensor, other: Any) -> Tensor:
            if isinstance(other, DTensor) and other.shape == tensor.shape:
                return torch.empty_like(other, dtype=tensor.dtype)
            return torch.empty_like(tensor, device="cpu")

        made = {
            g: {name: make_empty_like(t, like(g, name)) for name, t in group.items()} for g, group in outline.items()
        }
        sharded.load_shards_into(folder, made)
        return made

    def scatter_tensor(self, whole: Tensor, like: Any = None) -> Tensor:
        """This process's part of a tensor of the first one, cut as another is."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor) or whole.shape != like.shape:
            return super().scatter_tensor(whole)
        whole = torch.empty_like(whole, device=self.device) if whole.is_meta else whole.to(self.device)
        return distribute_tensor(whole, like.device_mesh, like.placements)


def gather_full_tensor(tensor: Any) -> Tensor:
    """A sharded tensor put together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def get_local_tensor(tensor: Any) -> Tensor:
    """This process's part of a sharded tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def summarise_error(error: BaseException) -> tuple[str, str | None, str | None, int]:
    """An error as the others are told of it."""
    if isinstance(error, Error):
        return error.what, error.where, error.fix, error.exit_code
    return f"the first process failed ({type(error).__name__}: {error})", None, "see what it said", 2


@contextlib.contextmanager
def explain_lost_peer(world: ProcessGroup) -> Iterator[None]:
    """Where torch says in many ways that another process is gone, this is one line."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).lower()
        if world.size == 1 or not (isinstance(error, dist.DistError) or any(word in said for word in LOST_PEER_WORDS)):
            raise
        said = re.sub(r"\[\S*/\S*\]", "", str(error).partition("\n")[0])[:120].strip()  # without the places in its code
        what = f"process {world.rank} has lost another one ({said})"
        raise Error(what, fix="see what that one said, and go on with --resume") from None


def connect_processes(device: Any = None) -> ProcessGroup:
    """The processes of this run, by torchrun's variables; alone without them."""
    size, rank, local = (int(os.environ.get(name, least)) for name, least in
                         (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))  # fmt: skip
    device = choose_device(device, local)
    if size == 1:
        return ProcessGroup(device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    opened = not dist.is_initialized()
    try:
        if opened:
            store, *_ = next(iter(dist.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT)))
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(
                backend,
                store=open_fresh_store(store, rank, size),
                rank=rank,
                world_size=size,
                timeout=COLLECTIVE_TIMEOUT,
            )
        patient = dist.new_group(backend="gloo", timeout=PREPARE_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())[:150]
        raise Error(f"the processes do not find each other ({said})", fix="start them with torchrun") from None
    return DataParallel(rank, size, device, patient, opened)


def open_fresh_store(store: dist.Store, rank: int, size: int) -> dist.Store:
    """A part of the store for this start alone.

    torchrun keeps one store over its restarts, and with it the addresses of processes that are gone. So the first
    process opens a new part, and answers everyone who comes there; nobody answers in an old one.
    """
    mine = uuid.uuid4().hex
    if rank == 0:
        store.set("start", mine)
        for other in range(1, size):
            store.set(f"{mine}/{store.get(f'{mine}/{other}').decode()}", "welcome")
        return dist.PrefixStore(mine, store)
    until = time.monotonic() + RENDEZVOUS_TIMEOUT.total_seconds()
    while True:
        start = store.get("start").decode()
        store.set(f"{start}/{rank}", mine)
        try:
            store.wait([f"{start}/{mine}"], RETRY_INTERVAL)
            return dist.PrefixStore(start, store)
        except RuntimeError:  # no answer: an old one, or the first is still busy with others
            if time.monotonic() > until:
                raise


def select_strategy(world: ProcessGroup, parallel: Parallel) -> ProcessGroup:
    """Return the strategy by which these processes share the model."""
    if parallel == "ddp" or not isinstance(world, DataParallel):
        return world
    from .expert import ExpertParallel

    kind = FullySharded if parallel == "fsdp" else ExpertParallel
    return kind(world.rank, world.size, world.device, world.prepare_group, world.owns_group)
