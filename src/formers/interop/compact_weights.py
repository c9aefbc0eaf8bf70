"""Weights in a quarter or half of their size: 8-bit integers with a scale for each row, or bf16.

A matrix in storage int8 is a tensor of int8 and, under its name with SCALE_SUFFIX, one float32 for each row; all other
tensors stay float32. Loading gives float32. Scales have SCALE_BITS bits after the leading one, so 127 times a scale is
exact in float32: what was loaded can be saved again, and the files hold the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..config import format_value
from ..errors import Error
from .safe_files import Weights

Storage = Literal["full", "bf16", "int8"]
STORAGES: tuple[Storage, ...] = ("full", "bf16", "int8")
SCALE_SUFFIX = ":scale"
SCALE_BITS = 10
MIN_QUANTISED_SIZE = 4096  # numbers; smaller tensors gain nothing
LARGEST = 127


def compress_tensor(name: str, value: Tensor, storage: Storage) -> dict[str, Tensor]:
    """Return what a file holds of a parameter, by name."""
    if storage == "bf16":
        return {name: value.detach().to(torch.bfloat16)}
    if storage == "int8" and value.dim() >= 2 and value.numel() >= MIN_QUANTISED_SIZE:
        integers, scales = quantise_rows(value.detach())
        return {name: integers, name + SCALE_SUFFIX: scales}
    return {name: value.detach().float() if storage == "int8" else value.detach()}


def quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row (of the first dimension) to multiples of its scale: int8, and the scales in float32."""
    rows = matrix.float().flatten(1)
    mantissa, exponent = torch.frexp(rows.abs().amax(1) / LARGEST)
    steps = 2.0 ** (SCALE_BITS + 1)
    scales = torch.ldexp((mantissa * steps).ceil() / steps, exponent)  # rounded up, so that nothing exceeds LARGEST
    integers = (rows / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
    return integers.clamp(-LARGEST, LARGEST).to(torch.int8).view(matrix.shape), scales


def restore_rows(integers: Tensor, scales: Tensor) -> Tensor:
    """Return the numbers that int8 rows stand for, in float32."""
    return integers.float() * scales.view(-1, *[1] * (integers.dim() - 1))


class CompactWeights(Weights):
    """Compressed tensors of a folder by name, restored to float32 when asked for."""

    def __init__(self, where: Path, storage: Storage):
        super().__init__(where)
        self.storage = storage
        self.scale_handles = {name: self.handles.pop(name) for name in list(self) if name.endswith(SCALE_SUFFIX)}
        scale_shapes = {name: self.shapes.pop(name) for name in self.scale_handles}
        fix = "the file is damaged: fetch it again"
        for name in self.scale_handles:
            if name.removesuffix(SCALE_SUFFIX) not in self.handles:
                raise Error(f"{format_value(name)} belongs to no tensor", where=where, fix=fix)
        for name, shape in self.shapes.items():
            kind = self.handles[name].get_slice(name).get_dtype()
            allowed = {"bf16": ("BF16",), "int8": ("I8", "F32"), "full": ()}[storage]
            if kind not in allowed:
                raise Error(f"tensor {format_value(name)} is {kind} in storage {storage}", where=where, fix=fix)
            has_scales = name + SCALE_SUFFIX in self.scale_handles
            if has_scales != (kind == "I8") or (has_scales and scale_shapes[name + SCALE_SUFFIX] != shape[:1]):
                raise Error(f"tensor {format_value(name)} has not one scale for each row", where=where, fix=fix)

    def get_tensor(self, name: str) -> Tensor:
        """Return one tensor in float32."""
        value, key = super().get_tensor(name), name + SCALE_SUFFIX
        if key not in self.scale_handles:
            return value.float()
        scales = self.scale_handles[key].get_tensor(key)
        if scales.dtype != torch.float32 or not bool((scales.isfinite() & (scales >= 0)).all()):
            what = f"the scales of {format_value(name)} are not numbers from 0 on in float32"
            raise Error(what, where=self.folder, fix="the file is damaged: fetch it again")
        return restore_rows(value, scales)


def open_stored_weights(where: Path, about: Mapping[str, object]) -> Weights:
    """Open the weights of a formers directory as its formers.json says they are stored."""
    storage = about.get("storage", "full")
    if storage == "full":
        return Weights(where)
    if storage not in STORAGES:
        what = f"the storage {format_value(storage)} is not known"
        raise Error(what, where=where / "formers.json", fix="a newer formers may read it: pip install -U formers")
    return CompactWeights(where, storage)
