from __future__ import annotations

import pytest
import torch

import formers
from formers.experiments.layers import (
    Settings,
    choose_word_questions,
    fit_mix,
    fit_probe,
    make_token_labels,
    make_word_tasks,
    run,
)
from formers.experiments.page import Page


def test_a_probe_reads_what_is_there_and_nothing_else():
    torch.manual_seed(0)
    labels = torch.randint(4, (600,))
    marks = torch.nn.functional.one_hot(labels, 8).float() * 3
    assert fit_probe(marks + 0.1 * torch.randn(600, 8), labels, 4) > 0.95
    assert fit_probe(torch.randn(600, 8), labels, 4) < 0.45


def test_the_mix_takes_the_layer_that_knows_the_answer():
    torch.manual_seed(0)
    labels = torch.randint(2, (300,))
    useful, noise = torch.randn(300, 8), torch.randn(300, 8)
    useful[:, 0] += 6 * labels
    shares, accuracy = fit_mix([noise, useful], labels, 80)
    assert shares[1] > 0.6
    assert accuracy > 0.9


def test_labels_are_neighbours():
    rows = torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2]])
    labels = {name: values for name, (values, _) in make_token_labels(rows).items()}
    assert labels["before"][1:].tolist() == labels["token"][:-1].tolist()
    assert labels["after"][:-1].tolist() == labels["token"][1:].tolist()
    assert labels["before"][0] == labels["after"][-1] == -1
    words = ["the", "cats", "the", "dogs", "the", "men"]
    assert choose_word_questions([*words, ",", ",", ",", ","]) == ("e", "the"), "no mark is asked for"
    tasks = make_word_tasks(words)
    assert tasks["next word"].tolist() == [0, 1, 0, 1, 0, 0]
    assert tasks["word before"].tolist() == [0, 1, 0, 1, 0, 1]


def test_both_models_are_probed(run_experiment):
    sizes = {"elmo_steps": 1, "tokens": 500, "mix_steps": 3}
    page, found = run_experiment("layers", steps=1, **sizes)
    assert found["token 0"] > found["before 0"], "embeddings know their token, not its neighbour"
    assert len(page.tables[1].rows) == 3
    assert any("most frequent tokens" in note for note in page.notes), "what the probes are asked"
    assert any("does the word end in" in note for note in page.notes), "what the mixes are asked"


def test_text_too_short_for_the_probes_is_refused_before_training(monkeypatch):
    monkeypatch.setattr("formers.experiments.layers.train_small", None)
    short = Page(documents=["\n".join(f"line number {i}" for i in range(20))])
    few = Settings(tokens=95, characters=60_000)
    for page, settings, fix in ((short, Settings(), "Give a longer file"), (Page(), few, "--tokens 96 or more")):
        with pytest.raises(formers.Error, match=f"and 96 are needed. {fix}"):
            run(page, settings)
