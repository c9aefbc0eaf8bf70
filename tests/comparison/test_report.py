"""The report of a comparison is made of its records: rankings, pictures, what was not run."""

from __future__ import annotations

import re

import pytest

from formers.comparison.records import Record
from formers.comparison.report import ComparisonReport, render_comparison, to_standalone_svg
from formers.reports.pictures import find_frontier
from tests.comparison.toy_records import make_plan, make_race, make_tune

SCORES = {"bert": [0.70, 0.74], "gpt2": [0.80], "bloom": [0.60], "t5": [0.65], "xlnet": [0.5]}
BITS = {"bert": 1.1, "gpt2": 2.2, "bloom": 2.1, "xlnet": 1.5}


@pytest.fixture(scope="module")
def report():
    return ComparisonReport(make_race(SCORES, **BITS))


def test_only_causal_models_are_ranked_by_bits(report):
    """BERT's number is the lowest, and is of another kind."""
    rows = report.build_likelihood_table("epochs-10").rows
    assert [row[:3] for row in rows] == [["1", "BLOOM", "2.1000"], ["2", "GPT-2", "2.2000"]]
    apart = report.build_apart_table("epochs-10").rows
    assert [row[:2] for row in apart] == [["BERT", "pseudo-perplexity"], ["XLNet", "perplexity, left to right"]]


def test_pairs_have_a_column_only_where_they_were_measured(report):
    assert report.build_likelihood_table("epochs-10").head[-1] == "sentences"
    assert report.build_apart_table("epochs-10").head[-1] == "value"
    records = make_race({"gpt2": [0.8]}, gpt2=2.2)
    next(record for record in records if record.kind == "score").result["pairs"] = {"grammar": 0.75}
    table = ComparisonReport(records).build_likelihood_table("epochs-10")
    assert (table.head[-1], table.rows[0][-1]) == ("pairs, %", "75.0")


def test_all_families_are_ranked_by_tasks(report):
    rows = report.build_task_table("epochs-10").rows
    assert [row[:3] for row in rows[:2]] == [["1", "GPT-2", "80.00"], ["2", "BERT", "72.00 ± 2.83 (2)"]]
    assert rows[-2][1:] == ["TF-IDF + linear", "60.00", "60.00"]


def test_a_family_without_all_tasks_has_no_rank():
    records = [*make_race({"bert": [0.7], "gpt2": [0.6]}), make_tune("gpt2", 0.9, task="other")]
    rows = ComparisonReport(records).build_task_table("epochs-10").rows
    assert [row[:3] for row in rows[:2]] == [["1", "GPT-2", "75.00"], ["–", "BERT", "–"]]


def test_the_page(report):
    for language, words in (("en", "Hypotheses"), ("ko", "가설")):
        one = ComparisonReport(make_race(SCORES, **BITS), language=language)
        page, text, pictures = render_comparison(one, "A race")
        assert words in page
        assert words in text
        assert "not yet run" in page or language == "ko"
        assert not re.search(r"!\[[\w-]+\.svg\]", text), "a picture's caption stands for it, not the name of its file"
        assert len(pictures) == 6, "scores by operations and by parameters, curves of four kinds of models"
        assert all(re.search(r'^<svg xmlns="http://www.w3.org/2000/svg" .*</svg>\n$', to_standalone_svg(p), re.DOTALL)
                   for p in pictures.values())  # fmt: skip


def test_only_hypotheses_about_the_families_of_a_race_are_shown(report):
    rows = report.build_hypothesis_table().rows
    assert [row[0].partition(",")[0] for row in rows] == ["On 10 million words"], (
        "XLNet and BERT are here, ALBERT is not"
    )


def test_what_has_no_result_is_listed():
    lost = Record("tune/epochs-10/gpt2/seed0/reviews", "tune", "refused", "gpt2", error="the loss is not finite")
    page, text, _ = render_comparison(ComparisonReport([make_plan("gpt2"), lost]), "A race")
    assert "the loss is not finite" in page
    assert "Nothing has been pretrained yet." in text


def test_the_frontier():
    points = [(1.0, 5.0, "a"), (2.0, 4.0, "b"), (3.0, 7.0, "c"), (3.0, 6.0, "d"), (9.0, 8.0, "e")]
    assert find_frontier(points, True) == [(1.0, 5.0), (3.0, 7.0), (9.0, 8.0)]
    assert find_frontier(points, False) == [(9.0, 8.0)]
