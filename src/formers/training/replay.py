"""Whole training steps as one CUDA graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..errors import Error


class Replay:
    """Whole training steps as one CUDA graph: forward, backward and update start at once, with no word from the host.

    `loss(batch)` gives what is to be lowered, `update()` changes the weights and clears the gradients; its optimizer
    must be capturable, and a learning rate that changes must be a tensor. The first steps run as usual, then one is
    recorded; from there on every batch must have the same shapes.
    """

    def __init__(self, loss: Callable[[Batch], Tensor], update: Callable[[], None], warm: int = 3):
        self.loss, self.update, self.left = loss, update, warm
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch; its loss, which the next step overwrites."""
        if self.graph is not None:
            self.refill(batch)
        elif self.left > 0:
            self.left -= 1
            return self.apart(batch)
        else:
            self.batch = own(batch)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.value = self.run(self.batch)
        self.graph.replay()
        return self.value

    def run(self, batch: Batch) -> Tensor:
        """One step."""
        loss = self.loss(batch)
        loss.backward()
        self.update()
        return loss.detach()

    def apart(self, batch: Batch) -> Tensor:
        """One step on a stream of its own, as recording wants it."""
        stream, now = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(now)
        with torch.cuda.stream(stream):
            value = self.run(batch)
        now.wait_stream(stream)
        return value

    def refill(self, batch: Batch) -> None:
        """Put another batch where the recorded step reads it."""
        for mine, new in zip(tensors(self.batch), tensors(batch), strict=True):
            if mine.shape != new.shape:
                what = f"a recorded step was given {tuple(new.shape)} in place of {tuple(mine.shape)}"
                raise Error(what, fix="give batches of one shape, or make a new Replay")
            mine.copy_(new, non_blocking=True)


def own(batch: Batch) -> Batch:
    """A copy that nobody else writes to."""

    def copied(value: Any) -> Any:
        return own(value) if isinstance(value, Batch) else value.clone() if isinstance(value, Tensor) else value

    return Batch(**{field.name: copied(getattr(batch, field.name)) for field in dataclasses.fields(batch)})


def tensors(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, in one order."""
    found = []
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        found += tensors(value) if isinstance(value, Batch) else [value] if isinstance(value, Tensor) else []
    return found
