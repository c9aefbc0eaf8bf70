"""Turn the tutorials into executed notebooks in build/notebooks: python scripts/make_notebooks.py [PAGE …]

A page's Python becomes cells that are run one after the other in one kernel, in a directory with the small model that
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


def build_sample_model(folder: Path) -> None:
    """Save an untrained model under the name that the pages use: my-bert."""
    tokenizer = train_tokenizer("wordpiece", load_bundled_corpus("ko")[0][:200], 1024)
    former = formers.build("bert", head="mlm", vocab=len(tokenizer), **get_recipe("bert").model)
    former.tokenizer = tokenizer
    formers.save(former, folder / "my-bert")


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
    quiet = ["--log-level=ERROR"]  # ipykernel warns that its traffic is not encrypted; it does not leave this machine
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, resources=resources, extra_arguments=quiet).execute()
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
                build_sample_model(Path(folder))
                notebook = execute_page(page, Path(folder))
            path = NOTEBOOKS / language / f"{name}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, path)
            print(path.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main()
