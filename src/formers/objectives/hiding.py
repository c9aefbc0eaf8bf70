"""Which tokens are hidden, and what stands in their place.

N tokens of D examples, W words; `free` (N,) says what may be hidden. Draws belong to (seed, sample, place).
"""

from __future__ import annotations

import numpy as np

from ..batch import Batch
from ..data.draws import below, bits, uniform
from ..data.plans import turns
from .ragged import edges, harmonic, owners, ranks

CHOICE, FATE, WORD, GRAM = range(1, 5)  # what a random number is for


def tokens(free: np.ndarray, starts: np.ndarray, wanted: np.ndarray, seed: int, sample: np.ndarray) -> np.ndarray:
    """(N,) bool: so many tokens of each example, each as likely as another."""
    owner = owners(starts)
    at = np.flatnonzero(free)
    mine = owner[at]
    draw = bits(seed, sample[mine], at - starts[mine], CHOICE)
    chosen = np.zeros(len(free), bool)
    chosen[at] = ranks(draw, np.bincount(mine, minlength=len(starts) - 1)) < wanted[mine]
    return chosen


def groups(free: np.ndarray, begins: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The free tokens (F,), the group of each (F,), and the example of each group (W,). A group ends where another
    begins and at every token that is not free."""
    at = np.flatnonzero(free)
    new = begins[at].copy()
    new[:1] = True
    new[1:] |= np.diff(at) > 1
    first = np.zeros(len(free), bool)
    first[starts[:-1][starts[:-1] < len(free)]] = True
    new |= first[at]
    group = np.cumsum(new) - 1
    return at, group, (np.searchsorted(starts, at[new], side="right") - 1)


def grams(
    free: np.ndarray,
    begins: np.ndarray,
    starts: np.ndarray,
    wanted: np.ndarray,
    most: int,
    seed: int,
    sample: np.ndarray,
) -> np.ndarray:
    """(N,) bool: n-grams of whole words, n ≤ most with p ∝ 1/n, until an example has as many tokens as are wanted.

    The released procedure: words are visited in random order; an n-gram begins at each, and is made shorter while it
    overflows the count; one that still overflows or meets a hidden word is skipped. All examples take a step at once.
    """
    at, group, owner = groups(free, begins, starts)
    sizes = np.bincount(owner, minlength=len(starts) - 1)  # words of each example
    reach, first, turn = edges(np.bincount(group, minlength=len(owner))), edges(sizes), turns(sizes)
    gram = np.minimum(harmonic(most, uniform(seed, sample[owner], turn, GRAM)), sizes[owner] - turn)
    order = np.empty(len(owner), np.int64)
    order[first[owner] + ranks(bits(seed, sample[owner], turn, CHOICE), sizes)] = np.arange(len(owner))
    hidden, left = np.zeros(len(owner) + most, bool), wanted.copy()
    active, step = np.flatnonzero((sizes > 0) & (left > 0)), 0
    while len(active):
        word, space = order[first[active] + step], left[active]
        n = gram[word]
        for _ in range(most - 1):
            n = n - ((n > 1) & (reach[word + n] - reach[word] > space))
        size, fits = reach[word + n] - reach[word], ~hidden[word]
        for more in range(1, most):
            fits &= ~(hidden[word + more] & (n > more))
        fits &= size <= space
        for more in range(most):
            hidden[word[fits & (n > more)] + more] = True
        left[active] -= size * fits
        step += 1
        active = active[(left[active] > 0) & (sizes[active] > step)]
    chosen = np.zeros(len(free), bool)
    chosen[at] = hidden[group]
    return chosen


def units(
    free: np.ndarray,
    begins: np.ndarray,
    starts: np.ndarray,
    rate: float,
    limit: np.ndarray,
    seed: int,
    sample: np.ndarray,
) -> np.ndarray:
    """(N,) bool: each unit whole with probability `rate`; those that would pass an example's limit are left out."""
    at, group, owner = groups(free, begins, starts)
    sizes = np.bincount(group, minlength=len(owner))
    turn = turns(np.bincount(owner, minlength=len(starts) - 1))
    hidden = uniform(seed, sample[owner], turn, CHOICE) < rate
    taken = np.cumsum(sizes * hidden)
    begin = np.searchsorted(owner, np.arange(len(starts) - 1))
    before = np.concatenate(([0], taken))[begin][owner]
    hidden &= taken - before <= limit[owner]
    chosen = np.zeros(len(free), bool)
    chosen[at] = hidden[group]
    return chosen


def hide(
    batch: Batch, chosen: np.ndarray, seed: int, mask: int, vocab: int, masked: float = 0.8, random: float = 0.1
) -> Batch:
    """Each chosen token (N,) bool becomes the mask, a random token of the whole vocabulary, or stays; the labels are
    what was there."""
    at = np.flatnonzero(chosen)
    owner = np.searchsorted(batch.starts, at, side="right") - 1
    sample, place = batch.sample[owner], at - batch.starts[owner]
    fate = uniform(seed, sample, place, FATE)
    word = below(vocab, seed, sample, place, WORD)
    ids = batch.ids.copy()
    ids[at] = np.where(fate < masked, mask, np.where(fate < masked + random, word, ids[at]))
    return batch.replace(ids=ids, chosen=at, labels=batch.ids[at])
