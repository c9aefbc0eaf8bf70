"""Every family learns by its own objective, from a store to lower loss; every objective is the same in any batch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import formers
from formers.data.loader import blank_batch, load_batches
from formers.data.mixture import Mixture
from formers.data.plans import TokenSource, gather_examples
from formers.objectives.causal import CausalLM
from formers.objectives.masking import MaskedLM
from formers.objectives.registry import OBJECTIVES, build_objective
from formers.registry import FAMILIES
from tests.objectives import toys
from tests.objectives.toys import OBJECTIVE_OPTIONS, TOKENIZER
from tests.small_models import select_sizes

PLAIN = toys.build_random_store(3, documents=60, end=TOKENIZER.id("eos"))
TEXT = toys.add_units(PLAIN, np.random.default_rng(0).integers(0, 4, len(PLAIN.tokens)).astype(np.uint8))
PAIRS = toys.build_store([[9, 7], [5, 6], [3, 4], [8, 8]] * 8)


def store_of(name):
    return PAIRS if name == "seq2seq" else TEXT


@pytest.mark.parametrize("name", [name for name, member in FAMILIES.items() if member.definition.objective])
def test_a_family_learns_by_its_own_objective(name):
    family = FAMILIES[name].definition
    sizes = select_sizes(name, vocab=80, context=24, pad=TOKENIZER.id("pad"))
    f = formers.build(name, head=family.pretraining_head, seed=0, **sizes)
    goal = build_objective(family.objective, TOKENIZER, 24, **OBJECTIVE_OPTIONS.get(family.objective, {}))
    batch = next(load_batches(TokenSource(store_of(family.objective), goal), 96))[0].to("cpu")
    before = {key: value.detach().clone() for key, value in f.model.named_parameters()}
    optimizer, seen = torch.optim.Adam(f.model.parameters(), lr=0.01), []
    for _ in range(12):
        losses = goal.loss(f.model, batch)
        assert all(count > 0 for _, count in losses.values())
        loss = sum(total / count for total, count in losses.values())
        assert torch.isfinite(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    assert seen[-1] < seen[0] - 0.1
    asked = {part for part in losses if part in f.model.parts}
    assert asked
    for key, value in f.model.named_parameters():
        part = key.split(".")[1] if key.startswith("heads.") else None
        if part in asked and value.requires_grad:
            assert not torch.equal(value, before[key]), f"{key} has learned nothing"
    wanted = {"bert": {"mlm", "nsp"}, "albert": {"mlm", "sop"}, "switch": {"lm", "balance"}, "ernie": {"mlm"}}
    assert set(losses) == wanted.get(name, set(losses) & {"lm", "mlm"})


def build_fitting_model(name):
    """A small model of the first family whose pretraining an objective fits."""
    given_to = {"bidirectional": "elmo", "nsp": "bert", "sop": "albert", "plm": "xlnet", "switch": "switch"}
    kind = OBJECTIVES[name].objective_class
    if name == "continual":  # ERNIE 2.0
        return formers.build(
            "ernie", head="multitask", seed=0, use_tasks=True, **select_sizes("ernie", vocab=80, context=24, tasks=16)
        )
    member = given_to.get(name, "bert" if issubclass(kind, MaskedLM) else "gpt2" if kind is CausalLM else "t5")
    family = FAMILIES[member].definition
    return formers.build(member, head=family.pretraining_head, seed=0, **select_sizes(member, vocab=80, context=24))


@torch.no_grad()
@pytest.mark.parametrize("name", OBJECTIVES)
def test_counts_are_known_before_the_model_runs(name):
    f, goal = build_fitting_model(name), build_objective(name, TOKENIZER, 24, **OBJECTIVE_OPTIONS.get(name, {}))
    some = [b for b, _ in load_batches(TokenSource(store_of(name), goal), 96, epochs=1)]
    for batch in (*some[:2], some[-1], blank_batch(some[0])):
        losses = goal.loss(f.model, batch.to("cpu"))
        known = {part: int(count) for part, (_, count) in losses.items()}
        assert goal.count_labels(batch) == known == goal.count_labels(batch.to("cpu"))
        assert all(isinstance(count, int) for count in goal.count_labels(batch).values())
        assert any(known.values()) == bool((batch.sample >= 0).any())


@torch.no_grad()
def test_counts_of_streams_and_of_a_mixture():
    streams = (
        build_objective("causal", TOKENIZER, 8, num_streams=3),
        build_objective("bidirectional", TOKENIZER, 8, slots=9, num_streams=3),
    )
    for name, goal in zip(("causal", "bidirectional"), streams, strict=True):
        batch = next(load_batches(TokenSource(TEXT, goal), 24))[0]
        assert goal.count_labels(batch) == {
            "lm": int(goal.loss(build_fitting_model(name).model, batch.to("cpu"))["lm"][1])
        }
    goals = build_objective("nsp", TOKENIZER, 24), build_objective("sop", TOKENIZER, 24)
    mixed = Mixture(tuple(TokenSource(TEXT, goal) for goal in goals))
    batch = next(load_batches(mixed, 96))[0]
    losses = goals[0].loss(build_fitting_model("nsp").model, batch.to("cpu"))
    assert goals[0].count_labels(batch) == {part: int(count) for part, (_, count) in losses.items()}


@pytest.mark.parametrize("name", ["unit-pairs", "dialogue"])
def test_ernies_other_objectives(name):
    f = formers.build("ernie", head="pretraining", vocab=80, context=24, dim=12, layers=1, heads=3, ff=18)
    goal = build_objective(name, TOKENIZER, 24)
    losses = goal.loss(f.model, next(load_batches(TokenSource(TEXT, goal), 96))[0].to("cpu"))
    assert set(losses) == {"mlm", "nsp"}
    assert all(torch.isfinite(total) and count > 0 for total, count in losses.values())


def test_a_head_without_the_part_is_refused():
    goal = build_objective("nsp", TOKENIZER, 24)
    batch = next(load_batches(TokenSource(TEXT, goal), 96))[0].to("cpu")
    for head, part in (("mlm", "nsp"), ("nsp", "mlm")):
        f = formers.build("bert", head=head, vocab=80, context=24, dim=12, layers=1, heads=3, ff=18)
        with pytest.raises(formers.Error, match=f"the head has no part '{part}'"):
            goal.loss(f.model, batch)


def list_fields(batch, row):
    """All that a batch says of one example, in a form that can be compared."""
    low, high = (int(x) for x in batch.starts[row : row + 2])
    said = {"ids": batch.ids[low:high].tolist()}
    for name in ("positions", "segments", "tasks", "order"):
        if getattr(batch, name) is not None:
            said[name] = getattr(batch, name)[low:high].tolist()
    if batch.chosen is None:
        said["labels"] = batch.labels[low:high].tolist()
    else:
        mine = (batch.chosen >= low) & (batch.chosen < high) & (batch.labels != -100)
        said["labels"] = sorted(zip((batch.chosen[mine] - low).tolist(), batch.labels[mine].tolist(), strict=True))
    if batch.document_labels is not None:
        said["answer"] = int(batch.document_labels[row])
    if batch.source is not None:
        low, high = (int(x) for x in batch.source.starts[row : row + 2])
        said["source"] = batch.source.ids[low:high].tolist()
    return said


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_same_in_any_batch_and_anew_in_the_next_epoch(name):
    length = 64 if name in ("span-corruption", "switch") else 24  # a short text has one gap only, always at its end
    goal, data = build_objective(name, TOKENIZER, length, **OBJECTIVE_OPTIONS.get(name, {})), store_of(name)
    plan = goal.plan(data, 7, 0)
    seen = {}
    for size in (1, 7, 32):
        said = {}
        for low in range(0, min(len(plan), 64), size):
            numbers = np.arange(low, min(low + size, len(plan), 64))
            batch = goal.corrupt(gather_examples(data, plan, numbers, numbers), 7)
            said |= {int(sample): list_fields(batch, row) for row, sample in enumerate(batch.sample)}
        seen[size] = said
    assert seen[1] == seen[7] == seen[32]
    through = {}
    for batch, position in load_batches(TokenSource(data, goal), 128, 7, epochs=1):
        assert position <= len(plan)
        through |= {int(s): list_fields(batch, row) for row, s in enumerate(batch.sample) if s >= 0}
    assert {n: through[n] for n in seen[1]} == seen[1], "and through the loader"
    assert position == len(plan)
    if name not in ("causal", "seq2seq", "bidirectional"):  # which have nothing to draw
        later = goal.corrupt(gather_examples(data, plan, np.arange(32), len(plan) + np.arange(32)), 7)
        assert any(list_fields(later, row) != seen[1][row] for row in range(32)), "anew in the next epoch"
    other = goal.plan(data, 7, 1)
    assert len(other) == len(plan)
    assert not np.array_equal(other.begin, plan.begin)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_sizes_are_bounds_and_batches_have_one_shape(name):
    goal, data = build_objective(name, TOKENIZER, 24, **OBJECTIVE_OPTIONS.get(name, {})), store_of(name)
    plan = goal.plan(data, 1, 0)
    assert {type(size) for size in dataclasses.astuple(goal.choose_shape(100, plan))} == {int}, "plain numbers"
    numbers = np.arange(len(plan))
    batch, sizes = goal.corrupt(gather_examples(data, plan, numbers, numbers), 1), goal.measure_sizes(plan)
    assert (np.diff(batch.starts) <= sizes[:, 0]).all()
    assert np.diff(batch.starts).max() <= batch.longest <= 24
    if batch.chosen is not None:
        row = np.searchsorted(batch.starts, batch.chosen, side="right") - 1
        assert (np.bincount(row, minlength=len(plan)) <= sizes[:, 1]).all()
    if batch.source is not None:
        assert (np.diff(batch.source.starts) <= sizes[:, 2]).all()
        assert np.diff(batch.source.starts).max() <= batch.source.longest <= 24
    shapes = {
        (b.ids.shape, b.labels.shape, b.starts.shape, None if b.source is None else b.source.ids.shape)
        for b, _ in load_batches(TokenSource(data, goal), 100, epochs=2)
    }
    assert len(shapes) == 1


@pytest.mark.parametrize("name", ["nsp", "span-corruption", "plm"])
def test_the_same_for_any_number_of_workers_and_ranks(name):
    goal = build_objective(name, TOKENIZER, 24)

    def said(**how):
        runs = [
            load_batches(TokenSource(TEXT, goal), 96, 3, epochs=1, rank=rank, **how)
            for rank in range(how.get("ranks", 1))
        ]
        return {int(s): list_fields(b, row) for run in runs for b, _ in run for row, s in enumerate(b.sample) if s >= 0}

    alone = said()
    assert len(alone) == len(goal.plan(TEXT, 3, 0))
    for how in ({"workers": 1}, {"workers": 2}, {"ranks": 2}):
        assert said(**how) == alone
