"""Random numbers that are functions of what they are drawn for."""

from __future__ import annotations

import numpy as np
import pytest

from formers.data.counter_rng import (
    draw_binomial,
    draw_bits,
    draw_integers,
    draw_uniform,
    mix_bits,
    rank_within_rows,
    shuffle_indices,
)


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


def test_ranks_and_coins():
    draw = np.array([5, 1, 3, 9, 2], np.uint64) << np.uint64(50)
    assert rank_within_rows(draw, np.array([3, 0, 2])).tolist() == [2, 0, 1, 1, 0]
    many = np.full(1 << 18, 1)  # more examples than a sort key has room for
    assert not rank_within_rows(draw_bits(0, np.arange(1 << 18)), many).any()
    assert rank_within_rows(np.zeros(4, np.uint64), np.array([4])).tolist() == [0, 1, 2, 3], "a tie goes to the first"
    coins = draw_binomial(np.full(4000, 100), 3, np.arange(4000))
    assert coins.mean() == pytest.approx(50, abs=4 * 5 / 4000**0.5)
    assert coins.std() == pytest.approx(5, rel=0.06)
    assert draw_binomial(np.array([0, 1, 64, 65]), 3, np.arange(4)).tolist()[0] == 0
    assert (draw_binomial(np.array([1] * 100), 3, np.arange(100)) <= 1).all()
