"""Reports: written from a run's folder alone, escaped, with axes that can be read, in the language of the text."""

from __future__ import annotations

import json
import re

import pytest

from formers.cli.main import main
from formers.evaluation.task import TaskEvaluation, build_report_tables
from formers.reports.html import compute_ticks, draw_chart
from formers.reports.run_report import RunReport, render_html_table, write_report
from formers.reports.translations import KOREAN, translate_report
from formers.task import Task
from formers.training.run_folder import RUN_FORMAT, RunFolder


def folder_of(path, *, losses=("lm",), valid=((4, 2.5),), samples=(), sections=(), language=None, name="run"):
    """A run's folder, as training leaves it."""
    where = path / name
    where.mkdir(parents=True)
    result = {
        "score": {"loss": 2.5, "accuracy": 0.31, "metrics": {losses[0]: 2.5, **dict.fromkeys(losses[1:], 0.5)}},
        "baseline": {"loss": 3.125, "accuracy": 0.05, "metrics": {losses[0]: 3.125}},
        "parameters": 12345, "best": 4, "memory": 0, "mfu": 0.0,
    }  # fmt: skip
    result |= {} if language is None else {"language": language}
    about = {
        "format": RUN_FORMAT, "config": {"family": "bert", "train": {"steps": 4}, "data": {}}, "result": result,
        "data": {"tokens": 5000, "documents": 12, "tokenizer": "t", "store": "s"},
        "machine": {"processes": 1, "threads": 2, "name": "a <machine>", "device": "cpu", "formers": "0", "torch": "2",
                    "python": "3"},
    }  # fmt: skip
    (where / "run.json").write_text(json.dumps(about), encoding="utf-8")
    rows = [
        {"step": s, "loss": 3.0 + 0.5 * (len(losses) - 1), "losses": {losses[0]: 3.0, **dict.fromkeys(losses[1:], 0.5)},
         "tokens": 100 * s, "seconds": float(s)}
        for s in range(1, 5)
    ]  # fmt: skip
    rows += [
        {"step": s, "valid": {"loss": v + 0.5 * (len(losses) - 1), losses[0]: v, **dict.fromkeys(losses[1:], 0.5)}}
        for s, v in valid
    ]
    (where / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    if samples:
        lines = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
        (where / "samples.jsonl").write_text(lines, encoding="utf-8")
    if sections:
        (where / "evaluation.json").write_text(json.dumps({"sections": list(sections)}), encoding="utf-8")
    return RunFolder(where)


def write_and_read(folder, **how):
    write_report(folder, **how)
    return [(folder.path / name).read_text(encoding="utf-8") for name in ("report.html", "report.md")]


@pytest.mark.parametrize(
    ("low", "high", "whole"),
    [(0, 1, True), (0, 3, True), (0, 100_000, True), (2.0011, 2.0013, False), (0.1, 9.7, False), (5.0, 5.0, False),
     (1e-6, 2e-6, False), (0, 7, True), (-3.5, 12000.0, False)],
)  # fmt: skip
def test_ticks_are_distinct_and_inside(low, high, whole):
    found = compute_ticks(low, high, whole)
    assert 2 <= len(found) <= 8 or low == high
    values, labels = zip(*found, strict=True)
    assert len(set(labels)) == len(labels)
    assert all(low - 1e-12 <= v <= max(high, low + 1) + 1e-12 for v in values)
    assert [float(label.replace(",", "")) for label in labels] == pytest.approx(list(values))
    assert not whole or all(float(v).is_integer() for v in values)


def test_axes_of_a_short_run_and_of_a_flat_curve():
    """Four steps have no half steps, and losses that differ in the third digit have labels that differ."""
    drawn = draw_chart({"a": [(1, 2.001), (2, 2.002), (3, 2.0015)]}, "x")
    labels = re.findall(r'<text [^>]*class="soft"[^>]*>([^<]*)</text>', drawn)
    assert len(labels) == len(set(labels)) or labels.count("0") == 1
    assert {"0", "1", "2", "3"} <= set(labels)
    assert "2.0010" in labels or "2.001" in labels


def test_labels_of_lines_cover_nothing():
    """Not each other, and not the numbers below, however near the lines end."""
    lines = {name: [(0, 3.0), (10, 1.0 + 0.001 * i)] for i, name in enumerate("abc")}
    drawn = draw_chart(lines, "x", ("level", 1.0))
    places = [float(y) for y, name in re.findall(r'y="([\d.]+)"[^>]*>(a|b|c|level)<', drawn)]
    assert len(places) == 4
    assert all(abs(p - q) >= 13.5 for i, p in enumerate(places) for q in places[:i])
    assert max(places) <= 232  # the numbers stand at 248


def test_one_evaluation_is_a_visible_point(tmp_path):
    page, _ = write_and_read(folder_of(tmp_path))
    assert page.count("<circle") >= 1
    assert page.count("<polyline") == 2


@pytest.mark.parametrize("losses", [("lm",), ("mlm", "nsp")])
def test_the_unigram_is_in_every_chart_of_pretraining(tmp_path, losses):
    """Where a model has several losses, the chart shows the one of its tokens, which the unigram has as well."""
    folder = folder_of(tmp_path, losses=losses)
    story = RunReport(folder)
    assert story.get_unigram_level() == ("unigram, validation", 3.125)
    assert story.get_curves() == {
        "training": [(float(s), 3.0) for s in range(1, 5)], "validation": [(4.0, 2.5)],
    }  # fmt: skip
    page, words = write_and_read(folder)
    assert "unigram, validation" in page
    assert ("loss over steps (mlm)" in page) == (len(losses) == 2)
    assert "| validation text |" in words
    assert "| 4 | 2.5000 |" in words


def test_markdown_is_escaped(tmp_path):
    text = "<script>alert(1)</script> a|b & ```"
    section = {"title": "Worst <b>", "head": ["text", "truth"], "rows": [[text, "x|y"]]}
    sample = {"step": 2, "given": "```\n<i>", "made": "| <b>"}
    page, words = write_and_read(folder_of(tmp_path, sections=[section], samples=[sample], name="run <1> | x"))
    assert "<script>" not in page
    outside = re.sub(r"^(`{3,}).*?^\1$", "", words, flags=re.MULTILINE | re.DOTALL)
    assert "<" not in outside.replace("<br>", "")
    assert "&lt;script&gt;alert(1)&lt;/script&gt; a\\|b &amp; ```" in words
    assert "a &lt;machine&gt;" in words
    for line in outside.splitlines():
        assert not line.startswith("|") or line.rstrip().endswith("|")
    assert "```\n<i>" in words  # as it is, in a longer fence
    assert "\n````" in words


def test_a_korean_run_has_a_korean_report(tmp_path):
    korean = [{"step": 2, "given": "영화가 정말", "made": "재미있어요"}]
    page, words = write_and_read(folder_of(tmp_path, samples=korean))
    for text in (page, words):
        assert "스텝 학습 후" in text
        assert "손실" in text
        assert "settings" not in text.lower()
    assert '<html lang="ko">' in page
    assert "유니그램, 검증" in page
    page, words = write_and_read(RunFolder(tmp_path / "run"), language="en")
    assert '<html lang="en">' in page
    assert "After step 2" in words
    assert '<html lang="ko">' in write_and_read(folder_of(tmp_path, language="ko", name="b"))[0]
    assert '<html lang="en">' in write_and_read(folder_of(tmp_path, name="c"))[0]


def test_the_language_of_a_report_on_the_command_line(tmp_path, capsys):
    folder_of(tmp_path)
    for words, lang in ((["--language", "ko"], "ko"), ([], "en")):
        with pytest.raises(SystemExit) as end:
            main(["report", str(tmp_path / "run"), *words])
        assert not end.value.code
        assert f'<html lang="{lang}">' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()


def test_labels_of_a_table_are_not_translated(tmp_path):
    confusion = {"title": "Truth (rows) and guess (columns)", "head": ["", "text", "test"],
                 "rows": [["text", "1", "0"], ["test", "0", "1"]]}  # fmt: skip
    measures = {"title": "Metrics", "head": ["", "accuracy"], "rows": [["validation", "0.5"], ["test", "0.4"]]}
    worst = {"title": "Worst examples", "head": ["text", "truth", "guess"], "rows": [["영화", "text", "test"]]}
    page, _ = write_and_read(folder_of(tmp_path, sections=[confusion, measures, worst], language="ko"))
    assert "<td>text</td>" in page
    assert '<th class="num">test</th>' in page
    assert "<td>테스트</td>" in page
    assert "혼동 행렬" in page
    assert "<td>영화</td><td>text</td><td>test</td>" in page
    assert '<td class="num">0.5</td>' in page


def test_every_translation_takes_the_same_values():
    for english, korean in KOREAN.items():
        assert sorted(re.findall(r"{[^}]*}", english)) == sorted(re.findall(r"{[^}]*}", korean)), english
        assert re.search("[가-힣]", korean), english
    assert translate_report("this {title}", "ko", title="BERT") == "이 BERT 모델"
    assert translate_report("not in the table", "ko") == "not in the table"


@pytest.mark.parametrize(
    ("kind", "truths", "guesses", "sure", "head", "cell"),
    [
        ("class", ["a"], ["b"], [0.25], "probability of the truth", "0.250"),
        ("tags", [["O", "B-X"]], [["O", "O"]], [0.5], "share of right tags", "50.0%"),
        ("number", [3.0], [1.5], [-1.5], "error", "1.500"),
        ("span", [["x"]], ["y"], [0.0], None, None),
    ],
)
def test_the_last_column_of_the_worst_examples_says_what_it_is(kind, truths, guesses, sure, head, cell):
    task = {"class": Task(), "tags": Task(name="tag", kind="tags"), "number": Task(name="regress", kind="number"),
            "span": Task(name="answer", kind="span")}[kind]  # fmt: skip
    *_, worst = build_report_tables(
        task, ["a", "b"], TaskEvaluation(truths, guesses, sure), [{"text": "t", "words": ["v", "w"]}]
    )
    assert worst["head"] == ["text", "truth", "guess", *([head] if head else [])]
    assert worst["rows"][0][3:] == ([cell] if head else [])


def test_columns_of_numbers_are_right_aligned():
    rows = [
        ("a", "+0.1", "7.6e-04", "x"),
        ("b", "-0.2", "12.5%", "1"),
        ("c", "–", "1,234", "2"),
        ("d", "", "< 1e-12", "3"),
    ]
    table = render_html_table(("", "p", "q", "r"), rows)
    assert re.findall(r"<th([^>]*)>", table) == ["", ' class="num"', ' class="num"', ""]
