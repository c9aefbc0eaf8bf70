"""Masked language modelling: some tokens are hidden and predicted from both sides (BERT §3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.draws import below, uniform
from ..data.plans import Plan, Raw, Shape, room, windows
from ..data.store import Store
from ..errors import Error
from ..tasks.heads import Model
from ..text.tokenizer import Tokenizer
from .frames import framed
from .tokens import token_loss

CHOICE, FATE, WORD = range(1, 4)  # what a random number is for


@dataclass(frozen=True)
class MaskedLM:
    """Hide 15 %; of those 80 % become [MASK], 10 % a random token, 10 % stay. Special tokens are never chosen.

    The number is exact for each example: min(most, max(1, round(rate · length))).
    """

    length: int  # special tokens included
    vocab: int
    mask: int
    special: tuple[int, ...]
    frame: tuple[tuple[int, ...], tuple[int, ...]]
    rate: float = 0.15
    masked: float = 0.8
    random: float = 0.1
    most: int | None = None
    part: str = "mlm"

    @staticmethod
    def of(tokenizer: Tokenizer, length: int) -> MaskedLM:
        """With the special tokens of a tokenizer: [CLS] … [SEP] around an example, [MASK] for what is hidden."""
        roles = {role: tokenizer.id(role) for role in ("pad", "unk", "cls", "sep", "mask")}
        cls, sep, mask = (roles[role] for role in ("cls", "sep", "mask"))
        if cls is None or sep is None or mask is None:
            raise Error("this tokenizer has no [CLS], [SEP] and [MASK]", fix="train or load a tokenizer for BERT")
        special = tuple(i for role, i in roles.items() if i is not None and role != "unk")
        return MaskedLM(length, len(tokenizer), mask, special, ((cls,), (sep,)))

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Windows in random order, with room for the special tokens."""
        return windows(store, self.length - sum(map(len, self.frame)), seed, epoch)

    def sizes(self, plan: Plan) -> np.ndarray:
        """With the special tokens around."""
        lengths = plan.lengths + sum(map(len, self.frame))
        return np.stack((lengths, self.wanted(lengths), np.zeros(len(plan), np.int64)), 1)

    def shape(self, total: int, plan: Plan) -> Shape:
        """As many places as full examples have."""
        usual = (total // self.length + 1) * max(1, round(self.rate * self.length))
        return Shape(room(total, self.sizes(plan)[:, 0]), total, usual, self.length)

    def wanted(self, lengths: np.ndarray) -> np.ndarray:
        """How many tokens of an example are hidden."""
        count = np.maximum(1, np.round(self.rate * lengths)).astype(np.int64)
        return count if self.most is None else np.minimum(count, self.most)

    def corrupt(self, raw: Raw, seed: int) -> Batch:
        """Choose tokens, remember them as labels, and hide them."""
        batch = framed(raw, self.frame, self.length)
        lengths = np.diff(batch.starts)
        document = np.repeat(np.arange(len(lengths)), lengths)  # (N,)
        sample, place = batch.sample[document], np.arange(len(batch.ids)) - batch.starts[document]
        free = ~np.isin(batch.ids, self.special)
        # The tokens with the smallest draws of each example are chosen.
        draw = np.where(free, uniform(seed, sample, place, CHOICE), 2.0)
        order = np.lexsort((draw, document))
        rank = np.empty(len(order), np.int64)
        rank[order] = place  # sorted by document, the ranks within a document are its places
        chosen = np.flatnonzero(free & (rank < self.wanted(lengths)[document]))
        fate = uniform(seed, sample[chosen], place[chosen], FATE)
        word = below(self.vocab, seed, sample[chosen], place[chosen], WORD)
        ids = batch.ids.copy()
        ids[chosen] = np.where(
            fate < self.masked, self.mask, np.where(fate < self.masked + self.random, word, ids[chosen])
        )
        return batch.replace(ids=ids, chosen=chosen, labels=batch.ids[chosen])

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The summed cross-entropy and how many tokens it is over."""
        return {self.part: token_loss(model, batch, self.part)}
