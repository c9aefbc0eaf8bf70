"""What several commands share: where a model runs, JSON that any reader takes, outputs that are there already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import Error

Overwrite = Annotated[bool, Parameter(help="Write over an output that is there already.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Placement:
    """Where a model runs, and the type of its weights."""

    device: Annotated[str | None, Parameter(help="cuda, cuda:1, mps or cpu; a GPU by default where there is one.")] = (
        None
    )
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16", "int8", "float32", "bfloat16", "float16"] | None,
        Parameter(
            help="Type of the weights, the file's by default. On a CPU fp32, bf16 and int8 are packed for speed."
        ),
    ] = None


def load_model(source: str, placement: Placement | None = None, tell: Any = None, pack: bool = True) -> Any:
    """Load a model, or the word vectors of a published file, and place it for inference."""
    from .convert import opened

    if Path(source).is_file():
        from ..interop.vectors import read as read_vectors

        return read_vectors(source, tell=tell)
    return place_model(opened(source, dtype=None, tell=tell), placement, pack)


def place_model(former: Any, placement: Placement | None = None, pack: bool = True) -> Any:
    """Move a loaded model to the device that is asked for, or to a GPU where there is one, with weights of a type.

    On a CPU, fp32, bf16 and int8 are packed (Former.freeze): faster, and good for inference alone. Without `pack`, only
    int8 is: a resumable output needs the model's fingerprint, which packed weights are not part of.
    """
    import torch

    from ..former import choose_device

    how, short = placement or Placement(), {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
    device, kind = choose_device(how.device), None if how.dtype is None else short.get(how.dtype, how.dtype)
    if device.type == "cpu" and kind in (("fp32", "bf16", "int8") if pack else ("int8",)):
        return former.to(device).freeze(kind)
    if kind == "int8":
        raise Error(f"int8 weights are for a CPU, not for {device}", fix="give --dtype bf16, or --device cpu")
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return former.to(device, None if kind is None else types[kind])


def check_output(out: Path, overwrite: bool) -> None:
    """Refuse to write over a file that is there, unless that is asked for."""
    if out.is_dir():
        raise Error("is a directory", where=out, fix="name a file")
    if out.exists() and not overwrite:
        raise Error("exists already", where=out, fix="give another name, or --overwrite")
