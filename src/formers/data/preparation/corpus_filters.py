"""Hygiene of a corpus: documents that are there twice, nearly the same, held out, or seen in a test set. All of it
depends on the text alone, not on its order, the machine or the number of workers.

Near duplicates: MinHash (Broder 1997) over runs of characters, candidates by bands (LSH), checked by the signatures.
Likeness is the share of common character runs among all of two texts (Jaccard). Bands find candidates, so that one
document is compared with few others; the whole signature then says how alike they are.

Contamination: test examples that share a long run of words, or of Korean characters, with a training document (the
check of GPT-3's appendix C: 13 words).
"""

from __future__ import annotations

import collections
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ...config import count_noun
from ...errors import Error
from ...text.normalise import normalise
from ..counter_rng import draw_bits, mix_bits

SHINGLE_LENGTH = 5  # characters of a run; letters and digits only, in lower case
NUM_HASHES = 128  # numbers of a signature: likeness is right to ± 0.04
SHINGLE_CHUNK = 1 << 12  # runs that are hashed at once
BAND_BUFFER = 1 << 15
NON_LETTERS = re.compile(r"[\W_]+")
HASH_FACTORS = draw_bits(101, np.arange(NUM_HASHES)).astype(np.uint32) | np.uint32(1)
HASH_OFFSETS = draw_bits(102, np.arange(NUM_HASHES)).astype(np.uint32)
FILTER_DESCRIPTIONS = {
    "exact": "exact duplicate", "near": "near duplicate", "seen_in_tests": "document(s) found in a test",
}  # fmt: skip
HASH_BUFFER = 1 << 16  # hashes kept in a set until they are sorted into an array
TestTexts = Mapping[str, Iterable[str]] | Iterable[str]  # the texts of several tests by name, or of one
WORD_PATTERN = re.compile(r"[^\W_]+")
SYLLABIC_PATTERN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff가-힣]")  # scripts in which words are no good measure
# Shorter examples say nothing; those up to the full length must be found whole.
MIN_LENGTHS = {"words": 8, "characters": 20}
HASH_BASE = 0x9E3779B97F4A7C15  # odd, so that it can be undone
MAX_REPORTED = 1000  # examples that are named
MAX_CACHED_WORDS = 1 << 18  # words whose hashes are kept
BATCH_DOCUMENTS = 1 << 10  # documents that are looked at together,
BATCH_CHARACTERS = 1 << 20  # or characters


@dataclass
class FilterCounts:
    """How many documents came, and how many were left out for which reason."""

    documents: int = 0
    exact: int = 0  # the same as one before
    near: int = 0  # nearly the same as one before
    seen_in_tests: int = 0

    def __str__(self) -> str:
        counts = vars(self)  # dynamic: FILTER_DESCRIPTIONS names them
        left_out = (count_noun(counts[name], words) for name, words in FILTER_DESCRIPTIONS.items())
        return ", ".join([count_noun(self.documents, "document"), *left_out])


def batch_documents(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield some documents at a time."""
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if len(batch) == BATCH_DOCUMENTS or size > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def hash_shingles(text: str) -> np.ndarray:
    """Return a 32-bit hash of each run of characters."""
    plain = NON_LETTERS.sub(" ", text.lower()).strip()
    codes = np.frombuffer(plain.encode("utf-32-le", "replace"), np.uint32).astype(np.uint64)
    count = max(len(codes) - SHINGLE_LENGTH + 1, 1)
    state = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(min(SHINGLE_LENGTH, len(codes))):
            state = state * np.uint64(0x100000001B3) + codes[i : i + count]
    return np.unique((mix_bits(state) >> np.uint64(32)).astype(np.uint32))


def compute_signature(text: str) -> np.ndarray:
    """Compute (128,) smallest hashes of the text's runs, under 128 orders."""
    signature = np.full(NUM_HASHES, 2**32 - 1, np.uint32)
    hashes = hash_shingles(text)
    with np.errstate(over="ignore"):
        for start in range(0, len(hashes), SHINGLE_CHUNK):
            part = hashes[start : start + SHINGLE_CHUNK, None] * HASH_FACTORS + HASH_OFFSETS
            np.minimum(signature, part.min(0), out=signature)
    return signature


def choose_band_rows(threshold: float, max_missed: float = 0.02) -> int:
    """Choose the rows of a band: as many as still find all but `max_missed` of the pairs that are just alike enough."""
    sizes = range(1, NUM_HASHES + 1)
    return max((n for n in sizes if (1 - threshold**n) ** (NUM_HASHES // n) <= max_missed), default=1)


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
        """Keep a text unless a document before is this much like it; return whether it is new."""
        signature = compute_signature(text)
        grid = signature[: self.num_bands * self.band_rows].reshape(self.num_bands, self.band_rows).astype(np.uint64)
        keys = np.arange(self.num_bands, dtype=np.uint64)
        for column in grid.T:
            keys = mix_bits(keys ^ column)
        low = (signature & np.uint32(255)).astype(np.uint8)
        if others := self.find_candidates(keys):
            same = (self.signatures[sorted(others)] == low).mean(1)
            if ((same - 1 / 256) / (1 - 1 / 256)).max() >= self.threshold:  # one in 256 is equal by chance
                return False
        self.add_signature(keys, low)
        return True

    def find_candidates(self, keys: np.ndarray) -> set[int]:
        """Return documents with one of these bands."""
        candidates = {self.recent_bands[key] for key in keys.tolist() if key in self.recent_bands}
        for known, owners in self.sorted_bands:
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            candidates.update(owners[at[known[at] == keys]].tolist())
        return candidates

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


def hash_text(text: str, seed: int = 0, size: int = 16) -> bytes:
    """Return a hash of the text in NFC with single spaces; other seeds give other hashes."""
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
        """Remember texts; return for each whether it had not come before."""
        keys = [hash_text(text) for text in texts]
        known = np.zeros(len(keys), bool)
        hashes = np.array(keys, "S16")
        for array in self.sorted_hashes:
            known |= array[np.minimum(np.searchsorted(array, hashes), len(array) - 1)] == hashes
        is_new = []
        for key, old in zip(keys, known.tolist(), strict=True):
            is_new.append(not old and key not in self.recent_hashes)
            if is_new[-1]:
                self.recent_hashes.add(key)
        if len(self.recent_hashes) >= HASH_BUFFER:
            self.merge_recent()
        return is_new

    def merge_recent(self) -> None:
        """Sort the newest into the arrays; each hash is moved a logarithmic number of times."""
        array = np.sort(np.array(list(self.recent_hashes), "S16"))
        self.recent_hashes = set()
        while self.sorted_hashes and len(self.sorted_hashes[-1]) < 2 * len(array):
            array = np.sort(np.concatenate([self.sorted_hashes.pop(), array]), kind="stable")
        self.sorted_hashes.append(array)


class Deduplicator:
    """Filter of documents that came before, in any call; `near` is the likeness (0 to 1) that makes two the same."""

    def __init__(self, exact: bool = True, near: float | None = None):
        if near is not None and not 0 < near <= 1:
            raise Error(f"likeness is between 0 and 1, got {near}", fix="take 0.8")
        self.seen_texts = SeenTexts() if exact else None
        self.near_index = NearDuplicateIndex(near) if near else None

    def __call__(self, documents: Iterable[str], counts: FilterCounts) -> Iterator[str]:
        """Give the new documents in their order, and count them all."""
        for batch in batch_documents(documents):
            counts.documents += len(batch)
            new = [True] * len(batch) if self.seen_texts is None else self.seen_texts.add_if_new(batch)
            counts.exact += new.count(False)
            for document in itertools.compress(batch, new):
                if self.near_index is None or self.near_index.add_if_new(document):
                    yield document
                else:
                    counts.near += 1


def deduplicate(
    documents: Iterable[str], exact: bool = True, near: float | None = None, counts: FilterCounts | None = None
) -> Iterator[str]:
    """Give documents without those that came before (Deduplicator)."""
    return Deduplicator(exact, near)(documents, FilterCounts() if counts is None else counts)


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
        """Return whether this document is held out."""
        return int.from_bytes(hash_text(document, self.seed, 8), "little") < self.ratio * 2**64


def hold_out_documents(documents: list[str], every: int = 20) -> tuple[list[str], list[str]]:
    """Separate held-out documents (each twentieth) from the rest."""
    if not (held := documents[every - 1 :: every]):
        raise Error(f"{len(documents)} documents are too few to hold some out", fix=f"give at least {every} documents")
    return [d for i, d in enumerate(documents) if i % every != every - 1], held


@dataclass
class ContaminationReport:
    """How many examples of each test share text with the training documents, and which."""

    documents: int = 0  # of the training text
    contaminated: int = 0  # of them share text with a test
    tests: dict[str, dict[str, int]] = field(default_factory=dict)  # name → examples, found, short
    examples: list[tuple[str, int]] = field(default_factory=list)  # (name, number), the first thousand

    def __str__(self) -> str:
        summary = f"{self.contaminated:,} of {self.documents:,} documents share text with a test"
        for name, t in self.tests.items():
            short = f" ({t['short']:,} too short to tell)" if t["short"] else ""
            summary += f"; {name}: {t['found']:,} of {t['examples']:,} examples{short}"
        return summary


class RollingHash:
    """Hashes of any run of a row of units, in constant time each (Karp and Rabin 1987, modulo 2⁶⁴)."""

    def __init__(self, units: np.ndarray):
        self.prefix_sums = np.zeros(len(units) + 1, np.uint64)
        np.cumsum(units * compute_powers(HASH_BASE, len(units)), out=self.prefix_sums[1:])
        self.inverse_powers = compute_powers(pow(HASH_BASE, -1, 2**64), len(units))

    def hash_runs(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return the hashes of the runs that begin at `starts`: Σ unit[start + j]·factor^j."""
        sums = self.prefix_sums[starts + length] - self.prefix_sums[starts]
        return mix_bits(sums * self.inverse_powers[starts] + np.uint64(length))


def compute_powers(factor: int, count: int) -> np.ndarray:
    """Compute 1, factor, factor², … modulo 2⁶⁴."""
    powers = np.full(count, factor, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


class ContaminationIndex:
    """The runs of all test examples, sorted; training documents are held against them one by one."""

    def __init__(self, tests: TestTexts, words: int = 13, characters: int = 50):
        if words < MIN_LENGTHS["words"] or characters < MIN_LENGTHS["characters"]:
            what = f"a run of {words} words or {characters} characters is too short"
            raise Error(what, fix=f"at least {MIN_LENGTHS}")
        self.run_lengths = {"words": words, "characters": characters}
        self.example_names: list[tuple[str, int]] = []
        self.totals = ContaminationReport()
        self.word_hashes: dict[str, int] = {}
        self.hash_units = {"words": self.hash_words, "characters": self.hash_characters}
        windows: dict[str, list[tuple[np.ndarray, int]]] = {"words": [], "characters": []}
        # Of each kind: the hash of an example's first units → its length, the hash of all of it, its number.
        self.short_examples: dict[str, dict[int, list[tuple[int, int, int]]]] = {"words": {}, "characters": {}}
        for name, texts in tests.items() if isinstance(tests, Mapping) else [("test", tests)]:
            self.add_test(str(name), texts, windows)
        self.long_runs = {kind: sort_runs(runs) for kind, runs in windows.items()}
        self.short_prefixes = {kind: np.array(sorted(known), np.uint64) for kind, known in self.short_examples.items()}
        self.matched = np.zeros(len(self.example_names), bool)

    def add_test(self, name: str, texts: Iterable[str], windows: dict[str, list[tuple[np.ndarray, int]]]) -> None:
        """Take in the examples of one test, and the runs of the long ones among them."""
        count = self.totals.tests.setdefault(name, {"examples": 0, "found": 0, "short": 0})
        for number, text in enumerate(texts):
            kind, sums, size = self.hash_example(text)
            least, length = MIN_LENGTHS[kind], self.run_lengths[kind]
            count["examples"] += 1
            count["short"] += size < least
            if size >= length:
                windows[kind].append((sums.hash_runs(np.arange(size - length + 1), length), len(self.example_names)))
            elif size >= least:
                first, all_of_it = (int(sums.hash_runs(np.zeros(1, np.int64), n)[0]) for n in (least, size))
                self.short_examples[kind].setdefault(first, []).append((size, all_of_it, len(self.example_names)))
            self.example_names.append((name, number))

    def hash_example(self, text: str) -> tuple[str, RollingHash, int]:
        """Hash a test example by words, or by characters where a third of its letters are Hangul, kana or hanja."""
        text = normalise(text).lower()
        is_syllabic = 3 * len(SYLLABIC_PATTERN.findall(text)) > len("".join(WORD_PATTERN.findall(text)))
        kind = "characters" if is_syllabic else "words"
        units = self.hash_units[kind](text)
        return kind, RollingHash(units), len(units)

    def hash_words(self, text: str) -> np.ndarray:
        """Return a hash of each word, in lower case, without punctuation."""
        if len(self.word_hashes) > MAX_CACHED_WORDS:
            self.word_hashes = {}
        words, known = WORD_PATTERN.findall(text), self.word_hashes
        for word in set(words).difference(known):
            digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
            known[word] = int.from_bytes(digest, "big")
        return np.fromiter((known[word] for word in words), np.uint64, len(words))

    def hash_characters(self, text: str) -> np.ndarray:
        """Return a hash of each letter, without white space and punctuation."""
        letters = "".join(WORD_PATTERN.findall(text)).encode("utf-32-le", "replace")
        return mix_bits(np.frombuffer(letters, np.uint32).astype(np.uint64))

    def find_contaminated(self, documents: list[str]) -> list[bool]:
        """Return for each training document whether it shares text with a test; it is noted for the report."""
        texts = [normalise(document).lower() for document in documents]
        touched = np.zeros(len(texts), bool)
        for kind in self.run_lengths:
            if not len(self.long_runs[kind][0]) and not len(self.short_prefixes[kind]):
                continue
            rows = [self.hash_units[kind](text) for text in texts]
            # All documents in one row: a run is one if it begins and ends in the same document.
            owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
            sums = RollingHash(np.concatenate(rows))
            matches = (self.match_long_examples, self.match_short_examples)
            for start, example in itertools.chain.from_iterable(match(kind, sums, owner) for match in matches):
                touched[owner[start]] = self.matched[example] = True
        self.totals.documents += len(texts)
        self.totals.contaminated += int(touched.sum())
        return touched.tolist()

    def match_long_examples(self, kind: str, sums: RollingHash, owner: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield where a document and an example share a run: (place, example)."""
        (keys, owners), length = self.long_runs[kind], self.run_lengths[kind]
        starts, hashes = find_runs(sums, owner, length, keys)
        for start, key in zip(starts.tolist(), hashes, strict=True):
            for example in owners[np.searchsorted(keys, key) : np.searchsorted(keys, key, "right")].tolist():
                yield start, example

    def match_short_examples(self, kind: str, sums: RollingHash, owner: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield examples shorter than a run: their first units are looked for, then the whole of them."""
        starts, hashes = find_runs(sums, owner, MIN_LENGTHS[kind], self.short_prefixes[kind])
        for start, first in zip(starts.tolist(), hashes.tolist(), strict=True):
            for length, key, example in self.short_examples[kind][first]:
                is_inside = start + length <= len(owner) and owner[start + length - 1] == owner[start]
                if is_inside and int(sums.hash_runs(np.array([start]), length)[0]) == key:
                    yield start, example

    def filter_documents(
        self, documents: Iterable[str], counts: FilterCounts | None = None, drop: bool = True
    ) -> Iterator[str]:
        """Hold training documents against the tests; count, and `drop`, those that share text with one."""
        for batch in batch_documents(documents):
            touched = self.find_contaminated(batch)
            if counts is not None:
                counts.seen_in_tests += sum(touched)
            yield from (document for document, bad in zip(batch, touched, strict=True) if not (bad and drop))

    def build_report(self) -> ContaminationReport:
        """Return what was found so far."""
        hits = [self.example_names[i] for i in np.flatnonzero(self.matched).tolist()]
        for name, count in self.totals.tests.items():
            count["found"] = sum(n == name for n, _ in hits)
        self.totals.examples = hits[:MAX_REPORTED]
        return self.totals


def measure_contamination(
    train: Iterable[str], tests: TestTexts, words: int = 13, characters: int = 50
) -> ContaminationReport:
    """Find the test examples that share text with the training documents. `tests` are texts, or {name: texts}."""
    watch = ContaminationIndex(tests, words, characters)
    collections.deque(watch.filter_documents(train), maxlen=0)
    return watch.build_report()


def find_runs(sums: RollingHash, owner: np.ndarray, length: int, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of runs that are among the sorted keys, and their hashes."""
    none = owner[:0]
    starts = np.flatnonzero(owner[: len(owner) - length + 1] == owner[length - 1 :]) if len(owner) >= length else none
    if not len(keys) or not len(starts):
        return none, keys[:0]
    hashes = sums.hash_runs(starts, length)
    known = keys[np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)] == hashes
    return starts[known], hashes[known]


def sort_runs(runs: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return all runs, sorted, and the examples they are from."""
    keys = np.concatenate([k for k, _ in runs]) if runs else np.zeros(0, np.uint64)
    owners = np.repeat([n for _, n in runs], [len(k) for k, _ in runs]).astype(np.int64)
    order = np.argsort(keys, kind="stable")
    return keys[order], owners[order]
