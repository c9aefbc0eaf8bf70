"""The fused kernel's arithmetic, run in numpy: outputs and gradients against plain attention in torch."""

from __future__ import annotations

import pytest
import torch

from formers.nn.attention.kernels import biased_flash
from tests.nn import slow_triton
from tests.nn.attention.kernels.biased_flash_cases import (
    CASES,
    accumulate_starts,
    compare_with_plain,
)


@pytest.fixture
def numpy_kernels(monkeypatch):
    found = slow_triton.load_kernels()
    monkeypatch.setattr(biased_flash, "load_kernels", lambda: found)
    for name in ("FORWARD_TILES", "SHIFTED_TILES", "QUERY_GRAD_TILES", "KEY_GRAD_TILES"):
        monkeypatch.setattr(biased_flash, name, (4, 8, 1, 1))  # blocks that documents do not fill


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("numpy_kernels")
def test_as_plain_attention(name, dropout):
    compare_with_plain(name, dropout)


@pytest.mark.usefixtures("numpy_kernels")
def test_dropout_is_even_and_independent():
    """One head, many pairs: the rate is right, and neighbours do not follow each other."""
    n = 128
    q = torch.zeros(n, 1, n)
    eye = torch.eye(n)[:, None]
    torch.manual_seed(1)
    out = biased_flash.biased_flash_attention(q, q, eye, (accumulate_starts([n]),) * 2, (n, n), 1.0, dropout=0.25)[:, 0]
    gone = (out == 0).float()
    assert abs(float(gone.mean()) - 0.25) < 0.02
    centred = gone - gone.mean()
    for shifted in (centred.roll(1, 0), centred.roll(1, 1), centred.roll((1, 1), (0, 1)), centred.T):
        assert abs(float((centred * shifted).mean()) / 0.1875) < 0.04
    assert float(gone.mean(0).std()) < 0.06
    assert float(gone.mean(1).std()) < 0.06
