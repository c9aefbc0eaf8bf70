"""What a model with segment-level recurrence remembers (Dai et al. 2019, §3.2). It belongs to the caller."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..batch import Layout
from ..errors import Error
from .cache import Kept


class Memory(Kept):
    """The last `length` hidden states that each layer was given, for `rows` sequences, without their gradients.

    Feed a model one segment after the other with the same memory, one document per row (an empty one where a row has
    nothing new). It starts empty, as in the paper, or with `zeros`: `length` zero vectors that are attended like any
    other state, as transformers does it. Rows may have seen different numbers of tokens: `lengths` (rows,) counts the
    states held, which lie at the right end of the `used` slots of `states` (rows, used, dim); `even` says that all
    rows hold `used` of them. With `reuse`, only the first so many tokens of each segment are remembered (XLNet).
    """

    argument = "memory"

    def __init__(self, rows: int, length: int, *, zeros: bool = False, reuse: int | None = None):
        super().__init__(rows, length)
        if reuse is not None and reuse < 1:
            raise Error(f"a memory cannot reuse {reuse} tokens", fix="give at least 1, or None for all")
        self.reuse = reuse
        self.rows, self.length, self.used, self.even = rows, length, length if zeros else 0, True
        self.lengths: Tensor | None = None
        self.states: dict[int, Tensor] = {}
        self._new: dict[int, Tensor] = {}  # what the layers are given in this batch

    def resize(self, length: int) -> None:
        """Remember more or fewer states from now on; what no longer fits is forgotten, the oldest first."""
        if length < 0:
            raise Error(f"a memory of {length} states makes no sense", fix="give a length of 0 or more")
        self.length, self.used = length, min(self.used, length)
        self.states = {layer: x[:, x.shape[1] - self.used :] for layer, x in self.states.items()}
        self.lengths = None if self.lengths is None else self.lengths.clamp(max=length)

    def forget(self, count: int) -> None:
        """Drop the newest states of each row: they will be read again with what follows."""
        count = min(count, self.used)
        self.used -= count
        self.states = {layer: x[:, : self.used] for layer, x in self.states.items()}
        self.lengths = None if self.lengths is None else (self.lengths - count).clamp(min=0)

    def follow(self, parents: Tensor) -> None:
        """Row i goes on from what row parents[i] has seen."""
        self.lengths = None if self.lengths is None else self.lengths[parents]
        self.states = {layer: x.index_select(0, parents) for layer, x in self.states.items()}

    def begin(self, layout: Layout) -> Tensor | None:
        """Check that a batch fits; the number of states each row holds, None if there are none."""
        if layout.rows != self.rows:
            what = f"the memory has {self.rows} rows, the batch {layout.rows}"
            raise Error(what, fix="make a memory with one row per sequence")
        if self.lengths is None:
            self.lengths = torch.full((self.rows,), self.used, device=layout.starts.device)
        return self.lengths if self.used else None

    def end(self, layout: Layout) -> int:
        """How many slots there are with a batch's tokens."""
        return self.used + layout.longest

    def recall(self, layer: int, x: Tensor) -> Tensor | None:
        """What a layer was given before, (rows, used, dim), and note what it is given now, packed (N, dim)."""
        self._new[layer] = x.detach()
        if not self.used:
            return None
        held = self.states.get(layer)
        return x.new_zeros(self.rows, self.used, x.shape[-1]) if held is None else held.to(x)

    def copy(self) -> Memory:
        """Another one that holds the same states, which are never changed in place."""
        new = copy.copy(self)
        new.states, new._new = dict(self.states), {}
        return new

    def note(self, other: Memory) -> None:
        """Note what the layers gave to a copy."""
        self._new |= other._new

    def advance(self, layout: Layout) -> None:
        """The batch is through: the newest states of each row stay."""
        assert self.lengths is not None
        longest = layout.longest if self.reuse is None else min(layout.longest, self.reuse)
        lengths = layout.lengths.clamp(max=longest)
        total = self.used + longest
        kept = min(self.length, total)
        for layer, x in self._new.items():
            old, new = self.states.get(layer), layout.unpack(x)[:, :longest]
            old = x.new_zeros(self.rows, self.used, x.shape[-1]) if old is None else old.to(x)
            both = torch.cat((old, new), 1)
            if layout.uniform:  # not a view: what is forgotten is freed, and the next pass sees the same strides
                self.states[layer] = both[:, total - kept :].contiguous()
            else:  # a row with n new states ends at slot used + n
                slots = torch.arange(kept, device=x.device) + (self.used - kept + lengths)[:, None]
                self.states[layer] = both.gather(1, slots.clamp(min=0)[:, :, None].expand(-1, -1, x.shape[-1]))
        self.lengths = (self.lengths + lengths).clamp(max=self.length)
        self.even = self.even and layout.uniform
        self.used, self._new = kept, {}
