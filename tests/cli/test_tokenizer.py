"""formers tokenizer: train, show, compare."""

from __future__ import annotations

import contextlib
import lzma

import pytest

from formers.cli.main import main
from formers.data.readers import load_bundled_corpus
from formers.interop.tokenizer_files import load_tokenizer
from formers.registry import train_tokenizer


@pytest.fixture
def text(tmp_path):
    lines = [
        line
        for d in (load_bundled_corpus("en")[0][0][:20_000], *load_bundled_corpus("ko")[0][:5])
        for line in d.split("\n")
    ]
    with lzma.open(tmp_path / "text.txt.xz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines))
    return tmp_path / "text.txt.xz"


def run_with_code(*words, code=0):
    with pytest.raises(SystemExit) if code else contextlib.suppress(SystemExit) as end:
        main([*map(str, words)])
    assert end is None or end.value.code == code


def test_train_show_compare(text, tmp_path, capsys):
    run_with_code("tokenizer", "train", "bert", text, "--vocab-size", "700", "--out", tmp_path / "b", "--lower")
    run_with_code("tokenizer", "train", "bpe", text, "--vocab-size", "700", "--out", tmp_path / "g", "--style", "bloom")
    out = capsys.readouterr().out
    assert "merging" in out
    made = load_tokenizer(tmp_path / "b")
    assert len(made) == 700
    assert made.special["mask"] == "[MASK]"
    assert load_tokenizer(tmp_path / "g").id("eos") == 2
    run_with_code("tokenizer", "show", tmp_path / "b", "The 현행법")
    out = capsys.readouterr().out
    assert "[CLS]" in out
    assert str(made.encode("The 현행법")[1]) in out
    run_with_code("tokenizer", "compare", tmp_path / "b", tmp_path / "g", "--file", text, "--out", tmp_path / "c.html")
    out = capsys.readouterr().out
    assert "tokens/word" in out
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert page.count("<rect") == 8
    assert "unknown" in page


def test_transformers_opens_it(text, tmp_path):
    transformers = pytest.importorskip("transformers")
    run_with_code("tokenizer", "train", "xlnet", text, "--vocab-size", "700", "--out", tmp_path / "x")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    ours = load_tokenizer(tmp_path / "x")
    assert theirs("The war, 현행법")["input_ids"] == ours.encode("The war, 현행법")
    assert theirs.padding_side == "left"


def test_errors_are_one_line(text, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty.txt").touch()
    for words, message in (
        (("train", "brt", text), "does not train 'brt'"),
        (("train", "bert", tmp_path / "none.txt"), "no such file"),
        (("train", "bert", text, "--out", tmp_path / "full"), "exists already"),
        (("train", "words", text, "--alphabet", "5"), "words has no option 'alphabet'"),
        (("show", tmp_path / "none", "x"), "no such directory"),
        (("compare", tmp_path, "--file", tmp_path / "empty.txt"), "the file is empty"),
    ):
        run_with_code("tokenizer", *words, code=2)
        err = capsys.readouterr().err
        assert message in err, err
        assert err.count("\n") == 1


def test_the_same_function_everywhere(text, tmp_path):
    run_with_code("tokenizer", "train", "gpt2", text, "--vocab-size", "500", "--out", tmp_path / "g", "--workers", "2")
    with lzma.open(text, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")
    assert load_tokenizer(tmp_path / "g").fingerprint == train_tokenizer("gpt2", lines, 500).fingerprint
