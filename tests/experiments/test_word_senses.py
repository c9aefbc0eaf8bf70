from __future__ import annotations

import pytest
import torch

import formers
from formers.experiments.page import Page
from formers.experiments.registry import find_experiment
from formers.experiments.word_senses import GRAMMARS, find_marks, make_sentences, measure_separation, project


def test_separation_is_one_for_clusters_and_chance_for_a_table():
    torch.manual_seed(0)
    senses = ["river", "money"] * 10
    clusters = torch.randn(20, 8) * 0.1 + torch.tensor([[5.0] * 8, [-5.0] * 8]).repeat(10, 1)
    assert measure_separation(clusters, senses) == 1
    assert measure_separation(torch.ones(20, 8), senses) == pytest.approx(9 / 19)
    assert project(clusters).shape == (20, 2)


def test_sentences_have_the_word_in_every_sense():
    for language, (word, senses) in GRAMMARS.items():
        rows = make_sentences(language, 30)
        assert {sense for sense, _ in rows} == set(senses)
        assert all(word in sentence.split() for _, sentence in rows)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_contextual_vectors_tell_senses_apart(run_experiment, language):
    page, found = run_experiment("word-senses", language, steps=2, points=12, sentences=60, epochs=1)
    assert found["last"] > found["chance"]
    assert found["marks"] >= 6
    assert len(page.tables) == 2
    assert page.tables[0].rows[0][1] == f"{found['chance']:.0%}"


def test_marks_of_a_sense_occur_in_no_other():
    rows = [
        ("river", "bank of water water"),
        ("river", "bank water"),
        ("money", "bank of loan"),
        ("money", "loan rate"),
    ]
    rows += [("river", "deep water bank"), ("money", "loan bank")]
    assert find_marks(rows, "bank", 2) == {"river": ["water"], "money": ["loan"]}, "deep and rate occur once"


def test_sentences_without_the_word_are_refused():
    module = find_experiment("word-senses").load()
    with pytest.raises(formers.Error, match="0 sentences with 'bark'"):
        module.run(Page(), module.Settings(word="bark"))


def test_few_sentences_of_ones_own_have_no_static_picture():
    lines = ["river\tA muddy bank.", "river\tTrees on the bank.", "money\tThe bank pays.", "money\tAsk your bank!"]
    module, page = find_experiment("word-senses").load(), Page(documents=["\n".join(lines)])
    found = module.run(page, module.Settings(steps=1, sentences=20, epochs=1))
    assert found["marks"] == 0
    assert found["chance"] == pytest.approx(1 / 3), "one of three other sentences has the same sense"
    assert "yours 20 times" in page.notes[0]
    assert "No static vectors" in page.notes[1]
    assert len(page.tables) == 1
