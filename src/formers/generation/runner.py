"""A model with the state of several sequences: it reads the new tokens of each and scores the next ones."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..batch import Batch
from ..errors import Error
from ..former import Former
from ..nn.attention.kv_cache import KVCache
from ..nn.attention.segment_memory import SegmentMemory
from ..nn.capture import Capture
from ..nn.encoder_decoder import RecurrentEncoderDecoder
from ..nn.layers import OutputLayer
from .cuda_graph import CachedGraph, GraphedStep, make_graph_key, store_graph, take_graph


class Runner:
    """A model and its cache for `rows` sequences of up to `size` tokens.

    Of encoder-decoders, `sources` are what the encoder reads, each for `rows_per_source` rows in turn. On a GPU, steps
    of one token per row are captured as CUDA graphs.
    """

    def __init__(
        self,
        former: Former,
        rows: int,
        size: int,
        sources: Sequence[Sequence[int]] | None = None,
        rows_per_source: int = 1,
    ):
        records = can_capture_graph(former)
        self.former, self.cache_size = (
            former,
            -(-size // 64) * 64 if records else size,
        )  # few sizes are recorded, and reused
        if rows_per_source > 1 and isinstance(
            former.model.body, RecurrentEncoderDecoder
        ):  # it has a state for each row
            sources = None if sources is None else [row for row in sources for _ in range(rows_per_source)]
        self.source_batch = None if sources is None else Batch.from_rows(sources, former.device)
        self.graph_key = (
            make_graph_key(former.model, rows, self.cache_size) if records and not former.is_encoder_decoder else None
        )
        held = take_graph(former.model, self.graph_key)
        self.state = former.create_state(rows, self.cache_size) if held is None else held.state
        self.starts = torch.arange(rows + 1, dtype=torch.int32, device=former.device)
        self.is_two_stream = former.is_two_stream
        self.reread_tokens = 2 if self.is_two_stream else 1  # the newest tokens of a text that are read at each step
        self.live_rows: Sequence[int] | None = None
        self.padded_output = (
            None if held is None else refresh_padded_output(former, held.padded_output)
        )  # the output layer, filled up for many steps
        self.longest_row = 0  # no text is longer
        self.graphed_step = held.graphed_step if held is not None else GraphedStep() if records else None
        self.can_chain_steps = self.graphed_step is not None  # steps follow each other without a look at what they give

    def __del__(self) -> None:
        """Hand the captured graph on to the next runner of the same size."""
        key, recorded = getattr(self, "graph_key", None), getattr(self, "graphed_step", None)
        if key is not None and recorded is not None and not sys.is_finalizing():
            store_graph(self.former.model, CachedGraph(key, recorded, cast(KVCache, self.state), self.padded_output))

    @torch.inference_mode()
    def score_next(self, new_ids: Sequence[Sequence[int]], capture: Capture | None = None) -> Tensor:
        """Return the logits (rows, vocab) after these tokens, a list for each row; of an empty list, anything.

        Of two streams (XLNet), the query stream at one more place answers, which no other sees. Its states and those
        of the token before it are forgotten: that token is read again with its successor (two by two, as transformers
        does).
        """
        single = self.longest_row and not self.is_two_stream and capture is None and max(map(len, new_ids)) == 1
        if single and (self.graphed_step is not None or min(map(len, new_ids)) == 1):
            ids = torch.tensor([row[0] if row else 0 for row in new_ids], device=self.former.device)
            return self.step(ids, [len(row) for row in new_ids])
        self.longest_row += max(map(len, new_ids))
        if not self.is_two_stream:
            self.unfix_cache()
            batch = Batch.from_rows(new_ids, self.former.device).replace(source=self.source_batch)
            return self.run_forward(batch, batch.layout.get_last_slots(), capture)
        batch = Batch.from_rows([[*row, 0] for row in new_ids], self.former.device)
        ends = batch.layout.get_last_slots()
        order = torch.zeros_like(batch.ids).index_fill(0, ends, 1)
        found = self.run_forward(batch.replace(order=order, chosen=ends), ends, capture)
        assert isinstance(self.state, SegmentMemory)
        self.state.drop_newest(2)
        return found

    @torch.inference_mode()
    def score_every(self, fed: Sequence[int]) -> Tensor:
        """Return the logits (tokens, vocab) after each of these tokens of the only row."""
        self.longest_row += len(fed)
        self.unfix_cache()
        return self.run_forward(Batch.from_rows([fed], self.former.device).replace(source=self.source_batch))

    @torch.inference_mode()
    def step(self, ids: Tensor, live: Sequence[int] | None = None) -> Tensor:
        """Read one token (rows,) for each row and return the next logits; nothing leaves the device.

        On a GPU, rows with 0 in `live` are ignored. The next step may overwrite the result.
        """
        batch = Batch(ids, self.starts, 1, source=self.source_batch)
        self.longest_row += 1
        if self.graphed_step is None:
            return self.run_forward(batch)
        assert isinstance(self.state, KVCache)
        if self.longest_row > self.cache_size:  # rows may have advanced by different amounts
            self.longest_row = self.state.longest_row + 1
            if self.longest_row > self.cache_size:
                raise Error(
                    f"{self.longest_row} tokens do not fit into a cache of {self.cache_size}", fix="make a larger one"
                )
        if not self.state.is_static and self.state.lengths is not None:
            self.state.make_static()
            self.padded_output = self.padded_output or pad_output_layer(self.former)
        if self.state.active_rows is not None and live != self.live_rows:
            self.live_rows = live
            self.state.active_rows.copy_(torch.tensor(live or [1] * len(ids)))
        return self.graphed_step(lambda ids: self.run_forward(batch.replace(ids=ids)), ids, kept=batch)

    def run_forward(self, batch: Batch, ends: Tensor | None = None, capture: Capture | None = None) -> Tensor:
        """Run the model, and return the logits at slots `ends` (default: all)."""
        look = {} if capture is None else {"capture": capture}
        hidden = self.former.model(batch, **self.former.build_forward_args(self.state, None), **look)
        out: Any = self.former.model.parts["lm"].out
        with contextlib.nullcontext() if self.padded_output is None else out.use_padded_weights(self.padded_output):
            return self.former.model.logits(hidden if ends is None else hidden[ends], part="lm")

    def unfix_cache(self) -> None:
        """Leave the fixed-size form of the cache before rows advance by more than one token."""
        if isinstance(self.state, KVCache) and self.state.is_static:
            self.state.is_static, self.state.used_slots = False, self.state.longest_row
            self.reset_graph()

    def reset_graph(self) -> None:
        """Drop the captured graph, which no longer matches the cache."""
        self.graphed_step = None if self.graphed_step is None else GraphedStep()

    @torch.inference_mode()
    def forget_tokens(self, counts: Sequence[int]) -> None:
        """Drop the newest counts[i] tokens of each row i."""
        if not isinstance(self.state, KVCache):
            what = f"{self.former.family} cannot forget the newest tokens of some rows"
            raise Error(what, fix="take a model with a cache of keys and values")
        self.state.drop_newest(torch.tensor(counts, device=self.former.device))

    def adopt_row(self, row: int, other: Runner, room: int) -> None:
        """Copy the only row of another runner into a row; its source has at most `room` tokens."""
        assert isinstance(self.state, KVCache)
        assert isinstance(other.state, KVCache)
        if self.former.is_encoder_decoder:  # where the sources lie changes
            self.unfix_cache()
        self.state.copy_row_from(row, other.state, room)
        self.longest_row = max(self.longest_row, self.state.longest_row)

    @torch.inference_mode()
    def clear_row(self, row: int) -> None:
        """Clear a row of the KV cache; a segment memory needs no clearing."""
        if not isinstance(self.state, KVCache):
            return
        for t in (self.state.lengths, self.state.written_lengths):
            if t is not None:
                t[row] = 0

    @torch.inference_mode()
    def reorder_rows(self, parents: Sequence[int] | Tensor, equal_lengths: bool = False) -> None:
        """Make row i a copy of row parents[i]; in an encoder-decoder both have the same source.

        `equal_lengths` promises that each row is as long as its parent, which saves a host sync.
        """
        parents = torch.as_tensor(parents, device=self.former.device)
        if not isinstance(self.state, KVCache):
            return self.state.reorder_rows(parents)
        if self.state.slot_table is None:
            self.reset_graph()
        self.state.reorder_rows(parents, equal_lengths)


def can_capture_graph(former: Former) -> bool:
    """Return whether steps can be captured as CUDA graphs: the model is on a GPU and has a KV cache."""
    still = issubclass(former.state_class, KVCache) and not isinstance(former.model.body, RecurrentEncoderDecoder)
    return still and former.device.type == "cuda"


@torch.inference_mode()
def refresh_padded_output(
    former: Former, wide: tuple[Tensor, Tensor | None] | None
) -> tuple[Tensor, Tensor | None] | None:
    """Copy the current weights into a padded output layer, in place."""
    for old, new in zip(wide or (), pad_output_layer(former) or (), strict=True):
        if old is not None and new is not None:
            old.copy_(new)
    return wide


def pad_output_layer(former: Former) -> tuple[Tensor, Tensor | None] | None:
    """Pad the output layer to a multiple of 64 rows, where a GPU would be slow without (GPT-2's 50,257)."""
    out, tied = former.model.parts["lm"].out, getattr(former.model.body, "embedding_table", None)
    weight = None if type(out) is not OutputLayer else tied if out.weight is None else out.weight
    if weight is None or weight.shape[0] % 8 == 0:
        return None
    return cast(OutputLayer, out).pad_outputs(weight, -weight.shape[0] % 64)
