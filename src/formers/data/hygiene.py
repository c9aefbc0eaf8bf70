"""Hygiene of a corpus: the same document twice, nearly the same, held out, or seen in a test set. All of it depends on
the text alone, not on its order, the machine or the number of workers."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np

from ..errors import Error
from ..text.normalise import normalise
from .near import Near
from .overlap import Overlap, Watch, batches, contamination

__all__ = ["Held", "Hygiene", "Near", "Overlap", "Seen", "Watch", "contamination", "deduplicate", "digest"]

WORDS = {
    "exact": "exact duplicates", "near": "near duplicates", "held": "held out", "seen_in_tests": "seen in tests",
}  # fmt: skip
RECENT = 1 << 16  # hashes kept in a set until they are sorted into an array


@dataclass
class Hygiene:
    """How many documents came, and how many were left out for which reason."""

    documents: int = 0
    exact: int = 0  # the same as one before
    near: int = 0  # nearly the same as one before
    held: int = 0
    seen_in_tests: int = 0

    def dict(self) -> dict[str, int]:
        """For keeping as JSON."""
        return asdict(self)

    def add(self, other: Hygiene) -> None:
        """Take in another count."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        return ", ".join([f"{self.documents:,} documents", *(f"{getattr(self, k):,} {w}" for k, w in WORDS.items())])


def digest(text: str, seed: int = 0, size: int = 16) -> bytes:
    """A hash of the text in NFC with single spaces; other seeds give other hashes."""
    plain = " ".join(normalise(text).split()).encode("utf-8", "replace")
    return hashlib.blake2b(plain, digest_size=size, key=seed.to_bytes(8, "little", signed=True)).digest()


class Seen:
    """The texts seen so far, 16 bytes each: sorted arrays of hashes, and a small set of the newest."""

    def __init__(self) -> None:
        self.recent: set[bytes] = set()
        self.sorted: list[np.ndarray] = []  # each at least twice as long as the next

    def __len__(self) -> int:
        return len(self.recent) + sum(map(len, self.sorted))

    def new(self, texts: list[str]) -> list[bool]:
        """For each text, whether neither it nor the same one came before; it has come then."""
        keys = [digest(text) for text in texts]
        known = np.zeros(len(keys), bool)
        asked = np.array(keys, "S16")
        for array in self.sorted:
            known |= array[np.minimum(np.searchsorted(array, asked), len(array) - 1)] == asked
        found = []
        for key, old in zip(keys, known.tolist(), strict=True):
            found.append(not old and key not in self.recent)
            if found[-1]:
                self.recent.add(key)
        if len(self.recent) >= RECENT:
            self.settle()
        return found

    def settle(self) -> None:
        """Sort the newest into the arrays; each hash is moved a logarithmic number of times."""
        array = np.sort(np.array(list(self.recent), "S16"))
        self.recent = set()
        while self.sorted and len(self.sorted[-1]) < 2 * len(array):
            array = np.sort(np.concatenate([self.sorted.pop(), array]), kind="stable")
        self.sorted.append(array)


def deduplicate(
    documents: Iterable[str], exact: bool = True, near: float | None = None, counts: Hygiene | None = None
) -> Iterator[str]:
    """Documents without those that came before, in their order; `near` is the likeness (0 to 1) from which two
    documents are the same, 0.8 say."""
    if near is not None and not 0 < near <= 1:
        raise Error(f"likeness is between 0 and 1, got {near}", fix="take 0.8")
    counts = Hygiene() if counts is None else counts
    seen, like = Seen(), Near(near) if near else None
    for batch in batches(documents):
        counts.documents += len(batch)
        new = seen.new(batch) if exact else [True] * len(batch)
        counts.exact += new.count(False)
        for document in itertools.compress(batch, new):
            if like is None or like.new(document):
                yield document
            else:
                counts.near += 1


class Held:
    """Which documents are held out: each twentieth (`every`), or a `share`, chosen by a hash of the text, so that the
    same document is held out in any order, in any corpus and on any machine."""

    def __init__(self, every: int | None = None, share: float | None = None, seed: int = 0):
        if (every is None) == (share is None):
            raise Error("say how many documents to hold out", fix="either every=20 or share=0.05")
        self.share = 1 / every if every else float(share or 0)
        if not 0 < self.share < 1:
            raise Error(f"the share held out is between 0 and 1, got {self.share}", fix="every=20 or share=0.05")
        self.seed = seed

    def __call__(self, document: str) -> bool:
        """Whether this document is held out."""
        return int.from_bytes(digest(document, self.seed, 8), "little") < self.share * 2**64

    def split(self, documents: Iterable[str], counts: Hygiene | None = None) -> Iterator[tuple[str, bool]]:
        """Each document, and whether it is held out."""
        for document in documents:
            held = self(document)
            if counts is not None:
                counts.held += held
            yield document, held
