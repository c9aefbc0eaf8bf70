"""What a run is asked to do: recipe < preset < file < single settings, merged as plain tables, then checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ..config import build, coerce, positive, read_yaml, schema, shown, suggest
from ..errors import Error
from ..interop import safe
from ..interop.hub import fetch
from ..objectives.choose import OBJECTIVES, settings
from ..registry import member, preset
from .recipes import RATE, is_count, recipe
from .settings import Train

TABLES = ("data", "model", "objective", "train")
READING = ("column", "encoding", "skip", "delimiter", "header")  # how files are read: settings of every `data:` table
TEXTS = ("data.column", "data.columns", "data.encoding", "data.delimiter", "data.between")  # never numbers
TOP = ("family", "recipe", "preset", "init")
LONGEST = 2**20  # bytes of a file of settings


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where text comes from, and what becomes of it."""

    source: tuple[str, ...] = ()  # files, folders, globs; or one store of formers prepare
    tokenizer: str | None = None  # a tokenizer.json or a folder with one; None trains one,
    pieces: int = 1024  # of so many pieces
    unit: Literal["auto", "line", "block", "file"] = "auto"  # what a document is in text files
    column: str | None = None  # the column or key with the text, in tables and jsonl; two for pairs: de,en
    encoding: str = "utf-8"
    skip: bool = False  # count broken rows of tables and leave them out, instead of stopping
    delimiter: str | None = None  # between the columns of tables; None: found
    header: bool | None = None  # the first row names the columns; None: it does
    splitter: Literal["rules", "kiwi", "tabs", "none"] = "rules"  # how sentences are found; tabs: pairs
    units: str | None = None  # phrases and entities for ERNIE: kiwi, learn, or a file
    deduplicate: Literal["exact", "near", "no"] = "no"
    held: tuple[str, ...] = ()  # files to be judged by,
    held_out: float = 0.05  # or the share of documents that is held out for it
    looks: int = 24  # batches that one look takes

    @property
    def reading(self) -> dict[str, Any]:
        """How files are read, as data/readers.py and prepare want it."""
        return {name: getattr(self, name) for name in ("unit", *READING)}

    def __post_init__(self) -> None:
        positive(self, "pieces", "looks")
        if not 0 <= self.held_out < 1:
            raise Error(f"a share of {self.held_out} cannot be held out", fix="give for example data.held_out 0.01")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """All that a run is asked to do."""

    family: str
    data: Data
    model: dict[str, Any]
    objective: dict[str, Any]  # "name", and its options
    train: Train
    recipe: str = "quick"
    preset: str | None = None
    init: str | None = None  # a checkpoint to start from
    given: dict[str, Any] = field(default_factory=dict)  # the settings of `init` that were asked for

    def table(self) -> dict[str, Any]:
        """As the file of a run says it."""
        return {
            "family": self.family, "recipe": self.recipe, "preset": self.preset, "init": self.init,
            "data": plain(dataclasses.asdict(self.data)), "model": plain(self.model),
            "objective": plain(self.objective), "train": plain(dataclasses.asdict(self.train)),
        }  # fmt: skip

    def text(self) -> str:
        """The same as YAML, for --config."""
        return yaml.safe_dump(self.table(), sort_keys=False, allow_unicode=True)


def plain(value: Any) -> Any:
    """Tuples as lists, all the way down."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def configure(family: str | None, file: Any = None, overrides: Mapping[str, Any] | None = None, **top: Any) -> Asked:
    """Merge and check. `file` is a path or a table; `overrides` are dotted ({"model.layers": 4}); `top` is recipe,
    preset or init."""
    told, where = tables_of(file), None if file is None or isinstance(file, Mapping) else file
    top = {**{k: v for k, v in told.items() if k in TOP}, **{k: v for k, v in top.items() if v is not None}}
    family = family or top.get("family")
    if family is None:
        raise Error("no family is named", where=where, fix="formers tree lists them")
    if "family" in told and member(told["family"]).name != member(family).name:
        raise Error(f"this is of a {told['family']}, not of a {family}", where=where, fix="leave one of them out")
    found, sizes = preset(family, top.get("preset"))
    name = top.get("recipe") or "quick"
    single = dotted(overrides or {})
    given = {**told["model"], **single.get("model", {})}
    base = recipe(found.name, name, sizes if top.get("preset") else None, given)
    model = base.model if top.get("init") is None else {}  # a checkpoint has its own sizes
    layers: list[dict[str, Any]] = [
        {"data": {"pieces": base.pieces}, "model": model, "objective": base.objective, "train": base.train},
        {key: told[key] for key in TABLES},
        single,
    ]
    merged: dict[str, dict[str, Any]] = {key: {} for key in TABLES}
    for layer in layers:
        for key, values in layer.items():
            merged[key] |= values
    named = {**layers[1]["train"], **single.get("train", {})}
    if top.get("init") is not None and "lr" not in named:
        merged["train"] |= choose_continued_rate(found.family, str(top["init"]), merged["train"])
    settle_warmup(merged["train"], named)
    context = merged["model"].get("context")
    if context and "length" not in named:
        merged["train"]["length"] = min(merged["train"]["length"], context)
    more = {"recipe": name, "preset": top.get("preset"), "init": top.get("init")}
    return checked(found.name, merged, given, more)


def choose_continued_rate(family: Any, init: str, train: Mapping[str, Any]) -> dict[str, Any]:
    """The rate at which a checkpoint goes on: as in fine-tuning, by its width; nothing where that is unknown."""
    folder, ours = fetch(init) if init.startswith("hub:") else safe.folder(init), None
    try:
        if safe.exists(folder, "formers.json"):
            ours = safe.read_json(folder, "formers.json").get("config")
        elif family.hf is not None and safe.exists(folder, "config.json"):
            theirs = safe.read_json(folder, "config.json")
            ours = family.hf.config.read(theirs, where=folder, ignore=theirs)
    except Error:  # of a damaged one, which is refused when it is loaded
        return {}
    dim: Any = ours.get("dim") if isinstance(ours, Mapping) else None
    if not is_count(dim):
        return {}
    return {"lr": 1e-3 if train.get("optimizer") == "rms-adamw" else float(f"{RATE / dim:.2g}")}


def settle_warmup(train: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a warm-up that was given and never ends; shorten the recipe's where fewer steps are asked for. The inverse
    square root keeps its warm-up: that sets the height of the curve."""
    steps, warmup = (
        coerce(train.get(name, getattr(Train, name)), int, f"train.{name}") for name in ("steps", "warmup")
    )
    if warmup <= steps:
        return
    short = steps // 10
    if "warmup" in given:
        what = f"a warm-up of {warmup:,} steps does not end within {steps:,} steps"
        raise Error(what, fix=f"--train.warmup {short}, or more --train.steps")
    if train.get("schedule") != "inverse":
        train["warmup"] = short


def tables_of(file: Any) -> dict[str, Any]:
    """What a file says, or a table of the same: all of TABLES, and those of TOP that it names."""
    told = read(file)
    where = None if file is None or isinstance(file, Mapping) else file
    for key in told:
        if key not in (*TABLES, *TOP):
            raise Error(f"unknown setting {key!r}", where=where, fix=suggest(key, (*TABLES, *TOP)))
    for key in TABLES:
        told[key] = told.get(key) or {}
        if not isinstance(told[key], Mapping):
            what = f"{key} is a table of settings, not {told[key]!r}"
            raise Error(what, where=where, fix=f"write {key}: and below it")
    return told


def checked(family: str, merged: dict[str, dict[str, Any]], given: dict[str, Any], top: dict[str, Any]) -> Asked:
    """Every setting has a name that is known and a value of its kind."""
    declared = member(family).family
    for key in ("source", "held"):
        value = merged["data"].get(key) or ()
        merged["data"][key] = [value] if isinstance(value, str) else value
    known = schema(declared.config)
    for key, value in merged["model"].items():
        if key not in known:
            raise Error(f"unknown setting {key!r} of model", fix=suggest(key, known))
        merged["model"][key] = coerce(value, known[key], f"model.{key}")
    goal = {"name": declared.objective, **merged["objective"]}
    if not isinstance(goal["name"], str) or goal["name"] not in OBJECTIVES:
        raise Error(f"the objective {shown(goal['name'])} is not available", fix=suggest(str(goal["name"]), OBJECTIVES))
    if goal["name"] == "seq2seq":  # a document is a pair
        merged["data"] = {"splitter": "tabs", "unit": "line", **merged["data"]}
    options = settings(OBJECTIVES[goal["name"]].kind)
    for key in goal:
        if key != "name" and key not in options:
            raise Error(f"unknown setting {key!r} of objective {goal['name']!r}", fix=suggest(key, options))
    data = build(Data, merged["data"], where="data")
    train = build(Train, merged["train"], where="train")
    asked = Asked(family=family, data=data, model=merged["model"], objective=goal, train=train, given=given, **top)
    if top["init"] is None:
        sized(asked)
    return asked


def sized(asked: Asked, **more: Any) -> Any:
    """The model's configuration, checked against the length of examples; `more` is what the tokenizer says."""
    known = schema(member(asked.family).family.config)
    values = {**asked.model, **{key: value for key, value in more.items() if key in known}}
    config = build(member(asked.family).family.config, values, where="model")
    context = getattr(config, "context", None)
    if context is not None and asked.train.length > context:
        what = f"examples of {asked.train.length} tokens are longer than the model's context of {context}"
        raise Error(what, fix=f"--train.length {context}, or --model.context {asked.train.length}")
    return config


def by_dots(tables: Mapping[str, Any]) -> dict[str, Any]:
    """{"model": {"layers": 4}} → {"model.layers": 4}; what is no table is left out."""
    some = ((table, values) for table, values in tables.items() if isinstance(values, Mapping))
    return {f"{table}.{name}": value for table, values in some for name, value in values.items()}


def dotted(values: Mapping[str, Any], known: tuple[str, ...] = TABLES) -> dict[str, dict[str, Any]]:
    """{"model.layers": 4} → {"model": {"layers": 4}}; text is read as YAML is."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        table, _, name = key.partition(".")
        if table not in known or not name:
            raise Error(f"unknown setting {key!r}", fix=f"settings begin with {', '.join(t + '.' for t in known)}")
        text = isinstance(value, str) and (key not in TEXTS or value == "null")
        tables.setdefault(table, {})[name] = worded(value) if text else value
    return tables


def worded(text: str) -> Any:
    """A value as people write it: 4, 1e-3, true, null, [1, 2], word."""
    try:
        value = read_yaml(text)
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


def read(file: Any) -> dict[str, Any]:
    """A run's file; a table of the same is taken as it is, and None is an empty one."""
    if file is None or isinstance(file, Mapping):
        return dict(file or {})
    path = Path(file)
    try:
        with open(path, "rb") as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise Error(f"has more than {LONGEST:,} bytes", where=path, fix="give the YAML file of a run")
        value = read_yaml(data.decode("utf-8"))
    except OSError as error:
        raise Error(f"cannot be read ({error.strerror})", where=path, fix="give the YAML file of a run") from None
    except ValueError as error:  # of the encoding, too
        raise Error(f"is not YAML ({str(error)[:120]})", where=path, fix="correct it") from None
    if not isinstance(value, dict):
        raise Error("is not a table of settings", where=path, fix="formers pretrain FAMILY --print-config shows one")
    return floats(value)


def floats(value: Any) -> Any:
    """YAML's numbers like 1e-3, which it reads as text."""
    if isinstance(value, dict):
        return {str(key): floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [floats(inner) for inner in value]
    return worded(value) if isinstance(value, str) and value[:1].isdigit() and "e" in value.lower() else value
