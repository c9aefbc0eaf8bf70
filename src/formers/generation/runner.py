"""A model at work on several texts: it reads what is new of each and says what comes next."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..errors import Error
from ..former import Former
from ..nn.cache import Cache
from ..nn.memory import Memory
from ..nn.output import Output
from ..nn.pair import RecurrentPair
from ..nn.probe import Probe
from .recorded import Held, Recorded, hold, identity, taken


class Runner:
    """What a model has read of `rows` texts, up to `size` tokens each. Of encoder-decoders, `sources` are what the
    encoder reads, each of them for `each` rows in turn. On a GPU, steps of one token for each row are recorded."""

    def __init__(
        self, former: Former, rows: int, size: int, sources: Sequence[Sequence[int]] | None = None, each: int = 1
    ):
        records = recordable(former)
        self.former, self.size = former, -(-size // 64) * 64 if records else size  # few sizes are recorded, and reused
        if each > 1 and isinstance(former.model.body, RecurrentPair):  # it has a state for each row
            sources = None if sources is None else [row for row in sources for _ in range(each)]
        self.source = None if sources is None else packed(sources, former.device)
        self.key = identity(former.model, rows, self.size) if records and not former.pair else None
        held = taken(former.model, self.key)
        self.state = former.remember(rows, self.size) if held is None else held.state
        self.starts = torch.arange(rows + 1, dtype=torch.int32, device=former.device)
        self.two = streams(former)
        self.again = 2 if self.two else 1  # the newest tokens of a text that are read at each step
        self.live: Sequence[int] | None = None
        self.wide = None if held is None else renewed(former, held.wide)  # the output layer, filled up for many steps
        self.most = 0  # no text is longer
        self.recorded = held.recorded if held is not None else Recorded() if records else None
        self.chains = self.recorded is not None  # steps follow each other without a look at what they give

    def __del__(self) -> None:
        """What was recorded serves the next runner of the same size."""
        key, recorded = getattr(self, "key", None), getattr(self, "recorded", None)
        if key is not None and recorded is not None and not sys.is_finalizing():
            hold(self.former.model, Held(key, recorded, cast(Cache, self.state), self.wide))

    @torch.inference_mode()
    def read(self, fed: Sequence[Sequence[int]], probe: Probe | None = None) -> Tensor:
        """(rows, vocab) what comes after these tokens, one list for each row; of an empty one, anything.

        Of two streams (XLNet), the query stream at one more place answers, which no other sees. Its states and those
        of the token before it are forgotten: that token is read again with its successor (two by two, as transformers
        does).
        """
        single = self.most and not self.two and probe is None and max(map(len, fed)) == 1
        if single and (self.recorded is not None or min(map(len, fed)) == 1):
            ids = torch.tensor([row[0] if row else 0 for row in fed], device=self.former.device)
            return self.step(ids, [len(row) for row in fed])
        self.most += max(map(len, fed))
        if not self.two:
            self.loosen()
            batch = packed(fed, self.former.device).replace(source=self.source)
            return self.run(batch, batch.layout.last(), probe)
        batch = packed([[*row, 0] for row in fed], self.former.device)
        ends = batch.layout.last()
        order = torch.zeros_like(batch.ids).index_fill(0, ends, 1)
        found = self.run(batch.replace(order=order, chosen=ends), ends, probe)
        assert isinstance(self.state, Memory)
        self.state.forget(2)
        return found

    @torch.inference_mode()
    def every(self, fed: Sequence[int]) -> Tensor:
        """(tokens, vocab) what comes after each of these tokens of the only row."""
        self.most += len(fed)
        self.loosen()
        return self.run(packed([fed], self.former.device).replace(source=self.source))

    @torch.inference_mode()
    def step(self, ids: Tensor, live: Sequence[int] | None = None) -> Tensor:
        """The same for one token (rows,) of each row, which need not leave the device; on a GPU, tokens of rows with 0
        in `live` do not count. The next step may overwrite what is returned."""
        batch = Batch(ids, self.starts, 1, source=self.source)
        self.most += 1
        if self.recorded is None:
            return self.run(batch)
        assert isinstance(self.state, Cache)
        if self.most > self.size:  # rows may have advanced by different amounts
            self.most = self.state.longest + 1
            if self.most > self.size:
                raise Error(f"{self.most} tokens do not fit into a cache of {self.size}", fix="make a larger one")
        if not self.state.fixed and self.state.lengths is not None:
            self.state.fix()
            self.wide = self.wide or widened(self.former)
        if self.state.live is not None and live != self.live:
            self.live = live
            self.state.live.copy_(torch.tensor(live or [1] * len(ids)))
        return self.recorded(lambda ids: self.run(batch.replace(ids=ids)), ids, kept=batch)

    def run(self, batch: Batch, ends: Tensor | None = None, probe: Probe | None = None) -> Tensor:
        """One pass; the logits at some places, or at all."""
        look = {} if probe is None else {"probe": probe}
        hidden = self.former.model(batch, **self.former.how(self.state, None), **look)
        out: Any = self.former.model.parts["lm"].out
        with contextlib.nullcontext() if self.wide is None else out.widened(self.wide):
            return self.former.model.logits(hidden if ends is None else hidden[ends], part="lm")

    def loosen(self) -> None:
        """Before rows advance by more than one token: nothing is recorded of that."""
        if isinstance(self.state, Cache) and self.state.fixed:
            self.state.fixed, self.state.used = False, self.state.longest
            self.forget_steps()

    def forget_steps(self) -> None:
        """What was recorded no longer holds."""
        self.recorded = None if self.recorded is None else Recorded()

    @torch.inference_mode()
    def forget(self, counts: Sequence[int]) -> None:
        """Row i has never read its newest counts[i] tokens."""
        if not isinstance(self.state, Cache):
            what = f"{self.former.family} cannot forget the newest tokens of some rows"
            raise Error(what, fix="take a model with a cache of keys and values")
        self.state.forget(torch.tensor(counts, device=self.former.device))

    def take(self, row: int, other: Runner, room: int) -> None:
        """A row goes on from what the only row of another runner has read; its source has at most `room` tokens."""
        assert isinstance(self.state, Cache)
        assert isinstance(other.state, Cache)
        if self.former.pair:  # where the sources lie changes
            self.loosen()
        self.state.take(row, other.state, room)
        self.most = max(self.most, self.state.longest)

    @torch.inference_mode()
    def drop(self, row: int) -> None:
        """Forget all that a row has read; what has a memory forgets by itself."""
        if not isinstance(self.state, Cache):
            return
        for t in (self.state.lengths, self.state.reach):
            if t is not None:
                t[row] = 0

    @torch.inference_mode()
    def follow(self, parents: Sequence[int] | Tensor, level: bool = False) -> None:
        """Row i goes on from what row parents[i] has read; of encoder-decoders, both have the same source. Rows are
        `level` where each is as long as its parent: then nobody needs to look."""
        parents = torch.as_tensor(parents, device=self.former.device)
        if not isinstance(self.state, Cache):
            return self.state.follow(parents)
        if self.state.table is None:
            self.forget_steps()
        self.state.follow(parents, level)


def streams(former: Former) -> bool:
    """The model reads in two streams, of which the second guesses tokens that it does not see (XLNet)."""
    return hasattr(former.model.body, "blank")


def recordable(former: Former) -> bool:
    """Steps of this model can be recorded: it is on a GPU and has a cache of keys and values."""
    still = issubclass(former.state, Cache) and not isinstance(former.model.body, RecurrentPair)
    return still and former.device.type == "cuda"


@torch.inference_mode()
def renewed(former: Former, wide: tuple[Tensor, Tensor | None] | None) -> tuple[Tensor, Tensor | None] | None:
    """A filled-up output layer with the weights of now, where it lies."""
    for old, new in zip(wide or (), widened(former) or (), strict=True):
        if old is not None and new is not None:
            old.copy_(new)
    return wide


def widened(former: Former) -> tuple[Tensor, Tensor | None] | None:
    """The output layer with rows added up to a multiple of 64, where a GPU would be slow without (GPT-2's 50,257)."""
    out, tied = former.model.parts["lm"].out, getattr(former.model.body, "table", None)
    weight = None if type(out) is not Output else tied if out.weight is None else out.weight
    if weight is None or weight.shape[0] % 8 == 0:
        return None
    return cast(Output, out).filled(weight, -weight.shape[0] % 64)


def packed(rows: Sequence[Sequence[int]], device: torch.device) -> Batch:
    """Rows of different lengths, one document each."""
    starts = torch.tensor(np.cumsum([0, *map(len, rows)]), dtype=torch.int32, device=device)
    ids = torch.tensor([i for row in rows for i in row], dtype=torch.long, device=device)
    return Batch(ids, starts, max(map(len, rows)))
