"""formers tree, formers models, formers recipes, formers doctor: the family at a glance, the bundled models,
what the papers trained with, and what this machine has and lacks for it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.text import Text
from rich.tree import Tree

from ..config import JSONObject, Settings
from ..errors import Error
from ..registry import FAMILIES, NO_PARENT, find_family, find_pretrained_family
from .common import identify_checkpoint
from .terminal import SafeConsole, print_json, print_table, print_text

if TYPE_CHECKING:
    from ..family import Family

EXTRAS = {
    "hub": (("huggingface_hub",), "models from the Hugging Face hub"),
    "data": (("pyarrow", "datasets", "zstandard"), "parquet and zst files, Hugging Face datasets"),
    "ko": (("kiwipiepy",), "Korean morphemes and sentences"),
    "eval": (("sacrebleu", "sklearn"), "BLEU, chrF, the TF-IDF baseline"),
    "elmo": (("h5py",), "ELMo's published weights"),
    "serve": (("fastapi", "uvicorn", "prometheus_client"), "the server and its playground"),
    "track": (("tensorboard", "wandb"), "TensorBoard and Weights & Biases"),
}


def tree(family: str | None = None, *, as_json: bool = False) -> None:
    """Show the family tree with what is new in each model and its presets; or one member in detail.

    formers tree
    formers tree bert
    formers tree --as-json

    Args:
        family: A member, such as bert: its paper, parent, presets with parameters by part, objective and tasks, and
            commands to begin with.
        as_json: Print the same as JSON, for programs.
    """
    from ..former import tree as rows

    if family is not None and not any(family in member.methods for member in FAMILIES.values()):
        reject_checkpoint(family)
    members = rows(None if family is None else find_pretrained_family(family).name)
    if as_json:
        print_json(members if family is None else members[0], indent=2)
        return
    console = SafeConsole(wrap=family is None)
    if family is not None:
        console.print("\n".join(describe_member(members[0], family)))
        return
    root = Tree(Text("formers", "bold"), guide_style="dim")
    known = {member["name"] for member in members}
    for parent in dict.fromkeys(m["parent"] for m in members if m["parent"] not in known):
        add_children(root if parent == NO_PARENT else root.add(Text(parent, "dim")), parent, members)
    console.print(root)


def models(*, as_json: bool = False) -> None:
    """List the models that come with formers: size, languages, licence and figures.

    formers models
    formers fill formers/bert-mini "The president of the United ___ spoke to Congress."

    They need no network; a name works wherever a model's directory does, in Python too:
    formers.load("formers/bert-mini").

    Args:
        as_json: Print the same as JSON, with all that their records hold.
    """
    from ..interop.shipped_models import list_shipped_models

    shipped = list_shipped_models()
    if as_json:
        print_json([{"name": one.name, "bytes": one.num_bytes, **one.card} for one in shipped], indent=2)
        return
    if not shipped:
        raise Error("this package was built without models", fix="formers demo --train trains two small ones")
    rows, figures = [], []
    for one in shipped:
        facts = (str(one.card.get("family", "")), f"{one.num_bytes / 1e6:.1f} MB", f"{one.card.get('parameters', 0):,}")
        rows.append((one.name, *facts, ", ".join(one.card.get("languages", [])), str(one.card.get("license", ""))))
        for row in one.card.get("figures", []):
            figures.append((one.name, str(row["what"]), str(row["value"]), str(row["beside"])))
    columns = ("model", "family", "size", "parameters", "languages", "licence")
    print_table(rows, columns, no_wrap=("model", "size", "parameters"))
    if figures:
        print_text("")
        print_table(figures, ("model", "figure", "value", "compared with"), no_wrap=("model", "value"))


RECIPE_COLUMNS = ("family", "optimizer", "lr", "schedule", "tokens a step", "steps", "vocabulary")


def recipes(
    family: str | None = None, *, recipe: Literal["paper", "quick"] = "paper", preset: str | None = None,
    as_json: bool = False,
) -> None:  # fmt: skip
    """List what the papers trained with; or all settings of one family's recipe, each with its source.

    formers recipes
    formers recipes bert
    formers recipes roberta --preset roberta-large
    formers recipes bert --recipe quick

    The values are those of the published size. formers pretrain FAMILY --recipe paper scales batch, steps and rate to a
    smaller model; --print-config shows the result.

    Args:
        family: A member, such as bert, or one of its published sizes.
        recipe: paper: the paper's or its released code's, with the place. quick: ours, for minutes on a CPU.
        preset: A published size, where its settings differ.
        as_json: Print the same as JSON, for programs.
    """
    from ..training.recipes import format_setting, list_recipe_rows

    if family is not None:
        owner = next((one.name for one in FAMILIES.values() if family in one.definition.presets), None)
        is_size = owner is not None and not any(family in (one.name, *one.aliases) for one in FAMILIES.values())
        family, preset = (str(owner), preset or family) if is_size else (family, preset)
        member = find_pretrained_family(family)
        rows = list_recipe_rows(family if family in member.methods else member.name, recipe, preset)
        if as_json:
            print_json([{"field": name, "value": value, "source": source} for name, value, source in rows], indent=2)
        else:
            card = member.card
            cells = [(name, format_setting(value), source) for name, value, source in rows]
            title = f"{card.title} ({card.paper})" if recipe == "paper" else f"{card.title}: a small model, ours"
            title = f"{family}: one recipe, for any size of text" if family in member.methods else title
            print_table(cells, ("field", "value", "source"), caption=title, no_wrap=("field", "value"))
        return
    if preset is not None:
        raise Error("a preset belongs to a family", fix=f"formers recipes FAMILY --preset {preset}")
    members = [m for m in FAMILIES.values() if has_recipe(m.definition, recipe)]
    values_by_family = {m.name: {name: value for name, value, _ in list_recipe_rows(m.name, recipe)} for m in members}
    if as_json:
        print_json(values_by_family, indent=2)
        return
    lines = [(name, *map(format_setting, summarise_recipe(values))) for name, values in values_by_family.items()]
    print_table(lines, RECIPE_COLUMNS)


def has_recipe(declared: Family, recipe: str) -> bool:
    """Return whether a family has a recipe of that name; TextCNN's paper trains on a task, without pretraining."""
    return bool(declared.paper_recipe.settings if recipe == "paper" else declared.objective)


def summarise_recipe(values: Settings) -> tuple[object, ...]:
    """Return the values of a recipe for RECIPE_COLUMNS, but for the family."""
    named = (values.get(f"train.{name}", "adamw") for name in ("optimizer", "lr", "schedule"))
    if "train.steps" not in values:  # of training on a task
        size = (f"{values['tune.batch_size']} texts", f"{values['tune.epochs']} epochs")
    else:
        size = (values["train.batch_tokens"] * values.get("train.accumulate", 1), values["train.steps"])
    return *named, *size, values["data.vocab_size"]


def reject_checkpoint(name: str) -> None:
    """Answer the name of a checkpoint or preset, which is no family: its family, and where it is published."""
    family, place = identify_checkpoint(name)
    if name in FAMILIES or (place is None and (family is None or name in FAMILIES[family].aliases)):
        return
    shows = f"formers tree {family}" if family else "formers tree lists the families"
    where = f"; the model is {place} on the hub" if place else ""
    what = "a published checkpoint" if place else f"a preset of {family}"
    raise Error(f"{name!r} is {what}, not a family", fix=shows + where)


def add_children(branch: Tree, parent: str, members: list[JSONObject]) -> None:
    """Hang the children of a member onto its branch, the oldest first."""
    for member in sorted((m for m in members if m["parent"] == parent), key=lambda m: (m["year"], m["name"])):
        about = f"  {member['title']} ({member['year']}): {member['new']}"
        twig = branch.add(Text.assemble((member["name"], "bold"), about))
        for name, size in member["presets"].items():
            twig.add(Text.assemble(f"{name}  {size['parameters']:,} ", (describe_counted_head(size), "dim")))
        add_children(twig, member["name"], members)


def describe_counted_head(size: JSONObject) -> str:
    """Say which head a number of parameters includes."""
    return "without a head" if size["head"] == "none" else f"with head {size['head']}"


def describe_member(member: JSONObject, name_given: str) -> list[str]:
    """Describe one member in lines: what it is, its sizes, what it learns, and commands that can be copied."""
    from ..objectives.registry import OBJECTIVES

    lines = [f"{member['name']}: {member['title']} ({member['paper']})", ""]
    facts = {"parent": member["parent"].strip(NO_PARENT), "new": member["new"], "shapes": member["shapes"],
             "differs from the reference": member["differs"]}  # fmt: skip
    if goal := member["objective"]:
        facts["objective"] = f"{goal}: {OBJECTIVES[goal].help}"
    facts |= {"tokenizer": member["tokenizer"], "heads": ", ".join(member["heads"])}
    facts |= {"tasks": ", ".join(member["tasks"]) or "none: its vectors go into other models"}
    lines += [f"{name}: {text}" for name, text in facts.items() if text]
    if member["presets"]:
        wide = max(map(len, member["presets"]))
        lines += ["", "presets:"]
        lines += [
            f"  {name:<{wide}}  {size['parameters']:>15,} {describe_counted_head(size)}"
            for name, size in member["presets"].items()
        ]
        lines += ["", "parameters by part:", *format_parts(member["presets"])]
    return [*lines, "", "begin with:", *(f"  {command}" for command in list_commands(member, name_given))]


def format_parts(sizes: JSONObject) -> list[str]:
    """Format the parameters of presets by part, a column for each part that one of them has."""
    parts = dict.fromkeys(part for size in sizes.values() for part in size["parts"])
    rows = [("", *parts)]
    for name, size in sizes.items():
        rows.append((name, *(format_count(size["parts"].get(part, 0)) for part in parts)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = ([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))] for row in rows)
    return ["  " + "  ".join(row) for row in cells]


def format_count(count: int) -> str:
    """Format a number of parameters in thousands, millions or billions."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:,.1f}{unit}"
    return f"{count}" if count else "–"


def list_commands(member: JSONObject, name_given: str) -> list[str]:
    """Return commands that this member is good for; word vectors are trained by the name of a method."""
    name, heads, tasks = member["name"], member["heads"], member["tasks"]
    pairs = {"translate", "summarise"} & set(tasks)
    data = "pairs.tsv" if find_family(name).takes_pairs else "my.txt"
    commands = [f"formers pretrain {name} --data {data}"] if member["objective"] else []
    if "classify" in tasks:
        commands.append(f"formers finetune {name} --task classify --train reviews.tsv")
    if pairs:
        commands.append(f"formers finetune {name} --task translate --train en-ko.tsv")
    model = f"runs/{name}-1/model" if member["objective"] else f"my-{name}"
    if "mlm" in heads:
        commands.append(f'formers fill {model} "The capital of France is ___."')
    elif pairs:
        commands.append(f'formers translate {model} "How are you?"')
    elif "lm" in heads and not FAMILIES[name].definition.reads_characters:
        commands.append(f'formers generate {model} "Once upon a time"')
    if FAMILIES[name].definition.is_static:
        method = next(iter(FAMILIES[name].methods)) if name_given == name else name_given
        model = f"runs/{method}-1"
        commands = [f"formers pretrain {method} --data my.txt", f"formers neighbours {model} king"]
    if "none" in heads:
        commands.append(f"formers embed {model} --file lines.txt --out vectors.npy")
    return commands


def doctor() -> None:
    """Report versions, kernels, compiler, threads, disk, and what to install for which feature.

    formers doctor
    """
    print_table(describe_machine(), caption="This machine")
    print_table(list_attention_kernels(), caption="\nAttention kernels")
    print_table(list_extras(), caption="\nFeatures")


def describe_machine() -> list[tuple[str | Text, ...]]:
    """List versions, hardware, compiler and free disk space."""
    import torch

    names = ("formers", "torch", "numpy", "tokenizers", "safetensors")
    versions = ", ".join(f"{name} {get_package_version(name)}" for name in names)
    compiler = next((c for c in ("cc", "gcc", "clang", "cl") if shutil.which(c)), None)
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    capability, memory = torch.backends.cpu.get_cpu_capability(), ""
    if sys.platform != "win32" and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = f", {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB memory"
    return [
        ("versions", versions),
        ("python", f"{platform.python_version()} at {sys.executable}"),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads, {capability}{memory}"),
        ("cpu bf16", describe_cpu_bf16()),
        ("gpu", describe_gpu()),
        ("C++ compiler", compiler or "none: torch.compile and the CPU kernels need one; everything runs, slower"),
        ("disk", f"{free:.0f} GB free here"),
    ]  # fmt: skip


def describe_cpu_bf16() -> str:
    """Say how bf16 works on the CPU: some virtual machines announce AMX and crash on it, some processors lack bf16."""
    import torch

    from ..nn.cpu_inference import ISA_VARIABLE, ISA_WITHOUT_AMX, can_prepack, can_use_bf16, is_amx_broken

    if is_amx_broken():
        return f"works without the AMX that is announced: set {ISA_VARIABLE}={ISA_WITHOUT_AMX}"
    if can_use_bf16() and not can_prepack(torch.bfloat16):
        return "works, slower than fp32: this processor has no instructions for it"
    return "works"


def describe_gpu() -> str:
    """Name the accelerator, its memory and what it supports."""
    import torch

    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        half = "bf16" if torch.cuda.is_bf16_supported() else "no bf16: use fp32 or fp16"
        size = torch.cuda.get_device_properties(0).total_memory / 2**30
        name = f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
        return f"{name}, {size:.0f} GiB, sm_{major}{minor}, {half}"
    return "Apple MPS" if torch.backends.mps.is_available() else "none: models run on the CPU"


def list_attention_kernels() -> list[tuple[str | Text, ...]]:
    """List the kernels of nn/attention/dispatch.py, and whether they can be used here."""
    import torch

    from ..nn.attention.dispatch import list_available_kernels

    words = {True: Text("yes", "green"), False: Text("no", "dim")}
    dummy = torch.empty(1, 1, 64, device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.bfloat16)
    about = {
        "sdpa": "flash attention through SDPA, for whole grids",
        "cudnn": "attention of cuDNN for whole grids while training (Hopper GPUs, half precision)",
        "varlen": "flash attention over packed documents (GPU from Ampere on, half precision)",
        "flex": "FlexAttention over packed documents with any mask or bias (GPU with triton)",
        "relative_flash": "scores by distance made inside the kernel (Hopper GPUs with triton, half precision)",
        "biased_flash": "a bias by distance, an order, dropout over packed documents (GPU with triton, half precision)",
        "by_length": "documents of one length at a time, no padding (CPU)",
        "dense": "SDPA with a dense mask, everywhere",
    }
    ready = list_available_kernels(dummy)
    return [(name, words[name in ready], text) for name, text in about.items()]


def list_extras() -> list[tuple[str | Text, ...]]:
    """List the optional features, and how to install those that are missing."""
    rows: list[tuple[str | Text, ...]] = []
    for name, (modules, use) in EXTRAS.items():
        ready = all(importlib.util.find_spec(module) for module in modules)
        rows.append((name, Text("ready", "green") if ready else f"pip install 'formers[{name}]'", use))
    return rows


def get_package_version(name: str) -> str:
    """Return the installed version of a package, or "?"."""
    from importlib import metadata  # slow to import, and help must answer at once

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "?"
