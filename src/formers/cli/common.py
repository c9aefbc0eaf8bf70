"""What several commands share: options, reading texts, loading and placing a model, settings given as options. An
option that several commands have is a type or a dataclass here, with its help; an option of one command is described in
the docstring of its function (Args)."""

from __future__ import annotations

import difflib
import io
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ..config import ProgressCallback, Settings
from ..errors import Error
from ..option_aliases import explain_option, resolve_setting
from ..registry import FAMILIES, find_published_checkpoint
from .terminal import SafeConsole, escape_line

if TYPE_CHECKING:
    import torch

    from ..former import Former
    from ..tasks.example_tables import Table
    from ..text.normalise import CleaningReport

CommandInput = Any  # dynamic: a text, a pair, or a list of words; None for a blank row
SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
TextUnit = Literal["auto", "line", "block", "file"]  # what is one text in a file
DtypeName = Literal["float32", "float16", "bfloat16"]
SettingWords = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
ModelArgument = Annotated[
    str,
    Parameter(
        help="A bundled model (formers/bert-mini), a formers directory, the folder of a training run, a Hugging "
        "Face directory or hub:owner/name."
    ),
]
TextArgument = Annotated[str, Parameter(allow_leading_hyphen=True)]
FileOption = Annotated[
    Path | None,
    Parameter(
        allow_leading_hyphen=True,
        help="A file of texts: lines of a txt file, or rows of a table (jsonl, csv, tsv, parquet); - for a pipe.",
    ),
]
ColumnRoles = Annotated[
    str | None, Parameter(help="Which column is what, by name or number from 0: text=document,label=class.")
]
TaskOption = Annotated[
    str | None, Parameter(help="The task of a model that was trained on a mixture, by its name: --task sst2.")
]
MixtureOption = Annotated[
    list[str] | None,
    Parameter(
        consume_multiple=True,
        help="Several text-to-text tasks: a YAML file, or NAME=FILE for each. --mixture.strategy proportional (the"
        " default), temperature or equal, --mixture.size_limit K and --mixture.temperature T are T5's mixing rates.",
    ),
]
JsonFlag = Annotated[bool, Parameter(help="Print one line of JSON for each text.")]
OverwriteFlag = Annotated[bool, Parameter(help="Replace an output that exists already.")]
# Advice that names an argument of Python beside the option, and an argument alone.
OPTION_AND_ARGUMENT = re.compile(r"""(--[\w.-]+[^,;.]*), or [a-z_]+=(?:'[^']*'|"[^"]*"|True|False)""")
PYTHON_ARGUMENT = re.compile(r"""(?<![\w.-])([a-z_]+)=('[^']*'|"[^"]*"|True)""")


@Parameter(name="*")
@dataclass(frozen=True)
class Placement:
    """Where a model runs, and the type of its weights."""

    device: Annotated[str | None, Parameter(help="cuda, cuda:1, mps or cpu; a GPU by default if there is one.")] = None
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16", "int8", "float32", "bfloat16", "float16"] | None,
        Parameter(
            help="Type of the weights, the file's by default. On a CPU fp32, bf16 and int8 are packed for speed."
        ),
    ] = None


@Parameter(name="*")
@dataclass(frozen=True)
class TextFileOptions:
    """How text files are read."""

    column: Annotated[
        str | None,
        Parameter(help="The column or key with the text, in tables and jsonl, or its number; two for pairs: de,en."),
    ] = None
    encoding: Annotated[str, Parameter(help="Encoding of text files: utf-8, cp949, utf-16, …")] = "utf-8"
    skip: Annotated[bool, Parameter(help="Skip broken rows of tables and count them, instead of stopping.")] = False
    delimiter: Annotated[
        str | None, Parameter(help="The column separator of a table: ';', tab, '|'; detected by default.")
    ] = None
    header: Annotated[
        bool | None,
        Parameter(
            negative="--no-header", help="The first row names the columns; with --no-header they are numbered from 0."
        ),
    ] = None

    def to_keywords(self) -> Settings:
        """Return the options as keywords of read_documents and formers.prepare."""
        return asdict(self)

    def to_overrides(self) -> Settings:
        """Return the options that were given, under the dotted names of settings."""
        usual = asdict(TextFileOptions())
        return {f"data.{key}": value for key, value in asdict(self).items() if value != usual[key]}


@Parameter(name="*")
@dataclass(frozen=True)
class RunFlags:
    """What every training run takes: where it is written, and how it is followed."""

    out: Annotated[Path | None, Parameter(help="The run's folder; the next free number in runs/ by default.")] = None
    config: Annotated[Path | None, Parameter(help="A YAML file with settings, as --print-config writes it.")] = None
    seed: Annotated[
        int | None,
        Parameter(help="Random seed of new weights, the order of the data, masking and dropout; 0 by default."),
    ] = None
    resume: Annotated[
        bool,
        Parameter(help="Continue the run in --out; pretrain without --out continues the newest run, or starts one."),
    ] = False
    overwrite: OverwriteFlag = False
    print_config: Annotated[bool, Parameter(help="Print all settings as YAML, and exit.")] = False
    dry_run: Annotated[
        bool,
        Parameter(
            help="Print how the data is read and an estimate of size and time, from a few measured steps, and exit."
        ),
    ] = False
    tensorboard: Annotated[bool, Parameter(help="Also write the metrics for TensorBoard (needs formers[track]).")] = (
        False
    )
    wandb: Annotated[
        bool,
        Parameter(
            help="Also send the metrics to Weights & Biases (needs formers[track]); the folder above names the project."
        ),
    ] = False


@Parameter(name="*")
@dataclass(frozen=True)
class ModelRunFlags(RunFlags):
    """What a run that trains a network takes besides."""

    device: Annotated[str | None, Parameter(help="cuda, cuda:1, mps or cpu; a GPU by default if there is one.")] = None
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16", "float32", "bfloat16", "float16"] | None,
        Parameter(
            help="Type to compute in, as --train.precision: bf16 on a GPU that has it, else fp32. Weights stay fp32."
        ),
    ] = None

    def add_settings(self, given: Settings) -> None:
        """Put --dtype and --seed among the settings; a --dtype that differs from --train.precision is refused."""
        if self.seed is not None:
            given["train.seed"] = self.seed
        if self.dtype is None:
            return
        kind = SHORT_DTYPES.get(self.dtype, self.dtype)
        if (other := given.setdefault("train.precision", kind)) != kind:
            what = f"--dtype {self.dtype} and --train.precision {other} contradict each other"
            raise Error(what, fix="give one of them")


@Parameter(name="*")
@dataclass(frozen=True)
class ClusterFlags:
    """The machines that --dry-run makes a plan for."""

    gpus: Annotated[
        int | None, Parameter(help="With --dry-run: plan for this many GPUs; nothing is trained, and no GPU is needed.")
    ] = None
    gpu: Annotated[str | None, Parameter(help="Their kind: a100, a100-40, h100 (default), h200, b200, l40s, …")] = None
    gpus_per_node: Annotated[int, Parameter(help="How many of them a machine has.")] = 8
    network: Annotated[
        float | None, Parameter(help="GB/s between machines for each GPU, if other than the usual network card.")
    ] = None


def load_model(
    source: str, placement: Placement | None = None, tell: ProgressCallback | None = None, prepack: bool = True
) -> Former:
    """Load a model, or the word vectors of a published file, and place it for inference."""
    if Path(source).is_file():
        from ..interop.word_vectors import read_word_vectors

        return read_word_vectors(source, tell=tell)
    return place_model(load_with_notes(source, tell=tell), placement, prepack)


def place_model(former: Former, placement: Placement | None = None, prepack: bool = True) -> Former:
    """Move a loaded model to the given device, by default a GPU if there is one, and convert its weights. On a CPU,
    fp32, bf16 and int8 weights are prepacked (Former.freeze): faster, and for inference alone. Without `prepack` only
    int8 is: a resumable output needs the model's fingerprint, which prepacked weights are not part of."""
    from ..former import choose_device

    how = placement or Placement()
    device, kind = choose_device(how.device), None if how.dtype is None else SHORT_DTYPES.get(how.dtype, how.dtype)
    if device.type == "cpu" and kind is not None and kind in (("fp32", "bf16", "int8") if prepack else ("int8",)):
        return former.to(device).freeze(kind)
    if kind == "int8":
        raise Error(f"int8 weights are for a CPU, not for {device}", fix="give --dtype bf16, or --device cpu")
    return former.to(device, get_torch_dtype(kind))


def get_torch_dtype(name: str | None) -> torch.dtype | None:
    """Return a torch type by its name, short or long; None stays None."""
    import torch

    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return None if name is None else types[SHORT_DTYPES.get(name, name)]


def load_with_notes(
    source: str, *, dtype: DtypeName | None = None, **options: Any  # dynamic: the options of load
) -> Former:  # fmt: skip
    """Load a model; what there is to say about it goes to the terminal."""
    from ..interop.model_directory import load

    with summarise_warnings():
        return load(source, dtype=get_torch_dtype(dtype), **options)


@contextmanager
def summarise_warnings() -> Iterator[None]:
    """Print warnings about a model as notes on the terminal; of those that differ in numbers alone, the first."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        yield
    messages: dict[str, list[str]] = {}
    for note in notes:
        messages.setdefault(re.sub(r"\d[\d,.]*", "", str(note.message)), []).append(str(note.message))
    for first, *more in messages.values():
        rest = f" ({len(more)} more like this)" if set(more) - {first} else ""
        SafeConsole(stderr=True).print(f"formers: note: {rewrite_as_options(first)}{rest}")


def check_output_file(out: Path, overwrite: bool) -> None:
    """Refuse to write over a file that is there, unless that is asked for, and into a folder that is not there."""
    if out.is_dir():
        raise Error("is a directory", where=out, fix="name a file")
    if not out.parent.is_dir():
        raise Error("there is no such folder", where=out.parent, fix="make it first, or name another")
    if out.exists() and not overwrite:
        raise Error("exists already", where=out, fix="give another name, or --overwrite")


def identify_checkpoint(name: str) -> tuple[str | None, str | None]:
    """Find the family of an alias, preset or published checkpoint, and where the checkpoint is published."""
    family = next((one.name for one in FAMILIES.values() if name in (*one.aliases, *one.definition.presets)), None)
    if (place := find_published_checkpoint(name)) and family is None:
        names = sorted(FAMILIES, key=len, reverse=True)
        bare = name.rpartition("/")[2].replace("-", "_")
        family = next((one for one in names if bare.startswith(one)), None)
    return family, place


def parse_overrides(
    words: Sequence[str], command: Callable[..., object], tables: Collection[str], known: Collection[str] | None = None
) -> Settings:
    """Parse settings: --model.layers 4 --train.lr=1e-3 gives {"model.layers": "4", "train.lr": "1e-3"}. `command` has
    the other options, `tables` are those whose settings it takes, `known` these settings if they are not those of a
    model's run. Synonyms get our names."""
    overrides: Settings = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equal, value = word.removeprefix("--").partition("=")
        setting = resolve_setting(key.replace("-", "_"), tables)
        # litgpt's --eval.interval
        foreign = setting.partition(".")[0] not in tables and explain_option(key, (), tables)
        if not word.startswith("-"):
            raise Error(
                f"unexpected argument {word!r}", fix="options begin with --, and settings have a dot: --train.lr 0.01"
            )
        if not word.startswith("--") or "." not in setting or foreign:
            raise make_option_error(word.partition("=")[0], suggest_option(word, command, tables, known))
        if not equal:
            if not rest or rest[0].startswith("--"):
                raise Error(f"{word} has no value", fix=f"{word} VALUE; true or false for a switch")
            value = rest.pop(0)
        overrides[setting] = value
    return overrides


def suggest_option(
    word: str, command: Callable[..., object], tables: Collection[str], settings: Collection[str] | None = None
) -> str:
    """Suggest what to type instead of an unknown option: what formers calls it, a setting of that name, or the nearest
    option or setting of the command."""
    known = list_options(command)
    option = word.partition("=")[0]
    if (ours := explain_option(option, known, tables, settings)) is not None:
        return ours
    possible = list_settings(tables) if settings is None else settings
    by_name = {setting.partition(".")[2]: f"--{setting}" for setting in reversed([*possible])}
    name = option.removeprefix("--").replace("-", "_")
    if name in by_name:
        return f"it is a setting: {by_name[name]}"
    by_name |= {one.removeprefix("--").replace("-", "_"): one for one in known}
    near = find_nearest(name, by_name)
    words = "pretrain FAMILY" if command.__name__ == "pretrain" else command.__name__
    fix = f"see formers {words} --help; settings have a dot: --train.lr 0.01"
    return fix if near is None else f"did you mean {by_name[near]}?"


@cache
def list_options(command: Callable[..., object]) -> tuple[str, ...]:
    """List the options of a command."""
    app = App()
    app.default(command)
    return tuple(name for one in app.assemble_argument_collection() for name in one.names[:1] if name.startswith("--"))


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Find the name that is spelled nearly like this one, if there is any."""
    return next(iter(difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.7)), None)


def make_option_error(option: str, fix: str) -> Error:
    """Make the error about an option that a command does not have."""
    return Error(f"unknown option {option}", fix=fix)


def list_settings(tables: Collection[str]) -> list[str]:
    """List the dotted names of the settings of these tables; those of models and objectives differ by family."""
    from ..config import get_schema
    from ..training.config_merge import FinetuneDataConfig, PretrainDataConfig, TuneConfig
    from ..training.mixture_config import MixtureConfig
    from ..training.train_config import TrainConfig

    data = FinetuneDataConfig if "tune" in tables else PretrainDataConfig
    classes = {"tune": TuneConfig, "train": TrainConfig, "data": data, "mixture": MixtureConfig}
    return [f"{table}.{name}" for table, one in classes.items() if table in tables for name in get_schema(one)]


def rewrite_as_options(text: str, known: Collection[str] = (), settings: Mapping[str, str] | None = None) -> str:
    """Put advice that was written for Python into words of the command line: head='lm' becomes --head lm. `known` are
    the options of the command, `settings` maps arguments to the settings that it takes as --tune.NAME; an argument that
    is neither is named in words."""

    def format_option(option_value: re.Match[str]) -> str:
        name, value = option_value[1], "" if option_value[2] == "True" else f" {option_value[2][1:-1]}"
        option = f"--{name.replace('_', '-')}"
        if option in known:
            return option + value
        setting = (settings or {}).get(name)
        return name + value if setting is None else f"--tune.{setting}{value or ' true'}"

    return PYTHON_ARGUMENT.sub(format_option, OPTION_AND_ARGUMENT.sub(r"\1", text))


def read_stdin(encoding: str) -> str:
    """Read the standard input as text."""
    if sys.stdin is None or sys.stdin.isatty():
        raise Error("there is no text", fix="give it after the model, with --file, or by a pipe")
    try:
        is_text = isinstance(sys.stdin, io.StringIO)  # of a caller that put one in its place
        text = sys.stdin.read() if is_text else sys.stdin.buffer.read().decode(encoding)
    except UnicodeDecodeError as error:
        from ..data.text_files import guess_encoding, make_encoding_error

        raise make_encoding_error(guess_encoding(error.object), encoding, "the standard input") from None
    except LookupError as error:
        raise Error(f"the standard input is not text ({error})", fix="say --encoding") from None
    if not text.strip():
        raise Error("the standard input is empty", fix="give some text")
    return text


def read_whole_text(file: Path, reading: TextFileOptions) -> str:
    """Read a text file or a pipe unchanged, so that offsets hold; of a table, read the texts of its column."""
    from ..data.readers import read_text
    from ..tasks.example_tables import read_table
    from ..text.normalise import CleaningReport

    if str(file) == "-":
        return read_stdin(reading.encoding)
    if path := find_plain_file(file, reading):
        changes = CleaningReport()
        text = read_text(path, reading.encoding, changes)
        print_skipped(file, changes)
        return text
    table = read_table(file, **reading.to_keywords())
    if reading.column is None and "context" in table.column_names:
        fix = "formers evaluate judges a model by them; of one context give the text, or --column context"
        raise Error("holds questions with contexts of their own", where=file, fix=fix)
    return "\n".join(extract_texts(table, reading, pairs=False)[0])


def find_plain_file(file: Path, reading: TextFileOptions) -> Path | None:
    """Find the only file here, if it is plain text and no column of it is asked for."""
    from ..data.readers import find_files, find_format

    paths = find_files(file)
    if reading.column is not None or reading.delimiter is not None:
        return None
    return paths[0] if len(paths) == 1 and find_format(paths[0]) == "text" else None


def read_file_texts(file: Path, reading: TextFileOptions, unit: TextUnit = "line") -> list[str]:
    """Read the texts of a file: the column of a table, or lines of a text file ("-": a pipe). A blank row or line is
    an empty text, so that answers stand beside their questions."""
    from ..data.readers import read_documents, read_lines
    from ..text.normalise import CleaningReport

    if str(file) == "-":
        return ["" if line.isspace() else line for line in read_stdin(reading.encoding).splitlines()]
    path, changes = find_plain_file(file, reading) if unit == "line" else None, CleaningReport()
    how: Settings = {"unit": unit, "keep_empty": unit == "line", "changes": changes, **reading.to_keywords()}
    texts = read_lines(path, reading.encoding, changes) if path else list(read_documents(file, **how))
    print_skipped(file, changes)
    if not any(texts):
        raise Error("holds no text", where=file, fix="give a file with some words")
    return texts


def print_skipped(file: Path, changes: CleaningReport) -> None:
    """Say on the standard error what of a file was left out: bytes that are not text, broken rows."""
    if losses := changes.describe_losses():
        SafeConsole(stderr=True).print(f"{escape_line(file)}: {', '.join(losses)}")


def read_inputs(file: Path, reading: TextFileOptions, words: bool = False) -> tuple[list[CommandInput], str]:
    """Read the inputs of a file ("-": a pipe) and a note on how they were read: texts and pairs, or for `words` texts
    and lists of words; a blank line or row is an empty one. A pair has two columns of a table, or a tab in a line."""
    from ..data.readers import read_head_lines
    from ..tasks.example_tables import find_layout, is_conll_path, read_table

    if str(file) == "-":
        return read_file_texts(file, reading), ""
    path = None if is_conll_path(file) else find_plain_file(file, reading)
    if path is not None and not (words and find_layout(read_head_lines(path, reading.encoding), False)):
        return read_file_texts(file, reading), ""
    table = read_table(file, **reading.to_keywords())
    return extract_words(table, reading) if words else extract_texts(table, reading, pairs=True)


def extract_words(table: Table, reading: TextFileOptions) -> tuple[list[CommandInput], str]:
    """Extract the words of each row of a table, whatever their tags are; where there are none, its texts."""
    from ..data.readers import resolve_column
    from ..tasks.examples import TablePreview, is_list

    look = TablePreview(table, table.column_names)
    column_name = reading.column
    column = look.find_first("words") if column_name is None else resolve_column(column_name, table.column_names)
    if column not in table.column_names or not look.has_lists(column):
        return extract_texts(table, reading, pairs=False)
    lists = (row[column] if is_list(row.get(column)) else () for _, row in table.rows)
    return [[str(word) for word in words if str(word).strip()] for words in lists], ""


def extract_texts(table: Table, reading: TextFileOptions, pairs: bool) -> tuple[list[CommandInput], str]:
    """Extract the texts or pairs of the rows of a table."""
    from ..data.readers import pick_text_column, split_column_names
    from ..tasks.examples import ExampleBuilder, TablePreview, find_unlabelled

    if reading.column is not None:
        names = [dict.fromkeys(table.column_names)]
        column = pick_text_column(names, reading.column, table.changes, table.where)  # it is there
        roles = dict(zip(("text", "other"), split_column_names(column, table.column_names), strict=False))
    else:
        roles = find_unlabelled(TablePreview(table, table.column_names))
    if not roles or (len(roles) > 1 and not pairs):
        what = "which column is the text? There are " + ", ".join(map(repr, table.column_names))
        fix = "say --column NAME" + (", or --column ONE,TWO for pairs" if pairs else "")
        raise Error(what, where=table.where, fix=fix)
    reader = ExampleBuilder(table, "classify", roles, False, None)
    rows = [reader.make_labelled_text(place, record) for place, record in table.rows]
    if not any(rows):
        raise Error(f"no row can be used: {reader.describe_skipped()}", where=table.where, fix="say --column NAME")
    note = f"the text is the column {' + '.join(map(repr, roles.values()))}"
    texts = ["" if r is None else r["text"] if r["other"] is None else (r["text"], r["other"]) for r in rows]
    return texts, "; ".join((note, *table.changes.describe_losses()))
