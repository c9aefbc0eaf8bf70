"""formers.pretrain: from text to a pretrained model with the family's own objective; it can be resumed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ...batch import IGNORE_INDEX, Batch
from ...config import JSONObject, ProgressCallback, count_noun
from ...data.loader import blank_batch, load_batches
from ...data.plans import TextObjective, TokenSource
from ...data.readers import is_path_source
from ...data.store import Store, describe_unknown
from ...errors import Error, NonFinite
from ...family import Family
from ...former import Former, build, build_empty, count_trainable
from ...interop.huggingface import explain_export_limits
from ...interop.model_directory import load
from ...nn.block import scale_residual_branches
from ...objectives.causal import CausalLM
from ...objectives.continual import TASKS, ContinualTasks, find_tasks
from ...objectives.masking import STAGE_BITS, NextSentence, UnitMaskedLM, measure_random_pairs
from ...objectives.registry import OBJECTIVES, UNPAIRED_OBJECTIVES, build_objective, list_options
from ...protocols import AnySource
from ...registry import find_family, find_pretrained_family
from ...task import Task
from ...text.normalise import detect_language
from ...text.tokenizer import Tokenizer
from ..config_merge import (
    PRETRAIN_KEYS,
    PRETRAIN_TABLES,
    ConfigFile,
    FinetuneDataConfig,
    PretrainConfig,
    PretrainSettings,
    TuneConfig,
    build_model_config,
    collect_overrides,
    configure_pretraining,
    describe_random_start,
    read_config_tables,
    read_mixture,
)
from ..distributed.process_group import ProcessGroup
from ..mixture_config import TEXT_TASK
from ..plateau_monitor import PlateauMonitor, format_english
from ..run_folder import RunFolder, find_newest_run, has_run, to_json_number
from ..train_config import RESUMABLE_SETTINGS
from ..trainer import StepResult, Trainer, close_batches
from ..validation import Score, compute_unigram_baseline, evaluate
from ..word_vectors.vector_run import VectorRequest
from .mixture import (
    TaskMixture,
    build_text_task,
    check_mixture_unchanged,
    read_mixture_splits,
    report_splits,
    save_mixture_examples,
)
from .prepare_data import PreparedData, RunText, check_data_unchanged, check_texts, prepare_data, read_excerpt
from .run import (
    EarlierRun,
    NetworkRun,
    PretrainArguments,
    RunOptions,
    RunRequest,
    check_disk_space,
    check_parallel_settings,
    measure_deterministic_cost,
)
from .vocab_transfer import check_checkpoint_family, transfer_vocabulary

RANDOM_PAIR_TOLERANCE = 0.08  # how far from a half the share of random pairs may be before a run says so
LANGUAGE_SAMPLE_TOKENS = 4000  # tokens of the text that say which language it is in
RunSettings = PretrainConfig | PretrainSettings  # all settings of a run, or those that do not follow from its text
Prepared = tuple[PretrainConfig, PreparedData]


@dataclass(frozen=True)
class PretrainResult:
    """A finished run: its folder, the model, its validation score and a unigram's (None without validation text)."""

    folder: Path
    former: Former
    score: Score | None
    baseline: Score | None
    seconds: float

    @property
    def history(self) -> list[JSONObject]:
        """One table for each step and each evaluation."""
        return RunFolder(self.folder).read_history()


def pretrain(
    family: str | None = None, text: object = None, *, out: str | Path | None = None, config: ConfigFile = None,
    recipe: str | None = None, preset: str | None = None, init: str | Path | None = None,
    tokenizer: Tokenizer | str | Path | None = None, valid: object = None, resume: bool = False,
    overwrite: bool = False, device: torch.device | str | None = None, overrides: Mapping[str, object] | None = None,
    tell: ProgressCallback | None = None, say: Callable[[str], None] = lambda text: None,
    hook: Callable[[JSONObject], None] | None = None, same: Mapping[str, object] | None = None,
    mixture: object = None, **tables: Mapping[str, object],
) -> PretrainResult:  # fmt: skip
    """Train a model of a family on text: files, a store (a path or a Store), a list, DataFrame or dataset of documents.
    The families are those of formers tree, and word2vec, glove and fasttext, which give word vectors.

    Settings come from the recipe, the preset, the `config` (a YAML file or a table), then `overrides` ({"train.steps":
    100}) or the same as tables (train={"steps": 100}). `init` starts from a checkpoint. `valid` is validation text
    (a list, DataFrame or dataset; files are named by data.valid). With `resume`, a run in `out` resumes where it
    stopped; with `overwrite`, a new one replaces it. `tell` is called with the progress, `hook` with each row of
    metrics.jsonl (a function, or one of training/tracking.py's), `say` with messages. `same` are the fingerprints
    (run.json's `data`) of a run that is to be repeated: other data is refused. `mixture` names tasks that an
    encoder-decoder learns text to text along with its text (training/mixture_config.py): a YAML file,
    {name: examples}, or {"tasks": {name: {"train": …, "prefix": …}}, "strategy": "equal"}.
    """
    began = time.perf_counter()
    path = find_newest_run(family) if out is None and resume else out
    options = RunOptions(path, resume, overwrite, device, tell, say, hook)
    keys = {"recipe": recipe, "preset": preset, "init": None if init is None else str(init)}
    others = ("valid", "out", "init", "resume")
    overrides_by_name = collect_overrides("pretrain", tables, overrides, PRETRAIN_TABLES, arguments=others)
    task_settings, task_sources = read_mixture(mixture)
    overrides_by_name = {**task_settings, **overrides_by_name}
    if is_path_source(text):
        paths = [str(one) for one in (text if isinstance(text, list | tuple) else [text])]
        text, overrides_by_name = None, {"data.source": paths, **overrides_by_name}
    if isinstance(tokenizer, str | Path):
        tokenizer, overrides_by_name = None, {**overrides_by_name, "data.tokenizer": str(tokenizer)}
    kind = PretrainRequest if family is None else get_request_class(find_pretrained_family(family).definition)
    request = kind(family, text, valid, config, overrides_by_name, keys, tokenizer, same, options, task_sources)
    folder, former, (score, baseline) = request.carry_out()
    return PretrainResult(folder, former, score, baseline, time.perf_counter() - began)


def get_request_class(family: Family) -> type[PretrainRequest] | type[VectorRequest]:
    """Return how a family is pretrained, by its declaration: a static one is a table of word vectors."""
    return VectorRequest if family.is_static else PretrainRequest


class PretrainRequest(PretrainArguments, RunRequest[RunSettings, Former | None, PretrainConfig, PreparedData]):
    """A request for a pretraining run."""

    @property
    def protected_paths(self) -> object:
        """The file of settings, and stores that are open."""
        stores = [one.directory for one in (self.text, self.valid) if isinstance(one, Store)]
        return (self.file, *(directory.path for directory in stores if directory is not None))

    def configure(self, earlier: EarlierRun | None) -> tuple[RunSettings, Former | None]:
        """Merge the settings, of a new run or of a resumed one; no model has to be read for them."""
        if earlier is None:
            config = configure_pretraining(self.family, self.file, self.given, **self.keys)
            if config.init is not None:
                check_checkpoint_family(config)
            return config, None
        file_tables, before = read_config_tables(self.file, PRETRAIN_TABLES, PRETRAIN_KEYS), earlier.settings
        family, path = self.family or file_tables.get("family"), earlier.path
        if family is not None and find_family(family).name != before["family"]:
            raise Error(f"is a run of {before['family']}, not of {family}", where=path, fix="choose another --out")
        for key, value in self.keys.items():
            now = file_tables.get(key) if value is None else value
            if now is not None and now != before.get(key):
                what = f"is a run with {f'{key} {before[key]}' if before.get(key) else f'no {key}'}, not {now}"
                raise Error(what, where=path, fix="leave it out, or begin a new run in another --out")
        free = ("data.source", *(f"train.{name}" for name in RESUMABLE_SETTINGS))
        config = earlier.merge_settings(
            file_tables, self.given, lambda file, given: configure_pretraining(before["family"], file, given), free
        )
        return config, None

    def get_stem(self, settings: RunSettings) -> str:
        """Return the family."""
        return settings.family

    def estimate_parameters(self, settings: RunSettings) -> int | None:
        """Count the parameters, about: the tokenizer is not there yet. Those of a checkpoint are not known."""
        if isinstance(settings, PretrainSettings) or settings.init is not None:
            return None
        sizes = build_model_config(settings, vocab=settings.data.vocab_size)
        head = find_family(settings.family).definition.pretraining_head
        return count_trainable(build_empty(settings.family, sizes, head).model)

    def prepare(self, settings: RunSettings, inputs: Former | None, folder: Path, world: ProcessGroup) -> Prepared:
        """Make tokenizer and token stores, or open those that are there."""
        config = settings if isinstance(settings, PretrainConfig) else settings.resolve()
        check_parallel_settings(config.train, world, has_run(folder))
        check_disk_space(folder, config.train, self.estimate_parameters(config))
        return config, self.add_tasks(config, self.prepare_text(config, folder, self.tokenizer), folder)

    def add_tasks(self, config: PretrainConfig, data: PreparedData, folder: Path) -> PreparedData:
        """Read the examples of a mixture's tasks, if there is one; refuse others than a resumed run had."""
        if config.mixture is None:
            return data
        run = folder if has_run(folder) else None
        splits = read_mixture_splits(config.mixture, FinetuneDataConfig(), self.task_sources, run)
        report_splits(splits, self.options.say)
        check_mixture_unchanged(folder, splits)
        save_mixture_examples(folder, self.task_sources, splits)
        return dataclasses.replace(data, tasks=splits)

    def prepare_text(self, settings: RunSettings, folder: Path, tokenizer: Tokenizer | None) -> PreparedData:
        """Make tokenizer and token stores, or open those that are there; refuse other data than a resumed run had."""
        texts = self.text, tokenizer, self.valid
        data = prepare_data(
            settings.family, settings.data, folder / "data", *texts, self.options.report, self.report_texts
        )
        check_data_unchanged(folder, data.fingerprints, self.same)
        return data

    def report_texts(self, text: RunText, valid: RunText) -> None:
        """Check the first documents, and report what was chosen in reading them."""
        for line in check_texts(text, valid):
            self.options.say(line)

    def prepare_excerpt(
        self, settings: RunSettings, inputs: Former | None, folder: Path, world: ProcessGroup
    ) -> Prepared:
        """Prepare the beginning of the text."""
        config = settings if isinstance(settings, PretrainConfig) else settings.resolve()
        text, ratio = read_excerpt(config.data)
        data = prepare_data(config.family, config.data, folder / "data", text, self.tokenizer)
        return config, self.add_tasks(config, dataclasses.replace(data, text_ratio=ratio), folder)

    def build(self, settings: PretrainConfig, data: PreparedData, folder: Path, world: ProcessGroup) -> PretrainRun:
        """Build the model, the objectives and the trainer."""
        if settings.train.deterministic:
            cost = measure_deterministic_cost(lambda: PretrainRun(settings, data, world))
            self.options.say(f"bitwise reproducible: {cost}")
        run = PretrainRun(settings, data, world, self.options.say)
        check_first_batch(folder, run)
        return run


class PretrainRun(NetworkRun[PretrainConfig]):
    """A pretraining run: the model, its objectives and the trainer, built from the settings and the prepared text."""

    def __init__(
        self, config: PretrainConfig, data: PreparedData, world: ProcessGroup,
        say: Callable[[str], None] = lambda text: None,
    ):  # fmt: skip
        self.config, self.data, self.world, self.say = config, data, world, say
        s = config.train
        lengths = [s.get_phase_length(phase) for phase in ((0, 1) if s.short_length else (1,))]
        self.objectives = [self.build_objective(length, data.store) for length in lengths]
        self.objectives = [self.set_stages(one, phase) for phase, one in enumerate(self.objectives)]
        self.former = load_or_build_model(config, data.tokenizer, self.objectives[-1], say)
        self.mixture = self.build_mixture(say)
        self.former.model.to(world.device)
        self.trainer = Trainer(self.former.model, self.objectives, s, world)
        self.latest_score: Score | None = None
        self.valid_batches: list[Batch] | None = None
        self.valid_objective: TextObjective | None = None
        self.is_validation_replicated = False  # every process sees all of it
        self.has_validation = data.valid_store is not None
        self.monitor: PlateauMonitor | None = None

    def build_objective(self, length: int, store: Store, valid: bool = False, name: str | None = None) -> TextObjective:
        """Build the objective for examples of a length, or another one by its `name`; with streams where the family
        carries state over."""
        config, s = self.config, self.config.train
        options = {key: value for key, value in config.objective.items() if key != "name"} if name is None else {}
        name = name or config.objective["name"]
        family = find_family(config.family).definition
        known = list_options(OBJECTIVES[name].objective_class)
        if s.carry_memory and family.has_carried_state and "num_streams" in known and "num_streams" not in options:
            for setting, value in (("batch_rampup_steps", s.batch_rampup_steps), ("short_length", s.short_length)):
                if value:
                    what = f"train.{setting} cannot be combined with train.carry_memory"
                    raise Error(what, fix="--train.carry_memory false")
            rows = max(1, s.batch_tokens // length)
            parts = 1 if valid else s.accumulate
            rows = max(1, min(rows, len(store.tokens) // (length + 1) // parts))
            if options.get("reversed"):  # of half of the rows
                rows = max(2, rows - rows % 2)
            options |= {"num_streams": rows * parts, "streams_per_batch": rows}
        return build_objective(name, self.data.tokenizer, length, **options)

    def build_mixture(self, say: Callable[[str], None]) -> TaskMixture | None:
        """Encode the tasks that are learned along with the text, and add them to the model; None without a mixture."""
        self.former.task, self.former.tasks = {}, {}  # those of a checkpoint are not learned here
        if (mixture := self.config.mixture) is None:
            return None
        s = self.config.train
        length = s.seq_length if self.former.context is None else min(s.seq_length, self.former.context)
        tune = TuneConfig(seq_length=length, max_output_tokens=min(length, TuneConfig.max_output_tokens))
        named = mixture.tasks.items()
        tasks = {name: build_text_task(name, task, self.data.tasks[name]["train"], tune) for name, task in named}
        most = s.eval_batches * s.batch_tokens
        mixed = TaskMixture(mixture, self.data.tasks, self.former, tune, tasks, say, most)
        self.former.tasks = {TEXT_TASK: Task(name="lm", kind="text").to_dict(), **mixed.get_task_tables()}
        return mixed

    def set_stages(self, objective: TextObjective, phase: int) -> TextObjective:
        """Give each of ERNIE's three stages a third of the steps, or begin each task of ERNIE 2.0 a seventh of them
        after the one before. The examples at which that is are estimated by the mean length of those before it: the
        first tasks have long windows of text, later ones pairs of sentences."""
        if not isinstance(objective, UnitMaskedLM):
            return objective
        s, continual = self.config.train, objective if isinstance(objective, ContinualTasks) else None
        if objective.stage_ends is not None if continual is None else continual.task_starts is not None:
            return objective
        if continual is None and objective.stage != "all":
            return objective
        low, high = (0, s.long_phase_start) if phase < len(self.objectives) - 1 else (s.long_phase_start, s.steps)
        plan = TokenSource(self.data.store, objective).plan_epoch(s.seed, 0)
        sizes = objective.measure_sizes(plan)[:, 0]

        def count_examples(begin: int, end: int, mean: float) -> float:
            begin, end = (min(max(step, low), high) for step in (begin, end))
            return s.batch_tokens * s.count_batches_between(begin, end) / mean

        if continual is None:
            ends = (count_examples(0, s.steps * n // 3, sizes.mean()) for n in (1, 2))
            return dataclasses.replace(objective, stage_ends=tuple(map(round, ends)))
        tasks, starts = find_tasks(plan.label), [0.0]
        begins = [s.steps * n // len(TASKS) for n in range(len(TASKS))]
        for begin, end in itertools.pairwise(begins):
            known = [sizes[tasks == n].mean() for n in range(len(starts)) if (tasks == n).any()] or [sizes.mean()]
            starts.append(starts[-1] + count_examples(begin, end, float(np.mean(known))))
        return dataclasses.replace(continual, task_starts=tuple(map(round, starts)))

    def describe_stages(self) -> str | None:
        """Return at which steps ERNIE's stages, or the tasks of ERNIE 2.0, begin; None for other objectives."""
        objective, steps = self.objectives[0], self.config.train.steps
        if {"stage_ends", "task_starts"} & self.config.objective.keys():
            return None  # given as numbers of examples
        if isinstance(objective, ContinualTasks):
            names: tuple[str, ...] = TASKS
        elif isinstance(objective, UnitMaskedLM) and objective.stage == "all":
            names = tuple(STAGE_BITS)
        else:
            return None
        starts = (f"{name} from step {steps * n // len(names) + 1:,}" for n, name in enumerate(names))
        return f"{'tasks' if names is TASKS else 'stages'}: {', '.join(starts)}"

    def describe_pairs(self) -> str | None:
        """Return a warning if next sentence prediction gets far more or fewer random pairs than the half that it is
        meant to have: a sentence that fills an example alone is always paired with another document's."""
        objective = self.objectives[0]
        if not isinstance(objective, NextSentence) or not objective.has_random_pairs:
            return None
        share = measure_random_pairs(self.get_source(0).plan_epoch(self.config.train.seed, 0))
        if abs(share - 0.5) <= RANDOM_PAIR_TOLERANCE:
            return None
        length = self.config.train.seq_length
        reason = (
            f"few sentences have a continuation within {length} tokens; more have one with a longer train.seq_length"
        )
        return f"{share:.0%} of the pairs are random, where BERT's procedure is meant to have a half: {reason}"

    def get_source(self, phase: int) -> AnySource:
        """Return the text, with the objective of a phase; mixed with the tasks, where there are any."""
        text = TokenSource(self.data.store, self.objectives[-1 if phase else 0])
        return text if self.mixture is None else self.mixture.mix(text, counts=(self.count_text_examples(text),))

    def count_text_examples(self, text: TokenSource) -> int:
        """Count the examples that an epoch of the text has."""
        return len(text.plan_epoch(self.config.train.seed, 0))

    def evaluate_mixture(self) -> dict[str, float]:
        """Return the loss of each task's validation examples, and its metrics where the model is not shared out."""
        if self.mixture is None:
            return {}
        s, values, forward = self.config.train, dict[str, float](), self.trainer.executor.forward
        for task in self.mixture.tasks:
            objective = task.eval_objectives["valid"]
            batches = (batch for batch, _ in load_batches(objective.source, s.batch_tokens, s.seed + 1, epochs=1))
            score = evaluate(self.former.model, objective, batches, forward, device=self.world.device)
            values[f"{task.name}/loss"] = score.metrics[objective.part]
        if self.trainer.is_sharded:
            return values
        return {**self.mixture.summarise_metrics(self.mixture.evaluate("valid")), **values}

    def prepare_evaluation(self) -> None:
        """Choose the objective and the batches of the evaluation, if there is validation text. Text without
        pairs of its own is evaluated by hidden tokens alone."""
        store, length = self.data.valid_store, self.config.train.seq_length
        if store is None or self.valid_batches is not None:
            return
        self.valid_objective = self.build_objective(length, store, valid=True)
        self.is_validation_replicated = bool(self.valid_objective.num_streams)
        ranks = () if self.is_validation_replicated else (self.world.rank, self.world.size)
        try:
            self.valid_batches = self.load_valid_batches(store, *ranks)
        except Error as error:
            if (name := UNPAIRED_OBJECTIVES.get(self.config.objective["name"])) is None:
                raise
            self.say(f"note: the validation text has no pairs ({error.what}): it is evaluated by hidden tokens alone")
            self.valid_objective = self.build_objective(length, store, valid=True, name=name)
            self.valid_batches = self.load_valid_batches(store, *ranks)

    def get_valid_batches(self) -> list[Batch]:
        """Return this process's share of the validation batches; a model with a memory reads on without a gap."""
        self.prepare_evaluation()
        assert self.valid_batches is not None
        return self.valid_batches

    def load_valid_batches(self, store: Store, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """Return a process's share of the validation batches."""
        s, most = self.config.train, self.config.train.eval_batches
        assert self.valid_objective is not None
        source = TokenSource(store, self.valid_objective)
        batches = load_batches(source, s.batch_tokens, s.seed + 1, epochs=1, rank=rank, ranks=ranks)
        own_batches = (batch for batch, _ in itertools.islice(batches, -(-most // ranks)))
        return [batch if i * ranks + rank < most else blank_batch(batch) for i, batch in enumerate(own_batches)]

    def evaluate(self) -> dict[str, float]:
        """Return losses and accuracies on the validation text; a run that is stuck says so."""
        add = list if self.is_validation_replicated else self.world.sum_over_ranks
        batches, forward = self.get_valid_batches(), self.trainer.executor.forward
        assert self.valid_objective is not None
        with self.trainer.use_ema_weights():
            score = evaluate(self.former.model, self.valid_objective, batches, forward, add, self.world.device)
            by_task = self.evaluate_mixture()
        self.latest_score = dataclasses.replace(score, metrics={**score.metrics, **by_task})
        if self.monitor is not None and (line := self.monitor.record_evaluation(self.trainer.step, score.loss)):
            self.say(line)
        losses = [v for k, v in score.metrics.items() if not k.endswith("/accuracy") and k != "balance"]
        return {"loss": sum(losses) if losses else math.nan, **score.metrics, **by_task}

    @cached_property
    def unigram_baseline(self) -> Score | None:
        """What token frequencies alone would give, on the same places, those of all processes."""
        if self.data.valid_store is None or self.get_valid_batches()[0].labels is None:
            return None
        every = self.load_valid_batches(self.data.valid_store)
        assert self.valid_objective is not None
        return compute_unigram_baseline(self.data.store, self.valid_objective, every)

    def describe(self) -> Iterator[str]:
        """Yield the run in a few lines: where it starts, its size, and what to know of its text and its export."""
        config, s, text = self.config, self.config.train, len(self.data.store.tokens)
        if config.init is None and config.preset is not None:
            hint = describe_random_start(config.family, config.preset)
            yield hint + (": --init continues from them" if "hub:" in hint else "")
        seen = s.batch_tokens * s.count_batches_between(0, s.steps, self.world.size) / max(1, text)
        size = f"{config.family}: {count_trainable(self.former.model):,} parameters, {text:,} tokens of text"
        steps = f"{size}, {count_noun(s.steps, 'step')} of {s.batch_tokens * s.accumulate:,}"
        yield f"{steps} ({seen:.1f} times the text)" if self.mixture is None else steps
        if self.mixture is not None:
            text_source = TokenSource(self.data.store, self.objectives[-1])
            counts = {TEXT_TASK: self.count_text_examples(text_source)}
            yield self.mixture.describe_rates(self.mixture.mix(text_source, counts=(*counts.values(),)), **counts)
        if self.world.is_main and (line := describe_unknown(self.data.store, self.data.tokenizer)) is not None:
            yield f"note: {line}"
        if (line := self.describe_stages()) is not None:
            yield line
        if self.world.is_main and (line := self.describe_pairs()) is not None:
            yield f"note: {line}"
        if self.world.is_main and (why := explain_export_limits(self.former)) is not None:
            yield f"export: {why}"

    def list_estimates(self) -> list[tuple[str, str]]:
        """List the sizes of model, text and steps for a dry run."""
        s, ranks = self.config.train, self.world.size
        size = s.batch_tokens * s.count_batches(s.batch_rampup_steps, ranks)
        tokens = s.batch_tokens * s.count_batches_between(0, s.steps, ranks)
        text = len(self.data.store.tokens) * self.data.text_ratio
        return [
            ("model", f"{count_trainable(self.former.model):,} parameters ({self.config.family})"),
            ("text", f"about {text:,.0f} tokens, seen {tokens / max(1.0, text):.1f} times"),
            ("steps", f"{s.steps:,} of {'up to ' if s.batch_rampup_steps else ''}{size:,} tokens: {tokens:,} in all"),
        ]  # fmt: skip

    def record(self) -> JSONObject:
        """Return the fingerprints of tokenizer and text, and their size."""
        store = self.data.store
        size = {"tokens": len(store.tokens), "documents": len(store.starts) - 1}
        tasks = (
            {} if self.mixture is None else {"examples": self.mixture.fingerprint(), "tasks": self.mixture.list_kinds()}
        )
        return {"data": {**self.data.fingerprints, **size, **tasks}}

    def begin(self, folder: RunFolder) -> None:
        """Choose the validation batches; on the main process, prepare the samples and the plateau monitor."""
        self.prepare_evaluation()
        # Validation text may be short: it has an objective of its own.
        length = self.config.train.seq_length
        objective = self.valid_objective or self.build_objective(length, self.data.store, valid=True)
        if not self.world.is_main:
            return
        if not self.trainer.is_sharded:
            self.write_sample = SampleWriter(self.former, objective, self.data, folder.path).write_sample
        if self.has_validation:
            unigram, sizes = self.unigram_baseline, dataclasses.asdict(self.former.config)
            loss = None if unigram is None else unigram.loss
            part = self.objectives[-1].part
            self.monitor = PlateauMonitor(self.config.family, sizes, self.config.train, loss, part)
            self.monitor.load_history(folder.read_history())

    def record_step(self, step: StepResult) -> None:
        """Pass the training loss to the monitor."""
        if self.monitor is not None:
            self.monitor.record_step(step.losses)

    def compute_result(self, folder: RunFolder, best: int) -> tuple[tuple[Score | None, Score | None], JSONObject]:
        """Return the score of the best step, as it was measured then, and that of the unigram."""
        score, baseline = self.read_score(folder, best), self.unigram_baseline
        if score is None and self.has_validation and self.world.size == 1:  # the history is damaged
            self.evaluate()
        score = score or self.latest_score
        text = self.data.tokenizer.decode(self.data.store.tokens[:LANGUAGE_SAMPLE_TOKENS].tolist())
        more = {"score": score_to_dict(score), "baseline": score_to_dict(baseline), "language": detect_language(text)}
        note = None if self.monitor is None else self.monitor.final_note
        return (score, baseline), more if note is None else {**more, "stuck": format_english(note), "stuck_parts": note}

    def read_score(self, folder: RunFolder, step: int) -> Score | None:
        """Return the score of a step as metrics.jsonl has it."""
        seen = next((row["valid"] for row in folder.read_history() if row["step"] == step and "valid" in row), None)
        if seen is None:
            return None
        means = {name: math.nan if value is None else value for name, value in seen.items() if name != "loss"}
        return Score.from_means(means, self.objectives[-1])


def score_to_dict(score: Score | None) -> JSONObject | None:
    """Return a score as JSON has it."""
    if score is None:
        return None
    every = {name: to_json_number(value) for name, value in score.metrics.items()}
    return {"loss": to_json_number(score.loss), "accuracy": to_json_number(score.accuracy), "metrics": every}


def load_or_build_model(
    config: PretrainConfig, tokenizer: Tokenizer, objective: TextObjective, say: Callable[[str], None]
) -> Former:
    """Build a new model that fits the tokenizer, or load one from a checkpoint."""
    declared = find_family(config.family).definition
    head = declared.pretraining_head
    if config.objective["name"] != declared.objective:  # another objective may need another head
        sizes = declared.config_class()
        if config.init is None:
            sizes = build_model_config(config, **get_tokenizer_config(tokenizer, objective))
        heads = declared.build_heads(sizes)
        head = next((name for name, parts in heads.items() if set(parts) == objective.head_parts), head)
    if config.init is not None:
        check_checkpoint_family(config)
        return transfer_vocabulary(load(config.init, head=head), tokenizer, config, say)
    sizes = build_model_config(config, **get_tokenizer_config(tokenizer, objective))
    former = build(config.family, head=head, seed=config.train.seed, **sizes.to_settings())
    scale_residual_branches(former.model, config.train.residual_init)
    former.tokenizer = tokenizer
    return former


def get_tokenizer_config(tokenizer: Tokenizer, objective: TextObjective) -> dict[str, int | None]:
    """Return the settings of a model that follow from its tokenizer: vocabulary size and special ids."""
    ids: dict[str, int | None] = {role: tokenizer.id(role) for role in ("pad", "bos", "eos")}
    if objective.decoder_start is not None:
        ids["start"] = objective.decoder_start
    return {**ids, "vocab": len(tokenizer)}


def check_first_batch(path: Path, run: PretrainRun) -> None:
    """Check the ids of the first batch against the vocabulary, before the first step."""
    first = run.iter_batches(run.config.train.get_phase(0), 0)
    batch, _ = next(first)
    close_batches(first)
    ids_ = batch.ids if batch.source is None else np.concatenate((batch.ids, batch.source.ids))
    vocab = run.former.config.vocab
    if ids_.ndim == 1 and (top := int(ids_.max())) >= vocab:
        what = f"token {top} is beyond the model's vocabulary of {vocab}"
        raise Error(what, where=path, fix="use the tokenizer that belongs to the model")


SAMPLE_TOKENS = 40  # tokens generated for a sample
MAX_SHOWN_TOKENS = 60  # tokens of an example that are shown


class SampleWriter:
    """Writes the model's output for the same prompt at several steps into samples.jsonl."""

    def __init__(self, former: Former, objective: TextObjective, data: PreparedData, folder: Path):
        self.former, self.objective, self.file = former, objective, folder / "samples.jsonl"
        self.store: Store = data.valid_store or data.store
        self.tokenizer = data.tokenizer

    def write_sample(self, step: int) -> None:
        """Write one sample, if the family can make one."""
        was, state = self.former.model.training, torch.random.get_rng_state()
        self.former.model.eval()
        try:
            sample = self.continue_text() if isinstance(self.objective, CausalLM) else self.predict_hidden()
        except NonFinite:  # the training loop decides what becomes of such a run
            sample = None
        finally:
            self.former.model.train(was)
            torch.random.set_rng_state(state)
        if sample is not None:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **sample}, ensure_ascii=False) + "\n")

    def continue_text(self) -> dict[str, str] | None:
        """Return the beginning of a validation document, continued by the model."""
        low = int(self.store.starts[0])
        count = min(16, int(self.store.starts[1]) - low, len(self.store.tokens) - low)
        prompt = np.asarray(self.store.tokens[low : low + count]).astype(np.int64).tolist()
        continuation = self.former.continue_ids([prompt], SAMPLE_TOKENS, temperature=0.7, top_k=40)[0]
        return {"given": self.tokenizer.decode(prompt), "made": self.tokenizer.decode(continuation)}

    @torch.no_grad()
    def predict_hidden(self) -> dict[str, str] | None:
        """Return a validation example, and the model's predictions for its hidden tokens."""
        source = TokenSource(self.store, self.objective)
        batches = itertools.islice(load_batches(source, self.objective.length * 2, 1, epochs=1), 1)
        batch, _ = next(batches, (None, 0))
        if batch is None or batch.ids.ndim > 1 or batch.labels is None:
            return None
        end = int(batch.starts[1])
        chosen = np.arange(len(batch.ids)) if batch.chosen is None else batch.chosen
        asked_places = np.flatnonzero((chosen < end) & (batch.labels != IGNORE_INDEX))[:MAX_SHOWN_TOKENS]
        moved = batch.to(self.former.device)
        hidden = self.former.model(moved)[torch.as_tensor(chosen[asked_places], device=self.former.device)]
        guess = self.former.model.logits(hidden, part=self.objective.part).argmax(-1).tolist()
        shown = batch if batch.source is None else batch.source
        prompt = shown.ids[: min(int(shown.starts[1]), MAX_SHOWN_TOKENS)].tolist()
        words = lambda row: " ".join(map(self.tokenizer.get_token_text, row))  # noqa: E731
        return {"given": words(prompt), "target": words(batch.labels[asked_places].tolist()), "made": words(guess)}
