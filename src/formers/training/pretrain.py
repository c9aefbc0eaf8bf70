"""From text to a pretrained model: tokenizer, store, model, training, evaluation, in one call."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import Tell, suggest
from ..data.loader import batches
from ..data.store import Store
from ..errors import Error
from ..former import Former, build
from ..objectives.choose import objective
from ..registry import member
from ..text.templates import FAMILY
from ..text.tokenizer import Tokenizer
from ..text.trainers import train as train_tokenizer
from .evaluate import Score, evaluate, unigram
from .loop import History, train


@dataclass(frozen=True)
class Recipe:
    """Sizes and rates of a run."""

    pieces: int  # of the tokenizer
    length: int  # tokens of an example
    total: int  # tokens of a batch
    steps: int
    lr: float
    head: str
    model: Mapping[str, Any] = field(default_factory=dict)
    warmup: int = 50


# For two CPU cores and a minute each. A small BERT sits on the unigram plateau until its heads have found each token's
# neighbours; short examples and a long plateau of the learning rate get it over (measured: 24 tokens, 700 steps).
QUIET = {"dropout": 0.0, "attention_dropout": 0.0}
RECIPES = {
    "gpt2": Recipe(1024, 64, 2048, 500, 2e-3, "lm", QUIET | {
        "dim": 128, "layers": 3, "heads": 4, "context": 64, "init": 0.05, "embed_dropout": 0.0}),
    "bert": Recipe(1024, 24, 2040, 1500, 1.5e-3, "mlm", QUIET | {
        "dim": 96, "layers": 2, "heads": 4, "ff": 384, "context": 24, "init": 0.05}),
}  # fmt: skip
PLAIN = {"lm": "causal", "mlm": "masked"}  # objectives of heads that are not the whole of a family's pretraining


@dataclass(frozen=True)
class Run:
    """A finished run: the model, how it went, and what it is worth beside a unigram."""

    former: Former
    history: History
    score: Score
    baseline: Score
    recipe: Recipe
    seconds: float


def pretrain(
    family: str,
    documents: Sequence[str],
    held: Sequence[str],
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    tell: Tell | None = None,
) -> Run:
    """Train a tokenizer and a model of a family with its own objective on documents; judge it on held-out ones."""
    began, say = time.perf_counter(), tell or (lambda what, done, of, detail: None)
    declared = member(family).family
    if recipe is None:
        if family not in RECIPES:
            raise Error(f"there is no quick recipe for {family}", fix=suggest(family, RECIPES))
        recipe = RECIPES[family]
    # Pieces made of characters must hold the script as well: two for each character (text/wordpiece.py).
    letters = 0 if declared.tokenizer == "bpe" else len(set().union(*documents))
    pieces = max(recipe.pieces, 2 * letters)
    say("tokenizer", 0, 1, f"{declared.tokenizer}, {pieces:,} pieces")
    lines = (line for d in documents for line in d.split("\n"))
    tokenizer = train_tokenizer(declared.tokenizer, lines, pieces, style=FAMILY[member(family).name][1])
    store, aside = Store.of(documents, tokenizer), Store.of(held, tokenizer)
    say("tokenizer", 1, 1, f"{len(tokenizer):,} pieces, {len(store.tokens):,} tokens")
    kind = declared.objective if recipe.head == declared.pretraining else PLAIN.get(recipe.head, declared.objective)
    goal = objective(kind, tokenizer, recipe.length)
    values: dict[str, Any] = {**recipe.model, **ids(tokenizer), "vocab": len(tokenizer)}
    former = build(family, head=recipe.head, seed=seed, **values)
    former.tokenizer = tokenizer
    tests = [batch for batch, _ in itertools.islice(batches(aside, goal, recipe.total, seed=seed + 1, epochs=1), 24)]
    steps = recipe.steps
    history = train(
        former.model,
        goal,
        batches(store, goal, recipe.total, seed),
        steps=steps,
        lr=recipe.lr,
        warmup=recipe.warmup,
        seed=seed,
        every=max(1, steps // 10),
        check=lambda: evaluate(former.model, goal, tests[:6]).loss,
        tell=lambda step, loss, speed: say("training", step, steps, f"loss {loss:.2f}, {speed:,.0f} tokens/s"),
    )
    score, baseline = evaluate(former.model, goal, tests), unigram(store, tests)
    return Run(former, history, score, baseline, recipe, time.perf_counter() - began)


def ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """The special ids that a config holds."""
    return {role: tokenizer.id(role) for role in ("pad", "bos", "eos")}
