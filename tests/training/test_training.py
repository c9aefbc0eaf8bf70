"""A small run learns, twice the same, and is reported."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import formers
from formers import Error
from formers.data.loader import batches
from formers.data.store import Store
from formers.inspection.attention import attention
from formers.objectives.causal import CausalLM
from formers.training.evaluate import Score, evaluate, unigram
from formers.training.loop import train
from formers.training.pretrain import RECIPES, Recipe, pretrain
from formers.training.report import write
from formers.training.step import Step

TEXT = ["one two three four five six seven eight", "eight seven six five four three two one"] * 10


def counted(vocab=30):
    """A text in which each token follows from the one before."""
    tokens = (np.arange(4000) * 7 % vocab).astype(np.uint16)
    return Store(tokens, np.array([0, 2000, 4000]), vocab, "x")


def model(seed=0):
    return formers.build("gpt2", vocab=30, context=16, dim=16, layers=1, heads=2, seed=seed, init=0.1, dropout=0.1)


def run(seed=0, steps=60):
    store, goal, f = counted(), CausalLM(16), model(seed)
    history = train(f.model, goal, batches(store, goal, 128, seed), steps=steps, lr=1e-2, warmup=5, seed=seed)
    return f, history


def test_learns_and_is_the_same_twice():
    f, history = run()
    again, same = run()
    assert history.losses == same.losses
    assert all(torch.equal(a, b) for a, b in zip(f.model.parameters(), again.model.parameters(), strict=True))
    assert history.losses[0][1] > 3
    assert history.losses[-1][1] < 0.5
    assert history.tokens == 60 * 128
    assert not f.model.training
    assert run(seed=1)[1].losses != history.losses


def test_training_does_not_disturb_the_callers_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(steps=2)
    assert torch.equal(torch.rand(3), expected)


def test_told_and_checked_on_the_way():
    store, goal, f = counted(), CausalLM(16), model()
    told, checks = [], iter(range(100))
    history = train(
        f.model, goal, batches(store, goal, 128), steps=6, every=2, check=lambda: float(next(checks)),
        tell=lambda step, loss, speed: told.append((step, loss, speed)),
    )  # fmt: skip
    assert [step for step, _, _ in told] == [1, 2, 3, 4, 5, 6]
    assert all(speed > 0 for _, _, speed in told)
    assert history.held == [(1, 0.0), (3, 1.0), (5, 2.0)]


def test_a_loss_that_is_no_number_stops():
    store, goal, f = counted(), CausalLM(16), model()
    with torch.no_grad():
        f.model.body.norm.weight.fill_(float("nan"))
    with pytest.raises(Error, match="the loss is not a number at step 0"):
        train(f.model, goal, batches(store, goal, 128), steps=3)


def test_step_gives_sums_and_counts():
    store, goal, f = counted(), CausalLM(16), model()
    batch = next(batches(store, goal, 128))[0].to("cpu")
    out = Step(f.model, goal)(batch)
    total, count = out["lm"]
    assert count == 120
    assert total.requires_grad


def test_unigram_and_evaluate():
    store, goal = counted(), CausalLM(16)
    tests = [batch for batch, _ in itertools.islice(batches(store, goal, 128), 3)]
    base = unigram(store, tests)
    assert base.loss == pytest.approx(np.log(30), abs=0.02)
    assert base.accuracy == pytest.approx(1 / 30, abs=0.02)
    f, _ = run()
    f.model.train()
    score = evaluate(f.model, goal, tests)
    assert f.model.training
    assert isinstance(score, Score)
    assert score.loss < 0.3
    assert score.accuracy > 0.95


def test_pretrain_and_report(tmp_path):
    told = []
    small = {"dim": 16, "layers": 1, "heads": 2, "context": 12, "ff": 32, "dropout": 0.0, "attention_dropout": 0.0}
    runs = {}
    for family, head in (("gpt2", "lm"), ("bert", "mlm")):
        recipe = Recipe(270 if family == "gpt2" else 60, 12, 120, 40, 1e-2, head, small, warmup=5)
        runs[family] = pretrain(family, TEXT, TEXT[:2], recipe, tell=lambda *a: told.append(a))
    assert {what for what, *_ in told} == {"tokenizer", "training"}
    assert runs["gpt2"].score.loss < runs["gpt2"].baseline.loss
    assert runs["bert"].former.tokenizer.id("mask") is not None
    assert runs["gpt2"].former.config.eos == runs["gpt2"].former.tokenizer.id("eos")
    looked = {name: attention(r.former, "one two three") for name, r in runs.items()}
    path = tmp_path / "report.html"
    write(path, "A <title>", "Intro", runs, {"gpt2": [("Sample:", "<b>one</b> 한국어")]}, looked, "ko")
    page = path.read_text(encoding="utf-8")
    assert "A &lt;title&gt;" in page
    assert "&lt;b&gt;one&lt;/b&gt; 한국어" in page
    assert page.count("<polyline") == 4
    assert page.count("layer 1, head 2</h3>") == 2
    assert 'lang="ko"' in page
    assert "http" not in page.replace("http://www.w3.org", ""), "self-contained: nothing is fetched"
    assert "�" not in page


def test_recipes_are_for_known_families():
    with pytest.raises(Error, match="no quick recipe for t5"):
        pretrain("t5", TEXT, TEXT)
    for family, recipe in RECIPES.items():
        assert recipe.total % recipe.length == 0, "whole batches take the fast path"
        assert formers.build(family, head=recipe.head, **recipe.model)
