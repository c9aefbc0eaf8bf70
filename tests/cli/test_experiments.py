from __future__ import annotations

import pytest

from formers.experiments.registry import EXPERIMENTS
from tests.command_line import run_command


def test_the_list_has_every_experiment(capsys):
    code, out, _ = run_command(capsys, "try")
    assert code == 0
    for name, entry in EXPERIMENTS.items():
        assert f"{name} " in out
        assert entry.help[0][:40] in out


def test_help_has_an_example_and_the_settings(capsys):
    code, out, _ = run_command(capsys, "try", "masks", "--help")
    assert code == 0
    assert "formers try masks --text" in out
    assert "--window" in out
    assert "--language" in out


def test_an_experiment_prints_tables_and_writes_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_command(capsys, "try", "masks", "--text", "하나 둘 셋 넷 다섯 여섯", "--window", "2")
    assert code == 0
    assert "인과(GPT-2)" in out
    page = (tmp_path / "formers-try-masks.html").read_text(encoding="utf-8")
    assert '<html lang="ko">' in page
    assert "다섯" in page
    assert "formers try masks --text &#x27;하나 둘 셋 넷 다섯 여섯&#x27; --language ko --window 2" in page
    assert run_command(capsys, "try", "masks")[0] == 0, "the page of an earlier run is replaced"
    code, _, err = run_command(capsys, "try", "masks", "--out", "formers-try-masks.html")
    assert code == 2
    assert "exists already" in err


@pytest.mark.parametrize("words", [["mask"], ["masks", "--windw", "2"], ["masks", "--out", "page.txt"]])
def test_what_is_wrong_is_said_in_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, err = run_command(capsys, "try", *words)
    assert code == 2
    assert err.startswith("formers:")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["decoding", "--top", "0"], "--top must be at least 1, got 0"),
        (["complexity", "--texts", "0"], "--texts must be at least 1, got 0"),
        (["complexity", "--longest", "63"], "--longest must be at least 64, got 63"),
        (["complexity", "--dim", "3"], "--dim must be a multiple of 4, the heads of the attention, got 3"),
        (["decoding", "--tokens", "63"], "--tokens must be at most 62 for this model, which reads 64 at once, got 63"),
        (["memory", "--segment", "2"], "--segment must be at least 3, got 2"),
        (["objectives", "--rates", "0.15", "--rates", "1.5"], "--rates takes shares between 0 and 1, got 1.5"),
        (["masks", "--text", " "], "--text is empty"),
        (["masks", "--out", "folder/page.html"], "folder: there is no such folder"),
        (["memory", "--memories", "8", "--memories", "-8"], "--memories must be at least 0, got -8"),
        (["masks", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["size-and-quality", "--dims", "64"], "a line through the sizes needs two widths"),
        (["why-attention", "--longest", "1"], "--longest must be at least 2, got 1"),
    ],
)
def test_settings_that_show_nothing_are_refused_at_once(words, message, tmp_path, monkeypatch, capsys):
    """They ended in a traceback, some after minutes of training."""
    monkeypatch.chdir(tmp_path)
    code, _, err = run_command(capsys, "try", *words)
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())


def test_ctrl_c_leaves_no_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("formers.experiments.masks.list_masks", interrupt)
    assert run_command(capsys, "try", "masks")[0] == 130
    assert not list(tmp_path.iterdir())


def test_a_file_of_rows_is_read_as_it_stands_whatever_its_name(tmp_path, monkeypatch, capsys):
    rows = ["river\tWe sat on the bank of the river.", "river\tThe bank was muddy.", "money\tThe bank gave a loan.",
            "money\tMy bank pays interest!"]  # fmt: skip
    file = tmp_path / "senses.tsv"
    file.write_text("\n".join(rows), encoding="utf-8")
    quick = ["--steps", "1", "--epochs", "1", "--sentences", "20", "--out", str(tmp_path / "page.html")]
    code, out, _ = run_command(capsys, "try", "word-senses", "--file", str(file), *quick)
    assert code == 0
    assert "river" in (tmp_path / "page.html").read_text(encoding="utf-8")
    code, out, _ = run_command(capsys, "try", "word-senses", "--help")
    assert "sense, tab, sentence" in out
    assert "sense, tab" not in run_command(capsys, "try", "memory", "--help")[1]


@pytest.mark.parametrize("words", [["--language", "ko"], ["--language=ko"]])
def test_the_list_is_there_in_korean(words, capsys):
    code, out, _ = run_command(capsys, "try", *words)
    assert code == 0
    assert EXPERIMENTS["heads"].help[1][:12] in out
    assert EXPERIMENTS["heads"].help[0][:12] not in out
    code, _, err = run_command(capsys, "try", "--language", "de")
    assert code == 2
    assert "'de'" in err


@pytest.mark.parametrize(("name", "option"), [("word-senses", "--text"), ("memory", "--text"), ("masks", "--file")])
def test_what_an_experiment_does_not_read_is_refused(name, option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, err = run_command(capsys, "try", name, option, "words")
    assert code == 2
    assert f"{name} reads no {option}" in err
    assert f"{option} " not in run_command(capsys, "try", name, "--help")[1].split("Parameters")[1]


def test_the_command_of_a_page_makes_it_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_command(capsys, "try", "masks", "--out", "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<code>formers try masks --out page.html --overwrite</code>" in page
    assert run_command(capsys, "try", "masks", "--out", "page.html", "--overwrite")[0] == 0
