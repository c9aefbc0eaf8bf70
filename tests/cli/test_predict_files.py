"""The verbs of fine-tuned models read files as all verbs do: columns of tables, words of conll files, lines of text.
They print words on a terminal, and JSON by a pipe."""

from __future__ import annotations

import io
import json
import sys

import pytest

import formers
from formers import registry
from formers.task import Task
from tests.command_line import run_command

LINES = ["the cat sat on the mat and the dog sat on the log", "안녕하세요 여러분 오늘은 날씨가 좋습니다"] * 4
ROWS = [("the cat sat on the mat", "the dog sat", "0"), ("안녕하세요 여러분", "오늘은 날씨가 좋습니다", "1")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A classifier, a tagger, a model of numbers and one of answers, as they are before training."""
    folder, tokenizer = tmp_path_factory.mktemp("models"), registry.train_tokenizer("bert", LINES, 280)
    for name, head, labels in (("classify", "classify", ["bad", "good"]), ("tag", "tag", ["O", "B"]),
                               ("regress", "classify", ["score"]), ("answer", "answer", None)):  # fmt: skip
        f = formers.build("bert", head=head, labels=labels, vocab=len(tokenizer), dim=16, layers=1, heads=2, ff=32)
        f.tokenizer = tokenizer
        formers.save(f, folder / name)
    return folder


@pytest.fixture
def files(tmp_path):
    (tmp_path / "one.tsv").write_text("text\tlabel\n" + "".join(f"{a}\t{c}\n" for a, _, c in ROWS), encoding="utf-8")
    two = "id\tpremise\thypothesis\tlabel\n" + "".join(f"7\t{a}\t{b}\t{c}\n" for a, b, c in ROWS)
    (tmp_path / "two.tsv").write_text(two, encoding="utf-8")
    lines = [json.dumps({"said": a, "answer": b, "label": c}) for a, b, c in ROWS]
    (tmp_path / "odd.jsonl").write_text("\n".join([*lines, json.dumps({"said": "", "answer": "x", "label": "1"})]))
    (tmp_path / "gold.conll").write_text("the\tO\ncat\tB\n\n여러분 B\n", encoding="utf-8")
    (tmp_path / "pairs.txt").write_text("".join(f"{a}\t{b}\n" for a, b, _ in ROWS), encoding="utf-8")
    (tmp_path / "old.txt").write_text("안녕하세요\n", encoding="cp949")
    return tmp_path


def run_and_parse(capsys, *words):
    code, out, err = run_command(capsys, *words)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


ASKED = {
    "one.tsv": [a for a, _, _ in ROWS],  # neither the header nor the gold label goes to the model
    "two.tsv": [(a, b) for a, b, _ in ROWS],
    "pairs.txt": [(a, b) for a, b, _ in ROWS],
}


@pytest.mark.parametrize("name", ASKED)
def test_texts_and_pairs_of_files(name, models, files, capsys):
    found = run_and_parse(capsys, "classify", models / "classify", "--file", files / name)
    want = formers.load(models / "classify").classify(ASKED[name])
    assert [row["probabilities"] for row in found] == [pytest.approx(one.probabilities) for one in want]
    numbers = run_and_parse(capsys, "score", models / "regress", "--file", files / name)
    assert numbers == pytest.approx(formers.load(models / "regress").score(ASKED[name]))


def test_columns_are_named(models, files, capsys):
    command = ("classify", models / "classify", "--file", files / "odd.jsonl")
    code, _, err = run_command(capsys, *command)
    assert (code, "which column is the text" in err, "--column ONE,TWO" in err) == (2, True, True)
    f = formers.load(models / "classify")
    for column, want in (("said", [a for a, _, _ in ROWS]), ("said,answer", [(a, b) for a, b, _ in ROWS])):
        code, out, err = run_command(capsys, *command, "--column", column)
        *found, gap = [json.loads(line) for line in out.splitlines()]
        assert [one["probability"] for one in found] == pytest.approx([one.probability for one in f.classify(want)])
        assert gap is None
        assert "1 without text, answered by null" in err
    assert "no column 'x'" in run_command(capsys, *command, "--column", "x")[2]
    assert run_command(capsys, *command, "--column", "said,answer", "--other", "x")[0] == 2
    assert run_and_parse(capsys, "classify", models / "classify", "--file", files / "old.txt", "--encoding", "cp949")
    assert run_command(capsys, "classify", models / "classify", "--file", files / "gold.conll")[0] == 2


def test_a_pipe_is_read(models, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat sat\n\nthe dog\tsat\n"))
    found = run_and_parse(capsys, "classify", models / "classify", "--file", "-")
    assert found.pop(1) is None, "answers stand beside their questions"
    want = formers.load(models / "classify").classify(["the cat sat", ("the dog", "sat")])
    assert [row["probability"] for row in found] == pytest.approx([one.probability for one in want])


def test_a_tab_is_a_space_to_who_knows_no_pairs(models, capsys, tmp_path):
    former = formers.load(models / "classify")
    for pair, want in ((False, "the dog\tsat"), (True, ("the dog", "sat")), (None, ("the dog", "sat"))):
        former.task = Task(takes_pairs=pair, length=32).to_dict()
        formers.save(former, tmp_path / str(pair))
        (found,) = run_and_parse(capsys, "classify", tmp_path / str(pair), "the dog\tsat")
        assert found["probability"] == pytest.approx(former.classify(want).probability)
    (tmp_path / "gaps.txt").write_text("the cat\n\nthe dog\n", encoding="utf-8")
    assert [one is None for one in run_and_parse(capsys, "tag", models / "tag", "--file", tmp_path / "gaps.txt")] == [
        0,
        1,
        0,
    ]
    assert run_command(capsys, "tag", models / "tag", " ")[0] == 2


def test_words_of_conll_files_and_lists(models, files, capsys):
    rows = run_and_parse(capsys, "tag", models / "tag", "--file", files / "gold.conll")
    assert [[w["word"] for w in row] for row in rows] == [["the", "cat"], ["여러분"]]
    (files / "words.jsonl").write_text(json.dumps({"words": ["don't", "go"]}) + "\n")
    (row,) = run_and_parse(capsys, "tag", models / "tag", "--file", files / "words.jsonl")
    assert [w["word"] for w in row] == ["don't", "go"]
    rows = run_and_parse(capsys, "tag", models / "tag", "--file", files / "one.tsv")
    assert [" ".join(w["word"] for w in row) for row in rows] == [a for a, _, _ in ROWS]
    assert "which column" in run_command(capsys, "tag", models / "tag", "--file", files / "two.tsv")[2]


def test_a_context_is_no_set_of_questions(models, files, capsys):
    asked = {"id": "7", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}
    squad = {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": "the cat", "qas": [asked]}]}]}
    (files / "squad.json").write_text(json.dumps(squad))
    (files / "book.csv").write_text("text,year\nthe cat,1\nsat,2\n")
    code, out, err = run_command(capsys, "answer", models / "answer", "Who?", "--file", files / "squad.json")
    assert (code, out, "holds questions with contexts of their own" in err) == (2, "", True)
    found = run_and_parse(capsys, "answer", models / "answer", "Who?", "--file", files / "book.csv")
    want = formers.load(models / "answer").answer("Who?", "the cat\nsat")
    assert (found[0]["start"], found[0]["text"]) == (want.start, want.text)


def test_words_on_a_terminal_and_json_by_a_pipe(models, capsys, monkeypatch):
    command = ("classify", models / "classify", "the cat sat", "\x1b[2Jthe dog")
    label = run_and_parse(capsys, *command)[0]["label"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, out, _ = run_command(capsys, *command)
    first, second = out.splitlines()
    assert first.split()[1:] == [label, "the", "cat", "sat"]
    assert first.split()[0].endswith("%")
    assert "\x1b" not in second
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run_and_parse(capsys, *command, "--as-json")[0]["label"] == label
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "the  " in run_command(capsys, "tag", models / "tag", "the cat")[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "the cat | the dog" in run_command(capsys, "score", models / "regress", "the cat", "--other", "the dog")[1]
