"""formers tree: the family at a glance, or one member of it."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from rich.tree import Tree

from ..errors import Error
from ..registry import FAMILIES
from .common import identify_checkpoint
from .terminal import SafeConsole, print_json


def tree(family: str | None = None, *, as_json: bool = False) -> None:
    """Show the family tree with what is new in each model and its presets; or one member in detail.

    formers tree
    formers tree bert
    formers tree --as-json

    Parameters
    ----------
    family
        A member, such as bert: its paper, parent, presets, objective and tasks, and commands to begin with.
    as_json
        Print the same as JSON, for programs.
    """
    from ..former import tree as rows
    from ..training.word_vectors.vector_run import VECTOR_METHODS

    if family is not None and family not in VECTOR_METHODS:
        reject_checkpoint(family)
    members = rows("vectors" if family in VECTOR_METHODS else family)
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
        add_children(root.add(Text(parent, "dim")), parent, members)
    console.print(root)


def reject_checkpoint(name: str) -> None:
    """Answer the name of a checkpoint or preset, which is no family: its family, and where it is published."""
    family, place = identify_checkpoint(name)
    if name in FAMILIES or (place is None and (family is None or name in FAMILIES[family].aliases)):
        return
    shows = f"formers tree {family}" if family else "formers tree lists the families"
    where = f"; the model is {place} on the hub" if place else ""
    what = "a published checkpoint" if place else f"a preset of {family}"
    raise Error(f"{name!r} is {what}, not a family", fix=shows + where)


def add_children(branch: Tree, parent: str, members: list[dict[str, Any]]) -> None:
    """Hang the children of a member onto its branch, the oldest first."""
    for member in sorted((m for m in members if m["parent"] == parent), key=lambda m: (m["year"], m["name"])):
        twig = branch.add(
            Text.assemble((member["name"], "bold"), f"  {member['title']} ({member['year']}): {member['new']}")
        )
        for name, size in member["presets"].items():
            twig.add(Text.assemble(f"{name}  {size['parameters']:,} ", (describe_counted_head(size), "dim")))
        add_children(twig, member["name"], members)


def describe_counted_head(size: dict[str, Any]) -> str:
    """Say which head a number of parameters includes."""
    return "without a head" if size["head"] == "none" else f"with head {size['head']}"


def describe_member(member: dict[str, Any], asked: str) -> list[str]:
    """Describe one member in lines: what it is, its sizes, what it learns, and commands that can be copied."""
    from ..objectives.registry import OBJECTIVES

    lines = [f"{member['name']}: {member['title']} ({member['paper']})", ""]
    facts = {"parent": member["parent"], "new": member["new"], "shapes": member["shapes"],
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
    return [*lines, "", "begin with:", *(f"  {command}" for command in list_commands(member, asked))]


def list_commands(member: dict[str, Any], asked: str) -> list[str]:
    """Return commands that this member is good for; word vectors are trained by the name of a method."""
    name, heads, tasks = member["name"], member["heads"], member["tasks"]
    pairs = {"translate", "summarise"} & set(tasks)
    data = "pairs.tsv" if member["objective"] == "seq2seq" else "my.txt"
    made = [f"formers pretrain {name} --data {data}"] if member["objective"] else []
    if "classify" in tasks:
        made.append(f"formers finetune {name} --task classify --train reviews.tsv")
    if pairs:
        made.append(f"formers finetune {name} --task translate --train en-ko.tsv")
    model = f"runs/{name}-1/model" if member["objective"] else f"my-{name}"
    if "mlm" in heads:
        made.append(f'formers fill {model} "The capital of France is ___."')
    elif pairs:
        made.append(f'formers translate {model} "How are you?"')
    elif "lm" in heads and not FAMILIES[name].definition.reads_characters:
        made.append(f'formers generate {model} "Once upon a time"')
    if FAMILIES[name].definition.is_static:
        method = "word2vec" if asked == name else asked
        made, model = [f"formers pretrain {method} --data my.txt"], f"runs/{method}-1"
        made.append(f"formers neighbours {model} king")
    if "none" in heads:
        made.append(f"formers embed {model} --file lines.txt --out vectors.npy")
    return made
