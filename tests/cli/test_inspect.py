"""formers inspect: files of every kind, and what is refused."""

from __future__ import annotations

import json

import pytest

import formers
from formers.cli.main import main
from formers.inspection import effort
from tests.small_models import get_verb_model as model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A masked model and a decoder, saved."""
    where = tmp_path_factory.mktemp("inspect")
    for name, head in (("bert", "mlm"), ("gpt2", "lm")):
        formers.save(model(name, head), where / name)
    return where


def run(capsys, *words):
    """The exit code and what was printed."""
    code = 0
    try:
        main(["inspect", *map(str, words)])
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    return code, out, err


def test_a_page_and_its_document(folder, tmp_path, capsys):
    code, out, err = run(capsys, folder / "bert", "the ___ sat", "--with", "on the mat", "--out", tmp_path / "v.html")
    assert code == 0, err
    assert "View(bert: 9 tokens of text; attention, prediction, states" in " ".join(out.split())
    assert "<!doctype html>" in (tmp_path / "v.html").read_text(encoding="utf-8").lower()
    code, _, err = run(capsys, folder / "bert", "the cat", "--views", "all", "--out", tmp_path / "v.json")
    assert code == 0, err
    document = json.loads((tmp_path / "v.json").read_text(encoding="utf-8"))
    assert {"attention", "neuron", "prediction", "attribution", "heads", "states", "objectives"} <= set(document)
    assert document["model"]["name"] == "bert"


def test_a_head(folder, tmp_path, capsys):
    for ending in ("svg", "png"):
        file = tmp_path / f"head.{ending}"
        code, _, err = run(capsys, folder / "gpt2", "the cat", "--layer", 1, "--head", 2, "--out", file)
        assert code == 0, err
        assert file.stat().st_size > 100
    code, _, err = run(capsys, folder / "gpt2", "the cat", "--out", tmp_path / "head.svg")
    assert code == 2
    assert "exists already" in err


def test_why_this_and_not_that(folder, tmp_path, capsys):
    words = ("--views", "attribution", "--target", " the", "--contrast", "t", "--out", tmp_path / "why.json")
    code, _, err = run(capsys, folder / "gpt2", "the cat sat on", *words)
    assert code == 0, err
    target = json.loads((tmp_path / "why.json").read_text(encoding="utf-8"))["attribution"]["target"]
    assert target["text"] == " the"
    assert target["contrast"]["text"] == "t"


def test_side_by_side(folder, tmp_path, capsys):
    words = ("--compare", "the log sat", "--out", tmp_path / "both.json")
    code, _, err = run(capsys, folder / "gpt2", "the cat sat", *words)
    assert code == 0, err
    assert "changes" in json.loads((tmp_path / "both.json").read_text(encoding="utf-8"))
    words = ("--compare-model", folder / "gpt2", "--out", tmp_path / "models.json")
    code, _, err = run(capsys, folder / "bert", "the cat sat", *words)
    assert code == 0, err
    both = json.loads((tmp_path / "models.json").read_text(encoding="utf-8"))["compare"]
    assert [one["model"]["family"] for one in both] == ["bert", "gpt2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("the cat", "--out", "x.pdf"), "not written as .pdf"),
        (("the cat", "--out", "x.html", "--views", "all,nothing"), "no view"),
        (("", "--out", "x.html"), "the text is empty"),
        (("the cat", "--out", "x.svg", "--layer", "7"), "there is no layer 7"),
        (("the cat", "--out", "x.html", "--compare", "a", "--compare-model", "b"), "give one of them"),
        (("the cat", "--out", "x.html", "--before", "a"), "has no memory"),
    ],
)
def test_refusals(words, message, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, folder / "gpt2", *words)
    assert code == 2
    assert message.lower() in " ".join(err.lower().split())
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_file_is_overwritten_on_request(folder, tmp_path, capsys):
    file = tmp_path / "head.svg"
    assert run(capsys, folder / "gpt2", "the cat", "--out", file)[0] == 0
    before = file.read_bytes()
    code, _, err = run(capsys, folder / "gpt2", "the mat sat", "--out", file, "--overwrite")
    assert code == 0, err
    assert file.read_bytes() != before


def test_what_was_left_out_and_cut_is_said(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(effort, "MAX_DEFAULT_FLOPS", {False: 10.0})
    long = "the cat sat on the mat . " * 30
    code, out, err = run(capsys, folder / "bert", long, "--out", tmp_path / "v.html")
    assert code == 0, err
    printed = " ".join(out.split())
    assert "takes long here: layers (add it with --views default,layers)" in printed
    assert "takes long here: masked (add it with --masked)" in printed
    assert "attribution" not in printed
    assert "tokens 0 to 37 of" in " ".join(err.split())
    code, _, err = run(capsys, folder / "bert", long, "--window", 2, "--views", "states", "--out", tmp_path / "w.json")
    assert code == 0, err
    assert "note" not in err, "a window that was chosen needs no note"
    side = json.loads((tmp_path / "w.json").read_text(encoding="utf-8"))["sides"]["text"]
    assert (side["window"]["index"], side["window"]["first"]) == (2, 76)


def test_a_method_of_attribution_is_chosen(folder, tmp_path, capsys):
    words = ("--views", "attribution", "--methods", "occlusion,value_zeroing", "--out", tmp_path / "why.json")
    code, _, err = run(capsys, folder / "gpt2", "the cat sat on", *words)
    assert code == 0, err
    made = json.loads((tmp_path / "why.json").read_text(encoding="utf-8"))["attribution"]["methods"]
    assert list(made) == ["occlusion", "value_zeroing"]
