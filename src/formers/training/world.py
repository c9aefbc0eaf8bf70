"""The processes of a run: this one alone here; training/distributed.py has the ones with company."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .state import Tensors

CPU = torch.device("cpu")
T = TypeVar("T")


@dataclass
class World:
    """One process. What others would have to be asked for is answered at once."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    cut = False  # each process has a part of the weights, and of a checkpoint

    @property
    def first(self) -> bool:
        """This process writes and speaks for all."""
        return self.rank == 0

    def wrap(self, step: nn.Module) -> nn.Module:
        """The module that sees all processes' gradients."""
        return step

    @contextlib.contextmanager
    def last(self, step: nn.Module, last: bool) -> Iterator[None]:
        """Gradients are exchanged after the last batch of a step only."""
        yield

    def total(self, counts: Sequence[Mapping[str, int]]) -> dict[str, float]:
        """How many places each loss has in the whole step, over all processes."""
        names = sorted({name for count in counts for name in count})
        return dict(zip(names, self.add([sum(c.get(name, 0) for c in counts) for name in names]), strict=True))

    def add(self, values: Sequence[float]) -> list[float]:
        """Numbers summed over all processes."""
        return [float(v) for v in values]

    def norm(self, model: nn.Module, most: float) -> Tensor:
        """The norm of the gradient, which is cut to at most `most`."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), most)

    def filled(
        self, folder: Path, outline: Mapping[str, Tensors], like: Callable[[str, str], Any]
    ) -> dict[str, Tensors]:
        """What this process has of the tensors in a folder that was written in parts (`outline` has no content)."""
        from . import cut

        return cut.read(folder)

    def parted(self, whole: Tensor, like: Any = None) -> Tensor:
        """This process's part of a tensor that the first one has."""
        return whole

    def agreed(self, make: Callable[[], T]) -> T:
        """What the first process finds, told to all; what goes wrong there goes wrong for all."""
        return make()

    def everyones(self, tensors: Tensors) -> Tensors:
        """What each process has of its own, by rank."""
        return {f"{self.rank}/{name}": tensor for name, tensor in tensors.items()}

    def wait(self) -> None:
        """Until all are here."""

    def close(self) -> None:
        """There is nothing to close."""
