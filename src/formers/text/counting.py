"""Counting the words of a corpus, on several processes, in bounded memory; the same counts for any number of them."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import tokenizers

from ..config import Tell
from .joints import mark_morphemes, strip_joints
from .workers import Workers

WHITE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Where the tokenizer cuts anyway. Words are counted by these first, and only what differs goes through the tokenizer.
SPACES = re.compile("[^ \t\n\r]+")
BYTES = re.compile(f" ?[^{WHITE}]+|[{WHITE}]+(?![^{WHITE}])|[{WHITE}]")
CHUNK = 4_000_000  # characters that are counted at a time
BATCH = 20_000  # different words that the analyser of morphemes is given at a time
MOST = 8_000_000  # distinct words that are remembered; beyond it, the rarest so far are forgotten


@dataclass(frozen=True)
class Cutter:
    """How text becomes words: an (empty) tokenizer.json, whether a space belongs to the word after it, whether Korean
    is cut into morphemes first, and whether punctuation keeps the spaces around it (text/spacing.py)."""

    file: str
    bytes: bool = False
    morphemes: bool = False
    spaced: bool = False

    def count(self, lines: Iterable[str]) -> Counter[str]:
        """The words of some lines; with morphemes, what stands between spaces: `split` cuts it when all is counted."""
        units: Counter[str] = Counter()
        find = (BYTES if self.bytes else SPACES).findall
        for line in lines:
            units.update(find(strip_joints(line) if self.morphemes else line))
        return units if self.morphemes else self.split(units)

    def split(self, units: Counter[str], tell: Tell | None = None) -> Counter[str]:
        """The words of what stands between spaces, as the tokenizer cuts it."""
        rust: Any = tokenizers.Tokenizer.from_str(self.file)
        normal, split = rust.normalizer, rust.pre_tokenizer
        words: Counter[str] = Counter()
        order, marked = list(units), list(units)
        for low in range(0, len(order), BATCH) if self.morphemes else ():  # each different word is analysed once
            marked[low : low + BATCH] = mark_morphemes(order[low : low + BATCH])
            if tell is not None:
                done = min(len(order), low + BATCH)
                tell("morphemes", done, len(order), f"{done:,} of {len(order):,} different words")
        for unit, text in zip(order, marked, strict=True):
            text = f"x {text} x" if self.spaced else text  # what stands before and behind it is some word
            found = split.pre_tokenize_str(text if normal is None else normal.normalize_str(text))
            for word, _ in found[1:-1] if self.spaced else found:
                words[word] += units[unit]
        return words


def chunks(lines: Iterable[str], size: int = CHUNK) -> Iterator[list[str]]:
    """Lines in groups of about so many characters. The groups depend on the text alone, never on who counts them."""
    group: list[str] = []
    length = 0
    for line in lines:
        group.append(line)
        length += len(line) + 1
        if length >= size:
            yield group
            group, length = [], 0
    if group:
        yield group


def count_words(
    lines: Iterable[str], cutter: Cutter, workers: int | None = None, tell: Tell | None = None
) -> Counter[str]:
    """How often each word occurs."""
    words: Counter[str] = Counter()
    seen, least = 0, 1
    groups = chunks(lines)
    number = 0
    for number, counts in enumerate(counted(groups, cutter, workers or os.cpu_count() or 1), 1):
        words.update(counts)
        seen += counts.total()
        while len(words) > MOST:
            least += 1
            words = Counter({word: count for word, count in words.items() if count >= least})
        if tell is not None:
            tell("counting", number, number + 1, f"{seen:,} words, {len(words):,} of them different")  # more may come
    if tell is not None and seen:
        tell("counting", number, number, f"{seen:,} words, {len(words):,} of them different")
    return cutter.split(words, tell) if cutter.morphemes else words


def counted(groups: Iterator[list[str]], cutter: Cutter, workers: int) -> Iterator[Counter[str]]:
    """The counts of each group, in order; other processes are started only for a text that is long enough."""
    first = list(itertools.islice(groups, 2))
    groups = itertools.chain(first, groups)
    if workers == 1 or len(first) < 2:
        yield from map(cutter.count, groups)
        return
    pool = Workers(workers)
    waiting: deque[tuple[list[str], Future[Counter[str]] | None]] = deque()
    done = False
    try:
        for group in groups:
            waiting.append((group, handed(pool, cutter, group)))
            if len(waiting) > workers + 1:  # so that the text is not read faster than it is counted
                yield fetched(cutter, *waiting.popleft())
        while waiting:
            yield fetched(cutter, *waiting.popleft())
        done = True
    finally:
        pool.shutdown(wait=done, cancel_futures=True)  # who was interrupted does not wait


def handed(pool: ProcessPoolExecutor, cutter: Cutter, group: list[str]) -> Future[Counter[str]] | None:
    """A group given to another process, if there is one that works."""
    try:
        return pool.submit(cutter.count, group)
    except BrokenProcessPool:
        return None


def fetched(cutter: Cutter, group: list[str], job: Future[Counter[str]] | None) -> Counter[str]:
    """The counts of a group; made here where processes do not start."""
    try:
        return cutter.count(group) if job is None else job.result()
    except BrokenProcessPool:
        return cutter.count(group)


def alphabet_of(counts: Counter[str], most: int) -> set[str]:
    """The most frequent characters of some words."""
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    return {letter for letter, _ in sorted(letters.items(), key=lambda item: (-item[1], item[0]))[:most]}
