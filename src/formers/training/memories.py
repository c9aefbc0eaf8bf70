"""What a run carries from batch to batch, for families that have a memory or a state (Transformer-XL, XLNet, ELMo)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from ..batch import Batch
from ..tasks.heads import Model
from .state import Tensors, flat, nested

LEFT = {"model", "_new"}  # what a memory knows of its model and of a batch on its way: it is told again


class Memories:
    """One memory for each group of streams that make a batch; whoever trains those streams has theirs."""

    def __init__(self, model: Model, objective: Any, carry: bool = True):
        self.body, self.streams = model.body, getattr(objective, "streams", 0) if carry else 0
        self.rows = getattr(objective, "rows", 0) or self.streams
        self.reuse = getattr(objective, "reuse", None)
        self.held: dict[int, Any] = {}
        self.found: dict[int, Any] = {}  # of a checkpoint, until their streams come along

    def make(self) -> Any:
        """An empty one."""
        length = getattr(getattr(self.body, "config", None), "memory", 0) or 0
        more = {} if self.reuse is None else {"reuse": self.reuse}
        return self.body.state(self.rows, length, **more)

    def of(self, batch: Batch) -> Any:
        """The memory of a batch's streams; None if nothing is carried over."""
        if not self.streams:
            return None
        part = int(batch.sample[0]) % self.streams // self.rows
        if part not in self.held:
            self.held[part] = self.found.pop(part, None) or self.make()
        return self.held[part]

    def copy(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """As they are now, for `back`."""
        held, found = ({part: replica(memory) for part, memory in own.items()} for own in (self.held, self.found))
        return held, found

    def back(self, before: tuple[dict[int, Any], dict[int, Any]]) -> None:
        """As they were: a step that is left out leaves no trace in them."""
        self.held, self.found = before

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """Their tensors, and what else there is to say of them: the same for all."""
        tensors: Tensors = {}
        rest: dict[str, Any] = {}
        for part, memory in self.held.items():
            plain = {name: value for name, value in vars(memory).items() if name not in LEFT}
            found, rest = flat(plain)
            tensors |= {f"{part}/{name}": tensor for name, tensor in found.items()}
        return tensors, rest

    def restore(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any], device: torch.device) -> None:
        """What was held before, whoever held it."""
        self.held, self.found = {}, {}
        for part in sorted({int(name.split("/")[0]) for name in tensors}):
            memory = self.make()
            mine = {n.partition("/")[2]: t.to(device) for n, t in tensors.items() if n.startswith(f"{part}/")}
            for name, value in nested(mine, dict(rest)).items():
                setattr(memory, name, value)
            self.found[part] = memory


def replica(memory: Any) -> Any:
    """A copy that shares the tensors, which are never changed in place."""
    new = copy.copy(memory)
    for name, value in vars(memory).items():
        if isinstance(value, dict):
            setattr(new, name, dict(value))
    return new
