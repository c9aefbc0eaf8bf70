"""Masked language modelling: some tokens are hidden and predicted from both sides (BERT §3.1).

Also whole words (a word that would overflow the count is skipped), and ALBERT's n-grams of whole words (§4.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.plans import Plan, Raw, Shape, room, windows
from ..data.store import Store
from ..errors import Error
from ..tasks.heads import Model
from ..text.tokenizer import Tokenizer
from .frames import Frame, Laid, laid
from .hiding import grams, hide, tokens
from .ragged import texts
from .tokens import Counted, named_losses
from .words import begins, word_marks

Made = TypeVar("Made", bound="MaskedLM")


@dataclass(frozen=True)
class MaskedLM(Counted):
    """Hide 15 %; of those 80 % become [MASK], 10 % a random token, 10 % stay. Special tokens are never chosen.

    The number is exact for each example: min(most, max(1, round(rate · length))). `grams` = 0 hides tokens, 1 whole
    words, 3 n-grams of up to three words. `across` fills examples across documents (RoBERTa's FULL-SENTENCES).
    """

    ignores: ClassVar[tuple[str, ...]] = ()  # settings of this class that a subclass has no use for
    length: int  # special tokens included
    vocab: int
    mask: int
    special: tuple[int, ...]
    frame: Frame
    rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1
    most: int | None = None
    grams: int = 0
    across: bool = False
    end: int | None = None  # the store's end mark, which the frame replaces
    words: np.ndarray | None = field(default=None, compare=False, repr=False)  # (vocab,) pieces that begin a word
    part: str = "mlm"

    @classmethod
    def of(cls: type[Made], tokenizer: Tokenizer, length: int, **options: Any) -> Made:
        """With the special tokens of a tokenizer: [CLS] … [SEP] around an example, [MASK] for what is hidden."""
        front = tokenizer.id("bos") if tokenizer.id("cls") is None else tokenizer.id("cls")
        back = tokenizer.id("eos") if tokenizer.id("sep") is None else tokenizer.id("sep")
        mask, end = tokenizer.id("mask"), tokenizer.id("eos")
        if front is None or back is None or mask is None:
            raise Error("this tokenizer has no [CLS], [SEP] and [MASK]", fix="train or load a tokenizer for BERT")
        roles = ("pad", "bos", "eos", "cls", "sep", "mask")
        special = tuple(dict.fromkeys(i for role in roles if (i := tokenizer.id(role)) is not None))
        return cls(
            length, len(tokenizer), mask, special, ((front,), (back,)), words=word_marks(tokenizer), end=end, **options
        )

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Windows in random order, with room for the special tokens."""
        inner = self.length - sum(map(len, self.frame))
        if self.across:
            return windows(store, inner, seed, epoch, across=True)
        return texts(store, self.end, inner, seed, epoch)

    def marks(self, plan: Plan) -> np.ndarray | int:
        """How many special tokens each example of a plan gets."""
        return sum(map(len, self.frame))

    def sizes(self, plan: Plan) -> np.ndarray:
        """With the special tokens around."""
        lengths = plan.lengths + self.marks(plan)
        return np.stack((lengths, self.wanted(lengths), np.zeros(len(plan), np.int64)), 1)

    def shape(self, total: int, plan: Plan) -> Shape:
        """As many places as full examples have, or more if examples are short: each has one at least."""
        sizes = self.sizes(plan)
        usual = (total // self.length + 1) * int(self.wanted(np.array([self.length]))[0])
        mean = sizes[:, 1].sum() / max(1, sizes[:, 0].sum()) if len(sizes) else 0.0
        return Shape(room(total, sizes[:, 0]), total, max(usual, int(np.ceil(total * mean * 1.02))), self.length)

    def wanted(self, lengths: np.ndarray) -> np.ndarray:
        """How many tokens of an example are hidden, at most."""
        count = np.maximum(1, np.round(self.rate * lengths)).astype(np.int64)
        return count if self.most is None else np.minimum(count, self.most)

    def lay(self, raw: Raw) -> tuple[Laid, dict[str, Any]]:
        """Examples between their marks, and what else the batch says of them."""
        return laid(raw, *self.frame), {}

    def choose(self, at: Laid, free: np.ndarray, seed: int) -> np.ndarray:
        """(N,) bool: what is hidden."""
        wanted, sample = self.wanted(np.diff(at.starts)), at.raw.sample
        if not self.grams:
            return tokens(free, at.starts, wanted, seed, sample)
        first = begins(at.ids, self.words, at.begins)
        return grams(free, first, at.starts, wanted, self.grams, seed, sample)

    def corrupt(self, raw: Raw, seed: int) -> Batch:
        """Choose tokens, remember them as labels, and hide them."""
        at, more = self.lay(raw)
        free = np.ones(self.vocab, bool)
        free[list(self.special)] = False
        batch = Batch(at.ids, at.starts, self.length, sample=raw.sample, **more)
        chosen = self.choose(at, free[at.ids], seed)
        return hide(batch, chosen, seed, self.mask, self.vocab, self.masked, self.random)

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The summed cross-entropy and how many tokens it is over."""
        return named_losses(model, batch, self.part)
