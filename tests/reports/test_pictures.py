from __future__ import annotations

import itertools
import math
import re

import pytest
import torch

from formers.reports.pictures import (
    draw_bars,
    draw_curves,
    draw_frontier,
    draw_matrix,
    draw_points,
    find_ticks,
    place_names,
    shorten_number,
    spread_labels,
)


def test_a_short_logarithmic_axis_has_ticks_too():
    assert [label for _, label in find_ticks(0, 3, log=True)] == ["1", "10", "100", "1,000"]
    assert [label for _, label in find_ticks(-9, -3, log=True)][::3] == ["10⁻⁹", "10⁻⁶", "0.001"]
    short = find_ticks(math.log10(6.3), math.log10(6.8), log=True)
    assert len(short) > 1
    assert all(6.3 <= value <= 6.8 for value, _ in short)


def test_a_large_number_is_shortened_where_nothing_is_lost():
    assert shorten_number("20,000", 20_000) == "20,000"
    assert shorten_number("200,000", 200_000) == "2·10⁵"
    assert shorten_number("250,000", 250_000) == "250,000"
    assert shorten_number("1,500,000,000,000", 1.5e12) == "1.5·10¹²"


def test_a_matrix_has_room_for_its_names_and_leaves_out_what_is_not_finite():
    picture = draw_matrix(
        torch.tensor([[0.01, math.nan]]), "", ["8 experts, no balance loss"], cell=40, with_numbers=True
    )
    assert "8 experts, no balance loss" in picture
    assert "nan" not in picture
    assert ">0.010<" in picture
    width = float(picture.split('viewBox="0 0 ')[1].split(" ")[0])
    assert width > 2 * 40 + 6 * len("8 experts, no balance loss")


def test_names_of_columns_have_room_and_turn_only_where_they_must():
    one = torch.tensor([[1.0]])
    narrow, wide = (
        draw_matrix(one, "", columns=["가나다라마바사아자"]),
        draw_matrix(one, "", columns=["head 0"], cell=52),
    )
    assert "rotate" in narrow
    assert "rotate" not in wide
    mixed = draw_matrix(torch.ones(1, 3), "", columns=["a", "b", "</s>"])
    assert mixed.count("rotate") == 1, "letters stay upright beside a longer name"
    height = float(narrow.split('viewBox="0 0 ')[1].split(" ")[1].rstrip('"'))
    assert height >= 15 + 9 * 10, "nine syllables above one cell"


def test_numbers_on_dark_cells_have_the_other_colour():
    picture = draw_matrix(torch.tensor([[1.0, -1.0, 0.5]]), "", cell=40, with_numbers=True)
    assert re.findall(r'class="(small[^"]*)"', picture) == ["small on-cell", "small on-neg", "small"]


def test_labels_keep_the_order_of_their_lines():
    assert spread_labels([10, 100], 0, 200) == [10, 100], "far apart"
    assert spread_labels([100, 98, 101], 0, 200) == pytest.approx([299 / 3, 299 / 3 - 14, 299 / 3 + 14])
    crowded = spread_labels([199, 200, 150, 198], 0, 200)
    assert crowded == [186, 200, 150, 172]
    assert spread_labels([0, 0, 20, 60], 0, 200) == [0, 14, 28, 60], "one block meets the next"
    assert spread_labels([], 0, 200) == []


def test_equal_points_of_two_groups_show_as_rings():
    picture = draw_points({"a": [(0, 0, "x")], "b": [(0, 0, "y"), (1, 1, "z")]}, "")
    assert 'r="6"' in picture
    assert 'r="4"' in picture


def test_names_of_points_cover_neither_dots_nor_names():
    dots = [(100.0, 100.0, 8, "deep"), (107.0, 102.0, 8, "is"), (300.0, 100.0, 8, "far")]
    (_, first, _), (_, second, _), (left, third, _) = place_names(dots, 420)
    assert abs(first - 102) >= 14, "the name of one would cover the dot of the other"
    assert abs(first - second) >= 14
    assert (left, third) == (311, 100)


def test_pictures_show_the_sign_and_escape_names():
    picture = draw_matrix(torch.tensor([[1.0, -1.0, 0.0]]), "<b>", ["<i>"], ["x", "y", "z"])
    assert picture.count('class="cell"') == picture.count('class="neg"') == 1
    assert "<b>" not in picture
    assert "<i>" not in picture
    assert "<i>" not in draw_points({"a": [(0, 0, "<i>"), (1, 1, "x")]}, "")
    assert "<b>" not in draw_curves({"<b>": [(0, 1), (1, math.nan), (2, 3)]}, "")


def test_an_axis_of_whole_numbers_has_no_halves():
    labels = re.compile(r'text-anchor="middle"[^>]*>([^<]+)<')
    assert labels.findall(draw_curves({"a": [(0, 1.0), (1, 2.0), (2, 2.5)]}, "x", "layer")) == ["0", "1", "2", "layer"]
    assert "0.4" in labels.findall(draw_curves({"a": [(0.0, 1.0), (0.3, 2.0), (1.0, 2.5)]}, "x"))


def test_bars_of_several_pictures_can_have_one_scale():
    def measure_widths(**options: float) -> list[float]:
        return [
            float(w)
            for w in re.findall(r'width="([0-9.]+)" height="16"', draw_bars({"a": 0.5, "b": 0.25}, "", **options))
        ]

    assert measure_widths() == [380, 190]
    assert measure_widths(limit=1.0) == [190, 95]


def test_names_of_crowded_points_stand_apart_and_in_order():
    """A race of families of one size: their points nearly cover each other, their names must not."""
    points = [(200_000.0 + 10 * i, 70 + 0.01 * i, f"Name {i}") for i in range(22)]
    picture = draw_frontier(points, "race", "parameters", "score")
    names = {text: float(y) for y, text in re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>(Name \d+)</text>', picture)}
    assert list(names) == [f"Name {i}" for i in reversed(range(22))]
    heights = list(names.values())
    assert all(below - above >= 13.5 for above, below in itertools.pairwise(heights))
    assert len(re.findall(r'stroke-width="0.6"', picture)) == 22, "a line from each name to its point"
    assert heights[-1] < float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', picture)[1])
