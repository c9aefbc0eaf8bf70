"""Batches with an encoder's side and a decoder's: the decoder reads its target shifted by one behind a start token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.plans import Shape, room
from ..errors import Error
from ..tasks.encoded import two_sided
from ..text.tokenizer import Tokenizer
from .ragged import edges, owners

__all__ = ["Ends", "closed", "picked", "two_sided", "two_sided_shape"]


def two_sided_shape(total: int, sizes: np.ndarray, longest: tuple[int, int]) -> Shape:
    """Room for `total` tokens on the larger side, and for as many as belong to them on the other."""
    source, target = sizes[:, 2].mean(), sizes[:, 0].mean()
    larger = max(source, target)
    sides = (int(np.ceil(total * part / larger)) for part in (source, target))
    near, far = (max(side, most) for side, most in zip(sides, longest, strict=True))
    # A source may turn out far shorter than it might be; dummy documents fill up what is left.
    dummies = int(np.ceil(max(near / longest[0], far / longest[1])))
    return Shape(room(total, np.array([larger])) + dummies, far, 0, longest[1], near, longest[0])


def closed(ids: np.ndarray, starts: np.ndarray, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples with an end mark behind each."""
    return np.insert(ids, starts[1:], end), starts + np.arange(len(starts))


def picked(ids: np.ndarray, keep: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries of packed examples that are kept, and where the examples begin now."""
    return ids[keep], edges(np.bincount(owners(starts)[keep], minlength=len(starts) - 1))


@dataclass(frozen=True)
class Ends:
    """The token that a decoder starts with, and the end mark."""

    start: int
    end: int

    @staticmethod
    def of(tokenizer: Tokenizer, roles: tuple[str, ...], start: int | None = None) -> Ends:
        """The first of these roles that the tokenizer knows is the start, unless an id is given."""
        end = next((i for role in ("eos", "sep") if (i := tokenizer.id(role)) is not None), None)
        begin = start if start is not None else next((i for r in roles if (i := tokenizer.id(r)) is not None), None)
        if end is None or begin is None:
            raise Error("this tokenizer has no end mark or no token to start with", fix="train one with pad and eos")
        if begin >= len(tokenizer):
            what = f"start={begin} is no token of this tokenizer, which has {len(tokenizer):,}"
            raise Error(what, fix="give the id of one of them, or leave start out")
        return Ends(begin, end)
