"""Arithmetic on rows of different lengths that lie one after the other: N entries of D rows."""

from __future__ import annotations

import numpy as np


def compute_starts(sizes: np.ndarray) -> np.ndarray:
    """(D,) sizes → (D+1,) where each row begins, and the end of all."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def compute_row_ids(starts: np.ndarray) -> np.ndarray:
    """(D+1,) starts → (N,) the row of each entry."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def ragged_arange(sizes: np.ndarray) -> np.ndarray:
    """(D,) sizes → (N,) the place of each entry in its row."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def expand_ranges(begin: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(D,) begins and sizes → (N,) the numbers begin[i] … begin[i] + sizes[i] - 1 of all i, one after the other."""
    return np.repeat(begin, sizes) + ragged_arange(sizes)
