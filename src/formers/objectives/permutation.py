"""Permutation language modelling (Yang et al. 2019, §2.2, §2.6 and the released code): some tokens of a text are
predicted in a random order, each from all that is not predicted and from those before it in that order."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from ..batch import Batch, BatchShape
from ..data import counter_rng as rng
from ..data.plans import Plan, RawExamples, add_special_tokens, estimate_documents, make_stream_shape
from ..data.store import Store
from ..errors import Error
from ..ragged_arrays import compute_row_ids
from ..text.tokenizer import Tokenizer
from .masking import compute_truncation, compute_word_marks, find_word_starts
from .token_losses import BaseObjective

CUT_DRAW, COIN_DRAW, WHERE_DRAW, ORDER_DRAW = range(60, 64)  # what a random number is for
NGRAM_DRAW, LEFT_DRAW, FILL_DRAW, RANK_DRAW = range(64, 68)


@dataclass(frozen=True)
class PermutationLM(BaseObjective):
    """An example is `reuse_length` tokens that a memory may keep, then A SEP B SEP CLS: half its length each.

    Targets are spans of n ∈ 1 … 5 pieces, p ∝ 1/n, each in a context of 6n and from a word's first piece on, filled up
    to exactly `target_ratio` of the length (85 of 512: 43 and 42). Each half has an order of its own; the first never
    sees the second, the second sees all of the first. SEP and CLS are never targets; with `as_released` they too wait
    for their turn. The end mark of a document is a token like others, as in the released code.

    `num_streams` cuts the text into so many; a batch has one example of each, whose first half continues where that of
    the batch before ended, for a model with a memory. With `reversed`, the second half of a batch's rows reads the text
    back to front (§3.1; the released code's bi_data), and the model turns the distances there.
    """

    length: int
    sep: int
    cls: int
    target_ratio: float = 85 / 512
    max_ngram: int = 5
    context_factor: int = 6  # tokens around a target, for each of its pieces
    as_released: bool = False
    num_streams: int = 0
    streams_per_batch: int = 0  # streams of a batch; 0: all
    reversed: bool = False
    word_marks: np.ndarray | None = field(default=None, compare=False, repr=False)
    part: str = "lm"

    @staticmethod
    def from_tokenizer(tokenizer: Tokenizer, length: int, **options: bool | float | int) -> PermutationLM:
        """Take a tokenizer's <sep> and <cls>."""
        sep, cls = tokenizer.id("sep"), tokenizer.id("cls")
        if sep is None or cls is None:
            raise Error("this tokenizer has no <sep> and <cls>", fix="train or load a tokenizer for XLNet")
        if length < 10:
            raise Error(f"an example of {length} tokens has no room for two halves", fix="take at least 10")
        streams, rows = (int(options.get(name, 0)) for name in ("num_streams", "streams_per_batch"))
        if options.get("reversed") and (streams not in range(2, 2**31, 2) or rows % 2):
            what = "reversed text needs an even number of streams, of which half of each batch are reversed"
            raise Error(what, fix="give for example num_streams=8, as many as a batch has rows")
        return PermutationLM(length, sep, cls, word_marks=compute_word_marks(tokenizer), **options)  # type: ignore[arg-type]

    @property
    def reuse_length(self) -> int:
        """Tokens of the first half."""
        return self.length // 2

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Plan over the whole store as one text, as in the released code, with the documents' end marks in it."""
        edges, most = np.asarray(store.sentence_starts), self.length - self.reuse_length - 3
        low, high = int(edges[0]), int(edges[-1])
        if high - low < self.length:
            what = f"{high - low} tokens are too few for examples of {self.length}"
            raise Error(what, fix="give more text or shorter examples")
        begin = np.arange(low, high - self.reuse_length - most, self.reuse_length)
        order, turned = self.order_windows(len(begin), seed, epoch)
        spans, ends = self.choose_spans(edges, begin[order], (seed, epoch)), low + high
        if self.reversed:  # the same in a mirror: what is to be read next lies before what was read
            back = self.choose_spans(ends - edges[::-1], begin[order[turned]], (seed, epoch))
            spans[turned] = ends - back[..., ::-1]
        start, end = spans.reshape(-1, 2).T
        return Plan(start, end, np.arange(len(order) + 1) * 3, turned.astype(np.int8))

    def order_windows(self, count: int, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the windows in the order of their use (any, or streams), and whether each is read back to front."""
        if not self.num_streams:
            return rng.shuffle_indices(count, seed, epoch, ORDER_DRAW), np.zeros(count, bool)
        rows = self.num_streams // (2 if self.reversed else 1)  # either half of the streams reads the whole text
        if not (steps := count // rows):
            what = f"{count} windows of {self.length} tokens are too few for {self.num_streams} streams"
            raise Error(what, fix="take fewer streams, shorter examples or more text")
        row, each = np.arange(self.num_streams), self.streams_per_batch or self.num_streams
        turned = (row % each >= each // 2) & self.reversed
        number = row // each * (each // 2) + row % each % (each // 2) if self.reversed else row  # among its half
        return (np.arange(steps)[:, None] + number * steps).ravel(), np.tile(turned, steps)

    def choose_spans(self, edges: np.ndarray, begin: np.ndarray, key: tuple[int, int]) -> np.ndarray:
        """Choose (E, 3, 2) the first half, A and B: half of the time B is what follows A, else text from anywhere.
        Their ends are cut until they fit. `edges` are where sentences begin."""
        low, high, most = int(edges[0]), int(edges[-1]), self.length - self.reuse_length - 3
        a = begin + self.reuse_length
        # Sentences that begin after a's first token and before there is enough, where A may end.
        lower, upper = np.searchsorted(edges, a, side="right"), np.searchsorted(edges, a + most)
        stop = edges[np.minimum(upper, len(edges) - 1)]
        some = upper > lower
        cut = lower + rng.draw_integers(np.maximum(upper - lower, 1), *key, begin, CUT_DRAW)
        a_end = np.where(some, edges[np.minimum(cut, len(edges) - 1)], stop)
        far = ~some | (rng.draw_uniform(*key, begin, COIN_DRAW) < 0.5)
        size = np.minimum(np.maximum(1, most - (a_end - a)), high - low - 1)
        other = low + rng.draw_integers(high - low - size, *key, begin, WHERE_DRAW)
        other_end = edges[np.minimum(np.searchsorted(edges, other + size), len(edges) - 1)]
        other = edges[np.searchsorted(edges, other, side="right") - 1]
        b, b_end = np.where(far, other, a_end), np.where(far, other_end, stop)
        lose_a, lose_b = compute_truncation(a_end - a, b_end - b, most)
        return np.stack((begin, a, a, a_end - lose_a, b, b_end - lose_b), 1).reshape(-1, 3, 2)

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Measure examples with their three marks."""
        lengths = plan.lengths + 3
        return np.stack((lengths, self.count_targets(lengths), np.zeros(len(plan), np.int64)), 1)

    def count_targets(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many tokens of an example are targets."""
        return np.maximum(2, np.round(self.target_ratio * lengths)).astype(np.int64)

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Choose room for as many labels as full examples have; a batch of streams is one example of each."""
        each = int(self.count_targets(np.array([self.length]))[0])
        if self.num_streams:
            whole = make_stream_shape(self.num_streams, self.streams_per_batch, self.length)
            return dataclasses.replace(whole, labels=whole.documents * each)
        rows = estimate_documents(total, self.measure_sizes(plan)[:, 0], longest=self.length)
        return BatchShape(rows, total, (total // self.length + 1) * each, self.length)

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Choose targets, and an order for them."""
        at = add_special_tokens(raw, back=(self.cls,), after_spans=((), (self.sep,)))
        rows = len(at.starts) - 1
        span = at.scatter_values(raw.span_index, -1)
        marks = span < 0
        segments = np.maximum(span[np.maximum.accumulate(np.where(marks, 0, np.arange(len(span))))] - 1, 0)
        segments[at.starts[1:] - 1] = 2  # CLS
        # Two lanes an example: its first half, and the rest.
        first = np.bincount(compute_row_ids(raw.starts)[raw.span_index == 0], minlength=rows)
        lanes = np.append(np.stack((at.starts[:-1], at.starts[:-1] + first), 1).ravel(), at.starts[-1])
        total = self.count_targets(np.diff(at.starts))
        goals = np.stack((total - total // 2, total // 2), 1).ravel()
        word = find_word_starts(at.ids, self.word_marks, at.span_starts)
        targets = self.choose_targets(word, ~marks, lanes, goals, seed, np.repeat(raw.sample, 2))
        ids = at.ids
        if self.reversed:
            turned = np.arange(len(ids))
            turned[at.token_slots] = at.token_slots[reverse_spans(raw)]
            ids, targets = ids[turned], targets[turned]
        order = self.draw_order(targets, marks, lanes, seed, raw.sample)
        chosen = np.flatnonzero(targets)
        return Batch(
            ids, at.starts, self.length, segments=segments, order=order, chosen=chosen, labels=ids[chosen],
            sample=raw.sample, has_reversed_half=self.reversed,
        )  # fmt: skip

    def choose_targets(
        self, word: np.ndarray, free: np.ndarray, lanes: np.ndarray, goals: np.ndarray, seed: int, sample: np.ndarray
    ) -> np.ndarray:
        """Return (N,) bool: the targets. All lanes make a step at once: a span, then its context."""
        count = len(word)
        # The next word's first piece from each token on; marks are no words.
        following = np.where(word & free, np.arange(count), count)
        following = np.append(np.minimum.accumulate(following[::-1])[::-1], count)
        reach = np.append(0, np.cumsum(free))
        side, lane = np.arange(len(goals)) % 2, np.arange(len(goals))
        place, left, step = lanes[:-1].copy(), goals.copy(), 0
        targets = np.zeros(count, bool)
        while len(lane):
            key = (seed, sample[lane], step * 2 + side[lane])
            n = np.minimum(rng.sample_harmonic(self.max_ngram, rng.draw_uniform(*key, NGRAM_DRAW)), left[lane])
            before = rng.draw_integers(n * self.context_factor, *key, LEFT_DRAW)
            begin = following[np.minimum(place[lane] + before, count)]
            end = begin + n
            good = end < lanes[lane + 1]
            lane, n, before, begin, end = (x[good] for x in (lane, n, before, begin, end))
            for more in range(self.max_ngram):
                targets[begin[n > more] + more] = True
            left[lane] -= reach[end] - reach[begin]
            place[lane] = end + n * self.context_factor - before
            step += 1
            lane = lane[(left[lane] > 0) & (place[lane] < lanes[lane + 1])]
        return self.fill_targets(targets & free, free, lanes, goals, seed, sample)

    def fill_targets(
        self, targets: np.ndarray, free: np.ndarray, lanes: np.ndarray, goals: np.ndarray, seed: int, sample: np.ndarray
    ) -> np.ndarray:
        """Add single tokens, each as likely as another, until every lane has its number."""
        lane = compute_row_ids(lanes)
        at = np.flatnonzero(free & ~targets)
        mine = lane[at]
        missing = goals - np.bincount(lane, targets, len(goals)).astype(np.int64)
        draw = rng.draw_bits(seed, sample[mine], at - lanes[mine], FILL_DRAW, mine % 2)
        more = rng.rank_within_rows(draw, np.bincount(mine, minlength=len(goals))) < missing[mine]
        targets[at[more]] = True
        return targets

    def draw_order(
        self, targets: np.ndarray, marks: np.ndarray, lanes: np.ndarray, seed: int, sample: np.ndarray
    ) -> np.ndarray:
        """(N,) what is given of the first half is 0, its targets follow in random order, then what is given of the
        second half, then its targets. A token sees lower orders, and its content stream its own."""
        lane, at = compute_row_ids(lanes), np.flatnonzero(targets | (marks & self.as_released))
        mine = lane[at]
        draw = rng.draw_bits(seed, sample[mine // 2], at - lanes[mine], RANK_DRAW, mine % 2)
        order = np.zeros(len(targets), np.int64)
        order[at] = 1 + rng.rank_within_rows(draw, np.bincount(mine, minlength=len(lanes) - 1))
        base = np.diff(lanes)[0::2] + 1  # more than the first half can need
        return order + np.where(lane % 2, base[lane // 2], 0)


def reverse_spans(raw: RawExamples) -> np.ndarray:
    """Return (N,) the token that stands in each place when every span of the examples with label 1 is reversed."""
    owner = compute_row_ids(raw.starts)
    edge = np.ones(len(raw.ids), bool)
    edge[1:] = (owner[1:] != owner[:-1]) | (raw.span_index[1:] != raw.span_index[:-1])
    first = np.flatnonzero(edge)
    sizes = np.diff(np.append(first, len(raw.ids)))
    mirror = np.repeat(2 * first + sizes - 1, sizes) - np.arange(len(raw.ids))
    return np.where(raw.label[owner] == 1, mirror, np.arange(len(raw.ids)))
