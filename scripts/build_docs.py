"""Build the book, in English and Korean, into build/site: python scripts/build_docs.py

Pages are staged first: links into the code lead to coloured copies of the files, pictures are put into the page so that
they follow its theme, and the reference is made from the code (scripts/make_reference.py). Sphinx builds each language
with warnings as errors. Then every link and anchor of the finished pages is followed, and nothing may be fetched from
elsewhere when a page is read.
"""

from __future__ import annotations

import ast
import html
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BUILD = ROOT / "build"
SITE = BUILD / "site"
LANGUAGES = {"en": "English", "ko": "한국어"}
FENCE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
SOURCE_STYLE = """<style>body{margin:0 auto;max-width:70rem;padding:1rem;font-family:system-ui,sans-serif}
pre{overflow-x:auto;line-height:1.4}span.definition:target{background:#fde68a;color:#000}
@media(prefers-color-scheme:dark){body{background:#131416;color:#ddd}a{color:#8ab4ff}%s}%s</style>"""


def read_contents() -> dict[str, object]:
    """Read the order of the book."""
    return tomllib.loads((DOCS / "contents.toml").read_text(encoding="utf-8"))


def list_pages(language: str) -> dict[str, Path]:
    """List the pages of a language that are files of the repository, by their names on the site."""
    folder = DOCS / language
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}
    if language == "en":
        sections = read_contents()["section"]
        pages["README"] = ROOT / "README.md"
        pages |= {name: ROOT / f"{name}.md" for section in sections for name in section.get("project", ())}
    return pages


class Stage:
    """One language's pages on their way to Sphinx: links and pictures are replaced by what the site has."""

    def __init__(self, language: str):
        self.language, self.other = language, "ko" if language == "en" else "en"
        self.folder = BUILD / "docs" / language
        self.pages = list_pages(language)
        self.names = {path.resolve(): name for name, path in self.pages.items()}
        self.other_names = {path.resolve(): name for name, path in list_pages(self.other).items()}
        self.source_files: set[Path] = set()

    def write_pages(self) -> None:
        """Write all pages, with the table of contents in the first one."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, path in self.pages.items():
            text = FRONT_MATTER.sub("", path.read_text(encoding="utf-8"))
            self.write_page(name, self.rewrite_links(text, name, path))
        sys.path.insert(0, str(Path(__file__).parent))
        from make_reference import make_pages

        for name, text in make_pages(self.language).items():
            self.write_page(name, text)
        with (self.folder / "index.md").open("a", encoding="utf-8") as index:
            index.write("".join(self.make_toctrees()))

    def write_page(self, name: str, text: str) -> None:
        """Write a page where Sphinx looks for it."""
        path = self.folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def make_toctrees(self) -> Iterator[str]:
        """Make the table of contents; a page that contents.toml does not name ends the guide."""
        sections = read_contents()["section"]
        listed = {name for section in sections for name in section["pages"]} | {"index"}
        for section in sections:
            names = [name for name in section["pages"] if name in self.pages]
            missing = set(section["pages"]) - set(names)
            if missing:
                raise SystemExit(f"docs/{self.language} lacks {', '.join(sorted(missing))}, which contents.toml names")
            if section["en"] == "Guide":
                project = {name for s in sections for name in s.get("project", ())}
                names += sorted(set(self.pages) - listed - project)
            names += section.get("generated", [])
            names += [name for name in section.get("project", ()) if name in self.pages]
            titles = {"README": f"{read_contents()['words'][self.language]['readme']} <README>"}
            lines = "\n".join(titles.get(name, name) for name in names)
            yield f"\n\n```{{toctree}}\n:hidden:\n:caption: {section[self.language]}\n:maxdepth: 1\n\n{lines}\n```\n"

    def rewrite_links(self, text: str, name: str, path: Path) -> str:
        """Replace the links of a page, code blocks left alone."""
        parts, at = [], 0
        for fence in FENCE.finditer(text):
            parts += [self.replace_all(text[at : fence.start()], name, path), fence.group()]
            at = fence.end()
        return "".join([*parts, self.replace_all(text[at:], name, path)])

    def replace_all(self, text: str, name: str, path: Path) -> str:
        """Replace the links of a stretch of text; of a link around a picture, both."""
        return LINK.sub(lambda match: self.replace_link(match, name, path), text)

    def replace_link(self, match: re.Match[str], name: str, path: Path) -> str:
        """Replace one link: a page of this site, of the other language, a picture, or a file of the repository."""
        mark, words, link = match.groups()
        words = self.replace_all(words, name, path) if "](" in words else words
        if urlsplit(link).scheme or link.startswith("#"):
            return f"{mark}[{words}]({link})"
        place, _, anchor = link.partition("#")
        target, up = (path.parent / unquote(place)).resolve(), "../" * name.count("/")
        fragment = f"#{anchor}" if anchor else ""
        if mark:
            return self.place_picture(target, words, name)
        if target in self.names:
            relative = posixpath.relpath(f"{self.names[target]}.md", posixpath.dirname(name) or ".")
            return f"[{words}]({relative}{fragment})"
        if target in self.other_names:
            return f'<a href="{up}../{self.other}/{self.other_names[target]}.html{fragment}">{words}</a>'
        if target.is_dir():
            return words
        self.source_files.add(target)
        return f'<a href="{up}../source/{target.relative_to(ROOT).as_posix()}.html{fragment}">{words}</a>'

    def place_picture(self, picture: Path, words: str, name: str) -> str:
        """Put a drawing of ours into the page, where it takes the page's colours; copy any other picture."""
        text = picture.read_text(encoding="utf-8") if picture.suffix == ".svg" else ""
        if 'class="picture"' in text:
            drawing = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL).replace("\n", " ").strip()
            return f'<figure class="picture">{drawing}<figcaption>{html.escape(words)}</figcaption></figure>'
        copy = self.folder / "pictures" / picture.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, copy)
        return f"![{words}]({'../' * name.count('/')}pictures/{picture.name})"


def write_source_pages(files: set[Path]) -> None:
    """Write a coloured copy of each file that a page links to, with an anchor at each definition."""
    formatter = HtmlFormatter(style="a11y-high-contrast-light")
    dark = HtmlFormatter(style="a11y-high-contrast-dark")
    style = SOURCE_STYLE % (dark.get_style_defs(".highlight"), formatter.get_style_defs(".highlight"))
    for path in sorted(files):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        try:
            lexer = get_lexer_for_filename(path.name)
        except ClassNotFound:
            lexer = TextLexer()
        body = highlight(text, lexer, formatter)
        if path.suffix == ".py":
            body = add_anchors(body, text)
        out = SITE / "source" / f"{name}.html"
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">{style}</head>'
            f"<body><h1><code>{name}</code></h1>{body}</body></html>\n",
            encoding="utf-8",
        )


def add_anchors(body: str, text: str) -> str:
    """Mark the lines on which functions, classes, methods and tables are defined, by their names."""
    lines: dict[int, str] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            lines[node.lineno] = node.name
        if isinstance(node, ast.ClassDef):
            lines |= {one.lineno: f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(targets[0], ast.Name):
                lines[node.lineno] = targets[0].id
    before, opening, rest = body.partition("<pre>")
    rows = rest.split("\n")
    offset = len(text) - len(text.lstrip("\n"))  # pygments drops empty lines at the beginning
    for number, name in lines.items():
        rows[number - 1 - offset] = f'<span class="definition" id="{name}">{rows[number - 1 - offset]}</span>'
    return before + opening + "\n".join(rows)


def run_sphinx(language: str, builder: str = "html") -> None:
    """Build one language with warnings as errors."""
    extra = BUILD / "docs" / "extra"
    extra.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "BOOK_LANGUAGE": language, "BOOK_EXTRA": str(extra), "BOOK_PAGES": str(BUILD / "docs"),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", builder, "-c", str(DOCS / "site"),
        "-d", str(BUILD / "docs" / f"doctrees-{language}"), str(BUILD / "docs" / language), str(SITE / language),
    ]  # fmt: skip
    if subprocess.run(command, env=environment, check=False).returncode:
        raise SystemExit(f"Sphinx has warnings or errors in docs/{language}: see above")
    for path in (SITE / language).rglob("*.html"):  # the theme names no level for the captions of the contents
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace('class="caption" role="heading"', 'class="caption" role="heading" aria-level="2"'),
            encoding="utf-8",
        )


def stage_names(language: str) -> set[str]:
    """List the pages that a language's site will have."""
    folder = BUILD / "docs" / language
    return {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md")}


def write_root_page() -> None:
    """Write the page at the root, which leads to the language that was read last, or the browser's."""
    (SITE / "index.html").write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>formers</title><script>'
        'let language = (navigator.language || "en").startsWith("ko") ? "ko" : "en";'
        'try { language = localStorage.getItem("book-language") || language; } catch {}'
        'location.replace(language + "/index.html" + location.hash);</script></head>'
        '<body><a href="en/index.html">English</a> · <a href="ko/index.html" lang="ko">한국어</a></body></html>\n',
        encoding="utf-8",
    )


class LinkReader(HTMLParser):
    """Collects the anchors of a page, where its links lead, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notice one tag."""
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe", "source", "video", "audio") and "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and "href" in values:
            self.loaded.append(values["href"])


def check_site() -> list[str]:
    """Follow every link of the finished site; return what is broken, and what would be fetched from elsewhere."""
    readers: dict[Path, LinkReader] = {}
    for path in sorted(SITE.rglob("*.html")):
        readers[path] = LinkReader()
        readers[path].feed(path.read_text(encoding="utf-8"))
    problems = []
    for path, reader in readers.items():
        name = path.relative_to(SITE)
        for link in reader.links + reader.loaded:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https") or parts.netloc:
                if link in reader.loaded:
                    problems.append(f"{name}: loads {link} from elsewhere")
                continue
            if parts.scheme:  # data: and the like
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                problems.append(f"{name}: {link}: no such file")
            elif parts.fragment and target in readers and unquote(parts.fragment) not in readers[target].anchors:
                problems.append(f"{name}: {link}: no such anchor")
    for path in SITE.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')\s]+)", path.read_text(encoding="utf-8"))
        problems += [f"{path.relative_to(SITE)}: loads {url} from elsewhere" for url in urls]
    return problems


def main() -> None:
    """Stage, build and check both languages."""
    shutil.rmtree(SITE, ignore_errors=True)
    stages = [Stage(language) for language in LANGUAGES]
    for stage in stages:
        print(f"pages: {LANGUAGES[stage.language]}", flush=True)
        stage.write_pages()
        names = " ".join(sorted(stage_names(stage.language)))
        (BUILD / "docs" / f"pages-{stage.language}.txt").write_text(names, encoding="utf-8")
    for stage in stages:
        print(f"site: {LANGUAGES[stage.language]}", flush=True)
        run_sphinx(stage.language)
    write_source_pages(set().union(*(stage.source_files for stage in stages)))
    write_root_page()
    problems = check_site()
    if problems:
        raise SystemExit("\n".join([*problems, f"{len(problems)} broken links"]))
    count = len(list(SITE.rglob("*.html")))
    print(f"{SITE.relative_to(ROOT)}/index.html: {count} pages, every link followed, nothing loaded from elsewhere")


if __name__ == "__main__":
    main()
