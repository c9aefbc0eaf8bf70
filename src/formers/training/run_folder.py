"""A run's folder and what happens in it: steps, looks at held-out text, checkpoints, signals.

RUN/run.json         what was asked for, and of what code, data and machine
RUN/data/            the tokenizer and the token store, if the run made them
RUN/metrics.jsonl    one line for each step and each look at held-out text
RUN/samples.jsonl    what the model could do on the way
RUN/steps/           checkpoints (training/checkpoint/local.py)
RUN/model/           at the end, the best of them: formers.load opens it
RUN/report.html, .md
RUN/lock             held while the run is under way
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..atomic_files import FolderKind, hold_lock, is_locked, write_atomically
from ..config import format_value
from ..errors import Error, advise_on_write, is_disk_full
from .checkpoint.local import SHARD_FOLDER, BackgroundWriter, Checkpoints, Tensors
from .trainer import BatchSource, Diverged, StepResult, Trainer

RUN_FORMAT = 2  # 2: the settings of run.json have other names than before
TEMPORARY_FILES = ("*.tmp", ".model.*", "data/.tokenizer.*")  # a crash may leave them
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}  # how a run ends that was asked to stop
if hasattr(signal, "SIGHUP"):  # the terminal or the connection is gone; Windows has no such signal
    EXIT_CODES[signal.SIGHUP] = 129


class Stopped(Error):
    """The run was asked to stop, and has saved its state."""

    def __init__(self, number: int, step: int, where: Path):
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        super().__init__(f"stopped by {name} after step {step}; saved", where=where, fix="go on with --resume")
        self.exit_code = EXIT_CODES[signal.Signals(number)]


class SignalWatcher:
    """SIGINT, SIGTERM and SIGHUP are noted and obeyed between two steps; a second one ends the process at once. A
    SIGHUP that is ignored (nohup) stays ignored."""

    def __init__(self) -> None:
        self.caught_signal: int | None = None

    def __enter__(self) -> SignalWatcher:
        self.previous_handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number, code in EXIT_CODES.items():
                if code != 129 or signal.getsignal(number) is not signal.SIG_IGN:
                    self.previous_handlers[number] = signal.signal(number, self.handle_signal)
        return self

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """What the operating system calls."""
        if self.caught_signal is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.caught_signal = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)


RUN_DATA_FOLDER = FolderKind(
    "run's data",
    ("store", "held", "tokenizer", ".tokenizer.*", "*.note", "train.jsonl", "valid.jsonl", "test.jsonl", "tune.json"),
    (), frozenset(), (),
)  # fmt: skip
RUN_FOLDER = FolderKind(
    "run",
    ("run.json", "data", "metrics.jsonl", "samples.jsonl", "steps", "model", "report.html", "report.md", "lock",
     "evaluation.json", "tensorboard", "wandb", "wandb.json", "*.tmp", ".model.*"),
    ("run.json",), frozenset({"format", "asked", "data"}), ("run.json",), (("data", RUN_DATA_FOLDER),),
)  # fmt: skip
COMPARISON_FOLDER = FolderKind(
    "comparison", ("summary.json", "report.md"), ("*/run.json",), RUN_FOLDER.marker_keys, ("*/run.json",),
    (("*", RUN_FOLDER),),
)  # fmt: skip


@dataclass
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def metrics_path(self) -> Path:
        """The file of all measurements."""
        return self.path / "metrics.jsonl"

    @contextmanager
    def lock(self) -> Iterator[RunFolder]:
        """Alone in this folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Error(f"cannot write here ({error.strerror})", where=self.path, fix="choose another") from None
        try:
            with hold_lock(self.path / "lock"):
                for name in TEMPORARY_FILES:
                    for stale in self.path.glob(name):
                        shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
                yield self
        except BrokenPipeError:  # who listened is gone: no matter of this folder
            raise
        except OSError as error:
            what = (
                "the disk is full" if is_disk_full(error) else f"cannot be written or read ({error.strerror or error})"
            )
            fix = advise_on_write(error, "go on with --resume")
            raise Error(what, where=error.filename or self.path, fix=fix) from None

    def write_info(self, about: dict[str, Any]) -> None:
        """Write run.json, whole or not at all."""
        text = json.dumps({"format": RUN_FORMAT, **about}, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.path / "run.json", text, "backslashreplace")  # half a character of a path: as JSON has it

    def read_info(self) -> dict[str, Any]:
        """What run.json says."""
        where = self.path / "run.json"
        if not where.is_file():
            raise Error("this is no folder of a run", where=where, fix="formers runs lists them")
        try:
            about = json.loads(where.read_text(encoding="utf-8"))
            self.refuse_earlier_format(about)
            asked, result = about["asked"], about.get("result") or {}
            good = isinstance(asked["train"]["steps"], int) and isinstance(asked["family"], str)
            good = good and all(
                isinstance(part, dict) for part in (asked["train"], asked["data"], about["data"], result)
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            good = False
        if not good:
            fix = "take the file away and give the run's own command with --resume: text and checkpoints are kept"
            raise Error("is damaged", where=where, fix=fix)
        if about.get("format") != RUN_FORMAT:
            what = f"format {format_value(about.get('format'))} is not read here"
            raise Error(what, where=where, fix="it was made by a newer formers: pip install --upgrade formers")
        return about

    def refuse_earlier_format(self, about: Any) -> None:
        """Raise an Error that says how to go on where run.json is of an earlier version."""
        version = about.get("format") if isinstance(about, dict) else None
        if type(version) is not int or version >= RUN_FORMAT:
            return
        fix = "train again with --overwrite or another --out"
        if (self.path / "model").is_dir():
            fix += f"; the model in it still opens: formers export {self.path} DIRECTORY"
        what = f"this run was made by an earlier formers (format {version}) and cannot go on"
        raise Error(what, where=self.path / "run.json", fix=fix)

    def read_history(self) -> list[dict[str, Any]]:
        """The measurements so far; a line that was cut by a crash is left out."""
        return read_rows(self.metrics_path)

    def read_samples(self) -> list[dict[str, Any]]:
        """What the model could do at some steps."""
        return [row for row in read_rows(self.path / "samples.jsonl") if "given" in row and "made" in row]

    def truncate_after(self, step: int) -> None:
        """Forget what was measured after a step: it will be measured again."""
        for file in (self.metrics_path, self.path / "samples.jsonl"):
            kept = [row for row in read_rows(file) if row["step"] <= step]
            write_atomically(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))


def summarise_run(folder: RunFolder, name: object) -> tuple[str, ...]:
    """A run in a row: name, family, task, steps, the measure that decides, parameters, state."""
    try:
        about, rows = folder.read_info(), folder.read_history()
    except Error as error:
        return str(name), "–", "–", "–", "–", "–", error.what
    asked, result = about["asked"], about.get("result") or {}
    done = max((row["step"] for row in rows), default=0)
    ended = bool(result) and done >= asked["train"]["steps"]  # one that had ended may go on for more steps
    early = bool(result) and result.get("ended") == [done, asked["train"]["steps"]]  # stopped by its own patience
    lost = not result and any(row.get("skipped") for row in rows if row["step"] == done)
    state = (
        "running"
        if is_locked(folder.path / "lock")
        else "done"
        if ended or early
        else "diverged"
        if lost
        else "stopped"
    )
    size = f"{result['parameters']:,}" if is_number(result.get("parameters")) else "–"
    family, task = str(asked.get("method") or asked["family"]), str(asked.get("task") or "pretrain")
    steps = f"{done:,} of {asked['train']['steps']:,}"
    return str(name), family, task, steps, format_main_result(asked, result, rows), size, state


def format_main_result(asked: dict[str, Any], result: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The measure that a run is judged by, with its name: of the test examples if there are some, else of the held-out
    ones; on the way, the best so far."""
    measures = result.get("measures") or {}
    found = measures.get("test") or measures.get("valid") or {}
    named = (asked.get("tune") or {}).get("metric")
    name = named if named in found else next(iter(found), None)
    if name is not None:
        part = "test " if measures.get("test") else ""
        return "–" if found[name] is None else f"{part}{name} {found[name]:.4f}"
    score = (result.get("score") or {}).get("loss")  # of its own part alone, as the command said it
    held = [row["held"]["loss"] for row in rows if "held" in row and row["held"].get("loss") is not None]
    best = score if is_number(score) else min(held, default=None)
    return "–" if best is None else f"loss {best:.3f}"


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON, without those that a crash has cut or a disk damaged."""
    rows = []
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n") if file.is_file() else ():
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and is_valid_row(row):
                rows.append(row)
    return rows


def is_valid_row(row: dict[str, Any]) -> bool:
    """Check that what a line of measurements says of its step is numbers."""
    losses, held = row.get("losses", {}), row.get("held", {})
    if not isinstance(losses, dict) or not isinstance(held, dict):
        return False
    numbers = [row.get(name) for name in ("loss", "norm", "lr", "tokens", "seconds")]
    numbers += [held.get(name) for name in ("loss", "cost")]
    return isinstance(row.get("step"), int) and all(value is None or is_number(value) for value in numbers)


def is_number(value: object) -> bool:
    """Check for a finite number that is small enough to compute with."""
    return isinstance(value, int | float) and abs(value) < 1e300


def run_training_loop(
    trainer: Trainer,
    source: BatchSource,
    folder: RunFolder,
    *,
    evaluate: Callable[[], dict[str, float]] | None = None,
    sample: Callable[[int], None] | None = None,
    tell: Callable[[StepResult], None] | None = None,
    hook: Callable[[dict[str, Any]], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Train to the end from the newest checkpoint that is whole; the step with which it began.

    The first process holds the folder, writes and speaks. `evaluate` gives losses on held-out text, the one named
    "loss" (or "cost", if there is one) decides which checkpoint is the best; `trainer.should_stop` ends the run early.
    While steps give no number, a checkpoint waits for the first that does. Raises Stopped, after saving, when a signal
    asks for it.
    """
    s, world = trainer.config, trainer.world
    steps = folder.path / "steps"
    kept = (
        Checkpoints(steps, keep_last=s.keep_last, keep_best=s.keep_best, keep_every=s.keep_every)
        if world.is_main
        else None
    )
    begun = restore_newest(trainer, kept, steps, say)
    log = MetricsLog(folder, begun, hook) if kept is not None else None
    writer: BackgroundWriter | None = None
    if trainer.is_sharded:  # every process writes its part
        from .checkpoint.sharded import ShardedWriter

        writer = BackgroundWriter(kept or Checkpoints(steps, remove_stale=False), ShardedWriter(world.is_main))
    elif kept is not None:
        writer = BackgroundWriter(kept)
    waiting = trainer.bad_steps  # steps since one gave a number
    asked = {round(s.steps * (i + 1) / s.samples) for i in range(s.samples)}
    with ExitStack() as stack:
        signals = stack.enter_context(SignalWatcher())
        if log is not None:
            stack.callback(log.close)
        stack.enter_context(quarantine_diverged(trainer, kept))
        if writer is not None:
            stack.callback(writer.wait)
        for report in trainer.train(source):
            if log is not None:
                log.write_row(step_to_row(report))
                if tell is not None:
                    tell(report)
                if sample is not None and report.step in asked:
                    sample(report.step)
            if writer is not None and writer.error:
                writer.wait()
            done = report.step == s.steps
            caught = [float(signals.caught_signal == number) for number in EXIT_CODES]
            stop = next((number for number, n in zip(EXIT_CODES, world.sum_over_ranks(caught), strict=True) if n), None)
            due = report.step // s.save_every > (report.step - waiting - 1) // s.save_every
            regular, waiting = done or (due and not trainer.bad_steps), trainer.bad_steps
            saves = regular or stop is not None  # a stop request saves at once, without evaluating
            looks = evaluate is not None and (regular or report.step % s.eval_every == 0)
            seen = evaluate() if looks and evaluate is not None else None
            if log is not None and seen is not None:
                log.write_row(
                    {"step": report.step, "held": {name: to_json_number(value) for name, value in seen.items()}}
                )
            if saves:
                if writer is not None:
                    writer.wait()  # before another state takes its memory
                state = trainer.get_state()
                if writer is not None:
                    score = None if seen is None else to_json_number(seen.get("cost", seen["loss"]))
                    writer.save(report.step, *state, score)
                del state
            if stop is not None and not done:
                if writer is not None:
                    writer.wait()
                world.barrier()
                raise Stopped(stop, report.step, folder.path)
            if trainer.should_stop and saves:
                break
    if trainer.bad_steps:
        say(f"note: the run ended with steps that gave no number ({trainer.bad_steps}); the model may be ruined")
    world.barrier()
    return begun


@contextmanager
def quarantine_diverged(trainer: Trainer, kept: Checkpoints | None) -> Iterator[None]:
    """After a divergence, put the checkpoints aside that lead into it again: those of its steps, and the one right
    before them, for no learning rate changes what the next step finds."""
    try:
        yield
    except Diverged:
        if kept is not None:
            kept.quarantine_after(trainer.step - trainer.bad_steps - 1)
        trainer.world.barrier()
        raise


def restore_newest(trainer: Trainer, kept: Checkpoints | None, steps: Path, say: Callable[[str], None]) -> int:
    """Stand where the newest whole checkpoint stands: the first process reads it, and gives the others their parts; of
    one that was written in parts, it compares the sums, and each reads its own."""
    full: dict[str, Tensors] = {}

    def read_newest() -> tuple[int, dict[str, Tensors], dict[str, Any]]:
        found = None if kept is None else kept.load_newest(say, assemble_shards=False)
        if found is None:
            return 0, {}, {}
        full.update(found[1])
        return found[0], {name: {n: t.to("meta") for n, t in group.items()} for name, group in full.items()}, found[2]

    step, outline, state = trainer.world.broadcast_from_main(read_newest)
    if step:
        folder = Checkpoints(steps, remove_stale=False).get_step_path(step)
        trainer.restore_state(full or outline, state, folder if (folder / SHARD_FOLDER).is_dir() else None)
    if kept is not None:
        kept.quarantine_after(step)
    return step


class MetricsLog:
    """The file of measurements, a line each."""

    def __init__(self, folder: RunFolder, begun: int, hook: Callable[[dict[str, Any]], None] | None = None):
        folder.truncate_after(begun)
        self.file, self.hook = open(folder.metrics_path, "a", encoding="utf-8"), hook  # noqa: SIM115

    def write_row(self, line: dict[str, Any]) -> None:
        """One measurement."""
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        if self.hook is not None:
            self.hook(line)

    def close(self) -> None:
        """The end."""
        self.file.close()


def step_to_row(report: StepResult) -> dict[str, Any]:
    """A step as a line of the file of measurements."""
    odd = {"skipped": True, "examples": report.example_range} if report.skipped else {}
    seconds = round(report.seconds, 3)
    return {
        "step": report.step, "loss": to_json_number(report.loss),
        "losses": {name: to_json_number(value) for name, value in report.losses.items()},
        "norm": to_json_number(report.grad_norm), "lr": report.lr, "tokens": report.tokens, "seconds": seconds, **odd,
    }  # fmt: skip


def to_json_number(value: float) -> float | None:
    """JSON has no word for what is no number."""
    return value if math.isfinite(value) else None
