"""Special tokens around examples."""

from __future__ import annotations

import numpy as np

from ..batch import Batch
from ..data.plans import Raw

Frame = tuple[tuple[int, ...], tuple[int, ...]]  # marks before and behind an example


def framed(raw: Raw, frame: Frame, longest: int) -> Batch:
    """Examples between the marks of a frame."""
    front, back = (np.asarray(part, np.int64) for part in frame)
    marks = np.concatenate((np.tile(front, len(raw.sample)), np.tile(back, len(raw.sample))))
    where = np.concatenate((np.repeat(raw.starts[:-1], len(front)), np.repeat(raw.starts[1:], len(back))))
    # What belongs behind an example comes before what belongs in front of the next.
    order = np.lexsort((np.arange(len(where)) < len(front) * len(raw.sample), where))
    ids = np.insert(raw.ids, where[order], marks[order])
    starts = raw.starts + np.arange(len(raw.starts)) * (len(front) + len(back))
    return Batch(ids, starts, longest, sample=raw.sample)
