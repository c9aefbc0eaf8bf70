"""What a run is asked to do: recipe < preset < file < single settings, merged as plain tables, then checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from ..config import build_config, check_rates, check_sizes, coerce_value, get_schema, parse_yaml, suggest_name
from ..errors import Error
from ..family import TRANSLATION_TUNE, Family
from ..interop.hub import fetch_model
from ..interop.model_directory import read_checkpoint_info
from ..interop.safe_files import find_model_folder
from ..objectives.registry import OBJECTIVES, list_options, resolve_objective
from ..option_aliases import explain_name, resolve_setting, resolve_settings, resolve_tables
from ..registry import FAMILIES, find_family, find_preset, find_published_checkpoint, list_published_checkpoints
from ..task import TASKS
from .optimizer import WARMUP_SCALED_SCHEDULES
from .recipes import LR_TIMES_DIM, SMALL_MODEL, get_recipe, is_positive_int
from .train_config import LoopConfig, TrainConfig

PRETRAIN_TABLES = ("data", "model", "objective", "train")
FINETUNE_TABLES = ("data", "model", "tune", "train")
PRETRAIN_KEYS = ("family", "recipe", "preset", "init")  # of a file, beside its tables
FINETUNE_KEYS = ("family", "source", "preset", "task")
READER_SETTINGS = ("column", "encoding", "skip", "delimiter", "header")  # how files are read: in every `data:` table
TEXT_SETTINGS = ("data.column", "data.columns", "data.encoding", "data.delimiter", "data.label_separator")  # all text
SMOOTHABLE_KINDS = ("class", "tags", "text")  # kinds of answers whose labels can be smoothed
MAX_CONFIG_BYTES = 2**20  # bytes of a file of settings
Features = Literal["no", "last", "second", "sum4", "cat4", "mix"]
Tables = dict[str, dict[str, Any]]


class RunConfig:
    """All that a run is asked to do; `saved_fields` are those that run.json and a file for --config hold."""

    saved_fields: ClassVar[tuple[str, ...]]
    train: LoopConfig

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as run.json keeps them."""
        return {name: to_plain(getattr(self, name)) for name in self.saved_fields}

    def to_yaml(self) -> str:
        """Return the settings as YAML, as --config reads them."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def to_plain(value: Any, change: Callable[[Any], Any] = lambda one: one) -> Any:
    """Turn dataclasses into tables and tuples into lists, all the way down, with a change of every single value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {key: to_plain(inner, change) for key, inner in value.items()}
    return [to_plain(inner, change) for inner in value] if isinstance(value, list | tuple) else change(value)


def check_fraction(value: float) -> None:
    """Refuse a share of the data that cannot be held out for validation."""
    if not 0 <= value < 1:
        raise Error(f"a share of {value} cannot be held out", fix="give for example data.valid_fraction 0.05")


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
    valid: tuple[str, ...] = ()  # files to evaluate on,
    valid_fraction: float = 0.05  # or the share of documents that is held out for it

    @property
    def reader_options(self) -> dict[str, Any]:
        """How files are read, as data/readers.py and prepare want it."""
        return {name: getattr(self, name) for name in ("unit", *READER_SETTINGS)}

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size")
        check_fraction(self.valid_fraction)


@dataclass(frozen=True, kw_only=True)
class FinetuneDataConfig:
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
    label_separator: str | None = None  # what stands between several labels in one field: ";"
    valid_fraction: float = 0.1  # the share of the training examples to evaluate on, if there are no others
    tokenizer: str | None = None  # of a model from scratch: a tokenizer.json or a folder with one; None trains one,
    tokenizer_kind: str | None = None  # of this kind (bpe, wordpiece, unigram, words; None: the family's)
    vocab_size: int = 8000  # with so many pieces
    limit: int | None = None  # so many of the training examples, drawn from all

    @property
    def reader_options(self) -> dict[str, Any]:
        """How files are read, as runs/splits.py wants it."""
        return {name: getattr(self, name) for name in READER_SETTINGS}

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "limit")
        check_fraction(self.valid_fraction)


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """How a model learns a task. Epochs and examples become steps and tokens of the `train:` table."""

    epochs: float = 3.0
    batch_size: int = 32  # examples of a step, about: batches are packed by tokens
    warmup_ratio: float = 0.1  # the share of the steps that warms up
    evals_per_epoch: float = 1.0  # evaluations on the validation examples in an epoch
    patience: int = 0  # evaluations without a better score before the run ends; 0: never
    seq_length: int | None = None  # tokens of a document; None: what the model takes, up to 512
    long_texts: Literal["windows", "cut", "error"] = "windows"  # what becomes of longer ones
    stride: int = 128  # tokens that two windows share
    layer_decay: float = 1.0  # the rate of each layer is so many times that of the one above (ELECTRA, §3.1)
    freeze: int = 0  # so many layers from below, with the embeddings, stay as they are; -1: all of them
    features: Features = "no"  # of a frozen model: the last layer, the one before, sum or concatenation of four, a mix
    lora: int = 0  # the rank of adapters that learn in place of the weights (Hu et al. 2021); 0: none
    lora_alpha: float = 16.0
    lora_merge: bool = True  # the saved model has the adapters merged in; else they are saved beside the weights
    balance: bool = False  # rare classes count as much as frequent ones
    multilabel: bool | None = None  # a text may have several labels; None: as the examples say
    label_smoothing: float = 0.0  # of labels
    lm_loss_weight: float = 0.0  # the share of the language model's loss (GPT: 0.5)
    both_orders: bool = False  # read pairs in both orders (GPT's similarity)
    label_as_text: bool = False  # the decoder writes the label as a word (T5)
    prefix: str = ""  # in front of every text (T5)
    max_answer_tokens: int = 30  # tokens of an answer
    max_output_tokens: int = 128  # tokens of a text that is written
    metric: str | None = None  # which one decides; None: the task's first
    baseline: bool = True  # a linear model over counted words is evaluated beside it
    vectors: str | None = None  # word vectors for the embeddings (TextCNN): a formers directory, or a published file
    vectors_frozen: bool = False  # they stay as they are

    def __post_init__(self) -> None:
        check_sizes(self, "batch_size", "seq_length", "max_answer_tokens", "max_output_tokens")
        check_sizes(self, "stride", "lora", "patience", minimum=0)
        check_rates(self, "warmup_ratio", "label_smoothing")
        if not self.epochs > 0 or not self.evals_per_epoch > 0:
            raise Error("epochs and evals_per_epoch must be above 0", fix="take for example tune.epochs 3")
        if not self.lm_loss_weight >= 0 or not self.lora_alpha > 0:
            got = f"{self.lm_loss_weight} and {self.lora_alpha}"
            what = f"lm_loss_weight must be at least 0 and lora_alpha above 0, got {got}"
            raise Error(what, fix="take for example tune.lm_loss_weight 0.5, tune.lora_alpha 16")
        if not 0 < self.layer_decay <= 1:
            raise Error(f"layer_decay must be above 0 and at most 1, got {self.layer_decay}", fix="take 0.9")


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(RunConfig):
    """All that a pretraining run is asked to do."""

    saved_fields = (*PRETRAIN_KEYS, *PRETRAIN_TABLES)
    family: str
    data: PretrainDataConfig
    model: dict[str, Any]
    objective: dict[str, Any]  # "name", and its options
    train: TrainConfig
    recipe: str = "quick"
    preset: str | None = None
    init: str | None = None  # a checkpoint to start from
    model_overrides: dict[str, Any] = field(default_factory=dict)  # the settings of `init` that were asked for


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(RunConfig):
    """All that a fine-tuning run is asked to do."""

    saved_fields = (*FINETUNE_KEYS, *FINETUNE_TABLES)
    family: str
    source: str | None  # a checkpoint; None: from scratch
    preset: str | None
    task: str
    data: FinetuneDataConfig
    model: dict[str, Any]
    tune: TuneConfig
    train: TrainConfig
    explicit_train: tuple[str, ...] = ()  # the settings of `train` that were given, not left to the recipe
    model_overrides: dict[str, Any] = field(default_factory=dict)

    def to_yaml(self) -> str:
        """Return the settings as YAML, without those that follow from the examples, so that they are derived again."""
        table = self.to_dict()
        # A recipe whose schedule has a warmup of its own keeps it, whatever the examples are.
        kept = {*self.explicit_train, *(("warmup_steps",) if self.train.schedule in WARMUP_SCALED_SCHEDULES else ())}
        derived = [name for name in DERIVED_SETTINGS if name not in kept]
        table["train"] = {name: value for name, value in table["train"].items() if name not in derived}
        if self.tune.seq_length and "context" not in self.model_overrides:
            table["model"].pop("context", None)
        words = f"# {', '.join(derived)} of train follow from the examples, tune.epochs and tune.batch_size.\n"
        return words + yaml.safe_dump(to_plain(table, shorten_float), sort_keys=False, allow_unicode=True)


# Settings of `train` that follow from the examples unless they are given.
DERIVED_SETTINGS = (
    "seq_length", "batch_tokens", "accumulate", "steps", "eval_every", "save_every", "warmup_steps", "lr",
)  # fmt: skip


def shorten_float(value: Any) -> Any:
    """Return a float without a fraction as an integer: people write epochs: 3."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


@dataclass(frozen=True)
class GivenSettings:
    """What a file and single settings say: the file's keys beside its tables, and the settings of every table."""

    top: dict[str, Any]
    tables: Tables

    @staticmethod
    def read(file: Any, overrides: Mapping[str, Any], tables: tuple[str, ...], keys: tuple[str, ...]) -> GivenSettings:
        """Read a file (a path, or a table of the same); dotted `overrides` ({"model.layers": 4}) win over it."""
        told, single = read_config_tables(file, tables, keys), unflatten_tables(overrides, tables)
        merged = {name: {**told[name], **single.get(name, {})} for name in tables}
        return GivenSettings({key: value for key, value in told.items() if key in keys}, merged)

    def merge_over(self, recipe: Mapping[str, Mapping[str, Any]]) -> Tables:
        """Return the tables of a recipe with the given settings over them."""
        return {name: {**recipe.get(name, {}), **values} for name, values in self.tables.items()}


def read_config_tables(file: Any, tables: tuple[str, ...], keys: tuple[str, ...]) -> dict[str, Any]:
    """Read a file of settings, or a table of the same: all of `tables`, and those of `keys` that it names."""
    told, where = read_config(file), None if file is None or isinstance(file, Mapping) else file
    for key in told:
        if key not in (*tables, *keys):
            raise Error(f"unknown setting {key!r}", where=where, fix=suggest_name(key, (*tables, *keys)))
    for name in tables:
        told[name] = told.get(name) or {}
        if not isinstance(told[name], Mapping):
            what = f"{name} is a table of settings, not {told[name]!r}"
            raise Error(what, where=where, fix=f"write {name}: and below it")
    return told


def collect_overrides(
    verb: str, settings: Mapping[str, Any], overrides: Mapping[str, Any] | None, tables: tuple[str, ...],
    short: Mapping[str, str] | None = None, arguments: tuple[str, ...] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the settings given to a verb as tables (train={"steps": 9}), by bare names (`short`: bare → dotted) and by
    dotted names (`overrides`), all under dotted names. `arguments` are other names that a hint may name."""
    given, short = dict[str, Any](), short or {}
    for name, value in settings.items():
        if name in tables and isinstance(value, Mapping):
            given |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif name in short:
            given[short[name]] = value
        elif resolve_setting(name, tables) != name:
            given[name] = value
        else:
            known = f"settings are {', '.join(short)}" if short else f"tables of settings are {', '.join(tables)}"
            fix = explain_name(name, (*short, *arguments), tables) or known
            raise Error(f"{verb} has no argument {name!r}", fix=fix)
    return resolve_settings(given | dict(overrides or {}), tables)


def coerce_model_settings(family: Family, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check that a family's config has these settings, and give each the type that it has there."""
    known = get_schema(family.config_class)
    for key in values:
        if key not in known:
            raise Error(f"unknown setting {key!r} of model", fix=suggest_name(key, known))
    return {key: coerce_value(value, known[key], f"model.{key}") for key, value in values.items()}


def make_warmup_error(warmup: int, steps: int, option: str) -> Error:
    """Return the error about a warmup that never ends; `option` makes the run longer."""
    what = f"a warmup of {warmup:,} steps does not end within {steps:,} steps"
    return Error(what, fix=f"--train.warmup_steps {steps // 10}, or more {option}")


def configure_pretraining(
    family: str | None, file: Any = None, overrides: Mapping[str, Any] | None = None, **top: Any
) -> PretrainConfig:
    """Merge and check the settings of a pretraining run. `file` is a path or a table; `overrides` are dotted; `top` is
    recipe, preset or init."""
    given = GivenSettings.read(file, overrides or {}, PRETRAIN_TABLES, PRETRAIN_KEYS)
    where = None if file is None or isinstance(file, Mapping) else file
    keys = {**given.top, **{k: v for k, v in top.items() if v is not None}}
    family = family or keys.get("family")
    if family is None:
        raise Error("no family is named", where=where, fix="formers tree lists them")
    if "family" in given.top and find_family(given.top["family"]).name != find_family(family).name:
        raise Error(f"this is of a {given.top['family']}, not of a {family}", where=where, fix="leave one of them out")
    preset, init, recipe = keys.get("preset"), keys.get("init"), keys.get("recipe") or "quick"
    found, sizes = find_preset(family, preset)
    base = get_recipe(found.name, recipe, sizes if preset else None, given.tables["model"])
    model = base.model if init is None else {}  # a checkpoint has its own sizes
    merged = given.merge_over({"data": base.data, "model": model, "objective": base.objective, "train": base.train})
    train, named = merged["train"], given.tables["train"]
    if init is not None and "lr" not in named:
        train |= choose_continued_lr(str(init), train)
    adjust_warmup(train, named)
    context = merged["model"].get("context")
    if context and "seq_length" not in named:
        train["seq_length"] = min(train["seq_length"], context)
    more = {"recipe": recipe, "preset": preset, "init": init, "model_overrides": given.tables["model"]}
    return build_pretrain_config(found.name, merged, more)


def choose_continued_lr(init: str, train: Mapping[str, Any]) -> dict[str, Any]:
    """Choose the rate of continued pretraining: as in fine-tuning, by the width; nothing where that is unknown."""
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
    """Refuse a warmup that was given and never ends; shorten the recipe's where fewer steps are asked for. The inverse
    square root keeps its warmup: that sets the height of the curve."""
    usual = {"steps": TrainConfig.steps, "warmup_steps": TrainConfig.warmup_steps}
    steps, warmup = (coerce_value(train.get(name, n), int, f"train.{name}") for name, n in usual.items())
    if warmup <= steps:
        return
    if "warmup_steps" in given:
        raise make_warmup_error(warmup, steps, "--train.steps")
    if train.get("schedule") not in WARMUP_SCALED_SCHEDULES:
        train["warmup_steps"] = steps // 10


def build_pretrain_config(family: str, merged: Tables, more: Mapping[str, Any]) -> PretrainConfig:
    """Check that every setting has a name that is known and a value of its kind; `more` are the other fields."""
    declared, data = find_family(family).definition, merged["data"]
    for key in ("source", "valid"):
        value = data.get(key) or ()
        data[key] = [value] if isinstance(value, str) else value
    model = coerce_model_settings(declared, merged["model"])
    goal = {"name": declared.objective, **merged["objective"]}
    goal["name"] = resolve_objective(goal["name"])
    if goal["name"] == "seq2seq":  # a document is a pair
        data = {"splitter": "tabs", "unit": "line", **data}
    options = list_options(OBJECTIVES[goal["name"]].objective_class)
    for key in goal:
        if key != "name" and key not in options:
            raise Error(f"unknown setting {key!r} of objective {goal['name']!r}", fix=suggest_name(key, options))
    asked = PretrainConfig(
        family=family, data=build_config(PretrainDataConfig, data, where="data"), model=model, objective=goal,
        train=build_config(TrainConfig, merged["train"], where="train"), **more,
    )  # fmt: skip
    if asked.init is None:
        build_model_config(asked)
    return asked


def build_model_config(asked: PretrainConfig, **more: Any) -> Any:
    """Build the model's configuration, checked against the length of examples; `more` is what the tokenizer says."""
    known = get_schema(find_family(asked.family).definition.config_class)
    values = {**asked.model, **{key: value for key, value in more.items() if key in known}}
    if (rows := asked.model_overrides.get("vocab")) is not None and "vocab" in more:
        if rows < more["vocab"]:
            what = f"model.vocab {rows} is smaller than the tokenizer, which has {more['vocab']:,} tokens"
            raise Error(what, fix="leave --model.vocab out, or take a smaller --data.vocab_size")
        values["vocab"] = rows  # a table may have rows to spare, for example up to a multiple of 64
    config = build_config(find_family(asked.family).definition.config_class, values, where="model")
    context = getattr(config, "context", None)
    if context is not None and asked.train.seq_length > context:
        what = f"examples of {asked.train.seq_length} tokens are longer than the model's context of {context}"
        raise Error(what, fix=f"--train.seq_length {context}, or --model.context {asked.train.seq_length}")
    return config


def configure_finetuning(
    family: str, source: str | None, preset: str | None, task: str, file: Any, overrides: Mapping[str, Any]
) -> FinetuneConfig:
    """Merge and check the settings of a fine-tuning run; `file` is a path or a table, `overrides` are dotted."""
    given = GivenSettings.read(file, overrides, FINETUNE_TABLES, FINETUNE_KEYS)
    if task not in TASKS:
        raise Error(f"there is no task {task!r}", fix=suggest_name(task, TASKS))
    found, sizes = (find_family(family), {}) if source else find_preset(family, preset)
    recipe = get_finetune_recipe(found.name, task, source, preset is not None)
    recipe["model"] |= sizes
    merged = given.merge_over(recipe)
    resolve_conflicts(task, merged, given.tables)
    values = {"samples": 0, "keep_last": 1, **merged["train"]}
    values |= {} if "seq_length" in given.tables["train"] else {"seq_length": 1}  # the examples say
    train = build_config(TrainConfig, values, where="train")
    if train.parallel != "ddp":
        what = f"fine-tuning does not share a model out as {train.parallel}: each process has a copy"
        fix = "leave train.parallel out; --lora 8 or --train.activation_checkpointing true need less memory"
        raise Error(what, fix=fix)
    return FinetuneConfig(
        family=found.name, source=source, preset=preset, task=task,
        data=build_config(FinetuneDataConfig, merged["data"], where="data"),
        model=coerce_model_settings(found.definition, merged["model"]),
        tune=build_config(TuneConfig, merged["tune"], where="tune"), train=train,
        explicit_train=tuple(sorted({*given.tables["train"], *(("lr",) if source is None else ())})),
        model_overrides=given.tables["model"],
    )  # fmt: skip


FINETUNE_TRAIN = {
    "optimizer": "adamw", "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "schedule": "linear",
    "grad_clip": 1.0,
}  # fmt: skip


def get_finetune_recipe(family: str, task: str, source: str | None, sized: bool) -> Tables:
    """Return the settings of a family for a task: of a checkpoint (BERT, §A.3), or from nothing."""
    tables: Tables = {"data": {}, "model": {}, "tune": {}, "train": dict(FINETUNE_TRAIN)}
    declared = find_family(family).definition
    if source is not None:
        tables["train"] |= declared.finetune_recipe.train
        if task in ("classify", "regress", "choose"):
            tables["tune"] |= declared.finetune_recipe.tune
        if task in ("translate", "summarise"):
            tables["tune"] |= {"epochs": 5, "label_smoothing": 0.1}
        return tables
    known, own = get_schema(declared.config_class), declared.scratch_recipe
    small = {**SMALL_MODEL, **declared.quick_recipe.model, "context": 256, "dropout": 0.1}
    # What is not pretrained is as small as it was published.
    model = {k: v for k, v in small.items() if k in known and declared.objective} | {**own.model}
    tune = {"epochs": 10, "patience": 3, **own.tune}
    if task in ("translate", "summarise") and not own.tune:
        tune = {**TRANSLATION_TUNE, **tune, "epochs": 30}
    tables |= {"data": {**own.data}, "model": {} if sized else model, "tune": tune}
    tables["train"] |= {"lr": 5e-4, **own.train}
    return tables


def resolve_conflicts(task: str, merged: Tables, given: Tables) -> None:
    """Let settings of the recipe give way where they do not fit the task or the settings that were given."""
    tune, model = merged["tune"], merged["model"]
    if "label_smoothing" not in given["tune"] and not {*SMOOTHABLE_KINDS} & {*TASKS[task][0]}:
        tune.pop("label_smoothing", None)
    if tune.get("features", "no") != "no" and "lm_loss_weight" not in given["tune"]:
        tune["lm_loss_weight"] = 0.0  # of a model that does not learn
    if "context" in given["model"] and "seq_length" not in given["tune"] and isinstance(model["context"], int):
        tune |= {"seq_length": min(tune["seq_length"], model["context"])} if tune.get("seq_length") else {}


def derive_train_config(wanted: FinetuneConfig, sizes: Any, dim: int, processes: int = 1) -> TrainConfig:
    """Return the `train:` table with steps, tokens, rate and evaluations for examples of these (E, 3) sizes; the batch
    is that of all processes together."""
    t, tune = wanted.train, wanted.tune
    shared = processes > 1 and not {"batch_tokens", "accumulate"} & set(wanted.explicit_train)
    pieces = processes if shared else t.accumulate
    larger = sizes[:, [0, 2]].sum(0).max()
    longest = int(sizes[:, [0, 2]].max())
    values: dict[str, Any] = {"seq_length": longest, "accumulate": pieces}
    each = round(tune.batch_size * larger / len(sizes) / pieces)
    each = t.batch_tokens if "batch_tokens" in wanted.explicit_train else each
    values["batch_tokens"] = max(each, longest)
    epoch = max(1.0, larger / (values["batch_tokens"] * pieces))
    steps = max(1, round(tune.epochs * epoch))
    values |= {"steps": steps, "eval_every": max(1, round(epoch / tune.evals_per_epoch))}
    values["save_every"] = values["eval_every"]
    if wanted.train.schedule not in WARMUP_SCALED_SCHEDULES or "warmup_steps" in wanted.explicit_train:
        values["warmup_steps"] = round(tune.warmup_ratio * steps)
    if wanted.source is not None and t.optimizer in ("adamw", "adam"):
        # Adapters and heads alone take ten times as much.
        values["lr"] = LR_TIMES_DIM / dim * (10 if tune.lora or tune.features != "no" or tune.freeze < 0 else 1)
    free = {k: v for k, v in values.items() if k not in wanted.explicit_train or k == "seq_length"}
    made = dataclasses.replace(t, **free)
    if made.warmup_steps > made.steps and made.schedule not in WARMUP_SCALED_SCHEDULES:
        raise make_warmup_error(made.warmup_steps, made.steps, "--epochs")
    return made


def resolve_model(model: str) -> tuple[str, str | None, str | None]:
    """Return (family, checkpoint, preset) of MODEL: a folder or hub: name is a checkpoint, else a family or preset."""
    if model.startswith("hub:") or Path(model).is_dir():
        return "", model, None
    if Path(model).name in FAMILIES or not any(c in model for c in "/\\"):
        for one in FAMILIES.values():
            if model == one.name or model in one.aliases:
                return one.name, None, None
        for one in FAMILIES.values():
            if model in one.definition.presets:
                return one.name, None, model
        if place := find_published_checkpoint(model):
            what = f"the checkpoint {model!r} is not on this machine"
            raise Error(what, fix=f"{place} fetches it from the hub (pip install 'formers[hub]'), or give its folder")
        presets = [name for one in FAMILIES.values() for name in one.definition.presets]
        names = [*FAMILIES, *presets, *list_published_checkpoints()]
        raise Error(f"there is no model {model!r}", fix=f"{suggest_name(model, names)}; a folder is a checkpoint")
    place = find_published_checkpoint(model) or "hub:owner/name"
    fix = f"give its folder, or {place} to fetch it from the hub, or a family's name"
    raise Error("there is no such checkpoint", where=model, fix=fix)


def describe_random_start(family: str, preset: str | None) -> str:
    """Return a note for somebody who names a model by its published name and gets new weights."""
    place = find_published_checkpoint(preset or family)
    hint = f"; the published weights are {place}" if place else ""
    return f"{preset or family} starts from random weights{hint}"


def flatten_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """{"model": {"layers": 4}} → {"model.layers": 4}; what is no table is left out."""
    some = ((table, values) for table, values in tables.items() if isinstance(values, Mapping))
    return {f"{table}.{name}": value for table, values in some for name, value in values.items()}


def unflatten_tables(values: Mapping[str, Any], known: tuple[str, ...]) -> Tables:
    """{"model.layers": 4} → {"model": {"layers": 4}}; text is read as YAML is."""
    tables: Tables = {}
    for key, value in resolve_settings(values, known).items():
        table, _, name = key.partition(".")
        if table not in known or not name:
            fix = explain_name(key, (), known) or f"settings begin with {', '.join(t + '.' for t in known)}"
            raise Error(f"unknown setting {key!r}", fix=fix)
        text = isinstance(value, str) and (key not in TEXT_SETTINGS or value == "null")
        tables.setdefault(table, {})[name] = parse_value(value) if text else value
    return tables


def parse_value(text: str) -> Any:
    """Parse a value as people write it: 4, 1e-3, true, null, [1, 2], word."""
    try:
        value = parse_yaml(text)
    except ValueError:
        return text
    if isinstance(value, str):  # YAML 1.1 does not take 1e-3 for a number
        with suppress(ValueError):
            return float(value)
    return text if isinstance(value, dict) else value  # "translate: " is a text


def read_config(file: Any) -> dict[str, Any]:
    """Read a run's file; a table of its settings is taken as it is, and None is an empty one."""
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
    """Parse numbers like 1e-3, which YAML reads as text."""
    if isinstance(value, dict):
        return {str(key): parse_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [parse_floats(inner) for inner in value]
    return parse_value(value) if isinstance(value, str) and value[:1].isdigit() and "e" in value.lower() else value
