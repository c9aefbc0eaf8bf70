"""Korean with the analyser: nothing is lost, units are whole, and without the package there is a word about it."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formers import Error
from formers.text import korean, sentences


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "kiwipiepy", None)
    korean.get_analyser.cache_clear()
    with pytest.raises(Error, match=r'need the package kiwipiepy. pip install "formers\[ko\]"'):
        korean.split_morphemes("가")
    with pytest.raises(Error, match="kiwipiepy"):
        sentences.split_sentences("가", splitter="kiwi")


@pytest.fixture(autouse=True)
def _analyser(request):
    if "without" not in request.node.name:
        pytest.importorskip("kiwipiepy")


def list_units(text):
    return [(text[begin:end], kind) for begin, end, kind in korean.find_units(text)]


def test_one_analyser_for_all():
    assert korean.get_analyser() is korean.get_analyser()


def test_sentences():
    text = "정말 좋더라고요 그래서 또 갔다. 내일도 갈까?\n글쎄"
    assert korean.split_sentences(text) == ["정말 좋더라고요", "그래서 또 갔다.", "내일도 갈까?", "글쎄"]
    assert sentences.split_sentences(text, splitter="kiwi") == korean.split_sentences(text)


def test_morphemes_are_written_as_in_the_text():
    assert korean.split_morphemes("나는 학교에 갔다.") == ["나", "는", "학교", "에", "갔", "다", "."]
    assert korean.split_morphemes("") == []


def test_units():
    text = "삼성전자 이재용 부회장은 2020년 3월 서울에서 국립 중앙 박물관을 봤다. GPT-2로 1.5배 빨라졌다!"
    assert list_units(text) == [
        ("삼성전자 이재용", "entity"),
        ("부회장은", "phrase"),
        ("2020년 3월", "entity"),
        ("서울", "entity"),
        ("에서", "phrase"),
        ("국립 중앙 박물관을", "phrase"),
        ("봤다", "phrase"),
        ("GPT-2", "entity"),
        ("로", "phrase"),
        ("1.5배", "entity"),
        ("빨라졌다", "phrase"),
    ]


def test_a_noun_phrase_is_not_endless():
    assert max(len(unit.split()) for unit, _ in list_units("문화 예술 교육 지원 사업 관리 운영 위원회 회의 자료")) <= 5


def test_no_unit_goes_over_a_line():
    assert all("\n" not in unit for unit, _ in list_units("서울\n부산\n국립\n박물관에서"))


LETTERS = st.sampled_from(
    [*"가나다했습니다ㅋ 😀ᄀ\u1161\u11a8.!?\n\t\u200d\ufe0f\0\ud800-\u3000", "서울 ", "3명 ", "갔다. "]
)


@settings(max_examples=150)
@given(st.lists(LETTERS | st.text(max_size=3), max_size=30).map("".join))
def test_nothing_is_lost(text):
    bare = "".join(text.split())
    assert "".join(korean.split_morphemes(text)) == bare
    assert "".join("".join(korean.split_sentences(text)).split()) == bare
    last = 0
    for begin, end, kind in korean.find_units(text):
        assert last <= begin < end
        assert kind in ("phrase", "entity")
        assert text[begin:end] == text[begin:end].strip()
        last = end


def test_long_text_in_stretches(monkeypatch):
    monkeypatch.setattr(korean, "STRETCH_CHARACTERS", 50)
    text = "나는 학교에 갔다. " * 30 + "가" * 120
    assert "".join(korean.split_morphemes(text)) == "".join(text.split())
    assert korean.split_morphemes(text)[:5] == ["나", "는", "학교", "에", "갔"]
