"""Files whose format is risky to read (pickles, hdf5), converted to safetensors or JSON by a process of its own.

Neither `weights_only` nor the library that parses hdf5 is a boundary. The process has bounded memory, time and output,
and an audit hook that ends it at the first thing beyond reading the one file and writing into its own folder: no
import, no program, no socket, no other file. What it hands over is a safetensors file, which is checked like any other.

hdf5 is a file system in a file: links that lead to other files, data that lies elsewhere or unfolds to any size. None
of that is followed: only plain arrays are read that lie in the file as they are, after their names, types, shapes and
sizes have been checked.

torch and h5py are imported inside the process alone, so that it starts quickly and has little in it."""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import Error

if TYPE_CHECKING:
    import h5py

INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "TEMP")
HARMLESS_EVENTS = {"object.__getattr__", "object.__setattr__", "object.__delattr__", "sys._getframe", "builtins.id"}
TIMEOUT_SECONDS = 600
CONVERTER_CODE = (
    "from formers.interop.sandbox import convert_{kind}; convert_{kind}({source!r}, {target!r}, {memory}, {seconds})"
)
# What is converted: its name in an error, what to do where it is refused, memory beyond what the libraries take.
CONVERTERS = {
    "pickle": ("the pickle", "do not use this file unless you trust its author", 2**30),
    "fairseq": ("the pickle", "do not use this file unless you trust its author", 2**30),
    "paddle": ("the pickle", "do not use this file unless you trust its author", 2**29),
    "vocabulary": ("the pickle", "do not use this file unless you trust its author", 2**29),
    "hdf5": ("the hdf5 file", "fetch it again; only plain arrays are read", 2**29),
}
MAX_TENSOR_COPIES = 4  # times a pickle's size that its tensors may have: T5 may name its largest tensor four times
MAX_NAMES, MAX_DEPTH, MAX_AXES = 10_000, 8, 4  # of an hdf5 file
FAIRSEQ_SETTINGS_FILE = "settings.json"  # beside the converted weights: what fairseq's file says of the model
# Classes of fairseq's training checkpoints that are not read; an object of such a class keeps nothing here.
FAIRSEQ_METERS = tuple(f"fairseq.meters.{name}" for name in ("AverageMeter", "TimeMeter", "StopwatchMeter"))
ConvertedKind = Literal["pickle", "fairseq", "paddle", "vocabulary", "hdf5"]


def convert_in_sandbox(kind: ConvertedKind, source: Path, target: Path) -> None:
    """Convert one file: tensors to safetensors, a vocabulary to JSON."""
    what, fix, memory = CONVERTERS[kind]
    names = {"kind": kind, "source": str(source.resolve()), "target": str(target)}
    code = CONVERTER_CODE.format(**names, memory=memory, seconds=TIMEOUT_SECONDS)
    run_converter(code, source, target, TIMEOUT_SECONDS, what, fix)


@contextmanager
def make_temporary_folder() -> Iterator[Path]:
    """Make a folder that is removed afterwards."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="formers-", ignore_cleanup_errors=True)
    except OSError as error:
        what = f"there is no place for temporary files ({error.strerror or error})"
        raise Error(what, fix="set TMPDIR to a folder on a disk with room") from None
    with folder as name:
        yield Path(name)


def run_converter(code: str, source: Path, target: Path, seconds: int, what: str, fix: str) -> None:
    """Run a converter, a line of Python that makes `target` out of `source`; `what` it is that may be refused."""
    if not source.is_file():
        raise Error("the file is missing", where=source, fix="is the download complete?")
    environment = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
    code = f"from formers.text.worker_processes import exit_with_parent; exit_with_parent({os.getpid()}); {code}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=seconds, env=environment, cwd=target.parent, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Error(f"converting {what} took more than {seconds} s", where=source, fix="do not use this file") from None
    except OSError as error:
        raise Error(f"the converter cannot run ({error.strerror or error})", where=source, fix="try again") from None
    if done.returncode or not target.is_file():
        lines = done.stderr.strip().splitlines()
        message = lines[-1][:200] if lines else f"exit {done.returncode}"
        raise Error(f"{what} was refused ({message})", where=source, fix=fix)


def exit_process(refusal: str = "") -> None:
    """Leave the process at once: nothing that a file may have left behind runs on the way out."""
    os.write(2, " ".join(refusal.split()).encode(errors="replace"))
    os._exit(1 if refusal else 0)


def confine_process(source: str, folder: Path, memory: int, output: int, seconds: int) -> None:
    """Limit this process: memory beyond what it has, bytes of a file, time, and what it may touch."""
    with suppress(ImportError):  # Windows has no such limits; the audit hook stands
        import resource

        limits = {resource.RLIMIT_FSIZE: output, resource.RLIMIT_CPU: seconds, resource.RLIMIT_CORE: 0}
        with suppress(OSError):  # where the system says what is mapped now
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            limits[resource.RLIMIT_AS] = mapped + memory
        for limit, value in limits.items():
            _, most = resource.getrlimit(limit)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(limit, (value, value))
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    own, home = os.path.realpath(source), os.path.realpath(folder)

    def audit_event(event: str, arguments: tuple[Any, ...]) -> None:  # dynamic: each event has its own arguments
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if path.startswith(home + os.sep) or (path == own and not arguments[2] & writing):
                return
            exit_process(f"it tried to open {path}")
        if event not in HARMLESS_EVENTS:
            exit_process(f"it tried {event}")

    sys.addaudithook(audit_event)


def convert_pickle(source: str, target: str, memory: int, seconds: int) -> None:
    """Confine this process, unpickle tensors only, and write safetensors."""
    convert_torch_file(source, target, memory, seconds, "state_dict")


def convert_fairseq(source: str, target: str, memory: int, seconds: int) -> None:
    """Confine this process, unpickle tensors and plain settings only, and write safetensors and JSON."""
    import torch

    from .plain_pickle import IgnoredObject

    torch.serialization.add_safe_globals([argparse.Namespace, *((IgnoredObject, name) for name in FAIRSEQ_METERS)])
    convert_torch_file(source, target, memory, seconds, "model")


def convert_torch_file(source: str, target: str, memory: int, seconds: int, key: str) -> None:
    """Convert what torch.save wrote: a table of tensors, or one under a key of a table; `args` beside it are fairseq's
    settings."""
    import json
    import warnings

    import torch
    from safetensors.torch import save_file

    warnings.simplefilter("ignore")  # to show one, Python reads other files
    preload_imports(Path(target).with_name("rehearsal.bin"))
    size = os.path.getsize(source)
    most = MAX_TENSOR_COPIES * size
    confine_process(source, Path(target).parent, memory + 2 * most, most + 2**24, seconds)
    try:
        file = torch.load(source, map_location="cpu", weights_only=True, mmap=False)
        loaded = file.get(key, file) if isinstance(file, dict) else file
        pairs = loaded.items() if isinstance(loaded, dict) else [(None, None)]
        if not all(isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in pairs):
            raise Error("it does not hold a table of tensors")
        claimed = sum(value.numel() * value.element_size() for value in loaded.values())
        if claimed > most:
            raise Error(f"its tensors claim {claimed:,} bytes, the file has {size:,}")
        if key == "model":
            if not isinstance(file.get("args"), argparse.Namespace):
                raise Error("it has no args, the settings of the model")
            stated = vars(file["args"])  # dynamic: the attributes of a Namespace are the settings
            settings = {name: value for name, value in stated.items() if is_plain_setting(name, value)}
            Path(target).with_name(FAIRSEQ_SETTINGS_FILE).write_text(json.dumps(settings), encoding="utf-8")
        save_file({key: value.detach().clone().contiguous() for key, value in loaded.items()}, target)
    except BaseException as error:
        exit_process(explain_refusal(error))
    exit_process()


def is_plain_setting(name: object, value: object) -> bool:
    """Return whether a setting of fairseq is a short name with a number, a truth value or a short text."""
    is_short = isinstance(name, str) and len(name) < 100
    return is_short and (isinstance(value, int | float) or (isinstance(value, str) and len(value) < 1000))


def convert_paddle(source: str, target: str, memory: int, seconds: int) -> None:
    """Confine this process, read the arrays of Paddle's pickle, and write safetensors."""
    import pickle

    import numpy as np
    from safetensors.numpy import save_file

    from .plain_pickle import extract_arrays, read_plain_table

    # What the libraries import on first use is imported before imports are forbidden.
    for protocol in (2, 4):
        sample = pickle.dumps({"x": np.zeros(2, np.float32)}, protocol)
        save_file(extract_arrays(read_plain_table(sample)), target)
    os.remove(target)
    size = os.path.getsize(source)
    confine_process(source, Path(target).parent, memory + 4 * size, size + 2**24, seconds)
    try:
        arrays = extract_arrays(read_plain_table(Path(source).read_bytes()))
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, target)
    except BaseException as error:
        exit_process(explain_refusal(error))
    exit_process()


def convert_vocabulary(source: str, target: str, memory: int, seconds: int) -> None:
    """Confine this process, read the words of Transformer-XL's vocab.pkl, and write a JSON table with them."""
    import json

    from .plain_pickle import extract_symbols, read_plain_table

    read_plain_table(b"\x80\x02}.")  # what is imported on first use
    size = os.path.getsize(source)
    confine_process(source, Path(target).parent, memory + 40 * size, 2 * size + 2**24, seconds)
    try:
        table = read_plain_table(Path(source).read_bytes())
        about = {"symbols": extract_symbols(table), "lower_case": table.get("lower_case") is True}
        Path(target).write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
    except BaseException as error:
        exit_process(explain_refusal(error))
    exit_process()


def preload_imports(path: Path) -> None:
    """Convert a harmless file: what torch imports on first use is imported before imports are forbidden."""
    import torch
    from safetensors.torch import save_file

    for modern in (True, False):
        torch.save({"x": torch.nn.Parameter(torch.zeros(1))}, path, _use_new_zipfile_serialization=modern)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
        save_file({"x": loaded["x"].detach().clone().contiguous()}, path)
    os.remove(path)


def explain_refusal(error: BaseException) -> str:
    """Shorten torch's message to one line: which global it refuses, or what else is wrong."""
    text = str(error)
    if isinstance(error, Error):
        return text
    if refused_global := re.search(r"GLOBAL (\S+)", text):
        return f"it asks for {refused_global[1]}"
    inner = re.search(r"WeightsUnpickler error:\s*(.+)", text)
    lines = (inner[1] if inner else text).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def convert_hdf5(source: str, target: str, memory: int, seconds: int) -> None:
    """Confine this process, read plain arrays only, and write safetensors."""
    import h5py
    import numpy as np
    from safetensors.numpy import save_file

    rehearsal = target + ".rehearsal"  # what the libraries import on first use is imported before imports are forbidden
    with h5py.File(rehearsal, "w") as file:
        file.create_dataset("a/b", data=np.zeros(2, np.float32))
    with h5py.File(rehearsal, "r") as file:
        save_file({name: array[()] for name, array in list_arrays(file, 2**20).items()}, target)
    os.remove(target)
    size = os.path.getsize(source)
    confine_process(source, Path(target).parent, memory + 3 * size, size + 2**24, seconds)
    try:
        with h5py.File(source, "r") as file:
            arrays = list_arrays(file, size)
            save_file({name: np.ascontiguousarray(array[()]) for name, array in arrays.items()}, target)
    except BaseException as error:
        exit_process(str(error) if isinstance(error, Error) else f"{type(error).__name__}: {str(error)[:150]}")
    exit_process()


def list_arrays(file: h5py.File, size: int) -> dict[str, h5py.Dataset]:
    """List all arrays of an open file by their full names, each checked; together no larger than the file."""
    import h5py

    arrays: dict[str, h5py.Dataset] = {}
    todo, seen, total = [("", file)], 0, 0
    while todo:
        prefix, group = todo.pop()
        for name in group:
            path, seen = prefix + name, seen + 1
            if seen > MAX_NAMES or path.count("/") >= MAX_DEPTH:
                raise Error("it has more names than any model")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise Error(f"{path[:60]!r} is a link to elsewhere")
            item = group[name]
            if isinstance(item, h5py.Group):
                todo.append((path + "/", item))
            elif isinstance(item, h5py.Dataset):
                total += check_array(item, path[:60])
                if total > size:
                    raise Error(f"its arrays claim {total:,} bytes, the file has {size:,}")
                arrays[path] = item
            else:
                raise Error(f"{path[:60]!r} is neither a folder nor an array")
    return arrays


def check_array(array: h5py.Dataset, name: str) -> int:
    """Return the bytes of an array that lies in the file as it is; any other is refused."""
    import h5py

    how = array.id.get_create_plist()
    if how.get_layout() not in (h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT) or how.get_nfilters():
        raise Error(f"array {name!r} is packed or lies in pieces")
    if how.get_external_count():
        raise Error(f"array {name!r} lies in another file")
    kind, shape = array.dtype, array.shape
    if kind.kind != "f" or kind.itemsize not in (2, 4, 8) or not kind.isnative:
        raise Error(f"array {name!r} is of type {kind}, not plain floating-point numbers")
    if shape is None or len(shape) > MAX_AXES:
        raise Error(f"array {name!r} has shape {shape}")
    claimed = math.prod(shape) * kind.itemsize
    if array.id.get_storage_size() != claimed:
        raise Error(f"array {name!r} of shape {shape} does not have {array.id.get_storage_size():,} bytes")
    return claimed
