"""No numbers, no memory, no room, other tokenizers, damaged folders: one clear line, and nothing that was learned is
lost."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch

import formers
from formers import Error
from formers.atomic_files import to_checked_json
from formers.cli.main import main
from formers.objectives.causal import CausalLM
from formers.registry import train_tokenizer
from formers.training import hardware
from formers.training.checkpoint.local import FileSystem
from formers.training.config_merge import PretrainDataConfig, configure_pretraining
from formers.training.distributed.process_group import ProcessGroup
from formers.training.run_folder import RUN_FORMAT, MetricsLog, RunFolder, summarise_run
from formers.training.runs.prepare_data import prepare_data
from formers.training.runs.pretrain import PretrainRun
from formers.training.trainer import Trainer
from tests.faults.small_runs import (
    fork_process,
    make_settings,
    make_texts,
    read_json_lines,
    read_run_state,
    wait_for_exit,
)

NO_NUMBERS = (math.nan, math.inf, -math.inf)
MODEL = {"dim": 12, "layers": 1, "heads": 2, "context": 24, "ff": 16}


@pytest.fixture(scope="module", autouse=True)
def _unmeasured():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("formers.training.hardware.measure_peak_flops", lambda *_: 1e9)
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run, with a checkpoint of every second step."""
    out = tmp_path_factory.mktemp("done") / "run"
    pretrain_small(out)
    return out


def pretrain_small(out, text=None, **more):
    train = {**make_settings("gpt2")["train"], "save_every": 2, "keep_last": 9, **more.pop("train", {})}
    given = {"model": MODEL, "train": train, "data": {**make_settings("gpt2")["data"], **more.pop("data", {})}}
    return formers.pretrain("gpt2", make_texts() if text is None else text, out=out, **given, **more)


def resume_run(out, **train):
    said = []
    formers.pretrain(out=out, resume=True, train=train, say=said.append)
    return said


def copy_run(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "copy"))


def copy_tensors(trainer):
    """Weights, moments, the average and the memories, as they are now."""
    groups = trainer.get_state()[0]
    return {f"{g}/{n}": t.clone() for g, part in groups.items() if g != "rng" for n, t in part.items()}


def has_equal_tensors(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_what_is_not_finite_leaves_no_trace(tmp_path, full, monkeypatch):
    """Row 7, with memories, averages, and a bad step right after a resume."""
    count, r, left, finite = 100 if full else 6, random.Random(7), 0, 0
    courses = {}
    for name in ("transformer_xl", "gpt2", "elmo", "bert") if full else ("transformer_xl", "gpt2"):
        wanted = make_settings(name)
        want = configure_pretraining(name, {key: json.loads(json.dumps(value)) for key, value in wanted.items()})
        courses[name] = (
            want,
            prepare_data(name, PretrainDataConfig(**wanted["data"]), tmp_path / name, make_texts(name)),
        )
    for _, name in zip(range(count), itertools.cycle(courses), strict=False):
        kind, place, bad = r.choice(NO_NUMBERS), r.choice(("loss", "gradient")), r.randrange(1, 7)
        run = PretrainRun(*courses[name], ProcessGroup())
        spoil_step(run.trainer, kind, place, bad, monkeypatch)
        reports = run.trainer.train(run.iter_batches)
        for _ in range(bad):
            next(reports)
        before = copy_tensors(run.trainer)
        if r.random() < 0.5:  # it stopped here, and continues
            groups, about = run.trainer.get_state()
            saved = {g: {n: t.clone() for n, t in part.items()} for g, part in groups.items()}
            run = PretrainRun(*courses[name], ProcessGroup())
            run.trainer.restore_state(saved, json.loads(json.dumps(about)))
            monkeypatch.undo()
            spoil_step(run.trainer, kind, place, bad, monkeypatch)
            reports = run.trainer.train(run.iter_batches)
        report = next(reports)
        now = copy_tensors(run.trainer)
        if any(n.startswith("carried_state") for n in before) and not any(n.startswith("carried_state") for n in now):
            now |= list_restored_memories(run.trainer)
        assert report.is_skipped
        assert report.example_range[1] > report.example_range[0]
        assert has_equal_tensors(before, now), [n for n in before if n not in now or not torch.equal(before[n], now[n])]
        left += 1
        for report in reports:
            assert not report.is_skipped
            finite += 1
        assert all(torch.isfinite(t).all() for t in copy_tensors(run.trainer).values())
        monkeypatch.undo()
    print(
        f"\n{left} of {count} steps without a number left no trace; 0 of {finite} finite steps after them were left out"
    )


def list_restored_memories(trainer):
    """Memories of a checkpoint whose streams have not come along yet."""
    states = trainer.carried_states
    states.active, states.restored = states.restored, {}
    found = {n: t for n, t in copy_tensors(trainer).items() if n.startswith("carried_state")}
    states.active, states.restored = {}, states.active
    return found


def spoil_step(trainer, kind, place, bad, monkeypatch):
    """Make a loss or a gradient not finite at a step."""
    if place == "gradient":
        weight = next(iter(trainer.model.parameters()))
        weight.register_hook(lambda grad: torch.where(grad == grad, kind, kind) if trainer.step == bad else grad)
        return
    goal = trainer.objectives[-1]
    real = type(goal).loss

    def loss(self, model, batch):
        found = real(self, model, batch)
        name, (total, places) = next(iter(found.items()))
        return {**found, name: (total * kind if trainer.step == bad else total, places)}

    monkeypatch.setattr(type(goal), "loss", loss)


def test_too_many_of_them_are_exit_code_3(tmp_path, monkeypatch, capsys):
    out, real = tmp_path / "run", CausalLM.loss
    pretrain_small(out, train={"steps": 4})
    monkeypatch.setattr(CausalLM, "loss", lambda *a: {n: (t * math.nan, c) for n, (t, c) in real(*a).items()})
    with pytest.raises(SystemExit) as end:
        main(["pretrain", "gpt2", "--out", str(out), "--resume", "--train.steps", "40", "--train.max_bad_steps", "3"])
    assert end.value.code == 3
    said = capsys.readouterr().err.strip().splitlines()[-1]
    low, high = map(int, re.search(r"the last at step 7, examples (\d+) to (\d+)", said).groups())
    bad = [row for row in read_json_lines(out / "metrics.jsonl") if row.get("skipped")]
    assert [row["step"] for row in bad] == [5, 6, 7], "also the one that ended the run is written down"
    assert bad[-1]["examples"] == [low, high]
    assert bad[-1]["loss"] is None
    monkeypatch.undo()
    resume_run(out, steps=8)
    assert [row["step"] for row in read_json_lines(out / "metrics.jsonl") if "losses" in row] == list(range(1, 9))


@pytest.mark.parametrize(
    "how", [{"save_every": 2}, {"save_every": 1, "keep_last": 1, "keep_best": 0}], ids=["between", "right before"]
)
def test_a_run_that_diverged_goes_back_to_what_was_good(tmp_path, how):
    """A step of finite loss ruins the weights; no run may be resumed from a checkpoint of them."""
    out = tmp_path / "run"
    pretrain_small(out, train={"steps": 6, "keep_last": 2, **how})
    for _ in range(2):  # a rate that is still too high loses nothing either
        with pytest.raises(
            Error, match=r"3 steps in a row had a loss or gradient that is not finite, the last at step 10.* goes back"
        ) as error:
            resume_run(out, steps=40, lr=1e30, max_bad_steps=3)
        assert error.value.exit_code == 3
        left = [path.name for path in (out / "steps").glob("step-*")]
        assert max(left) == "step-00000006", "what was written after it is not in the way"
    assert (
        "2 steps with a loss or gradient that is not finite"
        in resume_run(Path(shutil.copytree(out, tmp_path / "short")), steps=9, lr=1e30)[-1]
    )
    assert "not finite" not in " ".join(resume_run(out, steps=8, lr=1e-4))
    seen = [row for row in read_json_lines(out / "metrics.jsonl") if "losses" in row]
    assert [row["step"] for row in seen] == list(range(1, 9))
    assert not any(row.get("skipped") for row in seen)


def test_a_checkpoint_waits_for_a_step_that_gives_a_number(tmp_path, monkeypatch):
    """Steps 4 to 6 are left out: no regular checkpoint among them, and one that a signal asks for retires no other."""
    real, loss, bad = Trainer.train_step, CausalLM.loss, []

    def train_step(self, batches, objective):
        bad[:] = [self.step in (3, 4, 5)]
        return real(self, batches, objective)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    monkeypatch.setattr(
        CausalLM, "loss", lambda *a: {n: (t * math.nan if bad[0] else t, c) for n, (t, c) in loss(*a).items()}
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    pretrain_small(whole)
    assert [path.name[-1] for path in sorted((whole / "steps").glob("step-*"))] == ["2", "7", "8"]
    stops = [4, 6]

    def hook(line):
        if line["step"] in stops:
            stops.remove(line["step"])
            os.kill(os.getpid(), signal.SIGTERM)

    for step in (4, 6):
        with pytest.raises(Error, match=f"stopped by SIGTERM after step {step}; saved"):
            pretrain_small(parts, train={"keep_last": 1, "keep_best": 0}, resume=True, hook=hook)
    assert [path.name[-1] for path in sorted((parts / "steps").glob("step-*"))] == ["2", "4", "6"]
    resume_run(parts, keep_last=9, keep_best=1)
    assert read_run_state(parts) == read_run_state(whole)


@pytest.mark.parametrize(
    "what",
    [("--train.batch_tokens", "9000000"), ("--model.dim", "1024", "--model.ff", "8192", "--model.layers", "8")],
    ids=["batch", "model"],
)
@pytest.mark.parametrize("limited_by", ["system", "free memory"])
@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS and RLIMIT_DATA")
def test_out_of_memory_is_one_line(tmp_path, what, limited_by):
    """Row 11, also where the limit is the memory that is free."""
    (tmp_path / "text.txt").write_text("\n".join(make_texts()), encoding="utf-8")
    words = ["pretrain", "gpt2", "--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run"), *what]
    words += ["--train.steps", "2", "--data.vocab_size", "300", "--train.keep_last", "1", "--train.keep_best", "0"]

    def work():
        if limited_by == "system":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 300 * 2**20,) * 2)
        else:
            status = Path("/proc/self/status")
            most = hardware.read_bytes(status, "VmData") + 300 * 2**20
            hardware.get_free_memory = lambda: max(0, most - hardware.read_bytes(status, "VmData"))
        main(words)

    code = wait_for_exit(fork_process(work, tmp_path / "log"))
    said = (tmp_path / "log").read_text()
    assert code == 2, said
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    for word in (
        "out of memory on cpu",
        "parameters",
        "tokens",
        "GiB",
        "--train.activation_checkpointing",
        "--train.batch_tokens",
    ):
        assert word in last, last
    print("\n" + last)


def test_out_of_memory_on_a_gpu(tmp_path, monkeypatch):
    said = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB"

    def loss(*_):
        raise torch.OutOfMemoryError(said)

    monkeypatch.setattr(CausalLM, "loss", loss)
    with pytest.raises(
        Error, match=r"batches of 96 tokens; .* 2.00 GiB more were asked for. --train.activation_checkpointing"
    ):
        pretrain_small(tmp_path / "run")
    monkeypatch.setattr(CausalLM, "loss", lambda *_: (_ for _ in ()).throw(RuntimeError("a bug of ours")))
    with pytest.raises(RuntimeError, match="a bug of ours"):
        pretrain_small(tmp_path / "other")


@pytest.fixture
def several(tmp_path_factory, full):
    """Tokenizers of one size, a store made by each, and a run on each store."""
    root, made = tmp_path_factory.mktemp("six"), []
    for i in range(6 if full else 3):
        letters = "abcdefghij"[i:] + "klmnopqrst"
        text = [" ".join(a + b for a, b in itertools.product(letters, repeat=2)) + "." for _ in range(20)]
        tokenizer = train_tokenizer("bpe", text, 280)
        formers.prepare(text, tokenizer, root / f"store{i}", validation=0.2)
        pretrain_small(root / f"run{i}", root / f"store{i}", train={"steps": 2, "samples": 0})
        made.append(tokenizer)
    assert {len(t) for t in made} == {280}
    return root, made


def test_another_tokenizer_of_the_same_size(several, tmp_path):
    """Row 13: a store, a run and a model each refuse it; a checkpoint that is to take it says what becomes of it."""
    root, made = several
    pairs = list(itertools.permutations(range(len(made)), 2))
    for i, j in pairs:
        with pytest.raises(Error, match="the tokenizer has changed since the run began"):
            formers.pretrain("gpt2", root / f"store{j}", out=root / f"run{i}", resume=True)
        with pytest.raises(Error, match="was made with another tokenizer"):
            pretrain_small(tmp_path / "no", root / f"store{i}", tokenizer=made[j])
        other = {"tokenizer": str(root / f"run{j}" / "model")}
        with pytest.raises(Error, match=r"data.tokenizer cannot change in a resumed run"):
            formers.pretrain(out=root / f"run{i}", resume=True, data=other)
        model = Path(shutil.copytree(root / f"run{i}" / "model", tmp_path / f"{i}{j}"))
        shutil.copy(root / f"run{j}" / "model" / "tokenizer.json", model)
        with pytest.raises(Error, match="this is not the tokenizer that the model was saved with"):
            formers.load(model)
    said = []
    pretrain_small(tmp_path / "new", root / "store1", init=root / "run0" / "model", say=said.append, train={"steps": 1})
    assert re.match(r"the checkpoint gets another tokenizer: \d+ of 280 pieces keep their vectors", said[0])
    assert not (tmp_path / "no" / "run.json").exists()
    print(f"\n{4 * len(pairs)} of {4 * len(pairs)} wrong tokenizers of the same size refused")


@pytest.mark.parametrize("place", ["checkpoint", "metrics"])
def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path, monkeypatch, place, done):
    out, real, calls = tmp_path / "run", FileSystem.write, itertools.count()

    def write(self, path, chunks):
        if "00000004" in str(path) and path.name == "optimizer.safetensors":
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, path, chunks)

    def line(self, row):
        if next(calls) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        log(self, row)

    log = MetricsLog.write_row
    monkeypatch.setattr(*((FileSystem, "write", write) if place == "checkpoint" else (MetricsLog, "write_row", line)))

    def hook(line):  # until what is being written is written, or has failed
        for thread in threading.enumerate():
            if thread.name.endswith("(write_checkpoint)"):
                thread.join()

    with pytest.raises(Error) as error:
        pretrain_small(out, hook=hook)
    said = str(error.value)
    assert "\n" not in said
    assert str(out) in said
    assert "disk is full" in said
    assert "--resume" in said
    if place == "checkpoint":
        assert re.search(r"step 4 could not be written .* needs [\d,]+ bytes", said)
        assert read_json_lines(out / "metrics.jsonl")[-1]["step"] == 5, "it stops soon"
    monkeypatch.undo()
    resume_run(out)
    assert read_run_state(out) == read_run_state(done)


def test_a_folder_that_cannot_be_written(tmp_path, done, monkeypatch):
    out = copy_run(done, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(Error, match="cannot write here"):
        pretrain_small(tmp_path / "file" / "run")

    def refuse(path, *_):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("formers.training.run_folder.write_atomically", refuse)
    with pytest.raises(Error, match=r"run\.json: cannot be written or read \(Read-only file system\)"):
        resume_run(out, steps=12)


def test_damaged_measurements(tmp_path, done):
    out = copy_run(done, tmp_path)
    shutil.rmtree(out / "steps" / "step-00000008")
    whole = (out / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(whole) if b'"step": 3' in line)
    whole[at : at + 1] = [whole[at][:20] + b"\n", b"\0\0\0\n", b"17\n", b'{"no": 1}\n', "\u2028".encode() + b"\n"]
    whole[-1] = whole[-1][:-9]
    (out / "metrics.jsonl").write_bytes(b"".join(whole))
    resume_run(out)
    left = [row["step"] for row in read_json_lines(out / "metrics.jsonl") if "losses" in row]
    assert left == [1, 2, 4, 5, 6, 7, 8], "only the damaged line is lost"
    assert read_run_state(out)["optimizer.safetensors"] == read_run_state(done)["optimizer.safetensors"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"format": %d}' % RUN_FORMAT,
        b'{"format": %d, "config": 3, "data": {}}' % RUN_FORMAT,
        b"\xff",
    ],
)
def test_a_damaged_description(tmp_path, done, data, capsys):
    out = copy_run(done, tmp_path)
    (out / "run.json").write_bytes(data)
    with pytest.raises(Error, match=r"run.json: is damaged. Remove this file and repeat the run's command"):
        resume_run(out)
    assert summarise_run(RunFolder(out), "x")[-1] == "is damaged"
    if not data:
        (out / "run.json").unlink()
        shutil.rmtree(out / "steps" / "step-00000008")
        pretrain_small(out, resume=True)
        assert read_run_state(out) == read_run_state(done)


@pytest.mark.parametrize("which", ["newest", "best", "manifest", "all", "none"])
def test_damaged_checkpoints(tmp_path, done, which):
    """What is broken is passed over, told, put aside and written again."""
    out = copy_run(done, tmp_path)
    steps = sorted((out / "steps").glob("step-*"))
    best = json.loads((out / "run.json").read_text())["result"]["best"]
    hit = {"newest": steps[-1:], "manifest": steps[-2:], "best": [out / "steps" / f"step-{best:08d}"]}.get(which, steps)
    for step in hit:
        name = "manifest.json" if which == "manifest" else "model.safetensors"
        data = bytearray((step / name).read_bytes())
        data[len(data) // 2] ^= 1
        (step / name).write_bytes(data)
        if which == "none":
            shutil.rmtree(step)
    said = " ".join(resume_run(out))
    assert said.count("skipping ") == {"manifest": 2, "all": 4, "none": 0}.get(which, 1)
    again = sorted((out / "steps").glob("step-*"))
    assert again == steps
    assert read_run_state(out) == read_run_state(done)


def test_checkpoints_of_an_earlier_format_are_refused_and_kept(tmp_path, done):
    out = copy_run(done, tmp_path)
    steps = sorted((out / "steps").iterdir())
    for step in steps:
        about = json.loads((step / "manifest.json").read_text()) | {"format": 1}
        about.pop("seal")
        (step / "manifest.json").write_text(to_checked_json(about))
    with pytest.raises(Error, match="checkpoint format 1 is not supported. Train again with --overwrite"):
        resume_run(out, steps=12)
    assert sorted((out / "steps").iterdir()) == steps, "none is put aside as broken"


def test_after_the_end(tmp_path, done):
    out = copy_run(done, tmp_path)
    before = read_run_state(done)
    (out / "run.json.123.tmp").write_text("left by a crash")
    for folder in (".model.k3j2", "data/.tokenizer.a8", "steps/.writing-00000009"):
        (out / folder).mkdir()
    resume_run(out)
    assert read_run_state(out) == before, "nothing is lost, the score least of all"
    with pytest.raises(Error, match="8 steps done, more than 5. --train.steps 8 or more"):
        resume_run(out, steps=5)
    resume_run(out)
    assert read_run_state(out) == before, "and what was refused is not remembered"
    resume_run(out, steps=10)
    assert [row["step"] for row in read_json_lines(out / "metrics.jsonl") if "losses" in row] == list(range(1, 11))
