"""Names and shape: functions are verbs, docstrings stand alone, folders and files have a readable size."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import formers

ROOT = Path(formers.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# Words that end like a participle and are none.
VERBS = {
    "embed",
    "feed",
    "flatten",
    "listen",
    "need",
    "open",
    "read",
    "seed",
    "shutdown",
    "hidden",
    "shorten",
    "speed",
    "spread",
    "widen",
}
PARTICIPLE = re.compile(r"[a-z]+(ed|wn|ght|ung|iven|oken|tten|osen|aken|idden)$")
ADJECTIVES = {
    "alike", "alone", "anew", "apart", "bare", "beside", "busy", "clean", "dense", "enough", "even", "fine", "free",
    "good", "here", "known", "large", "less", "like", "near", "odd", "own", "plain", "quiet", "ready", "roomy", "same",
    "single", "small", "sure", "there", "together", "wary", "whole", "within", "without", "worth",
}  # fmt: skip


def list_functions(path: Path):
    """All functions and methods of a file, but for properties."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
            if not names & {"property", "cached_property"}:
                yield node


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_function_is_named_by_a_bare_participle_or_adjective(path):
    bad = [
        f"{node.name} (line {node.lineno})"
        for node in list_functions(path)
        if node.name not in VERBS and (PARTICIPLE.fullmatch(node.name) or node.name in ADJECTIVES)
    ]
    assert not bad


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_docstrings_stand_alone(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef))]
    bad = [
        f"{getattr(node, 'name', 'module')} (line {getattr(node, 'lineno', 1)})"
        for node in nodes
        if re.match(r"(the )?same\b|as\b", ast.get_docstring(node) or "", re.IGNORECASE)
    ]
    assert not bad


# Rooms and files whose docstrings do not all begin with a verb yet.
NOUN_FIRST = (
    "cli/", "data/preparation/", "evaluation/api.py", "models/", "text/tokenizer_kinds.py", "text/trainers/",
    "text/word_level.py", *(f"training/runs/{name}.py" for name in ("finetune", "prepare_data", "pretrain", "run")),
)  # fmt: skip


def test_docstrings_of_functions_begin_with_a_verb():
    """Articles and question words begin no docstring of a function."""
    bad = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in FILES
        if not path.relative_to(ROOT).as_posix().startswith(NOUN_FIRST)
        for node in list_functions(path)
        if re.match(r"(The|An?|What|Which|How|Whether|Where|All|Each|Every|One|True)\b", ast.get_docstring(node) or "")
    ]
    assert not bad, "\n".join(bad)


def test_folders_have_at_most_about_twenty_files():
    for folder in {path.parent for path in FILES}:
        count = len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
        assert count <= 22 or folder.name == "models", f"{folder.relative_to(ROOT)} has {count} files"


def test_few_files_are_tiny():
    tiny = [
        str(path.relative_to(ROOT))
        for path in FILES
        if path.name != "__init__.py" and path.read_text(encoding="utf-8").count("\n") < 60
    ]
    assert len(tiny) < 15, tiny
