"""How far a reader walks: which files of formers run in `pretrain`, `finetune` and `generate`, and between which rooms.

    python scripts/walks.py

Prints, for each walk, the files in which a function ran, the pairs of rooms between which calls went, and how many of
the pairs call each other.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import formers

ROOT = Path(formers.__file__).parent
WORDS = ["the cat", "sat", "on a mat", "two dogs", "ran past", "the old house", "one bird", "sang"]
TEXTS = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(12)) + "." for i in range(400)]


def trace_calls(run: Callable[[], Any]) -> tuple[set[str], set[tuple[str, str]], Any]:
    """Run something; the files in which functions ran, the calls between files, and its result."""
    files: set[str] = set()
    calls: set[tuple[str, str]] = set()
    root = f"{ROOT}/"

    def notice(frame: Any, event: str, _: Any) -> None:
        if event != "call" or not (name := frame.f_code.co_filename).startswith(root):
            return
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or a class
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(root):
            caller = caller.f_back
        if caller is not None and not caller.f_code.co_flags & inspect.CO_OPTIMIZED:
            return  # while a module is imported
        files.add(name[len(root) :])
        if caller is not None and caller.f_code.co_filename != name:
            calls.add((caller.f_code.co_filename[len(root) :], name[len(root) :]))

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        result = run()
    finally:
        sys.setprofile(before)
    return files, calls, result


def get_room(file: str) -> str:
    """The first folder of a file, or "root"."""
    return file.split("/")[0] if "/" in file else "root"


def print_walk(name: str, files: set[str], calls: set[tuple[str, str]]) -> None:
    """One line of figures, then the files by room."""
    crossings = {(get_room(a), get_room(b)) for a, b in calls if get_room(a) != get_room(b)}
    back = {pair for pair in crossings if pair[::-1] in crossings}
    rooms = sorted({get_room(file) for file in files})
    print(
        f"{name}: {len(files)} files, {len(rooms)} rooms, {len(crossings)} crossings, {len(back) // 2} there and back"
    )
    for room in rooms:
        print(f"  {room}: {', '.join(sorted(file.split('/', 1)[-1] for file in files if get_room(file) == room))}")


def main() -> None:
    """The three walks on a few lines of text."""
    folder = Path(tempfile.mkdtemp())
    small = {"train.steps": 6, "model.dim": 16, "model.heads": 2, "model.layers": 1, "model.ff": 32}
    walk = trace_calls(lambda: formers.pretrain("bert", TEXTS, out=folder / "bert", overrides=small))
    print_walk("pretrain bert", *walk[:2])
    rows = [{"text": text, "label": "yes" if "cat" in text else "no"} for text in TEXTS[:80]]
    walk = trace_calls(
        lambda: formers.finetune(
            str(folder / "bert" / "model"), rows, out=folder / "task", overrides={"tune.epochs": 1}
        )
    )
    print_walk("finetune", *walk[:2])
    formers.pretrain("gpt2", TEXTS, out=folder / "gpt2", overrides=small)
    former = formers.load(folder / "gpt2" / "model")
    walk = trace_calls(lambda: formers.generate(former, "the cat"))
    print_walk("generate", *walk[:2])


if __name__ == "__main__":
    main()
