"""Random numbers that are a function of what they are for: the same example is corrupted the same way in any batch,
worker or rank. A counter-based generator: SplitMix64's finaliser over (seed, example, place, purpose)."""

from __future__ import annotations

import numpy as np

from ..ragged_arrays import ragged_arange

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_FACTOR_1, MIX_FACTOR_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
DrawKey = int | np.integer | np.ndarray
SHUFFLE_CHUNK = 1 << 20
DRAW_BITS, POSITION_BITS = 28, 18  # bits of a sort key: a draw, and an entry's place among its example's
MIX_STEPS = ((np.uint64(30), MIX_FACTOR_1), (np.uint64(27), MIX_FACTOR_2), (np.uint64(31), None))


def mix_bits(x: np.ndarray) -> np.ndarray:
    """Scatter 64-bit numbers by a bijection (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = np.add(x, GOLDEN_GAMMA, dtype=np.uint64, casting="unsafe")
        if x.ndim == 0:
            x = (x ^ (x >> np.uint64(30))) * MIX_FACTOR_1
            x = (x ^ (x >> np.uint64(27))) * MIX_FACTOR_2
            return np.asarray(x ^ (x >> np.uint64(31)))
        y = np.empty_like(x)  # everything in place: large arrays cost their passes through memory
        for shift, factor in MIX_STEPS:
            np.right_shift(x, shift, out=y)
            np.bitwise_xor(x, y, out=x)
            if factor is not None:
                np.multiply(x, factor, out=x)
        return x


def draw_bits(*key: DrawKey) -> np.ndarray:
    """Draw 64 random bits for each combination of the key's numbers (which broadcast)."""
    state = np.zeros((), np.uint64)
    for part in key:
        state = mix_bits(state ^ mix_bits(np.asarray(part).astype(np.uint64, copy=False)))
    return state


def draw_uniform(*key: DrawKey) -> np.ndarray:
    """Return numbers in [0, 1)."""
    return (draw_bits(*key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_integers(n: int | np.ndarray, *key: DrawKey) -> np.ndarray:
    """Draw whole numbers in [0, n)."""
    return np.minimum((draw_uniform(*key) * n).astype(np.int64), np.asarray(n) - 1)


def shuffle_indices(n: int, *key: DrawKey) -> np.ndarray:
    """Return a permutation of 0 … n - 1."""
    draws = np.empty(n, np.uint64)
    # In steps, so that a hundred million need no more than their draws and their order.
    for at in range(0, n, SHUFFLE_CHUNK):
        draws[at : at + SHUFFLE_CHUNK] = draw_bits(*key, np.arange(at, min(n, at + SHUFFLE_CHUNK)))
    return np.argsort(draws)  # no two draws are equal, so any sort gives the same order


def rank_within_rows(draw: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Rank (N,) 64-bit draws of examples of (D,) sizes: (N,) the place of each among its example's, from 0. Equal in
    any batch: the key that is sorted holds the example, some bits of the draw and the place. To sort the keys
    themselves is several times faster than to ask for their order."""
    turn, owner = ragged_arange(sizes), np.repeat(np.arange(len(sizes)), sizes)
    short = draw >> np.uint64(64 - DRAW_BITS)
    if len(sizes) >> (64 - DRAW_BITS - POSITION_BITS) or (len(turn) and turn.max() >> POSITION_BITS):
        at = np.lexsort((turn, short, owner))
    else:
        key = owner.astype(np.uint64) << np.uint64(DRAW_BITS + POSITION_BITS)
        key |= short << np.uint64(POSITION_BITS) | turn.astype(np.uint64)
        key.sort()
        low = (key & np.uint64((1 << POSITION_BITS) - 1)).astype(np.int64)
        at = np.repeat(np.cumsum(sizes) - sizes, sizes) + low
    rank = np.empty(len(turn), np.int64)
    rank[at] = turn
    return rank


def draw_binomial(count: np.ndarray, *key: DrawKey) -> np.ndarray:
    """Return how many of `count` fair coins show heads: a binomial draw, 64 coins at a time."""
    heads, left, turn = np.zeros(len(count), np.int64), count.astype(np.int64), 0
    while (left > 0).any():
        take = np.clip(left, 0, 64).astype(np.uint64)
        some = draw_bits(*key, turn) >> np.where(take, np.uint64(64) - take, np.uint64(0))
        heads += np.where(take > 0, np.bitwise_count(some), 0).astype(np.int64)
        left, turn = left - 64, turn + 1
    return heads


def sample_harmonic(most: int, draw: np.ndarray) -> np.ndarray:
    """Return numbers 1 … most with p ∝ 1/n, out of numbers in [0, 1)."""
    reach = np.cumsum(1 / np.arange(1, most + 1))
    return np.minimum(np.searchsorted(reach / reach[-1], draw, side="right") + 1, most)
