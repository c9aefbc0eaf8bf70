"""The only reader of untrusted files: JSON and safetensors, by base name, inside one folder.

Nothing is imported, executed or fetched because a file says so. Weights are read tensor by tensor out of memory-mapped
safetensors, and written shard by shard; pickles (on an explicit word only) and hdf5 files are converted first, by
another process (sandbox.py). torch is imported only when tensors are read or written."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import math
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from safetensors import SafetensorError, safe_open

from ..atomic_files import OCCUPIED_HINT, is_occupied
from ..config import JSONObject, ProgressCallback, format_value, parse_json_object
from ..errors import Error, get_reason, is_out_of_memory
from ..registry import find_published_checkpoint
from .sandbox import convert_in_sandbox, make_temporary_folder
from .shipped_models import find_shipped_folder, find_shipped_name, is_shipped_name

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from torch import Tensor, nn

MAX_FILE_BYTES = 32 * 2**20  # the largest tokenizer of these families has 16 MB
MAX_VOCAB_BYTES = 128 * 2**20  # the vocabulary of word vectors; Google News has three million words
MAX_JSON_BYTES = MAX_HEADER_BYTES = 16 * 2**20  # an index or a header of 100,000 tensors
MAX_TENSORS = 100_000
MODEL_SUFFIXES = {".json", ".safetensors", ".txt", ".model", ".bin", ".hdf5", ".h5", ".md", ".jinja", ".onnx", ".data"}
MODEL_FOLDERS = ("huggingface", "1_Pooling", "2_Normalize")  # the last two are sentence-transformers'
MAX_GZIP_RATIO = 100  # times that a packed file may grow; vectors written as text grow about threefold
WEIGHTS_FILE, WEIGHTS_INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
PICKLE_FILE, PICKLE_INDEX_FILE = "pytorch_model.bin", "pytorch_model.bin.index.json"
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


def find_model_folder(path: object) -> Path:
    """Return a directory that exists and is not empty; of a training run, that of the model it made."""
    if not isinstance(path, str | os.PathLike):
        raise Error(f"{format_value(path)} is not a path", fix="give the directory of a model, or hub:owner/name")
    if isinstance(path, str) and is_shipped_name(path):
        return find_shipped_folder(path)
    try:
        where = Path(path).expanduser()
        if not where.exists():
            if where.name == "model" and has_file(where.parent, "run.json"):
                raise make_unfinished_error(where.parent)
            if (shipped := find_shipped_name(str(path))) is not None:
                raise Error("no such directory", where=where, fix=f"the model that comes with formers is {shipped}")
            place = find_published_checkpoint(str(path)) or "hub:owner/name"
            raise Error("no such directory", where=where, fix=f"check the path; a model on the hub is {place}")
        if not where.is_dir():
            raise Error("not a directory", where=where, fix="give the directory that holds the model's files")
        if not any(where.iterdir()):
            what = "the directory is empty"
            raise Error(what, where=where, fix="give the directory that holds config.json or formers.json")
    except (OSError, RuntimeError) as error:
        raise make_read_error(path, error) from None
    if not has_file(where, "run.json") or has_file(where, "formers.json"):
        return where
    if not (model := resolve_file(where, "model")).is_dir():
        raise make_unfinished_error(where)
    return model


def make_unfinished_error(run: Path) -> Error:
    """Build the error for a training run that was stopped before it wrote its model."""
    return Error("this run has made no model yet", where=run, fix="bring it to its end with --resume")


def make_read_error(where: object, error: Exception) -> Error:
    """Build our error for a file that the system cannot read."""
    return Error(f"cannot be read ({get_reason(error)})", where=where, fix="check the path and its permissions")


def resolve_file(where: Path, name: str) -> Path:
    """Return a file of a folder by its base name. Paths are refused, and links that lead out of the folder."""
    base = name == os.path.basename(name) and len(name) <= 255
    if not base or name in ("", ".", "..") or "\\" in name or "\0" in name:
        what = f"{format_value(name)} is not the name of a file in this folder"
        raise Error(what, where=where, fix="this checkpoint is malformed: do not use it")
    path = where / name
    try:
        target = path.resolve() if path.is_symlink() else None
    except (OSError, RuntimeError) as error:  # a name too long, a link that leads to itself
        raise make_read_error(path, error) from None
    if target is not None:
        home = where.resolve()
        homes = [home]
        for commit in (home, home.parent):  # a hub cache: models--NAME/snapshots/COMMIT/[huggingface/]file
            repo = commit.parent.parent
            if commit.parent.name == "snapshots" and repo.name.startswith("models--"):
                homes += [repo / "blobs", repo.parent / "blobs"]  # the model's own, and those that all models share
        if not any(target.is_relative_to(h) for h in homes):
            what = f"{name} is a link that leads out of the folder"
            raise Error(what, where=where, fix="copy the file itself into the folder")
    return path


def has_file(where: Path, name: str) -> bool:
    """Return whether the folder has a regular file of this name."""
    return resolve_file(where, name).is_file()


def read_bytes(where: Path, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """Read a file of a folder, if it is not larger than the limit."""
    path = resolve_file(where, name)
    if not path.is_file():
        raise Error(f"{name} is missing", where=where, fix="is this the right directory, and is the download complete?")
    if path.stat().st_size > limit:
        what = f"{name} has {path.stat().st_size:,} bytes, more than {limit:,}"
        raise Error(what, where=where, fix="this is not what it claims to be")
    try:
        return path.read_bytes()
    except OSError as error:
        raise make_read_error(path, error) from None


def read_json(where: Path, name: str) -> JSONObject:
    """Read a JSON object; anything else is an error that says where."""
    return parse_json(read_bytes(where, name, MAX_JSON_BYTES), where / name)


def parse_json(data: bytes, where: Path) -> JSONObject:
    """Parse a JSON object from bytes."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Error("not UTF-8 text", where=where, fix="the file is damaged: fetch it again") from None
    return parse_json_object(text, where)


class GzipReader(io.RawIOBase):
    """A .gz as a stream that ends in an Error where the file is damaged or grows beyond reason."""

    def __init__(self, path: Path, limit: int):
        self.path, self.bytes_left, self.file = path, limit, gzip.GzipFile(path, "rb")

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer as far as there is something."""
        view = memoryview(buffer).cast("B")
        try:
            data = self.file.read(len(view))
        except (OSError, EOFError, zlib.error) as error:
            what = f"not a whole .gz ({' '.join(str(error).split())[:100]})"
            raise Error(what, where=self.path, fix="fetch it again") from None
        self.bytes_left -= len(data)
        if self.bytes_left < 0:
            what = f"the packed file grows more than {MAX_GZIP_RATIO} times"
            raise Error(what, where=self.path, fix="this is not what it claims to be")
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Let go of the file."""
        self.file.close()
        super().close()


@contextmanager
def open_stream(path: str | Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file to read from start to end, unpacked if it is a .gz; also give the most bytes that it can hold."""
    where = Path(path).expanduser()
    if not where.is_file():
        raise Error("no such file", where=where, fix="check the path")
    try:
        size = where.stat().st_size
        packed = where.suffix == ".gz"
        raw = GzipReader(where, size * MAX_GZIP_RATIO) if packed else io.FileIO(where)
        with io.BufferedReader(raw, 2**20) as file:
            yield file, size * MAX_GZIP_RATIO if packed else size
    except OSError as error:
        raise make_read_error(where, error) from None


def read_shard_index(where: Path, index: str) -> dict[str, set[str]]:
    """Read the files that an index names, each with the tensors that it should hold."""
    listed = read_json(where, index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(v, str) for v in listed.values()):
        what = "weight_map is not a table of file names"
        raise Error(what, where=where / index, fix="the index is damaged: fetch it again")
    check_tensor_count(len(listed), where / index)
    files: dict[str, set[str]] = {file: set() for file in sorted(set(listed.values()))}
    for key, file in listed.items():
        files[file].add(key)
    return files


def check_tensor_count(tensors: int, where: Path) -> None:
    """Refuse more tensors than any model has."""
    if tensors >= MAX_TENSORS:
        what = f"{tensors:,} tensors are more than a model of these families has"
        raise Error(what, where=where, fix="this is not what it claims to be")


def read_tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of a safetensors file, after checking that what it declares is there."""
    damaged = "the file is damaged or incomplete: fetch it again"
    if not path.is_file():
        raise Error("the file is missing", where=path, fix="is the download complete?")
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                what = f"not a safetensors file: a header of {length:,} bytes in a file of {size:,}"
                raise Error(what, where=path, fix=damaged)
            entries = parse_json(file.read(length), path)
    except OSError as error:
        raise make_read_error(path, error) from None
    entries.pop("__metadata__", None)
    check_tensor_count(len(entries), path)
    shapes: dict[str, tuple[int, ...]] = {}
    spans = []
    for name, entry in entries.items():
        try:
            shape, span, kind = tuple(entry["shape"]), tuple(entry["data_offsets"]), entry["dtype"]
            low, high = span
            whole = len(shape) <= 8 and all(type(n) is int and 0 <= n < 2**63 for n in (*shape, *span))
            width = DTYPE_BYTES.get(kind)
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise Error(f"tensor {format_value(name)} is described by {format_value(entry)}", where=path, fix=damaged)
        if width is None:
            what = f"tensor {format_value(name)} is of type {format_value(kind)}, which formers does not read"
            raise Error(what, where=path, fix="this checkpoint is quantised: load the original")
        if high - low != math.prod(shape) * width:
            what = f"tensor {format_value(name)} of shape {shape} does not have {high - low} bytes"
            raise Error(what, where=path, fix=damaged)
        shapes[name] = shape
        spans.append((low, high))
    end = 0
    for low, high in sorted(spans):
        if low != end:
            raise Error(f"the data has a gap or an overlap at byte {low:,}", where=path, fix=damaged)
        end = high
    if end != size - 8 - length:
        raise Error(f"{end:,} bytes of data are declared, {size - 8 - length:,} are there", where=path, fix=damaged)
    return shapes


def check_output_folder(out: str | Path, overwrite: bool = False) -> None:
    """Refuse to write over something; with `overwrite`, over anything but the directory of a model or a tokenizer."""
    target = Path(out).expanduser()
    if not is_occupied(target):
        return
    if not overwrite:
        raise Error("exists already", where=target, fix=OCCUPIED_HINT)
    is_folder = target.is_dir() and not target.is_symlink()
    if strange := [p for p in target.iterdir() if not is_model_file(p)] if is_folder else [target]:
        what = f"is not overwritten: {strange[0].name!r} does not belong to a model"
        raise Error(what, where=target, fix="choose another name, or remove it first")


def is_model_file(path: Path) -> bool:
    """Return whether a file is one that a model's directory holds, by its name."""
    if path.is_dir():
        return path.name in MODEL_FOLDERS and not path.is_symlink() and all(map(is_model_file, path.iterdir()))
    return path.suffix in MODEL_SUFFIXES or path.name == ".gitattributes"


@contextmanager
def replace_directory(out: str | Path, overwrite: bool) -> Iterator[Path]:
    """Give the path to write a directory to: `out`, or one beside it that takes its place when all is written."""
    target = Path(out).expanduser()
    check_output_folder(target, overwrite)
    if not is_occupied(target):
        yield target
        return
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
    try:
        yield beside / target.name
        os.rename(target, beside / "old")
        os.rename(beside / target.name, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file as people like to read it; Korean stays readable."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class Weights:
    """Tensors of a folder by name, memory-mapped and read when asked for: one file, or shards with an index."""

    def __init__(self, where: Path, stem: str = "model"):
        single, index = f"{stem}.safetensors", f"{stem}.safetensors.index.json"
        self.folder = where
        self.handles: dict[str, safe_open] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        if has_file(where, single):
            self.open_file(single, None)
        elif has_file(where, index):
            listed = read_shard_index(where, index)
            for name, file_name in listed.items():
                self.open_file(name, file_name)
            if lost := set().union(*listed.values()) - set(self.handles):
                what = f"{len(lost)} tensors of the index are in no shard, {format_value(min(lost))} first"
                raise Error(what, where=where / index, fix="a shard is incomplete")
        else:
            what = f"no {single} and no {index}"
            fix = "a pytorch_model.bin is read only if you say so: --pickle, or pickle=True"
            raise Error(what, where=where, fix=fix)

    def open_file(self, name: str, expected: set[str] | None) -> None:
        """Check one file's header and map the file."""
        path = resolve_file(self.folder, name)
        shapes = read_tensor_shapes(path)
        try:
            handle = safe_open(path, framework="pt")
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            what = f"there is no memory to map its {path.stat().st_size:,} bytes"
            fix = "raise the limit on the process (ulimit -v), or load it where there is more memory"
            raise Error(what, where=path, fix=fix) from None
        except (SafetensorError, OSError, ValueError) as error:
            what = f"not a valid safetensors file ({' '.join(str(error).split())[:100]})"
            raise Error(what, where=path, fix="fetch it again") from None
        for key, shape in shapes.items():
            if expected is not None and key not in expected:
                what = f"tensor {format_value(key)} is not in the index"
                raise Error(what, where=path, fix="index and shard do not belong together")
            self.handles[key], self.shapes[key] = handle, shape
        check_tensor_count(len(self.handles), path)

    def __len__(self) -> int:
        return len(self.handles)

    def __contains__(self, name: str) -> bool:
        return name in self.handles

    def __iter__(self) -> Iterator[str]:
        return iter(self.handles)

    def get_tensor(self, name: str) -> Tensor:
        """Return one tensor, mapped from its file."""
        return self.handles[name].get_tensor(name)

    def is_equal(self, one: str, other: str) -> bool:
        """Return whether two tensors hold the same values."""
        import torch

        return self.shapes[one] == self.shapes[other] and torch.equal(self.get_tensor(one), self.get_tensor(other))


@contextmanager
def open_weights(where: Path, pickle: bool) -> Iterator[Weights]:
    """Open the weights of a folder: its safetensors, or a converted pickle if there are none and that is allowed."""
    ready = has_file(where, WEIGHTS_FILE) or has_file(where, WEIGHTS_INDEX_FILE)
    single, sharded = has_file(where, PICKLE_FILE), has_file(where, PICKLE_INDEX_FILE)
    if ready or not pickle or not (single or sharded):
        yield Weights(where)
        return
    shards = [PICKLE_FILE] if single else list(read_shard_index(where, PICKLE_INDEX_FILE))
    with make_temporary_folder() as folder:
        table: dict[str, str] = {}
        for number, name in enumerate(shards):
            target = folder / f"shard-{number}.safetensors"
            convert_in_sandbox("pickle", resolve_file(where, name), target)
            table |= dict.fromkeys(read_tensor_shapes(target), target.name)
        write_json(folder / WEIGHTS_INDEX_FILE, {"weight_map": table})
        yield Weights(folder)


@contextmanager
def open_hdf5(path: Path) -> Iterator[Weights]:
    """Open the arrays of an hdf5 file by their full names, as weights that can be read one by one."""
    check_h5py_installed(path)
    with make_temporary_folder() as folder:
        convert_in_sandbox("hdf5", path, folder / WEIGHTS_FILE)
        yield Weights(folder)


def check_h5py_installed(where: object = None) -> None:
    """Refuse to read or write hdf5 where its library is not installed."""
    if importlib.util.find_spec("h5py") is None:
        raise Error("ELMo's weights are hdf5 files, which need h5py", where=where, fix="pip install 'formers[elmo]'")


def check_has_weights(model: nn.Module) -> None:
    """Refuse a model without values."""
    if any(p.is_meta for p in model.parameters()):
        raise Error("this model has no weights to write", fix="build or load it outside of torch.device('meta')")


def write_weights(
    where: Path, tensor_groups: Iterator[Mapping[str, Tensor]], sizes: list[int], shard_size: int,
    tell: ProgressCallback | None = None, stem: str = "model",
) -> None:  # fmt: skip
    """Write tensors in groups (one move of a key map each), one shard after the other, so that no second copy of the
    model arises. `sizes` are the groups' bytes in the same order."""
    from safetensors.torch import save_file

    plan, filled = [0], 0  # how many groups each shard takes, and the bytes of the last
    for size in sizes:
        if plan[-1] and filled + size > shard_size:
            plan.append(0)
            filled = 0
        plan[-1] += 1
        filled += size
    listed, total = dict[str, str](), 0
    for number, members in enumerate(plan, 1):
        name = f"{stem}.safetensors" if len(plan) == 1 else f"{stem}-{number:05d}-of-{len(plan):05d}.safetensors"
        tensors: dict[str, Tensor] = {}
        for _ in range(members):
            tensors |= {key: t.detach().contiguous() for key, t in next(tensor_groups).items()}
        save_file(tensors, where / name, metadata={"format": "pt"})
        listed |= dict.fromkeys(tensors, name)
        total += sum(t.nbytes for t in tensors.values())
        if tell is not None:
            tell("writing", number, len(plan), name)
    if len(plan) > 1:
        write_json(where / f"{stem}.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": listed})
