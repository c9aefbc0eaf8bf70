"""Several text-to-text tasks in one run: their examples are read and encoded, mixed at the rates of the settings
(training/mixture_config.py), and evaluated task by task. Pretraining mixes them with its text, fine-tuning with each
other."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...config import JSONObject, ProgressCallback, Settings, count_noun, get_schema
from ...data.encoded_examples import EncodedSource
from ...data.mixture import Mixture
from ...errors import Error
from ...evaluation.metrics import LOWER_IS_BETTER, has_sklearn, run_baseline, run_majority_baseline
from ...evaluation.task import (
    TaskEvaluation,
    build_task_objective,
    check_known_labels,
    evaluate_task,
    list_metric_names,
)
from ...former import Former
from ...objectives.supervised import Supervised
from ...protocols import AnySource
from ...task import Task
from ...tasks.encoding import TaskEncoder, encode_examples, join_pair
from ...tasks.examples import Examples
from ..config_merge import FinetuneDataConfig, TuneConfig
from ..mixture_config import MixtureConfig, MixtureSources, MixtureTaskConfig, describe_strategy
from ..run_folder import RunFolder, has_run
from .splits import (
    SPLITS,
    find_overlap,
    fingerprint_examples,
    format_overlap_warnings,
    read_splits,
    sample_examples,
    save_examples,
)

TEXT_TASKS = ("classify", "regress", "translate", "summarise")  # that can be written as text
POINTS_OF_100 = ("bleu", "chrf")  # metrics on a scale of 0 to 100
TASKS_FOLDER = "data/tasks"  # of a run: examples that came out of memory, by task
NUMBER_STEPS = 25  # numbers that a range is written in: T5 rounds STS-B's 0 to 5 to steps of 0.2
Splits = dict[str, Examples]  # by split: the examples
MixtureSplits = dict[str, Splits]  # task → split → examples


def read_mixture_splits(
    config: MixtureConfig, data: FinetuneDataConfig, sources: MixtureSources, run: Path | None
) -> MixtureSplits:
    """Read the examples of all tasks, and of a resumed `run` (its folder) those that it has saved. What a task does not
    say about its files is as `data` says."""
    if unknown := [name for name in sources if name not in config.tasks]:
        raise Error(f"the mixture has no task {unknown[0]!r}", fix=f"its tasks are {', '.join(config.tasks)}")
    known, splits = get_schema(FinetuneDataConfig), MixtureSplits()
    kinds = {} if run is None else RunFolder(run).read_info()["data"].get("tasks", {})  # as they were found then
    for name, task in config.tasks.items():
        table = dataclasses.replace(data, **task.pick_reader_settings(known))
        in_memory = {split: sources.get(name, {}).get(split) for split in SPLITS}
        saved = None if run is None else run / TASKS_FOLDER / name
        try:
            parts = read_splits(table, task.task or kinds.get(name), in_memory, None, saved)
            words = {str(label): word for label, word in (task.labels or {}).items()}
            splits[name] = {split: rename_labels(part, words) for split, part in parts.items()} if words else parts
        except Error as error:
            raise Error(f"task {name}: {error.what}", where=error.where, fix=error.fix) from None
    return splits


def rename_labels(examples: Examples, words: Mapping[str, str]) -> Examples:
    """Return examples whose labels are replaced by the words that a decoder writes for them."""
    if examples.task != "classify" or examples.multilabel:
        raise Error(f"{examples.task} has no labels to rename", fix="leave labels out")
    if nameless := [label for label in examples.labels if label not in words and label not in words.values()]:
        raise Error(f"labels has no word for {nameless[0]!r}", fix=f"the labels are {', '.join(examples.labels[:8])}")
    rows = [{**row, "label": words.get(row["label"], row["label"])} for row in examples.rows]
    return dataclasses.replace(examples, rows=rows, labels=tuple(words.get(one, one) for one in examples.labels))


def build_text_task(name: str, config: MixtureTaskConfig, examples: Examples, tune: TuneConfig) -> Task:
    """Build a task that is read and written as text. A label is a word; a number is written as one of about 25."""
    kind = examples.task
    if kind not in TEXT_TASKS or examples.multilabel:
        what = "classify with several labels" if examples.multilabel else kind
        fix = f"a mixture takes {', '.join(TEXT_TASKS)}; fine-tune a model of its own for this one"
        raise Error(f"task {name}: {what} cannot be learned text to text", fix=fix)
    pairs = {row.get("other") is not None for row in examples.rows} if kind in ("classify", "regress") else set()
    takes_pairs = pairs.pop() if len(pairs) == 1 else None
    labels: tuple[str, ...] = ()
    if kind == "classify":
        labels = examples.labels
        if len(labels) < 2:
            raise Error(
                f"task {name}: the training examples have {count_noun(len(labels), 'label')}", fix="give two or more"
            )
    elif kind == "regress":
        labels = list_number_labels([float(row["label"]) for row in examples.rows])
    usual = f"{name}: " if not labels else f"{name} sentence: " if takes_pairs is False else f"{name} sentence1: "
    other = "sentence2: " if labels and takes_pairs is not False else ""
    return Task(
        name=kind, kind="text", length=tune.seq_length or 512, long=tune.long_texts, takes_pairs=takes_pairs,
        prefix=usual if config.prefix is None else config.prefix,
        other_prefix=other if config.other_prefix is None else config.other_prefix, label_as_text=bool(labels),
        labels=labels, max_output_tokens=config.max_output_tokens or tune.max_output_tokens,
    )  # fmt: skip


def list_number_labels(numbers: list[float]) -> tuple[str, ...]:
    """List the numbers that a decoder may write for these: multiples of a step of one digit, a 25th of their range."""
    low, high = min(numbers), max(numbers)
    if not math.isfinite(high - low) or high == low:
        raise Error("all numbers of the training examples are the same, or one is not finite", fix="give others")
    step = float(f"{(high - low) / NUMBER_STEPS:.0e}")
    digits = max(0, -math.floor(math.log10(step)))
    return tuple(f"{n * step:.{digits}f}" for n in range(round(low / step), round(high / step) + 1))


def choose_task_metric(name: str, config: MixtureTaskConfig, task: Task, valid: Examples) -> str:
    """Return the metric of a task that counts in the average of all: one whose higher values are better."""
    known = [metric for metric in list_metric_names(task, valid.rows) if metric not in LOWER_IS_BETTER]
    if config.metric not in (None, *known):
        what = f"task {name}: {config.metric!r} cannot be averaged with other tasks' metrics"
        raise Error(what, fix=f"choose {', '.join(known)}")
    return config.metric or known[0]


@dataclass(frozen=True)
class EncodedTask:
    """A task of a mixture with its examples, encoded for one model."""

    name: str
    task: Task
    metric: str  # the one that counts in the average
    splits: Splits
    objective: Supervised  # of the training examples
    eval_objectives: dict[str, Supervised]  # by split

    def evaluate(self, former: Former, split: str, tell: ProgressCallback | None = None) -> TaskEvaluation:
        """Evaluate a model on a split by the metrics of the task."""
        return evaluate_task(former, self.task, self.eval_objectives[split], self.splits[split].rows, tell)


class TaskMixture:
    """The tasks of a mixture, encoded for one model, and what mixes them."""

    def __init__(
        self, config: MixtureConfig, splits: MixtureSplits, former: Former, tune: TuneConfig, tasks: Mapping[str, Task],
        say: Callable[[str], None], max_valid_tokens: int | None = None,
    ):  # fmt: skip
        self.config, self.splits, self.former, self.max_valid_tokens = config, splits, former, max_valid_tokens
        self.tasks = [self.encode_task(name, tasks[name], tune, say) for name in config.tasks]

    def encode_task(self, name: str, task: Task, tune: TuneConfig, say: Callable[[str], None]) -> EncodedTask:
        """Encode the examples of a task; a label that training does not have is an Error here."""
        encoder, objectives = TaskEncoder.from_former(self.former, task), dict[str, Supervised]()
        splits = self.limit_validation(task, self.splits[name], encoder)
        for split, examples in splits.items():
            try:
                check_known_labels(task, examples.rows)
            except Error as error:
                raise Error(error.what, where=f"the {split} examples of {name}", fix=error.fix) from None
            data = encode_examples(task, examples.rows, encoder)
            if description := encoder.describe_unknown(data):
                say(f"{name}, {split}: {description}")
            if split == "train":
                objectives[split] = build_task_objective(
                    self.former, task, data, label_smoothing=tune.label_smoothing, sampling=tune.sampling
                )
            else:
                objectives[split] = build_task_objective(self.former, task, data)
        metric = choose_task_metric(name, self.config.tasks[name], task, splits["valid"])
        return EncodedTask(name, task, metric, splits, objectives.pop("train"), objectives)

    def limit_validation(self, task: Task, splits: Splits, encoder: TaskEncoder) -> Splits:
        """Draw as many validation examples as have `max_valid_tokens` tokens: pretraining evaluates often."""
        if self.max_valid_tokens is None:
            return splits
        with warnings.catch_warnings():  # of texts that are cut: said when they are encoded to be evaluated
            warnings.simplefilter("ignore")
            mean = encode_examples(task, splits["valid"].rows[:1000], encoder).lengths.mean()
        return {**splits, "valid": sample_examples(splits["valid"], max(1, int(self.max_valid_tokens / mean)))}

    @property
    def sources(self) -> tuple[EncodedSource, ...]:
        """The training examples of the tasks."""
        return tuple(task.objective.source for task in self.tasks)

    def count_examples(self) -> dict[str, int]:
        """Count the training examples of each task."""
        return {task.name: len(task.objective.source.data) for task in self.tasks}

    def mix(self, *others: AnySource, counts: tuple[int, ...] = ()) -> Mixture:
        """Mix the tasks, and before them `others`, which have `counts` examples, at the rates of the settings. An epoch
        is Σ min(e_m, K) examples."""
        sources, limit = (*others, *self.sources), self.config.size_limit
        sizes = (*counts, *self.count_examples().values())
        rates = (1.0,) * len(sources) if self.config.strategy == "equal" else None
        epoch = sum(size if limit is None else min(size, limit) for size in sizes)
        return Mixture(sources, rates, self.config.exponent_temperature, limit, epoch)

    def describe_rates(self, mixture: Mixture, **others: int) -> str:
        """Describe how the tasks are mixed: rate and number of examples of each; `others` come before the tasks."""
        counts = {**others, **self.count_examples()}
        rates = mixture.compute_rates(np.array([*counts.values()]))
        parts = [f"{name} {rate:.1%} ({count:,})" for (name, count), rate in zip(counts.items(), rates, strict=True)]
        return f"{describe_strategy(self.config)}: {', '.join(parts)}"

    def get_task_tables(self) -> dict[str, JSONObject]:
        """Return the tasks as a model directory keeps them."""
        return {task.name: task.task.to_dict() for task in self.tasks}

    def evaluate(self, split: str, tell: ProgressCallback | None = None) -> dict[str, TaskEvaluation]:
        """Evaluate the model on a split of every task that has it."""
        tasks = (task for task in self.tasks if split in task.eval_objectives)
        return {task.name: task.evaluate(self.former, split, tell) for task in tasks}

    def summarise_metrics(self, evaluations: Mapping[str, TaskEvaluation]) -> dict[str, float]:
        """Return "average", the mean of the tasks' main metrics (BLEU and chrF as shares of 1), and all metrics as
        TASK/METRIC. Without evaluations of all tasks there is no average."""
        values = {name: dict(seen.metrics) for name, seen in evaluations.items()}
        return summarise_task_metrics({task.name: task.metric for task in self.tasks}, values)

    @property
    def last_split(self) -> str:
        """The split that baselines are compared on: the test examples, if all tasks have some."""
        return "test" if all("test" in task.splits for task in self.tasks) else "valid"

    def run_baselines(self, split: str, tell: ProgressCallback) -> dict[str, dict[str, float]]:
        """Return the metrics of a linear model over counted words, and of the most frequent label, where a task has
        labels; and their averages, where all tasks have."""
        linear, majority = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
        for task in self.tasks:
            rows = task.splits["train"].rows, task.splits[split].rows
            if task.task.name in ("classify", "regress") and has_sklearn():
                linear[task.name] = run_baseline(*rows, tell=tell)
            if task.task.name == "classify":
                majority[task.name] = run_majority_baseline(*rows)
        metrics = {task.name: task.metric for task in self.tasks}
        named = {"baseline": linear, "majority": majority}
        return {name: summarise_task_metrics(metrics, values) for name, values in named.items()}

    def list_kinds(self) -> dict[str, str]:
        """List what each task is: classify, translate, …"""
        return {task.name: task.task.name for task in self.tasks}

    def fingerprint(self) -> dict[str, str]:
        """Return hashes that show whether the examples of a resumed run are the same, by TASK/SPLIT."""
        return fingerprint_splits(self.splits)


def summarise_task_metrics(
    main_metrics: Mapping[str, str], values: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Return "average" over the tasks' main metrics, if all tasks have values, and every metric as TASK/METRIC."""
    every = {f"{name}/{key}": value for name, metrics in values.items() for key, value in metrics.items()}
    if not values or set(values) != set(main_metrics):
        return every
    shares = [values[name][metric] / (100 if metric in POINTS_OF_100 else 1) for name, metric in main_metrics.items()]
    return {"average": math.fsum(shares) / len(shares), **every}


def fingerprint_splits(splits: MixtureSplits) -> dict[str, str]:
    """Return a hash of the examples of each TASK/SPLIT."""
    return {
        f"{name}/{key}": fingerprint_examples(part) for name, parts in splits.items() for key, part in parts.items()
    }


def check_mixture_unchanged(folder: Path, splits: MixtureSplits) -> None:
    """Refuse other examples than those that the run in a folder began with."""
    if not has_run(folder):
        return
    known = RunFolder(folder).read_info()["data"].get("examples") or {}
    for name, mark in fingerprint_splits(splits).items():
        if known.get(name) not in (None, mark):
            raise Error(f"the {name} examples have changed since the run began", where=folder, fix="begin a new run")


def report_splits(splits: MixtureSplits, say: Callable[[str], None]) -> None:
    """Report what was read of every task, and examples that are in two of its splits."""
    for name, parts in splits.items():
        for split, part in parts.items():
            say(f"{name}, {split}: {part.summary}")
        for line in format_overlap_warnings(find_overlap(parts)):
            say(f"{name}: {line}")


def save_mixture_examples(path: Path, sources: MixtureSources, splits: MixtureSplits) -> None:
    """Save the examples that came out of memory, so that the run can resume without them."""
    for name, in_memory in sources.items():
        save_examples(path / TASKS_FOLDER / name, {"valid": None, **in_memory}, splits[name])


def marks_to_hash(marks: Mapping[str, str]) -> str:
    """Join the fingerprints of the training examples of all tasks into one."""
    return "-".join(mark[:12] for name, mark in marks.items() if name.endswith("/train"))


def list_tokenizer_rows(task: Task, examples: Examples) -> Iterator[Settings]:
    """Yield what a new model's tokenizer learns from: texts with their prefixes, and what is written for them."""
    for row in examples.rows:
        target = task.format_label(row["label"]) if task.label_as_text else row["target"]
        yield {"text": task.prefix + join_pair(row, task.other_prefix), "target": target}
