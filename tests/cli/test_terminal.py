"""What a terminal is sent: text from outside is never markup, and its control characters are shown, not obeyed."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import formers
from formers.cli.terminal import (
    SafeConsole,
    escape_line,
    pad_cells,
    print_json,
    print_table,
    print_text,
    show_progress,
)
from formers.training.run_folder import RUN_FORMAT
from tests.command_line import run_command

CLI = Path(formers.__file__).parent / "cli"
HOSTILE = ["x[/]", "[bold]b[/bold]", "a\x1b]0;owned\x07b", "c\x9b31mred", "tab\there", ":smile:", "back\\", "\u202eabc"]
ABOUT = {
    "format": RUN_FORMAT, "config": {"family": "bert", "train": {"steps": 9}, "data": {"source": []}},
    "data": {"tokens": 1, "documents": 1, "tokenizer": "t", "store": "s"}, "result": {"parameters": 3},
    "machine": dict.fromkeys(("processes", "threads", "name", "device", "formers", "torch", "python"), "x"),
}  # fmt: skip


def test_columns_count_the_width_of_hangul():
    assert [pad_cells(word, 8) for word in ("good", "좋았다", "좋았습니다")] == ["good    ", "좋았다  ", "좋았습니다"]


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def make_run(folder, about=ABOUT, lines=('{"step": 3, "loss": 2.0, "losses": {"mlm": 2.0}}',)):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(about if isinstance(about, str) else json.dumps(about))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda p: p.name)
def test_only_the_screen_prints(path):
    """Everything that is printed goes through one place."""
    text = path.read_text(encoding="utf-8")
    if path.name != "terminal.py":
        assert "rich.console" not in text, "use terminal.SafeConsole"
        assert "rich.markup" not in text
        assert "from_markup" not in text
        assert "stdout.write" not in text, "use terminal.print_text"
        assert not re.findall(r"(?<![.\w])print\(", text), "use terminal.print_text or terminal.print_json"
        assert all(
            "markup=False" in line for line in text.splitlines() if 'TextColumn("{task.' in line and ":>" not in line
        )


@pytest.mark.parametrize("words", HOSTILE)
def test_strings_tables_and_styled_text(words, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = SafeConsole(wrap=True)
    screen.file = Terminal()
    table = Table("name", box=None)
    table.add_row(words)
    table.add_row(Text(words, "bold red"))
    for one in (words, table, Text.assemble(("bold", "bold"), words)):
        screen.print(one)
    said = re.sub(r"\x1b\[[\d;]*m", "", screen.file.getvalue())  # colours of our own
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said)
    assert (
        said.count(escape_line(words).replace("\\t", " ").split(" ")[0]) >= 2
    )  # rich leaves out some that stand in a Text


def test_progress_takes_text_as_it_is(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = SafeConsole(stderr=True)
    screen._force_terminal, screen.file = True, Terminal()
    with show_progress(screen, "x[/]") as tell:
        for number, words in enumerate(HOSTILE, 1):
            tell("what[/]", number, len(HOSTILE), f"{words}\n[/]")
    said = screen.file.getvalue()
    assert "\x07" not in said
    assert "what[/]" in said
    assert "x[/]" in said


@pytest.mark.parametrize("terminal", [True, False])
def test_results(terminal, monkeypatch):
    out = Terminal()
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", out)
    print_text("one\ttwo\nthree \x1b[31m")
    print_json({"text": "\x1b \x9b \u202e \ud800 가", "tab": "\t"})
    first, second, third = out.getvalue().splitlines()
    assert first == "one\ttwo"
    assert second == ("three \\x1b[31m" if terminal else "three \x1b[31m"), (
        "a program that reads the pipe gets what was said"
    )
    assert json.loads(third) == {"text": "\x1b \x9b \u202e \ud800 가", "tab": "\t"}
    assert "가" in third
    assert third.isprintable()


def test_runs_keep_their_names_whole(capsys, tmp_path):
    """A name that was cut to bert-class… could not be typed again, nor found by grep."""
    name = "transformer-translate-12-" + "again-" * 12
    make_run(tmp_path / name)
    code, out, _ = run_command(capsys, "runs", str(tmp_path))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["run", name]


def test_runs_with_hostile_names(capsys, tmp_path):
    """One such folder used to hide all runs behind a traceback."""
    for words in HOSTILE:
        make_run(tmp_path / words, {**ABOUT, "config": {**ABOUT["config"], "family": words}})
    make_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")))
    code, out, err = run_command(capsys, "runs", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.count("3 of 9") == len(HOSTILE) + 1
    assert "\x1b" not in out
    assert "x[/]" in out
    assert "\\udcff" in out
    code, out, err = run_command(capsys, "report", str(tmp_path / "x[/]"))
    assert code == 2, "no such family"
    assert "\x1b" not in err
    assert err.count("\n") == 1


def damage_value(value, dice):
    """A value with some part of it replaced."""
    odd = [None, 7, -1e308, "x", [], {}, [1], True, 10**400, "\x1b[31m[/]"]
    if isinstance(value, dict) and value and dice.random() < 0.85:
        key = dice.choice(list(value))
        return (
            {**value, key: damage_value(value[key], dice)}
            if dice.random() < 0.85
            else {k: v for k, v in value.items() if k != key}
        )
    return dice.choice(odd)


def test_damaged_run_files(capsys, tmp_path, full):
    """Whatever run.json and the measurements hold, the answer is a row, a report or one line."""
    dice = random.Random(5)
    line = {"step": 3, "loss": 2.0, "losses": {"mlm": 2.0}, "valid": {"loss": 1.5}, "tokens": 5, "seconds": 2.0}
    rest = {
        "score": {"loss": 1.0, "accuracy": 0.5, "metrics": {"a/accuracy": 0.5}},
        "baseline": {"loss": 1.0, "accuracy": 0.1},
    }
    about = {**ABOUT, "result": {"parameters": 3, "best": 3, "memory": 5, "mfu": 0.5, **rest}}
    assert run_command(capsys, "report", str(make_run(tmp_path / "good", about, [json.dumps(line)])))[0] == 0
    for number in range(2000 if full else 150):
        folder = make_run(tmp_path / "r", damage_value(about, dice), [json.dumps(damage_value(line, dice))])
        for verb, where in (("runs", tmp_path), ("report", folder), ("rerun", folder)):
            more = ["--out", str(tmp_path / "again")] if verb == "rerun" else []
            code, out, err = run_command(capsys, verb, str(where), *more)
            assert code in (0, 2), number
            assert err.count("\n") == bool(code), (number, verb, err)
            assert "\x1b" not in out + err
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "again", ignore_errors=True)


@pytest.mark.parametrize(
    "text", ["", "null", "[" * 100_000, '{"config": ' * 5000, "\ud800".encode("utf-8", "surrogatepass")]
)
def test_run_json_that_is_none(capsys, tmp_path, text):
    folder = make_run(tmp_path / "r", "", ["[" * 100_000])
    (folder / "run.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = run_command(capsys, "runs", str(tmp_path))
    assert (code, err) == (0, "")
    assert "is damaged" in out
    assert run_command(capsys, "report", str(folder))[0] == 2


def test_a_table_in_a_pipe_has_one_line_for_each_row(capsys):
    """However wide, in columns, without spaces at the end, control characters shown."""
    long = "x" * 300
    print_table([("a\x1b", "1", long), ("한국어", "2", "y\nz")], ("name", "n", "text"))
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name    n  text", f"a\\x1b   1  {long}", "한국어  2  y\\nz"]
