"""What a run carries from batch to batch, for families that have a memory or a state (Transformer-XL, XLNet, ELMo)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from ..batch import Batch
from ..model import Model
from ..protocols import Objective
from .checkpoint.state import Tensors, flatten_state, unflatten_state

UNSAVED_FIELDS = {
    "model_settings",
    "_new_states",
}  # what a memory knows of its model and of a batch on its way: it is told again


class CarriedStates:
    """One memory for each group of streams that make a batch; whoever trains those streams has theirs."""

    def __init__(self, model: Model, objective: Objective, carry: bool = True):
        self.model, self.streams = model, objective.num_streams if carry else 0
        self.rows = objective.streams_per_batch or self.streams
        self.reuse = objective.reuse_length
        self.active: dict[int, Any] = {}
        self.restored: dict[int, Any] = {}  # of a checkpoint, until their streams come along

    def make_empty(self) -> Any:
        """An empty one."""
        length = getattr(getattr(self.model.body, "config", None), "memory", 0) or 0
        more = {} if self.reuse is None else {"reuse": self.reuse}
        return self.model.state_class(self.rows, length, **more)

    def select_for_batch(self, batch: Batch) -> Any:
        """The memory of a batch's streams; None if nothing is carried over."""
        if not self.streams:
            return None
        part = int(batch.sample[0]) % self.streams // self.rows
        if part not in self.active:
            self.active[part] = self.restored.pop(part, None) or self.make_empty()
        return self.active[part]

    def snapshot(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """Copy the states, for roll_back."""
        held, found = (
            {part: copy_state(memory) for part, memory in own.items()} for own in (self.active, self.restored)
        )
        return held, found

    def roll_back(self, before: tuple[dict[int, Any], dict[int, Any]]) -> None:
        """Restore a snapshot, so that a step that is left out leaves no trace."""
        self.active, self.restored = before

    def get_state(self) -> tuple[Tensors, dict[str, Any]]:
        """Their tensors, and what else there is to say of them: the same for all."""
        tensors: Tensors = {}
        rest: dict[str, Any] = {}
        for part, memory in self.active.items():
            plain = {name: value for name, value in vars(memory).items() if name not in UNSAVED_FIELDS}
            found, rest = flatten_state(plain)
            tensors |= {f"{part}/{name}": tensor for name, tensor in found.items()}
        return tensors, rest

    def restore_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any], device: torch.device) -> None:
        """What was held before, whoever held it."""
        self.active, self.restored = {}, {}
        for part in sorted({int(name.split("/")[0]) for name in tensors}):
            memory = self.make_empty()
            mine = {n.partition("/")[2]: t.to(device) for n, t in tensors.items() if n.startswith(f"{part}/")}
            for name, value in unflatten_state(mine, dict(rest)).items():
                setattr(memory, name, value)
            self.restored[part] = memory


def copy_state(memory: Any) -> Any:
    """A copy that shares the tensors, which are never changed in place."""
    new = copy.copy(memory)
    for name, value in vars(memory).items():
        if isinstance(value, dict):
            setattr(new, name, dict(value))
    return new
