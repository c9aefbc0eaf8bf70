"""Near duplicates: MinHash (Broder 1997) over runs of characters, candidates by bands (LSH), checked by the signatures.

Likeness is the share of common character runs among all of two texts (Jaccard). Bands find candidates, so that one
document is compared with few others; the whole signature then says how alike they are.
"""

from __future__ import annotations

import re

import numpy as np

from .draws import bits, mix

RUN = 5  # characters of a run; letters and digits only, in lower case
HASHES = 128  # numbers of a signature: likeness is right to ± 0.04
STEP = 1 << 12  # runs that are hashed at once
RECENT = 1 << 15
LETTERS = re.compile(r"[\W_]+")
FACTORS = bits(101, np.arange(HASHES)).astype(np.uint32) | np.uint32(1)
OFFSETS = bits(102, np.arange(HASHES)).astype(np.uint32)


def runs(text: str) -> np.ndarray:
    """A 32-bit hash of each run of characters."""
    plain = LETTERS.sub(" ", text.lower()).strip()
    codes = np.frombuffer(plain.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    count = max(len(codes) - RUN + 1, 1)
    state = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(min(RUN, len(codes))):
            state = state * np.uint64(0x100000001B3) + codes[i : i + count]
    return np.unique((mix(state) >> np.uint64(32)).astype(np.uint32))


def signature(text: str) -> np.ndarray:
    """(128,) smallest hashes of the text's runs, under 128 orders."""
    found = np.full(HASHES, 2**32 - 1, np.uint32)
    hashes = runs(text)
    with np.errstate(over="ignore"):
        for start in range(0, len(hashes), STEP):
            part = hashes[start : start + STEP, None] * FACTORS + OFFSETS
            np.minimum(found, part.min(0), out=found)
    return found


def bands(threshold: float, missed: float = 0.02) -> int:
    """Rows of a band: as many as still find all but `missed` of the pairs that are just alike enough."""
    best = 1
    for rows in range(1, HASHES + 1):
        if (1 - threshold**rows) ** (HASHES // rows) <= missed:
            best = rows
    return best


class Near:
    """The documents kept so far. A new one is compared with those that share a band with it."""

    def __init__(self, threshold: float = 0.8):
        self.threshold = threshold
        self.rows = bands(threshold)
        self.count = HASHES // self.rows
        self.recent: dict[int, int] = {}  # band → document
        self.sorted: list[tuple[np.ndarray, np.ndarray]] = []
        self.kept = np.empty((1024, HASHES), np.uint8)  # the low byte of each number is enough to compare
        self.documents = 0

    def new(self, text: str) -> bool:
        """Whether no document before is this much like it; it is kept then."""
        found = signature(text)
        grid = found[: self.count * self.rows].reshape(self.count, self.rows).astype(np.uint64)
        keys = np.arange(self.count, dtype=np.uint64)
        for column in grid.T:
            keys = mix(keys ^ column)
        low = (found & np.uint32(255)).astype(np.uint8)
        others = self.candidates(keys)
        if others:
            same = (self.kept[sorted(others)] == low).mean(1)
            if ((same - 1 / 256) / (1 - 1 / 256)).max() >= self.threshold:  # one in 256 is equal by chance
                return False
        self.keep(keys, low)
        return True

    def candidates(self, keys: np.ndarray) -> set[int]:
        """Documents with one of these bands."""
        listed = keys.tolist()
        found = {self.recent[key] for key in listed if key in self.recent}
        for known, owners in self.sorted:
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            found.update(owners[at[known[at] == keys]].tolist())
        return found

    def keep(self, keys: np.ndarray, low: np.ndarray) -> None:
        """Remember a document; a band remembers the first document that had it."""
        if self.documents == len(self.kept):
            self.kept = np.concatenate([self.kept, np.empty_like(self.kept)])
        self.kept[self.documents] = low
        for key in keys.tolist():
            self.recent.setdefault(key, self.documents)
        self.documents += 1
        if len(self.recent) >= RECENT:
            self.settle()

    def settle(self) -> None:
        """Sort the newest bands into arrays, each at least twice as long as the next."""
        keys = np.fromiter(self.recent.keys(), np.uint64, len(self.recent))
        owners = np.fromiter(self.recent.values(), np.int64, len(self.recent)).astype(np.uint32)
        self.recent = {}
        while self.sorted and len(self.sorted[-1][0]) < 2 * len(keys):
            older = self.sorted.pop()
            keys, owners = np.concatenate([older[0], keys]), np.concatenate([older[1], owners])
        order = np.argsort(keys, kind="stable")
        self.sorted.append((keys[order], owners[order]))
