"""--overwrite: a new run or store takes the place of an earlier one, which comes back if the new one cannot begin."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import Error
from .file_lock import hold_lock, is_locked

TAKEN_HINT = "go on with --resume, replace it with --overwrite, or choose another --out"


@dataclass(frozen=True)
class FolderKind:
    """What formers writes into folders of one kind, which is what may be replaced."""

    name: str
    content: tuple[str, ...]  # patterns of file names
    markers: tuple[str, ...]  # files that say what the folder is,
    marker_keys: frozenset[str]  # and the keys that each of them has
    started: tuple[str, ...]  # files that say that a new one has begun
    subfolders: tuple[tuple[str, FolderKind], ...] = ()  # pattern of a folder's name, and its kind


STORE_FOLDER = FolderKind(
    "store",
    ("store.json", "begun.json", "inputs.json", "tokenizer.json", "phrases.txt", "lock", "lock-*", "plans", "train-*",
     "held-*", "done-*.json", "*.tmp"),
    ("store.json", "begun.json"), frozenset({"format", "fingerprint", "seal"}), ("store.json", "done-*.json"),
)  # fmt: skip


def check_overwrite(out: Any, resume: bool, overwrite: bool) -> None:
    """Refuse to replace a run that is not named, or to go on with it at the same time."""
    if overwrite and out is None:
        raise Error("--overwrite replaces a folder, and none is named", fix="add --out DIR, or leave it out")
    if resume and overwrite:
        fix = "--resume goes on with the run, --overwrite begins a new one in its place: give one of them"
        raise Error("--resume and --overwrite contradict each other", fix=fix)


@contextmanager
def replace_folder(
    path: Path | None, kind: FolderKind, overwrite: bool, inputs: Any = ()
) -> Iterator[Callable[[], None]]:
    """Move an earlier run, store or comparison in `path` aside; gives a function that removes it for good.

    At the end it is removed if the new one has begun (a run has its run.json, a store a finished shard); otherwise it
    is put back. A folder that is not of this `kind` alone, is in use, or holds one of the `inputs` (paths, also inside
    lists and tables of settings) is refused. A kill in between leaves the earlier folder beside `path`: .NAME.…/NAME.
    """
    if path is None or not overwrite or not path.exists() or (path.is_dir() and not any(path.iterdir())):
        yield lambda: None
        return
    check_replaceable(path, kind, inputs)
    whole = path.resolve()
    with hold_lock(path / "lock"):
        aside = Path(tempfile.mkdtemp(prefix=f".{whole.name[:100]}.", dir=whole.parent))
        os.rename(whole, aside / whole.name)
        (aside / whole.name / "lock").unlink(missing_ok=True)

    def remove() -> None:
        shutil.rmtree(aside, ignore_errors=True)

    try:
        yield remove
    finally:
        if any(any(whole.glob(mark)) for mark in kind.started):
            remove()
        elif aside.exists() and not is_locked(whole / "lock"):
            shutil.rmtree(whole, ignore_errors=True)
            os.rename(aside / whole.name, whole)
            aside.rmdir()


def check_replaceable(path: Path, kind: FolderKind, inputs: Any = ()) -> None:
    """Refuse to replace what formers did not make, what is in use, and what the new run itself reads."""
    fix = "choose another --out, or remove it yourself"
    strange = describe_foreign(path, kind)
    if strange is not None:
        raise Error(f"is not replaced: {strange}", where=path, fix=fix)
    used = next((lock.parent for lock in path.rglob("lock*") if lock.is_file() and is_locked(lock)), None)
    if used is not None:
        raise Error("is in use by another process", where=used, fix="wait for it, or choose another --out")
    whole = path.resolve()
    for one in (*iterate_paths(inputs), Path.cwd()):
        if one.exists() and one.resolve().is_relative_to(whole):
            raise Error(f"is not replaced: it holds {str(one)!r}, which is needed", where=path, fix=fix)


def describe_foreign(path: Path, kind: FolderKind) -> str | None:
    """Say what is in a folder that is not of this kind; None if all of it is."""
    if path.is_symlink() or not path.is_dir():
        return "it is not a folder"
    markers = [file for mark in kind.markers for file in path.glob(mark)]
    if kind.markers and not any(kind.marker_keys <= read_json_keys(file) for file in markers):
        return f"it is not the folder of a {kind.name}"
    for one in path.iterdir():
        inner = next((sub for name, sub in kind.subfolders if fnmatch.fnmatchcase(one.name, name)), None)
        known = any(fnmatch.fnmatchcase(one.name, name) for name in kind.content)
        if one.is_symlink() or not (known or (inner and one.is_dir())):
            return f"{one.name!r} does not belong to a {kind.name}"
        if inner and one.is_dir() and (strange := describe_foreign(one, inner)):
            return strange
    return None


def read_json_keys(file: Path) -> set[str]:
    """The keys of a JSON file; none if it cannot be read."""
    try:
        return set(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return set()


def iterate_paths(values: Any) -> Iterator[Path]:
    """Every text or path in a value, a list, or a table of settings, as a path."""
    if isinstance(values, str | Path):
        if len(str(values)) < 1000 and "\0" not in str(values):
            yield Path(values)
    elif isinstance(values, Mapping):
        yield from iterate_paths(list(values.values()))
    elif isinstance(values, list | tuple):
        for one in values:
            yield from iterate_paths(one)
