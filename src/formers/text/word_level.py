"""Words: text split at spaces and punctuation, numbered, and cut into character n-grams."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..config import ProgressCallback
from ..errors import Error
from .normalise import normalise
from .regex_safety import WORD_REGEX
from .tokenizer import Tokenizer
from .tokenizer_styles import get_style
from .trainers.word_counts import WordCutter, count_words

WORD_PATTERN = re.compile(WORD_REGEX)
UNKNOWN_TOKEN = "[UNK]"


def split_words(text: str, lower: bool = True) -> list[str]:
    """The words and punctuation marks of a text, composed (NFC) and in lower case unless told otherwise."""
    text = normalise(text)
    # A final capital sigma has a rule of its own in Python and none in the Rust library.
    return WORD_PATTERN.findall(text.replace("Σ", "σ").lower() if lower else text)


def split_texts(texts: Iterable[str | Sequence[str]], lower: bool = True) -> Iterator[Sequence[str]]:
    """The words of each text; a text may be split already (by a morphological analyser, say)."""
    for text in texts:
        yield split_words(text, lower) if isinstance(text, str) else text


def build_word_tokenizer(
    words: Sequence[str],
    lower: bool = True,
    unknown: str = UNKNOWN_TOKEN,
    style: str | None = None,
    spaces: bool = False,
) -> Tokenizer:
    """A tokenizer that splits as `split_words` does (or at spaces alone) and numbers the words in their order;
    `unknown` is one of them."""
    first = {"type": "NFC"}
    cut = {"type": "Split", "pattern": {"Regex": WORD_REGEX}, "behavior": "Removed", "invert": True}
    about: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": [first, {"type": "Lowercase"}]} if lower else first,
        "pre_tokenizer": {"type": "WhitespaceSplit"} if spaces else cut,
        "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)}, "unk_token": unknown},
    }  # fmt: skip
    made = Tokenizer(json.dumps(about, ensure_ascii=False), {"unk": unknown})
    if style is None:
        return made
    marks = get_style(style)
    marks.add_to_backend(made.backend, {w: i for i, w in enumerate(words)})
    return Tokenizer(made.backend.to_str(pretty=True), marks.special)


def train(
    lines: Iterable[str],
    vocab_size: int = 50_000,
    *,
    style: str = "words",
    min_count: int = 1,
    lower: bool = False,
    spaces: bool | None = None,
    workers: int | None = None,
    tell: ProgressCallback | None = None,
) -> Tokenizer:
    """The `vocab_size` most frequent words, the most frequent first (ties: the smaller strings), as adaptive softmax
    wants them; any other is unknown. `min_count` leaves out words that are rarer still. Transformer-XL's (style
    transformer_xl) are cut at spaces only, the others at punctuation as well."""
    marks = get_style(style)
    if "unk" not in marks.special or vocab_size <= len(marks.special_tokens):
        raise Error(f"{vocab_size} words of style {style!r} leave no room", fix="take a larger vocabulary")
    spaces = style == "transformer_xl" if spaces is None else spaces
    unknown = marks.special["unk"]
    empty = build_word_tokenizer([unknown], lower, unknown, spaces=spaces)
    counts = count_words(lines, WordCutter(empty.json_text), workers, tell)
    order = sorted(((-n, w) for w, n in counts.items() if n >= min_count and w not in marks.special_tokens))
    words = [*marks.first_tokens, *(w for _, w in order)][: vocab_size - len(marks.last_tokens)]
    return build_word_tokenizer([*words, *marks.last_tokens], lower, unknown, style, spaces)


def choose_cutoffs(size: int) -> tuple[int, ...]:
    """Where adaptive softmax may cut a vocabulary: the shares of Transformer-XL's 20k, 40k and 200k of 267,735."""
    return tuple(n for share in (0.075, 0.15, 0.75) if (n := int(float(f"{share * size:.0e}"))) > 0)


def hash_ngrams(word: str, least: int, most: int, buckets: int) -> list[int]:
    """The buckets of a word's character n-grams (Bojanowski et al. 2016, §3.2), with < and > around the word.

    Numbered as fastText does it, so that its files can be used: a hash of the UTF-8 bytes, and single letters yes,
    a single < or > no.
    """
    marked = [tuple(b | 0xFFFFFF00 if b > 127 else b for b in c.encode()) for c in f"<{word}>"]  # bytes have a sign
    last, found = len(marked) - 1, []
    for start in range(last + 1):
        h = 2166136261  # FNV-1a goes on from n characters to n + 1
        for n, character in enumerate(marked[start : start + most], 1):
            for byte in character:
                h = (h ^ byte) * 16777619 & 0xFFFFFFFF
            if n >= least and (n > 1 or 0 < start < last):
                found.append(h % buckets)
    return found
