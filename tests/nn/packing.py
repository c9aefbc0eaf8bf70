"""Rows of ids as a packed batch, and the layout of documents of given lengths."""

from __future__ import annotations

import itertools

import torch

from formers.batch import Batch, Layout


def accumulate_starts(lengths, device="cpu"):
    """Return where documents of these lengths begin, and where the last one ends."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def make_layout(lengths, slack=0, device="cpu"):
    """Return the layout of documents of these lengths; the bound on the longest is loose by `slack`."""
    return Layout(accumulate_starts(lengths, device), max(lengths) + slack, sum(lengths))


def pack_rows(rows):
    """Pack lists of ids into a batch, one document for each."""
    lengths = [len(row) for row in rows]
    ids = torch.tensor([i for row in rows for i in row], dtype=torch.long)
    return Batch(ids, accumulate_starts(lengths), max(lengths))
