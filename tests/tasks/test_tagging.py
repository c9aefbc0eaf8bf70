"""Plain text is cut into words as the training data was: on real tweets, and on text as people write it."""

from __future__ import annotations

import pytest

from formers.tasks.examples import read_examples
from formers.tasks.tagging import find_detached, find_mark_words, split_words

ROWS = [["I", "saw", "@anna", "in", "Seoul", ",", "Korea", "."], ["She", "said", '"', "no", '"', "!"], ["#fun", "e.g."]]


def list_words(text, detached, mark_words=()):
    found = list(split_words(text, detached, mark_words))
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
    ("no!!! it's", ["no", "!", "!", "!", "it's"]),  # no run is a word of the training data
    ("Anna - Bob, hi :)", ["Anna", "-", "Bob", ",", "hi", ":)"]),  # a dash alone does not mean that it was cut before
    ("I saw Anna , Bob and Dr. Kim.", ["I", "saw", "Anna", ",", "Bob", "and", "Dr.", "Kim."]),  # cut before
    ("안나는 서울에 산다.", ["안나는", "서울에", "산다", "."]),
    ("Salut, Anna !", ["Salut", ",", "Anna", "!"]),  # French: nothing was cut before
    (",", [","]), (" x\u3000y ", ["x", "y"]),
])  # fmt: skip
def test_text_is_cut_like_them(text, want):
    assert list_words(text, find_detached([*ROWS, ["."]])) == want


def test_without_knowledge_words_and_marks_part_wherever_they_meet():
    assert list_words("I saw @anna.", None) == ["I", "saw", "@", "anna", "."]


def test_runs_of_marks_are_cut_as_in_the_training_words():
    rows = [["no", "!!", ":)"], ["hm", "...", "!!", ":)"], ["well", "...", ".", "?!"], ["a", "(", "b", ")"], [":"]]
    detached, mark_words = find_detached(rows), find_mark_words(rows)
    assert mark_words == ("!!", "...", ":)"), "?! occurs once, which may be a slip"
    for text, want in (
        ("no!! hm... well.", ["no", "!!", "hm", "...", "well", "."]),
        ("no!!!!!? so:)!", ["no", "!!!!!", "?", "so", ":)", "!"]),
        ("(so:) ((", ["(", "so", ":)", "(", "("]),
    ):
        assert list_words(text, detached, mark_words) == want
        apart = [part for word in want for part in (word if len(set(word) & set("!.:?()")) else [word])]
        assert list_words(text, detached) == apart


def attach_marks(row, marks=".,!?;:"):
    """The text of a row as people write it: marks stand at the end of the word before."""
    text = ""
    for word in row:
        text += word if not text or set(word) <= set(marks) else f" {word}"
    return text


def test_tweets_are_cut_as_they_were(data):
    """WNUT-17: the words of most sentences come back from their text, cut before or not.

    Its parts were cut by different rules (in dev and test a run of marks is several words, in train it is one), so
    that words learned from one part cannot give those of another in all sentences.
    """
    rows = {
        part: [row["words"] for row in read_examples(data / "tag" / f"wnut17.{part}.conll.xz", "tag").rows]
        for part in ("train", "dev", "test")
    }
    at_least = {  # learned from → the shares of sentences of train, dev and test that come back from attached marks
        "train": (0.90, 0.81, 0.87),  # 3,080 of 3,394; 819 of 1,009; 1,128 of 1,287
        "dev": (0.21, 0.98, 0.91),  # 739; 998; 1,178
        "test": (0.21, 0.98, 0.91),
    }
    for learned, shares in at_least.items():
        known = find_detached(rows[learned]), find_mark_words(rows[learned])
        for part, share in zip(rows, shares, strict=True):
            same = sum(list_words(attach_marks(row), *known) == row for row in rows[part])
            assert same >= share * len(rows[part]), (learned, part, same)
        same = sum(list_words(" ".join(row), *known) == row for row in rows[learned])
        assert same >= 0.96 * len(rows[learned]), learned
