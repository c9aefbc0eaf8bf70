"""Masked language modelling: some tokens are hidden and predicted from both sides (BERT §3.1). Also whole words (a word
that would overflow the count is skipped), and ALBERT's n-grams of whole words (§4.1).

N tokens of D examples, W words; `free` (N,) says what may be hidden. Draws belong to (seed, sample, place).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import Tensor

from ..batch import Batch, BatchShape
from ..data.counter_rng import draw_bits, draw_integers, draw_uniform, rank_within_rows, sample_harmonic
from ..data.plans import Plan, RawExamples, estimate_documents, plan_texts, plan_windows
from ..data.store import Store
from ..errors import Error
from ..protocols import Model
from ..ragged_arrays import compute_row_ids, compute_starts, ragged_arange
from ..text.tokenizer import Tokenizer
from .special_tokens import ExampleFrame, FramedExamples, add_special_tokens
from .token_losses import LabelCounting, compute_losses

BEGINS_WORD, ENDS_WORD = 1, 2  # bits: a piece begins a word; it ends one, so that the next begins another (GPT-1)


def compute_word_marks(tokenizer: Tokenizer) -> np.ndarray:
    """(vocab,) what each piece says of words."""
    return (BEGINS_WORD * tokenizer.word_starts + ENDS_WORD * tokenizer.word_ends).astype(np.uint8)


def find_word_starts(ids: np.ndarray, marks: np.ndarray | None, first: np.ndarray) -> np.ndarray:
    """(N,) bool: a word begins here; the first token of a sentence always begins one."""
    if marks is None:
        return np.ones(len(ids), bool)
    known = marks[ids]
    found = (known & BEGINS_WORD > 0) | first
    found[1:] |= known[:-1] & ENDS_WORD > 0
    return found


CHOICE_DRAW, FATE_DRAW, WORD_DRAW, NGRAM_DRAW = range(1, 5)  # what a random number is for


def choose_tokens(
    free: np.ndarray, starts: np.ndarray, wanted: np.ndarray, seed: int, sample: np.ndarray
) -> np.ndarray:
    """(N,) bool: so many tokens of each example, each as likely as another."""
    owner = compute_row_ids(starts)
    at = np.flatnonzero(free)
    mine = owner[at]
    draw = draw_bits(seed, sample[mine], at - starts[mine], CHOICE_DRAW)
    chosen = np.zeros(len(free), bool)
    chosen[at] = rank_within_rows(draw, np.bincount(mine, minlength=len(starts) - 1)) < wanted[mine]
    return chosen


def group_free_tokens(
    free: np.ndarray, begins: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The free tokens (F,), the group of each (F,), and the example of each group (W,). A group ends where another
    begins and at every token that is not free."""
    at = np.flatnonzero(free)
    new = begins[at].copy()
    new[:1] = True
    new[1:] |= np.diff(at) > 1
    first = np.zeros(len(free), bool)
    first[starts[:-1][starts[:-1] < len(free)]] = True
    new |= first[at]
    group = np.cumsum(new) - 1
    return at, group, (np.searchsorted(starts, at[new], side="right") - 1)


def choose_ngrams(
    free: np.ndarray,
    begins: np.ndarray,
    starts: np.ndarray,
    wanted: np.ndarray,
    most: int,
    seed: int,
    sample: np.ndarray,
) -> np.ndarray:
    """(N,) bool: n-grams of whole words, n ≤ most with p ∝ 1/n, until an example has as many tokens as are wanted.

    The released procedure: words are visited in random order; an n-gram begins at each, and is made shorter while it
    overflows the count; one that still overflows or meets a hidden word is skipped. All examples take a step at once.
    """
    at, group, owner = group_free_tokens(free, begins, starts)
    sizes = np.bincount(owner, minlength=len(starts) - 1)  # words of each example
    reach, first, turn = (
        compute_starts(np.bincount(group, minlength=len(owner))),
        compute_starts(sizes),
        ragged_arange(sizes),
    )
    gram = np.minimum(sample_harmonic(most, draw_uniform(seed, sample[owner], turn, NGRAM_DRAW)), sizes[owner] - turn)
    order = np.empty(len(owner), np.int64)
    order[first[owner] + rank_within_rows(draw_bits(seed, sample[owner], turn, CHOICE_DRAW), sizes)] = np.arange(
        len(owner)
    )
    hidden, left = np.zeros(len(owner) + most, bool), wanted.copy()
    active, step = np.flatnonzero((sizes > 0) & (left > 0)), 0
    while len(active):
        word, space = order[first[active] + step], left[active]
        n = gram[word]
        for _ in range(most - 1):
            n = n - ((n > 1) & (reach[word + n] - reach[word] > space))
        size, fits = reach[word + n] - reach[word], ~hidden[word]
        for more in range(1, most):
            fits &= ~(hidden[word + more] & (n > more))
        fits &= size <= space
        for more in range(most):
            hidden[word[fits & (n > more)] + more] = True
        left[active] -= size * fits
        step += 1
        active = active[(left[active] > 0) & (sizes[active] > step)]
    chosen = np.zeros(len(free), bool)
    chosen[at] = hidden[group]
    return chosen


def choose_units(
    free: np.ndarray,
    begins: np.ndarray,
    starts: np.ndarray,
    rate: float,
    limit: np.ndarray,
    seed: int,
    sample: np.ndarray,
) -> np.ndarray:
    """(N,) bool: each unit whole with probability `rate`; those that would pass an example's limit are left out."""
    at, group, owner = group_free_tokens(free, begins, starts)
    sizes = np.bincount(group, minlength=len(owner))
    turn = ragged_arange(np.bincount(owner, minlength=len(starts) - 1))
    hidden = draw_uniform(seed, sample[owner], turn, CHOICE_DRAW) < rate
    taken = np.cumsum(sizes * hidden)
    begin = np.searchsorted(owner, np.arange(len(starts) - 1))
    before = np.concatenate(([0], taken))[begin][owner]
    hidden &= taken - before <= limit[owner]
    chosen = np.zeros(len(free), bool)
    chosen[at] = hidden[group]
    return chosen


def mask_tokens(
    batch: Batch,
    chosen: np.ndarray,
    seed: int,
    mask: int,
    vocab: int,
    mask_ratio: float = 0.8,
    random_ratio: float = 0.1,
) -> Batch:
    """Each chosen token (N,) bool becomes the mask, a random token of the whole vocabulary, or stays; the labels are
    what was there."""
    at = np.flatnonzero(chosen)
    owner = np.searchsorted(batch.starts, at, side="right") - 1
    sample, place = batch.sample[owner], at - batch.starts[owner]
    fate = draw_uniform(seed, sample, place, FATE_DRAW)
    word = draw_integers(vocab, seed, sample, place, WORD_DRAW)
    ids = batch.ids.copy()
    ids[at] = np.where(fate < mask_ratio, mask, np.where(fate < mask_ratio + random_ratio, word, ids[at]))
    return batch.replace(ids=ids, chosen=at, labels=batch.ids[at])


MaskedLMType = TypeVar("MaskedLMType", bound="MaskedLM")


@dataclass(frozen=True)
class MaskedLM(LabelCounting):
    """Hide 15 %; of those 80 % become [MASK], 10 % a random token, 10 % stay. Special tokens are never chosen.

    The number is exact for each example: min(max_masked, max(1, round(mask_rate · length))). `max_ngram` = 0 hides
    tokens, 1 whole words, 3 n-grams of up to three words. `across_documents` fills examples across documents (RoBERTa's
    FULL-SENTENCES).
    """

    unused_options: ClassVar[tuple[str, ...]] = ()  # settings of this class that a subclass has no use for
    length: int  # special tokens included
    vocab: int
    mask: int
    special: tuple[int, ...]
    frame: ExampleFrame
    mask_rate: float = 0.15
    mask_ratio: float = 0.8
    random_ratio: float = 0.1
    max_masked: int | None = None
    max_ngram: int = 0
    across_documents: bool = False
    eos: int | None = None  # the store's end mark, which the frame replaces
    word_marks: np.ndarray | None = field(default=None, compare=False, repr=False)  # (vocab,) pieces that begin a word
    part: str = "mlm"

    @classmethod
    def from_tokenizer(cls: type[MaskedLMType], tokenizer: Tokenizer, length: int, **options: Any) -> MaskedLMType:
        """With the special tokens of a tokenizer: [CLS] … [SEP] around an example, [MASK] for what is hidden."""
        front = tokenizer.id("bos") if tokenizer.id("cls") is None else tokenizer.id("cls")
        back = tokenizer.id("eos") if tokenizer.id("sep") is None else tokenizer.id("sep")
        mask, end = tokenizer.id("mask"), tokenizer.id("eos")
        if front is None or back is None or mask is None:
            raise Error("this tokenizer has no [CLS], [SEP] and [MASK]", fix="train or load a tokenizer for BERT")
        roles = ("pad", "bos", "eos", "cls", "sep", "mask")
        special = tuple(dict.fromkeys(i for role in roles if (i := tokenizer.id(role)) is not None))
        return cls(
            length,
            len(tokenizer),
            mask,
            special,
            ((front,), (back,)),
            word_marks=compute_word_marks(tokenizer),
            eos=end,
            **options,
        )

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Windows in random order, with room for the special tokens."""
        inner = self.length - sum(map(len, self.frame))
        if self.across_documents:
            return plan_windows(store, inner, seed, epoch, across=True)
        return plan_texts(store, self.eos, inner, seed, epoch)

    def count_special_tokens(self, plan: Plan) -> np.ndarray | int:
        """How many special tokens each example of a plan gets."""
        return sum(map(len, self.frame))

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """With the special tokens around."""
        lengths = plan.lengths + self.count_special_tokens(plan)
        return np.stack((lengths, self.count_masked(lengths), np.zeros(len(plan), np.int64)), 1)

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Choose room for as many labels as full examples have, or more if they are short: each has one at least."""
        sizes = self.measure_sizes(plan)
        usual = (total // self.length + 1) * int(self.count_masked(np.array([self.length]))[0])
        mean = sizes[:, 1].sum() / max(1, sizes[:, 0].sum()) if len(sizes) else 0.0
        return BatchShape(
            estimate_documents(total, sizes[:, 0]), total, max(usual, int(np.ceil(total * mean * 1.02))), self.length
        )

    def count_masked(self, lengths: np.ndarray) -> np.ndarray:
        """How many tokens of an example are hidden, at most."""
        count = np.maximum(1, np.round(self.mask_rate * lengths)).astype(np.int64)
        return count if self.max_masked is None else np.minimum(count, self.max_masked)

    def frame_examples(self, raw: RawExamples) -> tuple[FramedExamples, dict[str, Any]]:
        """Examples between their marks, and what else the batch says of them."""
        return add_special_tokens(raw, *self.frame), {}

    def choose_masked(self, at: FramedExamples, free: np.ndarray, seed: int) -> np.ndarray:
        """(N,) bool: what is hidden."""
        wanted, sample = self.count_masked(np.diff(at.starts)), at.raw.sample
        if not self.max_ngram:
            return choose_tokens(free, at.starts, wanted, seed, sample)
        first = find_word_starts(at.ids, self.word_marks, at.span_starts)
        return choose_ngrams(free, first, at.starts, wanted, self.max_ngram, seed, sample)

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Choose tokens, remember them as labels, and hide them."""
        at, more = self.frame_examples(raw)
        free = np.ones(self.vocab, bool)
        free[list(self.special)] = False
        batch = Batch(at.ids, at.starts, self.length, sample=raw.sample, **more)
        chosen = self.choose_masked(at, free[at.ids], seed)
        return mask_tokens(batch, chosen, seed, self.mask, self.vocab, self.mask_ratio, self.random_ratio)

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The summed cross-entropy and how many tokens it is over."""
        return compute_losses(model, batch, self.part)
