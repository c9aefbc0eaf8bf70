"""Mixtures of text-to-text tasks in fine-tuning and pretraining: settings, runs, resuming, what the model keeps."""

from __future__ import annotations

import json
import lzma
import os
import random
import signal

import pytest
import torch
import yaml

import formers
from formers.config import build_config
from formers.data.mixture import Mixture
from formers.errors import Error
from formers.task import Task
from formers.tasks.encoding import TaskEncoder, encode_examples
from formers.training.config_merge import read_mixture
from formers.training.loop import Stopped
from formers.training.mixture_config import MixtureConfig, build_mixture_config, describe_strategy
from formers.training.run_folder import RunFolder
from formers.training.runs.mixture import list_number_labels, summarise_task_metrics
from tests.command_line import run_command
from tests.training.toy_runs import REVIEWS, TEXT

SMALL = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "ff": 64, "dropout": 0.0}
SIZES = {f"model.{name}": value for name, value in SMALL.items()}
draw = random.Random(0).choice
COLOURS = [(draw(["red", "blue"]), draw(["red", "blue"])) for _ in range(60)]
SAME = [{"text": f"a {a} cat", "other": f"a {b} dog", "label": "yes" if a == b else "no"} for a, b in COLOURS]
ALIKE = [{"text": f"a {a} cat", "other": f"a {b} dog", "label": 5.0 if a == b else 1.4} for a, b in COLOURS]
TURNED = [{"text": f"{a} {b}", "target": f"{b} {a}"} for a, b in COLOURS]


def finetune_mixture(mixture=None, family="t5", **more):
    """Fine-tune a small model on a mixture of reviews and colours."""
    more = {"epochs": 2, "overrides": {**SIZES, "data.vocab_size": 200, **more.pop("overrides", {})}, **more}
    return formers.finetune(family, mixture=mixture or {"films": REVIEWS, "same": SAME}, **more)


@pytest.fixture(scope="module")
def mixture_run(tmp_path_factory):
    """A run on four tasks of all kinds, with test examples of one of them."""
    tasks = {
        "films": {"train": REVIEWS, "test": REVIEWS[:6], "prefix": "review: ", "metric": "f1_macro",
                  "labels": {"yes": "positive", "no": "negative"}},
        "same": SAME, "alike": {"train": ALIKE}, "turn": {"train": TURNED, "task": "translate", "max_output_tokens": 8},
    }  # fmt: skip
    lines = []
    mixture = {"tasks": tasks, "strategy": "temperature", "size_limit": 50}
    run = finetune_mixture(mixture, out=tmp_path_factory.mktemp("mixture") / "run", say=lines.append)
    return run, lines


def test_a_run_has_metrics_by_task_and_their_average(mixture_run):
    run, lines = mixture_run
    mains = [run.valid[name] for name in ("films/f1_macro", "same/accuracy", "alike/spearman")]
    assert run.valid["average"] == pytest.approx((sum(mains) + run.valid["turn/bleu"] / 100) / 4)
    assert {"films/accuracy", "turn/chrf", "alike/mse"} <= set(run.valid)
    assert set(run.test) == {"films/accuracy", "films/f1_macro", "films/matthews"}, "only one task has a test"
    assert set(run.majority) == {f"{n}/{m}" for n in ("films", "same") for m in ("accuracy", "f1_macro", "matthews")}
    counts = {name: min(50, n) ** 0.5 for name, n in {"films": 43, "same": 54, "alike": 54, "turn": 54}.items()}
    about = RunFolder(run.folder).read_info()
    assert about["data"]["rates"] == pytest.approx({name: root / sum(counts.values()) for name, root in counts.items()})
    assert about["data"]["tasks"] == {"films": "classify", "same": "classify", "alike": "regress", "turn": "translate"}
    assert any(line.startswith("temperature-scaled mixing, T = 2, K = 50: films 23.6% (") for line in lines)
    evaluations = [row["valid"] for row in run.history if "valid" in row]
    best = max(evaluations, key=lambda row: row["average"])
    assert {"films/loss", "turn/loss", "average", "films/accuracy"} <= set(best)
    assert all(row["cost"] == -row["average"] for row in evaluations)
    assert run.valid["average"] == pytest.approx(best["average"])
    words = (run.folder / "report.md").read_text(encoding="utf-8")
    assert "| task | examples | rate | metric | validation | test | TF-IDF + linear, validation |" in words
    assert "| average | " in words
    assert "## turn: Examples" in words


def test_the_model_keeps_every_task(mixture_run, tmp_path):
    run, _ = mixture_run
    former = formers.load(run.folder / "model")
    assert former.task == {}
    prefixes = {name: task["prefix"] for name, task in former.tasks.items()}
    assert prefixes == {
        "films": "review: ", "same": "same sentence1: ", "alike": "alike sentence1: ", "turn": "turn: ",
    }  # fmt: skip
    assert former.tasks["same"]["other_prefix"] == "sentence2: "
    same = build_config(Task, former.tasks["same"])
    data = encode_examples(same, SAME[:1], TaskEncoder.from_former(former, same))
    decoded = [former.tokenizer.decode(ids.tolist()).removesuffix("</s>") for ids in (data.ids, data.target[0])]
    assert decoded == [f"same sentence1: {SAME[0]['text']} sentence2: {SAME[0]['other']}", SAME[0]["label"]]
    text, pair = REVIEWS[0]["text"], (SAME[0]["text"], SAME[0]["other"])
    label = former.classify(text, task="films")
    assert label == former.select_task("films").classify(text)
    assert set(label.probabilities) == {"positive", "negative"}, "the words that were asked for"
    assert set(former.classify(pair, task="same").probabilities) == {"no", "yes"}
    assert former.score(pair) in [float(n) for n in former.tasks["alike"]["labels"]], "the only one that gives a number"
    assert former.translate("red blue", max_new_tokens=4) == former.generate("turn: red blue", max_new_tokens=4,
                                                                            temperature=0)  # fmt: skip
    with pytest.raises(Error, match="this model has 2 tasks to classify: films, same. Name one: --task films"):
        former.classify(text)
    with pytest.raises(Error, match=r"no task 'film'. Did you mean 'films'\?"):
        former.classify(text, task="film")
    with pytest.raises(Error, match="does not fill"):
        former.fill("a ___ film")
    with pytest.raises(Error, match="was not trained on a mixture"):
        formers.build("t5", **SMALL).select_task("films")
    words = {"yes": "positive", "no": "negative"}
    found = former.evaluate([{**row, "label": words[row["label"]]} for row in REVIEWS[:6]], task="films").metrics
    assert {f"films/{name}": value for name, value in found.items()} == run.test
    with pytest.raises(Error, match="'no' was not seen in training. Known labels: negative, positive"):
        former.evaluate(REVIEWS[:6], task="films")
    formers.save(former.select_task("same"), tmp_path / "own")
    assert set(formers.load(tmp_path / "own").classify(pair).probabilities) == {"no", "yes"}, (
        "selected when it was saved"
    )
    formers.export(former, tmp_path / "hf")
    written = json.loads((tmp_path / "hf" / "config.json").read_text())["task_specific_params"]
    assert {name: one["prefix"] for name, one in written.items()} == prefixes, "where T5's own files have them"
    again = formers.load(tmp_path / "hf")
    assert again.tasks == former.tasks
    assert again.classify(text, task="films").probabilities == pytest.approx(label.probabilities)


def test_an_exported_task_that_was_tampered_with_is_refused(mixture_run, tmp_path):
    formers.export(formers.load(mixture_run[0].folder / "model"), tmp_path / "hf")
    raw = json.loads((tmp_path / "hf" / "config.json").read_text())
    raw["task_specific_params"]["alike"]["formers"]["labels"] = ["0", "nan"]
    (tmp_path / "hf" / "config.json").write_text(json.dumps(raw))
    with pytest.raises(Error, match="labels of a score are not numbers"):
        formers.load(tmp_path / "hf")
    raw["task_specific_params"] = {"summarization": {"prefix": "summarize: "}}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(raw))
    assert formers.load(tmp_path / "hf").tasks == {}, "those of other libraries say too little"


def test_killed_and_resumed_is_as_if_never_stopped(tmp_path):
    tasks = {"same": SAME, "turn": {"train": TURNED, "task": "translate", "max_output_tokens": 12}}
    whole = finetune_mixture({"tasks": tasks, "strategy": "equal"}, out=tmp_path / "whole")

    def hook(line):
        if line["step"] == 4 and "losses" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="after step 4; saved"):
        finetune_mixture({"tasks": tasks, "strategy": "equal"}, out=tmp_path / "cut", hook=hook)
    with pytest.raises(Error, match=r"mixture.size_limit cannot change in a resumed run"):
        formers.finetune(out=tmp_path / "cut", resume=True, overrides={"mixture.size_limit": 3})
    with pytest.raises(Error, match="the same/train examples have changed since the run began"):
        formers.finetune(out=tmp_path / "cut", resume=True, mixture={"tasks": tasks | {"same": SAME[:-1]},
                                                                     "strategy": "equal"})  # fmt: skip
    again = formers.finetune(out=tmp_path / "cut", resume=True, overrides={"train.workers": 1})
    assert again.valid == whole.valid
    pairs = zip(whole.former.model.named_parameters(), again.former.model.named_parameters(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def test_a_run_of_one_task_does_not_become_a_mixture(tmp_path):
    more = {"epochs": 1, "overrides": {"model.embed": 8, "model.filters": 4}, "out": tmp_path / "run"}
    formers.finetune("textcnn", REVIEWS, REVIEWS[:8], **more)
    with pytest.raises(Error, match="this run has one task, not a mixture"):
        formers.finetune(mixture={"films": REVIEWS}, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("family", ["bart", "transformer", pytest.param("switch", marks=pytest.mark.full)])
def test_other_encoder_decoders_mix_tasks(tmp_path, family):
    more = {"transformer": {}, "bart": {}, "switch": {"model.sparse": 1}}[family]
    sizes = {name: value for name, value in SIZES.items() if name != "model.head_dim"}
    overrides = {**(SIZES if family == "switch" else sizes), **more, "data.vocab_size": 300}
    mixture = {"films": REVIEWS[:16], "same": SAME[:16]}
    run = formers.finetune(family, mixture=mixture, epochs=1, out=tmp_path / "run", overrides=overrides)
    assert set(formers.load(run.folder / "model").tasks) == {"films", "same"}


@pytest.mark.parametrize("family", ["gpt2", "bert", "textcnn"])
def test_families_without_a_decoder_over_an_encoder_are_refused(tmp_path, family):
    with pytest.raises(Error, match=f"needs an encoder-decoder, and {family} is not one. Take .*t5"):
        formers.finetune(family, mixture={"films": REVIEWS}, out=tmp_path / "run")
    if family != "textcnn":
        with pytest.raises(Error, match="needs an encoder-decoder"):
            formers.pretrain(family, ["a text"], mixture={"films": REVIEWS}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


TAGS = [{"words": ["Anna", "runs"], "tags": ["B-PER", "O"]}] * 12


@pytest.mark.parametrize(
    ("mixture", "more", "match"),
    [
        ({}, {}, "a mixture has no tasks"),
        ({"a/b": REVIEWS}, {}, "a task cannot be called 'a/b'"),
        ({"text": REVIEWS}, {}, "which is the text of pretraining"),
        ({"names": TAGS}, {}, "task names: tag cannot be learned text to text"),
        ({"films": {"train": REVIEWS, "label_prefix": "x"}}, {}, "unknown setting 'label_prefix'"),
        ({"films": {"train": REVIEWS, "metric": "loss"}}, {}, "'loss' cannot be averaged"),
        ({"films": {"train": REVIEWS, "valid": [{"text": "so so", "label": "maybe"}]}}, {}, "'maybe' was not seen"),
        ({"films": {"train": "nothing.tsv"}}, {}, "task films: "),
        ({"films": {"train": REVIEWS, "labels": {"yes": "good"}}}, {}, "task films: labels has no word for 'no'"),
        ({"films": {"train": REVIEWS, "labels": {"yes": "a", "no": "a"}}}, {}, "mapped to different words"),
        ({"films": {"train": REVIEWS[:1] * 12}}, {}, "task films: the training examples have 1 label"),
        ({"tasks": {"films": REVIEWS}, "strategy": "even"}, {}, "proportional, temperature, equal"),
        ({"tasks": {"films": REVIEWS}, "temperature": 2}, {}, "does nothing with the strategy proportional"),
        ({"tasks": {"films": REVIEWS}, "strategy": "temperature", "temperature": 0.5}, {}, "must be at least 1"),
        ({"films": REVIEWS}, {"overrides": {"tune.prefix": "x: "}}, "tune.prefix is a task's own"),
        ({"films": REVIEWS}, {"overrides": {"tune.balance": True}}, "tune.balance does not apply"),
        ({"films": REVIEWS}, {"train": "x.tsv"}, "tasks name their own examples"),
        ({"films": REVIEWS}, {"task": "classify"}, "does not apply to a mixture"),
        (7, {}, "a mixture is a table of tasks"),
        (["films"], {}, "cannot be read"),
        (["films", "a=b"], {}, "'films' is not of the form NAME=FILE"),
        (["a=b", "a=c"], {}, "two tasks of the mixture are called 'a'"),
    ],
)  # fmt: skip
def test_bad_mixtures_are_one_line(tmp_path, mixture, more, match):
    overrides = {**SIZES, "data.vocab_size": 120, **more.pop("overrides", {})}
    with pytest.raises(Error, match=match):
        formers.finetune("t5", mixture=mixture, out=tmp_path / "run", overrides=overrides, **more)


def test_a_mixture_comes_from_a_file_words_or_tables(tmp_path):
    file = tmp_path / "mix.yaml"
    file.write_text("strategy: equal\ntasks:\n  sst2: {train: sst2.tsv, prefix: 'sst2 sentence: '}\n  영화: 영화.tsv\n")
    settings, memory = read_mixture(file)
    assert memory == {}
    config = build_mixture_config({key.removeprefix("mixture."): value for key, value in settings.items()})
    assert isinstance(config, MixtureConfig)
    assert config.tasks["영화"].train == "영화.tsv"
    assert build_mixture_config(config.to_settings()) == config
    assert yaml.safe_load(yaml.safe_dump(config.to_settings())) == config.to_settings()
    assert read_mixture(["a=x.tsv", "b=y=z.tsv"])[0]["mixture.tasks"] == {
        "a": {"train": "x.tsv"},
        "b": {"train": "y=z.tsv"},
    }
    assert describe_strategy(config) == "equal mixing"
    rows = [{"text": "x", "label": "y"}]
    assert read_mixture({"a": rows}) == ({"mixture.tasks": {"a": {}}}, {"a": {"train": rows}})


def test_numbers_are_written_as_in_the_paper():
    """T5 rounds STS-B's scores to steps of 0.2 and writes them with one digit (§2.4)."""
    labels = list_number_labels([0.0, 5.0, 2.6])
    assert len(labels) == 26
    assert labels[:3] == ("0.0", "0.2", "0.4")
    task = Task(name="regress", kind="text", label_as_text=True, labels=labels)
    assert [task.format_label(n) for n in (2.57, 2.6, 0.09, 4.96, 7)] == ["2.6", "2.6", "0.0", "5.0", "5.0"]
    assert list_number_labels([-100.0, 100.0])[::12] == ("-96", "0", "96")
    with pytest.raises(Error, match="are the same"):
        list_number_labels([3.0, 3.0])


def test_an_average_needs_every_task():
    values = {"a": {"accuracy": 0.5, "f1_macro": 0.25}, "b": {"bleu": 30.0}}
    assert summarise_task_metrics({"a": "accuracy", "b": "bleu"}, values) == {
        "average": 0.4, "a/accuracy": 0.5, "a/f1_macro": 0.25, "b/bleu": 30.0,
    }  # fmt: skip
    assert "average" not in summarise_task_metrics({"a": "accuracy", "b": "bleu", "c": "bleu"}, values)


def test_pretraining_mixes_text_with_tasks(tmp_path, monkeypatch):
    taken, make_batch = [0, 0, 0], Mixture.make_batch

    def count_examples(self, plan, samples, seed):
        taken[:] = [total + len(rows) for total, rows in zip(taken, plan.rows, strict=True)]
        return make_batch(self, plan, samples, seed)

    monkeypatch.setattr(Mixture, "make_batch", count_examples)
    how = {
        "model": SMALL, "data": {"vocab_size": 200, "valid_fraction": 0.2},
        "train": {"steps": 8, "batch_tokens": 512, "seq_length": 48, "eval_every": 4, "eval_batches": 2},
    }  # fmt: skip
    mixture = {"tasks": {"films": REVIEWS, "same": SAME}, "size_limit": 20}
    lines = []
    run = formers.pretrain("t5", TEXT, mixture=mixture, out=tmp_path / "whole", say=lines.append, **how)
    assert min(taken) > 10, "it is trained on the text and on both tasks"

    def hook(line):
        if line["step"] == 3 and "losses" in line:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        formers.pretrain("t5", TEXT, mixture=mixture, out=tmp_path / "cut", hook=hook, **how)
    again = formers.pretrain("t5", TEXT, out=tmp_path / "cut", resume=True, **how)
    share = 20 / (20 + 20 + 20)
    assert any(line.startswith(f"examples-proportional mixing, K = 20: text {share:.1%} (") for line in lines)
    assert {"lm", "films/accuracy", "same/loss", "average"} <= set(run.score.metrics)
    assert again.score == run.score
    pairs = zip(run.former.model.parameters(), again.former.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "killed and resumed is as if never stopped"
    former = formers.load(tmp_path / "cut" / "model")
    assert list(former.tasks) == ["text", "films", "same"]
    assert former.classify(REVIEWS[0]["text"], task="films").label in ("no", "yes")
    assert former.fill("a ___ film"), "it has learned its text too"
    with pytest.raises(Error, match="cannot change in a resumed run"):
        formers.pretrain("t5", TEXT, out=tmp_path / "cut", resume=True, overrides={"mixture.strategy": "equal"}, **how)


def test_real_tasks_are_mixed(tmp_path, data):
    """Questions and reviews from their files, each evaluated on its own."""
    for name in ("sst2", "trec"):
        with lzma.open(data / "classify" / f"{name}.train.tsv.xz", "rt", encoding="utf-8") as file:
            (tmp_path / f"{name}.tsv").write_text("".join(file.readlines()[:400]), encoding="utf-8")
    mixture = [f"{name}={tmp_path / name}.tsv" for name in ("sst2", "trec")]
    run = finetune_mixture(mixture, epochs=1, out=tmp_path / "run", overrides={"data.vocab_size": 1000})
    former = formers.load(run.folder / "model")
    assert former.tasks["sst2"]["prefix"] == "sst2 sentence: "
    assert len(former.tasks["trec"]["labels"]) == 6
    assert {"sst2/accuracy", "trec/accuracy", "average"} <= set(run.valid)
    assert former.classify("Who wrote it ?", task="trec").label in former.tasks["trec"]["labels"]


def test_a_mixture_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("films", REVIEWS), ("same", SAME)):
        lines = ["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sizes = [word for name, value in SIZES.items() for word in (f"--{name}", value)]
    words = ["finetune", "t5", "--mixture", "films=films.tsv", "same=same.tsv", "--mixture.strategy", "equal",
             "--epochs", 1, "--data.vocab_size", 120, *sizes]  # fmt: skip
    code, out, error = run_command(capsys, *words, "--print-config")
    assert code == 0, error
    table = yaml.safe_load(out)
    assert table["mixture"]["strategy"] == "equal"
    assert table["mixture"]["tasks"]["films"] == {"train": "films.tsv"}
    code, out, error = run_command(capsys, *words, "--dry-run")
    assert code == 0, error
    assert "films 50.0%" in out
    code, out, error = run_command(capsys, *words, "--seeds", 2)
    assert (code, "cannot be combined with" in error) == (2, True)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(table), encoding="utf-8")
    code, out, error = run_command(capsys, "finetune", "--config", "run.yaml", "--out", "run")
    assert code == 0, error
    assert "validation: average " in out
    code, out, error = run_command(capsys, "classify", "run/model", REVIEWS[0]["text"], "--task", "films", "--as-json")
    assert code == 0, error
    assert json.loads(out)["label"] in ("no", "yes")
    code, out, error = run_command(capsys, "classify", "run/model", REVIEWS[0]["text"])
    assert code == 2
    assert "--task films" in error
    assert "task='films'" not in error
    code, out, error = run_command(capsys, "evaluate", "run/model", "--data", "same.tsv", "--task", "same", "--as-json")
    assert code == 0, error
    assert json.loads(out)["examples"] == len(SAME)
