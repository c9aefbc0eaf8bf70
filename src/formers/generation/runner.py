"""A model at work on several texts: it reads what is new of each and says what comes next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..former import Former
from ..nn.probe import Probe


class Runner:
    """What a model has read of `rows` texts, up to `size` tokens each. Of encoder-decoders, `sources` are what the
    encoder reads, each of them for `each` rows in turn."""

    def __init__(
        self, former: Former, rows: int, size: int, sources: Sequence[Sequence[int]] | None = None, each: int = 1
    ):
        self.former = former
        given = None if sources is None else [row for row in sources for _ in range(each)]
        self.source = None if given is None else packed(given, former.device)
        self.state = former.remember(rows, size)
        self.two = streams(former)
        self.again = 2 if self.two else 1  # the newest tokens of a text that are read at each step

    @torch.inference_mode()
    def read(self, fed: Sequence[Sequence[int]], probe: Probe | None = None) -> Tensor:
        """(rows, vocab) what comes after these tokens, one list for each row; of an empty one, anything.

        Of two streams (XLNet), the query stream at one more place answers, which no other sees. Its states and those
        of the token before it are forgotten: that token is read again with its successor (two by two, as transformers
        does).
        """
        rows = [[*row, 0] for row in fed] if self.two else fed
        batch = packed(rows, self.former.device).replace(source=self.source)
        ends = batch.layout.last()
        if self.two:
            order = torch.zeros_like(batch.ids).index_fill(0, ends, 1)
            batch = batch.replace(order=order, chosen=ends)
        look = {} if probe is None else {"probe": probe}
        hidden = self.former.model(batch, **self.former.how(self.state, None), **look)
        if self.two:
            self.state.forget(2)  # type: ignore[union-attr]
        return self.former.model.logits(hidden[ends], part="lm")

    def follow(self, parents: Sequence[int]) -> None:
        """Row i goes on from what row parents[i] has read; of encoder-decoders, both have the same source."""
        self.state.follow(torch.tensor(parents, device=self.former.device))


def streams(former: Former) -> bool:
    """The model reads in two streams, of which the second guesses tokens that it does not see (XLNet)."""
    return hasattr(former.model.body, "blank")


def packed(rows: Sequence[Sequence[int]], device: torch.device) -> Batch:
    """Rows of different lengths, one document each."""
    starts = torch.tensor(np.cumsum([0, *map(len, rows)]), dtype=torch.int32, device=device)
    ids = torch.tensor([i for row in rows for i in row], device=device)
    return Batch(ids, starts, max(map(len, rows)))
