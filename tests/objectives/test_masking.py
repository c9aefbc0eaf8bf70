"""Causal and masked language modelling: what is hidden, what is asked, and how often."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import formers
from formers import Error
from formers.batch import IGNORE_INDEX, Batch, BatchShape
from formers.data.counter_rng import draw_binomial, draw_bits, draw_uniform, rank_within_rows, sample_harmonic
from formers.data.loader import load_batches, pad_batch
from formers.data.plans import RawExamples, TokenSource, add_special_tokens, cut_windows
from formers.objectives.causal import CausalLM
from formers.objectives.masking import (
    CHOICE_DRAW,
    NGRAM_DRAW,
    MaskedLM,
    compute_word_marks,
    find_word_starts,
    group_free_tokens,
)
from formers.objectives.registry import (
    OBJECTIVE_ALIASES,
    OBJECTIVES,
    UNPAIRED_OBJECTIVES,
    build_objective,
    list_options,
    resolve_objective,
)
from formers.objectives.token_losses import compute_token_loss
from formers.text.trainers.pair_merging import train_bpe, train_wordpiece
from tests.objectives import toys

SPECIAL = (0, 2, 3, 4)
GOAL = MaskedLM(32, vocab=100, mask=4, special=SPECIAL, frame=((2,), (3,)))
WORDS = np.arange(100) % 3 > 0  # pieces 0, 3, 6 … go on


def text(lengths, samples=None, seed=0, low=5):
    made = toys.draw_raw_examples(lengths, samples, seed, 100)
    made.ids[:] = np.random.default_rng(seed).integers(low, 100, len(made.ids))
    return made


def test_causal_labels_are_successors_within_a_document():
    asked = CausalLM(3).corrupt(text([3, 2]), 0)
    ids = asked.ids.tolist()
    assert asked.chosen is None, "there is a loss everywhere"
    assert asked.labels.tolist() == [ids[1], ids[2], IGNORE_INDEX, ids[4], IGNORE_INDEX]
    assert asked.starts.tolist() == [0, 3, 5]
    full = pad_batch(asked, BatchShape(4, 8, 0, 3))
    assert full.labels.tolist()[5:] == [IGNORE_INDEX] * 3


@given(st.lists(st.integers(2, 30), min_size=1, max_size=5), st.integers(0, 99))
def test_a_prefix_is_read_only(lengths, seed):
    given_ = text(lengths)
    asked, whole = CausalLM(30, is_prefix_lm=True).corrupt(given_, seed), CausalLM(30).corrupt(given_, seed)
    for labels, all_, n in zip(
        toys.split_rows(asked.labels, asked.starts), toys.split_rows(whole.labels, asked.starts), lengths, strict=True
    ):
        silent = sum(label == IGNORE_INDEX for label in labels) - 1  # the last token has no successor
        assert 0 <= silent <= n - 2, "something is asked for"
        assert labels[:silent] == [IGNORE_INDEX] * silent
        assert labels[silent:] == all_[silent:]


def test_prefixes_have_every_length():
    asked = CausalLM(5, is_prefix_lm=True).corrupt(text([5] * 4000), 0)
    silent = np.bincount((asked.labels.reshape(-1, 5)[:, :4] == IGNORE_INDEX).sum(1), minlength=4)
    assert len(silent) == 4
    assert abs(silent - 1000).max() < 5 * 1000**0.5


def test_across_documents():
    data = toys.build_store([[5], [7], [4]], end=3)
    inside, across = CausalLM(6).plan(data, 0, 0), CausalLM(6, across_documents=True).plan(data, 0, 0)
    assert sorted(across.lengths.tolist()) == [6, 6, 6, 6][: len(across)]
    assert len(across) == 4  # 19 tokens, the last window reaching back
    assert sorted(zip(inside.begin, inside.end, strict=True)) == [(0, 6), (6, 12), (8, 14), (14, 19)]
    goal = MaskedLM(8, 100, 4, SPECIAL, ((2,), (3,)), across_documents=True)
    assert sorted(goal.plan(data, 0, 0).lengths.tolist()) == [6] * 4


@given(st.lists(st.integers(1, 38), min_size=1, max_size=6), st.integers(0, 1000), st.sampled_from([0, 1, 3]))
def test_masked_invariants(lengths, seed, grams):
    goal = MaskedLM(40, 100, 4, SPECIAL, ((2,), (3,)), max_ngram=grams, word_marks=WORDS)
    given_ = text(lengths, range(10, 10 + len(lengths)), seed)
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
    given_ = text([510] * 2000, seed=1)  # a million tokens
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
        whole = text([20, 9, 30, 14], [7, 8, 9, 10])
        together = goal.corrupt(whole, 3)
        for row in range(4):
            part = slice(whole.starts[row], whole.starts[row + 1])
            one = RawExamples(
                whole.ids[part], np.array([0, part.stop - part.start]), whole.span_index[part],
                whole.sentence_starts[part], None, whole.label[row : row + 1], whole.sample[row : row + 1],
            )  # fmt: skip
            low, high = together.starts[row : row + 2]
            assert np.array_equal(goal.corrupt(one, 3).ids, together.ids[low:high])
        other = goal.corrupt(text([20, 9, 30, 14], [107, 108, 109, 110]), 3)
        assert not np.array_equal(other.ids, together.ids), "another epoch, another mask"
        assert not np.array_equal(goal.corrupt(whole, 4).ids, together.ids)


def test_a_limit_and_dummies():
    few = MaskedLM(32, 100, 4, SPECIAL, ((2,), (3,)), max_masked=2)
    hidden = few.corrupt(text([30, 28], [1, 2]), 0)
    assert len(hidden.chosen) == 4
    full = pad_batch(hidden, BatchShape(5, 100, 9, 32))
    assert full.labels.tolist()[4:] == [IGNORE_INDEX] * 5
    assert len(full.chosen) == 9
    plan = few.plan(toys.build_random_store(), 0, 0)
    assert few.measure_sizes(plan)[:, 1].max() == 2


def test_ranks_and_coins():
    draw = np.array([5, 1, 3, 9, 2], np.uint64) << np.uint64(50)
    assert rank_within_rows(draw, np.array([3, 0, 2])).tolist() == [2, 0, 1, 1, 0]
    many = np.full(1 << 18, 1)  # more examples than a sort key has room for
    assert not rank_within_rows(draw_bits(0, np.arange(1 << 18)), many).any()
    assert rank_within_rows(np.zeros(4, np.uint64), np.array([4])).tolist() == [0, 1, 2, 3], "a tie goes to the first"
    coins = draw_binomial(np.full(4000, 100), 3, np.arange(4000))
    assert coins.mean() == pytest.approx(50, abs=4 * 5 / 4000**0.5)
    assert coins.std() == pytest.approx(5, rel=0.06)
    assert draw_binomial(np.array([0, 1, 64, 65]), 3, np.arange(4)).tolist()[0] == 0
    assert (draw_binomial(np.array([1] * 100), 3, np.arange(100)) <= 1).all()


def test_cut_reaches_back():
    plan = cut_windows(np.array([0, 10, 20]), np.array([7, 11, 23]), 5, 0, 0)
    assert sorted(zip(plan.begin, plan.end, strict=True)) == [(0, 5), (2, 7), (20, 23)], "one token is no example"


def test_word_beginnings():
    pieces = train_wordpiece(["walking walks talking talks"] * 5, 60)
    ids = np.arange(5, len(pieces))
    found = find_word_starts(ids, compute_word_marks(pieces), np.zeros(len(ids), bool))
    assert found.tolist() == [not pieces.get_token_text(i).startswith("##") for i in ids]
    first = np.arange(len(ids)) == len(ids) - 1
    assert find_word_starts(ids, compute_word_marks(pieces), first)[-1], "the first token of a sentence begins a word"
    marks = np.array([0, 1, 2])  # goes on; begins a word; ends one, as in GPT-1
    assert find_word_starts(np.array([1, 0, 2, 0, 1]), marks, np.zeros(5, bool)).tolist() == [
        True,
        False,
        False,
        True,
        True,
    ]
    assert find_word_starts(np.array([1, 0]), None, np.zeros(2, bool)).all()


def test_streams_go_on_from_batch_to_batch():
    data, goal = toys.build_store([[25], [18]]), CausalLM(5, num_streams=2)
    seen = list(load_batches(TokenSource(data, goal), 10, epochs=1))
    rows = [np.concatenate([b.ids.reshape(2, 5)[r] for b, _ in seen]) for r in range(2)]
    size = (43 - 1) // 2
    for r in range(2):
        assert np.array_equal(rows[r], data.tokens[r * size : r * size + 20])
    labels = np.concatenate([b.labels.reshape(2, 5)[1] for b, _ in seen])
    assert np.array_equal(labels, data.tokens[size + 1 : size + 21]), "also of the last token of a window"
    assert all(b.starts.tolist() == [0, 5, 10] for b, _ in seen)


def test_loss():
    f = formers.build("gpt2", vocab=20, context=8, dim=8, layers=1, heads=2, init=0.5)
    asked = CausalLM(4).corrupt(text([4], low=5), 0)
    asked = asked.replace(ids=asked.ids % 20, labels=np.where(asked.labels < 0, IGNORE_INDEX, asked.labels % 20)).to(
        "cpu"
    )
    total, count = compute_token_loss(f.model, asked, "lm")
    logits = f.logits(asked.ids[None])[0]
    assert count == 3
    torch.testing.assert_close(total, F.cross_entropy(logits[:3], asked.ids[1:], reduction="sum"))
    named = CausalLM(4).loss(f.model, asked)
    assert list(named) == ["lm"]
    torch.testing.assert_close(named["lm"][0], total)


def test_loss_gradcheck():
    f = formers.build("bert", head="mlm", vocab=9, context=6, dim=4, layers=1, heads=2, ff=6, init=0.5)
    f.to(dtype=torch.float64)
    batch = Batch(
        torch.tensor([2, 5, 4, 3]), torch.tensor([0, 4], dtype=torch.int32), 4,
        chosen=torch.tensor([2, 1, 0]), labels=torch.tensor([7, 5, IGNORE_INDEX]),
    )  # fmt: skip
    weight = f.model.body.blocks[0].attn.qkv.weight

    def loss(value):
        total, count = torch.func.functional_call(
            _Loss(f.model), {"model.body.blocks.0.attn.qkv.weight": value}, (batch,)
        )
        return total / count

    assert torch.autograd.gradcheck(loss, (weight.detach().requires_grad_(),))


class _Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return compute_token_loss(self.model, batch, "mlm")


def test_objectives_by_name():
    pieces = train_wordpiece(["the cat sat on the mat"] * 3, 60)
    masked = build_objective("mlm", pieces, 16)
    assert masked.frame == ((pieces.id("cls"),), (pieces.id("sep"),))
    assert masked.mask == pieces.id("mask")
    assert pieces.id("unk") not in masked.special
    assert set(masked.special) == {pieces.id(r) for r in ("pad", "cls", "sep", "mask")}
    assert build_objective("causal", pieces, 16) == CausalLM(16)
    assert build_objective("causal", pieces, 16, across_documents=True).across_documents
    assert build_objective("ngrams", pieces, 16).max_ngram == 3
    assert build_objective("whole-word", pieces, 16, max_ngram=2).max_ngram == 2
    assert build_objective("mlm", pieces, 16, mask_rate=1).mask_rate == 1.0
    with pytest.raises(Error, match="objective 'denoisin' is not available. Did you mean 'denoising'"):
        build_objective("denoisin", pieces, 16)
    with pytest.raises(Error, match="'mlm' has no option 'mask_rates'. Did you mean 'mask_rate'"):
        build_objective("mlm", pieces, 16, mask_rates=0.2)
    with pytest.raises(Error, match="'vocab'"):
        build_objective("mlm", pieces, 16, vocab=7)
    with pytest.raises(Error, match="mask_rate is a share between 0 and 1, got 1.5"):
        build_objective("mlm", pieces, 16, mask_rate=1.5)
    assert build_objective("mlm", pieces, 16, mask_rate=0).mask_rate == 0
    with pytest.raises(Error, match="examples of 2 tokens are too short"):
        build_objective("mlm", pieces, 2)
    assert build_objective("mlm", pieces, 3).length == 3
    with pytest.raises(Error, match="'mask_rate'"):
        build_objective("mlm", pieces, 16, mask_rate="much")
    with pytest.raises(Error, match="no \\[CLS\\]"):
        build_objective("mlm", train_bpe(["a b"] * 3, 258), 16)


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, "across_documents") for name in ("nsp", "sop", "unit-pairs", "dialogue")]
    + [(name, option) for name in ("ernie-units", "unit-pairs", "dialogue") for option in ("max_ngram", "max_masked")]
    + [("dialogue", "short_seq_prob")],
)
def test_an_option_that_would_do_nothing_is_refused(name, option):
    with pytest.raises(Error, match=f"objective '{name}' has no option '{option}'"):
        build_objective(name, toys.build_tokenizer(), 24, **{option: 1})


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("mlm", {"length": 4}, "no option 'length'"),
        ("mlm", {"name": "x"}, "no option 'name'"),
        ("ngrams", {"max_ngram": 65}, "max_ngram must be at least 0 and at most 64, got 65"),
        ("plm", {"context_factor": 0}, "context_factor must be at least 1 and at most 1000, got 0"),
        ("dialogue", {"num_turns": 1}, "num_turns must be at least 2 and at most 1000, got 1"),
        ("bidirectional", {"slots": 2}, "slots must be at least 3 and at most 1000, got 2"),
        ("span-corruption", {"start": 80}, "start=80 is no token of this tokenizer, which has 80"),
        ("seq2seq", {"start": 99999999}, "start=99999999 is no token"),
        ("denoising", {"start": 99999999}, "start=99999999 is no token"),
        ("span-corruption", {"mean_span_length": 0.5}, "mean_span_length=0.5 is shorter than a token"),
        ("denoising", {"mean_span_length": 1e9}, "mean_span_length must be above 0 and at most 64"),
        ("denoising", {"mean_span_length": 0.0}, "mean_span_length must be above 0 and at most 64, got 0"),
        ("mlm", {"max_masked": 0}, "max_masked must be above 0, got 0"),
        ("plm", {"max_ngram": 0}, "max_ngram must be above 0 and at most 64, got 0"),
        ("causal", {"num_streams": -1}, "num_streams must be at least 0, got -1"),
        ("ernie-units", {"task_id": -1}, "task_id must be at least 0, got -1"),
        ("mlm", {"mask_ratio": 0.9, "random_ratio": 0.2}, "mask_ratio and random_ratio are 1.1 together"),
        ("plm", {"target_ratio": 1.1}, "target_ratio is a share between 0 and 1, got 1.1"),
        ("seq2seq", {"label_smoothing": -0.1}, "label_smoothing is a share"),
        ("nsp", {"short_seq_prob": 2}, "short_seq_prob is a share"),
        ("switch", {"balance_weight": float("nan")}, "'balance_weight' must be float, not nan"),
    ],
)
def test_odd_options_are_refused_in_one_line(name, options, match):
    with pytest.raises(Error, match=match) as caught:
        build_objective(name, toys.build_tokenizer(60, sentinels=20), 24, **options)
    assert "\n" not in str(caught.value)


def test_limits_themselves_are_allowed():
    pieces = toys.build_tokenizer(60, sentinels=20)
    for name, options in (
        ("span-corruption", {"start": 79, "mean_span_length": 1}), ("dialogue", {"num_turns": 2}),
        ("ngrams", {"max_ngram": 64}), ("plm", {"max_ngram": 1, "context_factor": 1}),
        ("bidirectional", {"slots": 3}), ("denoising", {"mean_span_length": 64}),
    ):  # fmt: skip
        made = build_objective(name, pieces, 24, **options)
        assert all(getattr(made, key) == value for key, value in options.items() if key != "slots")


def test_marks_begin_nothing():
    at = add_special_tokens(text([3, 2]), (2,), (3,))
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


MASKED = {"mask_rate", "mask_ratio", "random_ratio", "max_masked", "max_ngram", "across_documents", "part"}
UNITS = MASKED - {"max_ngram", "max_masked"} | {"stage", "task_id"}
OWN = {
    "causal": {"across_documents", "is_prefix_lm", "streams_per_batch", "num_streams", "part"},
    "seq2seq": {"start", "label_smoothing", "prefix", "part"},
    "bidirectional": {"slots", "num_sampled", "streams_per_batch", "num_streams", "part"},
    "mlm": MASKED,
    "nsp": MASKED - {"across_documents"} | {"short_seq_prob", "pair_part"},
    "sop": MASKED - {"across_documents"} | {"short_seq_prob", "pair_part", "random_fallback"},
    "plm": {
        "target_ratio", "max_ngram", "context_factor", "as_released", "streams_per_batch", "num_streams", "reversed",
        "part",
    },
    "denoising": {
        "start", "language", "infill_ratio", "mean_span_length", "permute_ratio", "mask_ratio", "delete_ratio",
        "insert_ratio", "rotate_ratio", "as_released", "across_documents", "part",
    },
    "span-corruption": {
        "start", "noise_density", "mean_span_length", "corruption", "balance_weight", "across_documents", "part",
    },
    "ernie-units": UNITS,
    "unit-pairs": UNITS - {"across_documents"} | {"short_seq_prob", "pair_part"},
    "dialogue": UNITS - {"across_documents"} | {"pair_part", "num_turns"},
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_the_options_are_these(name):
    assert set(list_options(OBJECTIVES[name].objective_class)) == OWN[name]


def test_every_objective_has_help_and_options():
    assert set(OBJECTIVES) == {
        "causal", "prefix", "seq2seq", "bidirectional", "mlm", "whole-word", "ngrams", "nsp", "sop", "plm",
        "denoising", "span-corruption", "switch", "prefix-spans", "deshuffle", "ernie-units", "unit-pairs", "dialogue",
    }  # fmt: skip
    pieces = toys.build_tokenizer(60, sentinels=20)
    made = {name: build_objective(name, pieces, 24) for name in OBJECTIVES}
    assert made == {name: build_objective(name, pieces, 24) for name in OBJECTIVES}, "what is set alike is equal"
    assert not any("array" in repr(goal) for goal in made.values()), "and is said in a line"
    assert made["prefix"].is_prefix_lm
    assert [made[name].max_ngram for name in ("whole-word", "ngrams", "sop", "nsp")] == [1, 3, 3, 0]
    assert (made["switch"].balance_weight, made["span-corruption"].balance_weight) == (0.01, 0.0)
    kinds = [made[name].corruption for name in ("prefix-spans", "deshuffle", "span-corruption")]
    assert kinds == ["prefix", "deshuffle", "spans"]
    for name, choice in OBJECTIVES.items():
        assert choice.help, name
        assert set(dict(choice.options)) <= set(list_options(choice.objective_class)), name
    assert "across_documents" in list_options(MaskedLM)
    both = {"across_documents", "short_seq_prob"}
    assert both & set(list_options(OBJECTIVES["unit-pairs"].objective_class)) == {"short_seq_prob"}


@pytest.mark.parametrize(("alias", "name"), OBJECTIVE_ALIASES.items())
def test_earlier_names_are_accepted(alias, name):
    assert alias not in OBJECTIVES
    assert resolve_objective(alias) == resolve_objective(name) == name
    pieces = toys.build_tokenizer(60, sentinels=20)
    assert build_objective(alias, pieces, 24) == build_objective(name, pieces, 24)


@pytest.mark.parametrize("name", ["", "maskd", 3, None, ["mlm"]])
def test_names_that_are_not_available(name):
    with pytest.raises(Error, match="is not available"):
        resolve_objective(name)


def test_an_objective_of_pairs_has_one_without():
    assert set(UNPAIRED_OBJECTIVES) | set(UNPAIRED_OBJECTIVES.values()) <= set(OBJECTIVES)
