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
    nothing new). `lengths` (rows,) counts the tokens seen; `used` bounds them without a look at the device.
    """

    def __init__(self, rows: int, size: int):
        super().__init__(rows, size)
        self.rows, self.size, self.used = rows, size, 0
        self.lengths: Tensor | None = None
        self.layers: dict[int, Layer] = {}
        self.given: tuple[Tensor, Tensor] | None = None  # the source's ids and starts, so that another one is noticed
        self.memory: tuple[Tensor, Layout] | None = None  # an encoder's output, and where its documents lie
        self.state: tuple[Tensor, ...] | None = None  # of a recurrent decoder after the tokens seen: (rows, ...) each

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
        if self.used + layout.longest > self.size:
            self.used = int(self.lengths.max())  # a bound may be loose: rows advance by different amounts
            if self.used + layout.longest > self.size:
                what = f"{self.used} + {layout.longest} tokens do not fit into a cache of {self.size}"
                raise Error(what, fix="make a larger cache")
        return self.lengths if self.used else None

    def advance(self, layout: Layout) -> None:
        """The batch is through: its tokens are now part of the past."""
        assert self.lengths is not None
        self.lengths = self.lengths + layout.lengths
        self.used += layout.longest

    def follow(self, parents: Tensor) -> None:
        """Row i goes on from what row parents[i] has seen; both have the same source."""
        self.lengths = None if self.lengths is None else self.lengths[parents]
        self.state = None if self.state is None else tuple(x.index_select(0, parents) for x in self.state)
        for layer in self.layers.values():
            if layer.keys is not None and layer.values is not None:
                layer.keys, layer.values = layer.keys.index_select(0, parents), layer.values.index_select(0, parents)


class Layer:
    """One layer's share of a cache: keys and values as (rows, size, heads, head_dim)."""

    def __init__(self, cache: Cache):
        self.cache = cache
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.source: tuple[Tensor, Tensor] | None = None  # of the encoder's output: (rows, longest, heads, head_dim)

    def append(self, k: Tensor, v: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Write packed (N, H, D) keys and values; get all of them as (rows, used, H, D)."""
        cache = self.cache
        if self.keys is not None and (self.keys.dtype, self.keys.device) != (k.dtype, k.device):
            what = f"the cache holds {self.keys.dtype} on {self.keys.device}, new keys are {k.dtype} on {k.device}"
            raise Error(what, fix="make a new cache after the model has moved")
        if self.keys is None or self.values is None:
            self.keys = k.new_zeros(cache.rows, cache.size, *k.shape[1:])
            self.values = v.new_zeros(cache.rows, cache.size, *v.shape[1:])
        assert cache.lengths is not None
        slot = cache.lengths[layout.document] + layout.position
        self.keys.index_put_((layout.document, slot), k.detach())
        self.values.index_put_((layout.document, slot), v.detach())
        end = cache.used + layout.longest
        return self.keys[:, :end], self.values[:, :end]
