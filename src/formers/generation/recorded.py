"""Steps of a decoder as one CUDA graph: all of its kernels start at once, with no word from the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from ..batch import Batch


class Recorded:
    """A step for one token of each row. The first `warm` ones run as usual, then one is recorded; what the graph gives
    is overwritten by the next step. A model that cannot be recorded goes on as usual, and says so once."""

    def __init__(self, run: Callable[[Batch], Tensor], warm: int = 1):
        self.run, self.left = run, warm
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch) -> Tensor:
        """(rows, vocab)"""
        if self.graph is None and self.left:
            self.left -= 1
            return self.run(batch)
        if self.graph is None and not self.record(batch):
            self.left = 2**62
            return self.run(batch)
        assert self.graph is not None
        self.ids.copy_(batch.ids)
        self.graph.replay()
        return self.logits

    def record(self, batch: Batch) -> bool:
        """Record a step without taking it; whether that is possible."""
        self.ids = batch.ids.clone()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.logits = self.run(batch.replace(ids=self.ids))
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            said = " ".join(str(error).split())[:150]
            warnings.warn(f"steps are not recorded, and slower for it: {said}", stacklevel=2)
            return False
        self.graph = graph
        return True
