"""Denoising (BART, Lewis et al. 2019): an encoder reads a spoiled text, a decoder writes it whole.

The ways to spoil a text (§2.2) are each for many texts at once. A text is (ids (N,), starts (D+1,)); every draw belongs
to (seed, sample, place)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ..batch import Batch
from ..data.counter_rng import draw_bits, draw_integers, draw_uniform, rank_within_rows
from ..data.encoded_examples import PackedArrays, make_seq2seq_batch
from ..data.plans import ExampleFrame, Plan, RawExamples, add_special_tokens, plan_texts
from ..data.store import Store
from ..errors import Error
from ..ragged_arrays import compute_row_ids, compute_starts, expand_ranges, ragged_arange
from ..text.tokenizer import Tokenizer
from .masking import compute_word_marks, find_word_starts
from .seq2seq import DecoderEnds, TwoSidedObjective, select_tokens

MOVED_DRAW, PERMUTE_DRAW, PLACE_DRAW, MASK_DRAW, DELETE_DRAW = 100, 101, 103, 104, 105  # what a random number is for
INSERT_DRAW, ROTATE_DRAW, OFFSET_DRAW, RANDOM_DRAW, WORD_DRAW, LENGTH_DRAW = range(106, 112)
MAX_EMPTY_SPANS = 4  # spans that a short text may get beyond its hidden words: those of length zero


@cache
def compute_poisson_cdf(mean: float) -> np.ndarray:
    """P(length ≤ n) for n = 0, 1, …"""
    reach = np.cumsum([math.exp(-mean + n * math.log(mean) - math.lgamma(n + 1)) for n in range(128)])
    return reach / reach[-1]


def permute_sentences(
    starts: np.ndarray, sentence: np.ndarray, share: float, seed: int, sample: np.ndarray
) -> np.ndarray:
    """Return (N,) the token that comes to stand in each place when `share` of the sentences change places at random."""
    owner = compute_row_ids(starts)
    first = sentence.copy()
    first[starts[:-1]] = True
    begin = np.flatnonzero(first)
    sizes, mine = np.diff(np.append(begin, len(sentence))), owner[begin]
    number = np.bincount(mine, minlength=len(starts) - 1)
    turn = ragged_arange(number)
    moved = rank_within_rows(draw_bits(seed, sample[mine], turn, MOVED_DRAW), number) < np.ceil(share * number)[mine]
    # The moved sentences of a text keep their places as a set: the i-th of them gets the one with the i-th draw.
    some = np.flatnonzero(moved)
    count = np.bincount(mine[some], minlength=len(starts) - 1)
    rank = rank_within_rows(draw_bits(seed, sample[mine[some]], turn[some], PERMUTE_DRAW), count)
    order = np.arange(len(begin))
    order[some[compute_starts(count)[mine[some]] + rank]] = some
    return expand_ranges(begin[order], sizes[order])


def infill_spans(
    text: PackedArrays, begins: np.ndarray, share: float, mean: float, mask: int, seed: int, sample: np.ndarray
) -> PackedArrays:
    """Hide spans of words, their lengths Poisson, until `share` of the words are; each becomes one mask, and one of
    length zero inserts a mask. Spans never overlap, so that the share is exact."""
    ids = text[0]
    rows, owner, first, word, words = index_words(text, begins)
    lengths, count = draw_span_lengths(words, share, mean, seed, sample)  # of all spans, and how many each text has
    hidden = np.bincount(np.repeat(np.arange(rows), count), lengths, rows).astype(np.int64)
    # Kept words and spans in any order: each way is as likely as another.
    items = words - hidden + count
    which = np.repeat(np.arange(rows), items)
    rank = rank_within_rows(draw_bits(seed, sample[which], ragged_arange(items), PLACE_DRAW), items)
    spans = rank < count[which]
    lengths = lengths[compute_starts(count)[which[spans]] + rank[spans]]  # any span may get any length
    sizes = np.ones(len(spans), np.int64)
    sizes[spans] = lengths
    at = compute_starts(sizes)[:-1][spans]  # the word at which each span begins
    kept = ~mark_covered(at, at + lengths, int(words.sum()))[word]
    # A mask stands before the first kept token from its span's beginning on, those of one place in their order.
    place = compute_starts(kept)[np.append(np.flatnonzero(first), len(ids))[at]]
    return np.insert(ids[kept], place, mask), compute_starts(np.bincount(owner[kept], minlength=rows) + count)


def infill_overlapping(
    text: PackedArrays, begins: np.ndarray, share: float, mean: float, mask: int, seed: int, sample: np.ndarray
) -> PackedArrays:
    """Infill spans as fairseq's released code does: they begin at random words and may overlap, which hides fewer
    words; masks of empty spans are inserted anywhere."""
    ids, starts = text
    rows, _, first, word, words = index_words(text, begins)
    lengths, count = draw_span_lengths(words, share, mean, seed, sample)
    which = np.repeat(np.arange(rows), words)
    base, total = compute_starts(words), len(which)
    rank = rank_within_rows(draw_bits(seed, sample[which], ragged_arange(words), PLACE_DRAW), words)
    order = np.empty(total, np.int64)
    order[base[which] + rank] = np.arange(total)
    mine, real = np.repeat(np.arange(rows), count), lengths > 0
    inserts, mine = np.bincount(mine[~real], minlength=rows), mine[real]
    at = order[base[mine] + ragged_arange(np.bincount(mine, minlength=rows))]
    end = np.minimum(at + lengths[real], base[mine + 1])
    begun = np.zeros(total, bool)
    begun[at] = True
    keep = ~mark_covered(at + 1, end, total)[word] & (first | ~begun[word])
    left = select_tokens(np.where(first & begun[word], mask, ids), keep, starts)
    return insert_masks(left, inserts, mask, seed, sample)


def index_words(text: PackedArrays, begins: np.ndarray) -> tuple[int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the number of texts, each token's text, whether a word begins there, its word, and the texts' words."""
    starts = text[1]
    first = begins.copy()
    first[starts[:-1]] = True
    owner, rows = compute_row_ids(starts), len(starts) - 1
    return rows, owner, first, np.cumsum(first) - 1, np.bincount(owner[first], minlength=rows)


def mark_covered(begin: np.ndarray, end: np.ndarray, total: int) -> np.ndarray:
    """Return (total,) bool: lies in one of the stretches begin … end - 1."""
    return np.cumsum(np.bincount(begin, minlength=total + 1) - np.bincount(end, minlength=total + 1))[:total] > 0


def draw_span_lengths(
    words: np.ndarray, share: float, mean: float, seed: int, sample: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draw Poisson lengths until they sum to ⌈share · words⌉ in each text; the last one is cut to fit."""
    budget = np.ceil(share * words - 1e-9).astype(np.int64)
    most = np.where(budget > 0, budget + MAX_EMPTY_SPANS, 0)
    owner, turn = np.repeat(np.arange(len(words)), most), ragged_arange(most)
    reach = compute_poisson_cdf(mean)
    draw = np.searchsorted(reach, draw_uniform(seed, sample[owner], turn, LENGTH_DRAW), side="right")
    draw[compute_starts(most)[1:][most > 0] - 1] = len(reach) << 20  # takes what is left
    before = np.cumsum(draw) - draw
    before -= before[compute_starts(most)[:-1][owner]] if len(owner) else 0
    keep = before < budget[owner]
    return np.minimum(draw, budget[owner] - before)[keep], np.bincount(owner[keep], minlength=len(words))


def insert_masks(text: PackedArrays, count: np.ndarray, mask: int, seed: int, sample: np.ndarray) -> PackedArrays:
    """Insert so many masks at random places of each text."""
    ids, starts = text
    total = np.diff(starts) + count
    owner = np.repeat(np.arange(len(count)), total)
    new = rank_within_rows(draw_bits(seed, sample[owner], ragged_arange(total), INSERT_DRAW), total) < count[owner]
    result = np.full(len(owner), mask, np.int64)
    result[~new] = ids
    return result, compute_starts(total)


def mask_at_random(text: PackedArrays, share: float, mask: int, seed: int, sample: np.ndarray) -> PackedArrays:
    """Replace each token by the mask with probability `share`."""
    ids, starts = text
    draw = draw_uniform(seed, sample[compute_row_ids(starts)], ragged_arange(np.diff(starts)), MASK_DRAW)
    return np.where(draw < share, mask, ids), starts


def delete_tokens(text: PackedArrays, share: float, seed: int, sample: np.ndarray) -> PackedArrays:
    """Delete each token with probability `share`; the decoder must find where. One token always stays."""
    ids, starts = text
    owner, turn = compute_row_ids(starts), ragged_arange(np.diff(starts))
    keep = draw_uniform(seed, sample[owner], turn, DELETE_DRAW) >= share
    keep[starts[:-1][np.bincount(owner[keep], minlength=len(starts) - 1) == 0]] = True
    return select_tokens(ids, keep, starts)


def rotate_texts(text: PackedArrays, share: float, seed: int, sample: np.ndarray) -> PackedArrays:
    """Rotate a text with probability `share`: it begins with a random token, and its beginning follows its end."""
    ids, starts = text
    lengths, owner = np.diff(starts), compute_row_ids(starts)
    turned = draw_uniform(seed, sample, ROTATE_DRAW) < share
    offset = np.where(turned, draw_integers(np.maximum(lengths, 1), seed, sample, OFFSET_DRAW), 0)
    return ids[starts[owner] + (ragged_arange(lengths) + offset[owner]) % lengths[owner]], starts


def randomise_masks(
    text: PackedArrays, share: float, mask: int, vocab: int, seed: int, sample: np.ndarray
) -> PackedArrays:
    """Replace each mask by a random token with probability `share`."""
    ids, starts = text
    at = np.flatnonzero(ids == mask)
    owner = np.searchsorted(starts, at, side="right") - 1
    key = (seed, sample[owner], at - starts[owner])
    noise = ids.copy()
    noise[at] = np.where(draw_uniform(*key, RANDOM_DRAW) < share, draw_integers(vocab, *key, WORD_DRAW), mask)
    return noise, starts


@dataclass(frozen=True)
class Denoising(TwoSidedObjective):
    """Sentences change places, words are infilled, masks inserted, the text rotated, in this order. The default is the
    paper's best: 30 % of the words infilled (spans Poisson, λ = 3) and all sentences permuted. `as_released` is the
    released command: λ = 3.5, spans that may meet, 10 % of the masks replaced by random tokens."""

    length: int  # of either side, marks included
    vocab: int
    mask: int
    start: int
    eos: int
    frame: ExampleFrame
    infill_ratio: float = 0.3
    mean_span_length: float | None = None  # of the spans; None: 3, and 3.5 as released
    permute_ratio: float = 1.0
    mask_ratio: float = 0.0
    delete_ratio: float = 0.0
    insert_ratio: float = 0.0
    rotate_ratio: float = 0.0
    as_released: bool = False
    across_documents: bool = False  # texts run over the documents, joined end to end
    word_marks: np.ndarray | None = field(default=None, compare=False, repr=False)
    part: str = "lm"

    @staticmethod
    def from_tokenizer(
        tokenizer: Tokenizer, length: int, start: int | None = None, language: str | None = None,
        **options: Any,  # dynamic: fields of the class
    ) -> Denoising:  # fmt: skip
        """<s> … </s> on both sides (without <s>, the end mark alone); the decoder starts with </s>. With a `language`
        (mBART), … </s> ko_KR on both sides, and the decoder starts with the language; where the tokenizer's template
        begins with a language (mBART-50), ko_KR … </s>, and the decoder starts with </s>."""
        named = None if language is None else tokenizer.backend.token_to_id(language)
        if language is not None and named is None:
            raise Error(f"this tokenizer has no token {language!r}", fix="train or load one for mBART")
        is_first = any(i not in map(tokenizer.id, tokenizer.special) for i in tokenizer.get_template().before)
        ends = DecoderEnds.from_tokenizer(tokenizer, ("eos", "sep"), named if start is None and not is_first else start)
        if (mask := tokenizer.id("mask")) is None:
            raise Error("this tokenizer has no <mask>", fix="train or load one for BART")
        front = next((i for role in ("bos", "cls") if (i := tokenizer.id(role)) not in (None, ends.eos)), None)
        if named is None:
            frame: ExampleFrame = (() if front is None else (front,), (ends.eos,))
        else:
            frame = ((named,), (ends.eos,)) if is_first else ((), (ends.eos, named))
        marks = compute_word_marks(tokenizer)
        return Denoising(length, len(tokenizer), mask, ends.start, ends.eos, frame, word_marks=marks, **options)

    @property
    def poisson_lambda(self) -> float:
        """The mean length of a span."""
        return self.mean_span_length if self.mean_span_length is not None else 3.5 if self.as_released else 3.0

    @property
    def max_extra_tokens(self) -> int:
        """Tokens that a source may have beyond its text: inserted masks."""
        return (MAX_EMPTY_SPANS if self.infill_ratio else 0) + int(np.ceil(self.insert_ratio * self.length))

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Plan windows in random order, with room for marks and inserted masks."""
        inner = self.length - sum(map(len, self.frame)) - self.max_extra_tokens
        if inner < 2:
            raise Error(f"examples of {self.length} tokens are too short", fix="take longer ones")
        return plan_texts(store, self.eos, inner, seed, epoch, self.across_documents)

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Measure both sides; a source may be longer than its target, if masks are inserted."""
        target = plan.lengths + sum(map(len, self.frame))
        return np.stack((target, target, target + self.max_extra_tokens), 1)

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Make a batch with the spoiled text as the source, the text as the target."""
        target = add_special_tokens(raw, *self.frame)
        ids, starts = self.add_noise(raw, seed)
        blank = np.zeros(len(ids), np.int64)
        spoiled = RawExamples(ids, starts, blank, blank > 0, None, raw.label, raw.sample)
        source = add_special_tokens(spoiled, *self.frame)
        sides = (source.ids, source.starts), (target.ids, target.starts)
        return make_seq2seq_batch(*sides, self.start, raw.sample, self.max_lengths)

    def add_noise(self, raw: RawExamples, seed: int) -> PackedArrays:
        """Apply every kind of noise that is asked for, in order."""
        ids, starts, sample, sentence = raw.ids, raw.starts, raw.sample, raw.sentence_starts
        first = sentence.copy()
        first[starts[:-1]] = True
        word = find_word_starts(ids, self.word_marks, first)
        if self.permute_ratio:
            order = permute_sentences(starts, sentence, self.permute_ratio, seed, sample)
            ids, word = ids[order], word[order]
        text = ids, starts
        if self.infill_ratio:
            how = infill_overlapping if self.as_released else infill_spans
            text = how(text, word, self.infill_ratio, self.poisson_lambda, self.mask, seed, sample)
        if self.mask_ratio:
            text = mask_at_random(text, self.mask_ratio, self.mask, seed, sample)
        if self.delete_ratio:
            text = delete_tokens(text, self.delete_ratio, seed, sample)
        if self.insert_ratio:
            count = np.ceil(self.insert_ratio * np.diff(text[1])).astype(np.int64)
            text = insert_masks(text, count, self.mask, seed, sample)
        if self.rotate_ratio:
            text = rotate_texts(text, self.rotate_ratio, seed, sample)
        if self.as_released:
            text = randomise_masks(text, 0.1, self.mask, self.vocab, seed, sample)
        return text
