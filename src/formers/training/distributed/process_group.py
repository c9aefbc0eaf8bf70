"""The processes of a run, as torchrun starts them: how they connect, communicate and fail together.

How they share a model is in training/distributed/strategies.py. Every process takes its share of a step's batches, and
each loss is multiplied by the number of processes before it is divided by the labels of all: the average of gradients
is then the gradient of one large batch.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import Error
from ...former import choose_device

CPU = torch.device("cpu")
T = TypeVar("T")
PREPARE_TIMEOUT = datetime.timedelta(hours=6)  # while the main process prepares the data
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=30)  # of any other collective operation
RENDEZVOUS_TIMEOUT = datetime.timedelta(minutes=10)  # until all processes have started
RETRY_INTERVAL = datetime.timedelta(seconds=1)  # after which the others ask the main process again
LOST_PEER_WORDS = ("gloo", "connection", "timed out", "broken pipe", "nccl")  # in torch's errors about a lost process


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those of its run. A single process needs no torch.distributed."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    prepare_group: dist.ProcessGroup | None = None  # the group in which the others wait for the first
    owns_group: bool = False  # the group was made here, and is destroyed here

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and reports progress."""
        return self.rank == 0

    def sum_over_ranks(self, values: Sequence[float]) -> list[float]:
        """Sum numbers over all processes, on the CPU, without waiting for a GPU."""
        if self.size == 1:
            return [float(v) for v in values]
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def sum_counts(self, counts: Sequence[Mapping[str, int]]) -> dict[str, float]:
        """Count the labels of each loss in a step, over its batches and all processes."""
        names = sorted({name for count in counts for name in count})
        sums = self.sum_over_ranks([sum(count.get(name, 0) for count in counts) for name in names])
        return dict(zip(names, sums, strict=True))

    def gather_by_rank(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gather in the first process what each has of its own, as RANK/NAME."""
        if self.size == 1:
            return {f"{self.rank}/{name}": tensor for name, tensor in tensors.items()}
        rank_tensors: list[dict[str, Tensor] | None] = [None] * self.size
        dist.gather_object({k: t.cpu() for k, t in tensors.items()}, rank_tensors if self.is_main else None)
        return {f"{rank}/{k}": t for rank, named in enumerate(rank_tensors) if named for k, t in named.items()}

    def scatter_tensor(self, whole: Tensor, like: Tensor | None = None) -> Tensor:
        """Return a tensor of the first process in all of them, sharded where `like` is; the others pass an empty one
        of its shape."""
        if self.size == 1:
            return whole
        from torch.distributed.tensor import DTensor, distribute_tensor

        whole = torch.empty_like(whole, device=self.device) if whole.is_meta else whole.to(self.device)
        if isinstance(like, DTensor) and whole.shape == like.shape:
            return distribute_tensor(whole, like.device_mesh, like.placements)
        dist.broadcast(whole, 0)
        return whole

    def broadcast_from_main(self, make: Callable[[], T]) -> T:
        """Return in all processes what the first one computes; an error there is raised in all."""
        if self.size == 1:
            return make()
        message: list[Any] = [None, None]  # dynamic: what the first process computes, or its error
        failure: BaseException | None = None
        if self.is_main:
            try:
                message[0] = make()
            except BaseException as error:
                failure, message[1] = error, summarise_error(error)
        with explain_lost_peer(self):
            dist.broadcast_object_list(message, 0, group=self.prepare_group)
        if failure is not None:
            raise failure
        if message[1] is not None:
            what, where, fix, code = message[1]
            copied_error = Error(what, where=where, fix=fix)
            copied_error.exit_code = code
            raise copied_error
        return message[0]

    def barrier(self) -> None:
        """Wait until all processes have reached this call."""
        if self.size > 1:
            dist.barrier(group=self.prepare_group)

    def close(self) -> None:
        """Leave the process group, if this run made it."""
        if self.owns_group:
            dist.destroy_process_group()


def summarise_error(error: BaseException) -> tuple[str, str | None, str | None, int]:
    """Reduce an error to what the other processes receive: what, where, remedy, exit code."""
    if isinstance(error, Error):
        return error.what, error.where, error.fix, error.exit_code
    return f"the first process failed ({type(error).__name__}: {error})", None, "see its output", 2


@contextlib.contextmanager
def explain_lost_peer(world: ProcessGroup) -> Iterator[None]:
    """Turn torch's many errors about a lost process into one line."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if world.size == 1 or not (isinstance(error, dist.DistError) or any(word in text for word in LOST_PEER_WORDS)):
            raise
        text = re.sub(r"\[\S*/\S*\]", "", str(error).partition("\n")[0])[:120].strip()  # without the places in its code
        what = f"process {world.rank} has lost the connection to another one ({text})"
        raise Error(what, fix="see the output of that one, and continue with --resume") from None


def connect_processes(device: torch.device | str | None = None) -> ProcessGroup:
    """Join the processes of this run by torchrun's environment variables; without them there is a single process."""
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
            store = open_fresh_store(store, rank, size)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
        patient = dist.new_group(backend="gloo", timeout=PREPARE_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        message = " ".join(str(error).split())[:150]
        raise Error(f"the processes cannot connect ({message})", fix="start them with torchrun") from None
    return ProcessGroup(rank, size, device, patient, opened)


def open_fresh_store(store: dist.Store, rank: int, size: int) -> dist.Store:
    """Open a part of the store for this start alone. torchrun keeps one store over its restarts, and with it the
    addresses of processes that are gone. So the first process opens a new part and answers the others there;
    an old part gives no answer."""
    token = uuid.uuid4().hex
    if rank == 0:
        store.set("start", token)
        for other in range(1, size):
            store.set(f"{token}/{store.get(f'{token}/{other}').decode()}", "welcome")
        return dist.PrefixStore(token, store)
    until = time.monotonic() + RENDEZVOUS_TIMEOUT.total_seconds()
    while True:
        start = store.get("start").decode()
        store.set(f"{start}/{rank}", token)
        try:
            store.wait([f"{start}/{token}"], RETRY_INTERVAL)
            return dist.PrefixStore(start, store)
        except RuntimeError:  # no answer: an old one, or the first is still busy with others
            if time.monotonic() > until:
                raise
