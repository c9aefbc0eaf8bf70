"""The processes of a run: this one alone here; training/distributed/ddp.py has the ones with company."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..checkpoint.state import Tensors

CPU = torch.device("cpu")
T = TypeVar("T")


@dataclass
class ProcessGroup:
    """One process. What others would have to be asked for is answered at once."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    is_sharded = False  # each process has a part of the weights, and of a checkpoint

    @property
    def is_main(self) -> bool:
        """This process writes and speaks for all."""
        return self.rank == 0

    def wrap_step(self, step: nn.Module) -> nn.Module:
        """The module that sees all processes' gradients."""
        return step

    @contextlib.contextmanager
    def sync_gradients(self, step: nn.Module, is_last_batch: bool) -> Iterator[None]:
        """Gradients are exchanged after the last batch of a step only."""
        yield

    def sum_counts(self, counts: Sequence[Mapping[str, int]]) -> dict[str, float]:
        """How many places each loss has in the whole step, over all processes."""
        names = sorted({name for count in counts for name in count})
        return dict(
            zip(names, self.sum_over_ranks([sum(c.get(name, 0) for c in counts) for name in names]), strict=True)
        )

    def sum_over_ranks(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over all processes."""
        return [float(v) for v in values]

    def clip_grad_norm(self, model: nn.Module, max_norm: float) -> Tensor:
        """The norm of the gradient, which is cut to at most `max_norm`."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

    def load_shards(
        self, folder: Path, outline: Mapping[str, Tensors], like: Callable[[str, str], Any]
    ) -> dict[str, Tensors]:
        """What this process has of the tensors in a folder that was written in parts (`outline` has no content)."""
        from ..checkpoint import sharded

        return sharded.load_full_tensors(folder)

    def scatter_tensor(self, whole: Tensor, like: Any = None) -> Tensor:
        """This process's part of a tensor that the first one has."""
        return whole

    def broadcast_from_main(self, make: Callable[[], T]) -> T:
        """What the first process finds, told to all; what goes wrong there goes wrong for all."""
        return make()

    def gather_by_rank(self, tensors: Tensors) -> Tensors:
        """What each process has of its own, by rank."""
        return {f"{self.rank}/{name}": tensor for name, tensor in tensors.items()}

    def barrier(self) -> None:
        """Until all are here."""

    def close(self) -> None:
        """There is nothing to close."""
