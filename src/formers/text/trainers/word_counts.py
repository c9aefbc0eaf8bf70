"""Counting the words of a corpus, on several processes, in bounded memory; the same counts for any number of them."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import tokenizers

from ...config import ProgressCallback
from ..korean import mark_morphemes, strip_morpheme_marks
from ..worker_processes import ProcessPool

WHITESPACE_RANGES = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Where the tokenizer cuts anyway. Words are counted by these first, and only what differs goes through the tokenizer.
SPACE_SEPARATED = re.compile("[^ \t\n\r]+")
BYTE_LEVEL_WORDS = re.compile(
    f" ?[^{WHITESPACE_RANGES}]+|[{WHITESPACE_RANGES}]+(?![^{WHITESPACE_RANGES}])|[{WHITESPACE_RANGES}]"
)
CHUNK_CHARACTERS = 4_000_000  # characters that are counted at a time
MORPHEME_BATCH = 20_000  # different words that the analyser of morphemes is given at a time
MAX_DISTINCT_WORDS = 8_000_000  # distinct words that are remembered; beyond it, the rarest so far are forgotten


@dataclass(frozen=True)
class WordCutter:
    """How text becomes words: an (empty) tokenizer.json, whether a space belongs to the word after it, whether Korean
    is cut into morphemes first, and whether punctuation keeps the spaces around it (pair_merging.py)."""

    tokenizer_json: str
    is_byte_level: bool = False
    has_morphemes: bool = False
    has_spaced_punctuation: bool = False

    def count_chunk(self, lines: Iterable[str]) -> Counter[str]:
        """Count the words of some lines; with morphemes, what stands between spaces, which `split_units` cuts later."""
        units: Counter[str] = Counter()
        find = (BYTE_LEVEL_WORDS if self.is_byte_level else SPACE_SEPARATED).findall
        for line in lines:
            units.update(find(strip_morpheme_marks(line) if self.has_morphemes else line))
        return units if self.has_morphemes else self.split_units(units)

    def split_units(self, units: Counter[str], tell: ProgressCallback | None = None) -> Counter[str]:
        """Return the words of what stands between spaces, as the tokenizer cuts it."""
        rust = tokenizers.Tokenizer.from_str(self.tokenizer_json)
        normal, split = rust.normalizer, rust.pre_tokenizer
        words: Counter[str] = Counter()
        order, marked = list(units), list(units)
        # Each different word is analysed once.
        for low in range(0, len(order), MORPHEME_BATCH) if self.has_morphemes else ():
            marked[low : low + MORPHEME_BATCH] = mark_morphemes(order[low : low + MORPHEME_BATCH])
            if tell is not None:
                done = min(len(order), low + MORPHEME_BATCH)
                tell("morphemes", done, len(order), f"{done:,} of {len(order):,} different words")
        for unit, text in zip(order, marked, strict=True):
            if self.has_spaced_punctuation:  # what stands before and after it is some word
                text = f"x {text} x"
            parts = split.pre_tokenize_str(text if normal is None else normal.normalize_str(text))
            for word, _ in parts[1:-1] if self.has_spaced_punctuation else parts:
                words[word] += units[unit]
        return words


def chunk_lines(lines: Iterable[str], size: int = CHUNK_CHARACTERS) -> Iterator[list[str]]:
    """Yield lines in groups of about so many characters. The groups depend on the text alone, not on the processes."""
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
    lines: Iterable[str], cutter: WordCutter, workers: int | None = None, tell: ProgressCallback | None = None
) -> Counter[str]:
    """Count how often each word occurs."""
    words: Counter[str] = Counter()
    seen, least, number = 0, 1, 0
    for number, counts in enumerate(count_chunks(chunk_lines(lines), cutter, workers or os.cpu_count() or 1), 1):
        words.update(counts)
        seen += counts.total()
        while len(words) > MAX_DISTINCT_WORDS:
            least += 1
            words = Counter({word: count for word, count in words.items() if count >= least})
        if tell is not None:
            tell("counting", number, number + 1, f"{seen:,} words, {len(words):,} of them different")  # more may come
    if tell is not None and seen:
        tell("counting", number, number, f"{seen:,} words, {len(words):,} of them different")
    return cutter.split_units(words, tell) if cutter.has_morphemes else words


def count_chunks(groups: Iterator[list[str]], cutter: WordCutter, workers: int) -> Iterator[Counter[str]]:
    """Yield the counts of each group, in order; other processes are started only for a text that is long enough."""
    first = list(itertools.islice(groups, 2))
    groups = itertools.chain(first, groups)
    if workers == 1 or len(first) < 2:
        yield from map(cutter.count_chunk, groups)
        return
    pool = ProcessPool(workers)
    done = False
    try:
        for group, job in pool.map_ahead(cutter.count_chunk, groups, workers + 1):
            try:
                yield job.result()
            except BrokenProcessPool:  # processes do not start here
                yield cutter.count_chunk(group)
        done = True
    finally:
        pool.shutdown(wait=done, cancel_futures=True)  # who was interrupted does not wait


def choose_alphabet(counts: Counter[str], most: int) -> set[str]:
    """Return the most frequent characters of some words."""
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    return {letter for letter, _ in sorted(letters.items(), key=lambda item: (-item[1], item[0]))[:most]}
