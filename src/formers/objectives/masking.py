"""Masked language modelling: some tokens are hidden and predicted from both sides (BERT §3.1). Also whole words (a word
that would overflow the count is skipped), ALBERT's n-grams of whole words (§4.1) and ERNIE's units of knowledge.

Beside the masked tokens there may be two segments and a question about them: next sentence, sentence order. Pairs are
made out of documents the way the released procedures do it, for many documents at once.

N tokens of D examples, W words; `free` (N,) says what may be hidden. Draws belong to (seed, sample, place). Of a store:
D documents, S sentences (empty ones left out), E examples; draws of pairs belong to (seed, epoch, pass, sentence).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from ..batch import Array, Batch, BatchShape
from ..data import counter_rng as rng
from ..data import plans
from ..data.plans import ExampleFrame, FramedExamples, Plan, RawExamples, SentenceTable
from ..data.preparation.document_encoder import ENTITY_BIT, PHRASE_BIT
from ..data.store import Store
from ..errors import Error
from ..protocols import Losses, Model
from ..ragged_arrays import compute_row_ids, compute_starts, expand_ranges, ragged_arange
from ..text.tokenizer import Tokenizer
from .token_losses import BaseObjective

BEGINS_WORD, ENDS_WORD = 1, 2  # bits: a piece begins a word; it ends one, so that the next begins another (GPT-1)


def compute_word_marks(tokenizer: Tokenizer) -> np.ndarray:
    """Return (vocab,) bits: whether each piece begins or ends a word."""
    return (BEGINS_WORD * tokenizer.word_starts + ENDS_WORD * tokenizer.word_ends).astype(np.uint8)


def find_word_starts(ids: np.ndarray, marks: np.ndarray | None, first: np.ndarray) -> np.ndarray:
    """Return (N,) bool: a word begins here; the first token of a sentence always begins one."""
    if marks is None:
        return np.ones(len(ids), bool)
    known = marks[ids]
    is_start = (known & BEGINS_WORD > 0) | first
    is_start[1:] |= known[:-1] & ENDS_WORD > 0
    return is_start


CHOICE_DRAW, FATE_DRAW, WORD_DRAW, NGRAM_DRAW = range(1, 5)  # what a random number is for


def choose_tokens(
    free: np.ndarray, starts: np.ndarray, counts: np.ndarray, seed: int, sample: np.ndarray
) -> np.ndarray:
    """Return (N,) bool: so many tokens of each example, each as likely as another."""
    at = np.flatnonzero(free)
    mine = compute_row_ids(starts)[at]
    draw = rng.draw_bits(seed, sample[mine], at - starts[mine], CHOICE_DRAW)
    chosen = np.zeros(len(free), bool)
    chosen[at] = rng.rank_within_rows(draw, np.bincount(mine, minlength=len(starts) - 1)) < counts[mine]
    return chosen


def group_free_tokens(
    free: np.ndarray, begins: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return free tokens (F,), the group of each (F,), and the example of each group (W,). A group ends where another
    begins and at every token that is not free."""
    at = np.flatnonzero(free)
    new = begins[at].copy()
    new[:1] = True
    new[1:] |= np.diff(at) > 1
    first = np.zeros(len(free), bool)
    first[starts[:-1][starts[:-1] < len(free)]] = True
    new |= first[at]
    return at, np.cumsum(new) - 1, np.searchsorted(starts, at[new], side="right") - 1


def choose_ngrams(
    free: np.ndarray, begins: np.ndarray, starts: np.ndarray, counts: np.ndarray, most: int, seed: int,
    sample: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Choose (N,) n-grams of whole words, n ≤ most with p ∝ 1/n, until an example has as many tokens as are wanted. The
    released procedure: words are visited in random order; an n-gram begins at each, and is made shorter while it
    overflows the count; one that still overflows or meets a hidden word is skipped. All examples take a step at
    once."""
    at, group, owner = group_free_tokens(free, begins, starts)
    sizes = np.bincount(owner, minlength=len(starts) - 1)  # words of each example
    reach = compute_starts(np.bincount(group, minlength=len(owner)))
    first, turn = compute_starts(sizes), ragged_arange(sizes)
    gram = rng.sample_harmonic(most, rng.draw_uniform(seed, sample[owner], turn, NGRAM_DRAW))
    gram = np.minimum(gram, sizes[owner] - turn)
    rank = rng.rank_within_rows(rng.draw_bits(seed, sample[owner], turn, CHOICE_DRAW), sizes)
    order = np.empty(len(owner), np.int64)
    order[first[owner] + rank] = np.arange(len(owner))
    hidden, left = np.zeros(len(owner) + most, bool), counts.copy()
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
    free: np.ndarray, begins: np.ndarray, starts: np.ndarray, rate: float, limit: np.ndarray, seed: int,
    sample: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Choose (N,) each unit whole with probability `rate`; those that would pass an example's limit are left out."""
    at, group, owner = group_free_tokens(free, begins, starts)
    sizes = np.bincount(group, minlength=len(owner))
    turn = ragged_arange(np.bincount(owner, minlength=len(starts) - 1))
    hidden = rng.draw_uniform(seed, sample[owner], turn, CHOICE_DRAW) < rate
    taken = np.cumsum(sizes * hidden)
    before = np.concatenate(([0], taken))[np.searchsorted(owner, np.arange(len(starts) - 1))][owner]
    hidden &= taken - before <= limit[owner]
    chosen = np.zeros(len(free), bool)
    chosen[at] = hidden[group]
    return chosen


def mask_tokens(
    batch: Batch, chosen: np.ndarray, seed: int, mask: int, vocab: int, mask_ratio: float, random_ratio: float
) -> Batch:
    """Mask each chosen token (N,) bool, replace it by a random one, or keep it; the labels are what was there."""
    at = np.flatnonzero(chosen)
    owner = np.searchsorted(batch.starts, at, side="right") - 1
    sample, place = batch.sample[owner], at - batch.starts[owner]
    fate = rng.draw_uniform(seed, sample, place, FATE_DRAW)
    word = rng.draw_integers(vocab, seed, sample, place, WORD_DRAW)
    ids = batch.ids.copy()
    ids[at] = np.where(fate < mask_ratio, mask, np.where(fate < mask_ratio + random_ratio, word, ids[at]))
    return batch.replace(ids=ids, chosen=at, labels=batch.ids[at])


MaskedLMType = TypeVar("MaskedLMType", bound="MaskedLM")


@dataclass(frozen=True)
class MaskedLM(BaseObjective):
    """Hide 15 %; of those 80 % become [MASK], 10 % a random token, 10 % stay. Special tokens are never chosen. The
    number is exact for each example: min(max_masked, max(1, round(mask_rate · length))). `max_ngram` = 0 hides tokens,
    1 whole words, 3 n-grams of up to three words. `across_documents` fills examples across documents, and with
    `whole_sentences` none of them is cut (RoBERTa's FULL-SENTENCES)."""

    has_steady_lengths: ClassVar[bool] = True  # the examples of every epoch are as long as those of the first
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
    whole_sentences: bool = False
    eos: int | None = None  # the store's end mark, which the frame replaces
    word_marks: np.ndarray | None = field(default=None, compare=False, repr=False)  # (vocab,) pieces that begin a word
    part: str = "mlm"

    @classmethod
    def from_tokenizer(
        cls: type[MaskedLMType], tokenizer: Tokenizer, length: int, **options: Any  # dynamic: fields of the class
    ) -> MaskedLMType:  # fmt: skip
        """Take the special tokens of a tokenizer: [CLS] … [SEP] around an example, [MASK] for what is hidden."""
        front = tokenizer.id("bos") if tokenizer.id("cls") is None else tokenizer.id("cls")
        back = tokenizer.id("eos") if tokenizer.id("sep") is None else tokenizer.id("sep")
        mask, end = tokenizer.id("mask"), tokenizer.id("eos")
        if front is None or back is None or mask is None:
            raise Error("this tokenizer has no [CLS], [SEP] and [MASK]", fix="train or load a tokenizer for BERT")
        roles = ("pad", "bos", "eos", "cls", "sep", "mask")
        special = tuple(dict.fromkeys(i for role in roles if (i := tokenizer.id(role)) is not None))
        marks, frame = compute_word_marks(tokenizer), ((front,), (back,))
        return cls(length, len(tokenizer), mask, special, frame, word_marks=marks, eos=end, **options)

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Plan windows in random order, with room for the special tokens."""
        inner = self.length - sum(map(len, self.frame))
        if self.across_documents and self.whole_sentences:
            return plans.plan_whole_sentences(store, self.eos, inner, seed, epoch)
        if self.across_documents:
            return plans.plan_windows(store, inner, seed, epoch, across=True)
        return plans.plan_texts(store, self.eos, inner, seed, epoch)

    def count_special_tokens(self, plan: Plan) -> np.ndarray | int:
        """Return how many special tokens each example of a plan gets."""
        return sum(map(len, self.frame))

    def measure_sizes(self, plan: Plan) -> np.ndarray:
        """Measure examples with the special tokens around them."""
        lengths = plan.lengths + self.count_special_tokens(plan)
        return np.stack((lengths, self.count_masked(lengths), np.zeros(len(plan), np.int64)), 1)

    def choose_shape(self, total: int, plan: Plan) -> BatchShape:
        """Choose room for as many labels as full examples have, or more if they are short: each has one at least."""
        sizes = self.measure_sizes(plan)
        usual = (total // self.length + 1) * int(self.count_masked(np.array([self.length]))[0])
        mean = sizes[:, 1].sum() / max(1, sizes[:, 0].sum()) if len(sizes) else 0.0
        rows = plans.estimate_documents(total, sizes[:, 0], longest=self.length if self.has_steady_lengths else 0)
        return BatchShape(rows, total, max(usual, int(np.ceil(total * mean * 1.02))), self.length)

    def count_masked(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many tokens of an example are hidden, at most."""
        count = np.maximum(1, np.round(self.mask_rate * lengths)).astype(np.int64)
        return count if self.max_masked is None else np.minimum(count, self.max_masked)

    def frame_examples(self, raw: RawExamples) -> tuple[FramedExamples, dict[str, Array]]:
        """Add marks around examples; return them and what else the batch says of them."""
        return plans.add_special_tokens(raw, *self.frame), {}

    def choose_masked(self, at: FramedExamples, free: np.ndarray, seed: int) -> np.ndarray:
        """Return (N,) bool: what is hidden."""
        counts, sample = self.count_masked(np.diff(at.starts)), at.raw.sample
        if not self.max_ngram:
            return choose_tokens(free, at.starts, counts, seed, sample)
        first = find_word_starts(at.ids, self.word_marks, at.span_starts)
        return choose_ngrams(free, first, at.starts, counts, self.max_ngram, seed, sample)

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Choose tokens, remember them as labels, and hide them."""
        at, more = self.frame_examples(raw)
        free = np.ones(self.vocab, bool)
        free[list(self.special)] = False
        batch = Batch(at.ids, at.starts, self.length, sample=raw.sample, **more)
        chosen = self.choose_masked(at, free[at.ids], seed)
        return mask_tokens(batch, chosen, seed, self.mask, self.vocab, self.mask_ratio, self.random_ratio)


# --- pairs of segments: next sentence (BERT §3.1), sentence order (ALBERT §3.1)

SHORT_DRAW, SIZE_DRAW, CUT_DRAW, COIN_DRAW, OTHER_DRAW, WHERE_DRAW = range(20, 26)  # what a random number is for
FRONT_A_DRAW, FRONT_B_DRAW, ORDER_DRAW = range(26, 29)


def compute_truncation(a: np.ndarray, b: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many tokens either side loses: always the longer one, B on a tie, until both fit."""
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
        """Plan one pass over all documents, in random order. Every epoch has as many examples as the first: passes
        differ a little, so that some are left out or taken from one more pass."""
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
        order = rng.shuffle_indices(len(label), seed, epoch, ORDER_DRAW)[:count]
        begin, end = spans[order].reshape(-1, 2).T
        return Plan(begin, end, np.arange(count + 1) * 2, label[order].astype(np.int8))

    def check_sentences(self, book: SentenceTable) -> None:
        """Refuse pairs of fewer than two tokens, and other documents' text where there is one document."""
        if self.max_tokens < 2:
            raise Error(f"a pair of {self.max_tokens} tokens is too short", fix="take longer examples")
        if (not self.is_order_task or self.random_fallback) and len(book.document_begins) < 2:
            count = len(book.document_begins)
            what = f"next sentence prediction needs text of other documents, and there is {count} document"
            raise Error(what, fix="give more documents: blank lines between them, or one in each file")

    def walk_documents(self, book: SentenceTable, seed: int, epoch: int, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """Make one pass: spans (E, 2, 2) as (A, B) × (begin, end), and labels (E,). All documents step at once."""
        key = (seed, epoch, turn)
        document = np.arange(len(book.document_begins))
        brief = rng.draw_uniform(*key, document, SHORT_DRAW) < self.short_seq_prob
        target = np.where(brief, 2 + rng.draw_integers(self.max_tokens - 1, *key, document, SIZE_DRAW), self.max_tokens)
        at, pairs = book.document_begins.copy(), []
        while len(document):
            step = self.step_sentence_order if self.is_order_task else self.step_next_sentence
            use, first, second, label, go = step(book, key, document, at, target[document])
            pairs.append((*first[:, use], *second[:, use], label[use], at[use]))
            goes_on = go < book.document_ends[document]
            document, at = document[goes_on], go[goes_on]
        a0, a1, b0, b1, label, where = map(np.concatenate, zip(*pairs, strict=True))
        begin_a, end_a, begin_b, end_b = book.begin[a0], book.end[a1 - 1], book.begin[b0], book.end[b1 - 1]
        lose_a, lose_b = compute_truncation(end_a - begin_a, end_b - begin_b, self.max_tokens)
        front_a = rng.draw_binomial(lose_a, *key, where, FRONT_A_DRAW)
        front_b = rng.draw_binomial(lose_b, *key, where, FRONT_B_DRAW)
        begin = np.stack((begin_a + front_a, begin_b + front_b), 1)
        end = np.stack((end_a - lose_a + front_a, end_b - lose_b + front_b), 1)
        return np.stack((begin, end), 2), label

    def step_next_sentence(
        self, book: SentenceTable, key: tuple[int, ...], document: np.ndarray, at: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Take BERT's step: which are used, A and B as (2, n) sentences, label (1 = another document's), next place."""
        stop = book.find_stop(at, target, book.document_ends[document])
        cut = at + 1 + np.where(stop - at > 1, rng.draw_integers(np.maximum(stop - at - 1, 1), *key, at, CUT_DRAW), 0)
        other = (stop - at == 1) | (rng.draw_uniform(*key, at, COIN_DRAW) < 0.5)
        left = target - (book.token_offsets[cut] - book.token_offsets[at])
        far = self.draw_other_document(book, key, document, at, left)
        second = np.where(other, far, np.stack((cut, stop)))
        return np.ones(len(at), bool), np.stack((at, cut)), second, other * 1, np.where(other, cut, stop)

    def draw_other_document(
        self, book: SentenceTable, key: tuple[int, ...], document: np.ndarray, at: np.ndarray, tokens: np.ndarray
    ) -> np.ndarray:
        """Draw (2, n) sentences of another document, from a random one on, until there are so many tokens."""
        other = rng.draw_integers(len(book.document_begins) - 1, *key, at, OTHER_DRAW)
        other += other >= document
        begin, end = book.document_begins[other], book.document_ends[other]
        begin = begin + rng.draw_integers(end - begin, *key, at, WHERE_DRAW)
        return np.stack((begin, book.find_stop(begin, tokens, end)))

    def step_sentence_order(
        self, book: SentenceTable, key: tuple[int, ...], document: np.ndarray, at: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Take ALBERT's step: which are used, first and second as (2, n) sentences, label (1 = swapped), next place."""
        last = book.document_ends[document]
        stop = book.find_stop(at, target, last)
        alone = stop - at == 1
        start = at
        if not self.random_fallback:
            stop = np.minimum(np.where(alone, at + 2, stop), last)
            start = np.where(stop - at == 1, np.maximum(at - 1, book.document_begins[document]), at)
            alone = stop - start == 1
        cut = start + 1 + np.where(alone, 0, rng.draw_integers(np.maximum(stop - start - 1, 1), *key, at, CUT_DRAW))
        turned = (rng.draw_uniform(*key, at, COIN_DRAW) < 0.5) & ~alone
        a, b = np.stack((start, cut)), np.stack((cut, stop))
        first, second = np.where(turned, b, a), np.where(turned, a, b)
        if self.random_fallback:
            left = target - (book.token_offsets[cut] - book.token_offsets[at])
            far = self.draw_other_document(book, key, document, at, left)
            second, turned = np.where(alone, far, second), turned | alone
        return ~alone | self.random_fallback, first, second, turned * 1, stop


def measure_random_pairs(plan: Plan) -> float:
    """Return the share of a plan's pairs whose second segment is of another document."""
    return float((np.asarray(plan.label) > 0).mean())


@dataclass(frozen=True)
class NextSentence(MaskedLM):
    """[CLS] A [SEP] B [SEP]: is B the continuation of A (0), or text of another document (1)? And masked tokens."""

    unused_options: ClassVar[tuple[str, ...]] = ("across_documents", "whole_sentences")  # a pair lies in its documents
    has_random_pairs: ClassVar[bool] = True  # half of the pairs are meant to be of two documents
    has_steady_lengths: ClassVar[bool] = False  # other epochs draw other pairs, and a pair may be short
    short_seq_prob: float = 0.1
    pair_part: str = "nsp"

    @property
    def pair_sampler(self) -> PairSampler:
        """How segments are chosen."""
        return PairSampler(self.length - 3, self.short_seq_prob, eos=self.eos)

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Plan two spans for each example, and its label."""
        return self.pair_sampler.plan(store, seed, epoch)

    def count_special_tokens(self, plan: Plan) -> np.ndarray | int:
        """Count one in front, one after each segment."""
        return 1 + np.diff(plan.span_offsets)

    def frame_examples(self, raw: RawExamples) -> tuple[FramedExamples, dict[str, Array]]:
        """Segments 0 and 1; a mark belongs to the segment before it."""
        front, back = self.frame
        at = plans.add_special_tokens(raw, front, after_spans=(back,))
        span = at.scatter_values(raw.span_index, -1)
        span = span[np.maximum.accumulate(np.where(span >= 0, np.arange(len(span)), 0))]
        span[at.starts[:-1]] = 0
        return at, {"segments": span % 2, "document_labels": self.make_answers(raw.label)}

    def make_answers(self, label: np.ndarray) -> np.ndarray:
        """Return what the model must say of each pair."""
        return label


@dataclass(frozen=True)
class SentenceOrder(NextSentence):
    """Two consecutive segments, in their order (0) or swapped (1); n-grams of up to three words are hidden.
    `random_fallback` is the released code's: text of another document (1) where there is only one sentence."""

    has_random_pairs: ClassVar[bool] = False
    max_ngram: int = 3
    pair_part: str = "sop"
    random_fallback: bool = False

    @property
    def pair_sampler(self) -> PairSampler:
        """How segments are chosen."""
        return PairSampler(self.length - 3, self.short_seq_prob, True, self.random_fallback, self.eos)


# --- knowledge masking (ERNIE, Sun et al. 2019, §3): whole units in three stages; pairs; dialogues

MaskingStage = Literal["basic", "phrase", "entity", "all"]
STAGE_BITS = {"basic": 0, "phrase": PHRASE_BIT, "entity": ENTITY_BIT}  # in the order of the stages
TURN_FAKE_DRAW, TURN_WHICH_DRAW, TURN_OTHER_DRAW, TURN_WHERE_DRAW, TURN_ORDER_DRAW = range(40, 45)


@dataclass(frozen=True)
class UnitMaskedLM(MaskedLM):
    """Each unit is chosen whole with 15 %, and each of its tokens becomes [MASK], a random token, or stays. The unit is
    a token (basic), a phrase or an entity, as marked in the store. Phrases and entities reach to where the next one
    begins. An example never hides more than its limit, six deviations above the mean. stage="all" runs the three stages
    one after the other: `stage_ends` are the examples at which the first two end. Without them, as in an evaluation,
    examples take the stages in turn."""

    # Units say what is hidden whole, and chance says how many of them are.
    unused_options: ClassVar[tuple[str, ...]] = ("max_ngram", "max_masked")
    stage: MaskingStage = "basic"
    stage_ends: tuple[int, ...] | None = None
    task_id: int | None = None  # of ERNIE 2.0, which has an embedding for it

    def frame_examples(self, raw: RawExamples) -> tuple[FramedExamples, dict[str, Array]]:
        """Frame the examples, with ERNIE 2.0's task id for each token."""
        at, more = super().frame_examples(raw)
        return at, more if self.task_id is None else {**more, "tasks": np.full(len(at.ids), self.task_id)}

    def count_masked(self, lengths: np.ndarray) -> np.ndarray:
        """Limit the number of hidden tokens, which is left to chance."""
        mean = self.mask_rate * lengths
        return np.minimum(lengths, np.ceil(mean + 6 * np.sqrt(mean) + 4)).astype(np.int64)

    def choose_masked(self, at: FramedExamples, free: np.ndarray, seed: int) -> np.ndarray:
        """Return (N,) bool: whole units."""
        first = np.ones(len(at.ids), bool)
        if self.stage != "basic":
            if at.raw.unit_bits is None:
                what = f"this store does not say where a {'phrase' if self.stage == 'all' else self.stage} begins"
                raise Error(what, fix="prepare the data with --units learn (or kiwi, or a file), or take stage basic")
            stages = self.find_stages(at.raw.sample)[compute_row_ids(at.starts)]
            for number, bit in enumerate(STAGE_BITS.values()):
                if bit:
                    begins = at.scatter_values((at.raw.unit_bits & bit) > 0) | at.span_starts
                    first = np.where(stages == number, begins, first)
        limit = self.count_masked(np.diff(at.starts))
        return choose_units(free, first, at.starts, self.mask_rate, limit, seed, at.raw.sample)

    def find_stages(self, sample: np.ndarray) -> np.ndarray:
        """Return the stage of each example: 0 basic, 1 phrase, 2 entity."""
        if self.stage != "all":
            return np.full(len(sample), [*STAGE_BITS].index(self.stage))
        if self.stage_ends is None:
            return sample % len(STAGE_BITS)
        return np.searchsorted(np.array(self.stage_ends), sample, side="right")

    def loss(self, model: Model, batch: Batch) -> Losses:
        """Compute the losses; the model must have an embedding for the task."""
        table = getattr(model.body.embed, "task", None)  # dynamic: only ERNIE 2.0 has this table
        known = 0 if table is None else table.num_embeddings
        if self.task_id is not None and self.task_id >= known:
            what = f"task_id={self.task_id} is none of the {known} that this model knows, counted from 0"
            raise Error(what, fix="build ERNIE with use_tasks=True and more tasks, or leave task_id out")
        return super().loss(model, batch)


@dataclass(frozen=True)
class UnitNextSentence(UnitMaskedLM, NextSentence):
    """Units hidden in pairs of segments; 1 is the true pair, the opposite of BERT."""

    unused_options: ClassVar[tuple[str, ...]] = (*UnitMaskedLM.unused_options, *NextSentence.unused_options)

    def make_answers(self, label: np.ndarray) -> np.ndarray:
        """Answer 1 where B follows A."""
        return 1 - label


@dataclass(frozen=True)
class DialogueLM(UnitMaskedLM, NextSentence):
    """[CLS] turn [SEP] turn [SEP] turn [SEP] of one conversation (a document whose sentences are turns). The roles,
    query and response in turn, are the segments. Half of the time one turn is replaced by another conversation's: real
    (1) or not (0)?"""

    has_random_pairs: ClassVar[bool] = False  # conversations are chosen otherwise
    unused_options: ClassVar[tuple[str, ...]] = (*UnitNextSentence.unused_options, "short_seq_prob")
    num_turns: int = 3

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Plan stretches of up to so many turns, in random order; one may be another's. Turns are cut at the end."""
        book = SentenceTable.from_store(store, self.eos)
        count = book.document_ends - book.document_begins
        if len(book.document_begins) < 2 or count.max(initial=0) < 2:
            raise Error("a dialogue needs several conversations of at least two turns", fix="give more conversations")
        parts = count // self.num_turns + (count % self.num_turns > 1)  # a last turn alone is left out
        owner = np.repeat(np.arange(len(count)), parts)
        begin = book.document_begins[owner] + ragged_arange(parts) * self.num_turns
        number = np.minimum(book.document_ends[owner] - begin, self.num_turns)
        key, sentence = (seed, epoch), expand_ranges(begin, number)
        fake = rng.draw_uniform(*key, begin, TURN_FAKE_DRAW) < 0.5
        at = compute_starts(number)
        other = rng.draw_integers(len(count) - 1, *key, begin, TURN_OTHER_DRAW)
        other += other >= owner
        instead = book.document_begins[other] + rng.draw_integers(count[other], *key, begin, TURN_WHERE_DRAW)
        sentence[(at[:-1] + rng.draw_integers(number, *key, begin, TURN_WHICH_DRAW))[fake]] = instead[fake]
        share = np.repeat((self.length - 1) // number - 1, number)
        if share.min() < 1:
            what = f"examples of {self.length} tokens have no room for {self.num_turns} turns"
            raise Error(what, fix="take longer ones")
        start, stop = book.begin[sentence], np.minimum(book.end[sentence], book.begin[sentence] + share)
        order = rng.shuffle_indices(len(begin), seed, epoch, TURN_ORDER_DRAW)
        spans = expand_ranges(at[:-1][order], number[order])
        return Plan(start[spans], stop[spans], compute_starts(number[order]), (~fake)[order].astype(np.int8))
