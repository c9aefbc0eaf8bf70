"""English names by rule."""

from __future__ import annotations

import itertools
import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formers.text.sentences import find_names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The United Nations met in New York on 12 March 1945.", "United Nations|New York|12 March 1945"),
        ("But Dr. Watson's dog barked, said Sherlock Holmes.", "Dr. Watson|Sherlock Holmes"),
        ("J. R. R. Tolkien wrote 3.5 million words; Tolkien's son read them.", "J. R. R. Tolkien|3.5 million|Tolkien"),
        ("We saw the Lord of the Rings of old.", "Lord of the Rings"),
        ("I think I'm with Ludwig van Beethoven and I'll stay.", "Ludwig van Beethoven"),
        ("Paris is big. We love Paris!", "Paris|Paris"),
        ("Dogs bark. Some dogs bite.", ""),
        ("Nobody came.", ""),
        ("NASA paid 1,000,000 dollars, 50% more.", "NASA|1,000,000|50%"),
        ("He went to the U.S. Army with Jean-Luc O'Neill of AT&T.", "U.S. Army|Jean-Luc O'Neill of AT&T"),
        ('He said "Go to Rome" and left for Rome, Italy.', "Rome|Rome|Italy"),
        ("THIS IS A HEADLINE IN CAPITALS", ""),
        ("Seven Words That Begin With Large Letters", ""),
        ("In the Alps, the Rhine's source", "Alps|Rhine"),
        ("no names at all, of the kind", ""),
        ("", ""),
    ],
)
def test_by_hand(text, found):
    assert "|".join(text[a:b] for a, b in find_names(text)) == found


@given(st.text(st.sampled_from("Ab1 .'’-\"of\n가"), max_size=40))
def test_they_are_in_order_and_never_overlap(text):
    spans = find_names(text)
    assert spans == sorted(spans)
    assert all(a < b for a, b in spans)
    assert all(b <= c for (_, b), (c, _) in itertools.pairwise(spans))
    assert not any(text[a].isspace() or text[b - 1].isspace() for a, b in spans)


@pytest.mark.skipif("FORMERS_DATA" not in os.environ, reason="needs the data")
def test_half_of_the_names_in_the_wild():
    """Posts of all kinds (WNUT 2017, test): far from an analyser, and far from chance."""
    hits = found = wanted = 0
    with lzma.open(Path(os.environ["FORMERS_DATA"]) / "tag" / "wnut17.test.conll.xz", "rt") as file:
        blocks = file.read().split("\n\n")
    for block in blocks:
        text, gold = "", set()
        for word, tag in (line.split("\t") for line in block.split("\n") if "\t" in line):
            text += " " * bool(text) + word
            gold |= set(range(len(text) - len(word), len(text))) if tag != "O" else set()
        mine = {i for a, b in find_names(text) if not text[a].isdigit() for i in range(a, b) if text[i] != " "}
        hits, found, wanted = hits + len(gold & mine), found + len(mine), wanted + len(gold)
    assert hits / wanted > 0.6
    assert hits / found > 0.45
