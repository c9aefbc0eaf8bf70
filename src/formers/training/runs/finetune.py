"""formers.finetune: a model learns a task from examples, and is judged by it. A run like any other."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config import ProgressCallback, coerce_value
from ...data.folder_replacement import TAKEN_HINT, check_overwrite, replace_folder
from ...data.readers import is_path_source
from ...errors import Error
from ...evaluation.metrics import describe_baselines, has_sklearn, run_baseline, run_majority_baseline
from ...evaluation.task import TaskEvaluation, build_report_tables, evaluate_task, format_example, get_metric_signatures
from ...former import Former, count_trainable
from ...interop.huggingface import explain_export_limits
from ...nn.lora import apply_adapters
from ...option_aliases import explain_name, resolve_setting, resolve_settings, resolve_task_name
from ...reports.run_report import format_number, write_report
from ...tasks.example_tables import split_source
from ...tasks.examples import Examples
from ...text.normalise import detect_language
from ..checkpoint.local import Checkpoints
from ..config_merge import flatten_tables, read_config, unflatten_tables
from ..distributed.ddp import connect_processes, explain_lost_peer
from ..hardware import (
    ProgressMeter,
    describe_hardware,
    explain_out_of_memory,
    format_time_left,
    get_peak_memory,
    use_deterministic,
)
from ..run_folder import RUN_FOLDER, RunFolder, run_training_loop, to_json_number
from ..tracking import Tracker
from ..train_config import RESUMABLE_SETTINGS
from .continue_pretraining import (
    TextRunPlan,
    check_text_settings,
    compute_lm_metrics,
    continue_pretraining,
    is_text_run,
    plan_text_run,
)
from .dry_run import dry_run_pretraining, estimate_duration
from .finetune_config import (
    DERIVED_SETTINGS,
    FINETUNE_TABLES,
    FinetuneConfig,
    FinetuneDataConfig,
    TuneConfig,
    configure_finetuning,
    describe_random_start,
    resolve_model,
)
from .finetune_run import FinetuneRun
from .pretrain import check_finite, claim_run_folder, save_best_model
from .resume import refuse_if_finished
from .splits import (
    SPLITS,
    find_overlap,
    fingerprint_examples,
    format_overlap_warnings,
    read_splits,
    save_examples,
    wrap_labels_in_lists,
)
from .task_model import read_checkpoint_family
from .trainable import finalise_model


@dataclass(frozen=True)
class FinetuneResult:
    """A finished run: its folder, the model, and the measures of it on held-out and test examples and of a baseline
    (a linear model over counted words) on the same."""

    folder: Path
    former: Former
    valid: dict[str, float]
    test: dict[str, float]
    baseline: dict[str, float]
    seconds: float
    majority: dict[str, float] = field(default_factory=dict)  # the most frequent label, on the same

    @property
    def baseline_summary(self) -> str:
        """What the baselines reach and on which part, in one line; empty if there is none."""
        kind = "token frequencies alone" if "perplexity" in self.baseline else "TF-IDF + linear"
        named = {"most frequent label": self.majority, kind: self.baseline}
        return describe_baselines("test" if self.test else "validation", named)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One table for each step and each look at held-out examples."""
        return RunFolder(self.folder).read_history()


def finetune(
    model: str | Path | None = None,
    train: Any = None,
    valid: Any = None,
    *,
    task: str | None = None,
    test: Any = None,
    columns: Any = None,
    out: str | Path | None = None,
    config: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    device: Any = None,
    overrides: Mapping[str, Any] | None = None,
    tell: ProgressCallback | None = None,
    say: Callable[[str], None] = lambda text: None,
    hook: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> FinetuneResult:
    """Teach a model a task: a checkpoint (a folder, hub:owner/name), or a family or preset from scratch.

    `train`, `valid` and `test` are files, lists of tables, DataFrames or datasets (of a DatasetDict, `train` takes the
    training part and the validation part); without `valid`, some training examples are held out. The task is found by
    the columns if none is named: classify, regress, tag, answer, choose, translate, summarise; lm, which must be named,
    goes on with a checkpoint's pretraining on plain text, judged by perplexity (the baseline is then that of token
    frequencies). Settings are those of training/runs/finetune_config.py: single ones by their names (epochs=3,
    batch_size=32, lr=1e-3, seed=1, lora=8), any by `overrides` ({"train.grad_clip": 0.5}) or a `config` file. With
    `resume`, a run in `out` goes on where it stopped; with `overwrite`, a new one takes its place. `tell`, `say` and
    `hook` are those of formers.pretrain.
    """
    began, tell = time.perf_counter(), tell or (lambda *_: None)
    check_overwrite(out, resume, overwrite)
    model, task = read_model_and_task(config, model, task)
    train, held = split_source(train)
    sources = {"train": train, "valid": held if valid is None else valid, "test": test}
    given = collect_overrides(settings, overrides, sources, columns)
    if is_text_run(task, out, resume):
        say("plain text: the model goes on with its own objective, as formers pretrain --init does")
        how = {"device": device, "tell": tell, "say": say, "hook": hook, "overwrite": overwrite}
        made = continue_pretraining(model, sources, given, out, resume, config, **how)
        return FinetuneResult(
            made.folder,
            made.former,
            compute_lm_metrics(made.score),
            {},
            compute_lm_metrics(made.baseline),
            made.seconds,
        )
    world = connect_processes(device)
    with ExitStack() as stack:
        stack.enter_context(explain_lost_peer(world))

        replaced: list[Callable[[], None]] = []

        def begin() -> tuple[Path, Any, FinetuneConfig, dict[str, Examples]]:
            path = None if out is None else Path(out)
            told = {**flatten_tables(read_config(config)), **given}
            before = None if overwrite else read_resumed_run(path, resume, told)
            now = given if before is None else told | compute_extended_steps(before, told)
            wanted, parts = load_config_and_examples(model, task, sources, columns, config, now, before, path)
            replaced.append(
                stack.enter_context(replace_folder(path, RUN_FOLDER, overwrite, (wanted.to_dict(), config)))
            )
            path = stack.enter_context(claim_run_folder(path, f"{wanted.family}-{wanted.task}"))
            stack.enter_context(RunFolder(path).lock())
            return path, before, wanted, parts

        path, before, wanted, parts = world.broadcast_from_main(begin)  # the others see what the first one read
        stack.enter_context(explain_out_of_memory(wanted.train, None, world.device))
        stack.enter_context(use_deterministic(wanted.train.deterministic))
        folder = RunFolder(path)
        for name, part in parts.items():
            say(f"{name}: {part.summary}")
        for line in format_overlap_warnings(find_overlap(parts)):
            say(line)
        run = FinetuneRun(wanted, parts, path, world, tell, say)
        world.broadcast_from_main(lambda: record_run(folder, run, before, sources))
        for remove_old in replaced:
            remove_old()
        if wanted.source is None and wanted.tune.vectors is None:
            say(describe_random_start(wanted.family, wanted.preset))
        say(run.describe())
        if world.is_main and (why := explain_export_limits(run.former)) is not None:
            say(f"export: {why}")
        meter = ProgressMeter(
            run.trainer, tell, None if run.main_metric == "loss" and run.task.kind == "text" else run.describe_latest
        )
        if isinstance(hook, Tracker) and world.is_main:
            hook.begin(path, run.config.to_dict())
        first = run_training_loop(
            run.trainer, run.iter_batches, folder, evaluate=run.evaluate, hook=hook, say=say, tell=meter
        )
        if first == run.config.train.steps:
            length, raised = describe_run_length(folder.read_info())
            say(f"this run was finished before, after {length}; raise {raised} to go on")
        found = world.broadcast_from_main(lambda: finish_finetuning(folder, run, tell))  # all know how good it is
        world.close()
    seconds = time.perf_counter() - began
    return FinetuneResult(
        path, run.former, found["valid"], found["test"], found["baseline"], seconds, found["majority"]
    )


def read_model_and_task(config: Any, model: Any, task: str | None) -> tuple[Any, str | None]:
    """The model and the task, taken from a file of settings where they are not named."""
    told = read_config(config)
    named = model or told.get("source") or told.get("preset") or told.get("family")
    return named, resolve_task_name(task or told.get("task"))


def plan_finetuning(
    model: Any, train: Any, valid: Any, *, task: str | None, test: Any, columns: Any, config: Any,
    overrides: Mapping[str, Any], tell: ProgressCallback,
) -> tuple[FinetuneConfig, dict[str, Examples]] | TextRunPlan:  # fmt: skip
    """What a run would be asked to do: settings and examples, or, of plain text, the settings of its pretraining."""
    model, task = read_model_and_task(config, model, task)
    train, held = split_source(train)
    sources = {"train": train, "valid": held if valid is None else valid, "test": test}
    given = collect_overrides({}, overrides, sources, columns)
    if task == "lm":
        with tempfile.TemporaryDirectory() as folder:
            return plan_text_run(model, sources, given, config, Path(folder), tell)
    return load_config_and_examples(model, task, sources, columns, config, given, None, None)


def render_settings(model: Any, train: Any, valid: Any, **asked: Any) -> str:
    """All settings of a run as YAML, for --config; without examples, those of classification."""
    told = {**flatten_tables(read_config(asked["config"])), **asked["overrides"]}
    if train is not None or told.get("data.train") is not None:
        found = plan_finetuning(model, train, valid, tell=lambda *_: None, **asked)
        return found.build_config().to_yaml() if isinstance(found, TextRunPlan) else found[0].to_yaml()
    model, task = read_model_and_task(asked["config"], model, asked["task"])
    if model is None:
        raise Error("no model is named", fix="give a folder, hub:owner/name, or a family: formers tree lists them")
    if task == "lm":
        raise Error("the settings of --task lm depend on the text", fix="give --train FILE")
    family, source, preset = resolve_model(str(model))
    given = collect_overrides({}, asked["overrides"], {}, asked["columns"])
    return configure_finetuning(
        family or read_checkpoint_family(str(source)), source, preset, task or "classify", asked["config"], given
    ).to_yaml()


def dry_run_finetuning(
    model: Any, train: Any, valid: Any, *, device: Any = None, **asked: Any
) -> list[tuple[str, str]]:
    """A dry run: what was understood of the examples, and how large and how long the run would be, from a few measured
    steps. Nothing is written."""
    found = plan_finetuning(model, train, valid, tell=lambda *_: None, **asked)
    if isinstance(found, TextRunPlan):
        return dry_run_pretraining(found.family, asked["config"], found.settings, device=device, init=found.source)
    wanted, parts = found
    world = connect_processes(device)
    with (
        tempfile.TemporaryDirectory() as folder, explain_out_of_memory(wanted.train, None, world.device),
        use_deterministic(wanted.train.deterministic),
    ):  # fmt: skip
        said = format_overlap_warnings(find_overlap(parts))
        run = FinetuneRun(wanted, parts, Path(folder), world, lambda *_: None, said.append)
        first, seconds = estimate_duration(run)
        s, total = run.config.train, sum(p.numel() for p in run.former.model.parameters())
        vectors = None if wanted.tune.vectors is None else f"the embeddings start from {wanted.tune.vectors}"
        start = wanted.source or vectors or describe_random_start(wanted.family, wanted.preset)
        labels = [*run.splits["train"].labels]
        seen = s.steps * s.batch_tokens * s.accumulate
        saved = sum(t.nbytes for group in run.trainer.get_state()[0].values() for t in group.values())
        rows = [
            ("task", wanted.task), *((name, part.summary) for name, part in parts.items()),
            *([("labels", ", ".join(labels[:20]) + (" …" if len(labels) > 20 else ""))] if labels else []),
            *(("note", line) for line in said),
            ("model", f"{count_trainable(run.former.model):,} of {total:,} parameters learn; {start}"),
            ("judged by", f"{run.main_metric} on the valid examples, {max(1, s.steps // s.eval_every):,} times"),
            ("steps", f"{s.steps:,} of {s.batch_tokens * s.accumulate:,} tokens: {wanted.tune.epochs:g} epochs"),
            ("checkpoint", f"{saved / 1e6:,.1f} MB each, {max(2, s.keep_last + s.keep_best)} kept"),
            ("memory", f"{get_peak_memory(world.device) / 2**30:.1f} GiB at most so far, on {world.device}"),
            ("first step", f"{first:.1f} s"),
            ("speed", f"{seen / seconds:,.0f} tokens/s, {seconds / s.steps:.3f} s a step"),
            ("time", f"{format_time_left(seconds).replace(' left', '')}, without evaluation"),
        ]  # fmt: skip
    world.close()
    return rows if world.is_main else []


def collect_overrides(
    settings: Mapping[str, Any], overrides: Mapping[str, Any] | None, sources: Mapping[str, Any], columns: Any
) -> dict[str, Any]:
    """Settings given by their bare names or as tables, and by dotted names, under dotted names."""
    given: dict[str, Any] = {}
    tune, data = ({f.name for f in dataclasses.fields(kind)} for kind in (TuneConfig, FinetuneDataConfig))
    for name, value in settings.items():
        if name in FINETUNE_TABLES and isinstance(value, Mapping):
            given |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif name in tune or name in data:
            given[f"{'tune' if name in tune else 'data'}.{name}"] = value
        elif name in ("lr", "seed", "steps", "optimizer", "schedule", "workers", "precision", "grad_clip", "ema"):
            given[f"train.{name}"] = value
        elif resolve_setting(name, FINETUNE_TABLES) != name:
            given[name] = value
        else:
            fix = explain_name(name, (*tune, *data)) or f"settings are {', '.join(sorted(tune))}, lr, seed"
            raise Error(f"finetune has no argument {name!r}", fix=fix)
    given |= {f"data.{n}": str(v) for n, v in sources.items() if v is not None and is_path_source(v)}
    if isinstance(columns, str):
        given["data.columns"] = columns
    return resolve_settings(given | dict(overrides or {}), FINETUNE_TABLES)


def read_resumed_run(path: Path | None, resume: bool, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """What run.json says of a run that goes on."""
    if path is None or not (path / "run.json").is_file():
        return None
    if not resume:
        raise Error("there is a run here already", where=path, fix=TAKEN_HINT)
    about = RunFolder(path).read_info()
    asked = about["asked"]
    now = configure_finetuning(asked["family"], asked["source"], asked["preset"], asked["task"], asked, given).to_dict()
    may = {
        *(f"data.{name}" for name in SPLITS),
        *(f"train.{name}" for name in RESUMABLE_SETTINGS),
        "tune.patience",
        "tune.epochs",
    }
    for key in sorted(set(given) - may):
        table, _, name = key.partition(".")
        if asked.get(table, {}).get(name) != now.get(table, {}).get(name):
            raise Error(f"{key} cannot change in a run that goes on", where=path, fix="leave it out")
    then = configure_finetuning(
        asked["family"],
        asked["source"],
        asked["preset"],
        asked["task"],
        asked,
        {**given, **compute_extended_steps(about, given)},
    )
    length, raised = describe_run_length(about)
    refuse_if_finished(path, about, then.to_dict(), length, raised)
    done = max(Checkpoints(path / "steps", remove_stale=False).list_steps(), default=0)
    if done > then.train.steps:
        if "tune.epochs" in given and "train.steps" not in given:
            seen = f"{done * asked['tune']['epochs'] / asked['train']['steps']:.3g}"
            what = f"{seen} epochs are done, more than {then.tune.epochs:g}"
            raise Error(what, where=path, fix=f"--epochs {seen} or more")
        what = f"{done:,} steps are done, more than {then.train.steps:,}"
        raise Error(what, where=path, fix=f"--train.steps {done} or more")
    return about


def describe_run_length(about: Mapping[str, Any]) -> tuple[str, str]:
    """How long a run was asked to be, in epochs or, if it was given them, in steps; and the option that raises it."""
    asked, by_steps = about["asked"], "steps" in about.get("chosen", ())
    if by_steps:
        return f"{asked['train']['steps']:,} steps", f"--train.steps above {asked['train']['steps']:,}"
    epochs = asked["tune"]["epochs"]
    return f"{epochs:g} epoch{'s' * (epochs != 1)}", f"--epochs above {epochs:g}"


def compute_extended_steps(about: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The steps of a run that goes on for another number of epochs."""
    asked = about["asked"]
    if "tune.epochs" not in given or "train.steps" in given:
        return {}
    now = unflatten_tables({"tune.epochs": given["tune.epochs"]}, FINETUNE_TABLES)["tune"]["epochs"]
    old = asked["tune"]["epochs"]
    if coerce_value(now, float, "tune.epochs") == old:
        return {}
    if "steps" in about.get("chosen", ()):
        raise Error("this run was given a number of steps, not of epochs", fix="raise --train.steps")
    return {"train.steps": max(1, round(asked["train"]["steps"] * now / old))}


def load_config_and_examples(
    model: Any, task: str | None, sources: dict[str, Any], columns: Any, config: Any, given: dict[str, Any],
    before: dict[str, Any] | None, path: Path | None,
) -> tuple[FinetuneConfig, dict[str, Examples]]:  # fmt: skip
    """The settings and the examples; of a run that goes on, those that it has."""
    told: Any = config if before is None else before["asked"]
    if before is not None:
        family, source, named, task = (before["asked"][key] for key in ("family", "source", "preset", "task"))
    else:
        if model is None:
            raise Error("no model is named", fix="give a folder, hub:owner/name, or a family: formers tree lists them")
        family, source, named = resolve_model(str(model))
        family = family or read_checkpoint_family(str(source))
    first = configure_finetuning(family, source, named, task or "classify", told, given)
    parts = read_splits(first.data, task, sources, columns, None if before is None else path)
    if parts["train"].task == "lm":
        fix = "say --task lm, and the model goes on with its pretraining on it; or give a table with answers"
        raise Error("the training examples are plain text without answers", fix=fix)
    labels = () if before is None else before["data"].get("labels", ())
    if set(parts["train"].labels) <= set(labels):  # folds know the labels of all, datasets have an order of their own
        parts["train"] = dataclasses.replace(parts["train"], labels=tuple(labels))
    wanted = configure_finetuning(family, source, named, parts["train"].task, told, given)
    return wanted, {
        name: wrap_labels_in_lists(part) for name, part in parts.items()
    } if wanted.tune.multilabel else parts


def record_run(folder: RunFolder, run: FinetuneRun, before: dict[str, Any] | None, sources: Mapping[str, Any]) -> None:
    """Write run.json, or compare the examples with what it says."""
    marks = {name: fingerprint_examples(part) for name, part in run.splits.items()}
    if before is not None:
        for name, mark in marks.items():
            if before["data"]["examples"].get(name) not in (None, mark):
                raise Error(f"the {name} examples have changed since the run began", where=folder.path,
                            fix="begin a new run")  # fmt: skip
    save_examples(folder.path, sources, run.splits)
    assert run.former.tokenizer is not None
    data = {
        "tokenizer": run.former.tokenizer.fingerprint, "store": marks["train"], "examples": marks,
        "tokens": int(run.objective.data.starts[-1]), "documents": len(run.splits["train"].rows),
        "labels": list(run.splits["train"].labels),
    }  # fmt: skip
    chosen = (before or {}).get("chosen", list(run.config.explicit_train))  # a run that goes on was given them all
    about = {"asked": run.config.to_dict(), "chosen": chosen, "data": data, "machine": describe_hardware(run.world)}
    folder.write_info({**(before or {}), **about})


RESULT_NEUTRAL_SETTINGS = (
    "workers",
    "compile",
    "activation_checkpointing",
    "parallel",
)  # settings of which the results say nothing


def check_same_run(
    path: Path, model: Any, train: Any, valid: Any, *, test: Any, task: str | None, columns: Any,
    overrides: Mapping[str, Any], config: Any = None, device: Any = None, hook: Any = None, **settings: Any,
) -> None:  # fmt: skip
    """Refuse a run that was asked for something else, or has learnt from other examples, than what is asked now."""
    about, sources = RunFolder(path).read_info(), {"train": train, "valid": valid, "test": test}
    given = collect_overrides(settings, overrides, sources, columns)
    fix = "choose another --out, or remove this run"
    if task == "lm":
        return check_text_settings(path, given, about["asked"], fix)
    wanted, parts = load_config_and_examples(model, task, sources, columns, config, given, None, path)
    marks = {name: fingerprint_examples(part) for name, part in parts.items()}
    for name in SPLITS:
        if marks.get(name) != about["data"]["examples"].get(name):
            raise Error(f"the run here has other {name} examples", where=path, fix=fix)
    now, then = json.loads(json.dumps(wanted.to_dict())), about["asked"]
    kept = {key for side in (wanted.explicit_train, about.get("chosen", ())) for key in side}
    free = {
        *(f"data.{name}" for name in SPLITS),
        *(f"train.{name}" for name in (*RESULT_NEUTRAL_SETTINGS, *{*DERIVED_SETTINGS} - kept)),
    }
    for key in ("family", "source", "preset", "task"):
        if now[key] != then[key]:
            raise Error(f"the run here has {key} {then[key]}, not {now[key]}", where=path, fix=fix)
    before, after = (
        {f"{t}.{name}": value for t in FINETUNE_TABLES for name, value in side[t].items()} for side in (then, now)
    )
    for key in sorted({*before, *after} - free):
        if before.get(key) != after.get(key):
            raise Error(f"the run here has {key} {before.get(key)}, not {after.get(key)}", where=path, fix=fix)


def finish_finetuning(folder: RunFolder, run: FinetuneRun, tell: ProgressCallback) -> dict[str, dict[str, float]]:
    """Save the best checkpoint, judge it by all examples that were not learnt from, and write the report."""
    check_finite(folder, run.trainer)
    former, best = save_best_model(folder, run, lambda made: finalise_model(made, run.tune))
    apply_adapters(former.model.body, former.adapters)
    former.adapters = {}
    found = evaluate_best(folder, run, best, tell)
    write_report(folder)
    return found


def evaluate_best(
    folder: RunFolder, run: FinetuneRun, best: int, tell: ProgressCallback
) -> dict[str, dict[str, float]]:
    """The measures of the best checkpoint; run.json and evaluation.json say them too."""
    found: dict[str, dict[str, float]] = {"valid": {}, "test": {}, "baseline": {}, "majority": {}}
    sections: list[dict[str, Any]] = []
    seen: dict[str, TaskEvaluation] = {}
    for name in ("valid", "test"):
        if name in run.splits:
            seen[name] = evaluate_task(
                run.former, run.task, run.eval_objectives[name], run.splits[name].rows, tell, run.autocast
            )
            found[name] = seen[name].metrics
    last = "test" if "test" in seen else "valid"
    found["baseline"] = compute_baseline(run, last, tell)
    if run.tune.baseline and run.task.name == "classify":
        found["majority"] = run_majority_baseline(run.splits["train"].rows, run.splits[last].rows)
    head = ["", *found[last]]
    split = {"valid": "validation", "test": "test"}  # a baseline's row says which one it is of
    named = {split[name]: found[name] for name in split} | {f"TF-IDF + linear, {split[last]}": found["baseline"]}
    rows = [
        [name, *(format_number(key, values[key], 4) if key in values else "–" for key in head[1:])]
        for name, values in named.items()
        if values
    ]
    sections.append({"title": "Measures", "head": head, "rows": rows})
    if shared := find_overlap(run.splits):
        told = [[name, before, f"{count:,}", f"{of:,}"] for name, before, count, of in shared]
        head = ["part", "shares examples with", "examples in common", "of"]
        sections.append({"title": "Overlap: the same texts in two parts", "head": head, "rows": told})
    if quoted := get_metric_signatures(run.task, seen[last]):
        told = [[name, words] for name, words in quoted.items()]
        sections.append({"title": "How they were computed", "head": ["measure", "signature"], "rows": told})
    sections += build_report_tables(run.task, run.former.labels, seen[last], run.splits[last].rows)
    (folder.path / "evaluation.json").write_text(
        json.dumps({"measures": found, "signatures": quoted, "sections": sections}, ensure_ascii=False, indent=1),
        encoding="utf-8",
    )
    loss = run.compute_text_loss(run.eval_objectives["valid"]) if run.task.kind == "text" else seen["valid"].loss
    every = {name: to_json_number(value) for name, value in found["valid"].items()}
    score = {"loss": to_json_number(loss), "accuracy": every.get("accuracy"), "all": every}
    more: dict[str, Any] = {
        "best": best,
        "parameters": count_trainable(run.former.model),
        "memory": get_peak_memory(run.world.device),
        "share": 0.0,
        "ended": [run.trainer.step, run.config.train.steps],
        "language": detect_language(format_example(row) for row in run.splits[last].rows),
    }
    folder.write_info({**folder.read_info(), "result": {"score": score, "baseline": None, "measures": found, **more}})
    return found


def compute_baseline(run: FinetuneRun, part: str, tell: ProgressCallback) -> dict[str, float]:
    """What a linear model over counted words gives on the same examples."""
    if not run.tune.baseline or run.task.name not in ("classify", "regress") or not has_sklearn():
        return {}
    return run_baseline(run.splits["train"].rows, run.splits[part].rows, tell=tell)


__all__ = ["FinetuneResult", "TaskEvaluation", "finetune"]
