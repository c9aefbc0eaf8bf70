"""The book: its pictures and translations are up to date, its links are followed, its tutorials become notebooks."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from formers.registry import FAMILIES

ROOT = Path(__file__).parents[1]


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def drop_shades(picture: str) -> str:
    """Leave out how dark a cell is: processors round differently."""
    return re.sub(r' fill-opacity="[\d.]+"', "", picture)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_pictures_of_the_families_are_up_to_date(language):
    script = load_script("make_pictures")
    for family in FAMILIES:
        picture = (script.PICTURES / language / f"{family}.svg").read_text(encoding="utf-8")
        message = f"run python scripts/make_pictures.py {family}"
        assert drop_shades(picture) == drop_shades(script.draw_family(family, language)), message


def test_no_korean_page_is_older_than_its_english_source():
    script = load_script("check_translations")
    stale = script.find_stale_pages(script.read_record())
    assert not stale, f"translate what changed, then python scripts/check_translations.py --update {' '.join(stale)}"


def test_a_translation_is_recorded_only_if_it_changed_with_its_source(tmp_path, monkeypatch):
    script = load_script("check_translations")
    monkeypatch.setattr(script, "DOCS", tmp_path)
    monkeypatch.setattr(script, "RECORD", tmp_path / "ko" / "sources.json")
    for language, text in (("en", "# A page"), ("ko", "# 페이지")):
        (tmp_path / language).mkdir()
        (tmp_path / language / "page.md").write_text(text, encoding="utf-8")
    assert script.find_stale_pages(script.read_record()) == ["page"]
    assert script.update_record(["page"], is_unchanged=False) == []
    assert script.find_stale_pages(script.read_record()) == []
    (tmp_path / "en" / "page.md").write_text("# A  page\n", encoding="utf-8")  # spaces are no change
    assert script.find_stale_pages(script.read_record()) == []
    (tmp_path / "en" / "page.md").write_text("# Another page", encoding="utf-8")
    assert script.find_stale_pages(script.read_record()) == ["page"]
    assert script.update_record(["page"], is_unchanged=False) == ["page"], "the Korean page has not changed"
    (tmp_path / "ko" / "page.md").write_text("# 다른 페이지", encoding="utf-8")
    assert script.update_record(["page"], is_unchanged=False) == []
    assert json.loads(script.RECORD.read_text(encoding="utf-8"))["page"] == script.compute_sums("page")


def test_what_the_race_fills_in_makes_no_page_older(tmp_path, monkeypatch):
    script = load_script("check_translations")
    monkeypatch.setattr(script, "DOCS", tmp_path)
    monkeypatch.setattr(script, "RECORD", tmp_path / "ko" / "sources.json")
    page = "# {0}\n" + "".join(f"<!-- {one} -->\n{{1}}\n<!-- end of {one} -->\n{{0}}\n" for one in script.FILLED_IN)
    for language in ("en", "ko"):
        (tmp_path / language).mkdir()
        (tmp_path / language / "page.md").write_text(page.format("words", "not run"))
    script.update_record(["page"], is_unchanged=False)
    (tmp_path / "en" / "page.md").write_text(page.format("words", "| 1 | BERT |"))
    assert script.find_stale_pages(script.read_record()) == []
    (tmp_path / "en" / "page.md").write_text(page.format("other words", "not run"))
    assert script.find_stale_pages(script.read_record()) == ["page"]


def test_the_check_of_the_site_finds_broken_links_and_foreign_files(tmp_path, monkeypatch):
    script = load_script("build_docs")
    monkeypatch.setattr(script, "SITE", tmp_path)
    (tmp_path / "book.css").write_text("@import url('https://fonts.example/a.css'); a { color: red }")
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#here">b</a><a href="https://example.org">away</a><a href="#top">up</a>'
    )
    (tmp_path / "b.html").write_text(
        '<h1 id="there">B</h1><a href="c.html">c</a><script src="https://cdn.example/x.js"></script>'
    )
    assert sorted(script.check_site()) == [
        "a.html: b.html#here: no such anchor",
        "b.html: c.html: no such file",
        "b.html: loads https://cdn.example/x.js from elsewhere",
        "book.css: loads https://fonts.example/a.css from elsewhere",
    ]


def test_links_lead_to_pages_of_the_site():
    stage = load_script("build_docs").Stage("ko")
    page = ROOT / "docs" / "ko" / "family" / "bert.md"

    def rewrite(text: str) -> str:
        return stage.rewrite_links(text, "family/bert", page)

    assert rewrite("[학습](../training.md#x)") == "[학습](../training.md#x)"
    assert rewrite("[결과](../../../benchmarks/RESULTS.md)") == '<a href="../../en/benchmarks/RESULTS.html">결과</a>'
    assert rewrite("[`BERT`](../../../src/formers/models/bert.py#BERT)") == (
        '<a href="../../source/src/formers/models/bert.py.html#BERT">`BERT`</a>'
    )
    assert rewrite("```md\n[a](../nowhere.md)\n```") == "```md\n[a](../nowhere.md)\n```"
    for place in ("images/family/ko/bert.svg", "race/ko-curves-masked-epochs-2.svg"):
        picture = rewrite(f"![그림](../../{place})")
        assert picture.startswith('<figure class="picture"><svg')
        assert picture.endswith("<figcaption>그림</figcaption></figure>"), "what a picture shows can be read"
        assert "<style>" not in picture


def test_definitions_of_source_pages_are_anchors():
    script = load_script("build_docs")
    body = script.add_anchors("<div><pre><span></span>A = 1\nclass B:\n    def c(self): ...\n</pre></div>",
                              "A = 1\nclass B:\n    def c(self): ...\n")  # fmt: skip
    assert re.findall(r'id="([\w.]+)"', body) == ["A", "B", "B.c"]


def test_the_reference_is_made_of_the_code():
    pages = load_script("make_reference").make_pages("en")
    assert "### formers.generate" in pages["reference/python"]
    assert "## formers pretrain\n" in pages["reference/commands"]
    assert "| `train.grad_clip` | `1.0` | the largest norm of the gradient; 0: none |" in pages["reference/settings"]
    assert all(f"## model: {name}\n" in pages["reference/settings"] for name in FAMILIES)


def test_the_order_of_the_book_names_every_page():
    script = load_script("build_docs")
    listed = [name for section in script.read_contents()["section"] for name in section["pages"]]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(script.list_pages("en")) & set(script.list_pages("ko"))
    assert {f"family/{name}" for name in FAMILIES} <= set(listed)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_every_family_page_has_the_same_sections(language):
    headings = {
        path.stem: re.findall(r"^## (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        for path in sorted((ROOT / "docs" / language / "family").glob("*.md"))
    }
    assert set(headings) == set(FAMILIES)
    assert len(headings["bert"]) == 9
    assert [name for name, found in headings.items() if found != headings["bert"]] == []


def test_a_tutorial_becomes_an_executed_notebook(tmp_path, monkeypatch, capfd):
    pytest.importorskip("nbclient")
    script = load_script("make_notebooks")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = script.execute_page(ROOT / "docs" / "en" / "tutorials" / "published-checkpoint.md", tmp_path)
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds == ["markdown", "code", "markdown"]
    assert notebook.cells[1].outputs[0].text == "True\n"
    assert sys.modules["nbformat"].validate(notebook) is None
    assert "without encryption" not in capfd.readouterr().err
