"""Write docs/en/family.md out of the model files: python scripts/make_family.py"""

from __future__ import annotations

from pathlib import Path

import formers

PAGE = Path(__file__).parents[1] / "docs" / "en" / "family.md"


def page() -> str:
    """The page as text: the tree, then one section for each member."""
    members = {row["name"]: row for row in formers.tree()}
    lines = ["# The family", "", "Made from the model files by `python scripts/make_family.py`; do not edit.", ""]
    roots = sorted({row["parent"] for row in members.values()} - set(members))

    def branch(name: str, depth: int) -> None:
        row = members.get(name)
        words = f"[{row['title']}](#{name}) ({row['year']})" if row else name
        lines.append(f"{'  ' * depth}- {words}")
        for child in sorted((r for r in members.values() if r["parent"] == name), key=lambda r: (r["year"], r["name"])):
            branch(child["name"], depth + 1)

    for root in roots:
        branch(root, 0)
    for name, row in sorted(members.items(), key=lambda item: (item[1]["year"], item[0])):
        lines += ["", f"## {name}", "", f"**{row['title']}** ({row['paper']}). Parent: {row['parent']}.", ""]
        lines += [f"New: {row['new']}", "", f"Shapes: {row['shapes']}", ""]
        lines += [f"Differs from the reference: {row['differs']}", ""]
        if row["presets"]:
            lines += ["| preset | parameters | with |", "|---|---|---|"]
            for preset, size in row["presets"].items():
                head = "no head" if size["head"] == "none" else f"head {size['head']}"
                lines.append(f"| `{preset}` | {size['parameters']:,} | {head} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
