"""The scripts behind the shipped models: how text is cleaned, what a time budget allows, what an n-gram is worth."""

import dataclasses
import importlib.util
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import formers
from formers.data.store import Store
from formers.interop.model_card import write_shipped_card
from formers.interop.shipped_models import SHIPPED_FOLDER, list_shipped_models
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


def test_a_signal_from_outside_leaves_time_for_a_model(monkeypatch):
    train = load_script("train_shipped")
    now = [0.0]
    monkeypatch.setattr(train.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(train.os, "kill", lambda *_: None)
    deadline = train.Deadline(1000.0, began=0.0)
    deadline.begin_run(stop_at_decay=True)
    for second in range(1, 401):
        now[0] = float(second)
        deadline({"step": 10 * second, "loss": 1.0})
    steps = deadline.count_final_steps()  # the deadline itself has sent nothing
    assert deadline.is_short
    assert deadline.left == pytest.approx(train.STOP_SECONDS)
    assert steps == pytest.approx(10 * (train.STOP_SECONDS - train.FINISH_SECONDS), abs=20)
    assert steps < 1000, "a fifth of all steps would take longer than the time that is left"
    own = train.Deadline(1000.0, began=0.0)
    own.step, own.rate, own.has_stopped = 4000, 10.0, True
    assert own.count_final_steps() == 1000
    assert not own.is_short


def test_a_signal_is_passed_on_once(tmp_path, monkeypatch):
    """Processes that run side by side are asked to end, and those that wait are not begun."""
    train = load_script("train_shipped")
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys, time\n"
        "count = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: count.append(1))\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 20\n"
        "while not count and time.monotonic() < end:\n    time.sleep(0.05)\n"
        "time.sleep(0.5)\n"
        "print('signals:', len(count), flush=True)\n"
    )
    monkeypatch.setattr(train, "__file__", str(script))

    def send_twice():
        log = tmp_path / "logs" / "one.log"
        while not (log.exists() and "ready" in log.read_text()):
            time.sleep(0.05)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)

    threading.Thread(target=send_twice, daemon=True).start()
    codes = train.run_side_by_side({"one": [], "two": []}, 1, 60.0, tmp_path / "logs")
    assert codes == {"one": 0, "two": 124}
    assert "signals: 1" in (tmp_path / "logs" / "one.log").read_text()
    assert "no time" in (tmp_path / "logs" / "two.log").read_text()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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


def test_a_run_under_way_gives_a_snapshot(tmp_path, monkeypatch):
    """The newest checkpoint of an unfinished run becomes an archive from which another run can begin."""
    train = load_script("train_shipped")
    plan = dataclasses.replace(
        train.PLANS["decoder"], model={"dim": 16, "layers": 1, "heads": 2, "context": 32}, objective={"name": "causal"}
    )
    monkeypatch.setitem(train.PLANS, "decoder", plan)
    texts = [f"document {n} tells of {n * n} things, some of them old" for n in range(60)]
    tokenizer = train.train_tokenizer("gpt2", texts, 300)
    formers.prepare(texts, tokenizer, tmp_path / "stores" / "decoder-train", splitter=None)

    def stop(row):
        if row["step"] == 5:
            os.kill(os.getpid(), signal.SIGINT)

    settings = {"steps": 100, "batch_tokens": 64, "seq_length": 16, "warmup_steps": 1, "samples": 0}
    store = Store.open(tmp_path / "stores" / "decoder-train")
    with pytest.raises(train.Stopped):
        formers.pretrain("gpt2", store, out=tmp_path / "decoder", model=plan.model, train=settings, hook=stop)
    train.write_snapshots(["encoder", "decoder"], tmp_path, tmp_path / "out")
    assert train.unpack(tmp_path / "out", tmp_path / "again") == ["gpt2-mini"]
    former = formers.load(tmp_path / "again" / "gpt2-mini")
    newest = train.Checkpoints(tmp_path / "decoder" / "steps", remove_stale=False).load_newest()
    assert newest[0] == 5
    saved = newest[1]["model"]
    name = next(iter(saved))
    assert torch.allclose(former.model.state_dict()[name], saved[name].float(), rtol=1e-2, atol=1e-3)
    more = {**settings, "steps": 2}
    formers.pretrain("gpt2", store, out=tmp_path / "more", init=tmp_path / "again" / "gpt2-mini", train=more)


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
    assert "A small BERT model for English and Korean, bundled with formers." in page
    assert "| NSMC, accuracy, 3 seeds | 87.0 | same shape from scratch 85.00 |" in page
    assert "1,234 tokens in 5 steps" in page
    assert "[CC BY-SA 3.0](https://creativecommons.org/licenses/by-sa/3.0/)" in page
    assert "60 s on one H200 (GPU shared with other runs)" in page
    assert "CC BY 4.0" in page
    korean = (tmp_path / "m" / "README.ko.md").read_text(encoding="utf-8")
    assert "측정값" in korean
    assert "언어: 영어, 한국어." in korean
    assert "| NSMC, 정확도, 시드 3개 | 87.0 | 같은 구조를 처음부터 학습하면 85.00 |" in korean
    assert train.LIMITS_IN_KOREAN["bert-mini"] in korean
    assert "H200 하나로 60초(다른 학습과 GPU를 나누어 사용)" in korean
    assert json.loads((tmp_path / "m" / "card.json").read_text())["parameters"] == former.num_parameters
    formers.load(tmp_path / "m")  # the checksums do not cover the cards


def test_validation_examples_choose_a_rate(tmp_path, monkeypatch):
    """The first seed tries every rate, the others take the best; what is done is not repeated."""
    train = load_script("train_shipped")
    assert train.list_finetuning(["korsts"], 3) == {
        "korsts-pretrained-0": ["korsts", "pretrained", "0", "1", "2"],
        "korsts-scratch-0": ["korsts", "scratch", "0", "1", "2"],
    }
    alone = train.list_finetuning(["nsmc"], 2)
    assert [seeds for _, start, *seeds in alone.values() if start == "scratch"] == [["0"], ["1"]], "one rate: no order"
    done = []

    def write_figures(task, start, seed, rate, work, parts, tiny, compile_):
        done.append((start, seed, rate))
        valid = 0.8 if (start, rate) in (("pretrained", 3e-4), ("scratch", 2e-4)) else 0.6
        record = {"task": task, "start": start, "seed": seed, "rate": rate, "valid": {"spearman": valid},
                  "test": {"spearman": rate * 1000 + 0.01 * seed}}  # fmt: skip
        train.write_record(work / "figures", f"{train.name_finetuning(task, start, seed, rate)}.json", record)

    monkeypatch.setattr(train, "finetune_one", write_figures)
    monkeypatch.setattr(train, "read_rows", lambda *_: [])
    for _ in range(2):
        for start in ("pretrained", "scratch"):
            train.finetune_group("korsts", start, [0, 1], tmp_path, tmp_path, False, False)
    assert done == [
        ("pretrained", 0, 1e-4), ("pretrained", 0, 3e-4), ("pretrained", 1, 3e-4),
        ("scratch", 0, 2e-4), ("scratch", 0, 5e-4), ("scratch", 1, 2e-4),
    ]  # fmt: skip
    figures = train.summarise_finetuning(tmp_path)["korsts"]
    assert figures["pretrained"]["rate"] == 3e-4
    assert figures["pretrained"]["values"] == pytest.approx([0.3, 0.31])
    assert figures["scratch"]["rate"] == 2e-4
    assert figures["scratch"]["mean"] == pytest.approx(0.205)


def test_what_was_brought_back_is_restored_and_packed(tmp_path, capsys):
    """The newest of several calls counts, and packing leaves nothing beside the models."""
    train = load_script("train_shipped")
    title = train.PLANS["encoder"].title
    for number in (0, 1):
        former, out = build_language_model("bert", seed=number), tmp_path / f"out{number}"
        formers.save(former, tmp_path / f"m{number}" / title, storage="bf16")
        made = {"tokens_seen": number, "steps": 5, "seconds": 60.0, "device": "H200"}
        train.write_record(out, "pretrain.json", {"encoder": made})
        train.write_archive(tmp_path / f"m{number}" / title, out, "encoder")
    outs = [tmp_path / "out0", tmp_path / "out1"]
    train.restore(outs, tmp_path / "work")
    newest = formers.load(tmp_path / "m1" / title).fingerprint
    assert formers.load(tmp_path / "work" / "bf16" / title).fingerprint == newest
    assert train.find_trained(tmp_path / "work", "encoder") == tmp_path / "work" / "shipped" / title
    assert train.find_trained(tmp_path, "encoder") == train.SHIPPED_FOLDER / title
    train.pack(outs, tmp_path / "package" / "pretrained")
    card = json.loads((tmp_path / "package" / "pretrained" / title / "card.json").read_text())
    assert card["tokens_seen"] == 1
    assert [path.name for path in (tmp_path / "package").iterdir()] == ["pretrained"]
    one, other = (formers.load(tmp_path / place / title) for place in ("work/shipped", "package/pretrained"))
    assert one.fingerprint == other.fingerprint


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


def test_korean_cards_are_in_korean():
    """Every figure and every fact of the training; commands apart."""
    cards = sorted(SHIPPED_FOLDER.glob("*/README.ko.md"))
    assert cards
    for card in cards:
        figures, training = card.read_text(encoding="utf-8").split("## ")[1:3]
        rows = [line for line in (figures + training).splitlines() if re.match(r"\| \w", line)]
        assert len(rows) > 5
        for name, *values in (row.strip("| ").split(" | ") for row in rows):
            assert re.search("[가-힣]", name), (card, name)
            assert "`" in values[-1] or not re.search(r"[a-z]{3,} [a-z]{3,}", values[-1]), (card, values[-1])
