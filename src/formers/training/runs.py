"""A run's folder and what happens in it: steps, looks at held-out text, checkpoints, signals.

    RUN/run.json         what was asked for, and of what code, data and machine
    RUN/metrics.jsonl    one line for each step and each look at held-out text
    RUN/steps/           checkpoints (training/checkpoint.py)
    RUN/lock             held while the run is under way
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..data.lock import locked
from ..errors import Error
from .checkpoint import Checkpoints, Writer
from .loop import Report, Source, Trainer

FORMAT = 1
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}  # how a run ends that was asked to stop


class Stopped(Error):
    """The run was asked to stop, and has saved its state."""

    def __init__(self, number: int, step: int, where: Path):
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        super().__init__(f"stopped by {name} after step {step}; saved", where=where, fix="go on with --resume")
        self.code = CODES[signal.Signals(number)]


class Signals:
    """SIGINT and SIGTERM are noted and obeyed between two steps; a second one ends the process at once."""

    def __init__(self) -> None:
        self.caught: int | None = None

    def __enter__(self) -> Signals:
        self.before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in CODES:
                self.before[number] = signal.signal(number, self.note)
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        """What the operating system calls."""
        if self.caught is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.caught = number

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


@dataclass
class Folder:
    """The folder of one run."""

    path: Path

    @property
    def metrics(self) -> Path:
        """The file of all measurements."""
        return self.path / "metrics.jsonl"

    @contextmanager
    def held(self) -> Iterator[Folder]:
        """Alone in this folder."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Error(f"cannot write here ({error.strerror})", where=self.path, fix="choose another") from None
        with locked(self.path / "lock"):
            yield self

    def describe(self, about: dict[str, Any]) -> None:
        """Write run.json, whole or not at all."""
        new = self.path / ".run.json"
        new.write_text(json.dumps({"format": FORMAT, **about}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(new, self.path / "run.json")

    def about(self) -> dict[str, Any]:
        """What run.json says."""
        where = self.path / "run.json"
        try:
            about = json.loads(where.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise Error("this is no folder of a run", where=where, fix="formers runs lists them") from None
        if about.get("format") != FORMAT:
            raise Error(f"format {about.get('format')} is not read here", where=where, fix="use another version")
        return about

    def history(self) -> list[dict[str, Any]]:
        """The measurements so far; a last line that was cut by a crash is left out."""
        rows = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines() if self.metrics.exists() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def cut(self, step: int) -> None:
        """Forget what was measured after a step: it will be measured again."""
        kept = [row for row in self.history() if row["step"] <= step]
        new = self.path / ".metrics.jsonl"
        new.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        os.replace(new, self.metrics)


def drive(
    trainer: Trainer,
    source: Source,
    folder: Folder,
    *,
    check: Callable[[], float] | None = None,
    tell: Callable[[Report], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Train to the end from the newest checkpoint that is whole; the step with which it began.

    The caller holds the folder. Raises Stopped, after saving, when a signal asks for it.
    """
    s = trainer.settings
    kept = Checkpoints(folder.path / "steps", last=s.last, best=s.best, every=s.every)
    found = kept.newest(say)
    if found is not None:
        trainer.restore(*found[1:])
    begun, writer, score = trainer.step, Writer(kept), None
    folder.cut(begun)
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        log = stack.enter_context(open(folder.metrics, "a", encoding="utf-8"))
        stack.callback(writer.wait)
        for report in trainer.train(source):
            log.write(json.dumps(row(report)) + "\n")
            done, stop = report.step == s.steps, signals.caught
            if check is not None and (done or report.step % s.check == 0):
                score = check()
                log.write(json.dumps({"step": report.step, "held": score}) + "\n")
            log.flush()
            if tell is not None:
                tell(report)
            if done or stop is not None or report.step % s.save == 0:
                writer.save(report.step, *trainer.state(), score)
                score = None
            if stop is not None and not done:
                writer.wait()
                raise Stopped(stop, report.step, folder.path)
    return begun


def row(report: Report) -> dict[str, Any]:
    """A step as a line of the file of measurements."""
    return {
        "step": report.step, "loss": report.loss, "losses": report.losses, "norm": report.norm, "lr": report.lr,
        "tokens": report.tokens, "seconds": round(report.seconds, 3),
        **({"skipped": True} if report.skipped else {}),
    }  # fmt: skip
