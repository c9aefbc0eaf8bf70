"""Plain text is cut into words as the training data was: on real tweets, and on text as people write it."""

from __future__ import annotations

import pytest

from formers.tasks.examples import read_examples
from formers.tasks.word_split import find_detached, split_words

ROWS = [["I", "saw", "@anna", "in", "Seoul", ",", "Korea", "."], ["She", "said", '"', "no", '"', "!"], ["#fun", "e.g."]]


def words(text, detached):
    found = list(split_words(text, detached))
    assert all(text[at : at + len(word)] == word for word, at in found)
    assert "".join(word for word, _ in found) == "".join(text.split())
    return [word for word, _ in found]


def test_marks_are_found_in_the_words():
    assert find_detached(ROWS) == '!",'  # "." is as often at the end of a word
    assert find_detached([*ROWS, ["."]]) == '!",.'
    assert find_detached([["New York", "is"]]) is None, "a word with a space is not found again by cutting"
    assert find_detached([]) == ""


@pytest.mark.parametrize(("text", "want"), [
    ("I saw @anna in Seoul, Korea.", ["I", "saw", "@anna", "in", "Seoul", ",", "Korea", "."]),
    ('"no"!', ['"', "no", '"', "!"]),
    ("no!!! it's", ["no", "!!!", "it's"]),
    ("I saw Anna , Bob and Dr. Kim.", ["I", "saw", "Anna", ",", "Bob", "and", "Dr.", "Kim."]),  # cut before
    ("안나는 서울에 산다.", ["안나는", "서울에", "산다", "."]),
    (",", [","]), (" x\u3000y ", ["x", "y"]),
])  # fmt: skip
def test_text_is_cut_like_them(text, want):
    assert words(text, find_detached([*ROWS, ["."]])) == want


def test_without_knowledge_words_and_marks_part_wherever_they_meet():
    assert words("I saw @anna.", None) == ["I", "saw", "@", "anna", "."]


def test_tweets_are_cut_as_they_were(data):
    """WNUT-17: the words of nearly all sentences come back from their text."""
    rows = {part: read_examples(data / "tag" / f"wnut17.{part}.conll.xz", "tag").rows for part in ("train", "test")}
    detached = find_detached(row["words"] for row in rows["train"])
    for some in rows.values():
        same = sum(words(" ".join(row["words"]), detached) == row["words"] for row in some)
        assert same >= 0.99 * len(some)
