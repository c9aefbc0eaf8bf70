"""The machinery that BPE and WordPiece share: a corpus as one flat array of pieces, and a queue of pairs to merge.

Both are exact: a test holds them against trainers that count everything anew after each merge.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..config import Tell

EDGE, GONE = 0, -1  # the symbol between two words, and what is left behind when a piece is merged into its neighbour
SHIFT = 24  # a pair as one number: left << SHIFT | right
REFILL = 20_000  # pairs that the heap is given at a time
SLACK = 0.05  # how far above a rising score its bound is set, as a share of it


class Words:
    """Distinct words with their counts, cut into pieces; the counts of pieces and of pairs stay exact under merging.

    Pieces are numbers, `names` their strings. All words stand in one array, `symbols`, an EDGE between two; `after`
    and `before` point to the next piece that is still there. Every pair that ever occurs has a slot: `both`, `left` and
    `right` hold its count and its pieces, and `pool[begin : begin + length]` the places where it stood when it came up.
    """

    def __init__(self, counts: Mapping[str, int], cut: Callable[[str], list[str]]):
        items = sorted(counts.items())
        names = sorted({piece for word, _ in items for piece in cut(word)} - {""})  # "" is an edge inside of a word
        self.names = ["", *names]
        self.number = {name: i for i, name in enumerate(self.names)}
        flat, weights = array("i", [EDGE]), array("q", [0])
        for word, count in items:
            pieces = cut(word)
            flat.extend(map(self.number.__getitem__, pieces))
            flat.append(EDGE)
            weights.extend([count] * (len(pieces) + 1))
        self.symbols = np.frombuffer(flat, np.int32).copy()
        self.weights = np.frombuffer(weights, np.int64).copy()
        places = len(self.symbols)
        self.after = np.arange(1, places + 1, dtype=np.int32)
        self.before = np.arange(-1, places - 1, dtype=np.int32)
        inner = self.symbols != EDGE
        self.pieces = np.bincount(self.symbols[inner], self.weights[inner], len(self.names)).astype(np.int64)
        self.total = int(self.pieces.sum())  # tokens that the corpus has now
        self.touched = [array("i") for _ in self.names]  # the slots that a piece is part of
        self.index()

    def index(self) -> None:
        """Give each pair of the beginning its slot."""
        here = np.flatnonzero((self.symbols[:-1] != EDGE) & (self.symbols[1:] != EDGE)).astype(np.int32)
        keys = self.symbols[here].astype(np.int64) << SHIFT | self.symbols[here + 1]
        order = np.argsort(keys, kind="stable")
        self.pool, keys = here[order], keys[order]
        self.used = len(self.pool)
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        unique = keys[first]
        self.slot = dict(zip(unique.tolist(), range(len(unique)), strict=True))
        self.more: dict[int, list[tuple[int, int]]] = {}  # further places of a pair that came up more than once
        self.begin = first.astype(np.int64)
        self.length = np.diff(first, append=self.used).astype(np.int64)
        self.left, self.right = unique >> SHIFT, unique & (1 << SHIFT) - 1
        self.both = np.add.reduceat(self.weights[self.pool], first) if len(first) else np.zeros(0, np.int64)
        self.slots = len(unique)
        for slot, (a, b) in enumerate(zip(self.left.tolist(), self.right.tolist(), strict=True)):
            self.touched[a].append(slot)
            self.touched[b].append(slot)

    def merge(self, slot: int, name: str) -> np.ndarray:
        """Replace a pair by one piece wherever it stands; the slots whose counts changed."""
        a, b = int(self.left[slot]), int(self.right[slot])
        piece = self.number.setdefault(name, len(self.names))
        if piece == len(self.names):
            self.names.append(name)
            self.touched.append(array("i"))
            self.pieces = grown(self.pieces, piece + 1)
        left = self.places(slot, a, b)
        right = self.after[left]
        beyond, ahead, weights = self.after[right], self.before[left], self.weights[left]
        old_right, merged = self.symbols[beyond], int(weights.sum())
        self.symbols[left], self.symbols[right] = piece, GONE
        self.after[left], self.before[beyond] = beyond, left
        self.pieces[a] -= merged
        self.pieces[b] -= merged
        self.pieces[piece] += merged
        self.total -= merged
        # What stands before: a piece of its own, or (GONE) the right half of another pair that was merged just now.
        own = (self.symbols[ahead] != EDGE) & (self.symbols[ahead] != GONE)
        lone, follows = old_right != EDGE, self.symbols[beyond] != EDGE
        before, lead = self.symbols[ahead[own]].astype(np.int64), ahead[own]
        lost = np.concatenate([before << SHIFT | a, np.int64(b) << SHIFT | old_right[lone].astype(np.int64)])
        lost_weights = np.concatenate([weights[own], weights[lone]])
        new = np.concatenate(
            [before << SHIFT | piece, np.int64(piece) << SHIFT | self.symbols[beyond[follows]].astype(np.int64)]
        )
        where = np.concatenate([lead, left[follows]])
        changed = np.concatenate([self.take(lost, lost_weights), self.put(new, where)])
        self.both[slot] = self.length[slot] = 0  # at last: in aaa the merged pair is one of the lost
        self.more.pop(slot, None)
        return changed

    def places(self, slot: int, a: int, b: int) -> np.ndarray:
        """Where a pair stands now, from left to right and without overlap."""
        spans = [(int(self.begin[slot]), int(self.length[slot])), *self.more.get(slot, ())]
        found = [self.pool[begin : begin + length] for begin, length in spans]
        left = found[0] if len(found) == 1 else np.unique(np.concatenate(found))
        left = left[self.symbols[left] == a]
        left = left[self.symbols[self.after[left]] == b]
        if a == b and len(left):  # in a run of the same piece every second pair
            starts = np.flatnonzero(np.append(True, self.after[left[:-1]] != left[1:]))
            run = np.arange(len(left)) - np.repeat(starts, np.diff(starts, append=len(left)))
            left = left[run % 2 == 0]
        return left

    def take(self, keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Count pairs that are no more."""
        unique, first = np.unique(keys, return_inverse=True)
        slots = np.fromiter(map(self.slot.__getitem__, unique.tolist()), np.int64, len(unique))
        sums = np.zeros(len(unique), np.int64)
        np.add.at(sums, first, weights)
        self.both[slots] -= sums
        return slots

    def put(self, keys: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Count pairs that are new, and note where they stand."""
        order = np.lexsort((where, keys))
        keys, where = keys[order], where[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        begin, self.used = self.used, self.used + len(where)
        self.pool = grown(self.pool, self.used)
        self.pool[begin : self.used] = where
        unique, sizes = keys[first], np.diff(first, append=len(keys))
        sums = np.add.reduceat(self.weights[where], first) if len(first) else np.zeros(0, np.int64)
        slots = np.zeros(len(unique), np.int64)
        fresh = []
        for i, key in enumerate(unique.tolist()):
            slot = self.slot.setdefault(key, self.slots)
            slots[i] = slot
            if slot == self.slots:
                self.slots += 1
                fresh.append(i)
                a, b = key >> SHIFT, key & (1 << SHIFT) - 1
                self.touched[a].append(slot)
                self.touched[b].append(slot)
            else:
                self.more.setdefault(slot, []).append((begin + int(first[i]), int(sizes[i])))
        for name in ("both", "left", "right", "begin", "length"):
            setattr(self, name, grown(getattr(self, name), self.slots))
        at, kept = slots[fresh], np.array(fresh, np.int64)
        self.begin[at], self.length[at] = begin + first[kept], sizes[kept]
        self.left[at], self.right[at] = unique[kept] >> SHIFT, unique[kept] & (1 << SHIFT) - 1
        self.both[slots] += sums
        return slots

    def around(self, *pieces: int) -> np.ndarray:
        """The living slots that these pieces are part of."""
        found = []
        for piece in dict.fromkeys(pieces):
            slots = np.array(self.touched[piece], np.int64)
            alive = slots[self.both[slots] > 0]
            if 2 * len(alive) < len(slots):
                self.touched[piece] = array("i", alive.astype(np.int32).tobytes())
            found.append(alive)
        return np.concatenate(found)


Score = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]  # of count(ab), count(a), count(b), tokens


class Queue:
    """The pairs of a corpus, best first: by score, then the more frequent, then the smaller strings.

    A lazy heap. `bound` is never below a pair's true score, for a score may rise only when one of its pieces changes,
    and those pairs are looked at after each merge (`near`: no need to, a score only falls). The rest of a score, the
    number of tokens, only falls. Pairs whose bound is below `floor` wait outside of the heap.
    """

    def __init__(self, words: Words, score: Score, least: int, near: bool):
        self.words, self.score, self.least, self.near = words, score, least, near
        self.bound = np.zeros(0, np.float64)
        self.noted = np.zeros(0, np.int64)
        self.heap: list[tuple[float, int, str, str, int]] = []
        self.floor = -np.inf
        self.refill()

    def scores(self, slots: np.ndarray) -> np.ndarray:
        """What merging each of these pairs is worth now."""
        w = self.words
        return self.score(w.both[slots], w.pieces[w.left[slots]], w.pieces[w.right[slots]], w.total)

    def refill(self) -> bool:
        """Lower the floor until the heap has something to give; False when there is nothing left."""
        w = self.words
        self.room()
        alive = np.flatnonzero(w.both[: w.slots] >= self.least)
        if not len(alive):
            return False
        scores = self.scores(alive)
        self.bound[alive], self.noted[alive] = scores, w.both[alive]
        self.floor = np.partition(scores, len(alive) - REFILL)[len(alive) - REFILL] if len(alive) > REFILL else -np.inf
        self.heap = []
        self.push(alive[scores >= self.floor])
        heapq.heapify(self.heap)
        return True

    def room(self) -> None:
        """Let the arrays grow with the slots; a new pair is bound by nothing yet."""
        old, size = len(self.bound), self.words.slots
        if size > old:
            self.bound = np.append(self.bound, np.full(max(size, 2 * old) - old, -np.inf))
            self.noted = np.append(self.noted, np.zeros(len(self.bound) - old, np.int64))

    def push(self, slots: np.ndarray, heap: bool = False) -> None:
        """Entries for these pairs, by their bounds."""
        w = self.words
        rows = zip(slots.tolist(), w.left[slots].tolist(), w.right[slots].tolist(), self.bound[slots].tolist(),
                   self.noted[slots].tolist(), strict=True)  # fmt: skip
        for slot, a, b, bound, count in rows:
            entry = (-bound, -count, w.names[a], w.names[b], slot)
            if heap:
                heapq.heappush(self.heap, entry)
            else:
                self.heap.append(entry)

    def best(self) -> int | None:
        """The slot of the best pair."""
        w = self.words
        while True:
            if not self.heap:
                if not self.refill():
                    return None
                continue
            top, count, *_, slot = self.heap[0]
            here = int(w.both[slot])
            if -top != self.bound[slot] or -count != self.noted[slot]:
                heapq.heappop(self.heap)  # an old entry: there is a newer one
                continue
            true = float(self.scores(np.array([slot]))[0]) if here >= self.least else -np.inf
            if true == -top and here == -count:
                return int(slot)
            self.bound[slot], self.noted[slot] = true, here
            if true >= self.floor and here >= self.least:
                heapq.heapreplace(self.heap, (-true, -here, *self.heap[0][2:4], slot))
            else:
                heapq.heappop(self.heap)

    def merge(self, slot: int, name: str) -> None:
        """Merge a pair, and look again at all pairs whose score may have risen."""
        w = self.words
        a, b = int(w.left[slot]), int(w.right[slot])
        slots = w.merge(slot, name)
        self.room()
        if not self.near:
            slots = w.around(a, b, w.number[name])
        slots = slots[w.both[slots] >= self.least]
        scores, counts = self.scores(slots), w.both[slots]
        old, noted = self.bound[slots], self.noted[slots]
        risen = (scores > old) | ((scores == old) & (counts > noted))
        slots, scores, counts, old = slots[risen], scores[risen], counts[risen], old[risen]
        # A new pair's bound is its score; one that keeps rising gets a little more, or it would come back each time.
        self.bound[slots] = np.where(np.isneginf(old), scores, scores + SLACK * np.abs(scores))
        self.noted[slots] = counts
        self.push(slots[self.bound[slots] >= self.floor], heap=True)


def grown(old: np.ndarray, size: int) -> np.ndarray:
    """An array with room for so many numbers, and for as many again."""
    return old if len(old) >= size else np.concatenate([old, np.zeros(max(size, 2 * len(old)) - len(old), old.dtype)])


def learn(
    queue: Queue, vocab: dict[str, Any], size: int, join: str = "", tell: Tell | None = None
) -> list[tuple[str, str]]:
    """Merge the best pair again and again until the vocabulary has its size; the merges, in their order."""
    merges, names, words = [], queue.words.names, queue.words
    while len(vocab) < size and (slot := queue.best()) is not None:
        left, right = names[words.left[slot]], names[words.right[slot]]
        piece = left + right.removeprefix(join)
        queue.merge(slot, piece)
        merges.append((left, right))
        vocab[piece] = None
        if tell is not None and len(merges) % 500 == 0:
            tell("merging", len(vocab), size, f"{left} + {right}")
    if tell is not None:
        tell("merging", len(vocab), len(vocab), f"{len(merges):,} merges")
    return merges
