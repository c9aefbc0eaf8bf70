"""A trainer of a tiny GPT-2 on a text in which each token follows from the one before."""

from __future__ import annotations

import math

import numpy as np
import torch

import formers
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.data.store import Store
from formers.objectives.causal import CausalLM
from formers.objectives.token_losses import BaseObjective
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer


def build_store(vocab=30):
    """Build a store of a text in which each token follows from the one before."""
    tokens = (np.arange(4000) * 7 % vocab).astype(np.uint16)
    return Store(tokens, np.array([0, 2000, 4000]), vocab, "x")


STORE, OBJECTIVE = build_store(), CausalLM(16)


def build_toy_model(seed=0, dropout=0.1):
    """Build a GPT-2 of one layer."""
    rates = dict.fromkeys(("dropout", "attention_dropout", "embed_dropout"), dropout)
    return formers.build("gpt2", vocab=30, context=16, dim=16, layers=1, heads=2, seed=seed, init=0.1, **rates).model


def build_toy_trainer(seed=0, dropout=0.1, **settings):
    """Build a trainer of the toy model; `settings` are those of TrainConfig."""
    base = {
        "steps": 60, "lr": 1e-2, "warmup_steps": 5, "batch_tokens": 128, "seq_length": 16, "schedule": "wsd",
        "seed": seed,
    }  # fmt: skip
    return Trainer(build_toy_model(seed, dropout), [OBJECTIVE], TrainConfig(**{**base, **settings}))


def load_toy_batches(t, store=STORE):
    """Return the source of batches that `Trainer.train` takes."""
    return lambda phase, position: load_batches(
        TokenSource(store, t.objectives[-1 if phase else 0]), t.config.batch_tokens, t.config.seed, position
    )


def train_to_end(t, until=None):
    """Train until a step, or to the end, and return the results of the steps."""
    return list(t.train(load_toy_batches(t), until))


def has_equal_weights(a, b):
    """Return whether two trainers have the same weights, bit for bit."""
    return all(torch.equal(x, y) for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True))


class NonFiniteObjective(BaseObjective):
    """An objective whose loss is not finite at some calls."""

    def __init__(self, bad, kind=math.nan):
        self.bad, self.kind, self.calls, self.part = bad, kind, 0, "lm"

    def count_labels(self, batch):
        return OBJECTIVE.count_labels(batch)

    def loss(self, model, batch):
        total, count = OBJECTIVE.loss(model, batch)["lm"]
        self.calls += 1
        return {"lm": (total * self.kind if self.calls - 1 in self.bad else total, count)}
