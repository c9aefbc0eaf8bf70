"""A real race, very small: it is run, continued, extended; every family passes one in the long form."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time

import pytest

import formers
from formers.comparison.jobs import JobRunner, list_jobs
from formers.comparison.records import Record, RecordFolder
from formers.comparison.settings import CompareConfig
from formers.data.readers import load_bundled_corpus
from formers.registry import FAMILIES

ROWS = [{"text": f"a {'lovely' if n % 2 else 'dull'} film", "label": "good" if n % 2 else "bad"} for n in range(60)]
SMALL = {
    "budgets": ["epochs:0.02", "flops:gpt2"], "words": 6000, "body_size": 45_000, "layers": 2, "seq_length": 32,
    "batch_tokens": 512, "vocab_size": 400, "tolerance": 0.25, "lr_factors": [1.0, 2.0], "tune_epochs": 1.0,
    "score_characters": 400, "masked_characters": 60, "measure_speed": False,
    "train": {"eval_batches": 1}, "tune": {"seq_length": 16},
}  # fmt: skip
TASKS = {"films": {"train": ROWS[:40], "valid": ROWS[40:50], "test": ROWS[50:]}}


def read_documents():
    lines = [line for document in load_bundled_corpus("en")[0][:2] for line in document.split("\n") if line.strip()]
    return [" ".join(lines[n : n + 8]) for n in range(0, len(lines), 8)]


def test_a_race_is_run_continued_and_extended(tmp_path):
    out = tmp_path / "race"
    done = formers.compare(["gpt2"], read_documents(), out=out, tasks=TASKS, **SMALL)
    assert done.is_complete, done.outcome
    assert not done.outcome.refused
    records = {record.job: record for record in done.records}
    first = records["pretrain/epochs-0.02/gpt2/seed0"].result
    assert first["factor"] in (1.0, 2.0)
    assert first["flops"] == records["pretrain/flops-gpt2/gpt2/seed0"].result["flops"]
    assert records["score/epochs-0.02/gpt2/seed0"].result["documents"]["bits_byte"] > 1
    assert records["tune/epochs-0.02/gpt2/seed0/films"].result["part"] == "test"
    page = done.report.read_text(encoding="utf-8")
    assert "bits per byte" in page
    assert "GPT-2" in page
    assert "Hypotheses" not in page, "none is about GPT-2 alone"
    assert formers.compare(out=out).outcome.done == []
    more = formers.compare(["albert"], out=out)
    assert more.is_complete
    assert more.outcome.done
    assert not any("/gpt2/" in name for name in more.outcome.done)
    flops = RecordFolder(out).read_result("pretrain/flops-gpt2/albert/seed0")["flops"]
    assert flops == pytest.approx(first["flops"], rel=0.35), "whole steps, of which there are few"
    with pytest.raises(formers.Error, match="begun with body_size"):
        formers.compare(out=out, body_size=50_000)
    with pytest.raises(formers.Error, match="other files"):
        formers.compare(out=out, tasks={"films": "elsewhere.tsv"})


def test_records_travel_without_anything_else(tmp_path):
    """On another machine, with the same text, a race continues from comparison.json and the records; other text is
    refused."""
    small = {**SMALL, "budgets": ["epochs:0.02"], "lr_factors": [1.0]}
    first, moved = tmp_path / "first", tmp_path / "moved"
    done = formers.compare(["gpt2"], read_documents(), out=first, tasks=TASKS, **small)
    moved.mkdir()
    shutil.copy(first / "comparison.json", moved)
    shutil.copytree(first / "records", moved / "records")
    with pytest.raises(formers.Error, match="not in this folder"):
        formers.compare(["albert"], out=moved)
    with pytest.raises(formers.Error, match="not the text that the records"):
        formers.compare(["albert"], read_documents()[1:], out=moved)
    assert formers.compare(out=moved, text=read_documents()).outcome.done == []
    more = formers.compare(["albert"], out=moved)
    assert more.is_complete
    assert not any("gpt2" in name for name in more.outcome.done if not name.startswith("data/"))
    before = {record.job: record for record in done.records}
    assert all(before[record.job] == record for record in more.records if record.job in before)
    for name in ("report.html", "report-ko.html", "report-ko.md"):
        assert "ALBERT" in (moved / name).read_text(encoding="utf-8")


def test_a_corpus_that_lost_its_record_is_made_again(tmp_path):
    """A call that was killed after the corpus and before its record: other text must not be taken for the same."""
    small = {**SMALL, "budgets": ["epochs:0.02"], "lr_factors": [1.0]}
    formers.compare(["gpt2"], read_documents(), out=tmp_path, tasks=TASKS, **small)
    before = RecordFolder(tmp_path).read_result("corpus")
    (tmp_path / "records" / "corpus.json").unlink()
    with pytest.raises(formers.Error, match="not in this folder"):
        formers.compare(out=tmp_path)
    assert formers.compare(out=tmp_path, text=read_documents()).outcome.done == []
    assert RecordFolder(tmp_path).read_result("corpus")["fingerprint"] == before["fingerprint"]


def test_the_budget_of_a_family_is_what_it_really_spends(tmp_path):
    """Where a limit in minutes cuts that family's epochs, the others get its operations after the cut."""
    plans = {"bert": {"step_flops": 10.0, "epoch_steps": 100}, "gpt2": {"step_flops": 20.0, "epoch_steps": 50}}
    config = CompareConfig(families=tuple(plans), budgets=("epochs:1", "flops:bert"), max_minutes=1.0)
    runner = JobRunner(tmp_path, config, "cpu")
    for family, plan in plans.items():
        runner.records.write(Record(f"plan/{family}", "plan", "done", family, result=plan))
        speed = {"seconds_per_step": 1.0 if family == "bert" else 0.01}
        runner.records.write(Record(f"speed/{family}", "speed", "done", family, result=speed))
    assert runner.count_budget_steps("bert", "epochs-1") == (60, True)
    assert runner.count_budget_steps("gpt2", "flops-bert") == (30, False)
    needs = next(job.needs for job in list_jobs(config) if job.name == "pretrain/flops-bert/gpt2/seed0")
    assert "speed/bert" in needs


def test_a_race_needs_text_and_examples(tmp_path):
    with pytest.raises(formers.Error, match="no text"):
        formers.compare(["gpt2"], out=tmp_path / "race", **SMALL)
    with pytest.raises(formers.Error, match="no training examples"):
        formers.compare(["gpt2"], ["a"], out=tmp_path / "race", tasks={"films": {"test": ROWS}})
    (tmp_path / "race" / "comparison.json").write_text("{}")
    with pytest.raises(formers.Error, match="not a comparison"):
        formers.compare(out=tmp_path / "race")


@pytest.mark.full
@pytest.mark.parametrize("family", [name for name, entry in FAMILIES.items() if entry.is_pretrained])
def test_every_family_passes_a_race(family, tmp_path):
    small = {**SMALL, "budgets": ["epochs:0.02", f"flops:{family}"]}
    done = formers.compare([family], read_documents(), out=tmp_path / "race", tasks=TASKS, **small)
    assert done.is_complete, done.outcome
    assert not done.outcome.refused


@pytest.mark.full
def test_a_killed_race_continues(tmp_path):
    """Killed without a word in the middle of pretraining, workers included, and continued: no finished job is run
    again, and the run resumes from its checkpoint."""
    out = tmp_path / "race"
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in read_documents()))
    small = (
        "--words 6000 --body-size 45000 --layers 2 --seq-length 32 --batch-tokens 512 --vocab-size 400 --tolerance 0.25"
    )
    command = [sys.executable, "-m", "formers", "compare", "gpt2", "bert", "--text", str(corpus), "--out", str(out),
               "--budget", "epochs:20", "--lr-factors", "1", "--together", "2", "--device", "cpu",
               "--no-measure-speed", *small.split()]  # fmt: skip
    process = subprocess.Popen(command)
    until = time.monotonic() + 300
    while not list(out.glob("runs/pretrain/*/*/seed0/steps/*")) and time.monotonic() < until:
        time.sleep(0.2)
    time.sleep(1)
    process.kill()
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in (out / "records").rglob("*.json")}
    assert before
    assert not any("pretrain" in str(path) for path in before)
    time.sleep(2)
    assert subprocess.run(command, check=False).returncode == 0
    assert all(path.stat().st_mtime_ns == then for path, then in before.items()), "what was done is done"
    assert len(list((out / "records" / "pretrain").rglob("*.json"))) == 2
