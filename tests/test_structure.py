"""The structure of the package: the rooms and what they may import, and what each kind of file must say."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import formers
from formers import verbs
from formers.former import Former
from formers.interop.tokenizer_files import save_tokenizer
from formers.objectives.registry import OBJECTIVES
from formers.registry import FAMILIES, FamilyEntry, find_shown_family, list_tokenizer_styles, train_tokenizer
from formers.verbs import FUNCTION_IMPORTERS

ROOT = Path(formers.__file__).parent
# From the ground up: a room may import those before it and no other, wherever the import stands (in a function or under
# TYPE_CHECKING too), so that the graph of rooms has no cycle. Where the order needs a reason:
# - protocols stands below data, whose loader takes any source of examples (ExampleSource); the half of an objective
#   that reads a token store is declared in data/plans.py.
# - registry stands above models, which it imports by name; below it, a model file or a family is an argument.
# - interop stands above data, because formers.prepare joins a published tokenizer with a token store (without importing
#   torch), and below training and generation, which load and save models.
# - generation stands above tasks and evaluation, because augmentation reads examples and filters by a baseline.
# - reports stands below training, which writes a report at its end: a report is handed a run's records (protocols.py).
# - inspection stands above reports, whose drawing of a head it saves as a picture.
# - comparison stands above training and evaluation, whose runs it plans, starts and reports.
# - experiments stands above training, generation and inspection, whose functions it shows; only cli imports it.
ORDER = [
    "errors", "ragged_arrays", "option_aliases", "config", "atomic_files", "batch", "text", "keymap", "nn", "family",
    "inputs", "model", "verbs", "task", "models", "registry", "former", "protocols", "data", "interop", "objectives",
    "tasks", "evaluation", "reports", "inspection", "generation", "training", "comparison", "experiments",
    "serving", "cli",
    "__main__",
]  # fmt: skip
# What the order alone would allow: objectives and tasks are handed a model, training a model that can decode.
FORBIDDEN = {
    ("objectives", "model"), ("objectives", "models"), ("objectives", "former"), ("tasks", "models"),
    ("tasks", "objectives"), ("training", "generation"), ("evaluation", "interop"), ("generation", "inspection"),
}  # fmt: skip
# Imports by a name that is not written in the call, which no graph can count, and why none of them points up.
UNNAMED_IMPORTS = {
    "__init__.py": "the public names and a model's verbs: the root stands above all rooms",
    "text/tokenizer_kinds.py": "trainers of its own room, named relatively to it",
    "data/text_files.py": "packages of the extra `data`",
}
# Tables outside of the model files and the registry that name several members (file → why it may). Names that are not
# only members' do not count: an objective's (seq2seq, switch).
FAMILY_TABLES = {
    "cli/demo.py": "the demo is about these two models",
    "experiments/input_transformations.py": "the experiment is about these two models",
    "interop/word_vectors.py": "formats of published word vectors, named after the programs that write them",
}
VERBS = {
    "load", "build", "save", "export", "generate", "fill", "classify", "score", "tag", "answer", "choose", "translate",
    "summarise", "embed", "inspect", "neighbours", "pretrain", "finetune", "augment", "prepare", "tree",
    "compare",
}  # fmt: skip


def find_named_modules(node: ast.AST) -> list[str] | None:
    """Return the modules that a call of import_module or __import__ names; None: the node is no such call."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return None
    called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
    if called not in ("import_module", "__import__"):
        return None
    parts = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
    return [part for part in parts if isinstance(part, str) and part.strip(".")]


def list_imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield the line and the room of every import of formers in a file of `package` (its path below formers), also by
    name: import_module(f"formers.models.{name}") imports models."""
    for node in ast.walk(tree):
        if (modules := find_named_modules(node)) is not None:
            paths = [tuple(module.rstrip(".").split(".")) for module in modules]
        elif isinstance(node, ast.Import):
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


def get_room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def list_rooms(path: Path) -> list[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (line, name) for line, name in list_imports(tree, path.relative_to(ROOT).parts[:-1]) if name != get_room(path)
    ]


def explain_refusal(importer: str, imported: str) -> str | None:
    """Say why a room may not import another; None if it may."""
    if imported not in ORDER:
        return f"{imported} is no room: import it from where it is defined"
    if (importer, imported) in FORBIDDEN:
        return f"{importer} may not import {imported}"
    return None if ORDER.index(imported) < ORDER.index(importer) else f"{importer} stands below {imported}"


TESTS = Path(__file__).parent
# Folders of tests that follow no module: they compare with other programs, break things, or need a GPU or a browser.
WHOLE_PACKAGE = {"parity", "faults", "gpu", "browser"}
# Test files that follow no single module, with the reason.
NO_MODULE = {
    "benchmarks/test_gpu_suite.py": "benchmarks/gpu_suite.py",
    "test_book.py": "the book and the scripts that make it",
    "test_book_commands.py": "the shell commands of the pages",
    "test_docs.py": "the pages of docs/ and README",
    "test_release.py": "what a release says of itself",
    "test_shipped_scripts.py": "the scripts that make the shipped models, and those models",
    "test_structure.py": "the whole package",
    "test_style.py": "the whole package",
    "benchmarks/test_claims.py": "the claims of the papers, which stand in benchmarks/",
    "comparison/test_race_script.py": "scripts/run_race.py, the race of the documentation",
    "interop/test_every_export.py": "every family, from pretraining to other programs and back",
    "models/test_family.py": "every family, by being registered",
    "models/test_toy_member.py": "a family that lies outside of the package",
    "nn/attention/kernels/test_triton_interpreter.py": "all kernels, by triton's own interpreter",
    "nn/test_types.py": "precision and defaults of all layers",
    "objectives/test_every_family.py": "every family with its own objective",
    "objectives/test_frozen.py": "the batches of every objective, kept from version to version",
    "training/test_every_family.py": "every family, trained with its own objective",
    "serving/test_clients.py": "real clients against the whole server",
}

FILES = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    reasons = [
        f"line {line}: {why}" for line, name in list_rooms(path) if (why := explain_refusal(get_room(path), name))
    ]
    assert not reasons, f"{path.relative_to(ROOT)}: {'; '.join(reasons)}"


def test_rooms_have_no_cycle():
    """Independent of the order: follow the imports from room to room."""
    graph = {name: set() for name in ORDER}
    for path in FILES:
        graph[get_room(path)] |= {name for _, name in list_rooms(path)}
    while ends := [name for name, below in graph.items() if not below]:
        graph = {name: below - set(ends) for name, below in graph.items() if name not in ends}
    assert not graph, f"a cycle among {sorted(graph)}"


def test_every_room_has_a_place():
    assert {get_room(p) for p in FILES} == set(ORDER)


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
    importlib.import_module(own or f"formers.models.{name}")
    __import__("formers.interop.hub")
    import_module("torch")
"""
    names = [name for _, name in list_imports(ast.parse(code), ("reports",))]
    assert sorted(names) == [
        "cli", "former", "generation", "interop", "load", "model", "models", "reports", "training",
    ]  # fmt: skip
    assert [name for _, name in list_imports(ast.parse("from ...batch import Batch"), ("nn", "attention"))] == ["batch"]
    assert explain_refusal("evaluation", "training") == "evaluation stands below training"
    assert explain_refusal("training", "generation") == "training may not import generation"
    assert explain_refusal("reports", "load") is not None
    assert explain_refusal("training", "evaluation") is None


def test_imports_by_name_are_counted():
    """Every import by name says its room where it stands, so that the tests above count it, or is listed."""
    unnamed = set()
    for path in ROOT.rglob("*.py"):
        found = map(find_named_modules, ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        bare = [names for names in found if names is not None and not [n for n in names if n != "formers."]]
        unnamed |= {path.relative_to(ROOT).as_posix()} if bare else set()
    assert unnamed == set(UNNAMED_IMPORTS)
    assert "models" in {name for _, name in list_rooms(ROOT / "registry.py")}


def test_the_root_attaches_every_verb():
    """So that a Former, and evaluation and training that are handed one, decode without importing generation."""
    assert set(FUNCTION_IMPORTERS) == {*verbs.VERBS, *verbs.METHODS}
    for name, import_function in FUNCTION_IMPORTERS.items():
        function = import_function()
        assert function.__name__ == name
        assert next(iter(inspect.signature(function).parameters.values())).annotation in ("Former", Former)
    with pytest.raises(formers.Error, match="neither a verb nor a method"):
        verbs.attach_verb("sing", lambda: print)


@pytest.mark.parametrize("path", [p for p in FILES if get_room(p) == "text"], ids=lambda p: p.name)
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
    for word in ("torch.load", "import pickle", "pickle.load", "from .plain_pickle"):
        users = {p.name for p in FILES if word in p.read_text(encoding="utf-8")}
        # plain_pickle.py has an unpickler that imports nothing, for the sandbox alone
        assert users <= ({"sandbox.py", "plain_pickle.py"} if word == "import pickle" else {"sandbox.py"}), word


@pytest.mark.parametrize("name", FAMILIES)
def test_model_files_say_what_they_must(name):
    card = FAMILIES[name].card
    assert card.year >= 2013
    assert all((card.title, card.paper, card.parent, card.new, card.shapes, card.differs))
    assert re.search("[가-힣]", card.korean)


def list_family_tables(tree: ast.AST, names: set[str]) -> Iterator[set[str]]:
    """The names of members in every table that holds two or more: the keys or the values of a dict (or of a call of
    dict), the elements of a tuple, list or set."""

    def is_name(node: ast.AST | None) -> bool:
        return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names

    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            groups = [node.keys, node.values]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            groups = [node.elts]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
            groups = [[ast.Constant(key.arg) for key in node.keywords], [key.value for key in node.keywords]]
        else:
            continue
        for group in groups:
            if len(found := {part.value for part in group if is_name(part)}) > 1:
                yield found


def test_a_members_facts_are_in_its_file():
    """No other table is keyed by members: what the rooms ask about one is a field of its FAMILY, or of its entry."""
    entries = FAMILIES.values()
    names = {name for entry in entries for name in (entry.name, *entry.aliases, *entry.methods)} - set(OBJECTIVES)
    tables = [{"bert", "t5"}, {"gpt2", "albert"}, {"gpt", "mt5"}]
    for code, table in zip(
        ("{'bert': 1, 't5': 2}", "{1: ('gpt2', 'albert')}", "dict(gpt=1, mt5=2)"), tables, strict=True
    ):
        assert list(list_family_tables(ast.parse(code), names)) == [table]
    assert not list(list_family_tables(ast.parse("A = {'bert': 't5', 'x': 'y'}, ('seq2seq', 'switch')"), names))
    found: dict[str, list[set[str]]] = {}
    for path in FILES:
        if get_room(path) not in ("models", "registry"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found[path.relative_to(ROOT).as_posix()] = list(list_family_tables(tree, names))
    strange = {name: rows for name, rows in found.items() if rows and name not in FAMILY_TABLES}
    assert not strange, "declare it in the model files"
    assert all(found[name] for name in FAMILY_TABLES), "an exception that is no longer needed"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_has_a_family_that_shows_it(objective):
    assert find_shown_family(objective).definition.tokenizer_style in list_tokenizer_styles()
    declared = [entry.name for entry in FAMILIES.values() if objective in entry.definition.shown_objectives]
    assert len(declared) < 2, "two families show it"


def test_a_card_in_bad_form_is_refused(tmp_path, monkeypatch):
    (tmp_path / "odd_card.py").write_text('"""Odd (2020)\n\nParent  bert\n"""\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(formers.Error, match="not in form"):
        _ = FamilyEntry("odd", "", module="odd_card").card


def list_test_imports(code: str) -> Iterator[str]:
    """Yield the test modules that a file imports, also in code that it keeps in a string for another process."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from (name for name in names if name.rpartition(".")[2].startswith("test_"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^\s*(?:from|import) [^\n]*?\b(test_\w+)", node.value, re.MULTILINE)


def test_imports_of_test_modules_are_found():
    for line in (
        "from tests.cli.test_main import run",
        "import tests.cli.test_main",
        "from tests.cli import test_main",
    ):
        assert list(list_test_imports(line)), line
        assert list(list_test_imports(f"def f():\n    {line}")), line
        assert list(list_test_imports(f"CODE = {line!r}")), line
    assert list(list_test_imports("from .test_main import run"))
    assert not list(list_test_imports('"""`python -m tests.objectives.test_frozen` prints the sums."""\nimport tests'))


def test_no_file_imports_a_test_module():
    """What several tests share lies in a helper module or a conftest.py, so that each file is understood alone."""
    folders = TESTS, TESTS.parent / "benchmarks"
    bad = [
        f"{path.relative_to(TESTS.parent)} imports {name}"
        for path in sorted(p for folder in folders for p in folder.rglob("*.py") if p != Path(__file__))
        for name in list_test_imports(path.read_text(encoding="utf-8"))
    ]
    assert not bad, "\n".join(bad)


def has_module(path: Path) -> bool:
    """Return whether a test file is named after a module in the folder of the package that its own folder mirrors, or
    after such a module and what of it is tested: test_runner_reuse.py follows runner.py."""
    name, folder = path.stem.removeprefix("test_"), ROOT / path.parent.relative_to(TESTS)
    return any(f"{name}_".startswith(f"{module.stem}_") for module in folder.glob("*.py"))


def test_tests_follow_their_modules():
    files = {path.relative_to(TESTS).as_posix(): path for path in TESTS.rglob("test_*.py")}
    others = {name for name, path in files.items() if not has_module(path) and Path(name).parts[0] not in WHOLE_PACKAGE}
    assert sorted(others - NO_MODULE.keys()) == [], "no module has this name: rename the file, or say why in NO_MODULE"
    assert sorted(NO_MODULE.keys() - others) == [], "these are gone, or follow a module now"


def test_help_needs_no_torch():
    import subprocess
    import sys

    code = "import sys; from formers.cli import main; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_tokenizer_of_ours_needs_no_torch(tmp_path):
    """Model files declare the styles of tokenizers, and import torch; a directory that names its special tokens needs
    none of them. One that does not is recognised by them."""
    import subprocess
    import sys

    save_tokenizer(train_tokenizer("bert", ["the cat"] * 3, 60, workers=1), tmp_path / "named")
    code = (
        "import sys; from formers.interop.tokenizer_files import load_tokenizer; made = load_tokenizer(sys.argv[1]); "
    )
    code += "print(made.special['cls'], 'torch' in sys.modules)"
    for expected in ("[CLS] False\n", "[CLS] True\n"):
        call = [sys.executable, "-c", code, str(tmp_path / "named")]
        assert subprocess.run(call, check=True, capture_output=True, text=True).stdout == expected
        (tmp_path / "named" / "tokenizer_config.json").write_text("{}")


def test_public_names():
    assert set(formers.__all__) >= {"load", "build", "save", "export", "tree", "Error"}
    for name in formers.__all__:
        assert getattr(formers, name) is not None
    assert "build" in dir(formers)
    with pytest.raises(AttributeError):
        formers.nothing  # noqa: B018
