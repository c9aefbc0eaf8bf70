"""Two segments and a question about them, beside the masked tokens: next sentence (BERT §3.1), sentence order (ALBERT
§3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.plans import Plan, Raw
from ..data.store import Store
from ..tasks.heads import Model
from .frames import Laid, laid
from .masked import MaskedLM
from .pairing import Pairing
from .tokens import named_losses


@dataclass(frozen=True)
class NextSentence(MaskedLM):
    """[CLS] A [SEP] B [SEP]: is B the continuation of A (0), or text of another document (1)? And masked tokens."""

    ignores: ClassVar[tuple[str, ...]] = ("across",)  # a pair lies in its documents
    short: float = 0.1
    answer: str = "nsp"

    @property
    def pairing(self) -> Pairing:
        """How segments are chosen."""
        return Pairing(self.length - 3, self.short, mark=self.end)

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Two spans for each example, and its label."""
        return self.pairing.plan(store, seed, epoch)

    def marks(self, plan: Plan) -> np.ndarray | int:
        """One in front, one behind each segment."""
        return 1 + np.diff(plan.first)

    def lay(self, raw: Raw) -> tuple[Laid, dict[str, Any]]:
        """Segments 0 and 1; a mark belongs to the segment before it."""
        front, back = self.frame
        at = laid(raw, front, behind=(back,))
        span = at.carry(raw.span, -1)
        known = np.maximum.accumulate(np.where(span >= 0, np.arange(len(span)), 0))
        span = span[known]
        span[at.starts[:-1]] = 0
        return at, {"segments": span % 2, "answers": self.answers(raw.label)}

    def answers(self, label: np.ndarray) -> np.ndarray:
        """What the model must say of each pair."""
        return label

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Of the hidden tokens and of the pairs."""
        return named_losses(model, batch, self.part, self.answer)


@dataclass(frozen=True)
class SentenceOrder(NextSentence):
    """The same two consecutive segments, in their order (0) or swapped (1); n-grams of up to three words are hidden.

    `fallback` is the released code's: text of another document (1) where there is only one sentence.
    """

    grams: int = 3
    answer: str = "sop"
    fallback: bool = False

    @property
    def pairing(self) -> Pairing:
        """How segments are chosen."""
        return Pairing(self.length - 3, self.short, swap=True, fallback=self.fallback, mark=self.end)
