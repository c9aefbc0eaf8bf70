"""Span corruption and its relatives (Raffel et al. 2019, §3.1.4 and §3.3): an encoder reads a text with gaps, a decoder
writes what was in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..batch import Batch
from ..data.counter_rng import draw_bits, draw_integers, rank_within_rows
from ..data.encoded_examples import PackedArrays, make_seq2seq_batch
from ..data.plans import Plan, RawExamples, plan_texts
from ..data.store import Store
from ..errors import Error
from ..ragged_arrays import compute_row_ids, compute_starts, ragged_arange
from ..text.tokenizer import Tokenizer
from .seq2seq import DecoderEnds, TwoSidedObjective, append_eos, select_tokens

NOISE_DRAW, KEPT_DRAW, PREFIX_DRAW, SHUFFLE_DRAW = range(80, 84)  # what a random number is for


@dataclass(frozen=True)
class SpanCorruption(TwoSidedObjective):
    """15 % of the tokens in spans of 3 on average are replaced by sentinels; the target is each sentinel with what it
    stands for. A text begins with something kept and ends with a span. `length` is the encoder's: 512 come from 568.

    corruption="prefix": the source is the beginning, the target the rest; "deshuffle": the source is the text in random
    order, the target the text. `balance_weight` is the weight of the loss that keeps experts busy (Switch).
    `across_documents` joins the documents end to end first, as the released procedure does, so that every text is long
    enough for many spans.
    """

    length: int
    start: int
    eos: int
    sentinels: np.ndarray = field(compare=False, repr=False)  # (number,) ids, the first of them first
    noise_density: float = 0.15
    mean_span_length: float = 3.0
    corruption: Literal["spans", "prefix", "deshuffle"] = "spans"
    balance_weight: float = 0.0
    across_documents: bool = False
    part: str = "lm"

    @staticmethod
    def from_tokenizer(
        tokenizer: Tokenizer, length: int, start: int | None = None, **options: Any  # dynamic: fields of the class
    ) -> SpanCorruption:  # fmt: skip
        """Take the tokenizer's sentinels <extra_id_0>, <extra_id_1> …, which descend from its last id."""
        ends = DecoderEnds.from_tokenizer(tokenizer, ("pad", "bos"), start)
        known: list[int] = []
        while (one := tokenizer.backend.token_to_id(f"<extra_id_{len(known)}>")) is not None:
            known.append(one)
        objective = SpanCorruption(length, ends.start, ends.eos, np.array(known, np.int64), **options)
        need = (
            objective.count_noise(np.array([objective.raw_length]))[1].item() if objective.corruption == "spans" else 0
        )
        if need > len(known):
            what = f"examples of {length} tokens need {need} sentinels, this tokenizer has {len(known)}"
            raise Error(what, fix="train one with <extra_id_0>, <extra_id_1> and so on, or take shorter examples")
        return objective

    def count_noise(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how many tokens of a text are hidden, and in how many spans."""
        lengths = np.maximum(lengths, 2)
        noise = np.clip(np.round(lengths * self.noise_density), 1, lengths - 1).astype(np.int64)
        spans = np.maximum(np.round(noise / self.mean_span_length), 1).astype(np.int64)
        return noise, np.minimum(spans, lengths - noise)

    @property
    def raw_length(self) -> int:
        """The longest text whose source has at most `length` tokens."""
        if self.corruption != "spans":
            return self.length - 1
        lengths = np.arange(2, 4 * self.length + 2)
        noise, spans = self.count_noise(lengths)
        return int(lengths[lengths - noise + spans + 1 <= self.length].max(initial=2))

    @property
    def max_lengths(self) -> tuple[int, int]:
        """Tokens of the longest source and of its target."""
        source, target = self.measure_both_sides(np.array([self.raw_length]))
        return source.item(), target.item()

    @property
    def has_known_sizes(self) -> bool:
        """Whether the length of a text decides the lengths of its source and target."""
        return self.corruption != "prefix"

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Plan windows in random order."""
        return plan_texts(store, self.eos, self.raw_length, seed, epoch, self.across_documents)

    def measure_both_sides(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the most tokens of the source and of the target for texts of some lengths."""
        if self.corruption != "spans":
            return lengths + (self.corruption == "deshuffle"), lengths + (self.corruption == "deshuffle")
        noise, spans = self.count_noise(lengths)
        return lengths - noise + spans + 1, noise + spans + 1

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Measure both sides, which the lengths alone decide."""
        source, target = self.measure_both_sides(plan.lengths)
        return np.stack((target, target, source), 1)

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Make source and target of each text."""
        ways = {"spans": self.corrupt_spans, "prefix": self.split_prefix, "deshuffle": self.shuffle_tokens}
        source, target = ways[self.corruption](raw, seed)
        source, target = append_eos(*source, self.eos), append_eos(*target, self.eos)
        return make_seq2seq_batch(source, target, self.start, raw.sample, self.max_lengths)

    def corrupt_spans(self, raw: RawExamples, seed: int) -> tuple[PackedArrays, PackedArrays]:
        """Replace spans by sentinels on one side, and the rest on the other."""
        lengths = np.diff(raw.starts)
        noise, spans = self.count_noise(lengths)
        kept = self.split_randomly(lengths - noise, spans, seed, raw.sample, KEPT_DRAW)
        gone = self.split_randomly(noise, spans, seed, raw.sample, NOISE_DRAW)
        sizes = np.stack((kept, gone), 1).ravel()  # kept and hidden in turn
        hidden = np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)
        first = compute_starts(sizes)[1::2]  # (spans,) where the hidden ones begin
        mark = self.sentinels[ragged_arange(spans)]
        ids, keep = raw.ids.copy(), ~hidden
        ids[first], keep[first] = mark, True
        target = np.insert(raw.ids[hidden], compute_starts(gone)[:-1], mark), compute_starts(noise + spans)
        return select_tokens(ids, keep, raw.starts), target

    def split_randomly(
        self, items: np.ndarray, parts: np.ndarray, seed: int, sample: np.ndarray, use: int
    ) -> np.ndarray:
        """Cut each number of items into so many parts, none empty, any way as likely as another; return the sizes."""
        inner = items - 1  # places where a part may begin after the first item
        owner, turn = np.repeat(np.arange(len(items)), inner), ragged_arange(inner)
        begins = rank_within_rows(draw_bits(seed, sample[owner], turn, use), inner) < parts[owner] - 1
        first = compute_starts(items)[:-1]
        starts = np.sort(np.concatenate((first, (first[owner] + 1 + turn)[begins])))
        return np.diff(np.append(starts, items.sum()))

    def split_prefix(self, raw: RawExamples, seed: int) -> tuple[PackedArrays, PackedArrays]:
        """Cut in two at a random place; neither part is empty."""
        lengths = np.diff(raw.starts)
        size = 1 + draw_integers(lengths - 1, seed, raw.sample, PREFIX_DRAW)
        near = ragged_arange(lengths) < np.repeat(size, lengths)
        return select_tokens(raw.ids, near, raw.starts), select_tokens(raw.ids, ~near, raw.starts)

    def shuffle_tokens(self, raw: RawExamples, seed: int) -> tuple[PackedArrays, PackedArrays]:
        """Shuffle the source; the target is the text."""
        lengths, owner = np.diff(raw.starts), compute_row_ids(raw.starts)
        turn = np.arange(len(raw.ids)) - raw.starts[owner]
        rank = rank_within_rows(draw_bits(seed, raw.sample[owner], turn, SHUFFLE_DRAW), lengths)
        ids = np.empty_like(raw.ids)
        ids[raw.starts[owner] + rank] = raw.ids
        return (ids, raw.starts), (raw.ids, raw.starts)
