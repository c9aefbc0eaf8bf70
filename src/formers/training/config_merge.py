"""What a run is asked to do: recipe < preset < file < single settings, merged as plain tables, then checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ..config import build_config, check_sizes, coerce_value, get_schema, parse_yaml, suggest_name
from ..errors import Error
from ..interop.hub import fetch_model
from ..interop.model_directory import read_checkpoint_info
from ..interop.safe_files import find_model_folder
from ..objectives.registry import OBJECTIVES, list_options, resolve_objective
from ..option_aliases import explain_name, resolve_settings, resolve_tables
from ..registry import find_family, find_preset
from .recipes import LR_TIMES_DIM, get_recipe, is_positive_int
from .train_config import TrainConfig

PRETRAIN_TABLES = ("data", "model", "objective", "train")
READER_SETTINGS = (
    "column",
    "encoding",
    "skip",
    "delimiter",
    "header",
)  # how files are read: settings of every `data:` table
TEXT_SETTINGS = (
    "data.column",
    "data.columns",
    "data.encoding",
    "data.delimiter",
    "data.label_separator",
)  # never numbers
TOP_LEVEL_KEYS = ("family", "recipe", "preset", "init")
MAX_CONFIG_BYTES = 2**20  # bytes of a file of settings


@dataclass(frozen=True, kw_only=True)
class PretrainDataConfig:
    """Where text comes from, and what becomes of it."""

    source: tuple[str, ...] = ()  # files, folders, globs; or one store of formers prepare
    tokenizer: str | None = None  # a tokenizer.json or a folder with one; None trains one,
    vocab_size: int = 1024  # of so many pieces
    unit: Literal["auto", "line", "block", "file"] = "auto"  # what a document is in text files
    column: str | None = None  # the column or key with the text, in tables and jsonl; two for pairs: de,en
    encoding: str = "utf-8"
    skip: bool = False  # count broken rows of tables and leave them out, instead of stopping
    delimiter: str | None = None  # between the columns of tables; None: found
    header: bool | None = None  # the first row names the columns; None: it does
    splitter: Literal["rules", "kiwi", "tabs", "none"] = "rules"  # how sentences are found; tabs: pairs
    units: str | None = None  # phrases and entities for ERNIE: kiwi, learn, or a file
    deduplicate: Literal["exact", "near", "no"] = "no"
    valid: tuple[str, ...] = ()  # files to be judged by,
    valid_fraction: float = 0.05  # or the share of documents that is held out for it

    @property
    def reader_options(self) -> dict[str, Any]:
        """How files are read, as data/readers.py and prepare want it."""
        return {name: getattr(self, name) for name in ("unit", *READER_SETTINGS)}

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size")
        if not 0 <= self.valid_fraction < 1:
            raise Error(
                f"a share of {self.valid_fraction} cannot be held out", fix="give for example data.valid_fraction 0.01"
            )


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """All that a run is asked to do."""

    family: str
    data: PretrainDataConfig
    model: dict[str, Any]
    objective: dict[str, Any]  # "name", and its options
    train: TrainConfig
    recipe: str = "quick"
    preset: str | None = None
    init: str | None = None  # a checkpoint to start from
    model_overrides: dict[str, Any] = field(default_factory=dict)  # the settings of `init` that were asked for

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as run.json keeps them."""
        return {
            "family": self.family, "recipe": self.recipe, "preset": self.preset, "init": self.init,
            "data": tuples_to_lists(dataclasses.asdict(self.data)), "model": tuples_to_lists(self.model),
            "objective": tuples_to_lists(self.objective), "train": tuples_to_lists(dataclasses.asdict(self.train)),
        }  # fmt: skip

    def to_yaml(self) -> str:
        """Return the settings as YAML, as --config reads them."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def tuples_to_lists(value: Any) -> Any:
    """Tuples as lists, all the way down."""
    if isinstance(value, Mapping):
        return {key: tuples_to_lists(inner) for key, inner in value.items()}
    return [tuples_to_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


def configure_pretraining(
    family: str | None, file: Any = None, overrides: Mapping[str, Any] | None = None, **top: Any
) -> PretrainConfig:
    """Merge and check. `file` is a path or a table; `overrides` are dotted ({"model.layers": 4}); `top` is recipe,
    preset or init."""
    told, where = read_config_tables(file), None if file is None or isinstance(file, Mapping) else file
    top = {**{k: v for k, v in told.items() if k in TOP_LEVEL_KEYS}, **{k: v for k, v in top.items() if v is not None}}
    family = family or top.get("family")
    if family is None:
        raise Error("no family is named", where=where, fix="formers tree lists them")
    if "family" in told and find_family(told["family"]).name != find_family(family).name:
        raise Error(f"this is of a {told['family']}, not of a {family}", where=where, fix="leave one of them out")
    found, sizes = find_preset(family, top.get("preset"))
    name = top.get("recipe") or "quick"
    single = unflatten_tables(overrides or {})
    given = {**told["model"], **single.get("model", {})}
    base = get_recipe(found.name, name, sizes if top.get("preset") else None, given)
    model = base.model if top.get("init") is None else {}  # a checkpoint has its own sizes
    layers: list[dict[str, Any]] = [
        {"data": base.data, "model": model, "objective": base.objective, "train": base.train},
        {key: told[key] for key in PRETRAIN_TABLES},
        single,
    ]
    merged: dict[str, dict[str, Any]] = {key: {} for key in PRETRAIN_TABLES}
    for layer in layers:
        for key, values in layer.items():
            merged[key] |= values
    named = {**layers[1]["train"], **single.get("train", {})}
    if top.get("init") is not None and "lr" not in named:
        merged["train"] |= choose_continued_lr(str(top["init"]), merged["train"])
    adjust_warmup(merged["train"], named)
    context = merged["model"].get("context")
    if context and "seq_length" not in named:
        merged["train"]["seq_length"] = min(merged["train"]["seq_length"], context)
    more = {"recipe": name, "preset": top.get("preset"), "init": top.get("init")}
    return build_pretrain_config(found.name, merged, given, more)


def choose_continued_lr(init: str, train: Mapping[str, Any]) -> dict[str, Any]:
    """The rate at which a checkpoint goes on: as in fine-tuning, by its width; nothing where that is unknown."""
    folder = fetch_model(init) if init.startswith("hub:") else find_model_folder(init)
    try:
        info = read_checkpoint_info(folder)
    except Error:  # of a damaged one, which is refused when it is loaded
        return {}
    dim: Any = (info.settings or {}).get("dim")
    if not is_positive_int(dim):
        return {}
    return {"lr": 1e-3 if train.get("optimizer") == "rms-adamw" else float(f"{LR_TIMES_DIM / dim:.2g}")}


def adjust_warmup(train: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a warm-up that was given and never ends; shorten the recipe's where fewer steps are asked for. The inverse
    square root keeps its warm-up: that sets the height of the curve."""
    steps, warmup = (
        coerce_value(train.get(name, getattr(TrainConfig, name)), int, f"train.{name}")
        for name in ("steps", "warmup_steps")
    )
    if warmup <= steps:
        return
    short = steps // 10
    if "warmup_steps" in given:
        what = f"a warm-up of {warmup:,} steps does not end within {steps:,} steps"
        raise Error(what, fix=f"--train.warmup_steps {short}, or more --train.steps")
    if train.get("schedule") != "inverse_sqrt":
        train["warmup_steps"] = short


def read_config_tables(file: Any) -> dict[str, Any]:
    """What a file says, or a table of the same: all of PRETRAIN_TABLES, and those of TOP_LEVEL_KEYS that it names."""
    told = read_config(file)
    where = None if file is None or isinstance(file, Mapping) else file
    for key in told:
        if key not in (*PRETRAIN_TABLES, *TOP_LEVEL_KEYS):
            raise Error(
                f"unknown setting {key!r}", where=where, fix=suggest_name(key, (*PRETRAIN_TABLES, *TOP_LEVEL_KEYS))
            )
    for key in PRETRAIN_TABLES:
        told[key] = told.get(key) or {}
        if not isinstance(told[key], Mapping):
            what = f"{key} is a table of settings, not {told[key]!r}"
            raise Error(what, where=where, fix=f"write {key}: and below it")
    return told


def build_pretrain_config(
    family: str, merged: dict[str, dict[str, Any]], given: dict[str, Any], top: dict[str, Any]
) -> PretrainConfig:
    """Every setting has a name that is known and a value of its kind."""
    declared = find_family(family).definition
    for key in ("source", "valid"):
        value = merged["data"].get(key) or ()
        merged["data"][key] = [value] if isinstance(value, str) else value
    known = get_schema(declared.config_class)
    for key, value in merged["model"].items():
        if key not in known:
            raise Error(f"unknown setting {key!r} of model", fix=suggest_name(key, known))
        merged["model"][key] = coerce_value(value, known[key], f"model.{key}")
    goal = {"name": declared.objective, **merged["objective"]}
    goal["name"] = resolve_objective(goal["name"])
    if goal["name"] == "seq2seq":  # a document is a pair
        merged["data"] = {"splitter": "tabs", "unit": "line", **merged["data"]}
    options = list_options(OBJECTIVES[goal["name"]].objective_class)
    for key in goal:
        if key != "name" and key not in options:
            raise Error(f"unknown setting {key!r} of objective {goal['name']!r}", fix=suggest_name(key, options))
    data = build_config(PretrainDataConfig, merged["data"], where="data")
    train = build_config(TrainConfig, merged["train"], where="train")
    asked = PretrainConfig(
        family=family, data=data, model=merged["model"], objective=goal, train=train, model_overrides=given, **top
    )
    if top["init"] is None:
        build_model_config(asked)
    return asked


def build_model_config(asked: PretrainConfig, **more: Any) -> Any:
    """The model's configuration, checked against the length of examples; `more` is what the tokenizer says."""
    known = get_schema(find_family(asked.family).definition.config_class)
    values = {**asked.model, **{key: value for key, value in more.items() if key in known}}
    config = build_config(find_family(asked.family).definition.config_class, values, where="model")
    context = getattr(config, "context", None)
    if context is not None and asked.train.seq_length > context:
        what = f"examples of {asked.train.seq_length} tokens are longer than the model's context of {context}"
        raise Error(what, fix=f"--train.seq_length {context}, or --model.context {asked.train.seq_length}")
    return config


def flatten_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """{"model": {"layers": 4}} → {"model.layers": 4}; what is no table is left out."""
    some = ((table, values) for table, values in tables.items() if isinstance(values, Mapping))
    return {f"{table}.{name}": value for table, values in some for name, value in values.items()}


def unflatten_tables(values: Mapping[str, Any], known: tuple[str, ...] = PRETRAIN_TABLES) -> dict[str, dict[str, Any]]:
    """{"model.layers": 4} → {"model": {"layers": 4}}; text is read as YAML is."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in resolve_settings(values, known).items():
        table, _, name = key.partition(".")
        if table not in known or not name:
            fix = explain_name(key, (), known) or f"settings begin with {', '.join(t + '.' for t in known)}"
            raise Error(f"unknown setting {key!r}", fix=fix)
        text = isinstance(value, str) and (key not in TEXT_SETTINGS or value == "null")
        tables.setdefault(table, {})[name] = parse_value(value) if text else value
    return tables


def parse_value(text: str) -> Any:
    """A value as people write it: 4, 1e-3, true, null, [1, 2], word."""
    try:
        value = parse_yaml(text)
    except ValueError:
        return text
    if isinstance(value, dict):  # "translate: " is a text
        return text
    if isinstance(value, str):  # YAML 1.1 does not take 1e-3 for a number
        try:
            return float(value)
        except ValueError:
            return value
    return value


def read_config(file: Any) -> dict[str, Any]:
    """A run's file; a table of the same is taken as it is, and None is an empty one."""
    if file is None or isinstance(file, Mapping):
        return resolve_tables(file or {})
    path = Path(file)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise Error(f"has more than {MAX_CONFIG_BYTES:,} bytes", where=path, fix="give the YAML file of a run")
        value = parse_yaml(data.decode("utf-8"))
    except OSError as error:
        raise Error(f"cannot be read ({error.strerror})", where=path, fix="give the YAML file of a run") from None
    except ValueError as error:  # of the encoding, too
        raise Error(f"is not YAML ({str(error)[:120]})", where=path, fix="correct it") from None
    if not isinstance(value, dict):
        raise Error("is not a table of settings", where=path, fix="formers pretrain FAMILY --print-config shows one")
    return resolve_tables(parse_floats(value))


def parse_floats(value: Any) -> Any:
    """YAML's numbers like 1e-3, which it reads as text."""
    if isinstance(value, dict):
        return {str(key): parse_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [parse_floats(inner) for inner in value]
    return parse_value(value) if isinstance(value, str) and value[:1].isdigit() and "e" in value.lower() else value
