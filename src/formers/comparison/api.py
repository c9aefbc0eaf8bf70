"""formers.compare: several families under equal budgets, on the same text and tasks. It can be resumed, and a family
can be added later."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..atomic_files import hold_lock, write_atomically
from ..config import JSONObject, ProgressCallback, Settings, count_noun
from ..data.readers import find_files, is_path_source
from ..errors import Error
from ..training.progress import format_duration
from .corpus import PARTS, write_corpus
from .jobs import JobRunner, list_jobs
from .records import Record, RecordFolder
from .report import write_comparison_report
from .scheduler import Outcome, Scheduler, TimeEstimator
from .settings import CompareConfig, TaskSource

CONFIG_FORMAT = 1
GROWING_SETTINGS = ("families", "budgets", "headline")  # lists to which a later call may add,
GROWING_TABLES = ("tasks", "pairs")  # tables of the same,
FREE_SETTINGS = ("seeds", "headline_seeds", "measure_speed")  # and settings that a later call may change


@dataclass(frozen=True)
class ComparisonResult:
    """What a call did, all records so far, and the report."""

    folder: Path
    outcome: Outcome
    records: list[Record]
    report: Path

    num_left: int  # jobs without a final record

    @property
    def is_complete(self) -> bool:
        """Whether every job has a final record."""
        return self.num_left == 0


def compare(
    families: list[str] | tuple[str, ...] = (), text: object = None, *, out: str | Path,
    tasks: Mapping[str, object] | None = None, pairs: Mapping[str, str | Path] | None = None, together: int = 0,
    minutes: float | None = None, retry: bool = False, device: str | None = None,
    say: Callable[[str], None] = lambda text: None, tell: ProgressCallback | None = None, **settings: object,
) -> ComparisonResult:  # fmt: skip
    """Pretrain families under equal budgets, fine-tune each on the same tasks, measure speed and memory, and write a
    report into `out`. The same call again continues what was stopped; finished jobs are not repeated, and families,
    tasks, budgets and seeds may be added.

    `text` is files or documents in memory; `tasks` maps names to training examples (a file, or rows), or to a table of
    train, valid and test; `pairs` maps names to files of good and bad sentences. `settings` are those of
    CompareConfig: budgets=("epochs:10", "flops:bert"), words=10_000_000, body_size=5_000_000, seeds=1,
    headline=("bert",).
    `together` processes work at once (0: this one alone). After `minutes`, runs are saved and stopped, and nothing is
    started that cannot be expected to end before. A job that was refused (the library cannot do it, or it diverged) is
    not tried again without `retry`.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    report = tell or (lambda *_: None)
    with hold_lock(folder / "lock"):
        config = prepare_comparison(folder, list(families), text, tasks, pairs, settings, report)
        runner = JobRunner(folder, config, device)
        jobs = list_jobs(config)
        scheduler = Scheduler(runner, jobs, together=together, minutes=minutes, retry=retry, say=say, tell=report)
        try:
            outcome = scheduler.run()
        finally:
            path = write_comparison_report(folder, config, RecordFolder(folder).read_all())
    records = RecordFolder(folder).read_all()
    final = {record.job for record in records if record.is_final}
    return ComparisonResult(folder, outcome, records, path, sum(job.name not in final for job in jobs))


def prepare_comparison(
    folder: Path, families: list[str], text: object, tasks: Mapping[str, object] | None,
    pairs: Mapping[str, str | Path] | None, settings: Mapping[str, object], tell: ProgressCallback,
) -> CompareConfig:  # fmt: skip
    """Write what is asked for, or add it to what a folder has, and make the corpus if it is not there."""
    request: Settings = {**settings}
    if families:
        request["families"] = families
    if tasks:
        request["tasks"] = {name: save_task(folder, name, source) for name, source in tasks.items()}
    if pairs:
        request["pairs"] = {name: str(Path(path).resolve()) for name, path in pairs.items()}
    where = folder / "comparison.json"
    config = (
        merge_settings(folder, request) if where.is_file() else CompareConfig.from_dict({"families": (), **request})
    )
    corpus = folder / "corpus"
    if not (corpus / "train.jsonl").is_file() or not read_corpus_record(folder):
        if text is None:
            what = "there is no text to learn from" if not where.is_file() else "the text is not in this folder"
            raise Error(what, where=folder, fix="give --text FILES")
        make_corpus(folder, text, config.words, tell)
    elif text is not None:
        known, now = read_corpus_record(folder).get("source"), stamp_source(text)
        if known is not None and now is not None and now != known:
            what = "the comparison was begun with other text"
            raise Error(what, where=folder, fix="leave --text out, or choose another --out")
    write_atomically(
        where, json.dumps({"format": CONFIG_FORMAT, **config.to_dict()}, ensure_ascii=False, indent=1) + "\n"
    )
    return config


def make_corpus(folder: Path, text: object, words: int | None, tell: ProgressCallback) -> None:
    """Write the corpus and its record. Where a record was brought from another machine, the text must be the same."""
    known = read_corpus_record(folder)
    shutil.rmtree(folder / "corpus", ignore_errors=True)  # of a call that was killed before its record was written
    sizes = write_corpus(text, folder / "corpus", words, tell)
    if known and known["fingerprint"] != sizes["fingerprint"]:
        shutil.rmtree(folder / "corpus")
        what = "this is not the text that the records of this comparison come from"
        raise Error(what, where=folder, fix="give the --text that it was begun with, or choose another --out")
    RecordFolder(folder).write(Record("corpus", "corpus", "done", result={**sizes, "source": stamp_source(text)}))


def stamp_source(text: object) -> list[list[object]] | None:
    """Return names and sizes of files; None for text in memory."""
    if not is_path_source(text):
        return None
    return [[path.name, path.stat().st_size] for path in find_files(text)]


def save_task(folder: Path, name: str, source: object) -> TaskSource:
    """Return the files of a task; examples in memory are written into the folder."""
    parts = source if isinstance(source, Mapping) else {"train": source}
    files: dict[str, str] = {}
    for part, value in parts.items():
        if part not in ("train", "valid", "test"):
            raise Error(f"a task has no part {part!r}", fix="it has train, valid and test")
        if value is None:
            continue
        if is_path_source(value):
            files[part] = str(Path(str(value)).expanduser().resolve())
            continue
        if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
            raise Error(
                f"the {part} examples of {name} are neither a file nor rows", fix="give a file, or a list of tables"
            )
        path = folder / "tasks" / name / f"{part}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in value))
        files[part] = str(path.resolve())
    if "train" not in files:
        raise Error(f"the task {name} has no training examples", fix=f"--task {name}=FILE")
    return TaskSource(files["train"], files.get("valid"), files.get("test"))


def read_config(folder: Path) -> CompareConfig:
    """Read what a comparison is asked to do."""
    where = folder / "comparison.json"
    try:
        values = json.loads(where.read_text(encoding="utf-8"))
        version = values.pop("format")
    except (OSError, ValueError, AttributeError, KeyError):
        fix = "begin one with formers compare --out FOLDER"
        raise Error("this is not a comparison", where=where, fix=fix) from None
    if version != CONFIG_FORMAT:
        raise Error(f"format {version} is not read here", where=where, fix="begin a new comparison")
    return CompareConfig.from_dict(values)


def merge_settings(folder: Path, given: Settings) -> CompareConfig:
    """Add what is asked now to what a comparison was asked before; what its results depend on cannot change."""
    before = read_config(folder).to_dict()
    merged: Settings = {**before, **given}
    for name in GROWING_SETTINGS:
        merged[name] = list(dict.fromkeys([*before[name], *given.get(name, ())]))
    for name in GROWING_TABLES:
        merged[name] = {**before[name], **given.get(name, {})}
    config = CompareConfig.from_dict(merged)
    now = config.to_dict()
    for name, value in before.items():
        if name in GROWING_TABLES:
            for key, files in value.items():
                if list_file_names(now[name][key]) != list_file_names(files):
                    raise Error(f"{key} was begun with other files", where=folder, fix="give it another name")
        elif name not in (*GROWING_SETTINGS, *FREE_SETTINGS) and now[name] != value:
            what = f"the comparison was begun with {name} {value}, not {now[name]}"
            raise Error(what, where=folder, fix="leave it out, or choose another --out")
    return config


def list_file_names(files: object) -> list[str | None]:
    """Return the names of the files of a task or of pairs, without their folders, which may have moved."""
    paths = files.values() if isinstance(files, Mapping) else [files]
    return [None if path is None else Path(str(path)).name for path in paths]


def read_corpus_record(folder: Path) -> JSONObject:
    """Read the sizes of the corpus, its fingerprint and its source; empty before it is made."""
    record = RecordFolder(folder).read("corpus")
    return {} if record is None else record.result


PLAN_COLUMNS = (
    "family", "kind", "layers × width", "parameters", "body", "FLOPs a token", "budget", "steps", "FLOPs", "minutes",
)  # fmt: skip


def plan_comparison(
    families: list[str] | tuple[str, ...] = (), text: object = None, *, out: str | Path,
    tasks: Mapping[str, object] | None = None, pairs: Mapping[str, str | Path] | None = None, together: int = 1,
    device: str | None = None, say: Callable[[str], None] = lambda text: None, tell: ProgressCallback | None = None,
    **settings: object,
) -> tuple[list[tuple[str, ...]], list[str]]:  # fmt: skip
    """Return the plan of a comparison as rows, and notes: sizes, operations and expected minutes of every family, from
    a few measured steps. The corpus, the token stores, the plans and the measured speeds are kept in `out`, and a
    later call continues from there; nothing is trained."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    report = tell or (lambda *_: None)
    with hold_lock(folder / "lock"):
        config = prepare_comparison(folder, list(families), text, tasks, pairs, settings, report)
        runner, jobs = JobRunner(folder, config, device), list_jobs(config)
        first = [job for job in jobs if job.kind in ("data", "plan", "speed")]
        outcome = Scheduler(runner, first, together=together, say=say, tell=report).run()
    notes = [f"{name}: {why}" for name, why in (*outcome.refused.items(), *outcome.failed.items())]
    estimator = TimeEstimator(runner, max(1, together))
    rows, total = list[tuple[str, ...]](), 0.0
    for family in config.families:
        record = runner.records.read(f"plan/{family}")
        if record is None or record.status != "done":
            continue
        mine = [job for job in jobs if job.family == family and job.kind not in ("data", "plan", "speed")]
        for budget in config.parsed_budgets:
            own = [job for job in mine if job.budget == budget.name]
            seconds = sum(estimator.estimate(job) for job in own)
            total += seconds
            rows.append(describe_member(record.result, family, budget.name, runner, seconds))
    corpus = read_corpus_record(folder)
    if corpus["cut_documents"]:
        notes.append(describe_sections(corpus))
    together = max(1, together)
    notes.append(
        f"{corpus['train']['words']:,} words of training text; about {format_duration(total / together)} in all with "
        f"{count_noun(together, 'job')} at once (estimates; those of fine-tuning and scoring get better "
        "when some of it is done)"
    )
    return rows, notes


def describe_sections(corpus: JSONObject) -> str:
    """Say that few documents were cut into sections."""
    num, num_sections = corpus["cut_documents"], sum(corpus[part]["documents"] for part in PARTS)
    return (
        f"the text has {count_noun(num, 'document')}, too few to hold some out: cut into {num_sections} "
        "sections of whole sentences (blank lines separate documents in a text file)"
    )


def describe_member(plan: JSONObject, family: str, budget: str, runner: JobRunner, seconds: float) -> tuple[str, ...]:
    """Return a row of the plan."""
    steps, is_capped = runner.count_budget_steps(family, budget)
    depth = f"{plan['layers']}+{plan['decoder_layers']}" if plan["decoder_layers"] else str(plan["layers"])
    return (
        family, plan["kind"], f"{depth} × {plan['dim']}", f"{plan['parameters']:,}", f"{plan['body']:,}",
        f"{plan['flops_per_token']:.2e}", budget, f"{steps:,}{' (time limit)' if is_capped else ''}",
        f"{steps * plan['step_flops']:.2e}", f"{seconds / 60:.1f}",
    )  # fmt: skip
