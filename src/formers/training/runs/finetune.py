"""formers.finetune: a model learns a task from examples, and is evaluated on it. A run like any other."""

from __future__ import annotations

import dataclasses
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...batch import Batch
from ...config import JSONObject, ProgressCallback, Settings, coerce_value, count_noun
from ...data.encoded_examples import EncodedExamples
from ...data.loader import load_batches
from ...data.readers import is_path_source
from ...errors import Error
from ...evaluation.metrics import describe_baselines, has_sklearn, run_baseline, run_majority_baseline, to_cost
from ...evaluation.task import (
    TaskEvaluation,
    build_report_tables,
    build_task_objective,
    check_known_labels,
    evaluate_task,
    format_example,
    get_metric_signatures,
    list_metric_names,
)
from ...former import Former, count_trainable
from ...interop.huggingface import explain_export_limits
from ...nn.lora import apply_adapters
from ...objectives.supervised import Supervised
from ...option_aliases import resolve_task_name
from ...protocols import AnySource
from ...reports.run_report import format_number
from ...task import Task
from ...tasks.encoding import TaskEncoder, encode_examples
from ...tasks.example_tables import split_source
from ...tasks.examples import Columns, Examples, Row
from ...text.normalise import detect_language
from ..config_merge import (
    DERIVED_SETTINGS,
    FINETUNE_KEYS,
    FINETUNE_TABLES,
    MIXTURE_TASK,
    ConfigFile,
    FinetuneConfig,
    FinetuneDataConfig,
    FinetuneSettings,
    ModelChoice,
    TuneConfig,
    collect_overrides,
    configure_finetuning,
    derive_config,
    describe_random_start,
    flatten_tables,
    read_config,
    read_config_tables,
    read_known_settings,
    read_mixture,
    resolve_model,
    unflatten_tables,
)
from ..distributed.process_group import ProcessGroup
from ..run_folder import RunFolder, has_run, to_json_number
from ..train_config import RESUMABLE_SETTINGS
from ..trainer import Trainer
from ..validation import evaluate
from .continue_pretraining import TextRequest, check_text_settings, is_text_run, request_text_run
from .run import EarlierRun, NetworkRun, RunOptions, RunRequest, check_parallel_settings, format_epochs
from .splits import (
    SPLITS,
    find_overlap,
    fingerprint_examples,
    format_overlap_warnings,
    read_splits,
    save_examples,
    wrap_labels_in_lists,
)
from .task_model import (
    build_task,
    build_task_model,
    compute_lr_scales,
    finalise_model,
    get_labels,
    initialise_number_head,
    list_listeners,
    read_checkpoint_family,
    select_trainable,
)

if TYPE_CHECKING:
    from .finetune_mixture import MixtureRequest

SPLIT_NAMES = {"valid": "validation", "test": "test"}  # as reports call them
Splits = dict[str, Examples]  # by SPLITS: the examples of each part
Prepared = tuple[FinetuneSettings, Splits]


@dataclass(frozen=True)
class FinetuneResult:
    """A finished run: its folder, the model, and its metrics on validation and test examples and of a baseline
    (a linear model over counted words) on the same."""

    folder: Path
    former: Former
    valid: dict[str, float]
    test: dict[str, float]
    baseline: dict[str, float]
    seconds: float
    majority: dict[str, float] = field(default_factory=dict)  # the most frequent label, on the same

    @property
    def baseline_summary(self) -> str:
        """What the baselines reach and on which part, in one line; empty if there is none."""
        kind = "token frequencies alone" if "perplexity" in self.baseline else "TF-IDF + linear"
        named = {"most frequent label": self.majority, kind: self.baseline}
        is_test = bool(self.test) and (
            "average" in self.test or "average" not in self.valid
        )  # of all tasks of a mixture
        return describe_baselines("test" if is_test else "validation", named)

    @property
    def history(self) -> list[JSONObject]:
        """One table for each step and each evaluation."""
        return RunFolder(self.folder).read_history()


def finetune(
    model: str | Path | None = None, train: object = None, valid: object = None, *, task: str | None = None,
    test: object = None, columns: Columns = None, mixture: object = None, out: str | Path | None = None,
    config: ConfigFile = None, resume: bool = False, overwrite: bool = False, device: torch.device | str | None = None,
    overrides: Mapping[str, object] | None = None, tell: ProgressCallback | None = None,
    say: Callable[[str], None] = lambda text: None, hook: Callable[[JSONObject], None] | None = None,
    **settings: object,
) -> FinetuneResult:  # fmt: skip
    """Teach a model a task: a checkpoint (a folder, hub:owner/name), or a family or preset from scratch.

    `train`, `valid` and `test` are files, lists of tables, DataFrames or datasets (of a DatasetDict, `train` takes the
    training part and the validation part); without `valid`, some training examples are held out. The task is found by
    the columns if none is named: classify, regress, tag, answer, choose, translate, summarise; lm, which must be named,
    continues a checkpoint's pretraining on plain text, evaluated by perplexity (the baseline is then that of token
    frequencies). `mixture` names several text-to-text tasks in place of one (training/mixture_config.py): a YAML file,
    {name: examples}, or {"tasks": {name: {"train": …, "prefix": …}}, "strategy": "equal"}. Settings are those of
    training/config_merge.py: single ones by their names (epochs=3, batch_size=32, lr=1e-3, seed=1, lora=8), any by
    `overrides` ({"train.grad_clip": 0.5}) or a `config` file. With `resume`, a run in `out` resumes where it stopped;
    with `overwrite`, a new one replaces it. `tell`, `say` and `hook` are those of formers.pretrain.
    """
    began = time.perf_counter()
    options = RunOptions(out, resume, overwrite, device, tell, say, hook)
    request = request_finetuning(
        model, train, valid, task=task, test=test, columns=columns, mixture=mixture, config=config,
        overrides=overrides, settings=settings, options=options,
    )  # fmt: skip
    folder, former, metrics = request.carry_out()
    seconds = time.perf_counter() - began
    return FinetuneResult(
        folder, former, metrics["valid"], metrics["test"], metrics["baseline"], seconds, metrics["majority"]
    )


def request_finetuning(
    model: str | Path | None, train: object, valid: object = None, *, task: str | None = None, test: object = None,
    columns: Columns = None, mixture: object = None, config: ConfigFile = None,
    overrides: Mapping[str, object] | None = None, settings: Mapping[str, object] | None = None,
    options: RunOptions | None = None,
) -> FinetuneRequest | TextRequest | MixtureRequest:  # fmt: skip
    """Request a run: of a task, of a mixture of tasks, or, on plain text, of continued pretraining. A file of settings
    names the model and the task where they are not given."""
    file_settings, options = read_config(config), options or RunOptions()
    model = model or file_settings.get("source") or file_settings.get("preset") or file_settings.get("family")
    task = resolve_task_name(task or file_settings.get("task"))
    train, valid_part = split_source(train)
    sources = {"train": train, "valid": valid_part if valid is None else valid, "test": test}
    overrides_by_name = collect_settings(settings or {}, overrides, sources, columns)
    tasks, task_sources = read_mixture(mixture)
    if tasks or file_settings.get("mixture") or "mixture" in (options.read_resumed_settings() or {}):
        from .finetune_mixture import MixtureRequest

        if task not in (None, MIXTURE_TASK):
            raise Error(f"--task {task} does not apply to a mixture, which names its tasks", fix="leave --task out")
        return MixtureRequest(model, config, {**tasks, **overrides_by_name}, task_sources, options)
    if is_text_run(task, options):
        return request_text_run(model, sources, overrides_by_name, config, options)
    return FinetuneRequest(model, task, sources, columns, config, overrides_by_name, options)


@dataclass(frozen=True)
class FinetuneRequest(RunRequest[FinetuneSettings, Splits, FinetuneSettings, Splits]):
    """A request for a fine-tuning run."""

    model: str | Path | None
    task: str | None
    sources: dict[str, object]
    columns: Columns
    file: ConfigFile
    given: Settings  # dotted settings
    options: RunOptions

    def get_stem(self, settings: FinetuneSettings) -> str:
        """Return the family and the task."""
        return f"{settings.family}-{settings.task}"

    def configure(self, earlier: EarlierRun | None) -> Prepared:
        """Merge the settings and read the examples, which may decide the task; of a resumed run, its own."""
        if earlier is None:
            model, known = find_model(self.model), tuple[str, ...]()
            data, _ = read_known_settings(model, self.file, self.given)
            splits = read_splits(data, self.task, self.sources, self.columns, None)
        else:
            settings = merge_resumed_settings(earlier, self.file, self.given)
            known = tuple(earlier.info["data"].get("labels", ()))
            splits = read_splits(settings.data, settings.task, self.sources, self.columns, earlier.path)
        train = splits["train"]
        if train.task == "lm":
            fix = "say --task lm, and the model continues its pretraining on it; or give a table with answers"
            raise Error("the training examples are plain text without answers", fix=fix)
        if set(train.labels) <= set(known):  # folds know the labels of all, datasets have an order of their own
            splits = {**splits, "train": dataclasses.replace(train, labels=known)}
        if earlier is None:
            settings = configure_finetuning(model, train.task, self.file, self.given)
        if settings.tune.multilabel:
            splits = {name: wrap_labels_in_lists(part) for name, part in splits.items()}
        return settings, splits

    def prepare(self, settings: FinetuneSettings, inputs: Splits, folder: Path, world: ProcessGroup) -> Prepared:
        """Report what was read, and check that the examples of a resumed run have not changed."""
        for name, part in inputs.items():
            self.options.say(f"{name}: {part.summary}")
        for line in format_overlap_warnings(find_overlap(inputs)):
            self.options.say(line)
        if has_run(folder):
            known = RunFolder(folder).read_info()["data"]["examples"]
            for name, part in inputs.items():
                if known.get(name) not in (None, fingerprint_examples(part)):
                    what = f"the {name} examples have changed since the run began"
                    raise Error(what, where=folder, fix="begin a new run")
        return settings, inputs

    def prepare_excerpt(
        self, settings: FinetuneSettings, inputs: Splits, folder: Path, world: ProcessGroup
    ) -> Prepared:
        """Take all examples: a dry run lists them itself."""
        return settings, inputs

    def build(self, settings: FinetuneSettings, data: Splits, folder: Path, world: ProcessGroup) -> FinetuneRun:
        """Build the model with the head of the task, and the trainer."""
        return FinetuneRun(settings, data, folder, world, self.options.report, self.options.say, self.sources)

    def render_settings(self) -> str:
        """Return all settings of the run as YAML; without examples, those of classification."""
        if self.sources["train"] is not None or flatten_tables(read_config(self.file)).get("data.train") is not None:
            return self.configure(None)[0].to_yaml()
        return configure_finetuning(find_model(self.model), self.task or "classify", self.file, self.given).to_yaml()


def merge_resumed_settings(earlier: EarlierRun, file: ConfigFile, given: Settings) -> FinetuneSettings:
    """Merge the settings of a resumed run with those of a file and single ones that may change."""
    file_tables = read_config_tables(file, FINETUNE_TABLES, FINETUNE_KEYS)
    family, source, preset, task = (earlier.settings[key] for key in FINETUNE_KEYS)
    overrides = {**given, **compute_extended_steps(earlier, {**flatten_tables(file_tables), **given})}
    free = (*(f"train.{name}" for name in RESUMABLE_SETTINGS), "tune.patience", "tune.epochs")
    free += tuple(f"data.{name}" for name in SPLITS)

    def configure(tables: ConfigFile, single: Mapping[str, object]) -> FinetuneSettings:
        return configure_finetuning(ModelChoice(family, source, preset), task, tables, single)

    return earlier.merge_settings(file_tables, overrides, configure, free)


def find_model(model: str | Path | None) -> ModelChoice:
    """Find the model that is named."""
    if model is None:
        raise Error("no model is named", fix="give a folder, hub:owner/name, or a family: formers tree lists them")
    family, source, preset = resolve_model(str(model))
    return ModelChoice(family or read_checkpoint_family(str(source)), source, preset)


SHORT_NAMES = {  # settings that finetune() takes by their bare names
    **{name: f"train.{name}" for name in
       ("lr", "seed", "steps", "optimizer", "schedule", "workers", "precision", "grad_clip", "ema")},
    **{f.name: f"data.{f.name}" for f in dataclasses.fields(FinetuneDataConfig)},
    **{f.name: f"tune.{f.name}" for f in dataclasses.fields(TuneConfig)},
}  # fmt: skip


def collect_settings(
    settings: Mapping[str, object], overrides: Mapping[str, object] | None, sources: Mapping[str, object],
    columns: Columns,
) -> JSONObject:  # fmt: skip
    """Return all settings that were given, under dotted names; sources in files are settings too."""
    paths = {f"data.{n}": str(v) for n, v in sources.items() if v is not None and is_path_source(v)}
    paths |= {"data.columns": columns} if isinstance(columns, str) else {}
    return paths | collect_overrides("finetune", settings, overrides, FINETUNE_TABLES, SHORT_NAMES)


def compute_extended_steps(earlier: EarlierRun, given: Mapping[str, object]) -> Settings:
    """Return the steps of a resumed run for another number of epochs."""
    if "tune.epochs" not in given or "train.steps" in given:
        return {}
    now = unflatten_tables({"tune.epochs": given["tune.epochs"]}, FINETUNE_TABLES)["tune"]["epochs"]
    if coerce_value(now, float, "tune.epochs") == earlier.settings["tune"]["epochs"]:
        return {}
    if "steps" in earlier.info.get("explicit_train", ()):
        raise Error("this run was given a number of steps, not of epochs", fix="raise --train.steps")
    return {"train.steps": earlier.compute_steps(now)}


# Settings that change nothing in the results.
RESULT_NEUTRAL_SETTINGS = ("workers", "compile", "activation_checkpointing", "parallel")


def check_same_run(
    path: Path, model: str | Path | None, train: object, valid: object, *, test: object, task: str | None,
    columns: Columns, overrides: Mapping[str, object], config: ConfigFile = None, device: object = None,
    hook: object = None, **settings: object,
) -> None:  # fmt: skip
    """Refuse a run that was asked for something else, or has learned from other examples, than what is asked now."""
    about, fix = RunFolder(path).read_info(), "choose another --out, or remove this run"
    request = request_finetuning(
        model, train, valid, task=task, test=test, columns=columns, config=config, overrides=overrides,
        settings=settings,
    )  # fmt: skip
    if isinstance(request, TextRequest):
        return check_text_settings(path, {**request.tune, **request.given}, about["config"], fix)
    if not isinstance(request, FinetuneRequest):
        raise Error("runs of mixtures cannot be compared", fix="leave out the mixture")
    new_settings, splits = request.configure(None)
    marks = {name: fingerprint_examples(part) for name, part in splits.items()}
    for name in SPLITS:
        if marks.get(name) != about["data"]["examples"].get(name):
            raise Error(f"the run here has other {name} examples", where=path, fix=fix)
    now, then = json.loads(json.dumps(new_settings.to_dict())), about["config"]
    kept = {key for side in (new_settings.explicit_train, about.get("explicit_train", ())) for key in side}
    free = {f"data.{name}" for name in SPLITS}
    free |= {f"train.{name}" for name in (*RESULT_NEUTRAL_SETTINGS, *{*DERIVED_SETTINGS} - kept)}
    before, after = (flatten_tables({table: side.get(table) for table in FINETUNE_TABLES}) for side in (then, now))
    differing = sorted({*before, *after} - free)
    before, after = {**then, **before}, {**now, **after}
    for key in (*FINETUNE_KEYS, *differing):
        if before.get(key) != after.get(key):
            raise Error(f"the run here has {key} {before.get(key)}, not {after.get(key)}", where=path, fix=fix)


class FinetuneRun(NetworkRun[FinetuneConfig]):
    """A fine-tuning run: the model, its task, its examples and the trainer."""

    def __init__(
        self, settings: FinetuneSettings, splits: Splits, path: Path, world: ProcessGroup, tell: ProgressCallback,
        say: Callable[[str], None], sources: Mapping[str, object] | None = None,
    ):  # fmt: skip
        self.splits, self.world, self.path, self.tell, self.sources = splits, world, path, tell, sources or {}
        train = splits["train"]
        self.former, self.task, settings = build_task_model(
            settings, build_task(settings, train), get_labels(settings, train), train.rows, path / "data", world, tell,
            say,
        )  # fmt: skip
        self.reader, self.tune = TaskEncoder.from_former(self.former, self.task), settings.tune
        self.main_metric = choose_main_metric(self.task, self.tune.metric, splits["valid"])
        self.latest_value = math.nan
        if self.main_metric != "loss" or self.task.kind != "text":
            self.describe_metric = self.describe_latest
        data = encode_examples(self.task, train.rows, self.reader, self.former.labels)
        self.report_unknown_tokens("train", data, say)
        self.train_labels = data.labels if self.task.kind == "tags" else data.answers
        self.objective = build_task_objective(
            self.former, self.task, data, self.train_labels, balance=self.tune.balance,
            label_smoothing=self.tune.label_smoothing, lm_loss_weight=self.tune.lm_loss_weight,
            sampling=self.tune.sampling,
        )  # fmt: skip
        # A label that training does not have ends the run here.
        self.eval_objectives = {name: self.encode_split(name, say) for name in splits if name != "train"}
        if self.task.kind == "number" and data.answers is not None:
            initialise_number_head(self.former, self.objective.part, data.answers)
        self.config, self.trainer = self.build_trainer(settings)
        if (num_windows := len(data) - len(train.rows)) > 0:
            more = count_noun(num_windows, "window")
            say(f"{more} more than texts: some are longer than {self.task.length} tokens")

    def build_trainer(self, settings: FinetuneSettings) -> tuple[FinetuneConfig, Trainer]:
        """Choose what is trained, move the model to its device and build the trainer; returns also the settings with
        those that follow from the encoded examples."""
        select_trainable(self.former, self.tune)
        self.former.model.to(self.world.device)
        source = self.get_source(0)
        sizes = source.measure_sizes(source.plan_epoch(0, 0))
        config = derive_config(settings, sizes, self.former.config.dim, self.world.size)
        check_parallel_settings(config.train, self.world, has_run(self.path))
        lr_scales, listeners = compute_lr_scales(self.former, self.tune.layer_decay), list_listeners(self.former)
        return config, Trainer(self.former.model, [self.objective], config.train, self.world, lr_scales, listeners)

    def report_unknown_tokens(self, name: str, data: EncodedExamples, say: Callable[[str], None]) -> None:
        """Report how many tokens of a part the tokenizer does not know, if there are any."""
        if description := self.reader.describe_unknown(data):
            say(f"{name}: {description}")

    def encode_split(self, name: str, say: Callable[[str], None]) -> Supervised:
        """Return the examples of a part, for evaluation."""
        rows = self.splits[name].rows
        try:
            check_known_labels(self.task, rows)
            data = encode_examples(self.task, rows, self.reader, self.former.labels)
        except Error as error:
            raise Error(error.what, where=f"the {name} examples", fix=error.fix) from None
        self.report_unknown_tokens(name, data, say)
        return build_task_objective(self.former, self.task, data, self.train_labels, balance=self.tune.balance)

    def get_source(self, phase: int) -> AnySource:
        """Return the training examples, the same in every phase."""
        return self.objective.source

    def iter_batches(self, phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        """Return the batches from a position on, without dummy documents where nothing is compiled."""
        batches = super().iter_batches(phase, position)
        if self.trainer.executor.is_compiled:
            return batches
        return ((drop_dummy_documents(batch), position) for batch, position in batches)

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics on the validation examples; the lowest "cost" makes the best checkpoint."""
        with self.trainer.use_ema_weights():
            seen = {"loss": self.compute_text_loss(self.eval_objectives["valid"])} if self.task.kind == "text" else {}
            if not seen or self.task.label_as_text or self.main_metric != "loss":  # writing texts takes long
                evaluation = evaluate_task(
                    self.former, self.task, self.eval_objectives["valid"], self.splits["valid"].rows,
                    delay_progress(self.tell), self.trainer.executor.autocast,
                )  # fmt: skip
                seen = {"loss": evaluation.loss, **seen, **evaluation.metrics}
        self.latest_value = seen[self.main_metric]
        finite = math.isfinite(seen["loss"])  # a model of nan still has an accuracy, and must not be the best
        seen["cost"] = to_cost(self.main_metric, self.latest_value) if finite else math.nan
        self.update_early_stopping(seen["cost"], seen["loss"])
        return seen

    def compute_text_loss(self, objective: Supervised) -> float:
        """Return the mean loss of the tokens of the validation texts."""
        s, forward = self.config.train, self.trainer.executor.forward
        loaded = load_batches(objective.source, s.batch_tokens, s.seed + 1, epochs=1)
        batches = (drop_dummy_documents(batch) for batch, _ in loaded)
        return evaluate(self.former.model, objective, batches, forward, device=self.world.device).metrics[
            objective.part
        ]

    def describe_latest(self) -> str:
        """Describe the main metric of the last evaluation."""
        return "" if math.isnan(self.latest_value) else f"validation {self.main_metric} {self.latest_value:.3f}"

    def update_early_stopping(self, cost: float, loss: float) -> None:
        """End the run if none of the last few evaluations was better than those before. A model from random weights
        gives nearly every text the most frequent label at first: while the metric of no evaluation is better than the
        first one's, the loss says whether it learns."""
        if not self.tune.patience:
            return

        def has_stalled() -> bool:
            rows = [row["valid"] for row in RunFolder(self.path).read_history() if "valid" in row]
            costs, losses = (
                [row.get(name) for row in (*rows, {"cost": cost, "loss": loss})] for name in ("cost", "loss")
            )
            costs, losses = (
                [math.inf if c is None or math.isnan(c) else c for c in values] for values in (costs, losses)
            )
            decisive = losses if self.config.source is None and min(costs) == costs[0] else costs
            return len(decisive) - 1 - decisive.index(min(decisive)) >= self.tune.patience

        self.trainer.should_stop = self.world.broadcast_from_main(has_stalled)  # the first one writes the history

    def describe(self) -> Iterator[str]:
        """Yield the run in a few lines: where it starts, its size, and what to know of its export."""
        config, s = self.config, self.config.train
        if config.source is None and config.tune.vectors is None:
            yield describe_random_start(config.family, config.preset)
        name = config.source or config.preset or config.family
        length = f"{s.steps:,} steps of {s.batch_tokens * s.accumulate:,} tokens"
        yield f"{name}: {self.describe_parameters()} learn {self.describe_task()}, {length}"
        if self.world.is_main and (why := explain_export_limits(self.former)) is not None:
            yield f"export: {why}"

    def describe_task(self) -> str:
        """Describe what is learned, and from how many examples."""
        return f"to {self.task.name}; {count_noun(len(self.objective.source.data), 'example')}"

    def describe_parameters(self) -> str:
        """Describe how many of all parameters are trained."""
        total = sum(p.numel() for p in self.former.model.parameters())
        return f"{count_trainable(self.former.model):,} of {total:,} parameters"

    def list_estimates(self) -> list[tuple[str, str]]:
        """List task, examples, labels, model and steps for a dry run."""
        config, s, labels = self.config, self.config.train, [*self.splits["train"].labels]
        vectors = None if config.tune.vectors is None else f"the embeddings start from {config.tune.vectors}"
        start = config.source or vectors or describe_random_start(config.family, config.preset)
        times, epochs = max(1, s.steps // s.eval_every), config.tune.epochs
        often, metric = "once" if times == 1 else f"{times:,} times", f"{self.main_metric} on the validation examples"
        return [
            ("task", config.task), *((name, part.summary) for name, part in self.splits.items()),
            *([("labels", ", ".join(labels[:20]) + (" …" if len(labels) > 20 else ""))] if labels else []),
            *(("note", line) for line in format_overlap_warnings(find_overlap(self.splits))),
            ("model", f"{self.describe_parameters()} learn; {start}"),
            ("evaluation", f"{metric}, {often}"),
            ("steps", f"{s.steps:,} of {s.batch_tokens * s.accumulate:,} tokens: {format_epochs(epochs)}"),
        ]  # fmt: skip

    def record(self) -> JSONObject:
        """Return the fingerprints of the examples; those that came out of memory are saved, so that the run can resume
        without them."""
        save_examples(self.path, self.sources, self.splits)
        marks = {name: fingerprint_examples(part) for name, part in self.splits.items()}
        tokenizer = self.former.tokenizer  # None: ELMo reads characters, and its published files have no vocabulary
        data = {
            "tokenizer": None if tokenizer is None else tokenizer.fingerprint,
            "store": marks["train"], "examples": marks,
            "tokens": int(self.objective.source.data.starts[-1]), "documents": len(self.splits["train"].rows),
            "labels": list(self.splits["train"].labels),
        }  # fmt: skip
        return {"data": data, "explicit_train": list(self.config.explicit_train)}

    def finalise(self, former: Former) -> None:
        """Merge the adapters, or separate them from the weights."""
        finalise_model(former, self.tune)

    def compute_result(self, folder: RunFolder, best: int) -> tuple[dict[str, dict[str, float]], JSONObject]:
        """Evaluate the best model and the baselines on the validation and test examples; evaluation.json gets the
        tables of the report."""
        apply_adapters(self.former.model.body, self.former.adapters)
        self.former.adapters = {}
        seen, autocast = dict[str, TaskEvaluation](), self.trainer.executor.autocast
        for name, objective in self.eval_objectives.items():
            rows = self.splits[name].rows
            seen[name] = evaluate_task(self.former, self.task, objective, rows, self.tell, autocast)
        last = "test" if "test" in seen else "valid"
        metrics: dict[str, dict[str, float]] = {
            name: seen[name].metrics if name in seen else {} for name in SPLIT_NAMES
        }
        metrics |= {"baseline": {}, "majority": {}}
        compared = self.splits["train"].rows, self.splits[last].rows
        if self.tune.baseline and self.task.name in ("classify", "regress"):
            if has_sklearn():
                metrics["baseline"] = run_baseline(*compared, tell=self.tell)
            else:
                warnings.warn('no linear baseline: scikit-learn is missing (pip install "formers[eval]")', stacklevel=2)
        if self.tune.baseline and self.task.name == "classify":
            metrics["majority"] = run_majority_baseline(*compared)
        quoted = get_metric_signatures(self.task, seen[last])
        sections = self.build_sections(metrics, quoted, last, seen[last])
        text = self.task.kind == "text"
        loss = self.compute_text_loss(self.eval_objectives["valid"]) if text else seen["valid"].loss
        tables = {"signatures": quoted, "sections": sections}
        return metrics, self.write_evaluation(folder, metrics, tables, loss, self.splits[last].rows)

    def write_evaluation(
        self, folder: RunFolder, metrics: Mapping[str, Mapping[str, float]], tables: JSONObject, loss: float,
        rows: Iterable[Row],
    ) -> JSONObject:  # fmt: skip
        """Write evaluation.json, with the tables of the report; returns what run.json keeps as the result."""
        file = folder.path / "evaluation.json"
        content = json.dumps({"metrics": metrics, **tables}, ensure_ascii=False, indent=1)
        file.write_text(content, encoding="utf-8")
        values = {name: to_json_number(value) for name, value in metrics["valid"].items()}
        return {
            "score": {"loss": to_json_number(loss), "accuracy": values.get("accuracy"), "metrics": values},
            "metrics": metrics, "ended": [self.trainer.step, self.config.train.steps],
            "language": detect_language(format_example(row) for row in rows),
        }  # fmt: skip

    def build_sections(
        self, metrics: Mapping[str, Mapping[str, float]], quoted: Mapping[str, str], last: str, seen: TaskEvaluation
    ) -> list[JSONObject]:
        """Build the tables of the report: measures, overlap, how they were computed, and those of the task."""
        names = {SPLIT_NAMES[name]: metrics[name] for name in SPLIT_NAMES}  # a baseline's row says which one it is of
        names |= {f"TF-IDF + linear, {SPLIT_NAMES[last]}": metrics["baseline"]}
        head = ["", *metrics[last]]
        measured = [(name, values) for name, values in names.items() if values]
        cells = [[format_number(k, v[k], 4) if k in v else "–" for k in head[1:]] for _, v in measured]
        rows = [[name, *row] for (name, _), row in zip(measured, cells, strict=True)]
        sections: list[JSONObject] = [{"title": "Metrics", "head": head, "rows": rows}]
        if shared := find_overlap(self.splits):
            overlaps = [[name, before, f"{count:,}", f"{of:,}"] for name, before, count, of in shared]
            head = ["part", "shares examples with", "examples in common", "of"]
            sections.append({"title": "Overlap: the same texts in two parts", "head": head, "rows": overlaps})
        if quoted:
            signatures = [[name, words] for name, words in quoted.items()]
            sections.append({"title": "How they were computed", "head": ["metric", "signature"], "rows": signatures})
        return [*sections, *build_report_tables(self.task, self.former.labels, seen, self.splits[last].rows)]


def choose_main_metric(task: Task, named: str | None, valid: Examples) -> str:
    """Return the metric that decides which checkpoint is the best: the one that is named, else the task's first (the
    loss, where texts are written). A metric whose package is missing is an error here, not after the training."""
    known = list_metric_names(task, valid.rows)
    if named is None and task.kind == "text" and not task.label_as_text:
        return "loss"
    if named not in (None, "loss", *known):
        raise Error(f"there is no metric {named!r}", fix=f"choose {', '.join(known)} or loss")
    return named or known[0]


def delay_progress(tell: ProgressCallback) -> ProgressCallback:
    """Wrap a progress callback so that it stays silent for the first two seconds."""
    began = time.monotonic()
    return lambda *progress: tell(*progress) if time.monotonic() - began > 2 else None


def drop_dummy_documents(batch: Batch) -> Batch:
    """Return a batch without its dummy documents: where nothing is compiled, batches need no common shape."""
    real = int((batch.sample >= 0).sum())
    end = int(batch.starts[real])
    sizes = {"chosen": real, "document_labels": real, "labels": end if batch.chosen is None else real}
    sizes |= dict.fromkeys(("ids", "positions", "segments", "tasks", "order"), end)
    fields = batch.to_dict()
    cut = {name: value[:size] for name, size in sizes.items() if (value := fields[name]) is not None}
    source = batch.source
    if source is not None:
        source = drop_dummy_documents(source.replace(sample=batch.sample)).replace(sample=None)
    starts = batch.starts[: real + 1]
    longest = int((starts[1:] - starts[:-1]).max()) if real else 1
    return batch.replace(**cut, starts=starts, longest=longest, sample=batch.sample[:real], source=source)
