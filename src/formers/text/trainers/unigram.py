"""Unigram pieces (Kudo 2018, arXiv:1804.10959) with ▁ for a space, as in T5, ALBERT, XLNet and mBART.

Begin with far too many substrings, estimate their probabilities by EM over all ways to cut the words, throw out the
quarter whose loss would hurt the likelihood least, and again, until the vocabulary has its size.

`Lattice` holds all ways to cut words into pieces at once: forward and backward sums, and best paths, as steps over flat
arrays. A place is a character of a word; words stand in one array with a 0 after each. An edge is a piece that fits at
a place. Edges of one length that begin at the same depth of their words never meet, so a step needs no sorting."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ...config import ProgressCallback
from ...errors import Error
from ...ragged_arrays import ragged_arange
from ..korean import MORPHEME_MARK
from ..tokenizer import Tokenizer
from ..tokenizer_kinds import TokenizerStyle
from .word_counts import WordCutter, choose_alphabet, count_words

MAX_DEPTH = 32  # characters of a word; longer ones are cut, or products of probabilities would leave a float's range
PROBABILITY_SCALE = 1e4  # each character multiplies a path by this: it cancels out, and keeps products near 1


class Lattice:
    """The edges of `pieces` (tuples of character numbers, at least all single ones) in words."""

    def __init__(self, symbols: np.ndarray, weights: np.ndarray, pieces: Sequence[tuple[int, ...]], size: int):
        self.symbols, self.weights, self.num_characters = symbols, weights, size
        self.lengths = np.array([len(p) for p in pieces])
        ends = np.flatnonzero(symbols == 0)
        self.ends = ends[ends > np.append(-1, ends[:-1]) + 1]  # an empty word has no edges
        self.starts = np.append(0, ends[:-1] + 1)[ends > np.append(-1, ends[:-1]) + 1]
        sizes = self.ends - self.starts
        self.depth = np.full(len(symbols), 255, np.uint8)
        places = np.repeat(self.starts, sizes) + ragged_arange(sizes)
        self.depth[places] = ragged_arange(sizes)
        self.edges = [self.sort_by_depth(*matches) for matches in self.match_pieces(build_trie(pieces, size), places)]

    def match_pieces(self, nodes: tuple[np.ndarray, np.ndarray, np.ndarray], here: np.ndarray) -> Iterator[tuple]:
        """Find, by length, the places where a piece fits and the piece."""
        keys, targets, piece = nodes
        here, node, length = here.astype(np.int32), np.zeros(len(here), np.int64), 0
        while len(here):
            letters = self.symbols[here + length]
            key = node * (self.num_characters + 1) + letters
            at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            live = (keys[at] == key) & (letters != 0)
            here, node, length = here[live], targets[at[live]], length + 1
            fits = piece[node] >= 0
            yield here[fits], piece[node[fits]].astype(np.int32)

    def sort_by_depth(self, starts: np.ndarray, pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sort edges of one length by their depth, and return them and where each depth begins."""
        depth = self.depth[starts]
        order = np.argsort(depth, kind="stable")
        return starts[order], pieces[order], np.searchsorted(depth[order], np.arange(MAX_DEPTH + 1))

    def prune_pieces(self, alive: np.ndarray) -> None:
        """Leave out the edges of pieces that are no more, and number the others anew."""
        number = np.cumsum(alive) - 1
        kept = []
        for starts, pieces, _ in self.edges:
            stay = alive[pieces]
            kept.append(self.sort_by_depth(starts[stay], number[pieces[stay]].astype(np.int32)))
        self.edges, self.lengths = kept, self.lengths[alive]

    def iterate_edges(self, backwards: bool = False) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield length, places and pieces, from the beginning of all words to their end."""
        for depth in range(MAX_DEPTH)[:: -1 if backwards else 1]:
            for length, (starts, pieces, bounds) in enumerate(self.edges, 1):
                low, high = bounds[depth], bounds[depth + 1]
                if high > low:
                    yield length, starts[low:high], pieces[low:high]

    def compute_expectations(self, probabilities: np.ndarray) -> tuple[np.ndarray, float]:
        """Compute the expected count of each piece over all ways to cut the words (Kudo 2018, §3.2), and the
        log-likelihood."""
        probabilities = probabilities * PROBABILITY_SCALE**self.lengths
        ahead, behind = np.zeros(len(self.symbols)), np.zeros(len(self.symbols))
        ahead[self.starts], behind[self.ends] = 1, 1
        for length, starts, pieces in self.iterate_edges():
            ahead[starts + length] += ahead[starts] * probabilities[pieces]
        total = ahead[self.ends]
        weights = self.weights[self.ends]
        share = np.zeros(len(self.symbols))
        known = self.depth < 255
        share[known] = np.repeat(np.where(total > 0, weights / np.maximum(total, 1e-300), 0), self.ends - self.starts)
        counts = np.zeros(len(probabilities))
        for length, starts, pieces in self.iterate_edges(backwards=True):
            onward = behind[starts + length] * probabilities[pieces]
            behind[starts] += onward
            counts += np.bincount(pieces, ahead[starts] * onward * share[starts], len(probabilities))
        logs = np.log(np.maximum(total, 1e-300)) - (self.ends - self.starts) * np.log(PROBABILITY_SCALE)
        return counts, float((logs * weights).sum())

    def score_without_whole(self, logs: np.ndarray) -> np.ndarray:
        """Return the best score of each word when it may not be one piece."""
        best = np.full(len(self.symbols), -np.inf)
        best[self.starts] = 0
        whole = np.zeros(len(self.symbols), np.int64)
        whole[self.starts] = self.ends - self.starts
        for length, starts, pieces in self.iterate_edges():
            part = whole[starts] != length
            starts, pieces = starts[part], pieces[part]
            best[starts + length] = np.maximum(best[starts + length], best[starts] + logs[pieces])
        return best[self.ends]


def build_trie(pieces: Sequence[tuple[int, ...]], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Build a trie of pieces as sorted arrays: node · (size + 1) + character → node, and node → piece or -1."""
    step: dict[int, int] = {}
    piece = [-1]
    for number, letters in enumerate(pieces):
        node = 0
        for letter in letters:
            node = step.setdefault(node * (size + 1) + letter, len(piece))
            if node == len(piece):
                piece.append(-1)
        piece[node] = number
    keys = np.fromiter(step.keys(), np.int64, len(step))
    order = np.argsort(keys)
    return keys[order], np.fromiter(step.values(), np.int64, len(step))[order], np.array(piece)


SPACE_MARK = "▁"
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))
MAX_CORPUS_CHARACTERS = 16_000_000  # of distinct words that are looked at: the rarest words beyond are left out
# Letters, numbers and marks are learned apart (no piece "word,"); reading needs no such rule: there is no such piece.
CHARACTER_CLASSES = (
    f"{SPACE_MARK}?[\\p{{L}}\\p{{M}}]+|{SPACE_MARK}?\\p{{N}}+"
    f"|{SPACE_MARK}?[^\\p{{L}}\\p{{M}}\\p{{N}}{SPACE_MARK}]+|{SPACE_MARK}"
)


def train_unigram(
    lines: Iterable[str], vocab_size: int = 8192, *, style: TokenizerStyle, lower: bool = False,
    alphabet: int | None = None, byte_fallback: bool = False, longest: int = 16, keep_ratio: float = 0.75,
    morphemes: bool = False, workers: int | None = None, tell: ProgressCallback | None = None,
) -> Tokenizer:  # fmt: skip
    """Learn `vocab_size` pieces. At most `alphabet` characters (by default half of the vocabulary) are pieces of their
    own; any other is unknown, or with `byte_fallback` becomes the bytes of its UTF-8.

    No piece has more than `longest` characters; `keep_ratio` is what each round keeps. With `morphemes` Korean words
    are cut into morphemes first, and no piece reaches across."""
    rust = build_metaspace(lower, morphemes)
    cutter = WordCutter(build_metaspace(lower, morphemes, CHARACTER_CLASSES).to_str(), has_morphemes=morphemes)
    counts = count_words(lines, cutter, workers, tell)
    fixed = (*style.first_tokens, *(BYTE_PIECES if byte_fallback else ()))
    room = vocab_size - len(fixed) - len(style.last_tokens)
    letters = sorted(choose_alphabet(counts, alphabet or max(0, room) // 2) | {SPACE_MARK})
    if room < len(letters):
        what = f"{len(letters)} characters and {vocab_size - room} marks do not fit into {vocab_size} pieces"
        raise Error(what, fix="take a larger vocabulary or a smaller alphabet")
    pieces, logs = estimate_pieces(counts, letters, room, longest, keep_ratio, tell)
    order = sorted(range(len(pieces)), key=lambda i: (-logs[i], pieces[i]))
    low = float(min(logs, default=0.0))
    scored = [(token, 0.0 if token in style.special_tokens else low - 20) for token in fixed]
    scored += [(pieces[i], float(logs[i])) for i in order] + [(token, 0.0) for token in style.last_tokens]
    ids = {piece: i for i, (piece, _) in enumerate(scored)}
    rust.model = models.Unigram(scored, unk_id=ids[style.special["unk"]], byte_fallback=byte_fallback)
    spaces = decoders.Metaspace(replacement=SPACE_MARK, prepend_scheme="always")
    rust.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if byte_fallback else spaces
    return style.finish_tokenizer(rust, ids)


def build_metaspace(lower: bool, morphemes: bool, kinds: str | None = None) -> Rust:
    """Build an empty tokenizer that turns runs of spaces into one ▁ and puts one in front. NFC keeps ㅋㅋ as it is."""
    rust = Rust(models.Unigram())
    small = [normalizers.Lowercase()] if lower else []
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(), normalizers.Prepend(SPACE_MARK)]
    rust.normalizer = normalizers.Sequence([normalizers.NFC(), *small, *spaces])
    parts: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Metaspace(replacement=SPACE_MARK, prepend_scheme="never")
    ]
    if morphemes:
        parts.append(pre_tokenizers.Split(MORPHEME_MARK, "removed"))
    if kinds is not None:
        parts.append(pre_tokenizers.Split(Regex(kinds), "isolated"))
    rust.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return rust


def estimate_pieces(
    counts: Counter[str], letters: list[str], num_pieces: int, longest: int, shrink: float,
    tell: ProgressCallback | None,
) -> tuple[list[str], np.ndarray]:  # fmt: skip
    """Return the pieces that are left at the end, all letters among them, and their log-probabilities."""
    symbols, weights = flatten_words(counts, {letter: i for i, letter in enumerate(letters, 1)})
    pieces: list[tuple[int, ...]] = [(i,) for i in range(1, len(letters) + 1)]
    pieces += find_seed_pieces(symbols, weights, len(letters), longest, max(50_000, 8 * num_pieces), num_pieces)
    lattice = Lattice(symbols, weights, pieces, len(letters))
    amounts = np.bincount(symbols, weights, len(letters) + 1)[1:]
    chances = np.append(amounts, np.full(len(pieces) - len(letters), amounts.mean() if len(amounts) else 1.0))
    chances = (chances + 1) / (chances + 1).sum()
    start = len(pieces)
    while True:
        for _ in range(2):
            expected, likelihood = lattice.compute_expectations(chances)
            chances = np.maximum(expected, 1e-3) / np.maximum(expected, 1e-3).sum()
        if tell is not None:
            done = 1000 - int(1000 * max(0, len(pieces) - num_pieces) / max(1, start - num_pieces))
            tell("pruning", done, 1000, f"{len(pieces):,} pieces, log-likelihood {likelihood:.4g}")
        if len(pieces) <= num_pieces:
            return ["".join(letters[i - 1] for i in p) for p in pieces], np.log(chances)
        alive = select_pieces(pieces, expected, chances, len(letters), max(num_pieces, int(shrink * len(pieces))))
        lattice.prune_pieces(alive)
        pieces = [p for p, stays in zip(pieces, alive.tolist(), strict=True) if stays]
        chances = chances[alive] / chances[alive].sum()


def select_pieces(
    pieces: list[tuple[int, ...]], expected: np.ndarray, chances: np.ndarray, letters: int, most: int
) -> np.ndarray:
    """Select all letters, and the pieces without which the likelihood would fall most (Kudo 2018, §3.2)."""
    symbols = np.array([i for p in pieces for i in (*p, 0)], np.int32)
    logs = np.log(chances)
    other = Lattice(symbols, np.ones(len(symbols), np.int64), pieces, letters).score_without_whole(logs)
    loss = expected * (logs - other)
    loss[:letters] = np.inf
    order = sorted(range(letters, len(pieces)), key=lambda i: (-loss[i], pieces[i]))
    alive = np.arange(len(pieces)) < letters
    alive[order[: most - letters]] = True
    return alive


def flatten_words(counts: Counter[str], number: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Join the most frequent words in one array of character numbers, with a 0 after each and for what is unknown."""
    symbols, weights = array("i"), array("q")
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        for begin in range(0, len(word), MAX_DEPTH):
            part = word[begin : begin + MAX_DEPTH]
            symbols.extend([number.get(letter, 0) for letter in part] + [0])
            weights.extend([count] * (len(part) + 1))
        if len(symbols) > MAX_CORPUS_CHARACTERS:
            break
    return np.array(symbols, np.int32), np.array(weights, np.int64)


def find_seed_pieces(
    symbols: np.ndarray, weights: np.ndarray, letters: int, longest: int, most: int, need: int = 0
) -> list[tuple[int, ...]]:
    """Find the substrings that cover most text, by count × length. One that is always part of the same longer one is
    left out, unless fewer than `need` are left. Each length grows from the last: a substring is frequent only if both
    of its halves one shorter are."""
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
    candidates = [(length, place) for _, length, at, _ in rows for place in at.tolist()]
    best = np.lexsort((-worth, ~free))[: min(most, max(int(free.sum()), need))]
    return [tuple(symbols[place : place + length].tolist()) for length, place in (candidates[i] for i in best.tolist())]
