"""The structure of the package: the rooms and what they may import, and what each kind of file must say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import formers
from formers.registry import FAMILIES, FamilyEntry
from formers.verbs import METHODS

ROOT = Path(formers.__file__).parent
# From the ground up: a room may import those before it and no other, wherever the import stands (in a function or under
# TYPE_CHECKING too), so that the graph of rooms has no cycle. Where the order needs a reason:
# - protocols stands below data, whose loader takes any source of examples (ExampleSource); the half of an objective
#   that reads a token store is declared in data/plans.py.
# - interop stands above data, because formers.prepare joins a published tokenizer with a token store (without importing
#   torch), and below training and generation, which load and save models.
# - generation stands above tasks and evaluation, because augmentation reads examples and filters by a baseline.
# - reports stands below training, which writes a report at its end: a report is handed a run's records (protocols.py).
# - inspection stands above reports, whose drawing of a head it saves as a picture.
ORDER = [
    "errors", "ragged_arrays", "option_aliases", "config", "atomic_files", "batch", "text", "keymap", "nn", "family",
    "inputs", "model", "verbs", "registry", "task", "former", "models", "protocols", "data", "interop", "objectives",
    "tasks", "evaluation", "reports", "inspection", "generation", "training", "serving", "cli", "__main__",
]  # fmt: skip
# What the order alone would allow: objectives and tasks are handed a model, training a model that can decode.
FORBIDDEN = {
    ("objectives", "model"), ("objectives", "models"), ("objectives", "former"), ("tasks", "models"),
    ("tasks", "objectives"), ("training", "generation"), ("evaluation", "interop"), ("generation", "inspection"),
}  # fmt: skip
# Modules that import others of formers by name: the public names, a model's verbs, the families (and a rule of theirs).
IMPORT_BY_NAME = {"__init__.py", "verbs.py", "registry.py"}
VERBS = {
    "load", "build", "save", "export", "generate", "fill", "classify", "score", "tag", "answer", "choose", "translate",
    "summarise", "embed", "inspect", "neighbours", "pretrain", "finetune", "augment", "prepare", "tree",
}  # fmt: skip


def list_imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """The line and the room of every import of formers in a file of `package` (its path below formers)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1]
            base = ("formers", *above) if node.level else ()
            names = tuple(node.module.split(".")) if node.module else ()
            paths = [(*base, *names, alias.name) for alias in node.names]
        else:
            continue
        for path in paths:
            if path[0] == "formers" and path[1:2] != ("__version__",):
                yield node.lineno, path[1] if len(path) > 1 else "formers"


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def rooms_of(path: Path) -> list[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(line, name) for line, name in list_imports(tree, path.relative_to(ROOT).parts[:-1]) if name != room(path)]


def refuse(importer: str, imported: str) -> str | None:
    """Why a room may not import another; None if it may."""
    if imported not in ORDER:
        return f"{imported} is no room: import it from where it is defined"
    if (importer, imported) in FORBIDDEN:
        return f"{importer} may not import {imported}"
    return None if ORDER.index(imported) < ORDER.index(importer) else f"{importer} stands below {imported}"


FILES = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    reasons = [f"line {line}: {why}" for line, name in rooms_of(path) if (why := refuse(room(path), name))]
    assert not reasons, f"{path.relative_to(ROOT)}: {'; '.join(reasons)}"


def test_rooms_have_no_cycle():
    """Independent of the order: follow the imports from room to room."""
    graph = {name: set() for name in ORDER}
    for path in FILES:
        graph[room(path)] |= {name for _, name in rooms_of(path)}
    while ends := [name for name, below in graph.items() if not below]:
        graph = {name: below - set(ends) for name, below in graph.items() if name not in ends}
    assert not graph, f"a cycle among {sorted(graph)}"


def test_every_room_has_a_place():
    assert {room(p) for p in FILES} == set(ORDER)


def test_imports_are_found_wherever_they_stand():
    code = """
from ..model import Model
from .. import former
from . import html
from .. import __version__
import formers.cli.main
from formers import load
if TYPE_CHECKING:
    from ..training.trainer import Trainer
def f():
    from ..generation import api
"""
    names = [name for _, name in list_imports(ast.parse(code), ("reports",))]
    assert sorted(names) == ["cli", "former", "generation", "load", "model", "reports", "training"]
    assert [name for _, name in list_imports(ast.parse("from ...batch import Batch"), ("nn", "attention"))] == ["batch"]
    assert refuse("evaluation", "training") == "evaluation stands below training"
    assert refuse("training", "generation") == "training may not import generation"
    assert refuse("reports", "load") is not None
    assert refuse("training", "evaluation") is None


def test_only_tables_of_names_import_by_name():
    files = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in ROOT.rglob("*.py")}
    assert {name for name, text in files.items() if re.search(r'import\w*\(f?"formers', text)} <= IMPORT_BY_NAME
    assert METHODS["continue_ids"] == "generation.decoding"  # how evaluation and training decode


@pytest.mark.parametrize("path", [p for p in FILES if room(p) == "text"], ids=lambda p: p.name)
def test_text_imports_no_torch(path):
    assert "import torch" not in path.read_text(encoding="utf-8")


def test_no_room_has_the_name_of_a_verb():
    assert not VERBS & {p.name.removesuffix(".py") for p in ROOT.iterdir()}


def test_only_dispatch_calls_attention_kernels():
    calls = ("scaled_dot_product_attention", "_flash_attention_forward", "flex_attention(")
    users = {p.name for p in FILES if any(call in p.read_text(encoding="utf-8") for call in calls)}
    assert users == {"dispatch.py"}


def test_only_safe_files_reads_safetensors_and_only_the_sandbox_unpickles():
    assert {p.name for p in FILES if "safe_open" in p.read_text(encoding="utf-8")} == {"safe_files.py"}
    hdf5 = {p.name for p in FILES if "import h5py" in p.read_text(encoding="utf-8")}
    assert hdf5 == {"sandbox.py", "bilm.py"}  # which read and which write
    for word in ("torch.load", "import pickle", "pickle.load"):
        users = {p.name for p in FILES if word in p.read_text(encoding="utf-8")}
        assert users <= {"sandbox.py"}, word


@pytest.mark.parametrize("name", FAMILIES)
def test_model_files_say_what_they_must(name):
    card = FAMILIES[name].card
    assert card.year >= 2013
    assert all((card.title, card.paper, card.parent, card.new, card.shapes, card.differs))


def test_a_card_in_bad_form_is_refused(tmp_path, monkeypatch):
    (tmp_path / "odd_card.py").write_text('"""Odd (2020)\n\nParent  bert\n"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(formers.Error, match="not in form"):
        _ = FamilyEntry("odd", "", module="odd_card").card


def test_help_needs_no_torch():
    import subprocess
    import sys

    code = "import sys; from formers.cli import main; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    assert set(formers.__all__) >= {"load", "build", "save", "export", "tree", "Error"}
    for name in formers.__all__:
        assert getattr(formers, name) is not None
    assert "build" in dir(formers)
    with pytest.raises(AttributeError):
        formers.nothing  # noqa: B018
