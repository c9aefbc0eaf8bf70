"""Masks as functions of slots, drawn and evaluated."""

from __future__ import annotations

import torch

from formers.nn.attention.masks import (
    WindowMask,
    build_document_mask,
    causal,
    combine_masks,
    evaluate_on_grid,
)

CPU = torch.device("cpu")


def test_masks_as_pictures():
    def picture(mask, size=4):
        table = evaluate_on_grid(mask, (1, 1, size, size), CPU)[0, 0].expand(size, size)
        return ["".join("x" if seen else "." for seen in row) for row in table.tolist()]

    assert picture(causal) == ["x...", "xx..", "xxx.", "xxxx"]
    assert picture(combine_masks(causal, WindowMask(2))) == ["x...", "xx..", ".xx.", "..xx"]
    assert picture(WindowMask(1)) == ["xxxx", ".xxx", "..xx", "...x"]
    same = build_document_mask(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]))
    assert picture(same) == ["x...", "x...", ".xxx", ".xxx"]
    assert picture(combine_masks(same, causal)) == ["x...", "x...", ".xx.", ".xxx"]


def test_both():
    assert combine_masks() is None
    assert combine_masks(None, None) is None
    assert combine_masks(None, causal) is causal
    three, two = WindowMask(3), WindowMask(2)
    assert combine_masks(combine_masks(causal, three), None, two).masks == (causal, three, two)


def test_evaluate_keeps_ignored_axes_narrow_and_shifts_queries():
    assert evaluate_on_grid(causal, (5, 3, 4, 4), CPU).shape == (1, 1, 4, 4)
    assert evaluate_on_grid(lambda b, h, q, k: b + 10 * h + 100 * q + 1000 * k, (2, 3, 4, 5), CPU)[1, 2, 3, 4] == 4321
    table = evaluate_on_grid(causal, (2, 1, 1, 5), CPU, offset=torch.tensor([0, 3]).view(2, 1, 1, 1))
    assert table[:, 0, 0].tolist() == [[True, False, False, False, False], [True, True, True, True, False]]
