"""ERNIE's units, pairs and dialogues; ELMo's two directions; mixtures of tasks."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import formers
from formers import Error
from formers.data.encoded_examples import EncodedSource, ExampleCollector
from formers.data.loader import load_batches
from formers.data.mixture import Mixture, concatenate_batches
from formers.data.plans import TokenSource
from formers.data.preparation.document_encoder import ENTITY_BIT, PHRASE_BIT
from formers.data.store import Store
from formers.objectives.bidirectional import compute_inclusion_probability, draw_by_frequency, encode_vocab_word
from formers.objectives.causal import CausalLM
from formers.objectives.masking import choose_units
from formers.objectives.registry import build_objective
from formers.text import word_level
from tests.objectives import toys

TOKENIZER = toys.build_tokenizer()
CLS, SEP = TOKENIZER.id("cls"), TOKENIZER.id("sep")


def marked(seed=0, **more):
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
        goal = build_objective(name, TOKENIZER, 24, task_id=task)
        batch = next(load_batches(TokenSource(toys.build_random_store(1), goal), 96))[0].to("cpu")
        with pytest.raises(Error, match=f"task_id={task} is none of the {known} that this model knows"):
            goal.loss(model.model, batch)
    goal = build_objective(name, TOKENIZER, 24, task_id=3)
    assert torch.isfinite(
        goal.loss(second.model, next(load_batches(TokenSource(toys.build_random_store(1), goal), 96))[0].to("cpu"))[
            "mlm"
        ][0]
    )


@functools.cache
def million():
    return marked(3, documents=1700, most=60, longest=40)


@given(st.integers(0, 10**4), st.sampled_from(["basic", "phrase", "entity"]))
def test_units_are_hidden_whole(seed, stage):
    data = marked(seed % 7)
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
    data = million()
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
    goal = build_objective("ernie-units", TOKENIZER, 512, mask_rate=1.0)
    _, _, batch = toys.make_examples(goal, toys.build_store([[400]]))
    assert len(batch.chosen) == 400
    few = build_objective("ernie-units", TOKENIZER, 512, mask_rate=0.15)
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
    data = marked()
    plan, raw, batch = toys.make_examples(build_objective("unit-pairs", TOKENIZER, 40, stage="phrase"), data)
    spans = np.stack((plan.begin, plan.end), 1).reshape(-1, 2, 2)
    document = np.searchsorted(data.starts, spans[:, :, 0], side="right") - 1
    assert np.array_equal(batch.document_labels == 1, document[:, 0] == document[:, 1])
    assert set(batch.segments.tolist()) == {0, 1}
    assert len(raw.sample) == len(plan)


@given(st.integers(0, 10**4), st.integers(12, 60))
def test_dialogues(seed, length):
    data = marked(seed % 5, documents=12)
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


def elmo(sampled=0):
    f = formers.build("elmo", vocab=60, slots=9, char_dim=4, filters=((1, 5), (2, 6)), dim=8, cell=10, dropout=0.0)
    return f, build_objective("bidirectional", TOKENIZER, 12, slots=9, num_sampled=sampled)


def test_both_directions():
    f, goal = elmo()
    data = toys.build_store([[5], [3]], end=TOKENIZER.id("eos"))
    _, raw, batch = toys.make_examples(goal, data)
    assert TOKENIZER.id("eos") not in raw.ids
    assert batch.ids.shape == (12, 9)
    words = toys.split_rows(batch.labels, batch.starts)
    assert all((row[0], row[-1]) == (TOKENIZER.id("bos"), TOKENIZER.id("eos")) for row in words)
    assert batch.ids[0].tolist() == word_level.pad_word([word_level.SENTENCE_BEGIN], 9)
    assert batch.ids[batch.starts[1] - 1].tolist() == word_level.pad_word([word_level.SENTENCE_END], 9)
    assert batch.ids[1].tolist() == word_level.encode_word(TOKENIZER.get_token_text(words[0][1]), 9)
    full = next(load_batches(TokenSource(data, goal), 32))[0].to("cpu")
    total, count = goal.loss(f.model, full)["lm"]
    logits = f.model.logits(f.model(full))
    forward = backward = 0.0
    for low, high in ((0, int(full.starts[1])), (int(full.starts[1]), int(full.starts[2]))):
        for t in range(low, high - 1):
            forward += F.cross_entropy(logits[t, 0], full.labels[t + 1])
            backward += F.cross_entropy(logits[t + 1, 1], full.labels[t])
    assert count == 10
    torch.testing.assert_close(total, (forward + backward) / 2)


@torch.no_grad()
def test_a_sampled_softmax_is_nearly_the_whole():
    f, goal = elmo(sampled=3000)
    batch = next(load_batches(TokenSource(toys.build_random_store(), goal), 64))[0].to("cpu")
    exact = goal.loss(f.model.eval(), batch)["lm"]
    whole = elmo()[1].loss(f.model, batch)["lm"]
    torch.testing.assert_close(exact, whole, msg="without training there is nothing to save")
    f.model.train()
    near = goal.loss(f.model, batch)["lm"]
    assert near[1] == whole[1]
    # Of 60 words, 3,000 draws miss none: the sum is that of the whole softmax.
    assert float(near[0] / near[1]) == pytest.approx(float(whole[0] / whole[1]), abs=1e-4)
    few = elmo(sampled=5)[1].loss(f.model, batch)["lm"]
    assert 0 < float(few[0]) != float(near[0])


def test_a_sampled_softmax_has_the_heads_dropout():
    f, goal = elmo(sampled=5)
    f.model.train().parts["lm"].dropout = torch.nn.Dropout(1.0)  # nothing of the states is left
    goal.loss(f.model, next(load_batches(TokenSource(toys.build_random_store(), goal), 64))[0].to("cpu"))["lm"][
        0
    ].backward()
    assert all(p.grad is None or not p.grad.any() for name, p in f.model.named_parameters() if name.startswith("body"))
    assert f.model.parts["lm"].out.bias.grad.any()


def mix(stores, goals, **more):
    return Mixture(tuple(map(TokenSource, stores, goals)), **more)


def test_a_mixture_takes_its_shares():
    tokens = toys.build_tokenizer(60, sentinels=20, roles={"pad": "<pad>", "eos": "</s>", "unk": "<unk>"})
    text, pairs = toys.build_random_store(1, documents=40), toys.build_store([[4, 5], [3, 6], [5, 2], [2, 2]] * 5)
    goals = build_objective("span-corruption", tokens, 24), build_objective("seq2seq", tokens, 24, prefix="w20 w22")
    counts = [len(g.plan(s, 0, 0)) for g, s in zip(goals, (text, pairs), strict=True)]
    mixed = mix((text, pairs), goals, rates=(0.75, 0.25), epoch_examples=60)
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
    mixed = mix((text, text), goals)
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
    mixed = mix((first, second), goals)
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
    mixed = mix((text, text), goals, epoch_examples=50)
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
    many = mix((text,) * 40, (goal,) * 40, rates=(1e-9,) * 40, epoch_examples=120)
    assert [len(part) for part in many.plan_epoch(0, 0).parts] == [3] * 40
    with pytest.raises(Error, match="a task of the mixture has no examples"):
        mix((text, toys.build_store([[1], [1]])), (goal, goal)).plan_epoch(0, 0)
    with pytest.raises(Error, match="a rate above 0 for each"):
        mix((text, text), (goal, goal), rates=(1.0,))


def test_a_word_is_spelled_without_its_blank():
    for word, seen in (("▁cat", "cat"), ("Ġcat", "cat"), ("▁", "▁"), (" ", " "), ("", "?")):
        assert encode_vocab_word(word, 9) == word_level.encode_word(seen, 9)


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
        mix((text, other), (None, None))


def test_a_task_has_its_number():
    for name in ("ernie-units", "unit-pairs"):
        batch = toys.make_examples(build_objective(name, TOKENIZER, 40, task_id=2), marked())[2]
        assert batch.tasks.tolist() == [2] * len(batch.ids)
        assert toys.make_examples(build_objective(name, TOKENIZER, 40), marked())[2].tasks is None


def test_words_are_drawn_by_frequency():
    drawn = draw_by_frequency(200_000, 50, torch.device("cpu")).view(20_000, 10)
    seen = torch.stack([(drawn == word).any(1).double().mean() for word in range(50)])
    torch.testing.assert_close(
        seen, compute_inclusion_probability(torch.arange(50), 10, 50).double(), atol=0.015, rtol=0
    )
    assert compute_inclusion_probability(torch.arange(50), 1, 50).sum() == pytest.approx(1.0), "the chances of one draw"


def test_one_mark_for_begin_and_end_stands_at_the_end():
    pieces = toys.build_tokenizer(roles={"bos": "</s>", "eos": "</s>", "unk": "<unk>"})
    goal = build_objective("bidirectional", pieces, 12, slots=9)
    assert goal.frame == ((), (pieces.id("eos"),))
    assert goal.word_characters[pieces.id("eos")].tolist() == word_level.pad_word([word_level.SENTENCE_END], 9)


def test_losses_are_summed_in_single_precision():
    f, goal = elmo(sampled=20)
    f.to(dtype=torch.bfloat16)
    batch = next(load_batches(TokenSource(toys.build_random_store(), goal), 64))[0].to("cpu")
    assert goal.loss(f.model.train(), batch)["lm"][0].dtype == torch.float32
    assert goal.loss(f.model.eval(), batch)["lm"][0].dtype == torch.float32


def test_streams_of_words():
    data = toys.build_store([[25], [18]], end=TOKENIZER.id("eos"))
    goal = build_objective("bidirectional", TOKENIZER, 5, slots=9, num_streams=2)
    seen = list(load_batches(TokenSource(data, goal), 10, epochs=1))
    assert all(b.ids.shape == (10, 9) and b.starts.tolist() == [0, 5, 10] for b, _ in seen)
    row = np.concatenate([b.labels.reshape(2, 5)[1] for b, _ in seen])
    assert np.array_equal(row, data.tokens[len(data.tokens) // 2 :][: len(row)])
