"""formers compare FAMILY …: families pretrained under equal budgets, fine-tuned on the same tasks, and ranked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..config import Settings
from ..errors import Error
from .common import parse_overrides
from .terminal import SafeConsole, escape_line, print_table, show_progress

TABLES = ("train", "tune")  # of settings, as --TABLE.NAME
ListOption = Annotated[list[str] | None, Parameter(consume_multiple=True)]
NumberListOption = Annotated[list[float] | None, Parameter(consume_multiple=True)]
FamilyWords = Annotated[str, Parameter(allow_leading_hyphen=True)]
TaskOption = Annotated[list[str] | None, Parameter(consume_multiple=True, accepts_keys=False)]


def compare(
    *families: FamilyWords, text: ListOption = None, task: TaskOption = None, pairs: TaskOption = None,
    budget: ListOption = None, out: Path = Path("race"), words: int | None = None, body_size: float | None = None,
    layers: int | None = None, seq_length: int | None = None, batch_tokens: int | None = None,
    vocab_size: int | None = None, lr_factors: NumberListOption = None, search_share: float | None = None,
    seeds: int | None = None, headline: ListOption = None, headline_seeds: int | None = None,
    tune_epochs: float | None = None, tune_limit: int | None = None, tolerance: float | None = None,
    max_minutes: float | None = None,
    measure_speed: Annotated[bool | None, Parameter(negative="--no-measure-speed")] = None, together: int = 1,
    minutes: float | None = None, retry: Annotated[bool, Parameter(negative=())] = False, device: str | None = None,
    dry_run: bool = False,
) -> None:  # fmt: skip
    """Race families: pretrain each under equal budgets, fine-tune it on the same tasks, and write a report.

    All read the same text with the same pieces, have bodies of the same size and the same small search for a learning
    rate. The same command again continues what was stopped; finished runs are not repeated, and families, tasks,
    budgets and seeds can be added. Settings of all runs can be given by name: --train.workers 1, --tune.patience 2.

    formers compare bert gpt2 t5 --text corpus.txt --task reviews=train.tsv,dev.tsv,test.tsv --out race
    formers compare bert gpt2 t5 --text corpus.txt --task reviews=train.tsv --out race --dry-run
    formers compare xlnet --out race
    formers compare bert gpt2 --text articles/ --budget epochs:10 flops:bert --words 10000000 --body-size 8e6 --out big
    formers compare --out big --together 6 --minutes 9

    Exit codes: 2 an error, 4 there are jobs left (the same command continues).

    Args:
        families: Families to race; none continues with those of --out. Dotted settings of all runs may follow.
        text: Text files, folders or globs, as formers pretrain reads them; not needed again.
        task: Tasks as NAME=TRAIN, or NAME=TRAIN,VALID,TEST: tables that formers finetune reads.
        pairs: Files of a good and a bad sentence, as NAME=FILE: how often a model finds the good one likelier.
        budget: epochs:10 (passes over the text), flops:2e17 (operations), or flops:bert (those of BERT's epochs);
            several are raced side by side. epochs:10 by default.
        out: The folder of the comparison.
        words: Words of training text; all of it by default.
        body_size: Parameters of every body, without tables of tokens; 1,000,000 by default.
        layers: Layers, of an encoder-decoder on both sides together; 4 by default.
        seq_length: Tokens of an example; 64 by default.
        batch_tokens: Tokens of a batch; 2048 by default.
        vocab_size: Pieces of the common tokenizer; 4000 by default.
        lr_factors: Learning rates to try, as multiples of the recipe's; 0.5 1 2 by default, 1 alone tries none.
        search_share: Length of such a trial, as a share of the steps; 0.1 by default.
        seeds: Seeds of each family; 1 by default.
        headline: Families that are run with more seeds.
        headline_seeds: So many; 3 by default.
        tune_epochs: Passes over the examples of a task; 3 by default.
        tune_limit: Training examples of each task; all by default.
        tolerance: How far a body may be from the size; 0.05 by default.
        max_minutes: Limit of the training time of one pretraining run, which becomes one of its steps.
        measure_speed: Time a few steps of each family alone on the machine (on by default).
        together: Processes that work at once.
        minutes: Stop after so many minutes. Nothing is started that cannot be expected to end in time.
        retry: Try jobs again that were refused before: what the library could not do, or what diverged.
        device: cuda, cuda:1, mps or cpu; a GPU by default if there is one.
        dry_run: Print sizes, operations and expected minutes from a few measured steps, and train nothing.
    """
    from ..comparison.api import PLAN_COLUMNS, plan_comparison
    from ..comparison.api import compare as run_comparison

    names = list(itertools.takewhile(lambda word: not word.startswith("-"), families))
    overrides = parse_overrides(families[len(names) :], compare, TABLES)
    settings: Settings = {
        "budgets": budget, "words": words, "body_size": None if body_size is None else round(body_size),
        "layers": layers,
        "seq_length": seq_length, "batch_tokens": batch_tokens, "vocab_size": vocab_size, "lr_factors": lr_factors,
        "search_share": search_share, "seeds": seeds, "headline": headline, "headline_seeds": headline_seeds,
        "tune_epochs": tune_epochs, "tune_limit": tune_limit, "tolerance": tolerance, "max_minutes": max_minutes,
        "measure_speed": measure_speed,
    }  # fmt: skip
    settings = {name: value for name, value in settings.items() if value is not None}
    for table in TABLES:
        own = {key.partition(".")[2]: value for key, value in overrides.items() if key.startswith(f"{table}.")}
        settings |= {table: own} if own else {}
    files = None if text is None else [Path(name) for name in text]
    options: Settings = {
        "out": out, "tasks": parse_tasks(task), "pairs": parse_named_files(pairs), "together": together,
        "device": device,
    }  # fmt: skip
    console = SafeConsole(stderr=True)
    if together < 1:
        raise Error("at least one process works", fix="--together 1")
    with show_progress(console, "compare") as tell:
        options |= {"say": console.print, "tell": tell}
        if dry_run:
            rows, notes = plan_comparison(names, files, **options, **settings)
        else:
            done = run_comparison(names, files, minutes=minutes, retry=retry, **options, **settings)
    if dry_run:
        print_table(rows, PLAN_COLUMNS)
        for note in notes:
            SafeConsole(wrap=True).print(note)
        return
    for job, why in {**done.outcome.refused, **done.outcome.failed}.items():
        SafeConsole().print(f"{job}: {escape_line(why)}")
    if done.outcome.refused:
        SafeConsole().print("what is not possible is not tried again; --retry does")
    SafeConsole().print(f"report: {escape_line(done.report)}")
    if not done.is_complete:
        SafeConsole().print(f"jobs left: {done.num_left:,}; the same command continues")
        raise SystemExit(4)


def parse_named_files(words: list[str] | None) -> dict[str, str]:
    """Read NAME=FILE."""
    named = {}
    for word in words or ():
        name, equal, file = word.partition("=")
        if not equal or not name or not file:
            raise Error(f"{word!r} names no file", fix="write NAME=FILE")
        named[name] = file
    return named


def parse_tasks(words: list[str] | None) -> dict[str, dict[str, str]]:
    """Read NAME=TRAIN, NAME=TRAIN,VALID or NAME=TRAIN,VALID,TEST; a part may be empty."""
    tasks = {}
    for name, files in parse_named_files(words).items():
        parts = files.split(",")
        if len(parts) > 3:
            raise Error(f"the task {name} has more than three files", fix=f"{name}=TRAIN,VALID,TEST")
        tasks[name] = {part: file for part, file in zip(("train", "valid", "test"), parts, strict=False) if file}
    return tasks
