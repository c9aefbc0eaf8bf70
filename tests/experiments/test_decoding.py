from __future__ import annotations

import math

import pytest

import formers
from formers.experiments.decoding import Settings, measure_smoothing, score_text, trace_beams


def test_temperature_and_top_k_do_what_they_say(run_experiment):
    page, found = run_experiment("decoding", tokens=3)
    assert found["sharp"] < found["flat"]
    assert found["kept"] == 5
    assert found["beam"] >= found["greedy"] - 1e-4
    assert [len(block.rows) for block in page.tables] == [3, 6, 5, 3]


def test_the_tree_has_the_scores_of_its_texts():
    former = formers.build("gpt2", vocab=40, dim=32, heads=2, layers=1, context=32)
    steps = trace_beams(former, [3, 4], Settings(tokens=4, beams=3))
    for row in range(3):
        at, ids = row, []
        for nodes in reversed(steps):
            ids.insert(0, nodes[at].token)
            at = nodes[at].parent
        assert steps[-1][row].score == pytest.approx(score_text(former, [3, 4], ids), abs=1e-4)


def test_label_smoothing_has_a_least_loss():
    rows = {rate: (right, other, least) for rate, right, other, least in measure_smoothing(100)}
    assert rows[0.0][2] == pytest.approx(0, abs=1e-6)
    right, other, least = rows[0.1]
    assert right + 99 * other == pytest.approx(1)
    assert least == pytest.approx(-right * math.log(right) - 99 * other * math.log(other), rel=1e-4)
