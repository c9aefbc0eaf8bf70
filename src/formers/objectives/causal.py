"""Causal language modelling: every token is predicted from those before it (GPT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.draws import below
from ..data.plans import Plan, Raw, Shape, room, streamed, streams, turns, windows
from ..data.store import Store
from ..tasks.heads import Model
from ..text.tokenizer import Tokenizer
from .tokens import IGNORED, Counted, named_losses

SPLIT = 120  # what a random number is for


@dataclass(frozen=True)
class CausalLM(Counted):
    """p(x) = Π p(xₜ | x₁ … xₜ₋₁), over windows of `length` tokens of one document, or `across` documents.

    With `prefix`, the beginning of each window, of random length, is only read: there is no loss in it. It is read from
    left to right all the same; to read it from both sides takes an encoder (spans.py, kind "prefix"). `streams` cuts
    the store into so many, whose windows follow each other from batch to batch, for models with a memory; a batch has
    `rows` of them (0: all).
    """

    length: int
    across: bool = False
    prefix: bool = False
    streams: int = 0
    rows: int = 0
    part: str = "lm"

    @staticmethod
    def of(tokenizer: Tokenizer, length: int, **options: Any) -> CausalLM:
        """Nothing of the tokenizer is needed: the store ends each document with its end mark."""
        return CausalLM(length, **options)

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Windows in random order, or those of all streams in turn, each with its last token's successor."""
        if self.streams:
            return streams(store, self.length, self.streams, extra=1)
        return windows(store, self.length, seed, epoch, across=self.across)

    def sizes(self, plan: Plan) -> np.ndarray:
        """As many tokens and places as the plan says."""
        lengths = plan.lengths - (self.streams > 0)
        return np.stack((lengths, lengths, np.zeros(len(plan), np.int64)), 1)

    def shape(self, total: int, plan: Plan) -> Shape:
        """A loss at every token."""
        if self.streams:  # a batch is one window of each of its streams
            return streamed(self.streams, self.rows, self.length)
        return Shape(room(total, plan.lengths), total, 0, self.length)

    def corrupt(self, raw: Raw, seed: int) -> Batch:
        """Nothing is hidden: the label of each token is its successor in the document."""
        labels = np.append(raw.ids[1:], IGNORED)
        ids, starts, last = raw.ids, raw.starts, raw.starts[1:] - 1
        if self.streams:
            inner = np.ones(len(ids), bool)
            inner[last] = False
            ids, labels, starts = ids[inner], labels[inner], starts - np.arange(len(starts))
        else:
            labels[last] = IGNORED
        if self.prefix:
            lengths = np.diff(starts)
            size = 1 + below(np.maximum(lengths - 1, 1), seed, raw.sample, SPLIT)
            labels[turns(lengths) < np.repeat(size - 1, lengths)] = IGNORED
        return Batch(ids, starts, self.length, labels=labels, sample=raw.sample)

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The summed cross-entropy and how many tokens it is over."""
        return named_losses(model, batch, self.part)
