"""ERNIE's knowledge masking (Sun et al. 2019, §3): whole units are hidden, in three stages; pairs; dialogues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.draws import below, shuffled, uniform
from ..data.plans import Plan, Raw, turns
from ..data.store import ENTITY, PHRASE, Store
from ..errors import Error
from ..tasks.heads import Model
from .frames import Laid
from .hiding import units
from .masked import MaskedLM
from .pairing import Book
from .pairs import NextSentence
from .ragged import edges, spread

Stage = Literal["basic", "phrase", "entity"]
BITS = {"basic": 0, "phrase": PHRASE, "entity": ENTITY}
FAKE, WHICH, OTHER, WHERE, ORDER = range(40, 45)  # what a random number is for


@dataclass(frozen=True)
class Units(MaskedLM):
    """Each unit is chosen whole with 15 %, and each of its tokens becomes [MASK], a random token, or stays.

    The unit is a token (basic), a phrase or an entity, as marked in the store. Phrases and entities reach to where the
    next one begins. An example never hides more than its limit, six deviations above the mean.
    """

    ignores: ClassVar[tuple[str, ...]] = ("grams", "most")  # units say what is whole, and chance how many
    stage: Stage = "basic"
    task: int | None = None  # of ERNIE 2.0, which has an embedding for it

    def lay(self, raw: Raw) -> tuple[Laid, dict[str, Any]]:
        """As without units, and the task."""
        at, more = super().lay(raw)
        return at, more if self.task is None else {**more, "tasks": np.full(len(at.ids), self.task)}

    def wanted(self, lengths: np.ndarray) -> np.ndarray:
        """At most so many tokens: the number is left to chance."""
        mean = self.rate * lengths
        return np.minimum(lengths, np.ceil(mean + 6 * np.sqrt(mean) + 4)).astype(np.int64)

    def choose(self, at: Laid, free: np.ndarray, seed: int) -> np.ndarray:
        """(N,) bool: whole units."""
        if self.stage == "basic":
            first = np.ones(len(at.ids), bool)
        elif at.raw.unit is None:
            raise Error(f"this store does not say where a {self.stage} begins", fix="prepare the data with units")
        else:
            first = at.carry((at.raw.unit & BITS[self.stage]) > 0) | at.begins
        return units(free, first, at.starts, self.rate, self.wanted(np.diff(at.starts)), seed, at.raw.sample)

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """As without units; the model must know the task."""
        table = getattr(model.body.embed, "task", None)
        known = 0 if table is None else table.num_embeddings
        if self.task is not None and self.task >= known:
            what = f"task={self.task} is none of the {known} that this model knows, counted from 0"
            raise Error(what, fix="build ERNIE with use_tasks=True and more tasks, or leave task out")
        return super().loss(model, batch)


@dataclass(frozen=True)
class UnitPairs(Units, NextSentence):
    """Units hidden in pairs of segments; 1 is the true pair, the opposite of BERT."""

    ignores: ClassVar[tuple[str, ...]] = (*Units.ignores, *NextSentence.ignores)

    def answers(self, label: np.ndarray) -> np.ndarray:
        """1 = B follows A."""
        return 1 - label


@dataclass(frozen=True)
class Dialogue(Units, NextSentence):
    """[CLS] turn [SEP] turn [SEP] turn [SEP] of one conversation (a document whose sentences are turns). The roles,
    query and response in turn, are the segments. Half of the time one turn is replaced by another conversation's: real
    (1) or not (0)?"""

    ignores: ClassVar[tuple[str, ...]] = (*UnitPairs.ignores, "short")
    turns: int = 3

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Stretches of up to so many turns, in random order; one of them may be another's. Turns are cut at the end."""
        book = Book.of(store, self.end)
        count = book.last - book.first
        if len(book.first) < 2 or count.max(initial=0) < 2:
            raise Error("a dialogue needs several conversations of at least two turns", fix="give more conversations")
        parts = count // self.turns + (count % self.turns > 1)  # a last turn alone is left out
        owner = np.repeat(np.arange(len(count)), parts)
        begin = book.first[owner] + turns(parts) * self.turns
        number = np.minimum(book.last[owner] - begin, self.turns)
        key, sentence = (seed, epoch), spread(begin, number)
        fake = uniform(*key, begin, FAKE) < 0.5
        at = edges(number)
        other = below(len(count) - 1, *key, begin, OTHER)
        other += other >= owner
        instead = book.first[other] + below(count[other], *key, begin, WHERE)
        place = at[:-1] + below(number, *key, begin, WHICH)
        sentence[place[fake]] = instead[fake]
        share = np.repeat((self.length - 1) // number - 1, number)
        if share.min() < 1:
            raise Error(f"examples of {self.length} tokens have no room for {self.turns} turns", fix="take longer ones")
        start, stop = book.begin[sentence], np.minimum(book.end[sentence], book.begin[sentence] + share)
        order = shuffled(len(begin), seed, epoch, ORDER)
        spans = spread(at[:-1][order], number[order])
        return Plan(start[spans], stop[spans], edges(number[order]), (~fake)[order].astype(np.int8))
