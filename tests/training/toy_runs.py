"""Runs that take a second: texts and labelled examples, the sizes of the models, and the calls that train on them."""

from __future__ import annotations

import json
import os

import numpy as np

import formers

GOOD, BAD = ["fine", "lovely", "great", "좋은"], ["dull", "awful", "poor", "나쁜"]
REVIEWS = [
    {"text": f"this is a {words[i % 4]} film number {i}", "label": label}
    for i in range(24)
    for words, label in ((GOOD, "yes"), (BAD, "no"))
]
BERT_SIZES = {"dim": 32, "layers": 2, "heads": 2, "ff": 64}
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
RNG = np.random.default_rng(0)
TEXT = [
    ". ".join(" ".join(WORDS[(s + i) % 10] for i in range(6)) for s in RNG.integers(0, 10, 5)) + "." for _ in range(60)
]
MODEL_SIZES = {"dim": 16, "layers": 1, "heads": 2, "context": 24, "ff": 32}
TRAIN_SETTINGS = {
    "steps": 12, "batch_tokens": 240, "seq_length": 24, "warmup_steps": 1, "eval_every": 6, "eval_batches": 2,
    "save_every": 6, "lr": 1e-2, "samples": 2,
}  # fmt: skip
DATA_SETTINGS = {"vocab_size": 300, "valid_fraction": 0.2}


def finetune_toy(model="bert", rows=REVIEWS, valid=REVIEWS[:16], **more):
    """Fine-tune a tiny model on rows, by default a BERT on the reviews, for one epoch."""
    sizes = more.pop("sizes", BERT_SIZES if model == "bert" else {})
    pieces = {} if os.path.isdir(model) else {"vocab_size": 300}
    over = {**{f"model.{key}": value for key, value in sizes.items()}, **more.pop("overrides", {})}
    settings = {"epochs": 1, "batch_size": 16, "evals_per_epoch": 0.2, **pieces, "overrides": over, **more}
    return formers.finetune(model, rows, valid, **settings)


def pretrain_toy(family="gpt2", text=TEXT, out=None, **more):
    """Pretrain a tiny model, with the settings above where no others are given."""
    tables = {"model": MODEL_SIZES, "train": TRAIN_SETTINGS, "data": DATA_SETTINGS}
    given = {key: {**tables[key], **more.pop(key, {})} for key in tables}
    return formers.pretrain(family, text, out=out, **given, **more)


def read_data_record(run):
    """Return the fingerprints of a run's data."""
    return json.loads((run.folder / "run.json").read_text())["data"]
