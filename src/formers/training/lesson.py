"""Lesson: a fine-tuning run on its way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..batch import Batch
from ..config import Tell
from ..data.loader import batches
from ..errors import Error
from ..former import count
from ..objectives.supervised import Supervised, numbers
from ..tasks.encode import encode
from ..tasks.examples import Examples
from ..tasks.metrics import cost
from ..tasks.reading import Reader
from ..tasks.task import Task
from .evaluate import evaluate
from .freedom import after_step, centred, frozen, shares
from .judging import measures_of, verdict
from .learner import goal_of, labels_of, learner, task_for
from .loop import Trainer
from .pretrain import check_shares
from .runs import Folder
from .tuning import Wanted, scheduled
from .world import World


class Lesson:
    """A fine-tuning run on its way: the model, its task, its examples and the trainer."""

    def __init__(
        self, wanted: Wanted, parts: dict[str, Examples], path: Path, world: World, tell: Tell,
        say: Callable[[str], None],
    ):  # fmt: skip
        self.parts, self.world, self.path, self.tell = parts, world, path, tell
        training = parts["train"]
        self.former, self.task = learner(
            wanted, task_for(wanted, training), labels_of(wanted, training), training.rows, path / "data", world, tell,
            say,
        )  # fmt: skip
        self.reader, self.tune = Reader.of(self.former, self.task), wanted.tune
        self.main, self.seen = main_measure(self.task, wanted.tune.metric, parts["valid"]), math.nan
        data = encode(self.task, training.rows, self.reader, self.former.labels)
        self.say_unknown("train", data, say)
        self.answers = data.labels if self.task.kind == "tags" else data.answers
        self.goal = goal_of(self.former, self.task, data, wanted.tune, self.answers)
        self.judges = {name: self.examples(name, say) for name in parts if name != "train"}  # odd labels end it here
        if self.task.kind == "number" and data.answers is not None:
            centred(self.former, self.goal.part, data.answers)
        frozen(self.former, wanted.tune)
        self.former.model.to(world.device)
        self.store = numbers(data)
        sizes = self.goal.sizes(self.goal.plan(self.store, 0, 0))
        dim = getattr(self.former.config, "dim", 768)
        self.asked = replace(wanted, train=scheduled(wanted, sizes, dim, world.size))
        check_shares(self.asked.train, world, (path / "run.json").is_file())
        self.trainer = Trainer(
            self.former.model, [self.goal], self.asked.train, world, shares(self.former, wanted.tune.layer_decay),
            after_step(self.former),
        )  # fmt: skip
        long = int(self.store.vocab - len(training.rows))
        if long > 0:
            say(f"{long:,} windows more than texts: some are longer than {self.task.length} tokens")

    def say_unknown(self, name: str, data: Any, say: Callable[[str], None]) -> None:
        """Say how many tokens of a part the tokenizer does not know, if there are any."""
        if told := self.reader.unknown(data):
            say(f"{name}: {told}")

    def examples(self, name: str, say: Callable[[str], None]) -> Supervised:
        """The examples of a part, to be judged by."""
        rows = self.parts[name].rows
        try:
            if self.task.words and (odd := {str(row["label"]) for row in rows} - set(self.task.labels)):
                raise Error(f"the label {min(odd)!r} was not seen in training", fix="give examples of it to learn from")
            data = encode(self.task, rows, self.reader, self.former.labels)
        except Error as error:
            raise Error(error.what, where=f"the {name} examples", fix=error.fix) from None
        self.say_unknown(name, data, say)
        return goal_of(self.former, self.task, data, self.tune, self.answers, train=False)

    def source(self, phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        """The batches from a position on."""
        s = self.asked.train
        made = batches(
            self.store, self.goal, s.tokens, s.seed, position, workers=s.workers, rank=self.world.rank,
            ranks=self.world.size, pin=self.world.device.type == "cuda",
        )  # fmt: skip
        return made if self.trainer.compiled else ((trimmed(batch), behind) for batch, behind in made)

    def autocast(self) -> Any:
        """The type in which products are computed, as in training."""
        t = self.trainer
        return torch.autocast(t.device.type, dtype=t.type, enabled=t.type != torch.float32)

    def check(self) -> dict[str, float]:
        """Loss and measures on held-out examples; "cost" is what the run is after, the lower the better."""
        with self.trainer.averaged():
            seen = {"loss": self.text_loss(self.judges["valid"])} if self.task.kind == "text" else {}
            if not seen or self.task.words or self.main != "loss":  # to write texts takes long
                told = (self.parts["valid"].rows, slowly(self.tell), self.autocast)
                found = verdict(self.former, self.task, self.judges["valid"], *told)
                seen = {"loss": found.loss, **seen, **found.measures}
        self.seen = seen[self.main]
        finite = math.isfinite(seen["loss"])  # a model of nan still has an accuracy, and must not be the best
        seen["cost"] = cost(self.main, self.seen) if finite else math.nan
        self.patient(seen["cost"])
        return seen

    def text_loss(self, goal: Supervised) -> float:
        """The mean loss of the tokens of held-out texts."""
        s = self.asked.train
        some = batches(numbers(goal.data), goal, s.tokens, s.seed + 1, epochs=1)
        device = self.world.device
        found = evaluate(
            self.former.model, goal, (trimmed(batch) for batch, _ in some), self.trainer.forward, device=device
        )
        return found.all[goal.part]

    def latest(self) -> str:
        """What the last look at held-out examples has shown, in words."""
        return "" if math.isnan(self.seen) else f"held-out {self.main} {self.seen:.3f}"

    def patient(self, cost: float) -> None:
        """End the run if no look of the last few was better than those before."""
        if not self.tune.patience:
            return

        def no_better() -> bool:
            rows = [row["held"]["cost"] for row in Folder(self.path).history() if "held" in row]
            costs = [math.inf if c is None or math.isnan(c) else c for c in (*rows, cost)]
            return len(costs) - 1 - costs.index(min(costs)) >= self.tune.patience

        self.trainer.enough = self.world.agreed(no_better)  # the first one writes the history

    def words(self) -> str:
        """The run in one line."""
        s, name = self.asked.train, self.asked.source or self.asked.preset or self.asked.family
        share = f"{count(self.former.model):,} of {sum(p.numel() for p in self.former.model.parameters()):,}"
        return (
            f"{name}: {share} parameters learn to {self.task.name}; {len(self.goal.data):,} examples,"
            f" {s.steps:,} steps of {s.tokens * s.accumulate:,} tokens"
        )


def main_measure(task: Task, named: str | None, held: Examples) -> str:
    """The measure that decides which checkpoint is the best: the one that is named, else the task's first (of texts
    that are written, the loss)."""
    if named is None and task.kind == "text" and not task.words:
        return "loss"
    known = measures_of(task, held.rows)
    if named not in (None, "loss", *known):
        raise Error(f"there is no measure {named!r}", fix=f"choose {', '.join(known)} or loss")
    return named or known[0]


def slowly(tell: Tell, quiet: float = 2.0) -> Tell:
    """The same, but silent at first: what takes a moment only is not worth a word."""
    began = time.monotonic()

    def later(what: str, done: int, of: int, detail: str) -> None:
        if time.monotonic() - began > quiet:
            tell(what, done, of, detail)

    return later


def trimmed(batch: Batch) -> Batch:
    """A filled batch without its dummies: where nothing is compiled, one shape for all is worth nothing."""
    real = int((batch.sample >= 0).sum())
    end = int(batch.starts[real])
    cut: dict[str, Any] = {
        name: value[:end]
        for name in ("ids", "positions", "segments", "tasks", "order")
        if (value := getattr(batch, name)) is not None
    }
    if batch.labels is not None:
        cut["labels"] = batch.labels[: real if batch.chosen is not None else end]
    if batch.chosen is not None:
        cut["chosen"] = batch.chosen[:real]
    if batch.answers is not None:
        cut["answers"] = batch.answers[:real]
    source = batch.source
    if source is not None:
        source = trimmed(source.replace(sample=batch.sample)).replace(sample=None)
    starts = batch.starts[: real + 1]
    longest = int((starts[1:] - starts[:-1]).max()) if real else 1
    return batch.replace(**cut, starts=starts, longest=longest, sample=batch.sample[:real], source=source)
