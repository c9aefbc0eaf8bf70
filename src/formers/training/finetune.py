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

from ..config import Tell, coerce
from ..data.readers import by_path
from ..data.replacement import TAKEN, check_overwrite, replacing
from ..errors import Error
from ..former import Former, count
from ..interop.huggingface import explain_export
from ..nn.lora import apply
from ..tasks.baseline import baseline, describe_baselines, has_sklearn, judge_most_frequent
from ..tasks.examples import Examples
from ..tasks.records import divided
from ..text.language import detect_language
from .checkpoint import Checkpoints
from .configure import by_dots, dotted, read
from .continued import Plan, continued, is_text, measures, plan_text, same_text
from .distributed import company, together
from .freedom import settled
from .judging import Verdict, shown, signatures_of, tables, verdict
from .learner import family_of
from .lesson import Lesson
from .machine import Meter, deterministic, enough, left, machine, memory
from .parts import PARTS, find_overlap, identity, in_lists, keep, overlap_said, read_parts
from .pretrain import check_finite, claim_run_folder, finish
from .rehearsal import lasting, rehearse
from .report import format_number, report
from .resume import refuse_if_finished
from .runs import Folder, drive, number
from .settings import FREE
from .tracking import Tracker
from .tuning import DERIVED, TABLES, Data, Tune, Wanted, configure, describe_random_start, find


@dataclass(frozen=True)
class Tuned:
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
    def baseline_line(self) -> str:
        """What the baselines reach and on which part, in one line; empty if there is none."""
        kind = "token frequencies alone" if "perplexity" in self.baseline else "TF-IDF + linear"
        named = {"most frequent label": self.majority, kind: self.baseline}
        return describe_baselines("test" if self.test else "validation", named)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One table for each step and each look at held-out examples."""
        return Folder(self.folder).history()


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
    tell: Tell | None = None,
    say: Callable[[str], None] = lambda text: None,
    hook: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Tuned:
    """Teach a model a task: a checkpoint (a folder, hub:owner/name), or a family or preset from scratch.

    `train`, `valid` and `test` are files, lists of tables, DataFrames or datasets (of a DatasetDict, `train` takes the
    training part and the validation part); without `valid`, some training examples are held out. The task is found by
    the columns if none is named: classify, regress, tag, answer, choose, translate, summarise; lm, which must be named,
    goes on with a checkpoint's pretraining on plain text, judged by perplexity (the baseline is then that of token
    frequencies). Settings are those of training/tuning.py: single ones by their names (epochs=3, batch=32, lr=1e-3,
    seed=1, lora=8), any by `overrides` ({"train.clip": 0.5}) or a `config` file. With `resume`, a run in `out` goes on
    where it stopped; with `overwrite`, a new one takes its place. `tell`, `say`, `hook` are those of formers.pretrain.
    """
    began, tell = time.perf_counter(), tell or (lambda *_: None)
    check_overwrite(out, resume, overwrite)
    model, task = named_in(config, model, task)
    train, held = divided(train)
    sources = {"train": train, "valid": held if valid is None else valid, "test": test}
    given = single(settings, overrides, sources, columns)
    if is_text(task, out, resume):
        say("plain text: the model goes on with its own objective, as formers pretrain --init does")
        how = {"device": device, "tell": tell, "say": say, "hook": hook, "overwrite": overwrite}
        made = continued(model, sources, given, out, resume, config, **how)
        return Tuned(made.folder, made.former, measures(made.score), {}, measures(made.baseline), made.seconds)
    world = together(device)
    with ExitStack() as stack:
        stack.enter_context(company(world))

        replaced: list[Callable[[], None]] = []

        def begin() -> tuple[Path, Any, Wanted, dict[str, Examples]]:
            path = None if out is None else Path(out)
            told = {**by_dots(read(config)), **given}
            before = None if overwrite else begun(path, resume, told)
            now = given if before is None else told | longer(before, told)
            wanted, parts = understood(model, task, sources, columns, config, now, before, path)
            replaced.append(stack.enter_context(replacing(path, "run", overwrite, (wanted.table(), config))))
            path = stack.enter_context(claim_run_folder(path, f"{wanted.family}-{wanted.task}"))
            stack.enter_context(Folder(path).held())
            return path, before, wanted, parts

        path, before, wanted, parts = world.agreed(begin)  # the others see what the first one read
        stack.enter_context(enough(wanted.train, None, world.device))
        stack.enter_context(deterministic(wanted.train.deterministic))
        folder = Folder(path)
        for name, part in parts.items():
            say(f"{name}: {part.said}")
        for line in overlap_said(find_overlap(parts)):
            say(line)
        run = Lesson(wanted, parts, path, world, tell, say)
        world.agreed(lambda: remember(folder, run, before, sources))
        for remove_old in replaced:
            remove_old()
        if wanted.source is None and wanted.tune.vectors is None:
            say(describe_random_start(wanted.family, wanted.preset))
        say(run.words())
        if world.first and (why := explain_export(run.former)) is not None:
            say(f"export: {why}")
        meter = Meter(run.trainer, tell, None if run.main == "loss" and run.task.kind == "text" else run.latest)
        if isinstance(hook, Tracker) and world.first:
            hook.begin(path, run.asked.table())
        first = drive(run.trainer, run.source, folder, check=run.check, hook=hook, say=say, tell=meter)
        if first == run.asked.train.steps:
            length, raised = length_of(folder.about())
            say(f"this run was finished before, after {length}; raise {raised} to go on")
        found = world.agreed(lambda: conclude(folder, run, tell))  # all know how good it is
        world.close()
    seconds = time.perf_counter() - began
    return Tuned(path, run.former, found["valid"], found["test"], found["baseline"], seconds, found["majority"])


def named_in(config: Any, model: Any, task: str | None) -> tuple[Any, str | None]:
    """The model and the task, taken from a file of settings where they are not named."""
    told = read(config)
    return model or told.get("source") or told.get("preset") or told.get("family"), task or told.get("task")


def planned(
    model: Any, train: Any, valid: Any, *, task: str | None, test: Any, columns: Any, config: Any,
    overrides: Mapping[str, Any], tell: Tell,
) -> tuple[Wanted, dict[str, Examples]] | Plan:  # fmt: skip
    """What a run would be asked to do: settings and examples, or, of plain text, the settings of its pretraining."""
    model, task = named_in(config, model, task)
    train, held = divided(train)
    sources = {"train": train, "valid": held if valid is None else valid, "test": test}
    given = single({}, overrides, sources, columns)
    if task == "lm":
        with tempfile.TemporaryDirectory() as folder:
            return plan_text(model, sources, given, config, Path(folder), tell)
    return understood(model, task, sources, columns, config, given, None, None)


def print_settings(model: Any, train: Any, valid: Any, **asked: Any) -> str:
    """All settings of a run as YAML, for --config; without examples, those of classification."""
    told = {**by_dots(read(asked["config"])), **asked["overrides"]}
    if train is not None or told.get("data.train") is not None:
        found = planned(model, train, valid, tell=lambda *_: None, **asked)
        return found.asked().text() if isinstance(found, Plan) else found[0].text()
    model, task = named_in(asked["config"], model, asked["task"])
    if model is None:
        raise Error("no model is named", fix="give a folder, hub:owner/name, or a family: formers tree lists them")
    if task == "lm":
        raise Error("the settings of --task lm depend on the text", fix="give --train FILE")
    family, source, preset = find(str(model))
    given = single({}, asked["overrides"], {}, asked["columns"])
    return configure(
        family or family_of(str(source)), source, preset, task or "classify", asked["config"], given
    ).text()


def rehearse_task(model: Any, train: Any, valid: Any, *, device: Any = None, **asked: Any) -> list[tuple[str, str]]:
    """A dry run: what was understood of the examples, and how large and how long the run would be, from a few measured
    steps. Nothing is written."""
    found = planned(model, train, valid, tell=lambda *_: None, **asked)
    if isinstance(found, Plan):
        return rehearse(found.family, asked["config"], found.settings, device=device, init=found.source)
    wanted, parts = found
    world = together(device)
    with (
        tempfile.TemporaryDirectory() as folder, enough(wanted.train, None, world.device),
        deterministic(wanted.train.deterministic),
    ):  # fmt: skip
        said = overlap_said(find_overlap(parts))
        run = Lesson(wanted, parts, Path(folder), world, lambda *_: None, said.append)
        first, seconds = lasting(run)
        s, total = run.asked.train, sum(p.numel() for p in run.former.model.parameters())
        vectors = None if wanted.tune.vectors is None else f"the embeddings start from {wanted.tune.vectors}"
        start = wanted.source or vectors or describe_random_start(wanted.family, wanted.preset)
        labels = [*run.parts["train"].labels]
        seen = s.steps * s.tokens * s.accumulate
        saved = sum(t.nbytes for group in run.trainer.state()[0].values() for t in group.values())
        rows = [
            ("task", wanted.task), *((name, part.said) for name, part in parts.items()),
            *([("labels", ", ".join(labels[:20]) + (" …" if len(labels) > 20 else ""))] if labels else []),
            *(("note", line) for line in said),
            ("model", f"{count(run.former.model):,} of {total:,} parameters learn; {start}"),
            ("judged by", f"{run.main} on the valid examples, {max(1, s.steps // s.check):,} times"),
            ("steps", f"{s.steps:,} of {s.tokens * s.accumulate:,} tokens: {wanted.tune.epochs:g} epochs"),
            ("checkpoint", f"{saved / 1e6:,.1f} MB each, {max(2, s.last + s.best)} kept"),
            ("memory", f"{memory(world.device) / 2**30:.1f} GiB at most so far, on {world.device}"),
            ("first step", f"{first:.1f} s"),
            ("speed", f"{seen / seconds:,.0f} tokens/s, {seconds / s.steps:.3f} s a step"),
            ("time", f"{left(seconds).replace(' left', '')}, without evaluation"),
        ]  # fmt: skip
    world.close()
    return rows if world.first else []


def single(
    settings: Mapping[str, Any], overrides: Mapping[str, Any] | None, sources: Mapping[str, Any], columns: Any
) -> dict[str, Any]:
    """Settings given by their bare names or as tables, and by dotted names, under dotted names."""
    given: dict[str, Any] = {}
    tune, data = ({f.name for f in dataclasses.fields(kind)} for kind in (Tune, Data))
    for name, value in settings.items():
        if name in TABLES and isinstance(value, Mapping):
            given |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif name in tune or name in data:
            given[f"{'tune' if name in tune else 'data'}.{name}"] = value
        elif name in ("lr", "seed", "steps", "optimizer", "schedule", "workers", "precision", "clip", "ema"):
            given[f"train.{name}"] = value
        else:
            raise Error(f"finetune has no argument {name!r}", fix=f"settings are {', '.join(sorted(tune))}, lr, seed")
    given |= {f"data.{n}": str(v) for n, v in sources.items() if v is not None and by_path(v)}
    if isinstance(columns, str):
        given["data.columns"] = columns
    return given | dict(overrides or {})


def begun(path: Path | None, resume: bool, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """What run.json says of a run that goes on."""
    if path is None or not (path / "run.json").is_file():
        return None
    if not resume:
        raise Error("there is a run here already", where=path, fix=TAKEN)
    about = Folder(path).about()
    asked = about["asked"]
    now = configure(asked["family"], asked["source"], asked["preset"], asked["task"], asked, given).table()
    may = {*(f"data.{name}" for name in PARTS), *(f"train.{name}" for name in FREE), "tune.patience", "tune.epochs"}
    for key in sorted(set(given) - may):
        table, _, name = key.partition(".")
        if asked.get(table, {}).get(name) != now.get(table, {}).get(name):
            raise Error(f"{key} cannot change in a run that goes on", where=path, fix="leave it out")
    then = configure(
        asked["family"], asked["source"], asked["preset"], asked["task"], asked, {**given, **longer(about, given)}
    )
    length, raised = length_of(about)
    refuse_if_finished(path, about, then.table(), length, raised)
    done = max(Checkpoints(path / "steps", clean=False).steps(), default=0)
    if done > then.train.steps:
        if "tune.epochs" in given and "train.steps" not in given:
            seen = f"{done * asked['tune']['epochs'] / asked['train']['steps']:.3g}"
            what = f"{seen} epochs are done, more than {then.tune.epochs:g}"
            raise Error(what, where=path, fix=f"--epochs {seen} or more")
        what = f"{done:,} steps are done, more than {then.train.steps:,}"
        raise Error(what, where=path, fix=f"--train.steps {done} or more")
    return about


def length_of(about: Mapping[str, Any]) -> tuple[str, str]:
    """How long a run was asked to be, in epochs or, if it was given them, in steps; and the option that raises it."""
    asked, by_steps = about["asked"], "steps" in about.get("chosen", ())
    if by_steps:
        return f"{asked['train']['steps']:,} steps", f"--train.steps above {asked['train']['steps']:,}"
    epochs = asked["tune"]["epochs"]
    return f"{epochs:g} epoch{'s' * (epochs != 1)}", f"--epochs above {epochs:g}"


def longer(about: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The steps of a run that goes on for another number of epochs."""
    asked = about["asked"]
    if "tune.epochs" not in given or "train.steps" in given:
        return {}
    now = dotted({"tune.epochs": given["tune.epochs"]}, TABLES)["tune"]["epochs"]
    old = asked["tune"]["epochs"]
    if coerce(now, float, "tune.epochs") == old:
        return {}
    if "steps" in about.get("chosen", ()):
        raise Error("this run was given a number of steps, not of epochs", fix="raise --train.steps")
    return {"train.steps": max(1, round(asked["train"]["steps"] * now / old))}


def understood(
    model: Any, task: str | None, sources: dict[str, Any], columns: Any, config: Any, given: dict[str, Any],
    before: dict[str, Any] | None, path: Path | None,
) -> tuple[Wanted, dict[str, Examples]]:  # fmt: skip
    """The settings and the examples; of a run that goes on, those that it has."""
    told: Any = config if before is None else before["asked"]
    if before is not None:
        family, source, named, task = (before["asked"][key] for key in ("family", "source", "preset", "task"))
    else:
        if model is None:
            raise Error("no model is named", fix="give a folder, hub:owner/name, or a family: formers tree lists them")
        family, source, named = find(str(model))
        family = family or family_of(str(source))
    first = configure(family, source, named, task or "classify", told, given)
    parts = read_parts(first.data, task, sources, columns, None if before is None else path)
    if parts["train"].task == "lm":
        fix = "say --task lm, and the model goes on with its pretraining on it; or give a table with answers"
        raise Error("the training examples are plain text without answers", fix=fix)
    labels = () if before is None else before["data"].get("labels", ())
    if set(parts["train"].labels) <= set(labels):  # folds know the labels of all, datasets have an order of their own
        parts["train"] = dataclasses.replace(parts["train"], labels=tuple(labels))
    wanted = configure(family, source, named, parts["train"].task, told, given)
    return wanted, {name: in_lists(part) for name, part in parts.items()} if wanted.tune.many else parts


def remember(folder: Folder, run: Lesson, before: dict[str, Any] | None, sources: Mapping[str, Any]) -> None:
    """Write run.json, or compare the examples with what it says."""
    marks = {name: identity(part) for name, part in run.parts.items()}
    if before is not None:
        for name, mark in marks.items():
            if before["data"]["examples"].get(name) not in (None, mark):
                raise Error(f"the {name} examples have changed since the run began", where=folder.path,
                            fix="begin a new run")  # fmt: skip
    keep(folder.path, sources, run.parts)
    assert run.former.tokenizer is not None
    data = {
        "tokenizer": run.former.tokenizer.fingerprint, "store": marks["train"], "examples": marks,
        "tokens": int(run.goal.data.starts[-1]), "documents": len(run.parts["train"].rows),
        "labels": list(run.parts["train"].labels),
    }  # fmt: skip
    chosen = (before or {}).get("chosen", list(run.asked.chosen))  # a run that goes on was given them all
    about = {"asked": run.asked.table(), "chosen": chosen, "data": data, "machine": machine(run.world)}
    folder.describe({**(before or {}), **about})


EITHER = ("workers", "compile", "checkpointing", "parallel")  # settings of which the results say nothing


def same(
    path: Path, model: Any, train: Any, valid: Any, *, test: Any, task: str | None, columns: Any,
    overrides: Mapping[str, Any], config: Any = None, device: Any = None, hook: Any = None, **settings: Any,
) -> None:  # fmt: skip
    """Refuse a run that was asked for something else, or has learnt from other examples, than what is asked now."""
    about, sources = Folder(path).about(), {"train": train, "valid": valid, "test": test}
    given = single(settings, overrides, sources, columns)
    fix = "choose another --out, or remove this run"
    if task == "lm":
        return same_text(path, given, about["asked"], fix)
    wanted, parts = understood(model, task, sources, columns, config, given, None, path)
    marks = {name: identity(part) for name, part in parts.items()}
    for name in PARTS:
        if marks.get(name) != about["data"]["examples"].get(name):
            raise Error(f"the run here has other {name} examples", where=path, fix=fix)
    now, then = json.loads(json.dumps(wanted.table())), about["asked"]
    kept = {key for side in (wanted.chosen, about.get("chosen", ())) for key in side}
    free = {*(f"data.{name}" for name in PARTS), *(f"train.{name}" for name in (*EITHER, *{*DERIVED} - kept))}
    for key in ("family", "source", "preset", "task"):
        if now[key] != then[key]:
            raise Error(f"the run here has {key} {then[key]}, not {now[key]}", where=path, fix=fix)
    before, after = ({f"{t}.{name}": value for t in TABLES for name, value in side[t].items()} for side in (then, now))
    for key in sorted({*before, *after} - free):
        if before.get(key) != after.get(key):
            raise Error(f"the run here has {key} {before.get(key)}, not {after.get(key)}", where=path, fix=fix)


def conclude(folder: Folder, run: Lesson, tell: Tell) -> dict[str, dict[str, float]]:
    """Save the best checkpoint, judge it by all examples that were not learnt from, and write the report."""
    check_finite(folder, run.trainer)
    former, best = finish(folder, run, lambda made: settled(made, run.tune))
    apply(former.model.body, former.adapters)
    former.adapters = {}
    found = judged(folder, run, best, tell)
    report(folder)
    return found


def judged(folder: Folder, run: Lesson, best: int, tell: Tell) -> dict[str, dict[str, float]]:
    """The measures of the best checkpoint; run.json and evaluation.json say them too."""
    found: dict[str, dict[str, float]] = {"valid": {}, "test": {}, "baseline": {}, "majority": {}}
    sections: list[dict[str, Any]] = []
    seen: dict[str, Verdict] = {}
    for name in ("valid", "test"):
        if name in run.parts:
            seen[name] = verdict(run.former, run.task, run.judges[name], run.parts[name].rows, tell, run.autocast)
            found[name] = seen[name].measures
    last = "test" if "test" in seen else "valid"
    found["baseline"] = compared(run, last, tell)
    if run.tune.baseline and run.task.name == "classify":
        found["majority"] = judge_most_frequent(run.parts["train"].rows, run.parts[last].rows)
    head = ["", *found[last]]
    split = {"valid": "validation", "test": "test"}  # a baseline's row says which one it is of
    named = {split[name]: found[name] for name in split} | {f"TF-IDF + linear, {split[last]}": found["baseline"]}
    rows = [
        [name, *(format_number(key, values[key], 4) if key in values else "–" for key in head[1:])]
        for name, values in named.items()
        if values
    ]
    sections.append({"title": "Measures", "head": head, "rows": rows})
    if shared := find_overlap(run.parts):
        told = [[name, before, f"{count:,}", f"{of:,}"] for name, before, count, of in shared]
        head = ["part", "shares examples with", "examples in common", "of"]
        sections.append({"title": "Overlap: the same texts in two parts", "head": head, "rows": told})
    if quoted := signatures_of(run.task, seen[last]):
        told = [[name, words] for name, words in quoted.items()]
        sections.append({"title": "How they were computed", "head": ["measure", "signature"], "rows": told})
    sections += tables(run.task, run.former.labels, seen[last], run.parts[last].rows)
    (folder.path / "evaluation.json").write_text(
        json.dumps({"measures": found, "signatures": quoted, "sections": sections}, ensure_ascii=False, indent=1),
        encoding="utf-8",
    )
    loss = run.text_loss(run.judges["valid"]) if run.task.kind == "text" else seen["valid"].loss
    every = {name: number(value) for name, value in found["valid"].items()}
    score = {"loss": number(loss), "accuracy": every.get("accuracy"), "all": every}
    more: dict[str, Any] = {
        "best": best,
        "parameters": count(run.former.model),
        "memory": memory(run.world.device),
        "share": 0.0,
        "ended": [run.trainer.step, run.asked.train.steps],
        "language": detect_language(shown(row) for row in run.parts[last].rows),
    }
    folder.describe({**folder.about(), "result": {"score": score, "baseline": None, "measures": found, **more}})
    return found


def compared(run: Lesson, part: str, tell: Tell) -> dict[str, float]:
    """What a linear model over counted words gives on the same examples."""
    if not run.tune.baseline or run.task.name not in ("classify", "regress") or not has_sklearn():
        return {}
    return baseline(run.parts["train"].rows, run.parts[part].rows, tell=tell)


__all__ = ["Tuned", "Verdict", "finetune"]
