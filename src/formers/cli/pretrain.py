"""formers pretrain FAMILY: a model trained with the family's own objective, from text to a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..errors import Error
from ..registry import MEMBERS, Member
from .progress import progress
from .screen import Screen, print_text, show_line

PAIRS = ("seq2seq", "gnmt", "transformer")  # these learn from a source and its target
UNTRAINED = ("textcnn", "vectors")  # these are not pretrained: a task's, or a method of its own
HELP = """{help}.

Trains a tokenizer, prepares the text, trains with the family's own objective and writes a report. Ctrl-C saves; the
same command with --resume goes on. Any setting can be given by its name: --model.layers 4, --train.steps 2000,
--objective.name causal, --data.unit line; --print-config shows all of them. Under torchrun, processes share the work.

{first}
formers pretrain {name} --data corpus-store --recipe paper --train.steps 100000 --out runs/first
formers pretrain {name} --resume --out runs/first

Exit codes: 2 an error, 3 the loss is no number any more; 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP (a
closed terminal, unless nohup was used): saved, can be resumed.

Parameters
----------
data
    Files, folders or globs (txt, jsonl, csv, tsv, parquet, also packed), or a store made by formers prepare.
out
    The run's folder; runs/{name}-NUMBER by default.
config
    A YAML file with settings, as --print-config writes it.
recipe
    quick: learns within minutes on a CPU. paper: the paper's optimizer, schedule, batch and dropout, scaled to size.
preset
    A published size, or a small one of ours: {presets}.
init
    Go on from a checkpoint: a formers or Hugging Face directory, also with another tokenizer.
tokenizer
    A tokenizer.json or a folder with one, instead of training one.
resume
    Go on with the run in --out, or the newest one; begins if there is none.
print_config
    Print all settings as YAML, and end.
dry_run
    Say how large and how long the run would be, from a few measured steps, and end.
device
    cuda, cuda:1, cpu; what there is by default.
deterministic
    The same bits in every run, on a GPU too; what that costs is measured and told.
tensorboard
    Write the metrics for TensorBoard as well (extra track).
settings
    Dotted settings with their values: --train.lr 1e-3.
"""
Rest = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def verb(member: Member) -> Callable[..., None]:
    """The subcommand of one family."""

    def pretrain(
        *settings: Rest,
        data: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
        out: Path | None = None,
        config: Path | None = None,
        recipe: Literal["quick", "paper"] | None = None,
        preset: str | None = None,
        init: str | None = None,
        tokenizer: Path | None = None,
        resume: bool = False,
        print_config: bool = False,
        dry_run: bool = False,
        device: str | None = None,
        deterministic: bool = False,
        tensorboard: bool = False,
    ) -> None:
        given = overrides(settings)
        if deterministic:
            given["train.deterministic"] = True
        if data:
            given["data.source"] = data
        if tokenizer is not None:
            given["data.tokenizer"] = str(tokenizer)
        top = {"recipe": recipe, "preset": preset, "init": init}
        if print_config:
            from ..training.configure import configure

            print_text(configure(member.name, config, given, **top).text().removesuffix("\n"))
            return
        if dry_run:
            from ..training.rehearsal import rehearse

            tell(rehearse(member.name, config, given, device=device, **top))
            return
        run(member.name, given, out, config, resume, device, tensorboard, top)

    words, presets = member.help[0].upper() + member.help[1:], "see formers tree"
    pretrain.__doc__ = HELP.format(help=words, name=member.name, first=example(member.name), presets=presets)
    return pretrain


def example(name: str) -> str:
    """How text is given to a family."""
    if name not in PAIRS:
        return f"formers pretrain {name} --data my.txt"
    return f"""It learns from pairs: source TAB target in each line, or two columns.

formers pretrain {name} --data pairs.txt
formers pretrain {name} --data pairs.csv --data.column de,en"""


def overrides(words: Sequence[str]) -> dict[str, Any]:
    """--model.layers 4 --train.lr=1e-3 → {"model.layers": "4", "train.lr": "1e-3"}."""
    given: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equal, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in key:
            raise Error(f"unknown option {word!r}", fix="see --help; settings have a dot: --train.steps 100")
        if not equal:
            if not rest or rest[0].startswith("--"):
                raise Error(f"{word} has no value", fix=f"{word} VALUE; true or false for a switch")
            value = rest.pop(0)
        given[key.replace("-", "_")] = value
    return given


def run(
    family: str, given: dict[str, Any], out: Path | None, config: Any, resume: bool, device: str | None,
    tensorboard: bool, top: dict[str, Any],
) -> None:  # fmt: skip
    """Train, and say how it goes."""
    import os

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of a cost that is known
    from ..training.pretrain import newest, pretrain

    console = Screen(stderr=True, quiet=os.environ.get("RANK", "0") != "0")
    hook = board(lambda: out or newest(family) or Path("runs")) if tensorboard else None
    with progress(console, family) as tell:
        done = pretrain(
            family, out=out, config=config, resume=resume, device=device, overrides=given, tell=tell,
            say=console.print, hook=hook, **top,
        )  # fmt: skip
    console = Screen(quiet=os.environ.get("RANK", "0") != "0")
    if done.score is not None:
        right = f", {done.score.accuracy:.1%} right" if done.score.accuracy == done.score.accuracy else ""  # ELMo: none
        base = (
            "" if done.baseline is None else f" (unigram {done.baseline.loss:.2f} nats, {done.baseline.accuracy:.1%})"
        )
        console.print(f"held-out text: {done.score.loss:.2f} nats{right}{base}")
    console.print(f"model: {show_line(done.folder / 'model')}\nreport: {show_line(done.folder / 'report.html')}")


def board(where: Callable[[], Path]) -> Callable[[dict[str, Any]], None]:
    """A hook that writes for TensorBoard into the run's folder, which is there when the first line comes."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise Error("TensorBoard is not here", fix="pip install 'formers[track]'") from None
    writers: list[Any] = []

    def hook(line: dict[str, Any]) -> None:
        if not writers:
            writers.append(SummaryWriter(str(where() / "tensorboard")))
        writer, step = writers[0], line["step"]
        for name, value in {**line.get("losses", {}), "lr": line.get("lr"), "norm": line.get("norm")}.items():
            if value is not None:
                writer.add_scalar(f"training/{name}", value, step)
        for name, value in line.get("held", {}).items():
            if value is not None:
                writer.add_scalar(f"held/{name}", value, step)

    return hook


def tell(rows: Sequence[tuple[str, str]]) -> None:
    """What a dry run found."""
    console = Screen()
    for key, value in rows:
        console.print(f"{key:>12}  {value}")


pretrain = App(
    name="pretrain",
    help="Train a model of a family on text, with the family's own objective.\n\nformers pretrain bert --data my.txt",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)
for _member in MEMBERS.values():
    if _member.name not in UNTRAINED:
        pretrain.command(verb(_member), name=_member.name)
