"""The page in one file, without a browser: modules joined, words complete in both languages, nothing loaded."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources

import pytest

from formers.errors import Error
from formers.inspection import page_file
from formers.inspection.page_file import join_modules, order_modules, render_page

PAGE = resources.files("formers.inspection").joinpath("page")
PLAYGROUND = resources.files("formers.serving").joinpath("playground")
DOCUMENT = {
    "format": 1,
    "model": {"name": "a <b>", "family": "bert", "kind": "encoder", "layers": 1, "heads": 1, "dim": 4, "parameters": 9},
    "sides": {"text": {"text": "</script><!-- 한국어", "segments": None, "memory": 0, "tokens": []}},
}
# Names that the code puts together, as in text(`tab_${view.id}`), with what may follow.
COMPOSED = re.compile(r"\btext\(\s*`([\w -]+)\$\{")
PLAIN = re.compile(r'\b(?:text|count)\(\s*(?:[\w.]+ \? )?"([\w -]+)"')


def read_table(folder) -> dict[str, dict[str, str]]:
    """The words of strings.js by language: `name: "words"` or `"name": "words"`."""
    source = folder.joinpath("strings.js").read_text(encoding="utf-8")
    tables = {}
    for language in ("en", "ko"):
        start = source.index(f"  {language}: {{")
        body = source[start : source.index("\n  },", start)]
        pairs = re.findall(r'(?:"([^"]+)"|\b(\w+)): "((?:[^"\\]|\\.)*)"', body)
        names = [quoted or bare for quoted, bare, _ in pairs]
        assert len(names) == len(set(names)), "a name stands twice"
        tables[language] = {quoted or bare: words for quoted, bare, words in pairs}
    return tables


def read_sources(folder) -> str:
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return "\n".join(f.read_text(encoding="utf-8") for f in files if f.name.endswith(".js") and f.name != "strings.js")


@pytest.mark.parametrize("folder", [PAGE, PLAYGROUND], ids=["page", "playground"])
def test_both_languages_have_the_same_words(folder):
    tables = read_table(folder)
    assert len(tables["en"]) > 50
    assert tables["en"].keys() == tables["ko"].keys()
    for name, words in tables["en"].items():
        holes = [sorted(re.findall(r"\{(\w+)\}", tables[language][name])) for language in ("en", "ko")]
        assert holes[0] == holes[1], f"{name}: other values in Korean"
        assert words.strip()


@pytest.mark.parametrize("folder", [PAGE, PLAYGROUND], ids=["page", "playground"])
def test_every_name_that_is_used_is_in_the_table_and_none_is_idle(folder):
    names, source = set(read_table(folder)["en"]), read_sources(folder)
    if folder is PLAYGROUND:  # its page's switches are made by the viewer, with the words of the playground
        source += PAGE.joinpath("viewer.js").read_text(encoding="utf-8").split("export function makeSwitches")[1]
    used = set(PLAIN.findall(source)) - {"en"}
    prefixes = set(COMPOSED.findall(source))
    missing = [
        name for name in used if name not in names and not (folder is PLAYGROUND and name in read_table(PAGE)["en"])
    ]
    assert not missing
    assert all(any(name.startswith(prefix) for name in names) for prefix in prefixes), prefixes
    mentioned = set(re.findall(r'["`]([\w -]+)["`$]', source))
    idle = [
        n for n in names if n not in mentioned and not any(n.startswith(p) for p in prefixes) and f"{n}" not in used
    ]
    assert not [name for name in idle if not name.endswith("_one")]


def test_modules_are_joined_in_the_order_of_their_imports():
    order = order_modules()
    assert order[-1] == "viewer.js"
    assert {file.name for file in PAGE.iterdir() if file.name.endswith(".js")} == set(order), "a module is left out"
    script = join_modules()
    for name in order:
        for imported in re.findall(r'formersModules\["([\w.]+)"\];', script.split(f'formersModules["{name}"] = ')[1]):
            assert order.index(imported) < len(order)
            break
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)


def test_a_module_that_cannot_be_joined_is_refused(monkeypatch):
    sources = {"a.js": 'import b from "./b.js";\nexport const a = 1;\n'}
    monkeypatch.setattr(page_file, "read_page_file", sources.__getitem__)
    page_file.order_modules.cache_clear()
    page_file.join_modules.cache_clear()
    with pytest.raises(Error, match="cannot be joined"):
        join_modules("a.js")
    page_file.order_modules.cache_clear()
    page_file.join_modules.cache_clear()


def test_modules_that_import_each_other_are_refused(monkeypatch):
    sources = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    monkeypatch.setattr(page_file, "read_page_file", sources.__getitem__)
    page_file.order_modules.cache_clear()
    with pytest.raises(Error, match="import each other"):
        order_modules("a.js")
    page_file.order_modules.cache_clear()


def test_the_page_allows_its_own_script_and_style_alone():
    page = render_page(DOCUMENT, "ko")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert policy.startswith("default-src 'none'; ")
    assert "http" not in policy
    for tag in ("script", "style"):
        content = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert len(content) == 1
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert '<html lang="ko">' in page
    assert not re.search(r"<(?:link|img|iframe|script src)", page.replace("<image", ""))


def test_the_document_comes_back_whole_and_cannot_leave_its_element():
    page = render_page(DOCUMENT)
    data = re.search(r'<script type="application/json" id="view-document">(.*?)</script>', page, re.DOTALL)[1]
    assert json.loads(data) == DOCUMENT
    assert "<" not in data
    assert f"<title>{html.escape('a <b>')}</title>" in page


def test_a_comparison_takes_its_title_from_the_first():
    assert "<title>a &lt;b&gt;</title>" in render_page({"format": 1, "compare": [DOCUMENT, DOCUMENT]})


def test_pages_name_no_other_host():
    for folder in (PAGE, PLAYGROUND):
        for file in folder.iterdir():
            text = file.read_text(encoding="utf-8")
            hosts = set(re.findall(r"https?://[\w.]+", text)) - {"http://www.w3.org"}  # the name of SVG, not an address
            assert not hosts, file.name
