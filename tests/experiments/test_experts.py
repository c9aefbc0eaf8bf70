from __future__ import annotations

import pytest

from formers.experiments.experts import FACTORS, measure_routing
from formers.experiments.page import Page
from formers.experiments.small_models import prepare_bundled_corpus, train_small


def test_load_and_drops_are_shares_of_all_tokens():
    data = prepare_bundled_corpus("en", "t5", 1024, 60_000)
    sizes = {"dim": 16, "layers": 2, "heads": 2, "head_dim": 8, "ff": 16, "sparse": 1, "experts": 4}
    made = train_small(Page(), "switch", data, 1, model=sizes)
    load, dropped = measure_routing(made.former, data, batches=2)
    assert float(load.sum()) == pytest.approx(1)
    assert [dropped[factor] for factor in FACTORS] == sorted(dropped.values(), reverse=True)
    assert dropped[0.5] >= 0.45, "half of the capacity takes half of the tokens at most"


def test_models_of_several_experts_are_compared(run_experiment):
    page, found = run_experiment("experts", steps=1, experts=(2,), dim=16)
    assert len(page.tables[0].rows) == 3
    assert found["dropped wide 2"] <= found["dropped 2"]
