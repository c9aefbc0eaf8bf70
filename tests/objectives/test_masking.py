"""Masked language modelling: what is hidden, what is asked, and how often."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.batch import IGNORE_INDEX, BatchShape
from formers.data.counter_rng import draw_bits, draw_uniform, sample_harmonic
from formers.data.loader import pad_batch
from formers.data.plans import RawExamples, add_special_tokens
from formers.objectives.masking import (
    CHOICE_DRAW,
    NGRAM_DRAW,
    MaskedLM,
    compute_word_marks,
    find_word_starts,
    group_free_tokens,
)
from formers.objectives.registry import (
    build_objective,
)
from formers.registry import train_tokenizer
from tests.objectives import toys
from tests.objectives.toys import draw_text

SPECIAL = (0, 2, 3, 4)
GOAL = MaskedLM(32, vocab=100, mask=4, special=SPECIAL, frame=((2,), (3,)))
WORDS = np.arange(100) % 3 > 0  # pieces 0, 3, 6 … continue a word


@given(st.lists(st.integers(1, 38), min_size=1, max_size=6), st.integers(0, 1000), st.sampled_from([0, 1, 3]))
def test_masked_invariants(lengths, seed, grams):
    goal = MaskedLM(40, 100, 4, SPECIAL, ((2,), (3,)), max_ngram=grams, word_marks=WORDS)
    given_ = draw_text(lengths, range(10, 10 + len(lengths)), seed)
    whole, hidden = add_special_tokens(given_, (2,), (3,)), goal.corrupt(given_, seed)
    chosen, labels = hidden.chosen, hidden.labels
    assert np.array_equal(whole.ids[chosen], labels), "the labels recover the original"
    assert not np.isin(labels, SPECIAL).any(), "special tokens are never chosen"
    same = np.ones(len(whole.ids), bool)
    same[chosen] = False
    assert np.array_equal(hidden.ids[same], whole.ids[same]), "nothing else is touched"
    assert len(set(chosen.tolist())) == len(chosen)
    document = np.repeat(np.arange(len(lengths)), np.array(lengths) + 2)
    counts = np.bincount(document[chosen], minlength=len(lengths))
    for n, count in zip(lengths, counts, strict=True):
        want = max(1, round(0.15 * (n + 2)))
        assert count == min(n, want) if not grams else count <= want
    if grams:  # words are hidden whole
        inside = ~(WORDS[whole.ids] | whole.span_starts) & ~np.isin(whole.ids, SPECIAL)
        inside[1:] &= ~np.isin(whole.ids[:-1], SPECIAL)
        at = np.flatnonzero(inside)
        now = np.isin(np.arange(len(whole.ids)), chosen)
        assert np.array_equal(now[at], now[at - 1])


def reference_grams(sizes, most, wanted, seed, sample):
    """ALBERT's released procedure, one word after the other; `sizes` are the pieces of each word."""
    count = len(sizes)
    order = sorted(range(count), key=lambda w: (int(draw_bits(seed, sample, w, CHOICE_DRAW)) >> 36, w))
    at = np.concatenate(([0], np.cumsum(sizes)))
    pieces = [list(range(at[w], at[w + 1])) for w in range(count)]
    share = [1 / n for n in range(1, most + 1)]
    hidden: set[int] = set()
    for w in order:
        if len(hidden) >= wanted:
            break
        candidates = [pieces[w : w + n] for n in range(1, most + 1)]
        draw, n = float(draw_uniform(seed, sample, w, NGRAM_DRAW)) * sum(share), 0
        while n < most - 1 and draw >= sum(share[: n + 1]):
            n += 1
        candidates = [[piece for word in words for piece in word] for words in candidates]
        while n and len(hidden) + len(candidates[n]) > wanted:
            n -= 1
        found = candidates[n]
        if len(hidden) + len(found) > wanted or hidden & set(found):
            continue
        hidden |= set(found)
    return hidden


@given(st.lists(st.integers(1, 5), min_size=1, max_size=25), st.sampled_from([1, 2, 3]), st.integers(0, 10**6))
def test_words_and_ngrams_equal_the_released_procedure(sizes, most, seed):
    goal = MaskedLM(200, 100, 4, SPECIAL, ((2,), (3,)), max_ngram=most, word_marks=WORDS, mask_rate=0.3)
    ids = np.concatenate([[7, *[6] * (n - 1)] for n in sizes])
    zeros = np.zeros(len(ids), np.int64)
    given_ = RawExamples(ids, np.array([0, len(ids)]), zeros, zeros > 0, None, np.array([-1]), np.array([5]))
    wanted = max(1, round(0.3 * (len(ids) + 2)))
    assert set((goal.corrupt(given_, seed).chosen - 1).tolist()) == reference_grams(sizes, most, wanted, seed, 5)


def test_a_word_that_would_overflow_is_skipped():
    """By hand: three words of 3, 1 and 2 pieces, and room for two tokens: 1 alone, or 2 alone, but never 3."""
    goal = MaskedLM(200, 100, 4, SPECIAL, ((), ()), max_ngram=1, word_marks=WORDS, mask_rate=2 / 6)
    ids = np.array([7, 6, 6, 8, 10, 9])
    zeros = np.zeros(6, np.int64)
    seen = set()
    for seed in range(50):
        given_ = RawExamples(ids, np.array([0, 6]), zeros, zeros > 0, None, np.array([-1]), np.array([0]))
        seen.add(tuple(goal.corrupt(given_, seed).chosen.tolist()))
    assert seen == {(3,), (4, 5)}


@pytest.mark.parametrize("grams", [0, 1, 3])
def test_masked_statistics(grams):
    goal = MaskedLM(512, 100, 4, SPECIAL, ((2,), (3,)), max_ngram=grams, word_marks=WORDS)
    given_ = draw_text([510] * 2000, seed=1)  # a million tokens
    hidden = goal.corrupt(given_, 5)
    chosen, labels = hidden.chosen, hidden.labels
    if grams == 0:
        assert len(chosen) == 2000 * 77, "exactly round(0.15 · 512) each"
    else:
        counts = np.bincount(np.searchsorted(hidden.starts, chosen, side="right") - 1)
        assert counts.max() == 77
        assert counts.mean() > 76.5, "hardly a gap is left unfilled"
    now = hidden.ids[chosen]
    masked, kept = (now == 4).mean(), (now == labels).mean()
    error = 4 * (0.8 * 0.2 / len(chosen)) ** 0.5
    assert masked == pytest.approx(0.8 + 0.1 / 100, abs=error)
    assert kept == pytest.approx(0.1 + 0.1 / 100, abs=error)
    random = now[(now != 4) & (now != labels)]
    assert random.min() == 0, "random tokens come from the whole vocabulary"
    assert random.max() == 99
    place = np.histogram(chosen % 512, 10, (1, 511))[0]
    assert abs(place / place.mean() - 1).max() < 0.03, "all places alike"


def test_ngrams_have_their_shares():
    assert np.bincount(sample_harmonic(3, (np.arange(1100) + 0.5) / 1100)).tolist() == [0, 600, 300, 200]
    assert sample_harmonic(1, np.array([0.0, 0.999])).tolist() == [1, 1]


def test_the_same_example_is_hidden_the_same_way_in_any_batch():
    for grams in (0, 3):
        goal = MaskedLM(32, 100, 4, SPECIAL, ((2,), (3,)), max_ngram=grams, word_marks=WORDS)
        whole = draw_text([20, 9, 30, 14], [7, 8, 9, 10])
        together = goal.corrupt(whole, 3)
        for row in range(4):
            part = slice(whole.starts[row], whole.starts[row + 1])
            one = RawExamples(
                whole.ids[part], np.array([0, part.stop - part.start]), whole.span_index[part],
                whole.sentence_starts[part], None, whole.label[row : row + 1], whole.sample[row : row + 1],
            )  # fmt: skip
            low, high = together.starts[row : row + 2]
            assert np.array_equal(goal.corrupt(one, 3).ids, together.ids[low:high])
        other = goal.corrupt(draw_text([20, 9, 30, 14], [107, 108, 109, 110]), 3)
        assert not np.array_equal(other.ids, together.ids), "another epoch, another mask"
        assert not np.array_equal(goal.corrupt(whole, 4).ids, together.ids)


def test_a_limit_and_dummies():
    few = MaskedLM(32, 100, 4, SPECIAL, ((2,), (3,)), max_masked=2)
    hidden = few.corrupt(draw_text([30, 28], [1, 2]), 0)
    assert len(hidden.chosen) == 4
    full = pad_batch(hidden, BatchShape(5, 100, 9, 32))
    assert full.labels.tolist()[4:] == [IGNORE_INDEX] * 5
    assert len(full.chosen) == 9
    plan = few.plan(toys.build_random_store(), 0, 0)
    assert few.measure_sizes(plan)[:, 1].max() == 2


def test_word_beginnings():
    pieces = train_tokenizer("wordpiece", ["walking walks talking talks"] * 5, 60)
    ids = np.arange(5, len(pieces))
    found = find_word_starts(ids, compute_word_marks(pieces), np.zeros(len(ids), bool))
    assert found.tolist() == [not pieces.get_token_text(i).startswith("##") for i in ids]
    first = np.arange(len(ids)) == len(ids) - 1
    assert find_word_starts(ids, compute_word_marks(pieces), first)[-1], "the first token of a sentence begins a word"
    marks = np.array([0, 1, 2])  # continues a word; begins one; ends one, as in GPT-1
    assert find_word_starts(np.array([1, 0, 2, 0, 1]), marks, np.zeros(5, bool)).tolist() == [
        True,
        False,
        False,
        True,
        True,
    ]
    assert find_word_starts(np.array([1, 0]), None, np.zeros(2, bool)).all()


def test_an_example_holds_whole_sentences_where_it_is_asked_for():
    """RoBERTa §4.2, FULL-SENTENCES: 30 tokens beside the frame, the sentences of one document after another's."""
    store = toys.build_store([[12, 13], [4], [9, 14, 20]])
    spans = {}
    for name, more in (("whole", {"whole_sentences": True}), ("cut", {})):
        goal = MaskedLM(32, 100, 4, SPECIAL, ((2,), (3,)), across_documents=True, **more)
        plan = goal.plan(store, 1, 0)
        spans[name] = sorted(zip(plan.begin.tolist(), plan.end.tolist(), strict=True))
    assert spans["whole"] == [(0, 29), (29, 52), (52, 72)]
    assert not {begin for begin, _ in spans["cut"]} <= {0, 12, 25, 29, 38, 52}


def test_marks_begin_nothing():
    at = add_special_tokens(draw_text([3, 2]), (2,), (3,))
    marks = np.isin(np.arange(len(at.ids)), at.token_slots, invert=True)
    assert marks.tolist() == [True, False, False, False, True, True, False, False, True]
    assert not at.span_starts[marks].any()
    assert at.span_starts[[1, 6]].all()


def test_a_group_never_runs_over_the_end_of_an_example():
    free = np.array([1, 1, 1, 0, 1, 1, 1], bool)
    at, group, owner = group_free_tokens(free, np.zeros(7, bool), np.array([0, 2, 7]))
    assert at.tolist() == [0, 1, 2, 4, 5, 6]
    assert group.tolist() == [0, 0, 1, 2, 2, 2]
    assert owner.tolist() == [0, 1, 1]
    assert [len(x) for x in group_free_tokens(np.zeros(3, bool), np.ones(3, bool), np.array([0, 3]))] == [0, 0, 0]


def test_robertas_marks():
    """A tokenizer without [CLS] and [SEP] has <s> and </s>; where there are both, [CLS] and [SEP] are taken."""
    roles = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}
    goal = build_objective("mlm", toys.build_tokenizer(roles=roles), 16)
    assert goal.frame == ((2,), (3,))
    assert goal.special == (0, 2, 3, 4), "whatever is asked for, it is never one of these"
    pieces = toys.build_tokenizer()
    assert build_objective("mlm", pieces, 16).frame == ((pieces.id("cls"),), (pieces.id("sep"),))
    for missing in ("bos", "eos", "mask"):
        with pytest.raises(Error, match="no \\[CLS\\], \\[SEP\\] and \\[MASK\\]"):
            build_objective("mlm", toys.build_tokenizer(roles={k: v for k, v in roles.items() if k != missing}), 16)
