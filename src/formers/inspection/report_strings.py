"""The words of reports in Korean: one table, by the English words."""

# ruff: noqa: E501
from __future__ import annotations

from typing import Any

KOREAN = {
    # the run in numbers
    "parameters": "파라미터",
    "text": "텍스트",
    "steps": "스텝",
    "speed": "속도",
    "peak memory": "최대 메모리",
    "of the machine's peak": "하드웨어 최고 성능 대비",
    "machine": "하드웨어",
    "versions": "버전",
    "tokenizer": "토크나이저",
    "store": "토큰 저장소",
    "steps left out": "건너뛴 스텝",
    "note": "알림",
    "{tokens:,} tokens in {documents:,} documents": "문서 {documents:,}개, 토큰 {tokens:,}개",
    "{step:,} of {steps:,}; best checkpoint {best}": "{steps:,} 중 {step:,}; 최고 체크포인트 {best}",
    "{speed:,.0f} tokens/s, {tokens:,} tokens in {seconds:,.0f} s": "초당 {speed:,.0f} 토큰, {seconds:,.0f}초 동안 {tokens:,} 토큰",
    "{name} ({device}), {processes} process(es), {threads} threads": "{name} ({device}), 프로세스 {processes}개, 스레드 {threads}개",
    "{parameters:,} parameters; {tokens:,} tokens in {seconds:.0f} s.": "파라미터 {parameters:,}개, {seconds:.0f}초 동안 {tokens:,} 토큰 학습.",
    # scores and curves
    "validation text": "검증 텍스트",
    "nats per token": "토큰당 손실(nat)",
    "accuracy": "정확도",
    "unigram (token frequencies alone)": "유니그램(토큰 빈도만 사용)",
    "this {title}": "이 {title} 모델",
    "training": "학습",
    "validation": "검증",
    "unigram, validation": "유니그램, 검증",
    "{title}: loss over steps": "{title}: 스텝별 손실",
    "{title}: loss over steps ({part})": "{title}: 스텝별 손실({part})",
    "Validation loss": "검증 손실",
    "step": "스텝",
    "loss": "손실",
    # samples
    "After step {step:,}": "{step:,}스텝 학습 후",
    "given: {text}": "입력: {text}",
    "asked: {text}": "정답: {text}",
    "model: {text}": "모델: {text}",
    # tables of a fine-tuned model
    "Measures": "지표",
    "test": "시험",
    "TF-IDF + linear, validation": "TF-IDF + 선형 모델, 검증",
    "TF-IDF + linear, test": "TF-IDF + 선형 모델, 시험",
    "How they were computed": "계산 방법",
    "measure": "지표",
    "signature": "서명",
    "Truth (rows) and guess (columns)": "혼동 행렬: 정답(행)과 예측(열)",
    "Worst examples": "가장 크게 틀린 예제",
    "Examples": "예제",
    "truth": "정답",
    "guess": "예측",
    "written": "생성 결과",
    "probability of the truth": "정답의 확률",
    "share of right tags": "맞은 태그의 비율",
    "error": "오차",
    "Settings": "설정",
    # attention
    "Attention of the {kind}: each row is a token, the darker squares are what it reads from. This shows where, not why.":
        "{kind}의 어텐션: 각 행은 토큰이고, 진한 칸이 그 토큰이 참조하는 위치입니다. 어디를 보는지를 나타낼 뿐 이유를 나타내지는 않습니다.",
    "layer {layer}, head {head}": "레이어 {layer}, 헤드 {head}",
    "encoder": "인코더",
    "decoder": "디코더",
    # the demo
    "Two language models, trained while you waited": "기다리는 동안 학습한 두 언어 모델",
    "Corpus: {documents:,} bundled documents.": "말뭉치: 함께 제공되는 문서 {documents:,}개.",
    "Continuing “{text}”:": "“{text}”에 이어서 생성:",
    "Filling “{text}”:": "“{text}”의 빈칸 채우기:",
}  # fmt: skip


def translate(words: str, language: str = "en", **values: Any) -> str:
    """Return words of a report in a language, with values filled in; words that the table does not have stay."""
    words = KOREAN.get(words, words) if language == "ko" else words
    return words.format(**values) if values else words
