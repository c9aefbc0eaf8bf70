"""Bidirectional language modelling (ELMo, Peters et al. 2018, §3.1): each word is foretold from those before it and, by
another model, from those behind it. Words are read as characters, whatever they are; what is foretold is a word of the
vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch
from ..data.plans import Plan, Raw, Shape, room, streamed, streams
from ..data.store import Store
from ..tasks.heads import Model
from ..text import chars
from ..text.tokenizer import Tokenizer
from .frames import Frame, laid
from .ragged import texts
from .tokens import IGNORED, Counted, asked, wide


@dataclass(frozen=True)
class BidirectionalLM(Counted):
    """The mean of both directions' losses. With `sampled` words, the softmax is over the right word and those, which
    both directions share; they are drawn by frequency, a vocabulary being sorted by it: p(i) ∝ log(1 + 1/(i + 1))."""

    length: int
    spelling: np.ndarray = field(compare=False, repr=False)  # (vocab, slots) the characters of each word
    frame: Frame = ((), ())
    end: int | None = None
    sampled: int = 0
    streams: int = 0  # windows that follow each other from batch to batch, for a state that is carried over
    rows: int = 0  # streams of a batch; 0: all
    part: str = "lm"

    @staticmethod
    def of(tokenizer: Tokenizer, length: int, slots: int = chars.SLOTS, **options: Any) -> BidirectionalLM:
        """With the words of a tokenizer, spelled out; its begin and end marks have characters of their own."""
        spelling = np.array([spelled(tokenizer.token(i), slots) for i in range(len(tokenizer))], np.int64)
        marks = {"bos": chars.BEGIN, "eos": chars.END}
        ids = {role: tokenizer.id(role) for role in marks}
        if ids["bos"] == ids["eos"]:
            ids["bos"] = None
        for role, character in marks.items():
            if ids[role] is not None:
                spelling[ids[role]] = chars.fill([character], slots)
        frame = tuple(() if ids[role] is None else (ids[role],) for role in marks)
        return BidirectionalLM(length, spelling, frame, tokenizer.id("eos"), **options)  # type: ignore[arg-type]

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Windows in random order, with room for the marks; of streams, the store's own marks stay inside."""
        if self.streams:
            return streams(store, self.length, self.streams)
        return texts(store, self.end, self.length - sum(map(len, self.frame)), seed, epoch)

    def sizes(self, plan: Plan) -> np.ndarray:
        """As many words and places as the plan says, and the marks."""
        lengths = plan.lengths + (0 if self.streams else sum(map(len, self.frame)))
        return np.stack((lengths, lengths, np.zeros(len(plan), np.int64)), 1)

    def shape(self, total: int, plan: Plan) -> Shape:
        """A loss at every word."""
        if self.streams:
            return streamed(self.streams, self.rows, self.length)
        return Shape(room(total, self.sizes(plan)[:, 0]), total, 0, self.length)

    def corrupt(self, raw: Raw, seed: int) -> Batch:
        """Nothing is hidden; the labels are the words themselves, and the loss looks at the one before and behind."""
        at = laid(raw, *(((), ()) if self.streams else self.frame))
        return Batch(self.spelling[at.ids], at.starts, self.length, labels=at.ids, sample=raw.sample)

    def counts(self, batch: Batch) -> dict[str, int]:
        """In either direction one word of each example is not foretold."""
        return {self.part: asked(batch.labels) - int((batch.sample >= 0).sum())}

    def foretold(self, batch: Batch) -> np.ndarray:
        """Each word but an example's first, and each but its last."""
        some = np.flatnonzero(np.diff(batch.starts))
        ways = [np.delete(batch.labels, edge[some]) for edge in (batch.starts[:-1], batch.starts[1:] - 1)]
        labels = np.concatenate(ways)
        return labels[labels != IGNORED]

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The mean of the two directions' summed cross-entropies, and how many words one of them is over."""
        layout, words = batch.layout, batch.labels
        behind, before = layout.last()[layout.document], layout.first()[layout.document]
        slots = torch.arange(len(words), device=words.device)
        following = torch.where(slots == behind, IGNORED, words.roll(-1))
        preceding = torch.where(slots == before, IGNORED, words.roll(1))
        labels = torch.where(words[:, None] == IGNORED, IGNORED, torch.stack((following, preceding), 1))  # (N, 2)
        hidden = model(batch)
        count = (labels[:, 0] != IGNORED).sum()
        if self.sampled and model.training:
            return {self.part: (self.sample(model, hidden, labels) / 2, count)}
        logits = wide(model.logits(hidden, part=self.part))  # (N, 2, vocab)
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORED)
        return {self.part: (total / 2, count)}

    def sample(self, model: Model, hidden: Tensor, labels: Tensor) -> Tensor:
        """Sampled softmax (Jean et al. 2015): scores minus the log of a word's chance to be drawn."""
        head = model.parts[self.part]
        states = head.dropout(hidden).unflatten(-1, (2, -1))  # (N, 2, dim/2)
        out: Any = head.out
        weight, bias = model.body.table if out.weight is None else out.weight, out.bias
        vocab, goal = weight.shape[0], labels.clamp(min=0)
        drawn = by_frequency(self.sampled, vocab, hidden.device).sort().values
        again = F.pad(drawn[1:] == drawn[:-1], (1, 0))  # a word counts once
        right = wide((states * weight[goal]).sum(-1) + bias[goal]) - chance(goal, self.sampled, vocab).log()  # (N, 2)
        wrong = (
            wide(F.linear(states, weight[drawn], bias[drawn])) - chance(drawn, self.sampled, vocab).log()
        )  # (N, 2, sampled)
        wrong = wrong.masked_fill(again | (drawn == goal[..., None]), -torch.inf)  # nor is it held against itself
        nll = torch.logsumexp(torch.cat((right[..., None], wrong), -1), -1) - right
        return (nll * (labels != IGNORED)).sum()


def by_frequency(number: int, vocab: int, device: torch.device) -> Tensor:
    """Words drawn with p(i) = log(1 + 1/(i + 1)) / log(vocab + 1): Zipf's law for a vocabulary sorted by frequency."""
    draw = torch.rand(number, device=device, dtype=torch.float64)
    return (torch.exp(draw * np.log(vocab + 1)) - 1).long().clamp(max=vocab - 1)


def chance(word: Tensor, number: int, vocab: int) -> Tensor:
    """The chance that a word is among so many drawn ones."""
    once = torch.log1p(1 / (word + 1.0)) / np.log(vocab + 1)
    return -torch.expm1(number * torch.log1p(-once))


def spelled(word: str, slots: int) -> list[int]:
    """The characters of a vocabulary's word, without the blank that may stand in front of it."""
    return chars.word(word.strip("▁Ġ ") or word or "?", slots)
