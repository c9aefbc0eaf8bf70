"""The machinery that BPE and WordPiece share: a corpus as one flat array of pieces, and a queue of pairs to merge.

Both are exact: a test holds them against trainers that count everything anew after each merge.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...config import ProgressCallback

WORD_BOUNDARY, MERGED = (
    0,
    -1,
)  # the symbol between two words, and what is left behind when a piece is merged into its neighbour
PAIR_SHIFT = 24  # a pair as one number: left << SHIFT | right
HEAP_REFILL = 20_000  # pairs that the heap is given at a time
BOUND_SLACK = 0.05  # how far above a rising score its bound is set, as a share of it


class MergeCorpus:
    """Distinct words with their counts, cut into pieces; the counts of pieces and of pairs stay exact under merging.

    Pieces are numbers, `piece_names` their strings. All words stand in one array, `symbols`, a WORD_BOUNDARY between
    two; `next_positions` and `previous_positions` point to the next piece that is still there. Every pair that ever
    occurs has a slot: `pair_counts`, `left_pieces` and `right_pieces` hold its count and its pieces, and a stretch of
    `position_pool` (`span_begins`, `span_lengths`) the places where it stood when it came up.
    """

    def __init__(self, counts: Mapping[str, int], split_word: Callable[[str], list[str]]):
        items = sorted(counts.items())
        names = sorted(
            {piece for word, _ in items for piece in split_word(word)} - {""}
        )  # "" is an edge inside of a word
        self.piece_names = ["", *names]
        self.piece_ids = {name: i for i, name in enumerate(self.piece_names)}
        flat, weights = array("i", [WORD_BOUNDARY]), array("q", [0])
        for word, count in items:
            pieces = split_word(word)
            flat.extend(map(self.piece_ids.__getitem__, pieces))
            flat.append(WORD_BOUNDARY)
            weights.extend([count] * (len(pieces) + 1))
        self.symbols = np.frombuffer(flat, np.int32).copy()
        self.weights = np.frombuffer(weights, np.int64).copy()
        places = len(self.symbols)
        self.next_positions = np.arange(1, places + 1, dtype=np.int32)
        self.previous_positions = np.arange(-1, places - 1, dtype=np.int32)
        inner = self.symbols != WORD_BOUNDARY
        self.piece_counts = np.bincount(self.symbols[inner], self.weights[inner], len(self.piece_names)).astype(
            np.int64
        )
        self.num_tokens = int(self.piece_counts.sum())  # tokens that the corpus has now
        self.piece_slots = [array("i") for _ in self.piece_names]  # the slots that a piece is part of
        self.index_pairs()

    def index_pairs(self) -> None:
        """Give each pair of the beginning its slot."""
        here = np.flatnonzero((self.symbols[:-1] != WORD_BOUNDARY) & (self.symbols[1:] != WORD_BOUNDARY)).astype(
            np.int32
        )
        keys = self.symbols[here].astype(np.int64) << PAIR_SHIFT | self.symbols[here + 1]
        order = np.argsort(keys, kind="stable")
        self.position_pool, keys = here[order], keys[order]
        self.pool_used = len(self.position_pool)
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        unique = keys[first]
        self.pair_slots = dict(zip(unique.tolist(), range(len(unique)), strict=True))
        self.extra_spans: dict[int, list[tuple[int, int]]] = {}  # further places of a pair that came up more than once
        self.span_begins = first.astype(np.int64)
        self.span_lengths = np.diff(first, append=self.pool_used).astype(np.int64)
        self.left_pieces, self.right_pieces = unique >> PAIR_SHIFT, unique & (1 << PAIR_SHIFT) - 1
        self.pair_counts = (
            np.add.reduceat(self.weights[self.position_pool], first) if len(first) else np.zeros(0, np.int64)
        )
        self.num_slots = len(unique)
        for slot, (a, b) in enumerate(zip(self.left_pieces.tolist(), self.right_pieces.tolist(), strict=True)):
            self.piece_slots[a].append(slot)
            self.piece_slots[b].append(slot)

    def merge_pair(self, slot: int, name: str) -> np.ndarray:
        """Replace a pair by one piece wherever it stands; the slots whose counts changed."""
        a, b = int(self.left_pieces[slot]), int(self.right_pieces[slot])
        piece = self.piece_ids.setdefault(name, len(self.piece_names))
        if piece == len(self.piece_names):
            self.piece_names.append(name)
            self.piece_slots.append(array("i"))
            self.piece_counts = grow_array(self.piece_counts, piece + 1)
        left = self.find_positions(slot, a, b)
        right = self.next_positions[left]
        beyond, ahead, weights = self.next_positions[right], self.previous_positions[left], self.weights[left]
        old_right, merged = self.symbols[beyond], int(weights.sum())
        self.symbols[left], self.symbols[right] = piece, MERGED
        self.next_positions[left], self.previous_positions[beyond] = beyond, left
        self.piece_counts[a] -= merged
        self.piece_counts[b] -= merged
        self.piece_counts[piece] += merged
        self.num_tokens -= merged
        # What stands before: a piece of its own, or (MERGED) the right half of another pair that was merged just now.
        own = (self.symbols[ahead] != WORD_BOUNDARY) & (self.symbols[ahead] != MERGED)
        lone, follows = old_right != WORD_BOUNDARY, self.symbols[beyond] != WORD_BOUNDARY
        before, lead = self.symbols[ahead[own]].astype(np.int64), ahead[own]
        lost = np.concatenate([before << PAIR_SHIFT | a, np.int64(b) << PAIR_SHIFT | old_right[lone].astype(np.int64)])
        lost_weights = np.concatenate([weights[own], weights[lone]])
        new = np.concatenate(
            [
                before << PAIR_SHIFT | piece,
                np.int64(piece) << PAIR_SHIFT | self.symbols[beyond[follows]].astype(np.int64),
            ]
        )
        where = np.concatenate([lead, left[follows]])
        changed = np.concatenate([self.remove_pairs(lost, lost_weights), self.add_pairs(new, where)])
        self.pair_counts[slot] = self.span_lengths[slot] = 0  # at last: in aaa the merged pair is one of the lost
        self.extra_spans.pop(slot, None)
        return changed

    def find_positions(self, slot: int, a: int, b: int) -> np.ndarray:
        """Where a pair stands now, from left to right and without overlap."""
        spans = [(int(self.span_begins[slot]), int(self.span_lengths[slot])), *self.extra_spans.get(slot, ())]
        found = [self.position_pool[begin : begin + length] for begin, length in spans]
        left = found[0] if len(found) == 1 else np.unique(np.concatenate(found))
        left = left[self.symbols[left] == a]
        left = left[self.symbols[self.next_positions[left]] == b]
        if a == b and len(left):  # in a run of the same piece every second pair
            starts = np.flatnonzero(np.append(True, self.next_positions[left[:-1]] != left[1:]))
            run = np.arange(len(left)) - np.repeat(starts, np.diff(starts, append=len(left)))
            left = left[run % 2 == 0]
        return left

    def remove_pairs(self, keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Count pairs that are no more."""
        unique, first = np.unique(keys, return_inverse=True)
        slots = np.fromiter(map(self.pair_slots.__getitem__, unique.tolist()), np.int64, len(unique))
        sums = np.zeros(len(unique), np.int64)
        np.add.at(sums, first, weights)
        self.pair_counts[slots] -= sums
        return slots

    def add_pairs(self, keys: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Count pairs that are new, and note where they stand."""
        order = np.lexsort((where, keys))
        keys, where = keys[order], where[order]
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        begin, self.pool_used = self.pool_used, self.pool_used + len(where)
        self.position_pool = grow_array(self.position_pool, self.pool_used)
        self.position_pool[begin : self.pool_used] = where
        unique, sizes = keys[first], np.diff(first, append=len(keys))
        sums = np.add.reduceat(self.weights[where], first) if len(first) else np.zeros(0, np.int64)
        slots = np.zeros(len(unique), np.int64)
        fresh = []
        for i, key in enumerate(unique.tolist()):
            slot = self.pair_slots.setdefault(key, self.num_slots)
            slots[i] = slot
            if slot == self.num_slots:
                self.num_slots += 1
                fresh.append(i)
                a, b = key >> PAIR_SHIFT, key & (1 << PAIR_SHIFT) - 1
                self.piece_slots[a].append(slot)
                self.piece_slots[b].append(slot)
            else:
                self.extra_spans.setdefault(slot, []).append((begin + int(first[i]), int(sizes[i])))
        for name in ("pair_counts", "left_pieces", "right_pieces", "span_begins", "span_lengths"):
            setattr(self, name, grow_array(getattr(self, name), self.num_slots))
        at, kept = slots[fresh], np.array(fresh, np.int64)
        self.span_begins[at], self.span_lengths[at] = begin + first[kept], sizes[kept]
        self.left_pieces[at], self.right_pieces[at] = unique[kept] >> PAIR_SHIFT, unique[kept] & (1 << PAIR_SHIFT) - 1
        self.pair_counts[slots] += sums
        return slots

    def find_slots(self, *pieces: int) -> np.ndarray:
        """The living slots that these pieces are part of."""
        found = []
        for piece in dict.fromkeys(pieces):
            slots = np.array(self.piece_slots[piece], np.int64)
            alive = slots[self.pair_counts[slots] > 0]
            if 2 * len(alive) < len(slots):
                self.piece_slots[piece] = array("i", alive.astype(np.int32).tobytes())
            found.append(alive)
        return np.concatenate(found)


PairScore = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]  # of count(ab), count(a), count(b), tokens


class PairQueue:
    """The pairs of a corpus, best first: by score, then the more frequent, then the smaller strings.

    A lazy heap. `score_bounds` are never below a pair's true score, for a score may rise only when one of its pieces
    changes, and those pairs are looked at after each merge (`is_falling`: no need to, a score only falls). The rest of
    a score, the number of tokens, only falls. Pairs whose bound is below `heap_floor` wait outside of the heap.
    """

    def __init__(self, words: MergeCorpus, score: PairScore, least: int, near: bool):
        self.corpus, self.score_pairs, self.min_count, self.is_falling = words, score, least, near
        self.score_bounds = np.zeros(0, np.float64)
        self.noted_counts = np.zeros(0, np.int64)
        self.heap: list[tuple[float, int, str, str, int]] = []
        self.heap_floor = -np.inf
        self.refill_heap()

    def score_slots(self, slots: np.ndarray) -> np.ndarray:
        """What merging each of these pairs is worth now."""
        w = self.corpus
        return self.score_pairs(
            w.pair_counts[slots],
            w.piece_counts[w.left_pieces[slots]],
            w.piece_counts[w.right_pieces[slots]],
            w.num_tokens,
        )

    def refill_heap(self) -> bool:
        """Lower the floor until the heap has something to give; False when there is nothing left."""
        w = self.corpus
        self.grow_arrays()
        alive = np.flatnonzero(w.pair_counts[: w.num_slots] >= self.min_count)
        if not len(alive):
            return False
        scores = self.score_slots(alive)
        self.score_bounds[alive], self.noted_counts[alive] = scores, w.pair_counts[alive]
        self.heap_floor = (
            np.partition(scores, len(alive) - HEAP_REFILL)[len(alive) - HEAP_REFILL]
            if len(alive) > HEAP_REFILL
            else -np.inf
        )
        self.heap = []
        self.push_slots(alive[scores >= self.heap_floor])
        heapq.heapify(self.heap)
        return True

    def grow_arrays(self) -> None:
        """Let the arrays grow with the slots; a new pair is bound by nothing yet."""
        old, size = len(self.score_bounds), self.corpus.num_slots
        if size > old:
            self.score_bounds = np.append(self.score_bounds, np.full(max(size, 2 * old) - old, -np.inf))
            self.noted_counts = np.append(self.noted_counts, np.zeros(len(self.score_bounds) - old, np.int64))

    def push_slots(self, slots: np.ndarray, heap: bool = False) -> None:
        """Entries for these pairs, by their bounds."""
        w = self.corpus
        columns = (w.left_pieces, w.right_pieces, self.score_bounds, self.noted_counts)
        rows = zip(slots.tolist(), *(column[slots].tolist() for column in columns), strict=True)
        for slot, a, b, bound, count in rows:
            entry = (-bound, -count, w.piece_names[a], w.piece_names[b], slot)
            if heap:
                heapq.heappush(self.heap, entry)
            else:
                self.heap.append(entry)

    def find_best(self) -> int | None:
        """The slot of the best pair."""
        w = self.corpus
        while True:
            if not self.heap:
                if not self.refill_heap():
                    return None
                continue
            top, count, *_, slot = self.heap[0]
            here = int(w.pair_counts[slot])
            if -top != self.score_bounds[slot] or -count != self.noted_counts[slot]:
                heapq.heappop(self.heap)  # an old entry: there is a newer one
                continue
            true = float(self.score_slots(np.array([slot]))[0]) if here >= self.min_count else -np.inf
            if true == -top and here == -count:
                return int(slot)
            self.score_bounds[slot], self.noted_counts[slot] = true, here
            if true >= self.heap_floor and here >= self.min_count:
                heapq.heapreplace(self.heap, (-true, -here, *self.heap[0][2:4], slot))
            else:
                heapq.heappop(self.heap)

    def merge_pair(self, slot: int, name: str) -> None:
        """Merge a pair, and look again at all pairs whose score may have risen."""
        w = self.corpus
        a, b = int(w.left_pieces[slot]), int(w.right_pieces[slot])
        slots = w.merge_pair(slot, name)
        self.grow_arrays()
        if not self.is_falling:
            slots = w.find_slots(a, b, w.piece_ids[name])
        slots = slots[w.pair_counts[slots] >= self.min_count]
        scores, counts = self.score_slots(slots), w.pair_counts[slots]
        old, noted = self.score_bounds[slots], self.noted_counts[slots]
        risen = (scores > old) | ((scores == old) & (counts > noted))
        slots, scores, counts, old = slots[risen], scores[risen], counts[risen], old[risen]
        # A new pair's bound is its score; one that keeps rising gets a little more, or it would come back each time.
        self.score_bounds[slots] = np.where(np.isneginf(old), scores, scores + BOUND_SLACK * np.abs(scores))
        self.noted_counts[slots] = counts
        self.push_slots(slots[self.score_bounds[slots] >= self.heap_floor], heap=True)


def grow_array(old: np.ndarray, size: int) -> np.ndarray:
    """An array with room for so many numbers, and for as many again."""
    return old if len(old) >= size else np.concatenate([old, np.zeros(max(size, 2 * len(old)) - len(old), old.dtype)])


def learn_merges(
    queue: PairQueue,
    vocab: dict[str, Any],
    size: int,
    continuation_prefix: str = "",
    tell: ProgressCallback | None = None,
) -> list[tuple[str, str]]:
    """Merge the best pair again and again until the vocabulary has its size; the merges, in their order."""
    merges, names, words = [], queue.corpus.piece_names, queue.corpus
    while len(vocab) < size and (slot := queue.find_best()) is not None:
        left, right = names[words.left_pieces[slot]], names[words.right_pieces[slot]]
        piece = left + right.removeprefix(continuation_prefix)
        queue.merge_pair(slot, piece)
        merges.append((left, right))
        vocab[piece] = None
        if tell is not None and len(merges) % 500 == 0:
            tell("merging", len(vocab), size, f"{left} + {right}")
    if tell is not None:
        tell("merging", len(vocab), len(vocab), f"{len(merges):,} merges")
    return merges
