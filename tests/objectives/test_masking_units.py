"""ERNIE's units, pairs and dialogues."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import formers
from formers import Error
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.data.preparation.document_encoder import ENTITY_BIT, PHRASE_BIT, build_unit_finder
from formers.objectives.masking import choose_units
from formers.objectives.registry import build_objective
from tests.objectives import toys

TOKENIZER = toys.build_tokenizer()
CLS, SEP = TOKENIZER.id("cls"), TOKENIZER.id("sep")


def build_marked_store(seed=0, **more):
    """A store whose units begin at random tokens."""
    data = toys.build_random_store(seed, **more)
    r = np.random.default_rng(seed)
    phrase, entity = r.random(len(data.tokens)) < 0.6, r.random(len(data.tokens)) < 0.4
    return toys.add_units(data, (PHRASE_BIT * phrase + ENTITY_BIT * entity).astype(np.uint8))


@torch.no_grad()
@pytest.mark.parametrize("name", ["ernie-units", "unit-pairs", "dialogue"])
def test_a_task_that_the_model_does_not_know_is_refused(name):
    sizes = {"head": "pretraining", "vocab": 60, "context": 24, "dim": 12, "layers": 1, "heads": 3, "ff": 18}
    plain, second = formers.build("ernie", **sizes), formers.build("ernie", use_tasks=True, tasks=4, **sizes)
    for task, model, known in ((0, plain, 0), (4, second, 4), (99, second, 4)):
        goal = build_objective(name, TOKENIZER, 24, stage="basic", task_id=task)
        batch = next(load_batches(TokenSource(toys.build_random_store(1), goal), 96))[0].to("cpu")
        with pytest.raises(Error, match=f"task_id={task} is none of the {known} that this model knows"):
            goal.loss(model.model, batch)
    goal = build_objective(name, TOKENIZER, 24, stage="basic", task_id=3)
    assert torch.isfinite(
        goal.loss(second.model, next(load_batches(TokenSource(toys.build_random_store(1), goal), 96))[0].to("cpu"))[
            "mlm"
        ][0]
    )


@functools.cache
def build_million_tokens():
    return build_marked_store(3, documents=1700, most=60, longest=40)


@given(st.integers(0, 10**4), st.sampled_from(["basic", "phrase", "entity"]))
def test_units_are_hidden_whole(seed, stage):
    data = build_marked_store(seed % 7)
    goal = build_objective("ernie-units", TOKENIZER, 40, stage=stage, mask_rate=0.3)
    plan, raw, batch = toys.make_examples(goal, data, seed)
    hidden = np.isin(np.arange(len(batch.ids)), batch.chosen)
    inner = ~np.isin(np.arange(len(batch.ids)), np.concatenate((batch.starts[:-1], batch.starts[1:] - 1)))
    hidden = hidden[inner]  # the tokens of the store, in their order
    begins = (
        np.ones(len(raw.ids), bool) if stage == "basic" else (raw.unit_bits & {"phrase": 1, "entity": 2}[stage]) > 0
    )
    begins |= raw.sentence_starts
    begins[raw.starts[:-1]] = True
    unit = np.cumsum(begins) - 1
    share = np.bincount(unit, hidden) / np.bincount(unit)
    assert set(share.tolist()) <= {0.0, 1.0}
    restored = batch.ids.copy()
    restored[batch.chosen] = batch.labels
    assert np.array_equal(restored[inner], raw.ids)
    assert (np.bincount(np.searchsorted(batch.starts, batch.chosen, side="right") - 1, minlength=len(plan))
            <= goal.measure_sizes(plan)[:, 1]).all()  # fmt: skip


@pytest.mark.parametrize(("stage", "mean"), [("basic", 1.0), ("phrase", 1 / 0.6), ("entity", 2.5)])
def test_each_unit_has_its_chance(stage, mean):
    data = build_million_tokens()
    assert len(data.tokens) > 1_000_000
    goal = build_objective("ernie-units", TOKENIZER, 512, stage=stage)
    _, _, batch = toys.make_examples(goal, data)
    hidden = np.isin(np.arange(len(batch.ids)), batch.chosen)
    inner = ~np.isin(np.arange(len(batch.ids)), np.concatenate((batch.starts[:-1], batch.starts[1:] - 1)))
    hidden = hidden[inner]
    assert hidden.mean() == pytest.approx(0.15, abs=4 * (0.15 * 0.85 * 2 * mean / len(hidden)) ** 0.5 + 0.0005)
    now = batch.ids[batch.chosen]
    assert (now == TOKENIZER.id("mask")).mean() == pytest.approx(0.8 + 0.1 / 60, abs=0.005), "each token its own"
    if stage == "entity":  # within one unit, tokens meet different fates
        at = np.flatnonzero(np.diff(batch.chosen) == 1)
        fates = (now == TOKENIZER.id("mask")).astype(int)
        assert np.corrcoef(fates[at], fates[at + 1])[0, 1] == pytest.approx(0, abs=0.02)


def test_a_limit_for_places():
    goal = build_objective("ernie-units", TOKENIZER, 512, stage="basic", mask_rate=1.0)
    _, _, batch = toys.make_examples(goal, toys.build_store([[400]]))
    assert len(batch.chosen) == 400
    few = build_objective("ernie-units", TOKENIZER, 512, stage="basic", mask_rate=0.15)
    assert few.count_masked(np.array([512])).tolist() == [int(np.ceil(76.8 + 6 * 76.8**0.5 + 4))]
    assert few.count_masked(np.array([10])).tolist() == [10]


def test_a_limit_is_reached_and_not_passed():
    free, starts = np.ones(6, bool), np.array([0, 6])
    begins = np.array([True, False, True, False, True, False])
    for limit, count in ((6, 6), (5, 4), (4, 4), (1, 0)):
        hidden = choose_units(free, begins, starts, 1.0, np.array([limit]), 0, np.array([0]))
        assert hidden.sum() == count


def test_a_store_without_units():
    with pytest.raises(Error, match="does not say where a phrase begins"):
        toys.make_examples(build_objective("ernie-units", TOKENIZER, 40, stage="phrase"), toys.build_random_store())
    with pytest.raises(Error, match="'stage' cannot be 'clause'"):
        build_objective("ernie-units", TOKENIZER, 40, stage="clause")


def test_true_pairs_are_one():
    data = build_marked_store()
    plan, raw, batch = toys.make_examples(build_objective("unit-pairs", TOKENIZER, 40, stage="phrase"), data)
    spans = np.stack((plan.begin, plan.end), 1).reshape(-1, 2, 2)
    document = np.searchsorted(data.starts, spans[:, :, 0], side="right") - 1
    assert np.array_equal(batch.document_labels == 1, document[:, 0] == document[:, 1])
    assert set(batch.segments.tolist()) == {0, 1}
    assert len(raw.sample) == len(plan)


@given(st.integers(0, 10**4), st.integers(12, 60))
def test_dialogues(seed, length):
    data = build_marked_store(seed % 5, documents=12)
    goal = build_objective("dialogue", TOKENIZER, length, stage="basic")
    plan, raw, batch = toys.make_examples(goal, data, seed)
    for n in range(len(plan)):
        low, high = plan.span_offsets[n : n + 2]
        assert high - low in (2, 3)
        documents = np.searchsorted(data.starts, plan.begin[low:high], side="right") - 1
        own = np.bincount(documents).max()
        if plan.label[n]:
            assert own == high - low, "a real conversation"
        else:
            assert own == high - low - 1, "one turn is another's"
        assert np.isin(plan.begin[low:high], data.sentence_starts).all()
        ids, roles = (toys.split_rows(x, batch.starts)[n] for x in (batch.ids, batch.segments))
        assert len(ids) <= length
        assert ids.count(SEP) - ids[1:-1].count(SEP) == 1
        turns = raw.span_index[raw.starts[n] : raw.starts[n + 1]].tolist()
        sizes = [turns.count(i) for i in range(high - low)]
        assert roles == [0] + [i % 2 for i, size in enumerate(sizes) for _ in range(size + 1)]
    assert np.array_equal(batch.document_labels, plan.label)


def test_half_of_the_dialogues_are_real():
    data = toys.build_random_store(1, documents=3000, most=8, longest=8)
    plan = build_objective("dialogue", TOKENIZER, 64).plan(data, 0, 0)
    assert plan.label.mean() == pytest.approx(0.5, abs=4 * 0.5 / len(plan) ** 0.5)
    fakes = np.flatnonzero(plan.label == 0)
    place = []
    for n in fakes:
        low, high = plan.span_offsets[n : n + 2]
        if high - low == 3:
            documents = np.searchsorted(data.starts, plan.begin[low:high], side="right") - 1
            place.append(int(np.argmin([(documents == d).sum() for d in documents])))
    assert np.bincount(place) / len(place) == pytest.approx([1 / 3] * 3, abs=0.04), "any turn may be replaced"
    with pytest.raises(Error, match="no room for 3 turns"):
        build_objective("dialogue", TOKENIZER, 6).plan(data, 0, 0)
    assert len(build_objective("dialogue", TOKENIZER, 7).plan(data, 0, 0))
    with pytest.raises(Error, match="several conversations"):
        build_objective("dialogue", TOKENIZER, 64).plan(toys.build_store([[3], [4]]), 0, 0)


def test_a_task_has_its_number():
    for name in ("ernie-units", "unit-pairs"):
        batch = toys.make_examples(build_objective(name, TOKENIZER, 40, task_id=2), build_marked_store())[2]
        assert batch.tasks.tolist() == [2] * len(batch.ids)
        assert toys.make_examples(build_objective(name, TOKENIZER, 40), build_marked_store())[2].tasks is None


def test_three_stages_follow_each_other():
    """ERNIE §3.2: tokens, then phrases, then entities; an evaluation takes them in turn."""
    data = build_marked_store(documents=30)
    staged = build_objective("ernie-units", TOKENIZER, 40, stage_ends=(10, 20))
    assert staged.stage == "all", "the default"
    plan, _, batch = toys.make_examples(staged, data)
    assert len(plan) > 20
    for number, stage in enumerate(("basic", "phrase", "entity")):
        alone = toys.make_examples(build_objective("ernie-units", TOKENIZER, 40, stage=stage), data)[2]
        low, high = batch.starts[10 * number], batch.starts[min(10 * number + 10, len(plan))]
        mine, theirs = (b.chosen[(b.chosen >= low) & (b.chosen < high)].tolist() for b in (batch, alone))
        assert mine == theirs, stage
    turns = build_objective("ernie-units", TOKENIZER, 40)
    assert turns.find_stages(np.arange(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]
    plain = toys.build_store([[5, 5]] * 4)
    with pytest.raises(formers.Error, match="does not say where a phrase begins"):
        toys.make_examples(staged, plain)


def test_entities_may_be_given():
    find = build_unit_finder(["machine learning", "seoul national university\tentity", "세종대왕\tentity"])
    text = "Machine learning at Seoul National University. 세종대왕은 machine learning 몰랐다."
    found = [(text[a:b], kind) for a, b, kind in find(text)]
    assert ("Seoul National University", "entity") in found
    assert ("세종대왕", "entity") in found
    assert found.count(("machine learning", "phrase")) + found.count(("Machine learning", "phrase")) == 2


def test_names_and_numbers_are_entities_without_a_list():
    text = "They met Anna Karenina in Moscow, and 250 others."
    assert [text[a:b] for a, b, kind in build_unit_finder([])(text) if kind == "entity"] == [
        "Anna Karenina", "Moscow", "250",
    ]  # fmt: skip
