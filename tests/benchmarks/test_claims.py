"""The claims of the papers: rules, interrupted runs, the table, and one claim from end to end with tiny shapes."""

from __future__ import annotations

import argparse
import json
import lzma
import random

import numpy as np
import pytest

import formers
from benchmarks.claim_works import WORKS, Work, compute_unigram_loss
from benchmarks.claims import (
    CLAIMS,
    RESULTS,
    SCALES,
    WORK_VERSIONS,
    Rule,
    collect_measurement,
    digest_settings,
    list_jobs,
    name_text,
    read_results,
    run_claim,
)
from benchmarks.claims_page import render_page
from formers.config import get_schema
from formers.data.store import Store
from formers.registry import FAMILIES, find_family, train_tokenizer


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
        (Rule("better", second_above=0.0), [-0.05, -0.04], [-0.02, -0.03], "unclear"),
        (Rule("better", second_above=0.0), [-0.05, -0.04], [0.3, 0.2], "held"),
    ],
)
def test_a_verdict_follows_its_rule(rule, first, second, verdict):
    assert rule.judge(first, second) == verdict


@pytest.mark.parametrize(
    ("rule", "first", "second", "spread", "verdict"),
    [
        (Rule("better", lower=False), [76.9, 76.3], [75.6, 76.0], 1.4, "unclear"),
        (Rule("better", lower=False), [79.0, 78.8], [75.6, 76.0], 1.4, "held"),
        (Rule("better", lower=False), [75.6, 76.0], [79.0, 78.8], 1.4, "did not hold"),
        (Rule("close", share=0.01), [5.04], [5.0], 0.02, "unclear"),
        (Rule("close", share=0.01), [5.02], [5.0], 0.02, "held"),
        (Rule("close", share=0.01), [5.08], [5.0], 0.02, "did not hold"),
    ],
)
def test_a_difference_within_repeats_is_unclear(rule, first, second, spread, verdict):
    assert rule.judge(first, second, spread) == verdict


def test_a_loss_near_that_of_token_frequencies_is_unclear():
    rule = Rule("close", share=0.05, learned=0.5)
    assert rule.judge([5.87, 5.88], [5.86, 5.86], unigram=5.95) == "unclear"
    assert rule.judge([5.37, 5.38], [5.36, 5.36], unigram=5.95) == "held"
    assert rule.judge([5.37, 5.38], [5.36, 5.36]) == "unclear", "rows that do not say what is trivial"
    assert all(claim.rule.learned for claim in CLAIMS.values() if claim.work == "text loss")


def test_the_unigram_loss_is_that_of_frequencies(tmp_path):
    draw = random.Random(0)
    texts = [" ".join(draw.choice("abcdefgh") for _ in range(60)) for _ in range(300)]
    for family in ("gpt2", "t5"):
        tokenizer = train_tokenizer(family, texts, 400)
        formers.prepare(texts, tokenizer, tmp_path / family, validation=0.1)
        work = Work(SCALES["dry"], "dry", 0, tmp_path, tmp_path, None, "x", {"label": "x", "family": family})
        loss = compute_unigram_loss(work, tmp_path / family)
        ids = np.asarray(Store.open(tmp_path / family).tokens)
        shares = np.unique(ids, return_counts=True)[1] / len(ids)
        entropy = -(shares * np.log(shares)).sum()
        # Nearly 4 nats for T5 if its sentinels cost what tokens do that the text does not have.
        assert loss == pytest.approx(entropy, abs=0.2), family


def build_row(name, arm, seed, value, scale="cpu", **more):
    """Build a row of the results as run_claim writes it."""
    settings = digest_settings(CLAIMS[name].work, CLAIMS[name].arms[arm], scale)
    return {"claim": name, "scale": scale, "seed": seed, "arm": arm, "settings": settings, "value": value} | more


def test_rows_of_other_settings_do_not_count():
    rows = [build_row("rnn", arm, 0, arm + 0.5) for arm in (0, 1)]
    assert collect_measurement(rows, "rnn", "cpu").seeds == [0]
    assert list_jobs(["rnn"], (0,), rows, "cpu") == []
    for stale in ({"settings": "of before"}, {}):
        old = [{k: v for k, v in row.items() if k != "settings"} | stale for row in rows]
        assert collect_measurement(old, "rnn", "cpu").seeds == []
        assert list_jobs(["rnn"], (0,), old, "cpu") == [("rnn", 0)], "what was measured otherwise is run again"


def test_the_digest_follows_what_is_measured():
    arm = {"label": "x", "family": "bert"}
    digest = digest_settings("transfer", arm, "cpu")
    same = {"label": "y", "family": "bert", "tokenizer": "bert", "objective": {"name": "nsp"}}
    assert digest_settings("transfer", same, "cpu") == digest, "labels, and defaults that are spelled out"
    others = [
        digest_settings("titles", arm, "cpu"),
        digest_settings("transfer", arm, "gpu"),
        digest_settings("transfer", arm, "cpu", "other.txt"),
        *(digest_settings("transfer", arm | more, "cpu") for more in (
            {"table": "classify/trec"}, {"objective": {"name": "mlm"}}, {"model": {"layers": 3}}, {"step_share": 2},
        )),
    ]  # fmt: skip
    assert len({digest, *others}) == 1 + len(others)
    one = CLAIMS["rnn"].arms[0]
    assert digest_settings("reversal", one, "cpu", "other.txt") == digest_settings("reversal", one, "cpu")
    assert set(WORK_VERSIONS) == set(WORKS)


def test_every_row_says_what_was_measured():
    for row in read_results(RESULTS):
        assert len(row["settings"]) == 12, row
        assert "text" in row


def test_arms_of_one_configuration_are_pooled():
    rows = [build_row("roberta", 0, seed, 76.5, "gpu") for seed in (0, 1)]
    rows += [build_row("roberta", 1, seed, 75.2, "gpu") for seed in (0, 1)]
    rows += [build_row("xlnet", 0, seed, 79.0 - seed, "gpu") for seed in (0, 1)]
    alone = collect_measurement(rows, "xlnet", "gpu")
    assert alone.average(1) == [75.2, 75.2], "RoBERTa's arm with NSP is XLNet's BERT"
    assert (alone.spread, alone.has_repeats) == (1.0, False), "the seeds stand in for repeats"
    assert alone.judge(CLAIMS["xlnet"].rule) == "held"
    rows += [build_row("xlnet", 1, seed, 76.6, "gpu") for seed in (0, 1)]
    for name, verdict in (("roberta", "unclear"), ("xlnet", "held")):
        found = collect_measurement(rows, name, "gpu")
        assert found.average(1) == pytest.approx([75.9, 75.9])
        assert (found.spread, found.has_repeats) == (pytest.approx(1.4), True)
        assert found.judge(CLAIMS[name].rule) == verdict


def test_what_is_finished_is_not_run_again(tmp_path):
    rows = [build_row("rnn", arm, 0, arm + 0.5) for arm in (0, 1)]
    rows.append(build_row("bloom", 0, 0, 0.1))
    path = tmp_path / "claims.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"claim": "blo', encoding="utf-8")
    found = read_results(path)
    assert found == rows, "a line that was cut off is left out"
    assert list_jobs(["rnn", "bloom"], (0, 1), found, "cpu") == [("bloom", 0), ("rnn", 1), ("bloom", 1)]
    measured = collect_measurement(found, "rnn", "cpu")
    assert (measured.average(0), measured.average(1), measured.seeds) == ([0.5], [1.5], [0])
    assert collect_measurement(found, "bloom", "cpu").seeds == []


def test_the_pages_hold_what_was_measured():
    for language, word in (("en", "not yet measured"), ("ko", "아직 측정하지 않음")):
        page = render_page(read_results(RESULTS), korean=language == "ko")
        assert (RESULTS.parents[2] / "docs" / language / "claims.md").read_text(encoding="utf-8") == page, (
            "python -m benchmarks.claims --pages"
        )
        empty = render_page([], korean=language == "ko")
        assert word in empty
        assert "Luong, GNMT" in empty.split("##")[0], "what has not been run on a GPU"
        assert all(claim.member in page for claim in CLAIMS.values())


def test_an_arm_that_fails_leaves_the_other_its_result(tmp_path, monkeypatch, capsys):
    tried = []

    def measure(work):
        tried.append(work.arm["label"])
        if len(tried) == 1:
            raise RuntimeError("out of memory")
        return {"value": 1.0}

    monkeypatch.setitem(WORKS, "reversal", measure)
    given = argparse.Namespace(
        out=tmp_path / "claims.jsonl", scale="dry", folder=tmp_path, data=tmp_path, text=None, again=False
    )
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
        out=tmp_path / "claims.jsonl", scale="dry", folder=tmp_path, data=tmp_path, text=None, again=False
    )  # fmt: skip
    run_claim("rnn", 0, given)
    rows = read_results(given.out)
    assert [(row["arm"], row["seed"]) for row in rows] == [(0, 0), (1, 0)]
    assert all(0 <= row["value"] <= 1 for row in rows)
    run_claim("rnn", 0, given)
    assert read_results(given.out) == rows, "finished arms are not run again"
    given.again = True
    run_claim("rnn", 0, given)
    repeated = collect_measurement(read_results(given.out), "rnn", "dry", name_text(None))
    assert [len(repeated.arms[arm][0]) for arm in (0, 1)] == [2, 2], "but may be repeated"
    assert repeated.has_repeats
