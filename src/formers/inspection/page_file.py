"""One HTML file that shows a view document without any network: the page's modules and the document inside it."""

from __future__ import annotations

import html
import json
from importlib import resources

from ..config import JSONObject


def render_page(document: JSONObject) -> str:
    """Render a page that holds the document, with whatever style sheets and scripts lie in `page/`."""
    folder = resources.files("formers.inspection").joinpath("page")
    files = sorted((f for f in folder.iterdir() if f.name.endswith((".css", ".js"))), key=lambda f: f.name)
    texts = {f.name: f.read_text(encoding="utf-8") for f in files}
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    style = "".join(f"<style>{text}</style>" for name, text in texts.items() if name.endswith(".css"))
    title = html.escape(str(document.get("model", {}).get("name", "formers")))
    head = f'<!doctype html><html><head><meta charset="utf-8"><title>{title}</title>{style}</head>'
    return f'{head}<body><script type="application/json" id="view">{data}</script></body></html>\n'
