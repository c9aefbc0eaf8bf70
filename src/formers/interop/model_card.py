"""The model card of an export: README.md with what is known of the model, and README.ko.md where its text is Korean."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
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
    trained: str  # behind the title
    amount: str  # of tokens, documents or examples
    values: dict[str, str] = field(default_factory=dict)  # what a row's value is called; others stay as they are

    def name(self, value: str, *, keep: bool = True) -> str:
        """A value in this language; with `keep`, its name in formers stays beside it, for it is what one types."""
        return value if value not in self.values else f"{self.values[value]} ({value})" if keep else self.values[value]


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
        trained=", trained for {steps:,} steps",
        amount="{count:,} {unit}",
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
        trained="({steps:,} 스텝 학습)",
        amount="{unit} {count:,}개",
        values={
            # heads and tasks
            "none": "없음", "lm": "언어 모델", "mlm": "마스크 언어 모델", "pretraining": "사전 학습",
            "nsp": "다음 문장 예측",
            "classify": "분류", "regress": "회귀", "tag": "개체명 인식 등 토큰 분류", "answer": "질의응답",
            "beam": "빔 탐색 질의응답", "choose": "객관식 선택", "double": "언어 모델과 객관식 선택",
            "translate": "번역", "summarise": "요약",
            # objectives
            "causal": "다음 토큰 예측", "prefix": "접두사 언어 모델", "seq2seq": "원문에서 목표문 생성",
            "bidirectional": "양방향 언어 모델", "masked": "마스크 언어 모델", "words": "단어 단위 마스크 언어 모델",
            "ngrams": "n-gram 단위 마스크 언어 모델", "sop": "문장 순서 예측", "permutation": "순열 언어 모델",
            "denoise": "잡음 제거", "spans": "구간 복원", "switch": "구간 복원", "prefix_spans": "뒷부분 생성",
            "deshuffle": "토큰 순서 복원", "units": "구·개체 단위 마스크 언어 모델",
            "unit_pairs": "구·개체 단위 마스크와 다음 문장 예측", "dialogue": "구·개체 단위 마스크와 대화 판별",
            # amounts and measures
            "tokens": "토큰", "documents": "문서", "examples": "예제", "loss": "손실", "accuracy": "정확도",
            "perplexity": "퍼플렉시티", "precision": "정밀도", "recall": "재현율", "exact": "완전 일치",
            "f1": "F1", "f1_macro": "매크로 F1", "f1_micro": "마이크로 F1", "matthews": "매슈스 상관계수",
            "pearson": "피어슨 상관계수", "spearman": "스피어만 상관계수", "mse": "평균 제곱 오차",
            "mae": "평균 절대 오차",
        },
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
    trained = words.trained.format(steps=steps) if steps else ""
    intro = words.intro.format(title=title, trained=trained)
    lines = [f"# {cell(name)}", "", intro, "", f"## {words.facts}", "", "| | |", "|---|---|"]
    lines += [f"| {words.rows[key]} | {cell(value)} |" for key, value in facts(words, former, dtype).items()]
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


def facts(words: Words, former: Former, dtype: torch.dtype) -> dict[str, str]:
    """What is known of a model, by the keys of a card's rows; what is not known is left out."""
    c, told = former.config, former.training
    data = told.get("data") if isinstance(told.get("data"), dict) else {}
    assert isinstance(data, dict)
    counts = {unit: n for unit in ("tokens", "documents", "examples") if (n := known(data.get(unit), int))}
    amounts = [words.amount.format(count=n, unit=words.name(unit, keep=False)) for unit, n in counts.items()]
    sources = [str(one) for one in data.get("sources", []) if isinstance(one, str)]
    scores = told.get("validation") if isinstance(told.get("validation"), dict) else {}
    assert isinstance(scores, dict)
    labels = ", ".join(former.labels[:20]) + (", …" if len(former.labels) > 20 else "")
    rows: dict[str, Any] = {
        "family": f"{former.family} ({member(former.family).card.paper})",
        "head": words.name(former.head),
        "parameters": f"{count(former.model):,}",
        "dtype": str(dtype).removeprefix("torch."),
        "context": words.amount.format(count=c.context, unit=words.name("tokens", keep=False))
        if getattr(c, "context", None)
        else None,
        "vocab": f"{c.vocab:,}" if getattr(c, "vocab", None) else None,
        "labels": labels,
        "base": known(told.get("init"), str),
        "objective": words.name(known(told.get("objective"), str) or ""),
        "task": words.name(known(told.get("task"), str) or ""),
        "data": ", ".join([*sources, *amounts]),
        "steps": f"{n:,}" if (n := known(told.get("steps"), int)) else None,
        "validation": ", ".join(
            f"{words.name(k, keep=False)} {v:.4g}" for k, v in itertools.islice(scores.items(), 12) if known(v, float)
        ),
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
