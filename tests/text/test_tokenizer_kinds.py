"""The table of kinds: each trains, and takes its own options only."""

from __future__ import annotations

import pytest

from formers import Error
from formers.registry import find_default_style
from formers.text.tokenizer_kinds import TRAINERS, train_by_kind


@pytest.mark.parametrize("kind", TRAINERS)
def test_every_kind_of_tokenizer_trains_and_refuses_what_it_does_not_know(kind):
    lines = ["the cat sat on the mat", "한국어 문장"] * 5
    assert len(train_by_kind(kind, lines, 400, style=find_default_style(kind))) > 6
    with pytest.raises(Error, match=f"{kind} has no option 'odd'"):
        train_by_kind(kind, lines, 400, style=find_default_style(kind), odd=1)


@pytest.mark.parametrize(("kind", "option"), [("bpe", "jamo"), ("jamo", "jamo"), ("characters", "spaces")])
def test_options_that_make_another_kind_are_refused(kind, option):
    with pytest.raises(Error, match=f"has no option '{option}'"):
        train_by_kind(kind, ["the cat"], 400, style=find_default_style(kind), **{option: True})
