"""One fine-tuning run on real data: from files to its test metrics, and their spread over seeds."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import formers
from formers.evaluation.metrics import compute_metrics
from formers.tasks.examples import read_examples
from formers.training.runs.cross_validation import split_fold
from formers.training.runs.splits import sample_examples

DATA_FOLDER = Path(os.environ.get("FORMERS_DATA", "data"))
UNCOMPILED = {"train.compile": False}  # of a run that ends before a compiled step pays


@dataclass(frozen=True)
class FinetuneJob:
    """One fine-tuning run; `label` says what its figures stand for, and figures of one label and seed are averaged."""

    label: str
    seed: int
    model: str
    train: str
    valid: str | None = None
    test: str | None = None
    fold: tuple[int, int] | None = None  # (folds, which): it is the test, and the epoch is chosen by others
    task: str = "classify"
    columns: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    max_examples: int = 0  # no more examples of each part than this: to try whether a work works

    @property
    def folder_name(self) -> str:
        """The name of its folder."""
        fold = f"-fold{self.fold[1]}" if self.fold else ""
        few = f"-limit{self.max_examples}" if self.max_examples else ""
        return f"{self.label.replace(' ', '-').replace(',', '')}-seed{self.seed}{fold}{few}"

    def load_splits(self) -> tuple[Any, Any, Any]:
        """Training, validation and test data: files, or rows where a part of a file is wanted."""
        files: list[Any] = [self.train, self.valid, self.test]
        if not self.fold and not self.max_examples:
            return files[0], files[1], files[2]
        found = [file and read_examples(file, self.task, self.columns) for file in files]
        if self.fold:
            found[0], found[2] = split_fold(found[0], *self.fold)
        train, valid, test = (
            sample_examples(one, self.max_examples) if one and self.max_examples else one for one in found
        )
        return train, valid, test


def sample_evenly(rows: list[Any], limit: int) -> list[Any]:
    """A number of rows, evenly spaced over all of them."""
    return rows[:: max(1, len(rows) // limit)][:limit] if limit else rows


def get_data_path(name: str, kind: str = "tsv") -> str:
    """A file of the data folder."""
    return str(DATA_FOLDER / f"{name}.{kind}.xz")


def run_job(run: FinetuneJob, out: Path, device: str, threads: int = 0) -> dict[str, float]:
    """Run a job, unless it is finished; its metrics on the test examples, else on the validation examples."""
    if threads:
        torch.set_num_threads(threads)
    where = out / run.folder_name
    if not (where / "evaluation.json").is_file():
        train, valid, test = run.load_splits()
        formers.finetune(
            run.model, train, valid, test=test, task=run.task, out=where, resume=(where / "run.json").is_file(),
            columns=None if run.fold or run.max_examples else run.columns, device=device,
            overrides={**run.settings, "train.seed": run.seed},
        )  # fmt: skip
        shutil.rmtree(where / "steps", ignore_errors=True)  # several times the model's size, and of no more use
    found = json.loads((where / "evaluation.json").read_text(encoding="utf-8"))["metrics"]
    made = {**(found["test"] or found["valid"])}
    if run.task in ("classify", "regress"):
        made |= {f"TF-IDF {name}": value for name, value in found["baseline"].items() if name in made}
    made |= measure_translation(where, run, device) if run.task == "translate" else {}
    print(run.folder_name, {name: round(value, 4) for name, value in made.items()}, flush=True)
    return made


def measure_translation(where: Path, run: FinetuneJob, device: str, beams: int = 5) -> dict[str, float]:
    """BLEU on the test set with a beam: of lower-cased tokens, and as sacrebleu counts by default."""
    assert run.test is not None
    rows = sample_evenly(read_examples(run.test, "translate", run.columns).rows, run.max_examples)
    texts, truths = [row["text"] for row in rows], [row["target"] for row in rows]
    guesses = formers.load(where / "model", device=device).translate(texts, num_beams=beams)
    (where / "test.txt").write_text("\n".join(guesses), encoding="utf-8")
    plain = compute_metrics("translate", truths, guesses)
    lower = compute_metrics("translate", [text.lower() for text in truths], [text.lower() for text in guesses])
    return {"BLEU, lower case": lower["bleu"], "BLEU, raw": plain["bleu"], "chrF, raw": plain["chrf"]}


def format_spread(values: list[float]) -> str:
    """Mean and deviation."""
    mean = statistics.fmean(values)
    return f"{mean:.4g} ± {statistics.stdev(values):.2g}" if len(values) > 1 else f"{mean:.4g}"


def summarise_by_label(runs: list[FinetuneJob], found: list[dict[str, float]]) -> dict[str, dict[str, str]]:
    """For each label, each metric over seeds; the folds of a seed are averaged first."""
    made: dict[str, dict[str, str]] = {}
    for label in dict.fromkeys(run.label for run in runs):
        by_seed: dict[int, list[dict[str, float]]] = {}
        for run, measures in zip(runs, found, strict=True):
            if run.label == label:
                by_seed.setdefault(run.seed, []).append(measures)
        names = next(iter(by_seed.values()))[0]
        made[label] = {n: format_spread([statistics.fmean(m[n] for m in ms) for ms in by_seed.values()]) for n in names}
    return made
