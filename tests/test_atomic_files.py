"""Files and folders that are there whole or not at all; --overwrite replaces what formers itself has written."""

from __future__ import annotations

import errno
import json

import pytest

import formers
from formers.atomic_files import hold_lock, read_checked_json, replace_folder, to_checked_json, write_atomically
from formers.errors import Error
from formers.training.run_folder import RUN_FOLDER
from formers.training.runs.cross_validation import compare_settings
from tests.command_line import run_command
from tests.training.toy_runs import REVIEWS, pretrain_toy

SIZES = {"model.dim": 16, "model.layers": 1, "model.heads": 2, "model.ff": 32, "data.vocab_size": 300}
TINY = {"overrides": SIZES, "epochs": 1, "batch": 16}


def read_files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def list_siblings(folder):
    return sorted(p.name for p in folder.parent.iterdir())


def test_a_run_is_replaced_by_a_new_one(tmp_path):
    pretrain_toy(out=tmp_path / "run", train={"steps": 4})
    with pytest.raises(Error, match=r"with --resume, replace it with --overwrite") as error:
        pretrain_toy(out=tmp_path / "run", train={"steps": 2})
    assert "there is a run here already" in str(error.value)
    run = pretrain_toy(out=tmp_path / "run", train={"steps": 2}, overwrite=True)
    assert max(row["step"] for row in run.history) == 2
    assert list_siblings(tmp_path / "run") == ["run"]
    pretrain_toy(out=tmp_path / "new", train={"steps": 2}, overwrite=True)  # nothing to replace


def test_a_new_run_that_cannot_begin_leaves_the_earlier_one_as_it_was(tmp_path):
    pretrain_toy(out=tmp_path / "run", train={"steps": 2})
    before = read_files(tmp_path / "run")
    for wrong in ({"train": {"steps": 0}}, {"data": {"source": [str(tmp_path / "nothing.txt")]}, "text": None}):
        with pytest.raises(Error):
            formers.pretrain("gpt2", wrong.pop("text", ["a text"]), out=tmp_path / "run", overwrite=True, **wrong)
        assert read_files(tmp_path / "run") == before
    with pytest.raises(Error, match="is in use"), hold_lock(tmp_path / "run" / "lock"):
        pretrain_toy(out=tmp_path / "run", overwrite=True)
    assert read_files(tmp_path / "run") == before
    with pytest.raises(FileNotFoundError), replace_folder(tmp_path / "run", RUN_FOLDER, True):
        (tmp_path / "run" / "data" / "store").mkdir()  # the place is free: the folder of the run has been moved
    assert read_files(tmp_path / "run") == before
    assert list_siblings(tmp_path / "run") == ["run"]


def test_what_is_not_a_run_or_is_needed_is_not_replaced(tmp_path, monkeypatch):
    pretrain_toy(out=tmp_path / "run", train={"steps": 2})
    runs = tmp_path / "mine"
    runs.mkdir()
    (runs / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(Error, match="it is not the folder of a run"):
        pretrain_toy(out=runs, overwrite=True)
    (tmp_path / "run" / "notes.txt").write_text("what I saw", encoding="utf-8")
    with pytest.raises(Error, match="'notes.txt' does not belong to a run"):
        pretrain_toy(out=tmp_path / "run", overwrite=True)
    (tmp_path / "run" / "notes.txt").rename(tmp_path / "run" / "data" / "notes.txt")
    with pytest.raises(Error, match="'notes.txt' does not belong to a run's data"):
        pretrain_toy(out=tmp_path / "run", overwrite=True)
    (tmp_path / "run" / "data" / "notes.txt").unlink()
    (runs / "thesis.txt").rename(runs / "report.md")
    (runs / "run.json").write_text('{"of": "another program"}', encoding="utf-8")
    with pytest.raises(Error, match="it is not the folder of a run"):
        pretrain_toy(out=runs, overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(Error, match="is not replaced"):
        pretrain_toy(out=tmp_path / "link", overwrite=True)
    store = formers.Store.open(tmp_path / "run" / "data" / "store")
    for more in ({"init": tmp_path / "run" / "model"}, {"tokenizer": tmp_path / "run" / "data" / "store"}, {}):
        text = ["a text"] * 50 if more else store
        with pytest.raises(Error, match=r"is not replaced: it holds .*, which is needed"):
            formers.pretrain("gpt2", text, out=tmp_path / "run", overwrite=True, train={"steps": 1}, **more)
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(Error, match="is not replaced"):
        pretrain_toy(out=tmp_path / "run", overwrite=True)
    monkeypatch.chdir(tmp_path)
    for how in ({"resume": True, "out": "run"}, {}):
        with pytest.raises(Error, match="--overwrite"):
            formers.pretrain("gpt2", overwrite=True, **how)
        with pytest.raises(Error, match="--overwrite"):
            formers.finetune("bert", REVIEWS, overwrite=True, **how)
    assert formers.load(tmp_path / "run" / "model").family == "gpt2"


def test_fine_tuning_vectors_and_comparisons_replace_theirs(tmp_path):
    out = tmp_path / "run"
    formers.finetune("bert", REVIEWS, out=out, **TINY)
    with pytest.raises(Error, match=r"--resume.*--overwrite"):
        formers.finetune("bert", REVIEWS, out=out, **TINY)
    formers.finetune("bert", REVIEWS, out=out, overwrite=True, **{**TINY, "epochs": 2})
    assert json.loads((out / "run.json").read_text(encoding="utf-8"))["config"]["tune"]["epochs"] == 2
    with pytest.raises(Error, match="which is needed"):
        formers.finetune(out / "model", REVIEWS, out=out, overwrite=True)
    words = [" ".join(f"word{i % 7}" for i in range(50))] * 5
    formers.pretrain("word2vec", words, out=out, overwrite=True, model={"dim": 4}, train={"epochs": 1})
    with pytest.raises(Error, match="--overwrite"):
        formers.pretrain("word2vec", words, out=out)
    with pytest.raises(Error, match="is not the folder of a comparison"):
        compare_settings("bert", REVIEWS, seeds=2, out=out, overwrite=True, **TINY)
    made = compare_settings("bert", REVIEWS, seeds=2, out=tmp_path / "many", **TINY)
    (made.folder / "seed0" / "mark.txt").touch()
    with pytest.raises(Error, match="'mark.txt' does not belong to a run"):
        compare_settings("bert", REVIEWS, seeds=1, out=made.folder, overwrite=True, **TINY)
    (made.folder / "seed0" / "mark.txt").unlink()
    compare_settings("bert", REVIEWS, seeds=1, out=made.folder, overwrite=True, **TINY)
    assert not (made.folder / "seed1").exists()
    assert list_siblings(made.folder) == ["many", "run"]


def test_a_store_is_replaced_by_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"{name} line of text\n" * 50, encoding="utf-8")
    run_command(capsys, "tokenizer", "train", "bert", "one.txt", "--vocab-size", 200, "--out", "tokenizer")
    words = ["--tokenizer", "tokenizer", "--out", "store"]
    assert run_command(capsys, "prepare", "one.txt", *words)[0] == 0
    code, _, error = run_command(capsys, "prepare", "two.txt", *words)
    assert code == 2
    assert "--overwrite" in error
    before = read_files(tmp_path / "store")
    for wrong in (["nothing.txt"], ["two.txt", "--tokenizer", "nothing"], ["store/tokenizer.json"]):
        code, _, error = run_command(capsys, "prepare", *wrong, *words[2 * ("--tokenizer" in wrong) :], "--overwrite")
        assert code == 2, wrong
        assert read_files(tmp_path / "store") == before
    code, out, error = run_command(capsys, "prepare", "two.txt", *words, "--overwrite")
    assert code == 0, error
    assert "store (train)" in out
    assert read_files(tmp_path / "store") != before
    code, _, error = run_command(capsys, "pretrain", "gpt2", "--data", "one.txt", "--out", "store", "--overwrite")
    assert code == 2
    assert "it is not the folder of a run" in error


def test_plain_text_learned_again_replaces_its_run(tmp_path):
    pretrain_toy(out=tmp_path / "base", train={"steps": 2})
    text, how = [f"some text number {i}" for i in range(40)], {"task": "lm", "out": tmp_path / "lm", "epochs": 1}
    formers.finetune(tmp_path / "base" / "model", text, **how)
    before = read_files(tmp_path / "lm")
    with pytest.raises(Error, match=r"--resume.*--overwrite"):
        formers.finetune(tmp_path / "base" / "model", text, **how)
    assert read_files(tmp_path / "lm") == before, "a refusal writes nothing"
    with pytest.raises(Error, match="which is needed"):
        formers.finetune(tmp_path / "lm" / "model", text, overwrite=True, **how)
    formers.finetune(tmp_path / "base" / "model", text[:30], overwrite=True, **how)
    assert read_files(tmp_path / "lm")["run.json"] != before["run.json"]
    assert list_siblings(tmp_path / "lm") == ["base", "lm"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "한 file.json"
    write_atomically(file, "first\n")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "half a character \ud800")
    assert file.read_text(encoding="utf-8") == "first\n"
    write_atomically(file, "half \ud800", "backslashreplace")
    assert file.read_text(encoding="utf-8") == "half \\ud800"

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("formers.atomic_files.os.fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_atomically(file, "second")
    assert file.read_text(encoding="utf-8") == "half \\ud800", "it has its name only when it is on the disk"


def test_checked_json_tells_any_change(tmp_path):
    file, values = tmp_path / "note.json", {"b": [1, 2.5, None], "a": "한글"}
    write_atomically(file, to_checked_json(values))
    assert read_checked_json(file) == values
    text = file.read_text(encoding="utf-8")
    for other in (text.replace("2.5", "2.6"), text.replace('"a"', '"c"'), '{"b": 1}'):
        file.write_text(other, encoding="utf-8")
        with pytest.raises(Error, match="is not as it was written"):
            read_checked_json(file)
    file.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(Error, match="not UTF-8"):
        read_checked_json(file)
    with pytest.raises(Error, match="No such file"):
        read_checked_json(tmp_path / "none.json")
