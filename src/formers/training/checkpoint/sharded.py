"""Checkpoints of sharded models: every process writes and reads its own part (torch.distributed.checkpoint).

Its files lie in a folder of a step's folder, with a checksum each in the manifest, and are opened only after these were
compared: torch keeps the list of shards as a pickle. All processes must see the folder.
"""

from __future__ import annotations

import datetime
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from ...config import JSONObject
from .local import SHARD_FOLDER, TensorGroups, Tensors

SAVE_TIMEOUT = datetime.timedelta(hours=1)  # for the slowest disk

logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)


class ShardedWriter:
    """Writes the shards of all processes into one folder, in its own process group, while training continues."""

    def __init__(self, is_main: bool):
        self.is_main = is_main
        self.process_group = dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT)

    def write_shards(self, folder: Path, groups: TensorGroups) -> None:
        """Write this process's shards, synced. An error in one process is raised in all."""
        disk = dcp.FileSystemWriter(folder / SHARD_FOLDER, single_file_per_rank=True, sync_files=True)
        try:
            dcp.save(flatten_groups(groups), storage_writer=disk, process_group=self.process_group)
        except dcp.api.CheckpointException as error:
            for _, (inner, _) in sorted(error.failures.items()):
                raise inner from None


def flatten_groups(groups: TensorGroups) -> JSONObject:
    """Merge the tensors of all groups into one table, as GROUP/NAME."""
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def split_groups(tensors: Mapping[str, Tensor]) -> dict[str, Tensors]:
    """Undo flatten_groups."""
    groups: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups


def load_meta_tensors(folder: Path) -> dict[str, Tensors]:
    """Return the tensors of a folder without their content."""
    about = dcp.FileSystemReader(folder / SHARD_FOLDER).read_metadata().state_dict_metadata
    kinds: Iterable[Any] = about.items()  # dynamic: torch has other kinds too, which are not written here
    return split_groups({name: torch.empty(m.size, dtype=m.properties.dtype, device="meta") for name, m in kinds})


def load_full_tensors(folder: Path) -> dict[str, Tensors]:
    """Read whole tensors in a single process."""
    tensors = {
        name: torch.empty(t.shape, dtype=t.dtype) for name, t in flatten_groups(load_meta_tensors(folder)).items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a single process
        dcp.load(tensors, storage_reader=dcp.FileSystemReader(folder / SHARD_FOLDER), no_dist=True)
    return split_groups(tensors)


def load_shards(
    folder: Path, outline: Mapping[str, Tensors], get_reference: Callable[[str, str], Tensor]
) -> dict[str, Tensors]:
    """Read this process's part of the tensors in a folder, sharded as its own are (GROUP, NAME → tensor); `outline` has
    their shapes. A collective call: every process must make it."""
    from torch.distributed.tensor import DTensor

    def make_empty(tensor: Tensor, reference: Tensor) -> Tensor:
        if isinstance(reference, DTensor) and reference.shape == tensor.shape:
            return torch.empty_like(reference, dtype=tensor.dtype)
        return torch.empty_like(tensor, device="cpu")

    tensors = {g: {n: make_empty(t, get_reference(g, n)) for n, t in group.items()} for g, group in outline.items()}
    dcp.load(flatten_groups(tensors), storage_reader=dcp.FileSystemReader(folder / SHARD_FOLDER))
    return tensors
