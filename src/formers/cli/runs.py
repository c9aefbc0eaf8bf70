"""formers runs, report, rerun: what was trained, and once more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.table import Column, Table

from ..errors import Error
from .pretrain import Rest
from .screen import Screen, print_text, show_line


def runs(folder: Path = Path("runs")) -> None:
    """List the runs in a folder: family, task, steps done, main metric with its name, parameters, state.

    formers runs
    formers runs experiments

    Parameters
    ----------
    folder
        Where runs are; "runs" by default.
    """
    from ..training.runs import Folder, summary

    if not folder.is_dir():
        raise Error(
            "there is no such folder", where=folder, fix="formers pretrain FAMILY --data FILE makes a run in runs/"
        )
    name, result, state = (Column(title, no_wrap=True) for title in ("run", "result", "state"))  # a name is typed again
    titles = (name, "family", "task", "steps", result, "parameters", state)
    table = Table(*titles, box=None, collapse_padding=True, pad_edge=False)
    found = sorted(p.parent for p in folder.glob("**/run.json"))
    for path in found:
        table.add_row(*map(show_line, summary(Folder(path), path.relative_to(folder))))
    console = Screen(wrap=True)
    if not console.is_terminal:  # what reads a pipe has no width
        wide = console.options.update(width=100_000)
        console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table if found else f"no runs in {show_line(folder)}")


def report(run: Path, *, language: Literal["en", "ko"] | None = None) -> None:
    """Write report.html and report.md of a run again.

    formers report runs/bert-1
    formers report runs/bert-1 --language ko

    Parameters
    ----------
    run
        The run's folder.
    language
        en or ko; that of the run's text by default.
    """
    from ..training.report import report as write
    from ..training.runs import Folder

    print_text(str(write(Folder(run), language)))


def resume(run: Annotated[str, Parameter(allow_leading_hyphen=True)] = "RUN", *words: Rest) -> None:
    """Answer a command that is not there: a run goes on with the command that began it."""
    fix = f"formers pretrain FAMILY --resume --out {run}, or formers finetune --resume --out {run}"
    raise Error("a run goes on with the command that began it, and --resume", fix=fix)


def rerun(run: Path, *, out: Path, device: str | None = None, resume: bool = False) -> None:
    """Repeat a run from its run.json: the same settings, the same data (another is refused), the same seed.

    formers rerun runs/bert-1 --out runs/again
    formers rerun runs/bert-1 --out runs/again --resume

    Parameters
    ----------
    run
        The run's folder.
    out
        Where the new run goes.
    device
        cuda, cpu; what there is by default.
    resume
        Go on with a repetition that was stopped.
    """
    from ..training.runs import Folder
    from .pretrain import run as train

    about = Folder(run).about()
    asked, store = about["asked"], run / "data" / "store"
    if "task" in asked:
        return rerun_task(run, about, out, device, resume)
    source = asked["data"].get("source")
    given = {} if source or not store.is_dir() else {"data.source": [str(store)]}
    if not source and not given:
        raise Error(
            "the text of this run was in memory, and its store is gone", where=run, fix="give the text to pretrain"
        )
    train(asked["family"], given, out, asked, resume, device, {"same": about["data"]})


def rerun_task(run: Path, about: dict[str, Any], out: Path, device: str | None, resume: bool) -> None:
    """Fine-tune once more; examples that came out of memory are in the run's folder."""
    from ..training.finetune import finetune
    from ..training.parts import PARTS, read_kept
    from .progress import progress

    asked, labels = about["asked"], about["data"].get("labels", ())
    try:
        kept = {name: read_kept(run, name, asked["task"], labels) for name in PARTS}
        given: dict[str, Any] = {name: kept[name] or asked["data"][name] for name in PARTS}
        model = asked["source"] or asked["preset"] or asked["family"]
    except (LookupError, TypeError, AttributeError) as error:
        what = f"does not say how it was fine-tuned ({type(error).__name__}: {error})"
        raise Error(what, where=run / "run.json", fix="give the data to formers finetune") from None
    with progress(Screen(stderr=True), "finetune") as tell:
        if resume and (out / "run.json").is_file():  # it has its settings and examples
            done = finetune(out=out, device=device, tell=tell, resume=True)
        else:
            done = finetune(model, task=asked["task"], out=out, config=asked, device=device, tell=tell, **given)
    print_text(str(done.folder))
