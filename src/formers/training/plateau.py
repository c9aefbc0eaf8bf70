"""Notices a pretraining run that learns nothing, or no longer learns, and says what usually helps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..inspection.report_strings import translate
from ..registry import member
from .recipes import has_post_norm, recipe
from .settings import Train

NEAR = 0.05  # of the unigram's loss: a model within that of it has learned little but token frequencies
STILL = 0.01  # of the unigram's loss: a validation loss that fell by less has stopped falling
WORSE = 0.01  # of the best validation loss: a loss that much above it counts as worse,
NOISE = 4  # and that many times the usual difference between an evaluation and its neighbours,
ROW = 4  # so many times in a row, compared with the best mean of so many: one lucky evaluation is no best
EVALUATIONS = 3  # over so many evaluations a loss has stopped falling,
STRETCH = 0.1  # and over this share of the run's steps, within FEWEST and MOST: frequent ones show little in three
FEWEST, MOST = 20, 1000
PATIENCE = 0.2  # of the run's steps without a new best, and at least 5 evaluations
# What is said, by the keys of the table of strings: each part with its values.
Line = list[tuple[str, dict[str, Any]]]
LITTLE = (
    "the model has learned little: its validation loss of {loss:.2f} after step {step:,} is hardly better than token"
    " frequencies alone (unigram {unigram:.2f}) and has stopped falling."
)
NOTHING = LITTLE.replace("hardly better", "no better")
WORSENED = "the validation loss is {loss:.2f} after step {step:,}; its best was {best:.2f} at step {best_step:,}."
BY_HEART = (
    "The training loss still falls, so the model learns its text by heart: give more text, fewer steps (--train.steps)"
    " or more dropout (--model.dropout). The best checkpoint is kept."
)
TOO_HIGH = "The training loss rises too: the learning rate is too high. Try {settings}."
OPTIMIZER = "The learning rate may not suit {optimizer}, or the optimizer this model: try {settings}."
TOO_LOW = "The learning rate is low for this size: try {settings}, or train for more steps."
USUAL = "The usual cause is a learning rate that is too high or rises too fast: try {settings}."
POST_NORM = (
    "1 layer with the norms after the sums (post-norm) stalls when the learning rate is too high or rises too fast: try"
    " {settings}."
)
POST_NORMS = (
    "{layers} layers with the norms after the sums (post-norm) stall when the learning rate is too high or rises too"
    " fast: try {settings}, or fewer layers."
)
LEFT = (
    "the model learns again: its validation loss fell to {loss:.2f} after step {step:,}; it had stopped falling at"
    " {stuck:.2f}."
)
BETTER = "the validation loss falls again: {loss:.2f} after step {step:,} is its new best."


def in_english(line: Line) -> str:
    """A line in English, as the screen shows it."""
    return "note: " + " ".join(translate(form, **values) for form, values in line)


@dataclass
class PlateauMonitor:
    """Follows the validation loss of a run; `observe` gives one line for the user when the run is stuck.

    A run is stuck at the unigram when its warm-up is over and its validation loss, still near that of token
    frequencies alone, has stopped falling. Later it is compared with its own best. Each is said once.
    """

    family: str
    model: Mapping[str, Any]  # the model's settings
    train: Train
    unigram: float | None  # the loss of token frequencies alone; None where an objective has none
    part: str  # the name of the loss that is compared
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)  # step, validation loss, training loss
    training: float = float("nan")  # a running mean
    said: dict[str, Line] = field(default_factory=dict)  # what was found → the line

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Take over what metrics.jsonl holds of a run that is resumed, without saying it again."""
        for row in history:
            if "losses" in row:
                self.note_step(row["losses"])
            elif (loss := row.get("held", {}).get(self.part)) is not None:
                self.observe(row["step"], loss)

    def note_step(self, losses: Mapping[str, Any]) -> None:
        """Follow the training loss; losses that are not finite are passed over."""
        loss = losses.get(self.part)
        if loss is not None and loss == loss:
            self.training = loss if self.training != self.training else 0.95 * self.training + 0.05 * loss

    def observe(self, step: int, loss: float) -> str | None:
        """Note a validation loss; a line for the user where this evaluation shows something new."""
        if loss != loss:
            return None
        self.evaluations = [seen for seen in self.evaluations if seen[0] < step]  # a resumed run repeats a few steps
        self.evaluations.append((step, loss, self.training))
        found = {
            "unigram": self.find_unigram_plateau(), "best": self.find_decline(), "left": self.find_escape(),
            "better": self.find_new_best(),
        }  # fmt: skip
        for name, line in found.items():
            if line is not None and name not in self.said:
                self.said[name] = line
                return in_english(line)
        return None

    @property
    def verdict(self) -> Line | None:
        """The line that still holds at the end of the run."""
        lines = {"unigram": self.find_unigram_plateau(), "best": self.find_decline()}
        return next((line for line in lines.values() if line is not None), None)

    def find_unigram_plateau(self) -> Line | None:
        """A line if the run has learned nothing but token frequencies so far."""
        since = [seen for seen in self.evaluations if seen[0] >= self.train.warmup]
        if self.unigram is None or len(since) <= EVALUATIONS:
            return None
        step, loss, _ = since[-1]
        stretch = min(max(STRETCH * self.train.steps, FEWEST), MOST)
        before = [seen[1] for seen in since[:-EVALUATIONS] if step - seen[0] >= stretch]
        if not before:
            return None
        falls = min(before) - loss
        if loss < self.unigram * (1 - NEAR) or falls > STILL * self.unigram:
            return None
        values = {"loss": loss, "step": step, "unigram": self.unigram}
        return [(LITTLE if loss < self.unigram else NOTHING, values), self.advise()]

    def find_escape(self) -> Line | None:
        """A line if the run was stuck at the unigram and its last two evaluations are clearly below that."""
        if "unigram" not in self.said or self.unigram is None:
            return None
        stuck = self.said["unigram"][0][1]
        since = [seen for seen in self.evaluations if seen[0] > stuck["step"]][-2:]
        if len(since) < 2 or max(seen[1] for seen in since) > stuck["loss"] - STILL * self.unigram:
            return None
        step, loss, _ = since[-1]
        return [(LEFT, {"loss": loss, "step": step, "stuck": stuck["loss"]})]

    def find_new_best(self) -> Line | None:
        """A line if the run had been worse than its best for long and is better now."""
        step, loss, _ = self.evaluations[-1]
        if "best" not in self.said or loss >= self.said["best"][0][1]["best"]:
            return None
        return [(BETTER, {"loss": loss, "step": step})]

    def find_decline(self) -> Line | None:
        """A line if the validation loss has been clearly worse than its best for long."""
        if len(self.evaluations) < ROW:
            return None
        step, loss, training = self.evaluations[-1]
        best_step, best, training_then = min(self.evaluations, key=lambda seen: seen[1])
        behind = sum(seen[0] > best_step for seen in self.evaluations)
        losses = [seen[1] for seen in self.evaluations]
        usual = min(statistics.fmean(losses[i : i + ROW]) for i in range(len(losses) - ROW + 1))
        triples = zip(losses, losses[1:], losses[2:], strict=False)
        noise = statistics.median(abs(middle - (left + right) / 2) for left, middle, right in triples)
        near = min(losses[-ROW:]) <= usual + max(WORSE * best, NOISE * noise)
        if near or behind < 5 or step - best_step < PATIENCE * self.train.steps:
            return None
        values = {"loss": loss, "step": step, "best": best, "best_step": best_step}
        if training < training_then:
            return [(WORSENED, values), (BY_HEART, {})]
        return [(WORSENED, values), (TOO_HIGH, {"settings": f"--train.lr {self.train.lr / 3:.2g}"})]

    def advise(self) -> tuple[str, dict[str, Any]]:
        """Why a run does not get off the ground, and which settings help, by the model's depth and norms."""
        found, layers = member(self.family).family, self.model.get("layers", 1)
        usual, train = recipe(self.family, "quick", dict(self.model)).train, self.train
        optimizer, lr, post = usual.get("optimizer", "adamw"), train.lr, has_post_norm(found, self.model)
        if train.optimizer.removesuffix("w") != optimizer.removesuffix("w"):  # their rates do not compare
            setting = f"--train.optimizer {optimizer} --train.lr {usual['lr']:.2g}"
            return OPTIMIZER, {"optimizer": train.optimizer, "settings": setting}
        if lr < usual["lr"] / 3:
            return TOO_LOW, {"settings": f"--train.lr {usual['lr']:.2g}"}
        settings = f"--train.lr {usual['lr'] if lr > 1.5 * usual['lr'] else lr / 3:.2g}"
        warmup = min(max(usual["warmup"], 2 * train.warmup), train.steps // 2)
        if warmup > train.warmup:  # one that does not end is refused
            settings += f" --train.warmup {warmup}"
        if not post:
            return USUAL, {"settings": settings}
        if layers > 3 and train.residual_init == 1.0:
            settings += f" --train.residual_init {(2 * layers) ** -0.5:.2g}"
        return (
            (POST_NORMS, {"layers": layers, "settings": settings})
            if layers > 1
            else (POST_NORM, {"settings": settings})
        )
