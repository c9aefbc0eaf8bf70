"""The settings of a run: recipe < preset < file < single settings, merged as plain tables, then checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import yaml

from ..config import (
    Settings,
    build_config,
    check_rates,
    check_setting_names,
    check_sizes,
    coerce_value,
    get_schema,
    parse_yaml,
    suggest_name,
)
from ..errors import Error
from ..family import TRANSLATION_TUNE, ModelConfig, Recipe
from ..interop.hub import fetch_model
from ..interop.model_directory import read_checkpoint_info
from ..interop.safe_files import find_model_folder
from ..interop.shipped_models import is_shipped_name
from ..objectives import continual
from ..objectives.masking import UnitMaskedLM
from ..objectives.registry import OBJECTIVES, check_options, list_options, resolve_objective
from ..objectives.scheduled_sampling import ONLY_RECURRENT, SAMPLING_OPTIONS, ScheduledSampling
from ..option_aliases import explain_name, resolve_setting, resolve_settings, resolve_tables
from ..registry import FAMILIES, find_family, find_preset, find_published_checkpoint, list_published_checkpoints
from ..task import TASKS
from .mixture_config import MixtureConfig, MixtureSources, build_mixture_config, split_mixture
from .optimizer import WARMUP_SCALED_SCHEDULES
from .recipes import LR_TIMES_DIM, SMALL_MODEL, get_recipe, is_positive_int, scale_step_settings
from .train_config import LoopConfig, SettingValue, TrainConfig, check_train_values

PRETRAIN_TABLES = ("data", "model", "objective", "train", "mixture")
FINETUNE_TABLES = ("data", "model", "tune", "train", "mixture")
MIXTURE_TASK = "mixture"  # what a run of several tasks has in place of one
PRETRAIN_KEYS = ("family", "recipe", "preset", "init")  # of a file, beside its tables
FINETUNE_KEYS = ("family", "source", "preset", "task")
READER_SETTINGS = ("column", "encoding", "skip", "delimiter", "header")  # how files are read: in every `data:` table
TEXT_SETTINGS = ("data.column", "data.columns", "data.encoding", "data.delimiter", "data.label_separator")  # all text
SMOOTHABLE_KINDS = ("class", "tags", "text")  # kinds of answers whose labels can be smoothed
MAX_CONFIG_BYTES = 2**20  # bytes of a file of settings
Features = Literal["no", "last", "second", "sum4", "concat4", "mix"]
Tables = dict[str, Settings]
ConfigFile = str | Path | Mapping[str, object] | None  # a run's file of settings, or a table of the same


class SavedSettings:
    """Settings of a run; `saved_fields` are those that run.json and a file for --config hold."""

    saved_fields: ClassVar[tuple[str, ...]]
    mixture: MixtureConfig | None = None  # the tasks, where several are mixed

    def to_dict(self) -> Settings:
        """Return the settings as run.json keeps them."""
        values = vars(self)  # dynamic: saved_fields names them
        tables = {name: to_plain(values[name]) for name in self.saved_fields}
        return tables if self.mixture is None else {**tables, "mixture": self.mixture.to_settings()}

    def to_yaml(self) -> str:
        """Return the settings as YAML, as --config reads them."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


class RunConfig(SavedSettings):
    """All settings of a run."""

    train: LoopConfig

    @property
    def is_deterministic(self) -> bool:
        """Whether the run is bitwise reproducible."""
        return self.train.deterministic


def to_plain(value: object, change: Callable[[object], object] = lambda one: one) -> Any:  # dynamic: nested as `value`
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
    """Where text comes from, and how it is prepared."""

    source: tuple[str, ...] = ()  # files, folders, globs; or one store of formers prepare
    tokenizer: str | None = None  # a tokenizer.json or a folder with one; None trains one,
    vocab_size: int = 1024  # with this many tokens
    unit: Literal["auto", "line", "block", "file"] = "auto"  # what a document is in text files
    column: str | None = None  # the column or key with the text, in tables and jsonl; two for pairs: de,en
    encoding: str = "utf-8"
    skip: bool = False  # count broken rows of tables and leave them out, instead of stopping
    delimiter: str | None = None  # between the columns of tables; None: found
    header: bool | None = None  # the first row names the columns; None: it does
    splitter: Literal["rules", "kiwi", "tabs", "none"] = "rules"  # how sentences are found; tabs: pairs
    units: str | None = None  # phrases and entities for ERNIE: kiwi, learn, a file, or auto by the language
    deduplicate: Literal["exact", "near", "no"] = "no"
    valid: tuple[str, ...] = ()  # files to evaluate on,
    valid_fraction: float = 0.05  # or the share of documents that is held out for it

    @property
    def reader_options(self) -> Settings:
        """How files are read, as data/readers.py and prepare want it."""
        return {name: vars(self)[name] for name in ("unit", *READER_SETTINGS)}  # dynamic: a table names them

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
    vocab_size: int = 8000  # with this many tokens
    limit: int | None = None  # at most this many training examples, drawn at random

    @property
    def reader_options(self) -> Settings:
        """How files are read, as runs/splits.py wants it."""
        return {name: vars(self)[name] for name in READER_SETTINGS}  # dynamic: a table names them

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "limit")
        check_fraction(self.valid_fraction)


@dataclass(frozen=True, kw_only=True)
class TuneConfig(ScheduledSampling):
    """How a model learns a task. Epochs and examples become steps and tokens of the `train:` table."""

    epochs: float = 3.0
    batch_size: int = 32  # examples of a step, about: batches are packed by tokens
    warmup_ratio: float = 0.1  # warmup steps as a share of all steps
    evals_per_epoch: float = 1.0  # evaluations on the validation examples in an epoch
    patience: int = 0  # evaluations without a better score before the run ends; 0: never
    seq_length: int | None = None  # tokens of a document; None: what the model takes, up to 512
    long_texts: Literal["windows", "cut", "error"] = "windows"  # what becomes of longer ones
    stride: int = 128  # tokens that two windows share
    layer_decay: float = 1.0  # factor on the learning rate from each layer to the one below it (ELECTRA, §3.1)
    freeze: int = 0  # the number of frozen layers from the bottom, with the embeddings; -1: all of them
    features: Features = "no"  # of a frozen model: the last layer, the one before, sum or concatenation of four, a mix
    pool: Literal["first", "mean", "max", "attention", "last"] | None = None  # one vector of a text; None: the family's
    head: Literal["linear", "bilstm", "cnn"] = "linear"  # bilstm, cnn: such layers over all states before the output
    lora: int = 0  # the rank of adapters that learn in place of the weights (Hu et al. 2021); 0: none
    lora_alpha: float = 16.0
    lora_merge: bool = True  # the saved model has the adapters merged in; else they are saved in a file of their own
    balance: bool = False  # rare classes count as much as frequent ones
    multilabel: bool | None = None  # a text may have several labels; None: as the examples say
    label_smoothing: float = 0.0  # of labels
    lm_loss_weight: float = 0.0  # the share of the language model's loss (GPT: 0.5)
    expert_dropout: float | None = None  # inside the experts of a Switch; None: the checkpoint's
    both_orders: bool | None = None  # read pairs in both orders and add the answers; None: GPT does for regress
    label_as_text: bool = False  # the decoder writes the label as a word (T5)
    prefix: str = ""  # before every text (T5)
    source_language: str | None = None  # of the texts, as a code such as ko_KR (mBART); None: the tokenizer's own
    target_language: str | None = None  # of what is written; None: what the decoder starts with, else the source's
    max_answer_tokens: int = 30  # tokens of an answer
    max_output_tokens: int = 128  # tokens of a text that is written
    metric: str | None = None  # which one decides; None: the task's first
    baseline: bool = True  # a linear model over counted words is evaluated as well
    vectors: str | None = None  # word vectors for the embeddings (TextCNN): a formers directory, or a published file
    vectors_frozen: bool = False  # they stay as they are

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "batch_size", "seq_length", "max_answer_tokens", "max_output_tokens")
        check_sizes(self, "stride", "lora", "patience", minimum=0)
        check_rates(self, "warmup_ratio", "label_smoothing", "expert_dropout")
        if not self.epochs > 0 or not self.evals_per_epoch > 0:
            raise Error("epochs and evals_per_epoch must be above 0", fix="take for example tune.epochs 3")
        if not self.lm_loss_weight >= 0 or not self.lora_alpha > 0:
            got = f"{self.lm_loss_weight} and {self.lora_alpha}"
            what = f"lm_loss_weight must be at least 0 and lora_alpha above 0, got {got}"
            raise Error(what, fix="take for example tune.lm_loss_weight 0.5, tune.lora_alpha 16")
        if not 0 < self.layer_decay <= 1:
            raise Error(f"layer_decay must be above 0 and at most 1, got {self.layer_decay}", fix="take 0.9")

    @property
    def sampling(self) -> ScheduledSampling:
        """The settings of scheduled sampling alone."""
        values = vars(self)  # dynamic: a table names them
        return ScheduledSampling(**{name: values[name] for name in SAMPLING_OPTIONS})


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(RunConfig):
    """All settings of a pretraining run."""

    saved_fields = (*PRETRAIN_KEYS, "data", "model", "objective", "train")
    family: str
    data: PretrainDataConfig
    model: Settings
    objective: Settings  # "name", and its options
    train: TrainConfig
    recipe: str = "quick"
    preset: str | None = None
    init: str | None = None  # a checkpoint to start from
    mixture: MixtureConfig | None = None  # tasks that are learned along with the text
    model_overrides: Settings = field(default_factory=dict)  # the settings of the model that were asked for

    def to_dict(self) -> Settings:
        """Return the settings as run.json keeps them. A preset's vocabulary is not among them: the tokenizer has one of
        its own, and a run that is resumed must not take the preset's for one that was asked for."""
        saved = super().to_dict()
        if "vocab" not in self.model_overrides:
            saved["model"] = {name: value for name, value in saved["model"].items() if name != "vocab"}
        return saved


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings(SavedSettings):
    """The settings of a fine-tuning run that are known before its examples are encoded."""

    saved_fields = (*FINETUNE_KEYS, "data", "model", "tune")
    family: str
    source: str | None  # a checkpoint; None: from scratch
    preset: str | None
    task: str
    data: FinetuneDataConfig
    model: Settings
    tune: TuneConfig
    train_values: Settings  # of the `train:` table; of DERIVED_SETTINGS only those of the recipe or the caller
    explicit_train: tuple[str, ...] = ()  # the settings of `train` that were given, not left to the recipe
    model_overrides: Settings = field(default_factory=dict)
    mixture: MixtureConfig | None = None

    @property
    def is_deterministic(self) -> bool:
        """Whether the run is bitwise reproducible."""
        return bool(self.train_values["deterministic"])

    @property
    def seed(self) -> int:
        """The seed of new weights."""
        return int(self.train_values["seed"])

    def to_dict(self) -> Settings:
        """Return the settings as run.json keeps them, without those of `train` that are not known yet."""
        return {**super().to_dict(), "train": to_plain(self.train_values)}

    def to_yaml(self) -> str:
        """Return the settings as YAML, without those that follow from the examples, so that they are derived again."""
        table, scaled = self.to_dict(), self.train_values["schedule"] in WARMUP_SCALED_SCHEDULES
        # A recipe whose schedule has a warmup of its own keeps it, whatever the examples are.
        kept = {*self.explicit_train, *(("warmup_steps",) if scaled else ())}
        derived = [name for name in DERIVED_SETTINGS if name not in kept]
        table["train"] = {name: value for name, value in table["train"].items() if name not in derived}
        if self.tune.seq_length and "context" not in self.model_overrides:
            table["model"].pop("context", None)
        words = f"# {', '.join(derived)} of train follow from the examples, tune.epochs and tune.batch_size.\n"
        return words + yaml.safe_dump(to_plain(table, shorten_float), sort_keys=False, allow_unicode=True)


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(FinetuneSettings, RunConfig):
    """All settings of a fine-tuning run."""

    train: TrainConfig

    def to_dict(self) -> Settings:
        """Return the settings as run.json keeps them."""
        return {**super().to_dict(), "train": to_plain(self.train)}


# Settings of `train` that follow from the examples unless they are given.
DERIVED_SETTINGS = (
    "seq_length", "batch_tokens", "accumulate", "steps", "eval_every", "save_every", "warmup_steps", "lr",
)  # fmt: skip


def shorten_float(value: object) -> object:
    """Return a float without a fraction as an integer: people write epochs: 3."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


@dataclass(frozen=True)
class GivenSettings:
    """What a file and single settings say: the file's keys beside its tables, and the settings of every table."""

    top: Settings
    tables: Tables

    @staticmethod
    def read(
        file: ConfigFile, overrides: Mapping[str, object], tables: tuple[str, ...], keys: tuple[str, ...]
    ) -> GivenSettings:
        """Read a file (a path, or a table of the same); dotted `overrides` ({"model.layers": 4}) win over it."""
        file_tables, single = read_config_tables(file, tables, keys), unflatten_tables(overrides, tables)
        merged = {name: {**file_tables[name], **single.get(name, {})} for name in tables}
        return GivenSettings({key: value for key, value in file_tables.items() if key in keys}, merged)

    def merge_over(self, recipe: Mapping[str, Mapping[str, object]]) -> Tables:
        """Return the tables of a recipe with the given settings over them."""
        return {name: {**recipe.get(name, {}), **values} for name, values in self.tables.items()}


def read_config_tables(file: ConfigFile, tables: tuple[str, ...], keys: tuple[str, ...]) -> Settings:
    """Read a file of settings, or a table of the same: all of `tables`, and those of `keys` that it names."""
    content, where = read_config(file), None if file is None or isinstance(file, Mapping) else file
    check_setting_names(content, (*tables, *keys), where)
    for name in tables:
        content[name] = content.get(name) or {}
        if not isinstance(content[name], Mapping):
            what = f"{name} is a table of settings, not {content[name]!r}"
            raise Error(what, where=where, fix=f"write {name}: and below it")
    return content


def collect_overrides(
    verb: str, settings: Mapping[str, object], overrides: Mapping[str, object] | None, tables: tuple[str, ...],
    short: Mapping[str, str] | None = None, arguments: tuple[str, ...] = (),
) -> Settings:  # fmt: skip
    """Return the settings given to a verb as tables (train={"steps": 9}), by bare names (`short`: bare → dotted) and by
    dotted names (`overrides`), all under dotted names. `arguments` are other names that a hint may name."""
    settings_by_name, short = Settings(), short or {}
    for name, value in settings.items():
        if name in tables and isinstance(value, Mapping):
            settings_by_name |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif name in short:
            settings_by_name[short[name]] = value
        elif resolve_setting(name, tables) != name:
            settings_by_name[name] = value
        else:
            known = f"settings are {', '.join(short)}" if short else f"tables of settings are {', '.join(tables)}"
            fix = explain_name(name, (*short, *arguments), tables) or known
            raise Error(f"{verb} has no argument {name!r}", fix=fix)
    return resolve_settings(settings_by_name | dict(overrides or {}), tables)


def coerce_settings(config: type, values: Mapping[str, object], table: str) -> Settings:
    """Check that a configuration has these settings of a table, and give each the type that it has there."""
    known = get_schema(config)
    check_setting_names(values, known, table)
    return {key: coerce_value(value, known[key], f"{table}.{key}") for key, value in values.items()}


def coerce_train_settings(values: Mapping[str, object]) -> Settings:
    """Check settings of `train` one by one and give each its type; those not known yet may be missing."""
    typed = coerce_settings(TrainConfig, values, "train")
    check_train_values(typed)
    return {name: typed[name] for name in get_schema(TrainConfig) if name in typed}  # in the order of the table


def make_warmup_error(warmup: int, steps: int, option: str) -> Error:
    """Return the error about a warmup that is longer than the run; `option` makes the run longer."""
    what = f"a warmup of {warmup:,} steps is longer than the run of {steps:,} steps"
    return Error(what, fix=f"--train.warmup_steps {steps // 10}, or more {option}")


@dataclass(frozen=True)
class PretrainSettings:
    """The settings of a pretraining run that do not follow from its text."""

    family: str
    given: GivenSettings
    recipe: Recipe
    keys: Settings  # recipe, preset, init

    @staticmethod
    def read(
        family: str | None, file: ConfigFile = None, overrides: Mapping[str, object] | None = None,
        keys: Mapping[str, str | None] | None = None,
    ) -> PretrainSettings:  # fmt: skip
        """Read the settings of a run. `overrides` are dotted; `keys` are recipe, preset or init."""
        settings = GivenSettings.read(file, overrides or {}, PRETRAIN_TABLES, PRETRAIN_KEYS)
        where = None if file is None or isinstance(file, Mapping) else file
        named = {**settings.top, **{k: v for k, v in (keys or {}).items() if v is not None}}
        family = family or named.get("family")
        if family is None:
            raise Error("no family is named", where=where, fix="formers tree lists them")
        if "family" in settings.top and find_family(settings.top["family"]).name != find_family(family).name:
            what = f"these settings are for {settings.top['family']}, not for {family}"
            raise Error(what, where=where, fix="leave one of them out")
        preset, name = named.get("preset"), named.get("recipe") or "quick"
        entry, sizes = find_preset(family, preset)
        recipe = get_recipe(entry.name, name, sizes if preset else None, settings.tables["model"], preset)
        chosen = {"recipe": name, "preset": preset, "init": named.get("init")}
        return PretrainSettings(entry.name, settings, recipe, chosen)

    @cached_property
    def data(self) -> PretrainDataConfig:
        """Where the text comes from, and how it is read."""
        return build_config(PretrainDataConfig, self.merge({})["data"], where="data")

    @property
    def is_deterministic(self) -> bool:
        """Whether the run is bitwise reproducible."""
        value = {**self.recipe.train, **self.given.tables["train"]}.get("deterministic", False)
        return coerce_value(value, bool, "train.deterministic")

    def check(self) -> None:
        """Check the settings that do not depend on the text, before it is read."""
        coerce_settings(find_family(self.family).definition.config_class, self.given.tables["model"], "model")
        coerce_train_settings(self.merge({})["train"])

    def to_dict(self) -> Settings:
        """Return the settings that were given."""
        return {"family": self.family, **self.keys, **self.given.tables}

    @property
    def preset_objective(self) -> str:
        """The objective of the preset where its paper has another than the family's (ERNIE 2.0), or the family's."""
        declared = find_family(self.family).definition
        cited = declared.paper_recipe.by_preset.get(self.keys["preset"] or "", {})
        return str(cited.get("objective.name", (declared.objective, ""))[0])

    def merge(self, derived: Tables) -> Tables:
        """Merge recipe < `derived` < given settings, as plain tables."""
        model = dict(self.recipe.model) if self.keys["init"] is None else {}  # a checkpoint has its own sizes
        if self.keys["preset"] is None:
            lengthen_context(model, self.given.tables)
        base = {"data": self.recipe.data, "objective": self.recipe.objective, "train": self.recipe.train}
        base["objective"] = {"name": self.preset_objective, **base["objective"]}
        own = base["objective"]["name"]
        named = {"name": own, **derived.get("objective", {}), **self.given.tables["objective"]}["name"]
        if resolve_objective(named) != own:
            base["objective"] = {}  # what the recipe says of the family's own objective
        tables = self.given.merge_over({"model": model, **{k: {**v, **derived.get(k, {})} for k, v in base.items()}})
        for key in ("source", "valid"):
            value = tables["data"].get(key) or ()
            tables["data"][key] = [value] if isinstance(value, str) else value
        objective = {"name": find_family(self.family).definition.objective, **tables["objective"]}
        tables["objective"] = {**objective, "name": resolve_objective(objective["name"])}
        if issubclass(OBJECTIVES[tables["objective"]["name"]].objective_class, UnitMaskedLM):
            tables["data"] = {"units": "auto", **tables["data"]}
        if OBJECTIVES[tables["objective"]["name"]].takes_pairs:  # a document is a pair
            tables["data"] = {"splitter": "tabs", "unit": "line", **tables["data"]}
        return tables

    def resolve(self, derived: Mapping[str, object] | None = None) -> PretrainConfig:
        """Check all settings and return the run's configuration; `derived` are dotted settings that follow from the
        text, where none were given."""
        own = unflatten_tables(derived or {}, PRETRAIN_TABLES)
        merged, init = self.merge(own), self.keys["init"]
        train, named = merged["train"], {**own.get("train", {}), **self.given.tables["train"]}
        if init is not None and "lr" not in named:
            train |= choose_continued_lr(str(init), train)
        if "steps" in named and self.keys["recipe"] == "paper":
            factor = coerce_value(named["steps"], int, "train.steps") / self.recipe.train["steps"]
            shorter = scale_step_settings(self.recipe.train, min(1.0, factor))
            kept = {*named, "warmup_steps"}  # adjust_warmup shortens a warmup that is too long
            train |= {name: value for name, value in shorter.items() if name not in kept}
        adjust_warmup(train, named)
        declared = find_family(self.family).definition
        merged["model"] |= declared.config_class.fit_recipe_sizes(merged["model"], self.given.tables["model"])
        if declared.reads_tasks:
            add_task_embedding(merged["objective"]["name"], merged["model"], self.given.tables["model"])
        context = merged["model"].get("context")
        if context and "seq_length" not in named:
            train["seq_length"] = min(train["seq_length"], context)
        adjust_recipe_lengths(train, named)
        objective = merged["objective"]
        options = list_options(OBJECTIVES[objective["name"]].objective_class)
        check_setting_names(objective, ("name", *options), f"objective {objective['name']}")
        for key in SAMPLING_OPTIONS:
            if key in objective and not declared.has_recurrent_decoder:
                what = f"objective.{key} does not apply to {self.family}: {ONLY_RECURRENT}"
                raise Error(what, fix=f"leave out objective.{key}, or train seq2seq or gnmt")
        if merged["model"].get("reversed"):
            what = "model.reversed reads half of the rows of every batch back to front, also after the training"
            raise Error(
                what, fix="leave it out: with --objective.reversed true, text and distances are turned together"
            )
        is_carried = "num_streams" in objective or coerce_value(
            train.get("carry_memory", True), bool, "train.carry_memory"
        )
        if objective.get("reversed") and not is_carried:
            raise Error("without a memory, text that is back to front has no rows", fix="--train.carry_memory true")
        check_options(objective["name"], {key: value for key, value in objective.items() if key != "name"})
        config = PretrainConfig(
            family=self.family, data=build_config(PretrainDataConfig, merged["data"], where="data"),
            model=coerce_settings(declared.config_class, merged["model"], "model"), objective=objective,
            train=build_config(TrainConfig, train, where="train"), model_overrides=self.given.tables["model"],
            mixture=build_mixture_config(merged["mixture"]), **self.keys,
        )  # fmt: skip
        if config.mixture is not None:
            check_mixture_family(self.family)
        if init is None:
            build_model_config(config)
        return config


def configure_pretraining(
    family: str | None, file: ConfigFile = None, overrides: Mapping[str, object] | None = None, **keys: str | None
) -> PretrainConfig:
    """Merge and check the settings of a pretraining run. `overrides` are dotted; `keys` are recipe, preset or init."""
    return PretrainSettings.read(family, file, overrides, keys).resolve()


def choose_continued_lr(init: str, train: Mapping[str, object]) -> Settings:
    """Choose the learning rate of continued pretraining by the width, as in fine-tuning; {} if the width is unknown."""
    folder = fetch_model(init) if init.startswith("hub:") else find_model_folder(init)
    try:
        info = read_checkpoint_info(folder)
    except Error:  # of a damaged one, which is refused when it is loaded
        return {}
    dim = (info.settings or {}).get("dim")
    if not is_positive_int(dim):
        return {}
    return {"lr": 1e-3 if train.get("optimizer") == "rms-adamw" else float(f"{LR_TIMES_DIM / dim:.2g}")}


def adjust_warmup(train: Settings, given: Mapping[str, object]) -> None:
    """Refuse a given warmup that is longer than the run, and shorten the recipe's. The inverse square root keeps its
    warmup, which sets the height of the curve."""
    usual = {"steps": TrainConfig.steps, "warmup_steps": TrainConfig.warmup_steps}
    steps, warmup = (coerce_value(train.get(name, n), int, f"train.{name}") for name, n in usual.items())
    if warmup <= steps:
        return
    if "warmup_steps" in given:
        raise make_warmup_error(warmup, steps, "--train.steps")
    if train.get("schedule") not in WARMUP_SCALED_SCHEDULES:
        train["warmup_steps"] = steps // 10


def adjust_recipe_lengths(train: Settings, given: Mapping[str, object]) -> None:
    """Adapt the recipe's lengths to an example length that was given, so that no error is about a setting that the user
    did not choose: a phase of shorter examples is dropped, and a batch holds at least one example."""
    length, usual = train.get("seq_length"), {"short_length": None, "batch_tokens": TrainConfig.batch_tokens}
    short, tokens = (train.get(name, value) for name, value in usual.items())
    if not is_positive_int(length):
        return  # an error follows when the configuration is checked
    if is_positive_int(short) and short >= length and "short_length" not in given:
        train["short_length"] = None
    if is_positive_int(tokens) and tokens < length and "seq_length" in given and "batch_tokens" not in given:
        train["batch_tokens"] = length


def lengthen_context(model: Settings, given: Mapping[str, Mapping[str, object]]) -> None:
    """Lengthen the context of a recipe's small model to an example length that was given, unless a context was too."""
    context, length = model.get("context"), given["train"].get("seq_length")
    if is_positive_int(context) and is_positive_int(length) and length > context and "context" not in given["model"]:
        model["context"] = length


def add_task_embedding(objective: str, model: Settings, given: Settings) -> None:
    """Give a model that learns ERNIE 2.0's tasks an embedding for each, unless its settings say otherwise."""
    is_continual = issubclass(OBJECTIVES[objective].objective_class, continual.ContinualTasks)
    if is_continual and model and not {"use_tasks", "tasks"} & given.keys():
        model |= {"use_tasks": True, "tasks": max(len(continual.TASKS), model.get("tasks", 0))}


def build_model_config(settings: PretrainConfig, **more: int | None) -> ModelConfig:
    """Build the model's configuration, checked against the length of examples; `more` is what the tokenizer says."""
    known = get_schema(find_family(settings.family).definition.config_class)
    values = {**settings.model, **{key: value for key, value in more.items() if key in known}}
    if (rows := settings.model_overrides.get("vocab")) is not None and "vocab" in more:
        if rows < more["vocab"]:
            what = f"model.vocab {rows} is smaller than the tokenizer, which has {more['vocab']:,} tokens"
            raise Error(what, fix="leave --model.vocab out, or take a smaller --data.vocab_size")
        values["vocab"] = rows  # a table may have rows to spare, for example up to a multiple of 64
    config = build_config(find_family(settings.family).definition.config_class, values, where="model")
    context = config.context
    if context is not None and settings.train.seq_length > context:
        what = f"examples of {settings.train.seq_length} tokens are longer than the model's context of {context}"
        raise Error(what, fix=f"--train.seq_length {context}, or --model.context {settings.train.seq_length}")
    return config


@dataclass(frozen=True)
class ModelChoice:
    """The model of a fine-tuning run: a checkpoint, or a new model of a family, perhaps with the sizes of a preset."""

    family: str
    source: str | None = None  # a checkpoint; None: from scratch
    preset: str | None = None


def read_known_settings(
    model: ModelChoice, file: ConfigFile, overrides: Mapping[str, object]
) -> tuple[FinetuneDataConfig, TuneConfig]:
    """Return the settings that are known before the task is: how examples are read, and those of `tune`. All are
    checked as they were given, so that a mistake is found before anything is read."""
    tables = GivenSettings.read(file, overrides, FINETUNE_TABLES, FINETUNE_KEYS).tables
    declared = find_family(model.family).definition
    coerce_settings(declared.config_class, tables["model"], "model")
    check_parallelism(coerce_train_settings(tables["train"]))
    recipe = {} if model.source else declared.scratch_recipe.data
    data = build_config(FinetuneDataConfig, {**recipe, **tables["data"]}, where="data")
    return data, build_config(TuneConfig, tables["tune"], where="tune")


def configure_finetuning(
    model: ModelChoice, task: str, file: ConfigFile, overrides: Mapping[str, object]
) -> FinetuneSettings:
    """Merge and check the settings of a fine-tuning run; `file` is a path or a table, `overrides` are dotted."""
    settings = GivenSettings.read(file, overrides, FINETUNE_TABLES, FINETUNE_KEYS)
    if task not in (*TASKS, MIXTURE_TASK):
        raise Error(f"there is no task {task!r}", fix=suggest_name(task, TASKS))
    mixture = build_mixture_config(settings.tables["mixture"])
    if mixture is not None:
        check_mixture_family(model.family)
    source, preset = model.source, model.preset
    entry, sizes = (find_family(model.family), {}) if source else find_preset(model.family, preset)
    recipe = get_finetune_recipe(entry.name, task, source, preset is not None)
    recipe["model"] |= sizes
    merged = settings.merge_over(recipe)
    resolve_conflicts(task, merged, settings.tables)
    check_parallelism(merged["train"])
    usual = {f.name: f.default for f in dataclasses.fields(TrainConfig) if f.name not in DERIVED_SETTINGS}
    return FinetuneSettings(
        family=entry.name, source=source, preset=preset, task=task,
        data=build_config(FinetuneDataConfig, merged["data"], where="data"),
        model=coerce_settings(entry.definition.config_class, merged["model"], "model"),
        tune=build_config(TuneConfig, merged["tune"], where="tune"),
        train_values=coerce_train_settings({**usual, "samples": 0, "keep_last": 1, **merged["train"]}),
        explicit_train=tuple(sorted({*settings.tables["train"], *(("lr",) if source is None else ())})),
        model_overrides=settings.tables["model"], mixture=mixture,
    )  # fmt: skip


def check_mixture_family(family: str) -> None:
    """Refuse a mixture for a family that does not write texts from texts."""
    if not find_family(family).definition.is_encoder_decoder:
        able = [entry.name for entry in FAMILIES.values() if entry.definition.is_encoder_decoder]
        what = f"a mixture of tasks needs an encoder-decoder, and {family} is not one"
        raise Error(what, fix=f"take {', '.join(able)}; or fine-tune {family} on one task: --train FILE")


def read_mixture(mixture: object) -> tuple[Settings, MixtureSources]:
    """Read a mixture into settings under dotted names and examples in memory: from a YAML file, from words NAME=FILE as
    on the command line, or from tables (mixture_config.split_mixture)."""
    if isinstance(mixture, str | Path):
        mixture = [str(mixture)]
    if isinstance(mixture, list | tuple):
        words = [str(word).partition("=") for word in mixture]
        if len(words) == 1 and not words[0][1]:
            return split_mixture(read_yaml_table(Path(words[0][0]), "give a YAML file with tasks"))
        if malformed := [name for name, mark, path in words if not mark or not path]:
            fix = "give one YAML file, or NAME=FILE for each task: --mixture sst2=sst2.tsv trec=trec.tsv"
            raise Error(f"{malformed[0]!r} is not of the form NAME=FILE", fix=fix)
        names = [name for name, *_ in words]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise Error(f"two tasks of the mixture are called {repeated[0]!r}", fix="give each a name of its own")
        mixture = {name: path for name, _, path in words}
    return split_mixture(mixture)


def check_parallelism(train: Mapping[str, object]) -> None:
    """Refuse to shard a model in fine-tuning."""
    if (parallel := train.get("parallel", "ddp")) != "ddp":
        what = f"fine-tuning does not support train.parallel {parallel}: each process has a copy of the model"
        fix = "leave train.parallel out; --lora 8 or --train.activation_checkpointing true need less memory"
        raise Error(what, fix=fix)


FINETUNE_TRAIN = {
    "optimizer": "adamw", "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "schedule": "linear",
    "grad_clip": 1.0,
}  # fmt: skip


LABEL_TASKS = ("classify", "regress", "choose")  # that answer by a label


def get_finetune_recipe(family: str, task: str, source: str | None, sized: bool) -> Tables:
    """Return the settings of a family for a task: of a checkpoint (BERT, §A.3), or from nothing."""
    tables: Tables = {"data": {}, "model": {}, "tune": {}, "train": dict(FINETUNE_TRAIN)}
    declared = find_family(family).definition
    if source is not None:
        tables["train"] |= declared.finetune_recipe.train
        own_tune = declared.finetune_recipe.tune
        tables["tune"] |= {k: v for k, v in own_tune.items() if task in LABEL_TASKS or k == "expert_dropout"}
        if task in ("translate", "summarise"):
            tables["tune"] |= {"epochs": 5, "label_smoothing": 0.1}
        return tables
    known, own = get_schema(declared.config_class), declared.scratch_recipe
    small = {**SMALL_MODEL, **declared.quick_recipe.model, "context": 256, "dropout": 0.1}
    # What is not pretrained is as small as it was published.
    model = {k: v for k, v in small.items() if k in known and declared.objective} | {**own.model}
    tune = {"epochs": 10, "patience": 3, **own.tune}
    if task in LABEL_TASKS:
        tune |= declared.finetune_recipe.tune
    if task in ("translate", "summarise") and not own.tune:
        tune = {**TRANSLATION_TUNE, **tune, "epochs": 30}
    tables |= {"data": {**own.data}, "model": {} if sized else model, "tune": tune}
    tables["train"] |= {"lr": 5e-4, **own.train}
    return tables


def resolve_conflicts(task: str, merged: Tables, given: Tables) -> None:
    """Drop or change settings of the recipe that do not fit the task or the settings that were given."""
    tune, model = merged["tune"], merged["model"]
    kinds = ("text",) if task == MIXTURE_TASK else TASKS[task][0]
    if "label_smoothing" not in given["tune"] and not {*SMOOTHABLE_KINDS} & {*kinds}:
        tune.pop("label_smoothing", None)
    is_own_head = tune.get("head", "linear") != "linear"
    if (tune.get("features", "no") != "no" or is_own_head) and "lm_loss_weight" not in given["tune"]:
        tune["lm_loss_weight"] = 0.0  # of a model that does not learn, or whose states the head changes
    if tune.get("head") == "bilstm" and "compile" not in given["train"]:
        merged["train"]["compile"] = False  # compiled, an LSTM is unrolled step by step
    if "context" in given["model"] and "seq_length" not in given["tune"] and isinstance(model["context"], int):
        tune |= {"seq_length": min(tune["seq_length"], model["context"])} if tune.get("seq_length") else {}


def derive_step_settings(tune: TuneConfig, steps_per_epoch: float, given: Mapping[str, object]) -> Settings:
    """Return the settings of `train` that follow from the epochs, or from the steps of the `given` ones: how many steps
    a run has, how many of them warm up, and when it evaluates."""
    steps = max(1, round(tune.epochs * steps_per_epoch))
    steps = coerce_value(given.get("steps", steps), int, "train.steps")
    evaluation = max(1, round(steps_per_epoch / tune.evals_per_epoch))
    warmup = round(tune.warmup_ratio * steps)
    return {"steps": steps, "warmup_steps": warmup, "eval_every": evaluation, "save_every": evaluation}


def derive_config(settings: FinetuneSettings, sizes: np.ndarray, dim: int, processes: int = 1) -> FinetuneConfig:
    """Return the configuration of a run with steps, tokens, rate and evaluations for examples of these (E, 3) sizes;
    the batch is that of all processes together."""
    t, tune, explicit = settings.train_values, settings.tune, settings.explicit_train
    is_shared = processes > 1 and not {"batch_tokens", "accumulate"} & set(explicit)
    batches = processes if is_shared else t.get("accumulate", TrainConfig.accumulate)
    epoch_tokens = sizes[:, [0, 2]].sum(0).max()
    longest = int(sizes[:, [0, 2]].max())
    each = round(tune.batch_size * epoch_tokens / len(sizes) / batches)
    each = t["batch_tokens"] if "batch_tokens" in explicit else each
    tokens = max(each, longest)
    values = {"seq_length": longest, "accumulate": batches, "batch_tokens": tokens}
    explicit_values = {name: t[name] for name in explicit if name in t}
    values |= derive_step_settings(tune, max(1.0, epoch_tokens / (tokens * batches)), explicit_values)
    if has_own_warmup := t["schedule"] in WARMUP_SCALED_SCHEDULES:
        del values["warmup_steps"]
    free = {k: v for k, v in values.items() if k not in explicit or k == "seq_length"}
    if settings.source is not None and t["optimizer"] in ("adamw", "adamw8bit", "adam") and "lr" not in explicit:
        # Adapters and heads alone take ten times as much.
        free["lr"] = LR_TIMES_DIM / dim * (10 if tune.lora or tune.features != "no" or tune.freeze < 0 else 1)
    train = build_config(TrainConfig, {**t, **free}, where="train")
    if train.warmup_steps > train.steps and not has_own_warmup:
        raise make_warmup_error(train.warmup_steps, train.steps, "--train.steps" if "steps" in explicit else "--epochs")
    return FinetuneConfig(**vars(settings), train=train)  # dynamic: FinetuneConfig is its class with one field more


def resolve_model(model: str) -> tuple[str, str | None, str | None]:
    """Return (family, checkpoint, preset) of MODEL: a folder, a hub: name or a bundled model is a checkpoint,
    else it is a family or preset."""
    if model.startswith("hub:") or is_shipped_name(model) or Path(model).is_dir():
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
    """Return a note that the weights are new, and where the published ones are."""
    place = find_published_checkpoint(preset or family)
    hint = f"; the published weights are {place}" if place else ""
    return f"{preset or family} starts from random weights{hint}"


def flatten_tables(tables: Mapping[str, object]) -> Settings:
    """{"model": {"layers": 4}} → {"model.layers": 4}; entries that are not tables are left out."""
    nested = ((table, values) for table, values in tables.items() if isinstance(values, Mapping))
    return {f"{table}.{name}": value for table, values in nested for name, value in values.items()}


def unflatten_tables(values: Mapping[str, SettingValue], known: tuple[str, ...]) -> Tables:
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


def parse_value(text: str) -> object:
    """Parse a value of the command line: 4, 1e-3, true, null, [1, 2], word."""
    try:
        value = parse_yaml(text)
    except ValueError:
        return text
    if isinstance(value, str):  # YAML 1.1 does not take 1e-3 for a number
        with suppress(ValueError):
            return float(value)
    return text if isinstance(value, dict) else value  # "translate: " is a text


def read_config(file: ConfigFile) -> Settings:
    """Read a run's file; a table of its settings is taken as it is, and None is an empty one."""
    if file is None or isinstance(file, Mapping):
        return resolve_tables(file or {})
    return resolve_tables(read_yaml_table(Path(file), "give the YAML file of a run"))


def read_yaml_table(path: Path, fix: str) -> Settings:
    """Read a table out of a YAML file; `fix` says which file is wanted."""
    try:
        with open(path, "rb") as opened:
            data = opened.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise Error(f"has more than {MAX_CONFIG_BYTES:,} bytes", where=path, fix=fix)
        value = parse_yaml(data.decode("utf-8"))
    except OSError as error:
        raise Error(f"cannot be read ({error.strerror})", where=path, fix=fix) from None
    except ValueError as error:  # of the encoding, too
        raise Error(f"is not YAML ({str(error)[:120]})", where=path, fix="correct it") from None
    if not isinstance(value, dict):
        raise Error("is not a table of settings", where=path, fix="formers pretrain FAMILY --print-config shows one")
    return {str(key): parse_floats(inner) for key, inner in value.items()}


def parse_floats(value: object) -> object:
    """Parse numbers like 1e-3, which YAML reads as text."""
    if isinstance(value, dict):
        return {str(key): parse_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [parse_floats(inner) for inner in value]
    return parse_value(value) if isinstance(value, str) and value[:1].isdigit() and "e" in value.lower() else value
