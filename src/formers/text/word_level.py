"""Words: text split at spaces and punctuation, numbered, cut into n-grams (fastText), or spelled as characters (ELMo).

ELMo reads a word as the bytes of its UTF-8 between two word marks, in 50 slots. Of these ids, 1 to 256 are bytes plus
one, 257 and 258 stand for a sentence's begin and end, 259 and 260 for a word's, and 261 fills the slots that are left.
Id 0 is no character at all; models add nothing for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ..config import JSONObject, ProgressCallback
from ..errors import Error
from .backend_safety import WORD_REGEX
from .normalise import normalise
from .tokenizer import Tokenizer
from .tokenizer_kinds import TokenizerStyle
from .trainers.word_counts import WordCutter, count_words

WORD_PATTERN = re.compile(WORD_REGEX)
UNKNOWN_TOKEN = "[UNK]"


def split_words(text: str, lower: bool = True) -> list[str]:
    """Return the words and punctuation marks of a text, composed (NFC) and in lower case unless told otherwise."""
    text = normalise(text)
    # A final capital sigma has a rule of its own in Python and none in the Rust library.
    return WORD_PATTERN.findall(text.replace("Σ", "σ").lower() if lower else text)


def split_texts(texts: Iterable[str | Sequence[str]], lower: bool = True) -> Iterator[Sequence[str]]:
    """Return the words of each text; a text may be split already (by a morphological analyser, say)."""
    for text in texts:
        yield split_words(text, lower) if isinstance(text, str) else text


def build_word_tokenizer(
    words: Sequence[str], lower: bool = True, unknown: str = UNKNOWN_TOKEN, style: TokenizerStyle | None = None,
    spaces: bool = False,
) -> Tokenizer:  # fmt: skip
    """Build a tokenizer that splits as `split_words` does, or at spaces; it numbers the words, `unknown` among them."""
    first = {"type": "NFC"}
    cut = {"type": "Split", "pattern": {"Regex": WORD_REGEX}, "behavior": "Removed", "invert": True}
    about: JSONObject = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [first, {"type": "Lowercase"}]} if lower else first,
        "pre_tokenizer": {"type": "WhitespaceSplit"} if spaces else cut,
        "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": unknown},
    }  # fmt: skip
    tokenizer = Tokenizer(json.dumps(about, ensure_ascii=False), {"unk": unknown})
    return tokenizer if style is None else style.finish_tokenizer(tokenizer.backend, about["model"]["vocab"])


def train_words(
    lines: Iterable[str], vocab_size: int = 50_000, *, style: TokenizerStyle, min_count: int = 1,
    lower: bool = False, spaces: bool | None = None, workers: int | None = None, tell: ProgressCallback | None = None,
) -> Tokenizer:  # fmt: skip
    """Return the `vocab_size` most frequent words, the most frequent first (ties: the smaller strings), the order that
    adaptive softmax needs; any other is unknown. `min_count` leaves out words that are rarer still. They are cut at
    spaces only (`spaces`, or as the style says), or at punctuation as well."""
    if "unk" not in style.special or vocab_size <= len(style.special_tokens):
        raise Error(f"{vocab_size} words of style {style.name!r} leave no room", fix="take a larger vocabulary")
    spaces = style.splits_at_spaces if spaces is None else spaces
    unknown = style.special["unk"]
    empty = build_word_tokenizer([unknown], lower, unknown, spaces=spaces)
    counts = count_words(lines, WordCutter(empty.json_text), workers, tell)
    order = sorted(((-n, w) for w, n in counts.items() if n >= min_count and w not in style.special_tokens))
    words = [*style.first_tokens, *(w for _, w in order)][: vocab_size - len(style.last_tokens)]
    return build_word_tokenizer([*words, *style.last_tokens], lower, unknown, style, spaces)


def choose_cutoffs(size: int) -> tuple[int, ...]:
    """Return where adaptive softmax cuts a vocabulary: in proportion to Transformer-XL's 20k, 40k, 200k of 267,735."""
    return tuple(n for share in (0.075, 0.15, 0.75) if (n := int(float(f"{share * size:.0e}"))) > 0)


def hash_ngrams(word: str, least: int, most: int, buckets: int) -> list[int]:
    """Return the buckets of a word's character n-grams (Bojanowski et al. 2016, §3.2), with < and > around the word.
    Numbered as fastText does it, so that its files can be used: a hash of the UTF-8 bytes, and single letters yes, a
    single < or > no."""
    marked = [tuple(b | 0xFFFFFF00 if b > 127 else b for b in c.encode()) for c in f"<{word}>"]  # bytes have a sign
    last, hashes = len(marked) - 1, []
    for start in range(last + 1):
        h = 2166136261  # FNV-1a continues from n characters to n + 1
        for n, character in enumerate(marked[start : start + most], 1):
            for byte in character:
                h = (h ^ byte) * 16777619 & 0xFFFFFFFF
            if n >= least and (n > 1 or 0 < start < last):
                hashes.append(h % buckets)
    return hashes


# Words as characters, the way ELMo reads them.
WORD_SLOTS = 50  # of a word, its two marks included: 48 bytes, or 16 syllables of Hangul
BYTE_SHIFT = 1  # published files count from 0 and leave that number to padding when they are read
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, SLOT_PAD = (BYTE_SHIFT + i for i in range(256, 261))


def encode_word(text: str, slots: int = WORD_SLOTS) -> list[int]:
    """Return the ids of one word. Bytes that do not fit are cut, in the middle of a character if need be."""
    if not (inner := text.encode("utf-8", "ignore")[: slots - 2]):
        raise Error(f"{text!r} has no characters", fix="leave empty words out")
    return pad_word([BYTE_SHIFT + byte for byte in inner], slots)


def pad_word(inner: list[int], slots: int) -> list[int]:
    """Return ids between the two word marks, padded."""
    return [WORD_BEGIN, *inner, WORD_END, *[SLOT_PAD] * (slots - 2 - len(inner))]


def encode_sentence(words: Sequence[str], slots: int = WORD_SLOTS, *, marks: bool = True) -> np.ndarray:
    """(words, slots) ids; with `marks`, two more words say where the sentence begins and ends."""
    if isinstance(words, str):
        raise Error("a sentence is a list of words, not one string", fix="split it: text.split()")
    if slots < 3:
        raise Error(f"a word needs at least 3 slots, got {slots}", fix=f"take {WORD_SLOTS}")
    rows = [encode_word(text, slots) for text in words]
    if marks:
        rows = [pad_word([SENTENCE_BEGIN], slots), *rows, pad_word([SENTENCE_END], slots)]
    return np.array(rows, dtype=np.int64).reshape(-1, slots)


def encode_sentences(
    sentences: Sequence[Sequence[str]], slots: int = WORD_SLOTS, *, marks: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids (rows, words, slots) of several sentences and keep (rows, words), True where there is a word."""
    rows = [encode_sentence(words, slots, marks=marks) for words in sentences]
    longest = max(map(len, rows), default=0)
    ids, keep = np.zeros((len(rows), longest, slots), np.int64), np.zeros((len(rows), longest), bool)
    for number, row in enumerate(rows):
        ids[number, : len(row)], keep[number, : len(row)] = row, True
    return ids, keep
