"""Write docs/en/family.md and docs/ko/family.md out of the model files: python scripts/make_family.py"""

from __future__ import annotations

from pathlib import Path

import formers
from formers.registry import FAMILIES

DOCS = Path(__file__).parents[1] / "docs"
TITLES = {"en": "The family", "ko": "모델 계열"}
NOTES = {
    "en": "Made from the model files by `python scripts/make_family.py`; do not edit.",
    "ko": "`python scripts/make_family.py`가 모델 파일에서 만든 페이지입니다. 직접 고치지 마십시오. 텐서의 모양과"
    " 참조 구현과의 차이는 [영어 페이지](../en/family.md)에 있습니다.",
}
KOREAN_PARENTS = {"convolution": "합성곱", "recurrence": "순환 신경망", "lstm": "LSTM", "–": "단어 벡터"}


def make_page(language: str) -> str:
    """The page as text: the tree, then one section for each member."""
    members = {row["name"]: row for row in formers.tree()}
    lines = [f"# {TITLES[language]}", "", NOTES[language], ""]
    roots = sorted({row["parent"] for row in members.values()} - set(members))

    def add_branch(name: str, depth: int) -> None:
        row = members.get(name)
        root = KOREAN_PARENTS[name] if language == "ko" and row is None else name
        label = f"[{row['title']}](family/{name}.md) ({row['year']})" if row else root
        lines.append(f"{'  ' * depth}- {label}")
        for child in sorted((r for r in members.values() if r["parent"] == name), key=lambda r: (r["year"], r["name"])):
            add_branch(child["name"], depth + 1)

    for root in roots:
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


def describe_in_english(row: dict[str, str]) -> list[str]:
    """A member's paper, parent and differences, as its model file has them."""
    return [
        f"**{row['title']}** ({row['paper']}). Parent: {row['parent']}. [How it works](family/{row['name']}.md).", "",
        f"New: {row['new']}", "", f"Shapes: {row['shapes']}", "", f"Differs from the reference: {row['differs']}", "",
    ]  # fmt: skip


def describe_in_korean(row: dict[str, str]) -> list[str]:
    """A member's paper, parent and summary."""
    parent = KOREAN_PARENTS.get(row["parent"], row["parent"])
    link = f"[원리](family/{row['name']}.md)"
    return [f"**{row['title']}** ({row['paper']}). 부모: {parent}. {link}.", "", FAMILIES[row["name"]].card.korean, ""]


if __name__ == "__main__":
    for language in TITLES:
        (DOCS / language / "family.md").write_text(make_page(language), encoding="utf-8")
