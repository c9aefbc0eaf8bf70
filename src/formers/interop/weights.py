"""Weights: read tensor by tensor out of memory-mapped safetensors files, written shard by shard.

Pickles (on an explicit word only) and hdf5 files are converted to safetensors first, by another process (sandbox.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..config import ProgressCallback, format_value
from ..errors import Error, is_out_of_memory
from .safe_files import check_tensor_count, has_file, read_shard_index, read_tensor_shapes, resolve_file, write_json
from .sandbox import convert_in_sandbox, make_temporary_folder

WEIGHTS_FILE, WEIGHTS_INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
PICKLE_FILE, PICKLE_INDEX_FILE = "pytorch_model.bin", "pytorch_model.bin.index.json"


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
            for name, wanted in listed.items():
                self.open_file(name, wanted)
            if lost := set().union(*listed.values()) - set(self.handles):
                what = f"{len(lost)} tensors of the index are in no shard, {format_value(min(lost))} first"
                raise Error(what, where=where / index, fix="a shard is incomplete")
        else:
            what = f"no {single} and no {index}"
            fix = "a pytorch_model.bin is read only if you say so: --pickle, or pickle=True"
            raise Error(what, where=where, fix=fix)

    def open_file(self, name: str, wanted: set[str] | None) -> None:
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
            if wanted is not None and key not in wanted:
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


def check_has_weights(model: torch.nn.Module) -> None:
    """Refuse a model without values."""
    if any(p.is_meta for p in model.parameters()):
        raise Error("this model has no weights to write", fix="build or load it outside of torch.device('meta')")


def write_weights(
    where: Path, tensor_groups: Iterator[Mapping[str, Tensor]], sizes: list[int], shard_size: int,
    tell: ProgressCallback | None = None, stem: str = "model",
) -> None:  # fmt: skip
    """Write tensors in groups (one move of a key map each), one shard after the other, so that no second copy of the
    model arises. `sizes` are the groups' bytes in the same order."""
    plan: list[int] = [0]  # how many groups each shard takes
    filled = 0
    for size in sizes:
        if plan[-1] and filled + size > shard_size:
            plan.append(0)
            filled = 0
        plan[-1] += 1
        filled += size
    listed: dict[str, str] = {}
    total = 0
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
