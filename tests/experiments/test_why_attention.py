from __future__ import annotations

import random
import re

import pytest

import formers
from formers.experiments.page import Page
from formers.experiments.registry import find_experiment
from formers.experiments.why_attention import VERBS, format_gradient, make_sentence, measure_gradients


def test_translations_have_the_verb_at_the_end_of_each_clause():
    draw, ends = random.Random(0), {end for end, _ in VERBS.values()}
    joints = {joint for _, joint in VERBS.values()}
    for clauses in (1, 2, 3):
        source, target = make_sentence(clauses, draw)
        words = target.split()
        assert source.split().count("and") == clauses - 1 == sum(word in joints for word in words)
        assert words[-1] in ends
        verb = next(word for word in source.split() if word in VERBS)
        assert VERBS[verb][clauses > 1] in words


def test_pairs_of_ones_own_are_translated():
    draw = random.Random(0)
    lines = ["\t".join(make_sentence(1, draw)) for _ in range(120)]
    module, page = find_experiment("why-attention").load(), Page(documents=["\n".join(lines)])
    settings = module.Settings(steps=1, translation_steps=1, pairs=100, tests=2, longest=4, dim=16)
    module.run(page, settings)
    assert page.tables[0].rows[-1][0] == "translation of your pairs"
    assert "template" not in page.notes[0]


def test_gradients_fade_in_recurrence_and_not_in_attention():
    found = {name: line[-1][1] for name, line in measure_gradients(40, dim=16).items()}
    assert found["RNN"] < 1e-4 < found["Transformer"]
    assert found["LSTM"] < found["Transformer"]
    assert [format_gradient(share) for share in (0.25, 1e-12)] == ["2.5e-01", "< 1e-12"]


def test_both_models_learn_every_task(run_experiment):
    page, found = run_experiment("why-attention", steps=2, translation_steps=2, pairs=150, tests=4, longest=4, dim=16)
    assert len(page.tables[0].rows) == 6
    assert page.tables[0].rows[0][5:] == ("–", "–", "–"), "there are no tests as long as this"
    assert "trained with 2 to 4" in page.tables[0].title
    assert page.tables[0].rows[-1][0] == "translation of template sentences"
    assert "not real translations: a template makes them from 39 words" in page.notes[0], "nothing said so"
    assert "GRU layer each of width 16" in page.notes[0]
    assert "new, untrained layers" in page.tables[1].title
    rows = re.findall(r'text-anchor="end" class="small">([^<]*)<', "".join(page.body))
    assert "&lt;s&gt;" not in rows, "a row is the word being written"
    assert "&lt;/s&gt;" in rows
    assert {f"{task} {kind}" for task in ("copy", "reverse", "translate") for kind in ("none", "dot")} <= set(found)


def test_the_cell_is_a_choice(run_experiment):
    sizes = {"steps": 1, "translation_steps": 1, "pairs": 100, "tests": 2, "longest": 4, "dim": 16}
    page, found = run_experiment("why-attention", cell="lstm", dropout=0.3, **sizes)
    assert "LSTM layer each" in page.notes[0]
    assert found["gradient LSTM"] < found["gradient Transformer"]


def test_few_pairs_of_ones_own_are_refused():
    module, page = find_experiment("why-attention").load(), Page(documents=["one\teins\ntwo\tzwei"])
    with pytest.raises(formers.Error, match="too few"):
        module.run(page, module.Settings(steps=1, pairs=100, tests=2, longest=4, dim=16))
