"""The language of a text: which of the two languages of the documentation its readers are most likely to want."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

Language = Literal["ko", "en"]

HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff]")
LETTER = re.compile(r"[^\W\d_]")
MIN_HANGUL_RATIO = (
    1 / 3
)  # of all letters; a syllable counts for one letter and says as much as two or three of the Latin ones
MAX_CHARACTERS = 100_000  # characters that are looked at


def detect_language(texts: str | Iterable[str]) -> Language:
    """Return "ko" if at least a third of the letters of some texts are Hangul (syllables or jamo), else "en".

    Digits, punctuation and emoji do not count, so 2024년 is Korean; text with no letters at all is "en". Korean prose
    that is full of English terms stays Korean, and an English page that quotes a Korean name stays English. Reads at
    most the first 100,000 characters, a few thousand of each text, and stops there: an iterator may be endless.
    """
    letters = hangul = read = 0
    for text in [texts] if isinstance(texts, str) else texts:
        part = text[: MAX_CHARACTERS if isinstance(texts, str) else 4000]
        letters += sum(1 for _ in LETTER.finditer(part))
        hangul += sum(1 for _ in HANGUL.finditer(part))
        read += len(part) + 1
        if read >= MAX_CHARACTERS:
            break
    return "ko" if letters and hangul >= MIN_HANGUL_RATIO * letters else "en"
