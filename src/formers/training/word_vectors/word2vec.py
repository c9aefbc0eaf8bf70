"""Word vectors out of text: skip-gram, CBOW and fastText, and GloVe (Pennington et al. 2014) from counts.

The text is processed in blocks of consecutive places. The pairs of a block are small matrix products
(objectives/word_vector_losses.py), so that rows are fetched and put back once for each place and not once for each
pair. Several threads share the tables without locks (Recht et al. 2011), as the released programs do; one thread
repeats exactly, also a run that was stopped and resumed.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ... import config as settings
from ...config import JSONObject, JSONValue, ProgressCallback
from ...data.counter_rng import draw_bits, draw_integers, draw_uniform, shuffle_indices
from ...errors import Error
from ...former import Former
from ...interop.word_vectors import build_vectors_model
from ...models.vectors import KINDS, VectorKind, VectorsConfig
from ...objectives import word_vector_losses
from ...text.word_level import hash_ngrams, split_texts
from ..checkpoint.local import Tensors
from ..distributed.process_group import ProcessGroup
from ..train_config import LoopConfig
from ..trainer import Diverged, StepOutcome, StepResult

PAIRS_PER_STEP = 8192  # counts of one step of GloVe,
STEPS_PER_JOB = 64  # steps that a thread takes at a time, and
PAIR_BUFFER = 2**24  # pairs that are gathered before they are summed up
BLOCK_PLACES, BLOCKS_PER_STEP = 32, 32  # places of a block, and blocks of one step; four times as many diverge
CHUNK_WORDS = 100_000  # words that a thread takes at a time
# Learning rate × pairs on one row in one step; what a frequent word has beyond makes its sum overshoot.
MAX_ROW_PULL = 2.5
CHECKPOINTS_PER_RUN = 10  # a checkpoint for each tenth of the work


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


@dataclass(frozen=True, kw_only=True)
class VectorTrainConfig(LoopConfig):
    """How word vectors are trained."""

    epochs: int = 5
    lr: float | None = None  # None: the method's own
    lower: bool = True  # the words are put into lower case
    seed: int = 0
    threads: int | None = None  # None: all cores; only one thread is reproducible
    steps: int = 0  # stretches of the text in all epochs; follows from the text
    samples = 0  # no samples are written during the run
    keep_last, keep_best, keep_every = 2, 0, None  # checkpoints
    deterministic = False  # one thread is, without torch's help
    bytes_per_parameter = 16  # GloVe's: two tables, and the squares of their gradients

    def __post_init__(self) -> None:
        settings.check_sizes(self, "epochs", "threads")
        settings.check_sizes(self, "seed", minimum=0)
        if self.lr is not None and not self.lr > 0:
            raise Error(f"the learning rate must be above 0, got {self.lr}", fix="leave train.lr out")

    @property
    def save_every(self) -> int:
        """A tenth of the steps."""
        return max(1, -(-self.steps // CHECKPOINTS_PER_RUN))

    @property
    def eval_every(self) -> int:
        """Evaluate at the last step only."""
        return max(1, self.steps)

    def explain_memory(self) -> tuple[str, str]:
        """Return what takes memory besides the parameters, and how to need less."""
        return "the text as numbers", "take a smaller --dim or --model.buckets, a larger --min-count, or less text"


def train_word_vectors(
    texts: Iterable[str | Sequence[str]], kind: VectorKind = "skipgram", *, epochs: int = 5, lr: float | None = None,
    lower: bool = True, seed: int = 0, threads: int | None = None, tell: ProgressCallback | None = None, **more: object,
) -> Former:  # fmt: skip
    """Train vectors of the words in some texts (strings, or lists of words); `more` are settings of VectorsConfig.

    `lr` falls linearly to almost 0 (GloVe's by AdaGrad); with one thread the result is a function of the seed.
    """
    c = settings.build_config(VectorsConfig, {"kind": kind, **more}, where="vectors")
    train = VectorTrainConfig(epochs=epochs, lr=lr, lower=lower, seed=seed, threads=threads)
    say = tell or (lambda what, done, of, detail: None)
    corpus = Corpus.from_texts(texts, c.min_count, lower)
    say("words", 1, 1, f"{len(corpus.words):,} words, {len(corpus.ids):,} places")
    trainer = VectorTrainer(build_learner(corpus, c, train), train)
    for done in trainer.train():
        total, speed = epochs * trainer.learner.num_items, done.tokens / done.seconds
        say("training", done.tokens, total, f"loss {done.loss:.3f}, {speed:,.0f} words/s")
    former = build_vectors_model(corpus.words, trainer.learner.finish(), lower=lower, **{**more, "kind": kind})
    if not former.model.body.embedding_table.isfinite().all():
        raise Diverged("the vectors are not finite", fix="take a smaller learning rate")
    return former


class VectorLearner(Protocol):
    """Word vectors in training: `groups` are the tables that jobs change, by the file of a checkpoint. A job is a
    stretch of what an epoch goes over: places of the text, or the counts of pairs (GloVe)."""

    kind: str
    groups: dict[str, Tensors]
    num_items: int  # in an epoch
    job_size: int  # items of a job

    @property
    def jobs_per_epoch(self) -> int:
        """How many jobs an epoch has."""
        return -(-self.num_items // self.job_size)

    def count_items(self, job: int) -> int:
        """Return how many items a job has, by its number over all epochs."""
        return min(self.job_size, self.num_items - job % self.jobs_per_epoch * self.job_size)

    def run_job(self, epoch: int, begin: int) -> float:
        """Train on the items from `begin` on, and return their loss."""

    def compute_lr(self, progress: float) -> float:
        """Return the learning rate when a share of all the work is done."""

    @torch.no_grad()
    def restore_tables(self, groups: Mapping[str, Tensors]) -> None:
        """Set the tables to those of a checkpoint."""
        for group, tables in self.groups.items():
            for name, table in tables.items():
                table.copy_(groups[group][name])

    def finish(self) -> Tensor:
        """Return the finished table, words first; the learner's own tables are used up."""


def build_learner(corpus: Corpus, c: VectorsConfig, train: VectorTrainConfig) -> VectorLearner:
    """Build the learner of a method, with initial tables."""
    lr = KINDS[c.kind].lr if train.lr is None else train.lr
    return (GloveLearner if c.kind == "glove" else BlockwiseLearner)(corpus, c, train.epochs, lr, train.seed)


class VectorTrainer:
    """Trains word vectors: a step is a job of the learner. Several threads, each with one core, share its tables.
    Between two steps the state can be saved: jobs that are under way are waited for, and those that have ended but were
    not yet reported as a step are part of it."""

    is_sharded = reads_late = should_stop = False

    def __init__(self, learner: VectorLearner, config: VectorTrainConfig):
        self.learner, self.world = learner, ProcessGroup()
        self.config = replace(config, steps=config.epochs * learner.jobs_per_epoch)
        self.threads = config.threads or torch.get_num_threads()
        self.step, self.tokens, self.seconds, self.bad_steps = 0, 0, 0.0, 0
        self.unreported: deque[tuple[int, float]] = deque()  # jobs that have ended, with their losses
        self.running: dict[Future[float], int] = {}  # jobs by their futures

    def train(self, until: int | None = None) -> Iterator[StepResult]:
        """Take steps, one after the other, from where the run stands to the last one, or to step `until`."""
        steps, before = self.config.steps, torch.get_num_threads()
        last = steps if until is None else until
        job = self.step + len(self.unreported) + len(self.running)  # the next one
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                while self.step < last:
                    began = time.perf_counter()
                    while not self.unreported:
                        while job < last and len(self.running) < self.threads:
                            self.running[pool.submit(self.run_job, job)] = job
                            job += 1
                        self.collect(FIRST_COMPLETED)
                    done, loss = self.unreported.popleft()
                    self.step, self.tokens = self.step + 1, self.tokens + self.learner.count_items(done)
                    self.bad_steps = 0 if math.isfinite(loss) else self.bad_steps + 1
                    self.seconds += time.perf_counter() - began
                    outcome = partial(StepOutcome, {self.learner.kind: loss}, None, bool(self.bad_steps))
                    lr = self.learner.compute_lr(done / steps)
                    yield StepResult(self.step, lr, self.tokens, outcome, self.seconds)
                    if self.bad_steps:
                        what = f"the vectors are not finite: the loss of step {self.step} is {loss}"
                        raise Diverged(what, fix="take a smaller learning rate: --train.lr, also with --resume")
            finally:
                torch.set_num_threads(before)

    def run_job(self, job: int) -> float:
        """Run a job, by its number over all epochs."""
        torch.set_num_threads(1)  # two threads that wait for each other at every product are slower than one
        epoch, number = divmod(job, self.learner.jobs_per_epoch)
        with torch.no_grad():
            return self.learner.run_job(epoch, number * self.learner.job_size)

    def collect(self, until: str = ALL_COMPLETED) -> None:
        """Wait for one of the jobs under way, or for all of them; an error in one is raised here."""
        ended, _ = wait(self.running, return_when=until)
        self.unreported.extend(sorted((self.running.pop(one), one.result()) for one in ended))

    def get_state(self) -> tuple[dict[str, Tensors], JSONObject]:
        """Return what a checkpoint holds, when no job is under way."""
        self.collect()
        state = {"step": self.step, "tokens": self.tokens, "seconds": self.seconds, "bad_steps": self.bad_steps}
        return self.learner.groups, {**state, "unreported": list(self.unreported)}

    def restore_state(
        self, groups: Mapping[str, Tensors], state: Mapping[str, JSONValue], shard_folder: Path | None = None
    ) -> None:
        """Restore a saved state."""
        self.learner.restore_tables(groups)
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.bad_steps = state["bad_steps"]
        self.unreported = deque((job, loss) for job, loss in state["unreported"])


LookupState = tuple[Tensor, ...] | None  # what a table keeps of a look-up for the gradient


class EmbeddingTable:
    """A table of words; `row_scales` slow down rows that many pairs of one step pull at."""

    def __init__(self, table: Tensor, pace: Tensor):
        self.table, self.row_scales = table, pace

    def look_up(self, ids: Tensor) -> tuple[Tensor, LookupState]:
        """Return vectors (n, d) of words, and what apply_gradient needs."""
        return self.table.index_select(0, ids), None

    def apply_gradient(self, ids: Tensor, gradient: Tensor, lr: float, state: LookupState = None) -> None:
        """Take one step down the gradient (n, d), which is used up."""
        gradient = gradient.flatten(0, -2)
        self.table.index_add_(0, ids, gradient.mul_(self.row_scales.index_select(0, ids).mul_(-lr)[:, None]))


class NgramTable(EmbeddingTable):
    """A table of words and n-grams (fastText): a word is the mean of its rows. The paper sums. The released code
    averages and hands each row the whole gradient: the paper's sum with steps that are shorter by the number of rows.
    So does this."""

    def __init__(self, table: Tensor, pace: Tensor, parts: Tensor, starts: Tensor):
        super().__init__(table, pace)
        self.row_ids, self.starts = parts, starts  # the rows of all words one after the other, (words + 1,) where

    def find_rows(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Find the rows of some words one after the other, and how many each has."""
        first, sizes = self.starts[words], self.starts[words + 1] - self.starts[words]
        ends = sizes.cumsum(0)
        return self.row_ids[torch.arange(int(ends[-1])) + (first - ends + sizes).repeat_interleave(sizes)], sizes

    def look_up(self, ids: Tensor) -> tuple[Tensor, LookupState]:
        """Look up words; each different one is put together once."""
        words, back = torch.unique(ids, return_inverse=True)
        rows, sizes = self.find_rows(words)
        vectors = F.embedding_bag(rows, self.table, sizes.cumsum(0) - sizes, mode="mean")
        return vectors.index_select(0, back), (words, back, rows, sizes)

    def apply_gradient(self, ids: Tensor, gradient: Tensor, lr: float, state: LookupState = None) -> None:
        """Take one step for all rows of the words."""
        assert state is not None
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


class BlockwiseLearner(VectorLearner):
    """Skip-gram, CBOW or fastText, over the places of the text."""

    job_size = CHUNK_WORDS

    def __init__(self, corpus: Corpus, c: VectorsConfig, epochs: int, lr: float, seed: int):
        self.corpus, self.c, self.kind, self.epochs, self.lr, self.seed = corpus, c, c.kind, epochs, lr, seed
        self.num_items, words = len(corpus.ids), len(corpus.words)
        share = corpus.counts / corpus.counts.sum()
        # The released code's form of the paper's thinning (2013b, eq. 5): keep √(t/f) + t/f of a word's places.
        kept = np.minimum(1, np.sqrt(c.sample / share) + c.sample / share) if c.sample else np.ones(words)
        noise = np.cumsum(corpus.counts**0.75)  # 2013b, §2.2
        drawn, self.noise_bounds = np.diff(noise, prepend=0) / noise[-1], torch.from_numpy(noise[:-1] / noise[-1])
        seen, pairs = share * kept / (share * kept).sum(), c.window + 1
        places = BLOCKS_PER_STEP * BLOCK_PLACES
        inner_pulls = torch.from_numpy(lr * places * seen * pairs * (1 + c.negatives))
        outer_pulls = torch.from_numpy(lr * places * (seen + c.negatives * drawn) * (1 if c.kind == "cbow" else pairs))
        g = torch.Generator().manual_seed(seed)
        rows, width = words + (c.buckets if c.kind == "fasttext" else 0), 0.5 if c.kind != "fasttext" else 1.0
        table = torch.empty(rows, c.dim).uniform_(-width / c.dim, width / c.dim, generator=g)
        self.kept, self.inner = kept, EmbeddingTable(table, compute_row_scales(inner_pulls))
        if c.kind == "fasttext":
            self.inner = build_ngram_table(corpus, c, table, inner_pulls)
        self.outer = EmbeddingTable(torch.zeros(words, c.dim), compute_row_scales(outer_pulls))
        self.groups = {"model": {"input": table, "output": self.outer.table}}

    def compute_lr(self, progress: float) -> float:
        """Return a rate that falls linearly to almost 0."""
        return self.lr * max(1 - progress, 1e-4)

    def run_job(self, epoch: int, begin: int) -> float:
        """Go over a stretch of the text; return the loss of its last step."""
        c, n, end = self.c, self.num_items, min(self.num_items, begin + self.job_size)
        ids, left, right = subsample_chunk(self.corpus, self.kept, c.window, self.seed, epoch, begin, end)
        steps, loss, places = len(left), 0.0, BLOCKS_PER_STEP * BLOCK_PLACES
        own = torch.Generator().manual_seed(int(draw_bits(self.seed, epoch, begin, 3)) >> 1)
        pick = torch.rand(steps, BLOCKS_PER_STEP * KINDS[c.kind].block_negatives, generator=own, dtype=torch.float64)
        others = torch.searchsorted(self.noise_bounds, pick)
        for i in range(steps):
            far = (epoch * n + begin + (end - begin) * i / steps) / (self.epochs * n)
            span, is_last = ids[i * places : (i + 1) * places + 2 * c.window], i == steps - 1
            step = left[i], right[i], others[i], self.compute_lr(far), is_last
            loss = update_blocks(c, self.inner, self.outer, span, *step) or loss
        return loss

    def finish(self) -> Tensor:
        """Return the input vectors; of fastText's words, those that they and their n-grams make."""
        table, words = self.inner.table, len(self.corpus.words)
        if self.kind == "fasttext":  # known words as fastText's .vec files have them; the n-grams stay for unknown ones
            for part in torch.arange(words).split(4096):
                self.outer.table[part] = self.inner.look_up(part)[0]
            table[:words] = self.outer.table
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
        into, out = around, words
    else:
        (x, state), (y, _) = inner.look_up(words), outer.look_up(around)
        pulls = word_vector_losses.compute_skipgram(x.view(shape), y.view(shape), drawn, near, share, returns_loss)
        into, out = words, around
    inner.apply_gradient(into, pulls.input_grad, lr, state)
    outer.apply_gradient(out, pulls.output_grad, lr)
    outer.apply_gradient(others, pulls.negative_grad, lr)
    if pulls.loss is None:
        return None
    return pulls.loss / max(1, int(near.any(-1).sum() if c.kind == "cbow" else near.sum()))


def count_cooccurrences(corpus: Corpus, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count pairs i, j of words within a window, both ways round: words that are d apart count
    1/d (§4.2)."""
    ids, words = corpus.ids.astype(np.int64), len(corpus.words)
    keys, sums = np.zeros(0, np.int64), np.zeros(0)
    waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def add_up() -> tuple[np.ndarray, np.ndarray]:
        all_keys = np.concatenate([keys, *(k for k, _ in waiting)])
        weights = np.concatenate([sums, *(w for _, w in waiting)])
        waiting.clear()
        order = np.argsort(all_keys, kind="stable")
        all_keys = all_keys[order]
        heads = np.flatnonzero(np.diff(all_keys, prepend=-1))
        return all_keys[heads], np.add.reduceat(weights[order], heads) if len(heads) else sums

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


class GloveLearner(VectorLearner):
    """GloVe, over all counts of pairs, both ways round."""

    kind, job_size = "glove", PAIRS_PER_STEP * STEPS_PER_JOB

    def __init__(self, corpus: Corpus, c: VectorsConfig, epochs: int, lr: float, seed: int):
        self.c, self.lr, (i, j, counts) = c, lr, count_cooccurrences(corpus, c.window)
        if not len(i):
            raise Error("no two words occur together", fix="give longer texts")
        self.first, self.second, self.counts = (
            torch.from_numpy(i),
            torch.from_numpy(j),
            torch.from_numpy(counts).float(),
        )
        words, self.num_items = len(corpus.words), len(i)
        g = torch.Generator().manual_seed(seed)
        tables = [torch.rand(words, c.dim, generator=g).sub_(0.5).div_(c.dim) for _ in range(2)]
        biases = [torch.rand(words, generator=g).sub_(0.5).div_(c.dim) for _ in range(2)]
        values = dict(zip(("input", "output", "input_bias", "output_bias"), (*tables, *biases), strict=True))
        self.groups = {"model": values, "optimizer": {name: torch.ones_like(value) for name, value in values.items()}}
        self.get_order = lru_cache(2)(lambda epoch: torch.from_numpy(shuffle_indices(len(i), seed, epoch)))

    def compute_lr(self, progress: float) -> float:
        """Return the rate, which AdaGrad lowers for each number of its own."""
        return self.lr

    def run_job(self, epoch: int, begin: int) -> float:
        """Go over some of the counts in the order of an epoch; return their mean loss."""
        values, squares = (tuple(self.groups[name].values()) for name in ("model", "optimizer"))
        total, places = 0.0, self.get_order(epoch)[begin : begin + self.job_size]
        for part in places.split(PAIRS_PER_STEP):
            a, b = self.first[part], self.second[part]
            w, v, bias = values[0].index_select(0, a), values[1].index_select(0, b), values[2][a] + values[3][b]
            pulls = word_vector_losses.compute_glove(w, v, bias, self.counts[part], self.c.x_max, self.c.alpha)
            for at, value, square, pull in zip((a, b, a, b), values, squares, (*pulls[:3], pulls[2]), strict=True):
                # AdaGrad; the squares come first, since one step holds many counts of a frequent word
                square.index_add_(0, at, pull * pull)
                value.index_add_(0, at, (pull * -self.lr).div_(square.index_select(0, at).sqrt_()))
            total += float(pulls[3].sum())
        return total / len(places)

    def finish(self) -> Tensor:
        """Return the sum of a word's two vectors (§4.2)."""
        return self.groups["model"]["input"] + self.groups["model"]["output"]
