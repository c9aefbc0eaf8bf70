"""Plans: windows, streams, buckets, what is kept beside a store."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import formers
from formers import Error, Store
from formers.data import plans as cache
from formers.data.loader import plan_epoch
from formers.data.plans import (
    Plan,
    TokenSource,
    bucket_by_length,
    cut_windows,
    gather_examples,
    plan_single_spans,
    plan_streams,
    plan_whole_sentences,
    plan_windows,
)
from formers.objectives.causal import CausalLM
from formers.registry import train_tokenizer
from tests.objectives import toys


def build_store(*lengths, vocab=1000):
    starts = np.cumsum([0, *lengths])
    return Store(np.arange(starts[-1], dtype=np.uint16) % vocab, starts, vocab, "x")


def list_spans(plan):
    return sorted(zip(plan.begin.tolist(), plan.end.tolist(), strict=True))


def test_windows_cover_every_document():
    made = build_store(10, 3, 1, 7)
    plan = plan_windows(made, 4, 0, 0)
    assert list_spans(plan) == [(0, 4), (4, 8), (6, 10), (10, 13), (14, 18), (17, 21)]
    again = plan_windows(made, 4, 0, 1)
    assert again.begin.tolist() != plan.begin.tolist()
    assert plan_windows(made, 4, 0, 0).begin.tolist() == plan.begin.tolist()
    assert plan_windows(made, 4, 1, 0).begin.tolist() != plan.begin.tolist()
    assert (plan.label == -1).all()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(2, 12), st.integers(1, 50))
def test_windows_move_from_epoch_to_epoch(lengths, length, epoch):
    """As many as in the first, full ones, inside their documents, and every place has its turn."""
    made = build_store(*lengths)
    first, plan = plan_windows(made, length, 0, 0), plan_windows(made, length, 0, epoch)
    assert len(plan) == len(first)
    owner = np.searchsorted(made.starts, plan.begin, side="right") - 1
    assert (plan.begin >= made.starts[owner]).all()
    assert (plan.end <= made.starts[owner + 1]).all()
    sizes = np.diff(made.starts)
    assert sorted(plan.lengths) == sorted(first.lengths)
    assert (plan.lengths == np.minimum(length, sizes[owner])).all()
    later = [plan_windows(made, length, 0, e) for e in range(40)]
    seen = {t for p in later for b, e in zip(p.begin, p.end, strict=True) for t in range(b, e)}
    assert seen == {t for d in range(len(sizes)) if sizes[d] > 1 for t in range(made.starts[d], made.starts[d + 1])}
    if sizes.max() > 2 * length:
        assert len({tuple(sorted(p.begin)) for p in later}) > 1


def test_windows_across_documents():
    plan = plan_windows(build_store(10, 3, 1, 7), 4, 0, 0, across=True)
    assert list_spans(plan) == [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20), (17, 21)]


@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 1), st.integers(30, 90))
def test_streams_continue_where_they_ended(length, rows, extra, total):
    made = build_store(total)
    if (total - extra) // rows < length:
        with pytest.raises(Error, match="too few for"):
            plan_streams(made, length, rows, extra=extra)
        return
    plan = plan_streams(made, length, rows, extra=extra)
    begin, end = plan.begin.reshape(-1, rows), plan.end.reshape(-1, rows)
    assert (end - begin == length + extra).all()
    assert np.array_equal(begin[1:], begin[:-1] + length), "each window follows the one before it in its stream"
    assert (np.diff(begin[0]) == begin[0][-1] // max(1, rows - 1)).all() if rows > 1 else begin[0, 0] == 0
    covered = [i for b, e in zip(plan.begin, plan.end - extra, strict=True) for i in range(b, e)]
    assert len(set(covered)) == len(covered)
    assert plan.end.max() <= total
    assert total - extra - len(covered) < rows * (length + 1), "less than a window of each stream is left over"


@given(st.lists(st.integers(1, 500), max_size=600), st.integers(0, 3), st.integers(0, 3))
def test_buckets(lengths, seed, epoch):
    order = bucket_by_length(np.array(lengths, np.int64), seed, epoch, bucket_size=16)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    assert np.array_equal(order, bucket_by_length(np.array(lengths, np.int64), seed, epoch, bucket_size=16))


def test_neighbours_in_a_bucket_are_alike():
    lengths = np.random.default_rng(0).integers(1, 500, 4000)
    order = bucket_by_length(lengths, 0, 0, bucket_size=64)
    waste = [1 - b.mean() / b.max() for b in np.array_split(lengths[order], 250)]
    assert np.mean(waste) < 0.12, "padding to the longest of a batch"
    assert np.mean([1 - b.mean() / b.max() for b in np.array_split(lengths, 250)]) > 0.4
    first = lengths[order][:1000].mean(), lengths[order][-1000:].mean()
    assert abs(first[0] - first[1]) < 150, "short and long ones are mixed over the epoch"
    assert not np.array_equal(order, bucket_by_length(lengths, 0, 1, bucket_size=64))
    assert (
        len({frozenset(order[:64].tolist()), frozenset(bucket_by_length(lengths, 0, 1, bucket_size=64)[:64].tolist())})
        == 2
    )


@given(st.data())
def test_gather_is_what_a_loop_gathers(data):
    total = 60
    made = build_store(20, 15, 25)
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    pairs = st.tuples(st.integers(0, total), st.integers(0, total)).map(sorted)
    pieces = data.draw(st.lists(pairs, min_size=sum(counts), max_size=sum(counts)))
    begin, end = np.array([p[0] for p in pieces]), np.array([p[1] for p in pieces])
    plan = Plan(begin, end, np.cumsum([0, *counts]), np.arange(len(counts), dtype=np.int8))
    lengths = [sum(b - a for a, b in pieces[plan.span_offsets[i] : plan.span_offsets[i + 1]]) for i in range(len(plan))]
    assert plan.lengths.tolist() == lengths
    numbers = data.draw(st.lists(st.integers(0, len(counts) - 1), min_size=1, max_size=5))
    raw = gather_examples(made, plan, numbers, np.array(numbers) + 100)
    mine = [[pieces[s] for s in range(plan.span_offsets[n], plan.span_offsets[n + 1])] for n in numbers]
    assert raw.ids.tolist() == [i for example in mine for a, b in example for i in range(a, b)]
    assert raw.span_index.tolist() == [k for example in mine for k, (a, b) in enumerate(example) for _ in range(a, b)]
    assert np.diff(raw.starts).tolist() == [lengths[n] for n in numbers]
    assert raw.label.tolist() == numbers
    assert raw.sample.tolist() == [n + 100 for n in numbers]
    low = data.draw(st.integers(0, len(plan) - 1))
    part = plan.slice_examples(low, len(plan))
    again = gather_examples(made, part, np.arange(len(part)), np.arange(low, len(plan)))
    whole = gather_examples(made, plan, np.arange(low, len(plan)), np.arange(low, len(plan)))
    assert again.ids.tolist() == whole.ids.tolist()
    assert again.starts.tolist() == whole.starts.tolist()


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    texts = [f"the cat number {i} sat on the mat number {i * 7}" for i in range(400)]
    return formers.prepare(
        texts, train_tokenizer("bpe", texts, 300), tmp_path_factory.mktemp("plans") / "s", splitter=None
    )


class Counting(CausalLM):
    calls = 0

    def plan(self, store, seed, epoch):
        Counting.calls += 1
        return super().plan(store, seed, epoch)


def test_large_plans_are_kept(disk, monkeypatch):
    monkeypatch.setattr(cache, "MIN_CACHED_EXAMPLES", 100)
    goal, folder = Counting(8), disk.directory.path / "plans"
    Counting.calls = 0
    one = plan_epoch(TokenSource(disk, goal), 3, 0)
    two = plan_epoch(TokenSource(Store.open(disk.directory.path), goal), 3, 0)
    assert Counting.calls == 1
    fresh = goal.plan(disk, 3, 0)
    for plan in (one, two):
        assert all(np.array_equal(getattr(plan, name), getattr(fresh, name)) for name in cache.PLAN_DTYPES)
    assert not list(folder.glob("*.tmp"))
    assert not list(folder.glob("*.lock"))
    others = [
        plan_epoch(TokenSource(disk, goal), 4, 0),
        plan_epoch(TokenSource(disk, Counting(9)), 3, 0),
        plan_epoch(TokenSource(disk, goal), 3, 1),
    ]
    assert Counting.calls == 5, "another seed, objective or epoch is another plan"
    assert not any(np.array_equal(other.begin, one.begin) for other in others)
    assert len(list(folder.glob("*.bin"))) == 4
    plan_epoch(TokenSource(disk, goal), 3, 2)
    names = {p.name for p in folder.glob("*.bin")}
    assert sum(name.endswith("-2.bin") for name in names) == 1
    assert len(names) == 4, "the plan of two epochs ago is gone"


def test_a_damaged_plan_is_made_again(disk, monkeypatch):
    monkeypatch.setattr(cache, "MIN_CACHED_EXAMPLES", 100)
    goal = CausalLM(7)
    one = plan_epoch(TokenSource(disk, goal), 0, 0)
    begin = np.array(one.begin)
    del one
    (file,) = [
        p
        for p in (disk.directory.path / "plans").glob("*.bin")
        if p.stem.startswith(cache.hash_plan_inputs(disk, goal, 0))
    ]
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    assert cache.read_plan(file) is None
    assert np.array_equal(plan_epoch(TokenSource(disk, goal), 0, 0).begin, begin)
    assert cache.read_plan(file) is not None


def test_a_plan_that_changes_its_size():
    class Odd(CausalLM):
        def plan(self, store, seed, epoch):
            return plan_single_spans(np.arange(epoch + 1), np.arange(epoch + 1) + 2)

    assert len(plan_epoch(TokenSource(build_store(9), Odd(3)), 0, 1, 2)) == 2
    with pytest.raises(Error, match="epoch 1 has 2 examples, the first one 5"):
        plan_epoch(TokenSource(build_store(9), Odd(3)), 0, 1, 5)
    with pytest.raises(Error, match="no example can be made"):
        plan_epoch(TokenSource(build_store(1), CausalLM(3)), 0, 0)


def test_cut_reaches_back():
    plan = cut_windows(np.array([0, 10, 20]), np.array([7, 11, 23]), 5, 0, 0)
    assert sorted(zip(plan.begin, plan.end, strict=True)) == [(0, 5), (2, 7), (20, 23)], "one token is no example"


def test_whole_sentences_are_packed_across_documents():
    """RoBERTa §4.2: examples begin and end with sentences, hold as many as fit, and cross documents."""
    store = toys.build_store([[5, 7, 3], [2], [30, 4, 4], [6, 6]])
    plan = plan_whole_sentences(store, None, 16, 1, 0)
    spans = sorted(zip(plan.begin.tolist(), plan.end.tolist(), strict=True))
    assert spans == [(0, 15), (15, 17), (17, 33), (33, 47), (47, 61), (61, 67)], "the sentence of 30 is cut, no other"
    again = plan_whole_sentences(store, None, 16, 1, 1)
    assert sorted(again.begin.tolist()) == [begin for begin, _ in spans]
    ended = toys.build_store([[5, 5], [5, 4]], end=3)
    made = plan_whole_sentences(ended, 3, 11, 1, 0)
    assert sorted(zip(made.begin.tolist(), made.end.tolist(), strict=True)) == [(0, 10), (11, 20)], (
        "no end mark at an end"
    )
    across = plan_whole_sentences(ended, 3, 20, 1, 0)
    assert 3 in ended.tokens[across.begin[across.begin == 0][0] : across.end[across.begin == 0][0]], (
        "a separator within"
    )
