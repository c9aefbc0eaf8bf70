"""Dropout by a hash: the right share, the right scale, no pattern; elsewhere torch's own."""

from __future__ import annotations

import torch

from formers.nn.layers import Dropout, drop_by_hash


def test_share_scale_and_no_pattern():
    torch.manual_seed(0)
    x = torch.ones(512, 256)
    y = drop_by_hash(x, 0.1)
    assert set(y.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.9))}
    gone = (y == 0).float()
    assert abs(float(gone.mean()) - 0.1) < 0.005
    assert float(gone.mean(0).std()) < 0.02
    assert float(gone.mean(1).std()) < 0.03
    centred = gone - gone.mean()
    for shift in ((1, 0), (0, 1), (1, 1), (16, 0), (0, 16), (256, 0)):
        assert abs(float((centred * centred.roll(shift, (0, 1))).mean()) / 0.09) < 0.015
    again = (drop_by_hash(x, 0.1) == 0).float() - 0.1
    assert abs(float((centred * again).mean()) / 0.09) < 0.015  # another seed, another draw


def test_gradient_goes_where_the_value_went():
    x = torch.randn(64, 32, requires_grad=True)
    y = drop_by_hash(x, 0.5)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, (y.detach() != 0) * 2.0)


def test_elsewhere_it_is_torchs():
    x, drop = torch.randn(40, 30), Dropout(0.3)
    torch.manual_seed(5)
    got = drop(x)
    torch.manual_seed(5)
    assert torch.equal(got, torch.nn.functional.dropout(x, 0.3))
    assert torch.equal(drop.eval()(x), x)
