"""Korean words cut into morphemes before a tokenizer sees them. The Rust library knows no morphemes, so a mark stands
between them: a tokenizer whose file knows the mark wants its text cut, and that survives saving and loading."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from importlib import import_module
from itertools import accumulate

from .normalise import normalise

JOINT = "\u034f"  # Unicode's own grapheme joiner, which no font shows


def marked(text: str) -> tuple[str, list[int]]:
    """A composed text with a JOINT between the morphemes of each word, and where each character comes from."""
    morphemes = import_module(f"{__package__}.korean").morphemes
    composed = normalise(text).replace(JOINT, "")
    out: list[str] = []
    place = 0
    for piece in morphemes(composed):
        start = composed.index(piece, place)
        if place and start == place:
            out.append(JOINT)
        out.append(composed[place:start] + piece)
        place = start + len(piece)
    ready = "".join(out) + composed[place:]
    return ready, origins(text, ready)


def origins(text: str, ready: str) -> list[int]:
    """Where each character comes from; a joint belongs to the character after it. Decomposed, both texts are alike, so
    that what comes before a character has the same length in both."""
    ends = list(accumulate(0 if c == JOINT else len(unicodedata.normalize("NFD", c)) for c in text))
    lengths = (0 if c == JOINT else len(unicodedata.normalize("NFD", c)) for c in ready)
    begins = accumulate(lengths, initial=0)
    return [min(bisect_right(ends, begin), len(text) - 1) for begin, _ in zip(begins, ready, strict=False)]
