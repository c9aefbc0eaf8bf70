"""Charts, heatmaps and pages in HTML."""

from __future__ import annotations

import torch

from formers.reports.html import draw_chart, draw_heatmap, render_page, smooth_line


def test_chart():
    drawn = draw_chart({"loss <1>": [(0, 3.0), (10, 1.0)], "other": [(0, 2.0)], "none": []}, "a & b", ("level", 2.5))
    assert "loss &lt;1&gt;" in drawn
    assert "a &amp; b" in drawn
    assert drawn.count("<polyline") == 2
    assert 'class="level"' in drawn
    assert draw_chart({"empty": []}, "x") == ""
    assert "NaN" not in draw_chart({"flat": [(0, 1.0)]}, "x")


def test_smooth():
    line = [(float(i), float(i % 2)) for i in range(1000)]
    few = smooth_line(line, 100)
    assert len(few) == 100
    assert few[0] == (4.5, 0.5)
    assert smooth_line([(0, 1.0), (1, 2.0)]) == [(0, 1.0), (1, 2.0)]


def test_heatmap_and_page():
    drawn = draw_heatmap(["<a>", "긴 조각이라 줄인다 아주"], torch.tensor([[1.0, 0.0], [0.25, 0.75]]), "head")
    assert drawn.count("<rect") == 3
    assert "&lt;a&gt;" in drawn
    assert "…" in drawn
    assert 'fill-opacity="0.25"' in drawn
    whole = render_page("T", ["<p>x</p>"], "ko")
    assert whole.startswith("<!doctype html>")
    assert "<style>" in whole
