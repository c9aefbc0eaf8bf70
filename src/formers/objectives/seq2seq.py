"""Sequence to sequence: a decoder writes the target of a pair, with its labels smoothed (Vaswani et al. 2017, §5.4). In
training, a recurrent decoder may read some of its own predictions in place of the target (Bengio et al. 2015)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch, BatchShape
from ..data.counter_rng import shuffle_indices
from ..data.encoded_examples import make_seq2seq_batch
from ..data.plans import ExampleFrame, Plan, RawExamples, SentenceTable, add_special_tokens, estimate_documents
from ..data.store import Store
from ..errors import Error
from ..nn.encoder_decoder import RecurrentEncoderDecoder
from ..protocols import Losses, Model
from ..ragged_arrays import compute_row_ids, compute_starts
from ..text.tokenizer import Tokenizer
from .token_losses import BaseObjective, compute_token_loss, upcast_logits

SamplingSchedule = Literal["constant", "linear", "exponential", "inverse-sigmoid"]
# Schedule → the least and the largest decay (the least is excluded, unless it is 1), and an example.
DECAY_BOUNDS: dict[str, tuple[float, float, str]] = {
    "linear": (0.0, 1.0, "0.0001: so much less of the target at every step"),
    "exponential": (0.0, 1.0, "0.9999: so much of the share is left after every step"),
    "inverse-sigmoid": (1.0, math.inf, "1000: the steps over which the share falls"),
}
SAMPLING_OPTIONS = (
    "teacher_forcing", "sampling_schedule", "sampling_decay", "min_teacher_forcing", "sampled_token",
)  # fmt: skip
ONLY_RECURRENT = "only a recurrent decoder can be trained on its own predictions"


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
class Seq2Seq(TwoSidedObjective):
    """Documents of two sentences, source and target; what is longer than `length` is cut at its end. `prefix` are
    tokens in front of every source: T5's names of tasks.

    Scheduled sampling (Bengio et al. 2015, §2.4), for recurrent decoders: in training each input of the decoder is the
    target's token with a probability ε, else the token that the decoder predicts there, drawn from its distribution or
    the likeliest one. At step i, with k the `sampling_decay`, ε is `teacher_forcing` ("constant"), `teacher_forcing`
    - k·i ("linear"), or `teacher_forcing` times k^i ("exponential") or k / (k + exp(i / k)) ("inverse-sigmoid"), and
    never below `min_teacher_forcing`. Validation always reads the target."""

    length: int  # of either side, the end mark included
    start: int
    eos: int
    label_smoothing: float = 0.0
    prefix: tuple[int, ...] = ()
    part: str = "lm"
    teacher_forcing: float = 1.0
    sampling_schedule: SamplingSchedule = "constant"
    sampling_decay: float | None = None
    min_teacher_forcing: float = 0.0
    sampled_token: Literal["drawn", "likeliest"] = "drawn"

    def __post_init__(self) -> None:
        schedule, decay = self.sampling_schedule, self.sampling_decay
        if schedule == "constant":
            if decay is not None or self.min_teacher_forcing:
                name = "min_teacher_forcing" if decay is None else "sampling_decay"
                raise Error(f"{name} belongs to a sampling_schedule", fix="sampling_schedule linear, for example")
            return
        low, high, example = DECAY_BOUNDS[schedule]
        if decay is None or not (low < decay < high or decay == low == 1.0):
            bounds = "at least 1" if low else f"between {low:g} and {high:g}"
            what = f"the sampling_schedule {schedule} needs a sampling_decay {bounds}"
            what += "" if decay is None else f", got {decay}"
            raise Error(what, fix=f"for example {example}")

    @property
    def should_sample_inputs(self) -> bool:
        """True if the decoder is trained on predictions of its own, at some steps at least."""
        return self.teacher_forcing < 1 or self.sampling_schedule != "constant"

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

    def compute_teacher_forcing(self, step: int) -> float:
        """Compute the share of the decoder's inputs at a step, counted from 0, that are the target's tokens."""
        decay = self.sampling_decay
        if decay is None:
            return self.teacher_forcing
        if self.sampling_schedule == "linear":
            share = self.teacher_forcing - decay * step
        elif self.sampling_schedule == "exponential":
            share = self.teacher_forcing * decay**step
        else:  # the exponent is bounded, for exp would overflow
            share = self.teacher_forcing * decay / (decay + math.exp(min(step / decay, 700.0)))
        return max(self.min_teacher_forcing, share)

    def prepare_step_batch(self, batch: Batch, step: int) -> Batch:
        """Draw which inputs of the decoder are its own predictions. They are drawn at a share of 1 too: a recorded
        CUDA graph takes batches with the same fields at every step."""
        if not self.should_sample_inputs:
            return batch
        predicted = torch.rand(len(batch.ids)) >= self.compute_teacher_forcing(step)
        return batch.replace(predicted_inputs=predicted if isinstance(batch.ids, Tensor) else predicted.numpy())

    def loss(self, model: Model, batch: Batch) -> Losses:
        """Compute the summed cross-entropy of the target, with the decoder's own predictions where the batch has
        them."""
        if batch.predicted_inputs is None:
            return super().loss(model, batch)
        if not isinstance(model.body, RecurrentEncoderDecoder):
            raise Error(ONLY_RECURRENT, fix="leave out teacher_forcing and sampling_schedule")

        def predict_token(hidden: Tensor) -> Tensor:
            logits = upcast_logits(model.logits(hidden.detach(), part=self.part))
            return (add_gumbel_noise(logits) if self.sampled_token == "drawn" else logits).argmax(-1)

        hidden = model(batch, predict_token=predict_token)
        return {self.part: compute_token_loss(model, batch, self.part, hidden, self.label_smoothing)}


def add_gumbel_noise(logits: Tensor) -> Tensor:
    """Add Gumbel noise to logits: the largest is then a draw from their softmax, and no host sync is needed."""
    return logits - torch.log(-torch.log(torch.rand_like(logits)))
