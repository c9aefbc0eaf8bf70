"""One form of Unicode: the traps of Korean, what is removed, and that it is counted."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers import Error
from formers.text.normalise import (
    CleaningReport,
    compose_and_count,
    compose_with_origins,
    normalise,
    order_marks,
    scrub_text,
)

SYLLABLES = [chr(c) for c in range(0xAC00, 0xD7A4)]
COMPATIBILITY = [chr(c) for c in range(0x3131, 0x318F)]  # ㄱ … ㆎ
HALF_WIDTH = [chr(c) for c in range(0xFFA1, 0xFFBF)]


def test_decomposed_hangul_is_composed():
    for syllable in SYLLABLES:
        assert normalise(unicodedata.normalize("NFD", syllable)) == syllable
        assert normalise(syllable) == syllable


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_compatibility_jamo_stay(form):
    text = "".join(COMPATIBILITY + HALF_WIDTH)
    assert unicodedata.normalize("NFKC", text) != text  # the trap
    assert normalise(text, form) == text
    assert normalise("ㅋㅋ 웃기다 ㅠㅠ ㄱㅏ", form) == "ㅋㅋ 웃기다 ㅠㅠ ㄱㅏ"


def test_width_and_ligatures_stay_unless_asked_for():
    assert normalise("ｶﾀｶﾅ ＡＢＣ ﬁ ① ㎏ ℃") == "ｶﾀｶﾅ ＡＢＣ ﬁ ① ㎏ ℃"
    assert normalise("ｶﾀｶﾅ ＡＢＣ ﬁ ① ㎏ ㅋ", "NFKC") == "カタカナ ABC fi 1 kg ㅋ"


@pytest.mark.parametrize("form", ["NFD", "NFKD", "nfc", ""])
def test_forms_that_take_hangul_apart_are_refused(form):
    with pytest.raises(Error, match="Choose NFC or NFKC; the others take Hangul apart"):
        normalise("각", form)


@given(st.text())
def test_nfc_is_that_of_unicode(text):
    assert normalise(text) == unicodedata.normalize("NFC", text)


@given(st.text(st.characters() | st.sampled_from(SYLLABLES + COMPATIBILITY)))
def test_never_a_jamo_more(text):
    def jamo(t):
        return sum("\u1100" <= c <= "\u11ff" for c in t)

    for form in ("NFC", "NFKC"):
        assert jamo(normalise(text, form)) <= jamo(text)
        assert normalise(normalise(text, form), form) == normalise(text, form)


def test_scrub_counts_each_kind():
    changes = CleaningReport()
    text = "\ufeff안\0\0녕\x01\x7f\x9f\ufffd a\ud800b\udcffc\x0cd\u2028e\tf\ng\u200d\u00ad😀"
    assert scrub_text(text, changes) == "안녕 abc d e\tf\ng\u200d\u00ad😀"
    assert (changes.marks, changes.nul, changes.control, changes.replaced, changes.undecodable) == (1, 2, 5, 1, 2)


def test_scrub_leaves_every_other_character():
    changes = CleaningReport()
    text = "".join(map(chr, range(sys.maxunicode + 1)))
    left = scrub_text(text, changes)
    assert {unicodedata.category(c) for c in set(text) - set(left)} <= {"Cc", "Cs", "Cn", "Cf", "So", "Zl", "Zp"}
    gone = sum(count for name, count in vars(changes).items() if name != "notes")
    assert len(text) - len(left) == gone - 9  # nine became a space
    assert scrub_text(left, CleaningReport()) == left
    assert left.count(" ") == 10


def test_compose_counts():
    changes = CleaningReport()
    assert compose_and_count(unicodedata.normalize("NFD", "각"), changes) == "각"
    assert compose_and_count("각ㅋ", changes) == "각ㅋ"
    assert changes.composed == 1


def test_changes_are_told_added_and_kept():
    one, two = (
        CleaningReport(documents=2, lines=3, nul=1, notes=["a line is a document"]),
        CleaningReport(lines=4, cut=1),
    )
    two.add_note("a line is a document")
    two.add_note("another")
    one.add(two)
    changes = "1 NUL character removed, 1 cut in long documents"
    assert str(one) == f"2 documents, 7 lines, {changes}, a line is a document, another"
    assert CleaningReport(**json.loads(json.dumps(dataclasses.asdict(one)))) == one
    assert str(CleaningReport(documents=1234)) == "1,234 documents, 0 lines"


MARKS = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.combining(chr(c))]
ODD = ["\u0f73", "\u0f75", "\u0f81", "\u0344", "\uff9e", "\uff9f", "\u0301", "\u0327", "\u0345", "\u3099", "\u1161"]
RUNS = st.lists(
    st.tuples(st.sampled_from("aáệ가각\u1100ｶか \u0f71"), st.text(st.sampled_from(MARKS + ODD * 9), max_size=90)),
    max_size=4,
)


@given(RUNS.map(lambda runs: "".join(letter + run for letter, run in runs)))
def test_long_runs_of_marks_are_those_of_unicode(text):
    assert normalise(text) == unicodedata.normalize("NFC", text)
    assert normalise(text, "NFKC") == unicodedata.normalize("NFKC", text)
    changes = CleaningReport()
    assert compose_and_count(text, changes) == unicodedata.normalize("NFC", text)
    assert changes.composed == (normalise(text) != text)


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
@pytest.mark.parametrize("run", ["\u0301\u0327", "\u0f73", "\u0f75\u0344", "\u0345\u0301"])
def test_marks_are_put_into_order_in_linear_time(run, form, monkeypatch):
    """Python moves each mark over those that belong after it: one step for each inversion."""
    steps = []

    def count_steps(kind, text):
        last: Counter[int] = Counter()
        for c in "".join(real("NFKD" if "K" in kind else "NFD", c) for c in text):
            own = unicodedata.combining(c)
            if not own:
                last.clear()
            steps.append(1 + sum(n for kind, n in last.items() if kind > own))
            last[own] += 1
        return real(kind, text)

    real = unicodedata.normalize
    monkeypatch.setattr(unicodedata, "normalize", count_steps)
    monkeypatch.setattr(unicodedata, "is_normalized", lambda kind, text: count_steps(kind, text) == text)
    work = []
    for n in (1000, 2000):
        steps.clear()
        normalise("a" + run * n, form)
        work.append(sum(steps))
    assert work[1] <= 2.1 * work[0]


def test_marks_that_come_with_letters_cost_little(monkeypatch):
    """Text in other scripts has marks, but no long runs: it is not rewritten."""
    text = unicodedata.normalize("NFD", "tiếng Việt, हिन्दी में, 한국어 ") * 50
    assert order_marks(text) == text


@given(st.text(st.sampled_from("a é e\u0301\u0323각ᄀᄀ\u1161\u11a8ᆨ\u3099か\u09c7\u09be\U00011131\U00011127 x")))
def test_places_of_composed_text(text):
    made, origins = compose_with_origins(text)
    assert made == normalise(text)
    if origins is None:
        assert made == text
        return
    assert len(origins) == len(made) + 1
    assert origins == sorted(origins)
    assert (origins[0], origins[-1]) == (0, len(text)) or not text
    assert "".join(normalise(text[a:b]) for a, b in itertools.pairwise(sorted(set(origins)))) in (made, text) or any(
        unicodedata.combining(c) for c in made
    )


def test_places_of_decomposed_hangul():
    text = unicodedata.normalize("NFD", "한국 e\u0301x")
    made, origins = compose_with_origins(text)
    assert made == "한국 éx"
    assert [text[a:b] for a, b in itertools.pairwise(origins)] == [unicodedata.normalize("NFD", c) for c in made]
