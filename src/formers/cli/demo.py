"""formers demo: the main job on a small scale."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from .. import __version__
from ..config import Tell
from ..errors import Error
from .screen import Screen, show_line

PROMPTS = {
    "en": ("The people of the United States", "The Government of the ___ States"),
    "ko": ("현행법은", "이에 현행법을 ___ 하려는 것임"),
}


OBJECTIVES = {"gpt2": "causal", "bert": "masked"}
SECONDS = 120.0  # for everything
ENDING = 8.0  # seconds: the last evaluation, the samples, the report
EVALUATIONS = 8  # of each model while it trains, each on 24 batches; a forward pass is a third of a step
FEWEST = {"gpt2": 60, "bert": 150}  # steps, below which a model does not beat the unigram


def demo(
    *, language: Literal["en", "ko"] = "en", out: Path | None = None, seed: int = 0, resume: bool | None = None
) -> None:
    """Train a small GPT-2 and a small BERT here and now, and look at them.

    Needs no network and about two minutes: a tokenizer for each, the two models pretrained with their own objectives on
    a small bundled corpus, held beside a unigram on text they have not seen, then a continuation, a filled blank and a
    report to look at. A few steps are timed first, and the number of steps follows from the speed of this machine.
    After Ctrl-C, the same command goes on where it stopped.

    formers demo
    formers demo --language ko --out my-demo

    Parameters
    ----------
    language
        en: messages of US presidents; ko: reasons for bills of the National Assembly.
    out
        Where the report and the two models go; formers-demo-LANGUAGE by default.
    seed
        Another seed, other weights.
    resume
        Go on with a demo that was stopped; --no-resume begins anew. By default it goes on if there is one.
    """
    from ..training.runs import Stopped

    console, where = Screen(wrap=True), room(out or Path(f"formers-demo-{language}"))
    options = {"--language": language if language != "en" else None, "--out": out, "--seed": seed or None}
    words = [word for name, value in options.items() if value is not None for word in (name, shlex.quote(str(value)))]
    again = " ".join(["formers demo", *words])
    try:
        play(console, where, language, seed, resume)
    except Stopped as stopped:
        stopped.fix = f"go on with {again}"
        raise
    except KeyboardInterrupt:
        raise Interrupted("interrupted", fix=f"go on with {again}") from None


class Interrupted(Error):
    """Ctrl-C between two trainings, with the way to go on."""

    code = 130


def play(console: Screen, where: Path, language: Literal["en", "ko"], seed: int, resume: bool | None) -> None:
    """Train both models, from the beginning or from where an earlier demo was stopped, and write the report."""
    from ..data.readers import bundled, split
    from ..training.pretrain import pretrain
    from .progress import progress

    began, work = time.perf_counter(), where / WORK
    documents, changes = bundled(language)
    known, held = split(documents)
    console.print(f"{changes}; {len(held):,} held out")
    plan = read_plan(work, language, seed)
    if resume and plan is None:
        raise Error("there is no unfinished demo here", where=where, fix="leave --resume out")
    if resume is False or plan is None:
        shutil.rmtree(work, ignore_errors=True)
        plan = Plan(language, seed)
        write_plan(work, plan)
    tables: dict[str, Any] = {
        name: {"objective": {"name": goal}, "train": {"seed": seed}} for name, goal in OBJECTIVES.items()
    }
    if not plan.steps:
        plan = choose_steps(console, work, known, held, plan, tables, began)
        write_plan(work, plan)
        console.print(plan.words())
    else:
        done = ", ".join(f"{n} {steps_done(work / n):,} of {plan.steps[n]:,} steps" for n in OBJECTIVES)
        console.print(f"going on where it was stopped: {done}; {left(plan.remaining(work))}")
    runs = {}
    for number, family in enumerate(OBJECTIVES):
        steps = plan.steps[family]
        every = max(1, steps // EVALUATIONS)
        train = {"steps": steps, "warmup": max(1, min(50, steps // 10)), "check": every, "save": every, "samples": 0}
        tables[family]["train"] |= train
        later = sum(plan.seconds[name] for name in list(OBJECTIVES)[number + 1 :]) + ENDING
        with progress(console, family) as tell:
            runs[family] = pretrain(
                family, known, held=held, out=work / family, resume=(work / family / "run.json").is_file(),
                tell=with_time_left(tell, plan.seconds[family] / steps, later), **tables[family],
            )  # fmt: skip
    show(console, where, runs, len(documents), language, seed)
    shutil.rmtree(work)
    here = show_line(where)
    console.print(f"\nReport: {here}/report.html\nModels: {here}/gpt2, {here}/bert (open them with formers.load)")


@dataclass(frozen=True)
class Plan:
    """What a demo has chosen to do, kept in plan.json until it is finished: steps and seconds of each model."""

    language: str
    seed: int
    steps: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    version: str = __version__

    def words(self) -> str:
        """Return what was chosen, in a line."""
        each = ", ".join(f"{name} {steps:,} steps ({self.seconds[name]:.0f} s)" for name, steps in self.steps.items())
        return f"chosen for this machine: {each}; {left(sum(self.seconds.values()) + ENDING)}"

    def remaining(self, work: Path) -> float:
        """Return the seconds that the steps not yet done will take."""
        parts = (self.seconds[n] * (1 - steps_done(work / n) / steps) for n, steps in self.steps.items())
        return sum(parts) + ENDING


def read_plan(work: Path, language: str, seed: int) -> Plan | None:
    """Return the plan of an unfinished demo of this language and seed; another version's is not gone on with."""
    try:
        plan = Plan(**json.loads((work / "plan.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    whole = all(isinstance(part, dict) and set(part) in (set(), set(OBJECTIVES)) for part in (plan.steps, plan.seconds))
    return plan if whole and (plan.language, plan.seed, plan.version) == (language, seed, __version__) else None


def write_plan(work: Path, plan: Plan) -> None:
    """Write the plan, whole or not at all."""
    work.mkdir(parents=True, exist_ok=True)
    (work / ".plan.json").write_text(json.dumps(asdict(plan)), encoding="utf-8")
    os.replace(work / ".plan.json", work / "plan.json")


def choose_steps(
    console: Screen, work: Path, known: list[str], held: list[str], plan: Plan, tables: dict[str, Any], began: float
) -> Plan:
    """Time a few steps of each model on this machine, and choose how many of them fit into the time."""
    from ..training.recipes import recipe
    from ..training.rehearsal import measure_step
    from .progress import progress

    each, most = {}, {}
    for family in OBJECTIVES:
        with progress(console, family) as tell:
            each[family] = measure_step(family, known, held, work / family, tell=tell, **tables[family])
        most[family] = recipe(family, "quick").train["steps"]
    looks = EVALUATIONS * 8  # as many steps would take as long
    rest = SECONDS - ENDING - (time.perf_counter() - began)
    share = (rest - sum(looks * each[n] for n in each)) / sum(most[n] * each[n] for n in each)
    steps = {n: min(most[n], max(FEWEST[n], int(most[n] * share))) for n in each}
    return replace(plan, steps=steps, seconds={n: (steps[n] + looks) * each[n] for n in each})


def steps_done(run: Path) -> int:
    """Return how many steps of a run are saved."""
    from ..training.checkpoint import Checkpoints

    return max(Checkpoints(run / "steps", clean=False).steps(), default=0)


def left(seconds: float) -> str:
    """Return a time in words; "about 2 min left"."""
    from ..training.machine import left as words

    return f"about {words(max(1.0, seconds))}"


def with_time_left(tell: Tell, each: float, later: float) -> Tell:
    """Return a listener that adds the time until the whole demo is done.

    `each` are the seconds of a step, as long as none is measured here; `later` are the seconds after this model.
    """
    first: list[tuple[float, int]] = []

    def say(what: str, done: int, of: int, detail: str) -> None:
        if what == "training":
            now = time.perf_counter()
            if not first:
                first.append((now, done))
            began, before = first[0]
            step = (now - began) / (done - before) if done > before else each
            detail += f", {left((of - done) * step + later)} in all"
        tell(what, done, of, detail)

    return say


def show(
    console: Screen, where: Path, runs: dict[str, Any], documents: int, language: Literal["en", "ko"], seed: int
) -> None:
    """Print what the models are worth and what they write, save them, and write the report."""
    from ..generation.fill import fill
    from ..generation.text import generate
    from ..inspection.attention import attention
    from ..inspection.report_strings import translate
    from ..interop.directory import save
    from ..training.report import write

    prompt, blank = PROMPTS[language]
    table = Table("held-out text", "unigram, nats", "model, nats", "unigram, right", "model, right", box=None)
    for family, run in runs.items():
        table.add_row(
            family,
            *(f"{score.loss:.2f}" for score in (run.baseline, run.score) if score),
            *(f"{score.accuracy:.1%}" for score in (run.baseline, run.score) if score),
        )
    console.print(table)
    text = prompt + generate(runs["gpt2"].former, prompt, 56, temperature=0.7, top_k=40, seed=seed)
    guesses = fill(runs["bert"].former, blank)
    console.print(Text.assemble("\n", ("GPT-2 continues", "bold"), f" {prompt} …\n{text}"))
    console.print(Text.assemble("\n", ("BERT fills", "bold"), f" {blank}"))
    for guess in guesses:
        console.print(f"  {guess.probability:6.1%}  {guess.token}")
    filled = "\n".join(f"{g.probability:.1%}  {g.text}" for g in guesses)
    samples = {
        "gpt2": [(translate("Continuing “{text}”:", language, text=prompt), text)],
        "bert": [(translate("Filling “{text}”:", language, text=blank), filled)],
    }
    begun = " ".join(text.split()[:8])  # a prompt may be a single token
    looked = {"gpt2": attention(runs["gpt2"].former, begun), "bert": attention(runs["bert"].former, guesses[0].text)}
    clear(where)
    for family, run in runs.items():
        save(run.former, where / family)
    write(
        where / "report.html",
        translate("Two language models, trained while you waited", language),
        translate("Corpus: {documents:,} bundled documents.", language, documents=documents),
        {family: run.folder for family, run in runs.items()},
        samples,
        looked,
        language,
    )


OWN = ("gpt2", "bert", "report.html", ".formers-demo")  # what a demo writes, and the mark that it was one
WORK = "demo-runs"  # where it trains; taken away at the end: not "runs", where formers pretrain keeps its own


def room(where: Path) -> Path:
    """A folder for the demo: a new one, an empty one, or an earlier demo's."""
    try:
        there = where.exists() and any(where.iterdir())
        unmarked = ("report.html", "gpt2/formers.json")  # an earlier version's; a training run has a report too
        if there and not ((where / OWN[-1]).exists() or all((where / name).exists() for name in unmarked)):
            raise Error("exists and is not an earlier demo's", where=where, fix="choose another place with --out")
        where.mkdir(parents=True, exist_ok=True)
        (where / OWN[-1]).touch()
    except OSError as error:
        raise Error(f"cannot write here ({error.strerror})", where=where, fix="choose another with --out") from None
    return where


def clear(where: Path) -> None:
    """Take away what an earlier demo wrote, and nothing else."""
    for name in OWN[:-1]:
        if (where / name).is_dir():
            shutil.rmtree(where / name)
        else:
            (where / name).unlink(missing_ok=True)
