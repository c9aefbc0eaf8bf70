"""Hygiene of a corpus: the same document twice, nearly the same, held out, or seen in a test set. All of it depends on
the text alone, not on its order, the machine or the number of workers.

Near duplicates: MinHash (Broder 1997) over runs of characters, candidates by bands (LSH), checked by the signatures.
Likeness is the share of common character runs among all of two texts (Jaccard). Bands find candidates, so that one
document is compared with few others; the whole signature then says how alike they are.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np

from ...errors import Error
from ...text.normalise import normalise
from ..counter_rng import draw_bits, mix_bits
from .contamination import batch_documents

SHINGLE_LENGTH = 5  # characters of a run; letters and digits only, in lower case
NUM_HASHES = 128  # numbers of a signature: likeness is right to ± 0.04
SHINGLE_CHUNK = 1 << 12  # runs that are hashed at once
BAND_BUFFER = 1 << 15
NON_LETTERS = re.compile(r"[\W_]+")
HASH_FACTORS = draw_bits(101, np.arange(NUM_HASHES)).astype(np.uint32) | np.uint32(1)
HASH_OFFSETS = draw_bits(102, np.arange(NUM_HASHES)).astype(np.uint32)


def hash_shingles(text: str) -> np.ndarray:
    """A 32-bit hash of each run of characters."""
    plain = NON_LETTERS.sub(" ", text.lower()).strip()
    codes = np.frombuffer(plain.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    count = max(len(codes) - SHINGLE_LENGTH + 1, 1)
    state = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(min(SHINGLE_LENGTH, len(codes))):
            state = state * np.uint64(0x100000001B3) + codes[i : i + count]
    return np.unique((mix_bits(state) >> np.uint64(32)).astype(np.uint32))


def compute_signature(text: str) -> np.ndarray:
    """(128,) smallest hashes of the text's runs, under 128 orders."""
    found = np.full(NUM_HASHES, 2**32 - 1, np.uint32)
    hashes = hash_shingles(text)
    with np.errstate(over="ignore"):
        for start in range(0, len(hashes), SHINGLE_CHUNK):
            part = hashes[start : start + SHINGLE_CHUNK, None] * HASH_FACTORS + HASH_OFFSETS
            np.minimum(found, part.min(0), out=found)
    return found


def choose_band_rows(threshold: float, max_missed: float = 0.02) -> int:
    """Rows of a band: as many as still find all but `max_missed` of the pairs that are just alike enough."""
    best = 1
    for rows in range(1, NUM_HASHES + 1):
        if (1 - threshold**rows) ** (NUM_HASHES // rows) <= max_missed:
            best = rows
    return best


class NearDuplicateIndex:
    """The documents kept so far. A new one is compared with those that share a band with it."""

    def __init__(self, threshold: float = 0.8):
        self.threshold = threshold
        self.band_rows = choose_band_rows(threshold)
        self.num_bands = NUM_HASHES // self.band_rows
        self.recent_bands: dict[int, int] = {}  # band → document
        self.sorted_bands: list[tuple[np.ndarray, np.ndarray]] = []
        self.signatures = np.empty((1024, NUM_HASHES), np.uint8)  # the low byte of each number is enough to compare
        self.num_documents = 0

    def add_if_new(self, text: str) -> bool:
        """Whether no document before is this much like it; it is kept then."""
        found = compute_signature(text)
        grid = found[: self.num_bands * self.band_rows].reshape(self.num_bands, self.band_rows).astype(np.uint64)
        keys = np.arange(self.num_bands, dtype=np.uint64)
        for column in grid.T:
            keys = mix_bits(keys ^ column)
        low = (found & np.uint32(255)).astype(np.uint8)
        others = self.find_candidates(keys)
        if others:
            same = (self.signatures[sorted(others)] == low).mean(1)
            if ((same - 1 / 256) / (1 - 1 / 256)).max() >= self.threshold:  # one in 256 is equal by chance
                return False
        self.add_signature(keys, low)
        return True

    def find_candidates(self, keys: np.ndarray) -> set[int]:
        """Documents with one of these bands."""
        listed = keys.tolist()
        found = {self.recent_bands[key] for key in listed if key in self.recent_bands}
        for known, owners in self.sorted_bands:
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            found.update(owners[at[known[at] == keys]].tolist())
        return found

    def add_signature(self, keys: np.ndarray, low: np.ndarray) -> None:
        """Remember a document; a band remembers the first document that had it."""
        if self.num_documents == len(self.signatures):
            self.signatures = np.concatenate([self.signatures, np.empty_like(self.signatures)])
        self.signatures[self.num_documents] = low
        for key in keys.tolist():
            self.recent_bands.setdefault(key, self.num_documents)
        self.num_documents += 1
        if len(self.recent_bands) >= BAND_BUFFER:
            self.merge_recent()

    def merge_recent(self) -> None:
        """Sort the newest bands into arrays, each at least twice as long as the next."""
        keys = np.fromiter(self.recent_bands.keys(), np.uint64, len(self.recent_bands))
        owners = np.fromiter(self.recent_bands.values(), np.int64, len(self.recent_bands)).astype(np.uint32)
        self.recent_bands = {}
        while self.sorted_bands and len(self.sorted_bands[-1][0]) < 2 * len(keys):
            older = self.sorted_bands.pop()
            keys, owners = np.concatenate([older[0], keys]), np.concatenate([older[1], owners])
        order = np.argsort(keys, kind="stable")
        self.sorted_bands.append((keys[order], owners[order]))


FILTER_DESCRIPTIONS = {
    "exact": "exact duplicates", "near": "near duplicates", "held": "held out", "seen_in_tests": "seen in tests",
}  # fmt: skip
HASH_BUFFER = 1 << 16  # hashes kept in a set until they are sorted into an array


@dataclass
class FilterCounts:
    """How many documents came, and how many were left out for which reason."""

    documents: int = 0
    exact: int = 0  # the same as one before
    near: int = 0  # nearly the same as one before
    held: int = 0
    seen_in_tests: int = 0

    def to_dict(self) -> dict[str, int]:
        """For keeping as JSON."""
        return asdict(self)

    def add(self, other: FilterCounts) -> None:
        """Take in another count."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        return ", ".join(
            [f"{self.documents:,} documents", *(f"{getattr(self, k):,} {w}" for k, w in FILTER_DESCRIPTIONS.items())]
        )


def hash_text(text: str, seed: int = 0, size: int = 16) -> bytes:
    """A hash of the text in NFC with single spaces; other seeds give other hashes."""
    plain = " ".join(normalise(text).split()).encode("utf-8", "replace")
    return hashlib.blake2b(plain, digest_size=size, key=seed.to_bytes(8, "little", signed=True)).digest()


class SeenTexts:
    """The texts seen so far, 16 bytes each: sorted arrays of hashes, and a small set of the newest."""

    def __init__(self) -> None:
        self.recent_hashes: set[bytes] = set()
        self.sorted_hashes: list[np.ndarray] = []  # each at least twice as long as the next

    def __len__(self) -> int:
        return len(self.recent_hashes) + sum(map(len, self.sorted_hashes))

    def add_if_new(self, texts: list[str]) -> list[bool]:
        """For each text, whether neither it nor the same one came before; it has come then."""
        keys = [hash_text(text) for text in texts]
        known = np.zeros(len(keys), bool)
        asked = np.array(keys, "S16")
        for array in self.sorted_hashes:
            known |= array[np.minimum(np.searchsorted(array, asked), len(array) - 1)] == asked
        found = []
        for key, old in zip(keys, known.tolist(), strict=True):
            found.append(not old and key not in self.recent_hashes)
            if found[-1]:
                self.recent_hashes.add(key)
        if len(self.recent_hashes) >= HASH_BUFFER:
            self.merge_recent()
        return found

    def merge_recent(self) -> None:
        """Sort the newest into the arrays; each hash is moved a logarithmic number of times."""
        array = np.sort(np.array(list(self.recent_hashes), "S16"))
        self.recent_hashes = set()
        while self.sorted_hashes and len(self.sorted_hashes[-1]) < 2 * len(array):
            array = np.sort(np.concatenate([self.sorted_hashes.pop(), array]), kind="stable")
        self.sorted_hashes.append(array)


def deduplicate(
    documents: Iterable[str], exact: bool = True, near: float | None = None, counts: FilterCounts | None = None
) -> Iterator[str]:
    """Documents without those that came before, in their order; `near` is the likeness (0 to 1) from which two
    documents are the same, 0.8 say."""
    if near is not None and not 0 < near <= 1:
        raise Error(f"likeness is between 0 and 1, got {near}", fix="take 0.8")
    counts = FilterCounts() if counts is None else counts
    seen, like = SeenTexts(), NearDuplicateIndex(near) if near else None
    for batch in batch_documents(documents):
        counts.documents += len(batch)
        new = seen.add_if_new(batch) if exact else [True] * len(batch)
        counts.exact += new.count(False)
        for document in itertools.compress(batch, new):
            if like is None or like.add_if_new(document):
                yield document
            else:
                counts.near += 1


class HoldOut:
    """Which documents are held out: each twentieth (`every`), or a `ratio`, chosen by a hash of the text, so that the
    same document is held out in any order, in any corpus and on any machine."""

    def __init__(self, every: int | None = None, ratio: float | None = None, seed: int = 0):
        if (every is None) == (ratio is None):
            raise Error("say how many documents to hold out", fix="either every=20 or ratio=0.05")
        self.ratio = 1 / every if every else float(ratio or 0)
        if not 0 < self.ratio < 1:
            raise Error(f"the share held out is between 0 and 1, got {self.ratio}", fix="every=20 or ratio=0.05")
        self.seed = seed

    def __call__(self, document: str) -> bool:
        """Whether this document is held out."""
        return int.from_bytes(hash_text(document, self.seed, 8), "little") < self.ratio * 2**64

    def mark_documents(
        self, documents: Iterable[str], counts: FilterCounts | None = None
    ) -> Iterator[tuple[str, bool]]:
        """Each document, and whether it is held out."""
        for document in documents:
            held = self(document)
            if counts is not None:
                counts.held += held
            yield document, held
