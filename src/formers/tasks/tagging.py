"""Tagging: entities out of tags (what stands between B-, I-, E-, S- and O, by the rules of conlleval), and how a plain
text is cut into words: as the words of the training data were, as far as they tell."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

from ..text.word_level import WORD_PATTERN

MARK_ALIASES = {"L": "E", "U": "S", "M": "I"}  # BILOU and BMES write the same with other letters
OUTSIDE_TAGS = ("O", "-", "")  # tags of words that are in no entity; "-" is Naver's
PREFIX_TAG, SUFFIX_TAG = re.compile(r"[BIESLUM][-_].+", re.DOTALL), re.compile(r".+[-_][BIESLUM]", re.DOTALL)
TagScheme = Literal["prefix", "suffix", "bare"]


def find_scheme(tags: Iterable[str]) -> TagScheme | None:
    """Find how tags mark where entities begin and continue: before the kind (B-PER), after it (PER-B), or without
    a kind (B); None for tags of another sort, such as parts of speech. Nothing but O is a text without entities."""
    prefixes = {tag for tag in tags if tag not in OUTSIDE_TAGS}
    if prefixes and all(map(PREFIX_TAG.fullmatch, prefixes)):
        return "prefix"
    if prefixes and all(map(SUFFIX_TAG.fullmatch, prefixes)) and any(tag[-1] in "BSU" for tag in prefixes):
        return "suffix"
    return "bare" if prefixes <= set("BIESLU") else "prefix" if any(tag[1:2] == "-" for tag in prefixes) else None


def find_entities(tags: Iterable[str], suffix: bool = False) -> list[tuple[str, int, int]]:
    """(kind, first word, last word) of each entity; IOB1, IOB2, BIOES and BILOU alike, as seqeval reads them. An I- or
    E- that follows nothing of its kind begins an entity itself, as conlleval has it. With `suffix`, the mark stands
    after the kind: PER-B."""
    entities: list[tuple[str, int, int]] = []
    begin, kind, closed = -1, "", True
    for place, tag in enumerate([*tags, "O"]):
        mark, name = split_tag(tag, suffix)
        if begin >= 0 and (closed or mark not in ("I", "E") or name != kind):
            entities.append((kind, begin, place - 1))
            begin = -1
        if begin < 0 and mark != "O":
            begin, kind = place, name
        closed = mark in ("E", "S")
    return entities


def split_tag(tag: str, suffix: bool = False) -> tuple[str, str]:
    """Split a tag into its mark and its kind."""
    if tag in OUTSIDE_TAGS:
        return "O", "_"
    if suffix:
        mark, rest = tag[-1], tag[:-1]
        return MARK_ALIASES.get(mark, mark) if rest else mark, rest.rstrip("-_") or "_"
    mark, dash, name = tag[:1], tag[1:2] in ("-", "_"), re.split("[-_]", tag[1:], maxsplit=1)[-1] or "_"
    return (MARK_ALIASES.get(mark, mark) if dash else mark), name


PUNCTUATION_MARKS = frozenset(
    string.punctuation
    + "\u2018\u2019\u201c\u201d\u2026\u00b7\u3001\u3002\uff0c\uff0e\uff01\uff1f\uff08\uff09\u300c\u300d"
)
STOP_MARKS = frozenset(".,\u3002\u3001\uff0c\uff0e")  # between spaces only in text that has been cut before
SENTENCE_MARKS = STOP_MARKS | frozenset("!?\uff01\uff1f")  # French puts a space before these


def find_detached(rows: Iterable[Sequence[str]]) -> str | None:
    """Return the marks that stand as words of their own in rows of words, more often than at the end of a longer word.
    None where a word holds a space: such words cannot be found again by cutting a text at spaces."""
    alone: Counter[str] = Counter()
    attached: Counter[str] = Counter()
    for row in rows:
        for word in row:
            if len(word.split()) != 1:
                return None
            if set(word) <= PUNCTUATION_MARKS:
                alone.update(set(word))
            else:
                attached.update({end for end in (word[0], word[-1]) if end in PUNCTUATION_MARKS})
    return "".join(sorted(mark for mark, count in alone.items() if count > attached[mark]))


def find_mark_words(rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the words of several marks ("...", "!!", ":)") that occur more than once in rows of words, sorted."""
    counts = Counter(word for row in rows for word in row if len(word) > 1 and set(word) <= PUNCTUATION_MARKS)
    return tuple(sorted(word for word, count in counts.items() if count > 1))


def split_words(text: str, detached: str | None, mark_words: Collection[str] = ()) -> Iterator[tuple[str, int]]:
    """Yield the words of a text and where each begins. Words stand between spaces, and `detached` marks are cut off
    their ends, one by one, except where they make up one of the `mark_words`. In a text that has been cut before,
    spaces alone count. Without knowledge of the training data (`detached` is None), words and marks are cut apart
    wherever they meet."""
    if detached is None:
        yield from ((match[0], match.start()) for match in WORD_PATTERN.finditer(text))
        return
    chunks = [(match[0], match.start()) for match in re.finditer(r"\S+", text)]
    has_been_cut = is_pretokenized([chunk for chunk, _ in chunks], SENTENCE_MARKS & set(detached))
    for chunk, begin in chunks:
        if has_been_cut or chunk in mark_words:
            yield chunk, begin
        else:
            yield from split_ends(chunk, begin, detached, mark_words)


def is_pretokenized(chunks: Sequence[str], ends: frozenset[str]) -> bool:
    """Return whether a text was cut into words before: a full stop or a comma stands alone, or another of the marks
    that `ends` holds does and none of them is the end of a word."""
    alone = ends.intersection(chunks)
    attached = any(c[-1] in ends and not set(c) <= PUNCTUATION_MARKS for c in chunks)
    return bool(alone & STOP_MARKS) or (bool(alone) and not attached)


def split_ends(chunk: str, begin: int, detached: str, mark_words: Collection[str]) -> Iterator[tuple[str, int]]:
    """Cut detached marks off both ends of a chunk."""
    low, high = 0, len(chunk)
    while low < high and chunk[low] in detached:
        low += 1
    while high > low and chunk[high - 1] in detached:
        high -= 1
    yield from split_marks(chunk[:low], begin, mark_words)
    if high > low:
        yield chunk[low:high], begin + low
    yield from split_marks(chunk[high:], begin + high, mark_words)


def split_marks(marks: str, begin: int, mark_words: Collection[str]) -> Iterator[tuple[str, int]]:
    """Cut a string of marks into the longest known words, else into single marks.

    Where a run of some mark is a known word, a run of it of any length is one word."""
    longest = max(map(len, mark_words), default=1)
    in_runs = {word[0] for word in mark_words if len(set(word)) == 1}
    at = 0
    while at < len(marks):
        sizes = range(min(longest, len(marks) - at), 1, -1)
        size = next((size for size in sizes if marks[at : at + size] in mark_words), 1)
        if marks[at] in in_runs:
            size = max(size, sum(1 for _ in itertools.takewhile(marks[at].__eq__, marks[at:])))
        yield marks[at : at + size], begin + at
        at += size
