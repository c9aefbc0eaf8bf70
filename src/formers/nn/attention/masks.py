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

from ...errors import Error

IndexFunction = Callable[[Any, Any, Any, Any], Any]


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A token sees itself and what came before it."""
    return k <= q


class WindowMask:
    """A token sees at most `width` tokens back, itself included."""

    def __init__(self, width: int):  # no dataclass, as below
        self.width = width

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The value at each place."""
        return q - k < self.width


def build_document_mask(query: Tensor, key: Tensor) -> IndexFunction:
    """A query sees the keys of its own document only: the document numbers (N,) of both sides are compared."""

    def see(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return query[q] == key[k]

    return see


class TableMask:
    """What a table (documents, queries, keys) allows; the `memory_slots` before the first token are open."""

    depends_on_row = True

    def __init__(
        self, table: Tensor, memory_slots: int = 0
    ):  # no dataclass: torch 2.11 compiles none that holds tensors
        self.table, self.memory_slots = table, memory_slots

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The value at each place."""
        return (k < self.memory_slots) | self.table[b, q - self.memory_slots, (k - self.memory_slots).clamp(min=0)]


class MaskIntersection:
    """What every one of these masks allows."""

    # no dataclass: torch 2.11 compiles none that is made in a step
    def __init__(self, masks: tuple[IndexFunction, ...]):
        self.masks = masks

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The value at each place."""
        return functools.reduce(torch.logical_and, [mask(b, h, q, k) for mask in self.masks])


def combine_masks(*masks: IndexFunction | None) -> IndexFunction | None:
    """Masks joined; None is no restriction."""
    parts: list[IndexFunction] = []
    for mask in masks:
        parts += mask.masks if isinstance(mask, MaskIntersection) else [] if mask is None else [mask]
    return None if not parts else parts[0] if len(parts) == 1 else MaskIntersection(tuple(parts))


def build_layer_masks(pattern: Sequence[str], width: int, layers: int) -> list[IndexFunction | None]:
    """The mask of each layer: "global" is causal, "local" a causal window; the pattern repeats."""
    kinds = {"global": causal, "local": combine_masks(causal, WindowMask(width))}
    if not pattern or set(pattern) - set(kinds):
        raise Error(f"a pattern of layers is made of global and local, got {list(pattern)}", fix="for example local")
    return [kinds[pattern[i % len(pattern)]] for i in range(layers)]


def compute_alibi_slopes(heads: int) -> tuple[float, ...]:
    """ALiBi's slope of each head (Press et al. 2021, §3); for a count that is no power of two, first those of the
    lower power of two, then every other slope of the doubled set."""
    n = 2 ** math.floor(math.log2(heads))

    def powers(count: int) -> list[float]:
        return [2 ** (-8 / count * i) for i in range(1, count + 1)]

    return tuple(powers(n) + powers(2 * n)[0::2][: heads - n])


@dataclass(frozen=True)
class AlibiBias:
    """A penalty linear in the distance, one slope per head (Press et al. 2021)."""

    slopes: tuple[float, ...]

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """The value at each place."""
        return self.bind_device(k.device)(b, h, q, k)

    def bind_device(self, device: torch.device) -> IndexFunction:
        """The same with the slopes on a device already."""
        if torch.compiler.is_compiling():  # a list would be copied from the host in every step
            slopes = torch.stack([torch.full((), slope, device=device) for slope in self.slopes])
        else:
            slopes = torch.tensor(self.slopes, device=device)
        return lambda b, h, q, k: slopes[h] * (k - q)

    def compute_distance_bias(self, low: int, high: int, device: torch.device) -> Tensor:
        """(heads, high - low) the bias at each distance key - query in [low, high)."""
        return torch.tensor(self.slopes, device=device)[:, None] * torch.arange(low, high, device=device)


def build_alibi(heads: int) -> AlibiBias:
    """The penalties of so many heads."""
    return AlibiBias(compute_alibi_slopes(heads))


def evaluate_on_grid(
    index: IndexFunction, shape: tuple[int, int, int, int], device: torch.device, offset: Tensor | int = 0
) -> Tensor:
    """An index function on a whole (B, H, Q, K) grid; axes that it ignores stay 1 wide. Query i is slot offset + i."""
    rows, heads, queries, keys = shape
    b = torch.arange(rows, device=device).view(rows, 1, 1, 1)
    h = torch.arange(heads, device=device).view(1, heads, 1, 1)
    q = torch.arange(queries, device=device).view(1, 1, queries, 1) + offset
    k = torch.arange(keys, device=device).view(1, 1, 1, keys)
    return index(b, h, q, k)
