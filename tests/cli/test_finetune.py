"""formers finetune as typed in a terminal: its first wrong steps, its dry run and what it says."""

from __future__ import annotations

import pytest

from formers.errors import Error
from formers.training.pretrain import claim_run_folder
from tests.cli.test_pretrain import run
from tests.training.test_finetune import ROWS

TINY = ["--model.dim", 16, "--model.layers", 1, "--model.heads", 2, "--model.ff", 32, "--data.pieces", 300]
QUICK = [*TINY, "--epochs", 1, "--batch", 16]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of one's own, with examples in it."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{row['text']}\t{row['label']}" for row in ROWS]
    (tmp_path / "reviews.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "odd.tsv").write_text("\n".join(["document\tkind", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "글.txt").write_text("".join(f"{row['text']}\n" for row in ROWS), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("more", [[], ["--folds", 3], ["--seeds", 2]])
@pytest.mark.parametrize(
    ("file", "columns"), [("odd.tsv", "There are 'document', 'kind'"), ("글.txt", "There are 'text'")]
)
def test_plain_text_is_learnt_only_if_it_is_asked_for(capsys, here, file, columns, more):
    code, _, error = run(capsys, "finetune", "bert", "--train", file, *more)
    assert code == 2
    assert columns in error
    assert "--task lm" in error
    assert ("--columns 'text=document label=kind'" in error) == (file == "odd.tsv")
    assert not (here / "runs").exists(), "a failed command leaves nothing behind"


@pytest.mark.parametrize(
    "words",
    [
        ["finetune", "bert", "--train", "nothing.tsv"],
        ["finetune", "bert", "--train", "reviews.tsv", "--tune.freeze", -5],
        ["finetune", "seq2seq", "--train", "reviews.tsv"],
        ["finetune", "bert", "--train", "reviews.tsv", "--sweep", "lr=1e-3 freeze=0,-5"],
        ["finetune", "bert", "--train", "reviews.tsv", "--sweep", "lr=1e-3,fast"],
        ["finetune", "bert", "--train", "reviews.tsv", "--folds", 100],
        ["finetune", "nowhere/model", "--task", "lm", "--train", "글.txt"],
        ["pretrain", "gpt2", "--data", "nothing.txt"],
        ["pretrain", "gpt2"],
        ["pretrain", "gpt2", "--data", "reviews.tsv", "--data.column", "kind"],
        ["pretrain", "transformer_xl", "--data", "글.txt", "--train.ramp", 4],
        ["prepare", "nothing.txt", "--tokenizer", "tokenizer", "--out", "runs/store"],
        ["prepare", "글.txt", "--out", "runs/store", "--tokenizer", "nothing"],
        ["prepare", "odd.tsv", "--tokenizer", "tokenizer", "--out", "runs/store", "--column", "nothing"],
        ["prepare", "글.txt", "--tokenizer", "tokenizer", "--out", "runs/store", "--tests", "nothing.txt"],
        ["tokenizer", "train", "bert", "nothing.txt", "--out", "runs/tokenizer"],
        ["export", "nothing", "--out", "runs/exported"],
        ["import", "nothing", "--out", "runs/imported"],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_a_failed_command_leaves_no_folder(capsys, here, words):
    if "tokenizer" in words:
        run(capsys, "tokenizer", "train", "bert", "글.txt", "--size", 200, "--out", "tokenizer")
    code, _, error = run(capsys, *words)
    assert code == 2
    assert error.splitlines()[-1].startswith("formers: ")
    assert "See formers --help" not in error, "the command is a good one"
    assert not (here / "runs").exists(), sorted(map(str, here.rglob("*")))


def fail(path, error, *files):
    """Make a run's folder with some files in it, and fail; the folder."""
    with pytest.raises(type(error)), claim_run_folder(path, "bert") as made:
        raise_after(made, error, files)
    return made


def raise_after(folder, error, files):
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    raise error


def test_two_runs_never_take_the_same_number(here):
    wrong = Error("wrong")
    with claim_run_folder(None, "bert") as one, claim_run_folder(None, "bert") as two:
        assert (one.name, two.name) == ("bert-1", "bert-2")
        assert not fail(None, wrong, "data/store/store.json").exists()
        assert not fail(None, KeyboardInterrupt(), "data/store/begun.json").exists()
        assert fail(None, KeyboardInterrupt(), "data/store/store.json").exists(), "a finished store is worth hours"
        assert fail(None, wrong, "run.json").exists(), "a run that has begun can go on"
    assert fail(one, wrong).exists(), "it was there before"
    assert not fail(here / "a" / "b", wrong).exists()
    assert not (here / "a").exists()
    assert fail(here / "a" / "b", wrong, "data/tokenizer.json").exists(), "a folder that was named keeps its text"


def test_a_result_that_is_not_finite_is_no_model(capsys, here):
    words = ["finetune", "bert", "--train", "reviews.tsv", *QUICK]
    code, out, error = run(capsys, *words, "--lr", 1e38, "--out", "one")
    assert (code, out) == (3, "")
    assert "the validation loss is not finite (2 of 3 steps had a loss or gradient that is not finite)" in error
    assert "--resume and a lower --train.lr" in error
    assert not (here / "one" / "model").exists()
    assert not (here / "one" / "report.html").exists()
    code, out, _ = run(capsys, *words, "--train.lr", 1e-3, "--out", "one", "--resume")
    assert code == 0
    assert (here / "one" / "model").exists()
    code, out, error = run(capsys, *words, "--sweep", "lr=1e38,1e-3", "--out", "two")
    assert code == 3, "but what went well is told"
    assert "lr 0.001" in out
    assert "1 of the runs diverged, and their settings are left out: lr=1e+38-seed0" in error
    assert "lr=1e+38" in (here / "two" / "report.md").read_text()
    assert run(capsys, *words, "--folds", 2, "--lr", 1e38, "--out", "three")[0] == 3
    sizes = [*TINY, "--model.context", 24, "--train.steps", 4, "--train.length", 24, "--train.tokens", 240]
    for share in (0.2, 0.0):
        more = ["--train.lr", 1e38, "--train.warmup", 0, "--data.held_out", share, "--out", f"text{share}"]
        code, _, error = run(capsys, "pretrain", "gpt2", "--data", "글.txt", *sizes, *more)
        assert code == 3
        assert "3 of 4 steps had a loss or gradient that is not finite" in error
        assert not (here / f"text{share}" / "model").exists()
