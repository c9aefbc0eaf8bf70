"""Where tokens stand in a text as it came, whatever was done to it before it was cut."""

from __future__ import annotations

import unicodedata
from typing import Any

Offsets = list[tuple[int, int]]  # where each token begins and ends in its text


def offsets(made: Any, origins: list[int] | None, text: str) -> Offsets:
    """The places of the tokens of an encoding; `origins` says where each character of what was cut comes from."""
    found: Offsets = made.offsets
    if origins is not None:
        found = [(origins[a], origins[b - 1] + 1) if b > a else (0, 0) for a, b in found]
    if unicodedata.is_normalized("NFC", text):
        return found
    whole: Offsets = []
    for place, (begin, end) in enumerate(found, 1):
        while place < len(found) and found[place][0] < end:  # a token that shares its characters, or a mark
            place += 1
        most = found[place][0] if place < len(found) else len(text)
        whole.append((begin, reach(text, end, most)) if end > begin else (begin, end))
    return whole


def reach(text: str, end: int, most: int) -> int:
    """The end of a token, behind what is one character with its last one: marks, and the rest of a decomposed syllable,
    which the library leaves out; `most` is where the next token begins."""
    last, size = end - 1, len(unicodedata.normalize("NFC", text[end - 1 : end]))
    while end < most and len(unicodedata.normalize("NFC", text[last : end + 1])) == size:
        end += 1
    while end < most and unicodedata.combining(text[end]):
        end += 1
    return end
