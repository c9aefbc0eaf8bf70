"""The training loop of every run: resume from the newest checkpoint, take steps, evaluate, save, stop on a signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from ..config import JSONObject, count_noun
from ..errors import Error
from .checkpoint.local import SHARD_FOLDER, BackgroundWriter, Checkpoints, Tensors
from .distributed.process_group import ProcessGroup
from .run_folder import MetricsLog, RunFolder, to_json_number
from .train_config import LoopConfig
from .trainer import Diverged, StepResult

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}  # of a run that a signal has stopped
if sys.platform != "win32":  # the terminal or the connection is gone; Windows has no such signal
    EXIT_CODES[signal.SIGHUP] = 129


class LoopTrainer(Protocol):
    """What the loop needs of a trainer: its progress, and its state between two steps. Trainer trains networks,
    VectorTrainer word vectors."""

    world: ProcessGroup
    step: int  # the number of steps done
    tokens: int  # seen so far
    seconds: float  # spent so far
    bad_steps: int  # consecutive steps up to now whose loss or gradient was not finite
    should_stop: bool  # whether the run ends early

    @property
    def config(self) -> LoopConfig:
        """The settings of the run's length and its checkpoints."""

    @property
    def is_sharded(self) -> bool:
        """Whether each process has only a part of a checkpoint."""

    @property
    def reads_late(self) -> bool:
        """Whether a step's outcome may be read after the next step was launched."""

    def get_state(self) -> tuple[dict[str, Tensors], Mapping[str, object]]:
        """Return what a checkpoint holds: tensors by file, and the rest."""

    def restore_state(
        self, groups: Mapping[str, Tensors], state: Mapping[str, object], shard_folder: Path | None = None
    ) -> None:
        """Restore a saved state."""


class Stopped(Error):
    """Raised when a signal has stopped the run and its state is saved."""

    def __init__(self, number: int, step: int, where: Path):
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        super().__init__(f"stopped by {name} after step {step}; saved", where=where, fix="continue with --resume")
        self.exit_code = EXIT_CODES[signal.Signals(number)]


class SignalWatcher:
    """SIGINT, SIGTERM and SIGHUP are noted and obeyed between two steps; a second one ends the process at once. A
    SIGHUP that is ignored (nohup) stays ignored."""

    def __init__(self) -> None:
        self.caught_signal: int | None = None

    def __enter__(self) -> SignalWatcher:
        self.previous_handlers: dict[int, Any] = {}  # dynamic: as signal.signal returns them
        if threading.current_thread() is threading.main_thread():
            for number, code in EXIT_CODES.items():
                if code != 129 or signal.getsignal(number) is not signal.SIG_IGN:
                    self.previous_handlers[number] = signal.signal(number, self.handle_signal)
        return self

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal of the operating system."""
        if self.caught_signal is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.caught_signal = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)


class StepLog:
    """Writes a row for each step and reports it, in the main process. Reading a step's outcome waits for the device, so
    where the trainer reads it late, a step is written after the next one was launched."""

    def __init__(self, log: MetricsLog | None, on_step: Callable[[StepResult], None] | None):
        self.log, self.on_step = log, on_step
        self.unwritten: StepResult | None = None

    def add(self, result: StepResult) -> None:
        """Write the step before, and keep this one."""
        self.write()
        self.unwritten = result

    def write(self) -> None:
        """Write the step that is kept, waiting for its outcome."""
        result, self.unwritten = self.unwritten, None
        if result is not None and self.log is not None:
            self.log.write_row(step_to_row(result))
            if self.on_step is not None:
                self.on_step(result)

    def close(self) -> None:
        """Write the last step of an interrupted run, if its outcome is known."""
        if self.unwritten is not None and self.unwritten.has_outcome:
            self.write()


def run_training_loop(
    trainer: LoopTrainer, take_steps: Callable[[], Iterator[StepResult]], folder: RunFolder, *,
    evaluate: Callable[[], dict[str, float]] | None = None,
    sample: Callable[[int], None] | None = None, on_step: Callable[[StepResult], None] | None = None,
    hook: Callable[[JSONObject], None] | None = None, say: Callable[[str], None] = lambda text: None,
) -> int:  # fmt: skip
    """Train from the newest complete checkpoint to the last step; return the step it started at.

    The main process holds the folder's lock, writes and reports. `take_steps` lets the trainer take its steps from
    where it stands; between two of them it can be saved. `evaluate` returns validation losses: the one named
    "loss" (or "cost", if there is one) decides which checkpoint is the best. At a step that saves,
    `trainer.should_stop` ends the run early. Raises Stopped, after saving, when a signal asks for it.
    """
    s, world, steps = trainer.config, trainer.world, folder.path / "steps"
    kept: Checkpoints | None = None
    if world.is_main:
        kept = Checkpoints(steps, keep_last=s.keep_last, keep_best=s.keep_best, keep_every=s.keep_every)
    first_step = restore_newest(trainer, kept, steps, say)
    writer = open_writer(trainer, kept, steps)
    sample_steps = {round(s.steps * (i + 1) / s.samples) for i in range(s.samples)}
    with ExitStack() as stack:
        signals = stack.enter_context(SignalWatcher())
        log = None if kept is None else stack.enter_context(closing(MetricsLog(folder, first_step, hook)))
        stack.enter_context(quarantine_diverged(trainer, kept))
        if writer is not None:
            stack.callback(writer.wait)
        step_log = stack.enter_context(closing(StepLog(log, on_step)))
        overdue = trainer.bad_steps  # steps by which a checkpoint is late
        for result in take_steps():
            step_log.add(result)
            if not trainer.reads_late:  # before signals are looked at: a hook may send one
                step_log.write()
            if writer is not None and writer.error:
                writer.wait()
            step, is_last = result.step, result.step == s.steps
            stop = agree_on_signal(signals, world)
            # With save_every 100, step 100 saves; if it is not finite, step 101 does, or the first that is.
            is_due = step // s.save_every > (step - overdue - 1) // s.save_every
            samples, evaluates = sample is not None and step in sample_steps, step % s.eval_every == 0
            if is_last or is_due or stop is not None or samples or evaluates:
                step_log.write()
            if samples and sample is not None and log is not None:
                sample(step)
            is_regular, overdue = is_last or (is_due and not trainer.bad_steps), trainer.bad_steps
            saves = is_regular or stop is not None  # a stop request saves at once, without evaluating
            losses = evaluate() if evaluate is not None and (is_regular or evaluates) else None
            if losses is not None and log is not None:
                log.write_row({"step": step, "valid": {name: to_json_number(value) for name, value in losses.items()}})
            if saves:
                state = trainer.get_state()  # a collective call
                if writer is not None:
                    score = None if losses is None else to_json_number(losses.get("cost", losses["loss"]))
                    writer.save(step, *state, score)
                del state
            if stop is not None and not is_last:
                if writer is not None:
                    writer.wait()
                world.barrier()
                raise Stopped(stop, step, folder.path)
            if trainer.should_stop and saves:
                break
    if trainer.bad_steps:
        bad = f"{count_noun(trainer.bad_steps, 'step')} with a loss or gradient that is not finite"
        say(f"note: the run ended with {bad}; the model may be unusable")
    world.barrier()
    return first_step


def open_writer(trainer: LoopTrainer, kept: Checkpoints | None, steps: Path) -> BackgroundWriter | None:
    """Return the writer of this process's checkpoints; without shards only the main process has one."""
    if not trainer.is_sharded:
        return None if kept is None else BackgroundWriter(kept)
    from .checkpoint.sharded import ShardedWriter

    return BackgroundWriter(kept or Checkpoints(steps, remove_stale=False), ShardedWriter(trainer.world.is_main))


def agree_on_signal(signals: SignalWatcher, world: ProcessGroup) -> signal.Signals | None:
    """Return a signal that any process has caught; all processes get the same one."""
    counts = world.sum_over_ranks([float(signals.caught_signal == number) for number in EXIT_CODES])
    return next((number for number, count in zip(EXIT_CODES, counts, strict=True) if count), None)


@contextmanager
def quarantine_diverged(trainer: LoopTrainer, kept: Checkpoints | None) -> Iterator[None]:
    """After a divergence, move aside the checkpoints that would lead into it again: those of its steps, and the one
    right before them, from which the next step is the same at any learning rate."""
    try:
        yield
    except Diverged:
        if kept is not None:
            kept.quarantine_after(trainer.step - trainer.bad_steps - 1)
        trainer.world.barrier()
        raise


def restore_newest(trainer: LoopTrainer, kept: Checkpoints | None, steps: Path, say: Callable[[str], None]) -> int:
    """Restore the newest intact checkpoint. The main process reads it and sends the others their parts; of a sharded
    one it compares the checksums, and every process reads its own shards."""
    full: dict[str, Tensors] = {}

    def read_newest() -> tuple[int, dict[str, Tensors], JSONObject]:
        checkpoint = None if kept is None else kept.load_newest(say, assemble_shards=False)
        if checkpoint is None:
            return 0, {}, {}
        full.update(checkpoint[1])
        return (
            checkpoint[0],
            {name: {n: t.to("meta") for n, t in group.items()} for name, group in full.items()},
            checkpoint[2],
        )

    step, outline, state = trainer.world.broadcast_from_main(read_newest)
    if step:
        folder = Checkpoints(steps, remove_stale=False).get_step_path(step)
        trainer.restore_state(full or outline, state, folder if (folder / SHARD_FOLDER).is_dir() else None)
    if kept is not None:
        kept.quarantine_after(step)
    return step


def step_to_row(result: StepResult) -> JSONObject:
    """Return a step as a row of metrics.jsonl."""
    skipped = {"skipped": True, "examples": result.example_range} if result.is_skipped else {}
    seconds, norm = round(result.seconds, 3), result.grad_norm
    return {
        "step": result.step, "loss": to_json_number(result.loss),
        "losses": {name: to_json_number(value) for name, value in result.losses.items()},
        **({} if norm is None else {"norm": to_json_number(norm)}), "lr": result.lr, "tokens": result.tokens,
        "seconds": seconds, **skipped,
    }  # fmt: skip
