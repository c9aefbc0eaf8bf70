"""One program for every training run: settings, folder, data, model, steps, result and report.

A `RunRequest` merges the settings of a run, prepares its data and builds it. A `Run` has a model and a trainer.
Pretraining, fine-tuning and word vectors implement both; `carry_out` is the rest. A run of a network (`NetworkRun`) has
a Trainer and batches of examples. Word vectors bring a trainer of their own, because their steps update single rows of
shared tables, without a batch, a backward pass or an optimizer.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from ...atomic_files import TAKEN_HINT, check_overwrite
from ...batch import Batch
from ...config import JSONObject, ProgressCallback, Settings, count_noun
from ...data.loader import load_batches
from ...errors import Error
from ...former import Former, build, count_trainable
from ...interop.model_directory import save
from ...interop.origins import ORIGINS_KEY, find_origins
from ...interop.shipped_models import is_shipped_name
from ...model import estimate_flops_per_token
from ...protocols import AnySource
from ...reports.run_report import write_report
from ...text.tokenizer import Tokenizer
from ..checkpoint.local import Checkpoints, Tensors, set_weights
from ..config_merge import ConfigFile, FinetuneConfig, FinetuneSettings, PretrainConfig, PretrainSettings, RunConfig
from ..distributed.process_group import ProcessGroup, connect_processes, explain_lost_peer
from ..distributed.strategies import select_strategy
from ..hardware import (
    describe_hardware,
    explain_out_of_memory,
    get_peak_memory,
    measure_peak_flops,
    synchronize_device,
    use_deterministic,
)
from ..loop import LoopTrainer, run_training_loop
from ..mixture_config import MixtureSources
from ..progress import ProgressMeter
from ..run_folder import RunFolder, has_run, open_run_folder
from ..tracking import Tracker
from ..train_config import LoopConfig, SettingValue, TrainConfig
from ..trainer import Diverged, StepResult, Trainer

TIMED_STEPS = 5  # after the first, which also compiles
ConfigT = TypeVar("ConfigT", bound=RunConfig)
NetworkConfigT = TypeVar("NetworkConfigT", bound=PretrainConfig | FinetuneConfig)
SettingsT = TypeVar("SettingsT", bound=RunConfig | FinetuneSettings | PretrainSettings)  # before the data is read,
ReadyT = TypeVar("ReadyT")  # and when it is prepared
InputT = TypeVar("InputT")  # what had to be read to know the settings
DataT = TypeVar("DataT")  # what a run learns from, when it is prepared
RunResult = Any  # dynamic: what the caller of a verb gets besides the model, by the verb
MOVABLE_SETTINGS = ("data.source", "data.train", "data.valid", "data.test")  # files may move: their content is compared


@dataclass(frozen=True)
class RunOptions:
    """The options of every run: its folder, how it starts, and the callbacks that follow it."""

    out: str | Path | None = None  # None: runs/STEM-NUMBER
    resume: bool = False
    overwrite: bool = False
    device: torch.device | str | None = None
    tell: ProgressCallback | None = None
    say: Callable[[str], None] = lambda text: None
    hook: Callable[[JSONObject], None] | None = None

    def __post_init__(self) -> None:
        check_overwrite(self.out, self.resume, self.overwrite)

    @property
    def path(self) -> Path | None:
        """The run's folder, if it is named."""
        return None if self.out is None else Path(self.out)

    def read_resumed_settings(self) -> Settings | None:
        """Read what the run that is to be resumed was asked to do; None if a new run begins."""
        if not self.resume or self.path is None or not has_run(self.path):
            return None
        return RunFolder(self.path).read_info()["config"]

    def report(self, what: str, done: int, total: int, detail: str) -> None:
        """Pass progress on to `tell`, if there is one."""
        if self.tell is not None:
            self.tell(what, done, total, detail)


@dataclass(frozen=True)
class EarlierRun:
    """A resumed run: its folder, and what its run.json says."""

    path: Path
    info: JSONObject

    @staticmethod
    def find(options: RunOptions) -> EarlierRun | None:
        """Return the run in the folder, None if there is none; one that may not be resumed is an Error."""
        path = options.path
        if path is None or options.overwrite or not has_run(path):
            return None
        earlier = EarlierRun(path, RunFolder(path).read_info())
        if not options.resume:
            raise Error("there is a run here already", where=path, fix=TAKEN_HINT)
        return earlier

    @property
    def settings(self) -> Settings:
        """What the run was asked to do."""
        return self.info["config"]

    @property
    def done_steps(self) -> int:
        """The step of its newest checkpoint."""
        return max(Checkpoints(self.path / "steps", remove_stale=False).list_steps(), default=0)

    def merge_settings(
        self, file_tables: Mapping[str, SettingValue], given: Mapping[str, SettingValue],
        configure: Callable[[JSONObject, Mapping[str, object]], SettingsT], free: Collection[str],
    ) -> SettingsT:  # fmt: skip
        """Return the run's settings under those of a file (`file_tables`) and single ones (`given`), as `configure`
        merges them. Only those named in `free` may change."""

        def overlay(is_kept: Callable[[str], bool]) -> JSONObject:
            over = {
                t: {k: v for k, v in file_tables[t].items() if is_kept(f"{t}.{k}")} for t in file_tables if t in tables
            }
            return {**self.settings, **{t: {**tables[t], **values} for t, values in over.items()}}

        tables = {name: values for name, values in self.settings.items() if isinstance(values, dict)}
        settings = configure(overlay(lambda key: key in free), {k: v for k, v in given.items() if k in free})
        kept, now = settings.to_dict(), configure(overlay(lambda key: True), given).to_dict()
        if self.done_steps > (steps := kept["train"]["steps"]):
            what = f"{count_noun(self.done_steps, 'step')} done, more than {steps:,}"
            raise Error(what, where=self.path, fix=f"--train.steps {self.done_steps} or more")
        names = ", ".join(name.removeprefix("train.") for name in free)
        for name in {**tables, **{name: True for name in now if name == "mixture"}}:
            for key in now[name]:
                if key not in kept.get(name, {}) or now[name][key] != kept[name][key]:
                    fix = f"leave it out, or begin a new run; free to change: {names}"
                    raise Error(f"{name}.{key} cannot change in a resumed run", where=self.path, fix=fix)
        self.refuse_if_finished(kept)
        return settings

    def compute_steps(self, epochs: float) -> int:
        """Return the steps of another number of epochs; an Error if more are done."""
        steps, done = self.settings["train"]["steps"], self.done_steps
        before = (self.settings.get("tune") or self.settings["train"])["epochs"]
        if done > (new_steps := max(1, round(steps * epochs / before))):
            seen = f"{done * before / steps:.3g}"
            least = math.ceil(done * before / steps) if isinstance(before, int) else seen
            what = f"{format_epochs(float(seen))} done, more than {epochs:g}"
            raise Error(what, where=self.path, fix=f"--epochs {least} or more")
        return new_steps

    def refuse_if_finished(self, now: Mapping[str, SettingValue]) -> None:
        """Refuse new settings for a run that has taken all its steps: they would change nothing, and its old result
        would look like a new one."""
        before, steps = self.settings, now["train"]["steps"]
        if not self.info.get("result") or self.done_steps < steps or before["train"]["steps"] != steps:
            return
        length, option = describe_run_length(self.info)
        for table, values in now.items():
            for key, value in values.items() if isinstance(values, dict) else ():
                if f"{table}.{key}" not in MOVABLE_SETTINGS and before.get(table, {}).get(key) != value:
                    what = f"this run is finished: after {length}, {table}.{key} changes nothing"
                    fix = f"raise {option} to continue, or begin a new run in another --out"
                    raise Error(what, where=self.path, fix=fix)


def describe_run_length(info: Mapping[str, SettingValue]) -> tuple[str, str]:
    """Return how long a run was asked to be, in epochs or, if these were given, in steps; and the option to raise."""
    config = info["config"]
    epochs = (config.get("tune") or config["train"]).get("epochs")
    if epochs is None or "steps" in info.get("explicit_train", ()):
        return count_noun(config["train"]["steps"], "step"), f"--train.steps above {config['train']['steps']:,}"
    return format_epochs(epochs), f"--epochs above {epochs:g}"


def format_epochs(epochs: float) -> str:
    """Format a number of epochs: 1 epoch, 2.5 epochs."""
    return count_noun(epochs, "epoch")


@dataclass(frozen=True)
class DurationEstimate:
    """How long a run would take, by a few steps of it."""

    first_step: float  # seconds: it also compiles
    seconds: float  # of all steps
    tokens: float  # of all steps,
    tokens_per_step: float  # and of one at full size


class Run(Protocol[ConfigT]):
    """A run: a model and its trainer."""

    config: ConfigT
    former: Former
    trainer: LoopTrainer  # takes the steps
    world: ProcessGroup
    has_validation: bool = True
    write_sample: Callable[[int], None] | None = None  # (step): keep an example of what the model can do
    describe_metric: Callable[[], str] | None = None  # the metric after the loss on screen; None: the perplexity

    def take_steps(self, until: int | None = None) -> Iterator[StepResult]:
        """Take steps from where the trainer stands, to the last one or to step `until`."""

    def evaluate(self) -> dict[str, float]:
        """Evaluate on the validation data; "loss" (or "cost", if there is one) decides which checkpoint is the best."""
        return {}

    def describe(self) -> Iterator[str]:
        """Yield what a user wants to know before the first step, a line each."""

    def measure_flops(self) -> tuple[float, float] | None:
        """Return the operations of a token, and how many the machine can do in a second; None if products of matrices
        are not what takes the time."""
        return None

    def list_estimates(self) -> list[tuple[str, str]]:
        """List what a dry run shows besides speed and memory."""

    def estimate_duration(self) -> DurationEstimate:
        """Take a few steps for a dry run, and return how long all of them would take."""

    def record(self) -> JSONObject:
        """Return what run.json keeps of the data, under "data" and other keys of its own."""

    def begin(self, folder: RunFolder) -> None:
        """Prepare for the first step, after run.json is written; a resumed run has its history in the folder."""
        return

    def record_step(self, step: StepResult) -> None:
        """Follow the steps of the main process."""
        return

    def check_finite(self, folder: RunFolder) -> None:
        """Refuse a result of steps that were not finite, where the trainer has not done so."""
        return

    def build_model(self, groups: Mapping[str, Tensors]) -> Former:
        """Return the model with the tensors of a checkpoint."""

    def finalise(self, former: Former) -> None:
        """Change the best model before it is saved."""
        return

    def compute_result(self, folder: RunFolder, best: int) -> tuple[RunResult, JSONObject]:
        """Evaluate the model of the best step; return the caller's result, and what run.json keeps."""


AnyRun = Run[Any]  # dynamic: the class of its config, of which these functions read RunConfig alone


class NetworkRun(Run[NetworkConfigT], Protocol[NetworkConfigT]):
    """A run of a network: batches of examples, and a Trainer, which takes them."""

    trainer: Trainer

    def get_source(self, phase: int) -> AnySource:
        """Return the examples of a phase."""

    def iter_batches(self, phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        """Return the batches of a phase from a position on, each with the position after it."""
        s = self.config.train
        return load_batches(
            self.get_source(phase), s.batch_tokens, s.seed, position, workers=s.workers, rank=self.world.rank,
            ranks=self.world.size, pin=self.world.device.type == "cuda",
        )  # fmt: skip

    def take_steps(self, until: int | None = None) -> Iterator[StepResult]:
        """Take steps over the batches."""
        return self.trainer.train(self.iter_batches, until)

    def measure_flops(self) -> tuple[float, float]:
        """Estimate the operations of a token, and measure the machine's peak."""
        length, dtype = self.config.train.seq_length, self.trainer.executor.dtype
        return estimate_flops_per_token(self.trainer.model, length), measure_peak_flops(self.world.device, dtype)

    def estimate_duration(self) -> DurationEstimate:
        """Take a few steps; of both lengths, where short examples come first."""
        s, ranks = self.config.train, self.world.size
        phases = [(low, high) for low, high in ((0, s.long_phase_start), (s.long_phase_start, s.steps)) if low < high]
        measured = [time_steps(self, *phase) for phase in phases]
        taken = [s.count_batches_between(*phase, ranks) for phase in phases]
        seconds = sum(each * count for (_, each), count in zip(measured, taken, strict=True))
        size = s.batch_tokens * s.count_batches(s.batch_rampup_steps, ranks)
        tokens = s.batch_tokens * s.count_batches_between(0, s.steps, ranks)
        return DurationEstimate(measured[0][0], seconds, tokens, size)

    def check_finite(self, folder: RunFolder) -> None:
        """Refuse a result that is not finite: most steps were skipped, or no checkpoint has a finite validation loss.
        Checkpoints of the last non-finite steps are put aside, so that the run can resume before them."""
        trainer, kept = self.trainer, Checkpoints(folder.path / "steps", remove_stale=False)
        rows, scores = folder.read_history(), kept.read_scores()
        steps = [row for row in rows if "loss" in row]
        bad = sum(row["loss"] is None or row.get("norm") is None for row in steps)
        best = next((step for step in sorted(scores) if scores[step] is not None), None)
        looks = [row["valid"] for row in rows if "valid" in row and set(row["valid"]) - {"loss", "cost"}]
        excused = trainer.executor.scaler.is_enabled() and not trainer.bad_steps  # fp16 finds its scale by trial
        reason = f"{bad:,} of {len(steps):,} steps had a loss or gradient that is not finite"
        if looks and best is None and looks[-1].get("loss") is None:
            reason = f"the validation loss is not finite ({reason})"
        elif 2 * bad <= len(steps) or excused:
            return
        if trainer.bad_steps:
            kept.quarantine_after(trainer.step - trainer.bad_steps - 1)
        fix = "continue with --resume and a lower --train.lr; no model was written"
        raise Diverged(reason, where=folder.path, fix=fix)

    def build_model(self, groups: Mapping[str, Tensors]) -> Former:
        """Set the weights, those of the moving average if there is one."""
        former = self.former
        if self.trainer.is_sharded:
            former = build(self.config.family, head=former.head, **dataclasses.asdict(former.config))
            former.tokenizer, former.tasks = self.former.tokenizer, self.former.tasks
        set_weights(former.model, groups.get("ema", groups["model"]))
        return former


AnyNetworkRun = NetworkRun[Any]  # dynamic: the class of its config, of which these functions read `train` alone


class RunRequest(Protocol[SettingsT, InputT, ReadyT, DataT]):
    """A request for a run. Only the main process configures and prepares; all processes build."""

    file: ConfigFile  # of settings
    options: RunOptions

    @property
    def device(self) -> torch.device | str | None:
        """Where the run takes place; None: on the GPU, if there is one."""
        return self.options.device

    @property
    def protected_paths(self) -> object:
        """Paths that it reads besides those in the settings; --overwrite must not remove them."""
        return (self.file,)

    def configure(self, earlier: EarlierRun | None) -> tuple[SettingsT, InputT]:
        """Merge and check the settings, of a new run or of a resumed one; returns also what had to be read to know
        them, so that preparing need not read it again."""

    def get_stem(self, settings: SettingsT) -> str:
        """Return the name of the run's folder, without its number, if the user gives none."""

    def estimate_parameters(self, settings: SettingsT) -> int | None:
        """Return about how many parameters will be trained; None if that is not known yet."""
        return None

    def prepare(
        self, settings: SettingsT, inputs: InputT, folder: Path, world: ProcessGroup
    ) -> tuple[ReadyT, DataT]:  # fmt: skip
        """Prepare the data in the run's folder; returns the settings, with those that follow from it, and the data."""

    def prepare_excerpt(
        self, settings: SettingsT, inputs: InputT, folder: Path, world: ProcessGroup
    ) -> tuple[ReadyT, DataT]:  # fmt: skip
        """Prepare as much of the data as a dry run needs."""

    def build(self, settings: ReadyT, data: DataT, folder: Path, world: ProcessGroup) -> AnyRun:
        """Build the model and the trainer."""

    def carry_out(self) -> tuple[Path, Former, RunResult]:
        """Train; returns the folder, the model, and its result."""
        return carry_out(self)


@dataclass(frozen=True)
class PretrainArguments:
    """The arguments of formers.pretrain, which requests for word vectors share with those for networks."""

    family: str | None  # or the method of word vectors; None: the file of settings says which
    text: object  # in memory; None: that of the settings
    valid: object
    file: ConfigFile
    given: Settings  # dotted settings
    keys: dict[str, str | None]  # recipe, preset, init
    tokenizer: Tokenizer | None
    same: Mapping[str, object] | None  # fingerprints of data that is to be the same again
    options: RunOptions
    task_sources: MixtureSources = field(default_factory=dict)  # examples of a mixture's tasks that are not in files


AnyRequest = RunRequest[Any, Any, Any, Any]  # dynamic: its four types belong together, and the caller needs none


def carry_out(request: RunRequest[SettingsT, InputT, ReadyT, DataT]) -> tuple[Path, Former, RunResult]:
    """Carry out a run from its settings to its report; returns its folder, the best model, and its result. Only the
    main process reads sources and writes into the folder. A run that cannot begin leaves no folder behind."""
    options = request.options
    world, say = connect_processes(request.device), options.say
    main_inputs: list[InputT] = []  # the other processes read nothing
    remove_replaced: list[Callable[[], None]] = []

    def configure() -> SettingsT:
        settings, inputs = request.configure(EarlierRun.find(options))
        main_inputs.append(inputs)
        return settings

    with ExitStack() as stack:
        stack.enter_context(explain_lost_peer(world))
        settings = world.broadcast_from_main(configure)
        memory_use = stack.enter_context(explain_out_of_memory(world.device, request.estimate_parameters(settings)))
        stack.enter_context(use_deterministic(settings.is_deterministic))

        def prepare() -> tuple[Path, ReadyT, DataT]:
            protected = (settings.to_dict(), request.protected_paths)
            opened = open_run_folder(options.path, request.get_stem(settings), options.overwrite, protected)
            folder, remove = stack.enter_context(opened)
            remove_replaced.append(remove)
            return folder.path, *request.prepare(settings, main_inputs[0], folder.path, world)

        path, ready, data = world.broadcast_from_main(prepare)  # the other processes map the same files
        if isinstance(ready, RunConfig):  # what fine-tuning needs is known once its examples are encoded
            memory_use.train = ready.train
        folder, run = RunFolder(path), request.build(ready, data, path, world)
        memory_use.train = run.config.train
        for line in run.describe():
            say(line)

        def begin() -> None:
            check_disk_space(path, run.config.train, count_trainable(run.former.model))  # now its size is known
            facts, known = run.record(), folder.read_info() if has_run(path) else {}
            about = {**facts, "machine": describe_hardware(world), **known}
            if not known and (origins := find_origins(list_checkpoints(run.config.to_dict()))):
                about[ORIGINS_KEY] = origins
            folder.write_info({**about, "config": run.config.to_dict(), "data": facts["data"]})  # as it is asked now
            for remove in remove_replaced:
                remove()

        world.broadcast_from_main(begin)
        run.begin(folder)
        meter = ProgressMeter(run.trainer, options.report, run.describe_metric, run.measure_flops())

        def on_step(step: StepResult) -> None:
            run.record_step(step)
            meter(step)

        if isinstance(options.hook, Tracker) and world.is_main:
            options.hook.begin(path, run.config.to_dict())
        first = run_training_loop(
            run.trainer, run.take_steps, folder, evaluate=run.evaluate if run.has_validation else None,
            sample=run.write_sample, hook=options.hook, say=say, on_step=on_step,
        )  # fmt: skip
        if first == run.config.train.steps:
            length, option = describe_run_length(folder.read_info())
            say(f"this run was finished before, after {length}; raise {option} to continue")
        result = world.broadcast_from_main(lambda: finish_run(folder, run, meter))
        world.close()
    return path, run.former, result


def finish_run(folder: RunFolder, run: AnyRun, meter: ProgressMeter) -> RunResult:
    """Save the best checkpoint, evaluate it, and write the result and the report."""
    run.check_finite(folder)
    run.former, best = save_best_model(folder, run)
    result, more = run.compute_result(folder, best)
    size, memory = count_trainable(run.former.model), get_peak_memory(run.world.device)
    mfu = meter.compute_mfu(run.trainer.tokens / max(1e-9, run.trainer.seconds))
    common = {"best": best, "parameters": size, "memory": memory, "mfu": None if mfu is None else round(mfu, 4)}
    folder.write_info({**folder.read_info(), "result": {**more, **common}})
    write_report(folder)
    return result


def measure_steps(run: AnyRun, low: int, last: int) -> tuple[float, float]:
    """Return the seconds of the first of some steps, and of those after it."""
    began, run.trainer.step = time.perf_counter(), low
    steps = run.take_steps(last)
    next(steps)
    synchronize_device(run.world.device)
    first = time.perf_counter() - began
    began = time.perf_counter()
    for _ in steps:
        pass
    synchronize_device(run.world.device)
    return first, time.perf_counter() - began


def time_steps(run: AnyNetworkRun, low: int, high: int) -> tuple[float, float]:
    """Return the seconds of the first of some steps, and of a batch of those after it."""
    s, last = run.config.train, min(low + 1 + TIMED_STEPS, high)
    first, rest = measure_steps(run, low, last)
    if last == low + 1:
        return first, first / s.count_batches(low, run.world.size)
    return first, rest / s.count_batches_between(low + 1, last, run.world.size)


def measure_deterministic_cost(build_run: Callable[[], AnyNetworkRun]) -> str:
    """Measure what deterministic algorithms cost here, by a few steps of the run with and without them."""
    seconds: list[float] = []
    for is_deterministic in (False, True):
        torch.use_deterministic_algorithms(is_deterministic)
        try:
            run = build_run()
            s = run.config.train
            each = time_steps(run, 0, s.long_phase_start or s.steps)[1]
            seconds.append(each * s.count_batches(s.batch_rampup_steps, run.world.size))
            del run
        finally:
            torch.use_deterministic_algorithms(True)
            gc.collect()  # its memory is needed
    return f"{seconds[1]:.3f} s a step, {seconds[1] / seconds[0]:.2f} times the {seconds[0]:.3f} s without"


def check_parallel_settings(train: TrainConfig, world: ProcessGroup, is_resumed: bool = False) -> None:
    """Check that a step's batches can be shared by all processes, and that they support the optimizer and precision."""
    if train.accumulate % world.size:
        half = train.batch_tokens * train.accumulate // world.size
        fix = f"--train.accumulate {world.size} --train.batch_tokens {half} keeps the size of a step"
        fix = f"resume with a number of processes that divides {train.accumulate}" if is_resumed else fix
        raise Error(f"{train.accumulate} batches of a step cannot be shared by {world.size} processes", fix=fix)
    if train.optimizer == "adafactor" and select_strategy(world, train.parallel).is_sharded:
        what = "adafactor needs whole rows and columns, which shards do not have"
        raise Error(what, fix="--train.optimizer rms-adamw, or --train.parallel ddp")
    if train.optimizer == "adamw8bit" and select_strategy(world, train.parallel).is_sharded:
        what = "adamw8bit keeps its moments by blocks of whole weights, which shards do not have"
        raise Error(what, fix="--train.optimizer adamw, or --train.parallel ddp")
    if train.precision == "fp8" and world.size > 1 and train.parallel != "ddp":
        raise Error("fp8 does not support sharded weights", fix="--train.precision bf16")
    if train.precision == "fp16" and world.size > 1 and train.parallel == "expert":
        raise Error("expert parallelism does not support fp16", fix="--train.precision bf16 or fp32")


def check_disk_space(path: Path, train: LoopConfig, parameters: int | None) -> None:
    """Refuse to begin if the disk has no room for the checkpoints."""
    if parameters is None:
        return
    kept = max(2, train.keep_last + train.keep_best) + 1
    need, free = train.bytes_per_parameter * parameters * kept, shutil.disk_usage(path).free
    if need > free:
        raise Error(
            f"{kept} checkpoints need about {need:,} bytes, and {free:,} are free", where=path,
            fix="make room, choose another --out, or keep fewer with --train.keep_last 1 --train.keep_best 0",
        )  # fmt: skip


def collect_training_facts(folder: RunFolder, step: int) -> JSONObject:
    """Collect facts about the model of one step for its formers.json and model card: names, no paths."""
    about = folder.read_info()
    config, data = about["config"], about.get("data") or {}
    looks = (row["valid"] for row in folder.read_history() if row["step"] == step and "valid" in row)
    seen: JSONObject = next(looks, {})
    sources = [config["data"].get(name) or () for name in ("source", "train")]
    sources += [task["train"] for task in (config.get("mixture") or {}).get("tasks", {}).values() if "train" in task]
    base = config.get("init") or config.get("source")
    base = base if base is None or base.startswith("hub:") or is_shipped_name(base) else Path(base).name
    names = [Path(str(one)).name for value in sources for one in ([value] if isinstance(value, str) else value)]
    counts = {key: data[key] for key in ("tokens", "documents", "examples") if isinstance(data.get(key), int)}
    facts = {
        "steps": step, "objective": (config.get("objective") or {}).get("name"), "task": config.get("task"),
        "init": base, "data": {"sources": names, **counts},
        "validation": {key: value for key, value in seen.items() if value is not None},
    }  # fmt: skip
    origins: JSONObject = {ORIGINS_KEY: about[ORIGINS_KEY]} if about.get(ORIGINS_KEY) else {}
    return {key: value for key, value in facts.items() if isinstance(value, str | int | dict)} | origins


def list_checkpoints(config: JSONObject) -> list[str | None]:
    """List the checkpoints that the settings of a run start from: the model's, and its word vectors'."""
    return [config.get("init"), config.get("source"), (config.get("tune") or {}).get("vectors")]


def save_best_model(folder: RunFolder, run: AnyRun) -> tuple[Former, int]:
    """Save the best checkpoint as a formers directory; returns the model and its step."""
    kept = Checkpoints(folder.path / "steps", remove_stale=False)
    if (checkpoint := kept.load_best()) is None:
        raise Error("no checkpoint is intact", where=kept.folder, fix="check the disk; --resume trains again")
    best, groups, _ = checkpoint
    former = run.build_model(groups)
    if not all(bool(weight.isfinite().all()) for weight in former.model.state_dict().values()):
        what = f"the weights of step {best:,} are not finite"
        raise Diverged(what, where=folder.path, fix="begin again with a lower --train.lr; no model was written")
    former.model.eval()
    former.training_info = collect_training_facts(folder, best)
    run.finalise(former)
    target = folder.path / "model"
    if target.exists():
        shutil.rmtree(target)
    save(former, target)
    return former, best
