"""Text at the door: one form of Unicode, no bytes that are not text, and a count of what was changed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Changes:
    """How many lines were read, and how many of them were not NFC, held NUL or replacement characters."""

    lines: int = 0
    composed: int = 0
    cleaned: int = 0

    def __str__(self) -> str:
        return f"{self.lines:,} lines, {self.composed:,} composed to NFC, {self.cleaned:,} cleaned"


def normalise(text: str) -> str:
    """NFC: macOS writes Hangul as jamo (NFD), which tokenizes many times longer; compatibility jamo (ㅋㅋ) stay."""
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def clean(lines: Iterable[str]) -> tuple[list[str], Changes]:
    """Normalised lines without BOM, NUL, carriage returns and replacement characters, and what was changed."""
    changes, out = Changes(), []
    for line in lines:
        composed = normalise(line)
        plain = composed.replace("\ufeff", "").replace("\x00", "").replace("\ufffd", "").rstrip("\r\n")
        changes.lines += 1
        changes.composed += composed != line
        changes.cleaned += plain != composed.rstrip("\r\n")
        out.append(plain)
    return out, changes
