"""Sequence to sequence: a decoder writes the target of a pair, with its labels smoothed (Vaswani et al. 2017, §5.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..batch import Batch, BatchShape
from ..data.counter_rng import shuffle_indices
from ..data.encoded_examples import make_seq2seq_batch
from ..data.plans import Plan, RawExamples
from ..data.store import Store
from ..errors import Error
from ..protocols import Model
from ..text.tokenizer import Tokenizer
from .sentence_pairs import SentenceTable
from .special_tokens import ExampleFrame, add_special_tokens
from .token_losses import (
    DecoderEnds,
    LabelCounting,
    append_eos,
    choose_two_sided_shape,
    compute_losses,
    select_tokens,
)


@dataclass(frozen=True)
class Seq2Seq(LabelCounting):
    """Documents of two sentences, source and target; what is longer than `length` is cut at its end.

    `prefix` are tokens in front of every source: T5's names of tasks.
    """

    length: int  # of either side, the end mark included
    start: int
    eos: int
    label_smoothing: float = 0.0
    prefix: tuple[int, ...] = ()
    part: str = "lm"

    @staticmethod
    def from_tokenizer(
        tokenizer: Tokenizer, length: int, start: int | None = None, prefix: str = "", **options: Any
    ) -> Seq2Seq:
        """With a tokenizer's end mark, behind both sides; the decoder starts with the begin mark or with padding."""
        ends = DecoderEnds.from_tokenizer(tokenizer, ("bos", "pad", "cls", "eos"), start)
        front = tuple(tokenizer.encode(prefix, special=False)) if prefix else ()
        if len(front) + 2 > length:
            raise Error(f"{len(front)} tokens of a prefix do not fit into {length}", fix="take longer examples")
        return Seq2Seq(length, ends.start, ends.eos, prefix=front, **options)

    @property
    def frame(self) -> ExampleFrame:
        """Around a source."""
        return self.prefix, (self.eos,)

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Two spans for each pair, in random order."""
        book = SentenceTable.from_store(store, self.eos)
        good = book.document_ends - book.document_begins == 2
        if not good.any():
            raise Error("no document is a pair of two sentences", fix="prepare pairs: a source and a target each")
        first = book.document_begins[good][shuffle_indices(int(good.sum()), seed, epoch, 0xDA7A)]
        sentence = np.stack((first, first + 1), 1)
        room = np.array([self.length - 1 - len(self.prefix), self.length - 1])
        begin = book.begin[sentence]
        end = np.minimum(book.end[sentence], begin + room)
        return Plan(begin.ravel(), end.ravel(), np.arange(len(first) + 1) * 2, np.full(len(first), -1, np.int8))

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Both sides with their marks."""
        source, target = (plan.end - plan.begin).reshape(-1, 2).T + 1
        return np.stack((target, target, source + len(self.prefix)), 1)

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Room on both sides."""
        return choose_two_sided_shape(total, self.measure_sizes(plan), (self.length, self.length))

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Nothing is spoiled; the two spans are the two sides."""
        source = select_tokens(raw.ids, raw.span_index == 0, raw.starts)
        blank = np.zeros(len(source[0]), np.int64)
        near = add_special_tokens(RawExamples(*source, blank, blank > 0, None, raw.label, raw.sample), *self.frame)
        target = append_eos(*select_tokens(raw.ids, raw.span_index == 1, raw.starts), self.eos)
        return make_seq2seq_batch((near.ids, near.starts), target, self.start, raw.sample, (self.length, self.length))

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The summed cross-entropy of the target, smoothed."""
        return compute_losses(model, batch, self.part, smoothing=self.label_smoothing)
