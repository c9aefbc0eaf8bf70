"""XLNet's permutations: targets by the released procedure, and who sees whom, pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import formers
from formers import Error
from formers.data.counter_rng import draw_integers, draw_uniform
from formers.data.loader import load_batches
from formers.data.plans import RawExamples, TokenSource
from formers.nn.attention.two_stream import build_order_masks
from formers.objectives import permutation
from formers.objectives.permutation import PermutationLM
from formers.objectives.registry import build_objective
from tests.objectives import toys

TOKENIZER = toys.build_tokenizer()
SEP, CLS = TOKENIZER.id("sep"), TOKENIZER.id("cls")


def make_three_spans(rows, length, seed=0, **more):
    """Examples of three spans: the first half, A and B."""
    r = np.random.default_rng(seed)
    half = length // 2
    ids, span = [], []
    for _ in range(rows):
        a = int(r.integers(1, length - half - 3))
        sizes = [half, a, length - half - 3 - a]
        span += np.repeat(np.arange(3), sizes).tolist()
        ids += r.integers(toys.PLAIN, 60, sum(sizes)).tolist()
    total = len(ids)
    starts = np.arange(rows + 1) * (length - 3)
    raw = RawExamples(
        np.array(ids), starts, np.array(span), r.random(total) < 0.1, None, np.zeros(rows, int), np.arange(rows) + 5
    )
    return raw, build_objective("plm", TOKENIZER, length, **more)


def sample_as_released(goal, begins, free, count, seed, sample, side):
    """_sample_mask of the released code for one half, with spans of n pieces."""
    mask, found, at, step = np.zeros(len(begins), bool), 0, 0, 0
    pvals = np.cumsum([1 / n for n in range(1, goal.max_ngram + 1)])
    while at < len(begins):
        if found >= count:
            break
        key = (seed, sample, step * 2 + side)
        n = int(np.searchsorted(pvals / pvals[-1], float(draw_uniform(*key, permutation.NGRAM_DRAW)), side="right")) + 1
        n = min(n, count - found)
        size = n * goal.context_factor
        left = int(draw_integers(size, *key, permutation.LEFT_DRAW))
        right = size - left
        begin = at + left
        while begin < len(begins) and not (begins[begin] and free[begin]):
            begin += 1
        if begin >= len(begins):
            break
        end = begin + n
        if end >= len(begins):
            break
        mask[begin:end] = free[begin:end]
        found = mask.sum()
        at = end + right
        step += 1
    return mask


@given(st.integers(10, 80), st.integers(0, 10**6))
def test_targets_equal_the_released_procedure(length, seed):
    raw, goal = make_three_spans(2, length, seed)
    batch = goal.corrupt(raw, seed)
    words = np.array([not TOKENIZER.get_token_text(i).startswith("##") for i in range(60)])
    total = max(2, round(length * 85 / 512))
    for row in range(2):
        ids = batch.ids[batch.starts[row] : batch.starts[row + 1]]
        mine = np.isin(np.arange(batch.starts[row], batch.starts[row + 1]), batch.chosen)
        begins = words[ids]
        span = np.full(length, -1)
        inner = ~np.isin(ids, [SEP, CLS])
        rows_ = slice(raw.starts[row], raw.starts[row + 1])
        span[inner] = raw.span_index[rows_]
        first = np.zeros(length, bool)
        first[inner] = raw.sentence_starts[rows_]
        first[inner] |= np.diff(raw.span_index[rows_], prepend=-1) != 0
        begins |= first
        half = length // 2
        for side, part, goal_count in ((0, slice(0, half), total - total // 2), (1, slice(half, None), total // 2)):
            spans = sample_as_released(goal, begins[part], inner[part], goal_count, seed, int(raw.sample[row]), side)
            chosen = mine[part]
            assert chosen[spans].all(), "the spans are targets"
            assert chosen.sum() == min(goal_count, inner[part].sum()), "topped up to exactly the number"
            assert not chosen[~inner[part]].any(), "marks are never targets"


def test_the_published_numbers():
    raw, goal = make_three_spans(20, 512)
    batch = goal.corrupt(raw, 3)
    assert np.diff(batch.starts).tolist() == [512] * 20
    place = batch.chosen % 512
    assert np.bincount(batch.chosen // 512).tolist() == [85] * 20
    assert (place < 256).sum() == 43 * 20
    assert (place >= 256).sum() == 42 * 20


def may_see(targets, marks, half, rank, released):
    """The written rules, token by token: who may see whom in the content (itself included) and the query stream."""
    n = len(targets)
    waits = targets | (marks & released)
    content, query = np.zeros((n, n), bool), np.zeros((n, n), bool)
    for i in range(n):
        for j in range(n):
            if i < half <= j:
                seen = False  # the first half never sees the second
            elif j < half <= i or not waits[j]:
                seen = True  # the second sees all of the first; what is not predicted is visible
            else:
                seen = waits[i] and rank[j] < rank[i]  # those before it in the order
            content[i, j], query[i, j] = seen or i == j, seen and i != j
    return content, query


@given(st.integers(10, 50), st.integers(0, 10**6), st.booleans())
@settings(max_examples=60)
def test_every_token_sees_exactly_what_it_may(length, seed, released):
    raw, goal = make_three_spans(2, length, seed, as_released=released)
    batch = goal.corrupt(raw, seed).to("cpu")
    content, query = build_order_masks(batch.order, batch.layout)
    for row in range(2):
        low, high = int(batch.starts[row]), int(batch.starts[row + 1])
        targets = np.isin(np.arange(low, high), batch.chosen)
        marks = np.isin(batch.ids[low:high], [SEP, CLS])
        order = batch.order[low:high].numpy()
        waiting = order[targets | (marks & released)]
        assert len(set(waiting.tolist())) == len(waiting), "one after the other"
        want = may_see(targets, marks, length // 2, order, released)
        assert np.array_equal(content[row].numpy(), want[0])
        assert np.array_equal(query[row].numpy()[targets], want[1][targets])


def test_segments_and_labels():
    raw, goal = make_three_spans(3, 40)
    batch = goal.corrupt(raw, 0)
    assert np.array_equal(batch.ids[batch.chosen], batch.labels), "nothing is replaced: the streams hide it"
    for row in range(3):
        ids, segments = (toys.split_rows(x, batch.starts)[row] for x in (batch.ids, batch.segments))
        a = int((raw.span_index[raw.starts[row] : raw.starts[row + 1]] == 1).sum())
        assert ids[20 + a] == ids[38] == SEP
        assert ids[39] == CLS
        assert segments == [0] * (21 + a) + [1] * (18 - a) + [2]


def test_the_plan_follows_the_text():
    data = toys.build_random_store(4, documents=60)
    goal = build_objective("plm", TOKENIZER, 64)
    plan = goal.plan(data, 1, 0)
    spans = np.stack((plan.begin, plan.end), 1).reshape(-1, 3, 2)
    assert (plan.lengths == 61).all(), "examples are always full"
    spans = spans[np.argsort(spans[:, 0, 0])]
    assert (spans[:, 0, 1] - spans[:, 0, 0] == 32).all()
    assert (np.diff(spans[:, 0, 0]) == 32).all(), "one stretch after the other"
    assert (spans[:, 1, 0] == spans[:, 0, 1]).all(), "A follows"
    edges = data.sentence_starts
    follows = (spans[:, 2, 0] >= spans[:, 1, 1]) & (spans[:, 2, 0] < spans[:, 1, 0] + 29)
    assert follows.mean() == pytest.approx(0.5, abs=0.15)
    assert (spans[follows, 2, 0] == spans[follows, 1, 1]).mean() > 0.5, "unless A was cut, B begins where it ends"
    assert np.isin(spans[:, 2, 0], edges).all(), "B begins with a sentence"
    other = goal.plan(data, 1, 1)
    assert len(other) == len(plan)
    assert not np.array_equal(other.begin, plan.begin)


def test_statistics_of_a_million_tokens():
    raw, goal = make_three_spans(2000, 512)
    batch = goal.corrupt(raw, 1)
    counts = np.bincount(np.repeat(np.arange(4000), 256)[batch.chosen])
    assert (counts[::2] == 43).all()
    assert (counts[1::2] == 42).all()
    everything = PermutationLM(512, SEP, CLS)  # every piece begins a word
    chosen = np.zeros(len(batch.ids), bool)
    chosen[everything.corrupt(raw, 1).chosen] = True
    runs = np.diff(np.flatnonzero(np.diff(chosen.astype(int), prepend=0, append=0)))[::2]
    share = np.bincount(runs, minlength=7)[1:6] / len(runs)
    want = np.array([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]) / sum(1 / n for n in range(1, 6))
    # Single tokens that fill up come on top of the spans of 1.
    assert share[1:] / share[1:].sum() == pytest.approx(want[1:] / want[1:].sum(), abs=0.04)
    order = batch.order.reshape(-1, 512)[:, :256]
    first = np.array([row[row > 0].argmin() for row in order])
    assert first.mean() == pytest.approx(21, abs=1.5), "any target may be the first of the order"


def test_streams_continue_where_they_stopped():
    data = toys.build_random_store(4, documents=60)
    goal = build_objective("plm", TOKENIZER, 64, num_streams=3)
    made_ = [batch for batch, _ in load_batches(TokenSource(data, goal), 1, epochs=1)]
    assert {(len(b.starts) - 1, len(b.ids), int((b.sample < 0).sum())) for b in made_} == {(3, 192, 0)}
    size = len(made_) * 32
    for row in range(3):
        read = [t for batch in made_ for t in batch.ids[row * 64 : row * 64 + 32]]
        assert read == data.tokens[row * size : (row + 1) * size].tolist()
    assert len(data.tokens) - 3 * size < 3 * 32 + 64, "hardly anything is left out"


def test_the_second_half_of_streams_reads_back_to_front():
    data = toys.build_random_store(4, documents=60)
    goal = build_objective("plm", TOKENIZER, 64, num_streams=4, reversed=True)
    plan = goal.plan(data, 0, 0)
    assert plan.label.reshape(-1, 4).tolist() == [[0, 0, 1, 1]] * (len(plan) // 4)
    made_ = [batch for batch, _ in load_batches(TokenSource(data, goal), 1, epochs=1)]
    size, text = len(made_) * 32, data.tokens.tolist()
    for row, whole in enumerate((text, text, text[::-1], text[::-1])):
        read = [t for batch in made_ for t in batch.ids[row * 64 : row * 64 + 32]]
        assert read == whole[row % 2 * size : (row % 2 + 1) * size]
    for step, batch in enumerate(made_):
        for row in (2, 3):
            ids, at = batch.ids[row * 64 : (row + 1) * 64].tolist(), row % 2 * size + step * 32 + 32
            follows = ids[32 : ids.index(SEP)]
            assert text[::-1][at : at + len(follows)] == follows, "A is what comes before in the text"
        assert np.array_equal(batch.ids[batch.chosen], batch.labels)


def test_half_of_every_batch_reads_back_to_front_where_a_step_has_several():
    """The model turns the second half of each batch's rows, so every batch needs rows of both kinds."""
    data = toys.build_random_store(4, documents=60)
    goal = build_objective("plm", TOKENIZER, 64, num_streams=8, streams_per_batch=4, reversed=True)
    plan = goal.plan(data, 0, 0)
    assert plan.label.reshape(-1, 4).tolist() == [[0, 0, 1, 1]] * (len(plan) // 4)
    made_ = [batch for batch, _ in load_batches(TokenSource(data, goal), 1, epochs=1)]
    assert all(batch.has_reversed_half for batch in made_)
    size, text = len(made_) // 2 * 32, data.tokens.tolist()
    for row, (whole, number) in enumerate(((text, 0), (text, 1), (text[::-1], 0), (text[::-1], 1))):
        for group in (0, 1):
            read = [t for batch in made_[group::2] for t in batch.ids[row * 64 : row * 64 + 32]]
            begin = (2 * group + number) * size
            assert read == whole[begin : begin + size], "each half of the streams reads the whole text"


@torch.no_grad()
def test_a_model_with_reversed_rows_reads_them_as_if_they_stood_right():
    """Its distances have the other sign there: the same as the plain model on rows that are turned around."""
    sizes = {"vocab": 60, "dim": 8, "layers": 2, "heads": 2, "ff": 16, "dropout": 0.0, "init": 0.5}
    goal = build_objective("plm", TOKENIZER, 32, num_streams=4, reversed=True)
    batch = next(load_batches(TokenSource(toys.build_random_store(4), goal), 1))[0].to("cpu")
    around = torch.arange(128).view(4, 32)
    around[2:] = around[2:].flip(1)
    around = around.flatten()
    plain = batch.replace(
        ids=batch.ids[around], segments=batch.segments[around], order=batch.order[around], chosen=around[batch.chosen]
    )
    plain, unaware = plain.replace(has_reversed_half=False), batch.replace(has_reversed_half=False)
    model = formers.build("xlnet", seed=1, **sizes).model
    published = formers.build("xlnet", reversed=True, seed=1, **sizes).model  # with bi_data
    hidden = [
        body(rows)[rows.chosen] for body, rows in ((model, batch), (model, plain), (published, unaware))
    ]  # fmt: skip
    torch.testing.assert_close(hidden[0], hidden[1])
    torch.testing.assert_close(hidden[2], hidden[1])
    other = model(unaware)[batch.chosen]
    assert not torch.allclose(other[-1], hidden[0][-1], atol=1e-3), "which makes a difference"


def test_an_end_mark_is_a_token_like_others():
    """Released: only <sep> and <cls> are never targets."""
    end = TOKENIZER.id("eos")
    _, _, batch = toys.make_examples(build_objective("plm", TOKENIZER, 64), toys.build_random_store(4, most=1, end=end))
    assert end in batch.labels
    assert not np.isin(batch.labels, [SEP, CLS]).any()


def test_errors():
    with pytest.raises(Error, match="no <sep> and <cls>"):
        build_objective("plm", toys.build_tokenizer(roles={"pad": "<pad>", "unk": "<unk>"}), 32)
    with pytest.raises(Error, match="no room for two halves"):
        build_objective("plm", TOKENIZER, 9)
    with pytest.raises(Error, match="20 tokens are too few for examples of 32"):
        build_objective("plm", TOKENIZER, 32).plan(toys.build_store([[10, 10]]), 0, 0)
    for streams in (0, 3):
        with pytest.raises(Error, match="an even number of streams"):
            build_objective("plm", TOKENIZER, 32, reversed=True, num_streams=streams)
    with pytest.raises(Error, match="an even number of streams, of which half of each batch"):
        build_objective("plm", TOKENIZER, 32, reversed=True, num_streams=6, streams_per_batch=3)
    for streams in (90, 10**15):
        with pytest.raises(Error, match=f"too few for {streams} streams"):
            build_objective("plm", TOKENIZER, 32, num_streams=streams).plan(toys.build_store([[300, 10]]), 0, 0)


def test_a_target_never_reaches_its_own_prediction():
    """By gradient, through a real model: the loss at a target does not depend on tokens that it may not see."""
    f = formers.build("xlnet", vocab=60, dim=8, layers=2, heads=2, ff=16, dropout=0.0)
    raw, goal = make_three_spans(1, 24)
    batch = goal.corrupt(raw, 0).to("cpu")
    weight = f.model.body.embed.token.weight
    for slot in batch.chosen.tolist():
        table = torch.zeros(24, 8, requires_grad=True)
        hook = f.model.body.embed.token.register_forward_hook(lambda m, i, o, table=table: o + table)
        hidden = f.model(batch)[slot]
        hook.remove()
        (grad,) = torch.autograd.grad((hidden * weight[batch.ids[slot]]).sum(), table)
        unseen = batch.order >= batch.order[slot]
        assert not grad[unseen].any()
        assert grad[~unseen].any()
