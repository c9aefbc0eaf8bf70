"""Notices a pretraining run that learns nothing, or no longer learns, and says what usually helps."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..config import JSONObject, JSONValue
from ..registry import find_family
from ..reports.translations import translate_report
from .recipes import get_recipe, has_post_norm
from .train_config import TrainConfig

UNIGRAM_MARGIN = 0.05  # of the unigram's loss: a model within that of it has learned little but token frequencies
MIN_IMPROVEMENT = 0.01  # of the unigram's loss: a validation loss that fell by less has stopped falling
DECLINE_MARGIN = 0.01  # of the best validation loss: a loss that much above it counts as worse,
NOISE_FACTOR = 4  # and that many times the usual difference between an evaluation and its neighbours,
DECLINE_WINDOW = 4  # times in a row, compared with the best mean over as many: a single good evaluation does not count
PLATEAU_EVALUATIONS = 3  # evaluations over which a loss must have stopped falling,
PLATEAU_FRACTION = 0.1  # and over this share of the run's steps: frequent evaluations show little in three,
MIN_PLATEAU_STEPS, MAX_PLATEAU_STEPS = 20, 1000  # within these bounds
DECLINE_FRACTION = 0.2  # of the run's steps without a new best, and at least 5 evaluations
# What is said, by the keys of the table of strings: each part with its values.
NoteParts = list[tuple[str, JSONObject]]
HARDLY_BETTER_NOTE = (
    "the model has learned little: its validation loss of {loss:.2f} after step {step:,} is hardly better than token"
    " frequencies alone (unigram {unigram:.2f}) and has stopped falling."
)
NO_BETTER_NOTE = HARDLY_BETTER_NOTE.replace("hardly better", "no better")
DECLINE_NOTE = "the validation loss is {loss:.2f} after step {step:,}; its best was {best:.2f} at step {best_step:,}."
OVERFITTING_ADVICE = (
    "The training loss still falls, so the model learns its text by heart: give more text, fewer steps (--train.steps)"
    " or more dropout (--model.dropout). The best checkpoint is kept."
)
LR_TOO_HIGH_ADVICE = "The training loss rises too: the learning rate is too high. Try {settings}."
OPTIMIZER_ADVICE = "The learning rate may not suit {optimizer}, or the optimizer this model: try {settings}."
LR_TOO_LOW_ADVICE = "The learning rate is low for this size: try {settings}, or train for more steps."
DEFAULT_ADVICE = "The usual cause is a learning rate that is too high or rises too fast: try {settings}."
POST_NORM_LAYER_ADVICE = (
    "1 layer with the norms after the sums (post-norm) stalls when the learning rate is too high or rises too fast: try"
    " {settings}."
)
POST_NORM_STACK_ADVICE = (
    "{layers} layers with the norms after the sums (post-norm) stall when the learning rate is too high or rises too"
    " fast: try {settings}, or fewer layers."
)
ESCAPE_NOTE = (
    "the model learns again: its validation loss fell to {loss:.2f} after step {step:,}; it had stopped falling at"
    " {stuck:.2f}."
)
NEW_BEST_NOTE = "the validation loss falls again: {loss:.2f} after step {step:,} is its new best."


def format_english(line: NoteParts) -> str:
    """Format a line in English, as the screen shows it."""
    return "note: " + " ".join(translate_report(form, **values) for form, values in line)


@dataclass
class PlateauMonitor:
    """Follows the validation loss of a run; `record_evaluation` gives one line for the user when the run is stuck. A
    run is stuck at the unigram when its warmup is over and its validation loss, still near that of token frequencies
    alone, has stopped falling. Later it is compared with its own best. Each is said once."""

    family: str
    model_settings: Mapping[str, JSONValue]  # the model's settings
    train_config: TrainConfig
    unigram_loss: float | None  # the loss of token frequencies alone; None where an objective has none
    loss_name: str  # the name of the loss that is compared
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)  # step, validation loss, training loss
    training_loss: float = float("nan")  # a running mean
    reported: dict[str, NoteParts] = field(default_factory=dict)  # what was found → the line

    def load_history(self, history: Iterable[Mapping[str, JSONValue]]) -> None:
        """Load the losses of a resumed run from the rows of metrics.jsonl; notes about them are not repeated."""
        for row in history:
            if "losses" in row:
                self.record_step(row["losses"])
            elif (loss := row.get("valid", {}).get(self.loss_name)) is not None:
                self.record_evaluation(row["step"], loss)

    def record_step(self, losses: Mapping[str, JSONValue]) -> None:
        """Follow the training loss; losses that are not finite are skipped."""
        loss = losses.get(self.loss_name)
        if loss is not None and loss == loss:
            mean = self.training_loss
            self.training_loss = loss if mean != mean else 0.95 * mean + 0.05 * loss

    def record_evaluation(self, step: int, loss: float) -> str | None:
        """Record a validation loss; return a line for the user if this evaluation shows something new."""
        if loss != loss:
            return None
        self.evaluations = [seen for seen in self.evaluations if seen[0] < step]  # a resumed run repeats a few steps
        self.evaluations.append((step, loss, self.training_loss))
        note = {
            "unigram": self.find_unigram_plateau(), "best": self.find_decline(), "left": self.find_escape(),
            "better": self.find_new_best(),
        }  # fmt: skip
        for name, line in note.items():
            if line is not None and name not in self.reported:
                self.reported[name] = line
                return format_english(line)
        return None

    @property
    def final_note(self) -> NoteParts | None:
        """The line that still holds at the end of the run."""
        return self.find_unigram_plateau() or self.find_decline()

    def find_unigram_plateau(self) -> NoteParts | None:
        """Return a line if the run has learned nothing but token frequencies so far."""
        since = [seen for seen in self.evaluations if seen[0] >= self.train_config.warmup_steps]
        if self.unigram_loss is None or len(since) <= PLATEAU_EVALUATIONS:
            return None
        step, loss, _ = since[-1]
        stretch = min(max(PLATEAU_FRACTION * self.train_config.steps, MIN_PLATEAU_STEPS), MAX_PLATEAU_STEPS)
        if not (before := [seen[1] for seen in since[:-PLATEAU_EVALUATIONS] if step - seen[0] >= stretch]):
            return None
        falls = min(before) - loss
        if loss < self.unigram_loss * (1 - UNIGRAM_MARGIN) or falls > MIN_IMPROVEMENT * self.unigram_loss:
            return None
        values = {"loss": loss, "step": step, "unigram": self.unigram_loss}
        return [(HARDLY_BETTER_NOTE if loss < self.unigram_loss else NO_BETTER_NOTE, values), self.suggest_settings()]

    def find_escape(self) -> NoteParts | None:
        """Return a line if the run was stuck at the unigram and its last two evaluations are clearly below that."""
        if "unigram" not in self.reported or self.unigram_loss is None:
            return None
        stuck = self.reported["unigram"][0][1]
        since = [seen for seen in self.evaluations if seen[0] > stuck["step"]][-2:]
        if len(since) < 2 or max(seen[1] for seen in since) > stuck["loss"] - MIN_IMPROVEMENT * self.unigram_loss:
            return None
        step, loss, _ = since[-1]
        return [(ESCAPE_NOTE, {"loss": loss, "step": step, "stuck": stuck["loss"]})]

    def find_new_best(self) -> NoteParts | None:
        """Return a line if the run had been worse than its best for long and is better now."""
        step, loss, _ = self.evaluations[-1]
        if "best" not in self.reported or loss >= self.reported["best"][0][1]["best"]:
            return None
        return [(NEW_BEST_NOTE, {"loss": loss, "step": step})]

    def find_decline(self) -> NoteParts | None:
        """Return a line if the validation loss has been clearly worse than its best for long."""
        if len(self.evaluations) < DECLINE_WINDOW:
            return None
        step, loss, training = self.evaluations[-1]
        best_step, best, training_then = min(self.evaluations, key=lambda seen: seen[1])
        later_evaluations = sum(seen[0] > best_step for seen in self.evaluations)
        losses = [seen[1] for seen in self.evaluations]
        usual = min(statistics.fmean(losses[i : i + DECLINE_WINDOW]) for i in range(len(losses) - DECLINE_WINDOW + 1))
        triples = zip(losses, losses[1:], losses[2:], strict=False)
        noise = statistics.median(abs(middle - (left + right) / 2) for left, middle, right in triples)
        near = min(losses[-DECLINE_WINDOW:]) <= usual + max(DECLINE_MARGIN * best, NOISE_FACTOR * noise)
        if near or later_evaluations < 5 or step - best_step < DECLINE_FRACTION * self.train_config.steps:
            return None
        values = {"loss": loss, "step": step, "best": best, "best_step": best_step}
        if training < training_then:
            return [(DECLINE_NOTE, values), (OVERFITTING_ADVICE, {})]
        settings = f"--train.lr {self.train_config.lr / 3:.2g}"
        return [(DECLINE_NOTE, values), (LR_TOO_HIGH_ADVICE, {"settings": settings})]

    def suggest_settings(self) -> tuple[str, JSONObject]:
        """Explain why the loss of a run does not fall, and which settings help, by the model's depth and norms."""
        family, layers = find_family(self.family).definition, self.model_settings.get("layers", 1)
        usual, train = get_recipe(self.family, "quick", dict(self.model_settings)).train, self.train_config
        optimizer, lr, post = usual.get("optimizer", "adamw"), train.lr, has_post_norm(family, self.model_settings)
        own = train.optimizer.removesuffix("8bit")
        if own.removesuffix("w") != optimizer.removesuffix("w"):  # their rates do not compare
            setting = f"--train.optimizer {optimizer} --train.lr {usual['lr']:.2g}"
            return OPTIMIZER_ADVICE, {"optimizer": train.optimizer, "settings": setting}
        if lr < usual["lr"] / 3:
            return LR_TOO_LOW_ADVICE, {"settings": f"--train.lr {usual['lr']:.2g}"}
        settings = f"--train.lr {usual['lr'] if lr > 1.5 * usual['lr'] else lr / 3:.2g}"
        warmup = min(max(usual["warmup_steps"], 2 * train.warmup_steps), train.steps // 2)
        if warmup > train.warmup_steps:  # one that does not end is refused
            settings += f" --train.warmup_steps {warmup}"
        if not post:
            return DEFAULT_ADVICE, {"settings": settings}
        if layers > 3 and train.residual_init == 1.0:
            settings += f" --train.residual_init {(2 * layers) ** -0.5:.2g}"
        if layers > 1:
            return POST_NORM_STACK_ADVICE, {"layers": layers, "settings": settings}
        return POST_NORM_LAYER_ADVICE, {"settings": settings}
