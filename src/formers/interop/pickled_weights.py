"""pytorch_model.bin, on an explicit word only: converted to safetensors by a process of its own, with limits.

`weights_only` alone is no boundary. The process that unpickles has bounded memory, time and output, and an audit hook
that ends it at the first thing beyond reading the one file and writing into its own folder: no import, no program, no
socket, no other file. What it hands over is a safetensors file, which is checked like any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import Error
from . import safe_files
from .sandbox import confine_process, exit_process, make_temporary_folder, run_converter
from .weights import Weights

PICKLE_FILE, PICKLE_INDEX_FILE = "pytorch_model.bin", "pytorch_model.bin.index.json"
TIMEOUT_SECONDS, EXTRA_MEMORY_BYTES = 600, 2**30  # memory beyond what the libraries take, and
MAX_TENSOR_COPIES = 4  # as many times the file: T5 may name its largest tensor four times
CONVERTER_CODE = "from formers.interop.pickled_weights import main; main({source!r}, {target!r}, {memory}, {seconds})"


@contextmanager
def open_weights(where: Path, pickle: bool) -> Iterator[Weights]:
    """The weights of a folder: its safetensors, or, only if there are none and a pickle is allowed, converted ones."""
    ready = any(safe_files.has_file(where, name) for name in ("model.safetensors", "model.safetensors.index.json"))
    single, sharded = safe_files.has_file(where, PICKLE_FILE), safe_files.has_file(where, PICKLE_INDEX_FILE)
    if ready or not pickle or not (single or sharded):
        yield Weights(where)
        return
    shards = [PICKLE_FILE] if single else list(safe_files.read_shard_index(where, PICKLE_INDEX_FILE))
    with make_temporary_folder() as folder:
        table: dict[str, str] = {}
        for number, name in enumerate(shards):
            target = folder / f"shard-{number}.safetensors"
            convert_pickle(safe_files.resolve_file(where, name), target)
            table |= dict.fromkeys(safe_files.read_tensor_shapes(target), target.name)
        safe_files.write_json(folder / "model.safetensors.index.json", {"weight_map": table})
        yield Weights(folder)


def convert_pickle(source: Path, target: Path) -> None:
    """Run the converter on one file."""
    code = CONVERTER_CODE.format(
        source=str(source.resolve()), target=str(target), memory=EXTRA_MEMORY_BYTES, seconds=TIMEOUT_SECONDS
    )
    run_converter(
        code, source, target, TIMEOUT_SECONDS, "the pickle", "do not use this file unless you trust its author"
    )


def main(source: str, target: str, memory: int, seconds: int) -> None:
    """Inside the process: limit it, unpickle tensors only, write safetensors."""
    import warnings

    import torch
    from safetensors.torch import save_file

    warnings.simplefilter("ignore")  # to show one, Python reads other files
    preload_imports(Path(target).with_name("rehearsal.bin"))
    size = os.path.getsize(source)
    confine_process(
        source, Path(target).parent, memory + 2 * MAX_TENSOR_COPIES * size, MAX_TENSOR_COPIES * size + 2**24, seconds
    )
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=False)
        loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
        if not isinstance(loaded, dict) or not all(
            isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in loaded.items()
        ):
            raise Error("it does not hold a table of tensors")
        claimed = sum(value.numel() * value.element_size() for value in loaded.values())
        if claimed > MAX_TENSOR_COPIES * size:
            raise Error(f"its tensors claim {claimed:,} bytes, the file has {size:,}")
        save_file({key: value.detach().clone().contiguous() for key, value in loaded.items()}, target)
    except BaseException as error:
        exit_process(explain_refusal(error))
    exit_process()


def preload_imports(path: Path) -> None:
    """Do it once with an honest file: what torch imports on first use is imported before the door closes."""
    import torch
    from safetensors.torch import save_file

    for modern in (True, False):
        torch.save({"x": torch.nn.Parameter(torch.zeros(1))}, path, _use_new_zipfile_serialization=modern)
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
        save_file({"x": loaded["x"].detach().clone().contiguous()}, path)
    os.remove(path)


def explain_refusal(error: BaseException) -> str:
    """One line out of torch's several: which global it will not have, or what else is wrong."""
    text = str(error)
    if isinstance(error, Error):
        return text
    if asked := re.search(r"GLOBAL (\S+)", text):
        return f"it asks for {asked[1]}"
    inner = re.search(r"WeightsUnpickler error:\s*(.+)", text)
    lines = (inner[1] if inner else text).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
