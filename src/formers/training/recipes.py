"""Recipes: what a family's paper trained with (`paper`), and something that learns within minutes on a CPU (`quick`).

A paper's recipe keeps its optimizer, rates, schedule and dropout; batch, steps and rate are scaled to the model's size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import suggest_name
from ..errors import Error
from ..registry import find_family
from .schedule import compute_noam_lr


@dataclass(frozen=True)
class Recipe:
    """Settings of the tokenizer, the model, the objective and the training; what is not named keeps its default."""

    vocab_size: int
    train: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, Any] = field(default_factory=dict)


# Sizes for two CPU cores and a few minutes; a model takes those that it has a setting for. Small models learn late, and
# then all at once: the rate stays high for long.
SMALL_MODEL: dict[str, Any] = {
    "dim": 128, "layers": 3, "heads": 4, "ff": 512, "context": 64, "embed": 128, "init": 0.05, "head_dim": 32,
    "rotary": 16, "window": 32, "experts": 4, "sparse": 2, "cutoffs": (), "char_dim": 8, "cell": 256, "memory": 64,
    "dropout": 0.0, "attention_dropout": 0.0, "embed_dropout": 0.0,
}  # fmt: skip
QUICK_TRAIN = {
    "steps": 500,
    "batch_tokens": 2048,
    "seq_length": 64,
    "lr": 2e-3,
    "schedule": "wsd",
    "warmup_steps": 50,
    "save_every": 100,
    "eval_every": 50,
}
LR_TIMES_DIM = 5e-5 * 768  # of a checkpoint that goes on, times the inverse of the width: 5e-5 for BERT-base
MASKED_TRAIN = {"steps": 1500, "batch_tokens": 2040, "seq_length": 24, "lr": 1.5e-3}
# T5's init is a share of 1/√fan_in: with that of others it would begin, and step, 20 times too small.
FAMILY_QUICK: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # model, train
    "bert": ({"dim": 96, "layers": 2, "ff": 384, "context": 32}, MASKED_TRAIN),
    "roberta": ({"dim": 96, "layers": 2, "ff": 384, "context": 32}, MASKED_TRAIN),
    "albert": ({"dim": 96, "layers": 2, "ff": 384, "context": 32, "embed": 64}, MASKED_TRAIN),
    "ernie": ({"dim": 96, "layers": 2, "ff": 384, "context": 32}, MASKED_TRAIN),
    "elmo": ({"dim": 64, "layers": 2, "filters": ((1, 16), (2, 16), (3, 32), (4, 64)), "highways": 1},
             {"batch_tokens": 512, "seq_length": 16, "lr": 1e-3}),
    # GPT-1, XLNet and Transformer-XL stalled at rates that other post-norm families bear.
    "gpt": ({}, {"lr": 1e-3}),
    "seq2seq": ({"layers": 1, "attention": "additive", "cell": "gru", "bidirectional": True}, {}),
    "gnmt": ({"layers": 2}, {}),
    "t5": ({"layers": 2, "init": 1.0}, {"optimizer": "rms-adamw", "lr": 1e-2}),
    "mt5": ({"layers": 2, "init": 1.0}, {"optimizer": "rms-adamw", "lr": 1e-2}),
    "switch": ({"layers": 2, "init": 1.0}, {"optimizer": "rms-adamw", "lr": 1e-2}),
    "xlnet": ({"layers": 2}, {"lr": 1.5e-3}),
    "transformer_xl": ({"layers": 2}, {"lr": 1e-3}),
}  # fmt: skip


def make_adamw_settings(lr: float, second: float = 0.999, eps: float = 1e-8, **more: Any) -> dict[str, Any]:
    """AdamW's settings."""
    return {"optimizer": "adamw", "lr": lr, "betas": (0.9, second), "eps": eps, **more}


BERT_TRAIN = make_adamw_settings(  # §A.2: 256 examples of 512
    1e-4, eps=1e-6, weight_decay=0.01, schedule="linear", warmup_steps=10_000, steps=1_000_000, batch_tokens=65_536,
    accumulate=2, seq_length=512, short_length=128,
)  # fmt: skip
GPT3_TRAIN = make_adamw_settings(
    6e-4,
    0.95,
    weight_decay=0.1,
    schedule="cosine",
    warmup_steps=750,
    steps=600_000,
    batch_tokens=65_536,
    accumulate=8,
    seq_length=2048,
)
T5_TRAIN = {  # §3.1.2: 128 examples of 512
    "optimizer": "adafactor", "lr": 1e-2, "schedule": "inverse", "warmup_steps": 10_000, "steps": 524_288,
    "batch_tokens": 65_536, "seq_length": 512, "grad_clip": 0.0, "weight_decay": 0.0,
}  # fmt: skip
PAPER_TRAIN: dict[str, dict[str, Any]] = {
    "gpt": make_adamw_settings(
        2.5e-4, weight_decay=0.01, schedule="cosine", warmup_steps=2000, steps=1_000_000, batch_tokens=32_768,
        seq_length=512,
    ),
    "gpt2": {**GPT3_TRAIN, "seq_length": 1024},  # its own is not published
    "gpt3": GPT3_TRAIN,
    "gpt_neo": {**GPT3_TRAIN, "lr": 2e-4, "warmup_steps": 3000, "steps": 400_000},
    "gptj": {**GPT3_TRAIN, "lr": 1.2e-4, "warmup_steps": 3000, "steps": 383_500, "accumulate": 16},
    "gpt_neox": {**GPT3_TRAIN, "lr": 9.7e-5, "weight_decay": 0.01, "steps": 150_000, "accumulate": 48},
    "bloom": {**GPT3_TRAIN, "lr": 3e-4, "steps": 400_000},
    "bert": BERT_TRAIN,
    "roberta": make_adamw_settings(
        6e-4, 0.98, 1e-6, weight_decay=0.01, schedule="linear", warmup_steps=24_000, steps=500_000,
        batch_tokens=65_536, accumulate=64, seq_length=512,
    ),
    "albert": {"optimizer": "lamb", "lr": 1.76e-3, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01,
               "schedule": "linear", "warmup_steps": 3125,
               "steps": 125_000, "batch_tokens": 65_536, "accumulate": 32, "seq_length": 512},
    "ernie": {**BERT_TRAIN, "lr": 5e-5, "warmup_steps": 4000, "short_length": None},
    "transformer": make_adamw_settings(
        compute_noam_lr(512, 4000), 0.98, 1e-9, weight_decay=0.0, schedule="inverse", warmup_steps=4000,
        steps=100_000, batch_tokens=25_000, seq_length=256,
    ),
    "transformer_xl": make_adamw_settings(
        2.5e-4, weight_decay=0.0, schedule="cosine", warmup_steps=0, steps=400_000, batch_tokens=9_000,
        seq_length=150, grad_clip=0.25,
    ),
    "xlnet": make_adamw_settings(
        4e-4, eps=1e-6, weight_decay=0.01, schedule="linear", warmup_steps=40_000, steps=500_000,
        batch_tokens=65_536, accumulate=16, seq_length=512,
    ),
    "bart": make_adamw_settings(
        4e-4, 0.98, 1e-6, weight_decay=0.01, schedule="linear", warmup_steps=10_000, steps=500_000,
        batch_tokens=65_536, accumulate=64, seq_length=512,
    ),
    "mbart": make_adamw_settings(
        3e-4, 0.98, 1e-6, weight_decay=0.0, schedule="linear", warmup_steps=10_000, steps=500_000,
        batch_tokens=65_536, accumulate=32, seq_length=512,
    ),
    "t5": T5_TRAIN, "mt5": {**T5_TRAIN, "seq_length": 1024, "accumulate": 16, "steps": 1_000_000}, "switch": T5_TRAIN,
    "elmo": {"optimizer": "adagrad", "lr": 0.2, "schedule": "constant", "warmup_steps": 0, "steps": 500_000,
             "batch_tokens": 2560, "seq_length": 20, "grad_clip": 10.0, "weight_decay": 0.0},
    "seq2seq": make_adamw_settings(
        1e-3, weight_decay=0.0, schedule="constant", warmup_steps=0, steps=200_000, batch_tokens=4096, seq_length=64,
    ),
    "gnmt": make_adamw_settings(
        2e-4, weight_decay=0.0, schedule="constant", warmup_steps=0, steps=340_000, batch_tokens=8192,
        seq_length=128, grad_clip=5.0,
    ),
}  # fmt: skip


# What a paper asks of the objective beside its defaults (§5.4).
PAPER_OBJECTIVES = {"transformer": {"label_smoothing": 0.1}}


def get_recipe(
    family: str, name: str = "quick", sizes: Mapping[str, Any] | None = None, given: Mapping[str, Any] | None = None
) -> Recipe:
    """A family's recipe by name, for a model of any size.

    `sizes` are those of a preset, if one was named; `given` are the model's settings that the caller chose. What they
    leave open follows from them, and so do the learning rate, the warm-up and the initial weights.
    """
    found, given = find_family(family), given or {}
    if not found.definition.objective:
        raise Error(f"{found.name} is not pretrained", fix="formers finetune trains it from scratch on a task")
    if name == "paper":
        sizes = {**(sizes or {}), **given}
        train, goal = (
            scale_paper_recipe(PAPER_TRAIN[found.name], compute_size_ratio(found.definition.config_class, sizes)),
            PAPER_OBJECTIVES.get(found.name, {}),
        )
        return Recipe(32_000, train, dict(sizes), dict(goal))
    if name != "quick":
        raise Error(f"there is no recipe {name!r}", fix=suggest_name(name, ("quick", "paper")))
    model, train = FAMILY_QUICK.get(found.name, ({}, {}))
    published = {f.name: f.default for f in dataclasses.fields(found.definition.config_class)}
    small = {key: value for key, value in {**SMALL_MODEL, **model}.items() if key in published}
    own = fit_sizes(small, given) if sizes is None else dict(sizes)
    train = scale_training({**QUICK_TRAIN, **train}, {**published, **own, **given}, found.definition)
    return Recipe(1024, train, own)


def fit_sizes(small: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The small model's sizes, made to fit a width or a number of heads that the caller chose.

    Widths grow with `dim`, heads are 64 wide from dim 256 on, and weights begin smaller as 1/√dim.
    """
    own, dim = dict(small), given.get("dim", small.get("dim"))
    if not is_positive_int(dim) or not is_positive_int(given.get("heads", 1)):
        return own  # the configuration says what is wrong with it
    wider = dim / small["dim"]
    for key in ("ff", "cell", "embed"):
        if is_positive_int(own.get(key)):  # a seq2seq's cell is a name
            own[key] = max(1, round(own[key] * wider))
    if "init" in own and own["init"] < 0.1:  # T5's is a factor on 1/√fan_in already
        own["init"] = round(own["init"] * wider**-0.5, 4)
    if "heads" in own:
        most = max(own["heads"], dim // 64)
        heads = given.get("heads") or next(n for n in range(most, 0, -1) if dim % n == 0)
        own["heads"] = heads
        if "head_dim" in own and dim % heads == 0:
            own["head_dim"] = dim // heads
        if "rotary" in own and dim % heads == 0:
            own["rotary"] = max(2, dim // heads // 4 * 2)
    return own


def is_positive_int(value: Any) -> bool:
    """True for a positive whole number."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def scale_training(train: Mapping[str, Any], model: Mapping[str, Any], family: Any) -> dict[str, Any]:
    """The training settings of a small model for one that is deeper or wider; the small ones keep theirs.

    Found by runs of all families at 2 to 24 layers and widths 128 and 768 (benchmarks/RESULTS.md). A block with its
    norms after the sums tolerates only a rate that falls with the width, and begins with weak residual branches, as in
    GPT-2 (§2.3): otherwise the stack forgets its input and learns nothing but token frequencies.
    """
    made, (layers, dim) = dict(train), (model.get("layers", 1), model.get("dim", 1))
    if not is_positive_int(layers) or not is_positive_int(dim):
        return made
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
    made["lr"] = float(f"{train['lr'] * rate:.2g}") if rate < 1 else train["lr"]
    made["warmup_steps"] = max(train["warmup_steps"], min(train["steps"] // 5, round(train["warmup_steps"] * deeper)))
    if (
        family.lr_falls_with_dim and rate < 1
    ):  # its small batch is for a CPU; a recurrence reads four times the rows as fast
        made["batch_tokens"] = 4 * train["batch_tokens"]
    if post and deeper > 1:
        made["residual_init"] = round((2 * layers) ** -0.5, 4)
    return made


def has_post_norm(family: Any, model: Mapping[str, Any]) -> bool:
    """True for a family whose blocks have their norms after the sums; `model` may choose that itself."""
    return bool((model.get("order") or family.norm_order) == "post")


def compute_size_ratio(config: type, sizes: Mapping[str, Any]) -> float:
    """How large a model is beside the published one, by layers · dim²; never more than 1."""

    def estimate_weights(values: Mapping[str, Any]) -> float:
        layers, dim = (values.get(key, getattr(config, key, 1)) for key in ("layers", "dim"))
        return float(layers) * float(dim) ** 2

    return min(1.0, estimate_weights(sizes) / max(1.0, estimate_weights({})))


def scale_paper_recipe(train: Mapping[str, Any], share: float) -> dict[str, Any]:
    """A paper's settings for a smaller model: as many tokens for each parameter, half of the saving in the batch, half
    in the steps; the rate grows as in GPT-3's table 2.1, about with the fifth root."""
    if share >= 1:
        return dict(train)
    made, half = dict(train), share**0.5
    made["accumulate"] = max(1, round(train.get("accumulate", 1) * half))
    rest = share * train.get("accumulate", 1) / made["accumulate"]
    for key, least in (("steps", 100), ("warmup_steps", 0)):
        made[key] = max(least, round(train[key] * rest))
    if train["optimizer"] == "adamw":
        made["lr"] = train["lr"] * share**-0.2
    return made
