"""formers pretrain FAMILY: a model trained with the family's own objective, from text to a report."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ..config import Settings
from ..errors import Error
from ..registry import FAMILIES, FamilyEntry
from .common import (
    ClusterFlags,
    MixtureOption,
    ModelRunFlags,
    RunFlags,
    SettingWords,
    TextFileOptions,
    identify_checkpoint,
    parse_overrides,
)
from .terminal import SafeConsole, escape_line, print_table, print_text, show_progress

if TYPE_CHECKING:
    from ..training.validation import Score

TABLES = ("data", "model", "objective", "train", "mixture")  # of settings, as --TABLE.NAME
FAMILY_HELP = """{help}.

Trains a tokenizer, prepares the text, trains with the family's own objective and writes a report. Ctrl-C saves; the
same command with --resume continues. Any setting can be given by its name: --model.layers 4, --train.steps 2000,
--objective.name causal, --data.unit line; --print-config shows all of them. Under torchrun, processes share the work.

{first}
formers pretrain {name} --data corpus-store --recipe paper --train.steps 100000 --out runs/first
formers pretrain {name} --resume --out runs/first
formers pretrain {name} --recipe paper --dry-run --gpus 64 --gpu h100

Exit codes: 2 an error, 3 the loss is not finite; 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP (a
closed terminal, unless nohup was used): saved, can be resumed.

Args:
    data: Files, folders or globs (txt, jsonl, csv, tsv, parquet, also compressed), or a store made by formers prepare.
        formers/corpus-en and formers/corpus-ko are small texts that come with formers.
    recipe: quick: ours, learns within minutes on a CPU. paper: the paper's optimizer, schedule, batch and dropout,
        scaled to size; formers recipes {name} names the source of each.
    preset: A published size, or a small one of ours: see formers tree {name}.
    init: Start from a checkpoint: a formers or Hugging Face directory, also with another tokenizer.
    tokenizer: A tokenizer.json or a folder with one, instead of training one.
    deterministic: Bitwise reproducible, on a GPU too; the cost is measured and reported.
    settings: Dotted settings with their values: --train.lr 1e-3.
"""
DataOption = Annotated[list[str] | None, Parameter(consume_multiple=True)]


def build_family_command(member: FamilyEntry) -> Callable[..., None]:
    """Build the subcommand of one family."""

    def pretrain(
        *settings: SettingWords, data: DataOption = None, recipe: Literal["quick", "paper"] | None = None,
        preset: str | None = None, init: str | None = None, tokenizer: Path | None = None, deterministic: bool = False,
        mixture: MixtureOption = None, run: ModelRunFlags | None = None, cluster: ClusterFlags | None = None,
        reading: TextFileOptions | None = None,
    ) -> None:  # fmt: skip
        run, cluster = run or ModelRunFlags(), cluster or ClusterFlags()
        overrides = {**(reading or TextFileOptions()).to_overrides(), **parse_overrides(settings, pretrain, TABLES)}
        run.add_settings(overrides)
        short: Settings = {"train.deterministic": deterministic or None, "data.source": data or None}
        short["data.tokenizer"] = None if tokenizer is None else str(tokenizer)
        overrides |= {name: value for name, value in short.items() if value is not None}
        if mixture:
            from ..training.config_merge import read_mixture

            overrides = {**read_mixture(mixture)[0], **overrides}
        top = {"recipe": recipe, "preset": preset, "init": init}
        if run.print_config:
            from ..training.config_merge import configure_pretraining

            print_text(configure_pretraining(member.name, run.config, overrides, **top).to_yaml().removesuffix("\n"))
        elif cluster.gpu is not None or cluster.gpus is not None:
            if not run.dry_run:
                raise Error("--gpus and --gpu describe machines for a plan", fix="add --dry-run; torchrun starts a run")
            print_cluster_plan(member.name, run, cluster, overrides, top)
        elif run.dry_run:
            from ..training.runs.dry_run import dry_run_pretraining

            print_table(dry_run_pretraining(member.name, run.config, overrides, device=run.device, **top))
        else:
            run_pretraining(member.name, overrides, run, **top)

    title = member.help[0].upper() + member.help[1:]
    pretrain.__doc__ = FAMILY_HELP.format(help=title, name=member.name, first=format_data_example(member))
    return pretrain


def print_cluster_plan(
    family: str, run: RunFlags, cluster: ClusterFlags, given: Settings, top: dict[str, str | None]
) -> None:
    """Print what a run would need on many GPUs, by strategy."""
    from ..training.config_merge import configure_pretraining
    from ..training.runs.cluster_plan import PLAN_COLUMNS, describe_cluster, list_plans

    size = cluster.gpus or 1
    machines = describe_cluster(cluster.gpu or "h100", size, cluster.gpus_per_node, cluster.network)
    with show_progress(SafeConsole(stderr=True), family) as tell:
        tell("planning", 0, 1, f"{size} GPUs")
        rows, notes = list_plans(configure_pretraining(family, run.config, given, **top), machines)
    print_table(rows, PLAN_COLUMNS)
    for note in notes:
        print_text(note)


def format_data_example(member: FamilyEntry) -> str:
    """Return the part of the help that says how text is given to a family."""
    if not member.takes_pairs:
        return f"formers pretrain {member.name} --data my.txt"
    examples = "".join(f"\nformers pretrain {member.name} --data pairs.txt {one}" for one in member.example_settings)
    return f"""It learns from pairs: source TAB target in each line, or two columns.

formers pretrain {member.name} --data pairs.txt
formers pretrain {member.name} --data pairs.csv --column de,en{examples}"""


def run_pretraining(
    family: str, overrides: Settings, run: RunFlags, **more: Any  # dynamic: the keywords of pretrain
) -> None:  # fmt: skip
    """Train, and print the progress and the result; `more` are arguments of formers.pretrain."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of a cost that is known
    from ..training.runs.pretrain import pretrain
    from ..training.tracking import open_trackers

    first = os.environ.get("RANK", "0") == "0"
    console = SafeConsole(stderr=True, quiet=not first)
    if isinstance(run, ModelRunFlags):
        more |= {"device": run.device}
    more = {"config": run.config, "resume": run.resume} | more
    with open_trackers(run.tensorboard and first, run.wandb and first) as hook, show_progress(console, family) as tell:
        done = pretrain(
            family, out=run.out, overrides=overrides, tell=tell, say=console.print, hook=hook, overwrite=run.overwrite,
            **more,
        )  # fmt: skip
    console = SafeConsole(quiet=not first)
    if done.score is not None:
        base = "" if done.baseline is None else f" (unigram: {format_score(done.baseline)})"
        console.print(f"validation {format_score(done.score)}{base}")
    console.print(f"model: {escape_line(done.folder / 'model')}\nreport: {escape_line(done.folder / 'report.html')}")


def format_score(score: Score) -> str:
    """Format loss and accuracy; ELMo has no accuracy."""
    accuracy = "" if math.isnan(score.accuracy) else f", accuracy {100 * score.accuracy:.1f} %"
    return f"loss {score.loss:.2f}{accuracy}"


METHODS = {name: text for member in FAMILIES.values() for name, text in member.methods.items()}  # name → help
VECTOR_HELP = """{help}.

Splits the text at spaces and punctuation, trains a vector for each word, and writes a model and a report with the
nearest neighbours of some words. Ctrl-C saves; the same command with --resume continues. Any setting can be given by
its name: --model.window 10, --model.kind cbow, --model.min_n 2, --train.lr 0.05, --data.column review,
--data.encoding cp949.

formers pretrain {name} --data my.txt
formers pretrain {name} --data reviews.csv --data.column review --dim 300 --min-count 2 --out runs/words
formers pretrain {name} --resume --out runs/words
formers neighbours runs/words king
formers finetune textcnn --vectors runs/words --train reviews.tsv

Exit codes: 2 an error, 3 the vectors are not finite; 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP (a
closed terminal, unless nohup was used): saved, can be resumed.

One thread (--train.threads 1) with one seed gives the same vectors again, resumed or not; several do not.

Args:
    data: Files, folders or globs (txt, jsonl, csv, tsv, parquet, also compressed). formers/corpus-en and
        formers/corpus-ko are small texts that come with formers.
    dim: Dimension of the vectors; 100 by default.
    window: Context words on either side; 5 by default.
    min_count: Words that occur less often are left out; 5 by default.
    epochs: Passes over the text.
    settings: Dotted settings with their values: --model.negatives 10.
"""


def build_vector_command(method: str) -> Callable[..., None]:
    """Build the subcommand of one way to train word vectors."""

    def pretrain(
        *settings: SettingWords, data: DataOption = None, dim: int | None = None, window: int | None = None,
        min_count: int | None = None, epochs: int | None = None, run: RunFlags | None = None,
        reading: TextFileOptions | None = None,
    ) -> None:  # fmt: skip
        from ..training.word_vectors.vector_run import VECTOR_SETTINGS, configure_vectors

        run = run or RunFlags()
        known = [f"{table}.{name}" for table, names in VECTOR_SETTINGS.items() for name in names]
        overrides = (reading or TextFileOptions()).to_overrides()
        overrides |= parse_overrides(settings, pretrain, tuple(VECTOR_SETTINGS), known)
        short = {"model.dim": dim, "model.window": window, "model.min_count": min_count, "data.source": data}
        short |= {"train.epochs": epochs, "train.seed": run.seed}
        overrides |= {name: value for name, value in short.items() if value is not None}
        if run.print_config:
            print_text(configure_vectors(method, run.config, overrides).to_yaml(), end="")
        elif run.dry_run:
            from ..training.runs.dry_run import dry_run_pretraining

            print_table(dry_run_pretraining(method, run.config, overrides))
        else:
            run_pretraining(method, overrides, run)

    title = METHODS[method][0].upper() + METHODS[method][1:]
    pretrain.__doc__ = VECTOR_HELP.format(help=title, name=method)
    return pretrain


def explain_unknown_family(*words: SettingWords) -> None:
    """Answer a word that is no family to pretrain: what it is, and what to type instead."""
    from ..config import suggest_name

    if not words:
        return pretrain.help_print([])
    name = words[0]
    if name.startswith("-"):
        named = next((word for word in words if word in FAMILIES or word in METHODS), None)
        rest = [word for word in words if word != named]
        raise Error("the family comes before the options", fix=f"formers pretrain {named or 'FAMILY'} {join(rest)}")
    if name in FAMILIES:  # the others are commands of their own
        if FAMILIES[name].definition.is_static:
            *others, last = FAMILIES[name].methods
            fix = f"choose pretrain {', '.join(others)} or {last}"
            raise Error("word vectors are trained by their method", fix=fix)
        what = f"a {FAMILIES[name].card.title} is trained on a task, not pretrained"
        raise Error(what, fix=f"formers finetune {name} --train FILE")
    family, place = identify_checkpoint(name)
    if place:
        fix = f"continue from its weights: formers pretrain {family or 'FAMILY'} --init {place} --data FILE"
        if family and name in FAMILIES[family].definition.presets:
            fix += f"; a new model of its size: formers pretrain {family} --preset {name} --data FILE"
        raise Error(f"{name!r} is a published checkpoint, not a family", fix=fix)
    if family:
        preset = f" --preset {name}" if name in FAMILIES[family].definition.presets else ""
        raise Error(f"{name!r} is not the name of a family", fix=f"formers pretrain {family}{preset}")
    known = [member.name for member in FAMILIES.values() if member.is_pretrained]
    raise Error(f"there is no family {name!r}", fix=suggest_name(name, known))


pretrain = App(
    name="pretrain",
    help="Train a model of a family on text, with the family's own objective.\n\nformers pretrain bert --data my.txt",
    help_format="plaintext",
    usage="Usage: formers pretrain COMMAND",
)
pretrain.default(explain_unknown_family)
for _method in METHODS:
    pretrain.command(build_vector_command(_method), name=_method)
for _member in FAMILIES.values():
    if _member.is_pretrained:
        pretrain.command(build_family_command(_member), name=_member.name)
