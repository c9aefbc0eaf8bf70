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

from ...atomic_files import TAKEN_HINT, check_overwrite, is_locked, remove_empty_folders, replace_folder
from ...config import ProgressCallback
from ...data.readers import is_path_source
from ...data.store import describe_unknown
from ...errors import Error
from ...former import Former, build, build_empty, count_trainable
from ...interop.huggingface import explain_export_limits
from ...interop.model_directory import save
from ...option_aliases import explain_name, resolve_setting, resolve_settings
from ...registry import find_family
from ...reports.run_report import write_report
from ...text.normalise import detect_language
from ...text.tokenizer import Tokenizer
from ..checkpoint.local import Checkpoints, set_weights
from ..config_merge import (
    PRETRAIN_TABLES,
    PretrainConfig,
    build_model_config,
    configure_pretraining,
    read_config_tables,
)
from ..distributed.process_group import ProcessGroup, connect_processes, explain_lost_peer
from ..distributed.strategies import select_strategy
from ..hardware import ProgressMeter, describe_hardware, explain_out_of_memory, get_peak_memory, use_deterministic
from ..plateau_monitor import NoteParts, PlateauMonitor, format_english
from ..run_folder import RUN_FOLDER, RunFolder, run_training_loop, to_json_number
from ..tracking import Tracker
from ..train_config import TrainConfig
from ..trainer import Diverged, StepResult, Trainer
from ..validation import Score
from ..word_vectors.vector_run import VECTOR_METHODS, pretrain_vectors
from .dry_run import measure_deterministic_cost
from .finetune_config import describe_random_start
from .prepare_data import PreparedData, check_readable, make_changed_error, prepare_data
from .pretrain_run import PretrainRun, SampleWriter, check_first_batch
from .resume import merge_resumed_config, refuse_if_finished
from .vocab_transfer import check_checkpoint_family

LANGUAGE_SAMPLE_TOKENS = 4000  # tokens of the text that say which language it is in


@dataclass(frozen=True)
class PretrainResult:
    """A finished run: its folder, the model, and what it is worth beside a unigram (None without held-out text)."""

    folder: Path
    former: Former
    score: Score | None
    baseline: Score | None
    seconds: float

    @property
    def history(self) -> list[dict[str, Any]]:
        """One table for each step and each look at held-out text."""
        return RunFolder(self.folder).read_history()


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
    tell: ProgressCallback | None = None,
    say: Callable[[str], None] = lambda text: None,
    hook: Callable[[dict[str, Any]], None] | None = None,
    same: Mapping[str, Any] | None = None,
    **tables: Mapping[str, Any],
) -> PretrainResult:
    """Train a model of a family on text: files, a store (a path or a Store), a list, DataFrame or dataset of documents.
    The families are those of formers tree, and word2vec, glove and fasttext, which give word vectors.

    Settings come from the recipe, the preset, the `config` (a YAML file or a table), then `overrides` ({"train.steps":
    100}) or the same as tables (train={"steps": 100}). `init` starts from a checkpoint. `held` is text to be judged by
    (a list, DataFrame or dataset; files are named by data.valid). With `resume`, a run in `out` goes on where it
    stopped; with `overwrite`, a new one takes its place. `tell` hears of the progress, `hook` gets each line of
    metrics.jsonl (a function, or one of training/tracking.py's), `say` gets words for people. `same` are the
    fingerprints (run.json's `data`) of a run that is to be repeated: other data is refused.
    """
    began = time.perf_counter()
    check_overwrite(out, resume, overwrite)
    if family in (*VECTOR_METHODS, "vectors"):
        other = {"recipe": recipe, "preset": preset, "init": init, "tokenizer": tokenizer, "held": held}
        other |= {"resume": resume or None}
        for name, value in other.items():
            if value is not None:
                raise Error(f"{name} does not apply to word vectors", fix="leave it out")
        given = collect_overrides(None, overrides, tables)
        how: dict[str, Any] = {"tell": tell or (lambda *_: None), "say": say, "hook": hook, "same": same}
        how["overwrite"] = overwrite
        path, vectors, seconds = pretrain_vectors(str(family), text, out, config, given, **how)
        return PretrainResult(path, vectors, None, None, seconds)
    given = collect_overrides(text, overrides, tables)
    if isinstance(tokenizer, str | Path):
        given, tokenizer = {**given, "data.tokenizer": str(tokenizer)}, None
    text, tell = None if is_path_source(text) else text, tell or (lambda *_: None)
    world = connect_processes(device)
    with ExitStack() as stack:
        stack.enter_context(explain_lost_peer(world))
        wanted, asked = world.broadcast_from_main(
            lambda: resolve_run(family, out, config, given, resume, overwrite, recipe=recipe, preset=preset, init=init)
        )
        check_batch_split(asked.train, world, resume and wanted is not None and (wanted / "run.json").is_file())
        numbers = estimate_parameters(asked)
        stack.enter_context(explain_out_of_memory(asked.train, numbers, world.device))
        stack.enter_context(use_deterministic(asked.train.deterministic))

        replaced: list[Callable[[], None]] = []

        def prepare() -> tuple[Path, PreparedData]:
            for line in check_readable(asked.data, text, held):
                say(line)
            stores = (one.directory.path for one in (text, held) if getattr(one, "directory", None))
            inputs = (asked.to_dict(), config, *stores)
            replaced.append(stack.enter_context(replace_folder(wanted, RUN_FOLDER, overwrite, inputs)))
            here = stack.enter_context(claim_run_folder(wanted, asked.family))
            stack.enter_context(RunFolder(here).lock())
            check_disk_space(here, asked, numbers)
            found = prepare_data(asked.family, asked.data, here / "data", text, tokenizer, held, tell)
            check_data_unchanged(RunFolder(here), found, same)
            return here, found

        path, found = world.broadcast_from_main(prepare)  # the others map the same files
        folder = RunFolder(path)
        if asked.train.deterministic:
            say(f"the same bits in every run: {measure_deterministic_cost(asked, found, world)}")
        run = PretrainRun(asked, found, world, say)
        if asked.init is None and asked.preset is not None:
            hint = describe_random_start(asked.family, asked.preset)
            say(hint + (": --init goes on from them" if "hub:" in hint else ""))
        say(run.describe())
        if world.is_main and (line := describe_unknown(found.store, found.tokenizer)) is not None:
            say(f"note: {line}")
        if world.is_main and (why := explain_export_limits(run.former)) is not None:
            say(f"export: {why}")
        check_first_batch(path, run)

        def begin() -> None:
            check_disk_space(path, asked, count_trainable(run.former.model))  # now a checkpoint's size is known too
            record_run(folder, asked, found, world)
            for remove_old in replaced:
                remove_old()

        world.broadcast_from_main(begin)  # what cannot begin leaves no run behind
        run.prepare_evaluation()
        small = run.valid_objective or run.build_objective(
            asked.train.seq_length, found.store, held=True
        )  # held-out text may be short
        samples = SampleWriter(run.former, small, found, path) if world.is_main else None
        meter = ProgressMeter(run.trainer, tell)
        monitor = build_monitor(run, folder) if world.is_main and found.valid_store is not None else None

        def on_step(step: StepResult) -> None:
            if monitor is not None:
                monitor.record_step(step.losses)
            meter(step)

        if isinstance(hook, Tracker) and world.is_main:
            hook.begin(path, asked.to_dict())
        begun = run_training_loop(
            run.trainer, run.iter_batches, folder,
            evaluate=None if found.valid_store is None else lambda: evaluate_progress(run, monitor, say),
            sample=None if samples is None or run.trainer.is_sharded else samples.write_sample, hook=hook,
            say=say, tell=on_step,
        )  # fmt: skip
        if begun == asked.train.steps:
            say(f"this run was finished before: all {begun:,} steps are done; raise --train.steps to go on")
            if found.valid_store is not None:  # it is judged as it was then
                run.evaluate()
        former, score, baseline = run.former, run.latest_score, None
        world.broadcast_from_main(lambda: check_finite(folder, run.trainer))
        if world.is_main:
            former, best = save_best_model(folder, run)
            score, baseline = read_score(folder, best, run) or score, run.unigram_baseline
            write_result(folder, run, best, score, baseline, meter, monitor.final_note if monitor else None)
            write_report(folder)
        world.close()
    return PretrainResult(path, former, score, baseline, time.perf_counter() - began)


def build_monitor(run: PretrainRun, folder: RunFolder) -> PlateauMonitor:
    """What notices that a run is stuck; it has heard what a resumed run has measured so far."""
    asked, unigram = run.config, run.unigram_baseline
    model = dataclasses.asdict(run.former.config)
    part = run.objectives[-1].part
    monitor = PlateauMonitor(asked.family, model, asked.train, None if unigram is None else unigram.loss, part)
    monitor.load_history(folder.read_history())
    return monitor


def evaluate_progress(run: PretrainRun, monitor: PlateauMonitor | None, say: Callable[[str], None]) -> dict[str, float]:
    """Evaluate, and say so where the run is stuck."""
    seen = run.evaluate()
    if monitor is not None and run.latest_score is not None:
        line = monitor.record_evaluation(run.trainer.step, run.latest_score.loss)
        if line is not None:
            say(line)
    return seen


def read_score(folder: RunFolder, step: int, run: PretrainRun) -> Score | None:
    """The score of the checkpoint that was taken, as it was measured then."""
    seen = next((row["held"] for row in folder.read_history() if row["step"] == step and "held" in row), None)
    if seen is None:
        return None
    means = {name: math.nan if value is None else value for name, value in seen.items() if name != "loss"}
    return Score.from_means(means, run.objectives[-1])


def write_result(
    folder: RunFolder, run: PretrainRun, best: int, score: Score | None, baseline: Score | None, meter: ProgressMeter,
    stuck: NoteParts | None = None,
) -> None:  # fmt: skip
    """What came out of it, into run.json."""
    t = run.trainer
    share = meter.compute_mfu(t.tokens / max(1e-9, t.seconds))
    some = run.data.tokenizer.decode(run.data.store.tokens[:LANGUAGE_SAMPLE_TOKENS].tolist())
    more: dict[str, Any] = {
        "best": best,
        "parameters": count_trainable(run.former.model),
        "memory": get_peak_memory(t.world.device),
        "share": round(share, 4),
        "language": detect_language(some),
    }
    if stuck is not None:
        more |= {"stuck": format_english(stuck), "stuck_parts": stuck}
    folder.write_info(
        {**folder.read_info(), "result": {"score": score_to_dict(score), "baseline": score_to_dict(baseline), **more}}
    )


def score_to_dict(score: Score | None) -> dict[str, Any] | None:
    """A score as JSON says it."""
    if score is None:
        return None
    every = {name: to_json_number(value) for name, value in score.metrics.items()}
    return {"loss": to_json_number(score.loss), "accuracy": to_json_number(score.accuracy), "all": every}


def collect_overrides(text: Any, overrides: Mapping[str, Any] | None, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings given as dotted names and as tables, under dotted names."""
    given: dict[str, Any] = {}
    for table, values in tables.items():
        if resolve_setting(table, PRETRAIN_TABLES) != table:
            given[table] = values
            continue
        if table not in PRETRAIN_TABLES or not isinstance(values, Mapping):
            fix = explain_name(table, (), PRETRAIN_TABLES) or f"tables of settings are {', '.join(PRETRAIN_TABLES)}"
            raise Error(f"pretrain has no argument {table!r}", fix=fix)
        given |= {f"{table}.{key}": value for key, value in values.items()}
    if is_path_source(text):
        given["data.source"] = [str(one) for one in (text if isinstance(text, list | tuple) else [text])]
    return resolve_settings(given | dict(overrides or {}), PRETRAIN_TABLES)


def resolve_run(
    family: str | None, out: Any, config: Any, given: dict[str, Any], resume: bool, overwrite: bool, **top: Any
) -> tuple[Path | None, PretrainConfig]:
    """The folder that was named, or that of the run that goes on, and what is asked: of a run that goes on, what was
    asked before and may be changed."""
    path = Path(out) if out is not None else None
    if path is None and resume:
        path = find_newest_run(family)
    there = not overwrite and path is not None and (path / "run.json").is_file()
    about = RunFolder(path).read_info() if path is not None and there else None
    if about is None:
        top["init"] = None if top["init"] is None else str(top["init"])
        asked = configure_pretraining(family, config, given, **top)
        if asked.init is not None:
            check_checkpoint_family(asked)
        return path, asked
    if not resume:
        raise Error("there is a run here already", where=path, fix=TAKEN_HINT)
    assert path is not None
    asked = merge_resumed_config(path, about["asked"], family, read_config_tables(config), given, top)
    refuse_if_finished(
        path, about, asked.to_dict(), f"{asked.train.steps:,} steps", f"--train.steps above {asked.train.steps:,}"
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
        if not there and next(here.rglob("run.json"), None) is None and not is_locked(here / "lock"):
            stored = next(here.rglob("store.json"), None) is not None
            if path is None and (isinstance(error, Exception) or not stored):
                shutil.rmtree(here, ignore_errors=True)
            inside = sorted((p for p in here.rglob("*") if p.is_dir()), reverse=True)
            remove_empty_folders([*inside, here, *new])
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


def find_newest_run(family: str | None) -> Path | None:
    """The run that was begun last, of a family or of all."""
    runs = [p.parent for p in Path("runs").glob(f"{family or '*'}-*/run.json")]
    return max(runs, key=lambda p: (p / "run.json").stat().st_mtime_ns, default=None)


def check_batch_split(train: TrainConfig, world: ProcessGroup, begun: bool = False) -> None:
    """All processes must have as many batches of a step, which cannot change once a run has `begun`."""
    if train.accumulate % world.size:
        half = train.batch_tokens * train.accumulate // world.size
        fix = f"--train.accumulate {world.size} --train.batch_tokens {half} keeps the size of a step"
        raise Error(
            f"{train.accumulate} batches of a step cannot be shared by {world.size} processes",
            fix=f"go on with a number of processes that divides {train.accumulate}" if begun else fix,
        )
    if train.optimizer == "adafactor" and select_strategy(world, train.parallel).is_sharded:
        what = "adafactor needs whole rows and columns, which shards do not have"
        raise Error(what, fix="--train.optimizer rms-adamw, or --train.parallel ddp")
    if train.precision == "fp16" and world.size > 1 and train.parallel == "expert":
        raise Error("experts are not shared out in fp16", fix="--train.precision bf16 or fp32")


def estimate_parameters(asked: PretrainConfig) -> int | None:
    """How many the model will have, about: the tokenizer is not there yet. Nobody knows of a checkpoint's."""
    if asked.init is not None:
        return None
    config = build_model_config(asked, vocab=asked.data.vocab_size)
    return count_trainable(
        build_empty(asked.family, config, find_family(asked.family).definition.pretraining_head).model
    )


def check_disk_space(path: Path, asked: PretrainConfig, numbers: int | None) -> None:
    """Refuse to begin where the disk cannot take the checkpoints."""
    if numbers is None:
        return
    kept = max(2, asked.train.keep_last + asked.train.keep_best) + 1
    need, free = (16 if asked.train.ema else 12) * numbers * kept, shutil.disk_usage(path).free
    if need > free:
        raise Error(
            f"{kept} checkpoints need about {need:,} bytes, and {free:,} are free", where=path,
            fix="make room, choose another --out, or keep fewer with --train.keep_last 1 --train.keep_best 0",
        )  # fmt: skip


def check_data_unchanged(folder: RunFolder, found: PreparedData, same: Mapping[str, Any] | None = None) -> None:
    """Compare the data of a run that goes on with what run.json says, or of one that is repeated with the `same`."""
    before = folder.read_info()["data"] if (folder.path / "run.json").is_file() else same or found.fingerprints
    for key, value in found.fingerprints.items():
        if before.get(key) != value:
            what = {"tokenizer": "the tokenizer", "store": "the text", "held": "the held-out text"}[key]
            raise make_changed_error(what, folder.path)


def record_run(folder: RunFolder, asked: PretrainConfig, found: PreparedData, world: ProcessGroup) -> None:
    """Write run.json; of a run that goes on, what is asked now."""
    if (folder.path / "run.json").is_file():
        about = {**folder.read_info(), "asked": asked.to_dict()}
    else:
        tokens = {"tokens": len(found.store.tokens), "documents": len(found.store.starts) - 1}
        about = {
            "asked": asked.to_dict(),
            "data": {**found.fingerprints, **tokens},
            "machine": describe_hardware(world),
        }
    folder.write_info(about)


def collect_training_facts(folder: RunFolder, step: int) -> dict[str, Any]:
    """What the run knows of the model of one step, kept in its formers.json for a model card: no path, names only."""
    about = folder.read_info()
    asked, data = about["asked"], about.get("data") or {}
    held: dict[str, Any] = next(
        (row["held"] for row in folder.read_history() if row["step"] == step and "held" in row), {}
    )
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


def check_finite(folder: RunFolder, trainer: Trainer) -> None:
    """Refuse a result that is not finite: most steps were skipped, or no checkpoint has a finite validation loss.
    Checkpoints of the last non-finite steps are put aside, so that the run can go on before them."""
    kept = Checkpoints(folder.path / "steps", remove_stale=False)
    rows, scores = folder.read_history(), kept.read_scores()
    steps = [row for row in rows if "loss" in row]
    bad = sum(row["loss"] is None or row.get("norm") is None for row in steps)
    best = next((step for step in sorted(scores) if scores[step] is not None), None)
    looks = [row["held"] for row in rows if "held" in row and set(row["held"]) - {"loss", "cost"}]
    excused = trainer.executor.scaler.is_enabled() and not trainer.bad_steps  # fp16 finds its scale by trial and error
    told = f"{bad:,} of {len(steps):,} steps had a loss or gradient that is not finite"
    if looks and best is None and looks[-1].get("loss") is None:
        told = f"the validation loss is not finite ({told})"
    elif 2 * bad <= len(steps) or excused:
        return
    if trainer.bad_steps:
        kept.quarantine_after(trainer.step - trainer.bad_steps - 1)
    raise Diverged(told, where=folder.path, fix="go on with --resume and a lower --train.lr; no model was written")


def save_best_model(
    folder: RunFolder, run: Any, before_save: Callable[[Former], None] = lambda made: None
) -> tuple[Former, int]:
    """The best checkpoint as a formers directory, and in memory; its step. `before_save` is done before it is saved."""
    kept = Checkpoints(folder.path / "steps", remove_stale=False)
    found = kept.load_best()
    if found is None:
        raise Error("no checkpoint is whole", where=kept.folder, fix="check the disk; --resume trains again")
    best, groups, _ = found
    if not run.trainer.is_sharded:
        set_weights(run.former.model, groups.get("ema", groups["model"]))
        made = run.former
    else:
        made = build(run.config.family, head=run.former.head, **dataclasses.asdict(run.former.config))
        made.tokenizer = run.former.tokenizer
        set_weights(made.model, groups.get("ema", groups["model"]))
    if not all(bool(weight.isfinite().all()) for weight in made.model.state_dict().values()):
        what = f"the weights of step {best:,} are not finite"
        raise Diverged(what, where=folder.path, fix="begin again with a lower --train.lr; no model was written")
    made.model.eval()
    made.training_info = collect_training_facts(folder, best)
    before_save(made)
    target = folder.path / "model"
    if target.exists():
        shutil.rmtree(target)
    save(made, target)
    return made, best
