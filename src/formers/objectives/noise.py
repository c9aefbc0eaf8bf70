"""BART's ways to spoil a text (Lewis et al. 2019, §2.2), each for many texts at once.

A text is (ids (N,), starts (D+1,)); every draw belongs to (seed, sample, place).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from ..data.draws import below, bits, uniform
from ..data.plans import turns
from .ragged import edges, owners, ranks, spread
from .targets import picked

Text = tuple[np.ndarray, np.ndarray]
SOME, MIX, SPAN, PLACE, MASK, DELETE, INSERT, ROTATE, OFFSET, RANDOM, WORD, LENGTH = range(100, 112)
SPARE = 4  # spans that a short text may get beyond its hidden words: those of length zero


@cache
def poisson(mean: float) -> np.ndarray:
    """P(length ≤ n) for n = 0, 1, …"""
    terms = [math.exp(-mean + n * math.log(mean) - math.lgamma(n + 1)) for n in range(128)]
    reach = np.cumsum(terms)
    return reach / reach[-1]


def permuted(starts: np.ndarray, sentence: np.ndarray, share: float, seed: int, sample: np.ndarray) -> np.ndarray:
    """(N,) the token that comes to stand in each place when `share` of the sentences change places at random."""
    owner = owners(starts)
    first = sentence.copy()
    first[starts[:-1]] = True
    begin = np.flatnonzero(first)
    sizes, mine = np.diff(np.append(begin, len(sentence))), owner[begin]
    number = np.bincount(mine, minlength=len(starts) - 1)
    turn = turns(number)
    moved = ranks(bits(seed, sample[mine], turn, SOME), number) < np.ceil(share * number)[mine]
    # The moved sentences of a text keep their places as a set: the i-th of them gets the one with the i-th draw.
    some = np.flatnonzero(moved)
    count = np.bincount(mine[some], minlength=len(starts) - 1)
    rank = ranks(bits(seed, sample[mine[some]], turn[some], MIX), count)
    order = np.arange(len(begin))
    order[some[edges(count)[mine[some]] + rank]] = some
    return spread(begin[order], sizes[order])


def infilled(
    text: Text, begins: np.ndarray, share: float, mean: float, mask: int, seed: int, sample: np.ndarray
) -> Text:
    """Spans of words, their lengths Poisson, until `share` of the words are hidden; each becomes one mask, and one of
    length zero inserts a mask. Spans never overlap, so that the share is exact."""
    ids = text[0]
    rows, owner, first, word, words = counted(text, begins)
    lengths, count = span_lengths(words, share, mean, seed, sample)  # of all spans, and how many each text has
    hidden = np.bincount(np.repeat(np.arange(rows), count), lengths, rows).astype(np.int64)
    # Kept words and spans in any order: each way is as likely as another.
    items = words - hidden + count
    which = np.repeat(np.arange(rows), items)
    rank = ranks(bits(seed, sample[which], turns(items), PLACE), items)
    spans = rank < count[which]
    lengths = lengths[edges(count)[which[spans]] + rank[spans]]  # any span may get any length
    sizes = np.ones(len(spans), np.int64)
    sizes[spans] = lengths
    at = edges(sizes)[:-1][spans]  # the word at which each span begins
    kept = ~covered(at, at + lengths, int(words.sum()))[word]
    # A mask stands before the first kept token from its span's beginning on, those of one place in their order.
    place = edges(kept)[np.append(np.flatnonzero(first), len(ids))[at]]
    return np.insert(ids[kept], place, mask), edges(np.bincount(owner[kept], minlength=rows) + count)


def overlapped(
    text: Text, begins: np.ndarray, share: float, mean: float, mask: int, seed: int, sample: np.ndarray
) -> Text:
    """The same as released (fairseq): spans begin at random words and may overlap, which hides fewer; the masks of
    those of length zero go anywhere."""
    ids, starts = text
    rows, _, first, word, words = counted(text, begins)
    lengths, count = span_lengths(words, share, mean, seed, sample)
    which = np.repeat(np.arange(rows), words)
    base, total = edges(words), len(which)
    order = np.empty(total, np.int64)
    order[base[which] + ranks(bits(seed, sample[which], turns(words), PLACE), words)] = np.arange(total)
    mine, real = np.repeat(np.arange(rows), count), lengths > 0
    inserts, mine = np.bincount(mine[~real], minlength=rows), mine[real]
    at = order[base[mine] + turns(np.bincount(mine, minlength=rows))]
    end = np.minimum(at + lengths[real], base[mine + 1])
    begun = np.zeros(total, bool)
    begun[at] = True
    keep = ~covered(at + 1, end, total)[word] & (first | ~begun[word])
    left = picked(np.where(first & begun[word], mask, ids), keep, starts)
    return inserted(left, inserts, mask, seed, sample)


def counted(text: Text, begins: np.ndarray) -> tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """How many texts there are, the text of each token, whether a word begins there, its word, and the texts' words."""
    starts = text[1]
    first = begins.copy()
    first[starts[:-1]] = True
    owner, rows = owners(starts), len(starts) - 1
    return rows, owner, first, np.cumsum(first) - 1, np.bincount(owner[first], minlength=rows)


def covered(begin: np.ndarray, end: np.ndarray, total: int) -> np.ndarray:
    """(total,) bool: lies in one of the stretches begin … end - 1."""
    return np.cumsum(np.bincount(begin, minlength=total + 1) - np.bincount(end, minlength=total + 1))[:total] > 0


def span_lengths(
    words: np.ndarray, share: float, mean: float, seed: int, sample: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Poisson lengths until they sum to ⌈share · words⌉ in each text; the last one is cut to fit."""
    budget = np.ceil(share * words - 1e-9).astype(np.int64)
    most = np.where(budget > 0, budget + SPARE, 0)
    owner, turn = np.repeat(np.arange(len(words)), most), turns(most)
    draw = np.searchsorted(poisson(mean), uniform(seed, sample[owner], turn, LENGTH), side="right")
    draw[edges(most)[1:][most > 0] - 1] = len(poisson(mean)) * 2**20  # the last one takes what is left
    before = np.cumsum(draw) - draw
    before -= before[edges(most)[:-1][owner]] if len(owner) else 0
    keep = before < budget[owner]
    lengths = np.minimum(draw, budget[owner] - before)[keep]
    return lengths, np.bincount(owner[keep], minlength=len(words))


def inserted(text: Text, count: np.ndarray, mask: int, seed: int, sample: np.ndarray) -> Text:
    """So many masks at random places of each text."""
    ids, starts = text
    total = np.diff(starts) + count
    owner = np.repeat(np.arange(len(count)), total)
    new = ranks(bits(seed, sample[owner], turns(total), INSERT), total) < count[owner]
    made = np.full(len(owner), mask, np.int64)
    made[~new] = ids
    return made, edges(total)


def masked(text: Text, share: float, mask: int, seed: int, sample: np.ndarray) -> Text:
    """Each token becomes the mask with probability `share`."""
    ids, starts = text
    owner = owners(starts)
    return np.where(uniform(seed, sample[owner], turns(np.diff(starts)), MASK) < share, mask, ids), starts


def deleted(text: Text, share: float, seed: int, sample: np.ndarray) -> Text:
    """Each token is gone with probability `share`; the decoder must find where. One token always stays."""
    ids, starts = text
    owner, turn = owners(starts), turns(np.diff(starts))
    draw = uniform(seed, sample[owner], turn, DELETE)
    keep = draw >= share
    none = np.bincount(owner[keep], minlength=len(starts) - 1) == 0
    keep[starts[:-1][none]] = True
    return picked(ids, keep, starts)


def rotated(text: Text, share: float, seed: int, sample: np.ndarray) -> Text:
    """With probability `share` a text begins with a token chosen at random, and its beginning follows its end."""
    ids, starts = text
    lengths, owner = np.diff(starts), owners(starts)
    turned = uniform(seed, sample, ROTATE) < share
    offset = np.where(turned, below(np.maximum(lengths, 1), seed, sample, OFFSET), 0)
    return ids[starts[owner] + (turns(lengths) + offset[owner]) % lengths[owner]], starts


def randomised(text: Text, share: float, mask: int, vocab: int, seed: int, sample: np.ndarray) -> Text:
    """Each mask becomes a random token with probability `share`."""
    ids, starts = text
    at = np.flatnonzero(ids == mask)
    owner = np.searchsorted(starts, at, side="right") - 1
    key: tuple[object, ...] = (seed, sample[owner], at - starts[owner])
    made = ids.copy()
    made[at] = np.where(uniform(*key, RANDOM) < share, below(vocab, *key, WORD), mask)
    return made, starts
