"""Recipes: what a family's paper trained with (`paper`), and something that learns within minutes on a CPU (`quick`).

The values stand in the model files; here are the rules that fit them to a model's size. A paper's recipe keeps its
optimizer, rates, schedule and dropout; batch, steps and rate are scaled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeGuard

from ..config import Settings, suggest_name
from ..errors import Error
from ..family import Family, Recipe
from ..models.vectors import KINDS, METHODS, VectorsConfig
from ..registry import find_family, find_preset
from .train_config import SettingValue

# Sizes for two CPU cores and a few minutes; a model takes those that it has a setting for. Small models learn late, and
# then all at once: the rate stays high for long.
SMALL_MODEL: Settings = {
    "dim": 128, "layers": 3, "heads": 4, "ff": 512, "context": 64, "embed": 128, "init": 0.05, "head_dim": 32,
    "rotary": 16, "window": 32, "experts": 4, "sparse": 2, "cutoffs": (), "char_dim": 8, "cell": 256, "memory": 64,
    "dropout": 0.0, "attention_dropout": 0.0, "embed_dropout": 0.0,
}  # fmt: skip
QUICK_TRAIN = {
    "steps": 500, "batch_tokens": 2048, "seq_length": 64, "lr": 2e-3, "schedule": "wsd", "warmup_steps": 50,
    "save_every": 100, "eval_every": 50,
}  # fmt: skip
LR_TIMES_DIM = 5e-5 * 768  # of continued pretraining, times the inverse of the width: 5e-5 for BERT-base


def get_recipe(
    family: str, name: str = "quick", sizes: Mapping[str, SettingValue] | None = None,
    overrides: Mapping[str, SettingValue] | None = None, preset: str | None = None,
) -> Recipe:  # fmt: skip
    """Return a family's recipe by name, for a model of any size. `sizes` are those of a preset, if one was named;
    `overrides` are the model's settings that the caller chose. What they leave open follows from them, and so do the
    learning rate, the warmup and the initial weights."""
    entry, overrides = find_family(family), overrides or {}
    declared = entry.definition
    if not declared.objective:
        raise Error(f"{entry.name} is not pretrained", fix="formers finetune trains it from scratch on a task")
    fitting = fit_published_sizes({**get_published_sizes(declared), **(sizes or {})}, overrides)
    if name == "paper":
        return build_paper_recipe(entry.name, declared, {**(sizes or {}), **fitting, **overrides}, preset)
    if name != "quick":
        raise Error(f"there is no recipe {name!r}", fix=suggest_name(name, ("quick", "paper")))
    quick = declared.quick_recipe
    published = get_published_sizes(declared)
    small = {key: value for key, value in {**SMALL_MODEL, **quick.model}.items() if key in published}
    own = fit_sizes(small, overrides) if sizes is None else {**sizes, **fitting}
    train = scale_training({**QUICK_TRAIN, **quick.train}, {**published, **own, **overrides}, declared)
    return Recipe(train, own, data={"vocab_size": 1024})


def build_paper_recipe(
    name: str, family: Family, sizes: Mapping[str, SettingValue], preset: str | None = None
) -> Recipe:
    """Build what a family's paper trained with, scaled to a model that is smaller than the published one; a preset with
    settings of its own is measured against itself."""
    if not (paper := family.paper_recipe).settings:
        raise Error(f"there is no paper recipe for {name}", fix="take the recipe quick")
    tables: dict[str, Settings] = {"train": {}, "model": {}, "objective": {}, "data": {}}
    for dotted, (value, _) in paper.select(preset).items():
        table, _, key = dotted.partition(".")
        tables[table][key] = value
    published = get_published_sizes(family)
    if preset is not None and preset in paper.by_preset:
        published |= family.presets[preset]
    train = scale_paper_recipe(tables["train"], compute_size_ratio(published, sizes))
    if paper.compute_lr is not None and is_positive_int(dim := {**published, **sizes}["dim"]):
        train["lr"] = paper.compute_lr(dim, train["warmup_steps"])
    if tables["objective"]["name"] == family.objective:
        tables["objective"].pop("name")  # unless another is given
    return Recipe(train, {**tables["model"], **sizes}, tables["objective"], data=tables["data"])


def format_setting(value: object) -> str:
    """Format a value of a recipe: 65,536 and 0.000699, strings without quotation marks."""
    if isinstance(value, tuple | list):
        return ", ".join(map(format_setting, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def get_published_sizes(family: Family) -> Settings:
    """Return the settings of the model that a family was published with: the defaults of its config."""
    return {f.name: f.default for f in dataclasses.fields(family.config_class)}


def list_recipe_rows(family: str, name: str = "paper", preset: str | None = None) -> list[tuple[str, object, str]]:
    """List (setting, value, source) of a family's recipe, as it is published: nothing is scaled to another size. The
    recipe quick is ours."""
    if family in METHODS and preset is None:
        return list_vector_rows(family)
    if family == "vectors" or family in METHODS:
        raise Error("each way to train word vectors has one recipe", fix=f"formers recipes {' or '.join(METHODS)}")
    member, sizes = find_preset(family, preset)
    if name == "paper":
        if not (cited := member.definition.paper_recipe.select(preset)):
            fix = "formers recipes lists the families that have one"
            raise Error(f"there is no paper recipe for {member.name}", fix=fix)
        own = {f"model.{name}": (value, "ours: of this preset") for name, value in (sizes if preset else {}).items()}
        differing = {name: own[name] for name, (value, _) in cited.items() if own.get(name, (value,))[0] != value}
        return [(dotted, value, source) for dotted, (value, source) in {**cited, **differing}.items()]
    quick = get_recipe(member.name, name, sizes if preset else None, preset=preset)
    objective: Settings = {"name": member.definition.objective, **quick.objective}
    tables = {"objective": objective, "train": quick.train, "model": quick.model, "data": quick.data}
    return [(f"{table}.{key}", value, "ours") for table, values in tables.items() for key, value in values.items()]


def list_vector_rows(method: str) -> list[tuple[str, object, str]]:
    """List (setting, default, source) of a way to train word vectors, which has one recipe."""
    chosen = METHODS[method]
    kind = chosen.kinds[0]
    model = {**dataclasses.asdict(VectorsConfig()), "kind": kind, **chosen.model}
    values = {f"model.{name}": value for name, value in model.items()}
    values |= {"train.epochs": chosen.epochs, "train.lr": KINDS[kind].lr}
    return [(name, values[name], source) for name, source in chosen.sources.items()]


def fit_sizes(small: Mapping[str, SettingValue], given: Mapping[str, SettingValue]) -> Settings:
    """Fit the small model's sizes to a width or a number of heads that the caller chose. Widths grow with `dim`, heads
    are 64 wide from dim 256 on, and weights begin smaller as 1/√dim."""
    own, dim = dict(small), given.get("dim", small.get("dim"))
    if not is_positive_int(dim) or not is_positive_int(given.get("heads", 1)):
        return own  # an error follows when the configuration is checked
    wider = dim / small["dim"]
    for key in ("ff", "cell", "embed"):
        if is_positive_int(own.get(key)):  # a seq2seq's cell is a name
            own[key] = max(1, round(own[key] * wider))
    if "init" in own and own["init"] < 0.1:  # T5's is a factor on 1/√fan_in already
        own["init"] = round(own["init"] * wider**-0.5, 4)
    if "heads" in own:
        most = max(own["heads"], dim // 64)
        heads = given.get("heads") or next(n for n in range(most, 0, -1) if dim % n == 0)
        fitting = {"head_dim": dim // heads, "rotary": max(2, dim // heads // 4 * 2)} if dim % heads == 0 else {}
        own |= {"heads": heads, **{key: size for key, size in fitting.items() if key in own}}
    return own


def fit_published_sizes(published: Mapping[str, SettingValue], given: Mapping[str, SettingValue]) -> Settings:
    """Fit a published model's sizes to a width that the caller chose: the feed-forward grows with it, and heads that do
    not divide it, or would be narrower than 8, are as many as a small model has, or 64 wide."""
    dim, heads, ff = given.get("dim"), published.get("heads"), published.get("ff")
    if not is_positive_int(dim) or dim == published["dim"]:
        return {}
    own: Settings = {}
    if is_positive_int(ff) and "ff" not in given:
        own["ff"] = max(1, round(ff * dim / published["dim"]))
    is_free = "heads" not in given and published.get("head_dim") is None
    if is_free and is_positive_int(heads) and (dim % heads or dim // heads < 8):
        most = min(heads, max(SMALL_MODEL["heads"], dim // 64))
        own["heads"] = next(n for n in range(most, 0, -1) if dim % n == 0)
    return own


def is_positive_int(value: object) -> TypeGuard[int]:
    """Return whether a value is a positive whole number."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def scale_training(train: Mapping[str, SettingValue], model: Mapping[str, SettingValue], family: Family) -> Settings:
    """Scale the training settings of a small model to one that is deeper or wider; small ones keep theirs. Found by
    runs of all families at 2 to 24 layers and widths 128 and 768 (benchmarks/RESULTS.md). A block with its norms after
    the sums tolerates only a rate that falls with the width, and begins with weak residual branches, as in GPT-2
    (§2.3): otherwise the stack forgets its input and learns nothing but token frequencies."""
    settings, (layers, dim) = dict(train), (model.get("layers", 1), model.get("dim", 1))
    if not is_positive_int(layers) or not is_positive_int(dim):
        return settings
    deeper, wider = max(1.0, layers / SMALL_MODEL["layers"]), max(1.0, dim / SMALL_MODEL["dim"])
    post = has_post_norm(family, model)
    if train.get("optimizer") == "rms-adamw":  # its rate is relative to the weights
        rate = deeper**-0.5
    elif post:
        rate = deeper**-0.5 / wider
    elif family.lr_falls_with_dim:
        rate = deeper**-0.5 * wider**-0.75
    else:
        rate = deeper**-0.25 * wider**-0.5
    settings["lr"] = float(f"{train['lr'] * rate:.2g}") if rate < 1 else train["lr"]
    settings["warmup_steps"] = max(
        train["warmup_steps"], min(train["steps"] // 5, round(train["warmup_steps"] * deeper))
    )
    # Its small batch is for a CPU; a recurrence reads four times the rows as fast.
    if family.lr_falls_with_dim and rate < 1:
        settings["batch_tokens"] = 4 * train["batch_tokens"]
    if post and deeper > 1:
        settings["residual_init"] = round((2 * layers) ** -0.5, 4)
    return settings


def has_post_norm(family: Family, model: Mapping[str, SettingValue]) -> bool:
    """Return whether a family's blocks have their norms after the sums; `model` may choose that itself."""
    return bool((model.get("order") or family.norm_order) == "post")


def compute_size_ratio(published: Mapping[str, SettingValue], sizes: Mapping[str, SettingValue]) -> float:
    """Return the size of a model relative to the published one, by layers · dim², at most 1."""
    both = ({**published, **sizes}, published)
    ours, theirs = (float(values.get("layers", 1)) * float(values.get("dim", 1)) ** 2 for values in both)
    return min(1.0, ours / max(1.0, theirs))


# Settings that are counted in steps, so that a shorter run has less of each.
STEP_SETTINGS = ("warmup_steps", "batch_rampup_steps", "decay_steps", "decay_start", "decay_every", "switch_step")


def scale_paper_recipe(train: Mapping[str, SettingValue], share: float) -> Settings:
    """Scale a paper's settings to a smaller model: as many tokens a parameter, half of the saving in the batch, half
    in the steps; the rate grows as in GPT-3's table 2.1, about with the fifth root."""
    if share >= 1:
        return dict(train)
    settings, half = dict(train), share**0.5
    settings["accumulate"] = max(1, round(train.get("accumulate", 1) * half))
    rest = share * train.get("accumulate", 1) / settings["accumulate"]
    settings["steps"] = max(100, round(train["steps"] * rest))
    settings |= scale_step_settings(train, settings["steps"] / train["steps"])
    if train["optimizer"] in ("adamw", "adam"):
        settings["lr"] = train["lr"] * share**-0.2
    return settings


def scale_step_settings(train: Mapping[str, SettingValue], factor: float) -> Settings:
    """Return the settings that are counted in steps, for a run whose length is multiplied by `factor`."""
    least = {"decay_steps": 1, "decay_every": 1}
    counted = ((name, train[name]) for name in STEP_SETTINGS if train.get(name) is not None)
    return {name: max(least.get(name, 0), round(value * factor)) for name, value in counted}
