"""Use an installed formers the way a new user would, in an empty folder: `make package` runs it on the built wheel.

Every page and corpus that the package must bring is asked for; a command that fails ends the script with its output.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

FORMERS = [sys.executable, "-m", "formers"]


def run_command(*words: str) -> str:
    """Run a command of formers, print it and return what it printed; end the script if it fails."""
    print("formers", *words, flush=True)
    done = subprocess.run([*FORMERS, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def fetch_page(model: str) -> str:
    """Serve a model on a free port of this machine, fetch the playground's page, and stop the server."""
    command = [*FORMERS, "serve", model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            lines = iter(server.stdout.readline, "")
            address = next(word for line in lines for word in line.split() if word.startswith("http://127.0.0.1"))
            with urllib.request.urlopen(address.rstrip("/.,") + "/", timeout=30) as answer:
                return answer.read().decode()
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
        run_command("pretrain", "bert", "--data", "formers/corpus-ko", "--out", "run", "--train.steps", "3")
        assert run_command("fill", "run/model", "현행법은 ___ 하고 있음")
        run_command("inspect", "run/model", "현행법은 그렇다", "--out", "view.html")
        assert "<script" in Path("view.html").read_text(encoding="utf-8")
        assert "<html" in fetch_page("run/model")
    print("the package works outside the repository")


if __name__ == "__main__":
    main()
