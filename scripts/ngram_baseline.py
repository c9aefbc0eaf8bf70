"""An n-gram language model to compare with: interpolated absolute discounting (Ney et al. 1994) over token ids, counted
by sorting, so that tens of millions of tokens take a minute. Documents are separate: no n-gram reaches across two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formers.data.counter_rng import mix_bits

DISCOUNT = 0.75


class NgramModel:
    """Counts of all runs of up to `order` tokens; probabilities back off to shorter ones, and last to a uniform one."""

    def __init__(self, order: int, vocab: int):
        self.order, self.vocab = order, vocab
        self.tables: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []

    def count(self, documents: Sequence[Sequence[int]]) -> None:
        """Count the runs of some documents."""
        ids, left = join_documents(documents)
        self.tables = []
        for n in range(1, self.order + 1):
            whole = left >= n - 1  # the token has n - 1 before it
            context = hash_contexts(ids, n - 1)[whole]
            runs, index, counts = np.unique(join(context, ids[whole]), return_index=True, return_counts=True)
            contexts, totals = np.unique(context, return_counts=True)
            kinds = np.unique(context[index], return_counts=True)[1]  # different tokens that follow a context
            self.tables.append((runs, counts, contexts, totals, kinds))

    def compute_log_prob(self, documents: Sequence[Sequence[int]]) -> float:
        """Return the log-probability (nats) of documents, every token of them counted."""
        ids, left = join_documents(documents)
        probability = np.full(len(ids), 1.0 / self.vocab)
        for n, (runs, counts, contexts, totals, kinds) in enumerate(self.tables, 1):
            context = hash_contexts(ids, n - 1)
            known, at = find(contexts, context)
            known &= left >= n - 1
            seen, where = find(runs, join(context, ids))
            count = np.where(seen, counts[where], 0)
            total = totals[at]
            own = np.maximum(count - DISCOUNT, 0) / total + DISCOUNT * kinds[at] / total * probability
            probability = np.where(known, own, probability)
        return float(np.log(probability).sum())


def join_documents(documents: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return all ids in a row, and how many of its document stand before each."""
    rows = [np.asarray(row, np.int64) for row in documents if len(row)]
    return np.concatenate(rows), np.concatenate([np.arange(len(row)) for row in rows])


def hash_contexts(ids: np.ndarray, length: int) -> np.ndarray:
    """Return a hash of the `length` ids before each one."""
    hashes = np.full(len(ids), length, np.uint64)
    for distance in range(length, 0, -1):
        shifted = np.zeros(len(ids), np.uint64)
        shifted[distance:] = ids[:-distance] + 1
        hashes = mix_bits(hashes ^ shifted)
    return hashes


def join(context: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return a hash of a context with the token after it."""
    return mix_bits(context ^ mix_bits(ids.astype(np.uint64) + np.uint64(1 << 32)))


def find(table: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which keys are in a sorted table, and where."""
    at = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return table[at] == keys, at
