"""Two segments and a question about them, beside the masked tokens: next sentence (BERT §3.1), sentence order (ALBERT
§3.1). Pairs are made out of documents the way the released procedures do it, for many documents at once.

D documents, S sentences (empty ones left out), E examples. Every draw belongs to (seed, epoch, pass, sentence).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.counter_rng import draw_binomial, draw_integers, draw_uniform, shuffle_indices
from ..data.plans import Plan, RawExamples, find_ended_documents
from ..data.store import Store
from ..errors import Error
from ..protocols import Model
from .masking import MaskedLM
from .special_tokens import FramedExamples, add_special_tokens
from .token_losses import compute_losses

SHORT_DRAW, SIZE_DRAW, CUT_DRAW, COIN_DRAW, OTHER_DRAW, WHERE_DRAW, FRONT_A_DRAW, FRONT_B_DRAW, ORDER_DRAW = range(
    20, 29
)  # what a random number is for


@dataclass(frozen=True)
class SentenceTable:
    """The sentences of a store: sentence s is tokens[begin[s]:end[s]], and token_offsets[s] tokens come before it."""

    begin: np.ndarray  # (S,)
    end: np.ndarray  # (S,)
    token_offsets: np.ndarray  # (S+1,)
    document_begins: np.ndarray  # (D,) the first sentence of each document that has any
    document_ends: np.ndarray  # (D,) and the one behind its last

    @staticmethod
    def from_store(store: Store, mark: int | None = None) -> SentenceTable:
        """Sentences that are not empty; a document's end mark belongs to none."""
        edges = np.asarray(store.sentence_starts)
        begin, end = edges[:-1], edges[1:].copy()
        end[np.searchsorted(edges, store.starts[1:][find_ended_documents(store, mark)]) - 1] -= (
            1  # of each document's last sentence
        )
        keep = end > begin
        begin, end = begin[keep], end[keep]
        document = np.searchsorted(store.starts, begin, side="right") - 1
        first = np.flatnonzero(np.diff(document, prepend=-1))
        return SentenceTable(
            begin, end, np.concatenate(([0], np.cumsum(end - begin))), first, np.append(first[1:], len(begin))
        )

    def find_stop(self, sentence: np.ndarray, tokens: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The sentence behind those that are collected until there are so many tokens, or the document ends."""
        stop = np.searchsorted(self.token_offsets, self.token_offsets[sentence] + np.maximum(tokens, 1))
        return np.minimum(stop, last)


def compute_truncation(a: np.ndarray, b: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens either side loses: always the longer one, B on a tie, until both fit."""
    over = np.maximum(a + b - most, 0)
    first = np.minimum(over, np.abs(a - b))  # until they are equally long
    rest = over - first
    return np.where(a > b, first, 0) + rest // 2, np.where(a > b, 0, first) + (rest + 1) // 2


@dataclass(frozen=True)
class PairSampler:
    """At most `max_tokens` tokens of a pair; in a share `short_seq_prob` of the passes over a document, the target is a
    random shorter length.

    is_order_task=False is BERT's: B is the true continuation or, half of the time and always after a single sentence,
    text of another document; what was not used goes back. is_order_task=True is ALBERT's: the two segments change
    places half of the time. A single sentence is then joined by the one next to it; with `random_fallback`, by text of
    another document, as in the released code.
    """

    max_tokens: int
    short_seq_prob: float
    is_order_task: bool = False
    random_fallback: bool = False
    eos: int | None = None  # the store's end mark

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """One pass over all documents, in random order. Every epoch has as many examples as the first: passes differ
        a little, so that some are left out or taken from one more pass."""
        book = SentenceTable.from_store(store, self.eos)
        self.check_sentences(book)
        spans, label = self.walk_documents(book, seed, 0, 0)
        count, turn = len(label), 0
        if not count:
            what = "no document has two sentences, and a pair is made of two that follow each other"
            fix = "prepare longer documents, with sentences, or let random_fallback=True pair two documents"
            raise Error(what, fix=fix)
        if epoch:
            spans, label = self.walk_documents(book, seed, epoch, 0)
        while len(label) < count:
            turn += 1
            more = self.walk_documents(book, seed, epoch, turn)
            spans, label = np.concatenate((spans, more[0])), np.concatenate((label, more[1]))
        order = shuffle_indices(len(label), seed, epoch, ORDER_DRAW)[:count]
        begin, end = spans[order].reshape(-1, 2).T
        return Plan(begin, end, np.arange(count + 1) * 2, label[order].astype(np.int8))

    def check_sentences(self, book: SentenceTable) -> None:
        """A pair has two tokens at least; text of another document needs another document."""
        if self.max_tokens < 2:
            raise Error(f"a pair of {self.max_tokens} tokens is too short", fix="take longer examples")
        if (not self.is_order_task or self.random_fallback) and len(book.document_begins) < 2:
            count = len(book.document_begins)
            what = f"next sentence prediction needs text of other documents, and there is {count} document"
            raise Error(what, fix="give more documents: blank lines between them, or one in each file")

    def walk_documents(self, book: SentenceTable, seed: int, epoch: int, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """One pass: spans (E, 2, 2) as (A, B) × (begin, end), and labels (E,). All documents make a step at once."""
        key = (seed, epoch, turn)
        document = np.arange(len(book.document_begins))
        brief = draw_uniform(*key, document, SHORT_DRAW) < self.short_seq_prob
        target = np.where(brief, 2 + draw_integers(self.max_tokens - 1, *key, document, SIZE_DRAW), self.max_tokens)
        at, found = book.document_begins.copy(), []
        while len(document):
            step = self.step_sentence_order if self.is_order_task else self.step_next_sentence
            use, first, second, label, go = step(book, key, document, at, target[document])
            found.append((*first[:, use], *second[:, use], label[use], at[use]))
            goes_on = go < book.document_ends[document]
            document, at = document[goes_on], go[goes_on]
        a0, a1, b0, b1, label, where = map(np.concatenate, zip(*found, strict=True))
        begin_a, end_a, begin_b, end_b = book.begin[a0], book.end[a1 - 1], book.begin[b0], book.end[b1 - 1]
        lose_a, lose_b = compute_truncation(end_a - begin_a, end_b - begin_b, self.max_tokens)
        front_a, front_b = (
            draw_binomial(lose_a, *key, where, FRONT_A_DRAW),
            draw_binomial(lose_b, *key, where, FRONT_B_DRAW),
        )
        begin = np.stack((begin_a + front_a, begin_b + front_b), 1)
        end = np.stack((end_a - lose_a + front_a, end_b - lose_b + front_b), 1)
        return np.stack((begin, end), 2), label

    def step_next_sentence(
        self, book: SentenceTable, key: tuple[int, ...], document: np.ndarray, at: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """BERT's step: which are used, A and B as (2, n) sentences, label (1 = text of another document), go on at."""
        stop = book.find_stop(at, target, book.document_ends[document])
        cut = at + 1 + np.where(stop - at > 1, draw_integers(np.maximum(stop - at - 1, 1), *key, at, CUT_DRAW), 0)
        other = (stop - at == 1) | (draw_uniform(*key, at, COIN_DRAW) < 0.5)
        far = self.draw_other_document(
            book, key, document, at, target - (book.token_offsets[cut] - book.token_offsets[at])
        )
        second = np.where(other, far, np.stack((cut, stop)))
        return np.ones(len(at), bool), np.stack((at, cut)), second, other * 1, np.where(other, cut, stop)

    def draw_other_document(
        self, book: SentenceTable, key: tuple[int, ...], document: np.ndarray, at: np.ndarray, tokens: np.ndarray
    ) -> np.ndarray:
        """(2, n) sentences of another document, from a random one on, until there are so many tokens."""
        other = draw_integers(len(book.document_begins) - 1, *key, at, OTHER_DRAW)
        other += other >= document
        begin = book.document_begins[other] + draw_integers(
            book.document_ends[other] - book.document_begins[other], *key, at, WHERE_DRAW
        )
        return np.stack((begin, book.find_stop(begin, tokens, book.document_ends[other])))

    def step_sentence_order(
        self, book: SentenceTable, key: tuple[int, ...], document: np.ndarray, at: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """ALBERT's step: which are used, first and second as (2, n) sentences, label (1 = swapped), go on at."""
        last = book.document_ends[document]
        stop = book.find_stop(at, target, last)
        alone = stop - at == 1
        start = at
        if not self.random_fallback:
            stop = np.minimum(np.where(alone, at + 2, stop), last)
            start = np.where(stop - at == 1, np.maximum(at - 1, book.document_begins[document]), at)
            alone = stop - start == 1
        cut = start + 1 + np.where(alone, 0, draw_integers(np.maximum(stop - start - 1, 1), *key, at, CUT_DRAW))
        turned = (draw_uniform(*key, at, COIN_DRAW) < 0.5) & ~alone
        a, b = np.stack((start, cut)), np.stack((cut, stop))
        first, second = np.where(turned, b, a), np.where(turned, a, b)
        if self.random_fallback:
            far = self.draw_other_document(
                book, key, document, at, target - (book.token_offsets[cut] - book.token_offsets[at])
            )
            second, turned = np.where(alone, far, second), turned | alone
        return ~alone | self.random_fallback, first, second, turned * 1, stop


@dataclass(frozen=True)
class NextSentence(MaskedLM):
    """[CLS] A [SEP] B [SEP]: is B the continuation of A (0), or text of another document (1)? And masked tokens."""

    unused_options: ClassVar[tuple[str, ...]] = ("across_documents",)  # a pair lies in its documents
    short_seq_prob: float = 0.1
    pair_part: str = "nsp"

    @property
    def pair_sampler(self) -> PairSampler:
        """How segments are chosen."""
        return PairSampler(self.length - 3, self.short_seq_prob, eos=self.eos)

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Two spans for each example, and its label."""
        return self.pair_sampler.plan(store, seed, epoch)

    def count_special_tokens(self, plan: Plan) -> np.ndarray | int:
        """One in front, one behind each segment."""
        return 1 + np.diff(plan.span_offsets)

    def frame_examples(self, raw: RawExamples) -> tuple[FramedExamples, dict[str, Any]]:
        """Segments 0 and 1; a mark belongs to the segment before it."""
        front, back = self.frame
        at = add_special_tokens(raw, front, after_spans=(back,))
        span = at.scatter_values(raw.span_index, -1)
        known = np.maximum.accumulate(np.where(span >= 0, np.arange(len(span)), 0))
        span = span[known]
        span[at.starts[:-1]] = 0
        return at, {"segments": span % 2, "document_labels": self.make_answers(raw.label)}

    def make_answers(self, label: np.ndarray) -> np.ndarray:
        """What the model must say of each pair."""
        return label

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Of the hidden tokens and of the pairs."""
        return compute_losses(model, batch, self.part, self.pair_part)


@dataclass(frozen=True)
class SentenceOrder(NextSentence):
    """Two consecutive segments, in their order (0) or swapped (1); n-grams of up to three words are hidden.

    `random_fallback` is the released code's: text of another document (1) where there is only one sentence.
    """

    max_ngram: int = 3
    pair_part: str = "sop"
    random_fallback: bool = False

    @property
    def pair_sampler(self) -> PairSampler:
        """How segments are chosen."""
        return PairSampler(
            self.length - 3, self.short_seq_prob, is_order_task=True, random_fallback=self.random_fallback, eos=self.eos
        )
