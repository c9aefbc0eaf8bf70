"""Batches: packing, the same whatever the batch, worker or rank; workers that die."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import formers
from formers import Error, Store
from formers.batch import IGNORE_INDEX, Batch, BatchShape
from formers.data.loader import load_batches, pack_examples, pad_batch
from formers.data.plans import Plan, TokenSource, plan_single_spans, plan_streams
from formers.data.preparation.document_encoder import build_unit_finder, learn_phrases
from formers.data.readers import load_bundled_corpus
from formers.objectives.causal import CausalLM
from formers.objectives.registry import OBJECTIVES, build_objective
from formers.registry import train_tokenizer

NAMES = [name for name in OBJECTIVES if name != "seq2seq"]  # which needs a store of pairs


def build_store(*lengths, vocab=100):
    starts = np.cumsum([0, *lengths])
    return Store(np.arange(starts[-1], dtype=np.uint16) % vocab, starts, vocab, "x")


def list_examples(batch):
    """The examples of a batch: global number → everything that the model sees of it."""
    out = {}
    chosen = np.arange(len(batch.ids)) if batch.chosen is None else batch.chosen
    for row, sample in enumerate(batch.sample.tolist()):
        if sample < 0:
            continue
        low, high = batch.starts[row], batch.starts[row + 1]
        seen = [batch.ids[low:high].tobytes()]
        seen += [v[low:high].tobytes() for v in (batch.segments, batch.order, batch.positions) if v is not None]
        if batch.labels is not None:
            asked = (chosen >= low) & (chosen < high) & (batch.labels != IGNORE_INDEX)
            seen += [(chosen[asked] - low).tobytes(), batch.labels[asked].tobytes()]
        if batch.document_labels is not None:
            seen.append(batch.document_labels[row].tobytes())
        if batch.source is not None:
            begin, end = batch.source.starts[row : row + 2]
            seen.append(batch.source.ids[begin:end].tobytes())
        out[sample] = seen
    return out


def is_equal_batch(one: Batch, two: Batch) -> bool:
    for field in dataclasses.fields(Batch):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, Batch):
            same = is_equal_batch(a, b)
        else:
            same = (a is None and b is None) or np.array_equal(a, b)
        if not same:
            return False
    return True


@pytest.fixture(scope="module")
def corpus():
    texts = [text[:1200] for text in load_bundled_corpus("en")[0][:20]]
    tokenizer = train_tokenizer("wordpiece", texts, 500)
    units = build_unit_finder(learn_phrases(texts, min_count=2, discount=1.0, threshold=10.0))
    return tokenizer, Store.from_documents(texts, tokenizer, sentences="rules", units=units)


def build_objectives(tokenizer, length=24):
    """Every objective that this tokenizer can have."""
    for name in NAMES:
        try:
            yield build_objective(name, tokenizer, length)
        except Error:
            continue


def test_filled():
    batch = Batch(
        np.array([5, 6, 7]), np.array([0, 2, 3]), 2, segments=np.array([0, 1, 0]), chosen=np.array([1]),
        labels=np.array([9]), sample=np.array([4, 5]), document_labels=np.array([1, 0]),
        source=Batch(np.array([1, 2, 3, 4]), np.array([0, 3, 4]), 3, positions=np.array([0, 1, 2, 0])),
    )  # fmt: skip
    full = pad_batch(batch, BatchShape(5, 8, 3, 2, 9, 4))
    assert full.ids.tolist() == [5, 6, 7, 0, 0, 0, 0, 0]
    assert full.starts.tolist() == [0, 2, 3, 5, 7, 8]
    assert full.starts.dtype == np.int32
    assert full.segments.tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    assert full.chosen.tolist() == [1, 0, 0]
    assert full.labels.tolist() == [9, IGNORE_INDEX, IGNORE_INDEX]
    assert full.document_labels.tolist() == [1, 0, IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX]
    assert full.sample.tolist() == [4, 5, -1, -1, -1]
    assert full.longest == 2
    assert full.source.ids.tolist() == [1, 2, 3, 4, 0, 0, 0, 0, 0]
    assert full.source.starts.tolist() == [0, 3, 4, 8, 9, 9]
    assert full.source.longest == 4
    assert full.source.sample is None
    for small in (
        BatchShape(1, 8, 3, 2, 9, 4),
        BatchShape(5, 2, 3, 2, 9, 4),
        BatchShape(3, 8, 3, 2, 9, 4),
        BatchShape(5, 8, 3, 2, 3, 4),
    ):
        with pytest.raises(Error, match="do not fit into"):
            pad_batch(batch, small)
    with pytest.raises(Error, match="do not fit into"):
        pad_batch(batch.replace(chosen=np.arange(4), labels=np.arange(4)), BatchShape(5, 8, 3, 2, 9, 4))
    every = pad_batch(
        batch.replace(chosen=None, labels=np.array([1, 2, 3]), source=None, document_labels=None),
        BatchShape(5, 8, 0, 2),
    )
    assert every.labels.tolist() == [1, 2, 3] + [IGNORE_INDEX] * 5
    assert every.chosen is None


class Sized:
    """A source that is sizes only."""

    def __init__(self, sizes, shape):
        self.given, self.wanted = np.array(sizes, np.int64).reshape(-1, 3), shape

    def plan_epoch(self, seed, epoch):
        return plan_single_spans(np.arange(len(self.given)), np.arange(len(self.given)) + 1)

    def measure_sizes(self, plan):
        return self.given[plan.begin]

    def choose_shape(self, total, plan):
        return self.wanted


@given(st.data())
def test_packing_is_greedy_and_always_fills(data):
    longest, other = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 9))
    triples = st.tuples(st.integers(1, longest), st.integers(0, data.draw(st.integers(0, 5))), st.integers(0, other))
    sizes = data.draw(st.lists(triples, min_size=1, max_size=40))
    tokens, source = data.draw(st.integers(longest, 40)), other and data.draw(st.integers(other, 30))
    rows = -(-tokens // longest) + (-(-source // other) if other else 0) + data.draw(st.integers(1, 6))
    shape = BatchShape(rows, tokens, data.draw(st.integers(5, 12)), longest, source, other)
    goal = Sized(sizes, shape)
    plan = goal.plan_epoch(0, 0)
    limits = np.array([tokens, shape.labels, source])

    def works(part):
        used, left = part.sum(0), rows - len(part)
        return (used <= limits).all() and left * longest >= tokens - used[0] and left * other >= source - used[2]

    at = 0
    for low, high in pack_examples(goal, plan, shape, 0):
        assert low == at < high
        assert works(goal.given[low:high])
        assert high == len(plan) or not works(goal.given[low : high + 1]), "as many as possible"
        at = high
    assert at == len(plan)
    begin = data.draw(st.integers(0, len(plan) - 1))
    again = list(pack_examples(goal, plan, shape, begin))
    assert again[0][0] == begin
    assert again[-1][1] == len(plan)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(3, 9), st.integers(0, 5), st.integers(9, 40))
@example([2] * 60 + [200], 9, 0, 40)  # a run of short ones uses up the documents before the tokens
def test_batches_lose_and_repeat_nothing(lengths, length, seed, total):
    made, goal = build_store(*lengths, 2), CausalLM(length)
    seen, shapes = [], set()
    for batch, position in load_batches(TokenSource(made, goal), total, seed, epochs=2):
        real = batch.sample[batch.sample >= 0]
        seen += real.tolist()
        shapes.add((len(batch.ids), len(batch.starts), batch.longest))
        assert position == seen[-1] + 1
        assert np.diff(batch.starts).max() <= batch.longest <= length
        assert batch.starts[-1] == total
    assert seen == list(range(len(seen)))
    assert len(shapes) == 1
    assert {s[0] for s in shapes} == {total}
    assert len(seen) == 2 * len(goal.plan(made, seed, 0))


@given(st.integers(0, 60), st.integers(0, 3), st.sampled_from([12, 20, 33]))
def test_any_position_is_enough_to_continue(cut, seed, total):
    made, goal = build_store(40, 33, 25, 1, 2, 9), CausalLM(5)
    whole = {}
    for batch, _ in load_batches(TokenSource(made, goal), total, seed, epochs=3):
        whole |= list_examples(batch)
    rest = {}
    for batch, _ in load_batches(TokenSource(made, goal), total, seed, position=cut, epochs=3):
        rest |= list_examples(batch)
    assert rest == {k: v for k, v in whole.items() if k >= cut}


def test_a_boundary_gives_the_same_batches(corpus):
    tokenizer, made = corpus
    for goal in build_objectives(tokenizer):
        whole = list(itertools.islice(load_batches(TokenSource(made, goal), 200, 3), 9))
        for at in (1, 4, 8):
            rest = itertools.islice(load_batches(TokenSource(made, goal), 200, 3, position=whole[at - 1][1]), 9 - at)
            for (batch, position), (other, same) in zip(whole[at:], rest, strict=True):
                assert position == same
                assert is_equal_batch(batch, other)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_the_same_in_any_batch_worker_and_rank_and_another_in_the_next_epoch(corpus, name):
    tokenizer, made = corpus
    try:
        goal = build_objective(name, tokenizer, 24)
    except Error as error:
        pytest.skip(str(error))
    count = len(goal.plan(made, 5, 0))

    def seen(total, epochs=2, **how):
        found = {}
        for batch, _ in load_batches(TokenSource(made, goal), total, 5, epochs=epochs, **how):
            new = list_examples(batch)
            assert not found.keys() & new.keys()
            found |= new
        return found

    most = int(goal.measure_sizes(goal.plan(made, 5, 0))[:, [0, 2]].max())
    whole = seen(32 * most)
    assert sorted(whole) == list(range(2 * count))
    for batch in (most, 7 * most):
        assert seen(batch, epochs=1) == {k: v for k, v in whole.items() if k < count}
    for workers in (1, 2):
        assert seen(7 * most, workers=workers) == whole
    ranks = [seen(7 * most, rank=rank, ranks=2) for rank in range(2)]
    assert not ranks[0].keys() & ranks[1].keys()
    assert ranks[0] | ranks[1] == whole
    if goal.plan(made, 5, 0).lengths.std():  # the order of an epoch is drawn anew
        assert [whole[n] for n in range(count)] != [whole[n] for n in range(count, 2 * count)]


def test_what_is_hidden_differs_in_the_next_epoch(corpus):
    tokenizer, made = corpus
    goal = build_objective("mlm", tokenizer, 24)
    first, second = (goal.plan(made, 5, epoch) for epoch in range(2))
    place = {b: n for n, b in enumerate(second.begin.tolist())}
    count, same, changed = len(first), 0, 0
    seen = {}
    for batch, _ in load_batches(TokenSource(made, goal), 2400, 5, epochs=2):
        seen |= list_examples(batch)
    for n, begin in enumerate(first.begin.tolist()):
        if first.lengths[n] == 22 and begin in place:  # windows at a document's ends stay, the others move
            same += seen[n] == seen[count + place[begin]]
            changed += 1
    assert changed > 20
    assert same < changed / 10, "the same text is hidden otherwise"


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_give_the_same_sequence(corpus, start, tmp_path):
    tokenizer, made = corpus
    goal = build_objective("mlm", tokenizer, 24)
    if start == "spawn":  # by its path
        made = formers.prepare(load_bundled_corpus("en")[0][:4], tokenizer, tmp_path / "s")
    alone = list(itertools.islice(load_batches(TokenSource(made, goal), 240, 1), 12))
    by_workers = load_batches(
        TokenSource(made, goal), 240, 1, workers=2 if start == "fork" else 1, start_method=start, prefetch=3
    )
    for (batch, position), (other, same) in zip(alone, by_workers, strict=False):
        assert position == same
        assert is_equal_batch(batch, other)
    by_workers.close()
    assert not multiprocessing.active_children()


def test_order_over_a_change_of_ranks_and_workers(corpus):
    """The data side of resuming on another number of processes: 1 → 2 → 1 ranks, 0/1/2 workers."""
    tokenizer, made = corpus
    goal = build_objective("causal", tokenizer, 24)
    whole, order = {}, []
    for batch, _ in itertools.islice(load_batches(TokenSource(made, goal), 240, 2), 40):
        whole |= list_examples(batch)
    position, got = 0, {}
    for ranks, workers in ((1, 0), (2, 1), (1, 2), (2, 0)):
        ends = []
        for rank in range(ranks):
            run = load_batches(
                TokenSource(made, goal), 240, 2, position=position, rank=rank, ranks=ranks, workers=workers
            )
            some = list(itertools.islice(run, 10 // ranks))
            for batch, _ in some:
                got |= list_examples(batch)
                order += list(list_examples(batch))
            ends.append(some[-1][1])
            run.close()
        assert len(set(ends)) == 1, "all ranks agree on the position"
        position = ends[0]
    assert position == max(whole) + 1
    assert got == whole
    assert len(order) == len(set(order)) == len(whole)


def test_all_ranks_get_as_many_batches():
    made, goal = build_store(40, 33, 25), CausalLM(5)
    alone = list(load_batches(TokenSource(made, goal), 20, 0, epochs=1))
    assert len(alone) % 4
    shared = [list(load_batches(TokenSource(made, goal), 20, 0, epochs=1, rank=rank, ranks=4)) for rank in range(4)]
    assert {len(part) for part in shared} == {-(-len(alone) // 4)}
    assert [end for _, end in shared[0]] == [end for _, end in shared[3]]
    last = shared[3][-1][0]
    assert (last.sample == -1).all()
    assert (last.labels == IGNORE_INDEX).all()
    assert len(last.ids) == 20
    got = {}
    for part in shared:
        for batch, _ in part:
            got |= list_examples(batch)
    assert sorted(got) == list(range(len(goal.plan(made, 0, 0))))


def test_streams_make_batches_that_follow_each_other():
    made = build_store(50, 43, 30)

    class Streamed(CausalLM):
        def plan(self, store, seed, epoch) -> Plan:
            return plan_streams(store, 5, 4)

        def choose_shape(self, total, plan):
            return BatchShape(2, 10, 0, 5)

    run = [batch for batch, _ in load_batches(TokenSource(made, Streamed(5)), 10, epochs=1, rank=1, ranks=2)]
    assert all(batch.sample.min() >= 0 for batch in run), "nothing is filled up"
    for one, two in itertools.pairwise(run):
        assert np.array_equal(two.ids[[0, 5]], (one.ids[[4, 9]] + 1) % 100), "each row goes on, on the same rank"


def test_what_does_not_fit():
    with pytest.raises(Error, match="an example does not fit into a batch: 8 \\+ 8 \\+ 0 tokens"):
        next(load_batches(TokenSource(build_store(20), CausalLM(8)), 6))
    with pytest.raises(Error, match="rank 2 is not one of 2"):
        next(load_batches(TokenSource(build_store(20), CausalLM(8)), 60, rank=2, ranks=2))
    with pytest.raises(Error, match="a position counts from 0"):
        next(load_batches(TokenSource(build_store(20), CausalLM(8)), 60, position=-1))


class Slow(CausalLM):
    def corrupt(self, raw, seed):
        time.sleep(0.02)
        return super().corrupt(raw, seed)


class Bad(CausalLM):
    def corrupt(self, raw, seed):
        if raw.sample[0] > 20:
            raise Error("no such thing", fix="try another")
        return super().corrupt(raw, seed)


def test_a_worker_that_dies_is_an_error_at_once():
    run = load_batches(TokenSource(build_store(4000), Slow(5)), 20, workers=2)
    next(run)
    victim = multiprocessing.active_children()[0].pid
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(Error, match=f"loader worker {victim} was ended by signal 9 \\(SIGKILL\\)"):
        for _ in run:
            pass
    assert not multiprocessing.active_children()


def test_an_error_in_a_worker_arrives():
    run = load_batches(TokenSource(build_store(400), Bad(5)), 20, workers=2)
    with pytest.raises(Error, match="no such thing. Try another"):
        for _ in run:
            pass
    assert not multiprocessing.active_children()


def test_nothing_is_left_behind():
    import gc
    import threading

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    for how in ("close", "drop", "end"):
        run = load_batches(TokenSource(build_store(400), Slow(5)), 20, workers=2, epochs=1 if how == "end" else None)
        next(run)
        if how == "end":
            assert sum(1 for _ in run) > 5
        elif how == "close":
            run.close()
        del run
        gc.collect()
        assert not multiprocessing.active_children()
        assert not [t for t in threading.enumerate() if t.name == "formers-loader"]
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before
    assert not {name for name in set(os.listdir("/dev/shm")) - shared if "psm" in name} if shared else True


def test_ctrl_c_ends_the_workers(tmp_path):
    import subprocess
    import sys

    script = tmp_path / "run.py"
    script.write_text(
        "import multiprocessing, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import numpy as np\n"
        "from formers import Store\n"
        "from formers.data.loader import load_batches\n"
        "from formers.data.plans import TokenSource\n"
        "from formers.objectives.causal import CausalLM\n"
        "made = Store(np.arange(5000, dtype=np.uint16), np.array([0, 5000]), 5000, 'x')\n"
        "try:\n"
        "    for batch, _ in load_batches(TokenSource(made, CausalLM(5)), 20, workers=2):\n"
        "        print(*[p.pid for p in multiprocessing.active_children()], flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped', flush=True)\n",
        encoding="utf-8",
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    workers = [int(word) for word in process.stdout.readline().split()]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, _ = process.communicate(timeout=30)
    assert out.splitlines()[-1] == "stopped"
    assert len(workers) == 2
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@settings(max_examples=5)
@given(st.integers(1, 3), st.integers(1, 4))
def test_prefetch_changes_nothing(workers, prefetch):
    made, goal = build_store(300), CausalLM(5)
    alone = [batch.sample.tolist() for batch, _ in load_batches(TokenSource(made, goal), 20, epochs=1)]
    by_workers = [
        b.sample.tolist()
        for b, _ in load_batches(TokenSource(made, goal), 20, epochs=1, workers=workers, prefetch=prefetch)
    ]
    assert by_workers == alone


def test_full_windows_make_whole_grids():
    """Without a shorter window among them, batches need no dummy documents, the last of an epoch but whole ones."""
    source = TokenSource(build_store(64, 32, 16, 80), CausalLM(16))
    batches = [batch.to("cpu") for batch, _ in load_batches(source, 48, epochs=1)]
    assert len(batches) == 4
    assert all(batch.layout.is_uniform and len(batch.ids) == 48 for batch in batches)
    assert sorted(n for batch in batches for n in batch.sample.tolist() if n >= 0) == list(range(12))
    ragged = TokenSource(build_store(64, 32, 16, 75, 9), CausalLM(16))
    assert not next(load_batches(ragged, 48))[0].to("cpu").layout.is_uniform
