"""Nested state as tensors and plain values, written and read back without a pickle.

What a checkpoint holds is decided in `Trainer.get_state` and `Trainer.restore_state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import Error

Tensors = dict[str, Tensor]


def flatten_state(value: Any, name: str = "") -> tuple[Tensors, Any]:
    """A nest of dicts and lists taken apart: its tensors by path, and the rest with null in their places."""
    if isinstance(value, Tensor):
        return {name: value}, None
    if not isinstance(value, Mapping | list | tuple):
        return {}, value
    tensors: Tensors = {}
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    rest: dict[str, Any] = {}
    for key, inner in items:
        found, left = flatten_state(inner, f"{name}/{key}" if name else str(key))
        tensors |= found
        rest[str(key)] = left
    return tensors, rest if isinstance(value, Mapping) else list(rest.values())


def unflatten_state(tensors: Mapping[str, Tensor], rest: Any, name: str = "") -> Any:
    """The nest that flatten_state took apart; whole numbers are numbers again where they are keys."""
    if name in tensors:
        return tensors[name]
    items = rest.items() if isinstance(rest, Mapping) else enumerate(rest) if isinstance(rest, list) else None
    if items is None:
        return rest
    inner = {key: unflatten_state(tensors, value, f"{name}/{key}" if name else str(key)) for key, value in items}
    if isinstance(rest, list):
        return list(inner.values())
    return {int(key) if isinstance(key, str) and key.isdigit() else key: value for key, value in inner.items()}


def get_rng_state() -> Tensors:
    """Where torch's generators stand, on the CPU and on every GPU."""
    states = {"cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def set_rng_state(states: Mapping[str, Tensor]) -> None:
    """Put them there again; a GPU that was not there before begins anew."""
    torch.random.set_rng_state(states["cpu"])
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda{i}" in states:
            torch.cuda.set_rng_state(states[f"cuda{i}"], i)


def get_weights(model: nn.Module) -> Tensors:
    """A model's parameters and buffers; one that stands under two names is there once."""
    seen: dict[int, str] = {}
    return {
        name: tensor
        for name, tensor in model.state_dict(keep_vars=True).items()
        if seen.setdefault(id(tensor), name) == name
    }


@torch.no_grad()
def set_weights(model: nn.Module, tensors: Mapping[str, Tensor], scatter: Any = lambda whole, like: whole) -> None:
    """Set a model's parameters and buffers; `scatter` gives this process's part of each."""
    own = get_weights(model)
    if set(own) != set(tensors):
        odd = sorted(set(own) ^ set(tensors))
        raise Error(f"the checkpoint does not fit the model: {odd[0]}", fix="resume with the run's own settings")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            what = f"{name} has shape {tuple(tensors[name].shape)}, the model's {tuple(tensor.shape)}"
            raise Error(what, fix="resume with the run's own settings")
        tensor.copy_(scatter(tensors[name], tensor))
