"""Regular expressions of tokenizer files: those that never end are refused, those that people use are not."""

from __future__ import annotations

import json

import pytest

from formers import Error
from formers.text import backend_safety
from formers.text.backend_safety import PUBLISHED_PATTERNS, PatternParser, check_pattern, is_quick, is_simple
from formers.text.tokenizer import Tokenizer

SLOW = [
    r"(?:[a-z ]{1,2}){20}\d",
    r"(a+)+$",
    r"(a|a)*b",
    r"([a-z ]+)*\d",
    r"password(?:[a-z ]{1,2}){20}\d",
    r"zz(?:[a-z ]{1,2}){20}\d|.",
    r"(?=(?:[a-z ]{1,2}){20}\d)",
    r"(?:(?:a{1000}){1000}){100}",
]
SIMPLE = [
    r"\s+", " {2,}", "^ ", r"[0-9][0-9][0-9]", r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", r"[\r\n]", r"\s?\p{L}+", r"\d+|\D+",
    " ?[^(\\s|[.,!?…])]+", r"[\p{L}&&[^\p{Lu}]]+", r"a++b", "", r"(?i:'s|'t)|\S", "x{2}", "{", r"\x{1F600}+", r"[]a]+",
]  # fmt: skip
QUICK = [
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",  # DeepSeek's
    r"\d+\.\d+|\w+",
]


def build_tokenizer(pattern, stage="pre_tokenizer"):
    part = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    part = {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""} if stage != "pre_tokenizer" else part
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    return Tokenizer(json.dumps({"version": "1.0", "added_tokens": [], "model": model, stage: part}))


@pytest.mark.parametrize("stage", ["pre_tokenizer", "normalizer", "decoder"])
def test_a_file_with_a_slow_pattern_is_refused(stage):
    """It used to load, and then took more than a minute for 2,000 characters of prose."""
    with pytest.raises(Error, match="is too slow") as error:
        build_tokenizer(SLOW[0], stage)
    assert "[a-z ]{1,2}" in str(error.value)


@pytest.mark.parametrize("pattern", SLOW[1:])
def test_slow(pattern, full):
    if not full and pattern not in (SLOW[1], SLOW[7]):
        pytest.skip("long form: make faults")
    with pytest.raises(Error, match="is too slow"):
        check_pattern(pattern, None)


@pytest.mark.parametrize("pattern", [*SIMPLE, *sorted(PUBLISHED_PATTERNS)])
def test_no_process_is_needed_for_what_people_use(pattern, monkeypatch):
    monkeypatch.setattr(backend_safety, "is_quick", lambda pattern: pytest.fail("a process was started"))
    check_pattern(pattern, None)


@pytest.mark.parametrize("pattern", QUICK)
def test_others_are_tried(pattern):
    assert not is_simple(PatternParser(pattern).parse_branches())
    assert is_quick(pattern)


def test_what_is_no_pattern_is_the_librarys_own_error():
    with pytest.raises(Error, match="the tokenizer failed"):
        build_tokenizer("(")
