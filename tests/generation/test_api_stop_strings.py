"""Stop strings over the borders of tokens, and streams: pieces joined are the text, and nothing too much is seen."""

from __future__ import annotations

import functools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from formers import registry
from formers.generation.api import StopWatcher
from formers.registry import train_tokenizer

LINES = [
    "안녕하세요 여러분, 반갑습니다. 오늘은 날씨가 좋아요!",
    "the cat sat on the mat; Q: who? A: the cat",
    "naïve 🙂 café\n\nend",
]
KINDS = {
    "bytes": lambda: train_tokenizer("bpe", LINES * 4, 330),
    "wordpiece": lambda: train_tokenizer("wordpiece", LINES * 4, 120),
    "unigram": lambda: registry.train_tokenizer("t5", LINES * 4, 260),
    "suffix": lambda: registry.train_tokenizer("gpt", LINES * 4, 200),
}  # fmt: skip
made = functools.cache(lambda kind: KINDS[kind]())
texts = st.lists(st.sampled_from([*"안녕하세요the catQ:A? \n.🙂", "여러분", "cat", "\n\n"]), max_size=24).map("".join)


def cut_at_stop(text, stops):
    """Letter by letter: the text ends before the stop string that is complete first, the longest of several."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(text=texts, stops=st.lists(texts.filter(bool).map(lambda t: t[:4]), max_size=3))
@example(text="안녕하세요", stops=["하세"])
@example(text="aab cat", stops=["ab", "b c"])
def test_the_pieces_are_the_text_up_to_a_stop_string(kind, text, stops):
    tokenizer = made(kind)
    ids = tokenizer.encode(text, special=False)
    whole = tokenizer.decode(ids)
    want, seen, watch = cut_at_stop(whole, stops), "", StopWatcher(tokenizer, stops)
    for index in ids:
        piece = watch.push(index)
        assert "\ufffd" not in piece
        seen += piece
        assert want.startswith(seen), "a piece of a stop string was shown"
        if watch.is_stopped:
            break
    over = watch.is_stopped
    assert seen + watch.flush() == want
    assert over == (want != whole)
    assert watch.push(ids[0] if ids else 5) == "" == watch.flush(), "after the end nothing comes"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=texts, at=st.integers(0, 40))
def test_a_continuation_follows_its_prompt(kind, text, at):
    tokenizer = made(kind)
    ids = tokenizer.encode(text, special=False)
    at = min(at, len(ids))
    watch = StopWatcher(tokenizer, (), ids[:at])
    said = "".join(map(watch.push, ids[at:])) + watch.flush()
    before = tokenizer.decode(ids[:at])
    assert before + said == tokenizer.decode(ids)


def test_bytes_of_a_broken_character_are_held_back():
    tokenizer = made("bytes")
    spelt = tokenizer.encode("\U0001f9ff", special=False)  # a character that no text has: byte by byte
    assert len(spelt) > 1
    watch = StopWatcher(tokenizer)
    assert [watch.push(i) for i in spelt[:-1]] == [""] * (len(spelt) - 1)
    assert watch.push(spelt[-1]) == "\U0001f9ff"
    watch = StopWatcher(tokenizer)
    watch.push(spelt[0])
    assert watch.flush() == "\ufffd"
