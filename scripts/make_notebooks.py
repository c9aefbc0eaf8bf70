"""Turn the tutorials into executed notebooks in build/notebooks: python scripts/make_notebooks.py [PAGE …]

A page's Python becomes cells that are run one after the other in one kernel, in a directory with the small models that
the pages take for granted; commands of the shell and prose stay text. A cell that fails ends the program.
"""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from pathlib import Path

import nbformat
from nbclient import NotebookClient

import formers
from formers.data.readers import load_bundled_corpus
from formers.registry import train_tokenizer
from formers.training.recipes import get_recipe

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "build" / "notebooks"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FAMILIES = {"bert": ("wordpiece", 1024, 200), "gpt2": ("bpe", 512, 40)}  # tokenizer, pieces, documents


def build_sample_models(folder: Path) -> None:
    """Save untrained models under the names that the pages use: those of the demo, and one called my-bert."""
    for language in ("en", "ko"):
        texts = load_bundled_corpus(language)[0]
        for family, (kind, size, documents) in FAMILIES.items():
            tokenizer = train_tokenizer(kind, texts[:documents], size)
            head = {"head": "mlm"} if family == "bert" else {}
            former = formers.build(family, vocab=len(tokenizer), **head, **get_recipe(family).model)
            former.tokenizer = tokenizer
            formers.save(former, folder / f"formers-demo-{language}" / family)
            if family == "bert":
                formers.save(former, folder / "my-bert", overwrite=language == "ko")


def make_notebook(text: str) -> nbformat.NotebookNode:
    """Split a page into cells of text and of code."""
    cells, at = [], 0
    for block in BLOCK.finditer(text):
        if prose := text[at : block.start()].strip():
            cells.append(nbformat.v4.new_markdown_cell(prose))
        cells.append(nbformat.v4.new_code_cell(block[1].strip()))
        at = block.end()
    if prose := text[at:].strip():
        cells.append(nbformat.v4.new_markdown_cell(prose))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def execute_page(page: Path, folder: Path) -> nbformat.NotebookNode:
    """Make a page's notebook and run it in a folder."""
    notebook = make_notebook(page.read_text(encoding="utf-8"))
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def main() -> None:
    """Write the notebooks of the named tutorials, or of all, in both languages."""
    names = sys.argv[1:] or sorted(path.stem for path in (ROOT / "docs" / "en" / "tutorials").glob("*.md"))
    for language in ("en", "ko"):
        for name in names:
            page = ROOT / "docs" / language / "tutorials" / f"{name}.md"
            if not BLOCK.search(page.read_text(encoding="utf-8")):
                continue
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                build_sample_models(Path(folder))
                notebook = execute_page(page, Path(folder))
            path = NOTEBOOKS / language / f"{name}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, path)
            print(path.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
