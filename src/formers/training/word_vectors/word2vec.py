"""Word vectors out of text: skip-gram, CBOW and fastText, and GloVe (Pennington et al. 2014) from counts.

The text is worked off in blocks of places that follow each other. The pairs of a block are small matrix products
(objectives/word_vector_losses.py), so that rows are fetched and put back once for each place and not once for each
pair. Several threads share the tables without locks (Recht et al. 2011), as the released programs do; one thread
repeats exactly.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ... import config as settings
from ...config import ProgressCallback
from ...data.counter_rng import draw_bits, draw_integers, draw_uniform, shuffle_indices
from ...errors import Error
from ...former import Former
from ...interop.word_vectors import build_vectors_model
from ...models.vectors import KINDS, VectorKind, VectorsConfig
from ...objectives import word_vector_losses
from ...text.word_level import hash_ngrams, split_texts
from ..trainer import Diverged

PAIRS_PER_STEP = 8192  # counts of one step of GloVe,
STEPS_PER_JOB = 64  # steps that a thread takes at a time, and
PAIR_BUFFER = 2**24  # pairs that are gathered before they are summed up
BLOCK_PLACES, BLOCKS_PER_STEP = 32, 32  # places of a block, and blocks of one step; four times as many diverge
CHUNK_WORDS = 100_000  # words that a thread takes at a time
# Learning rate × pairs on one row in one step; what a frequent word has beyond makes its sum overshoot.
MAX_ROW_PULL = 2.5
RunJobs = Callable[[Sequence[tuple[int, Callable[[], float]]]], None]


@dataclass(frozen=True)
class Corpus:
    """Words by number, the frequent first: ids (n,), the document of each (n,), words and their counts."""

    ids: np.ndarray
    document_ids: np.ndarray
    words: list[str]
    counts: np.ndarray

    @staticmethod
    def from_texts(texts: Iterable[str | Sequence[str]], least: int, lower: bool) -> Corpus:
        """Number the words that occur at least so often, ties by the alphabet; the others are left out."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        parts = [np.fromiter(map(numbers.__getitem__, words), np.int32) for words in split_texts(texts, lower)]
        flat = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        names, counts = list(numbers), np.bincount(flat, minlength=len(numbers))
        order = sorted((i for i in range(len(names)) if counts[i] >= least), key=lambda i: (-counts[i], names[i]))
        if not order:
            fix = "give more text, or a smaller min_count (--min-count 1)"
            raise Error(f"no word occurs {least} times", fix=fix)
        place = np.full(len(names), -1, np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        ids, document = place[flat], np.repeat(np.arange(len(parts), dtype=np.int32), [len(p) for p in parts])
        return Corpus(ids[ids >= 0], document[ids >= 0], [names[i] for i in order], counts[order])


def train_word_vectors(
    texts: Iterable[str | Sequence[str]], kind: VectorKind = "skipgram", *, epochs: int = 5, lr: float | None = None,
    lower: bool = True, seed: int = 0, threads: int | None = None, tell: ProgressCallback | None = None,
    note: Callable[[dict[str, Any]], None] | None = None, **more: Any,
) -> Former:  # fmt: skip
    """Train vectors of the words in some texts (strings, or lists of words); `more` are settings of VectorsConfig.

    `lr` falls in a line to almost nothing (GloVe's by AdaGrad); with one thread the result is a function of the seed.
    `note` hears how many `places` there are, then gets a line (step, loss, tokens, seconds) after each piece of work.
    """
    c = settings.build_config(VectorsConfig, {"kind": kind, **more}, where="vectors")
    if epochs < 1 or (lr is not None and lr <= 0):
        raise Error(f"{epochs} epochs at lr {lr} train nothing", fix="take at least one epoch and a positive lr")
    say = tell or (lambda what, done, of, detail: None)
    corpus = Corpus.from_texts(texts, c.min_count, lower)
    say("words", 1, 1, f"{len(corpus.words):,} words, {len(corpus.ids):,} places")
    if note is not None:
        note({"step": 0, "places": len(corpus.ids)})
    rate, threads = KINDS[kind].lr if lr is None else lr, threads or torch.get_num_threads()
    work = train_glove if kind == "glove" else train_blockwise
    table = work(corpus, c, epochs, rate, seed, lambda jobs: run_jobs(jobs, threads, say, note, kind))
    if not table.isfinite().all():
        raise Diverged("the vectors are not finite", fix="take a smaller learning rate")
    return build_vectors_model(corpus.words, table, lower=lower, **{**more, "kind": kind, "dim": c.dim})


def run_jobs(
    jobs: Sequence[tuple[int, Callable[[], float]]], threads: int, say: ProgressCallback,
    note: Callable[[dict[str, Any]], None] | None = None, name: str = "loss",
) -> None:  # fmt: skip
    """Do jobs of some size on some threads, each with one core, and tell of the losses."""
    before, total, began = torch.get_num_threads(), sum(size for size, _ in jobs), time.perf_counter()
    done, step = 0, 0

    def work(job: Callable[[], float]) -> float:
        torch.set_num_threads(1)  # two threads that wait for each other at every product are slower than one
        with torch.no_grad():
            return job()

    def report(size: int, loss: float) -> None:
        nonlocal done, step
        done, step, seconds = done + size, step + 1, time.perf_counter() - began
        say("training", done, total, f"loss {loss:.3f}, {done / seconds:,.0f} words/s")
        if note is not None:
            seen = loss if math.isfinite(loss) else None
            losses = {"loss": seen, "losses": {name: seen}}
            note({"step": step, **losses, "tokens": done, "seconds": round(seconds, 3)})

    try:
        if threads == 1:
            for size, job in jobs:
                report(size, work(job))
            return
        with ThreadPoolExecutor(threads) as pool:
            waiting = {pool.submit(work, job): size for size, job in jobs}
            try:
                while waiting:
                    ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for one in ready:
                        report(waiting.pop(one), one.result())
            finally:
                pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(before)


class EmbeddingTable:
    """A table of words; `row_scales` slow down rows that many pairs of one step pull at."""

    def __init__(self, table: Tensor, pace: Tensor):
        self.table, self.row_scales = table, pace

    def look_up(self, ids: Tensor) -> tuple[Tensor, Any]:
        """Return vectors (n, d) of words, and what apply_gradient needs."""
        return self.table.index_select(0, ids), None

    def apply_gradient(self, ids: Tensor, gradient: Tensor, lr: float, state: Any = None) -> None:
        """Take one step down the gradient (n, d), which is used up."""
        gradient = gradient.flatten(0, -2)
        self.table.index_add_(0, ids, gradient.mul_(self.row_scales.index_select(0, ids).mul_(-lr)[:, None]))


class NgramTable(EmbeddingTable):
    """A table of words and n-grams (fastText): a word is the mean of its rows.

    The paper sums. The released code averages and hands each row the whole gradient: the paper's sum with steps that
    are shorter by the number of rows. So does this.
    """

    def __init__(self, table: Tensor, pace: Tensor, parts: Tensor, starts: Tensor):
        super().__init__(table, pace)
        self.row_ids, self.starts = parts, starts  # the rows of all words one after the other, (words + 1,) where

    def find_rows(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Find the rows of some words one after the other, and how many each has."""
        first, sizes = self.starts[words], self.starts[words + 1] - self.starts[words]
        ends = sizes.cumsum(0)
        return self.row_ids[torch.arange(int(ends[-1])) + (first - ends + sizes).repeat_interleave(sizes)], sizes

    def look_up(self, ids: Tensor) -> tuple[Tensor, Any]:
        """Look up words; each different one is put together once."""
        words, back = torch.unique(ids, return_inverse=True)
        rows, sizes = self.find_rows(words)
        vectors = F.embedding_bag(rows, self.table, sizes.cumsum(0) - sizes, mode="mean")
        return vectors.index_select(0, back), (words, back, rows, sizes)

    def apply_gradient(self, ids: Tensor, gradient: Tensor, lr: float, state: Any = None) -> None:
        """Take one step for all rows of the words."""
        words, back, rows, sizes = state
        whole = torch.zeros(len(words), gradient.shape[-1]).index_add_(0, back, gradient.flatten(0, -2))
        super().apply_gradient(rows, whole.repeat_interleave(sizes, 0), lr)


def build_ngram_table(corpus: Corpus, c: VectorsConfig, table: Tensor, pulls: Tensor) -> NgramTable:
    """Return the n-grams of all words, and the learning-rate factor of the rows that words share."""
    words = len(corpus.words)
    lists = [[i, *(words + g for g in hash_ngrams(w, c.min_n, c.max_n, c.buckets))] for i, w in enumerate(corpus.words)]
    sizes = torch.tensor([len(one) for one in lists])
    parts = torch.tensor([row for one in lists for row in one])
    share = (pulls / sizes).repeat_interleave(sizes).float()  # a row is one of several that make up the word
    pace = compute_row_scales(torch.zeros(len(table)).index_add_(0, parts, share))
    return NgramTable(table, pace, parts, F.pad(sizes.cumsum(0), (1, 0)))


def compute_row_scales(pulls: Tensor) -> Tensor:
    """Return the factor that slows down rows with such a sum of pulls in one step."""
    return (MAX_ROW_PULL / pulls).clamp(max=1.0).float()


def train_blockwise(corpus: Corpus, c: VectorsConfig, epochs: int, lr: float, seed: int, run_jobs: RunJobs) -> Tensor:
    """Skip-gram, CBOW or fastText: the finished table, words first."""
    n, words = len(corpus.ids), len(corpus.words)
    share = corpus.counts / corpus.counts.sum()
    # The released code's form of the paper's thinning (2013b, eq. 5): keep √(t/f) + t/f of a word's places.
    kept = np.minimum(1, np.sqrt(c.sample / share) + c.sample / share) if c.sample else np.ones(words)
    noise = np.cumsum(corpus.counts**0.75)  # 2013b, §2.2
    drawn, bounds = np.diff(noise, prepend=0) / noise[-1], torch.from_numpy(noise[:-1] / noise[-1])
    seen, pairs = share * kept / (share * kept).sum(), c.window + 1
    places = BLOCKS_PER_STEP * BLOCK_PLACES
    inner_pulls = torch.from_numpy(lr * places * seen * pairs * (1 + c.negatives))
    outer_pulls = torch.from_numpy(lr * places * (seen + c.negatives * drawn) * (1 if c.kind == "cbow" else pairs))
    g = torch.Generator().manual_seed(seed)
    rows, width = words + (c.buckets if c.kind == "fasttext" else 0), 0.5 if c.kind != "fasttext" else 1.0
    table = torch.empty(rows, c.dim).uniform_(-width / c.dim, width / c.dim, generator=g)
    inner = EmbeddingTable(table, compute_row_scales(inner_pulls))
    if c.kind == "fasttext":
        inner = build_ngram_table(corpus, c, table, inner_pulls)
    outer = EmbeddingTable(torch.zeros(words, c.dim), compute_row_scales(outer_pulls))

    def work(epoch: int, begin: int) -> float:
        end = min(n, begin + CHUNK_WORDS)
        ids, left, right = subsample_chunk(corpus, kept, c.window, seed, epoch, begin, end)
        steps, loss = len(left), 0.0
        own = torch.Generator().manual_seed(int(draw_bits(seed, epoch, begin, 3)) >> 1)
        pick = torch.rand(steps, BLOCKS_PER_STEP * KINDS[c.kind].block_negatives, generator=own, dtype=torch.float64)
        others = torch.searchsorted(bounds, pick)
        for i in range(steps):
            far = (epoch * n + begin + (end - begin) * i / steps) / (epochs * n)
            rate, asked = lr * max(1 - far, 1e-4), i == steps - 1
            span = ids[i * places : (i + 1) * places + 2 * c.window]
            loss = update_blocks(c, inner, outer, span, left[i], right[i], others[i], rate, asked) or loss
        return loss

    chunks = [(epoch, begin) for epoch in range(epochs) for begin in range(0, n, CHUNK_WORDS)]
    run_jobs([(min(CHUNK_WORDS, n - begin), partial(work, epoch, begin)) for epoch, begin in chunks])
    if c.kind == "fasttext":  # known words as fastText's .vec files have them; the n-grams stay for unknown ones
        for part in torch.arange(words).split(4096):
            outer.table[part] = inner.look_up(part)[0]
        table[:words] = outer.table
    return table


def subsample_chunk(
    corpus: Corpus, kept: np.ndarray, window: int, seed: int, epoch: int, begin: int, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Thin out frequent words of a stretch of text: ids with `window` places around, and how many places on the
    left and on the right of each word count (a width drawn from 1 … window, 2013a §3), by step and block."""
    at = np.arange(begin, end)
    at = at[draw_uniform(seed, epoch, at, 1) < kept[corpus.ids[begin:end]]]
    ids, document, n = corpus.ids[at], corpus.document_ids[at], len(at)
    here = np.arange(n)
    first, last = np.searchsorted(document, document), np.searchsorted(document, document, "right") - 1
    width = draw_integers(window, seed, epoch, at, 2) + 1
    rest = -n % (BLOCKS_PER_STEP * BLOCK_PLACES)
    left, right = (np.pad(np.minimum(width, room), (0, rest)) for room in (here - first, last - here))
    padded = torch.from_numpy(np.pad(ids, (window, rest + window)).astype(np.int64))
    shape = (-1, BLOCKS_PER_STEP, BLOCK_PLACES)
    return padded, torch.from_numpy(left).view(shape), torch.from_numpy(right).view(shape)


def update_blocks(
    c: VectorsConfig, inner: EmbeddingTable, outer: EmbeddingTable, span: Tensor, left: Tensor, right: Tensor,
    others: Tensor, lr: float, returns_loss: bool,
) -> float | None:  # fmt: skip
    """Take one step over a batch of blocks; return the mean loss of a pair, if it is asked for."""
    w = c.window
    around = span.unfold(0, BLOCK_PLACES + 2 * w, BLOCK_PLACES).reshape(-1)  # (B·S,)
    words = span[w : len(span) - w]  # (B·T,)
    near, share = word_vector_losses.build_window_mask(left, right, w), c.negatives / KINDS[c.kind].block_negatives
    shape = (BLOCKS_PER_STEP, -1, c.dim)
    drawn = outer.look_up(others)[0].view(shape)
    if c.kind == "cbow":
        (x, state), (y, _) = inner.look_up(around), outer.look_up(words)
        pulls = word_vector_losses.compute_cbow(y.view(shape), x.view(shape), drawn, near, share, returns_loss)
        into, out, number = around, words, near.any(-1).sum()
    else:
        (x, state), (y, _) = inner.look_up(words), outer.look_up(around)
        pulls = word_vector_losses.compute_skipgram(x.view(shape), y.view(shape), drawn, near, share, returns_loss)
        into, out, number = words, around, near.sum()
    inner.apply_gradient(into, pulls.input_grad, lr, state)
    outer.apply_gradient(out, pulls.output_grad, lr)
    outer.apply_gradient(others, pulls.negative_grad, lr)
    return None if pulls.loss is None else pulls.loss / max(1, int(number))


def count_cooccurrences(corpus: Corpus, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count pairs i, j of words within a window, both ways round: words that are d apart count
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


def train_glove(corpus: Corpus, c: VectorsConfig, epochs: int, lr: float, seed: int, run_jobs: RunJobs) -> Tensor:
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

    def work(epoch: int, begin: int) -> float:
        total, places = 0.0, order(epoch)[begin : begin + size]
        for part in places.split(PAIRS_PER_STEP):
            a, b = i[part], j[part]
            w, v, bias = tables[0].index_select(0, a), tables[1].index_select(0, b), biases[0][a] + biases[1][b]
            pulls = word_vector_losses.compute_glove(w, v, bias, counts[part], c.x_max, c.alpha)
            values = (*tables, *biases)
            for at, value, square, pull in zip((a, b, a, b), values, squares, (*pulls[:3], pulls[2]), strict=True):
                # AdaGrad; the squares come first, since one step holds many counts of a frequent word
                square.index_add_(0, at, pull * pull)
                value.index_add_(0, at, (pull * -lr).div_(square.index_select(0, at).sqrt_()))
            total += float(pulls[3].sum())
        return total / len(places)

    size = PAIRS_PER_STEP * STEPS_PER_JOB
    chunks = [(epoch, begin) for epoch in range(epochs) for begin in range(0, n, size)]
    run_jobs([(min(size, n - begin), partial(work, epoch, begin)) for epoch, begin in chunks])
    return tables[0] + tables[1]
