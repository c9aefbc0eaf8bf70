"""formers.finetune: a model learns a task from examples, and is evaluated on it. A run like any other."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...batch import Batch
from ...config import JSONObject, ProgressCallback, Settings, coerce_value
from ...data.encoded_examples import EncodedExamples, EncodedSource
from ...data.loader import load_batches
from ...data.readers import is_path_source
from ...errors import Error
from ...evaluation.metrics import describe_baselines, has_sklearn, run_baseline, run_majority_baseline, to_cost
from ...evaluation.task import (
    TaskEvaluation,
    build_report_tables,
    build_task_objective,
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
from ...reports.run_report import format_number
from ...task import Task
from ...tasks.encoding import TaskEncoder, encode_examples
from ...tasks.example_tables import split_source
from ...tasks.examples import Columns, Examples
from ...text.normalise import detect_language
from ..config_merge import (
    DERIVED_SETTINGS,
    FINETUNE_KEYS,
    FINETUNE_TABLES,
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
    resolve_model,
    unflatten_tables,
)
from ..distributed.process_group import ProcessGroup
from ..run_folder import RunFolder, to_json_number
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

SPLIT_NAMES = {"valid": "validation", "test": "test"}  # as reports call them
Prepared = tuple[FinetuneSettings, dict[str, Examples]]


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
        return describe_baselines("test" if self.test else "validation", named)

    @property
    def history(self) -> list[JSONObject]:
        """One table for each step and each evaluation."""
        return RunFolder(self.folder).read_history()


def finetune(
    model: str | Path | None = None, train: object = None, valid: object = None, *, task: str | None = None,
    test: object = None, columns: Columns = None, out: str | Path | None = None, config: ConfigFile = None,
    resume: bool = False, overwrite: bool = False, device: torch.device | str | None = None,
    overrides: Mapping[str, object] | None = None, tell: ProgressCallback | None = None,
    say: Callable[[str], None] = lambda text: None, hook: Callable[[JSONObject], None] | None = None,
    **settings: object,
) -> FinetuneResult:  # fmt: skip
    """Teach a model a task: a checkpoint (a folder, hub:owner/name), or a family or preset from scratch.

    `train`, `valid` and `test` are files, lists of tables, DataFrames or datasets (of a DatasetDict, `train` takes the
    training part and the validation part); without `valid`, some training examples are held out. The task is found by
    the columns if none is named: classify, regress, tag, answer, choose, translate, summarise; lm, which must be named,
    continues a checkpoint's pretraining on plain text, evaluated by perplexity (the baseline is then that of token
    frequencies). Settings are those of training/config_merge.py: single ones by their names (epochs=3,
    batch_size=32, lr=1e-3, seed=1, lora=8), any by `overrides` ({"train.grad_clip": 0.5}) or a `config` file. With
    `resume`, a run in `out` resumes where it stopped; with `overwrite`, a new one takes its place. `tell`, `say` and
    `hook` are those of formers.pretrain.
    """
    began = time.perf_counter()
    options = RunOptions(out, resume, overwrite, device, tell, say, hook)
    request = request_finetuning(
        model, train, valid, task=task, test=test, columns=columns, config=config, overrides=overrides,
        settings=settings, options=options,
    )  # fmt: skip
    folder, former, found = request.carry_out()
    seconds = time.perf_counter() - began
    return FinetuneResult(folder, former, found["valid"], found["test"], found["baseline"], seconds, found["majority"])


def request_finetuning(
    model: str | Path | None, train: object, valid: object = None, *, task: str | None = None, test: object = None,
    columns: Columns = None, config: ConfigFile = None, overrides: Mapping[str, object] | None = None,
    settings: Mapping[str, object] | None = None, options: RunOptions | None = None,
) -> FinetuneRequest | TextRequest:  # fmt: skip
    """Request a run: of a task, or, on plain text, of continued pretraining. A file of settings names the model and
    the task where they are not given."""
    told, options = read_config(config), options or RunOptions()
    model = model or told.get("source") or told.get("preset") or told.get("family")
    task = resolve_task_name(task or told.get("task"))
    train, held = split_source(train)
    sources = {"train": train, "valid": held if valid is None else valid, "test": test}
    given = collect_settings(settings or {}, overrides, sources, columns)
    if is_text_run(task, options):
        return request_text_run(model, sources, given, config, options)
    return FinetuneRequest(model, task, sources, columns, config, given, options)


@dataclass
class FinetuneRequest(RunRequest[FinetuneSettings, FinetuneSettings, dict[str, Examples]]):
    """A fine-tuning run that was asked for."""

    model: str | Path | None
    task: str | None
    sources: dict[str, object]
    columns: Columns
    file: ConfigFile
    given: Settings  # dotted settings
    options: RunOptions
    splits: dict[str, Examples] = field(default_factory=dict)  # the examples, when they are read: `configure` does

    @property
    def inputs(self) -> object:
        """The file of settings."""
        return (self.file,)

    def get_stem(self, settings: FinetuneSettings) -> str:
        """Return the family and the task."""
        return f"{settings.family}-{settings.task}"

    def configure(self, earlier: EarlierRun | None) -> FinetuneSettings:
        """Merge the settings and read the examples, which may decide the task; of a resumed run, its own."""
        if earlier is None:
            model, known = find_model(self.model), tuple[str, ...]()
            data, _ = read_known_settings(model, self.file, self.given)
            self.splits = read_splits(data, self.task, self.sources, self.columns, None)
        else:
            settings, known = self.merge_with(earlier), tuple(earlier.info["data"].get("labels", ()))
            self.splits = read_splits(settings.data, settings.task, self.sources, self.columns, earlier.path)
        train = self.splits["train"]
        if train.task == "lm":
            fix = "say --task lm, and the model continues its pretraining on it; or give a table with answers"
            raise Error("the training examples are plain text without answers", fix=fix)
        if set(train.labels) <= set(known):  # folds know the labels of all, datasets have an order of their own
            self.splits["train"] = dataclasses.replace(train, labels=known)
        if earlier is None:
            settings = configure_finetuning(model, train.task, self.file, self.given)
        if settings.tune.multilabel:
            self.splits = {name: wrap_labels_in_lists(part) for name, part in self.splits.items()}
        return settings

    def merge_with(self, earlier: EarlierRun) -> FinetuneSettings:
        """Merge the settings of a resumed run with those that may change."""
        told = read_config_tables(self.file, FINETUNE_TABLES, FINETUNE_KEYS)
        family, source, preset, task = (earlier.settings[key] for key in FINETUNE_KEYS)
        given = {**self.given, **compute_extended_steps(earlier, {**flatten_tables(told), **self.given})}
        free = (*(f"train.{name}" for name in RESUMABLE_SETTINGS), "tune.patience", "tune.epochs")
        free += tuple(f"data.{name}" for name in SPLITS)

        def configure(file: ConfigFile, single: Mapping[str, object]) -> FinetuneSettings:
            return configure_finetuning(ModelChoice(family, source, preset), task, file, single)

        return earlier.merge_settings(told, given, configure, free)

    def prepare(self, settings: FinetuneSettings, folder: Path, world: ProcessGroup) -> Prepared:
        """Say what was read, and compare the examples of a resumed run with those that it began with."""
        for name, part in self.splits.items():
            self.options.say(f"{name}: {part.summary}")
        for line in format_overlap_warnings(find_overlap(self.splits)):
            self.options.say(line)
        if (folder / "run.json").is_file():
            known = RunFolder(folder).read_info()["data"]["examples"]
            for name, part in self.splits.items():
                if known.get(name) not in (None, fingerprint_examples(part)):
                    what = f"the {name} examples have changed since the run began"
                    raise Error(what, where=folder, fix="begin a new run")
        return settings, self.splits

    def prepare_excerpt(self, settings: FinetuneSettings, folder: Path, world: ProcessGroup) -> Prepared:
        """Take all examples: a dry run lists them itself."""
        return settings, self.splits

    def build(
        self, settings: FinetuneSettings, data: dict[str, Examples], folder: Path, world: ProcessGroup
    ) -> FinetuneRun:
        """Build the model with the head of the task, and the trainer."""
        return FinetuneRun(settings, data, folder, world, self.options.report, self.options.say, self.sources)

    def render_settings(self) -> str:
        """Return all settings of the run as YAML; without examples, those of classification."""
        if self.sources["train"] is not None or flatten_tables(read_config(self.file)).get("data.train") is not None:
            return self.configure(None).to_yaml()
        return configure_finetuning(find_model(self.model), self.task or "classify", self.file, self.given).to_yaml()


def find_model(model: str | Path | None) -> ModelChoice:
    """Find the model that is named."""
    if model is None:
        raise Error("no model is named", fix="give a folder, hub:owner/name, or a family: formers tree lists them")
    family, source, preset = resolve_model(str(model))
    return ModelChoice(family or read_checkpoint_family(str(source)), source, preset)


def render_settings(
    model: str | Path | None, train: object, valid: object, **asked: Any  # dynamic: the keywords of request_finetuning
) -> str:  # fmt: skip
    """Return all settings of a run as YAML, for --config."""
    request = request_finetuning(model, train, valid, **asked)
    named = {**flatten_tables(read_config(request.file)), **request.given}
    if isinstance(request, TextRequest) and request.text is None and "data.source" not in named:
        raise Error("the settings of --task lm depend on the text", fix="give --train FILE")
    return request.render_settings()


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
    wanted = request.configure(None)
    marks = {name: fingerprint_examples(part) for name, part in request.splits.items()}
    for name in SPLITS:
        if marks.get(name) != about["data"]["examples"].get(name):
            raise Error(f"the run here has other {name} examples", where=path, fix=fix)
    now, then = json.loads(json.dumps(wanted.to_dict())), about["config"]
    kept = {key for side in (wanted.explicit_train, about.get("explicit_train", ())) for key in side}
    free = {f"data.{name}" for name in SPLITS}
    free |= {f"train.{name}" for name in (*RESULT_NEUTRAL_SETTINGS, *{*DERIVED_SETTINGS} - kept)}
    before, after = (flatten_tables({table: side[table] for table in FINETUNE_TABLES}) for side in (then, now))
    differing = sorted({*before, *after} - free)
    before, after = {**then, **before}, {**now, **after}
    for key in (*FINETUNE_KEYS, *differing):
        if before.get(key) != after.get(key):
            raise Error(f"the run here has {key} {before.get(key)}, not {after.get(key)}", where=path, fix=fix)


class FinetuneRun(NetworkRun[FinetuneConfig]):
    """A fine-tuning run: the model, its task, its examples and the trainer."""

    def __init__(
        self, wanted: FinetuneSettings, parts: dict[str, Examples], path: Path, world: ProcessGroup,
        tell: ProgressCallback, say: Callable[[str], None], sources: Mapping[str, object] | None = None,
    ):  # fmt: skip
        self.splits, self.world, self.path, self.tell, self.sources = parts, world, path, tell, sources or {}
        training = parts["train"]
        self.former, self.task, wanted = build_task_model(
            wanted, build_task(wanted, training), get_labels(wanted, training), training.rows, path / "data", world,
            tell, say,
        )  # fmt: skip
        self.reader, self.tune = TaskEncoder.from_former(self.former, self.task), wanted.tune
        self.main_metric = choose_main_metric(self.task, wanted.tune.metric, parts["valid"])
        self.latest_value = math.nan
        data = encode_examples(self.task, training.rows, self.reader, self.former.labels)
        self.report_unknown_tokens("train", data, say)
        self.train_labels = data.labels if self.task.kind == "tags" else data.answers
        self.objective = build_task_objective(
            self.former, self.task, data, self.train_labels, balance=wanted.tune.balance,
            label_smoothing=wanted.tune.label_smoothing, lm_loss_weight=wanted.tune.lm_loss_weight,
        )  # fmt: skip
        # odd labels end it here
        self.eval_objectives = {name: self.encode_split(name, say) for name in parts if name != "train"}
        if self.task.kind == "number" and data.answers is not None:
            initialise_number_head(self.former, self.objective.part, data.answers)
        select_trainable(self.former, wanted.tune)
        self.former.model.to(world.device)
        source = self.objective.source
        sizes = source.measure_sizes(source.plan_epoch(0, 0))
        self.config = derive_config(wanted, sizes, self.former.config.dim, world.size)
        check_parallel_settings(self.config.train, world, (path / "run.json").is_file())
        self.trainer = Trainer(
            self.former.model, [self.objective], self.config.train, world,
            compute_lr_scales(self.former, wanted.tune.layer_decay), list_listeners(self.former),
        )  # fmt: skip
        if self.main_metric != "loss" or self.task.kind != "text":
            self.describe_metric = self.describe_latest
        long = len(data) - len(training.rows)
        if long > 0:
            say(f"{long:,} windows more than texts: some are longer than {self.task.length} tokens")

    def report_unknown_tokens(self, name: str, data: EncodedExamples, say: Callable[[str], None]) -> None:
        """Say how many tokens of a part the tokenizer does not know, if there are any."""
        if told := self.reader.describe_unknown(data):
            say(f"{name}: {told}")

    def encode_split(self, name: str, say: Callable[[str], None]) -> Supervised:
        """Return the examples of a part, for evaluation."""
        rows = self.splits[name].rows
        try:
            if self.task.label_as_text and (odd := {str(row["label"]) for row in rows} - set(self.task.labels)):
                raise Error(f"the label {min(odd)!r} was not seen in training", fix="give examples of it to learn from")
            data = encode_examples(self.task, rows, self.reader, self.former.labels)
        except Error as error:
            raise Error(error.what, where=f"the {name} examples", fix=error.fix) from None
        self.report_unknown_tokens(name, data, say)
        return build_task_objective(self.former, self.task, data, self.train_labels, balance=self.tune.balance)

    def get_source(self, phase: int) -> EncodedSource:
        """Return the training examples, the same in every phase."""
        return self.objective.source

    def iter_batches(self, phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        """Return the batches from a position on, without dummy documents where nothing is compiled."""
        made = super().iter_batches(phase, position)
        if self.trainer.executor.is_compiled:
            return made
        return ((drop_dummy_documents(batch), behind) for batch, behind in made)

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics on the validation examples; "cost" is what the run is after, the lower the better."""
        with self.trainer.use_ema_weights():
            seen = {"loss": self.compute_text_loss(self.eval_objectives["valid"])} if self.task.kind == "text" else {}
            if not seen or self.task.label_as_text or self.main_metric != "loss":  # to write texts takes long
                told = (self.splits["valid"].rows, delay_progress(self.tell), self.trainer.executor.autocast)
                found = evaluate_task(self.former, self.task, self.eval_objectives["valid"], *told)
                seen = {"loss": found.loss, **seen, **found.metrics}
        self.latest_value = seen[self.main_metric]
        finite = math.isfinite(seen["loss"])  # a model of nan still has an accuracy, and must not be the best
        seen["cost"] = to_cost(self.main_metric, self.latest_value) if finite else math.nan
        self.update_early_stopping(seen["cost"])
        return seen

    def compute_text_loss(self, goal: Supervised) -> float:
        """Return the mean loss of the tokens of the validation texts."""
        s, forward = self.config.train, self.trainer.executor.forward
        some = load_batches(goal.source, s.batch_tokens, s.seed + 1, epochs=1)
        batches = (drop_dummy_documents(batch) for batch, _ in some)
        return evaluate(self.former.model, goal, batches, forward, device=self.world.device).metrics[goal.part]

    def describe_latest(self) -> str:
        """Return the main metric of the last evaluation, in words."""
        return "" if math.isnan(self.latest_value) else f"validation {self.main_metric} {self.latest_value:.3f}"

    def update_early_stopping(self, cost: float) -> None:
        """End the run if none of the last few evaluations was better than those before."""
        if not self.tune.patience:
            return

        def no_better() -> bool:
            rows = [row["valid"]["cost"] for row in RunFolder(self.path).read_history() if "valid" in row]
            costs = [math.inf if c is None or math.isnan(c) else c for c in (*rows, cost)]
            return len(costs) - 1 - costs.index(min(costs)) >= self.tune.patience

        self.trainer.should_stop = self.world.broadcast_from_main(no_better)  # the first one writes the history

    def describe(self) -> Iterator[str]:
        """Yield the run in a few lines: where it starts, its size, and what to know of its export."""
        asked, s = self.config, self.config.train
        if asked.source is None and asked.tune.vectors is None:
            yield describe_random_start(asked.family, asked.preset)
        name = asked.source or asked.preset or asked.family
        length = f"{s.steps:,} steps of {s.batch_tokens * s.accumulate:,} tokens"
        examples = f"{len(self.objective.source.data):,} examples"
        yield f"{name}: {self.describe_parameters()} learn to {self.task.name}; {examples}, {length}"
        if self.world.is_main and (why := explain_export_limits(self.former)) is not None:
            yield f"export: {why}"

    def describe_parameters(self) -> str:
        """Say how many parameters are trained, and of how many."""
        total = sum(p.numel() for p in self.former.model.parameters())
        return f"{count_trainable(self.former.model):,} of {total:,} parameters"

    def list_estimates(self) -> list[tuple[str, str]]:
        """List task, examples, labels, model and steps for a dry run."""
        asked, s, labels = self.config, self.config.train, [*self.splits["train"].labels]
        vectors = None if asked.tune.vectors is None else f"the embeddings start from {asked.tune.vectors}"
        start = asked.source or vectors or describe_random_start(asked.family, asked.preset)
        times, epochs = max(1, s.steps // s.eval_every), asked.tune.epochs
        often, metric = "once" if times == 1 else f"{times:,} times", f"{self.main_metric} on the validation examples"
        return [
            ("task", asked.task), *((name, part.summary) for name, part in self.splits.items()),
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
        assert self.former.tokenizer is not None
        data = {
            "tokenizer": self.former.tokenizer.fingerprint, "store": marks["train"], "examples": marks,
            "tokens": int(self.objective.source.data.starts[-1]), "documents": len(self.splits["train"].rows),
            "labels": list(self.splits["train"].labels),
        }  # fmt: skip
        return {"data": data, "explicit_train": list(self.config.explicit_train)}

    def finalise(self, former: Former) -> None:
        """Merge adapters, or part them from the weights."""
        finalise_model(former, self.tune)

    def compute_result(self, folder: RunFolder, best: int) -> tuple[dict[str, dict[str, float]], JSONObject]:
        """Evaluate the best model on all examples that it did not learn from, beside the baselines; evaluation.json
        gets the tables of the report."""
        apply_adapters(self.former.model.body, self.former.adapters)
        self.former.adapters = {}
        seen, how = dict[str, TaskEvaluation](), (self.tell, self.trainer.executor.autocast)
        for name, goal in self.eval_objectives.items():
            seen[name] = evaluate_task(self.former, self.task, goal, self.splits[name].rows, *how)
        last = "test" if "test" in seen else "valid"
        found: dict[str, dict[str, float]] = {name: seen[name].metrics if name in seen else {} for name in SPLIT_NAMES}
        found |= {"baseline": {}, "majority": {}}
        rows = self.splits["train"].rows, self.splits[last].rows
        if self.tune.baseline and self.task.name in ("classify", "regress") and has_sklearn():
            found["baseline"] = run_baseline(*rows, tell=self.tell)
        if self.tune.baseline and self.task.name == "classify":
            found["majority"] = run_majority_baseline(*rows)
        quoted = get_metric_signatures(self.task, seen[last])
        sections = self.build_sections(found, quoted, last, seen[last])
        tables = {"metrics": found, "signatures": quoted, "sections": sections}
        file = folder.path / "evaluation.json"
        file.write_text(json.dumps(tables, ensure_ascii=False, indent=1), encoding="utf-8")
        text = self.task.kind == "text"
        loss = self.compute_text_loss(self.eval_objectives["valid"]) if text else seen["valid"].loss
        every = {name: to_json_number(value) for name, value in found["valid"].items()}
        return found, {
            "score": {"loss": to_json_number(loss), "accuracy": every.get("accuracy"), "metrics": every},
            "metrics": found, "ended": [self.trainer.step, self.config.train.steps],
            "language": detect_language(format_example(row) for row in self.splits[last].rows),
        }  # fmt: skip

    def build_sections(
        self, found: Mapping[str, Mapping[str, float]], quoted: Mapping[str, str], last: str, seen: TaskEvaluation
    ) -> list[JSONObject]:
        """Build the tables of the report: measures, overlap, how they were computed, and those of the task."""
        names = {SPLIT_NAMES[name]: found[name] for name in SPLIT_NAMES}  # a baseline's row says which one it is of
        names |= {f"TF-IDF + linear, {SPLIT_NAMES[last]}": found["baseline"]}
        head = ["", *found[last]]
        measured = [(name, values) for name, values in names.items() if values]
        cells = [[format_number(k, v[k], 4) if k in v else "–" for k in head[1:]] for _, v in measured]
        rows = [[name, *row] for (name, _), row in zip(measured, cells, strict=True)]
        sections: list[JSONObject] = [{"title": "Metrics", "head": head, "rows": rows}]
        if shared := find_overlap(self.splits):
            told = [[name, before, f"{count:,}", f"{of:,}"] for name, before, count, of in shared]
            head = ["part", "shares examples with", "examples in common", "of"]
            sections.append({"title": "Overlap: the same texts in two parts", "head": head, "rows": told})
        if quoted:
            told = [[name, words] for name, words in quoted.items()]
            sections.append({"title": "How they were computed", "head": ["metric", "signature"], "rows": told})
        return [*sections, *build_report_tables(self.task, self.former.labels, seen, self.splits[last].rows)]


def choose_main_metric(task: Task, named: str | None, valid: Examples) -> str:
    """Return the metric that decides which checkpoint is the best: the one that is named, else the task's first (the
    loss, where texts are written)."""
    if named is None and task.kind == "text" and not task.label_as_text:
        return "loss"
    known = list_metric_names(task, valid.rows)
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
    cut = {name: value[:size] for name, size in sizes.items() if (value := vars(batch)[name]) is not None}
    source = batch.source
    if source is not None:
        source = drop_dummy_documents(source.replace(sample=batch.sample)).replace(sample=None)
    starts = batch.starts[: real + 1]
    longest = int((starts[1:] - starts[:-1]).max()) if real else 1
    return batch.replace(**cut, starts=starts, longest=longest, sample=batch.sample[:real], source=source)
