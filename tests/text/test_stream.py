"""Streams: what comes out piece by piece is what `decode` gives, no � on the way, nothing lost at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers.text.stream import Stream
from formers.text.trainers import train

LINES = ["the cat sat on the mat, isn't it?", "현행법은 이에 현행법을 개정하려는 것임 ㅋㅋ"] * 4
MADE = {
    "bytes": train("bpe", LINES, 300),
    "wordpiece": train("bert", LINES, 160, alphabet=60),
    "unigram": train("t5", LINES, 200, alphabet=60),
    "fallback": train("unigram", LINES, 430, byte_fallback=True, alphabet=20),
    "ends": train("gpt", LINES, 160, alphabet=60),
    "words": train("words", LINES, 60),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("special", [False, True])
@given(data=st.data())
def test_any_ids(name, special, data):
    """Also ids that no text gives: bytes in any order, special tokens in between."""
    made = MADE[name]
    ids = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=30))
    stream = Stream(made, special=special)
    parts = [stream.push(i) for i in ids]
    assert not any("�" in p for p in parts)
    assert "".join(parts) == made.decode(ids, special=special)
    assert stream.end() == ("�" if cut_off(made, ids, special) else "")
    assert (stream.held, stream.end()) == (b"", "")  # once


def cut_off(made, ids, special):
    """Whether the bytes of ids end inside of a character, as Python's strict decoder sees it."""
    if not (made.bytes or made.fallback):
        return False
    data = b"".join(made.spelled(ids, special))
    for start in range(max(0, len(data) - 3), len(data)):
        try:
            # A half of a surrogate pair (ED A0 …) never becomes a character, but Python's decoder waits for its end.
            data[start:].replace(b"\xed", b"\xee").decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return True
    return False


@pytest.mark.parametrize("name", MADE)
def test_text(name):
    made = MADE[name]
    for line in LINES:
        stream, ids = Stream(made), made.encode(line)
        parts = [stream.push(i) for i in ids]
        text = "".join(parts) + stream.end()
        assert text == made.decode(ids)
        assert text.replace(" ", "") == line.replace(" ", "")
        assert stream.held == b""


def test_a_syllable_waits_for_its_bytes():
    """Trap 5: decoding each piece alone shows �, and the syllable is lost."""
    made = train("bpe", ["abc"], 257)
    ids = made.encode("가나")
    assert len(ids) == 6
    assert "�" in "".join(made.rust.decode([i]) for i in ids)
    stream = Stream(made)
    assert [stream.push(i) for i in ids] == ["", "", "가", "", "", "나"]
    stream = Stream(made)
    assert [stream.push(i) for i in ids[:4]] == ["", "", "가", ""]
    assert stream.held == "나".encode()[:1]
    assert stream.end() == "�"
    assert stream.end() == ""
