"""Write docs/en/recipes.md and docs/ko/recipes.md out of the model files: python scripts/make_recipes.py"""

from __future__ import annotations

from pathlib import Path

from formers.models.vectors import METHODS
from formers.registry import FAMILIES
from formers.training.recipes import format_setting, list_vector_rows

DOCS = Path(__file__).parents[1] / "docs"
COMMANDS = """```sh
formers recipes
formers recipes bert
formers recipes roberta --preset roberta-large
formers recipes bert --recipe quick
formers pretrain bert --recipe paper --print-config
```"""
INTRODUCTIONS = {  # the commands stand in place of COMMANDS
    "en": """# Recipes

Made from the model files by `python scripts/make_recipes.py`; do not edit.

`formers pretrain FAMILY --recipe paper` trains with what the paper trained with. Each setting is listed with its
source: a section or table of the paper (a bare § is of the family's own paper), or a file of the released code. What is
stated nowhere is marked as ours. The values are those of the published size; a smaller model gets a smaller batch,
fewer steps and, with Adam, a higher rate, and heads and a feed-forward that fit a `--model.dim` of yours. A preset with
a table of its own has its own values. `--recipe quick`, the default, is ours: a small model and settings that train
within minutes on a CPU.

COMMANDS

Where formers differs: the batch size is a number of tokens, not of sentences, so batches of sentences are converted at
30 words each. Losses are divided by the number of labels, where Sutskever and Luong divide by the number of sentences.
Where a paper has a vocabulary of words, subwords are trained instead, except for `elmo` and `transformer_xl`. BART and
mBART keep their dropout to the end.
""",
    "ko": """# 레시피

`python scripts/make_recipes.py`가 모델 파일에서 만든 페이지입니다. 직접 고치지 마십시오.

`formers pretrain FAMILY --recipe paper`는 논문의 설정으로 학습합니다. 아래 표에 설정마다 출처를 적었습니다.
출처는 논문의 절이나 표(§만 있으면 그 모델 계열의 논문), 또는 공개된 코드의 파일입니다. 출처 칸의 설명은 영어이며,
ours는 어디에도 나와 있지 않아 formers가 정한 값이라는 뜻입니다. 표의 값은 공개된 크기에 씁니다. 더 작은 모델은
배치와 스텝 수를 줄이고, Adam이면 학습률을 높입니다. `--model.dim`만 정하면 헤드 수와 피드포워드 너비를 그에 맞춥니다.
표가 따로 있는 프리셋은 고유한 값을 씁니다. 기본값인 `--recipe quick`은 formers가 정한 것으로, CPU에서 몇 분이면
학습되는 작은 모델과 설정입니다.

COMMANDS

formers가 논문과 다르게 하는 점은 다음과 같습니다. 배치 크기를 문장 수가 아니라 토큰 수로 정하므로, 논문이 문장 수로
적은 배치는 한 문장을 30단어로 환산합니다. Sutskever와 Luong은 손실을 문장 수로 나누지만 formers는 레이블 수로 나눕니다.
논문이 단어 어휘를 쓰더라도 `elmo`와 `transformer_xl` 말고는 하위 단어(subword) 어휘를 씁니다. BART와 mBART는 드롭아웃을
끝까지 유지합니다.
""",
}
WORD_VECTORS = {
    "en": "One recipe, for any size of text: `formers pretrain` has no `--recipe` for word vectors.",
    "ko": "텍스트의 크기와 상관없이 레시피가 하나이므로, 단어 벡터의 `formers pretrain`에는 `--recipe`가 없습니다.",
}
COLUMNS = {"en": ("setting", "value", "source"), "ko": ("설정", "값", "출처")}


def make_page(language: str) -> str:
    """The page as text: what recipes are, then a table for each family, and one for each size that differs."""
    lines = [INTRODUCTIONS[language].replace("COMMANDS", COMMANDS)]
    for name, member in FAMILIES.items():
        paper = member.definition.paper_recipe
        if not paper.settings:
            continue
        lines += [f"## {name}", "", f"**{member.card.title}** ({member.card.paper})", ""]
        for preset, cited in [("", paper.settings), *paper.by_preset.items()]:
            lines += [f"### {preset}", ""] if preset else []
            lines += [f"| {' | '.join(COLUMNS[language])} |", "|---|---|---|"]
            lines += [f"| `{field}` | {format_setting(value)} | {source} |" for field, (value, source) in cited.items()]
            lines.append("")
    for method in METHODS:
        lines += [f"## {method}", "", WORD_VECTORS[language], ""]
        lines += [f"| {' | '.join(COLUMNS[language])} |", "|---|---|---|"]
        rows = list_vector_rows(method)
        lines += [f"| `{field}` | {format_setting(value)} | {source} |" for field, value, source in rows]
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    for language in INTRODUCTIONS:
        (DOCS / language / "recipes.md").write_text(make_page(language), encoding="utf-8")
