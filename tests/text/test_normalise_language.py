"""The language of a text is decided by the share of Hangul among its letters."""

from __future__ import annotations

import itertools
import unicodedata

import pytest

from formers.text.normalise import detect_language


@pytest.mark.parametrize(
    "text",
    [
        "오늘은 날씨가 좋다.",
        unicodedata.normalize("NFD", "오늘은 날씨가 좋다."),  # as macOS writes it
        "ㅋㅋㅋㅋ",
        "2024년 3월 1일",
        "GPT-2와 BERT는 Transformer를 기반으로 하는 언어 모델이다.",
        "영화 ★★★★★ 10/10 👍",
    ],
)
def test_korean(text):
    assert detect_language(text) == detect_language([text]) == "ko"


@pytest.mark.parametrize(
    "text",
    ["", "12:30 👍", "The weather is fine.", "The film 기생충 (Parasite) won four awards.", "날 tomorrow is fine"],
)
def test_english(text):
    assert detect_language(text) == detect_language([text]) == "en"


def test_many_texts_are_decided_together():
    assert detect_language(["good", "정말 재미있는 영화였습니다"]) == "ko"
    assert detect_language([]) == "en"


def test_an_endless_stream_is_not_read_to_its_end():
    assert detect_language(itertools.repeat("가나다 " * 1000)) == "ko"
    assert detect_language(itertools.cycle(["", "1"])) == "en"
