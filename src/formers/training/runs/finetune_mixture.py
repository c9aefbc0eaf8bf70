"""Fine-tuning on a mixture of text-to-text tasks (training/mixture_config.py): one model, one head, several tasks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ...config import JSONObject, ProgressCallback, Settings, count_noun
from ...data.mixture import Mixture
from ...errors import Error
from ...evaluation.task import TaskEvaluation, build_report_tables
from ...nn.lora import apply_adapters
from ...protocols import AnySource
from ...reports.run_report import format_number
from ..config_merge import (
    MIXTURE_TASK,
    ConfigFile,
    FinetuneSettings,
    TuneConfig,
    configure_finetuning,
    read_known_settings,
)
from ..distributed.process_group import ProcessGroup
from ..mixture_config import MixtureSources
from ..run_folder import RunFolder
from .finetune import SPLIT_NAMES, FinetuneRun, delay_progress, find_model, merge_resumed_settings
from .mixture import (
    MixtureSplits,
    TaskMixture,
    build_text_task,
    check_mixture_unchanged,
    list_tokenizer_rows,
    marks_to_hash,
    read_mixture_splits,
    report_splits,
    save_mixture_examples,
)
from .run import EarlierRun, RunOptions, RunRequest, format_epochs
from .task_model import build_task_model, refuse_first


def find_unused_tune_settings(tune: TuneConfig) -> Iterator[tuple[bool, str, str]]:
    """Yield (is given, message, remedy) for settings of `tune` that a mixture ignores."""
    for name in (
        "features", "pool", "head", "balance", "multilabel", "lm_loss_weight", "both_orders", "vectors",
        "vectors_frozen", "stride", "max_answer_tokens",
    ):  # fmt: skip
        value, usual = vars(tune)[name], TuneConfig.__dataclass_fields__[name].default  # dynamic: a table names them
        yield value != usual, f"tune.{name} does not apply to a mixture of text-to-text tasks", "leave it out"
    for name in ("prefix", "metric"):
        is_set = bool(vars(tune)[name])  # dynamic: a table names them
        yield is_set, f"tune.{name} is a task's own in a mixture", f"write {name} under the task in the mixture's file"
    yield tune.label_as_text, "all labels of a mixture are written as text", "leave tune.label_as_text out"


@dataclass(frozen=True)
class MixtureRequest(RunRequest[FinetuneSettings, MixtureSplits, FinetuneSettings, MixtureSplits]):
    """A request for a fine-tuning run on a mixture."""

    model: str | Path | None
    file: ConfigFile
    given: Settings  # dotted settings, those of the mixture among them
    task_sources: MixtureSources  # examples of the tasks that are not in files
    options: RunOptions

    def get_stem(self, settings: FinetuneSettings) -> str:
        """Return the family, and that it is a mixture."""
        return f"{settings.family}-{MIXTURE_TASK}"

    def configure(self, earlier: EarlierRun | None) -> tuple[FinetuneSettings, MixtureSplits]:
        """Merge the settings and read the examples of all tasks; of a resumed run, its own."""
        if earlier is None:
            model = find_model(self.model)
            refuse_first(find_unused_tune_settings(read_known_settings(model, self.file, self.given)[1]))
            settings = configure_finetuning(model, MIXTURE_TASK, self.file, self.given)
        elif "mixture" not in earlier.settings:
            fix = "leave --mixture out, or begin a new run in another --out"
            raise Error("this run has one task, not a mixture", where=earlier.path, fix=fix)
        else:
            settings = merge_resumed_settings(earlier, self.file, self.given)
        mixture, data = settings.mixture, settings.data
        assert mixture is not None
        if (data.train, data.valid, data.test) != (None, None, None):
            raise Error("a mixture's tasks name their own examples", fix="leave --train, --valid and --test out")
        return settings, read_mixture_splits(
            mixture, data, self.task_sources, None if earlier is None else earlier.path
        )

    def prepare(
        self, settings: FinetuneSettings, inputs: MixtureSplits, folder: Path, world: ProcessGroup
    ) -> tuple[FinetuneSettings, MixtureSplits]:
        """Report what was read, and check that the examples of a resumed run have not changed."""
        report_splits(inputs, self.options.say)
        check_mixture_unchanged(folder, inputs)
        return settings, inputs

    def prepare_excerpt(
        self, settings: FinetuneSettings, inputs: MixtureSplits, folder: Path, world: ProcessGroup
    ) -> tuple[FinetuneSettings, MixtureSplits]:
        """Take all examples: a dry run lists them itself."""
        return settings, inputs

    def build(
        self, settings: FinetuneSettings, data: MixtureSplits, folder: Path, world: ProcessGroup
    ) -> MixtureRun:  # fmt: skip
        """Build the model and the trainer."""
        return MixtureRun(settings, data, folder, world, self.options.report, self.options.say, self.task_sources)

    def render_settings(self) -> str:
        """Return all settings of the run as YAML."""
        return self.configure(None)[0].to_yaml()


class MixtureRun(FinetuneRun):
    """A fine-tuning run on several text-to-text tasks."""

    def __init__(
        self, settings: FinetuneSettings, splits: MixtureSplits, path: Path, world: ProcessGroup,
        tell: ProgressCallback, say: Callable[[str], None], task_sources: MixtureSources | None = None,
    ):  # fmt: skip
        self.world, self.path, self.tell, self.task_sources = world, path, tell, task_sources or {}
        mixture = settings.mixture
        assert mixture is not None
        self.tune, named = settings.tune, mixture.tasks.items()
        tasks = {name: build_text_task(name, task, splits[name]["train"], self.tune) for name, task in named}
        rows = [row for name, task in tasks.items() for row in list_tokenizer_rows(task, splits[name]["train"])]
        first = next(iter(tasks.values()))
        self.former, self.task, settings = build_task_model(
            settings, first, first.labels, rows, path / "data", world, tell, say
        )
        tasks = {name: dataclasses.replace(task, length=self.task.length) for name, task in tasks.items()}
        self.mixture = TaskMixture(mixture, splits, self.former, self.tune, tasks, say)
        self.former.task, self.former.tasks = {}, self.mixture.get_task_tables()
        self.objective = self.mixture.tasks[0].objective  # any task's computes the loss
        self.main_metric, self.latest_value = "average", math.nan
        self.describe_metric = self.describe_latest
        self.config, self.trainer = self.build_trainer(settings)

    @cached_property
    def source(self) -> Mixture:
        """The mixed training examples."""
        return self.mixture.mix()

    def get_source(self, phase: int) -> AnySource:
        """Return the mixed training examples, the same in every phase."""
        return self.source

    def evaluate(self) -> dict[str, float]:
        """Return the mean loss, the average of the tasks' metrics, and each task's own; "cost" is minus the average."""
        with self.trainer.use_ema_weights():
            losses = {task.name: self.compute_text_loss(task.eval_objectives["valid"]) for task in self.mixture.tasks}
            seen = self.mixture.summarise_metrics(self.mixture.evaluate("valid", delay_progress(self.tell)))
        loss, self.latest_value = math.fsum(losses.values()) / len(losses), seen["average"]
        cost = -self.latest_value if math.isfinite(loss) else math.nan
        self.update_early_stopping(cost, loss)
        own_losses = {f"{name}/loss": value for name, value in losses.items()}
        return {"loss": loss, **seen, **own_losses, "cost": cost}

    def describe(self) -> Iterator[str]:
        """Yield the run in a few lines: where it starts, its size, its export, and the rates of its tasks."""
        yield from super().describe()
        yield self.mixture.describe_rates(self.source)

    def describe_task(self) -> str:
        """Describe how many tasks are learned, and from how many examples."""
        return f"{count_noun(len(self.mixture.tasks), 'task')}; {self.source.epoch_examples:,} examples an epoch"

    def list_estimates(self) -> list[tuple[str, str]]:
        """List tasks, rates, model and steps for a dry run."""
        config, s = self.config, self.config.train
        splits = [
            (f"{name}, {split}", part.summary)
            for name, parts in self.mixture.splits.items()
            for split, part in parts.items()
        ]
        return [
            *splits, ("rates", self.mixture.describe_rates(self.source)),
            ("prefixes", "; ".join(repr(task.task.prefix) for task in self.mixture.tasks)),
            ("model", f"{self.describe_parameters()} learn; {config.source or config.preset or config.family}"),
            ("steps", f"{s.steps:,} of {s.batch_tokens * s.accumulate:,} tokens: {format_epochs(config.tune.epochs)}"),
        ]  # fmt: skip

    def record(self) -> JSONObject:
        """Return the fingerprints of the examples, and the rates; examples that came out of memory are saved."""
        save_mixture_examples(self.path, self.task_sources, self.mixture.splits)
        marks, counts = self.mixture.fingerprint(), self.mixture.count_examples()
        tokenizer = self.former.tokenizer
        rates = self.source.compute_rates(np.array([*counts.values()])).tolist()
        data = {
            "tokenizer": None if tokenizer is None else tokenizer.fingerprint, "store": marks_to_hash(marks),
            "examples": marks, "tasks": self.mixture.list_kinds(), "rates": dict(zip(counts, rates, strict=True)),
            "tokens": sum(int(source.data.starts[-1]) for source in self.mixture.sources),
            "documents": sum(counts.values()),
        }  # fmt: skip
        return {"data": data, "explicit_train": list(self.config.explicit_train)}

    def compute_result(self, folder: RunFolder, best: int) -> tuple[dict[str, dict[str, float]], JSONObject]:
        """Evaluate the best model and the baselines on the validation and test examples, task by task; evaluation.json
        gets the tables of the report."""
        apply_adapters(self.former.model.body, self.former.adapters)
        self.former.adapters = {}
        seen = {split: self.mixture.evaluate(split, self.tell) for split in SPLIT_NAMES}
        metrics = {split: self.mixture.summarise_metrics(evaluations) for split, evaluations in seen.items()}
        metrics |= {"baseline": {}, "majority": {}}
        if self.tune.baseline:
            metrics |= self.mixture.run_baselines(self.mixture.last_split, self.tell)
        losses = [self.compute_text_loss(task.eval_objectives["valid"]) for task in self.mixture.tasks]
        rows = (row for splits in self.mixture.splits.values() for row in splits["valid"].rows)
        sections = {"sections": self.build_mixture_sections(metrics, seen)}
        return metrics, self.write_evaluation(folder, metrics, sections, math.fsum(losses) / len(losses), rows)

    def build_mixture_sections(
        self, metrics: Mapping[str, Mapping[str, float]], seen: Mapping[str, Mapping[str, TaskEvaluation]]
    ) -> list[JSONObject]:
        """Build the tables of the report: a row of each task and their average, then the examples of each task."""
        counts = self.mixture.count_examples()
        rates = self.source.compute_rates(np.array([*counts.values()]))

        def format_metric(part: str, key: str) -> str:
            value = metrics[part].get(key)
            return "–" if value is None else format_number(key.rpartition("/")[2], value, 4)

        parts, rows = ("valid", "test", "baseline"), []
        for task, rate in zip(self.mixture.tasks, rates, strict=True):
            key = f"{task.name}/{task.metric}"
            values = [format_metric(part, key) for part in parts]
            rows.append([task.name, f"{counts[task.name]:,}", f"{rate:.1%}", task.metric, *values])
        rows.append(
            ["average", f"{sum(counts.values()):,}", "100%", "–", *(format_metric(p, "average") for p in parts)]
        )
        linear = f"TF-IDF + linear, {SPLIT_NAMES[self.mixture.last_split]}"
        head = ["task", "examples", "rate", "metric", "validation", "test", linear]
        sections: list[JSONObject] = [{"title": "Metrics", "head": head, "rows": rows}]
        for task in self.mixture.tasks:
            split = "test" if task.name in seen["test"] else "valid"
            tables = build_report_tables(task.task, task.task.labels, seen[split][task.name], task.splits[split].rows)
            sections += [{**table, "title": f"{task.name}: {table['title']}"} for table in tables]
        return sections
