"""Readers, the store, random numbers, plans and batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.data.draws import below, bits, mix, shuffled, uniform
from formers.data.loader import Plan, batches, pack, windows
from formers.data.readers import bundled, documents, split
from formers.data.store import Store
from formers.objectives.causal import CausalLM
from formers.text import bpe, wordpiece

LINES = ["the cat sat on the mat", "the dog sat on the log"] * 3


def store(*lengths, vocab=100):
    starts = np.cumsum([0, *lengths])
    return Store(np.arange(starts[-1], dtype=np.uint16) % vocab, starts, vocab, "x")


@pytest.mark.parametrize("language", ["en", "ko"])
def test_bundled(language):
    texts, changes = bundled(language)
    assert len(texts) >= 20
    assert changes.undecodable == 0
    assert "�" not in "".join(texts)
    known, held = split(texts)
    assert len(held) == len(texts) // 20
    assert not set(known) & set(held)
    assert len(known) + len(held) == len(texts)


def test_no_such_language():
    with pytest.raises(Error, match="no bundled corpus for 'xx'. Choose en or ko"):
        bundled("xx")


def test_documents_are_blocks():
    blocks, changes = documents("\n\na\nb\r\n\n \nc\n")
    assert blocks == ["a\nb", "c"]
    assert changes.lines == 7
    with pytest.raises(Error, match="3 documents are too few"):
        split(["a", "b", "c"])


def test_store():
    tokenizer = bpe.train(LINES, 280)
    made = Store.of(["the cat", "the dog"], tokenizer)
    assert made.tokens.dtype == np.uint16
    assert made.tokens[made.starts[1] - 1] == tokenizer.id("eos")
    assert tokenizer.decode(made.tokens[: made.starts[1]]) == "the cat"
    plain = wordpiece.train(LINES, 60)
    ids = Store.of(["the cat"], plain).tokens
    assert plain.id("cls") not in ids
    assert plain.id("sep") not in ids
    with pytest.raises(Error, match="no text to learn from"):
        Store.of(["", ""], plain)


def test_random_numbers_are_functions_of_their_purpose():
    assert uniform(1, 2, 3) == uniform(1, 2, 3)
    assert uniform(1, 2, 3) != uniform(1, 3, 2)
    many = uniform(7, np.arange(100_000), 5)
    assert 0 <= many.min() < many.max() < 1
    assert many.mean() == pytest.approx(0.5, abs=0.004)
    assert np.histogram(many, 10)[0].std() < 150
    near = uniform(8, np.arange(100_000), 5)
    assert abs(np.corrcoef(many, near)[0, 1]) < 0.01
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.01
    assert len(np.unique(mix(np.arange(10_000, dtype=np.uint64)))) == 10_000
    assert bits(1, np.arange(4)).dtype == np.uint64
    drawn = below(6, 1, np.arange(60_000))
    assert set(drawn.tolist()) == set(range(6))
    assert np.bincount(drawn).std() < 250
    assert below(np.array([1, 2, 3]), 4, np.arange(3)).max() <= 2
    order = shuffled(1000, 3)
    assert sorted(order) == list(range(1000))
    assert not np.array_equal(order, shuffled(1000, 4))
    assert np.array_equal(order, shuffled(1000, 3))


def test_windows_cover_every_document():
    made = store(10, 3, 1, 7)
    plan = windows(made, 4, 0, 0)
    spans = sorted(zip(plan.begin.tolist(), plan.end.tolist(), strict=True))
    assert spans == [(0, 4), (4, 8), (6, 10), (10, 13), (14, 18), (17, 21)]
    again = windows(made, 4, 0, 1)
    assert sorted(zip(again.begin.tolist(), again.end.tolist(), strict=True)) == spans
    assert again.begin.tolist() != plan.begin.tolist()
    assert windows(made, 4, 0, 0).begin.tolist() == plan.begin.tolist()


def test_pack_fills_up_with_dummies():
    made = store(10, 10)
    plan = Plan(np.array([0, 5, 10]), np.array([4, 9, 12]))
    batch = pack(made, plan, np.array([0, 2]), np.array([30, 32]), ((98,), (99,)), 17)
    assert batch.ids.tolist() == [98, 0, 1, 2, 3, 99, 98, 10, 11, 99, 0, 0, 0, 0, 0, 0, 0]
    assert batch.starts.tolist() == [0, 6, 10, 16, 17]
    assert batch.sample.tolist() == [30, 32, -1, -1]
    assert batch.longest == 6


@given(st.lists(st.integers(2, 30), min_size=1, max_size=6), st.integers(3, 9), st.integers(0, 5))
def test_batches_lose_and_repeat_nothing(lengths, length, seed):
    made, goal, total = store(*lengths), CausalLM(length), 20
    seen, sizes = [], set()
    for batch, position in batches(made, goal, total, seed, epochs=2):
        real = batch.sample[batch.sample >= 0]
        seen += real.tolist()
        sizes.add(len(batch.ids))
        assert position == seen[-1] + 1
        assert np.diff(batch.starts).max() <= batch.longest <= length
    assert seen == list(range(len(seen)))
    assert sizes == {total}
    assert len(seen) == 2 * len(goal.plan(made, seed, 0))


def test_a_position_is_enough_to_go_on():
    made, goal = store(40, 33, 25), CausalLM(5)
    whole = list(itertools.islice(batches(made, goal, 20, 3), 12))
    for cut in (1, 4, 9):
        rest = itertools.islice(batches(made, goal, 20, 3, position=whole[cut - 1][1]), 12 - cut)
        for (batch, position), (other, same) in zip(whole[cut:], rest, strict=True):
            assert position == same
            assert np.array_equal(batch.ids, other.ids)
            assert np.array_equal(batch.labels, other.labels)


def test_an_example_that_does_not_fit():
    with pytest.raises(Error, match="an example of 8 tokens does not fit into a batch of 6"):
        next(batches(store(20), CausalLM(8), 6))
