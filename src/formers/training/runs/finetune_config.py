"""What a fine-tuning run is asked to do: the family's recipe < file < single settings, checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ...config import build_config, check_rates, check_sizes, coerce_value, get_schema, suggest_name
from ...errors import Error
from ...family import TRANSLATION_TUNE
from ...registry import FAMILIES, find_family, find_preset, find_published_checkpoint, list_published_checkpoints
from ...task import TASKS
from ..config_merge import READER_SETTINGS, read_config, tuples_to_lists, unflatten_tables
from ..recipes import LR_TIMES_DIM, SMALL_MODEL
from ..train_config import TrainConfig

SMOOTHABLE_KINDS = ("class", "tags", "text")  # kinds of answers whose labels can be smoothed
FINETUNE_TABLES = ("data", "model", "tune", "train")
Features = Literal["no", "last", "second", "sum4", "cat4", "mix"]


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
    valid_fraction: float = 0.1  # the share of the training examples to be judged by, if there are no others
    tokenizer: str | None = None  # of a model from scratch: a tokenizer.json or a folder with one; None trains one,
    tokenizer_kind: str | None = None  # of this kind (bpe, wordpiece, unigram, words; None: the family's)
    vocab_size: int = 8000  # with so many pieces
    limit: int | None = None  # so many of the training examples, drawn from all

    @property
    def reader_options(self) -> dict[str, Any]:
        """How files are read, as read_split of training/runs/splits.py wants it."""
        return {name: getattr(self, name) for name in READER_SETTINGS}

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "limit")
        if not 0 <= self.valid_fraction < 1:
            raise Error(
                f"a share of {self.valid_fraction} cannot be held out", fix="give for example data.valid_fraction 0.1"
            )


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """How a model learns a task. Epochs and examples become steps and tokens of the `train:` table."""

    epochs: float = 3.0
    batch_size: int = 32  # examples of a step, about: batches are packed by tokens
    warmup_ratio: float = 0.1  # the share of the steps that warms up
    evals_per_epoch: float = 1.0  # looks at the held-out examples in an epoch
    patience: int = 0  # looks without a better score before the run ends; 0: it goes on
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
    baseline: bool = True  # a linear model over counted words is judged beside it
    vectors: str | None = None  # word vectors for the embeddings (TextCNN): a formers directory, or a published file
    vectors_frozen: bool = False  # they stay as they are

    def __post_init__(self) -> None:
        check_sizes(self, "batch_size", "seq_length", "max_answer_tokens", "max_output_tokens")
        check_sizes(self, "stride", "lora", "patience", minimum=0)
        check_rates(self, "warmup_ratio", "label_smoothing")
        if not self.epochs > 0 or not self.evals_per_epoch > 0:
            raise Error("epochs and evals_per_epoch must be above 0", fix="take for example tune.epochs 3")
        if not self.lm_loss_weight >= 0 or not self.lora_alpha > 0:
            what = (
                f"lm_loss_weight must be at least 0 and lora_alpha above 0, got {self.lm_loss_weight} and"
                f" {self.lora_alpha}"
            )
            raise Error(what, fix="take for example tune.lm_loss_weight 0.5, tune.lora_alpha 16")
        if not 0 < self.layer_decay <= 1:
            raise Error(f"layer_decay must be above 0 and at most 1, got {self.layer_decay}", fix="take 0.9")


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """All that a fine-tuning run is asked to do."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as run.json keeps them."""
        return {
            "family": self.family, "source": self.source, "preset": self.preset, "task": self.task,
            "data": tuples_to_lists(dataclasses.asdict(self.data)), "model": tuples_to_lists(self.model),
            "tune": tuples_to_lists(dataclasses.asdict(self.tune)),
            "train": tuples_to_lists(dataclasses.asdict(self.train)),
        }  # fmt: skip

    def to_yaml(self) -> str:
        """The settings as YAML, for --config. What the examples decide is left out, so that they decide it again."""
        table = self.to_dict()
        derived = [
            name
            for name in DERIVED_SETTINGS
            if name not in self.explicit_train and not (name == "warmup_steps" and self.has_fixed_warmup)
        ]
        table["train"] = {name: value for name, value in table["train"].items() if name not in derived}
        if self.tune.seq_length and "context" not in self.model_overrides:
            table["model"].pop("context", None)
        words = f"# {', '.join(derived)} of train follow from the examples, tune.epochs and tune.batch_size.\n"
        return words + yaml.safe_dump(floats_to_ints(table), sort_keys=False, allow_unicode=True)

    @property
    def has_fixed_warmup(self) -> bool:
        """A recipe whose schedule has a warm-up of its own keeps it, whatever the examples are."""
        return self.train.schedule == "inverse_sqrt"


# Settings of `train` that follow from the examples unless they are given.
DERIVED_SETTINGS = (
    "seq_length", "batch_tokens", "accumulate", "steps", "eval_every", "save_every", "warmup_steps", "lr",
)  # fmt: skip


def floats_to_ints(value: Any) -> Any:
    """Floats without a fraction as integers, all the way down: people write epochs: 3."""
    if isinstance(value, dict):
        return {key: floats_to_ints(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [floats_to_ints(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


FINETUNE_TRAIN = {
    "optimizer": "adamw",
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.01,
    "schedule": "linear",
    "grad_clip": 1.0,
}


def get_finetune_recipe(family: str, task: str, source: str | None, sized: bool) -> dict[str, dict[str, Any]]:
    """The settings of a family for a task: of a checkpoint (BERT, §A.3), or from nothing."""
    tables: dict[str, dict[str, Any]] = {"data": {}, "model": {}, "tune": {}, "train": dict(FINETUNE_TRAIN)}
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


def resolve_model(model: str) -> tuple[str, str | None, str | None]:
    """What MODEL is: (family, checkpoint, preset); a folder or hub: name is a checkpoint, else a family or a preset."""
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
    """What to tell somebody who names a model by its published name and gets new weights."""
    name = preset or family
    place = find_published_checkpoint(name)
    hint = f"; the published weights are {place}" if place else ""
    return f"{name} starts from random weights{hint}"


def configure_finetuning(
    family: str, source: str | None, named: str | None, task: str, file: Any, overrides: Mapping[str, Any]
) -> FinetuneConfig:
    """Merge and check; `file` is a path or a table, `overrides` are dotted ({"tune.epochs": 5})."""
    told = read_config(file)
    for key in told:
        if key not in (*FINETUNE_TABLES, "family", "source", "preset", "task"):
            raise Error(f"unknown setting {key!r}", where=None if isinstance(file, Mapping) else file,
                        fix=suggest_name(key, FINETUNE_TABLES))  # fmt: skip
    if task not in TASKS:
        raise Error(f"there is no task {task!r}", fix=suggest_name(task, TASKS))
    found, sizes = (find_family(family), {}) if source else find_preset(family, named)
    single = unflatten_tables(overrides, FINETUNE_TABLES)
    merged = get_finetune_recipe(found.name, task, source, named is not None)
    merged["model"] |= sizes
    for layer in ({key: told.get(key) or {} for key in FINETUNE_TABLES}, single):
        for key, values in layer.items():
            merged[key] |= values
    resolve_conflicts(task, merged, {key: {*(told.get(key) or {}), *single.get(key, {})} for key in FINETUNE_TABLES})
    known = get_schema(found.definition.config_class)
    for key, value in merged["model"].items():
        if key not in known:
            raise Error(f"unknown setting {key!r} of model", fix=suggest_name(key, known))
        merged["model"][key] = coerce_value(value, known[key], f"model.{key}")
    given = {*(told.get("train") or {}), *single.get("train", {})}
    data, tune = (
        build_config(FinetuneDataConfig, merged["data"], where="data"),
        build_config(TuneConfig, merged["tune"], where="tune"),
    )
    values = {"samples": 0, "keep_last": 1, **merged["train"]}
    values |= {} if "seq_length" in given else {"seq_length": 1}  # the examples say
    train = build_config(TrainConfig, values, where="train")
    if train.parallel != "ddp":
        what = f"fine-tuning does not share a model out as {train.parallel}: each process has a copy"
        fix = "leave train.parallel out; --lora 8 or --train.activation_checkpointing true need less memory"
        raise Error(what, fix=fix)
    options = {**(told.get("model") or {}), **single.get("model", {})}
    return FinetuneConfig(
        family=found.name, source=source, preset=named, task=task, data=data, model=merged["model"], tune=tune,
        train=train, explicit_train=tuple(sorted({*given, *(("lr",) if source is None else ())})),
        model_overrides=options,
    )  # fmt: skip


def resolve_conflicts(task: str, merged: dict[str, dict[str, Any]], given: Mapping[str, set[str]]) -> None:
    """Let settings of the recipe give way where they do not fit the task or the settings that were given."""
    tune, model = merged["tune"], merged["model"]
    if "label_smoothing" not in given["tune"] and not {*SMOOTHABLE_KINDS} & {*TASKS[task][0]}:
        tune.pop("label_smoothing", None)
    if tune.get("features", "no") != "no" and "lm_loss_weight" not in given["tune"]:
        tune["lm_loss_weight"] = 0.0  # of a model that does not learn
    if "context" in given["model"] and "seq_length" not in given["tune"] and isinstance(model["context"], int):
        tune |= {"seq_length": min(tune["seq_length"], model["context"])} if tune.get("seq_length") else {}


def derive_train_config(wanted: FinetuneConfig, sizes: Any, dim: int, processes: int = 1) -> TrainConfig:
    """The `train:` table with steps, tokens, rate and looks for examples of these (E, 3) sizes; the batch is that of
    all processes together."""
    t, tune = wanted.train, wanted.tune
    shared = processes > 1 and not {"batch_tokens", "accumulate"} & set(wanted.explicit_train)
    pieces = processes if shared else t.accumulate
    larger = sizes[:, [0, 2]].sum(0).max()
    longest = int(sizes[:, [0, 2]].max())
    values: dict[str, Any] = {"seq_length": longest, "accumulate": pieces}
    each = (
        t.batch_tokens
        if "batch_tokens" in wanted.explicit_train
        else round(tune.batch_size * larger / len(sizes) / pieces)
    )
    values["batch_tokens"] = max(each, longest)
    epoch = max(1.0, larger / (values["batch_tokens"] * pieces))
    steps = max(1, round(tune.epochs * epoch))
    values |= {"steps": steps, "eval_every": max(1, round(epoch / tune.evals_per_epoch))}
    values["save_every"] = values["eval_every"]
    if wanted.train.schedule != "inverse_sqrt" or "warmup_steps" in wanted.explicit_train:
        values["warmup_steps"] = round(tune.warmup_ratio * steps)
    if wanted.source is not None and t.optimizer in ("adamw", "adam"):
        # Adapters and heads alone take ten times as much.
        values["lr"] = LR_TIMES_DIM / dim * (10 if tune.lora or tune.features != "no" or tune.freeze < 0 else 1)
    made = dataclasses.replace(
        t, **{k: v for k, v in values.items() if k not in wanted.explicit_train or k == "seq_length"}
    )
    if made.warmup_steps > made.steps and made.schedule != "inverse_sqrt":
        what = f"a warm-up of {made.warmup_steps:,} steps does not end within {made.steps:,} steps"
        raise Error(what, fix=f"--train.warmup_steps {made.steps // 10}, or more --epochs")
    return made
