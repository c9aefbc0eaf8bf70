"""All ways to cut words into pieces at once: forward and backward sums, and best paths, as steps over flat arrays.

A place is a character of a word; words stand in one array with a 0 behind each. An edge is a piece that fits at a
place. Edges of one length that begin at the same depth of their words never meet, so a step needs no sorting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

DEEPEST = 32  # characters of a word; longer ones are cut, or products of probabilities would leave a float's range
SCALE = 1e4  # each character multiplies a path by this: it cancels out, and keeps products near 1


class Lattice:
    """The edges of `pieces` (tuples of character numbers, at least all single ones) in words."""

    def __init__(self, symbols: np.ndarray, weights: np.ndarray, pieces: Sequence[tuple[int, ...]], size: int):
        self.symbols, self.weights, self.size = symbols, weights, size
        self.lengths = np.array([len(p) for p in pieces])
        ends = np.flatnonzero(symbols == 0)
        self.ends = ends[ends > np.append(-1, ends[:-1]) + 1]  # an empty word has no edges
        self.starts = np.append(0, ends[:-1] + 1)[ends > np.append(-1, ends[:-1]) + 1]
        sizes = self.ends - self.starts
        self.depth = np.full(len(symbols), 255, np.uint8)
        places = np.repeat(self.starts, sizes) + ramp(sizes)
        self.depth[places] = ramp(sizes)
        self.edges = [self.by_depth(*found) for found in self.match(trie(pieces, size), places)]

    def match(self, nodes: tuple[np.ndarray, np.ndarray, np.ndarray], here: np.ndarray) -> Iterator[tuple]:
        """By length, the places where a piece fits and the piece."""
        keys, targets, piece = nodes
        here, node, length = here.astype(np.int32), np.zeros(len(here), np.int64), 0
        while len(here):
            letters = self.symbols[here + length]
            key = node * (self.size + 1) + letters
            at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            live = (keys[at] == key) & (letters != 0)
            here, node, length = here[live], targets[at[live]], length + 1
            fits = piece[node] >= 0
            yield here[fits], piece[node[fits]].astype(np.int32)

    def by_depth(self, starts: np.ndarray, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edges of one length in the order of their depth, and where each depth begins."""
        depth = self.depth[starts]
        order = np.argsort(depth, kind="stable")
        return starts[order], pieces[order], np.searchsorted(depth[order], np.arange(DEEPEST + 1))

    def keep(self, alive: np.ndarray) -> None:
        """Leave out the edges of pieces that are no more, and number the others anew."""
        number = np.cumsum(alive) - 1
        kept = []
        for starts, pieces, _ in self.edges:
            stay = alive[pieces]
            kept.append(self.by_depth(starts[stay], number[pieces[stay]].astype(np.int32)))
        self.edges, self.lengths = kept, self.lengths[alive]

    def steps(self, backwards: bool = False) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Length, places and pieces, from the beginning of all words to their end."""
        for depth in range(DEEPEST)[:: -1 if backwards else 1]:
            for length, (starts, pieces, bounds) in enumerate(self.edges, 1):
                low, high = bounds[depth], bounds[depth + 1]
                if high > low:
                    yield length, starts[low:high], pieces[low:high]

    def expect(self, chances: np.ndarray) -> tuple[np.ndarray, float]:
        """How often each piece is expected over all ways to cut the words (Kudo 2018, §3.2), and the log-likelihood."""
        chances = chances * SCALE**self.lengths
        ahead, behind = np.zeros(len(self.symbols)), np.zeros(len(self.symbols))
        ahead[self.starts], behind[self.ends] = 1, 1
        for length, starts, pieces in self.steps():
            ahead[starts + length] += ahead[starts] * chances[pieces]
        total = ahead[self.ends]
        weights = self.weights[self.ends]
        share = np.zeros(len(self.symbols))
        known = self.depth < 255
        share[known] = np.repeat(np.where(total > 0, weights / np.maximum(total, 1e-300), 0), self.ends - self.starts)
        counts = np.zeros(len(chances))
        for length, starts, pieces in self.steps(backwards=True):
            onward = behind[starts + length] * chances[pieces]
            behind[starts] += onward
            counts += np.bincount(pieces, ahead[starts] * onward * share[starts], len(chances))
        logs = np.log(np.maximum(total, 1e-300)) - (self.ends - self.starts) * np.log(SCALE)
        return counts, float((logs * weights).sum())

    def without(self, logs: np.ndarray) -> np.ndarray:
        """The best score of each word when it may not be one piece."""
        best = np.full(len(self.symbols), -np.inf)
        best[self.starts] = 0
        whole = np.zeros(len(self.symbols), np.int64)
        whole[self.starts] = self.ends - self.starts
        for length, starts, pieces in self.steps():
            part = whole[starts] != length
            starts, pieces = starts[part], pieces[part]
            best[starts + length] = np.maximum(best[starts + length], best[starts] + logs[pieces])
        return best[self.ends]


def ramp(sizes: np.ndarray) -> np.ndarray:
    """0, 1, … for each size, one after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def trie(pieces: Sequence[tuple[int, ...]], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A tree of pieces as sorted arrays: node · (size + 1) + character → node, and node → piece or -1."""
    step: dict[int, int] = {}
    piece = [-1]
    for number, letters in enumerate(pieces):
        node = 0
        for letter in letters:
            key = node * (size + 1) + letter
            node = step.setdefault(key, len(piece))
            if node == len(piece):
                piece.append(-1)
        piece[node] = number
    keys = np.fromiter(step.keys(), np.int64, len(step))
    order = np.argsort(keys)
    return keys[order], np.fromiter(step.values(), np.int64, len(step))[order], np.array(piece)
