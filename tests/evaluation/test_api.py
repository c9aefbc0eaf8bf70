"""Measures of language models: perplexity by hand, minimal pairs, choices and last words where the answer is known."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

import formers
from formers import Error
from formers.evaluation.api import evaluate_cloze, evaluate_pairs, evaluate_perplexity
from formers.evaluation.likelihood import compute_likelihood
from tests.command_line import run_command
from tests.small_models import TEXTS, build_language_model, build_small


@pytest.fixture(scope="module")
def gpt():
    return build_language_model("gpt2")


def teach_text(f, text, steps=60):
    """Teach a small decoder one text by heart."""
    front = f.tokenizer.id("bos") if f.tokenizer.id("bos") is not None else f.config.bos
    ids = torch.tensor([[front, *f.tokenizer.encode(text, special=False)]])
    best = torch.optim.Adam(f.model.parameters(), 0.02)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(f.logits(ids[:, :-1])[0], ids[0, 1:])
        best.zero_grad()
        loss.backward()
        best.step()
    return f


@pytest.fixture(scope="module")
def taught_model():
    return teach_text(build_language_model("gpt2"), TEXTS[0])


def test_perplexity_by_hand(gpt):
    found = evaluate_perplexity(gpt, TEXTS[:3])
    ones = compute_likelihood(gpt, TEXTS[:3])
    nats, tokens = -sum(one.total_log_prob for one in ones), sum(len(one.log_probs) for one in ones)
    assert next(iter(found)) == "perplexity"
    assert found["perplexity"] == pytest.approx(math.exp(nats / tokens))
    words = sum(len(text.split()) for text in TEXTS[:3])
    assert found["perplexity_word"] == pytest.approx(math.exp(nats / words))
    assert found["bits_byte"] == pytest.approx(nats / found["bytes"] / math.log(2))
    assert found["bytes"] == sum(len(one.text.encode()) for one in ones)


def test_what_was_learned_is_likelier(taught_model):
    text = TEXTS[0]
    assert evaluate_perplexity(taught_model, [text])["perplexity"] < 2
    assert evaluate_pairs(taught_model, [(text, text.replace("cat", "bank")), (text, "mat the on sat")]) == {
        "accuracy": 1.0, "accuracy_token": 1.0,
    }  # fmt: skip
    assert evaluate_pairs(taught_model, [(text, text)])["accuracy"] == 0  # a draw is not right
    found = taught_model.evaluate([{"good": text, "bad": "closed. was bank the"}])
    assert (found.kind, found.metrics["accuracy"]) == ("pairs", 1)
    rows = [{"text": "The cat sat on", "choices": ["the mat, and", "closed mat the"], "label": 0}]
    found = taught_model.evaluate(rows)
    assert (found.kind, found.metrics["accuracy"]) == ("choices", 1)
    rows = [{"text": "The cat sat on", "choices": ["closed mat", "the"], "label": 0}]
    assert taught_model.evaluate(rows).metrics["accuracy"] == 0
    assert taught_model.evaluate([text]).kind == "perplexity"
    assert evaluate_cloze(taught_model, [text])["accuracy"] == 1
    assert evaluate_cloze(taught_model, [text, "The cat sat on the bank"])["accuracy"] == 0.5
    assert taught_model.score(text).perplexity == pytest.approx(evaluate_perplexity(taught_model, [text])["perplexity"])


def test_masked_and_paired():
    bert, t5 = build_language_model("bert"), build_language_model("t5")
    assert bert.evaluate(TEXTS[:2]).metrics["perplexity"] > 1
    rows = [{"text": "x", "choices": ["the mat", "강을"], "label": 1}]
    assert bert.evaluate(rows).kind == t5.evaluate(rows).kind == "choices"
    assert 0 <= evaluate_cloze(bert, [TEXTS[0]])["accuracy"] <= 1
    found = t5.evaluate([{"en": "The cat", "ko": "배를"}])
    want = compute_likelihood(t5, ("The cat", "배를"))
    assert found.metrics["perplexity"] == pytest.approx(want.perplexity)
    with pytest.raises(Error, match="last word"):
        t5.evaluate([{"en": "The cat", "ko": "배를"}], "cloze")


def test_the_command(taught_model, tmp_path, capsys):
    formers.save(taught_model, tmp_path / "model")
    (tmp_path / "pairs.jsonl").write_text(
        json.dumps({"sentence_good": TEXTS[0], "sentence_bad": "mat on"}) + "\n", encoding="utf-8"
    )
    code, out, _ = run_command(capsys, "evaluate", tmp_path / "model", "--data", tmp_path / "pairs.jsonl", "--as-json")
    assert (code, json.loads(out)["accuracy"]) == (0, 1.0)
    (tmp_path / "text.txt").write_text(TEXTS[0] + "\n", encoding="utf-8")
    code, out, _ = run_command(capsys, "evaluate", tmp_path / "model", "--data", tmp_path / "text.txt", "--stride", "8")
    assert code == 0
    assert "perplexity" in out
    assert re.search(r"^tokens +\d+$", out, re.MULTILINE), "a count is an integer"
    code, _, err = run_command(
        capsys, "evaluate", tmp_path / "model", "--data", tmp_path / "text.txt", "--kind", "pairs"
    )
    assert code == 2
    assert "which column is good" in err


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_command_gives_what_the_page_defines(language, tmp_path, monkeypatch, capsys):
    """The reference implementation of the page on evaluation, run as it is printed."""
    page = (Path(__file__).parents[2] / "docs" / language / "evaluation.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "while done" in block]
    assert 'load("formers/gpt2-mini")' in code
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "docs", "exec"), names)
    (tmp_path / "text.txt").write_text(names["text"] + "\n", encoding="utf-8")
    capsys.readouterr()
    words = ("--stride", str(names["stride"]), "--as-json")
    _, out, _ = run_command(capsys, "evaluate", "formers/gpt2-mini", "--data", "text.txt", *words)
    found = json.loads(out)
    assert '"tokens": ' + str(names["done"]) + "," in out
    assert found["perplexity"] == pytest.approx(math.exp(names["nats"] / names["done"]), rel=1e-5)
    assert found["loss"] == pytest.approx(names["nats"] / names["done"], rel=1e-5)
    assert 0 <= found["accuracy"] <= 1
    assert not {"nats", "right"} & {*found}, "one term for each thing"


def test_a_fine_tuned_model_by_its_task():
    f = build_small("bert", "classify", labels=["a", "b"], vocab=400, context=40)
    f.tokenizer = build_language_model("bert").tokenizer
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, "ababa", strict=True)]
    guesses = [said.label for said in f.classify(TEXTS)]
    found = f.evaluate(rows)
    assert (found.kind, found.num_examples) == ("classify", 5)
    assert found.metrics["accuracy"] == pytest.approx(sum(a == b for a, b in zip(guesses, "ababa", strict=True)) / 5)


def test_refusals(gpt):
    for call, word in (
        (lambda: gpt.evaluate(TEXTS, "taste"), "no evaluation"),
        (lambda: gpt.evaluate([{"good": "x", "bad": ""}]), "row 1"),
        (lambda: evaluate_cloze(gpt, ["one"]), "fewer than two"),
        (lambda: gpt.evaluate([{"text": "x", "label": "1"}], "task"), "does not classify"),
    ):
        with pytest.raises(Error, match=word):
            call()
