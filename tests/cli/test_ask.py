"""formers score with a language model, and progress that is told while it reads."""

from __future__ import annotations

import contextlib
import json

import pytest

import formers
from formers.cli.main import main
from formers.text import trainers

LINES = ["the cat sat on the mat and the dog sat on the log", "안녕하세요 여러분 오늘은 날씨가 좋습니다"] * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("models") / "gpt2", trainers.train("gpt2", LINES, 280)
    f = formers.build("gpt2", vocab=len(tokenizer), dim=16, layers=1, heads=2, eos=tokenizer.id("eos"))
    f.tokenizer = tokenizer
    formers.save(f, folder)
    return folder


def test_a_language_model_scores_texts(capsys, model):
    with contextlib.suppress(SystemExit):
        main(["score", str(model), LINES[0], LINES[1]])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    said = formers.load(model).score(LINES[:2])
    assert [row["total"] for row in rows] == pytest.approx([one.total for one in said])
    assert [row["perplexity"] for row in rows] == pytest.approx([one.perplexity for one in said])


def test_progress_has_one_form(model):
    f, told = formers.load(model), []
    f.score(LINES, tell=lambda *what: told.append(what))
    f.embed(LINES, tell=lambda *what: told.append(what))
    assert {what for what, *_ in told} == {"likelihoods", "reading"}
    assert all(0 < done <= of == 8 and detail == "texts" for _, done, of, detail in told)
