"""formers tree: the family at a glance."""

from __future__ import annotations

from typing import Any

from rich.text import Text
from rich.tree import Tree

from .screen import Screen, print_json


def tree(*, as_json: bool = False) -> None:
    """Show the family: parents, what is new, and the presets with their exact sizes.

    formers tree
    formers tree --as-json

    Parameters
    ----------
    as_json
        Print the same as JSON, for programs.
    """
    from ..former import tree as rows

    members = rows()
    if as_json:
        print_json(members, indent=2)
        return
    root = Tree(Text("formers", "bold"), guide_style="dim")
    known = {member["name"] for member in members}
    for parent in dict.fromkeys(m["parent"] for m in members if m["parent"] not in known):
        grow(root.add(Text(parent, "dim")), parent, members)
    Screen(wrap=True).print(root)


def grow(branch: Tree, parent: str, members: list[dict[str, Any]]) -> None:
    """Hang the children of a member onto its branch, the oldest first."""
    for member in sorted((m for m in members if m["parent"] == parent), key=lambda m: (m["year"], m["name"])):
        twig = branch.add(
            Text.assemble((member["name"], "bold"), f"  {member['title']} ({member['year']}): {member['new']}")
        )
        for name, size in member["presets"].items():
            head = "without a head" if size["head"] == "none" else f"with head {size['head']}"
            twig.add(Text.assemble(f"{name}  {size['parameters']:,} ", (head, "dim")))
        grow(twig, member["name"], members)
