"""Korean words cut into morphemes before a tokenizer sees them. The Rust library knows no morphemes, so a mark stands
between them: a tokenizer whose file knows the mark wants its text cut, and that survives saving and loading."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from importlib import import_module
from itertools import accumulate

from .normalise import normalise

MORPHEME_MARK = "\u034f"  # Unicode's own grapheme joiner, which no font shows
HANGUL_WORD = re.compile("[가-힣]{1,500}")  # what is analysed: Hangul alone, so that 영화 and 영화. are the same word
LOOSE_MARK = re.compile(
    rf"(?<!\S){MORPHEME_MARK}|{MORPHEME_MARK}(?=\s|{MORPHEME_MARK}|$)"
)  # a mark with nothing before it, or nothing behind
MARKED_WORDS: dict[str, str] = {}  # words analysed before, with a MORPHEME_MARK between their morphemes
MAX_MARKED_WORDS = 1 << 19  # of them are remembered


def mark_morphemes(texts: Sequence[str]) -> list[str]:
    """Return composed texts with a MORPHEME_MARK between the morphemes of each Korean word, and between Hangul and
    whatever else is written together with it (3명, AI는, 영화ㅋㅋ).

    A word is analysed by itself: it is cut alike wherever it stands, and only once. Words without Hangul stay whole.
    Words that are new go to the analyser together, which reads them on several threads.
    """
    found = dict.fromkeys(word for text in texts for word in HANGUL_WORD.findall(text))
    if new := [word for word in found if word not in MARKED_WORDS]:
        if len(MARKED_WORDS) + len(new) > MAX_MARKED_WORDS:
            MARKED_WORDS.clear()
            new = list(found)
        split_words = import_module(f"{__package__}.korean").split_words
        MARKED_WORDS.update(
            (word, MORPHEME_MARK.join(parts)) for word, parts in zip(new, split_words(new), strict=True)
        )
    return [
        LOOSE_MARK.sub("", HANGUL_WORD.sub(lambda word: f"{MORPHEME_MARK}{MARKED_WORDS[word[0]]}{MORPHEME_MARK}", text))
        for text in texts
    ]


def strip_morpheme_marks(text: str) -> str:
    """Return a text in NFC without any MORPHEME_MARK of its own."""
    return normalise(text).replace(MORPHEME_MARK, "")


def mark_with_origins(text: str) -> tuple[str, list[int]]:
    """A composed text with a MORPHEME_MARK between the morphemes of each word, and where each character comes from."""
    ready = mark_morphemes([strip_morpheme_marks(text)])[0]
    return ready, trace_origins(text, ready)


def trace_origins(text: str, ready: str) -> list[int]:
    """Where each character comes from; a mark belongs to the character after it. Decomposed, both texts are alike, so
    that what comes before a character has the same length in both."""
    ends = list(accumulate(0 if c == MORPHEME_MARK else len(unicodedata.normalize("NFD", c)) for c in text))
    lengths = (0 if c == MORPHEME_MARK else len(unicodedata.normalize("NFD", c)) for c in ready)
    begins = accumulate(lengths, initial=0)
    return [min(bisect_right(ends, begin), len(text) - 1) for begin, _ in zip(begins, ready, strict=False)]
