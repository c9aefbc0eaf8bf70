"""The claims of the papers: rules, interrupted runs, the table, and one claim from end to end with tiny shapes."""

from __future__ import annotations

import argparse
import json
import lzma

import pytest

from benchmarks.claim_works import SCALES, WORKS, Work
from benchmarks.claims import CLAIMS, RESULTS, Rule, collect_values, list_jobs, read_results, run_claim
from benchmarks.claims_page import render_page
from formers.config import get_schema
from formers.registry import FAMILIES, find_family


def test_every_claim_is_complete():
    assert len(CLAIMS) >= 16
    for name, claim in CLAIMS.items():
        assert claim.work in WORKS, name
        assert all((claim.text, claim.korean, claim.source, claim.measure, claim.measure_korean))
        assert len(set(claim.get_labels())) == 2
        assert {k: v for k, v in claim.arms[0].items() if k != "label"} != claim.arms[1], "two arms that do not differ"
        for arm in claim.arms:
            family = arm.get("family", "seq2seq")
            assert family in FAMILIES
            assert set(arm.get("model", {})) <= set(get_schema(find_family(family).definition.config_class))


@pytest.mark.parametrize(
    ("rule", "first", "second", "verdict"),
    [
        (Rule("better"), [1.0, 2.0], [1.1, 2.1], "held"),
        (Rule("better"), [1.1, 2.1], [1.0, 2.0], "did not hold"),
        (Rule("better"), [1.0, 2.2], [1.1, 2.1], "unclear"),
        (Rule("better", lower=False), [60.0], [58.0], "held"),
        (Rule("better", lower=False, floor=55), [51.0], [50.0], "unclear"),
        (Rule("close", share=0.01), [5.04], [5.0], "held"),
        (Rule("close", share=0.01), [5.06], [5.0], "did not hold"),
        (Rule("close", lower=False, share=0.01), [98.0], [100.0], "did not hold"),
        (Rule("better"), [], [], "not yet measured"),
    ],
)
def test_a_verdict_follows_its_rule(rule, first, second, verdict):
    assert rule.judge(first, second) == verdict


def test_what_is_finished_is_not_run_again(tmp_path):
    rows = [{"claim": "rnn", "scale": "cpu", "seed": 0, "arm": arm, "value": arm + 0.5} for arm in (0, 1)]
    rows.append({"claim": "bloom", "scale": "cpu", "seed": 0, "arm": 0, "value": 0.1})
    path = tmp_path / "claims.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"claim": "blo', encoding="utf-8")
    found = read_results(path)
    assert found == rows, "a line that was cut off is left out"
    assert list_jobs(["rnn", "bloom"], (0, 1), found, "cpu") == [("bloom", 0), ("rnn", 1), ("bloom", 1)]
    assert collect_values(found, "rnn", "cpu") == ([0.5], [1.5], [0])
    assert collect_values(found, "bloom", "cpu") == ([], [], [])


def test_the_pages_hold_what_was_measured():
    for language, word in (("en", "not yet measured"), ("ko", "아직 측정하지 않음")):
        page = render_page(read_results(RESULTS), korean=language == "ko")
        assert (RESULTS.parents[2] / "docs" / language / "claims.md").read_text(encoding="utf-8") == page, (
            "python -m benchmarks.claims --pages"
        )
        assert word in render_page([], korean=language == "ko")
        assert all(claim.member in page for claim in CLAIMS.values())


def test_an_arm_that_fails_leaves_the_other_its_result(tmp_path, monkeypatch, capsys):
    tried = []

    def measure(work):
        tried.append(work.arm["label"])
        if len(tried) == 1:
            raise RuntimeError("out of memory")
        return {"value": 1.0}

    monkeypatch.setitem(WORKS, "reversal", measure)
    given = argparse.Namespace(out=tmp_path / "claims.jsonl", scale="dry", folder=tmp_path, data=tmp_path, text=None)
    with pytest.raises(SystemExit, match="plain RNN with attention"):
        run_claim("rnn", 0, given)
    assert "out of memory" in capsys.readouterr().err
    assert [row["arm"] for row in read_results(given.out)] == [1]
    assert list_jobs(["rnn"], (0,), read_results(given.out), "dry") == [("rnn", 0)]
    run_claim("rnn", 0, given)
    assert [row["arm"] for row in read_results(given.out)] == [1, 0], "only what failed is done again"


def test_other_text_may_be_packed_and_has_documents(tmp_path):
    documents = [f"Document {n} has a line.\nIt has another one." for n in range(50)]
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress("\n\n".join(documents).encode()))
    (tmp_path / "b.txt").write_text("\n\n".join(documents[:40]), encoding="utf-8")
    arms = CLAIMS["gpt3"].arms
    for text, count in ((tmp_path / "a.txt.xz", 50), (tmp_path / "b.txt", 40), (tmp_path, 90)):
        work = Work(SCALES["gpu"], "gpu", 0, tmp_path, tmp_path, text, "gpt3", arms[0])
        assert len(work.read_corpus("english")) == count


def test_norms_after_the_sums_have_a_smaller_rate_where_models_are_wide(tmp_path):
    for family, scale, rate in (("bert", "gpu", 7e-4), ("bert", "cpu", 1e-3), ("gpt2", "gpu", 1e-3)):
        work = Work(SCALES[scale], scale, 0, tmp_path, tmp_path, None, "gpt", {"label": "x"})
        assert work.choose_rate(family) == rate


def test_a_claim_runs_from_end_to_end(tmp_path):
    given = argparse.Namespace(
        out=tmp_path / "claims.jsonl", scale="dry", folder=tmp_path, data=tmp_path, text=None
    )  # fmt: skip
    run_claim("rnn", 0, given)
    rows = read_results(given.out)
    assert [(row["arm"], row["seed"]) for row in rows] == [(0, 0), (1, 0)]
    assert all(0 <= row["value"] <= 1 for row in rows)
    run_claim("rnn", 0, given)
    assert read_results(given.out) == rows, "finished arms are not run again"
