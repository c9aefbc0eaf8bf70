from __future__ import annotations

import functools
import random

import numpy as np
import pytest

import formers
from formers.data.plans import gather_examples
from formers.experiments.objectives import (
    Settings,
    load_judge,
    make_static,
    measure_hidden_share,
    measure_mask_losses,
    measure_overlap,
)
from formers.experiments.page import Page
from formers.experiments.small_models import SmallModel, encode_corpus, prepare_bundled_corpus
from formers.inspection.objective_steps import SHOWN_OBJECTIVES, explain_objectives
from formers.objectives.registry import build_objective


def test_one_sentence_gets_every_objective_that_its_tokenizer_allows(run_experiment, monkeypatch):
    data = prepare_bundled_corpus("en", "bert", 1024, 60_000)
    quick = functools.partial(explain_objectives, tokenizer=data.tokenizer, trains_tokenizer=False)
    monkeypatch.setattr("formers.experiments.objectives.explain_objectives", quick)
    text = "The law of the land is the will of the people. It is made by the Congress of the States."
    page, found = run_experiment("objectives", text=text, rates=(0.15,), pairs=20, epochs=3)
    assert len(SHOWN_OBJECTIVES) == 8
    assert found["objectives"] >= 5, "the others need sentinels or another mask"
    assert any("[MASK]" in part for part in page.body)
    assert any("are the two texts swapped?" in part for part in page.body), "a question comes with its answer"
    assert 4 < found["frequency"] < 7, "nats of a guess by frequency"
    assert found["static loss"] > 0 < found["dynamic loss"]
    assert found["static loss"] != found["dynamic loss"]
    assert any("validation loss after" in table.title for table in page.tables), "coverage alone was shown"
    assert found["dynamic loss"] == found["rate 0.15"], "one model"


def test_models_are_compared_on_texts_as_long_as_those_they_were_trained_on(monkeypatch):
    """They were trained on 24 tokens and compared on 64, at positions that they had never seen."""
    data, lengths = prepare_bundled_corpus("en", "bert", 512, 60_000), []

    def train(*_, train, model, **rest):
        lengths.append((train["seq_length"], model["context"]))
        return SmallModel(former, [], {})

    former = formers.build("bert", vocab=len(data.tokenizer), dim=16, heads=2, layers=1, ff=32, context=64)
    monkeypatch.setattr("formers.experiments.objectives.train_small", train)
    losses, _ = measure_mask_losses(Page(), data, Settings(rates=(0.3,)))
    assert list(losses) == [0.15, 0.3], "the usual rate is that of dynamic masks"
    _, batches = load_judge(data)
    longest = max(int(np.diff(batch.starts).max()) for batch in batches)
    assert set(lengths) == {(longest, longest)}


def test_static_masks_stay_and_dynamic_masks_move():
    data = prepare_bundled_corpus("en", "bert", 1024, 60_000)
    goal = build_objective("mlm", data.tokenizer, 64)
    static = measure_hidden_share(data.store, goal, 5, dynamic=False)
    dynamic = measure_hidden_share(data.store, goal, 5, dynamic=True)
    assert static == [static[0]] * 5
    assert dynamic[0] == static[0]
    assert dynamic == sorted(set(dynamic))
    assert static[0] == pytest.approx(0.15, abs=0.02)


def test_a_model_is_trained_with_masks_that_stay():
    """The same example hides the same tokens whatever its number, and others than another example does."""
    data = prepare_bundled_corpus("en", "bert", 1024, 60_000)
    moving = build_objective("mlm", data.tokenizer, 64, across_documents=True, whole_sentences=True)
    staying, plan = make_static(moving), moving.plan(data.store, 0, 0)
    numbers = np.arange(8)

    def hide(objective, epoch):
        return objective.corrupt(gather_examples(data.store, plan, numbers, numbers + epoch * len(plan)), 0).ids

    assert (hide(staying, 0) == hide(staying, 3)).all()
    assert not (hide(moving, 0) == hide(moving, 3)).all()
    later = moving.plan(data.store, 0, 1)
    assert sorted(zip(plan.begin, plan.end, strict=True)) == sorted(zip(later.begin, later.end, strict=True))


def test_shared_words_answer_nsp_and_not_sop():
    draw, texts = random.Random(0), []
    for document in range(40):  # each has words of its own
        words = [f"{letter}{chr(97 + document % 20)}{chr(97 + document // 20)}" for letter in "klmnop"]
        sentences = (" ".join(draw.choice(words) for _ in range(8)).capitalize() + "." for _ in range(30))
        texts.append(" ".join(sentences))
    data = encode_corpus("bert", texts[2:], texts[:2], 400)
    assert measure_overlap("nsp", data, 300)[0] > 0.9
    assert measure_overlap("sop", data, 300)[0] == pytest.approx(0.5, abs=0.1)
