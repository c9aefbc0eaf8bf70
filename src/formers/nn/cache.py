"""What a decoder has seen: keys and values, or a recurrent state. It belongs to the caller; a model holds parameters
only."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..batch import Layout
from ..errors import Error
from .decode import ready

FREE = re.compile(".*dropout|init.*|pad|bos|eos|start|memory|reuse")  # settings that no state depends on


def shape(family: str, config: Any) -> dict[str, Any]:
    """What of a model its states depend on."""
    names = (f.name for f in dataclasses.fields(config) if not FREE.fullmatch(f.name))
    return {"family": family} | {name: getattr(config, name) for name in names}


class Kept:
    """What a caller keeps between batches: it serves one kind of model, the one that used it first."""

    model: Mapping[str, Any] | None = None  # that one's settings
    argument = "cache"  # of a forward pass, that takes it

    def __init__(self, rows: int, size: int):
        if type(rows) is not int or type(size) is not int or rows < 1 or size < 0:
            what = f"a {type(self).__name__.lower()} of {size!r} states for {rows!r} rows makes no sense"
            raise Error(what, fix="give at least one row, and a length of 0 or more")

    def bind(self, model: Mapping[str, Any]) -> None:
        """Refuse to serve a model of another shape than the first."""
        self.model = self.model or model
        for name in {**self.model, **model}:
            if (first := self.model.get(name)) != (now := model.get(name)):
                what = f"this {type(self).__name__} is of a model with {name} {first}, not of one with {name} {now}"
                raise Error(what, fix="make one for each model with remember(rows, size)")


class Cache(Kept):
    """The past of `rows` sequences, up to `size` tokens each; every row has its own length.

    Feed a decoder one batch after the other with the same cache, one document per row (an empty one where a row has
    nothing new). `lengths` (rows,) counts the tokens seen; `used` bounds them without a look at the device. Where rows
    have followed others, the `table` (rows, size) names the row that holds each slot: nothing is copied. A `fixed`
    cache keeps its tensors, so that a step can be recorded; `used` is then not kept.
    """

    def __init__(self, rows: int, size: int):
        super().__init__(rows, size)
        self.rows, self.size, self.used, self.fixed = rows, size, 0, False
        self.lengths: Tensor | None = None
        self.reach: Tensor | None = None  # (rows,) how many slots of each row have ever been written
        self.table: Tensor | None = None
        self.live: Tensor | None = None  # (rows,) of a fixed cache: 0 where a row reads a token that does not count
        self.anchors: tuple[Tensor, Tensor, Tensor] | None = None  # lengths, reach and live of a fixed cache
        self.layers: dict[int, Layer] = {}
        self.given: tuple[Tensor, Tensor] | None = None  # the source's ids and starts, so that another one is noticed
        self.memory: tuple[Tensor, Layout] | None = None  # an encoder's output, and where its documents lie
        self.state: tuple[Tensor, ...] | None = None  # of a recurrent decoder after the tokens seen: (rows, ...) each
        self.rows_behind: dict[Any, Tensor] = {}  # (H, span) a bias by distance, which all steps share
        self.fresh: tuple[Tensor, Tensor] | None = None  # a layer's new keys and values, which the kernel is to write
        self._places: tuple[Layout, Tensor, Tensor | None] | None = None  # of the batch that is being read

    def __getitem__(self, layer: int) -> Layer:
        return self.layers.setdefault(layer, Layer(self))

    def begin(self, layout: Layout) -> Tensor | None:
        """Check that a batch fits; the number of tokens each row has seen, None if there are none yet."""
        if layout.rows != self.rows:
            raise Error(
                f"the cache has {self.rows} rows, the batch {layout.rows}", fix="make a cache with one row per sequence"
            )
        if self.lengths is None:
            self.lengths = torch.zeros(self.rows, dtype=torch.long, device=layout.starts.device)
        if self.reach is None:
            self.reach = self.lengths.clone()
        if self.fixed:
            return self.lengths
        if self.used + layout.longest > self.size:
            self.used = self.longest  # a bound may be loose: rows advance by different amounts
            if self.used + layout.longest > self.size:
                what = f"{self.used} + {layout.longest} tokens do not fit into a cache of {self.size}"
                raise Error(what, fix="make a larger cache")
        return self.lengths if self.used else None

    @property
    def longest(self) -> int:
        """How many tokens a row has seen at most; this looks at the device."""
        return 0 if self.lengths is None else int(self.lengths.max())

    def end(self, layout: Layout) -> int:
        """The slot behind the last one that is in use after this batch."""
        return self.size if self.fixed else self.used + layout.longest

    def places(self, layout: Layout) -> tuple[Tensor, Tensor | None]:
        """Where in the flattened cache a batch's tokens go, (N,), and where the slots in use are found, (rows · end,),
        if that is not in order. All layers share them."""
        if self._places is None or self._places[0] is not layout:
            assert self.lengths is not None
            slot = self.lengths[layout.document] + layout.position
            slot = slot.clamp(max=self.size - 1) if self.fixed else slot  # a token that does not count needs a place
            found = None
            if self.table is not None:
                self.table.index_put_((layout.document, slot), layout.document)
                found = self.sources(self.end(layout))
            self._places = layout, layout.document * self.size + slot, found
        return self._places[1:]

    def sources(self, end: int) -> Tensor:
        """(rows · end,) where in the flattened cache the first slots of each row are found."""
        assert self.table is not None
        return (self.table[:, :end] * self.size + torch.arange(end, device=self.table.device)).flatten()

    def advance(self, layout: Layout) -> None:
        """The batch is through: its tokens are now part of the past."""
        assert self.lengths is not None
        assert self.reach is not None
        self._places = None
        if self.fixed:
            assert self.live is not None
            torch.maximum(self.reach, self.lengths.add_(self.live), out=self.reach)
            return
        self.lengths = self.lengths + layout.lengths
        self.reach = torch.maximum(self.reach, self.lengths)
        self.used += layout.longest

    def follow(self, parents: Tensor, level: bool = False) -> None:
        """Row i goes on from what row parents[i] has seen; both have the same source, and if they are `level` the same
        length, with nothing forgotten."""
        self.state = None if self.state is None else tuple(x.index_select(0, parents) for x in self.state)
        if self.lengths is None or self.reach is None:
            return
        lengths = self.lengths[parents]
        if self.table is None:
            self.table = self.own()
        if not level and bool((lengths < self.reach).any()):  # a row would write where others may still look
            self.keep(self.table[parents], lengths)
        elif self.fixed:
            self.table.copy_(self.table[parents])
            self.lengths.copy_(lengths)
        else:
            self.table, self.lengths = self.table[parents], lengths

    def keep(self, table: Tensor, lengths: Tensor) -> None:
        """Copy what each row has seen to where it belongs, so that no row looks at another's slots."""
        assert self.table is not None
        assert self.lengths is not None
        assert self.reach is not None
        self.table.copy_(table)
        found = self.sources(self.size)
        for layer in self.layers.values():
            for t in (layer.keys, layer.values):
                if t is not None:
                    t.copy_(t.flatten(0, 1).index_select(0, found).view(t.shape))
        self.table.copy_(self.own())
        self.lengths.copy_(lengths)
        self.reach.copy_(lengths)

    def fix(self) -> None:
        """From now on keep the tensors: what changes is written into them. They are the same each time."""
        assert self.lengths is not None
        assert self.reach is not None
        if self.anchors is None:
            self.anchors = self.lengths.clone(), self.reach.clone(), torch.ones_like(self.lengths)
        for mine, new in zip(self.anchors, (self.lengths, self.reach), strict=False):
            mine.copy_(new)
        self.lengths, self.reach, self.live = self.anchors
        self.live.fill_(1)
        self.fixed = True

    def empty(self) -> None:
        """Forget all rows, and keep the tensors for others; not for a cache of sources or with a table."""
        self.used, self.fixed, self.fresh, self._places = 0, False, None, None
        self.lengths = self.reach = None

    def own(self) -> Tensor:
        """The table of rows that hold their own slots."""
        assert self.lengths is not None
        return torch.arange(self.rows, device=self.lengths.device)[:, None].repeat(1, self.size)

    def forget(self, counts: Tensor) -> None:
        """Drop the newest counts[i] tokens of each row."""
        assert self.lengths is not None
        assert self.reach is not None
        if self.state is not None:
            raise Error("a recurrent decoder cannot forget", fix="make a new cache, and read again")
        if self.table is not None:
            self.keep(self.table.clone(), self.lengths.clone())
        self.lengths.sub_(counts)
        self.reach.copy_(self.lengths)

    def take(self, row: int, other: Cache, room: int) -> None:
        """A row goes on from what the only row of another cache has seen; its source has at most `room` tokens."""
        assert other.lengths is not None
        if self.lengths is None or self.reach is None:
            self.lengths = torch.zeros(self.rows, dtype=torch.long, device=other.lengths.device)
            self.reach = self.lengths.clone()
        count = int(other.lengths)
        for t in (self.lengths, self.reach):
            t[row] = count
        self.used = max(self.used, count)
        for name, layer in other.layers.items():
            self[name].take(row, layer, count, room)
        if other.state is not None:
            self.state = self.state or tuple(t.new_zeros(self.rows, *t.shape[1:]) for t in other.state)
            for mine, new in zip(self.state, other.state, strict=True):
                mine[row] = new[0]
        if other.memory is not None:
            lengths = torch.zeros_like(self.lengths) if self.memory is None else self.memory[1].lengths.clone()
            lengths[row] = other.memory[1].longest
            starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
            self.memory = other.memory[0], Layout(starts, room, int(starts[-1]))


def direct(layout: Layout) -> bool:
    """One new token in each row, where a kernel looks into the cache by itself (nn/decode.py)."""
    return layout.longest == 1 and layout.uniform and ready(layout.starts.device)


class Layer:
    """One layer's share of a cache: keys and values as (rows, size, heads, head_dim)."""

    def __init__(self, cache: Cache):
        self.cache = cache
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.source: tuple[Tensor, Tensor] | None = None  # of the encoder's output: (rows, longest, heads, head_dim)

    def take(self, row: int, other: Layer, count: int, room: int) -> None:
        """What one row has of a layer, from the only row of another."""
        size = self.cache.rows, self.cache.size
        if other.keys is not None and other.values is not None:
            if self.keys is None or self.values is None:
                self.keys = other.keys.new_zeros(*size, *other.keys.shape[2:])
                self.values = other.values.new_zeros(*size, *other.values.shape[2:])
            self.keys[row, :count], self.values[row, :count] = other.keys[0, :count], other.values[0, :count]
        if other.source is not None:
            if self.source is None:
                a, b = (t.new_zeros(size[0], room, *t.shape[2:]) for t in other.source)
                self.source = a, b
            for mine, new in zip(self.source, other.source, strict=True):
                mine[row, : new.shape[1]] = new[0]

    def append(self, k: Tensor, v: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Write packed (N, H, D) keys and values; get all of them as (rows, used, H, D). A kernel that looks them up by
        itself gets the whole cache and writes what is new itself."""
        cache = self.cache
        if self.keys is not None and (self.keys.dtype, self.keys.device) != (k.dtype, k.device):
            what = f"the cache holds {self.keys.dtype} on {self.keys.device}, new keys are {k.dtype} on {k.device}"
            raise Error(what, fix="make a new cache after the model has moved")
        if self.keys is None or self.values is None:
            self.keys = k.new_zeros(cache.rows, cache.size, *k.shape[1:])
            self.values = v.new_zeros(cache.rows, cache.size, *v.shape[1:])
        both = self.keys, self.values
        if direct(layout) and (cache.fixed or cache.used):
            cache.fresh = k.detach(), v.detach()
            return both
        places, found = cache.places(layout)
        for held, new in zip(both, (k, v), strict=True):
            held.flatten(0, 1).index_copy_(0, places, new.detach())
        end = cache.end(layout)
        if found is None:
            return self.keys[:, :end], self.values[:, :end]
        keys, values = (t.flatten(0, 1).index_select(0, found).view(t.shape[0], end, *t.shape[2:]) for t in both)
        return keys, values
