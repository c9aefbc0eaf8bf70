"""The kernel for single steps computes what attention over each row's own keys does (run slowly, without a GPU)."""

from __future__ import annotations

import pytest
import torch

from formers.nn.attention.kernels import decode
from formers.nn.layers import LayerNorm, RMSNorm
from tests.nn import slow_triton
from tests.nn.reference import attend_to_cache


@pytest.fixture
def slow(monkeypatch):
    made = slow_triton.load_kernels("attention.kernels.decode_triton")
    monkeypatch.setattr(decode, "load_kernels", lambda: made)


@pytest.mark.parametrize("programs", [1, 64])
@pytest.mark.parametrize(
    ("each", "size", "dim", "tabled", "biased", "width"),
    [(1, 150, 8, False, False, 0), (3, 70, 8, False, False, 0), (1, 200, 12, True, False, 0),
     (1, 140, 8, True, True, 0), (1, 200, 8, False, False, 70), (1, 200, 8, True, True, 5)],
)  # fmt: skip
def test_one_token_over_a_cache(slow, monkeypatch, programs, each, size, dim, tabled, biased, width):
    monkeypatch.setattr(decode, "TARGET_PROGRAMS", programs)
    torch.manual_seed(0)
    rows, heads = 3, 2
    q = torch.randn(rows * each, 3 * heads, dim)[:, heads : 2 * heads]  # as it lies in one matrix with keys and values
    k, v = torch.randn(rows, size, heads, dim), torch.randn(rows, size, heads, dim)
    lengths = torch.tensor([size, 1, size // 2 + 1])
    table = torch.randint(0, rows, (rows, size)) if tabled else None
    bias = torch.randn(heads, size) if biased else None
    got = decode.decode_attention(q, k, v, lengths, 0.3, table=table, bias=bias, width=width)
    want = attend_to_cache(q, k, v, lengths, 0.3, table, bias, width)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_row_without_keys_gets_zeros(slow):
    q, k = torch.randn(2, 1, 4), torch.randn(2, 5, 1, 4)
    got = decode.decode_attention(q, k, k, torch.tensor([0, 2]), 1.0)
    assert (got[0] == 0).all()
    assert (got[1] != 0).all()


@pytest.mark.parametrize("programs", [1, 64])
@pytest.mark.parametrize("tabled", [False, True])
def test_what_is_new_is_seen_and_written(slow, monkeypatch, programs, tabled):
    """As if it had been in the cache before; nothing else changes, and a row that is full writes its last slot."""
    monkeypatch.setattr(decode, "TARGET_PROGRAMS", programs)
    torch.manual_seed(0)
    rows, heads, dim, size = 3, 2, 6, 150
    lengths, last = torch.tensor([size + 1, 1, 70]), torch.tensor([size - 1, 0, 69])
    qkv, table = torch.randn(rows, 3, heads, dim), torch.randint(0, rows, (rows, size)) if tabled else None
    k, v = torch.randn(rows, size, heads, dim), torch.randn(rows, size, heads, dim)
    after = [k.clone(), v.clone(), None if table is None else table.clone()]
    for row in range(rows):
        after[0][row, last[row]], after[1][row, last[row]] = qkv[row, 1], qkv[row, 2]
        if tabled:
            after[2][row, last[row]] = row
    clipped = lengths.clamp(max=size)
    if tabled:  # no other row looks at a slot that is being written
        for row in range(rows):
            for other in range(rows):
                hit = after[2][other, last[row]] == row
                if other != row and hit and last[row] < clipped[other]:
                    table[other, last[row]] = after[2][other, last[row]] = other
    want = attend_to_cache(qkv[:, 0], after[0], after[1], clipped, 0.3, after[2], None, 0)
    got = decode.decode_attention(qkv[:, 0], k, v, lengths, 0.3, table=table, fresh=(qkv[:, 1], qkv[:, 2]))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert torch.equal(k, after[0])
    assert torch.equal(v, after[1])
    assert table is None or torch.equal(table, after[2])


@pytest.mark.parametrize("norm", [LayerNorm(12, 1e-5), RMSNorm(12, 1e-6)], ids=["layer", "rms"])
def test_a_sum_and_its_norm(slow, norm):
    torch.manual_seed(0)
    with torch.no_grad():
        for p in norm.parameters():
            p.normal_()
    x, y = torch.randn(5, 24)[:, :12], torch.randn(5, 12)
    total, got = decode.add_norm(x, y, norm.weight, getattr(norm, "bias", None), norm.eps, isinstance(norm, LayerNorm))
    torch.testing.assert_close(total, x + y)
    torch.testing.assert_close(got, norm(x + y), atol=1e-5, rtol=1e-5)
