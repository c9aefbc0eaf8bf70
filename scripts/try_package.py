"""Use an installed formers the way a new user would, in an empty folder: `make package` runs it on the built wheel.

The quick start is walked as it is written, in both languages: its commands and its Python, in order, in a folder with
nothing but the table of reviews that it takes for granted. Its first block, the installation, is what make package has
done. Two things are other than on the page: models are pretrained for a few steps (`--train.steps`, as the page says),
and the server gets a free port instead of a browser, and is stopped when it has answered. Then the pages and the corpus
that the package must bring are asked for. A command that fails ends the script with its output.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

FORMERS = [sys.executable, "-m", "formers"]
DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEPS = "30"  # of pretraining, in place of some hundred
REVIEWS = [("a wonderful film", "1"), ("a dull film", "0"), ("정말 재미있는 영화", "1"), ("지루한 영화", "0")]


def run_command(*words: str) -> str:
    """Run a command of formers, print it and return what it printed; end the script if it fails."""
    print("formers", *words, flush=True)
    done = subprocess.run([*FORMERS, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def run_python(text: str) -> None:
    """Run a block of Python in an interpreter of its own."""
    print("python", text.count("\n"), "lines", flush=True)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{text}\n{done.stdout}\n{done.stderr}")


def walk_quick_start(language: str) -> None:
    """Run the quick start's blocks in order, in a folder of its own."""
    folder = Path(f"quickstart-{language}")
    folder.mkdir()
    os.chdir(folder)
    rows = [f"{text} {number}\t{label}" for number in range(6) for text, label in REVIEWS]
    Path("reviews.tsv").write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
    served = 0
    for kind, text in BLOCK.findall((DOCS / language / "quickstart.md").read_text(encoding="utf-8")):
        if kind == "python":
            run_python(text)
        for line in text.replace("\\\n", " ").splitlines() if kind == "sh" else ():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            if words[0] != "formers":
                sys.exit(f"the quick start has a command that this script does not know: {line}")
            if words[1] == "serve":
                models = [word for word in words[2:] if word != "--open"]
                page, models_listed = fetch_page(*models)
                assert "<html" in page
                assert {name.partition("=")[0] for name in models} <= set(models_listed), models_listed
                served += 1
            else:
                run_command(*words[1:], *(["--train.steps", STEPS] if words[1] == "pretrain" else []))
    assert served, "the quick start ends with a server"
    assert "<script" in Path("view.html").read_text(encoding="utf-8")
    assert Path("runs/first/report.html").stat().st_size > 1000
    os.chdir("..")


def fetch_page(*models: str) -> tuple[str, list[str]]:
    """Serve models on a free port of this machine, fetch the playground's page and the models' names, and stop the
    server."""
    command = [*FORMERS, "serve", *models, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            lines = iter(server.stdout.readline, "")
            found = (word for line in lines for word in line.split() if word.startswith("http://127.0.0.1"))
            address = next(found).rstrip("/.,")
            with urllib.request.urlopen(f"{address}/v1/models", timeout=30) as answer:
                names = [one["id"] for one in json.load(answer)["data"]]
            with urllib.request.urlopen(f"{address}/", timeout=30) as answer:
                return answer.read().decode(), names
        finally:
            server.terminate()


def main() -> None:
    """Run the commands."""
    import formers

    home = Path(formers.__file__).resolve()
    if "site-packages" not in home.parts:
        sys.exit(f"this is not an installed formers: {home}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        assert formers.__version__ in run_command("--version")
        assert "bert" in run_command("tree")
        run_command("doctor")
        assert "formers/word-vectors" in run_command("models")
        assert "queen" in run_command("neighbours", "formers/word-vectors", "king")
        assert "compare" in run_command("compare", "--help")
        assert "inside.html" in run_command("demo")
        for language in ("en", "ko"):
            walk_quick_start(language)
    print("the package works outside the repository")


if __name__ == "__main__":
    main()
