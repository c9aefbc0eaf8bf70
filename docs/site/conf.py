"""Sphinx's settings for one language of the book; scripts/build_docs.py stages the pages and runs it."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.search import SearchLanguage, languages

SITE = Path(__file__).parent
LANGUAGE = os.environ["BOOK_LANGUAGE"]
WORDS = tomllib.loads((SITE.parent / "contents.toml").read_text(encoding="utf-8"))["words"][LANGUAGE]
OTHER = {"en": "ko", "ko": "en"}[LANGUAGE]

# Particles and endings that stand at the end of a Korean word: a search for 어텐션 has to find 어텐션을.
PARTICLES = (
    "에서는", "에서도", "으로는", "으로도", "에게서", "이라고", "에서", "에게", "으로", "까지",
    "부터", "처럼", "보다", "마다", "조차", "라고", "이나", "이며", "하고", "라는", "은", "는",
    "이", "가", "을", "를", "의", "에", "로", "와", "과", "도", "만", "나",
)  # fmt: skip
ENDING = f"([가-힣]{{2,}}?)({'|'.join(PARTICLES)})"


class KoreanSearch(SearchLanguage):
    """Splits Korean text at spaces and punctuation, and cuts particles off in the index and in what is looked for."""

    lang = "ko"
    language_name = "Korean"
    stopwords: frozenset[str] = frozenset()
    js_stemmer_code = f"""
var Stemmer = function () {{
  var ending = /^{ENDING}$/;
  this.stemWord = function (word) {{ var cut = ending.exec(word); return cut ? cut[1] : word.toLowerCase(); }};
}};
"""

    def stem(self, word: str) -> str:
        """Return a word without its particle."""
        cut = re.fullmatch(ENDING, word)
        return cut[1] if cut else word.lower()


languages["ko"] = KoreanSearch

project = "formers"
author = "formers"
project_copyright = "formers, Apache-2.0"
language = LANGUAGE
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
nitpicky = True
suppress_warnings = ["myst.header"]  # a page made of parts may begin at the second level
html_theme = "furo"
html_title = WORDS["title"]
html_static_path = [str(SITE / "static")]
html_css_files = ["book.css"]
html_favicon = str(SITE / "static" / "icon.svg")
html_js_files = ["book.js"]
templates_path = [str(SITE / "templates")]
html_copy_source = False
html_show_search_summary = False  # it fetches pages, which a browser refuses for files
html_show_sourcelink = False
html_show_sphinx = False
html_extra_path = [os.environ["BOOK_EXTRA"]]
OTHER_PAGES = set((Path(os.environ["BOOK_PAGES"]) / f"pages-{OTHER}.txt").read_text(encoding="utf-8").split())


def find_counterpart(name: str) -> str:
    """Return the page of the other language to a page; the first page where there is none."""
    return f"{name if name in OTHER_PAGES or name in ('search', 'genindex') else 'index'}.html"


html_context = {"language_name": WORDS["other_name"], "other_language": OTHER, "switch_label": WORDS["switch"]}


def add_counterpart(app: Sphinx, page: str, template: str, context: dict[str, object], tree: object) -> None:
    """Give a page's template the address of its counterpart, and its text options that no line break divides."""
    context["counterpart"] = find_counterpart(page)
    if "body" in context:
        context["body"] = str(context["body"]).replace('<span class="pre">-', '<span class="pre option">-')


def setup(app: Sphinx) -> None:
    """Attach the language switch and the marks of options."""
    app.connect("html-page-context", add_counterpart)


html_sidebars = {
    "**": [
        "sidebar/brand.html", "language.html", "sidebar/search.html", "sidebar/scroll-start.html",
        "sidebar/navigation.html", "sidebar/scroll-end.html",
    ]
}  # fmt: skip
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
html_theme_options = {
    "light_css_variables": {
        "font-stack": "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'Noto Sans KR', 'Noto Sans CJK KR',"
        " 'Apple SD Gothic Neo', 'Malgun Gothic', sans-serif",
        "font-stack--monospace": "ui-monospace, 'SFMono-Regular', 'DejaVu Sans Mono', 'Noto Sans Mono CJK KR',"
        " monospace",
        "color-brand-primary": "#1d4ed8", "color-brand-content": "#1d4ed8",
    },
    "dark_css_variables": {"color-brand-primary": "#8ab4ff", "color-brand-content": "#8ab4ff"},
}  # fmt: skip
