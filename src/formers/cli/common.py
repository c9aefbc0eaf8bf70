"""What several commands share: where a model runs, JSON that any reader takes, outputs that are there already."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..errors import Error
from ..registry import MEMBERS, find_published

SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
Overwrite = Annotated[bool, Parameter(help="Write over an output that is there already.")]
TrainingType = Annotated[
    Literal["fp32", "bf16", "fp16", "float32", "bfloat16", "float16"] | None,
    Parameter(
        help="Type to compute in, as --train.precision: bf16 on a GPU that has it, else fp32. Weights stay fp32."
    ),
]
# Advice that names an argument of Python beside the option, and an argument alone.
BESIDE = re.compile(r"""(--[\w.-]+[^,;.]*), or [a-z_]+=(?:'[^']*'|"[^"]*"|True|False)""")
ARGUMENT = re.compile(r"""(?<![\w.-])([a-z_]+)=('[^']*'|"[^"]*"|True)""")


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

    how = placement or Placement()
    device, kind = choose_device(how.device), None if how.dtype is None else SHORT.get(how.dtype, how.dtype)
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


def take_dtype(given: dict[str, Any], dtype: str | None) -> None:
    """Put --dtype among the settings, where it is train.precision; two that differ are refused."""
    if dtype is None:
        return
    kind = SHORT.get(dtype, dtype)
    if (other := given.setdefault("train.precision", kind)) != kind:
        raise Error(f"--dtype {dtype} and --train.precision {other} contradict each other", fix="give one of them")


def find_checkpoint(name: str) -> tuple[str | None, str | None]:
    """The family that a name belongs to, as its alias, preset or published checkpoint, and where it is published."""
    family = next((one.name for one in MEMBERS.values() if name in (*one.aliases, *one.family.presets)), None)
    place = find_published(name)
    if place and family is None:
        names = sorted(MEMBERS, key=len, reverse=True)
        bare = name.rpartition("/")[2].replace("-", "_")
        family = next((one for one in names if bare.startswith(one)), None)
    return family, place


def suggest_option(word: str, command: Callable[..., Any]) -> str:
    """The end of an error about an unknown option: the nearest one of the command."""
    app = App()
    app.default(command)
    known = [name for one in app.assemble_argument_collection() for name in one.names[:1] if name.startswith("--")]
    near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    return f"did you mean {near[0]}?" if near else "see --help; settings have a dot: --train.steps 100"


def name_options(text: str, known: Collection[str] = (), settings: Collection[str] = ()) -> str:
    """Put advice that was written for Python into words of the command line: head='lm' becomes --head lm.

    `known` are the options of the command, `settings` the names that it takes as --tune.NAME; what it has not is named
    in words.
    """

    def spell(found: re.Match[str]) -> str:
        name, value = found[1], "" if found[2] == "True" else f" {found[2][1:-1]}"
        option = f"--{name.replace('_', '-')}"
        if option in known:
            return option + value
        return f"--tune.{name}{value or ' true'}" if name in settings else name + value

    return ARGUMENT.sub(spell, BESIDE.sub(r"\1", text))
