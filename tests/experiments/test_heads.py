from __future__ import annotations

import pytest
import torch

import formers
from formers.experiments.heads import leave_one_head, list_texts, measure_baseline, measure_removal, order_heads
from formers.experiments.page import Page
from formers.experiments.small_models import prepare_bundled_corpus
from formers.inspection.heads import measure_heads


def test_removed_heads_cost_what_masked_ones_do():
    data = prepare_bundled_corpus("en", "gpt2", 1024, 60_000)
    former = formers.build("gpt2", vocab=len(data.tokenizer), dim=32, heads=4, layers=2, context=64, init=0.2)
    former.tokenizer = data.tokenizer
    texts = list_texts(Page(text="The law of the land is the will of the people."), former, 1, 20)
    measured = measure_heads(former, *texts)
    order = order_heads(measured.costs["decoder"])
    assert len(order) == 8
    removed = measure_removal(former, texts, order, [0.0, 1 / 8, 1.0])
    assert removed[0][1] == pytest.approx(measured.baseline, abs=1e-5)
    layer, head = order[0]
    assert removed[1][1] == pytest.approx(measured.baseline + float(measured.costs["decoder"][layer, head]), abs=1e-4)
    assert removed[2][0] == 75, "every layer keeps a head"
    assert measure_baseline(former, texts) == pytest.approx(measured.baseline, abs=1e-5)


def test_heads_are_ordered_by_cost():
    assert order_heads(torch.tensor([[0.3, float("nan")], [-0.1, 0.2]])) == [(1, 0), (1, 1), (0, 0)]


def test_each_layer_keeps_a_head():
    order = [(0, 1), (1, 0), (0, 0), (0, 2), (1, 2)]
    assert leave_one_head(order, 3) == [(0, 1), (1, 0), (0, 0), (1, 2)]
    assert leave_one_head(order[:1], 1) == []


def test_all_heads_are_measured(run_experiment):
    page, found = run_experiment("heads", text="The law of the land is the will of the people.", tokens=20)
    assert found["heads"] == 12
    assert "-0.000" not in str(page.tables)
    assert len(page.tables[0].rows) == 3
