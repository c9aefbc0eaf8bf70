from __future__ import annotations

import pytest

from formers.experiments.size_and_quality import fit_power, smooth_curve


def test_a_power_law_is_recovered():
    a, b = fit_power([(x, 7.0 * x**-0.08) for x in (1e4, 1e5, 1e6)])
    assert (a, b) == (pytest.approx(7.0), pytest.approx(-0.08))
    assert smooth_curve([(1, 4.0), (2, 2.0), (3, 1.0)], 2) == [(2, 3.0), (3, 1.0)]


def test_sizes_are_compared(run_experiment):
    page, found = run_experiment("size-and-quality", dims=(16, 32), layers=1)
    small, large = page.tables[0].rows
    assert int(large[2].replace(",", "")) > 3 * int(small[2].replace(",", ""))
    assert set(found) == {"exponent", "loss 16", "loss 32"}
