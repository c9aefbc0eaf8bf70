"""Rows of ids as a packed batch."""

from __future__ import annotations

import torch

from formers.batch import Batch


def pack_rows(rows):
    """Pack lists of ids into a batch, one document for each."""
    lengths = [len(row) for row in rows]
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return Batch(torch.tensor([i for row in rows for i in row], dtype=torch.long), starts, max(lengths))
