"""Biases by position, each against lines written from the papers."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from formers.nn.attention.masks import (
    build_alibi,
    evaluate_on_grid,
)
from formers.nn.attention.positions import BucketBias
from tests.nn import reference

CPU = torch.device("cpu")


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20])
def test_alibi_slopes(heads):
    assert build_alibi(heads).slopes == pytest.approx(reference.alibi_slopes(heads))
    bias = build_alibi(heads)
    table = evaluate_on_grid(bias, (1, heads, 3, 3), CPU)
    assert table[0, heads - 1, 2, 0] == pytest.approx(-2 * reference.alibi_slopes(heads)[-1])
    assert bias.compute_distance_bias(-2, 3, CPU)[0].tolist() == pytest.approx(
        [d * reference.alibi_slopes(heads)[0] for d in range(-2, 3)]
    )


@pytest.mark.parametrize("heads", [1, 2, 3, 12, 16, 20])
def test_alibi_is_the_same_compiled(heads):
    bias, places = build_alibi(heads), [torch.arange(n).view(shape) for n, shape in ((heads, (-1, 1, 1)), (3, (-1, 1)))]
    keys = torch.arange(5)
    plain = bias(torch.zeros(()), *places, keys)
    compiled = torch.compile(lambda h, q, k: bias(torch.zeros(()), h, q, k), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*places, keys), plain, rtol=1e-6, atol=0)


@given(st.integers(-400, 400), st.sampled_from([4, 8, 16, 32, 64]), st.integers(33, 300), st.booleans())
def test_buckets(distance, count, far, both_ways):
    bias = BucketBias(1, count, far, both_ways)
    got = int(bias.compute_bucket(torch.tensor([distance]))[0])
    assert got == reference.compute_bucket(distance, count, far, both_ways)
    assert 0 <= got < count


@pytest.mark.parametrize("both_ways", [True, False])
def test_bucket_bias_as_function_and_as_row(both_ways):
    bias = BucketBias(3, 8, 20, both_ways)
    nn.init.normal_(bias.weight)
    table = evaluate_on_grid(bias, (1, 3, 5, 7), CPU)
    row = bias.compute_distance_bias(-4, 7, CPU)
    assert row.shape == (3, 11)
    for i, j in itertools.product(range(5), range(7)):
        torch.testing.assert_close(table[0, :, i, j], row[:, j - i + 4])
        index = reference.compute_bucket(j - i, 8, 20, both_ways)
        assert torch.equal(table[0, :, i, j], bias.weight[index])
