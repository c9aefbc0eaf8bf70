"""Minimal pairs: every one differs in a place, and a model that knows one form prefers it."""

import collections

import pytest

import formers
from formers.errors import Error
from formers.evaluation.api import evaluate_pairs
from formers.evaluation.minimal_pairs import PHENOMENA, attach, generate_pairs
from tests.command_line import run_command
from tests.small_models import build_language_model


@pytest.mark.parametrize("language", ["en", "ko"])
def test_pairs_differ_and_are_the_same_every_time(language):
    rows = list(generate_pairs(language))
    assert rows == list(generate_pairs(language))
    assert {row["phenomenon"] for row in rows} == set(PHENOMENA[language])
    assert min(collections.Counter(row["phenomenon"] for row in rows).values()) >= 20
    for row in rows:
        assert row["good"] != row["bad"]
        assert "  " not in row["good"] + row["bad"]
        assert row["good"][-1] in ".?"
    good = {row["good"] for row in rows}
    assert not good & {row["bad"] for row in rows}, "what is good once is never bad"


def test_particles_follow_the_last_sound():
    assert [attach(word, "은", "는") for word in ("학생", "친구")] == ["학생은", "친구는"]


def test_evaluation_by_phenomenon():
    former = build_language_model("gpt2")
    rows = [("the cat sat", "cat the sat"), ("a b", "a c"), ("a c", "a b")]
    found = evaluate_pairs(former, rows, ["order", "letters", "letters"])
    assert found["letters"] == 0.5, "one of two opposites is right"
    assert found["accuracy_mean"] == (found["order"] + 0.5) / 2


def test_bundled_pairs_by_name(capsys, tmp_path):
    former = build_language_model("gpt2")
    found = formers.evaluate(former, "minimal-pairs-ko", limit=70)
    assert found.kind == "pairs"
    assert found.num_examples == 70
    assert set(found.metrics) == {"accuracy", "accuracy_token", "accuracy_mean", "particle-form", "case-roles"}
    with pytest.raises(Error, match="no minimal pairs in 'fr'"):
        formers.evaluate(former, "minimal-pairs-fr")
    formers.save(former, tmp_path / "m")
    code, out, _ = run_command(capsys, "evaluate", str(tmp_path / "m"), "--data", "minimal-pairs-en", "--limit", "5")
    assert code == 0
    assert "agreement" in out
