"""Names and shape: functions are verbs, docstrings stand alone, folders and files have a readable size."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import formers

ROOT = Path(formers.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TESTS = sorted(Path(__file__).parent.rglob("*.py"))
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
    """Yield all functions and methods of a file, but for properties."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {getattr(d, "id", getattr(d, "attr", "")) for d in node.decorator_list}
            if not names & {"property", "cached_property"}:
                yield node


def list_bare_names(path: Path) -> list[str]:
    """List the functions of a file that are named by a bare participle or adjective, with their lines."""
    return [
        f"{node.name} (line {node.lineno})"
        for node in list_functions(path)
        if node.name not in VERBS and (PARTICIPLE.fullmatch(node.name) or node.name in ADJECTIVES)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_function_is_named_by_a_bare_participle_or_adjective(path):
    assert not list_bare_names(path)


def test_no_helper_of_tests_is_named_by_a_bare_participle_or_adjective():
    """Fixtures are values and have nouns: trained_run, not trained."""
    bad = {path.name: names for path in TESTS if (names := list_bare_names(path))}
    assert not bad


# Participles that say that there is something, not what. Fields that a reader of several files meets may have them.
BARE_LOCALS = {"asked", "found", "given", "judged", "learnt", "made", "said", "told", "wanted"}
# More words of this kind, which these rooms do without.
PLAIN_ROOMS = ("training", "tasks", "generation", "nn")
BARE_LOCALS_OF_PLAIN_ROOMS = {"begun", "few", "goal", "held", "how", "mine", "odd", "some", "sure", "twice"}


def list_bare_locals(source: str, words: set[str]) -> Iterator[tuple[int, str]]:
    """List the lines and names of variables of functions that are assigned under one of these words."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in words:
                    yield node.lineno, node.id


def test_values_have_nouns():
    bad = []
    for path in FILES:
        is_plain = path.relative_to(ROOT).parts[0] in PLAIN_ROOMS
        words = BARE_LOCALS | BARE_LOCALS_OF_PLAIN_ROOMS if is_plain else BARE_LOCALS
        names = sorted(set(list_bare_locals(path.read_text(encoding="utf-8"), words)))
        bad += [f"{path.relative_to(ROOT)}:{line} {name}" for line, name in names]
    assert not bad, "say what it is:\n" + "\n".join(bad)
    source = "def f():\n    found = 1\n    return [made for made in g(asked=1) if (told := made.given)]"
    assert {name for _, name in list_bare_locals(source, BARE_LOCALS)} == {"found", "made", "told"}


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


def test_docstrings_of_functions_begin_with_a_verb():
    """Check that no docstring of a function begins with an article, a question word or a quantifier."""
    bad = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in FILES
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


# Rooms, and files beside them, in which whatever types cannot say has a reason; "" are the files at the root.
TYPED_ROOMS = (
    "", "nn", "generation", "models", "evaluation", "inspection", "interop", "training", "tasks", "data", "text",
    "objectives", "cli", "reports", "serving", "experiments", "comparison",
)  # fmt: skip
DYNAMIC = {"Any", "getattr", "hasattr", "vars"}


def list_unexplained(source: str) -> Iterator[tuple[int, str]]:
    """List the uses of DYNAMIC names in a file, as (line, name), without `# dynamic: reason` on their line."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in DYNAMIC:
            line = lines[token.start[0] - 1]
            if not line.startswith("from typing import ") and not re.search(r"# dynamic: \S", line):
                yield token.start[0], token.string


def test_every_room_is_typed():
    assert set(TYPED_ROOMS) == {"", *(path.parent.name for path in ROOT.glob("*/__init__.py"))}


@pytest.mark.parametrize("room", TYPED_ROOMS)
def test_what_types_cannot_say_has_a_reason(room):
    files = sorted(ROOT.glob("*.py")) if room == "" else sorted((ROOT / room).rglob("*.py"))
    assert files
    bad = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in files
        for line, name in list_unexplained(path.read_text(encoding="utf-8"))
    ]
    assert not bad, "say why, with `# dynamic: reason` on the line, or give a type:\n" + "\n".join(bad)


# Reasons that say no more than that there is none.
WEAK_REASON = re.compile(r"# dynamic: (as above|see |any |of any|of anything|checked below|\w+$)")


def test_reasons_say_something():
    bad = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if WEAK_REASON.search(line)
    ]
    assert not bad, bad
    assert WEAK_REASON.search("x: Any  # dynamic: polars")
    assert not WEAK_REASON.search("x: Any  # dynamic: polars, which need not be installed")


def test_reasons_are_looked_for_on_the_line_itself():
    source = """from typing import Any
x: Any = getattr(y, "getattr")
# Any
z: list[Any]  # dynamic: of a file
w = hasattr(
    z, "a")  # dynamic: too late
heads = vars(config).get("heads")
"""
    assert list(list_unexplained(source)) == [(2, "Any"), (2, "getattr"), (5, "hasattr"), (7, "vars")]
