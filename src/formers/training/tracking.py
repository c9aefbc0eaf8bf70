"""Trackers that receive a run's metrics besides its own files: TensorBoard, Weights & Biases, imported when used."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config import JSONObject, JSONValue
from ..errors import Error


class Tracker:
    """A hook for pretrain and finetune that receives the run's folder and settings before the first line comes. This
    one passes everything on to other trackers."""

    trackers: tuple[Tracker, ...] = ()

    def __init__(self, *trackers: Tracker):
        self.trackers = trackers

    def begin(self, folder: Path, settings: Mapping[str, object]) -> None:
        """Open what the metrics of the run in `folder` are written to; several runs may follow each other."""
        for tracker in self.trackers:
            tracker.begin(folder, settings)

    def __call__(self, line: JSONObject) -> None:
        """Take one line of metrics.jsonl."""
        for tracker in self.trackers:
            tracker(line)

    def close(self) -> None:
        """End what `begin` has opened."""
        for tracker in self.trackers:
            tracker.close()


def flatten_metrics(line: Mapping[str, JSONValue]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl under a tracker's names; what is not finite is left out."""
    training = {**line.get("losses", {}), "lr": line.get("lr"), "norm": line.get("norm")}
    named = {f"training/{name}": value for name, value in training.items()}
    named |= {f"valid/{name}": value for name, value in line.get("valid", {}).items()}
    return {name: value for name, value in named.items() if value is not None}


class TensorBoard(Tracker):
    """Writes into RUN/tensorboard."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise Error("TensorBoard is not installed", fix="pip install 'formers[track]'") from None
        self.writer_class = SummaryWriter
        self.writer: SummaryWriter | None = None

    def begin(self, folder: Path, settings: Mapping[str, object]) -> None:
        """Open the run's folder for TensorBoard."""
        self.close()
        self.writer = self.writer_class(str(folder / "tensorboard"))

    def __call__(self, line: JSONObject) -> None:
        """Write the numbers of one line."""
        assert self.writer is not None
        for name, value in flatten_metrics(line).items():
            self.writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        """Write what is left."""
        if self.writer is not None:
            self.writer.close()
        self.writer = None


class WeightsAndBiases(Tracker):
    """Sends to Weights & Biases. The run has the name of its folder, its project that of the folder around it (or
    WANDB_PROJECT); a resumed run is the same run there: RUN/wandb.json keeps its id."""

    def __init__(self) -> None:
        try:
            client = importlib.import_module("wandb")
        except ImportError:
            raise Error("Weights & Biases is not installed", fix="pip install 'formers[track]'") from None
        self.client = client
        self.run: Any = None  # dynamic: wandb is optional, its types are not here

    def begin(self, folder: Path, settings: Mapping[str, object]) -> None:
        """Begin a run there, or resume the one that was begun."""
        self.close()
        note, path = folder / "wandb.json", folder.resolve()
        known = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
        project = os.environ.get("WANDB_PROJECT") or path.parent.name
        try:
            self.run = self.client.init(
                project=project, name=path.name, dir=str(path), config=dict(settings), resume="allow", **known
            )
        except Exception as error:  # its own, or its connection's
            what = f"Weights & Biases did not begin ({' '.join(str(error).split())[:150]})"
            raise Error(what, fix="log in with: wandb login; without a connection set WANDB_MODE=offline") from None
        note.write_text(json.dumps({"id": self.run.id}), encoding="utf-8")

    def __call__(self, line: JSONObject) -> None:
        """Send the numbers of one line."""
        self.run.log(flatten_metrics(line), step=line["step"])

    def close(self) -> None:
        """Send what is left."""
        if self.run is not None:
            self.run.finish()
        self.run = None


@contextmanager
def open_trackers(tensorboard: bool, wandb: bool) -> Iterator[Tracker | None]:
    """Open the trackers that were asked for, None if none was; a missing package is known before the run begins."""
    trackers = [kind() for kind, is_on in ((TensorBoard, tensorboard), (WeightsAndBiases, wandb)) if is_on]
    tracker = Tracker(*trackers) if trackers else None
    try:
        yield tracker
    finally:
        if tracker is not None:
            tracker.close()
