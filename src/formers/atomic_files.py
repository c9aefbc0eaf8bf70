"""Files and folders that are there whole or not at all, whenever a process or the machine stops.

Single files (`write_atomically`, `create_file`), JSON that carries its checksum, directories that appear when all is
written (`stage_directory`), files that grow and are gone on with (`ResumableFile`), locks, and folders that take the
place of earlier ones (`replace_folder`: --overwrite)."""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, TextIO

from safetensors import SafetensorError

from .config import JSONObject, JSONValue, parse_json_object
from .errors import Error, advise_on_write

OCCUPIED_HINT = "choose another name, or overwrite it (--overwrite, or overwrite=True)"
REMAKE_HINT = "make the store again: formers prepare"
TAKEN_HINT = "resume it with --resume, replace it with --overwrite, or choose another --out"


def sync_to_disk(path: Path) -> None:
    """Make sure that what was written is on the disk; of a folder, its list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename_durably(temporary: Path, path: Path) -> None:
    """Give a finished file its name, and have that on the disk too."""
    os.replace(temporary, path)
    if os.name == "posix":
        sync_to_disk(path.parent)


def get_temporary_path(path: Path) -> Path:
    """Return the name of a file of this process while it is written."""
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def write_atomically(path: Path, text: str, errors: str = "strict") -> None:
    """Write a text file whole or not at all."""
    temporary = get_temporary_path(path)
    with open(temporary, "w", encoding="utf-8", errors=errors, newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    rename_durably(temporary, path)


def dump_canonical(values: Mapping[str, object]) -> bytes:
    """Return the one JSON text of some values, over which checksums are computed."""
    return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def to_checked_json(values: Mapping[str, object]) -> str:
    """Return JSON that carries a checksum of itself."""
    seal = hashlib.sha256(dump_canonical(values)).hexdigest()
    return json.dumps({**values, "seal": seal}, indent=1, ensure_ascii=False)


def read_checked_json(path: Path) -> JSONObject:
    """Read a file of checked JSON, if it is still what was written."""
    try:
        values = parse_json_object(path.read_bytes().decode("utf-8"), path)
    except OSError as error:
        raise Error(f"cannot be read ({error.strerror})", where=path, fix=REMAKE_HINT) from None
    except UnicodeDecodeError:
        raise Error("cannot be read (it is not UTF-8)", where=path, fix=REMAKE_HINT) from None
    if values.pop("seal", None) != hashlib.sha256(dump_canonical(values)).hexdigest():
        raise Error("is not as it was written", where=path, fix=REMAKE_HINT)
    return values


@contextmanager
def create_file(path: str | Path, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Create a single file, packed if it is a .gz; it appears under its name, in place of one that may be overwritten,
    only when all is written."""
    target = Path(path).expanduser()
    if target.exists() and not overwrite:
        raise Error("exists already", where=target, fix="choose another name, or remove it first")
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}")
    try:
        with open(temporary, "xb") as file:
            if target.suffix == ".gz":
                with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as pack:
                    yield pack  # type: ignore[misc]
            else:
                yield file
        sync_to_disk(temporary)
        rename_durably(temporary, target)
    except OSError as error:
        raise Error(f"writing failed ({error.strerror or error})", where=target, fix=advise_on_write(error)) from None
    finally:
        temporary.unlink(missing_ok=True)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a whole file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_occupied(path: Path) -> bool:
    """Return whether something is here that writing would destroy."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


@contextmanager
def stage_directory(out: str | Path) -> Iterator[Path]:
    """Give a directory to write into; it appears under its name only when all is written, else nothing is left."""
    new: list[Path] = []
    try:
        target = Path(out).expanduser()
        if is_occupied(target):
            raise Error("exists already", where=target, fix=OCCUPIED_HINT)
        new = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
    except (OSError, RuntimeError, ValueError) as error:  # a name may hold half a character, or a zero
        remove_empty_folders(new)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise Error(f"cannot write here ({reason})", where=out, fix="choose another place") from None
    try:
        os.chmod(temporary, 0o777 & ~get_umask())
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            if path.is_file():
                os.chmod(path, 0o666 & ~get_umask())  # safetensors lets the owner alone read what it writes
            sync_to_disk(path)
        if target.exists():
            target.rmdir()
        os.rename(temporary, target)
        sync_to_disk(target.parent)
    except OSError as error:
        raise Error(f"writing failed ({error.strerror or error})", where=target, fix=advise_on_write(error)) from None
    except SafetensorError as error:
        what = f"writing failed ({' '.join(str(error).split())[:100]})"
        raise Error(what, where=target, fix="is the disk full?") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        remove_empty_folders(new)


def remove_empty_folders(folders: Iterable[Path]) -> None:
    """Take away folders, innermost first, as far as they are empty."""
    for path in folders:
        with suppress(OSError):
            path.rmdir()


def get_umask() -> int:
    """Return the permissions that new files do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


class ResumableFile:
    """Writes OUT.part, with OUT.part.json beside it, which says what for; `finish` gives it its name. A part that was
    made for the same is gone on with, one that was made for something else is begun anew. Records are lines, or of
    `size` bytes each; half a record at the end is taken off. OUT itself is replaced with `overwrite` only."""

    def __init__(self, out: Path, description: object, size: int | None = None, overwrite: bool = False):
        if out.exists() and not overwrite:
            raise Error("this file is there already", where=out, fix="give another name, or say overwrite")
        if not out.parent.is_dir():
            raise Error("there is no such folder", where=out.parent, fix="make it first")
        self.out_path, self.record_bytes = out, size
        self.part_path, self.description_path = Path(f"{out}.part"), Path(f"{out}.part.json")
        note = self.description_path
        text = json.dumps(description, sort_keys=True, ensure_ascii=False)
        if not (note.exists() and self.part_path.exists() and note.read_text(encoding="utf-8") == text):
            self.part_path.write_bytes(b"")
            note.write_text(text, encoding="utf-8")
        self.records_done = self.truncate_partial_record()
        self.file: IO[bytes] = self.part_path.open("ab")

    def truncate_partial_record(self) -> int:
        """Cut off half a record at the end; return how many whole ones there are."""
        length = self.part_path.stat().st_size
        if self.record_bytes is not None:
            os.truncate(self.part_path, length // self.record_bytes * self.record_bytes)
            return length // self.record_bytes
        count, end = 0, 0
        with self.part_path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    count, end = count + 1, end + len(line)
        os.truncate(self.part_path, end)
        return count

    def read_records(self) -> Iterator[JSONValue]:
        """Yield the lines that are there, as JSON says them."""
        self.file.flush()
        with self.part_path.open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    def write_records(self, *records: bytes | JSONObject) -> None:
        """Append records; they are safe when this returns, unless the machine itself stops."""
        for record in records:
            raw = record if isinstance(record, bytes) else json.dumps(record, ensure_ascii=False).encode() + b"\n"
            self.file.write(raw)
        self.file.flush()
        self.records_done += len(records)

    def finish(self, convert: Callable[[Path, IO[bytes]], None] | None = None) -> None:
        """Give the complete file its name; `convert` writes it in another form first."""
        os.fsync(self.file.fileno())
        self.file.close()
        part_path = self.part_path
        if convert is not None:
            part_path = Path(f"{self.out_path}.new")
            with part_path.open("wb") as file:
                convert(self.part_path, file)
                os.fsync(file.fileno())
        rename_durably(part_path, self.out_path)
        self.part_path.unlink(missing_ok=True)
        self.description_path.unlink(missing_ok=True)

    def __enter__(self) -> ResumableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


@contextmanager
def hold_lock(path: Path, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a lock file; if another run holds it, refuse and say which. `shared` lets others share it likewise."""
    while True:
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115
        if not try_lock(file.fileno(), shared, wait):
            holder = read_lock_holder(file)
            file.close()
            raise Error(f"is in use by {holder}", where=path.parent, fix="wait for it, or choose another directory")
        if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            break
        file.close()  # the holder before us has just taken the file away: begin again
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
    finally:
        if not shared or try_lock(file.fileno(), False, False):  # of those who share it, the last one takes it away
            path.unlink(missing_ok=True)
        file.close()


def read_lock_holder(file: TextIO) -> str:
    """Return who holds a lock; one that has just taken it needs a moment to write its name."""
    for _ in range(100):
        file.seek(0)
        if name := file.read().strip():
            return name
        time.sleep(0.01)
    return "another run"


def is_locked(path: Path) -> bool:
    """Return whether anybody holds this lock."""
    if not path.exists():
        return False
    with open(path, "a+", encoding="utf-8") as file:
        return not try_lock(file.fileno(), True, False)


def try_lock(file_descriptor: int, shared: bool, wait: bool) -> bool:
    """Take the lock of an open file."""
    try:
        if os.name == "posix":
            import fcntl

            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(file_descriptor, kind if wait else kind | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(file_descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class FolderKind:
    """What formers writes into folders of one kind, which is what may be replaced."""

    name: str
    content: tuple[str, ...]  # patterns of file names
    markers: tuple[str, ...]  # files that say what the folder is,
    marker_keys: frozenset[str]  # and the keys that each of them has
    started: tuple[str, ...]  # files that say that a new one has begun
    subfolders: tuple[tuple[str, FolderKind], ...] = ()  # pattern of a folder's name, and its kind


def check_overwrite(out: object, resume: bool, overwrite: bool) -> None:
    """Refuse to replace a run that is not named, or to resume it at the same time."""
    if overwrite and out is None:
        raise Error("--overwrite replaces a folder, and none is named", fix="add --out DIR, or leave it out")
    if resume and overwrite:
        fix = "--resume continues the run, --overwrite begins a new one in its place: give one of them"
        raise Error("--resume and --overwrite contradict each other", fix=fix)


@contextmanager
def replace_folder(
    path: Path | None, kind: FolderKind, overwrite: bool, inputs: object = ()
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


def check_replaceable(path: Path, kind: FolderKind, inputs: object = ()) -> None:
    """Refuse to replace what formers did not make, what is in use, and what the new run itself reads."""
    fix = "choose another --out, or remove it yourself"
    if (strange := describe_foreign(path, kind)) is not None:
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
    """Return the keys of a JSON file; none if it cannot be read."""
    try:
        return set(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return set()


def iterate_paths(values: object) -> Iterator[Path]:
    """Yield every text or path in a value, a list, or a table of settings, as a path."""
    if isinstance(values, str | Path):
        if len(str(values)) < 1000 and "\0" not in str(values):
            yield Path(values)
    elif isinstance(values, Mapping):
        yield from iterate_paths(list(values.values()))
    elif isinstance(values, list | tuple):
        for one in values:
            yield from iterate_paths(one)
