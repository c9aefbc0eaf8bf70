"""Checksums of a formers directory, so that a flipped bit is noticed when the model is loaded.

formers.json holds the SHA-256 of every other file ("files", as sha256sum prints them) and one of its own content
("seal", whatever the spacing). A directory without them loads unchecked: an older one, or one that was edited by hand
and whose lines were taken out for that.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config import shown
from ..errors import Error, plain
from . import safe

ABOUT = "formers.json"
BESIDE = "huggingface"  # the folder with what an imported checkpoint said
CHUNK = 1 << 20


def seal_folder(folder: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what formers.json says, with the checksums of all files that are in the folder by now."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    jobs = [Sum(path) for path in paths]
    found = {path.relative_to(folder).as_posix(): job.result() for path, job in zip(paths, jobs, strict=True)}
    values = {**json.loads(json.dumps(about)), "files": found}
    return {"seal": sum_of(values), **values}  # the first line, so that it can be taken out


def check_seal(about: dict[str, Any], where: Path) -> None:
    """Refuse a formers.json that is not as it was written."""
    rest = {key: value for key, value in about.items() if key != "seal"}
    if "seal" in about and about["seal"] != sum_of(rest):
        fix = 'restore it; if you have edited it yourself, take the line "seal" out of it'
        raise Error("is not as it was written", where=where, fix=fix)


def sum_of(values: Mapping[str, Any]) -> str:
    """The checksum of a JSON object, whatever its spacing and order."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def check_files(folder: Path) -> Iterator[None]:
    """Compare the files of a formers directory with their checksums while they are read: in threads, beside the work.

    An Error names the first file that differs, also where the work failed for that reason without naming it.
    """
    jobs = [(path, wanted, Sum(path)) for path, wanted in listed(folder)]
    try:
        yield
    except Error as error:
        differing = find_differing(jobs)
        if differing and error.where not in [show_path(path) for path in differing]:
            raise damaged(differing[0]) from None
        raise
    except BaseException:
        for *_, job in jobs:
            job.stop()
        raise
    if differing := find_differing(jobs):
        raise damaged(differing[0])


def find_differing(jobs: list[tuple[Path, str, Sum]]) -> list[Path]:
    """Wait for all checksums; the files that are not as they were written."""
    return [path for path, wanted, job in jobs if job.result() != wanted]


def damaged(path: Path) -> Error:
    """The error for a file that is not the one that was saved."""
    fix = f'restore it; if you have changed it yourself, take "files" and "seal" out of {ABOUT}'
    return Error("is damaged: it is not the file that was saved", where=path, fix=fix)


def show_path(path: Path) -> str:
    """A path as an Error shows it."""
    return plain(str(path))


def listed(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files whose checksums formers.json knows, by base name in this folder or in huggingface/."""
    files = safe.read_json(folder, ABOUT).get("files", {})
    if not isinstance(files, dict):
        raise Error(f"files is not a table but {shown(files)}", where=folder / ABOUT, fix="the file is damaged")
    safe.few(len(files), folder / ABOUT)
    for name, wanted in files.items():
        if not isinstance(wanted, str):
            raise Error(f"the checksum of {shown(name)} is no text", where=folder / ABOUT, fix="the file is damaged")
        home = folder / BESIDE if name.startswith(f"{BESIDE}/") else folder
        path = safe.member(home, name.removeprefix(f"{BESIDE}/"))
        if home != folder and home.is_symlink():
            raise Error(f"{BESIDE} is a link", where=folder, fix="copy the folder itself")
        if home != folder and not path.exists():  # it is needed for an export alone, and may be left out
            continue
        if not path.is_file():
            raise Error("the file is missing", where=path, fix="is the download complete?")
        yield path, wanted


class Sum:
    """The SHA-256 of a file, made by a thread of its own; hashing lets other threads of Python run."""

    def __init__(self, path: Path):
        self.path, self.digest, self.stopped = path, hashlib.sha256(), False
        self.failed: OSError | None = None
        self.thread = threading.Thread(target=self.run, daemon=True, name="formers-checksum")
        self.thread.start()

    def run(self) -> None:
        """Read and hash."""
        buffer = memoryview(bytearray(CHUNK))
        try:
            with open(self.path, "rb", buffering=0) as file:
                while not self.stopped and (size := file.readinto(buffer)):
                    self.digest.update(buffer[:size])
        except OSError as error:
            self.failed = error

    def stop(self) -> None:
        """Give up."""
        self.stopped = True

    def result(self) -> str:
        """Wait for the checksum."""
        self.thread.join()
        if self.failed is not None:
            raise safe.unreadable(self.path, self.failed)
        return self.digest.hexdigest()
