"""Phrases learned from text: pairs of words that stand together more often than chance (Mikolov et al. 2013b, §4).

Beside them, names and numbers are found by rule, for ERNIE's stage of entities."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ...errors import Error
from ...text.normalise import compose_nfc
from ...text.sentences import find_names

WORD_PATTERN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
MAX_PAIRS = 4_000_000  # pairs that are counted at a time


def learn_phrases(
    documents: Iterable[str], *, min_count: int = 10, discount: float = 5.0, threshold: float = 100.0
) -> list[str]:
    """Pairs with (count(ab) - discount) · words / (count(a) · count(b)) above the threshold, the best first."""
    words: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for text in documents:
        found = list(WORD_PATTERN.finditer(text))
        words.update(m.group().lower() for m in found)
        pairs.update(
            (a.group().lower(), b.group().lower())
            for a, b in itertools.pairwise(found)
            if text[a.end() : b.start()] == " "
        )
        if len(pairs) > MAX_PAIRS:  # memory stays bounded: what was seen once goes
            pairs = Counter({pair: n for pair, n in pairs.items() if n > 1})
            while len(pairs) > MAX_PAIRS // 2:
                pairs = Counter(dict(pairs.most_common(MAX_PAIRS // 4)))
    total = words.total()
    score = {
        f"{a} {b}": (n - discount) * total / (words[a] * words[b]) for (a, b), n in pairs.items() if n >= min_count
    }
    return sorted((p for p, s in score.items() if s > threshold), key=lambda p: (-score[p], p))


def read_phrases(path: Path) -> list[str]:
    """A list of phrases, one a line."""
    try:
        text = compose_nfc(path.read_text(encoding="utf-8-sig"))
        return [line.strip().lower() for line in text.splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise Error("cannot be read as a list of phrases", where=path, fix="one phrase a line, in UTF-8") from None


def build_unit_finder(phrases: Sequence[str]) -> Callable[[str], list[tuple[int, int, str]]]:
    """A function that finds the phrases of a list in a text; pairs that share a word make one longer phrase. Names and
    numbers are entities."""
    known = {tuple(phrase.split()[i : i + 2]) for phrase in phrases for i in range(len(phrase.split()) - 1)}

    def find_units(text: str) -> list[tuple[int, int, str]]:
        out: list[tuple[int, int, str]] = []
        before = None
        for match in WORD_PATTERN.finditer(text):
            if (
                before is not None
                and (before.group().lower(), match.group().lower()) in known
                and text[before.end() : match.start()].isspace()
            ):
                joined = bool(out) and out[-1][1] == before.end()
                out[-1 if joined else len(out) :] = [(out[-1][0] if joined else before.start(), match.end(), "phrase")]
            before = match
        return out + [(begin, end, "entity") for begin, end in find_names(text)]

    return find_units
