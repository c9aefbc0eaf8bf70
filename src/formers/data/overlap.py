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

from ..errors import Error
from ..text.normalise import normalise
from .draws import mix

if TYPE_CHECKING:
    from .hygiene import Hygiene

WORD = re.compile(r"[^\W_]+")
SYLLABLES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff가-힣]")  # scripts in which words are no good measure
SHORT = {"words": 8, "characters": 20}  # shorter examples say nothing; these up to the full length must be found whole
FACTOR = 0x9E3779B97F4A7C15  # odd, so that it can be undone
SHOWN = 1000  # examples that are named
CACHE = 1 << 18  # words whose hashes are kept
BATCH = 1 << 10  # documents that are looked at together,
BATCH_SIZE = 1 << 20  # or characters


@dataclass
class Overlap:
    """How many examples of each test share text with the training documents, and which."""

    documents: int = 0  # of the training text
    touched: int = 0  # of them share text with a test
    tests: dict[str, dict[str, int]] = field(default_factory=dict)  # name → examples, found, short
    examples: list[tuple[str, int]] = field(default_factory=list)  # (name, number), the first thousand

    def dict(self) -> dict[str, Any]:
        """For keeping as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [
            f"{name}: {t['found']:,} of {t['examples']:,} examples"
            + (f" ({t['short']:,} too short to tell)" if t["short"] else "")
            for name, t in self.tests.items()
        ]
        return f"{self.touched:,} of {self.documents:,} documents share text with a test; " + "; ".join(parts)


class Units:
    """A text as numbers: one for each word, or one for each letter."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def words(self, text: str) -> np.ndarray:
        """A hash of each word, in lower case, without punctuation."""
        if len(self.known) > CACHE:
            self.known = {}
        found, known = WORD.findall(text), self.known
        for word in set(found).difference(known):
            known[word] = int.from_bytes(
                hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "big"
            )
        return np.fromiter((known[word] for word in found), np.uint64, len(found))

    def characters(self, text: str) -> np.ndarray:
        """A hash of each letter, without white space and punctuation."""
        letters = "".join(WORD.findall(text)).encode("utf-32-le", "replace")
        return mix(np.frombuffer(letters, np.uint32).astype(np.uint64))


class Sums:
    """Hashes of any run of a row of units, in constant time each (Karp and Rabin 1987, modulo 2⁶⁴)."""

    def __init__(self, units: np.ndarray):
        self.sums = np.zeros(len(units) + 1, np.uint64)
        np.cumsum(units * powers(FACTOR, len(units)), out=self.sums[1:])
        self.back = powers(pow(FACTOR, -1, 2**64), len(units))

    def at(self, starts: np.ndarray, length: int) -> np.ndarray:
        """The hashes of the runs that begin at `starts`: Σ unit[start + j]·factor^j."""
        return mix((self.sums[starts + length] - self.sums[starts]) * self.back[starts] + np.uint64(length))


def powers(factor: int, count: int) -> np.ndarray:
    """1, factor, factor², … modulo 2⁶⁴."""
    found = np.full(count, factor, np.uint64)
    found[:1] = 1
    return np.cumprod(found, dtype=np.uint64)


class Watch:
    """The runs of all test examples, sorted; training documents are held against them one by one."""

    def __init__(self, tests: Any, words: int = 13, characters: int = 50):
        if words < SHORT["words"] or characters < SHORT["characters"]:
            raise Error(f"a run of {words} words or {characters} characters is too short", fix=f"at least {SHORT}")
        self.length = {"words": words, "characters": characters}
        self.names: list[tuple[str, int]] = []
        self.counts = Overlap()
        self.units = Units()
        whole: dict[str, list[tuple[np.ndarray, int]]] = {"words": [], "characters": []}
        short: dict[str, dict[int, list[tuple[int, int, int]]]] = {"words": {}, "characters": {}}
        for name, texts in tests.items() if isinstance(tests, Mapping) else [("test", tests)]:
            self.learn(str(name), texts, whole, short)
        self.whole = {kind: table(found) for kind, found in whole.items()}
        self.short = short
        self.anchors = {k: np.array(sorted(found), np.uint64) for k, found in short.items()}
        self.found = np.zeros(len(self.names), bool)

    def learn(self, name: str, texts: Iterable[str], whole: Any, short: Any) -> None:
        """Take in the examples of one test."""
        count = self.counts.tests.setdefault(name, {"examples": 0, "found": 0, "short": 0})
        for number, text in enumerate(texts):
            kind, sums, size = self.measure(text)
            least, length = SHORT[kind], self.length[kind]
            count["examples"] += 1
            count["short"] += size < least
            if size >= length:
                whole[kind].append((sums.at(np.arange(size - length + 1), length), len(self.names)))
            elif size >= least:
                first, all_of_it = (int(sums.at(np.zeros(1, np.int64), n)[0]) for n in (least, size))
                short[kind].setdefault(first, []).append((size, all_of_it, len(self.names)))
            self.names.append((name, number))

    def measure(self, text: str) -> tuple[str, Sums, int]:
        """How a test example is counted: by characters where a third of its letters are Hangul, kana or hanja."""
        text = normalise(text).lower()
        kind = "characters" if 3 * len(SYLLABLES.findall(text)) > len("".join(WORD.findall(text))) else "words"
        units = getattr(self.units, kind)(text)
        return kind, Sums(units), len(units)

    def meets(self, documents: list[str]) -> list[bool]:
        """For each training document whether it shares text with a test; noted for the report."""
        texts = [normalise(document).lower() for document in documents]
        touched = np.zeros(len(texts), bool)
        for kind in self.length:
            if not len(self.whole[kind][0]) and not len(self.anchors[kind]):
                continue
            rows = [getattr(self.units, kind)(text) for text in texts]
            # All documents in one row: a run is one if it begins and ends in the same document.
            owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
            sums = Sums(np.concatenate(rows))
            for start, example in (*self.long_ones(kind, sums, owner), *self.short_ones(kind, sums, owner)):
                touched[owner[start]] = self.found[example] = True
        self.counts.documents += len(texts)
        self.counts.touched += int(touched.sum())
        return touched.tolist()

    def long_ones(self, kind: str, sums: Sums, owner: np.ndarray) -> Iterator[tuple[int, int]]:
        """Where a document and an example share a run: (place, example)."""
        (keys, owners), length = self.whole[kind], self.length[kind]
        starts, hashes = runs(sums, owner, length, keys)
        for start, key in zip(starts.tolist(), hashes, strict=True):
            for example in owners[np.searchsorted(keys, key) : np.searchsorted(keys, key, "right")].tolist():
                yield start, example

    def short_ones(self, kind: str, sums: Sums, owner: np.ndarray) -> Iterator[tuple[int, int]]:
        """Examples shorter than a run: their first units are looked for, then the whole of them."""
        starts, hashes = runs(sums, owner, SHORT[kind], self.anchors[kind])
        for start, first in zip(starts.tolist(), hashes.tolist(), strict=True):
            for length, key, example in self.short[kind][first]:
                last = start + length - 1
                if (
                    last < len(owner)
                    and owner[last] == owner[start]
                    and int(sums.at(np.array([start]), length)[0]) == key
                ):
                    yield start, example

    def drop(self, documents: Iterable[str], counts: Hygiene | None = None) -> Iterator[str]:
        """Training documents without those that share text with a test."""
        for batch in batches(documents):
            touched = self.meets(batch)
            if counts is not None:
                counts.seen_in_tests += sum(touched)
            yield from (document for document, bad in zip(batch, touched, strict=True) if not bad)

    def report(self) -> Overlap:
        """What was found so far."""
        hits = [self.names[i] for i in np.flatnonzero(self.found).tolist()]
        for name, count in self.counts.tests.items():
            count["found"] = sum(n == name for n, _ in hits)
        self.counts.examples = hits[:SHOWN]
        return self.counts


def contamination(train: Iterable[str], tests: Any, words: int = 13, characters: int = 50) -> Overlap:
    """How many test examples share text with the training documents, and which. `tests` are texts, or {name: texts}."""
    watch = Watch(tests, words, characters)
    collections.deque(watch.drop(train), maxlen=0)
    return watch.report()


def batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Some documents at a time."""
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if len(batch) == BATCH or size > BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def runs(sums: Sums, owner: np.ndarray, length: int, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of runs that are among the sorted keys, and their hashes."""
    starts = (
        np.flatnonzero(owner[: len(owner) - length + 1] == owner[length - 1 :]) if len(owner) >= length else owner[:0]
    )
    if not len(keys) or not len(starts):
        return owner[:0], keys[:0]
    hashes = sums.at(starts, length)
    known = keys[np.minimum(np.searchsorted(keys, hashes), len(keys) - 1)] == hashes
    return starts[known], hashes[known]


def table(found: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """All runs, sorted, and the examples they are from."""
    keys = np.concatenate([k for k, _ in found]) if found else np.zeros(0, np.uint64)
    owners = np.repeat([n for _, n in found], [len(k) for k, _ in found]).astype(np.int64)
    order = np.argsort(keys, kind="stable")
    return keys[order], owners[order]
