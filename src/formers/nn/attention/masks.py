"""Which keys a query may see, and what is added to its scores.

Everything here is an index function: it takes four index tensors (batch, head, query, key) that broadcast against
each other and returns a bool (mask) or a float (bias). That is FlexAttention's signature, so the same value serves
the fused kernel, the dense path and a picture in the docs. Query and key are slots: of the packed batch, or of the
cache in decoding. Within a document only their difference matters."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import Error

IndexFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (batch, head, query, key) → bool or float


class RowMask:
    """Base of masks that differ between the documents of a batch; all others depend on head, query and key alone."""


class DistanceBias:
    """Base of biases that depend on the head and the distance between query and key alone."""

    def compute_distance_bias(self, low: int, high: int, device: torch.device) -> Tensor:
        """Return the bias (heads, high - low) at each distance key - query in [low, high)."""
        raise NotImplementedError


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Let a token see itself and what came before it."""
    return k <= q


class WindowMask:
    """Mask that lets a token see at most `width` tokens back, itself included."""

    def __init__(self, width: int):  # no dataclass, as below
        self.width = width

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Evaluate at each place."""
        return q - k < self.width


def build_document_mask(query: Tensor, key: Tensor) -> IndexFunction:
    """Let a query see the keys of its own document only, by the document numbers (N,) of both sides."""

    def is_visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return query[q] == key[k]

    return is_visible


class TableMask(RowMask):
    """Mask by a table (documents, queries, keys); the `memory_slots` before the first token are visible to all."""

    # no dataclass: torch 2.11 compiles none that holds tensors
    def __init__(self, table: Tensor, memory_slots: int = 0):
        self.table, self.memory_slots = table, memory_slots

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Evaluate at each place."""
        return (k < self.memory_slots) | self.table[b, q - self.memory_slots, (k - self.memory_slots).clamp(min=0)]


class MaskIntersection:
    """Mask that allows what all of `masks` allow."""

    # no dataclass: torch 2.11 compiles none that is made in a step
    def __init__(self, masks: tuple[IndexFunction, ...]):
        self.masks = masks

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Evaluate at each place."""
        return functools.reduce(torch.logical_and, [mask(b, h, q, k) for mask in self.masks])


def combine_masks(*masks: IndexFunction | None) -> IndexFunction | None:
    """Return the intersection of masks; None is no restriction."""
    parts = [part for mask in masks for part in split_mask(mask)]
    return None if not parts else parts[0] if len(parts) == 1 else MaskIntersection(tuple(parts))


def split_mask(mask: IndexFunction | None) -> tuple[IndexFunction, ...]:
    """Return the masks that a mask is the intersection of; none where everything is visible."""
    return mask.masks if isinstance(mask, MaskIntersection) else () if mask is None else (mask,)


def get_window_bounds(mask: IndexFunction | None) -> tuple[int, int] | None:
    """Return how far back and ahead a token sees, as flash kernels count it (-1: all); None for other masks."""
    left, right = -1, -1
    for part in split_mask(mask):
        if part is causal:
            right = 0
        elif isinstance(part, WindowMask):
            left = part.width - 1
        else:
            return None
    return left, right


def get_window_width(mask: IndexFunction | None) -> int:
    """Return how many tokens a causal window shows; 0 if the mask is not a causal window."""
    left, right = get_window_bounds(mask) or (-1, -1)
    return left + 1 if right == 0 and left >= 0 else 0


def build_layer_masks(pattern: Sequence[str], width: int, layers: int) -> list[IndexFunction | None]:
    """Return the mask of each layer: "global" is causal, "local" a causal window; the pattern repeats."""
    kinds = {"global": causal, "local": combine_masks(causal, WindowMask(width))}
    if not pattern or set(pattern) - set(kinds):
        raise Error(f"a pattern of layers is made of global and local, got {list(pattern)}", fix="for example local")
    return [kinds[pattern[i % len(pattern)]] for i in range(layers)]


@dataclass(frozen=True)
class AlibiBias(DistanceBias):
    """Penalty linear in the distance, one slope per head (Press et al. 2021)."""

    slopes: tuple[float, ...]

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Evaluate at each place."""
        return self.bind_device(k.device)(b, h, q, k)

    def bind_device(self, device: torch.device) -> IndexFunction:
        """Return this bias as a function with its slopes on a device."""
        if torch.compiler.is_compiling():
            # A list would be copied from the host in every step, and torch 2.11 inlines no stack of numbers into
            # FlexAttention's kernel: the slopes are computed on the device, as in build_alibi.
            heads = torch.arange(len(self.slopes), device=device)
            n = 2 ** math.floor(math.log2(len(self.slopes)))
            slopes = torch.exp2(torch.where(heads < n, -8 / n * (heads + 1), -4 / n * (2 * (heads - n) + 1)))
        else:
            slopes = torch.tensor(self.slopes, device=device)
        return lambda b, h, q, k: slopes[h] * (k - q)

    def compute_distance_bias(self, low: int, high: int, device: torch.device) -> Tensor:
        """Return the bias (heads, high - low) at each distance key - query in [low, high)."""
        return torch.tensor(self.slopes, device=device)[:, None] * torch.arange(low, high, device=device)


def build_alibi(heads: int) -> AlibiBias:
    """Build ALiBi's penalties (Press et al. 2021, §3); for a number of heads that is not a power of two, the slopes are
    those of the lower power of two, then every other one of the doubled set."""
    n = 2 ** math.floor(math.log2(heads))

    def powers(count: int) -> list[float]:
        return [2 ** (-8 / count * i) for i in range(1, count + 1)]

    return AlibiBias(tuple(powers(n) + powers(2 * n)[0::2][: heads - n]))


def evaluate_on_grid(
    index: IndexFunction, shape: tuple[int, int, int, int], device: torch.device, offset: Tensor | int = 0
) -> Tensor:
    """Evaluate on a (B, H, Q, K) grid; axes that the function ignores stay 1 wide. Query i is slot offset + i."""
    rows, heads, queries, keys = shape
    b = torch.arange(rows, device=device).view(rows, 1, 1, 1)
    h = torch.arange(heads, device=device).view(1, heads, 1, 1)
    q = torch.arange(queries, device=device).view(1, 1, queries, 1) + offset
    k = torch.arange(keys, device=device).view(1, 1, 1, keys)
    return index(b, h, q, k)
