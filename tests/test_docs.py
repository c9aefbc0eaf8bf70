"""README and docs: their Python runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import formers
from formers.cli.main import app
from formers.data.readers import load_bundled_corpus
from formers.text.trainers import bpe, wordpiece
from formers.training.recipes import get_recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str):
    for page in PAGES:
        for number, (language, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            if language == kind:
                yield pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What the pages take for granted: the demo's models (untrained here), and one called my-bert."""
    folder = tmp_path_factory.mktemp("docs")
    for language in ("en", "ko"):
        tokenizer = wordpiece.train(load_bundled_corpus(language)[0][:200], 1024)
        f = formers.build("bert", head="mlm", vocab=len(tokenizer), **get_recipe("bert").model)
        f.tokenizer = tokenizer
        formers.save(f, folder / f"formers-demo-{language}" / "bert")
        pieces = bpe.train(load_bundled_corpus(language)[0][:40], 512)
        gpt2 = formers.build("gpt2", vocab=len(pieces), **get_recipe("gpt2").model)
        gpt2.tokenizer = pieces
        formers.save(gpt2, folder / f"formers-demo-{language}" / "gpt2")
    formers.save(f, folder / "my-bert")
    return folder


@pytest.mark.filterwarnings("ignore:new, untrained")
@pytest.mark.parametrize("text", list(blocks("python")))
def test_python(text, trained, monkeypatch, tmp_path, capsys):
    for part in trained.iterdir():
        (tmp_path / part.name).symlink_to(part)
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "docs", "exec"), {})
    assert "�" not in capsys.readouterr().out


def commands():
    for block in blocks("sh"):
        for line in block.values[0].splitlines():
            if words := shlex.split(line, comments=True):
                yield pytest.param(words, id=" ".join(words))


@pytest.mark.parametrize("words", list(commands()))
def test_commands_exist(words):
    if words[0] == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
        words = ["formers", words[1], *shlex.split(words[2].removeprefix("ARGS="))] if len(words) > 2 else []
    if words and words[0] == "formers":
        app.parse_args(words[1:], exit_on_error=False, print_error=False)
    elif words and words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.findall(r"\[(\w+)\]", words[-1])) <= set(extras)
    else:
        assert not words, "a command that nothing checks"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (page.parent / link).exists(), link


def test_the_family_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("make_family", ROOT / "scripts" / "make_family.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run python scripts/make_family.py"


def test_every_page_is_there_in_korean():
    english = {p.name for p in (ROOT / "docs" / "en").glob("*.md")} - {"design.md", "family.md"}
    assert english <= {p.name for p in (ROOT / "docs" / "ko").glob("*.md")}
