"""formers.pretrain: from text to a pretrained model with the family's own objective; it can be resumed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Tell
from ..data.lock import busy
from ..data.readers import by_path
from ..data.replacement import TAKEN, check_overwrite, replacing
from ..data.store import describe_unknown
from ..errors import Error
from ..former import Former, build, count, empty
from ..interop.directory import save
from ..interop.huggingface import explain_export
from ..interop.safe import remove
from ..registry import member
from ..text.language import detect_language
from ..text.tokenizer import Tokenizer
from .adopt import known
from .checkpoint import Checkpoints
from .configure import TABLES, Asked, configure, sized, tables_of
from .course import Course, ready
from .distributed import Shards, arranged, company, together
from .evaluate import Score
from .loop import Diverged, Report, Trainer
from .machine import Meter, deterministic, enough, machine, memory
from .material import Material, changed, check_text, material
from .plateau import Line, PlateauMonitor, in_english
from .rehearsal import slowdown
from .report import report
from .resume import refuse_if_finished, resumed
from .runs import Folder, drive, number
from .samples import Samples
from .settings import Train
from .state import put
from .tracking import Tracker
from .tuning import describe_random_start
from .vector_run import METHODS, pretrain_vectors
from .world import World

SOME = 4000  # tokens of the text that say which language it is in


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, the model, and what it is worth beside a unigram (None without held-out text)."""

    folder: Path
    former: Former
    score: Score | None
    baseline: Score | None
    seconds: float

    @property
    def history(self) -> list[dict[str, Any]]:
        """One table for each step and each look at held-out text."""
        return Folder(self.folder).history()


def pretrain(
    family: str | None = None,
    text: Any = None,
    *,
    out: str | Path | None = None,
    config: Any = None,
    recipe: str | None = None,
    preset: str | None = None,
    init: str | Path | None = None,
    tokenizer: Tokenizer | str | Path | None = None,
    held: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    device: Any = None,
    overrides: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
    say: Callable[[str], None] = lambda text: None,
    hook: Callable[[dict[str, Any]], None] | None = None,
    same: Mapping[str, Any] | None = None,
    **tables: Mapping[str, Any],
) -> Run:
    """Train a model of a family on text: files, a store (a path or a Store), a list, DataFrame or dataset of documents.
    The families are those of formers tree, and word2vec, glove and fasttext, which give word vectors.

    Settings come from the recipe, the preset, the `config` (a YAML file or a table), then `overrides` ({"train.steps":
    100}) or the same as tables (train={"steps": 100}). `init` starts from a checkpoint. `held` is text to be judged by
    (a list, DataFrame or dataset; files are named by data.held). With `resume`, a run in `out` goes on where it
    stopped; with `overwrite`, a new one takes its place. `tell` hears of the progress, `hook` gets each line of
    metrics.jsonl (a function, or one of training/tracking.py's), `say` gets words for people. `same` are the
    fingerprints (run.json's `data`) of a run that is to be repeated: other data is refused.
    """
    began = time.perf_counter()
    check_overwrite(out, resume, overwrite)
    if family in (*METHODS, "vectors"):
        other = {"recipe": recipe, "preset": preset, "init": init, "tokenizer": tokenizer, "held": held}
        other |= {"resume": resume or None}
        for name, value in other.items():
            if value is not None:
                raise Error(f"{name} does not apply to word vectors", fix="leave it out")
        given = together_overrides(None, overrides, tables)
        how: dict[str, Any] = {"tell": tell or (lambda *_: None), "say": say, "hook": hook, "same": same}
        how["overwrite"] = overwrite
        path, vectors, seconds = pretrain_vectors(str(family), text, out, config, given, **how)
        return Run(path, vectors, None, None, seconds)
    given = together_overrides(text, overrides, tables)
    if isinstance(tokenizer, str | Path):
        given, tokenizer = {**given, "data.tokenizer": str(tokenizer)}, None
    text, tell = None if by_path(text) else text, tell or (lambda *_: None)
    world = together(device)
    with ExitStack() as stack:
        stack.enter_context(company(world))
        wanted, asked = world.agreed(
            lambda: place(family, out, config, given, resume, overwrite, recipe=recipe, preset=preset, init=init)
        )
        world = arranged(world, asked.train.parallel)
        check_shares(asked.train, world, resume and wanted is not None and (wanted / "run.json").is_file())
        numbers = parameters(asked)
        stack.enter_context(enough(asked.train, numbers, world.device))
        stack.enter_context(deterministic(asked.train.deterministic))

        replaced: list[Callable[[], None]] = []

        def prepare() -> tuple[Path, Material]:
            for line in check_text(asked.data, text, held):
                say(line)
            inputs = (asked.table(), config, *(one.home.path for one in (text, held) if getattr(one, "home", None)))
            replaced.append(stack.enter_context(replacing(wanted, "run", overwrite, inputs)))
            here = stack.enter_context(claim_run_folder(wanted, asked.family))
            stack.enter_context(Folder(here).held())
            roomy(here, asked, numbers)
            found = material(asked.family, asked.data, here / "data", text, tokenizer, held, tell)
            unchanged(Folder(here), found, same)
            return here, found

        path, found = world.agreed(prepare)  # the others map the same files
        folder = Folder(path)
        if asked.train.deterministic:
            say(f"the same bits in every run: {slowdown(asked, found, world)}")
        run = Course(asked, found, world, say)
        if asked.init is None and asked.preset is not None:
            hint = describe_random_start(asked.family, asked.preset)
            say(hint + (": --init goes on from them" if "hub:" in hint else ""))
        say(run.words())
        if world.first and (line := describe_unknown(found.store, found.tokenizer)) is not None:
            say(f"note: {line}")
        if world.first and (why := explain_export(run.former)) is not None:
            say(f"export: {why}")
        ready(path, run)

        def begin() -> None:
            roomy(path, asked, count(run.former.model))  # now a checkpoint's size is known too
            remember(folder, asked, found, world)
            for remove_old in replaced:
                remove_old()

        world.agreed(begin)  # what cannot begin leaves no run behind
        run.prepare_evaluation()
        small = run.held_goal or run.goal(asked.train.length, found.store, held=True)  # held-out text may be short
        samples = Samples(run.former, small, found, path) if world.first else None
        meter = Meter(run.trainer, tell)
        monitor = follow_progress(run, folder) if world.first and found.held is not None else None

        def on_step(step: Report) -> None:
            if monitor is not None:
                monitor.note_step(step.losses)
            meter(step)

        if isinstance(hook, Tracker) and world.first:
            hook.begin(path, asked.table())
        begun = drive(
            run.trainer, run.source, folder,
            check=None if found.held is None else lambda: check_progress(run, monitor, say),
            sample=None if samples is None or isinstance(world, Shards) else samples.take, hook=hook, say=say,
            tell=on_step,
        )  # fmt: skip
        if begun == asked.train.steps:
            say(f"this run was finished before: all {begun:,} steps are done; raise --train.steps to go on")
            if found.held is not None:  # it is judged as it was then
                run.check()
        former, score, baseline = run.former, run.judged, None
        world.agreed(lambda: check_finite(folder, run.trainer))
        if world.first:
            former, best = finish(folder, run)
            score, baseline = judged(folder, best, run) or score, run.unigram
            result(folder, run, best, score, baseline, meter, monitor.verdict if monitor else None)
            report(folder)
        world.close()
    return Run(path, former, score, baseline, time.perf_counter() - began)


def follow_progress(run: Course, folder: Folder) -> PlateauMonitor:
    """What notices that a run is stuck; it has heard what a resumed run has measured so far."""
    asked, unigram = run.asked, run.unigram
    model = dataclasses.asdict(run.former.config)
    part = getattr(run.goals[-1], "part", "")
    monitor = PlateauMonitor(asked.family, model, asked.train, None if unigram is None else unigram.loss, part)
    monitor.replay(folder.history())
    return monitor


def check_progress(run: Course, monitor: PlateauMonitor | None, say: Callable[[str], None]) -> dict[str, float]:
    """Evaluate, and say so where the run is stuck."""
    seen = run.check()
    if monitor is not None and run.judged is not None:
        line = monitor.observe(run.trainer.step, run.judged.loss)
        if line is not None:
            say(line)
    return seen


def judged(folder: Folder, step: int, run: Course) -> Score | None:
    """The score of the checkpoint that was taken, as it was measured then."""
    seen = next((row["held"] for row in folder.history() if row["step"] == step and "held" in row), None)
    if seen is None:
        return None
    means = {name: math.nan if value is None else value for name, value in seen.items() if name != "loss"}
    return Score.of(means, run.goals[-1])


def result(
    folder: Folder, run: Course, best: int, score: Score | None, baseline: Score | None, meter: Meter,
    stuck: Line | None = None,
) -> None:  # fmt: skip
    """What came out of it, into run.json."""
    t = run.trainer
    share = meter.share(t.tokens / max(1e-9, t.seconds))
    some = run.found.tokenizer.decode(run.found.store.tokens[:SOME].tolist())
    more: dict[str, Any] = {
        "best": best,
        "parameters": count(run.former.model),
        "memory": memory(t.device),
        "share": round(share, 4),
        "language": detect_language(some),
    }
    if stuck is not None:
        more |= {"stuck": in_english(stuck), "stuck_parts": stuck}
    folder.describe({**folder.about(), "result": {"score": plain(score), "baseline": plain(baseline), **more}})


def plain(score: Score | None) -> dict[str, Any] | None:
    """A score as JSON says it."""
    if score is None:
        return None
    every = {name: number(value) for name, value in score.all.items()}
    return {"loss": number(score.loss), "accuracy": number(score.accuracy), "all": every}


def together_overrides(text: Any, overrides: Mapping[str, Any] | None, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings given as dotted names and as tables, under dotted names."""
    given: dict[str, Any] = {}
    for table, values in tables.items():
        if table not in TABLES or not isinstance(values, Mapping):
            raise Error(f"pretrain has no argument {table!r}", fix=f"tables of settings are {', '.join(TABLES)}")
        given |= {f"{table}.{key}": value for key, value in values.items()}
    if by_path(text):
        given["data.source"] = [str(one) for one in (text if isinstance(text, list | tuple) else [text])]
    given |= overrides or {}
    return given


def place(
    family: str | None, out: Any, config: Any, given: dict[str, Any], resume: bool, overwrite: bool, **top: Any
) -> tuple[Path | None, Asked]:
    """The folder that was named, or that of the run that goes on, and what is asked: of a run that goes on, what was
    asked before and may be changed."""
    path = Path(out) if out is not None else None
    if path is None and resume:
        path = newest(family)
    there = not overwrite and path is not None and (path / "run.json").is_file()
    about = Folder(path).about() if path is not None and there else None
    if about is None:
        top["init"] = None if top["init"] is None else str(top["init"])
        asked = configure(family, config, given, **top)
        if asked.init is not None:
            known(asked)
        return path, asked
    if not resume:
        raise Error("there is a run here already", where=path, fix=TAKEN)
    assert path is not None
    asked = resumed(path, about["asked"], family, tables_of(config), given, top)
    refuse_if_finished(
        path, about, asked.table(), f"{asked.train.steps:,} steps", f"--train.steps above {asked.train.steps:,}"
    )
    return path, asked


@contextmanager
def claim_run_folder(path: Path | None, stem: str) -> Iterator[Path]:
    """Make the folder of a run: `path`, or the first free runs/STEM-NUMBER, which no other process can take as well.

    A run that fails before its run.json is written leaves no folder behind: a numbered one is removed, a named one if
    it was not there before and no file is in it. A token store that is complete survives Ctrl-C.
    """
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
        if not there and next(here.rglob("run.json"), None) is None and not busy(here / "lock"):
            stored = next(here.rglob("store.json"), None) is not None
            if path is None and (isinstance(error, Exception) or not stored):
                shutil.rmtree(here, ignore_errors=True)
            inside = sorted((p for p in here.rglob("*") if p.is_dir()), reverse=True)
            remove([*inside, here, *new])
        raise


def make_folder(path: Path) -> bool:
    """Make a folder unless there is something of this name already; was it made?"""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            return False
        except FileNotFoundError:  # another process that failed has just removed the empty parent
            continue
        return True


def newest(family: str | None) -> Path | None:
    """The run that was begun last, of a family or of all."""
    runs = [p.parent for p in Path("runs").glob(f"{family or '*'}-*/run.json")]
    return max(runs, key=lambda p: (p / "run.json").stat().st_mtime_ns, default=None)


def check_shares(train: Train, world: World, begun: bool = False) -> None:
    """All processes must have as many batches of a step, which cannot change once a run has `begun`."""
    if train.accumulate % world.size:
        half = train.tokens * train.accumulate // world.size
        fix = f"--train.accumulate {world.size} --train.tokens {half} keeps the size of a step"
        raise Error(
            f"{train.accumulate} batches of a step cannot be shared by {world.size} processes",
            fix=f"go on with a number of processes that divides {train.accumulate}" if begun else fix,
        )
    if train.optimizer == "adafactor" and isinstance(world, Shards):
        what = "adafactor needs whole rows and columns, which shards do not have"
        raise Error(what, fix="--train.optimizer rms-adamw, or --train.parallel copies")
    if train.precision == "fp16" and world.size > 1 and train.parallel == "experts":
        raise Error("experts are not shared out in fp16", fix="--train.precision bf16 or fp32")


def parameters(asked: Asked) -> int | None:
    """How many the model will have, about: the tokenizer is not there yet. Nobody knows of a checkpoint's."""
    if asked.init is not None:
        return None
    config = sized(asked, vocab=asked.data.pieces)
    return count(empty(asked.family, config, member(asked.family).family.pretraining).model)


def roomy(path: Path, asked: Asked, numbers: int | None) -> None:
    """Refuse to begin where the disk cannot take the checkpoints."""
    if numbers is None:
        return
    kept = max(2, asked.train.last + asked.train.best) + 1
    need, free = (16 if asked.train.ema else 12) * numbers * kept, shutil.disk_usage(path).free
    if need > free:
        raise Error(
            f"{kept} checkpoints need about {need:,} bytes, and {free:,} are free", where=path,
            fix="make room, choose another --out, or keep fewer with --train.last 1 --train.best 0",
        )  # fmt: skip


def unchanged(folder: Folder, found: Material, same: Mapping[str, Any] | None = None) -> None:
    """Compare the data of a run that goes on with what run.json says, or of one that is repeated with the `same`."""
    before = folder.about()["data"] if (folder.path / "run.json").is_file() else same or found.fingerprints
    for key, value in found.fingerprints.items():
        if before.get(key) != value:
            what = {"tokenizer": "the tokenizer", "store": "the text", "held": "the held-out text"}[key]
            raise changed(what, folder.path)


def remember(folder: Folder, asked: Asked, found: Material, world: World) -> None:
    """Write run.json; of a run that goes on, what is asked now."""
    if (folder.path / "run.json").is_file():
        about = {**folder.about(), "asked": asked.table()}
    else:
        tokens = {"tokens": len(found.store.tokens), "documents": len(found.store.starts) - 1}
        about = {"asked": asked.table(), "data": {**found.fingerprints, **tokens}, "machine": machine(world)}
    folder.describe(about)


def training_facts(folder: Folder, step: int) -> dict[str, Any]:
    """What the run knows of the model of one step, kept in its formers.json for a model card: no path, names only."""
    about = folder.about()
    asked, data = about["asked"], about.get("data") or {}
    held: dict[str, Any] = next((row["held"] for row in folder.history() if row["step"] == step and "held" in row), {})
    sources = [asked["data"].get(name) for name in ("source", "train")]
    base = asked.get("init") or asked.get("source")
    base = base if base is None or base.startswith("hub:") else Path(base).name
    names = [
        Path(str(one)).name for value in sources if value for one in ([value] if isinstance(value, str) else value)
    ]
    counts = {key: data[key] for key in ("tokens", "documents", "examples") if isinstance(data.get(key), int)}
    found = {
        "steps": step, "objective": (asked.get("objective") or {}).get("name"), "task": asked.get("task"),
        "init": base, "data": {"sources": names, **counts},
        "validation": {key: value for key, value in held.items() if value is not None},
    }  # fmt: skip
    return {key: value for key, value in found.items() if isinstance(value, str | int | dict)}


def check_finite(folder: Folder, trainer: Trainer) -> None:
    """Refuse a result that is not finite: most steps were skipped, or no checkpoint has a finite validation loss.
    Checkpoints of the last non-finite steps are put aside, so that the run can go on before them."""
    kept = Checkpoints(folder.path / "steps", clean=False)
    rows, scores = folder.history(), kept.scores()
    steps = [row for row in rows if "loss" in row]
    bad = sum(row["loss"] is None or row.get("norm") is None for row in steps)
    best = next((step for step in sorted(scores) if scores[step] is not None), None)
    looks = [row["held"] for row in rows if "held" in row and set(row["held"]) - {"loss", "cost"}]
    excused = trainer.scaler.is_enabled() and not trainer.skipped  # fp16 finds its scale by trial and error
    told = f"{bad:,} of {len(steps):,} steps had a loss or gradient that is not finite"
    if looks and best is None and looks[-1].get("loss") is None:
        told = f"the validation loss is not finite ({told})"
    elif 2 * bad <= len(steps) or excused:
        return
    if trainer.skipped:
        kept.part_with(trainer.step - trainer.skipped - 1)
    raise Diverged(told, where=folder.path, fix="go on with --resume and a lower --train.lr; no model was written")


def finish(folder: Folder, run: Any, last: Callable[[Former], None] = lambda made: None) -> tuple[Former, int]:
    """The best checkpoint as a formers directory, and in memory; its step. `last` is done before it is saved."""
    kept = Checkpoints(folder.path / "steps", clean=False)
    found = kept.leading()
    if found is None:
        raise Error("no checkpoint is whole", where=kept.folder, fix="check the disk; --resume trains again")
    best, groups, _ = found
    if not isinstance(run.world, Shards):
        put(run.former.model, groups.get("average", groups["model"]))
        made = run.former
    else:
        made = build(run.asked.family, head=run.former.head, **dataclasses.asdict(run.former.config))
        made.tokenizer = run.former.tokenizer
        put(made.model, groups.get("average", groups["model"]))
    if not all(bool(weight.isfinite().all()) for weight in made.model.state_dict().values()):
        what = f"the weights of step {best:,} are not finite"
        raise Diverged(what, where=folder.path, fix="begin again with a lower --train.lr; no model was written")
    made.model.eval()
    made.training = training_facts(folder, best)
    last(made)
    target = folder.path / "model"
    if target.exists():
        shutil.rmtree(target)
    save(made, target)
    return made, best
