"""The structure of the package: imports point down only, no room has a verb's name, model files say what they must."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import formers
from formers.registry import FAMILIES, read_card

ROOT = Path(formers.__file__).parent
# From the ground up: a room may import its own floor and those below.
FLOORS = [
    {"errors", "config", "option_aliases", "verbs"},
    {"batch", "keymap", "text", "task"},
    {"nn", "family", "inputs"},
    {"model", "models"},
    {"registry", "data", "tasks"},
    {"objectives", "former"},
    {"inspection", "interop"},
    {"training", "generation", "evaluation", "reports"},
    {"cli", "__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
VERBS = {
    "load", "build", "save", "export", "generate", "fill", "classify", "score", "tag", "answer", "choose", "translate",
    "summarise", "embed", "neighbours", "pretrain", "finetune", "augment", "prepare", "tree",
}  # fmt: skip


def imports(path: Path):
    """The rooms that a file imports, whatever form the import has."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = path.relative_to(ROOT).parts[: -node.level]
                parts = (*base, *(node.module or "").split(".")) if node.module else base
                for alias in node.names:
                    yield (*parts, alias.name)[0]
            elif (node.module or "").startswith("formers."):
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("formers."):
                    yield alias.name.split(".")[1]


def room(path: Path) -> str:
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


FILES = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    for name in imports(path):
        if name in LEVEL:
            assert LEVEL[name] <= LEVEL[room(path)], f"{path.name} in {room(path)} reaches up into {name}"


def test_every_room_has_a_floor():
    assert {room(p) for p in FILES} <= set(LEVEL)


@pytest.mark.parametrize("path", [p for p in FILES if room(p) == "text"], ids=lambda p: p.name)
def test_text_imports_no_torch(path):
    assert "import torch" not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", [p for p in FILES if room(p) in ("objectives", "tasks")], ids=lambda p: p.name)
def test_objectives_and_tasks_are_handed_a_model(path):
    assert "models" not in set(imports(path))


def test_no_room_has_the_name_of_a_verb():
    assert not VERBS & {p.name.removesuffix(".py") for p in ROOT.iterdir()}


def test_only_dispatch_calls_attention_kernels():
    calls = ("scaled_dot_product_attention", "varlen_attn", "flex_attention(")
    users = {p.name for p in FILES if any(call in p.read_text(encoding="utf-8") for call in calls)}
    assert users == {"dispatch.py"}


def test_only_weights_reads_safetensors_and_only_pickled_weights_unpickles():
    assert {p.name for p in FILES if "safe_open" in p.read_text(encoding="utf-8")} == {"weights.py"}
    hdf5 = {p.name for p in FILES if "import h5py" in p.read_text(encoding="utf-8")}
    assert hdf5 == {"hdf5_weights.py", "bilm.py"}  # which read and which write
    for word in ("torch.load", "import pickle", "pickle.load"):
        users = {p.name for p in FILES if word in p.read_text(encoding="utf-8")}
        assert users <= {"pickled_weights.py"}, word


@pytest.mark.parametrize("name", FAMILIES)
def test_model_files_say_what_they_must(name):
    card = read_card(name)
    assert card.year >= 2013
    assert all((card.title, card.paper, card.parent, card.new, card.shapes, card.differs))


def test_a_card_in_bad_form_is_refused(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "odd.py").write_text('"""Odd (2020)\n\nParent  bert\n"""\n')
    monkeypatch.setattr("formers.registry.__file__", str(tmp_path / "registry.py"))
    with pytest.raises(formers.Error, match="not in form"):
        read_card.__wrapped__("odd")


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
