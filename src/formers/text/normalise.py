"""Text as read: one form of Unicode, no characters that are not text, a count of what was changed, and the language
that it is in."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Literal

from ..config import count_noun
from ..errors import Error

# Characters that are not text. A byte that is not UTF-8 arrives here as a lone surrogate (Python's surrogateescape).
REMOVED_CHARACTERS = {
    "undecodable": "\ud800-\udfff", "nul": "\0", "marks": "\ufeff", "replaced": "\ufffd",
    "control": "\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufdd0-\ufdef\ufffe\uffff",
}  # fmt: skip
LINE_BREAKS = "\x0b\x0c\x1c-\x1f\x85\u2028\u2029"  # Python ends a line at these, files do not: they become a space
UNCLEAN_PATTERN = re.compile(f"[{''.join(REMOVED_CHARACTERS.values())}{LINE_BREAKS}]")
REMOVED_PATTERNS = {name: re.compile(f"[{characters}]+") for name, characters in REMOVED_CHARACTERS.items()}
BREAK_PATTERN = re.compile(f"[{LINE_BREAKS}]")
# NFKC turns these into conjoining jamo, and ㄱㅏ into 가: compatibility, half-width, parenthesised and circled jamo.
COMPATIBILITY_JAMO = re.compile("([\u3130-\u318f\uffa0-\uffdc\u3200-\u320d\u3260-\u326d]+)")
DecomposedForm = Literal["NFD", "NFKD"]
MAX_MARK_RUN = 32  # marks on one letter that Python puts into order one by one; it takes the square of their number
CHANGE_DESCRIPTIONS = {
    "composed": "text(s) composed to NFC", "undecodable": "byte(s) removed for not being UTF-8",
    "nul": "NUL character(s) removed", "marks": "byte order mark(s) removed",
    "replaced": "replacement character(s) removed",
    "control": "control character(s) removed", "carriage": "carriage return", "empty": "empty document(s) left out",
    "cut": "cut(s) in long documents", "skipped": "broken row(s) skipped",
}  # fmt: skip


@dataclass
class CleaningReport:
    """What was read and what was changed in it: a count for each kind, and what was chosen where nothing was said."""

    documents: int = 0
    lines: int = 0  # of text files; rows of tables
    composed: int = 0  # lines, or documents of a table, that were not NFC
    undecodable: int = 0  # bytes that are not UTF-8, half characters of a JSON escape
    nul: int = 0
    marks: int = 0  # U+FEFF, at the beginning of a file or inside
    replaced: int = 0  # U+FFFD: somebody else's damage
    control: int = 0  # and line breaks that are none in a file (form feed, U+2028), which become a space
    carriage: int = 0  # CR: \r\n and a lone \r become \n
    empty: int = 0
    cut: int = 0  # documents longer than allowed
    skipped: int = 0
    notes: list[str] = field(default_factory=list)

    def add_note(self, text: str) -> None:
        """Keep a sentence for the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    def add(self, other: CleaningReport) -> None:
        """Take in another count, of another worker say."""
        for name, count in vars(other).items():  # dynamic: every count
            if name != "notes":
                vars(self)[name] += count  # dynamic: every count
        for text in other.notes:
            self.add_note(text)

    def __str__(self) -> str:
        sizes = (count_noun(self.documents, "document"), count_noun(self.lines, "line"))
        return ", ".join([*sizes, *self.describe(*CHANGE_DESCRIPTIONS), *self.notes])

    def describe_losses(self) -> list[str]:
        """Say what of a file was left out: bytes that are not text, rows that are broken."""
        return self.describe("undecodable", "replaced", "skipped")

    def describe(self, *kinds: str) -> list[str]:
        """Say how much of each kind was changed; nothing for a kind that did not occur."""
        counts = asdict(self)
        return [count_noun(counts[kind], CHANGE_DESCRIPTIONS[kind]) for kind in kinds if counts[kind]]


def normalise(text: str, form: str = "NFC") -> str:
    """Compose (NFC): macOS writes Hangul as jamo (NFD), which makes many more tokens; compatibility jamo
    (ㅋㅋ) stay. With "NFKC" they stay too; everything else that has a plain form gets it (half and full
    width, ligatures)."""
    if form == "NFKC":
        parts = COMPATIBILITY_JAMO.split(text)
        parts[::2] = [unicodedata.normalize("NFKC", order_marks(part, "NFKD")) for part in parts[::2]]
        return normalise("".join(parts))
    if form != "NFC":
        raise Error(f"there is no normal form {form!r}", fix="choose NFC or NFKC; the others take Hangul apart")
    return compose_nfc(text)


def compose_nfc(text: str) -> str:
    """Compose (NFC) in linear time; the same string where nothing changes."""
    ready = order_marks(text)
    return text if unicodedata.is_normalized("NFC", ready) and ready == text else unicodedata.normalize("NFC", ready)


def compose_with_origins(text: str) -> tuple[str, list[int] | None]:
    """Return a text in NFC, and where each of its characters, and its end, stood in the text as it was given.

    The places are None where the text is NFC already."""
    if compose_nfc(text) == text:
        return text, None
    parts: list[tuple[int, str]] = []  # stretches that compose independently: a letter with its marks, a syllable
    for at, character in enumerate(text):
        begin, part = parts[-1] if parts else (at, "")
        joins = unicodedata.combining(character) or compose_nfc(part + character) != compose_nfc(part) + character
        if parts and joins:
            parts[-1] = begin, part + character
        else:
            parts.append((at, character))
    characters, origins = [], []
    for at, part in parts:
        characters.append(compose_nfc(part))
        origins += [at + i * len(part) // len(characters[-1]) for i in range(len(characters[-1]))]
    return "".join(characters), [*origins, len(text)]


def order_marks(text: str, form: DecomposedForm = "NFD") -> str:
    """Return text whose long runs of marks are in Unicode's order; its normal forms stay the same."""
    # A long run of marks has one of the places that are looked at here.
    if text.isascii() or not compile_mark_pattern(form, 1).search(text[::MAX_MARK_RUN]):
        return text
    apart = functools.partial(unicodedata.normalize, form)
    return compile_mark_pattern(form, MAX_MARK_RUN).sub(
        lambda run: "".join(sorted("".join(map(apart, run[0])), key=unicodedata.combining)), text
    )


@functools.cache
def compile_mark_pattern(form: DecomposedForm, least: int) -> re.Pattern[str]:
    """Return a pattern of runs of characters that stand on the letter before them, whole or taken apart."""
    combining = unicodedata.combining
    marks = [  # there are none after
        c for c in map(chr, range(0x300, 0x20000))
        if combining(c) or (unicodedata.decomposition(c) and all(map(combining, unicodedata.normalize(form, c))))
    ]  # fmt: skip
    return re.compile(f"[{''.join(marks)}]{{{least},}}")


@functools.cache
def compile_continuations() -> re.Pattern[str]:
    """Return a pattern of characters that may join those before them in NFC: marks, vowels and codas of Hangul."""
    seconds = {c for whole in map(chr, range(0x20000)) for c in unicodedata.normalize("NFD", whole)[1:]}
    characters = [c for c in map(chr, range(0x300, 0x20000)) if unicodedata.combining(c) or c in seconds]
    return re.compile(f"[{''.join(map(re.escape, characters))}]")


def scrub_text(text: str, changes: CleaningReport) -> str:
    """Return text without characters that are none: NUL, byte order marks, control characters, damaged bytes."""
    if not UNCLEAN_PATTERN.search(text):
        return text
    text, count = BREAK_PATTERN.subn(" ", text)
    changes.control += count
    for name, pattern in REMOVED_PATTERNS.items():
        left = pattern.sub("", text)
        vars(changes)[name] += len(text) - len(left)  # dynamic: REMOVED_PATTERNS names the counts
        text = left
    return text


def compose_and_count(text: str, changes: CleaningReport) -> str:
    """Compose (NFC), and count the changes."""
    composed_text = compose_nfc(text)
    changes.composed += composed_text != text
    return composed_text


Language = Literal["ko", "en"]

HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff]")
LETTER = re.compile(r"[^\W\d_]")
# Of all letters; a syllable counts for one letter and says as much as two or three of the Latin ones.
MIN_HANGUL_RATIO = 1 / 3
MAX_CHARACTERS = 100_000  # characters that are looked at


def detect_language(texts: str | Iterable[str]) -> Language:
    """Return "ko" if at least a third of the letters of some texts are Hangul (syllables or jamo), else "en".

    Digits, punctuation and emoji do not count, so 2024년 is Korean; text with no letters at all is "en". Korean prose
    that is full of English terms stays Korean, and an English page that quotes a Korean name stays English. Reads at
    most the first 100,000 characters, a few thousand of each text, and stops there: an iterator may be endless."""
    letters = hangul = read = 0
    for text in [texts] if isinstance(texts, str) else texts:
        part = text[: MAX_CHARACTERS if isinstance(texts, str) else 4000]
        letters += sum(1 for _ in LETTER.finditer(part))
        hangul += sum(1 for _ in HANGUL.finditer(part))
        read += len(part) + 1
        if read >= MAX_CHARACTERS:
            break
    return "ko" if letters and hangul >= MIN_HANGUL_RATIO * letters else "en"
