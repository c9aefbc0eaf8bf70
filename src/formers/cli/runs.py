"""formers runs, report, rerun: list runs, write their reports, repeat one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ..config import JSONObject
from ..errors import Error
from .common import ModelRunFlags, SettingWords
from .pretrain import run_pretraining
from .terminal import SafeConsole, escape_line, print_table, print_text, show_progress


def runs(folder: Path = Path("runs")) -> None:
    """List the runs in a folder: family, task, steps done, main metric with its name, parameters, state.

    formers runs
    formers runs experiments

    Args:
        folder: Where runs are; "runs" by default.
    """
    from ..training.run_folder import RunFolder, summarise_run

    if not folder.is_dir():
        fix = "formers pretrain FAMILY --data FILE makes a run in runs/"
        raise Error("there is no such folder", where=folder, fix=fix)
    folders = sorted(p.parent for p in folder.glob("**/run.json"))
    rows = [tuple(map(str, summarise_run(RunFolder(path), path.relative_to(folder)))) for path in folders]
    titles = ("run", "family", "task", "steps", "result", "parameters", "state")
    if rows:
        print_table(rows, titles, no_wrap=("run", "result", "state"))  # the name of a run is typed again
    else:
        SafeConsole().print(f"no runs in {escape_line(folder)}")


def report(run: Path, *, language: Literal["en", "ko"] | None = None) -> None:
    """Write the report of a run again: report.html and report.md.

    formers report runs/bert-1
    formers report runs/bert-1 --language ko

    Args:
        run: The run's folder.
        language: en or ko; the language of the run's text by default.
    """
    from ..reports.run_report import write_report
    from ..training.run_folder import RunFolder

    print_text(str(write_report(RunFolder(run), language)))


def resume(run: Annotated[str, Parameter(allow_leading_hyphen=True)] = "RUN", *words: SettingWords) -> None:
    """Answer a command that does not exist: a run continues with the command that started it."""
    fix = f"formers pretrain FAMILY --resume --out {run}, or formers finetune --resume --out {run}"
    raise Error("a run continues with the command that started it, and --resume", fix=fix)


def rerun(run: Path, *, out: Path, device: str | None = None, resume: bool = False) -> None:
    """Repeat a run from its run.json: the same settings, the same data (other data is refused), the same seed.

    formers rerun runs/bert-1 --out runs/again
    formers rerun runs/bert-1 --out runs/again --resume

    Args:
        run: The run's folder.
        out: The folder of the new run.
        device: cuda, cpu; a GPU by default if there is one.
        resume: Continue a repetition that was interrupted.
    """
    from ..training.run_folder import RunFolder

    about = RunFolder(run).read_info()
    config, store = about["config"], run / "data" / "store"
    if "task" in config:
        return rerun_task(run, about, out, device, resume)
    source = config["data"].get("source")
    overrides = {} if source or not store.is_dir() else {"data.source": [str(store)]}
    if not source and not overrides:
        what = "the text of this run was in memory, and its store is gone"
        raise Error(what, where=run, fix="give the text to pretrain")
    options = ModelRunFlags(out=out, resume=resume, device=device)
    run_pretraining(config["family"], overrides, options, config=config, same=about["data"])


def rerun_task(run: Path, about: JSONObject, out: Path, device: str | None, resume: bool) -> None:
    """Fine-tune once more; examples that came out of memory are in the run's folder."""
    from ..training.runs.finetune import finetune
    from ..training.runs.splits import SPLITS, load_saved_examples

    config, labels = about["config"], about["data"].get("labels", ())
    try:
        saved_examples = {name: load_saved_examples(run, name, config["task"], labels) for name in SPLITS}
        sources: JSONObject = {name: saved_examples[name] or config["data"][name] for name in SPLITS}
        model = config["source"] or config["preset"] or config["family"]
    except (LookupError, TypeError, AttributeError) as error:
        what = f"does not say how it was fine-tuned ({type(error).__name__}: {error})"
        raise Error(what, where=run / "run.json", fix="give the data to formers finetune") from None
    with show_progress(SafeConsole(stderr=True), "finetune") as tell:
        if resume and (out / "run.json").is_file():  # it has its settings and examples
            done = finetune(out=out, device=device, tell=tell, resume=True)
        else:
            done = finetune(model, task=config["task"], out=out, config=config, device=device, tell=tell, **sources)
    print_text(str(done.folder))
