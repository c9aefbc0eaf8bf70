"""Arithmetic on examples of different lengths that lie one after the other. N entries, D examples."""

from __future__ import annotations

import numpy as np

from ..data.counter_rng import draw_bits
from ..data.plans import Plan, cut_windows, ragged_arange
from ..data.store import Store

DRAW_BITS, POSITION_BITS = 28, 18  # bits of a sort key: a draw, and an entry's place among its example's


def compute_starts(sizes: np.ndarray) -> np.ndarray:
    """(D,) sizes → (D+1,) where each begins, and the end of all."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def compute_row_ids(starts: np.ndarray) -> np.ndarray:
    """(D+1,) → (N,) the example of each entry."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def rank_within_rows(draw: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(N,) 64-bit draws of examples of (D,) sizes → (N,) the rank of each among its example's, from 0.

    Equal in any batch: the key that is sorted holds the example, some bits of the draw and the place. To sort the keys
    themselves is several times faster than to ask for their order.
    """
    turn, owner = ragged_arange(sizes), np.repeat(np.arange(len(sizes)), sizes)
    short = draw >> np.uint64(64 - DRAW_BITS)
    if len(sizes) >> (64 - DRAW_BITS - POSITION_BITS) or (len(turn) and turn.max() >> POSITION_BITS):
        at = np.lexsort((turn, short, owner))
    else:
        key = (
            owner.astype(np.uint64) << np.uint64(DRAW_BITS + POSITION_BITS)
            | short << np.uint64(POSITION_BITS)
            | turn.astype(np.uint64)
        )
        key.sort()
        low = (key & np.uint64((1 << POSITION_BITS) - 1)).astype(np.int64)
        at = np.repeat(np.cumsum(sizes) - sizes, sizes) + low
    rank = np.empty(len(turn), np.int64)
    rank[at] = turn
    return rank


def expand_ranges(begin: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The numbers begin[i] … begin[i] + sizes[i] - 1 of all i, one after the other."""
    return np.repeat(begin, sizes) + ragged_arange(sizes)


def draw_binomial(count: np.ndarray, *key: object) -> np.ndarray:
    """How many of `count` fair coins show heads: a binomial draw, 64 coins at a time."""
    heads, left, turn = np.zeros(len(count), np.int64), count.astype(np.int64), 0
    while (left > 0).any():
        take = np.clip(left, 0, 64).astype(np.uint64)
        some = draw_bits(*key, turn) >> np.where(take, np.uint64(64) - take, np.uint64(0))
        heads += np.where(take > 0, np.bitwise_count(some), 0).astype(np.int64)
        left, turn = left - 64, turn + 1
    return heads


def sample_harmonic(most: int, draw: np.ndarray) -> np.ndarray:
    """Numbers 1 … most with p ∝ 1/n, out of numbers in [0, 1)."""
    reach = np.cumsum(1 / np.arange(1, most + 1))
    return np.minimum(np.searchsorted(reach / reach[-1], draw, side="right") + 1, most)


def find_document_bounds(store: Store, end: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Where the documents begin and end, without the store's end mark, for objectives that set marks themselves."""
    return store.starts[:-1], store.starts[1:] - find_ended_documents(store, end)


def find_ended_documents(store: Store, end: int | None) -> np.ndarray:
    """(documents,) bool: the last token is this end mark. On disk all end with the tokenizer's: no token is read."""
    begin, stop = store.starts[:-1], store.starts[1:]
    if end is None:
        return np.zeros(len(stop), bool)
    if store.directory is not None:
        return np.full(len(stop), store.tokenizer.id("eos") == end)
    return (np.asarray(store.tokens[np.maximum(stop - 1, 0)]) == end) & (stop > begin)


def plan_texts(store: Store, end: int | None, length: int, seed: int, epoch: int, across: bool = False) -> Plan:
    """Windows of `length` tokens in random order, without the store's end marks: of each document, or `across`
    documents, which are joined end to end with nothing between them. An example then has a span for each of them."""
    begin, stop = find_document_bounds(store, end)
    if not across:
        return cut_windows(begin, stop, length, seed, epoch)
    begin, stop = begin[stop > begin], stop[stop > begin]
    reach = compute_starts(stop - begin)
    whole = cut_windows(reach[:1], reach[-1:], length, seed, epoch)  # of the joined text
    first = np.searchsorted(reach, whole.begin, side="right") - 1
    count = np.searchsorted(reach, whole.end) - first  # documents that each window touches
    document, window = expand_ranges(first, count), np.repeat(np.arange(len(whole)), count)
    shift = (begin - reach[:-1])[document]
    low, high = np.maximum(whole.begin[window], reach[document]), np.minimum(whole.end[window], reach[document + 1])
    return Plan(low + shift, high + shift, compute_starts(count), whole.label)
