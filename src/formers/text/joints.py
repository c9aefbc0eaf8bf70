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

JOINT = "\u034f"  # Unicode's own grapheme joiner, which no font shows
WORD = re.compile("[가-힣]{1,500}")  # what is analysed: Hangul alone, so that 영화 and 영화. are the same word
LOOSE = re.compile(rf"(?<!\S){JOINT}|{JOINT}(?=\s|{JOINT}|$)")  # a mark with nothing before it, or nothing behind
CUT: dict[str, str] = {}  # words analysed before, with a JOINT between their morphemes
MOST = 1 << 19  # of them are remembered


def mark_morphemes(texts: Sequence[str]) -> list[str]:
    """Return composed texts with a JOINT between the morphemes of each Korean word, and between Hangul and whatever
    else is written together with it (3명, AI는, 영화ㅋㅋ).

    A word is analysed by itself: it is cut alike wherever it stands, and only once. Words without Hangul stay whole.
    Words that are new go to the analyser together, which reads them on several threads.
    """
    found = dict.fromkeys(word for text in texts for word in WORD.findall(text))
    if new := [word for word in found if word not in CUT]:
        if len(CUT) + len(new) > MOST:
            CUT.clear()
            new = list(found)
        split_words = import_module(f"{__package__}.korean").split_words
        CUT.update((word, JOINT.join(parts)) for word, parts in zip(new, split_words(new), strict=True))
    return [LOOSE.sub("", WORD.sub(lambda word: f"{JOINT}{CUT[word[0]]}{JOINT}", text)) for text in texts]


def strip_joints(text: str) -> str:
    """Return a text in NFC without any JOINT of its own."""
    return normalise(text).replace(JOINT, "")


def marked(text: str) -> tuple[str, list[int]]:
    """A composed text with a JOINT between the morphemes of each word, and where each character comes from."""
    ready = mark_morphemes([strip_joints(text)])[0]
    return ready, origins(text, ready)


def origins(text: str, ready: str) -> list[int]:
    """Where each character comes from; a joint belongs to the character after it. Decomposed, both texts are alike, so
    that what comes before a character has the same length in both."""
    ends = list(accumulate(0 if c == JOINT else len(unicodedata.normalize("NFD", c)) for c in text))
    lengths = (0 if c == JOINT else len(unicodedata.normalize("NFD", c)) for c in ready)
    begins = accumulate(lengths, initial=0)
    return [min(bisect_right(ends, begin), len(text) - 1) for begin, _ in zip(begins, ready, strict=False)]
