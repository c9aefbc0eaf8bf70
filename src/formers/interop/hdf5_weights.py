"""hdf5 weights, converted to safetensors by a process of its own, with limits.

hdf5 is a file system in a file: links that lead to other files, data that lies elsewhere or unfolds to any size. None
of that is followed. Only plain arrays are read that lie in the file as they are, after their names, types, shapes and
sizes have been checked; and because the library that parses the rest is large and written in C, it runs apart.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Error
from .sandbox import confine_process, exit_process, make_temporary_folder, run_converter

if TYPE_CHECKING:
    from .weights import Weights

TIMEOUT_SECONDS, EXTRA_MEMORY_BYTES = 600, 2**29  # memory beyond what the libraries take and three times the file
MAX_NAMES, MAX_DEPTH, MAX_AXES = 10_000, 8, 4
CONVERTER_CODE = "from formers.interop.hdf5_weights import main; main({source!r}, {target!r}, {memory}, {seconds})"


def check_h5py_installed(where: object = None) -> None:
    """An Error if the library is not installed."""
    if importlib.util.find_spec("h5py") is None:
        raise Error("ELMo's weights are hdf5 files, which need h5py", where=where, fix="pip install 'formers[elmo]'")


@contextmanager
def open_hdf5(path: Path) -> Iterator[Weights]:
    """The arrays of an hdf5 file by their full names, as weights that can be read one by one."""
    from .weights import Weights

    check_h5py_installed(path)
    with make_temporary_folder() as folder:
        target = folder / "model.safetensors"
        code = CONVERTER_CODE.format(
            source=str(path.resolve()), target=str(target), memory=EXTRA_MEMORY_BYTES, seconds=TIMEOUT_SECONDS
        )
        run_converter(
            code, path, target, TIMEOUT_SECONDS, "the hdf5 file", "fetch it again; only plain arrays are read"
        )
        yield Weights(folder)


def main(source: str, target: str, memory: int, seconds: int) -> None:
    """Inside the process: limit it, read plain arrays only, write safetensors."""
    import h5py
    import numpy as np
    from safetensors.numpy import save_file

    rehearsal = target + ".rehearsal"  # what the libraries import on first use is imported before the door closes
    with h5py.File(rehearsal, "w") as file:
        file.create_dataset("a/b", data=np.zeros(2, np.float32))
    with h5py.File(rehearsal, "r") as file:
        save_file({name: array[()] for name, array in list_arrays(file, 2**20).items()}, target)
    os.remove(target)
    size = os.path.getsize(source)
    confine_process(source, Path(target).parent, memory + 3 * size, size + 2**24, seconds)
    try:
        with h5py.File(source, "r") as file:
            save_file(
                {name: np.ascontiguousarray(array[()]) for name, array in list_arrays(file, size).items()}, target
            )
    except BaseException as error:
        exit_process(str(error) if isinstance(error, Error) else f"{type(error).__name__}: {str(error)[:150]}")
    exit_process()


def list_arrays(file: Any, size: int) -> dict[str, Any]:
    """All arrays of an open file by their full names, each checked; together no larger than the file."""
    import h5py

    found: dict[str, Any] = {}
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
                found[path] = item
            else:
                raise Error(f"{path[:60]!r} is neither a folder nor an array")
    return found


def check_array(array: Any, name: str) -> int:
    """The bytes of an array that lies in the file as it is; any other is refused."""
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
