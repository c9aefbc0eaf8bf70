"""Whole training steps as one CUDA graph."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..errors import Error

NEVER_CAPTURE = 2**62  # steps until one is recorded
CAPTURE_MODE = (
    "thread_local"  # the loader's thread goes on pinning memory meanwhile, which "global" forbids and fails on
)


class GraphedStep:
    """Whole training steps as one CUDA graph: forward, backward and update start at once, with no word from the host.

    `loss(batch)` gives what is to be lowered, `update()` changes the weights and clears the gradients; its optimizer
    must be capturable, and a learning rate that changes must be a tensor. The first steps run as usual, then one is
    recorded; from there on every batch must have the same shapes.
    """

    def __init__(self, loss: Callable[[Batch], Tensor], update: Callable[[], None], warm: int = 3):
        self.loss_function, self.update_function, self.warmup_left = loss, update, warm
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch; its loss, which the next step overwrites."""
        if self.graph is not None:
            self.copy_batch(batch)
        elif self.warmup_left > 0:
            self.warmup_left -= 1
            return self.run_on_side_stream(batch)
        else:
            self.static_batch = clone_batch(batch)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode=CAPTURE_MODE):
                self.static_loss = self.run_step(self.static_batch)
        self.graph.replay()
        return self.static_loss

    def run_step(self, batch: Batch) -> Tensor:
        """One step."""
        loss = self.loss_function(batch)
        loss.backward()
        self.update_function()
        return loss.detach()

    def run_on_side_stream(self, batch: Batch) -> Tensor:
        """One step on a stream of its own, as recording wants it."""
        stream, now = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(now)
        with torch.cuda.stream(stream):
            value = self.run_step(batch)
        now.wait_stream(stream)
        return value

    def copy_batch(self, batch: Batch) -> None:
        """Put another batch where the recorded step reads it."""
        for mine, new in zip(list_tensors(self.static_batch), list_tensors(batch), strict=True):
            if mine.shape != new.shape:
                what = f"a recorded step was given {tuple(new.shape)} in place of {tuple(mine.shape)}"
                raise Error(what, fix="give batches of one shape, or make a new GraphedStep")
            mine.copy_(new, non_blocking=True)


def clone_batch(batch: Batch) -> Batch:
    """A copy that nobody else writes to."""

    def clone_value(value: Any) -> Any:
        return clone_batch(value) if isinstance(value, Batch) else value.clone() if isinstance(value, Tensor) else value

    return Batch(**{field.name: clone_value(getattr(batch, field.name)) for field in dataclasses.fields(batch)})


def list_tensors(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, in one order."""
    found = []
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        found += list_tensors(value) if isinstance(value, Batch) else [value] if isinstance(value, Tensor) else []
    return found


class GraphedBackward:
    """The pass there and back of one batch as a CUDA graph: gradients are added up where they are, so that a step may
    have many batches, and clipping and the update are left to the trainer.

    `losses(batch)` gives the named losses as (sum, count); each is multiplied by a number that may differ each time.
    """

    def __init__(self, losses: Callable[[Batch], Any], device: torch.device):
        self.loss_function, self.device = losses, device
        self.loss_scales: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        self.graphed_step = GraphedStep(self.compute_loss, lambda: None)

    def compute_loss(self, batch: Batch) -> Tensor:
        """What is to be lowered; the sums are noted on the way."""
        found = self.loss_function(batch)
        self.sums = {name: total.detach() for name, (total, _) in found.items()}
        return torch.stack([total * self.loss_scales[name] for name, (total, _) in found.items()]).sum()

    def __call__(self, batch: Batch, shares: Mapping[str, float]) -> dict[str, Tensor]:
        """Add a batch's gradients; the summed losses, which the next batch overwrites."""
        for name, share in shares.items():
            if name not in self.loss_scales:
                self.loss_scales[name] = torch.empty((), device=self.device)
            self.loss_scales[name].fill_(share)
        try:
            self.graphed_step(batch)
        except RuntimeError as error:  # something in this model waits for the host: it cannot be recorded
            if self.graphed_step.warmup_left or isinstance(error, torch.OutOfMemoryError):
                raise
            said = " ".join(str(error).split())[:150]
            warnings.warn(f"not recorded, and a little slower for it: {said}", stacklevel=2)
            self.graphed_step.graph, self.graphed_step.warmup_left = None, NEVER_CAPTURE
            self.graphed_step(batch)
        return {name: total.clone() for name, total in self.sums.items()}
