"""Word vectors out of text: skip-gram, CBOW and fastText here, GloVe's counts in glove.py.

The text is worked off in blocks of places that follow each other. The pairs of a block are small matrix products
(objectives/static.py), so that rows are fetched and put back once for each place and not once for each pair. Several
threads share the tables without locks (Recht et al. 2011), as the released programs do; one thread repeats exactly.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import config as settings
from ..config import Tell
from ..data.draws import below, bits, uniform
from ..errors import Error
from ..former import Former
from ..interop.vectors import named
from ..models.vectors import Kind, VectorsConfig
from ..objectives import static
from ..text.words import grams, read
from . import glove
from .loop import Diverged

RATES = {"skipgram": 0.025, "cbow": 0.05, "fasttext": 0.05, "glove": 0.05}
PLACES, BLOCKS = 32, 32  # places of a block, and blocks of one step; four times as many diverge
DRAWN = {"skipgram": 64, "fasttext": 64, "cbow": 32}  # words drawn for a block: as good as five for each pair
CHUNK = 100_000  # words that a thread takes at a time
STEADY = 2.5  # learning rate × pairs on one row in one step; what a frequent word has beyond makes its sum overshoot


@dataclass(frozen=True)
class Corpus:
    """Words by number, the frequent first: ids (n,), the document of each (n,), words and their counts."""

    ids: np.ndarray
    document: np.ndarray
    words: list[str]
    counts: np.ndarray

    @staticmethod
    def of(texts: Iterable[str | Sequence[str]], least: int, lower: bool) -> Corpus:
        """Number the words that occur at least so often, ties by the alphabet; the others are left out."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        parts = [np.fromiter(map(numbers.__getitem__, words), np.int32) for words in read(texts, lower)]
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


def train(
    texts: Iterable[str | Sequence[str]],
    kind: Kind = "skipgram",
    *,
    epochs: int = 5,
    lr: float | None = None,
    lower: bool = True,
    seed: int = 0,
    threads: int | None = None,
    tell: Tell | None = None,
    note: Callable[[dict[str, Any]], None] | None = None,
    **more: Any,
) -> Former:
    """Vectors of the words in some texts (strings, or lists of words); `more` are settings of VectorsConfig.

    `lr` falls in a line to almost nothing (GloVe's by AdaGrad); with one thread the result is a function of the seed.
    `note` hears how many `places` there are, then gets a line (step, loss, tokens, seconds) after each piece of work.
    """
    c = settings.build(VectorsConfig, {"kind": kind, **more}, where="vectors")
    if epochs < 1 or (lr is not None and lr <= 0):
        raise Error(f"{epochs} epochs at lr {lr} train nothing", fix="take at least one epoch and a positive lr")
    say = tell or (lambda what, done, of, detail: None)
    corpus = Corpus.of(texts, c.min_count, lower)
    say("words", 1, 1, f"{len(corpus.words):,} words, {len(corpus.ids):,} places")
    if note is not None:
        note({"step": 0, "places": len(corpus.ids)})
    rate, threads = RATES[kind] if lr is None else lr, threads or torch.get_num_threads()
    work = glove.vectors if kind == "glove" else blockwise
    table = work(corpus, c, epochs, rate, seed, lambda jobs: run(jobs, threads, say, note, kind))
    if not table.isfinite().all():
        raise Diverged("the vectors are not finite", fix="take a smaller learning rate")
    return named(corpus.words, table, lower=lower, **{**more, "kind": kind, "dim": c.dim})


def run(
    jobs: Sequence[tuple[int, Callable[[], float]]], threads: int, say: Tell,
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


class Rows:
    """A table of words; `pace` slows down rows that many pairs of one step pull at."""

    def __init__(self, table: Tensor, pace: Tensor):
        self.table, self.pace = table, pace

    def get(self, ids: Tensor) -> tuple[Tensor, Any]:
        """Vectors (n, d) of words, and what `put` needs to know."""
        return self.table.index_select(0, ids), None

    def put(self, ids: Tensor, gradient: Tensor, lr: float, state: Any = None) -> None:
        """One step down the gradient (n, d), which is used up."""
        gradient = gradient.flatten(0, -2)
        self.table.index_add_(0, ids, gradient.mul_(self.pace.index_select(0, ids).mul_(-lr)[:, None]))


class Bags(Rows):
    """A table of words and n-grams (fastText): a word is the mean of its rows.

    The paper sums. The released code averages and hands each row the whole gradient: the paper's sum with steps that
    are shorter by the number of rows. So does this.
    """

    def __init__(self, table: Tensor, pace: Tensor, parts: Tensor, starts: Tensor):
        super().__init__(table, pace)
        self.parts, self.starts = parts, starts  # the rows of all words one after the other, (words + 1,) where

    def rows(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of some words one after the other, and how many each has."""
        first, sizes = self.starts[words], self.starts[words + 1] - self.starts[words]
        ends = sizes.cumsum(0)
        return self.parts[torch.arange(int(ends[-1])) + (first - ends + sizes).repeat_interleave(sizes)], sizes

    def get(self, ids: Tensor) -> tuple[Tensor, Any]:
        """Each different word is put together once."""
        words, back = torch.unique(ids, return_inverse=True)
        rows, sizes = self.rows(words)
        vectors = F.embedding_bag(rows, self.table, sizes.cumsum(0) - sizes, mode="mean")
        return vectors.index_select(0, back), (words, back, rows, sizes)

    def put(self, ids: Tensor, gradient: Tensor, lr: float, state: Any = None) -> None:
        """One step for all rows of the words."""
        words, back, rows, sizes = state
        whole = torch.zeros(len(words), gradient.shape[-1]).index_add_(0, back, gradient.flatten(0, -2))
        super().put(rows, whole.repeat_interleave(sizes, 0), lr)


def bags(corpus: Corpus, c: VectorsConfig, table: Tensor, pulls: Tensor) -> Bags:
    """The n-grams of all words, and the pace of the rows that words share."""
    words = len(corpus.words)
    lists = [[i, *(words + g for g in grams(w, c.min_n, c.max_n, c.buckets))] for i, w in enumerate(corpus.words)]
    sizes = torch.tensor([len(one) for one in lists])
    parts = torch.tensor([row for one in lists for row in one])
    share = (pulls / sizes).repeat_interleave(sizes).float()  # a row is one of several that make up the word
    return Bags(
        table,
        steady(torch.zeros(len(table)).index_add_(0, parts, share)),
        parts,
        F.pad(sizes.cumsum(0), (1, 0)),
    )


def steady(pulls: Tensor) -> Tensor:
    """By how much to slow down rows with such a sum of pulls in one step."""
    return (STEADY / pulls).clamp(max=1.0).float()


def blockwise(
    corpus: Corpus, c: VectorsConfig, epochs: int, lr: float, seed: int, run: Callable[[Any], None]
) -> Tensor:
    """Skip-gram, CBOW or fastText: the finished table, words first."""
    n, words = len(corpus.ids), len(corpus.words)
    share = corpus.counts / corpus.counts.sum()
    # The released code's form of the paper's thinning (2013b, eq. 5): keep √(t/f) + t/f of a word's places.
    kept = np.minimum(1, np.sqrt(c.sample / share) + c.sample / share) if c.sample else np.ones(words)
    noise = np.cumsum(corpus.counts**0.75)  # 2013b, §2.2
    drawn, bounds = np.diff(noise, prepend=0) / noise[-1], torch.from_numpy(noise[:-1] / noise[-1])
    seen, pairs = share * kept / (share * kept).sum(), c.window + 1
    places = BLOCKS * PLACES
    inner_pulls = torch.from_numpy(lr * places * seen * pairs * (1 + c.negatives))
    outer_pulls = torch.from_numpy(lr * places * (seen + c.negatives * drawn) * (1 if c.kind == "cbow" else pairs))
    g = torch.Generator().manual_seed(seed)
    rows, width = words + (c.buckets if c.kind == "fasttext" else 0), 0.5 if c.kind != "fasttext" else 1.0
    table = torch.empty(rows, c.dim).uniform_(-width / c.dim, width / c.dim, generator=g)
    inner = bags(corpus, c, table, inner_pulls) if c.kind == "fasttext" else Rows(table, steady(inner_pulls))
    outer = Rows(torch.zeros(words, c.dim), steady(outer_pulls))

    def job(epoch: int, begin: int) -> Callable[[], float]:
        def work() -> float:
            end = min(n, begin + CHUNK)
            ids, left, right = thin(corpus, kept, c.window, seed, epoch, begin, end)
            steps, loss = len(left), 0.0
            own = torch.Generator().manual_seed(int(bits(seed, epoch, begin, 3)) >> 1)
            pick = torch.rand(steps, BLOCKS * DRAWN[c.kind], generator=own, dtype=torch.float64)
            others = torch.searchsorted(bounds, pick)
            for i in range(steps):
                far = (epoch * n + begin + (end - begin) * i / steps) / (epochs * n)
                rate, asked = lr * max(1 - far, 1e-4), i == steps - 1
                span = ids[i * places : (i + 1) * places + 2 * c.window]
                loss = step(c, inner, outer, span, left[i], right[i], others[i], rate, asked) or loss
            return loss

        return work

    run([(min(n, b + CHUNK) - b, job(e, b)) for e in range(epochs) for b in range(0, n, CHUNK)])
    if isinstance(inner, Bags):  # known words as fastText's .vec files have them; the n-grams stay for unknown ones
        for part in torch.arange(words).split(4096):
            finished = inner.get(part)[0]
            outer.table[part] = finished
        table[:words] = outer.table
    return table


def thin(
    corpus: Corpus, kept: np.ndarray, window: int, seed: int, epoch: int, begin: int, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A stretch of text with frequent words thinned out: ids with `window` places around, and how many places on the
    left and on the right of each word count (a width drawn from 1 … window, 2013a §3), by step and block."""
    at = np.arange(begin, end)
    at = at[uniform(seed, epoch, at, 1) < kept[corpus.ids[begin:end]]]
    ids, document, n = corpus.ids[at], corpus.document[at], len(at)
    here = np.arange(n)
    first, last = np.searchsorted(document, document), np.searchsorted(document, document, "right") - 1
    width = below(window, seed, epoch, at, 2) + 1
    rest = -n % (BLOCKS * PLACES)
    left, right = (np.pad(np.minimum(width, room), (0, rest)) for room in (here - first, last - here))
    padded = torch.from_numpy(np.pad(ids, (window, rest + window)).astype(np.int64))
    shape = (-1, BLOCKS, PLACES)
    return padded, torch.from_numpy(left).view(shape), torch.from_numpy(right).view(shape)


def step(
    c: VectorsConfig, inner: Rows, outer: Rows, span: Tensor, left: Tensor, right: Tensor, others: Tensor, lr: float,
    asked: bool,
) -> float | None:  # fmt: skip
    """One step over a batch of blocks; the mean loss of a pair, if it is asked for."""
    w = c.window
    around = span.unfold(0, PLACES + 2 * w, PLACES).reshape(-1)  # (B·S,)
    words = span[w : len(span) - w]  # (B·T,)
    near, share = static.band(left, right, w), c.negatives / DRAWN[c.kind]
    shape = (BLOCKS, -1, c.dim)
    drawn = outer.get(others)[0].view(shape)
    if c.kind == "cbow":
        (x, state), (y, _) = inner.get(around), outer.get(words)
        pulls = static.cbow(y.view(shape), x.view(shape), drawn, near, share, asked)
        into, out, number = around, words, near.any(-1).sum()
    else:
        (x, state), (y, _) = inner.get(words), outer.get(around)
        pulls = static.skipgram(x.view(shape), y.view(shape), drawn, near, share, asked)
        into, out, number = words, around, near.sum()
    inner.put(into, pulls.inner, lr, state)
    outer.put(out, pulls.outer, lr)
    outer.put(others, pulls.drawn, lr)
    return None if pulls.loss is None else pulls.loss / max(1, int(number))
