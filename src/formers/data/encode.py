"""Documents to arrays: the ids of each, and where its sentences, phrases and entities begin.

A document is encoded once, as a whole: its tokens are those that the tokenizer gives for it. Sentences and units are
found in the text, and the token that holds their first character is marked. Nothing here needs torch: it runs in the
processes of `formers prepare`.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..text.sentences import spans
from ..text.tokenizer import Offsets, Tokenizer

PHRASE, ENTITY = 1, 2  # bits of `units`: a phrase begins at this token, an entity begins
WORD = re.compile(r"\S+")
BITS = {"phrase": PHRASE, "entity": ENTITY}
END = operator.itemgetter(1)
Split = Callable[[str], Iterable[int]]  # a text → where its sentences begin
Units = Callable[[str], Sequence[tuple[int, int, str]]]  # a text → (begin, end, "phrase" or "entity")


@dataclass(frozen=True)
class Encoded:
    """Documents one after the other, those without a token left out."""

    ids: np.ndarray  # (n,)
    lengths: np.ndarray  # (documents,) int64
    sentences: np.ndarray | None  # (sentences,) int64 tokens at which a sentence begins
    units: np.ndarray | None  # (n,) uint8


def encode(
    documents: Sequence[str], tokenizer: Tokenizer, split: Split | None = None, units: Units | None = None
) -> Encoded:
    """Encode documents, each with the end mark behind it, if the tokenizer has one."""
    texts = list(documents)
    offsets: list[Offsets] = []
    if split is None and units is None:
        ids = tokenizer.encode_batch(texts, special=False)
    else:
        rows = tokenizer.encode_batch_with_offsets(texts, special=False)
        ids, offsets = [row for row, _ in rows], [row for _, row in rows]
    kept = [i for i, row in enumerate(ids) if row]
    end = tokenizer.id("eos")
    tail = [] if end is None else [end]
    lengths = np.array([len(ids[i]) + len(tail) for i in kept], np.int64)
    flat = itertools.chain.from_iterable(itertools.chain(ids[i], tail) for i in kept)
    tokens: np.ndarray = np.fromiter(flat, width(len(tokenizer)), int(lengths.sum()))
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1].tolist()
    sentences = marks = None
    if split is not None:
        found: list[int] = []
        for begin, i in zip(starts, kept, strict=True):
            found += (begin + token for token in first(offsets[i], split(texts[i])))
        sentences = np.array(found, np.int64)
    if units is not None:
        marks = np.zeros(len(tokens), np.uint8)
        for begin, i in zip(starts, kept, strict=True):
            for at, bits in edges(texts[i], units(texts[i])).items():
                marks[begin + place(offsets[i], at)] |= bits
            marks[begin + len(ids[i]) :][: len(tail)] = PHRASE | ENTITY  # the end mark is a unit of its own
    return Encoded(tokens, lengths, sentences, marks)


def width(vocab: int) -> type:
    """The narrowest type that holds the ids of a vocabulary."""
    return np.uint16 if vocab <= 2**16 else np.uint32


def place(offsets: Offsets, at: int, low: int = 0) -> int:
    """The token that holds the character `at`: the first that ends behind it, or the last of all."""
    return bisect.bisect_right(offsets, at, low, len(offsets) - 1, key=END)


def first(offsets: Offsets, begins: Iterable[int]) -> Iterator[int]:
    """The tokens at which sentences begin, each once; the first token always."""
    yield 0
    before = 0
    for at in begins:
        token = place(offsets, at, before)
        if token > before:
            yield token
            before = token


def edges(text: str, units: Sequence[tuple[int, int, str]]) -> dict[int, int]:
    """Where units begin: the bits of each character at which one does. What is in no unit is its own word by word."""
    words = [m.start() for m in WORD.finditer(text)]
    found: dict[int, int] = {}
    for kind, bit in BITS.items():
        spans = sorted((begin, end) for begin, end, k in units if k == kind)
        inside, at = -1, 0
        for begin, end in [*spans, (len(text), len(text))]:
            while at < len(words) and words[at] < begin:
                if words[at] >= inside:
                    found[words[at]] = found.get(words[at], 0) | bit
                at += 1
            if begin < inside or begin == len(text):
                continue  # it overlaps with the one before
            found[begin] = found.get(begin, 0) | bit
            inside = end
            while at < len(words) and words[at] < end:
                at += 1
            if end < len(text) and not text[end].isspace():  # the rest of a word: a Korean particle, a full stop
                found[end] = found.get(end, 0) | bit
    return found


def splitter(name: str | None) -> Split | None:
    """How documents are cut into sentences: None (not at all), rules or kiwi."""
    if name is None:
        return None
    if name == "kiwi":
        from ..text import korean

        return korean.begins
    return lambda text: [begin for begin, _ in spans(text)]
