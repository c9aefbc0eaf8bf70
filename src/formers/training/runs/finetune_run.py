"""A fine-tuning run on its way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...batch import Batch
from ...config import ProgressCallback
from ...data.loader import load_batches
from ...errors import Error
from ...evaluation.metrics import to_cost
from ...evaluation.task import build_task_objective, evaluate_task, list_metric_names
from ...former import count_trainable
from ...objectives.supervised import Supervised, make_number_store
from ...task import Task
from ...tasks.encoding import TaskEncoder, encode_examples
from ...tasks.examples import Examples
from ..distributed.process_group import ProcessGroup
from ..run_folder import RunFolder
from ..trainer import Trainer
from ..validation import evaluate
from .finetune_config import FinetuneConfig, derive_train_config
from .pretrain import check_batch_split
from .task_model import build_task, build_task_model, get_labels
from .trainable import compute_lr_scales, get_step_hook, initialise_number_head, select_trainable


class FinetuneRun:
    """A fine-tuning run on its way: the model, its task, its examples and the trainer."""

    def __init__(
        self, wanted: FinetuneConfig, parts: dict[str, Examples], path: Path, world: ProcessGroup,
        tell: ProgressCallback, say: Callable[[str], None],
    ):  # fmt: skip
        self.splits, self.world, self.path, self.tell = parts, world, path, tell
        training = parts["train"]
        self.former, self.task = build_task_model(
            wanted, build_task(wanted, training), get_labels(wanted, training), training.rows, path / "data", world,
            tell, say,
        )  # fmt: skip
        self.reader, self.tune = TaskEncoder.from_former(self.former, self.task), wanted.tune
        self.main_metric, self.latest_value = (
            choose_main_metric(self.task, wanted.tune.metric, parts["valid"]),
            math.nan,
        )
        data = encode_examples(self.task, training.rows, self.reader, self.former.labels)
        self.report_unknown_tokens("train", data, say)
        self.train_labels = data.labels if self.task.kind == "tags" else data.answers
        self.objective = build_task_objective(
            self.former, self.task, data, self.train_labels, balance=wanted.tune.balance,
            label_smoothing=wanted.tune.label_smoothing, lm_loss_weight=wanted.tune.lm_loss_weight,
        )  # fmt: skip
        self.eval_objectives = {
            name: self.encode_split(name, say) for name in parts if name != "train"
        }  # odd labels end it here
        if self.task.kind == "number" and data.answers is not None:
            initialise_number_head(self.former, self.objective.part, data.answers)
        select_trainable(self.former, wanted.tune)
        self.former.model.to(world.device)
        self.store = make_number_store(data)
        sizes = self.objective.measure_sizes(self.objective.plan(self.store, 0, 0))
        dim = getattr(self.former.config, "dim", 768)
        self.config = replace(wanted, train=derive_train_config(wanted, sizes, dim, world.size))
        check_batch_split(self.config.train, world, (path / "run.json").is_file())
        self.trainer = Trainer(
            self.former.model, [self.objective], self.config.train, world,
            compute_lr_scales(self.former, wanted.tune.layer_decay), get_step_hook(self.former),
        )  # fmt: skip
        long = int(self.store.vocab - len(training.rows))
        if long > 0:
            say(f"{long:,} windows more than texts: some are longer than {self.task.length} tokens")

    def report_unknown_tokens(self, name: str, data: Any, say: Callable[[str], None]) -> None:
        """Say how many tokens of a part the tokenizer does not know, if there are any."""
        if told := self.reader.describe_unknown(data):
            say(f"{name}: {told}")

    def encode_split(self, name: str, say: Callable[[str], None]) -> Supervised:
        """The examples of a part, to be judged by."""
        rows = self.splits[name].rows
        try:
            if self.task.label_as_text and (odd := {str(row["label"]) for row in rows} - set(self.task.labels)):
                raise Error(f"the label {min(odd)!r} was not seen in training", fix="give examples of it to learn from")
            data = encode_examples(self.task, rows, self.reader, self.former.labels)
        except Error as error:
            raise Error(error.what, where=f"the {name} examples", fix=error.fix) from None
        self.report_unknown_tokens(name, data, say)
        return build_task_objective(self.former, self.task, data, self.train_labels, balance=self.tune.balance)

    def iter_batches(self, phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        """The batches from a position on."""
        s = self.config.train
        made = load_batches(
            self.store, self.objective, s.batch_tokens, s.seed, position, workers=s.workers, rank=self.world.rank,
            ranks=self.world.size, pin=self.world.device.type == "cuda",
        )  # fmt: skip
        return made if self.trainer.is_compiled else ((drop_dummy_documents(batch), behind) for batch, behind in made)

    def autocast(self) -> Any:
        """The type in which products are computed, as in training."""
        t = self.trainer
        return torch.autocast(t.device.type, dtype=t.dtype, enabled=t.dtype != torch.float32)

    def evaluate(self) -> dict[str, float]:
        """Loss and measures on held-out examples; "cost" is what the run is after, the lower the better."""
        with self.trainer.use_ema_weights():
            seen = {"loss": self.compute_text_loss(self.eval_objectives["valid"])} if self.task.kind == "text" else {}
            if not seen or self.task.label_as_text or self.main_metric != "loss":  # to write texts takes long
                told = (self.splits["valid"].rows, delay_progress(self.tell), self.autocast)
                found = evaluate_task(self.former, self.task, self.eval_objectives["valid"], *told)
                seen = {"loss": found.loss, **seen, **found.metrics}
        self.latest_value = seen[self.main_metric]
        finite = math.isfinite(seen["loss"])  # a model of nan still has an accuracy, and must not be the best
        seen["cost"] = to_cost(self.main_metric, self.latest_value) if finite else math.nan
        self.update_early_stopping(seen["cost"])
        return seen

    def compute_text_loss(self, goal: Supervised) -> float:
        """The mean loss of the tokens of held-out texts."""
        s = self.config.train
        some = load_batches(make_number_store(goal.data), goal, s.batch_tokens, s.seed + 1, epochs=1)
        device = self.world.device
        found = evaluate(
            self.former.model,
            goal,
            (drop_dummy_documents(batch) for batch, _ in some),
            self.trainer.forward,
            device=device,
        )
        return found.metrics[goal.part]

    def describe_latest(self) -> str:
        """What the last look at held-out examples has shown, in words."""
        return "" if math.isnan(self.latest_value) else f"held-out {self.main_metric} {self.latest_value:.3f}"

    def update_early_stopping(self, cost: float) -> None:
        """End the run if no look of the last few was better than those before."""
        if not self.tune.patience:
            return

        def no_better() -> bool:
            rows = [row["held"]["cost"] for row in RunFolder(self.path).read_history() if "held" in row]
            costs = [math.inf if c is None or math.isnan(c) else c for c in (*rows, cost)]
            return len(costs) - 1 - costs.index(min(costs)) >= self.tune.patience

        self.trainer.should_stop = self.world.broadcast_from_main(no_better)  # the first one writes the history

    def describe(self) -> str:
        """The run in one line."""
        s, name = self.config.train, self.config.source or self.config.preset or self.config.family
        share = f"{count_trainable(self.former.model):,} of {sum(p.numel() for p in self.former.model.parameters()):,}"
        return (
            f"{name}: {share} parameters learn to {self.task.name}; {len(self.objective.data):,} examples,"
            f" {s.steps:,} steps of {s.batch_tokens * s.accumulate:,} tokens"
        )


def choose_main_metric(task: Task, named: str | None, held: Examples) -> str:
    """The measure that decides which checkpoint is the best: the one that is named, else the task's first (of texts
    that are written, the loss)."""
    if named is None and task.kind == "text" and not task.label_as_text:
        return "loss"
    known = list_metric_names(task, held.rows)
    if named not in (None, "loss", *known):
        raise Error(f"there is no metric {named!r}", fix=f"choose {', '.join(known)} or loss")
    return named or known[0]


def delay_progress(tell: ProgressCallback, quiet: float = 2.0) -> ProgressCallback:
    """Wrap a progress callback so that it stays silent for the first `quiet` seconds."""
    began = time.monotonic()

    def later(what: str, done: int, of: int, detail: str) -> None:
        if time.monotonic() - began > quiet:
            tell(what, done, of, detail)

    return later


def drop_dummy_documents(batch: Batch) -> Batch:
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
    if batch.document_labels is not None:
        cut["document_labels"] = batch.document_labels[:real]
    source = batch.source
    if source is not None:
        source = drop_dummy_documents(source.replace(sample=batch.sample)).replace(sample=None)
    starts = batch.starts[: real + 1]
    longest = int((starts[1:] - starts[:-1]).max()) if real else 1
    return batch.replace(**cut, starts=starts, longest=longest, sample=batch.sample[:real], source=source)
