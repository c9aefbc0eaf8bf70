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

from ..config import format_value
from ..errors import Error, to_printable_line
from . import safe_files

MANIFEST_FILE = "formers.json"
ORIGINALS_FOLDER = "huggingface"  # the folder with what an imported checkpoint said
CHUNK_BYTES = 1 << 20


def add_checksums(folder: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what formers.json says, with the checksums of all files that are in the folder by now."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    jobs = [FileHasher(path) for path in paths]
    found = {path.relative_to(folder).as_posix(): job.wait_for_digest() for path, job in zip(paths, jobs, strict=True)}
    values = {**json.loads(json.dumps(about)), "files": found}
    return {"seal": hash_json(values), **values}  # the first line, so that it can be taken out


def check_manifest(about: dict[str, Any], where: Path) -> None:
    """Refuse a formers.json that is not as it was written."""
    rest = {key: value for key, value in about.items() if key != "seal"}
    if "seal" in about and about["seal"] != hash_json(rest):
        fix = 'restore it; if you have edited it yourself, take the line "seal" out of it'
        raise Error("is not as it was written", where=where, fix=fix)


def hash_json(values: Mapping[str, Any]) -> str:
    """The checksum of a JSON object, whatever its spacing and order."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def check_files(folder: Path) -> Iterator[None]:
    """Compare the files of a formers directory with their checksums while they are read: in threads, beside the work.

    An Error names the first file that differs, also where the work failed for that reason without naming it.
    """
    jobs = [(path, wanted, FileHasher(path)) for path, wanted in list_checksums(folder)]
    try:
        yield
    except Error as error:
        differing = find_damaged_files(jobs)
        if differing and error.where not in [format_path(path) for path in differing]:
            raise make_damage_error(differing[0]) from None
        raise
    except BaseException:
        for *_, job in jobs:
            job.stop()
        raise
    if differing := find_damaged_files(jobs):
        raise make_damage_error(differing[0])


def find_damaged_files(jobs: list[tuple[Path, str, FileHasher]]) -> list[Path]:
    """Wait for all checksums; the files that are not as they were written."""
    return [path for path, wanted, job in jobs if job.wait_for_digest() != wanted]


def make_damage_error(path: Path) -> Error:
    """The error for a file that is not the one that was saved."""
    fix = f'restore it; if you have changed it yourself, take "files" and "seal" out of {MANIFEST_FILE}'
    return Error("is damaged: it is not the file that was saved", where=path, fix=fix)


def format_path(path: Path) -> str:
    """A path as an Error shows it."""
    return to_printable_line(str(path))


def list_checksums(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files whose checksums formers.json knows, by base name in this folder or in huggingface/."""
    files = safe_files.read_json(folder, MANIFEST_FILE).get("files", {})
    if not isinstance(files, dict):
        raise Error(
            f"files is not a table but {format_value(files)}", where=folder / MANIFEST_FILE, fix="the file is damaged"
        )
    safe_files.check_tensor_count(len(files), folder / MANIFEST_FILE)
    for name, wanted in files.items():
        if not isinstance(wanted, str):
            raise Error(
                f"the checksum of {format_value(name)} is no text",
                where=folder / MANIFEST_FILE,
                fix="the file is damaged",
            )
        home = folder / ORIGINALS_FOLDER if name.startswith(f"{ORIGINALS_FOLDER}/") else folder
        path = safe_files.resolve_file(home, name.removeprefix(f"{ORIGINALS_FOLDER}/"))
        if home != folder and home.is_symlink():
            raise Error(f"{ORIGINALS_FOLDER} is a link", where=folder, fix="copy the folder itself")
        if home != folder and not path.exists():  # it is needed for an export alone, and may be left out
            continue
        if not path.is_file():
            raise Error("the file is missing", where=path, fix="is the download complete?")
        yield path, wanted


class FileHasher:
    """The SHA-256 of a file, made by a thread of its own; hashing lets other threads of Python run."""

    def __init__(self, path: Path):
        self.path, self.sha256, self.is_stopped = path, hashlib.sha256(), False
        self.read_error: OSError | None = None
        self.thread = threading.Thread(target=self.hash_file, daemon=True, name="formers-checksum")
        self.thread.start()

    def hash_file(self) -> None:
        """Read and hash."""
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            with open(self.path, "rb", buffering=0) as file:
                while not self.is_stopped and (size := file.readinto(buffer)):
                    self.sha256.update(buffer[:size])
        except OSError as error:
            self.read_error = error

    def stop(self) -> None:
        """Give up."""
        self.is_stopped = True

    def wait_for_digest(self) -> str:
        """Wait for the checksum."""
        self.thread.join()
        if self.read_error is not None:
            raise safe_files.make_read_error(self.path, self.read_error)
        return self.sha256.hexdigest()
