"""The linear baseline learns what n-grams can tell, in Korean too; tables of mistakes count rightly."""

from __future__ import annotations

import unicodedata

import pytest

from formers import Error
from formers.evaluation.metrics import LinearBaseline, describe_baselines, run_baseline, run_majority_baseline
from formers.tasks.examples import read_examples

GOOD, BAD = ["재미있어요", "좋았습니다", "great film"], ["지루해요", "별로였습니다", "bad film"]
ROWS = [
    {"text": f"{text} {i}", "other": None, "label": label}
    for i in range(6)
    for label, texts in (("pos", GOOD), ("neg", BAD))
    for text in texts
]


def test_classes_are_learned_whatever_the_form_of_hangul():
    asked = [{"text": unicodedata.normalize("NFD", t), "other": None, "label": "pos"} for t in ("재미있네요", "좋았어")]
    assert LinearBaseline(ROWS).predict_labels(asked) == ["pos", "pos"]
    assert run_baseline(ROWS[:24], ROWS[24:])["accuracy"] == 1
    assert LinearBaseline(ROWS).predict_probabilities(asked).sum(1) == pytest.approx(1)


def test_a_line_names_the_part_and_the_kind_of_each_baseline():
    rows = [{"text": "x", "label": label} for label in ("a", "a", "b")]
    frequent = run_majority_baseline(rows, [*rows, {"text": "y", "label": "b"}])
    assert frequent["accuracy"] == 0.5
    measured = {"most frequent label": frequent, "TF-IDF + linear": {"accuracy": 0.868, "f1_macro": 0.9}}
    line = describe_baselines("validation", measured)
    assert line == "baseline on the validation part (accuracy): most frequent label 50.0 %, TF-IDF + linear 86.8 %"
    assert run_majority_baseline([{"text": "x", "label": 1.0}], []) == {}
    assert run_majority_baseline([{"text": "x", "label": ["a"]}], []) == {}
    assert (
        describe_baselines("test", {"a": {}, "b": {"spearman": 0.5}})
        == "baseline on the test part (spearman): b 0.5000"
    )
    assert describe_baselines("test", {"a": {}}) == ""


def test_a_baseline_tells_how_far_it_is():
    told = []
    run_baseline(ROWS[:24], ROWS[24:], tell=lambda *what: told.append(what[:3]))
    assert told == [("baseline", i, 3) for i in range(4)]


def test_numbers_pairs_and_several_labels():
    near = [{"text": f"a cat {w}", "other": f"a cat {w}", "label": 5.0} for w in "bcdefgh"]
    far = [{"text": f"a cat {w}", "other": f"the dog {w}{w}", "label": 0.0} for w in "bcdefgh"]
    found = run_baseline([*near[:5], *far[:5]], [*near[5:], *far[5:]])
    assert found["spearman"] > 0.8
    many = [{**row, "label": [row["label"], *(["korean"] if ord(row["text"][0]) > 999 else [])]} for row in ROWS]
    model = LinearBaseline(many)
    assert model.predict_labels([{"text": "재미있어요", "label": []}]) == [["korean", "pos"]]
    one = LinearBaseline([{"text": "x y", "label": "a"}, {"text": "z", "label": "a"}])
    assert one.predict_labels([{"text": "q", "label": "a"}]) == ["a"]


def test_refusals(monkeypatch):
    with pytest.raises(Error, match="nothing to learn"):
        LinearBaseline([])
    with pytest.raises(Error, match="no label"):
        LinearBaseline([{"text": "x", "label": None}])
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    with pytest.raises(Error, match=r"formers\[eval\]"):
        LinearBaseline(ROWS)


def test_real_sets(data):
    train, test = (read_examples(data / "classify" / f"trec.{part}.tsv.xz").rows for part in ("train", "test"))
    assert run_baseline(train, test)["accuracy"] > 0.85
