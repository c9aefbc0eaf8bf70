from __future__ import annotations

import pytest

import formers


def test_the_query_stream_does_not_see_its_token(run_experiment):
    _, found = run_experiment("two-streams", orders=2, text="The law of the land is the will of the people")
    assert found["query"] == 0
    assert found["content"] > 1e-3
    assert found["diagonal"] == 0
    assert found["content_diagonal"] == 1


def test_letters_of_ones_own_text_are_known(run_experiment):
    page, _ = run_experiment("two-streams", "ko", "뷁스러운 고양이가 꾸벅꾸벅 졸았다", orders=1)
    names = [row[1] for row in page.tables[0].rows]
    assert not page.notes
    assert "<unk>" not in names
    assert "뷁" in "".join(names)


def test_a_long_sentence_says_where_it_was_cut(run_experiment):
    page, _ = run_experiment("two-streams", orders=1, text="The law of the land is the will of the people. " * 6)
    assert page.notes[0].startswith("The sentence was cut to the first 24 of its ")


def test_a_sentence_of_one_token_has_one_turn(run_experiment):
    """It was divided by no tokens."""
    page, found = run_experiment("two-streams", orders=1, text="a")
    assert len(page.tables[0].rows) == 1
    assert found["early"] == found["late"]


def test_a_model_of_one_stream_is_refused(run_experiment, monkeypatch):
    former = formers.build("gpt2", vocab=64, dim=32, heads=2, layers=1)
    monkeypatch.setattr("formers.experiments.two_streams.load_or_train", lambda *_: former)
    with pytest.raises(formers.Error, match="one stream"):
        run_experiment("two-streams")
