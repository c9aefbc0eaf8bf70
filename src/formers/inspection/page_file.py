"""The viewer in one file: its modules joined into a script, in an HTML page that needs no network.

The modules of inspection/page/ are ES modules that a server sends as they are. A file opened from a disk may not load
modules, so they are joined here, each in a function of its own: `import {a} from "./b.js"` becomes `const {a} = …`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
from importlib import resources

from ..config import JSONObject
from ..errors import Error

ENTRY_MODULE = "viewer.js"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.MULTILINE)


def read_page_file(name: str) -> str:
    """Read a file of inspection/page/."""
    return resources.files("formers.inspection").joinpath("page", name).read_text(encoding="utf-8")


@functools.cache
def order_modules(entry: str = ENTRY_MODULE) -> tuple[str, ...]:
    """List the modules that an entry needs, each after those that it imports."""
    ordered: list[str] = []

    def add_module(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise Error(f"the modules {' → '.join((*importers, name))} import each other", where="inspection/page")
        if name not in ordered:
            for _, imported in IMPORT.findall(read_page_file(name)):
                add_module(imported, (*importers, name))
            ordered.append(name)

    add_module(entry, ())
    return tuple(ordered)


@functools.cache
def join_modules(entry: str = ENTRY_MODULE) -> str:
    """Join the modules into one script; `formersModules["viewer.js"]` has the names that viewer.js exports."""
    parts = ["const formersModules = {};\n"]
    for name in order_modules(entry):
        source = read_page_file(name)
        exported = ", ".join(EXPORT.findall(source))
        body = IMPORT.sub(lambda match: f'const {{{match[1]}}} = formersModules["{match[2]}"];\n', source)
        body = EXPORT.sub("", body)
        if re.search(r"^(?:import|export)\b", body, re.MULTILINE):
            raise Error(f"{name} has an import or export that cannot be joined", where="inspection/page")
        parts.append(f'formersModules["{name}"] = (() => {{\n{body}return {{ {exported} }};\n}})();\n')
    return "".join(parts)


def compute_csp_hash(content: str) -> str:
    """Compute the hash by which a content security policy allows an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def render_page(document: JSONObject, language: str = "en") -> str:
    """Render a view document as one HTML page that loads nothing: a policy in it forbids every request."""
    style = read_page_file("page.css")
    script = (
        '"use strict";\n'
        + join_modules()
        + 'formersModules["viewer.js"].mountPage(document.getElementById("root"), '
        + 'JSON.parse(document.getElementById("view-document").textContent), document.documentElement.lang);\n'
    )
    policy = (
        f"default-src 'none'; script-src {compute_csp_hash(script)}; style-src {compute_csp_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    first = (document.get("compare") or [document])[0]
    # Inside a script element only "<" could end it early.
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="{html.escape(language)}"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(str(first['model']['name']))}</title>\n<style>{style}</style></head>\n"
        '<body class="formers-page"><div id="root"></div>\n'
        f'<script type="application/json" id="view-document">{data}</script>\n<script>{script}</script></body></html>\n'
    )
