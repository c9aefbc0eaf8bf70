"""formers score with a language model, texts that are empty, notes, and progress that is told while it reads."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import warnings

import pytest

import formers
from formers import registry
from formers.cli.common import summarise_warnings
from formers.cli.main import main
from formers.task import Task
from tests.command_line import run_command

LINES = ["the cat sat on the mat and the dog sat on the log", "안녕하세요 여러분 오늘은 날씨가 좋습니다"] * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("models") / "gpt2", registry.train_tokenizer("gpt2", LINES, 280)
    f = formers.build(
        "gpt2", vocab=len(tokenizer), dim=16, layers=1, heads=2, bos=tokenizer.id("eos"), eos=tokenizer.id("eos")
    )
    f.tokenizer = tokenizer
    formers.save(f, folder)
    return folder


def test_a_language_model_scores_texts(capsys, model):
    with contextlib.suppress(SystemExit):
        main(["score", str(model), LINES[0], LINES[1]])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    said = formers.load(model).score(LINES[:2])
    assert [row["total"] for row in rows] == pytest.approx([one.total_log_prob for one in said])
    assert [row["perplexity"] for row in rows] == pytest.approx([one.perplexity for one in said])


def test_progress_has_one_form(model):
    f, told = formers.load(model), []
    f.score(LINES, tell=lambda *what: told.append(what))
    f.embed(LINES, tell=lambda *what: told.append(what))
    assert {what for what, *_ in told} == {"likelihoods", "reading"}
    assert all(0 < done <= of == 8 and detail == "texts" for _, done, of, detail in told)


def test_an_empty_text(capsys, model):
    code, out, err = run_command(capsys, "score", model, "")
    assert (code, out) == (2, "")  # NaN is no JSON
    assert "text 1 is empty" in err
    how = ("--temperature", "0", "--max-new-tokens", "5", "--min-new-tokens", "5")
    said = formers.load(model).generate("", 5, temperature=0, min_new_tokens=5)
    assert said.strip()
    assert run_command(capsys, "generate", model, "", *how)[1] == said + "\n"  # as in Python
    assert json.loads(run_command(capsys, "generate", model, "", *how, "--as-json")[1]) == {
        "prompt": "",
        "texts": [said],
    }


def test_one_note_in_one_line_stands_for_all_of_its_kind(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    with summarise_warnings():
        for size in (1_077, 82, 82):
            warnings.warn(f"a prompt of {size:,} tokens is too long, and this note is no short one", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert capsys.readouterr().err.splitlines() == [
        "formers: note: a prompt of 1,077 tokens is too long, and this note is no short one (2 more like this)",
        "formers: note: something else",
    ]


def test_a_table_with_labels_has_texts(model, tmp_path):
    (tmp_path / "trec.tsv").write_text("text\tlabel\n" + "".join(f"{line}\t0\n" for line in LINES), encoding="utf-8")
    f = formers.load(model)
    assert f.evaluate(tmp_path / "trec.tsv").metrics == f.evaluate([{"text": line} for line in LINES]).metrics


def test_a_model_for_something_else(model):
    f = formers.load(model)
    f.task = Task(name="translate", kind="text").to_dict()
    with pytest.warns(UserWarning, match="trained to translate, not to summarise"):
        f.summarise(LINES[0], max_new_tokens=2)


def test_as_a_module(tmp_path):
    found = subprocess.run([sys.executable, "-m", "formers", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("formers ")
