"""Which keys a query may see, and what is added to its scores.

Everything here is an index function: it takes four index tensors (batch, head, query, key) that broadcast against
each other and returns a bool (mask) or a float (bias). That is FlexAttention's signature, so the same value serves
the fused kernel, the dense path and a picture in the docs. Query and key are slots: of the packed batch, or of the
cache in decoding. Within a document only their difference matters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import Error

Index = Callable[[Any, Any, Any, Any], Any]


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A token sees itself and what came before it."""
    return k <= q


class Window:
    """A token sees at most `width` tokens back, itself included."""

    def __init__(self, width: int):  # no dataclass, as below
        self.width = width

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The value at each place."""
        return q - k < self.width


window = Window


def documents(query: Tensor, key: Tensor) -> Index:
    """A query sees the keys of its own document only: the document numbers (N,) of both sides are compared."""

    def see(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return query[q] == key[k]

    return see


class Visible:
    """What a table (documents, queries, keys) allows; the `used` slots of memory before the first token are open."""

    by_row = True

    def __init__(self, table: Tensor, used: int = 0):  # no dataclass: torch 2.11 compiles none that holds tensors
        self.table, self.used = table, used

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The value at each place."""
        return (k < self.used) | self.table[b, q - self.used, (k - self.used).clamp(min=0)]


class Both:
    """What every one of these masks allows."""

    def __init__(self, parts: tuple[Index, ...]):  # no dataclass: torch 2.11 compiles none that is made in a step
        self.parts = parts

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The value at each place."""
        return functools.reduce(torch.logical_and, [part(b, h, q, k) for part in self.parts])


def both(*masks: Index | None) -> Index | None:
    """Masks joined; None is no restriction."""
    parts: list[Index] = []
    for mask in masks:
        parts += mask.parts if isinstance(mask, Both) else [] if mask is None else [mask]
    return None if not parts else parts[0] if len(parts) == 1 else Both(tuple(parts))


def layered(pattern: Sequence[str], width: int, layers: int) -> list[Index | None]:
    """The mask of each layer: "global" is causal, "local" a causal window; the pattern repeats."""
    kinds = {"global": causal, "local": both(causal, window(width))}
    if not pattern or set(pattern) - set(kinds):
        raise Error(f"a pattern of layers is made of global and local, got {list(pattern)}", fix="for example local")
    return [kinds[pattern[i % len(pattern)]] for i in range(layers)]


def slopes(heads: int) -> tuple[float, ...]:
    """ALiBi's slope of each head (Press et al. 2021, §3); for a count that is no power of two, first those of the
    lower power of two, then every other slope of the doubled set."""
    n = 2 ** math.floor(math.log2(heads))

    def powers(count: int) -> list[float]:
        return [2 ** (-8 / count * i) for i in range(1, count + 1)]

    return tuple(powers(n) + powers(2 * n)[0::2][: heads - n])


@dataclass(frozen=True)
class Alibi:
    """A penalty linear in the distance, one slope per head (Press et al. 2021)."""

    slopes: tuple[float, ...]

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The value at each place."""
        return self.on(k.device)(b, h, q, k)

    def on(self, device: torch.device) -> Index:
        """The same with the slopes on a device already."""
        if torch.compiler.is_compiling():  # a list would be copied from the host in every step
            slopes = torch.stack([torch.full((), slope, device=device) for slope in self.slopes])
        else:
            slopes = torch.tensor(self.slopes, device=device)
        return lambda b, h, q, k: slopes[h] * (k - q)

    def row(self, low: int, high: int, device: torch.device) -> Tensor:
        """(heads, high - low) the bias at each distance key - query in [low, high)."""
        return torch.tensor(self.slopes, device=device)[:, None] * torch.arange(low, high, device=device)


def alibi(heads: int) -> Alibi:
    """The penalties of so many heads."""
    return Alibi(slopes(heads))


def evaluate(index: Index, shape: tuple[int, int, int, int], device: torch.device, offset: Tensor | int = 0) -> Tensor:
    """An index function on a whole (B, H, Q, K) grid; axes that it ignores stay 1 wide. Query i is slot offset + i."""
    rows, heads, queries, keys = shape
    b = torch.arange(rows, device=device).view(rows, 1, 1, 1)
    h = torch.arange(heads, device=device).view(1, heads, 1, 1)
    q = torch.arange(queries, device=device).view(1, 1, queries, 1) + offset
    k = torch.arange(keys, device=device).view(1, 1, 1, keys)
    return index(b, h, q, k)
