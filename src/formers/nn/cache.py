"""What a decoder has seen: keys and values, or a recurrent state. It belongs to the caller; a model holds parameters
only."""

from __future__ import annotations

import torch
from torch import Tensor

from ..batch import Layout
from ..errors import Error


class Cache:
    """The past of `rows` sequences, up to `size` tokens each; every row has its own length.

    Feed a decoder one batch after the other with the same cache, one document per row (an empty one where a row has
    nothing new). `lengths` (rows,) counts the tokens seen; `used` bounds them without a look at the device.
    """

    def __init__(self, rows: int, size: int):
        self.rows, self.size, self.used = rows, size, 0
        self.lengths: Tensor | None = None
        self.layers: dict[int, Layer] = {}
        self.given: Tensor | None = None  # the source's ids, so that another one is noticed
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
        if self.keys is None or self.values is None:
            self.keys = k.new_zeros(cache.rows, cache.size, *k.shape[1:])
            self.values = v.new_zeros(cache.rows, cache.size, *v.shape[1:])
        assert cache.lengths is not None
        slot = cache.lengths[layout.document] + layout.position
        self.keys.index_put_((layout.document, slot), k.detach())
        self.values.index_put_((layout.document, slot), v.detach())
        end = cache.used + layout.longest
        return self.keys[:, :end], self.values[:, :end]
