from __future__ import annotations

import pytest
import torch

import formers
from formers.experiments.memory import Settings, measure_losses, run, shift_streams
from formers.experiments.page import Page
from formers.experiments.small_models import prepare_bundled_corpus, train_small


def test_memory_reaches_further_by_its_length_in_every_layer(run_experiment):
    page, found = run_experiment("memory", segment=8, layers=2, dim=16, memories=(0, 8), rows=2)
    assert found["reach 0"] == 7, "within the segment"
    assert page.tables[0].head[2] == "first 1 of 8 tokens"
    assert "2 layers" in page.notes[0]
    assert found["reach 8"] == 7 + 2 * 8
    assert found["reach 16"] == 7 + 2 * 16


def test_a_text_too_short_for_the_segments_is_refused_before_training(monkeypatch):
    monkeypatch.setattr("formers.experiments.memory.train_small", None)
    page = Page(documents=["\n".join(f"line number {i}" for i in range(20))])
    with pytest.raises(formers.Error, match="and 49 are needed. Give a longer file, or a smaller --segment"):
        run(page, Settings())


def test_every_token_stands_at_every_place_of_a_segment():
    rows = shift_streams(torch.arange(100), rows=2, segment=4)
    assert rows.shape == (8, 46)
    assert rows[:4, 0].tolist() == [0, 1, 2, 3]
    assert rows[4:, 0].tolist() == [50, 51, 52, 53]


def test_without_a_memory_segments_are_read_one_by_one():
    data = prepare_bundled_corpus("en", "transformer_xl", 1024, 60_000)
    sizes = {
        "dim": 16,
        "embed": 16,
        "heads": 2,
        "head_dim": 8,
        "ff": 16,
        "layers": 1,
        "memory": 8,
        "same_length": False,
    }
    former = train_small(Page(), "transformer_xl", data, 1, model=sizes, train={"seq_length": 8}).former
    tokens = torch.as_tensor(data.store.tokens[:66].astype("int64")).view(2, 33)
    apart, again = measure_losses(former, tokens, 8, 0), measure_losses(former, tokens[:, 8:], 8, 0)
    assert apart.shape == (8,)
    assert not torch.allclose(apart, measure_losses(former, tokens, 8, 8))
    assert not torch.equal(apart, again), "the first segment does not count"
