"""The model card of an export: README.md with what is known of the model, and README.ko.md where its text is Korean."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import torch

from ..config import JSONObject, format_value
from ..errors import Error
from ..former import Former, count_trainable
from ..registry import find_family
from ..text.tokenizer import Tokenizer
from .origins import ORIGINS_KEY, format_licence, is_share_alike, parse_origins
from .safe_files import write_json

JSONType = TypeVar("JSONType")

CARD_LANGUAGES = ("en", "ko")
KOREAN_THRESHOLD = 0.2  # of the pieces that are letters, from which on the text is taken to be Korean
MAX_SAMPLED_TOKENS = 50_000  # pieces of a vocabulary, at most
BYTE_TOKEN = re.compile(r"<(?:0x)?[0-9a-fA-F]+>")  # a part of a character, as a tokenizer shows it

# The hub's name of what a head does.
PIPELINE_TAGS = {
    "mlm": "fill-mask", "pretraining": "fill-mask", "classify": "text-classification", "tag": "token-classification",
    "answer": "question-answering", "beam": "question-answering", "choose": "multiple-choice",
    "none": "feature-extraction",
}  # fmt: skip

TRANSFORMERS_EXAMPLE = """```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained("path/to/{name}"{side})
model = {architecture}.from_pretrained("path/to/{name}")
```"""
PROMPT_EXAMPLE = """\
prompt = tokenizer("…", add_special_tokens=False, return_tensors="pt")  # without the marks that end a text
"""
SENTENCE_TRANSFORMERS_EXAMPLE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/{name}")
vectors = model.encode({texts})
```"""
FORMERS_EXAMPLE = """```python
import formers

f = formers.load("path/to/{name}")
```"""


@dataclass(frozen=True)
class CardText:
    """The sentences of a card in one language."""

    intro: str
    facts_title: str
    row_titles: dict[str, str]
    loading_title: str
    formers_intro: str
    author_notice: str
    licence_title: str
    unchanged_origin: str
    derived_origin: str
    share_alike: str
    attribution: str
    licence_notice: str  # what the author has still to fill in, the licence known
    sample_texts: str
    trained_suffix: str  # after the title
    amount_format: str  # of tokens, documents or examples
    value_names: dict[str, str] = field(default_factory=dict)  # what a row's value is called; others stay as they are

    def translate_value(self, value: str, *, keep_original: bool = True) -> str:
        """Translate a value; with `keep_original`, its name in formers stays beside it: it is what one types."""
        if value not in self.value_names:
            return value
        return f"{self.value_names[value]} ({value})" if keep_original else self.value_names[value]


CARD_TEXTS = {
    "en": CardText(
        intro="A {title} model{trained}, exported from formers.",
        facts_title="Model details",
        row_titles={
            "family": "family", "head": "head", "parameters": "parameters", "dtype": "weights",
            "context": "longest input", "vocab": "vocabulary", "labels": "labels", "base": "started from",
            "objective": "objective", "task": "task", "data": "training data", "steps": "training steps",
            "validation": "validation", "origin_data": "training data of {model}",
        },
        loading_title="How to load it",
        formers_intro="or in formers:",
        author_notice="To be filled in by the author: `license` above, intended use, limitations, where the data comes "
        "from.",
        licence_title="Licence",
        unchanged_origin="These are the weights of {model}, which comes with formers, under {licence}.",
        derived_origin="Derived from {model}, which comes with formers, by further training. That model is under "
        "{licence}.",
        share_alike="Whoever passes this model on must name its origin and license it under the same or a compatible "
        "licence.",
        attribution="Whoever passes this model on must name its origin and link the licence.",
        licence_notice="To be filled in by the author: intended use, limitations, where data of your own comes from.",
        sample_texts='["a sentence", "another one"]',
        trained_suffix=", trained for {steps:,} steps",
        amount_format="{count:,} {unit}",
    ),
    "ko": CardText(
        intro="formers에서 내보낸 {title} 모델입니다{trained}.",
        facts_title="모델 정보",
        row_titles={
            "family": "모델 계열", "head": "헤드", "parameters": "파라미터 수", "dtype": "가중치 자료형",
            "context": "최대 입력 길이", "vocab": "어휘 크기", "labels": "레이블", "base": "시작 체크포인트",
            "objective": "학습 목표", "task": "과제", "data": "학습 데이터", "steps": "학습 스텝",
            "validation": "검증 결과", "origin_data": "{model} 모델의 학습 데이터",
        },
        loading_title="불러오는 방법",
        formers_intro="formers에서는 다음과 같이 불러옵니다.",
        author_notice="작성자가 채울 항목: README.md의 `license`, 용도, 한계, 데이터 출처.",
        licence_title="라이선스",
        unchanged_origin="formers에 포함된 {model} 모델의 가중치이며, 라이선스는 {licence}입니다.",
        derived_origin="formers에 포함된 {model} 모델을 더 학습하여 만든 파생 모델입니다. "
        "원래 모델의 라이선스는 {licence}입니다.",
        share_alike="이 모델을 배포할 때에는 출처를 밝히고, 같거나 호환되는 라이선스를 적용해야 합니다.",
        attribution="이 모델을 배포할 때에는 출처를 밝히고 라이선스 링크를 붙여야 합니다.",
        licence_notice="작성자가 채울 항목: 용도, 한계, 직접 사용한 데이터의 출처.",
        sample_texts='["첫 번째 문장", "두 번째 문장"]',
        trained_suffix="({steps:,} 스텝 학습)",
        amount_format="{unit} {count:,}개",
        value_names={
            # heads and tasks
            "none": "없음", "lm": "언어 모델", "mlm": "마스크 언어 모델", "pretraining": "사전 학습",
            "nsp": "다음 문장 예측",
            "classify": "분류", "regress": "회귀", "tag": "개체명 인식 등 토큰 분류", "answer": "질의응답",
            "beam": "빔 탐색 질의응답", "choose": "객관식 선택", "double": "언어 모델과 객관식 선택",
            "multitask": "연속 다중 과제 학습",
            "translate": "번역", "summarise": "요약", "mixture": "여러 과제의 혼합",
            # objectives
            "causal": "다음 토큰 예측", "prefix": "접두사 언어 모델", "seq2seq": "원문에서 목표문 생성",
            "bidirectional": "양방향 언어 모델", "whole-word": "단어 단위 마스크 언어 모델",
            "ngrams": "n-gram 단위 마스크 언어 모델", "sop": "문장 순서 예측", "plm": "순열 언어 모델",
            "denoising": "손상된 텍스트 복원", "span-corruption": "구간 손상", "switch": "구간 손상",
            "prefix-spans": "뒷부분 생성", "deshuffle": "토큰 순서 복원",
            "ernie-units": "구·개체 단위 마스크 언어 모델",
            "unit-pairs": "구·개체 단위 마스크와 다음 문장 예측", "dialogue": "구·개체 단위 마스크와 대화 판별",
            "continual": "일곱 과제의 연속 다중 과제 학습",
            # amounts and measures
            "tokens": "토큰", "documents": "문서", "examples": "예제", "loss": "손실", "accuracy": "정확도",
            "perplexity": "퍼플렉시티", "precision": "정밀도", "recall": "재현율", "exact": "완전 일치",
            "f1": "F1", "f1_macro": "매크로 F1", "f1_micro": "마이크로 F1", "matthews": "매슈스 상관계수",
            "pearson": "피어슨 상관계수", "spearman": "스피어만 상관계수", "mse": "평균 제곱 오차",
            "mae": "평균 절대 오차",
        },
    ),
}  # fmt: skip


def write_model_card(
    folder: Path, former: Former, architecture: str, language: str | None = None, for_sentences: bool = False,
    dtype: torch.dtype | None = None,
) -> None:  # fmt: skip
    """Write README.md, and README.ko.md for a model of Korean text.

    `architecture` is the class of transformers that opens it ("" where none does), `for_sentences` says that
    sentence-transformers opens it, `dtype` is that of the written weights (None: the model's). The facts are those that
    formers.json holds from the run that made the model."""
    if language not in (None, *CARD_LANGUAGES):
        raise Error(f"there is no model card in {language!r}", fix="choose " + " or ".join(CARD_LANGUAGES))
    origins = get_origins(former)
    if language is None:
        language = "ko" if any("ko" in one["languages"] for one in origins) else detect_language(former.tokenizer)
    header = build_front_matter(former, architecture, language, for_sentences)
    # the name of the directory to be: the staged one has a dot before it and a random part after it
    name = folder.name.removeprefix(".").rpartition(".")[0] or folder.name
    how = (former, architecture, name, for_sentences, dtype or former.dtype)
    english = build_card_body(CARD_TEXTS["en"], *how)
    link = "\n[한국어 설명](README.ko.md)\n" if language == "ko" else ""
    (folder / "README.md").write_text(f"{header}\n{english}{link}", encoding="utf-8")
    if language == "ko":
        (folder / "README.ko.md").write_text(build_card_body(CARD_TEXTS["ko"], *how), encoding="utf-8")


def detect_language(tokenizer: Tokenizer | None) -> str:
    """Guess the language of a tokenizer's text by the share of Hangul in its vocabulary: ko, or en."""
    if tokenizer is None:
        return "en"
    step = max(1, len(tokenizer) // MAX_SAMPLED_TOKENS)
    pieces = [tokenizer.get_token_text(i) for i in range(0, len(tokenizer), step)]
    pieces = [p for p in pieces if p not in tokenizer.reserved_tokens and not BYTE_TOKEN.fullmatch(p)]
    pieces = [piece.strip(" ▁#") for piece in pieces]
    letters = [p for p in pieces if any(c.isalpha() for c in p) and (len(p) > 1 or not p.isascii())]
    korean = sum(any("가" <= c <= "힣" or "\u1100" <= c <= "\u11ff" for c in piece) for piece in letters)
    return "ko" if letters and korean / len(letters) >= KOREAN_THRESHOLD else "en"


def build_front_matter(former: Former, architecture: str, language: str, sentences: bool) -> str:
    """Build the YAML at the top of a card, which the hub reads. The licence is that of the shipped models that it was
    made of, or else the author's to fill in."""
    origins = get_origins(former)
    languages = list(dict.fromkeys(code for one in origins for code in one["languages"])) or [language]
    licences = list(dict.fromkeys(one["license"] for one in origins)) or [" # fill in: apache-2.0, cc-by-4.0, …"]

    def format_list(values: list[str]) -> str:
        return values[0] if len(values) == 1 else f"[{', '.join(values)}]"

    library = "sentence-transformers" if sentences else "transformers" if architecture else "formers"
    pipeline = "sentence-similarity" if sentences else PIPELINE_TAGS.get(former.head)
    if former.head == "lm":
        pipeline = former.definition.hub_tag
    rows = [
        "---", f"language: {format_list(languages)}", f"license: {format_list(licences)}", f"library_name: {library}",
        *([f"pipeline_tag: {pipeline}"] if pipeline else []), "tags:", "- formers", f"- {former.family}",
        *(["- sentence-transformers"] if sentences else []), "---", "",
    ]  # fmt: skip
    return "\n".join(rows)


def build_card_body(
    words: CardText, former: Former, architecture: str, name: str, sentences: bool, dtype: torch.dtype
) -> str:
    """Build the body of a card."""
    title = find_family(former.family).card.title
    steps = filter_by_type(former.training_info.get("steps"), int)
    trained = words.trained_suffix.format(steps=steps) if steps else ""
    intro = words.intro.format(title=title, trained=trained)
    lines = [f"# {escape_cell(name)}", "", intro, "", f"## {words.facts_title}", "", "| | |", "|---|---|"]
    facts = collect_facts(words, former, dtype)
    lines += [f"| {words.row_titles[key]} | {escape_cell(value)} |" for key, value in facts.items()]
    for one in get_origins(former):
        if data := (one["data_ko"] if words is CARD_TEXTS["ko"] else []) or one["data"]:
            title = words.row_titles["origin_data"].format(model=escape_cell(one["model"]))
            lines.append(f"| {title} | {'; '.join(' '.join(text.split()).replace('|', ' ') for text in data)} |")
    if former.head == "none" and sentences:
        example = SENTENCE_TRANSFORMERS_EXAMPLE.format(name=name, texts=words.sample_texts)
    elif architecture:
        left = former.head == "lm" and not former.is_encoder_decoder
        side = ', padding_side="left"' if left else ""
        example = TRANSFORMERS_EXAMPLE.format(name=name, architecture=architecture, side=side)
        if left and former.tokenizer is not None and former.tokenizer.get_template().after:
            example = example.removesuffix("```") + PROMPT_EXAMPLE + "```"
    else:
        example = ""
    lines += ["", f"## {words.loading_title}", ""]
    lines += [example, "", words.formers_intro, ""] if example else []
    lines += [FORMERS_EXAMPLE.format(name=name), ""]
    lines += build_licence_section(words, former)
    lines += [words.licence_notice if get_origins(former) else words.author_notice, ""]
    return "\n".join(lines)


def get_origins(former: Former) -> list[JSONObject]:
    """Return the shipped models that a model is, or was trained from."""
    return parse_origins(former.training_info.get(ORIGINS_KEY))


def build_licence_section(words: CardText, former: Former) -> list[str]:
    """Build the lines that say which shipped models a model is made of, and what their licences ask for; none where it
    is not."""
    origins = get_origins(former)
    if not origins:
        return []
    lines = [f"## {words.licence_title}", ""]
    for one in origins:
        sentence = words.derived_origin if one.get("changed") else words.unchanged_origin
        lines += [sentence.format(model=escape_cell(one["model"]), licence=format_licence(one["license"])), ""]
    shared = any(is_share_alike(one["license"]) for one in origins)
    return [*lines, words.share_alike if shared else words.attribution, ""]


def write_licence_note(folder: Path, former: Former) -> None:
    """Write LICENCE.md beside an export that has no model card, for a model made of shipped ones."""
    if lines := build_licence_section(CARD_TEXTS["en"], former):
        (folder / "LICENCE.md").write_text("\n".join(lines).lstrip("#").strip() + "\n", encoding="utf-8")


def collect_facts(words: CardText, former: Former, dtype: torch.dtype) -> dict[str, str]:
    """Collect what is known of a model, by the keys of a card's rows; what is not known is left out."""
    c, training = former.config, former.training_info
    data = filter_by_type(training.get("data"), dict) or {}
    counts = {unit: n for unit in ("tokens", "documents", "examples") if (n := filter_by_type(data.get(unit), int))}

    def format_amount(count: int, unit: str) -> str:
        return words.amount_format.format(count=count, unit=words.translate_value(unit, keep_original=False))

    sources = [str(one) for one in data.get("sources", []) if isinstance(one, str)]
    scores = filter_by_type(training.get("validation"), dict) or {}
    labels = ", ".join(former.labels[:20]) + (", …" if len(former.labels) > 20 else "")
    rows: dict[str, str | None] = {
        "family": f"{former.family} ({find_family(former.family).card.paper})",
        "head": words.translate_value(former.head),
        "parameters": f"{count_trainable(former.model):,}",
        "dtype": str(dtype).removeprefix("torch."),
        "context": format_amount(former.context, "tokens") if former.context else None,
        "vocab": f"{c.vocab:,}",
        "labels": labels,
        "base": filter_by_type(training.get("init"), str),
        "objective": words.translate_value(filter_by_type(training.get("objective"), str) or ""),
        "task": words.translate_value(filter_by_type(training.get("task"), str) or ""),
        "data": ", ".join([*sources, *(format_amount(n, unit) for unit, n in counts.items())]),
        "steps": f"{n:,}" if (n := filter_by_type(training.get("steps"), int)) else None,
        "validation": ", ".join(
            f"{words.translate_value(k, keep_original=False)} {v:.4g}"
            for k, v in itertools.islice(scores.items(), 12)
            if filter_by_type(v, float)
        ),
    }
    return {key: value for key, value in rows.items() if value}


def filter_by_type(value: object, kind: type[JSONType]) -> JSONType | None:
    """Return a value of an untrusted formers.json if it has the right type, else None."""
    good = isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
    return cast(JSONType, value) if good else None


def escape_cell(value: str) -> str:
    """Escape a text for a cell of a table."""
    text = format_value(value)[1:-1] if len(value) > 200 else " ".join(value.split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


@dataclass(frozen=True)
class ShippedCardText:
    """The headings and sentences of a shipped model's card in one language."""

    intro: str
    figures_title: str
    figure_columns: tuple[str, str, str]
    training_title: str
    data_row: str
    seen_row: str
    tokens_format: str
    compute_row: str
    recipe_row: str
    limits_title: str
    language_names: Mapping[str, str]
    language_joiner: str
    model_title: str
    vectors_title: str


SHIPPED_CARD_TEXTS = {
    "en": ShippedCardText(
        intro="{title} for {languages}, bundled with formers. Weights are stored as {storage}.",
        figures_title="Figures", figure_columns=("what", "this model", "compared with"), training_title="Training",
        data_row="text and its licences", seen_row="seen", tokens_format="{tokens:,} tokens in {steps:,} steps",
        compute_row="compute", recipe_row="recipe", limits_title="Limits",
        language_names={"en": "English", "ko": "Korean"}, language_joiner=" and ",
        model_title="A small {title} model", vectors_title="Small skip-gram (word2vec) vectors",
    ),
    "ko": ShippedCardText(
        intro="formers에 포함된 {title}입니다. 언어: {languages}. 가중치 저장 형식: {storage}.",
        figures_title="측정값", figure_columns=("항목", "이 모델", "비교 대상"), training_title="학습",
        data_row="학습 텍스트와 라이선스", seen_row="학습량", tokens_format="토큰 {tokens:,}개, {steps:,} 스텝",
        compute_row="연산", recipe_row="재현 명령", limits_title="한계",
        language_names={"en": "영어", "ko": "한국어"}, language_joiner=", ",
        model_title="작은 {title} 모델", vectors_title="작은 skip-gram(word2vec) 단어 벡터",
    ),
}  # fmt: skip


def write_shipped_card(folder: Path, former: Former, record: JSONObject, storage: str) -> None:
    """Write the record of a shipped model (card.json) and the cards made of it: README.md and README.ko.md.

    A record has title, languages, license, data (a list of texts with their licences), figures (what, value, beside),
    tokens_seen and steps (or seen, in words), compute, recipe and limits; `korean` holds what the Korean card says in
    place of these."""
    write_json(folder / "card.json", record | {"parameters": former.num_parameters, "family": former.family})
    languages = "".join(f"\n- {language}" for language in record["languages"])
    header = f"---\nlanguage:{languages}\nlicense: {record['license']}\nlibrary_name: formers\ntags:\n- formers\n---\n"
    for language, path in (("en", folder / "README.md"), ("ko", folder / "README.ko.md")):
        body = build_shipped_card(language, former, record, storage)
        path.write_text(f"{header}\n{body}" if language == "en" else body, encoding="utf-8")


def build_shipped_card(language: str, former: Former, record: JSONObject, storage: str) -> str:
    """Build the body of a shipped model's card."""
    words, names = SHIPPED_CARD_TEXTS[language], CARD_TEXTS[language]
    record = {**record, **record.get("korean", {})} if language == "ko" else record
    title = words.model_title.format(title=find_family(former.family).card.title)
    if former.definition.is_static:
        title = words.vectors_title
    languages = words.language_joiner.join(words.language_names.get(one, one) for one in record["languages"])
    intro = words.intro.format(title=title, languages=languages, storage=storage)
    facts = {key: value for key, value in collect_facts(names, former, former.dtype).items() if key != "dtype"}
    lines = [f"# formers/{record['title']}", "", intro, "", f"## {words.figures_title}", ""]
    lines += [f"| {' | '.join(words.figure_columns)} |", "|---|---|---|"]
    for row in record["figures"]:
        lines.append(f"| {escape_cell(row['what'])} | {row['value']} | {escape_cell(row['beside'])} |")
    training = {
        words.data_row: "; ".join(record["data"]),
        words.seen_row: record.get("seen")
        or words.tokens_format.format(tokens=record["tokens_seen"], steps=record["steps"]),
        words.compute_row: record["compute"], words.recipe_row: f"`{record['recipe']}`",
    }  # fmt: skip
    lines += ["", f"## {words.training_title}", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {' '.join(value.split())} |" for key, value in training.items()]
    lines += ["", f"## {names.facts_title}", "", "| | |", "|---|---|"]
    lines += [f"| {names.row_titles[key]} | {escape_cell(value)} |" for key, value in facts.items()]
    lines += ["", f"## {names.licence_title}", "", format_licence(record["license"]), ""]
    lines += [f"## {words.limits_title}", "", record["limits"], "", f"## {names.loading_title}", ""]
    lines += [FORMERS_EXAMPLE.format(name=record["title"]).replace("path/to/", "formers/"), ""]
    return "\n".join(lines)
