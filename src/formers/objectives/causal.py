"""Causal language modelling: every token is predicted from those before it (GPT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..batch import IGNORE_INDEX, Batch, BatchShape
from ..data.counter_rng import draw_integers
from ..data.plans import Plan, RawExamples, estimate_documents, make_stream_shape, plan_streams, plan_windows
from ..data.store import Store
from ..ragged_arrays import ragged_arange
from ..text.tokenizer import Tokenizer
from .token_losses import BaseObjective

PREFIX_DRAW = 120  # what a random number is for


@dataclass(frozen=True)
class CausalLM(BaseObjective):
    """p(x) = Π p(xₜ | x₁ … xₜ₋₁), over windows of `length` tokens of one document, or of all (`across_documents`).

    With `is_prefix_lm`, the beginning of each window, of random length, is only read: there is no loss in it. It is
    read from left to right all the same; to read it from both sides takes an encoder (span_corruption.py,
    corruption="prefix"). `num_streams` cuts the store into so many streams, whose windows follow each other from batch
    to batch, for models with a memory; a batch has `streams_per_batch` of them (0: all).
    """

    length: int
    across_documents: bool = False
    is_prefix_lm: bool = False
    num_streams: int = 0
    streams_per_batch: int = 0
    part: str = "lm"

    @staticmethod
    def from_tokenizer(tokenizer: Tokenizer, length: int, **options: Any) -> CausalLM:  # dynamic: fields of the class
        """Take nothing of the tokenizer: the store ends each document with its end mark."""
        return CausalLM(length, **options)

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Plan windows in random order, or those of all streams in turn, each with its last token's successor."""
        if self.num_streams:
            return plan_streams(store, self.length, self.num_streams, extra=1)
        return plan_windows(store, self.length, seed, epoch, across=self.across_documents)

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Measure tokens and labels by the plan."""
        lengths = plan.lengths - (self.num_streams > 0)
        return np.stack((lengths, lengths, np.zeros(len(plan), np.int64)), 1)

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Choose a shape with a loss at every token."""
        if self.num_streams:  # a batch is one window of each of its streams
            return make_stream_shape(self.num_streams, self.streams_per_batch, self.length)
        return BatchShape(estimate_documents(total, plan.lengths, longest=self.length), total, 0, self.length)

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Hide nothing: the label of each token is its successor in the document."""
        labels = np.append(raw.ids[1:], IGNORE_INDEX)
        ids, starts, last = raw.ids, raw.starts, raw.starts[1:] - 1
        if self.num_streams:
            inner = np.ones(len(ids), bool)
            inner[last] = False
            ids, labels, starts = ids[inner], labels[inner], starts - np.arange(len(starts))
        else:
            labels[last] = IGNORE_INDEX
        if self.is_prefix_lm:
            lengths = np.diff(starts)
            size = 1 + draw_integers(np.maximum(lengths - 1, 1), seed, raw.sample, PREFIX_DRAW)
            labels[ragged_arange(lengths) < np.repeat(size - 1, lengths)] = IGNORE_INDEX
        return Batch(ids, starts, self.length, labels=labels, sample=raw.sample)
