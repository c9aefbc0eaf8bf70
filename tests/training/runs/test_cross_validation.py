"""Which examples are for training and which for evaluation: folds, seeds, sweeps, validation parts, resumed runs."""

from __future__ import annotations

import json

import pytest
import torch

import formers
from formers.errors import Error
from formers.tasks.examples import read_examples
from formers.training.runs.cross_validation import compare_settings, expand_sweep, split_fold
from formers.training.runs.splits import hold_out, sample_examples
from tests.training.toy_runs import BERT_SIZES, REVIEWS, finetune_toy


def test_folds_seeds_and_sweeps(tmp_path):
    assert expand_sweep("lr=1e-3,2e-3 batch_size=8") == [
        {"train.lr": 1e-3, "tune.batch_size": 8},
        {"train.lr": 2e-3, "tune.batch_size": 8},
    ]
    given = {"tune.epochs": 1, "model.embed": 16, "model.filters": 8}
    made = compare_settings("textcnn", REVIEWS, folds=3, sweep="lr=1e-3,1e-2", out=tmp_path, overrides=given)
    assert [len(trial.runs) for trial in made.trials] == [3, 3]
    assert "±" in (tmp_path / "report.md").read_text(encoding="utf-8")
    files = [tmp_path / f"lr=0.001-seed0-fold{i}" / "data" / "test.jsonl" for i in (1, 2, 3)]
    held = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted(row["text"] for row in held) == sorted(row["text"] for row in REVIEWS), "each row is tested once"
    again = compare_settings("textcnn", REVIEWS, folds=3, sweep="lr=1e-3,1e-2", out=tmp_path, overrides=given)
    assert again == made, "runs that are done are read"


def test_labels_of_the_test_are_looked_at_before_anything_is_learned(tmp_path):
    odd = [{"text": "a film", "label": "new"}]
    with pytest.raises(Error, match="the test examples: the label 'new' was not seen in training"):
        finetune_toy(test=odd, out=tmp_path / "a")
    with pytest.raises(Error, match="the test examples: the label 'new' was not seen in training"):
        finetune_toy(
            "t5", test=odd, label_as_text=True, sizes={"dim": 32, "layers": 1, "heads": 2, "ff": 64}, out=tmp_path / "b"
        )
    assert not list(tmp_path.glob("*/run.json")), "the run can begin again with other examples"
    few = [{"text": "so so", "label": label} for label in ("yes", "no")] * 4
    with pytest.raises(Error, match="not seen in training"):
        finetune_toy("bert", rows=few, valid=few, test=odd, sizes=BERT_SIZES, out=tmp_path / "c")
    first = finetune_toy("bert", sizes=BERT_SIZES, out=tmp_path / "c")
    other = finetune_toy("bert", sizes=BERT_SIZES, out=tmp_path / "d").former
    assert first.former.tokenizer.fingerprint == other.tokenizer.fingerprint
    assert formers.finetune(out=tmp_path / "c", resume=True).valid == first.valid, "nothing of the refused try is read"


SMALL = {"tune.epochs": 1, "model.embed": 16, "model.filters": 8}


def test_folds_know_the_labels_of_all(tmp_path):
    rows = [*REVIEWS, {"text": "nobody knows", "label": "rare"}]
    made = compare_settings("textcnn", rows, folds=3, out=tmp_path, overrides=SMALL)
    assert len(made.trials[0].runs) == 3
    for run in tmp_path.glob("seed0-fold*"):
        assert formers.load(run / "model").labels == ("no", "rare", "yes")
        assert formers.finetune(out=run, resume=True).former.labels == ("no", "rare", "yes")
    assert compare_settings("textcnn", rows, folds=3, out=tmp_path, overrides=SMALL) == made, (
        "a run that went on is the same"
    )


def test_seeds_begin_with_the_one_that_is_given(tmp_path):
    def seeds(name):
        runs = sorted((tmp_path / name).glob("*/run.json"))
        return [json.loads(run.read_text())["config"]["train"]["seed"] for run in runs]

    compare_settings("textcnn", REVIEWS, seeds=2, out=tmp_path / "a", overrides={**SMALL, "train.seed": 7})
    assert seeds("a") == [7, 8]
    compare_settings("textcnn", REVIEWS, sweep="seed=3,5", out=tmp_path / "b", overrides=SMALL)
    assert seeds("b") == [3, 5]
    compare_settings("textcnn", REVIEWS, out=tmp_path / "c", overrides=SMALL, config={"train": {"seed": 4}})
    assert seeds("c") == [4]
    for how in ({"sweep": "seed=a", "overrides": SMALL}, {"overrides": {**SMALL, "train.seed": "a"}}):
        with pytest.raises(Error, match=r"train\.seed"):
            compare_settings("textcnn", REVIEWS, out=tmp_path / "d", **how)
    with pytest.raises(Error, match="seeds and a sweep over seed contradict each other"):
        compare_settings("textcnn", REVIEWS, seeds=2, sweep="seed=3,5", out=tmp_path / "d", overrides=SMALL)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"overrides": {**SMALL, "tune.epochs": 2}}, "the run here has tune.epochs 1.0, not 2"),
        ({"overrides": {**SMALL, "train.lr": 0.1}}, r"the run here has train.lr 0.001, not 0.1"),
        ({"overrides": {**SMALL, "model.filters": 9}}, "the run here has model.filters 8, not 9"),
        ({"train": REVIEWS[:-1]}, "the run here has other train examples"),
        ({"test": REVIEWS[:5]}, "the run here has other test examples"),
    ],
)
def test_old_results_are_not_shown_as_new(tmp_path, change, match):
    asked = {"train": REVIEWS, "overrides": SMALL, "out": tmp_path}
    compare_settings("textcnn", **asked)
    compare_settings("textcnn", **asked)
    with pytest.raises(Error, match=match):
        compare_settings("textcnn", **{**asked, **change})


def test_a_run_continues_without_the_examples_that_it_was_given(tmp_path):
    """Under names of their own, fewer than there were, and with a column whose name says something else."""
    frame = pytest.importorskip("pandas").DataFrame(
        [
            {"held out": row["text"] + ("\u2028" if i % 2 else ""), "class": row["label"]}
            for i, row in enumerate(REVIEWS)
        ]
    )
    given = {"columns": {"text": "held out", "label": "class"}, "limit": 40, "epochs": 3}
    whole = finetune_toy("textcnn", frame, None, sizes={"embed": 16, "filters": 8}, out=tmp_path / "whole", **given)

    def hook(line):
        if line["step"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune_toy(
            "textcnn", frame, None, sizes={"embed": 16, "filters": 8}, out=tmp_path / "cut", hook=hook, **given
        )
    again = formers.finetune(out=tmp_path / "cut", resume=True)
    assert again.valid == whole.valid
    for a, b in zip(whole.former.model.parameters(), again.former.model.parameters(), strict=True):
        assert torch.equal(a, b)


QUESTIONS = [
    {"question": f"who is number {i}?", "context": f"This is text {i % 30}. Anna is here.", "answers": ["Anna"]}
    for i in range(150)
]


def test_no_context_is_learned_from_and_asked_about():
    whole = read_examples(QUESTIONS)
    parts = hold_out(whole, 0.1)
    learnt, asked = ({row["context"] for row in parts[name].rows} for name in ("train", "valid"))
    assert not learnt & asked
    assert len(parts["valid"].rows) == 15
    assert "none of their 3 contexts is trained on" in parts["valid"].summary
    folds = [split_fold(whole, 4, i) for i in range(4)]
    for train, test in folds:
        assert not {row["context"] for row in train.rows} & {row["context"] for row in test.rows}
        assert len(train) + len(test) == 150
    assert sorted(len(test) for _, test in folds) == [35, 35, 40, 40]
    one = read_examples([{**row, "context": "Anna"} for row in QUESTIONS])
    assert len(hold_out(one, 0.1)["valid"]) == 15, "of one context there is nothing else to do"
    with pytest.raises(Error, match="30 contexts cannot be split into 40 folds"):
        split_fold(whole, 40, 0)


def test_choices_about_one_text_stay_together():
    rows = [{"text": f"story {i // 4}", "choices": [f"a{i}", f"b{i}"], "label": i % 2} for i in range(120)]
    parts = hold_out(read_examples(rows), 0.1)
    assert not {row["text"] for row in parts["train"].rows} & {row["text"] for row in parts["valid"].rows}
    same = [{**row, "text": f"choose {i % 3}"} for i, row in enumerate(rows)]
    assert len(hold_out(read_examples(same), 0.1)["valid"]) == 12, "three texts for all are instructions"


def test_a_limit_takes_of_everything(tmp_path):
    rows = sorted(REVIEWS, key=lambda row: row["label"])
    some = sample_examples(read_examples(rows), 20)
    labels = [row["label"] for row in some.rows]
    assert 5 <= labels.count("yes") <= 15
    assert labels == sorted(labels), "in their order"
    assert some == sample_examples(read_examples(rows), 20)
    assert len(sample_examples(read_examples(rows), 100)) == len(rows)
