"""Sequence to sequence: a decoder writes the target of a pair, with its labels smoothed (Vaswani et al. 2017, §5.4). In
training, a recurrent decoder may read some of its own predictions in place of the target (Bengio et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..batch import Batch, BatchShape
from ..data.counter_rng import shuffle_indices
from ..data.encoded_examples import make_seq2seq_batch
from ..data.plans import ExampleFrame, Plan, RawExamples, SentenceTable, add_special_tokens, estimate_documents
from ..data.store import Store
from ..errors import Error
from ..protocols import Losses, Model
from ..ragged_arrays import compute_row_ids, compute_starts
from ..text.tokenizer import Tokenizer
from .scheduled_sampling import ScheduledSampling
from .token_losses import BaseObjective, compute_token_loss


class TwoSidedObjective(BaseObjective):
    """An objective with a source for the encoder and a target for the decoder."""

    length: int  # of either side, marks included
    start: int

    @property
    def decoder_start(self) -> int:
        """The token that the decoder starts with."""
        return self.start

    @property
    def max_lengths(self) -> tuple[int, int]:
        """Tokens of the longest source and of the longest target."""
        return self.length, self.length

    @property
    def has_known_sizes(self) -> bool:
        """Whether measure_sizes returns the sizes themselves, and not the most that they can be."""
        return False

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Measure (E, 3) tokens of the target, labels and tokens of the source."""
        raise NotImplementedError

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Choose room for `total` tokens on the larger side, and for as many as belong to them on the other."""
        sizes, longest = self.measure_sizes(plan), self.max_lengths
        rows = total // max(longest)
        if self.has_known_sizes and rows * max(longest) == total and (sizes[:, [2, 0]] == longest).all():
            return BatchShape(rows, rows * longest[1], 0, longest[1], rows * longest[0], longest[0])  # whole grids
        source, target = sizes[:, 2].mean(), sizes[:, 0].mean()
        larger = max(source, target)
        sides = (int(np.ceil(total * part / larger)) for part in (source, target))
        near, far = (max(side, most) for side, most in zip(sides, longest, strict=True))
        # A source may turn out far shorter than it might be; dummy documents fill up what is left.
        dummies = int(np.ceil(max(near / longest[0], far / longest[1])))
        return BatchShape(estimate_documents(total, np.array([larger])) + dummies, far, 0, longest[1], near, longest[0])


def append_eos(ids: np.ndarray, starts: np.ndarray, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Append an end mark to each example."""
    return np.insert(ids, starts[1:], end), starts + np.arange(len(starts))


def select_tokens(ids: np.ndarray, keep: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Select the entries of packed examples that are kept, and where the examples begin now."""
    return ids[keep], compute_starts(np.bincount(compute_row_ids(starts)[keep], minlength=len(starts) - 1))


@dataclass(frozen=True)
class DecoderEnds:
    """The token that a decoder starts with, and the end mark."""

    start: int
    eos: int

    @staticmethod
    def from_tokenizer(tokenizer: Tokenizer, roles: tuple[str, ...], start: int | None = None) -> DecoderEnds:
        """Find both; the first of these roles that the tokenizer knows is the start, unless an id is given."""
        end = next((i for role in ("eos", "sep") if (i := tokenizer.id(role)) is not None), None)
        begin = start if start is not None else next((i for r in roles if (i := tokenizer.id(r)) is not None), None)
        if end is None or begin is None:
            raise Error("this tokenizer has no end mark or no token to start with", fix="train one with pad and eos")
        if begin >= len(tokenizer):
            what = f"start={begin} is not a token of this tokenizer, which has {len(tokenizer):,}"
            raise Error(what, fix="give the id of one of them, or leave start out")
        return DecoderEnds(begin, end)


@dataclass(frozen=True)
class Seq2Seq(ScheduledSampling, TwoSidedObjective):
    """Documents of two sentences, source and target; what is longer than `length` is cut at its end. `prefix` are
    tokens in front of every source: T5's names of tasks. Its other options are those of scheduled sampling."""

    length: int  # of either side, the end mark included
    start: int
    eos: int
    label_smoothing: float = 0.0
    prefix: tuple[int, ...] = ()
    part: str = "lm"

    @staticmethod
    def from_tokenizer(
        tokenizer: Tokenizer, length: int, start: int | None = None, prefix: str = "",
        **options: Any,  # dynamic: fields of the class
    ) -> Seq2Seq:  # fmt: skip
        """Take a tokenizer's end mark, after both sides; the decoder starts with the begin mark or with padding."""
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
        """Plan two spans for each pair, in random order."""
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
        """Measure both sides with their marks."""
        source, target = (plan.end - plan.begin).reshape(-1, 2).T + 1
        return np.stack((target, target, source + len(self.prefix)), 1)

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Make a batch whose two sides are the two spans; nothing is spoiled."""
        source = select_tokens(raw.ids, raw.span_index == 0, raw.starts)
        blank = np.zeros(len(source[0]), np.int64)
        near = add_special_tokens(RawExamples(*source, blank, blank > 0, None, raw.label, raw.sample), *self.frame)
        target = append_eos(*select_tokens(raw.ids, raw.span_index == 1, raw.starts), self.eos)
        return make_seq2seq_batch((near.ids, near.starts), target, self.start, raw.sample, self.max_lengths)

    def prepare_step_batch(self, batch: Batch, step: int) -> Batch:
        """Draw which inputs of the decoder are its own predictions."""
        return self.draw_predicted_inputs(batch, step)

    def loss(self, model: Model, batch: Batch) -> Losses:
        """Compute the summed cross-entropy of the target, with the decoder's own predictions where the batch has
        them."""
        hidden = self.compute_hidden(model, batch, self.part)
        return {self.part: compute_token_loss(model, batch, self.part, hidden, self.label_smoothing)}
