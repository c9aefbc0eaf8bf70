"""A trainer for each family, small enough to learn something within a few steps."""

from __future__ import annotations

import numpy as np

import formers
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.objectives.registry import OBJECTIVES, build_objective, list_options
from formers.registry import FAMILIES
from formers.training.train_config import TrainConfig
from formers.training.trainer import Trainer
from tests.objectives import toys
from tests.objectives.toys import OBJECTIVE_OPTIONS, TOKENIZER
from tests.small_models import select_sizes

STEPS = 16


def build_learnable_store(seed, documents, sentences):
    """Build a store of few words, some of them far more frequent: something to learn within a few steps."""
    r = np.random.default_rng(seed)
    word = lambda: (toys.PLAIN + np.minimum(r.geometric(0.3, r.integers(4, 20)), 30)).tolist()  # noqa: E731
    made = toys.build_store([[word() for _ in range(sentences(r))] for _ in range(documents)], end=TOKENIZER.id("eos"))
    return toys.add_units(made, r.integers(0, 4, len(made.tokens)).astype(np.uint8))


TEXT = build_learnable_store(0, 60, lambda r: r.integers(1, 12))
PAIRS = build_learnable_store(1, 60, lambda r: 2)


def build_family_trainer(name, **settings):
    """Build a trainer of a family with its own objective; `settings` are more of TrainConfig."""
    family = FAMILIES[name].definition
    sizes = select_sizes(name, vocab=80, context=24, pad=TOKENIZER.id("pad"), memory=12)
    f = formers.build(name, head=family.pretraining_head, seed=0, **sizes)
    options = dict(OBJECTIVE_OPTIONS.get(family.objective, {}))
    known = list_options(OBJECTIVES[family.objective].objective_class)
    if family.has_carried_state and "num_streams" in known:
        options |= {"num_streams": 8, "streams_per_batch": 4}
    goal = build_objective(family.objective, TOKENIZER, 24, **options)
    base = {"steps": STEPS, "batch_tokens": 96, "accumulate": 2, "seq_length": 24, "lr": 1e-2, "warmup_steps": 2}
    return Trainer(f.model, [goal], TrainConfig(**{**base, **settings}))


def load_family_batches(t):
    """Return the source of batches that `Trainer.train` takes: of text, or of pairs where the objective needs them."""
    goal = t.objectives[0]
    store = PAIRS if type(goal).__name__ == "Seq2Seq" else TEXT
    return lambda phase, position: load_batches(TokenSource(store, goal), 96, 0, position)


def collect_losses(t, until=None):
    """Train until a step, or to the end, and return the losses of each step."""
    return [report.losses for report in t.train(load_family_batches(t), until)]
