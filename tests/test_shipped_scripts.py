"""The scripts behind the shipped models: how text is cleaned, what a time budget allows, what an n-gram is worth."""

import importlib.util
import json
import math
import sys
from collections import Counter
from pathlib import Path

import pytest

import formers
from formers.interop.model_card import write_shipped_card
from formers.interop.shipped_models import list_shipped_models
from tests.small_models import build_language_model

SCRIPTS = Path(__file__).parents[1] / "scripts"


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_wikitext_becomes_prose():
    corpora = load_script("prepare_corpora")
    text = """{{Infobox|a={{b|c}}}}
'''Anarchism''' is a [[political philosophy|philosophy]] that was named in [[France]].<ref>Smith, p. 4</ref>
[[Image:Flag.png|thumb|A [[flag]] of the movement]]
== History ==
* [[one]]
* A long item of a list that is a whole sentence is kept, because it is prose like any other here.
{| class="wikitable"
| a table || of numbers that nobody wants to read as a sentence at all here.
|}
It spread ([[Greek language|Greek]]: {{polytonic|x}}) &amp;mdash; slowly &mdash; over the whole of the continent.
== See also ==
A sentence about other articles that stands in the last section and is left out of the text.
[[de:Anarchie]]"""
    assert corpora.clean_article(text).split("\n") == [
        "Anarchism is a philosophy that was named in France.",
        "A long item of a list that is a whole sentence is kept, because it is prose like any other here.",
        "It spread (Greek:) — slowly — over the whole of the continent.",
    ]
    assert corpora.clean_article("#REDIRECT [[Elsewhere]]") == ""


def test_bills_lose_headings_and_references():
    corpora = load_script("prepare_corpora")
    text = (
        "제안이유 및 주요내용\n가. 현행법은 국가가 지원할 수 있도록 규정하고 있음(안 제3조제2항 및 제4조(별표)).\n"
        "참고사항\n이 법률안은 다른 법률안의 의결을 전제로 함"
    )
    assert corpora.clean_bill(text) == "현행법은 국가가 지원할 수 있도록 규정하고 있음."


def test_trigrams_by_hand():
    ngrams = load_script("ngram_baseline")
    documents, vocab = [[1, 2, 3, 1, 2, 4], [1, 2, 3]], 6
    model = ngrams.NgramModel(3, vocab)
    model.count(documents)

    def count_runs(n):
        return Counter(tuple(row[i : i + n]) for row in documents for i in range(len(row) - n + 1))

    def compute(context, token):
        probability = 1 / vocab
        for n in range(1, len(context) + 2):
            runs, front = count_runs(n), tuple(context[len(context) - n + 1 :])
            after = {run: count for run, count in runs.items() if run[:-1] == front}
            if total := sum(after.values()):
                own = max(after.get((*front, token), 0) - 0.75, 0) / total
                probability = own + 0.75 * len(after) / total * probability
        return probability

    row = [1, 2, 3, 5, 2]
    expected = sum(math.log(compute(row[max(0, i - 2) : i], token)) for i, token in enumerate(row))
    assert model.compute_log_prob([row]) == pytest.approx(expected)
    assert sum(compute([1, 2], token) for token in range(vocab)) == pytest.approx(1.0)


def test_a_deadline_leaves_time_for_the_falling_rate(monkeypatch):
    train = load_script("train_shipped")
    now, sent = [0.0], []
    monkeypatch.setattr(train.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(train.os, "kill", lambda *_: sent.append(now[0]))
    deadline = train.Deadline(200.0, began=0.0)
    deadline.begin_run(stop_at_decay=True)
    step = 0
    while not sent:
        now[0] += 1.0
        step += 10
        deadline({"step": step, "loss": 1.0})
    spent, decay = sent[0], deadline.step * 0.25 / 10
    assert spent + decay + deadline.startup + train.FINISH_SECONDS == pytest.approx(200, abs=3)
    deadline({"step": step + 1, "loss": 1.0})  # a step that was launched before
    assert len(sent) == 1, "a second signal would end the run without saving"
    deadline.begin_run(stop_at_decay=False)
    now[0] = 300.0
    deadline({"step": step + 2, "loss": 1.0})
    deadline({"step": step + 3, "loss": 1.0})
    assert len(sent) == 2


def test_archives_come_back_whole(tmp_path, monkeypatch):
    train = load_script("train_shipped")
    monkeypatch.setattr(train, "PART_BYTES", 20_000)
    former = build_language_model("bert")
    formers.save(former, tmp_path / "bert-mini", storage="bf16")
    (tmp_path / "out").mkdir()
    train.write_archive(tmp_path / "bert-mini", tmp_path / "out", "encoder")
    assert len(list((tmp_path / "out").iterdir())) > 1
    assert train.unpack(tmp_path / "out", tmp_path / "again") == ["bert-mini"]
    assert (
        formers.load(tmp_path / "again" / "bert-mini").fingerprint == formers.load(tmp_path / "bert-mini").fingerprint
    )


def test_cards_hold_what_the_record_says(tmp_path):
    train = load_script("train_shipped")
    former = build_language_model("bert")
    formers.save(former, tmp_path / "m", storage="int8")
    made = {"tokens_seen": 1234, "steps": 5, "seconds": 60.0, "device": "H200"}
    tuned = {"nsmc": {"metric": "accuracy", "pretrained": {"mean": 0.87, "seeds": 3}, "scratch": {"mean": 0.85}}}
    record = train.build_card("encoder", made, {"minimal_pairs": {"en": {"mean": 0.7, "npi": 0.7}}}, tuned)
    write_shipped_card(tmp_path / "m", former, record, "int8")
    page = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert "license: cc-by-sa-3.0" in page
    assert "| nsmc accuracy, 3 seeds | 87.0 | same shape from scratch 85.00 |" in page
    assert "1,234 tokens in 5 steps" in page
    assert "CC BY 4.0" in page
    assert "측정값" in (tmp_path / "m" / "README.ko.md").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "m" / "card.json").read_text())["parameters"] == former.num_parameters
    formers.load(tmp_path / "m")  # the checksums do not cover the cards


def test_shipped_models_keep_their_limits():
    shipped = list_shipped_models()
    assert shipped
    assert sum(model.num_bytes for model in shipped) <= 32e6
    for model in shipped:
        assert model.num_bytes <= 12e6
        assert {"title", "languages", "license", "data", "figures", "compute", "limits"} <= set(model.card)


def test_word_vectors_of_the_package():
    former = formers.load("formers/word-vectors")
    assert "queen" in [word for word, _ in former.neighbours("king", 10)]
    assert "재밌는" in [word for word, _ in former.neighbours("재미있는", 10)]
