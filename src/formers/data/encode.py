"""Documents to arrays: the ids of each, and where its sentences, phrases and entities begin.

A document is encoded once, as a whole: its tokens are those that the tokenizer gives for it. Sentences and units are
found in the text, and the token that holds their first character is marked. Nothing here needs torch: it runs in the
processes of `formers prepare`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..text.sentences import spans
from ..text.tokenizer import Tokenizer

TOLD = {
    "spelled": "documents that spell a special token (it stays text)",
    "tokenless": "documents left out that have no token",
    "single": "documents of one token, too short for an example",
    "unknown": "unknown tokens",
}
PHRASE, ENTITY = 1, 2  # bits of `units`: a phrase begins at this token, an entity begins
WORD = re.compile(r"\S+")
BITS = {"phrase": PHRASE, "entity": ENTITY}
Split = Callable[[str], Iterable[int]]  # a text → where its sentences begin
Units = Callable[[str], Sequence[tuple[int, int, str]]]  # a text → (begin, end, "phrase" or "entity")


@dataclass(frozen=True)
class Encoded:
    """Documents one after the other, those without a token left out."""

    ids: np.ndarray  # (n,)
    lengths: np.ndarray  # (documents,) int64
    sentences: np.ndarray | None  # (sentences,) int64 tokens at which a sentence begins
    units: np.ndarray | None  # (n,) uint8
    counts: dict[str, int] = field(default_factory=dict)  # documents that one should hear of, by the names of TOLD


def encode(
    documents: Sequence[str], tokenizer: Tokenizer, split: Split | None = None, units: Units | None = None
) -> Encoded:
    """Encode documents, each with the end mark behind it, if the tokenizer has one.

    A document is text: one that spells a special token ("[SEP]", "</s>") gets the pieces of these letters.
    """
    texts = list(documents)
    noted: list[tuple[int, list[int]]] = []  # of each text: how many sentences it has, the bits of its units

    def places(text: str) -> list[int]:
        """Where sentences begin, then where units do."""
        begins = [] if split is None else list(split(text))
        bits = {} if units is None else edges(text, units(text))
        noted.append((len(begins), list(bits.values())))
        return [*begins, *bits]

    rows: list[tuple[list[int], list[int]]]
    if split is tabs:
        rows = sides(texts, tokenizer)
        noted += [(len(found), []) for _, found in rows]
    elif split is None and units is None:
        rows = [(row, []) for row in tokenizer.encode_batch(texts, special=False, parse=False)]
    else:
        rows = tokenizer.encode_with_places(texts, places)
    kept = [i for i, (row, _) in enumerate(rows) if row]
    end = tokenizer.id("eos")
    tail = [] if end is None else [end]
    lengths = np.array([len(rows[i][0]) + len(tail) for i in kept], np.int64)
    flat = itertools.chain.from_iterable(itertools.chain(rows[i][0], tail) for i in kept)
    tokens: np.ndarray = np.fromiter(flat, width(len(tokenizer)), int(lengths.sum()))
    sentences: list[int] = []
    marks = None if units is None else np.zeros(len(tokens), np.uint8)
    for begin, i in zip((np.cumsum(lengths) - lengths).tolist(), kept, strict=True):
        row, found = rows[i]
        if split is not None:
            sentences += (begin + token for token in sorted({0, *found[: noted[i][0]]}))  # the first token always
        if marks is not None:
            for token, bits in zip(found[noted[i][0] :], noted[i][1], strict=True):
                marks[begin + token] |= bits
            marks[begin + len(row) :][: len(tail)] = PHRASE | ENTITY  # the end mark is a unit of its own
    counts = {
        "spelled": sum(map(tokenizer.spells, texts)),
        "tokenless": len(rows) - len(kept),
        "single": int(np.count_nonzero(lengths == 1)),
    }
    if (unknown := tokenizer.id("unk")) is not None:
        counts["unknown"] = int(np.count_nonzero(tokens == unknown))
    return Encoded(tokens, lengths, None if split is None else np.array(sentences, np.int64), marks, counts)


def width(vocab: int) -> type:
    """The narrowest type that holds the ids of a vocabulary."""
    return np.uint16 if vocab <= 2**16 else np.uint32


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


def tabs(text: str) -> list[int]:
    """Where the sides of a pair begin: behind each tab."""
    return [m.end() for m in re.finditer("\t", text)]


def sides(texts: Sequence[str], tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """Pairs, a source and a target with a tab between them: each side is encoded by itself, as it will be in use."""
    parts = [text.split("\t") for text in texts]
    made = iter(tokenizer.encode_batch([part for row in parts for part in row], special=False, parse=False))
    rows = []
    for row in parts:
        ids: list[int] = []
        begins = []
        for _ in row:
            begins.append(len(ids))
            ids += next(made)
        rows.append((ids, [begin for begin in begins if begin < len(ids)]))
    return rows


def splitter(name: str | None) -> Split | None:
    """How documents are cut into sentences: None (not at all), rules, kiwi, or at tabs (pairs)."""
    if name is None:
        return None
    if name == "tabs":
        return tabs
    if name == "kiwi":
        from ..text import korean

        return korean.begins
    return lambda text: [begin for begin, _ in spans(text)]
