"""Documents to arrays: the ids of each, and where its sentences, phrases and entities begin.

A document is encoded once, as a whole: its tokens are those that the tokenizer gives for it. Sentences and units are
found in the text, and the token that holds their first character is marked. Nothing here needs torch: it runs in the
processes of `formers prepare`.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import Error
from ..text.tokenizer import Tokenizer, guarded
from . import plain

PHRASE, ENTITY = 1, 2  # bits of `units`: a phrase begins at this token, an entity begins
WORD = re.compile(r"\S+")
BITS = {"phrase": PHRASE, "entity": ENTITY}
END = operator.itemgetter(1)
Offsets = list[tuple[int, int]]  # where each token begins and ends in its text
Split = Callable[[str], Sequence[str]]  # a text → its sentences
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
    rust, texts = tokenizer.rust, list(documents)
    call = rust.encode_batch_fast if split is None and units is None else rust.encode_batch
    rows = guarded(lambda: call(texts, add_special_tokens=False))
    ids = [row.ids for row in rows]
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
            found += (begin + token for token in first(rows[i].offsets, texts[i], split))
        sentences = np.array(found, np.int64)
    if units is not None:
        marks = np.zeros(len(tokens), np.uint8)
        for begin, i in zip(starts, kept, strict=True):
            offsets = rows[i].offsets
            for at, bits in edges(texts[i], units(texts[i])).items():
                marks[begin + place(offsets, at)] |= bits
            marks[begin + len(ids[i]) :][: len(tail)] = PHRASE | ENTITY  # the end mark is a unit of its own
    return Encoded(tokens, lengths, sentences, marks)


def width(vocab: int) -> type:
    """The narrowest type that holds the ids of a vocabulary."""
    return np.uint16 if vocab <= 2**16 else np.uint32


def place(offsets: Offsets, at: int, low: int = 0) -> int:
    """The token that holds the character `at`: the first that ends behind it, or the last of all."""
    return bisect.bisect_right(offsets, at, low, len(offsets) - 1, key=END)


def first(offsets: Offsets, text: str, split: Split) -> Iterator[int]:
    """The tokens at which sentences begin, each once; the first token always."""
    yield 0
    before = 0
    for at in begins(text, split(text)):
        token = place(offsets, at, before)
        if token > before:
            yield token
            before = token


def begins(text: str, sentences: Sequence[str]) -> Iterator[int]:
    """Where each sentence begins in a text; a splitter may have changed the spaces inside a sentence."""
    at = 0
    for sentence in sentences:
        found, size = text.find(sentence, at), len(sentence)
        if not size or sentence.isspace():
            continue
        if found < 0:
            word = sentence.split()[0]
            found, size = text.find(word, at), len(word)
        if found < 0:
            raise Error(f"the sentence {sentence[:40]!r} is not in its text", fix="report this: the splitter is wrong")
        yield found
        at = found + size


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
    return (
        None if name is None else functools.partial(plain.full("text.sentences", "split", plain.split), splitter=name)
    )
