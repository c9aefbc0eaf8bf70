"""Hangul syllables as jamo, for byte-level BPE: 한 is ᄒ + ᅡ + ᆫ, so that pieces may share a stem whose last syllable
changes (하다, 한다, 했다).

The jamo are Unicode's conjoining ones, which NFD makes and NFC puts together again: they say whether a consonant begins
or ends its syllable, so that nothing is ambiguous, and ㅋㅋ (compatibility jamo) stays what it is. A file can
say NFD (every reader of tokenizer.json takes syllables apart alike), but no decoder of the tokenizers library composes:
`Tokenizer.decode` does, other readers get NFD and have to compose it.
"""

from __future__ import annotations

import re

from tokenizers import Regex, pre_tokenizers

from .bytelevel import ALPHABET

LETTERS = [chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3))]  # of modern Hangul
STAND_IN = {byte: character for character, byte in ALPHABET.items()}
JAMO = ["".join(STAND_IN[byte] for byte in letter.encode()) for letter in LETTERS]  # each is three bytes
LEADS = sorted({jamo[:2] for jamo in JAMO})
PIECES = [*LEADS, *JAMO]
MERGES = [
    *((lead[0], lead[1]) for lead in LEADS),
    *((jamo[:2], jamo[2]) for jamo in JAMO),
]  # they come before all others
UNIT = re.compile("|".join(map(re.escape, [*JAMO, *LEADS])) + "|.", re.DOTALL)
# GPT-2's, but for accents: taken apart, they stay with their letter.
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


def cut_jamo(word: str) -> list[str]:
    """Cut the byte-level spelling of a word into jamo, and into single bytes where it has other characters."""
    return UNIT.findall(word)


def split_words() -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer: words as in GPT-2, accents included, then bytes."""
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
