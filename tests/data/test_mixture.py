"""Mixtures of tasks: their shares, what plans decide, and what cannot be mixed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formers import Error
from formers.data.encoded_examples import EncodedSource, ExampleCollector
from formers.data.loader import load_batches
from formers.data.mixture import Mixture, concatenate_batches
from formers.data.plans import TokenSource
from formers.data.store import Store
from formers.objectives.causal import CausalLM
from formers.objectives.registry import build_objective
from tests.objectives import toys

TOKENIZER = toys.build_tokenizer()


def mix_sources(stores, goals, **more):
    return Mixture(tuple(map(TokenSource, stores, goals)), **more)


def test_a_mixture_takes_its_shares():
    tokens = toys.build_tokenizer(60, sentinels=20, roles={"pad": "<pad>", "eos": "</s>", "unk": "<unk>"})
    text, pairs = toys.build_random_store(1, documents=40), toys.build_store([[4, 5], [3, 6], [5, 2], [2, 2]] * 5)
    goals = build_objective("span-corruption", tokens, 24), build_objective("seq2seq", tokens, 24, prefix="w20 w22")
    counts = [len(g.plan(s, 0, 0)) for g, s in zip(goals, (text, pairs), strict=True)]
    mixed = mix_sources((text, pairs), goals, rates=(0.75, 0.25), epoch_examples=60)
    seen = {0: [], 1: []}
    for epoch in range(3):
        plan = mixed.plan_epoch(0, epoch)
        assert [len(rows) for rows in plan.rows] == [len(part) for part in plan.parts] == [45, 15]
        assert sorted(np.concatenate(plan.rows).tolist()) == list(range(60))
        assert 0 < (np.diff(plan.rows[0]) > 1).sum() < 45, "shuffled together"
        for task, part in enumerate(plan.parts):
            seen[task] += [part.begin[a:b].tolist() for a, b in itertools.pairwise(part.span_offsets)]
    spans = [str(x) for x in seen[1]]
    assert len(set(spans[:20])) <= 20
    assert {spans.count(s) for s in set(spans)} <= {2, 3}, "a task goes on where it stopped: 45 of 20, in turn"
    assert len(set(map(str, seen[1]))) == counts[1]
    sources = []
    for batch, _ in load_batches(mixed, 96, epochs=1):
        rows = toys.split_rows(batch.source.ids, batch.source.starts)
        sources += [rows[i] for i in np.flatnonzero(batch.sample >= 0)]
        assert sorted(batch.sample[batch.sample >= 0].tolist()) == list(
            range(batch.sample[batch.sample >= 0].min(), batch.sample.max() + 1)
        )
    assert sum(source[:2] == [20, 22] for source in sources) == 15


def test_t5s_rates():
    def quota(counts, **more):
        return Mixture((None,) * len(counts), **more).compute_quotas(np.array(counts)).tolist()

    assert quota([100, 300]) == [100, 300]
    assert quota([100, 300], cap=100) == [200, 200]
    assert quota([100, 900], temperature=2.0, epoch_examples=400) == [100, 300]
    assert quota([1, 1, 1], epoch_examples=10) == [4, 3, 3]
    assert quota([5, 7], rates=(3.0, 1.0), epoch_examples=8) == [6, 2]
    assert quota([1, 2, 7], epoch_examples=4) == [0, 1, 3], "what is left goes to the largest remainders"
    with pytest.raises(Error, match="a rate above 0"):
        quota([5, 7], rates=(1.0, 0.0))
    with pytest.raises(Error, match="at least one source"):
        Mixture(())


def test_a_mixture_of_one_sided_tasks_has_places():
    text = toys.build_random_store(1, documents=40)
    goals = build_objective("mlm", TOKENIZER, 24), build_objective("whole-word", TOKENIZER, 24, mask_rate=0.3)
    mixed = mix_sources((text, text), goals)
    plan = mixed.plan_epoch(0, 0)
    shape = mixed.choose_shape(96, plan)
    assert shape.tokens == 96
    assert shape.labels == goals[1].choose_shape(96, goals[1].plan(text, 0, 0)).labels
    assert (shape.source_tokens, shape.longest) == (0, 24)
    seen = [b for b, _ in load_batches(mixed, 96, epochs=1)]
    assert sum((b.sample >= 0).sum() for b in seen) == len(plan)


def test_a_mixture_keeps_what_plans_decide():
    first, second = toys.build_random_store(1), toys.build_random_store(2)
    goals = build_objective("nsp", TOKENIZER, 32), build_objective("sop", TOKENIZER, 32)
    mixed = mix_sources((first, second), goals)
    plan = mixed.plan_epoch(0, 0)
    for task, (goal, store) in enumerate(zip(goals, (first, second), strict=True)):
        own, part = goal.plan(store, 0, 0), plan.parts[task]
        said = {(tuple(p.begin[n * 2 : n * 2 + 2]), int(p.label[n])) for p in (own, part) for n in range(len(p))}
        assert len(said) == len(own) == len(part), "the same examples with the same labels"
    batch = mixed.make_batch(plan, np.arange(len(plan)), 0)
    answers = dict(zip(batch.sample.tolist(), batch.document_labels.tolist(), strict=True))
    for rows, part in zip(plan.rows, plan.parts, strict=True):
        assert [answers[n] for n in rows.tolist()] == part.label.tolist()
    assert set(answers.values()) == {0, 1}


def test_a_slice_of_a_mixture_is_that_part_of_it():
    text = toys.build_random_store(1, documents=40)
    goals = build_objective("mlm", TOKENIZER, 24), build_objective("whole-word", TOKENIZER, 24)
    mixed = mix_sources((text, text), goals, epoch_examples=50)
    plan = mixed.plan_epoch(3, 1)
    sizes = mixed.measure_sizes(plan)
    for low, high in ((0, 50), (0, 1), (7, 23), (49, 50), (20, 20)):
        part = plan.slice_examples(low, high)
        assert len(part) == high - low
        assert np.array_equal(mixed.measure_sizes(part), sizes[low:high])


def test_a_mixture_of_encoded_examples_and_text():
    """Sources of any kind are mixed: examples of a task beside windows of a text."""
    text, made = toys.build_random_store(1, documents=40), ExampleCollector()
    for number in range(12):
        made.add_document(np.full(4 + number, 7), labels=np.arange(4 + number))
        made.add_example(number)
    mixed = Mixture((EncodedSource(made.pack()), TokenSource(text, CausalLM(16))), rates=(0.5, 0.5), epoch_examples=40)
    seen, ids = [], []
    for batch, _ in load_batches(mixed, 96, seed=2, epochs=2):
        seen += batch.sample[batch.sample >= 0].tolist()
        ids += [row for row, n in zip(toys.split_rows(batch.ids, batch.starts), batch.sample, strict=True) if n >= 0]
    assert sorted(seen) == list(range(80))
    assert sum(set(row) == {7} for row in ids) == 40
    assert sorted({len(row) for row in ids if set(row) == {7}}) == list(range(4, 16)), "every example has its turn"


def test_the_limits_of_a_mixture():
    text, goal = toys.build_random_store(1), build_objective("mlm", TOKENIZER, 24)
    many = mix_sources((text,) * 40, (goal,) * 40, rates=(1e-9,) * 40, epoch_examples=120)
    assert [len(part) for part in many.plan_epoch(0, 0).parts] == [3] * 40
    with pytest.raises(Error, match="a task of the mixture has no examples"):
        mix_sources((text, toys.build_store([[1], [1]])), (goal, goal)).plan_epoch(0, 0)
    with pytest.raises(Error, match="a rate above 0 for each"):
        mix_sources((text, text), (goal, goal), rates=(1.0,))


def test_mixtures_of_different_kinds_are_refused():
    tokens = toys.build_tokenizer(60, sentinels=20)
    text = toys.build_random_store(1, documents=40)
    made = [
        toys.make_examples(build_objective(n, tokens, 24), text, numbers=[0, 1])[2]
        for n in ("span-corruption", "causal", "mlm")
    ]
    with pytest.raises(Error, match="differ in source"):
        concatenate_batches(made[:2])
    with pytest.raises(Error, match="differ in chosen"):
        concatenate_batches(made[1:])
    twice = concatenate_batches([made[2], made[2]])
    assert twice.chosen.tolist() == [*made[2].chosen, *(made[2].chosen + len(made[2].ids))]
    assert twice.starts[-1] == 2 * made[2].starts[-1]
    assert np.array_equal(twice.ids[twice.starts[2] :], made[2].ids)
    other = Store(text.tokens, text.starts, text.vocab, "other")
    with pytest.raises(Error, match="different tokenizers"):
        mix_sources((text, other), (None, None))


# Sizes of GLUE's training sets, mixed by the formula of Raffel et al. 2019, §3.5.2, with K = 2^16, by hand.
SIZES = {"cola": 8551, "sst2": 67349, "mnli": 392702, "rte": 2490}


@pytest.mark.parametrize(
    ("more", "rates"),
    [
        # of 471092
        ({}, [0.018151, 0.142964, 0.833599, 0.005286]),
        # min(e, 65536): 8551, 65536, 65536, 2490; the sum is 142113
        ({"cap": 2**16}, [0.060170, 0.461154, 0.461154, 0.017521]),
        # square roots of these: 92.471617, 256, 256, 49.899900; the sum is 654.371517
        ({"cap": 2**16, "temperature": 2.0}, [0.141314, 0.391215, 0.391215, 0.076256]),
        ({"cap": 2**16, "temperature": 1e9}, [0.25] * 4),
        ({"rates": (1.0,) * 4}, [0.25] * 4),
    ],
)
def test_rates_are_those_of_the_paper(more, rates):
    mixed = Mixture((None,) * 4, **more)
    assert mixed.compute_rates(np.array([*SIZES.values()])) == pytest.approx(rates, abs=2e-6)


def make_encoded_source(lengths, mark):
    """Make text-to-text examples of these lengths; their tokens say whose they are and which."""
    made = ExampleCollector()
    for number, length in enumerate(lengths):
        made.add_document(np.full(length, mark + number), target=[mark + number, 1])
        made.add_example(number)
    return EncodedSource(made.pack(), writes_target=True, start=0)


def list_batches(source, **more):
    """List the ids, targets and samples of some batches, with the positions after them."""
    batches = itertools.islice(load_batches(source, 48, epochs=3, **more), 12)
    return [(b.source.ids.tolist(), b.ids.tolist(), b.sample.tolist(), at) for b, at in batches]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(2, 12), min_size=1, max_size=30), min_size=1, max_size=3), st.integers(0, 2**40 - 1),
    st.sampled_from([{}, {"cap": 5}, {"cap": 9, "temperature": 2.0}, {"rates": "equal"}]),
)  # fmt: skip
def test_a_mixture_is_a_function_of_seed_and_position(tasks, seed, strategy):
    """From any position on the batches are the same, every epoch has its quota of each task, and within its turn over a
    task no example comes twice."""
    sources = tuple(make_encoded_source(lengths, 100 * (n + 1)) for n, lengths in enumerate(tasks))
    rates = (1.0,) * len(tasks) if "rates" in strategy else None
    mixed = Mixture(sources, **{**strategy, "rates": rates})
    whole = list_batches(mixed, seed=seed)
    assert whole == list_batches(mixed, seed=seed)
    middle = len(whole) // 2
    assert (
        whole[middle:]
        == list_batches(mixed, seed=seed, position=whole[middle - 1][3] if middle else 0)[: len(whole) - middle]
    )
    counts = np.array([len(lengths) for lengths in tasks])
    quotas, taken = mixed.compute_quotas(counts), [[] for _ in tasks]
    assert quotas.sum() == counts.sum()
    assert np.abs(quotas - mixed.compute_rates(counts) * counts.sum()).max() < 1
    for epoch in range(3):
        plan = mixed.plan_epoch(seed, epoch)
        for number, (rows, part) in enumerate(zip(plan.rows, plan.parts, strict=True)):
            assert len(rows) == quotas[number]
            taken[number] += part.examples.tolist()
    for numbers, count in zip(taken, counts.tolist(), strict=True):
        uses = np.bincount(np.array(numbers, int), minlength=count)
        assert uses.max() - uses.min() <= 1, "no example waits while another comes once more"


def test_workers_and_ranks_do_not_change_a_mixture():
    mixed = Mixture((make_encoded_source([3, 5, 9] * 9, 100), make_encoded_source([4] * 8, 200)), cap=12)
    alone = list_batches(mixed, seed=5)
    assert alone == list_batches(mixed, seed=5, workers=2)
    ranks = [list_batches(mixed, seed=5, rank=rank, ranks=2) for rank in (0, 1)]
    both = [batch[:3] for pair in zip(*ranks, strict=True) for batch in pair]
    assert both[: len(alone)] == [batch[:3] for batch in alone][: len(both)]
