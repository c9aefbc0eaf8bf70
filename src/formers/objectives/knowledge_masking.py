"""ERNIE's knowledge masking (Sun et al. 2019, §3): whole units are hidden, in three stages; pairs; dialogues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.counter_rng import draw_integers, draw_uniform, shuffle_indices
from ..data.plans import Plan, RawExamples
from ..data.store import ENTITY_BIT, PHRASE_BIT, Store
from ..errors import Error
from ..protocols import Model
from ..ragged_arrays import compute_starts, expand_ranges, ragged_arange
from .masking import MaskedLM, choose_units
from .sentence_pairs import NextSentence, SentenceTable
from .special_tokens import FramedExamples

MaskingStage = Literal["basic", "phrase", "entity"]
STAGE_BITS = {"basic": 0, "phrase": PHRASE_BIT, "entity": ENTITY_BIT}
FAKE_DRAW, WHICH_DRAW, OTHER_DRAW, WHERE_DRAW, ORDER_DRAW = range(40, 45)  # what a random number is for


@dataclass(frozen=True)
class UnitMaskedLM(MaskedLM):
    """Each unit is chosen whole with 15 %, and each of its tokens becomes [MASK], a random token, or stays.

    The unit is a token (basic), a phrase or an entity, as marked in the store. Phrases and entities reach to where the
    next one begins. An example never hides more than its limit, six deviations above the mean.
    """

    # Units say what is hidden whole, and chance says how many of them are.
    unused_options: ClassVar[tuple[str, ...]] = ("max_ngram", "max_masked")
    stage: MaskingStage = "basic"
    task_id: int | None = None  # of ERNIE 2.0, which has an embedding for it

    def frame_examples(self, raw: RawExamples) -> tuple[FramedExamples, dict[str, Any]]:
        """Frame the examples, with ERNIE 2.0's task id for each token."""
        at, more = super().frame_examples(raw)
        return at, more if self.task_id is None else {**more, "tasks": np.full(len(at.ids), self.task_id)}

    def count_masked(self, lengths: np.ndarray) -> np.ndarray:
        """At most so many tokens: the number is left to chance."""
        mean = self.mask_rate * lengths
        return np.minimum(lengths, np.ceil(mean + 6 * np.sqrt(mean) + 4)).astype(np.int64)

    def choose_masked(self, at: FramedExamples, free: np.ndarray, seed: int) -> np.ndarray:
        """(N,) bool: whole units."""
        if self.stage == "basic":
            first = np.ones(len(at.ids), bool)
        elif at.raw.unit_bits is None:
            raise Error(f"this store does not say where a {self.stage} begins", fix="prepare the data with units")
        else:
            first = at.scatter_values((at.raw.unit_bits & STAGE_BITS[self.stage]) > 0) | at.span_starts
        return choose_units(
            free, first, at.starts, self.mask_rate, self.count_masked(np.diff(at.starts)), seed, at.raw.sample
        )

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Compute the losses; the model must have an embedding for the task."""
        table = getattr(model.body.embed, "task", None)
        known = 0 if table is None else table.num_embeddings
        if self.task_id is not None and self.task_id >= known:
            what = f"task_id={self.task_id} is none of the {known} that this model knows, counted from 0"
            raise Error(what, fix="build ERNIE with use_tasks=True and more tasks, or leave task_id out")
        return super().loss(model, batch)


@dataclass(frozen=True)
class UnitNextSentence(UnitMaskedLM, NextSentence):
    """Units hidden in pairs of segments; 1 is the true pair, the opposite of BERT."""

    unused_options: ClassVar[tuple[str, ...]] = (*UnitMaskedLM.unused_options, *NextSentence.unused_options)

    def make_answers(self, label: np.ndarray) -> np.ndarray:
        """1 = B follows A."""
        return 1 - label


@dataclass(frozen=True)
class DialogueLM(UnitMaskedLM, NextSentence):
    """[CLS] turn [SEP] turn [SEP] turn [SEP] of one conversation (a document whose sentences are turns). The roles,
    query and response in turn, are the segments. Half of the time one turn is replaced by another conversation's: real
    (1) or not (0)?"""

    unused_options: ClassVar[tuple[str, ...]] = (*UnitNextSentence.unused_options, "short_seq_prob")
    num_turns: int = 3

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Stretches of up to so many turns, in random order; one of them may be another's. Turns are cut at the end."""
        book = SentenceTable.from_store(store, self.eos)
        count = book.document_ends - book.document_begins
        if len(book.document_begins) < 2 or count.max(initial=0) < 2:
            raise Error("a dialogue needs several conversations of at least two turns", fix="give more conversations")
        parts = count // self.num_turns + (count % self.num_turns > 1)  # a last turn alone is left out
        owner = np.repeat(np.arange(len(count)), parts)
        begin = book.document_begins[owner] + ragged_arange(parts) * self.num_turns
        number = np.minimum(book.document_ends[owner] - begin, self.num_turns)
        key, sentence = (seed, epoch), expand_ranges(begin, number)
        fake = draw_uniform(*key, begin, FAKE_DRAW) < 0.5
        at = compute_starts(number)
        other = draw_integers(len(count) - 1, *key, begin, OTHER_DRAW)
        other += other >= owner
        instead = book.document_begins[other] + draw_integers(count[other], *key, begin, WHERE_DRAW)
        place = at[:-1] + draw_integers(number, *key, begin, WHICH_DRAW)
        sentence[place[fake]] = instead[fake]
        share = np.repeat((self.length - 1) // number - 1, number)
        if share.min() < 1:
            raise Error(
                f"examples of {self.length} tokens have no room for {self.num_turns} turns", fix="take longer ones"
            )
        start, stop = book.begin[sentence], np.minimum(book.end[sentence], book.begin[sentence] + share)
        order = shuffle_indices(len(begin), seed, epoch, ORDER_DRAW)
        spans = expand_ranges(at[:-1][order], number[order])
        return Plan(start[spans], stop[spans], compute_starts(number[order]), (~fake)[order].astype(np.int8))
