from __future__ import annotations

import pytest

from formers.experiments.complexity import Settings, build_layers, find_crossing, fit_slope, measure_layer


def test_slopes_and_crossings_are_found():
    square, line = [(x, x * x / 100) for x in (10.0, 50.0, 200.0, 800.0)], [(x, x) for x in (10.0, 50.0, 200.0, 800.0)]
    assert fit_slope(square) == pytest.approx(2)
    assert find_crossing(square, line) == pytest.approx(100)
    assert find_crossing(line, [(x, 2 * y) for x, y in line]) is None


def test_kept_weights_grow_with_the_square(run_experiment):
    page, found = run_experiment("complexity", longest=256, tokens=256, repeats=1, dim=32)
    assert found["memory slope, attention (weights kept)"] > 1.4
    assert found["memory slope, attention (fused)"] == pytest.approx(1, abs=0.05)
    assert found["memory slope, LSTM"] == pytest.approx(1, abs=0.05)
    assert len(page.tables[1].rows) == 4


def test_a_fused_kernel_keeps_less():
    layers, settings = build_layers(32), Settings(dim=32, tokens=512, repeats=1)
    kept = {name: measure_layer(layer, 512, settings)[1] for name, (layer, _, _) in layers.items()}
    assert kept["attention (fused)"] < kept["attention (weights kept)"]
