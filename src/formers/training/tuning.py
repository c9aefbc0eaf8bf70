"""What a fine-tuning run is asked to do: the family's recipe < file < single settings, checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ..config import build, coerce, positive, probability, schema, suggest
from ..errors import Error
from ..registry import MEMBERS, PUBLISHED, find_published, member, preset
from ..tasks.task import TASKS
from .configure import READING, dotted, plain, read
from .recipes import OWN, RATE, SMALL
from .settings import Train

TABLES = ("data", "model", "tune", "train")
Features = Literal["no", "last", "second", "sum4", "cat4", "mix"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where examples come from, and how they are read."""

    train: str | None = None
    valid: str | None = None
    test: str | None = None
    columns: str | None = None  # which column is what: text=document,label=class
    column: str | None = None  # the column with the text, where that is all there is to say; two for pairs: de,en
    encoding: str = "utf-8"
    skip: bool = False  # count broken rows and leave them out, instead of stopping
    delimiter: str | None = None  # between the columns of tables; None: found
    header: bool | None = None  # the first row names the columns; None: it does, unless the content says no
    between: str | None = None  # what stands between several labels in one field: ";"
    held_out: float = 0.1  # the share of the training examples to be judged by, if there are no others
    tokenizer: str | None = None  # of a model from scratch: a tokenizer.json or a folder with one; None trains one,
    kind: str | None = None  # of this kind (bpe, wordpiece, unigram, words; None: the family's)
    pieces: int = 8000  # with so many pieces
    limit: int | None = None  # so many of the training examples, drawn from all

    @property
    def reading(self) -> dict[str, Any]:
        """How files are read, as tasks/examples.py wants it."""
        return {name: getattr(self, name) for name in READING}

    def __post_init__(self) -> None:
        positive(self, "pieces", "limit")
        if not 0 <= self.held_out < 1:
            raise Error(f"a share of {self.held_out} cannot be held out", fix="give for example data.held_out 0.1")


@dataclass(frozen=True, kw_only=True)
class Tune:
    """How a model learns a task. Epochs and examples become steps and tokens of the `train:` table."""

    epochs: float = 3.0
    batch: int = 32  # examples of a step, about: batches are packed by tokens
    warm: float = 0.1  # the share of the steps that warms up
    checks: float = 1.0  # looks at the held-out examples in an epoch
    patience: int = 0  # looks without a better score before the run ends; 0: it goes on
    length: int | None = None  # tokens of a document; None: what the model takes, up to 512
    long: Literal["windows", "cut", "error"] = "windows"  # what becomes of longer ones
    stride: int = 128  # tokens that two windows share
    layer_decay: float = 1.0  # the rate of each layer is so many times that of the one above (ELECTRA, §3.1)
    freeze: int = 0  # so many layers from below, with the embeddings, stay as they are; -1: all of them
    features: Features = "no"  # of a frozen model: the last layer, the one before, sum or concatenation of four, a mix
    lora: int = 0  # the rank of adapters that learn in place of the weights (Hu et al. 2021); 0: none
    lora_alpha: float = 16.0
    lora_merge: bool = True  # the saved model has the adapters merged in; else they are saved beside the weights
    balance: bool = False  # rare classes count as much as frequent ones
    many: bool | None = None  # a text may have several labels; None: as the examples say
    smoothing: float = 0.0  # of labels
    auxiliary: float = 0.0  # the share of the language model's loss (GPT: 0.5)
    both: bool = False  # read pairs in both orders (GPT's similarity)
    text: bool = False  # the decoder writes the label as a word (T5)
    prefix: str = ""  # in front of every text (T5)
    most: int = 30  # tokens of an answer
    output: int = 128  # tokens of a text that is written
    metric: str | None = None  # which one decides; None: the task's first
    baseline: bool = True  # a linear model over counted words is judged beside it
    vectors: str | None = None  # word vectors for the embeddings (TextCNN): a formers directory, or a published file
    vectors_frozen: bool = False  # they stay as they are

    def __post_init__(self) -> None:
        positive(self, "batch", "length", "most", "output")
        positive(self, "stride", "lora", "patience", least=0)
        probability(self, "warm", "smoothing")
        if not self.epochs > 0 or not self.checks > 0:
            raise Error("epochs and checks must be above 0", fix="take for example tune.epochs 3")
        if not self.auxiliary >= 0 or not self.lora_alpha > 0:
            what = f"auxiliary must be at least 0 and lora_alpha above 0, got {self.auxiliary} and {self.lora_alpha}"
            raise Error(what, fix="take for example tune.auxiliary 0.5, tune.lora_alpha 16")
        if not 0 < self.layer_decay <= 1:
            raise Error(f"layer_decay must be above 0 and at most 1, got {self.layer_decay}", fix="take 0.9")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """All that a fine-tuning run is asked to do."""

    family: str
    source: str | None  # a checkpoint; None: from scratch
    preset: str | None
    task: str
    data: Data
    model: dict[str, Any]
    tune: Tune
    train: Train
    chosen: tuple[str, ...] = ()  # the settings of `train` that were given, not left to the recipe
    options: dict[str, Any] = field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        """As the file of a run says it."""
        return {
            "family": self.family, "source": self.source, "preset": self.preset, "task": self.task,
            "data": plain(dataclasses.asdict(self.data)), "model": plain(self.model),
            "tune": plain(dataclasses.asdict(self.tune)), "train": plain(dataclasses.asdict(self.train)),
        }  # fmt: skip

    def text(self) -> str:
        """The settings as YAML, for --config. What the examples decide is left out, so that they decide it again."""
        table = self.table()
        derived = [name for name in DERIVED if name not in self.chosen and not (name == "warmup" and self.holds_warmup)]
        table["train"] = {name: value for name, value in table["train"].items() if name not in derived}
        if self.tune.length and "context" not in self.options:
            table["model"].pop("context", None)
        words = f"# {', '.join(derived)} of train follow from the examples, tune.epochs and tune.batch.\n"
        return words + yaml.safe_dump(whole_numbers(table), sort_keys=False, allow_unicode=True)

    @property
    def holds_warmup(self) -> bool:
        """A recipe whose schedule has a warm-up of its own keeps it, whatever the examples are."""
        return self.train.schedule == "inverse"


# Settings of `train` that follow from the examples unless they are given.
DERIVED = ("length", "tokens", "accumulate", "steps", "check", "save", "warmup", "lr")


def whole_numbers(value: Any) -> Any:
    """Floats without a fraction as integers, all the way down: people write epochs: 3."""
    if isinstance(value, dict):
        return {key: whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [whole_numbers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


# What learns a task from nothing within minutes: model, tune, train, data.
PAIRS = {"epochs": 30, "batch": 128, "smoothing": 0.1, "patience": 5, "length": 128, "warm": 0.0}
SCRATCH: dict[str, tuple[dict[str, Any], ...]] = {
    "textcnn": (
        {"init": 0.05},  # short vectors: words that are seldom seen are then no noise
        {"epochs": 10, "batch": 50, "patience": 3, "warm": 0.0},
        {"optimizer": "adam", "lr": 1e-3, "schedule": "constant", "decay": 0.0, "betas": (0.9, 0.999), "ema": 0.99},
        {"pieces": 30_000},
    ),
    "transformer": (
        {"dim": 256, "layers": 3, "heads": 4, "ff": 1024, "dropout": 0.3, "attention_dropout": 0.1, "tied": True,
         "context": 256},
        {**PAIRS, "epochs": 60},
        {"lr": 2e-3, "schedule": "inverse", "warmup": 1000, "decay": 0.0, "betas": (0.9, 0.98), "eps": 1e-9}, {},
    ),
    "seq2seq": (
        {"dim": 256, "layers": 1, "attention": "additive", "cell": "gru", "bidirectional": True, "dropout": 0.3},
        PAIRS, {"lr": 1e-3, "schedule": "linear", "warmup": 100, "decay": 0.0, "betas": (0.9, 0.999)}, {},
    ),
    "gnmt": (
        {"dim": 256, "layers": 3, "dropout": 0.3}, PAIRS,
        {"lr": 1e-3, "schedule": "linear", "warmup": 100, "decay": 0.0, "betas": (0.9, 0.999), "clip": 5.0}, {},
    ),
}  # fmt: skip
T5 = ("t5", "mt5", "switch")
FEW = {"optimizer": "adamw", "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.01, "schedule": "linear", "clip": 1.0}


def recipe(family: str, task: str, source: str | None, sized: bool) -> dict[str, dict[str, Any]]:
    """The settings of a family for a task: of a checkpoint (BERT, §A.3), or from nothing."""
    tables: dict[str, dict[str, Any]] = {"data": {}, "model": {}, "tune": {}, "train": dict(FEW)}
    if source is not None:
        if family in T5:
            tables["train"] |= {"optimizer": "rms-adamw", "lr": 1e-3, "schedule": "constant"}
        if family == "gpt" and task in ("classify", "regress", "choose"):
            tables["tune"]["auxiliary"] = 0.5  # §3.2
        if task in ("translate", "summarise"):
            tables["tune"] |= {"epochs": 5, "smoothing": 0.1}
        return tables
    known = schema(member(family).family.config)
    small = {**SMALL, **OWN.get(family, ({}, {}))[0], "context": 256, "dropout": 0.1}
    model = {k: v for k, v in small.items() if k in known and family != "textcnn"}
    tune: dict[str, Any] = {"epochs": 10, "patience": 3}
    train: dict[str, Any] = {"lr": 5e-4}
    own = SCRATCH.get(family)
    if own is None and family in T5:
        train |= {"optimizer": "rms-adamw", "lr": 1e-2}
    for table, values in zip((model, tune, train, tables["data"]), own or (), strict=False):
        table |= values
    if task in ("translate", "summarise") and own is None:
        tune = {**PAIRS, **tune, "epochs": 30}
    tables |= {"model": {} if sized else model, "tune": tune, "train": {**FEW, **train}}
    return tables


def find(model: str) -> tuple[str, str | None, str | None]:
    """What MODEL is: (family, checkpoint, preset); a folder or hub: name is a checkpoint, else a family or a preset."""
    if model.startswith("hub:") or Path(model).is_dir():
        return "", model, None
    if Path(model).name in MEMBERS or not any(c in model for c in "/\\"):
        for one in MEMBERS.values():
            if model == one.name or model in one.aliases:
                return one.name, None, None
        for one in MEMBERS.values():
            if model in one.family.presets:
                return one.name, None, model
        if place := find_published(model):
            what = f"the checkpoint {model!r} is not on this machine"
            raise Error(what, fix=f"{place} fetches it from the hub (pip install 'formers[hub]'), or give its folder")
        names = [*MEMBERS, *(p for one in MEMBERS.values() for p in one.family.presets), *PUBLISHED]
        raise Error(f"there is no model {model!r}", fix=f"{suggest(model, names)}; a folder is a checkpoint")
    fix = (
        f"give its folder, or {find_published(model) or 'hub:owner/name'} to fetch it from the hub, or a family's name"
    )
    raise Error("there is no such checkpoint", where=model, fix=fix)


def describe_random_start(family: str, preset: str | None) -> str:
    """What to tell somebody who names a model by its published name and gets new weights."""
    name = preset or family
    place = find_published(name)
    hint = f"; the published weights are {place}" if place else ""
    return f"{name} starts from random weights{hint}"


def configure(
    family: str, source: str | None, named: str | None, task: str, file: Any, overrides: Mapping[str, Any]
) -> Wanted:
    """Merge and check; `file` is a path or a table, `overrides` are dotted ({"tune.epochs": 5})."""
    told = read(file)
    for key in told:
        if key not in (*TABLES, "family", "source", "preset", "task"):
            raise Error(f"unknown setting {key!r}", where=None if isinstance(file, Mapping) else file,
                        fix=suggest(key, TABLES))  # fmt: skip
    if task not in TASKS:
        raise Error(f"there is no task {task!r}", fix=suggest(task, TASKS))
    found, sizes = (member(family), {}) if source else preset(family, named)
    single = dotted(overrides, TABLES)
    merged = recipe(found.name, task, source, named is not None)
    merged["model"] |= sizes
    for layer in ({key: told.get(key) or {} for key in TABLES}, single):
        for key, values in layer.items():
            merged[key] |= values
    settle(merged, {key: {*(told.get(key) or {}), *single.get(key, {})} for key in TABLES})
    known = schema(found.family.config)
    for key, value in merged["model"].items():
        if key not in known:
            raise Error(f"unknown setting {key!r} of model", fix=suggest(key, known))
        merged["model"][key] = coerce(value, known[key], f"model.{key}")
    given = {*(told.get("train") or {}), *single.get("train", {})}
    data, tune = build(Data, merged["data"], where="data"), build(Tune, merged["tune"], where="tune")
    values = {"samples": 0, "last": 1, **merged["train"]}
    values |= {} if "length" in given else {"length": 1}  # the examples say
    train = build(Train, values, where="train")
    if train.parallel != "copies":
        what = f"fine-tuning does not share a model out as {train.parallel}: each process has a copy"
        raise Error(what, fix="leave train.parallel out; --lora 8 or --train.checkpointing true need less memory")
    options = {**(told.get("model") or {}), **single.get("model", {})}
    return Wanted(
        family=found.name, source=source, preset=named, task=task, data=data, model=merged["model"], tune=tune,
        train=train, chosen=tuple(sorted({*given, *(("lr",) if source is None else ())})), options=options,
    )  # fmt: skip


def settle(merged: dict[str, dict[str, Any]], given: Mapping[str, set[str]]) -> None:
    """What the recipe says gives way where it does not go with what was given."""
    tune, model = merged["tune"], merged["model"]
    if tune.get("features", "no") != "no" and "auxiliary" not in given["tune"]:
        tune["auxiliary"] = 0.0  # of a model that does not learn
    if "context" in given["model"] and "length" not in given["tune"] and isinstance(model["context"], int):
        tune |= {"length": min(tune["length"], model["context"])} if tune.get("length") else {}


def scheduled(wanted: Wanted, sizes: Any, dim: int, processes: int = 1) -> Train:
    """The `train:` table with steps, tokens, rate and looks for examples of these (E, 3) sizes; the batch is that of
    all processes together."""
    t, tune = wanted.train, wanted.tune
    shared = processes > 1 and not {"tokens", "accumulate"} & set(wanted.chosen)
    pieces = processes if shared else t.accumulate
    larger = sizes[:, [0, 2]].sum(0).max()
    longest = int(sizes[:, [0, 2]].max())
    values: dict[str, Any] = {"length": longest, "accumulate": pieces}
    each = t.tokens if "tokens" in wanted.chosen else round(tune.batch * larger / len(sizes) / pieces)
    values["tokens"] = max(each, longest)
    epoch = max(1.0, larger / (values["tokens"] * pieces))
    steps = max(1, round(tune.epochs * epoch))
    values |= {"steps": steps, "check": max(1, round(epoch / tune.checks))}
    values["save"] = values["check"]
    if wanted.train.schedule != "inverse" or "warmup" in wanted.chosen:
        values["warmup"] = round(tune.warm * steps)
    if wanted.source is not None and t.optimizer in ("adamw", "adam"):
        # Adapters and heads alone take ten times as much.
        values["lr"] = RATE / dim * (10 if tune.lora or tune.features != "no" or tune.freeze < 0 else 1)
    made = dataclasses.replace(t, **{k: v for k, v in values.items() if k not in wanted.chosen or k == "length"})
    if made.warmup > made.steps and made.schedule != "inverse":
        what = f"a warm-up of {made.warmup:,} steps does not end within {made.steps:,} steps"
        raise Error(what, fix=f"--train.warmup {made.steps // 10}, or more --epochs")
    return made
