"""Numbers and words that make no sense: one line that says so, and no traceback."""

from __future__ import annotations

import pytest

import formers
from formers.cli.main import main
from formers.registry import train_tokenizer

HUGE = "99999999999999999999999999"
LINES = [f"The cat number {i} sat down. Then the dog ran away." for i in range(30)]
SHOWN = ("mlm", "causal", "nsp", "plm", "denoising", "span-corruption", "seq2seq", "ernie-units", "dialogue")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("odd")
    (where / "t.txt").write_text("\n".join(LINES), encoding="utf-8")
    train_tokenizer("t5", LINES, 200, workers=1).save(where / "tokenizer.json")
    return where


def expect_refusal(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main([*map(str, words)])
    err = capsys.readouterr().err
    assert end.value.code == 2, (words, err)
    assert err.startswith("formers:"), err
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("objective", SHOWN)
@pytest.mark.parametrize("length", ["0", "-1", "99999999", "999999999999", HUGE, "x", "nan", ""])
def test_lengths(objective, length, folder, capsys):
    expect_refusal(capsys, "show", objective, "--text", "a b", "--tokenizer", folder, "--length", length)


@pytest.mark.parametrize("words", [
    ("--seed", "-1"), ("--seed", HUGE), ("--examples", "0"), ("--examples", "-5"), ("--option", "mask_rate"),
    ("--option", "mask_rate=!!python/object:os.system"), ("--option", "length=5"), ("--option", "tokenizer=5"),
    ("--option", "name=x"), ("--option", "mask_rate=[1"), ("--option", "mask_rate=nan"),
    ("--option", "mask_rate=1e400"), ("--option", "=1"), ("--option", "at=2020-99-99"),
])  # fmt: skip
def test_show(words, folder, capsys):
    expect_refusal(capsys, "show", "mlm", "--data", folder / "t.txt", "--tokenizer", folder, *words)


@pytest.mark.parametrize("words", [
    ("--workers", "-1"), ("--workers", "99999999"), ("--workers", HUGE), ("--workers", "x"), ("--validation", "-1"),
    ("--validation", "100%"), ("--validation", "nan"), ("--validation", ""), ("--shard-size", "0"),
    ("--shard-size", "-1"), ("--shard-size", HUGE), ("--shard-size", "nan"), ("--unit", "page"),
    ("--units", "nowhere.txt"), ("--units", ""),
    ("--tests", "nowhere.txt"), ("--encoding", "klingon"), ("--encoding", "hex"), ("--encoding", "rot13"),
    ("--encoding", "idna"), ("--encoding", "undefined"), ("--encoding", "utf-16"), ("--encoding", ""),
    ("--encoding", "a\0b"), ("--splitter", "magic"),
])  # fmt: skip
def test_prepare(words, folder, tmp_path, capsys):
    expect_refusal(capsys, "prepare", folder / "t.txt", "--tokenizer", folder, "--out", tmp_path / "s", *words)
    assert not (tmp_path / "s" / "store.json").exists()


@pytest.mark.parametrize("kind", ["bpe", "gpt", "wordpiece", "unigram", "words", "characters"])
@pytest.mark.parametrize("words", [
    ("--vocab-size", "0"), ("--vocab-size", "-1"), ("--vocab-size", "99999999"), ("--vocab-size", HUGE),
    ("--workers", "0"), ("--workers", "-1"), ("--workers", "99999"), ("--alphabet", "0"), ("--alphabet", "-1"),
    ("--alphabet", HUGE),
    ("--style", "x"), ("--style", ""), ("--score", "x"),
])  # fmt: skip
def test_train(kind, words, folder, tmp_path, capsys):
    expect_refusal(capsys, "tokenizer", "train", kind, folder / "t.txt", "--out", tmp_path / "t", *words)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("words", [
    ("--limit", "-3"), ("--limit", "0"), ("--batch-size", "0"), ("--stride", "-1"), ("--memory-length", "-3"),
])  # fmt: skip
@pytest.mark.parametrize("file", ["t.txt", "pairs.jsonl"])
def test_counts_of_evaluate(words, file, folder, capsys):
    if not (folder / "model").exists():
        tokenizer = train_tokenizer("gpt2", LINES, 300, workers=1)
        former = formers.build("gpt2", vocab=len(tokenizer), dim=16, layers=1, heads=2, ff=32)
        former.tokenizer = tokenizer
        formers.save(former, folder / "model")
        (folder / "pairs.jsonl").write_text('{"good": "the cat", "bad": "cat the"}\n' * 9)
    assert "must be at least" in expect_refusal(capsys, "evaluate", folder / "model", "--data", folder / file, *words)


@pytest.mark.parametrize("words", [("--folds", "0"), ("--folds", "1"), ("--folds", "-2"), ("--seeds", "0"),
                                   ("--seeds", "-1"), ("--batch-size", "0"), ("--data.limit", "-3")])  # fmt: skip
def test_counts_of_finetune(words, folder, capsys):
    (folder / "c.tsv").write_text("text\tlabel\n" + "".join(f"a {i}\t{i % 2}\n" for i in range(20)))
    expect_refusal(capsys, "finetune", "textcnn", "--train", folder / "c.tsv", *words)


@pytest.mark.parametrize("words", [("--teach", "-3"), ("--seed", "-1"), ("--times", "0")])
def test_counts_of_augment(words, folder, tmp_path, capsys):
    test_counts_of_finetune(("--batch-size", "0"), folder, capsys)
    if not (folder / "masked").exists():
        tokenizer = train_tokenizer("bert", LINES, 200, workers=1)
        former = formers.build("bert", head="mlm", vocab=len(tokenizer), dim=16, layers=1, heads=2, ff=32)
        former.tokenizer = tokenizer
        formers.save(former, folder / "masked")
    with pytest.raises(SystemExit) as end:
        main(
            [
                "augment",
                str(folder / "masked"),
                "--train",
                str(folder / "c.tsv"),
                "--out",
                str(tmp_path / "o.jsonl"),
                *words,
            ]
        )
    assert end.value.code == 2, capsys.readouterr().err


def test_bytes_that_an_encoding_does_not_know_are_counted(folder, tmp_path, capsys):
    (tmp_path / "t.txt").write_bytes(b"one two\n" + "한국어".encode("cp949") + b"\xff\xff\nthree\n")
    words = ("prepare", tmp_path / "t.txt", "--encoding", "cp949", "--tokenizer", folder, "--out", tmp_path / "s")
    with pytest.raises(SystemExit) as end:
        main([*map(str, words)])
    out, err = capsys.readouterr()
    assert not end.value.code, err
    assert "2 bytes removed for not being UTF-8" in " ".join(out.split())
