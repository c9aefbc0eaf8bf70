"""What several commands share: loading and placing a model, settings as options, outputs that exist already."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..errors import Error
from ..option_aliases import explain_option, resolve_setting
from ..registry import FAMILIES, find_published_checkpoint
from .terminal import SafeConsole

SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
DtypeName = Literal["float32", "float16", "bfloat16"]
SettingWords = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
OverwriteFlag = Annotated[bool, Parameter(help="Replace an output that exists already.")]
TrainingDtype = Annotated[
    Literal["fp32", "bf16", "fp16", "float32", "bfloat16", "float16"] | None,
    Parameter(
        help="Type to compute in, as --train.precision: bf16 on a GPU that has it, else fp32. Weights stay fp32."
    ),
]
# Advice that names an argument of Python beside the option, and an argument alone.
OPTION_AND_ARGUMENT = re.compile(r"""(--[\w.-]+[^,;.]*), or [a-z_]+=(?:'[^']*'|"[^"]*"|True|False)""")
PYTHON_ARGUMENT = re.compile(r"""(?<![\w.-])([a-z_]+)=('[^']*'|"[^"]*"|True)""")


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


def load_model(source: str, placement: Placement | None = None, tell: Any = None, prepack: bool = True) -> Any:
    """Load a model, or the word vectors of a published file, and place it for inference."""
    if Path(source).is_file():
        from ..interop.word_vectors import read_word_vectors

        return read_word_vectors(source, tell=tell)
    return place_model(load_with_notes(source, dtype=None, tell=tell), placement, prepack)


def place_model(former: Any, placement: Placement | None = None, prepack: bool = True) -> Any:
    """Move a loaded model to the given device, by default a GPU if there is one, and convert its weights.

    On a CPU, fp32, bf16 and int8 weights are prepacked (Former.freeze): faster, and for inference alone. Without
    `prepack` only int8 is: a resumable output needs the model's fingerprint, which prepacked weights are not part of.
    """
    import torch

    from ..former import choose_device

    how = placement or Placement()
    device, kind = choose_device(how.device), None if how.dtype is None else SHORT_DTYPES.get(how.dtype, how.dtype)
    if device.type == "cpu" and kind in (("fp32", "bf16", "int8") if prepack else ("int8",)):
        return former.to(device).freeze(kind)
    if kind == "int8":
        raise Error(f"int8 weights are for a CPU, not for {device}", fix="give --dtype bf16, or --device cpu")
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return former.to(device, None if kind is None else types[kind])


def check_output_file(out: Path, overwrite: bool) -> None:
    """Refuse to write over a file that is there, unless that is asked for."""
    if out.is_dir():
        raise Error("is a directory", where=out, fix="name a file")
    if out.exists() and not overwrite:
        raise Error("exists already", where=out, fix="give another name, or --overwrite")


def add_dtype_setting(given: dict[str, Any], dtype: str | None) -> None:
    """Put --dtype among the settings, where it is train.precision; two that differ are refused."""
    if dtype is None:
        return
    kind = SHORT_DTYPES.get(dtype, dtype)
    if (other := given.setdefault("train.precision", kind)) != kind:
        raise Error(f"--dtype {dtype} and --train.precision {other} contradict each other", fix="give one of them")


def identify_checkpoint(name: str) -> tuple[str | None, str | None]:
    """The family that a name belongs to, as its alias, preset or published checkpoint, and where it is published."""
    family = next((one.name for one in FAMILIES.values() if name in (*one.aliases, *one.definition.presets)), None)
    place = find_published_checkpoint(name)
    if place and family is None:
        names = sorted(FAMILIES, key=len, reverse=True)
        bare = name.rpartition("/")[2].replace("-", "_")
        family = next((one for one in names if bare.startswith(one)), None)
    return family, place


def suggest_option(word: str, command: Callable[..., Any], tables: Collection[str]) -> str:
    """The end of an error about an unknown option: what formers calls it, or the nearest one of the command."""
    app = App()
    app.default(command)
    known = [name for one in app.assemble_argument_collection() for name in one.names[:1] if name.startswith("--")]
    option = word.partition("=")[0]
    if (ours := explain_option(option, known, tables)) is not None:
        return ours
    if (setting := find_setting(option.removeprefix("--").replace("-", "_"), tables)) is not None:
        return f"it is a setting: --{setting}"
    near = difflib.get_close_matches(option, known, n=1)
    return f"did you mean {near[0]}?" if near else "see --help; settings have a dot: --train.steps 100"


def find_setting(name: str, tables: Collection[str]) -> str | None:
    """The dotted name of a setting of these tables that is given without its table."""
    from ..config import get_schema
    from ..training.config_merge import FinetuneDataConfig, PretrainDataConfig, TuneConfig
    from ..training.train_config import TrainConfig

    data = FinetuneDataConfig if "tune" in tables else PretrainDataConfig
    classes = {"tune": TuneConfig, "train": TrainConfig, "data": data}
    return next(
        (f"{table}.{name}" for table in classes if table in tables and name in get_schema(classes[table])), None
    )


def rewrite_as_options(text: str, known: Collection[str] = (), settings: Mapping[str, str] | None = None) -> str:
    """Put advice that was written for Python into words of the command line: head='lm' becomes --head lm.

    `known` are the options of the command, `settings` maps arguments to the settings that it takes as --tune.NAME; an
    argument that is neither is named in words.
    """

    def format_option(found: re.Match[str]) -> str:
        name, value = found[1], "" if found[2] == "True" else f" {found[2][1:-1]}"
        option = f"--{name.replace('_', '-')}"
        if option in known:
            return option + value
        setting = (settings or {}).get(name)
        return name + value if setting is None else f"--tune.{setting}{value or ' true'}"

    return PYTHON_ARGUMENT.sub(format_option, OPTION_AND_ARGUMENT.sub(r"\1", text))


def load_with_notes(source: str, *, dtype: DtypeName | None, **how: Any) -> Any:
    """Load a model."""
    from ..interop.model_directory import load

    with summarise_warnings():
        return load(source, dtype=None if dtype is None else get_torch_dtype(dtype), **how)


@contextmanager
def summarise_warnings() -> Iterator[None]:
    """What formers has to say about a model goes to the terminal, not into a Python warning."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        yield
    said: dict[str, list[str]] = {}
    for note in notes:  # of those that differ in their numbers alone, the first stands for all
        said.setdefault(re.sub(r"\d[\d,.]*", "", str(note.message)), []).append(str(note.message))
    for first, *more in said.values():
        words = f"formers: note: {rewrite_as_options(first)}" + (
            f" ({len(more)} more like this)" if set(more) - {first} else ""
        )
        SafeConsole(stderr=True).print(words)


def get_torch_dtype(name: DtypeName) -> Any:
    """A torch type by its name."""
    import torch

    return getattr(torch, name)


def parse_overrides(words: Sequence[str], command: Callable[..., Any], tables: Collection[str]) -> dict[str, Any]:
    """Parse settings: --model.layers 4 --train.lr=1e-3 gives {"model.layers": "4", "train.lr": "1e-3"}.

    `command` has the other options, `tables` are those whose settings it takes. Synonyms get our names.
    """
    given: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equal, value = word.removeprefix("--").partition("=")
        setting = resolve_setting(key.replace("-", "_"), tables)
        foreign = setting.partition(".")[0] not in tables and explain_option(
            key, (), tables
        )  # litgpt's --eval.interval
        if not word.startswith("--") or "." not in setting or foreign:
            raise Error(f"unknown option {word!r}", fix=suggest_option(word, command, tables))
        if not equal:
            if not rest or rest[0].startswith("--"):
                raise Error(f"{word} has no value", fix=f"{word} VALUE; true or false for a switch")
            value = rest.pop(0)
        given[setting] = value
    return given


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """What a dry run found."""
    console = SafeConsole()
    for key, value in rows:
        console.print(f"{key:>12}  {value}")
