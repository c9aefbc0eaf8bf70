"""formers.finetune: a model learns a task from examples, and is judged by it. A run like any other."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..batch import Batch
from ..config import Tell
from ..data.draws import shuffled
from ..data.loader import batches
from ..data.readers import by_path
from ..errors import Error
from ..former import Former, count
from ..objectives.supervised import Supervised, numbers
from ..tasks.encode import encode
from ..tasks.examples import Examples, read_examples
from ..tasks.reading import Reader
from .distributed import arranged, company, together
from .evaluate import evaluate
from .judging import Verdict, tables, verdict
from .learner import (
    ADAPTERS,
    after_step,
    centred,
    family_of,
    frozen,
    goal_of,
    labels_of,
    learner,
    settled,
    shares,
    task_for,
    trimmed,
    with_adapters,
)  # fmt: skip
from .loop import Trainer
from .machine import Meter, deterministic, enough, machine, memory
from .pretrain import finish, fresh
from .report import report
from .runs import Folder, drive, number
from .settings import FREE
from .tuning import TABLES, Data, Tune, Wanted, configure, find, scheduled
from .world import World

PARTS = ("train", "valid", "test")


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
    device: Any = None,
    overrides: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
    say: Callable[[str], None] = lambda text: None,
    hook: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Tuned:
    """Teach a model a task: a checkpoint (a folder, hub:owner/name), or a family or preset from scratch.

    `train`, `valid` and `test` are files, lists of tables, DataFrames or datasets; without `valid`, some training
    examples are held out. The task is found by the columns if none is named: classify, regress, tag, answer, choose,
    translate, summarise. Settings are those of training/tuning.py: single ones by their names (epochs=3, batch=32,
    lr=1e-3, seed=1, lora=8), any by `overrides` ({"train.clip": 0.5}) or a `config` file. With `resume`, a run in `out`
    goes on where it stopped. `tell`, `say` and `hook` are those of formers.pretrain.
    """
    if task == "lm":
        raise Error(
            "to go on with a language model is pretraining", fix="formers pretrain FAMILY --init MODEL --data FILE"
        )
    began, tell = time.perf_counter(), tell or (lambda *_: None)
    sources = {"train": train, "valid": valid, "test": test}
    given = single(settings, overrides, sources, columns)
    world = together(None if device is None else torch.device(device))
    with ExitStack() as stack:
        stack.enter_context(company(world))
        path = None if out is None else Path(out)
        before = begun(path, resume, given)
        wanted, parts = understood(model, task, sources, columns, config, given, before, path)
        world = arranged(world, wanted.train.parallel)
        stack.enter_context(enough(wanted.train, None, world.device))
        stack.enter_context(deterministic(wanted.train.deterministic))
        path = path or fresh(f"{wanted.family}-{wanted.task}")
        folder = Folder(path)
        if world.first:
            stack.enter_context(folder.held())
            keep(path, sources, parts)
        for name, part in parts.items():
            say(f"{name}: {part.said}")
        run = Lesson(wanted, parts, path, world, tell, say)
        if world.first:
            remember(folder, run, before)
        say(run.words())
        meter = Meter(run.trainer, tell)
        drive(run.trainer, run.source, folder, check=run.check, hook=hook, say=say, tell=meter)
        former, found = run.former, {name: dict[str, float]() for name in ("valid", "test", "baseline")}
        if world.first:
            former, best = finish(folder, run, lambda made: settled(made, run.tune, path))
            if run.tune.lora and not run.tune.lora_merge:
                with_adapters(former, path / ADAPTERS)
            found = conclude(folder, run, best, tell)
            report(folder)
        world.close()
    return Tuned(path, former, found["valid"], found["test"], found["baseline"], time.perf_counter() - began)


class Lesson:
    """A fine-tuning run on its way: the model, its task, its examples and the trainer."""

    def __init__(
        self, wanted: Wanted, parts: dict[str, Examples], path: Path, world: World, tell: Tell,
        say: Callable[[str], None],
    ):  # fmt: skip
        self.parts, self.world, self.path = parts, world, path
        training = parts["train"]
        self.former, self.task = learner(
            wanted, task_for(wanted, training), labels_of(wanted, training), training.rows, path / "data", tell, say
        )
        self.reader, self.tune = Reader.of(self.former, self.task), wanted.tune
        data = encode(self.task, training.rows, self.reader, self.former.labels)
        self.answers = data.labels if self.task.kind == "tags" else data.answers
        self.goal = goal_of(self.former, self.task, data, wanted.tune, self.answers)
        self.judge = self.examples("valid")
        if self.task.kind == "number" and data.answers is not None:
            centred(self.former, self.goal.part, data.answers)
        frozen(self.former, wanted.tune)
        self.former.model.to(world.device)
        self.store = numbers(data)
        sizes = self.goal.sizes(self.goal.plan(self.store, 0, 0))
        self.asked = replace(wanted, train=scheduled(wanted, sizes, getattr(self.former.config, "dim", 768)))
        self.trainer = Trainer(
            self.former.model, [self.goal], self.asked.train, world, shares(self.former, wanted.tune.layer_decay),
            after_step(self.former),
        )  # fmt: skip
        long = int(self.store.vocab - len(training.rows))
        if long > 0:
            say(f"{long:,} windows more than texts: some are longer than {self.task.length} tokens")

    def examples(self, name: str) -> Supervised:
        """The examples of a part, to be judged by."""
        rows = self.parts[name].rows
        try:
            data = encode(self.task, rows, self.reader, self.former.labels)
        except Error as error:
            raise Error(error.what, where=f"the {name} examples", fix=error.fix) from None
        return goal_of(self.former, self.task, data, self.tune, self.answers, train=False)

    def source(self, phase: int, position: int) -> Iterator[tuple[Batch, int]]:
        """The batches from a position on."""
        s = self.asked.train
        made = batches(
            self.store, self.goal, s.tokens, s.seed, position, workers=s.workers, rank=self.world.rank,
            ranks=self.world.size, pin=self.world.device.type == "cuda",
        )  # fmt: skip
        return made if self.trainer.compiled else ((trimmed(batch), behind) for batch, behind in made)

    def autocast(self) -> Any:
        """The type in which products are computed, as in training."""
        t = self.trainer
        return torch.autocast(t.device.type, dtype=t.type, enabled=t.type != torch.float32)

    def check(self) -> dict[str, float]:
        """Loss and measures on held-out examples; "cost" is what the run is after, the lower the better."""
        with self.trainer.averaged():
            if self.task.kind == "text" and not self.task.words:
                seen = {"loss": self.text_loss(self.judge)}
                seen["cost"] = seen["loss"]
            else:
                found = verdict(self.former, self.task, self.judge, self.parts["valid"].rows, running=self.autocast)
                main = self.tune.metric or next(iter(found.measures))
                if main not in found.measures:
                    raise Error(f"there is no measure {main!r}", fix=f"choose {', '.join(found.measures)}")
                loss = self.text_loss(self.judge) if self.task.kind == "text" else found.loss
                seen = {"loss": loss, "cost": -found.measures[main], **found.measures}
        self.patient(seen["cost"])
        return seen

    def text_loss(self, goal: Supervised) -> float:
        """The mean loss of the tokens of held-out texts."""
        s = self.asked.train
        some = batches(numbers(goal.data), goal, s.tokens, s.seed + 1, epochs=1)
        device = self.world.device
        found = evaluate(
            self.former.model, goal, (trimmed(batch) for batch, _ in some), self.trainer.forward, device=device
        )
        return found.all[goal.part]

    def patient(self, cost: float) -> None:
        """End the run if no look of the last few was better than those before."""
        if not self.tune.patience:
            return
        rows = [row["held"]["cost"] for row in Folder(self.path).history() if "held" in row]
        costs = [math.inf if c is None else c for c in (*rows, cost)]
        self.trainer.enough = len(costs) - 1 - costs.index(min(costs)) >= self.tune.patience

    def words(self) -> str:
        """The run in one line."""
        s, name = self.asked.train, self.asked.source or f"{self.asked.family} from scratch"
        share = f"{count(self.former.model):,} of {sum(p.numel() for p in self.former.model.parameters()):,}"
        return (
            f"{name}: {share} parameters learn to {self.task.name}; {len(self.goal.data):,} examples,"
            f" {s.steps:,} steps of {s.tokens * s.accumulate:,} tokens"
        )


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
        raise Error("there is a run here already", where=path, fix="go on with --resume, or choose another --out")
    about = Folder(path).about()
    may = {*(f"data.{name}" for name in PARTS), *(f"train.{name}" for name in FREE), "tune.patience"}
    for key in sorted(set(given) - may):
        table, _, name = key.partition(".")
        if about["asked"].get(table, {}).get(name) != given[key]:
            raise Error(f"{key} cannot change in a run that goes on", where=path, fix="leave it out")
    return about


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
    parts = read_parts(first.data, task, sources, columns, path)
    return configure(family, source, named, parts["train"].task, told, given), parts


def read_parts(
    data: Data, task: str | None, sources: dict[str, Any], columns: Any, path: Path | None
) -> dict[str, Examples]:
    """The examples of each part; without held-out ones, some of the training examples are held out."""
    parts: dict[str, Examples] = {}
    for name in PARTS:
        kept = None if path is None else path / "data" / f"{name}.jsonl"
        source = sources[name] if sources[name] is not None else getattr(data, name)
        if source is None and kept is not None and kept.is_file():
            source, columns = kept, None
        if source is None:
            continue
        limit = data.limit if name == "train" else None
        parts[name] = read_examples(source, task, columns or data.columns, limit=limit)
        task = parts[name].task
    if "train" not in parts:
        raise Error("there are no examples to learn from", fix="give --train FILE")
    if "valid" not in parts:
        parts = {**held_out(parts["train"], data.held_out), **{k: v for k, v in parts.items() if k == "test"}}
    return parts


def held_out(examples: Examples, share: float) -> dict[str, Examples]:
    """Training examples parted by chance, the same in every run."""
    rows, size = examples.rows, round(share * len(examples.rows))
    if not 0 < size < len(rows):
        raise Error(f"of {len(rows)} examples none can be held out", fix="give more, or --valid FILE")
    order = shuffled(len(rows), 0, 0, 0x4E1D).tolist()
    out = set(order[:size])
    words = f"{size:,} of the training examples, held out"
    return {
        "train": replace(examples, rows=[row for i, row in enumerate(rows) if i not in out]),
        "valid": replace(examples, rows=[row for i, row in enumerate(rows) if i in out], said=words),
    }


def keep(path: Path, sources: Mapping[str, Any], parts: Mapping[str, Examples]) -> None:
    """Examples that came out of memory are kept, so that the run can go on without them."""
    (path / "data").mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        if source is not None and not by_path(source):
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in read_again(source, name, parts))
            (path / "data" / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def read_again(source: Any, name: str, parts: Mapping[str, Examples]) -> list[dict[str, Any]]:
    """The rows of a part as they were given, held-out ones included."""
    rows = parts[name].rows
    if name == "train" and "held out" in parts["valid"].said:
        rows = [*rows, *parts["valid"].rows]
    return [bare(row) for row in rows]


def bare(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what it does not have."""
    return {key: value for key, value in row.items() if value is not None}


def identity(examples: Examples) -> str:
    """What tells whether examples have changed."""
    text = json.dumps(examples.rows, ensure_ascii=False, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def remember(folder: Folder, run: Lesson, before: dict[str, Any] | None) -> None:
    """Write run.json, or compare the examples with what it says."""
    marks = {name: identity(part) for name, part in run.parts.items()}
    if before is not None:
        for name, mark in marks.items():
            if before["data"]["examples"].get(name) not in (None, mark):
                raise Error(f"the {name} examples have changed since the run began", where=folder.path,
                            fix="begin a new run")  # fmt: skip
    assert run.former.tokenizer is not None
    data = {
        "tokenizer": run.former.tokenizer.fingerprint, "store": marks["train"], "examples": marks,
        "tokens": int(run.goal.data.starts[-1]), "documents": len(run.parts["train"].rows),
    }  # fmt: skip
    folder.describe({**(before or {}), "asked": run.asked.table(), "data": data, "machine": machine(run.world)})


def conclude(folder: Folder, run: Lesson, best: int, tell: Tell) -> dict[str, dict[str, float]]:
    """Judge the best checkpoint by all examples that were not learnt from; run.json and evaluation.json say it."""
    found: dict[str, dict[str, float]] = {"valid": {}, "test": {}, "baseline": {}}
    sections: list[dict[str, Any]] = []
    seen: dict[str, Verdict] = {}
    for name in ("valid", "test"):
        if name in run.parts:
            goal = run.judge if name == "valid" else run.examples("test")
            seen[name] = verdict(run.former, run.task, goal, run.parts[name].rows, tell, run.autocast)
            found[name] = seen[name].measures
    last = "test" if "test" in seen else "valid"
    found["baseline"] = compared(run, last)
    head = ["", *found[last]]
    named = {**found, f"TF-IDF + linear, {last}": found["baseline"]}
    rows = [
        [name, *(f"{values[key]:.4f}" if key in values else "–" for key in head[1:])]
        for name, values in named.items()
        if values and name != "baseline"
    ]
    sections.append({"title": "Measures", "head": head, "rows": rows})
    sections += tables(run.task, run.former.labels, seen[last], run.parts[last].rows)
    (folder.path / "evaluation.json").write_text(
        json.dumps({"measures": found, "sections": sections}, ensure_ascii=False, indent=1), encoding="utf-8"
    )
    loss = run.text_loss(run.judge) if run.task.kind == "text" else seen["valid"].loss
    every = {name: number(value) for name, value in found["valid"].items()}
    score = {"loss": number(loss), "accuracy": every.get("accuracy"), "all": every}
    more = {"best": best, "parameters": count(run.former.model), "memory": memory(run.world.device), "share": 0.0}
    folder.describe({**folder.about(), "result": {"score": score, "baseline": None, "measures": found, **more}})
    return found


def compared(run: Lesson, part: str) -> dict[str, float]:
    """What a linear model over counted words gives on the same examples."""
    if not run.tune.baseline or run.task.kind not in ("class", "many", "number"):
        return {}
    try:
        from ..tasks.baseline import baseline
    except ImportError:
        return {}
    return baseline(run.parts["train"].rows, run.parts[part].rows)


__all__ = ["Tuned", "Verdict", "finetune"]
