from __future__ import annotations

import pytest

import formers
from formers.experiments.page import Page
from formers.experiments.registry import find_experiment
from formers.experiments.why_attention import measure_gradients, spell_english, spell_korean


def test_numbers_are_spelled_in_both_languages():
    assert spell_english(1_234_017) == "one million two hundred thirty four thousand seventeen"
    assert spell_korean(1_234_017) == "백 이 십 삼 만 사 천 십 칠"
    assert (spell_english(0), spell_korean(0), spell_korean(10_000)) == ("zero", "영", "만")


def test_gradients_fade_in_recurrence_and_not_in_attention():
    found = {name: line[-1][1] for name, line in measure_gradients(40, dim=16).items()}
    assert found["RNN"] < 1e-4 < found["Transformer"]
    assert found["LSTM"] < found["Transformer"]


def test_both_models_learn_every_task(run_experiment):
    page, found = run_experiment("why-attention", steps=2, pairs=150, tests=4, longest=4, dim=16)
    assert len(page.tables[0].rows) == 6
    assert {f"{task} {kind}" for task in ("copy", "reverse", "translate") for kind in ("none", "dot")} <= set(found)


def test_few_pairs_of_ones_own_are_refused():
    module, page = find_experiment("why-attention").load(), Page(documents=["one\teins\ntwo\tzwei"])
    with pytest.raises(formers.Error, match="too few"):
        module.run(page, module.Settings(steps=1, pairs=100, tests=2, longest=4, dim=16))
