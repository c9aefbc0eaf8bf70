"""Streams: what comes out piece by piece is what `decode` gives, no � on the way, nothing lost at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers.registry import train_tokenizer
from formers.text.tokenizer import DecodeStream

LINES = ["the cat sat on the mat, isn't it?", "현행법은 이에 현행법을 개정하려는 것임 ㅋㅋ"] * 4
MADE = {
    "bytes": train_tokenizer("bpe", LINES, 300),
    "wordpiece": train_tokenizer("bert", LINES, 160, alphabet=60),
    "unigram": train_tokenizer("t5", LINES, 200, alphabet=60),
    "fallback": train_tokenizer("unigram", LINES, 430, byte_fallback=True, alphabet=20),
    "ends": train_tokenizer("gpt", LINES, 160, alphabet=60),
    "words": train_tokenizer("words", LINES, 60),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("special", [False, True])
@given(data=st.data())
def test_any_ids(name, special, data):
    """Also ids that no text gives: bytes in any order, special tokens in between."""
    made = MADE[name]
    ids = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=30))
    stream = DecodeStream(made, special=special)
    parts = [stream.push(i) for i in ids]
    assert not any("�" in p for p in parts)
    assert "".join(parts) == made.decode(ids, special=special)
    assert stream.flush() == ("�" if cut_off(made, ids, special) else "")
    assert (stream.pending_bytes, stream.flush()) == (b"", "")  # once


def cut_off(made, ids, special):
    """Whether the bytes of ids end inside of a character, as Python's strict decoder sees it."""
    if not (made.is_byte_level or made.has_byte_fallback):
        return False
    data = b"".join(made.decode_bytes(ids, special))
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
        stream, ids = DecodeStream(made), made.encode(line)
        parts = [stream.push(i) for i in ids]
        text = "".join(parts) + stream.flush()
        assert text == made.decode(ids)
        assert text.replace(" ", "") == line.replace(" ", "")
        assert stream.pending_bytes == b""


def test_a_syllable_waits_for_its_bytes():
    """Trap 5: decoding each piece alone shows �, and the syllable is lost."""
    made = train_tokenizer("bpe", ["abc"], 257)
    ids = made.encode("가나")
    assert len(ids) == 6
    assert "�" in "".join(made.backend.decode([i]) for i in ids)
    stream = DecodeStream(made)
    assert [stream.push(i) for i in ids] == ["", "", "가", "", "", "나"]
    stream = DecodeStream(made)
    assert [stream.push(i) for i in ids[:4]] == ["", "", "가", ""]
    assert stream.pending_bytes == "나".encode()[:1]
    assert stream.flush() == "�"
    assert stream.flush() == ""
