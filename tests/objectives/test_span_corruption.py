"""Span corruption: T5's lengths, patterns and sentinels; its relatives; pairs; Switch's balance."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import formers
from formers import Error
from formers.data.loader import load_batches
from formers.data.plans import TokenSource, gather_examples, plan_texts
from formers.nn.attention.context import Capture
from formers.nn.experts import compute_balance_loss
from formers.objectives.registry import build_objective
from formers.objectives.span_corruption import KEPT_DRAW, SpanCorruption
from tests.objectives import toys

T5 = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
TOKENIZER = toys.build_tokenizer(60, sentinels=40, roles=T5)
SENTINELS = [99 - i for i in range(40)]
PAD, END = 0, 1


def build_span_corruption(length=512, **more):
    return build_objective("span-corruption", TOKENIZER, length, **more)


def test_the_published_lengths():
    """568 raw tokens give 512 inputs and 114 targets: 28 sentinels + 85 + the end."""
    assert build_span_corruption().raw_length == 568
    assert [int(x[0]) for x in build_span_corruption().measure_both_sides(np.array([568]))] == [512, 114]
    batch = build_span_corruption().corrupt(toys.draw_raw_examples([568, 568]), 0)
    assert np.diff(batch.source.starts).tolist() == [512, 512]
    assert np.diff(batch.starts).tolist() == [114, 114]
    assert np.isin(batch.labels[:114], SENTINELS).sum() == 28
    assert (
        sorted(build_span_corruption().sentinels.tolist(), reverse=True)
        == build_span_corruption().sentinels.tolist()
        == SENTINELS
    )
    assert build_span_corruption().sentinels[0] == len(TOKENIZER) - 1, "from the top of the tokenizer"


def released_lengths(n, rate, mean):
    noise = min(max(round(n * rate), 1), n - 1)
    spans = max(round(noise / mean), 1)
    return n - noise + spans + 1, noise + spans + 1


@pytest.mark.parametrize("length", [16, 64, 100, 128, 256])
def test_raw_lengths_follow_the_released_helper(length):
    n = length
    while released_lengths(n + 1, 0.15, 3)[0] <= length:
        n += 1
    assert build_span_corruption(length).raw_length == n


@given(st.lists(st.integers(2, 200), min_size=1, max_size=5), st.integers(0, 10**6))
def test_the_target_fills_the_gaps(lengths, seed):
    raw = toys.draw_raw_examples(lengths, seed=seed)
    batch = build_span_corruption().corrupt(raw, seed)
    sides = zip(
        toys.split_rows(raw.ids, raw.starts), toys.split_rows(batch.source.ids, batch.source.starts),
        toys.split_rows(batch.labels, batch.starts), toys.split_rows(batch.ids, batch.starts), strict=True,
    )  # fmt: skip
    for original, source, target, shifted in sides:
        assert shifted == [PAD, *target[:-1]]
        assert source[-1] == target[-1] == END
        assert (len(source), len(target)) == released_lengths(len(original), 0.15, 3)
        filled, spans = [], {}
        for token in target[:-1]:
            if token in SENTINELS:
                spans[token] = []
            else:
                spans[list(spans)[-1]].append(token)
        assert list(spans) == SENTINELS[: len(spans)], "in order, from the first sentinel"
        assert all(spans.values()), "no span is empty"
        assert source[0] not in SENTINELS, "it begins with something kept"
        assert source[-2] == SENTINELS[len(spans) - 1], "and ends with a gap, without a closing sentinel"
        for token in source[:-1]:
            filled += spans.get(token, [token])
        assert filled == original
        assert [t for t in source if t in SENTINELS] == list(spans)
        pairs = itertools.pairwise(source)
        assert not any(a in SENTINELS and b in SENTINELS for a, b in pairs), "gaps never touch"


@given(st.lists(st.integers(0, 9), min_size=2, max_size=12), st.integers(4, 20), st.booleans())
def test_documents_are_joined_end_to_end(lengths, length, marked):
    """Windows of the text that is left when the end marks are gone; the last one reaches back to be full."""
    assume(marked or any(lengths))
    documents = [[[7 + (i + n) % 50 for i in range(size)]] for n, size in enumerate(lengths)]
    data = toys.build_store(documents, end=END if marked else None)
    text = [token for document in documents for token in document[0]]
    plan = plan_texts(data, END, length, 0, 0, across=True)
    numbers = np.arange(len(plan))
    raw = gather_examples(data, plan, numbers, numbers)
    found = toys.split_rows(raw.ids, raw.starts)
    wanted = [text[i : i + length] for i in range(0, len(text) - length + 1, length)]
    rest = len(text) % length
    if rest and len(text) > 1:
        wanted.append(text[-length:])
    assert sorted(found) == sorted(wanted)
    assert (plan.end > plan.begin).all()
    assert raw.label.tolist() == [-1] * len(wanted)


def test_short_documents_joined_have_many_gaps():
    data = toys.build_store([[12], [9], [30], [5]] * 30, end=END)
    alone, joined = build_span_corruption(128), build_span_corruption(128, across_documents=True)
    batch = toys.make_examples(alone, data)[2]
    assert {sum(t in SENTINELS for t in row) for row in toys.split_rows(batch.labels, batch.starts)} == {1}
    plan, raw, batch = toys.make_examples(joined, data)
    assert set(plan.lengths) == {joined.raw_length} == {141}
    assert END not in raw.ids, "nothing stands between documents"
    assert {sum(t in SENTINELS for t in row) for row in toys.split_rows(batch.labels, batch.starts)} == {7}
    assert set(np.diff(batch.source.starts)) == {128}
    assert sum((b.sample >= 0).sum() for b, _ in load_batches(TokenSource(data, joined), 512, epochs=1)) == len(plan)


def test_every_cut_is_as_likely():
    """7 items in 3 parts: 15 ways."""
    made = (
        build_span_corruption()
        .split_randomly(np.full(15000, 7), np.full(15000, 3), 0, np.arange(15000), KEPT_DRAW)
        .reshape(-1, 3)
    )
    counts = Counter(map(tuple, made.tolist()))
    assert set(counts) == {(a, b, 7 - a - b) for a in range(1, 6) for b in range(1, 7 - a)}
    assert sum((n - 1000) ** 2 / 1000 for n in counts.values()) < 40  # χ² of 14 degrees, p ≈ 0.0003


def test_statistics_over_a_million_tokens():
    batch = build_span_corruption().corrupt(toys.draw_raw_examples([568] * 1800), 1)
    hidden = ~np.isin(batch.labels, [*SENTINELS, END])
    assert hidden.sum() / (568 * 1800) == pytest.approx(85 / 568), "exactly"
    sizes = np.diff(np.flatnonzero(np.isin(batch.labels, [*SENTINELS, END])))
    sizes = sizes[sizes > 1] - 1
    assert sizes.mean() == pytest.approx(85 / 28, rel=1e-9)
    assert (sizes == 1).mean() == pytest.approx(27 / 84, abs=0.01), "as of a random cut of 85 into 28"


def test_batches_have_their_size_on_the_larger_side():
    """Texts that are all full make whole grids; where lengths differ, there is room for dummy documents."""
    data = toys.build_store([[568]] * 20)
    shape = build_span_corruption().choose_shape(8 * 512, build_span_corruption().plan(data, 0, 0))
    assert (shape.source_tokens, shape.tokens, shape.documents) == (8 * 512, 8 * 114, 8)
    assert (shape.source_longest, shape.longest, shape.labels) == (512, 114, 0)
    batches = [batch for batch, _ in load_batches(TokenSource(data, build_span_corruption()), 8 * 512, epochs=1)]
    assert [(batch.sample >= 0).sum() for batch in batches] == [8, 8, 4]
    for batch in batches:
        assert set(np.diff(batch.starts)) == {114}
        assert set(np.diff(batch.source.starts)) == {512}
    assert batches[-1].count_tokens() == 4 * (512 + 114), "dummies are not counted"
    uneven = toys.build_store([[568]] * 20 + [[100]])
    shape = build_span_corruption().choose_shape(8 * 512, build_span_corruption().plan(uneven, 0, 0))
    assert shape.documents >= 8 + 8, "room for as many dummies"


def test_prefix_and_deshuffle():
    raw = toys.draw_raw_examples([30, 2, 9])
    prefix = build_objective("prefix-spans", TOKENIZER, 32).corrupt(raw, 4)
    for original, source, target in zip(
        toys.split_rows(raw.ids, raw.starts), toys.split_rows(prefix.source.ids, prefix.source.starts),
        toys.split_rows(prefix.labels, prefix.starts), strict=True,
    ):  # fmt: skip
        assert source[:-1] + target[:-1] == original
        assert len(source) > 1
        assert len(target) > 1
    mixed = build_objective("deshuffle", TOKENIZER, 32).corrupt(raw, 4)
    assert mixed.labels.tolist() == [*raw.ids[:30], END, *raw.ids[30:32], END, *raw.ids[32:], END]
    for original, source in zip(
        toys.split_rows(raw.ids, raw.starts), toys.split_rows(mixed.source.ids, mixed.source.starts), strict=True
    ):
        assert sorted(source[:-1]) == sorted(original)
        assert source[-1] == END
    assert mixed.source.ids[:30].tolist() != raw.ids[:30].tolist()
    cuts = build_objective("prefix-spans", TOKENIZER, 8).corrupt(toys.draw_raw_examples([5] * 4000), 0)
    sizes = np.bincount(np.diff(cuts.source.starts) - 1)
    assert sizes[0] == 0
    assert abs(sizes[1:] - 1000).max() < 5 * 1000**0.5, "every cut is as likely"


def test_sentinels_that_are_missing():
    with pytest.raises(Error, match="examples of 512 tokens need 28 sentinels, this tokenizer has 0"):
        build_objective("span-corruption", toys.build_tokenizer(roles=T5), 512)
    build_objective("span-corruption", toys.build_tokenizer(sentinels=28, roles=T5), 512)
    with pytest.raises(Error, match="no end mark"):
        build_objective(
            "span-corruption", toys.build_tokenizer(sentinels=28, roles={"pad": "<pad>", "unk": "<unk>"}), 512
        )
    assert build_objective("deshuffle", toys.build_tokenizer(roles=T5), 16, start=5).start == 5


def test_seq2seq_sides():
    data = toys.build_store([[[7, 8, 9], [10, 11]], [[12], [13, 14, 15]], [[7], [8], [9]], [[7]]], end=END)
    goal_ = build_objective("seq2seq", TOKENIZER, 8)
    assert goal_.start == PAD
    plan, _, batch = toys.make_examples(goal_, data)
    assert len(plan) == 2, "only documents of two sentences are pairs"
    sources, targets = (
        toys.split_rows(batch.source.ids, batch.source.starts),
        toys.split_rows(batch.labels, batch.starts),
    )
    made = sorted(zip(sources, targets, toys.split_rows(batch.ids, batch.starts), strict=True))
    assert made == [
        ([7, 8, 9, END], [10, 11, END], [PAD, 10, 11]), ([12, END], [13, 14, 15, END], [PAD, 13, 14, 15]),
    ]  # fmt: skip
    named = build_objective("seq2seq", TOKENIZER, 5, prefix="w20 w22")
    _, _, batch = toys.make_examples(named, data)
    assert sorted(toys.split_rows(batch.source.ids, batch.source.starts)) == [[20, 22, 7, 8, END], [20, 22, 12, END]]
    assert named.measure_sizes(named.plan(data, 0, 0))[:, 2].max() == 5
    with pytest.raises(Error, match="no document is a pair"):
        goal_.plan(toys.build_store([[3], [4, 5, 6]]), 0, 0)
    with pytest.raises(Error, match="2 tokens of a prefix"):
        build_objective("seq2seq", TOKENIZER, 3, prefix="w20 w22")


def test_the_decoder_starts_with_the_first_mark_there_is():
    """<s>, else padding, else [CLS], else the end mark; a tokenizer without an end mark will not do."""
    known = {"pad unk bos eos cls": "bos", "pad unk eos cls": "pad", "unk eos cls": "cls", "unk eos": "eos"}
    for roles, start in known.items():
        pieces = toys.build_tokenizer(roles={role: toys.ROLES[role] for role in roles.split()})
        assert build_objective("seq2seq", pieces, 8).start == pieces.id(start)
    with pytest.raises(Error, match="no end mark"):
        build_objective("seq2seq", toys.build_tokenizer(roles={"unk": "<unk>", "bos": "<s>"}), 8)


def test_label_smoothing_is_the_papers():
    f = formers.build("transformer", vocab=100, dim=8, layers=1, heads=2, ff=8, dropout=0.0)
    data = toys.build_store([[[7, 8, 9], [10, 11]], [[12], [13, 14, 15]]])
    goal_ = build_objective("seq2seq", TOKENIZER, 8, label_smoothing=0.1)
    batch = toys.make_examples(goal_, data)[2].to("cpu")
    total, count = goal_.loss(f.model, batch)["lm"]
    log = f.model.logits(f.model(batch)).log_softmax(-1)
    right = log.gather(1, batch.labels[:, None])[:, 0]
    assert count == 7
    torch.testing.assert_close(total, -(0.9 * right + 0.1 * log.mean(-1)).sum())


def test_switch_adds_the_balance_of_real_tokens():
    f = formers.build("switch", vocab=100, dim=8, layers=2, heads=2, head_dim=4, ff=8, experts=3, sparse=1, dropout=0.0)
    data = toys.build_random_store(0)
    goal_ = build_objective("switch", TOKENIZER, 16)
    assert isinstance(goal_, SpanCorruption)
    batch = next(load_batches(TokenSource(data, goal_), 64))[0].to("cpu")
    assert (batch.sample < 0).any(), "there are dummies"
    f.model.eval()
    losses = goal_.loss(f.model, batch)
    capture = Capture(routing=[])
    f.model(batch, capture=capture)
    assert len(capture.routing) == 2
    terms = []
    for (probability, chosen), side in zip(capture.routing, (batch.source, batch), strict=True):
        real = int(side.starts[int((batch.sample >= 0).sum())])
        terms.append(compute_balance_loss(probability[:real], chosen[:real]))
    total, count = losses["balance"]
    assert count == 1
    torch.testing.assert_close(total, 0.01 * sum(terms))
    assert list(build_objective("span-corruption", TOKENIZER, 16).loss(f.model, batch)) == ["lm"]
    total.backward()
    assert f.model.body.encoder.blocks[1].ff.router.weight.grad.any()


def test_a_dense_t5_has_nothing_to_balance():
    f = formers.build("t5", vocab=100, dim=8, layers=1, heads=2, head_dim=4, ff=8)
    goal_ = build_objective("switch", TOKENIZER, 16)
    batch = next(load_batches(TokenSource(toys.build_random_store(0), goal_), 64))[0].to("cpu")
    losses = goal_.loss(f.model, batch)
    assert [float(x) for x in losses["balance"]] == [0, 1]
    torch.testing.assert_close(
        losses["lm"], build_objective("span-corruption", TOKENIZER, 16).loss(f.model, batch)["lm"]
    )
