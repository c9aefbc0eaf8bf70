"""Is the test in the training text? Test examples that share a long run of words, or of Korean characters, with a
training document (the check of GPT-3's appendix C: 13 words)."""

from __future__ import annotations

import collections
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import Error
from ...text.normalise import normalise
from ..counter_rng import mix_bits

if TYPE_CHECKING:
    from .deduplication import FilterCounts

WORD_PATTERN = re.compile(r"[^\W_]+")
SYLLABIC_PATTERN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff가-힣]")  # scripts in which words are no good measure
MIN_LENGTHS = {
    "words": 8,
    "characters": 20,
}  # shorter examples say nothing; these up to the full length must be found whole
HASH_BASE = 0x9E3779B97F4A7C15  # odd, so that it can be undone
MAX_REPORTED = 1000  # examples that are named
MAX_CACHED_WORDS = 1 << 18  # words whose hashes are kept
BATCH_DOCUMENTS = 1 << 10  # documents that are looked at together,
BATCH_CHARACTERS = 1 << 20  # or characters


@dataclass
class ContaminationReport:
    """How many examples of each test share text with the training documents, and which."""

    documents: int = 0  # of the training text
    contaminated: int = 0  # of them share text with a test
    tests: dict[str, dict[str, int]] = field(default_factory=dict)  # name → examples, found, short
    examples: list[tuple[str, int]] = field(default_factory=list)  # (name, number), the first thousand

    def to_dict(self) -> dict[str, Any]:
        """For keeping as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [
            f"{name}: {t['found']:,} of {t['examples']:,} examples"
            + (f" ({t['short']:,} too short to tell)" if t["short"] else "")
            for name, t in self.tests.items()
        ]
        return f"{self.contaminated:,} of {self.documents:,} documents share text with a test; " + "; ".join(parts)


class UnitHasher:
    """A text as numbers: one for each word, or one for each letter."""

    def __init__(self) -> None:
        self.word_hashes: dict[str, int] = {}

    def hash_words(self, text: str) -> np.ndarray:
        """A hash of each word, in lower case, without punctuation."""
        if len(self.word_hashes) > MAX_CACHED_WORDS:
            self.word_hashes = {}
        found, known = WORD_PATTERN.findall(text), self.word_hashes
        for word in set(found).difference(known):
            known[word] = int.from_bytes(
                hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "big"
            )
        return np.fromiter((known[word] for word in found), np.uint64, len(found))

    def hash_characters(self, text: str) -> np.ndarray:
        """A hash of each letter, without white space and punctuation."""
        letters = "".join(WORD_PATTERN.findall(text)).encode("utf-32-le", "replace")
        return mix_bits(np.frombuffer(letters, np.uint32).astype(np.uint64))


class RollingHash:
    """Hashes of any run of a row of units, in constant time each (Karp and Rabin 1987, modulo 2⁶⁴)."""

    def __init__(self, units: np.ndarray):
        self.prefix_sums = np.zeros(len(units) + 1, np.uint64)
        np.cumsum(units * compute_powers(HASH_BASE, len(units)), out=self.prefix_sums[1:])
        self.inverse_powers = compute_powers(pow(HASH_BASE, -1, 2**64), len(units))

    def hash_runs(self, starts: np.ndarray, length: int) -> np.ndarray:
        """The hashes of the runs that begin at `starts`: Σ unit[start + j]·factor^j."""
        return mix_bits(
            (self.prefix_sums[starts + length] - self.prefix_sums[starts]) * self.inverse_powers[starts]
            + np.uint64(length)
        )


def compute_powers(factor: int, count: int) -> np.ndarray:
    """1, factor, factor², … modulo 2⁶⁴."""
    found = np.full(count, factor, np.uint64)
    found[:1] = 1
    return np.cumprod(found, dtype=np.uint64)


class ContaminationIndex:
    """The runs of all test examples, sorted; training documents are held against them one by one."""

    def __init__(self, tests: Any, words: int = 13, characters: int = 50):
        if words < MIN_LENGTHS["words"] or characters < MIN_LENGTHS["characters"]:
            raise Error(
                f"a run of {words} words or {characters} characters is too short", fix=f"at least {MIN_LENGTHS}"
            )
        self.run_lengths = {"words": words, "characters": characters}
        self.example_names: list[tuple[str, int]] = []
        self.totals = ContaminationReport()
        self.hasher = UnitHasher()
        self.hash_units = {"words": self.hasher.hash_words, "characters": self.hasher.hash_characters}
        whole: dict[str, list[tuple[np.ndarray, int]]] = {"words": [], "characters": []}
        short: dict[str, dict[int, list[tuple[int, int, int]]]] = {"words": {}, "characters": {}}
        for name, texts in tests.items() if isinstance(tests, Mapping) else [("test", tests)]:
            self.add_test(str(name), texts, whole, short)
        self.long_runs = {kind: sort_runs(found) for kind, found in whole.items()}
        self.short_examples = short
        self.short_prefixes = {k: np.array(sorted(found), np.uint64) for k, found in short.items()}
        self.matched = np.zeros(len(self.example_names), bool)

    def add_test(self, name: str, texts: Iterable[str], whole: Any, short: Any) -> None:
        """Take in the examples of one test."""
        count = self.totals.tests.setdefault(name, {"examples": 0, "found": 0, "short": 0})
        for number, text in enumerate(texts):
            kind, sums, size = self.hash_example(text)
            least, length = MIN_LENGTHS[kind], self.run_lengths[kind]
            count["examples"] += 1
            count["short"] += size < least
            if size >= length:
                whole[kind].append((sums.hash_runs(np.arange(size - length + 1), length), len(self.example_names)))
            elif size >= least:
                first, all_of_it = (int(sums.hash_runs(np.zeros(1, np.int64), n)[0]) for n in (least, size))
                short[kind].setdefault(first, []).append((size, all_of_it, len(self.example_names)))
            self.example_names.append((name, number))

    def hash_example(self, text: str) -> tuple[str, RollingHash, int]:
        """How a test example is counted: by characters where a third of its letters are Hangul, kana or hanja."""
        text = normalise(text).lower()
        kind = (
            "characters"
            if 3 * len(SYLLABIC_PATTERN.findall(text)) > len("".join(WORD_PATTERN.findall(text)))
            else "words"
        )
        units = self.hash_units[kind](text)
        return kind, RollingHash(units), len(units)

    def find_contaminated(self, documents: list[str]) -> list[bool]:
        """For each training document whether it shares text with a test; noted for the report."""
        texts = [normalise(document).lower() for document in documents]
        touched = np.zeros(len(texts), bool)
        for kind in self.run_lengths:
            if not len(self.long_runs[kind][0]) and not len(self.short_prefixes[kind]):
                continue
            rows = [self.hash_units[kind](text) for text in texts]
            # All documents in one row: a run is one if it begins and ends in the same document.
            owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
            sums = RollingHash(np.concatenate(rows))
            for start, example in (
                *self.match_long_examples(kind, sums, owner),
                *self.match_short_examples(kind, sums, owner),
            ):
                touched[owner[start]] = self.matched[example] = True
        self.totals.documents += len(texts)
        self.totals.contaminated += int(touched.sum())
        return touched.tolist()

    def match_long_examples(self, kind: str, sums: RollingHash, owner: np.ndarray) -> Iterator[tuple[int, int]]:
        """Where a document and an example share a run: (place, example)."""
        (keys, owners), length = self.long_runs[kind], self.run_lengths[kind]
        starts, hashes = find_runs(sums, owner, length, keys)
        for start, key in zip(starts.tolist(), hashes, strict=True):
            for example in owners[np.searchsorted(keys, key) : np.searchsorted(keys, key, "right")].tolist():
                yield start, example

    def match_short_examples(self, kind: str, sums: RollingHash, owner: np.ndarray) -> Iterator[tuple[int, int]]:
        """Examples shorter than a run: their first units are looked for, then the whole of them."""
        starts, hashes = find_runs(sums, owner, MIN_LENGTHS[kind], self.short_prefixes[kind])
        for start, first in zip(starts.tolist(), hashes.tolist(), strict=True):
            for length, key, example in self.short_examples[kind][first]:
                last = start + length - 1
                if (
                    last < len(owner)
                    and owner[last] == owner[start]
                    and int(sums.hash_runs(np.array([start]), length)[0]) == key
                ):
                    yield start, example

    def drop_contaminated(self, documents: Iterable[str], counts: FilterCounts | None = None) -> Iterator[str]:
        """Training documents without those that share text with a test."""
        for batch in batch_documents(documents):
            touched = self.find_contaminated(batch)
            if counts is not None:
                counts.seen_in_tests += sum(touched)
            yield from (document for document, bad in zip(batch, touched, strict=True) if not bad)

    def build_report(self) -> ContaminationReport:
        """What was found so far."""
        hits = [self.example_names[i] for i in np.flatnonzero(self.matched).tolist()]
        for name, count in self.totals.tests.items():
            count["found"] = sum(n == name for n, _ in hits)
        self.totals.examples = hits[:MAX_REPORTED]
        return self.totals


def measure_contamination(
    train: Iterable[str], tests: Any, words: int = 13, characters: int = 50
) -> ContaminationReport:
    """How many test examples share text with the training documents, and which. `tests` are texts, or {name: texts}."""
    watch = ContaminationIndex(tests, words, characters)
    collections.deque(watch.drop_contaminated(train), maxlen=0)
    return watch.build_report()


def batch_documents(documents: Iterable[str]) -> Iterator[list[str]]:
    """Some documents at a time."""
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


def find_runs(sums: RollingHash, owner: np.ndarray, length: int, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of runs that are among the sorted keys, and their hashes."""
    starts = (
        np.flatnonzero(owner[: len(owner) - length + 1] == owner[length - 1 :]) if len(owner) >= length else owner[:0]
    )
    if not len(keys) or not len(starts):
        return owner[:0], keys[:0]
    hashes = sums.hash_runs(starts, length)
    known = keys[np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)] == hashes
    return starts[known], hashes[known]


def sort_runs(found: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """All runs, sorted, and the examples they are from."""
    keys = np.concatenate([k for k, _ in found]) if found else np.zeros(0, np.uint64)
    owners = np.repeat([n for _, n in found], [len(k) for k, _ in found]).astype(np.int64)
    order = np.argsort(keys, kind="stable")
    return keys[order], owners[order]
