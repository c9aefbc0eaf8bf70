"""What an error tells one to type can be typed: --column, --encoding, --skip, wherever text is read."""

from __future__ import annotations

import json

import pytest

import formers
from formers import Store
from formers.interop.tokenizer_files import load_tokenizer
from formers.registry import train_tokenizer
from tests.command_line import run_command

ROWS = [(f"title {i}", f"The cat number {i} sat down. Then the dog ran away, number {i * 7}.") for i in range(40)]
KOREAN = [f"{i}번째 영화는 정말 재미있었습니다. 또 보고 싶네요." for i in range(60)]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "two.csv").write_text("name,said\n" + "".join(f'{a},"{b}"\n' for a, b in ROWS), encoding="utf-8")
    (tmp_path / "old.txt").write_text("".join(f"{line}\n" for line in KOREAN), encoding="cp949")
    lines = [json.dumps({"text": text}) for _, text in ROWS]
    (tmp_path / "broken.jsonl").write_text("\n".join([*lines[:9], "{oops", *lines[9:]]) + "\n", encoding="utf-8")
    train_tokenizer("bert", [*KOREAN, *(text for _, text in ROWS)], 300, workers=1).save(tmp_path / "tokenizer.json")
    return tmp_path


def run_and_squeeze(capsys, *words):
    """Run a command; the spaces and line breaks of what it printed are single spaces."""
    code, out, err = run_command(capsys, *words)
    return code, " ".join(out.split()), err


def list_commands(folder, file):
    tokenizer = ("--tokenizer", folder / "tokenizer.json")
    return {
        "prepare": ("prepare", file, *tokenizer, "--unit", "line", "--out", folder / "store"),
        "show": ("show", "mlm", "--data", file, *tokenizer, "--examples", "1"),
        "train": ("tokenizer", "train", "bpe", file, "--vocab-size", "300", "--out", folder / "made"),
        "compare": ("tokenizer", "compare", folder, "--file", file, "--out", folder / "page.html"),
    }


@pytest.mark.parametrize("command", ["prepare", "show", "train", "compare"])
@pytest.mark.parametrize(("name", "option"), [
    ("two.csv", ("--column", "said")), ("old.txt", ("--encoding", "cp949")), ("broken.jsonl", ("--skip",)),
])  # fmt: skip
def test_the_remedy_can_be_typed(command, name, option, folder, capsys):
    words = list_commands(folder, folder / name)[command]
    code, _, err = run_and_squeeze(capsys, *words)
    assert code == 2
    assert " ".join(option).replace("said", "NAME") in err
    assert err.count("\n") == 1
    code, out, err = run_and_squeeze(capsys, *words, *option)
    assert code == 0, err
    if command == "prepare":
        store = Store.open(folder / "store")
        assert len(store.starts) - 1 == (60 if name == "old.txt" else 40)
        assert ("1 broken row skipped" in out) == (name == "broken.jsonl")
        assert f"read: {len(store.starts) - 1} documents, " in out
        text = load_tokenizer(folder / "store").decode(store.tokens[: store.starts[1]])
        assert text.replace(" ", "") == (KOREAN if name == "old.txt" else [b for _, b in ROWS])[0].replace(" ", "")


def test_tests_have_a_column_of_their_own(folder, capsys):
    words = list_commands(folder, folder / "broken.jsonl")["prepare"]
    words = (*words, "--skip", "--tests", folder / "two.csv")
    code, _, err = run_and_squeeze(capsys, *words)
    assert (code, "--tests-column" in err) == (2, True)
    assert "--tests-column" not in run_and_squeeze(capsys, *list_commands(folder, folder / "two.csv")["prepare"])[2]
    code, out, err = run_and_squeeze(capsys, *words, "--tests-column", "said")
    assert code == 0, err
    assert "40 of 40 examples share text" in out


def test_score(folder, capsys):
    made = {}
    for score in ("gain", "ratio"):
        words = ("tokenizer", "train", "wordpiece", folder / "two.csv", "--column", "said", "--vocab-size", "90")
        assert run_and_squeeze(capsys, *words, "--score", score, "--out", folder / score)[0] == 0
        made[score] = load_tokenizer(folder / score)
    assert made["gain"].fingerprint != made["ratio"].fingerprint
    texts = [text for _, text in ROWS]
    assert made["ratio"].json_text == train_tokenizer("wordpiece", texts, 90, score="ratio").json_text
    for kind in ("bpe", "gpt", "characters", "unigram"):
        code, _, err = run_and_squeeze(capsys, "tokenizer", "train", kind, folder / "two.csv", "--score", "ratio")
        assert (code, "no option 'score'" in err) == (2, True), err


def test_settings_of_a_finished_store_are_compared(folder, capsys):
    words = list_commands(folder, folder / "two.csv")["prepare"]
    assert run_and_squeeze(capsys, *words, "--column", "said")[0] == 0
    code, _, err = run_and_squeeze(capsys, *words, "--column", "name")
    assert (code, "other settings" in err) == (2, True)


EVERY = (
    "prepare", "show", "tokenizer train", "tokenizer compare", "pretrain bert", "pretrain word2vec", "finetune",
    "evaluate", "augment", "classify", "score", "tag", "answer", "generate", "translate", "summarise", "fill", "embed",
    "neighbours",
)  # fmt: skip


@pytest.mark.parametrize("command", EVERY)
def test_help_names_them(command, capsys):
    code, out, _ = run_and_squeeze(capsys, *command.split(), "--help")
    assert code == 0
    assert all(option in out for option in ("--column", "--encoding", "--skip", "--delimiter", "--no-header"))
    assert "formers" in out


SMALL = ("--model.embed", "8", "--model.filters", "4", "--epochs", "1", "--tune.baseline", "false")
LABELLED = [(f"{word} 영화 {i}", label) for i in range(8) for word, label in (("좋은", "1"), ("지루한", "0"))]


def test_a_file_of_korean_excel_is_learned_from(tmp_path, capsys):
    """A cp949 csv with semicolons and no header: refused with the remedy; with it, a model is trained, resumed and
    evaluated, and the options are kept."""
    path, run_folder = tmp_path / "old.csv", tmp_path / "run"
    path.write_text("".join(f"{text};{label}\n" for text, label in LABELLED), encoding="cp949")
    words = ("finetune", "textcnn", "--train", path, "--out", run_folder, *SMALL)
    code, _, err = run_and_squeeze(capsys, *words)
    assert (code, "--encoding cp949" in err, err.count("\n")) == (2, True, 1)
    how = ("--encoding", "cp949", "--no-header")
    code, out, err = run_and_squeeze(capsys, *words, *how)
    assert code == 0, err
    assert "text = column '0', label = column '1': 2 labels, 16 examples; a semicolon stands between columns" in err
    asked = json.loads((run_folder / "run.json").read_text(encoding="utf-8"))["config"]["data"]
    assert (asked["encoding"], asked["header"]) == ("cp949", False)
    code, _, err = run_and_squeeze(capsys, "finetune", "--resume", "--out", run_folder)
    assert code == 0, err
    code, _, err = run_and_squeeze(capsys, "finetune", "--resume", "--out", run_folder, "--encoding", "utf-16")
    assert (code, "data.encoding cannot change" in err) == (2, True)
    code, out, err = run_and_squeeze(capsys, "evaluate", run_folder / "model", "--data", path, *how, "--as-json")
    assert (code, json.loads(out)["examples"]) == (0, 16), err
    code, out, err = run_and_squeeze(capsys, "classify", run_folder / "model", "--file", path, *how, "--column", "0")
    assert (code, out.count('"label"')) == (0, 16), err
    code, out, err = run_and_squeeze(capsys, *words[:4], "--out", tmp_path / "folds", *SMALL, *how, "--folds", "2")
    assert code == 0, err
    assert "runs:" in out


def test_python_takes_the_same(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text("".join(f"{text};{label}\n" for text, label in LABELLED), encoding="cp949")
    how = {"encoding": "cp949", "delimiter": ";", "header": False}
    small = {"model.embed": 8, "model.filters": 4, "tune.baseline": False}
    made = formers.finetune("textcnn", path, epochs=1, out=tmp_path / "run", overrides=small, **how)
    assert formers.evaluate(made.former, path, **how).num_examples == 16
    tokenizer = made.former.tokenizer
    store = formers.prepare(path, tokenizer, tmp_path / "store", column="0", **how)
    assert len(store.starts) - 1 == 16


def test_pretraining_takes_them(tmp_path, capsys):
    (tmp_path / "old.csv").write_text("".join(f"{i};{text}\n" for i, text in enumerate(KOREAN)), encoding="cp949")
    words = ("pretrain", "bert", "--data", tmp_path / "old.csv", "--print-config")
    how = ("--encoding", "cp949", "--delimiter", "|", "--no-header", "--column", "1", "--skip")
    code, out, _ = run_and_squeeze(capsys, *words, *how)
    said = "encoding: cp949 skip: true delimiter: '|' header: false"
    assert (code, said in out, "column: '1'" in out) == (0, True, True)


def test_a_pipe_in_another_encoding(monkeypatch, capsys):
    import io
    import sys

    from formers.cli.common import read_stdin

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("안녕하세요 여러분".encode("cp949"))))
    with pytest.raises(formers.Error, match="the standard input: this is not UTF-8: it seems to be cp949"):
        read_stdin("utf-8")
