"""Small models of experiments: a tokenizer and token stores of some text, and training by the project's own trainer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from ..config import Settings
from ..data.plans import TextObjective
from ..data.store import Store
from ..former import Former
from ..interop.model_directory import load
from ..registry import train_tokenizer
from ..text.normalise import Language, normalise
from ..training.config_merge import configure_pretraining
from ..training.distributed.process_group import ProcessGroup
from ..training.runs.prepare_data import PreparedData
from ..training.runs.pretrain import PretrainRun
from ..training.trainer import Trainer
from .page import Page

VOCAB_SIZE, MAX_CHARACTERS = 1024, 400_000
OVERFITTING = 1.0  # so much higher is the loss on validation text, in nats
OWN_TEXT_COPIES = 20  # as often as a letter must occur to be worth a token
SMALL_SIZES: Settings = {"dim": 96, "layers": 2, "heads": 4, "ff": 384}  # where an experiment needs several models


@dataclass(frozen=True)
class SmallModel:
    """A trained model, its training curve (step, loss), and the metrics on validation text by name."""

    former: Former
    curve: list[tuple[float, float]]
    metrics: dict[str, float]

    @property
    def loss(self) -> float:
        """The loss on validation text."""
        return self.metrics["loss"]


def prepare_corpus(
    page: Page, family: str, vocab_size: int = VOCAB_SIZE, max_characters: int | None = None
) -> PreparedData:
    """Train a tokenizer of a family and encode the page's training text, or the bundled corpus of its language. The
    tokenizer learns the letters of the user's own sentence too."""
    page.tell("tokenizer", 0, 1, family)
    max_characters = max_characters or MAX_CHARACTERS
    if page.documents is None and not page.text:
        return prepare_bundled_corpus(page.language, family, vocab_size, max_characters)
    return encode_corpus(family, *page.load_documents(max_characters), vocab_size, normalise(page.text or ""))


@functools.lru_cache(maxsize=8)
def prepare_bundled_corpus(language: Language, family: str, vocab_size: int, max_characters: int) -> PreparedData:
    """Encode the beginning of a bundled corpus."""
    return encode_corpus(family, *Page(language).load_documents(max_characters), vocab_size)


def encode_corpus(
    family: str, train_texts: list[str], valid_texts: list[str], vocab_size: int, own_text: str = ""
) -> PreparedData:
    """Train a tokenizer on documents and the user's own text, and encode the documents and those that are held out."""
    known = [*train_texts, *[own_text] * OWN_TEXT_COPIES]
    letters = {letter for document in known for letter in document}
    tokenizer = train_tokenizer(family, known, max(vocab_size, len(letters) + 300))
    stores = [Store.from_documents(texts, tokenizer, sentences="rules") for texts in (train_texts, valid_texts)]
    return PreparedData(tokenizer, stores[0], stores[1])


def train_small(
    page: Page, family: str, data: PreparedData, steps: int, *, title: str = "", seed: int = 0,
    model: Mapping[str, object] | None = None, train: Mapping[str, object] | None = None,
    objective: Mapping[str, object] | None = None, change: Callable[[Former], None] | None = None,
    change_objective: Callable[[TextObjective], TextObjective] | None = None,
) -> SmallModel:  # fmt: skip
    """Train a small model of a family with its quick recipe, or its objective replaced, and evaluate it on validation
    text. `change` alters the new model before training, `change_objective` what it is trained with."""
    tables = {"model": model or {}, "objective": objective or {}}
    overrides: Settings = {f"{table}.{key}": value for table, rows in tables.items() for key, value in rows.items()}
    usual: Settings = {"steps": steps, "batch_tokens": 1024, "eval_batches": 16, "seed": seed, "samples": 0}
    usual |= {"warmup_steps": max(1, steps // 10), "precision": "fp32"}
    overrides |= {f"train.{key}": value for key, value in {**usual, **(train or {})}.items()}
    run = PretrainRun(configure_pretraining(family, None, overrides), data, ProcessGroup())
    if change_objective is not None:
        run.objectives = [change_objective(one) for one in run.objectives]
    if change is not None:
        change(run.former)
    if change is not None or change_objective is not None:
        run.trainer = Trainer(run.former.model, run.objectives, run.config.train, run.world)
    curve = []
    with torch.enable_grad():
        for result in run.take_steps():
            curve.append((float(result.step), result.loss))
            page.tell(title or family, result.step, steps, f"loss {result.loss:.2f}")
    run.former.model.eval()
    trained_model = SmallModel(run.former, curve, run.evaluate())
    if change_objective is None:  # an objective that is learned by heart is what the experiment shows
        note_overfitting(page, trained_model)
    return trained_model


def note_overfitting(page: Page, trained_model: SmallModel) -> None:
    """Add a note to the page, once, if a model predicts validation text far worse than its training text."""
    last = [loss for _, loss in trained_model.curve[-10:]]
    training_loss, loss = sum(last) / max(1, len(last)), trained_model.loss
    if page.is_overfitted or not last or loss < training_loss + OVERFITTING:
        return
    page.is_overfitted, guess = True, math.log(trained_model.former.output_vocab)
    page.add_note(
        page.localise(
            f"Overfitted: the loss is {training_loss:.2f} on the training text and {loss:.2f} on validation text "
            f"(a uniform guess: {guess:.2f}). The text is too short for this training, and the numbers of this page say little: "
            "give a few thousand lines, or fewer --steps.",
            f"과적합: 손실이 학습 텍스트에서는 {training_loss:.2f}, 검증 텍스트에서는 {loss:.2f}입니다(균등하게 찍을 때 {guess:.2f}). "
            "학습에 비해 텍스트가 너무 짧아 이 페이지의 숫자는 의미가 거의 없습니다. 수천 줄의 텍스트를 지정하거나 --steps를 줄이십시오.",
        ),
        shown=True,
    )


def load_or_train(page: Page, model: str | None, family: str, steps: int, seed: int = 0) -> Former:
    """Load the user's model, or train a small one of a family."""
    if model is not None:
        page.tell("loading", 0, 1, model)
        return load(model)
    return train_small(page, family, prepare_corpus(page, family), steps, seed=seed).former


def cut_to_context(former: Former, text: str, spare: int = 2) -> str:
    """Cut a text to as many tokens as a model reads at once, less `spare` for what comes around or after it."""
    if former.context is None or former.tokenizer is None:
        return text
    ids, room = former.tokenizer.encode(text, special=False), max(1, former.context - spare)
    return text if len(ids) <= room else former.tokenizer.decode(ids[:room])
