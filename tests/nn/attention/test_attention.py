"""Attention against the formula, of a text to itself and to another."""

from __future__ import annotations

import torch

from formers.nn.attention.attention import Attention
from formers.nn.attention.context import AttentionContext
from tests.nn import reference
from tests.nn.packing import make_layout
from tests.small_models import randomise_weights


def test_attention_from_the_formula():
    one = randomise_weights(Attention(8, 2, head_dim=3, bias=True))
    x, here = torch.randn(5, 8), make_layout([3, 2])
    q, k, v = (part.unflatten(1, (2, 3)) for part in one.qkv(x).chunk(3, 1))
    expected, _ = reference.attend(q, k, v, [0, 3, 5], [0, 3, 5], 3**-0.5)
    torch.testing.assert_close(one(x, AttentionContext(here)), one.o(expected.flatten(1)))
    assert Attention(8, 2).head_dim == 4
    assert Attention(8, 2, scale=1.0).scale == 1.0
    assert Attention(8, 2, bias=False).qkv.bias is None
    assert Attention(8, 2, bias=False).o.bias is None
    assert Attention(8, 2, bias=False, cross=True).kv.bias is None


def test_cross_attention_reads_the_memory():
    one = randomise_weights(Attention(8, 2, cross=True))
    x, memory = torch.randn(5, 8), torch.randn(6, 8)
    q = one.q(x).unflatten(1, (2, 4))
    k, v = (part.unflatten(1, (2, 4)) for part in one.kv(memory).chunk(2, 1))
    expected, _ = reference.attend(q, k, v, [0, 3, 5], [0, 2, 6], 0.5)
    got = one(x, AttentionContext(make_layout([3, 2]), make_layout([2, 4]), encoder_output=memory))
    torch.testing.assert_close(got, one.o(expected.flatten(1)))
