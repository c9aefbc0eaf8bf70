from __future__ import annotations

import re

import pytest

import formers
from formers.experiments.page import Page, format_cell
from formers.experiments.registry import EXPERIMENTS, find_experiment
from formers.experiments.small_models import SmallModel, note_overfitting


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_explains_itself_in_five_sentences_twice(name):
    entry = EXPERIMENTS[name]
    module = entry.load()
    assert len(module.EXPLANATION) == 5
    for english, korean in (*module.EXPLANATION, entry.title, entry.help):
        assert english.isprintable()
        assert re.search("[가-힣]", korean)
    for english, korean in module.EXPLANATION:
        assert english.endswith(".")
        assert korean.endswith(("다.", "오."))
    assert module.Settings.__doc__.startswith("Settings of this experiment")
    for setting in module.Settings.__dataclass_fields__:
        assert f"{setting}: " in module.Settings.__doc__, setting
    assert entry.example.startswith(f"formers try {name}")


def test_names_are_found_as_people_type_them():
    assert find_experiment("Two_Streams").name == "two-streams"
    with pytest.raises(formers.Error, match="masks"):
        find_experiment("mask")


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_page_needs_no_network_and_escapes_text(language):
    page = Page(language)
    page.add_table("<b>", ("a", "b"), [("<script>", 1.5), ("x", 2)])
    entry = EXPERIMENTS["masks"]
    made = page.render(entry, entry.load().EXPLANATION, "formers try masks")
    assert "<script" not in made
    assert not re.search(r"(src|href)=|https?://|@import", made)
    assert f'<html lang="{language}">' in made
    assert "prefers-color-scheme: dark" in made
    assert made.count("<li>") == 5
    assert entry.title[language == "ko"] in made


def test_an_option_stays_in_one_line():
    """A browser breaks lines after every hyphen: "--" and "lr" stood in two lines."""
    page = Page()
    page.add_note("<b> or --lr 0.001")
    assert page.body == ['<p>&lt;b&gt; or <span style="white-space: nowrap">--lr</span> 0.001</p>']


def test_cells_are_readable():
    assert [format_cell(x) for x in (1234, 0.12345, 0.0, 1e-7, "x")] == ["1,234", "0.123", "0", "1.0e-07", "x"]
    assert [format_cell(x) for x in (18240.0, 823.192, -17.5921)] == ["18,240", "823.2", "-17.592"]


def test_a_short_training_text_is_refused():
    with pytest.raises(formers.Error, match="20 are needed"):
        Page(documents=["one line\nand another"]).load_documents(1000)


def test_twenty_lines_of_any_length_are_enough():
    """Short lines were joined first: "the text has 17 parts … give a file of at least 20 lines"."""
    lines = [f"{i} {'a longer line of words ' * (i % 4)}" for i in range(20)]
    train, valid = Page(documents=["\n".join(lines)]).load_documents(10_000)
    assert (len(train), len(valid)) == (19, 1)


def test_own_text_is_taken_and_held_out():
    lines = [f"line number {i} of a text that is long enough to be cut into parts" for i in range(100)]
    train, valid = Page(documents=["\n".join(lines)]).load_documents(10_000)
    assert sum(text.count("line number") for text in (*train, *valid)) == 100
    assert valid
    assert not set(train) & set(valid)


def test_a_model_that_learned_its_text_by_heart_is_noted_once():
    former = formers.build("gpt2", vocab=40, dim=16, heads=2, layers=1, context=16)
    page = Page("ko")
    note_overfitting(page, SmallModel(former, [(1.0, 2.5), (2.0, 2.4)], {"loss": 2.6}))
    assert not page.notes
    for _ in range(2):
        note_overfitting(page, SmallModel(former, [(1.0, 0.1), (2.0, 0.1)], {"loss": 9.0}))
    assert len(page.notes) == len(page.body) == 1
    assert "9.00" in page.notes[0]
    assert "3.69" in page.notes[0], "a uniform guess of 40 tokens"
