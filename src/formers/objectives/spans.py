"""Span corruption and its relatives (Raffel et al. 2019, §3.1.4 and §3.3): an encoder reads a text with gaps, a decoder
writes what was in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.draws import below, bits
from ..data.plans import Plan, Raw, Shape, turns
from ..data.store import Store
from ..errors import Error
from ..tasks.heads import Model
from ..text.tokenizer import Tokenizer
from .ragged import edges, owners, ranks, texts
from .targets import Ends, closed, picked, two_sided, two_sided_shape
from .tokens import Counted, balanced_losses, named_losses

NOISE, KEPT, SPLIT, SHUFFLE = range(80, 84)  # what a random number is for


@dataclass(frozen=True)
class SpanCorruption(Counted):
    """15 % of the tokens in spans of 3 on average are replaced by sentinels; the target is each sentinel with what it
    stands for. A text begins with something kept and ends with a span. `length` is the encoder's: 512 come from 568.

    kind "prefix": the source is the beginning, the target the rest; "deshuffle": the source is the text in random
    order, the target the text. `balance` is the weight of the loss that keeps experts busy (Switch). `across` joins the
    documents end to end first, as the released procedure does, so that every text is long enough for many spans.
    """

    length: int
    start: int
    end: int
    sentinels: np.ndarray = field(compare=False, repr=False)  # (number,) ids, the first of them first
    rate: float = 0.15
    mean: float = 3.0
    kind: Literal["spans", "prefix", "deshuffle"] = "spans"
    balance: float = 0.0
    across: bool = False
    part: str = "lm"

    @staticmethod
    def of(tokenizer: Tokenizer, length: int, start: int | None = None, **options: Any) -> SpanCorruption:
        """With the tokenizer's sentinels <extra_id_0>, <extra_id_1> …, which descend from its last id."""
        ends = Ends.of(tokenizer, ("pad", "bos"), start)
        known, number = [], 0
        while (one := tokenizer.rust.token_to_id(f"<extra_id_{number}>")) is not None:
            known.append(one)
            number += 1
        if options.get("mean", 1) < 1:
            raise Error(f"mean={options['mean']} is shorter than a token", fix="take at least 1")
        made = SpanCorruption(length, ends.start, ends.end, np.array(known, np.int64), **options)
        need = made.amounts(np.array([made.raw]))[1].item() if made.kind == "spans" else 0
        if need > len(known):
            what = f"examples of {length} tokens need {need} sentinels, this tokenizer has {len(known)}"
            raise Error(what, fix="train one with <extra_id_0>, <extra_id_1> and so on, or take shorter examples")
        return made

    def amounts(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many tokens of a text are hidden, and in how many spans."""
        lengths = np.maximum(lengths, 2)
        noise = np.clip(np.round(lengths * self.rate), 1, lengths - 1).astype(np.int64)
        spans = np.maximum(np.round(noise / self.mean), 1).astype(np.int64)
        return noise, np.minimum(spans, lengths - noise)

    @property
    def raw(self) -> int:
        """The longest text whose source has at most `length` tokens."""
        if self.kind != "spans":
            return self.length - 1
        lengths = np.arange(2, 4 * self.length + 2)
        noise, spans = self.amounts(lengths)
        return int(lengths[lengths - noise + spans + 1 <= self.length].max(initial=2))

    @property
    def longest(self) -> tuple[int, int]:
        """Tokens of the longest source and of its target."""
        source, target = self.both(np.array([self.raw]))
        return source.item(), target.item()

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Windows in random order."""
        return texts(store, self.end, self.raw, seed, epoch, self.across)

    def both(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of the source and of the target, at most, for texts of some lengths."""
        if self.kind != "spans":
            return lengths + (self.kind == "deshuffle"), lengths + (self.kind == "deshuffle")
        noise, spans = self.amounts(lengths)
        return lengths - noise + spans + 1, noise + spans + 1

    def sizes(self, plan: Plan) -> np.ndarray:
        """Known from the lengths alone."""
        source, target = self.both(plan.lengths)
        return np.stack((target, target, source), 1)

    def shape(self, total: int, plan: Plan) -> Shape:
        """The source is the larger side."""
        return two_sided_shape(total, self.sizes(plan), self.longest)

    def corrupt(self, raw: Raw, seed: int) -> Batch:
        """Source and target of each text."""
        source, target = {"spans": self.gaps, "prefix": self.prefix, "deshuffle": self.shuffle}[self.kind](raw, seed)
        source, target = closed(*source, self.end), closed(*target, self.end)
        return two_sided(source, target, self.start, raw.sample, self.longest)

    def gaps(self, raw: Raw, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Both sides with sentinels."""
        lengths = np.diff(raw.starts)
        noise, spans = self.amounts(lengths)
        kept = self.segments(lengths - noise, spans, seed, raw.sample, KEPT)
        gone = self.segments(noise, spans, seed, raw.sample, NOISE)
        sizes = np.stack((kept, gone), 1).ravel()  # kept and hidden in turn
        hidden = np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)
        first = edges(sizes)[1::2]  # (spans,) where the hidden ones begin
        mark = self.sentinels[turns(spans)]
        ids, keep = raw.ids.copy(), ~hidden
        ids[first], keep[first] = mark, True
        target = np.insert(raw.ids[hidden], edges(gone)[:-1], mark), edges(noise + spans)
        return picked(ids, keep, raw.starts), target

    def segments(self, items: np.ndarray, parts: np.ndarray, seed: int, sample: np.ndarray, use: int) -> np.ndarray:
        """Each number of items cut into so many parts, none empty, every way as likely as another: their sizes."""
        inner = items - 1  # places where a part may begin behind the first item
        owner, turn = np.repeat(np.arange(len(items)), inner), turns(inner)
        begins = ranks(bits(seed, sample[owner], turn, use), inner) < parts[owner] - 1
        first = edges(items)[:-1]
        starts = np.sort(np.concatenate((first, (first[owner] + 1 + turn)[begins])))
        return np.diff(np.append(starts, items.sum()))

    def prefix(self, raw: Raw, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Cut in two at a random place; neither part is empty."""
        lengths = np.diff(raw.starts)
        size = 1 + below(lengths - 1, seed, raw.sample, SPLIT)
        near = turns(lengths) < np.repeat(size, lengths)
        return picked(raw.ids, near, raw.starts), picked(raw.ids, ~near, raw.starts)

    def shuffle(self, raw: Raw, seed: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """In random order."""
        lengths, owner = np.diff(raw.starts), owners(raw.starts)
        turn = np.arange(len(raw.ids)) - raw.starts[owner]
        ids = np.empty_like(raw.ids)
        ids[raw.starts[owner] + ranks(bits(seed, raw.sample[owner], turn, SHUFFLE), lengths)] = raw.ids
        return (ids, raw.starts), (raw.ids, raw.starts)

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The summed cross-entropy of the target, and of experts the balance."""
        if self.balance:
            return balanced_losses(model, batch, self.part, self.balance)
        return named_losses(model, batch, self.part)
