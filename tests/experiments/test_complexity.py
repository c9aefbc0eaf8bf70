from __future__ import annotations

import pytest

from formers.experiments.complexity import Settings, build_layers, find_crossing, fit_slope, measure_layer


def test_slopes_and_crossings_are_found():
    square, line = [(x, x * x / 100) for x in (10.0, 50.0, 200.0, 800.0)], [(x, x) for x in (10.0, 50.0, 200.0, 800.0)]
    assert fit_slope(square) == pytest.approx(2)
    assert find_crossing(square, line) == pytest.approx(100)
    assert find_crossing(line, [(x, 2 * y) for x, y in line]) is None


def test_two_lengths_have_a_slope():
    """Slopes of a short run were 0."""
    assert fit_slope([(32.0, 1.0), (64.0, 4.0)]) == pytest.approx(2)


def test_kept_weights_grow_with_the_square(run_experiment):
    page, found = run_experiment("complexity", longest=256, repeats=1, dim=32)
    assert found["memory slope, attention (weights kept)"] > 1.4
    assert found["memory slope, attention (fused)"] == pytest.approx(1, abs=0.05)
    assert found["memory slope, LSTM"] == pytest.approx(1, abs=0.2)
    assert [len(block.rows) for block in page.tables] == [4, 2, 4, 4]


def test_texts_side_by_side_count_for_one_each():
    layer, module, _ = build_layers(32)["convolution"]
    alone, many = (measure_layer(layer, module, 64, Settings(dim=32, repeats=1, texts=texts))[1] for texts in (1, 8))
    assert alone == many == 64 * 32 * 4 / 1024


def test_a_fused_kernel_keeps_less():
    layers, settings = build_layers(32), Settings(dim=32, repeats=1)
    kept = {name: measure_layer(layer, module, 512, settings)[1] for name, (layer, module, _) in layers.items()}
    assert kept["attention (fused)"] < kept["attention (weights kept)"]
