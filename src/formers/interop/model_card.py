"""The model card of an export: README.md with what is known of the model, and README.ko.md where its text is Korean."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import shown
from ..errors import Error
from ..former import Former, count
from ..registry import member
from ..text.tokenizer import Tokenizer

LANGUAGES = ("en", "ko")
HANGUL_SHARE = 0.2  # of the pieces that are letters, from which on the text is taken to be Korean
LOOKED_AT = 50_000  # pieces of a vocabulary, at most
BYTES = re.compile(r"<(?:0x)?[0-9a-fA-F]+>")  # a part of a character, as a tokenizer shows it

# The hub's name of what a head does.
PIPELINES = {
    "mlm": "fill-mask", "pretraining": "fill-mask", "classify": "text-classification", "tag": "token-classification",
    "answer": "question-answering", "beam": "question-answering", "choose": "multiple-choice",
    "none": "feature-extraction",
}  # fmt: skip

LOAD = """```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("path/to/{name}"{side})
model = {architecture}.from_pretrained("path/to/{name}")
```"""
PROMPT = """prompt = tokenizer("…", add_special_tokens=False, return_tensors="pt")  # without the marks that end a text
"""
LOAD_SENTENCES = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/{name}")
vectors = model.encode({texts})
```"""
LOAD_FORMERS = """```python
import formers

f = formers.load("path/to/{name}")
```"""


@dataclass(frozen=True)
class Words:
    """The sentences of a card in one language."""

    intro: str
    facts: str
    rows: dict[str, str]
    load: str
    formers: str
    left: str
    texts: str


WORDS = {
    "en": Words(
        intro="A {title} model{trained}, exported from formers.",
        facts="What is known",
        rows={
            "family": "family", "head": "head", "parameters": "parameters", "dtype": "weights",
            "context": "longest input", "vocab": "vocabulary", "labels": "labels", "base": "started from",
            "objective": "objective", "task": "task", "data": "training data", "steps": "training steps",
            "validation": "validation",
        },
        load="How to load it",
        formers="or in formers:",
        left="To be filled in by the author: `license` above, intended use, limitations, where the data comes from.",
        texts='["a sentence", "another one"]',
    ),
    "ko": Words(
        intro="formers에서 내보낸 {title} 모델입니다{trained}.",
        facts="모델 정보",
        rows={
            "family": "모델 계열", "head": "헤드", "parameters": "매개변수 수", "dtype": "가중치 자료형",
            "context": "최대 입력 길이", "vocab": "어휘 크기", "labels": "레이블", "base": "시작 체크포인트",
            "objective": "학습 목표", "task": "과제", "data": "학습 데이터", "steps": "학습 스텝",
            "validation": "검증 결과",
        },
        load="불러오는 방법",
        formers="formers에서는 다음과 같이 불러옵니다.",
        left="작성자가 채울 항목: README.md의 `license`, 용도, 한계, 데이터 출처.",
        texts='["첫 번째 문장", "두 번째 문장"]',
    ),
}  # fmt: skip


def write_card(
    folder: Path,
    former: Former,
    architecture: str,
    language: str | None = None,
    sentences: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    """Write README.md, and README.ko.md for a model of Korean text.

    `architecture` is the class of transformers that opens it ("" where none does), `sentences` says that
    sentence-transformers opens it, `dtype` is that of the written weights (None: the model's). The facts are those that
    formers.json holds from the run that made the model.
    """
    if language not in (None, *LANGUAGES):
        raise Error(f"there is no model card in {language!r}", fix="choose " + " or ".join(LANGUAGES))
    language = language or find_language(former.tokenizer)
    header = front_matter(former, architecture, language, sentences)
    name = folder_name(folder)
    how = (former, architecture, name, sentences, dtype or former.dtype)
    english = card_text(WORDS["en"], *how)
    link = "\n[한국어 설명](README.ko.md)\n" if language == "ko" else ""
    (folder / "README.md").write_text(f"{header}\n{english}{link}", encoding="utf-8")
    if language == "ko":
        (folder / "README.ko.md").write_text(card_text(WORDS["ko"], *how), encoding="utf-8")


def folder_name(folder: Path) -> str:
    """The name of the directory to be: the staged one has a dot before it and a random part behind."""
    return folder.name.removeprefix(".").rpartition(".")[0] or folder.name


def find_language(tokenizer: Tokenizer | None) -> str:
    """The language of a tokenizer's text, by the share of Hangul in its vocabulary: ko, or en."""
    if tokenizer is None:
        return "en"
    step = max(1, len(tokenizer) // LOOKED_AT)
    pieces = [tokenizer.token(i) for i in range(0, len(tokenizer), step)]
    pieces = [piece.strip(" ▁#") for piece in pieces if piece not in tokenizer.reserved and not BYTES.fullmatch(piece)]
    letters = [p for p in pieces if any(c.isalpha() for c in p) and (len(p) > 1 or not p.isascii())]
    korean = sum(any("가" <= c <= "힣" or "\u1100" <= c <= "\u11ff" for c in piece) for piece in letters)
    return "ko" if letters and korean / len(letters) >= HANGUL_SHARE else "en"


def front_matter(former: Former, architecture: str, language: str, sentences: bool) -> str:
    """The YAML at the top of a card, which the hub reads; the licence is the author's to fill in."""
    library = "sentence-transformers" if sentences else "transformers" if architecture else "formers"
    pipeline = "sentence-similarity" if sentences else PIPELINES.get(former.head)
    if former.head == "lm":
        pipeline = "translation" if former.family == "transformer" else "text-generation"
    rows = [
        "---", f"language: {language}", "license:  # fill in: apache-2.0, cc-by-4.0, …", f"library_name: {library}",
        *([f"pipeline_tag: {pipeline}"] if pipeline else []), "tags:", "- formers", f"- {former.family}",
        *(["- sentence-transformers"] if sentences else []), "---", "",
    ]  # fmt: skip
    return "\n".join(rows)


def card_text(words: Words, former: Former, architecture: str, name: str, sentences: bool, dtype: torch.dtype) -> str:
    """The body of a card."""
    title = member(former.family).card.title
    steps = known(former.training.get("steps"), int)
    trained = ""
    if steps:
        trained = f", trained for {steps:,} steps" if words is WORDS["en"] else f"({steps:,} 스텝 학습)"
    intro = words.intro.format(title=title, trained=trained)
    lines = [f"# {cell(name)}", "", intro, "", f"## {words.facts}", "", "| | |", "|---|---|"]
    lines += [f"| {words.rows[key]} | {cell(value)} |" for key, value in facts(former, dtype).items()]
    if former.head == "none" and sentences:
        example = LOAD_SENTENCES.format(name=name, texts=words.texts)
    elif architecture:
        left = former.head == "lm" and not former.pair
        example = LOAD.format(name=name, architecture=architecture, side=', padding_side="left"' if left else "")
        if left and former.tokenizer is not None and former.tokenizer.frame().after:
            example = example.removesuffix("```") + PROMPT + "```"
    else:
        example = ""
    lines += ["", f"## {words.load}", ""]
    lines += [example, "", words.formers, ""] if example else []
    lines += [LOAD_FORMERS.format(name=name), "", words.left, ""]
    return "\n".join(lines)


def facts(former: Former, dtype: torch.dtype) -> dict[str, str]:
    """What is known of a model, by the keys of a card's rows; what is not known is left out."""
    c, told = former.config, former.training
    data = told.get("data") if isinstance(told.get("data"), dict) else {}
    assert isinstance(data, dict)
    amounts = [f"{n:,} {unit}" for unit in ("tokens", "documents", "examples") if (n := known(data.get(unit), int))]
    sources = [str(one) for one in data.get("sources", []) if isinstance(one, str)]
    scores = told.get("validation") if isinstance(told.get("validation"), dict) else {}
    assert isinstance(scores, dict)
    labels = ", ".join(former.labels[:20]) + (", …" if len(former.labels) > 20 else "")
    rows: dict[str, Any] = {
        "family": f"{former.family} ({member(former.family).card.paper})",
        "head": former.head,
        "parameters": f"{count(former.model):,}",
        "dtype": str(dtype).removeprefix("torch."),
        "context": f"{c.context:,} tokens" if getattr(c, "context", None) else None,
        "vocab": f"{c.vocab:,}" if getattr(c, "vocab", None) else None,
        "labels": labels,
        "base": known(told.get("init"), str),
        "objective": known(told.get("objective"), str),
        "task": known(told.get("task"), str),
        "data": ", ".join([*sources, *amounts]),
        "steps": f"{n:,}" if (n := known(told.get("steps"), int)) else None,
        "validation": ", ".join(f"{k} {v:.4g}" for k, v in itertools.islice(scores.items(), 12) if known(v, float)),
    }
    return {key: value for key, value in rows.items() if value}


def known(value: Any, kind: type) -> Any:
    """A value of a formers.json that nobody vouches for, if it is of its kind."""
    good = isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
    return value if good else None


def cell(value: str) -> str:
    """A text that fits into a cell of a table."""
    text = shown(value)[1:-1] if len(value) > 200 else " ".join(value.split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
