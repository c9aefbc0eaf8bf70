"""Bidirectional language modelling (ELMo, Peters et al. 2018, §3.1): each word is predicted from those before it, and
by another model from those after it. Any word is read, as characters; one of the vocabulary is predicted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import IGNORE_INDEX, Batch, BatchShape
from ..data import plans
from ..data.plans import ExampleFrame, Plan, RawExamples
from ..data.store import Store
from ..nn.layers import OutputLayer
from ..protocols import Losses, Model
from ..text import word_level
from ..text.tokenizer import Tokenizer
from .token_losses import BaseObjective, count_real_labels, upcast_logits


@dataclass(frozen=True)
class BidirectionalLM(BaseObjective):
    """The mean of both directions' losses. With `num_sampled` words, the softmax is over the right word and those,
    which both directions share; they are drawn by frequency, a vocabulary being sorted by it:
    p(i) ∝ log(1 + 1/(i + 1))."""

    length: int
    word_characters: np.ndarray = field(compare=False, repr=False)  # (vocab, slots) the characters of each word
    frame: ExampleFrame = ((), ())
    eos: int | None = None
    num_sampled: int = 0
    num_streams: int = 0  # windows that follow each other from batch to batch, for a state that is carried over
    streams_per_batch: int = 0  # streams of a batch; 0: all
    part: str = "lm"

    @staticmethod
    def from_tokenizer(
        tokenizer: Tokenizer, length: int, slots: int = word_level.WORD_SLOTS,
        **options: Any,  # dynamic: fields of the class
    ) -> BidirectionalLM:  # fmt: skip
        """Take the words of a tokenizer, spelled out; its begin and end marks have characters of their own."""
        words = map(tokenizer.get_token_text, range(len(tokenizer)))
        spelling = np.array([encode_vocab_word(word, slots) for word in words], np.int64)
        marks = {"bos": word_level.SENTENCE_BEGIN, "eos": word_level.SENTENCE_END}
        ids = {role: tokenizer.id(role) for role in marks}
        if ids["bos"] == ids["eos"]:
            ids["bos"] = None
        for role, character in marks.items():
            if ids[role] is not None:
                spelling[ids[role]] = word_level.pad_word([character], slots)
        frame = tuple(() if ids[role] is None else (ids[role],) for role in marks)
        return BidirectionalLM(length, spelling, frame, tokenizer.id("eos"), **options)  # type: ignore[arg-type]

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Plan windows in random order, with room for the marks; of streams, the store's own marks stay inside."""
        if self.num_streams:
            return plans.plan_streams(store, self.length, self.num_streams)
        return plans.plan_texts(store, self.eos, self.length - sum(map(len, self.frame)), seed, epoch)

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Measure words and labels by the plan, with the sentence marks."""
        lengths = plan.lengths + (0 if self.num_streams else sum(map(len, self.frame)))
        return np.stack((lengths, lengths, np.zeros(len(plan), np.int64)), 1)

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Choose a shape with a loss at every word."""
        if self.num_streams:
            return plans.make_stream_shape(self.num_streams, self.streams_per_batch, self.length)
        return BatchShape(plans.estimate_documents(total, self.measure_sizes(plan)[:, 0]), total, 0, self.length)

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Hide nothing; the labels are the words themselves, and the loss takes the one before and after."""
        at = plans.add_special_tokens(raw, *(((), ()) if self.num_streams else self.frame))
        return Batch(self.word_characters[at.ids], at.starts, self.length, labels=at.ids, sample=raw.sample)

    def count_labels(self, batch: Batch) -> dict[str, int]:
        """Count the words that are predicted: in either direction all but one of each example."""
        return {self.part: count_real_labels(batch.labels) - int((batch.sample >= 0).sum())}

    def select_labels(self, batch: Batch) -> np.ndarray:
        """Return each word but an example's first, and each but its last."""
        some = np.flatnonzero(np.diff(batch.starts))
        edges = (batch.starts[:-1], batch.starts[1:] - 1)
        labels = np.concatenate([np.delete(batch.labels, edge[some]) for edge in edges])
        return labels[labels != IGNORE_INDEX]

    def loss(self, model: Model, batch: Batch) -> Losses:
        """Compute the mean of the two directions' summed cross-entropies, and how many words one of them is over."""
        layout, words = batch.layout, batch.labels
        last, first = layout.get_last_slots()[layout.document_ids], layout.get_first_slots()[layout.document_ids]
        slots = torch.arange(len(words), device=words.device)
        following = torch.where(slots == last, IGNORE_INDEX, words.roll(-1))
        preceding = torch.where(slots == first, IGNORE_INDEX, words.roll(1))
        both = torch.stack((following, preceding), 1)  # (N, 2)
        labels = torch.where(words[:, None] == IGNORE_INDEX, IGNORE_INDEX, both)
        hidden = model(batch)
        count = (labels[:, 0] != IGNORE_INDEX).sum()
        if self.num_sampled and model.training:
            return {self.part: (self.compute_sampled_loss(model, hidden, labels) / 2, count)}
        logits = upcast_logits(model.logits(hidden, part=self.part))  # (N, 2, vocab)
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORE_INDEX)
        return {self.part: (total / 2, count)}

    def compute_sampled_loss(self, model: Model, hidden: Tensor, labels: Tensor) -> Tensor:
        """Compute the sampled softmax (Jean et al. 2015): scores minus the log of a word's chance to be drawn."""
        head = model.parts[self.part]
        states = head.dropout(hidden).unflatten(-1, (2, -1))  # (N, 2, dim/2)
        assert isinstance(head.out, OutputLayer)
        weight, bias = model.body.embedding_table if head.out.weight is None else head.out.weight, head.out.bias
        assert bias is not None
        vocab, goal = weight.shape[0], labels.clamp(min=0)
        drawn = draw_by_frequency(self.num_sampled, vocab, hidden.device).sort().values
        again = F.pad(drawn[1:] == drawn[:-1], (1, 0))  # a word counts once
        right = upcast_logits((states * weight[goal]).sum(-1) + bias[goal])  # (N, 2)
        right = right - compute_inclusion_probability(goal, self.num_sampled, vocab).log()
        wrong = upcast_logits(F.linear(states, weight[drawn], bias[drawn]))  # (N, 2, sampled)
        wrong = wrong - compute_inclusion_probability(drawn, self.num_sampled, vocab).log()
        wrong = wrong.masked_fill(again | (drawn == goal[..., None]), -torch.inf)  # nor is it held against itself
        nll = torch.logsumexp(torch.cat((right[..., None], wrong), -1), -1) - right
        return (nll * (labels != IGNORE_INDEX)).sum()


def draw_by_frequency(number: int, vocab: int, device: torch.device) -> Tensor:
    """Draw words with p(i) = log(1 + 1/(i + 1)) / log(vocab + 1): Zipf's law for a vocabulary sorted by frequency."""
    draw = torch.rand(number, device=device, dtype=torch.float64)
    return (torch.exp(draw * np.log(vocab + 1)) - 1).long().clamp(max=vocab - 1)


def compute_inclusion_probability(word: Tensor, number: int, vocab: int) -> Tensor:
    """Return the chance that a word is among so many drawn ones."""
    once = torch.log1p(1 / (word + 1.0)) / np.log(vocab + 1)
    return -torch.expm1(number * torch.log1p(-once))


def encode_vocab_word(word: str, slots: int) -> list[int]:
    """Return the characters of a vocabulary's word, without the blank that may stand in front of it."""
    return word_level.encode_word(word.strip("▁Ġ ") or word or "?", slots)
