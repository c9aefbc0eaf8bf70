"""From text to a model in one call: settings, folders, reports, continued pretraining."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml

import formers
from formers import Error
from formers.cli.main import app
from formers.inspection.attention import attention
from formers.registry import FAMILIES
from formers.reports.run_report import write_report, write_runs_page
from formers.training.config_merge import configure_pretraining
from formers.training.distributed.process_group import ProcessGroup
from formers.training.hardware import use_deterministic
from formers.training.loop import Stopped
from formers.training.recipes import get_recipe
from formers.training.run_folder import RUN_FORMAT, RunFolder, summarise_run
from formers.training.runs.dry_run import dry_run_pretraining
from formers.training.runs.prepare_data import prepare_data, read_excerpt
from formers.training.runs.pretrain import PretrainRun
from formers.training.trainer import Trainer
from tests.training.toy_runs import (
    DATA_SETTINGS,
    MODEL_SIZES,
    RNG,
    TEXT,
    TRAIN_SETTINGS,
    WORDS,
    pretrain_toy,
    read_data_record,
)


def get_weights(run):
    return dict(run.former.model.named_parameters())


def has_equal_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(get_weights(a).values(), get_weights(b).values(), strict=True))


def stop_at(step):
    def hook(line):
        if line["step"] == step and "losses" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    return hook


def test_a_run_leaves_a_model_metrics_samples_and_a_report(tmp_path):
    told = []
    run = pretrain_toy(out=tmp_path / "run", tell=lambda *a: told.append(a), train={"steps": 40})
    assert {what for what, *_ in told} >= {"tokenizer", "training"}
    assert "tokens/s" in told[-1][3]
    assert run.score.loss < run.baseline.loss
    loaded = formers.load(tmp_path / "run" / "model")
    assert torch.equal(loaded.logits(torch.tensor([[5, 6, 7]])), run.former.logits(torch.tensor([[5, 6, 7]])))
    assert loaded.tokenizer.fingerprint == run.former.tokenizer.fingerprint
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows if "losses" in r] == list(range(1, 41))
    assert [r["step"] for r in rows if "valid" in r] == [6, 12, 18, 24, 30, 36, 40]
    assert run.history == rows
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert [s["step"] for s in samples] == [20, 40]
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["data"]["tokenizer"] == loaded.tokenizer.fingerprint
    assert about["result"]["parameters"] == sum(p.numel() for p in loaded.model.parameters())
    page, words = ((tmp_path / "run" / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    assert page.count("<polyline") == 2
    assert "After step 20" in words
    assert "steps: 40" in words
    assert summarise_run(RunFolder(tmp_path / "run"), "x")[-1] == "done"
    assert not (tmp_path / "run" / "lock").exists()


def test_unknown_words_are_counted_aloud(tmp_path):
    """A vocabulary of words that does not hold the text is told before training, with what to do."""
    said = []
    model = {"dim": 16, "layers": 1, "heads": 2, "ff": 32}
    given = {"model": model, "train": {**TRAIN_SETTINGS, "steps": 1, "samples": 0}}
    for pieces in (8, 100):
        data = {**DATA_SETTINGS, "vocab_size": pieces}
        formers.pretrain("transformer_xl", TEXT, out=tmp_path / str(pieces), data=data, **given, say=said.append)
    notes = [line for line in said if "unknown" in line]
    assert len(notes) == 1
    assert "8 words are too few" in notes[0]


@pytest.mark.parametrize("preset_vocab", [64, 4096])
def test_a_run_of_a_preset_is_resumed_with_its_tokenizers_vocabulary(tmp_path, monkeypatch, preset_vocab):
    """The tokenizer has more or fewer pieces than the preset, and nobody asked for the preset's number."""
    monkeypatch.setitem(FAMILIES["gpt2"].definition.presets, "gpt2-tiny", {**MODEL_SIZES, "vocab": preset_vocab})
    given = {"train": TRAIN_SETTINGS, "data": DATA_SETTINGS}
    with pytest.raises(Stopped):
        formers.pretrain("gpt2", TEXT, out=tmp_path / "run", preset="gpt2-tiny", hook=stop_at(7), **given)
    again = formers.pretrain(out=tmp_path / "run", resume=True)
    assert again.former.config.vocab == len(again.former.tokenizer)
    assert again.history[-1]["step"] == TRAIN_SETTINGS["steps"]


def test_stopped_and_resumed_is_as_if_never_stopped(tmp_path, monkeypatch):
    whole = pretrain_toy(out=tmp_path / "whole")
    with pytest.raises(Stopped, match="stopped by SIGTERM after step 7; saved") as error:
        pretrain_toy(out=tmp_path / "cut", hook=stop_at(7))
    assert error.value.exit_code == 143
    with pytest.raises(Error, match="there is a run here already"):
        pretrain_toy(out=tmp_path / "cut")
    again = formers.pretrain(out=tmp_path / "cut", resume=True)
    assert has_equal_weights(whole, again)
    keep = [{k: v for k, v in r.items() if k != "seconds"} for r in whole.history]
    got = [{k: v for k, v in r.items() if k != "seconds"} for r in again.history if r["step"] != 7 or "losses" in r]
    assert got == keep
    states = []

    def look(line):
        states.append(summarise_run(RunFolder(tmp_path / "cut"), "x")[-1])
        stop_at(13)(line)

    with pytest.raises(Stopped):
        formers.pretrain(out=tmp_path / "cut", resume=True, train={"steps": 14}, hook=look)
    assert set(states) == {"running"}
    assert summarise_run(RunFolder(tmp_path / "cut"), "x")[-1] == "stopped"
    longer = formers.pretrain(out=tmp_path / "cut", resume=True)
    assert longer.history[-1]["step"] == 14
    with pytest.raises(Error, match=r"train.batch_tokens cannot change in a resumed run"):
        formers.pretrain(out=tmp_path / "cut", resume=True, train={"batch_tokens": 480})
    with pytest.raises(Error, match="is a run of gpt2, not of bert"):
        formers.pretrain("bert", out=tmp_path / "cut", resume=True)


def test_a_run_of_an_earlier_format_is_refused_and_its_model_still_opens(tmp_path, capsys):
    run = pretrain_toy(out=tmp_path / "run", train={"steps": 2})
    file = tmp_path / "run" / "run.json"
    about = json.loads(file.read_text())
    assert about["format"] == RUN_FORMAT
    old = {"format": RUN_FORMAT - 1, "config": {"family": "gpt2", "train": {"steps": 2, "tokens": 240}, "data": {}}}
    file.write_text(json.dumps({**about, **old}))
    words = r"run\.json: this run was made by an earlier formers \(format 2\) and cannot resume\. Train again with"
    for more in ({}, {"resume": True}, {"resume": True, "train": {"steps": 3}}):
        with pytest.raises(Error, match=words) as error:
            formers.pretrain("gpt2", TEXT, out=tmp_path / "run", **more)
        assert error.value.fix.endswith(f"the model in it still opens: formers export {tmp_path / 'run'} DIRECTORY")
    assert "made by an earlier formers" in summarise_run(RunFolder(tmp_path / "run"), "x")[-1]
    with pytest.raises(SystemExit) as end:
        app(["export", str(tmp_path / "run"), str(tmp_path / "exported")])
    assert not end.value.code
    assert (tmp_path / "exported" / "config.json").is_file()
    assert all(torch.equal(p, get_weights(run)[n]) for n, p in formers.load(tmp_path / "run").model.named_parameters())
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(Error, match=words) as error:
        formers.pretrain("gpt2", TEXT, out=tmp_path / "run", resume=True)
    assert error.value.fix == "train again with --overwrite or another --out"
    again = pretrain_toy(out=tmp_path / "run", train={"steps": 2}, overwrite=True)
    assert has_equal_weights(run, again)
    file.write_text(json.dumps({**about, "format": RUN_FORMAT + 1}))
    with pytest.raises(Error, match=r"format 4 is not supported\. It was made by a newer formers"):
        formers.pretrain(out=tmp_path / "run", resume=True)


def test_evaluation_takes_as_many_batches_as_asked_also_when_a_run_continues(tmp_path):
    pretrain_toy(out=tmp_path / "run", train={"steps": 2, "eval_batches": 1})
    asked = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert asked["train"]["eval_batches"] == 1
    assert "eval_batches" not in asked["data"]
    formers.pretrain(out=tmp_path / "run", resume=True, train={"steps": 4, "eval_batches": 3})
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["train"]["eval_batches"] == 3
    with pytest.raises(Error, match="eval_batches must be"):
        configure_pretraining("gpt2", {"train": {"eval_batches": 0}})


def test_a_model_says_the_same_of_its_tokens_after_a_stop(tmp_path):
    """A tokenizer that is read again may know its special tokens in another order."""
    small = {
        "model": {"dim": 16, "layers": 1, "heads": 2, "ff": 32},
        "train": {**TRAIN_SETTINGS, "steps": 2, "save_every": 1},
    }
    (tmp_path / "a.txt").write_text("\n".join(TEXT), encoding="utf-8")
    begin = {"data": DATA_SETTINGS, "hook": stop_at(1), **small}
    formers.pretrain("transformer_xl", tmp_path / "a.txt", out=tmp_path / "whole", **{**begin, "hook": None})
    with pytest.raises(Stopped):
        formers.pretrain("transformer_xl", tmp_path / "a.txt", out=tmp_path / "cut", **begin)
    formers.pretrain(out=tmp_path / "cut", resume=True)
    for name in ("formers.json", "tokenizer.json"):
        one, two = (tmp_path / run / "model" / name for run in ("whole", "cut"))
        assert one.read_bytes() == two.read_bytes()


def test_a_resumed_run_heeds_its_file_and_what_it_began_with(tmp_path):
    file = tmp_path / "c.yaml"
    tables = {
        "model": MODEL_SIZES,
        "train": {**TRAIN_SETTINGS, "steps": 2, "short_length": None},
        "data": {**DATA_SETTINGS, "column": "3"},
    }
    file.write_text(yaml.safe_dump({"recipe": "quick", **tables}))

    def resume_run(changes, **more):
        file.write_text(yaml.safe_dump({**tables, **changes}))
        return formers.pretrain("gpt2", TEXT, out=tmp_path / "run", resume=True, config=file, **more)

    begin = formers.pretrain("gpt2", TEXT, out=tmp_path / "run", config=file, recipe="quick")
    assert resume_run({}).history == begin.history, "the same command"
    assert resume_run({"train": {"steps": 3}}, recipe="quick").history[-1]["step"] == 3
    with pytest.raises(Error, match=r"finished: after 3 steps, train.lr changes nothing. Raise --train.steps"):
        resume_run({"train": {"lr": 1e-3}})
    assert resume_run({"train": {"lr": 1e-2}, "model": None}).history[-1]["step"] == 3, "what is not named stays"
    assert resume_run({"train": {"steps": 5}}, train={"steps": 4}).history[-1]["step"] == 4, "a single setting wins"
    named = r"model.layers cannot change in a resumed run\. Leave it out, or begin a new run; free"
    with pytest.raises(Error, match=named):
        resume_run({"train": {"steps": 9}, "model": {**MODEL_SIZES, "layers": 2}})
    for more, words in (
        ({"recipe": "paper"}, "is a run with recipe quick, not paper"),
        ({"preset": "gpt2-small"}, "is a run with no preset, not gpt2-small"),
        ({"init": tmp_path / "x"}, "is a run with no init, not"),
    ):
        for changes, single in (({}, more), ({key: str(value) for key, value in more.items()}, {})):
            with pytest.raises(Error, match=words):
                resume_run(changes, **single)
    with pytest.raises(Error, match="is a run of gpt2, not of bert"):
        formers.pretrain(out=tmp_path / "run", resume=True, config={"family": "bert"})


def test_resume_begins_where_there_is_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = pretrain_toy(resume=True)
    assert first.folder.as_posix() == "runs/gpt2-1"
    assert pretrain_toy().folder.as_posix() == "runs/gpt2-2"
    assert formers.pretrain("gpt2", resume=True).folder.as_posix() == "runs/gpt2-2", "the newest"


def test_files_stores_and_held_out_files(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXT[:50]) + "\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n".join(TEXT[50:]) + "\n", encoding="utf-8")
    made = pretrain_toy(text=tmp_path / "a.txt", out=tmp_path / "one", data={"valid": [str(tmp_path / "b.txt")]})
    listed = pretrain_toy(text=TEXT[:50], out=tmp_path / "two", valid=TEXT[50:])
    assert has_equal_weights(made, listed)
    assert made.score == listed.score
    store = pretrain_toy(text=tmp_path / "one" / "data" / "store", out=tmp_path / "three", valid=TEXT[50:])
    assert has_equal_weights(made, store)
    about = json.loads((tmp_path / "three" / "run.json").read_text())
    with (tmp_path / "a.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(
        Error, match=r"the text has changed since the run began\. Give it as it was, or begin a new run"
    ):
        formers.pretrain(out=tmp_path / "one", resume=True, train={"steps": 13})
    formers.prepare(TEXT[:9], about_tokenizer(tmp_path / "one"), tmp_path / "other")
    (tmp_path / "three" / "run.json").write_text(json.dumps({**about, "config": {**about["config"], "data": {
        **about["config"]["data"], "source": [str(tmp_path / "other")]}}}))  # fmt: skip
    with pytest.raises(Error, match="the text has changed since the run began"):
        formers.pretrain(out=tmp_path / "three", resume=True)


def about_tokenizer(folder):
    return formers.load(folder / "model").tokenizer


def test_settings_are_merged_and_checked(tmp_path):
    asked = configure_pretraining("bert", None, {"train.lr": "3e-4", "model.layers": "2", "data.source": "x.txt"})
    assert (asked.train.lr, asked.model["layers"], asked.data.source) == (3e-4, 2, ("x.txt",))
    file = tmp_path / "run.yaml"
    file.write_text(asked.to_yaml(), encoding="utf-8")
    assert configure_pretraining(None, file).to_dict() == asked.to_dict()
    assert yaml.safe_load(asked.to_yaml())["train"]["lr"] == 3e-4
    file.write_text("train: {lr: 1e-3}\nmodel: {layers: 5}\n")
    assert configure_pretraining("bert", file, {"model.layers": 7}).model["layers"] == 7
    base = configure_pretraining("bert", preset="bert-base", recipe="paper")
    assert base.train.steps == 1_000_000
    small = configure_pretraining("bert", None, {"model.dim": 384, "model.layers": 6, "model.heads": 6}, recipe="paper")
    assert small.train.steps < 1_000_000
    assert small.train.lr > base.train.lr
    for name, member in FAMILIES.items():
        assert not member.definition.objective or get_recipe(name, "paper").train


@pytest.mark.parametrize(
    ("family", "given", "words"),
    [
        ("gpt2", {"model.layrs": 2}, "model: unknown setting 'layrs'. Did you mean 'layers'"),
        ("gpt2", {"train.stepz": 2}, "unknown setting 'stepz'"),
        ("gpt2", {"trian.steps": 2}, "unknown setting 'trian.steps'"),
        ("gpt2", {"model.heads": 3}, "heads"),
        ("gpt2", {"model.layers": "many"}, "must be int"),
        ("gpt2", {"objective.mask_rate": 0.2}, "objective causal: unknown setting 'mask_rate'"),
        ("gpt2", {"objective.name": "casual"}, "Did you mean 'causal'"),
        ("gpt2", {"train.seq_length": 500, "model.context": 64}, "longer than the model's context of 64"),
        ("textcnn", {}, "textcnn is not pretrained"),
        ("gtp2", {}, "Did you mean 'gpt2'"),
        ("gpt2", {"data.valid_fraction": 2}, "cannot be held out"),
        ("gpt2", {"data.unit": "word"}, "cannot be 'word'"),
        ("gpt2", {"train.optimizer": "adamv"}, "there is no optimizer 'adamv'. Did you mean 'adam'"),
        ("gpt2", {"train.schedule": "linar"}, "there is no schedule 'linar'. Did you mean 'linear'"),
        ("bert", {"objective.mask_rate": 1.5}, "mask_rate is a share between 0 and 1, got 1.5"),
        ("ernie", {"objective.stage": "foo"}, "setting 'stage' cannot be 'foo'"),
        ("t5", {"objective.mean_span_length": 0.5}, "mean_span_length=0.5 is shorter than a token"),
        ("gnmt", {"objective.teacher_forcing": 1.7}, "teacher_forcing is a share between 0 and 1, got 1.7"),
        ("gnmt", {"objective.sampling_schedule": "linear"}, "needs a sampling_decay between 0 and 1"),
        ("gnmt", {"objective.sampling_decay": 0.1}, "sampling_decay belongs to a sampling_schedule"),
        ("xlnet", {"objective.reversed": True, "train.carry_memory": "false"}, "--train.carry_memory true"),
        ("xlnet", {"model.reversed": True}, "also after the training. Leave it out: with --objective.reversed true"),
    ],
)
def test_what_makes_no_sense_is_one_line(family, given, words):
    with pytest.raises(Error) as error:
        configure_pretraining(family, None, given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_xlnet_learns_from_reversed_text_and_reads_forwards_afterwards(tmp_path):
    """§3.1: half of a batch is back to front. In the model that is left, no text's place in a batch matters."""
    out, sizes = tmp_path / "run", {"dim": 16, "layers": 1, "heads": 2, "ff": 32, "memory": 8}
    train = {**TRAIN_SETTINGS, "batch_tokens": 56, "seq_length": 16, "accumulate": 2, "steps": 2}
    given = {"model": sizes, "train": train, "data": DATA_SETTINGS, "objective": {"reversed": True}}
    formers.pretrain("xlnet", TEXT, out=out, **given)  # of 3 rows in a batch, 2 are an even number
    former = formers.load(out)
    assert not former.config.reversed
    texts = ["the cat sat on the mat", "a dog lay beside it"]
    for one, among in zip(map(former.embed, texts), former.embed(texts), strict=True):
        np.testing.assert_allclose(one, among, atol=1e-6)


def test_missing_data_and_a_folder_in_use(tmp_path):
    with pytest.raises(Error, match="there is no text to learn from"):
        formers.pretrain("gpt2", out=tmp_path / "a")
    with pytest.raises(Error, match=r"nothing\.txt"):
        formers.pretrain("gpt2", tmp_path / "nothing.txt", out=tmp_path / "b")
    with pytest.raises(Error, match="no example can be made|too few|empty"):
        formers.pretrain("xlnet", ["a b"], out=tmp_path / "c", data={"valid_fraction": 0.0})
    with RunFolder(tmp_path / "d").lock(), pytest.raises(Error, match="is in use by process"):
        pretrain_toy(out=tmp_path / "d")


def test_what_cannot_begin_leaves_no_run_behind(tmp_path):
    with pytest.raises(Error, match="needs text of other documents"):
        pretrain_toy("bert", TEXT[:1], out=tmp_path / "run", data={"valid_fraction": 0.0})
    assert not (tmp_path / "run" / "run.json").exists()
    with pytest.raises(Error, match=r"typo\.txt: there is no such file"):
        pretrain_toy("bert", out=tmp_path / "new", data={"valid": [str(tmp_path / "typo.txt")]})
    assert not (tmp_path / "new" / "data").exists(), "known before a tokenizer is trained"
    with pytest.raises(Error, match="no such directory"):
        pretrain_toy(out=tmp_path / "other", init=tmp_path / "nothing")
    assert not (tmp_path / "other").exists(), "known before the text is read"
    for odd in ("batch_rampup_steps", "short_length"):
        with pytest.raises(Error, match=f"train.{odd} cannot be combined with train.carry_memory"):
            formers.pretrain(
                "transformer_xl", TEXT, out=tmp_path / odd, train={**TRAIN_SETTINGS, odd: 4}, data=DATA_SETTINGS
            )
        assert not (tmp_path / odd / "run.json").exists()


def test_what_a_failed_try_made_of_something_else_is_made_anew(tmp_path):
    other = [" ".join(reversed(line)) for line in TEXT[:40]]
    with pytest.raises(Error, match="needs text of other documents"):
        pretrain_toy("bert", TEXT[:1], out=tmp_path / "a", valid=TEXT[:1])
    said = []
    after = pretrain_toy(text=other, out=tmp_path / "a", train={"steps": 1}, tell=lambda what, *_: said.append(what))
    assert read_data_record(after) == read_data_record(pretrain_toy(text=other, out=tmp_path / "b", train={"steps": 1}))
    assert "tokenizer" in said
    known = {"tokenizer": after.former.tokenizer, "train": {"steps": 1}}
    with pytest.raises(Error, match="this tokenizer has no"):
        pretrain_toy("bert", iter(other[:9]), out=tmp_path / "c", **known)
    assert read_data_record(pretrain_toy(text=iter(other), out=tmp_path / "c", **known)) == read_data_record(after), (
        "a stream is never known"
    )


def test_a_tokenizer_that_was_in_memory_is_the_runs(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXT), encoding="utf-8")
    tokenizer = pretrain_toy(text=TEXT[:9], out=tmp_path / "first", train={"steps": 1}).former.tokenizer
    begun = pretrain_toy(text=tmp_path / "a.txt", tokenizer=tokenizer, out=tmp_path / "run", train={"steps": 1})
    again = formers.pretrain(out=tmp_path / "run", resume=True, train={"steps": 2})
    assert read_data_record(again) == read_data_record(begun)


def test_a_failed_try_takes_nothing_that_is_not_its_own(tmp_path):
    for name in ("store", "valid", "tokenizer"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "mine.txt").write_text("mine")
    for _ in range(2):
        with pytest.raises(Error, match="holds something else"):
            pretrain_toy(out=tmp_path)
    with pytest.raises(Error, match=r"is not empty \(mine.txt\)"):
        pretrain_toy(
            out=tmp_path, tokenizer=str(pretrain_toy(out=tmp_path / "run", train={"steps": 1}).folder / "model")
        )
    assert len(list(tmp_path.glob("data/*/mine.txt"))) == 3


def test_text_in_memory_cannot_change(tmp_path):
    begun = pretrain_toy(out=tmp_path / "run", train={"steps": 2}, valid=TEXT[:9])
    more = {"out": tmp_path / "run", "resume": True}
    with pytest.raises(Error, match=r"run: the text has changed since the run began\. Give it as it was, or begin"):
        pretrain_toy(text=TEXT[:50], valid=TEXT[:9], train={"steps": 3}, **more)
    with pytest.raises(Error, match="the validation text has changed since the run began"):
        pretrain_toy(valid=TEXT[:8], train={"steps": 3}, **more)
    for step, given in enumerate(({"valid": TEXT[:9]}, {}, {"text": None}), 3):
        again = pretrain_toy(train={"steps": step}, **given, **more)
        assert (read_data_record(again), again.history[-1]["step"]) == (read_data_record(begun), step)


@pytest.mark.parametrize(("device", "words"), [("gpu", "there is no device 'gpu'"), ("cuda:77", "no GPU cuda:77 here")])
def test_a_device_that_is_not_there(tmp_path, device, words):
    with pytest.raises(Error, match=words):
        pretrain_toy(out=tmp_path / "run", device=device)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_seen_before_the_first_step(tmp_path, monkeypatch):
    from formers.training.runs import run

    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: type("x", (), {"free": 1000})())
    with pytest.raises(Error, match=r"checkpoints need about [\d,]+ bytes, and 1,000 are free"):
        pretrain_toy(out=tmp_path / "run")
    formers.save(formers.build("gpt2", vocab=297, **MODEL_SIZES), tmp_path / "first")
    with pytest.raises(Error, match=r"checkpoints need about [\d,]+ bytes, and 1,000 are free"):
        pretrain_toy(out=tmp_path / "next", init=tmp_path / "first")


def test_continued_pretraining(tmp_path):
    first = pretrain_toy(out=tmp_path / "first", train={"steps": 40})
    same_words = pretrain_toy(
        out=tmp_path / "second",
        init=tmp_path / "first" / "model",
        data={"tokenizer": str(tmp_path / "first" / "model")},
        train={"steps": 1, "lr": 1e-99},
    )
    assert same_words.score.loss == pytest.approx(first.score.loss, abs=0.2), "it goes on where the first ended"
    other = pretrain_toy(
        out=tmp_path / "third",
        init=tmp_path / "first" / "model",
        data={"vocab_size": 280},
        train={"steps": 1, "lr": 1e-99},
    )
    old, new = first.former.tokenizer, other.former.tokenizer
    assert new.fingerprint != old.fingerprint
    assert other.former.config.vocab == len(new)
    known = {old.get_token_text(i): i for i in range(len(old))}
    kept = [(known[new.get_token_text(i)], i) for i in range(len(new)) if new.get_token_text(i) in known]
    assert len(kept) > 250
    a, b = first.former.model.body.embed.token.weight, other.former.model.body.embed.token.weight
    for i, j in kept:
        assert torch.equal(a[i], b[j])
    fresh = pretrain_toy(out=tmp_path / "fourth", data={"vocab_size": 280}, train={"steps": 1, "lr": 1e-99})
    assert other.score.accuracy > fresh.score.accuracy + 0.08, "what was learned is still there"
    with pytest.raises(Error, match="model.layers cannot be 2: the checkpoint has 1"):
        pretrain_toy(out=tmp_path / "fifth", init=tmp_path / "first" / "model", model={"layers": 2})
    with pytest.raises(Error, match="holds a gpt2, not a bert"):
        formers.pretrain("bert", TEXT, out=tmp_path / "sixth", init=tmp_path / "first" / "model")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_checkpoint_in_half_precision_continues_in_full(tmp_path, dtype):
    """Steps of 1e-6 would be lost beside weights of about 1."""
    pretrain_toy(out=tmp_path / "first", train={"steps": 2})
    half = formers.load(tmp_path / "first" / "model").to(dtype=dtype)
    formers.save(half, tmp_path / "half")
    run = pretrain_toy(out=tmp_path / "next", init=tmp_path / "half", data={"tokenizer": str(tmp_path / "half")},
                   train={"steps": 2, "lr": 1e-6, "warmup_steps": 0})  # fmt: skip
    assert {w.dtype for w in run.former.model.parameters()} == {torch.float32}
    norms = [name for name, _ in half.model.named_parameters() if "norm" in name and name.endswith("weight")]
    for name in norms:
        before, after = half.model.get_parameter(name).float(), run.former.model.get_parameter(name)
        assert 0 < (before - after).abs().max() < 1e-4, name


def test_a_run_from_a_checkpoint_continues_and_is_repeated(tmp_path):
    """The checkpoint's sizes are not the recipe's: what is remembered of the run must not name those."""
    pretrain_toy(out=tmp_path / "first", train={"steps": 2})
    begin = {
        "init": tmp_path / "first",
        "data": {**DATA_SETTINGS, "tokenizer": str(tmp_path / "first")},
        "train": TRAIN_SETTINGS,
    }
    whole = formers.pretrain("gpt2", TEXT, out=tmp_path / "whole", **begin)
    with pytest.raises(Stopped):
        formers.pretrain("gpt2", TEXT, out=tmp_path / "cut", hook=stop_at(7), **begin)
    assert has_equal_weights(whole, formers.pretrain(out=tmp_path / "cut", resume=True))
    asked = json.loads((tmp_path / "whole" / "run.json").read_text())["config"]
    assert has_equal_weights(whole, formers.pretrain(None, TEXT, out=tmp_path / "again", config=asked))


@pytest.mark.parametrize("pieces", [280, 270])
def test_a_layer_as_wide_as_the_vocabulary_does_not_follow_it(tmp_path, pieces):
    """280 rows of the feed-forward layer are not 280 pieces; another tokenizer may even have as many."""
    first = pretrain_toy(out=tmp_path / "first", model={"ff": 280}, train={"steps": 1}, data={"vocab_size": 280})
    assert len(first.former.tokenizer) == 280
    text = [t.replace("one", "eins").replace("two", "zwei") for t in TEXT]
    begin = {
        "init": tmp_path / "first",
        "data": {**DATA_SETTINGS, "vocab_size": pieces},
        "train": {**TRAIN_SETTINGS, "steps": 1, "lr": 1e-99},
    }
    other = formers.pretrain("gpt2", text, out=tmp_path / "second", **begin)
    assert other.former.tokenizer.fingerprint != first.former.tokenizer.fingerprint
    for name, tensor in get_weights(first).items():
        assert torch.equal(tensor, get_weights(other)[name]) != (tensor.shape[0] == 280 and "ff" not in name), name


def test_a_padded_vocabulary_keeps_its_rows_when_only_dropout_changes(tmp_path):
    made = formers.build("gpt2", seed=1, vocab=310, eos=None, bos=None, **MODEL_SIZES)
    made.tokenizer = pretrain_toy(out=tmp_path / "first", train={"steps": 1}).former.tokenizer
    formers.save(made, tmp_path / "padded")
    given = {
        "data": {**DATA_SETTINGS, "tokenizer": str(tmp_path / "padded")},
        "train": {**TRAIN_SETTINGS, "steps": 1, "lr": 1e-99},
    }
    run = formers.pretrain(
        "gpt2", TEXT, out=tmp_path / "run", init=tmp_path / "padded", model={"dropout": 0.3}, **given
    )
    assert run.former.config.dropout == 0.3
    for name, tensor in made.model.named_parameters():
        assert torch.equal(tensor, get_weights(run)[name]), name


def test_a_report_of_samples_with_odd_line_ends_and_a_cut_line(tmp_path):
    run = pretrain_toy(out=tmp_path / "run", train={"steps": 1})
    with (tmp_path / "run" / "samples.jsonl").open("a", encoding="utf-8") as file:
        file.write(
            json.dumps({"step": 1, "given": "a\u2028b\x85c", "made": "x"}, ensure_ascii=False) + '\n{"step": 1, "g'
        )
    write_report(RunFolder(run.folder))
    assert "a\u2028b\x85c" in (run.folder / "report.md").read_text(encoding="utf-8")


def test_the_cost_of_the_same_bits_is_told_and_changes_nothing(tmp_path):
    said = []
    bound = pretrain_toy(out=tmp_path / "bound", train={"deterministic": True}, say=said.append)
    assert re.search(r"bitwise reproducible: [\d.]+ s a step, [\d.]+ times the [\d.]+ s without", said[0])
    assert not torch.are_deterministic_algorithms_enabled()
    assert has_equal_weights(bound, pretrain_toy(out=tmp_path / "free"))
    file = tmp_path / "a.txt"
    file.write_text("\n".join(TEXT), encoding="utf-8")
    small = {f"train.{k}": v for k, v in TRAIN_SETTINGS.items()} | {f"model.{k}": v for k, v in MODEL_SIZES.items()}
    rows = dict(dry_run_pretraining("gpt2", None, {**small, "data.source": str(file), "train.deterministic": True}))
    assert " times the " in rows["note"]


def test_torch_is_not_asked_for_what_is_so_already(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", asked.append)
    with use_deterministic(False):
        pass
    assert asked == []


def test_an_operation_that_never_gives_the_same_bits_is_one_line():
    words = "cumsum_cuda_kernel does not have a deterministic implementation"
    with (
        pytest.raises(Error, match=r"not every operation is deterministic here \(cumsum_cuda"),
        use_deterministic(True),
    ):
        raise RuntimeError(words)
    with pytest.raises(RuntimeError, match="cumsum"), use_deterministic(False):
        raise RuntimeError(words)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_dry_run_without_memory_is_one_line(tmp_path, monkeypatch):
    def none(*_):
        raise MemoryError

    (tmp_path / "a.txt").write_text("\n".join(TEXT), encoding="utf-8")
    monkeypatch.setattr("formers.training.runs.run.time_steps", none)
    with pytest.raises(Error, match="out of memory on cpu"):
        dry_run_pretraining("gpt2", None, {"data.source": str(tmp_path / "a.txt")})


def test_a_dry_run_counts_what_the_run_will_take(tmp_path, monkeypatch):
    """A growing number of batches, two lengths (a batch takes 1 s, then 10 s), and the bytes of a checkpoint."""
    train = {
        **TRAIN_SETTINGS, "steps": 20, "accumulate": 3, "batch_rampup_steps": 6, "short_length": 8, "ema": 0.9,
        "optimizer": "sgd", "save_every": 20,
    }  # fmt: skip
    run, reports = pretrain_toy(out=tmp_path / "run", train=train), []
    (tmp_path / "a.txt").write_text("\n".join(TEXT), encoding="utf-8")
    given = {f"train.{k}": v for k, v in train.items()} | {f"model.{k}": v for k, v in MODEL_SIZES.items()}
    given |= {"data.source": str(tmp_path / "a.txt"), "data.vocab_size": 300}
    real, clock = Trainer.train_step, [0.0]

    def move(self, batches, goal):
        clock[0] += sum(1.0 if goal.length == 8 else 10.0 for _ in batches)
        reports.append((self.step, goal.length))
        return real(self, batches, goal)

    monkeypatch.setattr(Trainer, "train_step", move)
    monkeypatch.setattr("formers.training.runs.run.time.perf_counter", lambda: clock[0])
    rows = dict(dry_run_pretraining("gpt2", None, given))
    batches = [1, 1, 1, 2, 2, 2] + [3] * 14
    tokens, seconds = train["batch_tokens"] * sum(batches), sum(batches[:18]) + 10 * sum(batches[18:])
    assert [step for step, length in reports if length == 8] == list(range(6))
    assert [step for step, length in reports if length != 8] == [18, 19]
    assert rows["steps"] == f"20 of up to {3 * train['batch_tokens']:,} tokens: {tokens:,} in all"
    assert rows["speed"].startswith(f"{tokens / seconds:,.0f} tokens/s, {3 * seconds / sum(batches):.3f} s a step")
    saved = sum(f.stat().st_size for f in (run.folder / "steps" / "step-00000020").glob("*.safetensors"))
    assert float(rows["checkpoint"].split()[0]) == pytest.approx(saved / 1e6, abs=0.06)
    assert sum(row.get("tokens", 0) for row in run.history if row["step"] == 20) == pytest.approx(tokens, rel=0.05)


def test_a_dry_run_knows_how_much_text_a_packed_file_holds(tmp_path, monkeypatch):
    text = [" ".join(RNG.choice(WORDS, 40)) for _ in range(200)]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n".join(text).encode()))
    asked = configure_pretraining("gpt2", None, {"data.source": str(tmp_path / "a.txt.gz")})
    assert read_excerpt(asked.data) == (text, 1.0)
    monkeypatch.setattr("formers.training.runs.prepare_data.EXCERPT_CHARS", 1000)
    some, share = read_excerpt(asked.data)
    assert share * sum(map(len, some)) == pytest.approx(3.0 * (tmp_path / "a.txt.gz").stat().st_size)


class Frequencies:
    """A model that knows nothing but how frequent each token is."""

    parts: ClassVar = {"lm": SimpleNamespace(out=None, compute_fused_loss=lambda *_: None)}
    training, body = False, SimpleNamespace(embedding_table=None)

    def __init__(self, store, ways):
        counts = 1 + torch.bincount(torch.from_numpy(np.asarray(store.tokens).astype(int)), minlength=store.vocab)
        self.shape = (*ways, store.vocab)
        self.shares = (counts / counts.sum()).log().float()

    def __call__(self, batch, **_):
        return torch.zeros(len(batch.ids), 1)

    def logits(self, hidden, **_):
        return self.shares.expand(len(hidden), *self.shape)


@pytest.mark.parametrize("family", ["gpt2", "elmo"])
def test_the_unigram_is_scored_at_the_same_places(tmp_path, family, monkeypatch):
    """Those of all processes, whichever computes it; the objective's own loss says the same of its frequencies."""
    monkeypatch.setattr("formers.training.distributed.strategies.DataParallel.wrap_step", lambda self, step: step)
    train = {"batch_tokens": 96, "seq_length": 24, "carry_memory": False, "eval_batches": 5}
    asked = configure_pretraining(family, {"data": DATA_SETTINGS, "train": train})
    found = prepare_data(family, asked.data, tmp_path / "data", TEXT)
    alone, first = PretrainRun(asked, found, ProcessGroup()), PretrainRun(asked, found, ProcessGroup(0, 2))
    assert len(first.get_valid_batches()) < len(alone.get_valid_batches()) == 5
    assert first.unigram_baseline == alone.unigram_baseline
    model = Frequencies(found.store, (2,) if family == "elmo" else ())
    pairs = [
        alone.valid_objective.loss(model, batch.to(torch.device("cpu")))["lm"] for batch in alone.get_valid_batches()
    ]
    total, count = (float(sum(values)) for values in zip(*pairs, strict=True))
    assert alone.unigram_baseline.loss == pytest.approx(total / count, rel=1e-5)


def test_several_runs_on_one_page(tmp_path):
    runs = {
        "gpt2": pretrain_toy("gpt2", out=tmp_path / "gpt2"),
        "bert": pretrain_toy("bert", out=tmp_path / "bert", objective={"name": "mlm"}),
    }
    assert runs["bert"].former.head == "mlm"
    looked = {name: attention(r.former, "one two three") for name, r in runs.items()}
    path, folders = tmp_path / "report.html", {name: RunFolder(r.folder) for name, r in runs.items()}
    write_runs_page(path, "A <title>", "Intro", folders, {"gpt2": [("Sample:", "<b>one</b> 한국어")]}, looked, "ko")
    page = path.read_text(encoding="utf-8")
    assert "A &lt;title&gt;" in page
    assert "&lt;b&gt;one&lt;/b&gt; 한국어" in page
    assert page.count("<polyline") == 4
    assert page.count("레이어 1, 헤드 2</h3>") == 2
    assert 'lang="ko"' in page
    assert "http" not in page.replace("http://www.w3.org", ""), "self-contained: nothing is fetched"


def test_recipes_hold_what_the_papers_say():
    for name in ("t5", "mt5", "switch"):
        assert configure_pretraining(name, recipe="paper").train.weight_decay == 0, "T5 §3.1.2: Adafactor without decay"
    albert = configure_pretraining("albert", recipe="paper").train
    assert (albert.optimizer, albert.betas) == ("lamb", (0.9, 0.999)), "You et al. 2019, §4"
    assert configure_pretraining("transformer", recipe="paper").objective["label_smoothing"] == 0.1, (
        "Vaswani et al. 2017, §5.4"
    )
    assert "label_smoothing" not in configure_pretraining("transformer").objective


def test_every_family_has_its_recipes():
    for name, member in FAMILIES.items():
        if member.definition.objective:
            assert configure_pretraining(name).train.steps
            assert configure_pretraining(name, recipe="paper").train.steps > 1000


@pytest.mark.parametrize("family", ["gpt2", "word2vec"])
def test_the_column_that_is_read_as_text_is_said(family, tmp_path):
    path, said = tmp_path / "a.csv", []
    path.write_text("id;review\n" + "".join(f"{i};{text}\n" for i, text in enumerate(TEXT)), encoding="utf-8")
    if family == "gpt2":
        pretrain_toy(text=path, out=tmp_path / "run", say=said.append, train={"steps": 1})
    else:
        formers.pretrain(family, path, out=tmp_path / "run", say=said.append, model={"dim": 8, "min_count": 1})
    assert "text: a semicolon stands between columns, the column 'review' is the text" in said
