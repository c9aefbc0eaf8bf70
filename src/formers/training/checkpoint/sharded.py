"""Checkpoints of models that are cut into parts: every process writes and reads its own (torch.distributed.checkpoint).

Its files lie in a folder of a step's folder, with a sum each in the manifest, and are opened only after these were
compared: torch keeps the list of parts as a pickle. All processes must see the folder.
"""

from __future__ import annotations

import datetime
import logging
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from .local import SHARD_FOLDER, TensorGroups
from .state import Tensors

SAVE_TIMEOUT = datetime.timedelta(hours=1)  # for the slowest disk

logging.getLogger("torch.distributed.checkpoint").setLevel(logging.ERROR)


class ShardedWriter:
    """All processes write into one folder; they speak in a group of their own, so that training goes on meanwhile."""

    def __init__(self, first: bool):
        self.is_main = first
        self.process_group = dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT)

    def write_shards(self, folder: Path, groups: TensorGroups) -> None:
        """This process's parts, synced. What goes wrong in one goes wrong in all."""
        disk = dcp.FileSystemWriter(folder / SHARD_FOLDER, single_file_per_rank=True, sync_files=True)
        try:
            dcp.save(flatten_groups(groups), storage_writer=disk, process_group=self.process_group)
        except dcp.api.CheckpointException as error:
            for _, (inner, _) in sorted(error.failures.items()):
                raise inner from None


def flatten_groups(groups: TensorGroups) -> dict[str, Any]:
    """Tensors of all groups under one name each."""
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def split_groups(tensors: Mapping[str, Tensor]) -> dict[str, Tensors]:
    """The groups again."""
    groups: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    return groups


def load_meta_tensors(folder: Path) -> dict[str, Tensors]:
    """The tensors of a folder, without content."""
    about = dcp.FileSystemReader(folder / SHARD_FOLDER).read_metadata().state_dict_metadata
    kinds: Iterable[Any] = about.items()
    return split_groups({name: torch.empty(m.size, dtype=m.properties.dtype, device="meta") for name, m in kinds})


def load_full_tensors(folder: Path) -> dict[str, Tensors]:
    """Whole tensors, by one process alone."""
    made = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in flatten_groups(load_meta_tensors(folder)).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is one process alone
        dcp.load(made, storage_reader=dcp.FileSystemReader(folder / SHARD_FOLDER), no_dist=True)
    return split_groups(made)


def load_shards_into(folder: Path, groups: TensorGroups) -> None:
    """Read into tensors that are cut as each process has them; every process must ask."""
    dcp.load(flatten_groups(groups), storage_reader=dcp.FileSystemReader(folder / SHARD_FOLDER))
