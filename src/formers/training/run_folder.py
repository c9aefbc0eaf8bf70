"""A run's folder: how it is claimed and locked, and what its files say.

RUN/run.json         the settings, the versions, fingerprints of the data, and the machine
RUN/data/            the tokenizer and the token store, if the run made them
RUN/metrics.jsonl    one line for each step and each evaluation
RUN/samples.jsonl    samples of the model's output during training
RUN/steps/           checkpoints (training/checkpoint/local.py)
RUN/model/           at the end, the best of them: formers.load opens it
RUN/report.html, .md
RUN/lock             held while the run is under way
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..atomic_files import FolderKind, hold_lock, is_locked, remove_empty_folders, replace_folder, write_atomically
from ..config import JSONObject, format_value
from ..errors import Error, advise_on_write, is_disk_full

RUN_FORMAT = 3  # 2: other names of settings; 3: other keys (config, valid, metrics, NAME/accuracy)
TEMPORARY_FILES = ("*.tmp", ".model.*", "data/.tokenizer.*")  # a crash may leave them
RUN_DATA_FOLDER = FolderKind(
    "run's data",
    ("store", "valid", "held", "tokenizer", ".tokenizer.*", "*.note", "train.jsonl", "valid.jsonl", "test.jsonl",
     "tune.json", "tasks"),  # "held": of format 2; "tasks": the examples of a mixture
    (), frozenset(), (),
)  # fmt: skip
RUN_FOLDER = FolderKind(
    "run",
    ("run.json", "data", "metrics.jsonl", "samples.jsonl", "steps", "model", "report.html", "report.md", "lock",
     "evaluation.json", "tensorboard", "wandb", "wandb.json", "*.tmp", ".model.*"),
    ("run.json",), frozenset({"format", "data"}), ("run.json",), (("data", RUN_DATA_FOLDER),),
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
        """The file with a row for each step and each evaluation."""
        return self.path / "metrics.jsonl"

    @contextmanager
    def lock(self) -> Iterator[RunFolder]:
        """Hold the lock of the run: only one process may have it."""
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
        except BrokenPipeError:  # of the standard output, not of this folder
            raise
        except OSError as error:
            reason = error.strerror or error
            what = "the disk is full" if is_disk_full(error) else f"cannot be written or read ({reason})"
            fix = advise_on_write(error, "continue with --resume")
            raise Error(what, where=error.filename or self.path, fix=fix) from None

    def write_info(self, about: JSONObject) -> None:
        """Write run.json atomically."""
        text = json.dumps({"format": RUN_FORMAT, **about}, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.path / "run.json", text, "backslashreplace")  # half a character of a path: as JSON has it

    def read_info(self) -> JSONObject:
        """Read run.json."""
        where = self.path / "run.json"
        if not where.is_file():
            raise Error("this is not a run folder", where=where, fix="formers runs lists them")
        try:
            about = json.loads(where.read_text(encoding="utf-8"))
            self.refuse_earlier_format(about)
            config, result = about["config"], about.get("result") or {}
            tables = config["train"], config["data"], about["data"], result
            good = isinstance(config["train"]["steps"], int) and isinstance(config["family"], str)
            good = good and all(isinstance(table, dict) for table in tables)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            good = False
        if not good:
            fix = "remove this file and repeat the run's command with --resume: text and checkpoints are kept"
            raise Error("is damaged", where=where, fix=fix)
        if about.get("format") != RUN_FORMAT:
            what = f"format {format_value(about.get('format'))} is not supported"
            raise Error(what, where=where, fix="it was made by a newer formers: pip install --upgrade formers")
        return about

    def refuse_earlier_format(self, about: object) -> None:
        """Raise an Error that says how to continue where run.json is of an earlier version."""
        version = about.get("format") if isinstance(about, dict) else None
        if type(version) is not int or version >= RUN_FORMAT:
            return
        fix = "train again with --overwrite or another --out"
        if (self.path / "model").is_dir():
            fix += f"; the model in it still opens: formers export {self.path} DIRECTORY"
        what = f"this run was made by an earlier formers (format {version}) and cannot resume"
        raise Error(what, where=self.path / "run.json", fix=fix)

    def read_history(self) -> list[JSONObject]:
        """Read the rows of metrics.jsonl so far; a line that was cut by a crash is left out."""
        return read_rows(self.metrics_path)

    def read_samples(self) -> list[JSONObject]:
        """Read the samples of the model's output."""
        return [row for row in read_rows(self.path / "samples.jsonl") if "given" in row and "made" in row]

    def truncate_after(self, step: int) -> None:
        """Remove the rows after a step: those steps will be taken again."""
        for file in (self.metrics_path, self.path / "samples.jsonl"):
            kept = [row for row in read_rows(file) if row["step"] <= step]
            write_atomically(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))


def has_run(path: Path) -> bool:
    """Return whether a run has begun in a folder: its run.json is there."""
    return (path / "run.json").is_file()


@contextmanager
def claim_run_folder(path: Path | None, stem: str) -> Iterator[Path]:
    """Make the folder of a run: `path`, or the first free runs/STEM-NUMBER, which no other process can take as well. A
    run that fails before its run.json is written leaves no folder behind: a numbered one is removed, a named one if it
    was not there before and no file is in it. A token store that is complete survives Ctrl-C."""
    runs = Path("runs") if path is None else path.parent
    new = [folder for folder in (runs, *runs.parents) if not folder.exists()]
    there = path is not None and path.exists()
    try:
        numbered = (runs / f"{stem}-{i}" for i in itertools.count(1))
        here = next(p for p in numbered if make_folder(p)) if path is None else path
        here.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Error(f"cannot write here ({error.strerror})", where=path or runs, fix="choose another --out") from None
    try:
        yield here
    except BaseException as error:
        if not there and next(here.rglob("run.json"), None) is None and not is_locked(here / "lock"):
            stored = next(here.rglob("store.json"), None) is not None
            if path is None and (isinstance(error, Exception) or not stored):
                shutil.rmtree(here, ignore_errors=True)
            inside = sorted((p for p in here.rglob("*") if p.is_dir()), reverse=True)
            remove_empty_folders([*inside, here, *new])
        raise


@contextmanager
def open_run_folder(
    path: Path | None, stem: str, overwrite: bool, inputs: object = ()
) -> Iterator[tuple[RunFolder, Callable[[], None]]]:
    """Claim and lock the folder of a run. With `overwrite`, an earlier run in `path` is moved aside, and comes back if
    the new one does not begin; the function that is given removes it for good. `inputs` must not be inside it."""
    with (
        replace_folder(path, RUN_FOLDER, overwrite, inputs) as remove_replaced,
        claim_run_folder(path, stem) as here,
        RunFolder(here).lock() as folder,
    ):
        yield folder, remove_replaced


def make_folder(path: Path) -> bool:
    """Make a folder, unless the name is taken; return whether it was made."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            return False
        except FileNotFoundError:  # another process that failed has just removed the empty parent
            continue
        return True


def find_newest_run(family: str | None) -> Path | None:
    """Find the run that was begun last, of a family or of all."""
    runs = [p.parent for p in Path("runs").glob(f"{family or '*'}-*/run.json")]
    return max(runs, key=lambda p: (p / "run.json").stat().st_mtime_ns, default=None)


def summarise_run(folder: RunFolder, name: object) -> tuple[str, ...]:
    """Summarise a run in a row: name, family, task, steps, main metric, parameters, state."""
    try:
        about, rows = folder.read_info(), folder.read_history()
    except Error as error:
        return str(name), "–", "–", "–", "–", "–", error.what
    config, result = about["config"], about.get("result") or {}
    done = max((row["step"] for row in rows), default=0)
    ended = bool(result) and done >= config["train"]["steps"]  # one that had ended may continue for more steps
    early = bool(result) and result.get("ended") == [done, config["train"]["steps"]]  # stopped by its own patience
    lost = not result and any(row.get("skipped") for row in rows if row["step"] == done)
    state = "done" if ended or early else "diverged" if lost else "stopped"
    state = "running" if is_locked(folder.path / "lock") else state
    size = f"{result['parameters']:,}" if is_number(result.get("parameters")) else "–"
    family, task = str(config.get("method") or config["family"]), str(config.get("task") or "pretrain")
    steps = f"{done:,} of {config['train']['steps']:,}"
    return str(name), family, task, steps, format_main_result(config, result, rows), size, state


def format_main_result(config: JSONObject, result: JSONObject, rows: list[JSONObject]) -> str:
    """Format a run's deciding metric, with its name: of the test examples if there are some, else of the validation
    ones; on the way, the best so far."""
    metrics = result.get("metrics") or {}
    scores = metrics.get("test") or metrics.get("valid") or {}
    named = (config.get("tune") or {}).get("metric")
    name = named if named in scores else next(iter(scores), None)
    if name is not None:
        part = "test " if metrics.get("test") else ""
        return "–" if scores[name] is None else f"{part}{name} {scores[name]:.4f}"
    score = (result.get("score") or {}).get("loss")  # of its own part alone, as the command said it
    losses = [row["valid"]["loss"] for row in rows if "valid" in row and row["valid"].get("loss") is not None]
    best = score if is_number(score) else min(losses, default=None)
    return "–" if best is None else f"loss {best:.3f}"


def read_rows(file: Path) -> list[JSONObject]:
    """Read the lines of a file of JSON, without damaged ones."""
    rows = []
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n") if file.is_file() else ():
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and is_valid_row(row):
                rows.append(row)
    return rows


def is_valid_row(row: JSONObject) -> bool:
    """Check that the values of a row of metrics.jsonl are numbers."""
    losses, valid = row.get("losses", {}), row.get("valid", {})
    if not isinstance(losses, dict) or not isinstance(valid, dict):
        return False
    numbers = [row.get(name) for name in ("loss", "norm", "lr", "tokens", "seconds")]
    numbers += [valid.get(name) for name in ("loss", "cost")]
    return isinstance(row.get("step"), int) and all(value is None or is_number(value) for value in numbers)


def is_number(value: object) -> bool:
    """Return whether a value is a number, and small enough to compute with."""
    return isinstance(value, int | float) and abs(value) < 1e300


class MetricsLog:
    """Writes metrics.jsonl, a line for each row."""

    def __init__(self, folder: RunFolder, first_step: int, hook: Callable[[JSONObject], None] | None = None):
        folder.truncate_after(first_step)
        self.file, self.hook = open(folder.metrics_path, "a", encoding="utf-8"), hook  # noqa: SIM115

    def write_row(self, line: JSONObject) -> None:
        """Write one row."""
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        if self.hook is not None:
            self.hook(line)

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def to_json_number(value: float) -> float | None:
    """Replace a number that is not finite by None: JSON has no other way to write it."""
    return value if math.isfinite(value) else None
