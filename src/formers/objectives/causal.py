"""Causal language modelling: every token is predicted from those before it (GPT)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.plans import Plan, Raw, Shape, room, windows
from ..data.store import Store
from ..tasks.heads import Model
from ..text.tokenizer import Tokenizer
from .tokens import IGNORED, token_loss


@dataclass(frozen=True)
class CausalLM:
    """p(x) = Π p(xₜ | x₁ … xₜ₋₁), over windows of `length` tokens of one document."""

    length: int
    part: str = "lm"

    @staticmethod
    def of(tokenizer: Tokenizer, length: int) -> CausalLM:
        """Nothing of the tokenizer is needed: the store ends each document with its end mark."""
        return CausalLM(length)

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Windows in random order."""
        return windows(store, self.length, seed, epoch)

    def sizes(self, plan: Plan) -> np.ndarray:
        """As many tokens and places as the plan says."""
        return np.stack((plan.lengths, plan.lengths, np.zeros(len(plan), np.int64)), 1)

    def shape(self, total: int, plan: Plan) -> Shape:
        """A loss at every token."""
        return Shape(room(total, plan.lengths), total, 0, self.length)

    def corrupt(self, raw: Raw, seed: int) -> Batch:
        """Nothing is hidden: the label of each token is its successor in the document."""
        labels = np.append(raw.ids[1:], IGNORED)
        labels[raw.starts[1:] - 1] = IGNORED
        return Batch(raw.ids, raw.starts, self.length, labels=labels, sample=raw.sample)

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The summed cross-entropy and how many tokens it is over."""
        return {self.part: token_loss(model, batch, self.part)}
