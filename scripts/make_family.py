"""Write docs/en/family.md and docs/ko/family.md out of the model files: python scripts/make_family.py"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import formers
from formers.registry import FAMILIES, NO_PARENT

DOCS = Path(__file__).parents[1] / "docs"
TITLES = {"en": "The family", "ko": "모델 계열"}
MADE = "<!-- Made from the model files by python scripts/make_family.py; do not edit. -->"
NOTES = {
    "en": "Who descends from whom, then one section for each family: its paper, what was new, shapes, where this"
    " implementation differs from the reference, and the published sizes. A name in the tree leads to the page that"
    " explains the model.",
    "ko": "어느 모델이 어느 모델에서 나왔는지, 그리고 모델 계열마다 논문, 새로운 점, 텐서의 모양, 참조 구현과의 차이,"
    " 공개된 크기를 정리했습니다. 이름을 누르면 그 모델을 설명하는 페이지로 갑니다.",
}
DIFFERENCES = {  # of the model files, in Korean
    one["en"]: one["ko"]
    for one in yaml.safe_load((Path(__file__).parent / "differences_ko.yaml").read_text(encoding="utf-8"))
}
ROOTS = {  # what the first ones of a line descend from, which is not a family here
    "convolution": ("convolutional networks", "합성곱 신경망"), "recurrence": ("recurrent networks", "순환 신경망"),
    "lstm": ("LSTM language models", "LSTM 언어 모델"),
}  # fmt: skip
NEW_POINT = re.compile(r" (?=\d\. )")


def make_page(language: str) -> str:
    """The page as text: the tree, then one section for each member."""
    members = {row["name"]: row for row in formers.tree()}
    lines = [f"# {TITLES[language]}", "", MADE, "", NOTES[language], ""]
    roots = {row["parent"]: row["year"] for row in sorted(members.values(), key=lambda row: -row["year"])}

    def add_branch(name: str, depth: int) -> None:
        row = members.get(name)
        if name == NO_PARENT:
            depth -= 1
        else:
            title = localise_title(row["title"], language) if row else ""
            label = f"[{title}](family/{name}.md) ({row['year']})" if row else name_root(name, language)
            lines.append(f"{'  ' * depth}- {label}")
        for child in sorted((r for r in members.values() if r["parent"] == name), key=lambda r: (r["year"], r["name"])):
            add_branch(child["name"], depth + 1)

    for root in sorted(set(roots) - set(members), key=lambda name: (roots[name], name)):
        add_branch(root, 0)
    for name, row in sorted(members.items(), key=lambda item: (item[1]["year"], item[0])):
        lines += ["", f"## {name}", ""]
        lines += describe_in_korean(row) if language == "ko" else describe_in_english(row)
        if row["presets"]:
            lines.append("| 프리셋 | 파라미터 | 헤드 |" if language == "ko" else "| preset | parameters | with |")
            lines.append("|---|---|---|")
            for preset, size in row["presets"].items():
                head = "no head" if size["head"] == "none" else f"head {size['head']}"
                head = head if language == "en" else {"none": "없음"}.get(size["head"], f"`{size['head']}`")
                lines.append(f"| `{preset}` | {size['parameters']:,} | {head} |")
    return "\n".join(lines) + "\n"


def name_root(name: str, language: str) -> str:
    """Name what is not a family here."""
    return ROOTS[name][language == "ko"]


def name_parent(row: dict[str, str], language: str) -> str:
    """A sentence with a link to the page of a member's parent, or with what it descends from otherwise, if anything."""
    name = row["parent"]
    if name == NO_PARENT:
        return ""
    parent = f"[{FAMILIES[name].card.title}](family/{name}.md)" if name in FAMILIES else name_root(name, language)
    return f"{'부모' if language == 'ko' else 'Parent'}: {parent}. "


def describe_in_english(row: dict[str, str]) -> list[str]:
    """A member's paper, parent and differences, as its model file has them."""
    points = NEW_POINT.split(row["new"])
    new = ["What was new:", "", *points, ""] if len(points) > 1 else [f"What was new: {row['new']}", ""]
    parent = name_parent(row, "en")
    return [
        f"**{row['title']}** ({row['paper']}). {parent}[How it works](family/{row['name']}.md).", "",
        *new, f"Shapes: {row['shapes']}", "", f"Differs from the reference: {row['differs']}", "",
    ]  # fmt: skip


def describe_in_korean(row: dict[str, str]) -> list[str]:
    """A member's paper, parent, summary and differences."""
    parent, title = name_parent(row, "ko"), localise_title(row["title"], "ko")
    shapes = re.sub(r"^as (\w+)", lambda same: f"{FAMILIES[same[1]].card.title}와 같음", row["shapes"])
    return [
        f"**{title}** ({row['paper']}). {parent}[원리](family/{row['name']}.md).", "",
        FAMILIES[row["name"]].card.korean, "", f"모양: {shapes}", "",
        f"참조 구현과의 차이: {DIFFERENCES[row['differs']]}.", "",
    ]  # fmt: skip


def localise_title(title: str, language: str) -> str:
    """Return a family's title: as it is, or in Korean without the English "and"."""
    return title.replace(" and ", ", ") if language == "ko" else title


if __name__ == "__main__":
    for language in TITLES:
        (DOCS / language / "family.md").write_text(make_page(language), encoding="utf-8")
