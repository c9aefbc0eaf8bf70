"""Unigram pieces (Kudo 2018, arXiv:1804.10959) with ▁ for a space, as in T5, ALBERT, XLNet and mBART.

Begin with far too many substrings, estimate their probabilities by EM over all ways to cut the words, throw out the
quarter whose loss would hurt the likelihood least, and again, until the vocabulary has its size.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ..config import Tell
from ..errors import Error
from .bpe import numbered
from .counting import Cutter, alphabet_of, count_words
from .joints import JOINT
from .lattice import DEEPEST, Lattice
from .templates import style as style_of
from .tokenizer import Tokenizer

SPACE = "▁"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
PLACES = 16_000_000  # characters of distinct words that are looked at: the rarest words beyond are left out
# Letters, numbers and marks are learnt apart (no piece "word,"); reading needs no such rule: there is no such piece.
KINDS = f"{SPACE}?[\\p{{L}}\\p{{M}}]+|{SPACE}?\\p{{N}}+|{SPACE}?[^\\p{{L}}\\p{{M}}\\p{{N}}{SPACE}]+|{SPACE}"


def train(
    lines: Iterable[str],
    size: int = 8192,
    *,
    style: str = "t5",
    lower: bool = False,
    alphabet: int | None = None,
    byte_fallback: bool = False,
    longest: int = 16,
    shrink: float = 0.75,
    morphemes: bool = False,
    workers: int | None = None,
    tell: Tell | None = None,
) -> Tokenizer:
    """Learn `size` pieces. At most `alphabet` characters (by default half of the size) are pieces of their own; any
    other is unknown, or with `byte_fallback` becomes the bytes of its UTF-8.

    No piece has more than `longest` characters; `shrink` is what each round keeps. With `morphemes` Korean words are
    cut into morphemes first, and no piece reaches across.
    """
    marks = style_of(style)
    rust = machine(lower, morphemes)
    cutter = Cutter(machine(lower, morphemes, KINDS).to_str(), morphemes=morphemes)
    counts = count_words(lines, cutter, workers, tell)
    fixed = (*marks.first, *(BYTES if byte_fallback else ()))
    room = size - len(fixed) - len(marks.last)
    letters = sorted(alphabet_of(counts, alphabet or max(0, room) // 2) | {SPACE})
    if room < len(letters):
        what = f"{len(letters)} characters and {size - room} marks do not fit into {size} pieces"
        raise Error(what, fix="take a larger size or a smaller alphabet")
    pieces, logs = estimate(counts, letters, room, longest, shrink, tell)
    order = sorted(range(len(pieces)), key=lambda i: (-logs[i], pieces[i]))
    low = float(min(logs, default=0.0))
    scored = [(token, 0.0 if token in marks.marks else low - 20) for token in fixed]
    scored += [(pieces[i], float(logs[i])) for i in order] + [(token, 0.0) for token in marks.last]
    ids = numbered(piece for piece, _ in scored)
    rust.model = models.Unigram(scored, unk_id=ids[marks.special["unk"]], byte_fallback=byte_fallback)
    spaces = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    rust.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if byte_fallback else spaces
    marks.finish(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), marks.special)


def machine(lower: bool, morphemes: bool, kinds: str | None = None) -> Rust:
    """An empty tokenizer that turns runs of spaces into one ▁ and puts one in front. NFC: ㅋㅋ stays what it is."""
    rust = Rust(models.Unigram())
    small = [normalizers.Lowercase()] if lower else []
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(), normalizers.Prepend(SPACE)]
    rust.normalizer = normalizers.Sequence([normalizers.NFC(), *small, *spaces])
    parts: list[Any] = [pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never")]
    if morphemes:
        parts.append(pre_tokenizers.Split(JOINT, "removed"))
    if kinds is not None:
        parts.append(pre_tokenizers.Split(Regex(kinds), "isolated"))
    rust.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return rust


def estimate(
    counts: Counter[str], letters: list[str], room: int, longest: int, shrink: float, tell: Tell | None
) -> tuple[list[str], np.ndarray]:
    """The pieces that are left at the end, all letters among them, and their log-probabilities."""
    number = {letter: i for i, letter in enumerate(letters, 1)}
    symbols, weights = flat(counts, number)
    pieces: list[tuple[int, ...]] = [(i,) for i in range(1, len(letters) + 1)]
    pieces += seeds(symbols, weights, len(letters), longest, max(50_000, 8 * room), room)
    lattice = Lattice(symbols, weights, pieces, len(letters))
    amounts = np.bincount(symbols, weights, len(letters) + 1)[1:]
    chances = np.append(amounts, np.full(len(pieces) - len(letters), amounts.mean() if len(amounts) else 1.0))
    chances = (chances + 1) / (chances + 1).sum()
    start = len(pieces)
    while True:
        for _ in range(2):
            expected, likelihood = lattice.expect(chances)
            chances = np.maximum(expected, 1e-3) / np.maximum(expected, 1e-3).sum()
        if tell is not None:
            done = 1000 - int(1000 * max(0, len(pieces) - room) / max(1, start - room))
            tell("pruning", done, 1000, f"{len(pieces):,} pieces, log-likelihood {likelihood:.4g}")
        if len(pieces) <= room:
            return ["".join(letters[i - 1] for i in p) for p in pieces], np.log(chances)
        alive = chosen(pieces, expected, chances, len(letters), max(room, int(shrink * len(pieces))))
        lattice.keep(alive)
        pieces = [p for p, stays in zip(pieces, alive.tolist(), strict=True) if stays]
        chances = chances[alive] / chances[alive].sum()


def chosen(
    pieces: list[tuple[int, ...]], expected: np.ndarray, chances: np.ndarray, letters: int, most: int
) -> np.ndarray:
    """Which pieces stay: all letters, and those whose loss would cost the likelihood most (Kudo 2018, §3.2)."""
    symbols = np.array([i for p in pieces for i in (*p, 0)], np.int32)
    logs = np.log(chances)
    other = Lattice(symbols, np.ones(len(symbols), np.int64), pieces, letters).without(logs)
    loss = expected * (logs - other)
    loss[:letters] = np.inf
    order = sorted(range(letters, len(pieces)), key=lambda i: (-loss[i], pieces[i]))
    alive = np.zeros(len(pieces), bool)
    alive[:letters] = True
    alive[order[: most - letters]] = True
    return alive


def flat(counts: Counter[str], number: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """The most frequent words as one array of character numbers, with a 0 behind each and for what is unknown."""
    symbols, weights = array("i"), array("q")
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        for begin in range(0, len(word), DEEPEST):
            part = word[begin : begin + DEEPEST]
            symbols.extend([number.get(letter, 0) for letter in part] + [0])
            weights.extend([count] * (len(part) + 1))
        if len(symbols) > PLACES:
            break
    return np.array(symbols, np.int32), np.array(weights, np.int64)


def seeds(
    symbols: np.ndarray, weights: np.ndarray, letters: int, longest: int, most: int, need: int = 0
) -> list[tuple[int, ...]]:
    """The substrings that cover most text, by count × length. One that is always part of the same longer one is none,
    unless fewer than `need` are left.

    Each length grows from the last: a substring is frequent only if both of its halves one shorter are.
    """
    name, places = symbols.astype(np.int64), np.flatnonzero(symbols != 0)
    before: tuple[np.ndarray, ...] | None = None
    rows: list[tuple[np.ndarray, int, np.ndarray, np.ndarray]] = []
    for length in range(2, longest + 2):
        last = places + length - 1
        inside = last < len(symbols)
        places = places[inside]
        places = places[(symbols[last[inside]] != 0) & (name[places] > 0) & (name[places + 1] > 0)]
        left, right = name[places], name[places + 1]
        keys = left * (letters + 1) + symbols[places + length - 1]
        unique, first, index = np.unique(keys, return_index=True, return_inverse=True)
        counts = np.bincount(index, weights[places], len(unique)).astype(np.int64)
        if before is not None:
            longer = np.zeros(int(name.max(initial=0)) + 1, np.int64)
            np.maximum.at(longer, left[first], counts)
            np.maximum.at(longer, right[first], counts)
            numbers, amounts, at = before
            rows.append((amounts * (length - 1), length - 1, at, longer[numbers] < amounts))
        if length > longest or not len(unique):
            break
        frequent = counts >= 2
        renumbered = np.where(frequent, np.cumsum(frequent), 0)
        name = np.zeros(len(symbols), np.int64)
        name[places] = renumbered[index]
        before = renumbered[frequent], counts[frequent], places[first[frequent]]
        places = places[frequent[index]]
    worth = np.concatenate([np.zeros(0), *(score for score, *_ in rows)])
    free = np.concatenate([np.zeros(0, bool), *(alone for *_, alone in rows)])
    found = [(length, place) for _, length, at, _ in rows for place in at.tolist()]
    best = np.lexsort((-worth, ~free))[: min(most, max(int(free.sum()), need))]
    return [tuple(symbols[place : place + length].tolist()) for length, place in (found[i] for i in best.tolist())]
