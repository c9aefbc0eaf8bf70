"""Repeated fine-tuning: folds, seeds or settings of one task, with means and standard deviations."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...atomic_files import check_overwrite, replace_folder
from ...config import ProgressCallback, Settings, build_config, coerce_value
from ...data.counter_rng import shuffle_indices
from ...errors import Error
from ...evaluation.metrics import to_cost
from ...reports.run_report import escape_markdown, render_markdown_table, write_text_file
from ...tasks.example_tables import split_source
from ...tasks.examples import Columns, Examples
from ..config_merge import (
    FINETUNE_TABLES,
    READER_SETTINGS,
    FinetuneDataConfig,
    configure_finetuning,
    parse_value,
    read_config,
    read_known_settings,
    unflatten_tables,
)
from ..distributed.process_group import ProcessGroup, connect_processes
from ..run_folder import COMPARISON_FOLDER, RunFolder, claim_run_folder, has_run
from ..train_config import SettingValue
from ..trainer import Diverged
from .finetune import check_same_run, collect_settings, find_model, finetune
from .splits import group_by_context, read_split, select_examples
from .task_model import find_contradictions, refuse_first

EXAMPLE_READER_SETTINGS = ("columns", "label_separator", *READER_SETTINGS)  # settings that say how examples are read


@dataclass(frozen=True)
class Trial:
    """One way to learn: its settings, and its measures in each run."""

    settings: Settings
    runs: list[dict[str, float]]

    def mean(self, name: str) -> float:
        """Return the mean of a metric over all runs."""
        return statistics.fmean(run[name] for run in self.runs)

    def std(self, name: str) -> float:
        """Return the standard deviation of a metric over all runs."""
        return statistics.stdev([run[name] for run in self.runs]) if len(self.runs) > 1 else 0.0


@dataclass(frozen=True)
class Comparison:
    """All trials, the best first; `folder` holds every run and summary.json."""

    folder: Path
    trials: list[Trial]
    diverged_runs: tuple[str, ...] = ()  # runs whose result is not finite; their trials are left out

    def to_rows(self) -> list[list[str]]:
        """Return a table: settings, runs, and mean ± deviation of each metric."""
        names = list(self.trials[0].runs[0])
        rows = [["settings", "runs", *names]]
        for trial in self.trials:
            description = ", ".join(f"{key} {value}" for key, value in trial.settings.items()) or "as given"
            cells = [f"{trial.mean(name):.4f} ± {trial.std(name):.4f}" for name in names]
            rows.append([description, str(len(trial.runs)), *cells])
        return rows

    def format_table(self) -> str:
        """Format the table of all trials for a terminal, and where the runs are."""
        return "\n".join("  ".join(row) for row in self.to_rows()) + f"\nruns: {self.folder}"

    def raise_if_diverged(self) -> None:
        """Raise Diverged if a run has."""
        if self.diverged_runs:
            names = ", ".join(self.diverged_runs)
            what = f"{len(self.diverged_runs)} of the runs diverged, and their settings are left out: {names}"
            raise Diverged(what, where=self.folder, fix="take a smaller learning rate for them")


def compare_settings(
    model: str | Path | None, train: object, valid: object = None, *, test: object = None, task: str | None = None,
    columns: Columns = None, folds: int = 0, seeds: int = 1, sweep: str | Mapping[str, SettingValue] = "",
    out: str | Path | None = None, overwrite: bool = False, overrides: Mapping[str, SettingValue] | None = None,
    tell: ProgressCallback | None = None, say: Callable[[str], None] = lambda text: None,
    **finetune_options: Any,  # dynamic: the keywords of finetune
) -> Comparison:  # fmt: skip
    """Fine-tune with each combination of `sweep` ("lr=1e-4,3e-4 batch_size=16,32"), `seeds` and `folds`; runs that are
    done are not repeated, unless `overwrite` lets a new comparison take the place of that in `out`. With folds, each
    part of the examples is the test once, and some others choose the epoch. The measures are those of the test
    examples, else of the validation ones. `finetune_options` are further arguments of finetune."""
    check_overwrite(out, False, overwrite)
    if folds == 1 or folds < 0 or seeds < 1:
        what = f"a comparison needs 2 folds or more and 1 seed or more, got {folds} and {seeds}"
        raise Error(what, fix="take for example 5 folds and 3 seeds")
    if folds and (valid is not None or test is not None):
        raise Error("folds hold out parts of the training examples themselves", fix="leave valid and test out")
    if folds and task == "lm":
        raise Error("plain text cannot be split into folds", fix="leave folds out; seeds and sweep work")
    train, valid_part = split_source(train)
    valid = valid_part if valid is None and not folds else valid
    # Every run reads the examples: what can be read only once is kept.
    train, valid, test = (list(one) if isinstance(one, Iterator) else one for one in (train, valid, test))
    world = connect_processes(finetune_options.get("device"))  # one meeting for all runs
    read = partial(read_all_examples, train, task, columns, overrides or {}, finetune_options)
    whole = world.broadcast_from_main(read) if folds else None
    first, every = get_first_seed(overrides or {}, finetune_options), expand_sweep(sweep)
    if seeds > 1 and any("train.seed" in settings for settings in every):
        raise Error("seeds and a sweep over seed contradict each other", fix="leave one of them out")
    if task != "lm":
        for settings in every:
            coerce_value(settings.get("train.seed", first), int, "train.seed")
        for settings in every:  # a mistake in the last combination is known before the first is trained
            check_settings(model, task, finetune_options, {**(overrides or {}), **settings})
    trials, diverged = list[Trial](), list[str]()
    with ExitStack() as stack:
        out_folder = None if out is None else Path(out)
        inputs = (model, train, valid, test, dict(overrides or {}), finetune_options.get("config"))

        def claim() -> Path:
            stack.enter_context(replace_folder(out_folder, COMPARISON_FOLDER, overwrite, inputs))
            return stack.enter_context(claim_run_folder(out_folder, "comparison"))

        path = world.broadcast_from_main(claim)
        for settings in every:
            runs, before = [], len(diverged)
            start = coerce_value(settings.get("train.seed", first), int, "train.seed")
            for seed, fold in itertools.product(range(start, start + seeds), range(max(1, folds))):
                name = name_run(settings, seed, fold + 1 if folds else None)
                say(f"run {name}")
                train_examples, test_examples = (train, test) if whole is None else split_fold(whole, folds, fold)
                trial_overrides = {**(overrides or {}), **settings, "train.seed": seed}
                run_options: Settings = {
                    "test": test_examples, "task": task if whole is None else whole.task,
                    "columns": columns if whole is None else None, "overrides": trial_overrides, **finetune_options,
                }  # fmt: skip
                try:
                    runs.append(
                        run_trial(world, path / name, model, train_examples, valid, tell=tell, say=say, **run_options)
                    )
                except Error as error:
                    if error.exit_code != Diverged.exit_code:
                        raise
                    say(f"run {name} is left out: {error}")
                    diverged.append(name)
            if len(diverged) == before:
                trials.append(Trial(settings, runs))
        if not trials:
            Comparison(path, [], tuple(diverged)).raise_if_diverged()
        main = world.broadcast_from_main(partial(get_main_metric, path / name, trials[0].runs[0]))
        order = sorted(trials, key=lambda trial: to_cost(main, trial.mean(main)))
        comparison = Comparison(path, order, tuple(diverged))
        if world.is_main:
            write_comparison(comparison)
        world.close()
    return comparison


def check_settings(
    model: str | Path | None, task: str | None, finetune_options: Mapping[str, SettingValue],
    overrides: Mapping[str, SettingValue],
) -> None:  # fmt: skip
    """Refuse settings that a run would refuse, before any of several runs begins."""
    if model is None:
        return
    bare = {k: v for k, v in finetune_options.items() if k not in ("config", "device", "hook", "columns")}
    overrides_by_name, choice = collect_settings(bare, overrides, {}, None), find_model(model)
    file = finetune_options.get("config")
    refuse_first(find_contradictions(choice, read_known_settings(choice, file, overrides_by_name)[1]))
    if task is not None:  # else the examples say it
        configure_finetuning(choice, task, file, overrides_by_name)


def read_all_examples(
    train: object, task: str | None, columns: Columns, overrides: Mapping[str, SettingValue],
    finetune_options: Mapping[str, SettingValue],
) -> Examples:  # fmt: skip
    """Read all examples, to be split into folds; the overrides, single settings or a file say how they are read."""
    tables = [read_config(finetune_options.get("config")).get("data") or {}, finetune_options.get("data") or {}]
    own = unflatten_tables(overrides, FINETUNE_TABLES).get("data", {})
    options = {**tables[0], **tables[1], **finetune_options, **own}
    reader_settings = {key: value for key, value in options.items() if key in EXAMPLE_READER_SETTINGS}
    data = build_config(FinetuneDataConfig, reader_settings, where="data")
    return read_split(train, task, columns or data.columns, data.label_separator, **data.reader_options)


def run_trial(
    world: ProcessGroup, where: Path, model: str | Path | None, train: object, valid: object, *,
    tell: ProgressCallback | None, say: Callable[[str], None], **options: Any,  # dynamic: the keywords of finetune
) -> dict[str, float]:  # fmt: skip
    """Return the metrics of a run, which may be done, have begun, or begin now."""
    before, has_begun = world.broadcast_from_main(lambda: (read_finished_metrics(where), has_run(where)))
    if has_begun:
        world.broadcast_from_main(partial(check_same_run, where, model, train, valid, **options))
    if before:
        return before
    run = finetune(model, train, valid, out=where, resume=has_begun, tell=tell, say=say, **options)
    return run.test or run.valid


def write_comparison(comparison: Comparison) -> None:
    """Write all trials and their table into the folder."""
    rows, path = comparison.to_rows(), comparison.folder
    trials = [dataclasses.asdict(trial) for trial in comparison.trials]
    write_text_file(path / "summary.json", json.dumps(trials, indent=1, default=str))
    lines = [f"# {escape_markdown(path.name)}", "", *render_markdown_table(rows[0], rows[1:]), ""]
    if comparison.diverged_runs:
        lines += [f"Diverged, and left out: {escape_markdown(', '.join(comparison.diverged_runs))}", ""]
    write_text_file(path / "report.md", "\n".join(lines))


def name_run(settings: Mapping[str, SettingValue], seed: int, fold: int | None) -> str:
    """Name the folder of a run: lr=0.001-seed0-fold1."""
    parts = [f"{key.rpartition('.')[2]}={value}" for key, value in settings.items()]
    parts += [] if "train.seed" in settings else [f"seed{seed}"]
    return "-".join([*parts, *([] if fold is None else [f"fold{fold}"])])


def get_first_seed(overrides: Mapping[str, SettingValue], finetune_options: Mapping[str, SettingValue]) -> int:
    """Return the seed that was given, wherever it was; 0 if none was."""
    layers = finetune_options, read_config(finetune_options.get("config"))
    tables = [(table.get("train") or {}).get("seed") for table in layers]
    seeds = [overrides.get("train.seed"), finetune_options.get("seed"), *tables]
    return next((coerce_value(seed, int, "train.seed") for seed in seeds if seed is not None), 0)


def get_main_metric(where: Path, seen: Mapping[str, float]) -> str:
    """Return the metric that trials are sorted by: the one that a run was asked to choose by, else the first."""
    named = RunFolder(where).read_info()["config"].get("tune", {}).get("metric")
    return named if named in seen else next(iter(seen))


def read_finished_metrics(where: Path) -> dict[str, float]:
    """Read the metrics of a run that has ended."""
    file = where / "evaluation.json"
    metrics = json.loads(file.read_text(encoding="utf-8"))["metrics"] if file.is_file() else {}
    return metrics.get("test") or metrics.get("valid") or {}


def split_fold(whole: Examples, folds: int, fold: int) -> tuple[Examples, Examples]:
    """Return all examples but a fold's, and those; folds differ by one row at most, or by one context with its rows."""
    groups = group_by_context(whole)
    if len(groups) < folds:
        kind = "examples" if len(groups) == len(whole.rows) else "contexts"
        raise Error(f"{len(groups)} {kind} cannot be split into {folds} folds", fix="take fewer")
    parts: list[list[int]] = [[] for _ in range(folds)]
    for number in shuffle_indices(len(groups), 0, 0, 0xF01D).tolist():
        min(parts, key=len).extend(groups[number])
    test_rows = set(parts[fold])
    rest = [i for i in range(len(whole.rows)) if i not in test_rows]
    return (
        select_examples(whole, rest, f"{whole.summary}; all folds but {fold + 1} of {folds}"),
        select_examples(whole, sorted(test_rows), f"{len(test_rows):,} examples, fold {fold + 1} of {folds}"),
    )


def expand_sweep(sweep: str | Mapping[str, SettingValue]) -> list[Settings]:
    """Return every combination of settings: "lr=1e-4,3e-4 batch_size=16,32" → four tables of dotted names."""
    if isinstance(sweep, str):
        words = [word.partition("=") for word in sweep.split()]
        if any(not equal or not value for _, equal, value in words):
            what = f"{sweep!r} is not of the form NAME=VALUE,VALUE"
            raise Error(what, fix='say for example "lr=1e-4,3e-4 batch_size=16,32"')
        sweep = {name: [parse_value(value) for value in values.split(",")] for name, _, values in words}
    full = {"lr": "train.lr", "seed": "train.seed"}
    names = [name if "." in name else full.get(name, f"tune.{name}") for name in sweep]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*sweep.values())]
