"""The state of a decoder: keys and values, or a recurrent state. The caller owns it; a model holds parameters only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ...batch import Layout
from ...errors import Error
from .kernels.decode import is_available
from .masks import DistanceBias

SOURCE_SLOTS = 64  # the number of slots for a source is a multiple of this
STATE_FREE_FIELDS = re.compile(".*dropout|init.*|pad|bos|eos|start|memory|reuse")  # settings that no state depends on


def select_state_settings(family: str, settings: Mapping[str, object]) -> dict[str, object]:
    """Select the settings of a model that its states depend on."""
    return {"family": family, **{k: v for k, v in settings.items() if not STATE_FREE_FIELDS.fullmatch(k)}}


class CarriedState:
    """State that a caller keeps between batches: it serves one kind of model, the one that used it first."""

    model_settings: Mapping[str, object] | None = None  # that one's settings
    forward_argument = "cache"  # of a forward pass, that takes it

    def __init__(self, rows: int, size: int):
        if type(rows) is not int or type(size) is not int or rows < 1 or size < 0:
            what = f"a {type(self).__name__} of {size!r} states for {rows!r} rows is not possible"
            raise Error(what, fix="give at least one row, and a length of 0 or more")

    def bind_model(self, model: Mapping[str, object]) -> None:
        """Refuse to serve a model of another shape than the first."""
        self.model_settings = self.model_settings or model
        for name in {**self.model_settings, **model}:
            if (first := self.model_settings.get(name)) != (now := model.get(name)):
                what = f"this {type(self).__name__} is of a model with {name} {first}, not of one with {name} {now}"
                raise Error(what, fix="make one for each model with create_state(rows, size)")


class KVCache(CarriedState):
    """The past of `rows` sequences, up to `size` tokens each; every row has its own length.

    Feed a decoder one batch after the other with the same cache, one document per row (an empty one where a row has
    nothing new). `lengths` (rows,) counts the tokens seen; `used_slots` bounds them without a host sync. Where
    rows have followed others, the `slot_table` (rows, size) names the row that holds each slot: nothing is copied. With
    `is_static` a cache keeps its tensors, so that a step can be recorded; `used_slots` is then not kept."""

    def __init__(self, rows: int, size: int):
        super().__init__(rows, size)
        self.rows, self.capacity, self.used_slots, self.is_static = rows, size, 0, False
        self.lengths: Tensor | None = None
        self.written_lengths: Tensor | None = None  # (rows,) how many slots of each row have ever been written
        self.slot_table: Tensor | None = None
        self.active_rows: Tensor | None = None  # (rows,) of a static cache: 0 where a row's token does not count
        self.static_tensors: tuple[Tensor, Tensor, Tensor] | None = None  # lengths, written_lengths, active_rows
        self.layers: dict[int, LayerKV] = {}
        self.source_inputs: tuple[Tensor, Tensor] | None = None  # ids and starts, so that another source is noticed
        self.encoder_output: tuple[Tensor, Layout] | None = None  # an encoder's output, and where its documents lie
        self.recurrent_state: tuple[Tensor, ...] | None = None  # of a recurrent decoder: (rows, ...) each
        self.decode_biases: dict[tuple[int, int], Tensor] = {}  # (H, key_length) by distance, shared by all steps
        self._slot_indices: tuple[Layout, Tensor, Tensor | None] | None = None  # of the batch that is being read

    def get_decode_bias(self, bias: DistanceBias, size: int) -> Tensor:
        """Return a bias by distance (H, size) for one new token in each row, from the token itself backwards."""
        key = id(bias), size
        if key not in self.decode_biases:
            assert self.lengths is not None
            self.decode_biases = {key: bias.compute_distance_bias(1 - size, 1, self.lengths.device).flip(-1)}
        return self.decode_biases[key]

    def __getitem__(self, layer: int) -> LayerKV:
        return self.layers.setdefault(layer, LayerKV(self))

    def start_batch(self, layout: Layout) -> Tensor | None:
        """Check that a batch fits; return the number of tokens each row has seen, None if there are none yet."""
        if layout.rows != self.rows:
            what = f"the cache has {self.rows} rows, the batch {layout.rows}"
            raise Error(what, fix="make a cache with one row per sequence")
        if self.lengths is None:
            self.lengths = torch.zeros(self.rows, dtype=torch.long, device=layout.starts.device)
        if self.written_lengths is None:
            self.written_lengths = self.lengths.clone()
        if self.is_static:
            return self.lengths
        if self.used_slots + layout.longest > self.capacity:
            self.used_slots = self.longest_row  # a bound may be loose: rows advance by different amounts
            if self.used_slots + layout.longest > self.capacity:
                what = f"{self.used_slots} + {layout.longest} tokens do not fit into a cache of {self.capacity}"
                raise Error(what, fix="make a larger cache")
        return self.lengths if self.used_slots else None

    @property
    def longest_row(self) -> int:
        """The most tokens that a row has seen; this waits for the device."""
        return 0 if self.lengths is None else int(self.lengths.max())

    def count_slots(self, layout: Layout) -> int:
        """Return the slot after the last one that is in use after this batch."""
        return self.capacity if self.is_static else self.used_slots + layout.longest

    def get_slot_indices(self, layout: Layout) -> tuple[Tensor, Tensor | None]:
        """Return where in the flattened cache a batch's tokens go, (N,), and where the slots in use are, (rows · end,),
        if they are not in order. All layers share them."""
        if self._slot_indices is None or self._slot_indices[0] is not layout:
            assert self.lengths is not None
            slot = self.lengths[layout.document_ids] + layout.positions
            slot = slot.clamp(max=self.capacity - 1) if self.is_static else slot  # what does not count needs a place
            sources = None
            if self.slot_table is not None:
                self.slot_table.index_put_((layout.document_ids, slot), layout.document_ids)
                sources = self.get_source_indices(self.count_slots(layout))
            self._slot_indices = layout, layout.document_ids * self.capacity + slot, sources
        return self._slot_indices[1:]

    def get_source_indices(self, end: int) -> Tensor:
        """Return where in the flattened cache the first slots of each row are, (rows · end,)."""
        assert self.slot_table is not None
        return (self.slot_table[:, :end] * self.capacity + torch.arange(end, device=self.slot_table.device)).flatten()

    def advance(self, layout: Layout) -> None:
        """Count a batch's tokens as past, after its forward pass."""
        assert self.lengths is not None
        assert self.written_lengths is not None
        self._slot_indices = None
        if self.is_static:
            assert self.active_rows is not None
            torch.maximum(self.written_lengths, self.lengths.add_(self.active_rows), out=self.written_lengths)
            return
        self.lengths = self.lengths + layout.lengths
        self.written_lengths = torch.maximum(self.written_lengths, self.lengths)
        self.used_slots += layout.longest

    def reorder_rows(self, parents: Tensor, equal_lengths: bool = False) -> None:
        """Make row i a copy of row parents[i], which has the same source and, with `equal_lengths`, the same length."""
        if self.recurrent_state is not None:
            self.recurrent_state = tuple(x.index_select(0, parents) for x in self.recurrent_state)
        if self.lengths is None or self.written_lengths is None:
            return
        lengths = self.lengths[parents]
        if self.slot_table is None:
            self.slot_table = self.build_identity_table()
        # A row must not write where others may still look.
        if not equal_lengths and bool((lengths < self.written_lengths).any()):
            self.materialise_rows(self.slot_table[parents], lengths)
        elif self.is_static:
            self.slot_table.copy_(self.slot_table[parents])
            self.lengths.copy_(lengths)
        else:
            self.slot_table, self.lengths = self.slot_table[parents], lengths

    def materialise_rows(self, table: Tensor, lengths: Tensor) -> None:
        """Copy what each row has seen to where it belongs, so that no row reads another's slots."""
        assert self.slot_table is not None
        assert self.lengths is not None
        assert self.written_lengths is not None
        self.slot_table.copy_(table)
        sources = self.get_source_indices(self.capacity)
        for layer in self.layers.values():
            for t in (layer.keys, layer.values):
                if t is not None:
                    t.copy_(t.flatten(0, 1).index_select(0, sources).view(t.shape))
        self.slot_table.copy_(self.build_identity_table())
        self.lengths.copy_(lengths)
        self.written_lengths.copy_(lengths)

    def make_static(self) -> None:
        """Keep the same tensors from now on: changes are written into them, so that a step can be recorded."""
        assert self.lengths is not None
        assert self.written_lengths is not None
        if self.static_tensors is None:
            self.static_tensors = self.lengths.clone(), self.written_lengths.clone(), torch.ones_like(self.lengths)
        for static, new in zip(self.static_tensors, (self.lengths, self.written_lengths), strict=False):
            static.copy_(new)
        self.lengths, self.written_lengths, self.active_rows = self.static_tensors
        self.active_rows.fill_(1)
        self.is_static = True

    def clear_rows(self) -> None:
        """Forget all rows, and keep the tensors for others; not for a cache of sources or with a table."""
        self.used_slots, self.is_static, self._slot_indices = 0, False, None
        self.lengths = self.written_lengths = None

    def build_identity_table(self) -> Tensor:
        """Return the table of rows that hold their own slots."""
        assert self.lengths is not None
        return torch.arange(self.rows, device=self.lengths.device)[:, None].repeat(1, self.capacity)

    def drop_newest(self, counts: Tensor) -> None:
        """Drop the newest counts[i] tokens of each row."""
        assert self.lengths is not None
        assert self.written_lengths is not None
        if self.recurrent_state is not None:
            raise Error("a recurrent decoder cannot drop tokens", fix="make a new cache, and read again")
        if self.slot_table is not None:
            self.materialise_rows(self.slot_table.clone(), self.lengths.clone())
        self.lengths.sub_(counts)
        self.written_lengths.copy_(self.lengths)

    def copy_row_from(self, row: int, other: KVCache, other_row: int = 0) -> None:
        """Copy a row of another cache into a row; a cache with a source has no other row."""
        assert other.lengths is not None
        assert other.rows == 1 or not (other.encoder_output or other.recurrent_state)
        if self.lengths is None or self.written_lengths is None:
            self.lengths = torch.zeros(self.rows, dtype=torch.long, device=other.lengths.device)
            self.written_lengths = self.lengths.clone()
        count = int(other.lengths[other_row])
        for t in (self.lengths, self.written_lengths):
            t[row] = count
        self.used_slots = max(self.used_slots, count)
        width = 0
        if other.encoder_output is not None:
            width = self.add_source(row, *other.encoder_output)
        for name, layer in other.layers.items():
            self[name].copy_row_from(row, layer, count, width, other_row)
        if other.recurrent_state is not None:
            zeros = (t.new_zeros(self.rows, *t.shape[1:]) for t in other.recurrent_state)
            self.recurrent_state = self.recurrent_state or tuple(zeros)
            for target, new in zip(self.recurrent_state, other.recurrent_state, strict=True):
                target[row] = new[0]

    def add_source(self, row: int, encoder_output: Tensor, layout: Layout) -> int:
        """Note the length of a row's source; returns the slots that every row has for its source from now on.

        They follow the longest source of a row that is in use, in steps of 64: each step of cross attention reads
        them all."""
        assert self.lengths is not None
        known = self.encoder_output
        lengths = torch.zeros_like(self.lengths) if known is None else known[1].lengths * (self.lengths > 0)
        lengths[row] = layout.longest
        needed = -(-int(lengths.max()) // SOURCE_SLOTS) * SOURCE_SLOTS
        width = 0 if known is None else known[1].longest
        if not needed <= width < 4 * needed:  # too narrow, or much wider than the sources that are left
            width = needed
        starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        self.encoder_output = encoder_output, Layout(starts, width, int(starts[-1]))
        return width


def is_decode_step(layout: Layout, dtype: torch.dtype) -> bool:
    """Return whether there is one new token in each row, and the decode kernel reads the cache directly."""
    return layout.longest == 1 and layout.is_uniform and is_available(layout.starts.device, dtype)


class CachedKV(NamedTuple):
    """All keys and values of a layer as (rows, slots, H, D), and those of new tokens (N, H, D) that are not among them
    yet: the decode kernel writes them into the cache."""

    keys: Tensor
    values: Tensor
    unwritten: tuple[Tensor, Tensor] | None = None


class LayerKV:
    """One layer's share of a cache: keys and values as (rows, size, heads, head_dim)."""

    def __init__(self, cache: KVCache):
        self.cache = cache
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.cross_kv: tuple[Tensor, Tensor] | None = None  # of the encoder's output: (rows, longest, heads, head_dim)

    def copy_row_from(self, row: int, other: LayerKV, count: int, source_width: int, other_row: int) -> None:
        """Fill one row from a row of another layer; of a layer with a source, from the only one. Each row has
        `source_width` slots for its source."""
        size = self.cache.rows, self.cache.capacity
        if other.keys is not None and other.values is not None:
            if self.keys is None or self.values is None:
                self.keys = other.keys.new_zeros(*size, *other.keys.shape[2:])
                self.values = other.values.new_zeros(*size, *other.values.shape[2:])
            self.keys[row, :count] = other.keys[other_row, :count]
            self.values[row, :count] = other.values[other_row, :count]
        if other.cross_kv is not None:
            if self.cross_kv is None or self.cross_kv[0].shape[1] != source_width:
                a, b = (t.new_zeros(size[0], source_width, *t.shape[2:]) for t in other.cross_kv)
                for new, old in zip((a, b), self.cross_kv or (), strict=False):
                    kept = min(source_width, old.shape[1])
                    new[:, :kept] = old[:, :kept]
                self.cross_kv = a, b
            for target, new in zip(self.cross_kv, other.cross_kv, strict=True):
                target[row, : new.shape[1]] = new[0]

    def append_tokens(self, k: Tensor, v: Tensor, layout: Layout) -> CachedKV:
        """Write packed (N, H, D) keys and values; get all of them as (rows, used_slots, H, D). A kernel that looks them
        up directly gets the whole cache and what is new, which it writes itself."""
        cache = self.cache
        if self.keys is not None and (self.keys.dtype, self.keys.device) != (k.dtype, k.device):
            what = f"the cache holds {self.keys.dtype} on {self.keys.device}, new keys are {k.dtype} on {k.device}"
            raise Error(what, fix="make a new cache after the model has moved")
        if self.keys is None or self.values is None:
            self.keys = k.new_zeros(cache.rows, cache.capacity, *k.shape[1:])
            self.values = v.new_zeros(cache.rows, cache.capacity, *v.shape[1:])
        both = self.keys, self.values
        if is_decode_step(layout, k.dtype) and (cache.is_static or cache.used_slots):
            return CachedKV(*both, unwritten=(k.detach(), v.detach()))
        places, sources = cache.get_slot_indices(layout)
        for stored, new in zip(both, (k, v), strict=True):
            stored.flatten(0, 1).index_copy_(0, places, new.detach())
        end = cache.count_slots(layout)
        if sources is None:
            return CachedKV(self.keys[:, :end], self.values[:, :end])
        keys, values = (t.flatten(0, 1).index_select(0, sources).view(t.shape[0], end, *t.shape[2:]) for t in both)
        return CachedKV(keys, values)
