"""Punctuation that keeps the spaces around it, so that decoding gives the text back. BERT's way of cutting forgets
whether "." stood alone or at the end of a word. Here a mark is a word of its own as well, but takes along one space on
either side where there is one: " (", ", ", "." are different words. All is said in the tokenizer.json, with parts that
every reader of such files knows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

# What BERT cuts off: ASCII's marks, Unicode's punctuation, and the characters of Chinese.
HAN_RANGES = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
PUNCTUATION_CLASS = rf"[!-/:-@\[-`{{-~\p{{P}}{HAN_RANGES}]"
WORD_CLASS = rf"[^ !-/:-@\[-`{{-~\p{{P}}{HAN_RANGES}]"
# A space between two marks belongs to the second.
SPACED_WORD_REGEX = rf" ?{PUNCTUATION_CLASS}(?: (?! *+{PUNCTUATION_CLASS}))?|{WORD_CLASS}+"


def build_normalizer(lower: bool) -> normalizers.Normalizer:
    """NFC, and white space of any kind as spaces. Accents stay: stripping them would take Hangul apart."""
    bert = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=lower)
    return normalizers.Sequence([normalizers.NFC(), bert])


def build_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Cut text into words, and marks with the spaces around them."""
    return pre_tokenizers.Split(Regex(SPACED_WORD_REGEX), "removed", invert=True)


def build_decoder(first: Iterable[Any], special: Iterable[str]) -> decoders.Decoder:
    """Words with a space between any two, as the `first` decoders make them, less the space beside each mark: it has
    its own. Special tokens look like marks and are words."""
    names = "|".join(map(re.escape, special))
    before = Regex(rf" (?!{names})(?={PUNCTUATION_CLASS})")
    behind = Regex(rf"(?<={PUNCTUATION_CLASS})(?<!{names}) (?! *+(?!{names}){PUNCTUATION_CLASS})")
    tail = [decoders.Replace(before, ""), decoders.Replace(behind, "")]
    clean = [decoders.Replace(Regex(" ++"), " "), decoders.Replace(Regex(r"\A | \z"), "")]
    return decoders.Sequence([*first, decoders.Fuse(), *tail, *clean])


def add_spaced_variants(counts: Counter[str]) -> None:
    """Add the words that a mark may be, alone and between spaces, so that each has its letters in the alphabet."""
    cut = build_pre_tokenizer()
    for mark in {word.strip() for word in counts}:
        if len(mark) == 1 and len(cut.pre_tokenize_str(mark * 2)) == 2:
            counts.setdefault(mark, 0)
            counts.setdefault(f" {mark} ", 0)
