"""formers tree and formers doctor."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from formers.cli.about import EXTRAS
from formers.cli.main import app
from formers.registry import FAMILIES, NO_PARENT
from tests.command_line import run_command

ROOT = Path(__file__).parents[2]


def test_tree(capsys):
    code, out, _ = run_command(capsys, "tree")
    assert code == 0
    assert "109,482,240 without a head" in out
    assert not re.search(r"─ –$", out, re.MULTILINE), "word vectors have no parent: they stand beside the other roots"
    rows = json.loads(run_command(capsys, "tree", "--as-json")[1])
    assert {row["name"] for row in rows} >= {"gpt2", "bert", "t5"}


@pytest.mark.parametrize("name", FAMILIES)
def test_one_member_of_the_tree(name, capsys):
    code, out, _ = run_command(capsys, "tree", name)
    assert code == 0
    member = FAMILIES[name]
    for word in (member.card.title, member.card.paper, member.card.new, *member.definition.presets):
        assert word in out
    parent = member.card.parent
    assert f"parent: {parent}\n" in out if parent != NO_PARENT else "parent:" not in out
    assert "parameters by part:" in out
    said = [shlex.split(line) for line in out.split("begin with:")[1].strip().splitlines()]
    assert len(said) >= 2
    for words in said:
        app.parse_args(words[1:], exit_on_error=False, print_error=False)
    assert json.loads(run_command(capsys, "tree", name, "--as-json")[1])["name"] == name


@pytest.mark.parametrize("name", ["word2vec", "glove", "fasttext"])
def test_a_kind_of_word_vectors_in_the_tree(name, capsys):
    code, out, _ = run_command(capsys, "tree", name)
    assert code == 0
    assert f"formers pretrain {name} --data" in out
    assert f"formers neighbours runs/{name}-1 king" in out


def test_no_such_member(capsys):
    code, _, err = run_command(capsys, "tree", "brt")
    assert code == 2
    assert "bert" in err


def test_doctor_offers_what_there_is():
    """Every extra is one of the project's, and what it installs is used."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = "".join(p.read_text() for p in (ROOT / "src" / "formers").rglob("*.py") if p.name != "doctor.py")
    for name, (modules, _) in EXTRAS.items():
        assert name in extras
        assert all(module in sources for module in modules), name


def test_doctor(capsys):
    code, out, _ = run_command(capsys, "doctor")
    assert code == 0
    for word in ("versions", "torch threads", "C++ compiler", "disk", "varlen", "dense", "hub", "the server"):
        assert word in out


def test_doctor_says_where_bf16_is_slow(capsys, monkeypatch):
    from formers.nn import cpu_inference

    monkeypatch.setattr(cpu_inference, "can_prepack", lambda dtype: False)
    assert "works, slower than fp32" in " ".join(run_command(capsys, "doctor")[1].split())
