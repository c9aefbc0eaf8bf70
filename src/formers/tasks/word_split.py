"""How a plain text is cut into words for tagging: as the words of the training data were, as far as they tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ..text.words import WORD

MARK = frozenset(chr(c) for part in ("!-/", ":-@", "[-`", "{-~") for c in range(ord(part[0]), ord(part[2]) + 1))
MARK |= frozenset("\u2018\u2019\u201c\u201d\u2026\u00b7\u3001\u3002\uff0c\uff0e\uff01\uff1f\uff08\uff09\u300c\u300d")


def find_detached(rows: Iterable[Sequence[str]]) -> str | None:
    """Return the marks that stand as words of their own in rows of words, more often than at the end of a longer word.

    None where a word holds a space: such words cannot be found again by cutting a text at spaces.
    """
    alone: Counter[str] = Counter()
    attached: Counter[str] = Counter()
    for row in rows:
        for word in row:
            if len(word.split()) != 1:
                return None
            if set(word) <= MARK:
                alone[word[0]] += len(set(word)) == 1
            else:
                attached.update({end for end in (word[0], word[-1]) if end in MARK})
    return "".join(sorted(mark for mark, count in alone.items() if count > attached[mark]))


def split_words(text: str, detached: str | None) -> Iterator[tuple[str, int]]:
    """Yield the words of a text and where each begins.

    Words stand between spaces, and `detached` marks are cut off their ends; if a mark stands by itself already, the
    text has been cut before, and spaces alone count. Without knowledge of the training data (None), words and marks
    are cut apart wherever they meet.
    """
    if detached is None:
        yield from ((match[0], match.start()) for match in WORD.finditer(text))
        return
    chunks, at = [], 0
    for chunk in text.split():
        at = text.index(chunk, at)
        chunks.append((chunk, at))
        at += len(chunk)
    done = any(set(chunk) <= MARK and chunk[0] in detached for chunk, _ in chunks)
    for chunk, begin in chunks:
        yield from [(chunk, begin)] if done else cut_ends(chunk, begin, detached)


def cut_ends(chunk: str, begin: int, detached: str) -> list[tuple[str, int]]:
    """Cut marks off both ends of a chunk; a run of the same mark is one word."""
    low, high = 0, len(chunk)
    while low < high and chunk[low] in detached:
        low += 1
    while high > low and chunk[high - 1] in detached:
        high -= 1
    found = runs(chunk[:low], begin)
    found += [(chunk[low:high], begin + low)] if high > low else []
    return found + runs(chunk[high:], begin + high)


def runs(marks: str, begin: int) -> list[tuple[str, int]]:
    """Cut a string into runs of the same character."""
    found: list[tuple[str, int]] = []
    for at, mark in enumerate(marks):
        if found and found[-1][0][0] == mark:
            found[-1] = found[-1][0] + mark, found[-1][1]
        else:
            found.append((mark, begin + at))
    return found
