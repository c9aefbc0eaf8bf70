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
from ...config import JSONObject, ProgressCallback, Settings
from ...data.loader import blank_batch, load_batches
from ...data.plans import TextObjective, TokenSource
from ...data.readers import is_path_source
from ...data.store import Store, describe_unknown
from ...errors import Error, NonFinite
from ...family import Family
from ...former import Former, build, build_empty, count_trainable
from ...interop.huggingface import explain_export_limits
from ...interop.model_directory import load
from ...nn.attention.segment_memory import SegmentMemory
from ...nn.block import scale_residual_branches
from ...nn.recurrent.projected_lstm import LSTMState
from ...objectives.causal import CausalLM
from ...objectives.registry import OBJECTIVES, UNPAIRED_OBJECTIVES, build_objective, list_options
from ...registry import find_family, find_pretrained_family
from ...text.normalise import detect_language
from ...text.tokenizer import Tokenizer
from ..config_merge import (
    PRETRAIN_KEYS,
    PRETRAIN_TABLES,
    ConfigFile,
    PretrainConfig,
    PretrainSettings,
    build_model_config,
    collect_overrides,
    configure_pretraining,
    describe_random_start,
    read_config_tables,
)
from ..distributed.process_group import ProcessGroup
from ..plateau_monitor import PlateauMonitor, format_english
from ..run_folder import RunFolder, find_newest_run, to_json_number
from ..train_config import RESUMABLE_SETTINGS
from ..trainer import StepResult, Trainer, close_batches
from ..validation import Score, compute_unigram_baseline, evaluate
from ..word_vectors.vector_run import VectorRequest
from .prepare_data import PreparedData, RunText, check_data_unchanged, check_texts, prepare_data, read_excerpt
from .run import (
    EarlierRun,
    NetworkRun,
    RunOptions,
    RunRequest,
    check_disk_space,
    check_parallel_settings,
    measure_deterministic_cost,
)
from .vocab_transfer import check_checkpoint_family, transfer_vocabulary

LANGUAGE_SAMPLE_TOKENS = 4000  # tokens of the text that say which language it is in
Asked = PretrainConfig | PretrainSettings  # the settings of a run; some may still follow from its text
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
    **tables: Mapping[str, object],
) -> PretrainResult:  # fmt: skip
    """Train a model of a family on text: files, a store (a path or a Store), a list, DataFrame or dataset of documents.
    The families are those of formers tree, and word2vec, glove and fasttext, which give word vectors.

    Settings come from the recipe, the preset, the `config` (a YAML file or a table), then `overrides` ({"train.steps":
    100}) or the same as tables (train={"steps": 100}). `init` starts from a checkpoint. `valid` is validation text
    (a list, DataFrame or dataset; files are named by data.valid). With `resume`, a run in `out` resumes where it
    stopped; with `overwrite`, a new one takes its place. `tell` hears of the progress, `hook` gets each line of
    metrics.jsonl (a function, or one of training/tracking.py's), `say` gets words for people. `same` are the
    fingerprints (run.json's `data`) of a run that is to be repeated: other data is refused.
    """
    began = time.perf_counter()
    path = find_newest_run(family) if out is None and resume else out
    options = RunOptions(path, resume, overwrite, device, tell, say, hook)
    top = {"recipe": recipe, "preset": preset, "init": None if init is None else str(init)}
    others = ("valid", "out", "init", "resume")
    given = collect_overrides("pretrain", tables, overrides, PRETRAIN_TABLES, arguments=others)
    if is_path_source(text):
        paths = [str(one) for one in (text if isinstance(text, list | tuple) else [text])]
        text, given = None, {"data.source": paths, **given}
    if isinstance(tokenizer, str | Path):
        tokenizer, given = None, {**given, "data.tokenizer": str(tokenizer)}
    kind = PretrainRequest if family is None else get_request_class(find_pretrained_family(family).definition)
    request = kind(family, text, valid, config, given, top, tokenizer, same, options)
    folder, former, (score, baseline) = request.carry_out()
    return PretrainResult(folder, former, score, baseline, time.perf_counter() - began)


def get_request_class(family: Family) -> type[PretrainRequest] | type[VectorRequest]:
    """Return how a family is pretrained, by its declaration: a static one is a table of word vectors."""
    return VectorRequest if family.is_static else PretrainRequest


@dataclass
class PretrainRequest(RunRequest[Asked, PretrainConfig, PreparedData]):
    """A pretraining run that was asked for; `text` and `valid` are texts in memory, None for those of the settings."""

    family: str | None
    text: object
    valid: object
    file: ConfigFile
    given: Settings  # dotted settings
    top: dict[str, str | None]  # recipe, preset, init
    tokenizer: Tokenizer | None
    same: Mapping[str, object] | None  # fingerprints of data that is to be the same again
    options: RunOptions

    @property
    def inputs(self) -> object:
        """The file of settings, and stores that are open."""
        stores = [one.directory for one in (self.text, self.valid) if isinstance(one, Store)]
        return (self.file, *(directory.path for directory in stores if directory is not None))

    def configure(self, earlier: EarlierRun | None) -> Asked:
        """Merge the settings: of a new run, or of a resumed one."""
        if earlier is None:
            asked = configure_pretraining(self.family, self.file, self.given, **self.top)
            if asked.init is not None:
                check_checkpoint_family(asked)
            return asked
        told, before = read_config_tables(self.file, PRETRAIN_TABLES, PRETRAIN_KEYS), earlier.settings
        family, path = self.family or told.get("family"), earlier.path
        if family is not None and find_family(family).name != before["family"]:
            raise Error(f"is a run of {before['family']}, not of {family}", where=path, fix="choose another --out")
        for key, value in self.top.items():
            now = told.get(key) if value is None else value
            if now is not None and now != before.get(key):
                what = f"is a run with {f'{key} {before[key]}' if before.get(key) else f'no {key}'}, not {now}"
                raise Error(what, where=path, fix="leave it out, or begin a new run in another --out")
        free = ("data.source", *(f"train.{name}" for name in RESUMABLE_SETTINGS))
        return earlier.merge_settings(
            told, self.given, lambda file, given: configure_pretraining(before["family"], file, given), free
        )

    def get_stem(self, settings: Asked) -> str:
        """Return the family."""
        return settings.family

    def estimate_parameters(self, settings: Asked) -> int | None:
        """Count the parameters, about: the tokenizer is not there yet. Those of a checkpoint are not known."""
        if isinstance(settings, PretrainSettings) or settings.init is not None:
            return None
        sizes = build_model_config(settings, vocab=settings.data.vocab_size)
        head = find_family(settings.family).definition.pretraining_head
        return count_trainable(build_empty(settings.family, sizes, head).model)

    def prepare(self, settings: Asked, folder: Path, world: ProcessGroup) -> Prepared:
        """Make tokenizer and token stores, or open those that are there."""
        config = settings if isinstance(settings, PretrainConfig) else settings.resolve()
        check_parallel_settings(config.train, world, (folder / "run.json").is_file())
        check_disk_space(folder, config.train, self.estimate_parameters(config))
        return config, self.prepare_text(config, folder)

    def prepare_text(self, settings: Asked, folder: Path) -> PreparedData:
        """Make tokenizer and token stores, or open those that are there; refuse other data than a resumed run had."""
        texts = self.text, self.tokenizer, self.valid
        data = prepare_data(settings.family, settings.data, folder / "data", *texts, self.options.report, self.look_at)
        check_data_unchanged(folder, data.fingerprints, self.same)
        return data

    def look_at(self, text: RunText, valid: RunText) -> None:
        """Check the first documents, and say what was chosen in reading them."""
        for line in check_texts(text, valid):
            self.options.say(line)

    def prepare_excerpt(self, settings: Asked, folder: Path, world: ProcessGroup) -> Prepared:
        """Prepare the beginning of the text."""
        config = settings if isinstance(settings, PretrainConfig) else settings.resolve()
        text, ratio = read_excerpt(config.data)
        data = prepare_data(config.family, config.data, folder / "data", text, self.tokenizer)
        return config, dataclasses.replace(data, text_ratio=ratio)

    def build(self, settings: PretrainConfig, data: PreparedData, folder: Path, world: ProcessGroup) -> PretrainRun:
        """Build the model, the objectives and the trainer."""
        if settings.train.deterministic:
            cost = measure_deterministic_cost(lambda: PretrainRun(settings, data, world))
            self.options.say(f"the same bits in every run: {cost}")
        run = PretrainRun(settings, data, world, self.options.say)
        check_first_batch(folder, run)
        return run


class PretrainRun(NetworkRun[PretrainConfig]):
    """A pretraining run: the model, its objectives and the trainer, built from the settings and the prepared text."""

    def __init__(
        self, asked: PretrainConfig, found: PreparedData, world: ProcessGroup,
        say: Callable[[str], None] = lambda text: None,
    ):  # fmt: skip
        self.config, self.data, self.world, self.say = asked, found, world, say
        s = asked.train
        lengths = [s.get_phase_length(phase) for phase in ((0, 1) if s.short_length else (1,))]
        self.objectives = [self.build_objective(length, found.store) for length in lengths]
        self.former = load_or_build_model(asked, found.tokenizer, self.objectives[-1], say)
        self.former.model.to(world.device)
        self.trainer = Trainer(self.former.model, self.objectives, s, world)
        self.latest_score: Score | None = None
        self.valid_batches: list[Batch] | None = None
        self.valid_objective: TextObjective | None = None
        self.is_validation_replicated = False  # every process sees all of it
        self.has_validation = found.valid_store is not None
        self.monitor: PlateauMonitor | None = None

    def build_objective(self, length: int, store: Store, valid: bool = False, name: str | None = None) -> TextObjective:
        """Build the objective for examples of a length, or another one by its `name`; with streams where the family
        carries state over."""
        asked, s = self.config, self.config.train
        options = {key: value for key, value in asked.objective.items() if key != "name"} if name is None else {}
        name = name or asked.objective["name"]
        family = find_family(asked.family).definition
        known = list_options(OBJECTIVES[name].objective_class)
        if s.carry_memory and has_carried_state(family) and "num_streams" in known and "num_streams" not in options:
            for setting, value in (("batch_rampup_steps", s.batch_rampup_steps), ("short_length", s.short_length)):
                if value:
                    what = f"train.{setting} does not go with a memory that is carried over"
                    raise Error(what, fix="--train.carry_memory false")
            rows = max(1, s.batch_tokens // length)
            parts = 1 if valid else s.accumulate
            rows = max(1, min(rows, len(store.tokens) // (length + 1) // parts))
            options |= {"num_streams": rows * parts, "streams_per_batch": rows}
        return build_objective(name, self.data.tokenizer, length, **options)

    def get_source(self, phase: int) -> TokenSource:
        """Return the text, with the objective of a phase."""
        return TokenSource(self.data.store, self.objectives[-1 if phase else 0])

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
        some = load_batches(source, s.batch_tokens, s.seed + 1, epochs=1, rank=rank, ranks=ranks)
        mine = (batch for batch, _ in itertools.islice(some, -(-most // ranks)))
        return [batch if i * ranks + rank < most else blank_batch(batch) for i, batch in enumerate(mine)]

    def evaluate(self) -> dict[str, float]:
        """Return losses and accuracies on the validation text; a run that is stuck says so."""
        add = list if self.is_validation_replicated else self.world.sum_over_ranks
        batches, forward = self.get_valid_batches(), self.trainer.executor.forward
        assert self.valid_objective is not None
        with self.trainer.use_ema_weights():
            score = evaluate(self.former.model, self.valid_objective, batches, forward, add, self.world.device)
        self.latest_score = score
        if self.monitor is not None and (line := self.monitor.record_evaluation(self.trainer.step, score.loss)):
            self.say(line)
        losses = [v for k, v in score.metrics.items() if not k.endswith("/accuracy") and k != "balance"]
        return {"loss": sum(losses) if losses else math.nan, **score.metrics}

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
        asked, s, text = self.config, self.config.train, len(self.data.store.tokens)
        if asked.init is None and asked.preset is not None:
            hint = describe_random_start(asked.family, asked.preset)
            yield hint + (": --init continues from them" if "hub:" in hint else "")
        seen = s.batch_tokens * s.count_batches_between(0, s.steps, self.world.size) / max(1, text)
        size = f"{asked.family}: {count_trainable(self.former.model):,} parameters, {text:,} tokens of text"
        yield f"{size}, {s.steps:,} steps of {s.batch_tokens * s.accumulate:,} ({seen:.1f} times the text)"
        if self.world.is_main and (line := describe_unknown(self.data.store, self.data.tokenizer)) is not None:
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
        return {"data": {**self.data.fingerprints, "tokens": len(store.tokens), "documents": len(store.starts) - 1}}

    def begin(self, folder: RunFolder) -> None:
        """Choose the validation batches; on the main process, get ready to show samples and to notice a plateau."""
        self.prepare_evaluation()
        # Validation text may be short: it has an objective of its own.
        goal = self.valid_objective or self.build_objective(self.config.train.seq_length, self.data.store, valid=True)
        if not self.world.is_main:
            return
        if not self.trainer.is_sharded:
            self.write_sample = SampleWriter(self.former, goal, self.data, folder.path).write_sample
        if self.has_validation:
            unigram, sizes = self.unigram_baseline, dataclasses.asdict(self.former.config)
            loss = None if unigram is None else unigram.loss
            part = self.objectives[-1].part
            self.monitor = PlateauMonitor(self.config.family, sizes, self.config.train, loss, part)
            self.monitor.load_history(folder.read_history())

    def record_step(self, step: StepResult) -> None:
        """Let the monitor follow the training loss."""
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


def has_carried_state(family: Family) -> bool:
    """Return whether a family's state is carried from batch to batch in training."""
    return family.state_class in (SegmentMemory, LSTMState)


def load_or_build_model(
    asked: PretrainConfig, tokenizer: Tokenizer, goal: TextObjective, say: Callable[[str], None]
) -> Former:
    """Build a new model that fits the tokenizer, or load one from a checkpoint."""
    declared = find_family(asked.family).definition
    head = declared.pretraining_head
    if asked.objective["name"] != declared.objective:  # another objective may need another head
        wanted = {part for part in (goal.part, goal.pair_part) if part is not None}
        sizes = declared.config_class()
        if asked.init is None:
            sizes = build_model_config(asked, **get_tokenizer_config(tokenizer, goal))
        heads = declared.build_heads(sizes)
        head = next((name for name, parts in heads.items() if set(parts) == wanted), head)
    if asked.init is not None:
        check_checkpoint_family(asked)
        return transfer_vocabulary(load(asked.init, head=head), tokenizer, asked, say)
    sizes = build_model_config(asked, **get_tokenizer_config(tokenizer, goal))
    made = build(asked.family, head=head, seed=asked.train.seed, **vars(sizes))
    scale_residual_branches(made.model, asked.train.residual_init)
    made.tokenizer = tokenizer
    return made


def get_tokenizer_config(tokenizer: Tokenizer, goal: TextObjective) -> dict[str, int | None]:
    """Return what a config takes over from a tokenizer: the size of the vocabulary, and the special ids."""
    found: dict[str, int | None] = {role: tokenizer.id(role) for role in ("pad", "bos", "eos")}
    if goal.decoder_start is not None:
        found["start"] = goal.decoder_start
    return {**found, "vocab": len(tokenizer)}


def check_first_batch(path: Path, run: PretrainRun) -> None:
    """Fail before the first step what would fail at the last."""
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
    """Asks the model the same at every time, and keeps the answers in samples.jsonl."""

    def __init__(self, former: Former, goal: TextObjective, found: PreparedData, folder: Path):
        self.former, self.objective, self.file = former, goal, folder / "samples.jsonl"
        self.store: Store = found.valid_store or found.store
        self.tokenizer = found.tokenizer

    def write_sample(self, step: int) -> None:
        """Write one sample; what a family cannot do is left out."""
        was, state = self.former.model.training, torch.random.get_rng_state()
        self.former.model.eval()
        try:
            said = self.continue_text() if isinstance(self.objective, CausalLM) else self.predict_hidden()
        except NonFinite:  # the training loop decides what becomes of such a run
            said = None
        finally:
            self.former.model.train(was)
            torch.random.set_rng_state(state)
        if said is not None:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **said}, ensure_ascii=False) + "\n")

    def continue_text(self) -> dict[str, str] | None:
        """Return the beginning of a validation document, continued by the model."""
        low = int(self.store.starts[0])
        some = min(16, int(self.store.starts[1]) - low, len(self.store.tokens) - low)
        prompt = np.asarray(self.store.tokens[low : low + some]).astype(np.int64).tolist()
        made = self.former.continue_ids([prompt], SAMPLE_TOKENS, temperature=0.7, top_k=40)[0]
        return {"given": self.tokenizer.decode(prompt), "made": self.tokenizer.decode(made)}

    @torch.no_grad()
    def predict_hidden(self) -> dict[str, str] | None:
        """Return what was asked in a validation example, and what the model predicts."""
        source = TokenSource(self.store, self.objective)
        some = itertools.islice(load_batches(source, self.objective.length * 2, 1, epochs=1), 1)
        batch, _ = next(some, (None, 0))
        if batch is None or batch.ids.ndim > 1 or batch.labels is None:
            return None
        end = int(batch.starts[1])
        chosen = np.arange(len(batch.ids)) if batch.chosen is None else batch.chosen
        mine = np.flatnonzero((chosen < end) & (batch.labels != IGNORE_INDEX))[:MAX_SHOWN_TOKENS]
        moved = batch.to(self.former.device)
        hidden = self.former.model(moved)[torch.as_tensor(chosen[mine], device=self.former.device)]
        guess = self.former.model.logits(hidden, part=self.objective.part).argmax(-1).tolist()
        shown = batch if batch.source is None else batch.source
        given = shown.ids[: min(int(shown.starts[1]), MAX_SHOWN_TOKENS)].tolist()
        words = lambda row: " ".join(map(self.tokenizer.get_token_text, row))  # noqa: E731
        return {"given": words(given), "target": words(batch.labels[mine].tolist()), "made": words(guess)}
