"""The machinery that BPE and WordPiece share: words as sequences of pieces, counts of adjacent pairs, merging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

import numpy as np

Pair = tuple[int, int]


class Words:
    """A corpus as distinct words with their counts, cut into pieces; pair counts stay exact under merging.

    Pieces are numbers, `names` their strings. Every pair that ever occurs has a slot; `both`, `left` and `right` hold
    by slot the pair's count and its two pieces, `pieces` the count of each piece, so that a score of all pairs is one
    vectorised expression.
    """

    def __init__(self, counts: Mapping[str, int], cut: Callable[[str], list[str]]):
        items = sorted(counts.items())
        cuts = [cut(word) for word, _ in items]
        self.names: list[str] = sorted({piece for word in cuts for piece in word})
        number = {name: i for i, name in enumerate(self.names)}
        self.number = number
        self.words = [[number[piece] for piece in word] for word in cuts]
        self.counts = [count for _, count in items]
        self.slot: dict[Pair, int] = {}
        self.where: list[set[int]] = []
        self.both, self.left, self.right = np.zeros(1024, np.int64), np.zeros(1024, np.int64), np.zeros(1024, np.int64)
        self.pieces = np.zeros(max(1024, 2 * len(self.names)), np.int64)
        for index, word in enumerate(self.words):
            self.add(index, word, self.counts[index])

    @property
    def total(self) -> int:
        """The number of tokens that the corpus has now."""
        return int(self.pieces.sum())

    def count(self, pair: Pair) -> int:
        """How often a pair stands side by side."""
        return int(self.both[self.slot[pair]])

    def add(self, index: int, word: list[int], count: int) -> None:
        """Count a word's pieces and pairs; a negative count takes them back."""
        for piece in word:
            self.pieces[piece] += count
        for pair in pairwise(word):
            slot = self.slot.get(pair)
            if slot is None:
                slot = self.slot[pair] = len(self.where)
                self.where.append(set())
                if slot == len(self.both):
                    self.both, self.left, self.right = (
                        np.pad(a, (0, slot)) for a in (self.both, self.left, self.right)
                    )
                self.left[slot], self.right[slot] = pair
            self.both[slot] += count
            if count > 0:
                self.where[slot].add(index)

    def merge(self, pair: Pair, name: str) -> set[Pair]:
        """Replace a pair by one piece wherever it stands; the pairs whose counts changed."""
        piece = self.number.setdefault(name, len(self.names))
        if piece == len(self.names):
            self.names.append(name)
            if piece == len(self.pieces):
                self.pieces = np.pad(self.pieces, (0, piece))
        changed: set[Pair] = set()
        slot = self.slot[pair]
        indices, self.where[slot] = sorted(self.where[slot]), set()
        for index in indices:
            old = self.words[index]
            new = joined(old, pair, piece)
            if len(new) == len(old):
                continue  # an earlier merge took the pair away
            self.add(index, old, -self.counts[index])
            self.add(index, new, self.counts[index])
            self.words[index] = new
            changed.update(pairwise(old), pairwise(new))
        return changed


def joined(word: list[int], pair: Pair, piece: int) -> list[int]:
    """A word with each occurrence of a pair replaced, from the left."""
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and word[i] == pair[0] and word[i + 1] == pair[1]:
            out.append(piece)
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


def count_words(lines: Iterable[str], split: Callable[[str], Iterable[str]]) -> Counter[str]:
    """How often each word occurs."""
    words: Counter[str] = Counter()
    for line in lines:
        words.update(split(line))
    return words
