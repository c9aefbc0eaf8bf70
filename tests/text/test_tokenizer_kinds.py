"""The table of kinds: each trains, and takes its own options only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from formers import Error
from formers.registry import find_default_style, list_tokenizer_styles
from formers.text import tokenizer_kinds
from formers.text.published_files import choose_style
from formers.text.tokenizer_kinds import TRAINERS, PublishedForm, TokenizerStyle, train_by_kind


@pytest.mark.parametrize("kind", TRAINERS)
def test_every_kind_of_tokenizer_trains_and_refuses_what_it_does_not_know(kind):
    lines = ["the cat sat on the mat", "한국어 문장"] * 5
    assert len(train_by_kind(kind, lines, 400, style=find_default_style(kind))) > 6
    with pytest.raises(Error, match=f"{kind} has no option 'odd'"):
        train_by_kind(kind, lines, 400, style=find_default_style(kind), odd=1)


def test_every_kind_has_one_default_style():
    """A model file declares it; the room of tokenizers names no style."""
    declared = [kind for style in list_tokenizer_styles() for kind in style.default_kinds]
    assert sorted(declared) == sorted(TRAINERS)
    with pytest.raises(Error, match="glyphs tokenizers have no style of their own"):
        find_default_style("glyphs")
    assert not [
        path.name
        for path in Path(tokenizer_kinds.__file__).parent.rglob("*.py")
        if re.search(r"TokenizerStyle\(\s*\"\w", path.read_text(encoding="utf-8"))
    ]


def test_styles_are_told_apart():
    """Of two styles in one file, that by which more is recognised is chosen; without any, the file is refused."""
    plain, toy, other = (
        TokenizerStyle(name, {"unk": "<unk>"}, published_forms=(PublishedForm(("merges.txt",), tokens, options),))
        for name, tokens, options in (
            ("plain", (), {}), ("toy", ("<a>", "<b>"), {}), ("other", ("<a>",), {"tokenizer_class": "Other"}),
        )
    )  # fmt: skip

    def choose(styles, pieces, **options):
        return choose_style(styles, "merges.txt", pieces, options, None)[0].name

    styles = [plain, toy, other]
    assert choose(styles, {"<a>"}) == "plain"
    assert choose(styles, {"<a>", "<b>"}) == "toy"
    assert choose(styles, {"<a>"}, tokenizer_class="OtherTokenizerFast") == "other"
    assert choose(styles, {"<a>", "<b>"}, tokenizer_class="OtherTokenizer") == "toy", "a tie goes to the first"
    assert choose(styles, {"<b>"}, tokenizer_class="OtherTokenizer") == "plain"
    with pytest.raises(Error, match=r"no family publishes such a merges.txt"):
        choose([toy, other], {"<b>"})


@pytest.mark.parametrize(("kind", "option"), [("bpe", "jamo"), ("jamo", "jamo"), ("characters", "spaces")])
def test_options_that_make_another_kind_are_refused(kind, option):
    with pytest.raises(Error, match=f"has no option '{option}'"):
        train_by_kind(kind, ["the cat"], 400, style=find_default_style(kind), **{option: True})
