"""The bundled corpus and random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from formers import Error
from formers.data.counter_rng import draw_bits, draw_integers, draw_uniform, mix_bits, shuffle_indices
from formers.data.preparation.corpus_filters import hold_out_documents
from formers.data.readers import load_bundled_corpus, split_blocks


@pytest.mark.parametrize("language", ["en", "ko"])
def test_bundled(language):
    texts, changes = load_bundled_corpus(language)
    assert len(texts) >= 20
    assert changes.undecodable == 0
    assert "�" not in "".join(texts)
    known, held = hold_out_documents(texts)
    assert len(held) == len(texts) // 20
    assert not set(known) & set(held)
    assert len(known) + len(held) == len(texts)


def test_no_such_language():
    with pytest.raises(Error, match="no bundled corpus for 'xx'. Choose en or ko"):
        load_bundled_corpus("xx")


def test_documents_are_blocks():
    blocks, changes = split_blocks("\n\na\nb\r\n\n \nc\n")
    assert blocks == ["a\nb", "c"]
    assert changes.lines == 7
    with pytest.raises(Error, match="3 documents are too few"):
        hold_out_documents(["a", "b", "c"])


def test_random_numbers_are_functions_of_their_purpose():
    assert draw_uniform(1, 2, 3) == draw_uniform(1, 2, 3)
    assert draw_uniform(1, 2, 3) != draw_uniform(1, 3, 2)
    many = draw_uniform(7, np.arange(100_000), 5)
    assert 0 <= many.min() < many.max() < 1
    assert many.mean() == pytest.approx(0.5, abs=0.004)
    assert np.histogram(many, 10)[0].std() < 150
    near = draw_uniform(8, np.arange(100_000), 5)
    assert abs(np.corrcoef(many, near)[0, 1]) < 0.01
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.01
    assert len(np.unique(mix_bits(np.arange(10_000, dtype=np.uint64)))) == 10_000
    assert draw_bits(1, np.arange(4)).dtype == np.uint64
    drawn = draw_integers(6, 1, np.arange(60_000))
    assert set(drawn.tolist()) == set(range(6))
    assert np.bincount(drawn).std() < 250
    assert draw_integers(np.array([1, 2, 3]), 4, np.arange(3)).max() <= 2
    order = shuffle_indices(1000, 3)
    assert sorted(order) == list(range(1000))
    assert not np.array_equal(order, shuffle_indices(1000, 4))
    assert np.array_equal(order, shuffle_indices(1000, 3))


def test_random_numbers_are_splitmix64():
    def reference(x):  # Steele et al. 2014, in Python's own integers
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    numbers = [0, 1, 2, 2**63, 2**64 - 1]
    assert mix_bits(np.array(numbers, np.uint64)).tolist() == [reference(x) for x in numbers]
    assert int(mix_bits(np.array(7, np.uint64))) == reference(7)
    state = 0
    for part in (3, 2**64 - 1, 5):  # -1 is taken as the number with the same bits
        state = reference(state ^ reference(part))
    assert int(draw_bits(3, -1, 5)) == int(draw_bits(np.array([3]), np.array([-1]), 5)[0]) == state
    before = np.arange(4)
    draw_bits(1, before)
    assert before.tolist() == [0, 1, 2, 3], "the key is left as it was"


def test_a_long_shuffle_goes_in_steps(monkeypatch):
    whole = shuffle_indices(1000, 5)
    monkeypatch.setattr("formers.data.counter_rng.SHUFFLE_CHUNK", 64)
    assert np.array_equal(shuffle_indices(1000, 5), whole)
