"""Word vectors that are killed or stopped: resumed, they get the same bits with one thread, and with several every part
of the work is done once."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest

import formers
from formers.cli.main import main
from formers.training.loop import Stopped
from formers.training.run_folder import RunFolder, summarise_run
from formers.training.word_vectors.word2vec import BlockwiseLearner, GloveLearner
from tests.faults.small_runs import (
    fork_process,
    kill_process,
    make_texts,
    read_json_lines,
    read_run_state,
    wait_for_exit,
    wait_until,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")
METHODS = {
    "skipgram": ["word2vec"], "cbow": ["word2vec", "--model.kind", "cbow"], "glove": ["glove"],
    "fasttext": ["fasttext", "--model.buckets", "200"],
}  # fmt: skip
SMALL = {"model": {"dim": 8, "min_count": 1}, "train": {"epochs": 3, "threads": 1}}


@pytest.fixture(autouse=True)
def short_jobs(monkeypatch):
    """Many steps out of little text."""
    monkeypatch.setattr(BlockwiseLearner, "job_size", 100)
    monkeypatch.setattr(GloveLearner, "job_size", 20)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n".join(make_texts()) + "\n", encoding="utf-8")
    formers.pretrain("word2vec", make_texts(), out=file.with_name("first"), **SMALL)  # imports everything
    return file


def start_run(kind, text, out):
    """Begin a run or resume it, in a process of its own."""
    how = ["--dim", "8", "--min-count", "1", "--epochs", "6", "--train.threads", "1"]
    words = ["pretrain", *METHODS[kind], "--data", str(text), *how, "--out", str(out), "--resume"]
    return fork_process(lambda: main(words), out.with_name(f"{out.name}.log"))


@pytest.mark.parametrize("kind", METHODS)
def test_killed_and_resumed_to_the_same_bits(kind, text, tmp_path):
    whole, out, log = tmp_path / "whole", tmp_path / "killed", tmp_path / "killed.log"
    assert wait_for_exit(start_run(kind, text, whole)) == 0
    r, steps = random.Random(kind), out / "steps"
    for name in ("step-*", ".writing-*[05]"):  # after a checkpoint, and while one is written
        process = start_run(kind, text, out)
        wait_until(process, lambda name=name: sum(1 for _ in steps.glob(name)) >= r.choice((1, 2)))
        kill_process(process)
    assert wait_for_exit(start_run(kind, text, out)) == 0, log.read_text(encoding="utf-8")
    assert "Traceback" not in log.read_text(encoding="utf-8")
    assert read_run_state(out) == read_run_state(whole)
    assert formers.load(out).config == formers.load(whole).config


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_loses_nothing(number, code, text, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    assert wait_for_exit(start_run("glove", text, whole)) == 0
    process = start_run("glove", text, out)
    wait_until(process, lambda: (out / "metrics.jsonl").exists() and len(read_json_lines(out / "metrics.jsonl")) > 2)
    os.kill(process, number)
    said = (wait_for_exit(process), out.with_name("stopped.log").read_text(encoding="utf-8"))
    assert said[0] == code, said[1]
    step = int(said[1].split("after step ")[1].split(";")[0])
    assert [row["step"] for row in read_json_lines(out / "metrics.jsonl")] == list(range(1, step + 1))
    assert summarise_run(RunFolder(out), "x")[-1] == "stopped"
    assert wait_for_exit(start_run("glove", text, out)) == 0
    assert read_run_state(out) == read_run_state(whole)
    assert summarise_run(RunFolder(out), "x")[-1] == "done"


def test_several_threads_do_every_job_once(tmp_path, monkeypatch):
    """A job that is under way when the run stops belongs to the checkpoint: it is neither lost nor done again."""
    jobs, real = [], BlockwiseLearner.run_job

    def run_job(self, epoch, begin):
        jobs.append((epoch, begin))
        return real(self, epoch, begin)

    def stop(row):
        if row["step"] in (4, 9):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(BlockwiseLearner, "run_job", run_job)
    how, said = {**SMALL, "train": {"epochs": 3, "threads": 3}}, []
    for _ in range(2):
        with pytest.raises(Stopped, match="saved"):
            formers.pretrain(
                "word2vec", make_texts(), out=tmp_path / "run", resume=True, hook=stop, say=said.append, **how
            )
    made = formers.pretrain("word2vec", make_texts(), out=tmp_path / "run", resume=True, say=said.append, **how)
    assert sum(line.startswith("note: 3 threads share") for line in said) == 3
    assert len(jobs) == len(set(jobs)) == made.history[-1]["step"]
    assert [row["step"] for row in made.history] == list(range(1, len(jobs) + 1))
    places = json.loads((made.folder / "run.json").read_text(encoding="utf-8"))["data"]["tokens"]
    assert made.history[-1]["tokens"] == 3 * places
