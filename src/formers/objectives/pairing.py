"""Pairs of segments out of documents, the way BERT's and ALBERT's released procedures make them, for many documents at
once.

D documents, S sentences (empty ones left out), E examples. Every draw belongs to (seed, epoch, pass, sentence).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.draws import below, shuffled, uniform
from ..data.plans import Plan
from ..data.store import Store
from ..errors import Error
from .ragged import ended, halves

SHORT, SIZE, CUT, COIN, OTHER, WHERE, FRONT_A, FRONT_B, ORDER = range(20, 29)  # what a random number is for


@dataclass(frozen=True)
class Book:
    """The sentences of a store: sentence s is tokens[begin[s]:end[s]], and reach[s] tokens come before it."""

    begin: np.ndarray  # (S,)
    end: np.ndarray  # (S,)
    reach: np.ndarray  # (S+1,)
    first: np.ndarray  # (D,) the first sentence of each document that has any
    last: np.ndarray  # (D,) and the one behind its last

    @staticmethod
    def of(store: Store, mark: int | None = None) -> Book:
        """Sentences that are not empty; a document's end mark belongs to none."""
        edges = np.asarray(store.sentence_starts)
        begin, end = edges[:-1], edges[1:].copy()
        end[np.searchsorted(edges, store.starts[1:][ended(store, mark)]) - 1] -= 1  # of each document's last sentence
        keep = end > begin
        begin, end = begin[keep], end[keep]
        document = np.searchsorted(store.starts, begin, side="right") - 1
        first = np.flatnonzero(np.diff(document, prepend=-1))
        return Book(begin, end, np.concatenate(([0], np.cumsum(end - begin))), first, np.append(first[1:], len(begin)))

    def until(self, sentence: np.ndarray, tokens: np.ndarray, last: np.ndarray) -> np.ndarray:
        """The sentence behind those that are collected until there are so many tokens, or the document ends."""
        stop = np.searchsorted(self.reach, self.reach[sentence] + np.maximum(tokens, 1))
        return np.minimum(stop, last)


def shorten(a: np.ndarray, b: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens either side loses: always the longer one, B on a tie, until both fit."""
    over = np.maximum(a + b - most, 0)
    first = np.minimum(over, np.abs(a - b))  # until they are equally long
    rest = over - first
    return np.where(a > b, first, 0) + rest // 2, np.where(a > b, 0, first) + (rest + 1) // 2


@dataclass(frozen=True)
class Pairing:
    """`most` tokens of a pair; in `short` of the passes over a document, the target is a random shorter length.

    swap=False is BERT's: B is the true continuation or, half of the time and always after a single sentence, text of
    another document; what was not used goes back. swap=True is ALBERT's: the two segments change places half of the
    time. A single sentence is then joined by the one next to it; with `fallback`, by text of another document, as in
    the released code.
    """

    most: int
    short: float
    swap: bool = False
    fallback: bool = False
    mark: int | None = None  # the store's end mark

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """One pass over all documents, in random order. Every epoch has as many examples as the first: passes differ
        a little, so that some are left out or taken from one more pass."""
        book = Book.of(store, self.mark)
        self.check(book)
        spans, label = self.walk(book, seed, 0, 0)
        count, turn = len(label), 0
        if not count:
            what = "no document has two sentences, and a pair is made of two that follow each other"
            raise Error(what, fix="prepare longer documents, with sentences, or let fallback=True pair two documents")
        if epoch:
            spans, label = self.walk(book, seed, epoch, 0)
        while len(label) < count:
            turn += 1
            more = self.walk(book, seed, epoch, turn)
            spans, label = np.concatenate((spans, more[0])), np.concatenate((label, more[1]))
        order = shuffled(len(label), seed, epoch, ORDER)[:count]
        begin, end = spans[order].reshape(-1, 2).T
        return Plan(begin, end, np.arange(count + 1) * 2, label[order].astype(np.int8))

    def check(self, book: Book) -> None:
        """A pair has two tokens at least; text of another document needs another document."""
        if self.most < 2:
            raise Error(f"a pair of {self.most} tokens is too short", fix="take longer examples")
        if (not self.swap or self.fallback) and len(book.first) < 2:
            what = f"next sentence prediction needs text of other documents, and there is {len(book.first)} document"
            raise Error(what, fix="give more documents: blank lines between them, or one in each file")

    def walk(self, book: Book, seed: int, epoch: int, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """One pass: spans (E, 2, 2) as (A, B) × (begin, end), and labels (E,). All documents make a step at once."""
        key = (seed, epoch, turn)
        document = np.arange(len(book.first))
        brief = uniform(*key, document, SHORT) < self.short
        target = np.where(brief, 2 + below(self.most - 1, *key, document, SIZE), self.most)
        at, found = book.first.copy(), []
        while len(document):
            step = self.swapped if self.swap else self.next_or_other
            use, first, second, label, go = step(book, key, document, at, target[document])
            found.append((*first[:, use], *second[:, use], label[use], at[use]))
            goes_on = go < book.last[document]
            document, at = document[goes_on], go[goes_on]
        a0, a1, b0, b1, label, where = map(np.concatenate, zip(*found, strict=True))
        begin_a, end_a, begin_b, end_b = book.begin[a0], book.end[a1 - 1], book.begin[b0], book.end[b1 - 1]
        lose_a, lose_b = shorten(end_a - begin_a, end_b - begin_b, self.most)
        front_a, front_b = halves(lose_a, *key, where, FRONT_A), halves(lose_b, *key, where, FRONT_B)
        begin = np.stack((begin_a + front_a, begin_b + front_b), 1)
        end = np.stack((end_a - lose_a + front_a, end_b - lose_b + front_b), 1)
        return np.stack((begin, end), 2), label

    def next_or_other(
        self, book: Book, key: tuple[int, ...], document: np.ndarray, at: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """BERT's step: which are used, A and B as (2, n) sentences, label (1 = text of another document), go on at."""
        stop = book.until(at, target, book.last[document])
        cut = at + 1 + np.where(stop - at > 1, below(np.maximum(stop - at - 1, 1), *key, at, CUT), 0)
        other = (stop - at == 1) | (uniform(*key, at, COIN) < 0.5)
        far = self.elsewhere(book, key, document, at, target - (book.reach[cut] - book.reach[at]))
        second = np.where(other, far, np.stack((cut, stop)))
        return np.ones(len(at), bool), np.stack((at, cut)), second, other * 1, np.where(other, cut, stop)

    def elsewhere(
        self, book: Book, key: tuple[int, ...], document: np.ndarray, at: np.ndarray, tokens: np.ndarray
    ) -> np.ndarray:
        """(2, n) sentences of another document, from a random one on, until there are so many tokens."""
        other = below(len(book.first) - 1, *key, at, OTHER)
        other += other >= document
        begin = book.first[other] + below(book.last[other] - book.first[other], *key, at, WHERE)
        return np.stack((begin, book.until(begin, tokens, book.last[other])))

    def swapped(
        self, book: Book, key: tuple[int, ...], document: np.ndarray, at: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """ALBERT's step: which are used, first and second as (2, n) sentences, label (1 = swapped), go on at."""
        last = book.last[document]
        stop = book.until(at, target, last)
        alone = stop - at == 1
        start = at
        if not self.fallback:
            stop = np.minimum(np.where(alone, at + 2, stop), last)
            start = np.where(stop - at == 1, np.maximum(at - 1, book.first[document]), at)
            alone = stop - start == 1
        cut = start + 1 + np.where(alone, 0, below(np.maximum(stop - start - 1, 1), *key, at, CUT))
        turned = (uniform(*key, at, COIN) < 0.5) & ~alone
        a, b = np.stack((start, cut)), np.stack((cut, stop))
        first, second = np.where(turned, b, a), np.where(turned, a, b)
        if self.fallback:
            far = self.elsewhere(book, key, document, at, target - (book.reach[cut] - book.reach[at]))
            second, turned = np.where(alone, far, second), turned | alone
        return ~alone | self.fallback, first, second, turned * 1, stop
