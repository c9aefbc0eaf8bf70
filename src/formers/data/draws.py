"""Random numbers that are a function of what they are for: the same example is corrupted the same way in any batch,
worker or rank. A counter-based generator: SplitMix64's finaliser over (seed, example, place, purpose)."""

from __future__ import annotations

from typing import Any

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit numbers that scatters them (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (x + GOLDEN).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def bits(*key: Any) -> np.ndarray:
    """64 random bits for each combination of the key's numbers (which broadcast)."""
    state = np.zeros((), np.uint64)
    for part in key:
        state = mix(state ^ mix(np.asarray(part).astype(np.uint64)))
    return state


def uniform(*key: Any) -> np.ndarray:
    """Numbers in [0, 1)."""
    return (bits(*key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(n: Any, *key: Any) -> np.ndarray:
    """Whole numbers in [0, n)."""
    return np.minimum((uniform(*key) * n).astype(np.int64), np.asarray(n) - 1)


def shuffled(n: int, *key: Any) -> np.ndarray:
    """A permutation of 0 … n - 1."""
    return np.argsort(bits(*key, np.arange(n)), kind="stable")
