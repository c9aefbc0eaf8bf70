"""formers finetune as typed in a terminal: its first wrong steps, its dry run and what it says."""

from __future__ import annotations

import json

import pytest

from formers.training.runs import Folder
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
