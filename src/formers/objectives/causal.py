"""Causal language modelling: every token is predicted from those before it (GPT)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.loader import Plan, windows
from ..data.store import Store
from ..tasks.heads import Model
from ..text.tokenizer import Tokenizer
from .tokens import IGNORED, token_loss


@dataclass(frozen=True)
class CausalLM:
    """p(x) = Π p(xₜ | x₁ … xₜ₋₁), over windows of `length` tokens of one document."""

    length: int
    frame: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    part: str = "lm"

    @staticmethod
    def of(tokenizer: Tokenizer, length: int) -> CausalLM:
        """Nothing of the tokenizer is needed: the store ends each document with its end mark."""
        return CausalLM(length)

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Windows in random order."""
        return windows(store, self.length, seed, epoch)

    def corrupt(self, batch: Batch, seed: int) -> Batch:
        """Nothing is hidden: the label of each token is its successor in the document."""
        real = np.repeat(batch.sample >= 0, np.diff(batch.starts))
        ends = np.zeros(len(batch.ids), bool)
        ends[batch.starts[1:][np.diff(batch.starts) > 0] - 1] = True
        return batch.replace(labels=np.where(real & ~ends, np.roll(batch.ids, -1), IGNORED))

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The summed cross-entropy and how many tokens it is over."""
        return {self.part: token_loss(model, batch, self.part)}
