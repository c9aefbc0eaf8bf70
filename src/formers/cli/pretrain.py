"""formers pretrain FAMILY: a model trained with the family's own objective, from text to a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import join
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..errors import Error
from ..registry import MEMBERS, Member
from .common import Overwrite, TrainingType, find_checkpoint, suggest_option, take_dtype
from .progress import progress
from .reading import Reading
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
seed
    Of the new weights, the order of the text, what is hidden, and dropout; 0 by default.
device
    cuda, cuda:1, cpu; what there is by default.
deterministic
    The same bits in every run, on a GPU too; what that costs is measured and told.
tensorboard
    Write the metrics for TensorBoard as well (extra track).
wandb
    Send the metrics to Weights & Biases as well (extra track); the project is the folder around the run's.
settings
    Dotted settings with their values: --train.lr 1e-3.
"""
Rest = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
Switch = Annotated[bool, Parameter(negative=())]


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
        overwrite: Overwrite = False,
        print_config: bool = False,
        dry_run: bool = False,
        seed: int | None = None,
        device: str | None = None,
        dtype: TrainingType = None,
        deterministic: bool = False,
        tensorboard: bool = False,
        wandb: bool = False,
        reading: Reading | None = None,
    ) -> None:
        given = {**(reading or Reading()).given(), **overrides(settings, pretrain)}
        take_dtype(given, dtype)
        if deterministic:
            given["train.deterministic"] = True
        if seed is not None:
            given["train.seed"] = seed
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
        run(member.name, given, out, config, resume, device, top, tensorboard, wandb, overwrite)

    words, presets = member.help[0].upper() + member.help[1:], "see formers tree"
    pretrain.__doc__ = HELP.format(help=words, name=member.name, first=example(member.name), presets=presets)
    return pretrain


def example(name: str) -> str:
    """How text is given to a family."""
    if name not in PAIRS:
        return f"formers pretrain {name} --data my.txt"
    return f"""It learns from pairs: source TAB target in each line, or two columns.

formers pretrain {name} --data pairs.txt
formers pretrain {name} --data pairs.csv --column de,en"""


def overrides(words: Sequence[str], command: Callable[..., Any]) -> dict[str, Any]:
    """--model.layers 4 --train.lr=1e-3 → {"model.layers": "4", "train.lr": "1e-3"}; `command` has the other options."""
    given: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equal, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in key:
            raise Error(f"unknown option {word!r}", fix=suggest_option(word, command))
        if not equal:
            if not rest or rest[0].startswith("--"):
                raise Error(f"{word} has no value", fix=f"{word} VALUE; true or false for a switch")
            value = rest.pop(0)
        given[key.replace("-", "_")] = value
    return given


def run(
    family: str, given: dict[str, Any], out: Path | None, config: Any, resume: bool, device: str | None,
    top: dict[str, Any], tensorboard: bool = False, wandb: bool = False, overwrite: bool = False,
) -> None:  # fmt: skip
    """Train, and say how it goes."""
    import os

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of a cost that is known
    from ..training.pretrain import pretrain
    from ..training.tracking import track

    first = os.environ.get("RANK", "0") == "0"
    console = Screen(stderr=True, quiet=not first)
    with track(tensorboard and first, wandb and first) as hook, progress(console, family) as tell:
        done = pretrain(
            family, out=out, config=config, resume=resume, device=device, overrides=given, tell=tell,
            say=console.print, hook=hook, overwrite=overwrite, **top,
        )  # fmt: skip
    console = Screen(quiet=not first)
    if done.score is not None:
        right = f", {done.score.accuracy:.1%} right" if done.score.accuracy == done.score.accuracy else ""  # ELMo: none
        base = (
            "" if done.baseline is None else f" (unigram {done.baseline.loss:.2f} nats, {done.baseline.accuracy:.1%})"
        )
        console.print(f"held-out text: {done.score.loss:.2f} nats{right}{base}")
    console.print(f"model: {show_line(done.folder / 'model')}\nreport: {show_line(done.folder / 'report.html')}")


def tell(rows: Sequence[tuple[str, str]]) -> None:
    """What a dry run found."""
    console = Screen()
    for key, value in rows:
        console.print(f"{key:>12}  {value}")


VECTORS = {
    "word2vec": "word vectors by skip-gram (or CBOW: --model.kind cbow)",
    "glove": "word vectors from counts of words that occur together",
    "fasttext": "word vectors made of character n-grams, also for words never seen; good for Korean",
}
VECTOR_HELP = """{help}.

Splits the text at spaces and punctuation, trains a vector for each word, and writes a model and a report with the
neighbours of some words. Any setting can be given by its name: --model.window 10, --model.kind cbow, --model.min_n 2,
--train.lr 0.05, --train.threads 1 (the same bits in every run), --data.column review, --data.encoding cp949.

formers pretrain {name} --data my.txt
formers pretrain {name} --data reviews.csv --data.column review --dim 300 --min-count 2 --out runs/words
formers neighbours runs/words king
formers finetune textcnn --vectors runs/words --train reviews.tsv

Exit codes: 2 an error, 3 the vectors are not finite, 130 after Ctrl-C (nothing is saved: there are no checkpoints).

Parameters
----------
data
    Files, folders or globs (txt, jsonl, csv, tsv, parquet, also packed).
out
    The run's folder; runs/{name}-NUMBER by default.
config
    A YAML file with settings, as --print-config writes it.
dim
    Numbers of a vector; 100 by default.
window
    The farthest neighbour on either side that counts; 5 by default.
min_count
    Rarer words are left out; 5 by default.
epochs
    How often the text is seen.
seed
    Of the first vectors and of all that is drawn; 0 by default. One thread repeats exactly.
print_config
    Print all settings as YAML, and end.
tensorboard
    Write the metrics for TensorBoard as well (extra track).
wandb
    Send the metrics to Weights & Biases as well (extra track); the project is the folder around the run's.
settings
    Dotted settings with their values: --model.negatives 10.
"""


def vector_verb(method: str) -> Callable[..., None]:
    """The subcommand of one way to train word vectors."""

    def pretrain(
        *settings: Rest,
        data: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
        out: Path | None = None,
        config: Path | None = None,
        dim: int | None = None,
        window: int | None = None,
        min_count: int | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        overwrite: Overwrite = False,
        print_config: bool = False,
        tensorboard: bool = False,
        wandb: bool = False,
        reading: Reading | None = None,
    ) -> None:
        given = {**(reading or Reading()).given(), **overrides(settings, pretrain)}
        short = {"model.dim": dim, "model.window": window, "model.min_count": min_count, "data.source": data}
        short |= {"train.epochs": epochs, "train.seed": seed}
        given |= {name: value for name, value in short.items() if value is not None}
        if print_config:
            from ..training.vector_run import configure_vectors

            print_text(configure_vectors(method, config, given).text(), end="")
            return
        run(method, given, out, config, False, None, {}, tensorboard, wandb, overwrite)

    words = VECTORS[method][0].upper() + VECTORS[method][1:]
    pretrain.__doc__ = VECTOR_HELP.format(help=words, name=method)
    return pretrain


def refuse_family(*words: Rest) -> None:
    """Answer a word that is no family to pretrain: what it is, and what to type instead."""
    from ..config import suggest

    if not words:
        return pretrain.help_print([])
    name = words[0]
    if name.startswith("-"):
        named = next((word for word in words if word in MEMBERS or word in VECTORS), None)
        rest = [word for word in words if word != named]
        raise Error("the family comes before the options", fix=f"formers pretrain {named or 'FAMILY'} {join(rest)}")
    if name == "textcnn":
        raise Error("a TextCNN is trained on a task, not pretrained", fix="formers finetune textcnn --train FILE")
    if name == "vectors":
        raise Error("word vectors are trained by their method", fix="choose pretrain word2vec, glove or fasttext")
    family, place = find_checkpoint(name)
    if place:
        fix = f"go on from its weights: formers pretrain {family or 'FAMILY'} --init {place} --data FILE"
        if family and name in MEMBERS[family].family.presets:
            fix += f"; a new model of its size: formers pretrain {family} --preset {name} --data FILE"
        raise Error(f"{name!r} is a published checkpoint, not a family", fix=fix)
    if family:
        fix = f"formers pretrain {family}" + (f" --preset {name}" if name in MEMBERS[family].family.presets else "")
        raise Error(f"{name!r} is not the name of a family", fix=fix)
    raise Error(f"there is no family {name!r}", fix=suggest(name, [m for m in MEMBERS if m not in UNTRAINED]))


pretrain = App(
    name="pretrain",
    help="Train a model of a family on text, with the family's own objective.\n\nformers pretrain bert --data my.txt",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)
pretrain.default(refuse_family)
for _method in VECTORS:
    pretrain.command(vector_verb(_method), name=_method)
for _member in MEMBERS.values():
    if _member.name not in UNTRAINED:
        pretrain.command(verb(_member), name=_member.name)
