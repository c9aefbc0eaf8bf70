"""Killed, stopped, without one of its workers, started twice: a run continues to the same bits.

The long form (make faults) has the full counts: 200 kills over all families, 100 signals, 20 dead workers, 20 races.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import pty
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import formers
from formers.cli.main import main
from formers.training.run_folder import RunFolder
from formers.training.trainer import Trainer
from tests.faults.small_runs import (
    CARRYING,
    FAMILIES,
    Runs,
    fork_process,
    has_ended,
    kill_process,
    make_settings,
    make_texts,
    read_json_lines,
    read_run_state,
    wait_for_exit,
    wait_until,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these tests fork")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("formers.training.hardware.measure_peak_flops", lambda *_: 1e9)
        formers.pretrain(
            "gpt2", make_texts(), out=tmp_path_factory.mktemp("first"), **make_settings("gpt2")
        )  # imports everything
        yield Runs(tmp_path_factory.mktemp("runs"))


def test_killed_at_any_moment(runs, full):
    """Row 1. Every second kill waits for a checkpoint that is being written; some runs are killed twice."""
    count, r, hits, writing = 200 if full else 5, random.Random(1), 0, 0
    order = [*CARRYING, *(name for name in FAMILIES if name not in CARRYING and full)]
    seen = set()
    for name in itertools.cycle(order):
        if hits >= count:
            break
        out, whole = runs.fresh(name), runs.run_uninterrupted(name)[2]
        steps = out / "steps"
        for _ in range(r.choice((1, 1, 1, 2))):
            process = runs.start(name, out)
            if hits % 2:
                nth = r.randrange(8)
                wait_until(process, lambda steps=steps, nth=nth: any(steps.glob(f".writing-*{nth}")))
                time.sleep(r.random() * 0.003)
            else:
                time.sleep(r.random() * whole)
            if kill_process(process):
                hits += 1
                seen.add(name)
                writing += any(steps.glob(".writing-*"))
        runs.finish(name, out)
        runs.check(name, out)
    print(
        f"\n{hits} kills of {len(seen)} families, {writing} while a checkpoint was written: all resumed, difference 0"
    )
    assert seen == (set(FAMILIES) if full else seen)
    assert writing >= count // 10


@pytest.mark.parametrize("stage", ["before training", "training"])
def test_stopped_by_a_signal(runs, full, stage):
    """Row 8: a checkpoint, the code of the signal, and the rest as if it had not stopped."""
    count, r, saved = (80 if stage == "training" else 20) if full else 1 + (stage == "training"), random.Random(2), 0
    for turn, name in zip(range(count), itertools.cycle([*CARRYING, *FAMILIES]), strict=False):
        number, code = ((signal.SIGHUP, 129), (signal.SIGTERM, 143), (signal.SIGINT, 130))[turn % 3]
        while True:
            out, whole = runs.fresh(name), runs.run_uninterrupted(name)[2]
            process = runs.start(name, out)
            if stage == "training":
                wait_until(process, lambda out=out: (out / "metrics.jsonl").exists())
            time.sleep(r.random() * whole / 2)
            os.kill(process, number)
            found = wait_for_exit(process)
            if found:
                break
        assert found == code, runs.said(out)
        if "saved" in (said := runs.said(out)):
            saved += 1
            step = int(said.split("after step ")[1].split(";")[0])
            assert (out / "steps" / f"step-{step:08d}" / "manifest.json").exists()
            assert [row["step"] for row in read_json_lines(out / "metrics.jsonl") if "losses" in row] == list(
                range(1, step + 1)
            )
        runs.finish(name, out)
        runs.check(name, out)
    print(
        f"\n{count} signals {stage}: {count} with their code, {saved} saved on the spot, {count} resumed, difference 0"
    )
    assert saved or stage != "training"


def test_stopped_while_the_text_is_prepared(tmp_path, runs, full):
    """A signal or a kill while the tokenizer is trained and the store is made: the same command continues."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(make_texts("bert", 3000 if full else 300)), encoding="utf-8")
    data = "--data", str(text)
    began = time.time()
    runs.finish("bert", tmp_path / "whole", *data)
    stamp = (tmp_path / "whole" / "data" / "store" / "store.json").stat().st_mtime - began
    r, codes, expected = random.Random(3), [], read_run_state(tmp_path / "whole")
    for turn in range(20 if full else 2):
        out = tmp_path / str(turn)
        process = runs.start("bert", out, *data)
        time.sleep(r.random() * stamp)
        os.kill(process, (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)[turn % 3])
        codes.append(wait_for_exit(process))
        assert codes[-1] in ((143, 130, 137)[turn % 3], 0), runs.said(out)
        runs.finish("bert", out, *data)
        assert read_run_state(out) == expected
    print(f"\n{len(codes)} stops of the preparation (codes {sorted(set(codes))}): all went on, difference 0")


def test_the_command_itself_and_its_workers(runs, full):
    """A real command with two loader workers gets Ctrl-C as a terminal sends it, to all its processes."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)) if full else ((signal.SIGINT, 130),):
        out = runs.fresh("gpt2")
        words = runs.words(
            "gpt2", out, "--resume", "--train.workers", "2", steps=5000, save_every=1000, eval_every=1000
        )
        with open(out.with_name(f"{out.name}.log"), "w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "formers.cli.main", *words], stderr=log, stdout=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(Path(formers.__file__).parents[1])},
            )  # fmt: skip
        wait_until(process.pid, lambda out=out: (out / "metrics.jsonl").exists(), 120)
        time.sleep(0.3)
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        assert process.wait(60) == code, runs.said(out)
        assert "saved" in runs.said(out)
        assert "Traceback" not in runs.said(out)
        with pytest.raises(ProcessLookupError):  # nobody of its group is left
            os.killpg(process.pid, 0)
        assert not (out / "lock").exists()


@pytest.mark.parametrize("nohup", [False, True])
def test_the_terminal_is_closed(runs, nohup):
    """All processes get SIGHUP and the terminal takes no more words: the run saves and ends with 129, or, under nohup,
    continues to its end."""
    out, steps = runs.fresh("gpt2"), 8 if nohup else 100_000
    words = runs.words(
        "gpt2", out, "--resume", "--train.workers", "1", steps=steps, save_every=100_000, eval_every=100_000
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads in a process that forks
        number, terminal = pty.fork()
    if number == 0:
        code = 70
        try:
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
            signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
            main(words)
            code = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            os._exit(code)
    os.set_blocking(terminal, False)

    def trains():
        with contextlib.suppress(OSError):  # nothing to read
            os.read(terminal, 1 << 16)
        return (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size > 0

    wait_until(number, trains, 120)
    os.close(terminal)
    assert wait_for_exit(number) == (0 if nohup else 129)
    saved = list((out / "steps").glob("step-*/manifest.json"))
    assert saved
    assert nohup == (out / "model").is_dir()


def test_other_numbers_of_workers(runs, full, monkeypatch):
    """Row 6: 0, 1 and 2 workers in turns see the same examples in the same order."""
    real = Trainer.train_step
    changes = list(itertools.permutations((0, 1, 2), 2)) if full else [(2, 1)]

    def order(name, *workers):
        """Run in parts, each with its number of workers; the examples of each step."""
        out = runs.fresh(name)
        told = out.with_name(f"{out.name}.order")

        def train_step(self, batches, objective):
            with open(told, "a") as file:
                file.write(json.dumps([self.step, [batch.sample.tolist() for batch in batches]]) + "\n")
            if self.step == 3 and len(workers) > 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(self, batches, objective)

        monkeypatch.setattr(Trainer, "train_step", train_step)
        codes = [wait_for_exit(runs.start(name, out, "--train.workers", str(count))) for count in workers]
        assert codes == [143, 0][-len(codes) :], runs.said(out)
        monkeypatch.undo()
        runs.check(name, out)
        return read_json_lines(told)

    for name in ["xlnet", "bert", "t5"] if full else ["xlnet"]:
        whole = order(name, 0)
        assert [step for step, _ in whole] == list(range(8))
        for change in changes:
            assert order(name, *change) == whole
    print(f"\n{len(changes)} changes of the number of workers: order and weights 100 % equal")


def test_a_worker_dies(runs, full, tmp_path):
    """Row 9: no hang, an error that names it, and the run continues when it is started again. Steps are more than
    batches can be made ahead."""
    how = {"steps": 30, "save_every": 4, "eval_every": 30}
    runs = Runs(tmp_path, **how)
    count, r = 20 if full else 1, random.Random(5)
    for turn, name in zip(range(count), itertools.cycle(["gpt2", "elmo", "bert"]), strict=False):
        out, at = runs.fresh(name), r.randrange(1, 18)

        def hook(line, at=at):
            if line["step"] == at:
                os.kill(r.choice(multiprocessing.active_children()).pid, signal.SIGKILL)

        def work(out=out, name=name, hook=hook):
            formers.pretrain(name, out=out, resume=True, hook=hook, **make_settings(name, workers=2, **how))

        began = time.monotonic()
        process = fork_process(work, out.with_name(f"{out.name}.died"))
        wait_until(process, lambda: False, 60)
        assert has_ended(process), "it hangs"
        wait_for_exit(process)
        said = out.with_name(f"{out.name}.died").read_text()
        assert "was ended by signal 9 (SIGKILL)" in said, (turn, said)
        assert time.monotonic() - began < 60
        runs.finish(name, out, "--train.workers", str(turn % 2))
        runs.check(name, out)
    print(f"\n{count} dead workers: 0 hangs, {count} resumed, difference 0")


def test_two_runs_into_one_folder(runs, full):
    """Row 10: of four that start at once, one wins; the others name it. A dead holder's lock is nobody's."""
    races, named = 20 if full else 1, 0
    for _ in range(races):
        out = runs.fresh("gpt2")
        gate, opened = os.pipe()
        words = runs.words("gpt2", out, "--resume", steps=40, save_every=40, eval_every=40)

        def work(words=words, gate=gate, opened=opened):
            os.close(opened)
            os.read(gate, 1)  # all begin when the gate is closed
            main(words)

        crowd = [fork_process(work, out.with_name(f"{out.name}.{i}")) for i in range(4)]
        os.close(opened)
        os.close(gate)
        codes = [wait_for_exit(process) for process in crowd]
        said = [out.with_name(f"{out.name}.{i}").read_text() for i in range(4)]
        assert sorted(codes) == [0, 2, 2, 2], said
        winner = crowd[codes.index(0)]
        for code, words in zip(codes, said, strict=True):
            assert code == 0 or f"{out}: is in use by process {winner} on" in words, words
            named += code == 2
    out = runs.fresh("gpt2")
    process = runs.start("gpt2", out)
    wait_until(process, lambda: (out / "metrics.jsonl").exists())
    assert kill_process(process)
    assert (out / "lock").exists()
    assert RunFolder(out).read_info()["config"]["family"] == "gpt2"
    runs.finish("gpt2", out)
    runs.check("gpt2", out)
    print(f"\n{races} races of 4: 1 winner each, named by {named} of {3 * races} losers; a dead holder's lock recovers")
