"""Hidden states of the segments before this one. The memory belongs to the caller; a model holds parameters only."""

from __future__ import annotations

import torch
from torch import Tensor

from ..batch import Layout
from ..errors import Error


class Memory:
    """The last `length` hidden states of each layer, without a way back for gradients (Dai et al. 2019, §3.2).

    Feed a model one segment after the other with the same memory, one document per row. Of each segment the first
    `reuse` tokens are remembered (None: all), and `length` None forgets nothing. Rows may differ in length: they are
    kept as (rows, used, dim), aligned at the end, and `lengths` (rows,) says how much of a row is real.
    """

    def __init__(self, length: int | None, reuse: int | None = None):
        for name, value in (("length", length), ("reuse", reuse)):
            if value is not None and value < 1:
                raise Error(f"{name} of a memory must be at least 1, got {value}", fix="None means all of them")
        self.length, self.reuse, self.used = length, reuse, 0
        self.lengths: Tensor | None = None
        self.layers: dict[int, Tensor] = {}
        self.fresh: dict[int, Tensor] = {}  # of the pass under way: it counts only when that is through

    def begin(self, layout: Layout) -> Tensor | None:
        """Check that a batch fits; how many states each row has, None if there are none yet."""
        if self.lengths is None:
            self.lengths = torch.zeros(layout.rows, dtype=torch.long, device=layout.starts.device)
        if layout.rows != self.lengths.shape[0]:
            what = f"the memory has {self.lengths.shape[0]} rows, the batch {layout.rows}"
            raise Error(what, fix="give the next segment of the same rows, or begin a new memory")
        return self.lengths if self.used else None

    def join(self, layer: int, x: Tensor, layout: Layout) -> Tensor:
        """What a layer looks at: remembered states, then the new ones (N, dim), as (rows, used + longest, dim)."""
        grid = layout.unpack(x)
        whole = torch.cat((self.layers[layer].to(grid.dtype), grid), 1) if self.used else grid
        kept = self.after(layout)
        at = self.used + self.taken(layout) - kept  # (rows,) where the kept states begin; before 0 there is nothing
        slots = (at[:, None] + torch.arange(kept, device=x.device)).clamp(min=0)
        self.fresh[layer] = whole.detach().take_along_dim(slots[..., None], 1)
        return whole

    def taken(self, layout: Layout) -> Tensor:
        """(rows,) how many of a segment's tokens are remembered."""
        return layout.lengths if self.reuse is None else layout.lengths.clamp(max=self.reuse)

    def after(self, layout: Layout) -> int:
        """How many slots the memory has after a segment."""
        total = self.used + (layout.longest if self.reuse is None else min(self.reuse, layout.longest))
        return total if self.length is None else min(total, self.length)

    def advance(self, layout: Layout) -> None:
        """The batch is through: its states are now part of the past."""
        assert self.lengths is not None
        kept = self.after(layout)
        self.lengths = (self.lengths + self.taken(layout)).clamp(max=kept)
        self.layers, self.fresh, self.used = self.fresh, {}, kept
