"""The memory of models with segment-level recurrence (Dai et al. 2019, §3.2), which the caller owns."""

from __future__ import annotations

import copy
from typing import TypedDict

import torch
from torch import Tensor

from ...batch import Layout
from ...errors import Error
from .kv_cache import CarriedState


class MemoryState(TypedDict):
    """What a checkpoint keeps of a memory."""

    used_slots: int
    has_equal_rows: bool
    lengths: Tensor | None
    hidden_states: dict[int, Tensor]


class SegmentMemory(CarriedState):
    """The last `length` hidden states that each layer was given, for `rows` sequences, without their gradients.

    Feed a model one segment after the other with the same memory, one document per row (an empty one where a row has
    nothing new). It starts empty, as in the paper, or with `zeros`: `length` zero vectors that are attended like any
    other state, as transformers does it. Rows may have seen different numbers of tokens: `lengths` (rows,) counts the
    states held, which lie at the right end of the `used_slots` of `hidden_states` (rows, used_slots, dim);
    `has_equal_rows` says that all rows hold `used_slots` of them; once they are full, they stay so. With `reuse`, only
    the first `reuse` tokens of each segment are remembered (XLNet)."""

    forward_argument = "memory"

    def __init__(self, rows: int, length: int, *, zeros: bool = False, reuse: int | None = None):
        super().__init__(rows, length)
        if reuse is not None and reuse < 1:
            raise Error(f"a memory cannot reuse {reuse} tokens", fix="give at least 1, or None for all")
        self.reuse_length = reuse
        self.rows, self.length, self.used_slots, self.has_equal_rows = rows, length, length if zeros else 0, True
        self.lengths: Tensor | None = None
        self.hidden_states: dict[int, Tensor] = {}
        self._new_states: dict[int, Tensor] = {}  # what the layers are given in this batch

    def drop_newest(self, count: int) -> None:
        """Drop the newest states of each row: they will be read again with what follows."""
        count = min(count, self.used_slots)
        self.used_slots -= count
        self.hidden_states = {layer: x[:, : self.used_slots] for layer, x in self.hidden_states.items()}
        self.lengths = None if self.lengths is None else (self.lengths - count).clamp(min=0)

    def reorder_rows(self, parents: Tensor) -> None:
        """Make row i a copy of row parents[i]."""
        self.lengths = None if self.lengths is None else self.lengths[parents]
        self.hidden_states = {layer: x.index_select(0, parents) for layer, x in self.hidden_states.items()}

    def start_batch(self, layout: Layout) -> Tensor | None:
        """Check that a batch fits; return the number of states each row holds, None if there are none."""
        if layout.rows != self.rows:
            what = f"the memory has {self.rows} rows, the batch {layout.rows}"
            raise Error(what, fix="make a memory with one row per sequence")
        if self.lengths is None:
            self.lengths = torch.full((self.rows,), self.used_slots, device=layout.starts.device)
        return self.lengths if self.used_slots else None

    @property
    def is_filling(self) -> bool:
        """True while each batch makes it longer, and with it the shapes of the next pass."""
        return self.used_slots < self.length

    def count_slots(self, layout: Layout) -> int:
        """Return how many slots there are with a batch's tokens."""
        return self.used_slots + layout.longest

    def recall_layer(self, layer: int, x: Tensor) -> Tensor | None:
        """Return a layer's earlier inputs (rows, used_slots, dim), and note its new one, packed (N, dim)."""
        self._new_states[layer] = x.detach()
        if not self.used_slots:
            return None
        states = self.hidden_states.get(layer)
        return x.new_zeros(self.rows, self.used_slots, x.shape[-1]) if states is None else states.to(x)

    def copy(self) -> SegmentMemory:
        """Return another memory with the same states, which are never changed in place."""
        new = copy.copy(self)
        new.hidden_states, new._new_states = dict(self.hidden_states), {}
        return new

    def undo_where(self, undo: Tensor, before: SegmentMemory) -> None:
        """Go back to a copy made before the last batch if `undo`, a flag on the device, is set: the host need not know.
        Both must be full: they have the same shapes, and no batch changes `has_equal_rows` any more. States keep the
        dtype of the last batch, in which the next one would read them anyway."""
        assert self.lengths is not None
        assert before.lengths is not None
        assert not before.is_filling
        self.lengths = torch.where(undo, before.lengths, self.lengths)
        old = before.hidden_states
        self.hidden_states = {
            layer: torch.where(undo, old[layer].to(x.dtype) if layer in old else torch.zeros_like(x), x)
            for layer, x in self.hidden_states.items()
        }

    def get_state(self) -> MemoryState:
        """Return what a checkpoint keeps of this memory."""
        return {
            "used_slots": self.used_slots, "has_equal_rows": self.has_equal_rows, "lengths": self.lengths,
            "hidden_states": self.hidden_states,
        }  # fmt: skip

    def restore_state(self, state: MemoryState) -> None:
        """Restore the state that get_state returned of a memory of this size."""
        self.used_slots, self.has_equal_rows = state["used_slots"], state["has_equal_rows"]
        self.lengths, self.hidden_states = state["lengths"], state["hidden_states"]
        # What is no tensor may be of another group of streams, which has read more or less than this one.
        for states in self.hidden_states.values():
            self.used_slots = states.shape[1]
        if self.lengths is not None:
            self.has_equal_rows &= bool((self.lengths == self.used_slots).all())

    def merge_new_states(self, other: SegmentMemory) -> None:
        """Take the new states that the layers gave to a copy."""
        self._new_states |= other._new_states

    def advance(self, layout: Layout) -> None:
        """Keep the newest states of each row, after a batch."""
        assert self.lengths is not None
        longest = layout.longest if self.reuse_length is None else min(layout.longest, self.reuse_length)
        lengths = layout.lengths.clamp(max=longest)
        total = self.used_slots + longest
        kept = min(self.length, total)
        for layer, x in self._new_states.items():
            old, new = self.hidden_states.get(layer), layout.unpack(x)[:, :longest]
            old = x.new_zeros(self.rows, self.used_slots, x.shape[-1]) if old is None else old.to(x)
            both = torch.cat((old, new), 1)
            if layout.is_uniform:  # not a view: what is forgotten is freed, and the next pass sees the same strides
                self.hidden_states[layer] = both[:, total - kept :].contiguous()
            else:  # a row with n new states ends at slot used_slots + n
                slots = torch.arange(kept, device=x.device) + (self.used_slots - kept + lengths)[:, None]
                self.hidden_states[layer] = both.gather(1, slots.clamp(min=0)[:, :, None].expand(-1, -1, x.shape[-1]))
        self.lengths = (self.lengths + lengths).clamp(max=self.length)
        is_full = self.used_slots == self.length  # each row then drops as many states as it takes in
        self.has_equal_rows = self.has_equal_rows and (layout.is_uniform or is_full)
        self.used_slots, self._new_states = kept, {}
