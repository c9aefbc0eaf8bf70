"""GloVe (Pennington et al. 2014): counts of words that occur together, and vectors that explain them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...data.counter_rng import shuffle_indices
from ...errors import Error
from ...models.vectors import VectorsConfig
from ...objectives import word_vector_losses

if TYPE_CHECKING:
    from .word2vec import Corpus

PAIRS_PER_STEP = 8192  # counts of one step,
STEPS_PER_JOB = 64  # steps that a thread takes at a time, and
PAIR_BUFFER = 2**24  # pairs that are gathered before they are summed up


def count_cooccurrences(corpus: Corpus, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs i, j of words that occur within a window, both ways round, and their counts: words that are d apart count
    1/d (§4.2)."""
    ids, words = corpus.ids.astype(np.int64), len(corpus.words)
    keys, sums = np.zeros(0, np.int64), np.zeros(0)
    waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def add_up() -> tuple[np.ndarray, np.ndarray]:
        found = np.concatenate([keys, *(k for k, _ in waiting)])
        weights = np.concatenate([sums, *(w for _, w in waiting)])
        waiting.clear()
        order = np.argsort(found, kind="stable")
        found = found[order]
        heads = np.flatnonzero(np.diff(found, prepend=-1))
        return found[heads], np.add.reduceat(weights[order], heads) if len(heads) else sums

    piece = max(1, PAIR_BUFFER // window)
    for begin in range(0, len(ids), piece):
        for away in range(1, window + 1):
            end = min(begin + piece, len(ids) - away)
            one, other = slice(begin, end), slice(begin + away, end + away)
            same = corpus.document_ids[one] == corpus.document_ids[other]
            i, j = ids[one][same], ids[other][same]
            waiting.append((np.minimum(i, j) * words + np.maximum(i, j), np.full(len(i), 1 / away)))
        keys, sums = add_up()
    low, high = keys // words, keys % words
    apart = low != high  # a word beside itself counts once from either place
    return (
        np.concatenate((low, high[apart])),
        np.concatenate((high, low[apart])),
        np.concatenate((sums * (2 - apart), sums[apart])),
    )


def train_glove(
    corpus: Corpus, c: VectorsConfig, epochs: int, lr: float, seed: int, run_jobs: Callable[[Any], None]
) -> Tensor:
    """Train on all counts, both ways round; the result is the sum of a word's two vectors (§4.2)."""
    i, j, counts = (torch.from_numpy(part) for part in count_cooccurrences(corpus, c.window))
    if not len(i):
        raise Error("no two words occur together", fix="give longer texts")
    words, n, counts = len(corpus.words), len(i), counts.float()
    g = torch.Generator().manual_seed(seed)
    tables = [torch.rand(words, c.dim, generator=g).sub_(0.5).div_(c.dim) for _ in range(2)]
    biases = [torch.rand(words, generator=g).sub_(0.5).div_(c.dim) for _ in range(2)]
    squares = [torch.ones_like(t) for t in (*tables, *biases)]

    order = lru_cache(2)(lambda epoch: torch.from_numpy(shuffle_indices(n, seed, epoch)))

    def job(epoch: int, begin: int) -> Callable[[], float]:
        def work() -> float:
            total, places = 0.0, order(epoch)[begin : begin + PAIRS_PER_STEP * STEPS_PER_JOB]
            for part in places.split(PAIRS_PER_STEP):
                a, b = i[part], j[part]
                w, v = tables[0].index_select(0, a), tables[1].index_select(0, b)
                pulls = word_vector_losses.compute_glove(
                    w, v, biases[0][a] + biases[1][b], counts[part], c.x_max, c.alpha
                )
                values = (*tables, *biases)
                for at, value, square, pull in zip((a, b, a, b), values, squares, (*pulls[:3], pulls[2]), strict=True):
                    # AdaGrad; the squares come first, since one step holds many counts of a frequent word
                    square.index_add_(0, at, pull * pull)
                    value.index_add_(0, at, (pull * -lr).div_(square.index_select(0, at).sqrt_()))
                total += float(pulls[3].sum())
            return total / len(places)

        return work

    steps = range(0, n, PAIRS_PER_STEP * STEPS_PER_JOB)
    run_jobs(
        [
            (min(n, begin + PAIRS_PER_STEP * STEPS_PER_JOB) - begin, job(epoch, begin))
            for epoch in range(epochs)
            for begin in steps
        ]
    )
    return tables[0] + tables[1]
