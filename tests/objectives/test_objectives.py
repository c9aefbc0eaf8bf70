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
from formers.batch import Batch
from formers.data.draws import bits, uniform
from formers.data.loader import batches, filled
from formers.data.plans import Raw, Shape, cut
from formers.objectives.causal import CausalLM
from formers.objectives.choose import OBJECTIVES, objective, settings
from formers.objectives.frames import laid
from formers.objectives.hiding import CHOICE, GRAM, groups
from formers.objectives.masked import MaskedLM
from formers.objectives.ragged import halves, harmonic, ranks
from formers.objectives.tokens import IGNORED, token_loss
from formers.objectives.words import begins, word_marks
from formers.text import bpe, wordpiece
from tests.objectives import toys

SPECIAL = (0, 2, 3, 4)
GOAL = MaskedLM(32, vocab=100, mask=4, special=SPECIAL, frame=((2,), (3,)))
WORDS = np.arange(100) % 3 > 0  # pieces 0, 3, 6 … go on


def text(lengths, samples=None, seed=0, low=5):
    made = toys.raw(lengths, samples, seed, 100)
    made.ids[:] = np.random.default_rng(seed).integers(low, 100, len(made.ids))
    return made


def test_causal_labels_are_successors_within_a_document():
    asked = CausalLM(3).corrupt(text([3, 2]), 0)
    ids = asked.ids.tolist()
    assert asked.chosen is None, "there is a loss everywhere"
    assert asked.labels.tolist() == [ids[1], ids[2], IGNORED, ids[4], IGNORED]
    assert asked.starts.tolist() == [0, 3, 5]
    full = filled(asked, Shape(4, 8, 0, 3))
    assert full.labels.tolist()[5:] == [IGNORED] * 3


@given(st.lists(st.integers(2, 30), min_size=1, max_size=5), st.integers(0, 99))
def test_a_prefix_is_read_only(lengths, seed):
    given_ = text(lengths)
    asked, whole = CausalLM(30, prefix=True).corrupt(given_, seed), CausalLM(30).corrupt(given_, seed)
    for labels, all_, n in zip(
        toys.rows(asked.labels, asked.starts), toys.rows(whole.labels, asked.starts), lengths, strict=True
    ):
        silent = sum(label == IGNORED for label in labels) - 1  # the last token has no successor
        assert 0 <= silent <= n - 2, "something is asked for"
        assert labels[:silent] == [IGNORED] * silent
        assert labels[silent:] == all_[silent:]


def test_prefixes_have_every_length():
    asked = CausalLM(5, prefix=True).corrupt(text([5] * 4000), 0)
    silent = np.bincount((asked.labels.reshape(-1, 5)[:, :4] == IGNORED).sum(1), minlength=4)
    assert len(silent) == 4
    assert abs(silent - 1000).max() < 5 * 1000**0.5


def test_across_documents():
    data = toys.store([[5], [7], [4]], end=3)
    inside, across = CausalLM(6).plan(data, 0, 0), CausalLM(6, across=True).plan(data, 0, 0)
    assert sorted(across.lengths.tolist()) == [6, 6, 6, 6][: len(across)]
    assert len(across) == 4  # 19 tokens, the last window reaching back
    assert sorted(zip(inside.begin, inside.end, strict=True)) == [(0, 6), (6, 12), (8, 14), (14, 19)]
    goal = MaskedLM(8, 100, 4, SPECIAL, ((2,), (3,)), across=True)
    assert sorted(goal.plan(data, 0, 0).lengths.tolist()) == [6] * 4


@given(st.lists(st.integers(1, 38), min_size=1, max_size=6), st.integers(0, 1000), st.sampled_from([0, 1, 3]))
def test_masked_invariants(lengths, seed, grams):
    goal = MaskedLM(40, 100, 4, SPECIAL, ((2,), (3,)), grams=grams, words=WORDS)
    given_ = text(lengths, range(10, 10 + len(lengths)), seed)
    whole, hidden = laid(given_, (2,), (3,)), goal.corrupt(given_, seed)
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
        inside = ~(WORDS[whole.ids] | whole.begins) & ~np.isin(whole.ids, SPECIAL)
        inside[1:] &= ~np.isin(whole.ids[:-1], SPECIAL)
        at = np.flatnonzero(inside)
        now = np.isin(np.arange(len(whole.ids)), chosen)
        assert np.array_equal(now[at], now[at - 1])


def reference_grams(sizes, most, wanted, seed, sample):
    """ALBERT's released procedure, one word after the other; `sizes` are the pieces of each word."""
    count = len(sizes)
    order = sorted(range(count), key=lambda w: (int(bits(seed, sample, w, CHOICE)) >> 36, w))
    at = np.concatenate(([0], np.cumsum(sizes)))
    pieces = [list(range(at[w], at[w + 1])) for w in range(count)]
    share = [1 / n for n in range(1, most + 1)]
    hidden: set[int] = set()
    for w in order:
        if len(hidden) >= wanted:
            break
        candidates = [pieces[w : w + n] for n in range(1, most + 1)]
        draw, n = float(uniform(seed, sample, w, GRAM)) * sum(share), 0
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
    goal = MaskedLM(200, 100, 4, SPECIAL, ((2,), (3,)), grams=most, words=WORDS, rate=0.3)
    ids = np.concatenate([[7, *[6] * (n - 1)] for n in sizes])
    zeros = np.zeros(len(ids), np.int64)
    given_ = Raw(ids, np.array([0, len(ids)]), zeros, zeros > 0, None, np.array([-1]), np.array([5]))
    wanted = max(1, round(0.3 * (len(ids) + 2)))
    assert set((goal.corrupt(given_, seed).chosen - 1).tolist()) == reference_grams(sizes, most, wanted, seed, 5)


def test_a_word_that_would_overflow_is_skipped():
    """By hand: three words of 3, 1 and 2 pieces, and room for two tokens: 1 alone, or 2 alone, but never 3."""
    goal = MaskedLM(200, 100, 4, SPECIAL, ((), ()), grams=1, words=WORDS, rate=2 / 6)
    ids = np.array([7, 6, 6, 8, 10, 9])
    zeros = np.zeros(6, np.int64)
    seen = set()
    for seed in range(50):
        given_ = Raw(ids, np.array([0, 6]), zeros, zeros > 0, None, np.array([-1]), np.array([0]))
        seen.add(tuple(goal.corrupt(given_, seed).chosen.tolist()))
    assert seen == {(3,), (4, 5)}


@pytest.mark.parametrize("grams", [0, 1, 3])
def test_masked_statistics(grams):
    goal = MaskedLM(512, 100, 4, SPECIAL, ((2,), (3,)), grams=grams, words=WORDS)
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
    assert np.bincount(harmonic(3, (np.arange(1100) + 0.5) / 1100)).tolist() == [0, 600, 300, 200]
    assert harmonic(1, np.array([0.0, 0.999])).tolist() == [1, 1]


def test_the_same_example_is_hidden_the_same_way_in_any_batch():
    for grams in (0, 3):
        goal = MaskedLM(32, 100, 4, SPECIAL, ((2,), (3,)), grams=grams, words=WORDS)
        whole = text([20, 9, 30, 14], [7, 8, 9, 10])
        together = goal.corrupt(whole, 3)
        for row in range(4):
            part = slice(whole.starts[row], whole.starts[row + 1])
            one = Raw(
                whole.ids[part], np.array([0, part.stop - part.start]), whole.span[part], whole.sentence[part], None,
                whole.label[row : row + 1], whole.sample[row : row + 1],
            )  # fmt: skip
            low, high = together.starts[row : row + 2]
            assert np.array_equal(goal.corrupt(one, 3).ids, together.ids[low:high])
        other = goal.corrupt(text([20, 9, 30, 14], [107, 108, 109, 110]), 3)
        assert not np.array_equal(other.ids, together.ids), "another epoch, another mask"
        assert not np.array_equal(goal.corrupt(whole, 4).ids, together.ids)


def test_a_limit_and_dummies():
    few = MaskedLM(32, 100, 4, SPECIAL, ((2,), (3,)), most=2)
    hidden = few.corrupt(text([30, 28], [1, 2]), 0)
    assert len(hidden.chosen) == 4
    full = filled(hidden, Shape(5, 100, 9, 32))
    assert full.labels.tolist()[4:] == [IGNORED] * 5
    assert len(full.chosen) == 9
    plan = few.plan(toys.random_store(), 0, 0)
    assert few.sizes(plan)[:, 1].max() == 2


def test_ranks_and_coins():
    draw = np.array([5, 1, 3, 9, 2], np.uint64) << np.uint64(50)
    assert ranks(draw, np.array([3, 0, 2])).tolist() == [2, 0, 1, 1, 0]
    many = np.full(1 << 18, 1)  # more examples than a sort key has room for
    assert not ranks(bits(0, np.arange(1 << 18)), many).any()
    assert ranks(np.zeros(4, np.uint64), np.array([4])).tolist() == [0, 1, 2, 3], "a tie goes to the first"
    coins = halves(np.full(4000, 100), 3, np.arange(4000))
    assert coins.mean() == pytest.approx(50, abs=4 * 5 / 4000**0.5)
    assert coins.std() == pytest.approx(5, rel=0.06)
    assert halves(np.array([0, 1, 64, 65]), 3, np.arange(4)).tolist()[0] == 0
    assert (halves(np.array([1] * 100), 3, np.arange(100)) <= 1).all()


def test_cut_reaches_back():
    plan = cut(np.array([0, 10, 20]), np.array([7, 11, 23]), 5, 0, 0)
    assert sorted(zip(plan.begin, plan.end, strict=True)) == [(0, 5), (2, 7), (20, 23)], "one token is no example"


def test_word_beginnings():
    pieces = wordpiece.train(["walking walks talking talks"] * 5, 60)
    ids = np.arange(5, len(pieces))
    found = begins(ids, word_marks(pieces), np.zeros(len(ids), bool))
    assert found.tolist() == [not pieces.token(i).startswith("##") for i in ids]
    first = np.arange(len(ids)) == len(ids) - 1
    assert begins(ids, word_marks(pieces), first)[-1], "the first token of a sentence begins a word"
    marks = np.array([0, 1, 2])  # goes on; begins a word; ends one, as in GPT-1
    assert begins(np.array([1, 0, 2, 0, 1]), marks, np.zeros(5, bool)).tolist() == [True, False, False, True, True]
    assert begins(np.array([1, 0]), None, np.zeros(2, bool)).all()


def test_streams_go_on_from_batch_to_batch():
    data, goal = toys.store([[25], [18]]), CausalLM(5, streams=2)
    seen = list(batches(data, goal, 10, epochs=1))
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
    asked = asked.replace(ids=asked.ids % 20, labels=np.where(asked.labels < 0, IGNORED, asked.labels % 20)).to("cpu")
    total, count = token_loss(f.model, asked, "lm")
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
        chosen=torch.tensor([2, 1, 0]), labels=torch.tensor([7, 5, IGNORED]),
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
        return token_loss(self.model, batch, "mlm")


def test_objectives_by_name():
    pieces = wordpiece.train(["the cat sat on the mat"] * 3, 60)
    masked = objective("masked", pieces, 16)
    assert masked.frame == ((pieces.id("cls"),), (pieces.id("sep"),))
    assert masked.mask == pieces.id("mask")
    assert pieces.id("unk") not in masked.special
    assert set(masked.special) == {pieces.id(r) for r in ("pad", "cls", "sep", "mask")}
    assert objective("causal", pieces, 16) == CausalLM(16)
    assert objective("causal", pieces, 16, across=True).across
    assert objective("ngrams", pieces, 16).grams == 3
    assert objective("words", pieces, 16, grams=2).grams == 2
    assert objective("masked", pieces, 16, rate=1).rate == 1.0
    with pytest.raises(Error, match="objective 'span' is not available. Did you mean 'spans'"):
        objective("span", pieces, 16)
    with pytest.raises(Error, match="'masked' has no option 'rates'. Did you mean 'rate'"):
        objective("masked", pieces, 16, rates=0.2)
    with pytest.raises(Error, match="'vocab'"):
        objective("masked", pieces, 16, vocab=7)
    with pytest.raises(Error, match="rate is a share between 0 and 1, got 1.5"):
        objective("masked", pieces, 16, rate=1.5)
    assert objective("masked", pieces, 16, rate=0).rate == 0
    with pytest.raises(Error, match="examples of 2 tokens are too short"):
        objective("masked", pieces, 2)
    assert objective("masked", pieces, 3).length == 3
    with pytest.raises(Error, match="'rate'"):
        objective("masked", pieces, 16, rate="much")
    with pytest.raises(Error, match="no \\[CLS\\]"):
        objective("masked", bpe.train(["a b"] * 3, 258), 16)


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, "across") for name in ("nsp", "sop", "unit_pairs", "dialogue")]
    + [(name, option) for name in ("units", "unit_pairs", "dialogue") for option in ("grams", "most")]
    + [("dialogue", "short")],
)
def test_an_option_that_would_do_nothing_is_refused(name, option):
    with pytest.raises(Error, match=f"objective '{name}' has no option '{option}'"):
        objective(name, toys.tokenizer(), 24, **{option: 1})


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("masked", {"length": 4}, "no option 'length'"),
        ("masked", {"name": "x"}, "no option 'name'"),
        ("ngrams", {"grams": 65}, "grams must be at least 0 and at most 64, got 65"),
        ("permutation", {"context": 0}, "context must be at least 1 and at most 1000, got 0"),
        ("dialogue", {"turns": 1}, "turns must be at least 2 and at most 1000, got 1"),
        ("bidirectional", {"slots": 2}, "slots must be at least 3 and at most 1000, got 2"),
        ("spans", {"start": 80}, "start=80 is no token of this tokenizer, which has 80"),
        ("seq2seq", {"start": 99999999}, "start=99999999 is no token"),
        ("denoise", {"start": 99999999}, "start=99999999 is no token"),
        ("spans", {"mean": 0.5}, "mean=0.5 is shorter than a token"),
        ("denoise", {"mean": 1e9}, "mean must be above 0 and at most 64"),
        ("denoise", {"mean": 0.0}, "mean must be above 0 and at most 64, got 0"),
        ("masked", {"most": 0}, "most must be above 0, got 0"),
        ("permutation", {"grams": 0}, "grams must be above 0 and at most 64, got 0"),
        ("causal", {"streams": -1}, "streams must be at least 0, got -1"),
        ("units", {"task": -1}, "task must be at least 0, got -1"),
        ("masked", {"masked": 0.9, "random": 0.2}, "masked and random are 1.1 together"),
        ("permutation", {"share": 1.1}, "share is a share between 0 and 1, got 1.1"),
        ("seq2seq", {"smoothing": -0.1}, "smoothing is a share"),
        ("nsp", {"short": 2}, "short is a share"),
        ("switch", {"balance": float("nan")}, "'balance' must be float, not nan"),
    ],
)
def test_odd_options_are_refused_in_one_line(name, options, match):
    with pytest.raises(Error, match=match) as caught:
        objective(name, toys.tokenizer(60, sentinels=20), 24, **options)
    assert "\n" not in str(caught.value)


def test_limits_themselves_are_allowed():
    pieces = toys.tokenizer(60, sentinels=20)
    for name, options in (
        ("spans", {"start": 79, "mean": 1}), ("dialogue", {"turns": 2}), ("ngrams", {"grams": 64}),
        ("permutation", {"grams": 1, "context": 1}), ("bidirectional", {"slots": 3}), ("denoise", {"mean": 64}),
    ):  # fmt: skip
        made = objective(name, pieces, 24, **options)
        assert all(getattr(made, key) == value for key, value in options.items() if key != "slots")


def test_marks_begin_nothing():
    at = laid(text([3, 2]), (2,), (3,))
    marks = np.isin(np.arange(len(at.ids)), at.slots, invert=True)
    assert marks.tolist() == [True, False, False, False, True, True, False, False, True]
    assert not at.begins[marks].any()
    assert at.begins[[1, 6]].all()


def test_a_group_never_runs_over_the_end_of_an_example():
    free = np.array([1, 1, 1, 0, 1, 1, 1], bool)
    at, group, owner = groups(free, np.zeros(7, bool), np.array([0, 2, 7]))
    assert at.tolist() == [0, 1, 2, 4, 5, 6]
    assert group.tolist() == [0, 0, 1, 2, 2, 2]
    assert owner.tolist() == [0, 1, 1]
    assert [len(x) for x in groups(np.zeros(3, bool), np.ones(3, bool), np.array([0, 3]))] == [0, 0, 0]


def test_robertas_marks():
    """A tokenizer without [CLS] and [SEP] has <s> and </s>; where there are both, [CLS] and [SEP] are taken."""
    roles = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}
    goal = objective("masked", toys.tokenizer(roles=roles), 16)
    assert goal.frame == ((2,), (3,))
    assert goal.special == (0, 2, 3, 4), "whatever is asked for, it is never one of these"
    pieces = toys.tokenizer()
    assert objective("masked", pieces, 16).frame == ((pieces.id("cls"),), (pieces.id("sep"),))
    for missing in ("bos", "eos", "mask"):
        with pytest.raises(Error, match="no \\[CLS\\], \\[SEP\\] and \\[MASK\\]"):
            objective("masked", toys.tokenizer(roles={k: v for k, v in roles.items() if k != missing}), 16)


MASKED = {"rate", "masked", "random", "most", "grams", "across", "part"}
OWN = {
    "causal": {"across", "prefix", "rows", "streams", "part"},
    "seq2seq": {"start", "smoothing", "prefix", "part"},
    "bidirectional": {"slots", "sampled", "rows", "streams", "part"},
    "masked": MASKED,
    "nsp": MASKED - {"across"} | {"short", "answer"},
    "sop": MASKED - {"across"} | {"short", "answer", "fallback"},
    "permutation": {"share", "grams", "context", "released", "rows", "streams", "reversed", "part"},
    "denoise": {
        "start", "language", "infill", "mean", "permute", "masked", "delete", "insert", "rotate", "released", "across",
        "part",
    },
    "spans": {"start", "rate", "mean", "kind", "balance", "across", "part"},
    "units": MASKED - {"grams", "most"} | {"stage", "task"},
    "unit_pairs": MASKED - {"grams", "most", "across"} | {"stage", "task", "short", "answer"},
    "dialogue": MASKED - {"grams", "most", "across"} | {"stage", "task", "answer", "turns"},
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_the_options_are_these(name):
    assert set(settings(OBJECTIVES[name].kind)) == OWN[name]


def test_every_objective_has_help_and_options():
    assert set(OBJECTIVES) == {
        "causal", "prefix", "seq2seq", "bidirectional", "masked", "words", "ngrams", "nsp", "sop", "permutation",
        "denoise", "spans", "switch", "prefix_spans", "deshuffle", "units", "unit_pairs", "dialogue",
    }  # fmt: skip
    pieces = toys.tokenizer(60, sentinels=20)
    made = {name: objective(name, pieces, 24) for name in OBJECTIVES}
    assert made == {name: objective(name, pieces, 24) for name in OBJECTIVES}, "what is set alike is equal"
    assert not any("array" in repr(goal) for goal in made.values()), "and is said in a line"
    assert made["prefix"].prefix
    assert (made["words"].grams, made["ngrams"].grams, made["sop"].grams, made["nsp"].grams) == (1, 3, 3, 0)
    assert (made["switch"].balance, made["spans"].balance) == (0.01, 0.0)
    assert (made["prefix_spans"].kind, made["deshuffle"].kind, made["spans"].kind) == ("prefix", "deshuffle", "spans")
    for name, choice in OBJECTIVES.items():
        assert choice.help, name
        assert set(dict(choice.options)) <= set(settings(choice.kind)), name
    assert "across" in settings(MaskedLM)
    assert {"across", "short"} & set(settings(OBJECTIVES["unit_pairs"].kind)) == {"short"}
