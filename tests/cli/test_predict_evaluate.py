"""formers evaluate with --shots and --suite, and formers synthetic: what is printed, written and refused."""

from __future__ import annotations

import contextlib
import json

import pytest

import formers
from formers import registry
from formers.cli.main import main

LINES = ["the cat sat on the mat and the dog sat on the log", "안녕하세요 여러분 오늘은 날씨가 좋습니다"] * 4
ROWS = [("the cat sat", 1), ("the dog sat", 0), ("on the mat", 1), ("on the log", 0), ("여러분", 1), ("오늘은", 0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A language model, and a folder of classifiers for two tasks of GLUE beside the files of one."""
    root = tmp_path_factory.mktemp("models")
    for name, family, options in (
        ("gpt2", "gpt2", {}), ("glue/cola", "bert", {"head": "classify", "labels": ["0", "1"]}),
        ("glue/RTE", "bert", {"head": "classify", "labels": ["entailment", "not_entailment"]}),
    ):  # fmt: skip
        tokenizer = registry.train_tokenizer(family, LINES, 280)
        f = formers.build(family, vocab=len(tokenizer), dim=16, layers=1, heads=2, context=128, **options)
        f.tokenizer = tokenizer
        formers.save(f, root / name)
    (root / "data.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS))
    cola = root / "files" / "CoLA"
    cola.mkdir(parents=True)
    (cola / "dev.tsv").write_text("".join(f"x\t{label}\t\t{text}\n" for text, label in ROWS), encoding="utf-8")
    return root


def run(capsys, *words):
    code = 0
    with contextlib.suppress(SystemExit):
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
            raise
    out, err = capsys.readouterr()
    return code, out, err


def test_shots(capsys, folder):
    data = folder / "data.tsv"
    words = ("--shots", "0,2", "--label-words", "0=bad,1=good", "--draws", 2, "--template", "{text}\\nso: {answer}")
    _, out, _ = run(capsys, "evaluate", folder / "gpt2", data, *words)
    lines = out.splitlines()
    assert lines[0].startswith("classify, 6 examples (text = column 'text'")
    assert lines[1:4] == ["a prompt:", "  | the cat sat", "  | so: "]
    assert lines[4].split() == ["shots", "draws", "accuracy", "f1_macro", "accuracy_token", "accuracy_ratio"]
    assert lines[5].split()[:2] == ["0", "1"]
    assert lines[6].split()[:2] == ["2", "2"]
    assert lines[6].count("±") == 4
    assert lines[7] == "the most frequent label is right in 0.5000"
    _, out, _ = run(capsys, "evaluate", folder / "gpt2", "--data", data, *words, "--as-json")
    result = json.loads(out)
    found = formers.load(folder / "gpt2").evaluate(
        data, shots=[0, 2], label_words={"0": "bad", "1": "good"}, draws=2, template="{text}\nso: {answer}"
    )
    assert [one["draws"] for one in result["scores"]] == [one.draws for one in found.scores]
    _, _, err = run(capsys, "evaluate", folder / "gpt2", data, "--shots", "1", "--draws", 1)
    assert "give them words: --label-words 0=WORD,1=WORD" in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--template", "{text} {answer}"], "--template goes with --shots"),
        (["--shots", "x"], "shots are numbers from 0 to 1,000"),
        (["--shots", "9", "--label-words", "0=a,1=b"], "5 examples to draw 9 shots from"),
        (["--tasks", "CoLA"], "--tasks goes with --suite"),
        (["--suite", "glue", "--shots", "1"], "--suite knows its tasks and columns"),
        (["--suite", "glue", "--stride", "4"], "--suite reads its files and texts in its own way"),
        (["--suite", "glue", "--encoding", "cp949"], "--suite reads its files and texts in its own way"),
        (["--shots", "1", "--stride", "4"], "--stride and --memory-length are for texts"),
        (["--suite", "glue"], "this is one model, and glue needs one for each task"),
    ],
)
def test_refusals(capsys, folder, words, message):
    code, _, err = run(capsys, "evaluate", folder / "gpt2", folder / "data.tsv", *words)
    assert code == 2
    assert message in " ".join(err.split())


def test_a_suite_names_the_model_that_is_not_there_or_has_another_task(capsys, folder, tmp_path):
    where = tmp_path / "dev-v1.1.json"
    where.write_text(json.dumps({"data": [{"paragraphs": [{"context": "Anna lives in Seoul.", "qas": [
        {"id": "1", "question": "Where?", "answers": [{"text": "Seoul", "answer_start": 14}]}]}]}]}))  # fmt: skip
    for model, message in (
        (folder / "nowhere", "nowhere: there is no such folder. Give a model"),
        ("formers/nothing", "no model 'formers/nothing' comes with formers"),
        ("formers/bert-mini", "and the task is answer"),
    ):
        code, _, err = run(capsys, "evaluate", model, tmp_path, "--suite", "squad")
        assert (code, message in " ".join(err.split())) == (2, True)


def test_a_suite(capsys, folder, tmp_path):
    words = ("--suite", "glue", "--out", tmp_path / "out")
    _, out, _ = run(capsys, "evaluate", folder / "glue", folder / "files", *words)
    lines = out.splitlines()
    assert lines[0].split() == ["task", "examples", "score", "metrics"]
    assert lines[1].split()[:2] == ["CoLA", "6"]
    assert "missing: RTE (no file RTE/dev.tsv)" in lines
    assert lines[-2].startswith("PARTIAL average of 1 task, not")
    assert (tmp_path / "out" / "CoLA.tsv").read_text().count("\n") == 7
    words = ("--suite", "glue", "--tasks", "cola", "--as-json")
    _, out, _ = run(capsys, "evaluate", folder / "glue" / "cola", folder / "files", *words)
    result = json.loads(out)
    assert (result["partial"], result["missing"]) == (False, {})
    texts = [text for text, _ in ROWS]
    guesses = [one.label for one in formers.load(folder / "glue" / "cola").classify(texts)]
    want = formers.evaluation.metrics.matthews([str(label) for _, label in ROWS], guesses)
    assert result["average"] == pytest.approx(want)


def test_a_suite_that_is_fine_tuned(capsys, folder, tmp_path):
    files = tmp_path / "GLUE" / "CoLA"
    files.mkdir(parents=True)
    for split in ("train", "dev"):
        (files / f"{split}.tsv").write_text("".join(f"x\t{label}\t\t{text}\n" for text, label in ROWS * 3))
    (tmp_path / "tune.yaml").write_text("tune: {epochs: 1}\n")
    words = ("evaluate", folder / "gpt2", tmp_path / "GLUE", "--suite", "glue", "--tasks", "CoLA", "--finetune-to",
             tmp_path / "runs", "--config", tmp_path / "tune.yaml", "--as-json")  # fmt: skip
    _, out, err = run(capsys, *words)
    assert "fine-tuning to CoLA: 18 examples" in err
    assert json.loads(out)["tasks"][0]["examples"] == 18
    _, again, err = run(capsys, *words)  # what is there is kept
    assert "fine-tuning" not in err
    assert again == out


def test_synthetic(capsys, tmp_path):
    _, out, _ = run(capsys, "synthetic")
    assert any(line.split()[:2] == ["add2", "2D+"] for line in out.splitlines())
    _, out, _ = run(capsys, "synthetic", "add2", "reversal", "--out", tmp_path, "--language", "ko", "--count", 5)
    assert out.split() == [str(tmp_path / "add2.ko.tsv"), str(tmp_path / "reversal.ko.tsv")]
    assert (tmp_path / "add2.ko.tsv").read_text(encoding="utf-8").count("\n") == 6
    code, _, err = run(capsys, "synthetic", "add2")
    assert (code, "there is no folder to write to" in err) == (2, True)
