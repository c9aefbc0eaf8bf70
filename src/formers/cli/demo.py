"""formers demo: the bundled models (shipped_demo.py), and with --train the main job on a small scale."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from .. import __version__, errors
from ..config import ProgressCallback, Settings
from ..errors import Error
from .terminal import SafeConsole, escape_line, print_table, show_progress

DEMO_PROMPTS = {
    "en": ("The people of the United States", "The Government of the ___ States"),
    "ko": ("현행법은", "이에 현행법을 ___ 하려는 것임"),
}
DEMO_OBJECTIVES = {"gpt2": "causal", "bert": "mlm"}
TIME_BUDGET_SECONDS = 120.0  # for everything
FINISH_SECONDS = 8.0  # seconds: the last evaluation, the samples, the report
EVALS_PER_MODEL = 8  # of each model while it trains, each on 24 batches; a forward pass is a third of a step
MIN_STEPS = {"gpt2": 60, "bert": 150}  # steps, below which a model does not beat the unigram


def demo(
    *,
    train: bool = False,
    language: Literal["en", "ko"] | None = None,
    out: Path | None = None,
    seed: int = 0,
    resume: Annotated[bool | None, Parameter(negative="--no-resume")] = None,
) -> None:
    """Show what the bundled models can do; with --train, train two small ones in two minutes.

    Needs no network. The models that come with formers fill an English and a Korean blank, continue a text, write a
    title for a bill and find similar words, and one is looked into. With --train, a small GPT-2 and a small BERT are
    trained with their own tokenizers and objectives on a small bundled corpus, compared with a unigram model on
    validation text, and write a text and a report. A few steps are timed first, so that the number of steps fits the
    speed of this machine. After Ctrl-C, the same command continues where it stopped.

    formers demo
    formers demo --train
    formers demo --train --language ko --out my-demo

    Args:
        train: Train two models here, instead of showing the bundled ones.
        language: With --train. en: messages of US presidents; ko: reasons for bills of the National Assembly.
        out: The folder of what is written; formers-demo, or with --train formers-demo-LANGUAGE by default.
        seed: Random seed: of the text that is written, with --train of the weights.
        resume: With --train, continue an interrupted demo; --no-resume starts again. By default an unfinished demo is
            continued.
    """
    console = SafeConsole(wrap=True)
    if not train:
        if language is not None or resume is not None:
            option = "--language" if language is not None else "--resume"
            raise Error(f"{option} belongs to the demo that trains", fix=f"formers demo --train {option} …")
        from .shipped_demo import show_shipped_models

        show_shipped_models(console, out or Path("formers-demo"), seed)
        return
    from ..training.loop import Stopped

    chosen: Literal["en", "ko"] = language or "en"
    where = prepare_output_folder(out or Path(f"formers-demo-{chosen}"))
    options = {"--language": chosen if chosen != "en" else None, "--out": out, "--seed": seed or None}
    words = [word for name, value in options.items() if value is not None for word in (name, shlex.quote(str(value)))]
    again = " ".join(["formers demo --train", *words])
    errors.CONTINUE_ADVICE = f". Continue with {again}"  # for Ctrl-C between two trainings or during an import
    try:
        run_demo(console, where, chosen, seed, resume)
    except Stopped as stopped:
        stopped.fix = f"continue with {again}"
        raise


def run_demo(console: SafeConsole, where: Path, language: Literal["en", "ko"], seed: int, resume: bool | None) -> None:
    """Train both models, from the beginning or from where an earlier demo was stopped, and write the report."""
    from ..data.preparation.corpus_filters import hold_out_documents
    from ..data.readers import load_bundled_corpus
    from ..training.runs.pretrain import pretrain

    began, work = time.perf_counter(), where / WORK_FOLDER
    documents, changes = load_bundled_corpus(language)
    train_texts, valid_texts = hold_out_documents(documents)
    console.print(f"{changes}; {len(valid_texts):,} held out for validation")
    plan = read_plan(work, language, seed)
    if resume and plan is None:
        raise Error("there is no unfinished demo here", where=where, fix="leave --resume out")
    if resume is False or plan is None:
        shutil.rmtree(work, ignore_errors=True)
        plan = DemoPlan(language, seed)
        write_plan(work, plan)
    goals = DEMO_OBJECTIVES.items()
    tables: Settings = {name: {"objective": {"name": goal}, "train": {"seed": seed}} for name, goal in goals}
    if not plan.steps:
        plan = choose_steps(console, work, train_texts, valid_texts, plan, tables, began)
        write_plan(work, plan)
        console.print(plan.describe_plan())
    else:
        done = ", ".join(f"{n} {count_saved_steps(work / n):,} of {plan.steps[n]:,} steps" for n in DEMO_OBJECTIVES)
        console.print(f"continuing where it stopped: {done}; {format_time_left(plan.estimate_remaining(work))}")
    runs = {}
    for number, family in enumerate(DEMO_OBJECTIVES):
        steps = plan.steps[family]
        every = max(1, steps // EVALS_PER_MODEL)
        tables[family]["train"] |= {"steps": steps, "warmup_steps": max(1, min(50, steps // 10)), "samples": 0}
        tables[family]["train"] |= {"eval_every": every, "save_every": every}
        later = sum(plan.seconds[name] for name in list(DEMO_OBJECTIVES)[number + 1 :]) + FINISH_SECONDS
        with show_progress(console, family) as tell:
            runs[family] = pretrain(
                family, train_texts, valid=valid_texts, out=work / family,
                resume=(work / family / "run.json").is_file(),
                tell=add_time_left(tell, plan.seconds[family] / steps, later), **tables[family],
            )  # fmt: skip
    show_results(console, where, runs, len(documents), language, seed)
    shutil.rmtree(work)
    here = escape_line(where)
    console.print(f"\nReport: {here}/report.html\nModels: {here}/gpt2, {here}/bert (open them with formers.load)")


@dataclass(frozen=True)
class DemoPlan:
    """What a demo has chosen to do, kept in plan.json until it is finished: steps and seconds of each model."""

    language: str
    seed: int
    steps: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    version: str = __version__

    def describe_plan(self) -> str:
        """Return what was chosen, in a line."""
        each = ", ".join(f"{name} {steps:,} steps ({self.seconds[name]:.0f} s)" for name, steps in self.steps.items())
        return f"chosen for this machine: {each}; {format_time_left(sum(self.seconds.values()) + FINISH_SECONDS)}"

    def estimate_remaining(self, work: Path) -> float:
        """Return the seconds that the steps not yet done will take."""
        parts = (self.seconds[n] * (1 - count_saved_steps(work / n) / steps) for n, steps in self.steps.items())
        return sum(parts) + FINISH_SECONDS


def read_plan(work: Path, language: str, seed: int) -> DemoPlan | None:
    """Return the plan of an unfinished demo of this language and seed; another version's is not gone on with."""
    try:
        plan = DemoPlan(**json.loads((work / "plan.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    parts, names = (plan.steps, plan.seconds), set(DEMO_OBJECTIVES)
    whole = all(isinstance(part, dict) and set(part) in (set(), names) for part in parts)
    return plan if whole and (plan.language, plan.seed, plan.version) == (language, seed, __version__) else None


def write_plan(work: Path, plan: DemoPlan) -> None:
    """Write the plan, whole or not at all."""
    from ..atomic_files import write_atomically

    work.mkdir(parents=True, exist_ok=True)
    write_atomically(work / "plan.json", json.dumps(asdict(plan)))


def choose_steps(
    console: SafeConsole, work: Path, train_texts: list[str], valid_texts: list[str], plan: DemoPlan,
    tables: Settings, began: float,
) -> DemoPlan:  # fmt: skip
    """Time a few steps of each model on this machine, and choose how many of them fit into the time."""
    from ..training.recipes import get_recipe
    from ..training.runs.dry_run import measure_step_seconds

    each, most = {}, {}
    for family, table in tables.items():
        with show_progress(console, family) as tell:
            each[family] = measure_step_seconds(family, train_texts, valid_texts, work / family, tell=tell, **table)
        most[family] = get_recipe(family, "quick").train["steps"]
    looks = EVALS_PER_MODEL * 8  # as many steps would take as long
    rest = TIME_BUDGET_SECONDS - FINISH_SECONDS - (time.perf_counter() - began)
    share = (rest - sum(looks * each[n] for n in each)) / sum(most[n] * each[n] for n in each)
    steps = {n: min(most[n], max(MIN_STEPS[n], int(most[n] * share))) for n in each}
    return replace(plan, steps=steps, seconds={n: (steps[n] + looks) * each[n] for n in each})


def count_saved_steps(run: Path) -> int:
    """Return how many steps of a run are saved."""
    from ..training.checkpoint.local import Checkpoints

    return max(Checkpoints(run / "steps", remove_stale=False).list_steps(), default=0)


def format_time_left(seconds: float) -> str:
    """Return a time in words; "about 2 min left"."""
    from ..training.progress import format_time_left as words

    return f"about {words(max(1.0, seconds))}"


def add_time_left(tell: ProgressCallback, step_seconds: float, seconds_after: float) -> ProgressCallback:
    """Return a progress callback that adds the time until the whole demo is done.

    `step_seconds` is an estimate until a step is measured here; `seconds_after` is the time that the rest takes."""
    first: list[tuple[float, int]] = []

    def report_progress(what: str, done: int, of: int, detail: str) -> None:
        if what == "training":
            now = time.perf_counter()
            if not first:
                first.append((now, done))
            began, before = first[0]
            step = (now - began) / (done - before) if done > before else step_seconds
            detail += f", {format_time_left((of - done) * step + seconds_after)} in all"
        tell(what, done, of, detail)

    return report_progress


def show_results(
    console: SafeConsole, where: Path, runs: Settings, documents: int, language: Literal["en", "ko"], seed: int
) -> None:
    """Print what the models are worth and what they write, save them, and write the report."""
    from ..generation.api import generate
    from ..generation.fill import fill
    from ..inspection.attention import attention
    from ..interop.model_directory import save
    from ..reports.run_report import write_runs_page
    from ..reports.translations import translate_report
    from ..training.run_folder import RunFolder

    prompt, blank = DEMO_PROMPTS[language]
    rows = []
    for family, run in runs.items():
        scores = [score for score in (run.baseline, run.score) if score]
        rows.append((family, *(f"{s.loss:.2f}" for s in scores), *(f"{s.accuracy:.1%}" for s in scores)))
    print_table(rows, ("validation text", "unigram loss", "model loss", "unigram accuracy", "model accuracy"))
    text = prompt + generate(runs["gpt2"].former, prompt, 56, temperature=0.7, top_k=40, seed=seed)
    guesses = fill(runs["bert"].former, blank)
    console.print(Text.assemble("\n", ("GPT-2 continues", "bold"), f" {prompt} …\n{text}"))
    console.print(Text.assemble("\n", ("BERT fills", "bold"), f" {blank}"))
    for guess in guesses:
        console.print(f"  {guess.probability:6.1%}  {guess.token}")
    filled = "\n".join(f"{g.probability:.1%}  {g.text}" for g in guesses)
    samples = {
        "gpt2": [(translate_report("Continuing “{text}”:", language, text=prompt), text)],
        "bert": [(translate_report("Filling “{text}”:", language, text=blank), filled)],
    }
    start = " ".join(text.split()[:8])  # a prompt may be a single token
    shown = {"gpt2": start, "bert": guesses[0].text}
    attentions = {family: attention(runs[family].former, words) for family, words in shown.items()}
    remove_old_outputs(where)
    for family, run in runs.items():
        save(run.former, where / family)
    title = translate_report("Two language models, trained while you waited", language)
    intro = translate_report("Corpus: {documents:,} bundled documents.", language, documents=documents)
    folders = {family: RunFolder(run.folder) for family, run in runs.items()}
    write_runs_page(where / "report.html", title, intro, folders, samples, attentions, language)


OUTPUT_NAMES = ("gpt2", "bert", "report.html", ".formers-demo")  # what a demo writes, and the mark that it was one
WORK_FOLDER = "demo-runs"  # where it trains; taken away at the end: not "runs", where formers pretrain keeps its own


def prepare_output_folder(where: Path) -> Path:
    """Create the folder of the demo, or take an empty one or an earlier demo's."""
    try:
        there = where.exists() and any(where.iterdir())
        unmarked = ("report.html", "gpt2/formers.json")  # an earlier version's; a training run has a report too
        if there and not ((where / OUTPUT_NAMES[-1]).exists() or all((where / name).exists() for name in unmarked)):
            raise Error("exists and is not an earlier demo's", where=where, fix="choose another place with --out")
        where.mkdir(parents=True, exist_ok=True)
        (where / OUTPUT_NAMES[-1]).touch()
    except OSError as error:
        raise Error(f"cannot write here ({error.strerror})", where=where, fix="choose another with --out") from None
    return where


def remove_old_outputs(where: Path) -> None:
    """Take away what an earlier demo wrote, and nothing else."""
    for name in OUTPUT_NAMES[:-1]:
        if (where / name).is_dir():
            shutil.rmtree(where / name)
        else:
            (where / name).unlink(missing_ok=True)
