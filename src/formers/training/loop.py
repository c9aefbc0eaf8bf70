"""The training loop of every run: resume from the newest checkpoint, take steps, evaluate, save, stop on a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import Error
from .checkpoint.local import SHARD_FOLDER, BackgroundWriter, Checkpoints, Tensors
from .run_folder import MetricsLog, RunFolder, to_json_number
from .trainer import BatchSource, Diverged, StepResult, Trainer

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


def run_training_loop(
    trainer: Trainer, source: BatchSource, folder: RunFolder, *, evaluate: Callable[[], dict[str, float]] | None = None,
    sample: Callable[[int], None] | None = None, tell: Callable[[StepResult], None] | None = None,
    hook: Callable[[dict[str, Any]], None] | None = None, say: Callable[[str], None] = lambda text: None,
) -> int:  # fmt: skip
    """Train to the end from the newest checkpoint that is whole; the step with which it began.

    The first process holds the folder, writes and speaks. `evaluate` gives losses on the validation text, the one named
    "loss" (or "cost", if there is one) decides which checkpoint is the best; `trainer.should_stop` ends the run early.
    While steps give no number, a checkpoint waits for the first that does. Raises Stopped, after saving, when a signal
    asks for it.
    """
    s, world = trainer.config, trainer.world
    steps = folder.path / "steps"
    kept: Checkpoints | None = None
    if world.is_main:
        kept = Checkpoints(steps, keep_last=s.keep_last, keep_best=s.keep_best, keep_every=s.keep_every)
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
        unread: list[StepResult] = []  # a step whose outcome the trainer reads after it has launched the next

        def log_steps() -> None:
            while log is not None and unread:
                log.write_row(step_to_row(result := unread.pop()))
                if tell is not None:
                    tell(result)

        stack.callback(lambda: log_steps() if unread and unread[0].has_outcome else None)  # of a run that breaks off
        for report in trainer.train(source):
            log_steps()
            unread.append(report)
            if not trainer.reads_late:  # before signals are looked at: a hook may send one
                log_steps()
            if writer is not None and writer.error:
                writer.wait()
            done = report.step == s.steps
            caught = [float(signals.caught_signal == number) for number in EXIT_CODES]
            stop = next((number for number, n in zip(EXIT_CODES, world.sum_over_ranks(caught), strict=True) if n), None)
            due = report.step // s.save_every > (report.step - waiting - 1) // s.save_every
            samples = sample is not None and log is not None and report.step in asked
            if samples or done or due or stop is not None or report.step % s.eval_every == 0:
                log_steps()
            if samples and sample is not None:
                sample(report.step)
            regular, waiting = done or (due and not trainer.bad_steps), trainer.bad_steps
            saves = regular or stop is not None  # a stop request saves at once, without evaluating
            looks = evaluate is not None and (regular or report.step % s.eval_every == 0)
            seen = evaluate() if looks and evaluate is not None else None
            if log is not None and seen is not None:
                log.write_row(
                    {"step": report.step, "valid": {name: to_json_number(value) for name, value in seen.items()}}
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


def step_to_row(report: StepResult) -> dict[str, Any]:
    """A step as a line of the file of measurements."""
    odd = {"skipped": True, "examples": report.example_range} if report.skipped else {}
    seconds = round(report.seconds, 3)
    return {
        "step": report.step, "loss": to_json_number(report.loss),
        "losses": {name: to_json_number(value) for name, value in report.losses.items()},
        "norm": to_json_number(report.grad_norm), "lr": report.lr, "tokens": report.tokens, "seconds": seconds, **odd,
    }  # fmt: skip
