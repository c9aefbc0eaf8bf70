"""A model with the state of several sequences: it reads the new tokens of each and scores the next ones. On a GPU a
step is one CUDA graph, whose kernels are launched together, without the host."""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..errors import Error
from ..former import Former
from ..nn.attention.context import Capture
from ..nn.attention.kv_cache import KVCache
from ..nn.attention.segment_memory import SegmentMemory
from ..nn.encoder_decoder import RecurrentEncoderDecoder
from ..nn.layers import OutputLayer, is_slow_width, pad_outputs

StepFunction = Callable[..., Tensor]
GraphKey = tuple[object, ...]
PaddedOutput = tuple[Tensor, Tensor | None]  # weight and bias of an output layer


class Runner:
    """A model and its cache for `rows` sequences of up to `size` tokens. Of encoder-decoders, `sources` are what the
    encoder reads, each for `rows_per_source` rows in turn. On a GPU, steps of one token per row are captured as CUDA
    graphs."""

    graph_key: GraphKey | None = None
    graphed_step: GraphedDecodeStep | None = None

    def __init__(
        self, former: Former, rows: int, size: int, sources: Sequence[Sequence[int]] | None = None,
        rows_per_source: int = 1,
    ):  # fmt: skip
        can_capture = can_capture_graph(former)
        self.former, self.cache_size = former, size
        if can_capture:
            self.cache_size = -(-size // 64) * 64  # few sizes are captured, and reused
            if not former.is_encoder_decoder:
                self.graph_key = make_graph_key(former.model, rows, self.cache_size)
        if sources is not None and isinstance(former.model.body, RecurrentEncoderDecoder):  # a state for each row
            sources = [row for row in sources for _ in range(rows_per_source)]
        self.source_batch = None if sources is None else Batch.from_rows(sources, former.device)
        self.starts = torch.arange(rows + 1, dtype=torch.int32, device=former.device)
        self.is_two_stream = former.is_two_stream
        self.reread_tokens = 2 if self.is_two_stream else 1  # the newest tokens of a text that are read at each step
        self.live_rows: Sequence[int] | None = None
        self.longest_row = 0  # no text is longer
        cached = take_graph(former.model, self.graph_key)
        self.state = former.create_state(rows, self.cache_size) if cached is None else cached.state
        # The output layer, filled up for many steps.
        self.padded_output = None if cached is None else refresh_padded_output(former, cached.padded_output)
        self.graphed_step = cached.graphed_step if cached is not None else GraphedDecodeStep() if can_capture else None
        self.can_chain_steps = can_capture  # steps can follow each other without a host sync

    def __del__(self) -> None:
        """Keep the captured graph for the next runner of the same size."""
        if self.graph_key is None or self.graphed_step is None or sys.is_finalizing():
            return
        cached = CachedGraph(self.graph_key, self.graphed_step, cast(KVCache, self.state), self.padded_output)
        store_graph(self.former.model, cached)

    @torch.inference_mode()
    def score_next(self, new_ids: Sequence[Sequence[int]], capture: Capture | None = None) -> Tensor:
        """Return the logits (rows, vocab) after these tokens, a list for each row; of an empty list, undefined.

        Of two streams (XLNet), the query stream at one more place answers, which no other sees. Its states and those
        of the token before it are forgotten: that token is read again with its successor (two by two, as transformers
        does)."""
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
        logits = self.run_forward(batch.replace(order=order, chosen=ends), ends, capture)
        assert isinstance(self.state, SegmentMemory)
        self.state.drop_newest(2)
        return logits

    @torch.inference_mode()
    def score_every(self, fed: Sequence[int]) -> Tensor:
        """Return the logits (tokens, vocab) after each of these tokens of the only row."""
        self.longest_row += len(fed)
        self.unfix_cache()
        return self.run_forward(Batch.from_rows([fed], self.former.device).replace(source=self.source_batch))

    @torch.inference_mode()
    def step(self, ids: Tensor, live: Sequence[int] | None = None) -> Tensor:
        """Read one token (rows,) for each row and return the next logits; nothing leaves the device. On a GPU, rows
        with 0 in `live` are ignored. The next step may overwrite the result."""
        batch = Batch(ids, self.starts, 1, source=self.source_batch)
        self.longest_row += 1
        if self.graphed_step is None:
            return self.run_forward(batch)
        assert isinstance(self.state, KVCache)
        if self.longest_row > self.cache_size:  # rows may have advanced by different amounts
            self.longest_row = self.state.longest_row + 1
            if self.longest_row > self.cache_size:
                what = f"{self.longest_row} tokens do not fit into a cache of {self.cache_size}"
                raise Error(what, fix="make a larger one")
        if not self.state.is_static and self.state.lengths is not None:
            self.state.make_static()
            self.live_rows = None  # all rows are active again
            self.padded_output = self.padded_output or pad_output_layer(self.former)
        if self.state.active_rows is not None and live != self.live_rows:
            self.live_rows = live
            self.state.active_rows.copy_(torch.tensor(live or [1] * len(ids)))
        return self.graphed_step(lambda ids: self.run_forward(batch.replace(ids=ids)), ids, kept=batch)

    def run_forward(self, batch: Batch, ends: Tensor | None = None, capture: Capture | None = None) -> Tensor:
        """Run the model, and return the logits at slots `ends` (default: all)."""
        arguments = self.former.build_forward_args(self.state, None)
        hidden = self.former.model(batch, **arguments, **({} if capture is None else {"capture": capture}))
        hidden = hidden if ends is None else hidden[ends]
        if self.padded_output is None:
            return self.former.model.logits(hidden, part="lm")
        with cast(OutputLayer, self.former.model.parts["lm"].out).use_padded_weights(self.padded_output):
            return self.former.model.logits(hidden, part="lm")

    def unfix_cache(self) -> None:
        """Leave the fixed-size form of the cache before rows advance by more than one token."""
        if isinstance(self.state, KVCache) and self.state.is_static:
            self.state.is_static, self.state.used_slots = False, self.state.longest_row
            self.reset_graph()

    def reset_graph(self) -> None:
        """Drop the captured graph, which no longer matches the cache."""
        self.graphed_step = None if self.graphed_step is None else GraphedDecodeStep()

    @torch.inference_mode()
    def forget_tokens(self, counts: Sequence[int]) -> None:
        """Drop the newest counts[i] tokens of each row i."""
        if not isinstance(self.state, KVCache):
            what = f"{self.former.family} cannot drop the newest tokens of some rows"
            raise Error(what, fix="take a model with a cache of keys and values")
        self.state.drop_newest(torch.tensor(counts, device=self.former.device))

    def limit_slots(self, longest: int) -> None:
        """Set the bound on the tokens of a row to `longest`, so that attention reads no more slots: the cache's own
        bound grows with every step, even when the longest rows have ended."""
        if isinstance(self.state, KVCache) and not self.state.is_static:
            self.state.used_slots = min(self.state.used_slots, longest)

    def adopt_row(self, row: int, other: Runner, other_row: int = 0) -> None:
        """Copy a row of another runner into a row; of an encoder-decoder it is the only one."""
        assert isinstance(self.state, KVCache)
        assert isinstance(other.state, KVCache)
        if self.former.is_encoder_decoder:  # where the sources lie changes
            self.unfix_cache()
        self.state.copy_row_from(row, other.state, other_row)
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
        """Make row i a copy of row parents[i]; in an encoder-decoder both have the same source. `equal_lengths`
        promises that each row is as long as its parent, which saves a host sync."""
        parents = torch.as_tensor(parents, device=self.former.device)
        if not isinstance(self.state, KVCache):
            return self.state.reorder_rows(parents)
        if self.state.slot_table is None:
            self.reset_graph()
        self.state.reorder_rows(parents, equal_lengths)


def can_capture_graph(former: Former) -> bool:
    """Return whether steps can be captured as CUDA graphs: the model is on a GPU and has a KV cache."""
    has_cache = issubclass(former.state_class, KVCache) and not isinstance(former.model.body, RecurrentEncoderDecoder)
    return has_cache and former.device.type == "cuda"


@torch.inference_mode()
def refresh_padded_output(former: Former, wide: PaddedOutput | None) -> PaddedOutput | None:
    """Copy the current weights into a padded output layer, in place."""
    for old, new in zip(wide or (), pad_output_layer(former) or (), strict=True):
        if old is not None and new is not None:
            old.copy_(new)
    return wide


def pad_output_layer(former: Former) -> PaddedOutput | None:
    """Pad the output layer, where a GPU would be slow without."""
    out = former.model.parts["lm"].out
    if type(out) is not OutputLayer:
        return None
    weight = former.model.body.embedding_table if out.weight is None else out.weight
    return pad_outputs(weight, out.bias) if is_slow_width(weight.shape[0]) else None


class GraphedDecodeStep:
    """A step for one token of each row. The first `warm` ones run as usual, then one is captured; the next step
    overwrites the output. A step that cannot be captured runs as usual, with one warning."""

    def __init__(self, warm: int = 1) -> None:
        self.warmup_left = warm
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, run: StepFunction, *given: Tensor, kept: object = None) -> Tensor:
        """Return `run(*given)`. The graph may outlive `run`, which is not kept; `kept` holds tensors that it reads."""
        if self.graph is None and self.warmup_left:
            self.warmup_left -= 1
            return run(*given)
        if self.graph is None and not self.capture_graph(run, given, kept):
            self.warmup_left = 2**62
            return run(*given)
        assert self.graph is not None
        for own, new in zip(self.static_inputs, given, strict=True):
            own.copy_(new)
        self.graph.replay()
        return self.static_output

    def capture_graph(self, run: StepFunction, given: tuple[Tensor, ...], kept: object) -> bool:
        """Capture a step without running it; returns whether that was possible."""
        self.static_inputs, self.kept_alive = [one.clone() for one in given], kept
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
                self.static_output = run(*self.static_inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # what is wrong with the step itself, the next one will say
            message = " ".join(str(error).split())[:150]
            warnings.warn(f"decoding steps run without a CUDA graph, slower: {message}", stacklevel=2)
            return False
        self.graph = graph
        return True


@dataclass
class CachedGraph:
    """A captured step with the tensors that it reads and writes, for the next runner of the same kind."""

    key: GraphKey
    graphed_step: GraphedDecodeStep
    state: KVCache
    padded_output: PaddedOutput | None


# One for each model, freed with it.
_cached_graphs: weakref.WeakKeyDictionary[nn.Module, CachedGraph] = weakref.WeakKeyDictionary()
_lock = threading.RLock()  # a runner may be freed, and hand over its step, while another is being made


def make_graph_key(model: nn.Module, rows: int, size: int) -> GraphKey:
    """Return what a captured step depends on: sizes, the addresses of all weights, and how the model is run."""
    weights = itertools.chain(model.parameters(), model.buffers())
    places = tuple((w.data_ptr(), w.shape, w.dtype) for w in weights)
    mode = model.training, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return rows, size, mode, places


def store_graph(model: nn.Module, cached: CachedGraph) -> None:
    """Store a captured step in place of the last one, unless it needs much memory or belongs to one beam search."""
    state = cached.state
    tensors = [t for layer in state.layers.values() for t in (layer.keys, layer.values) if t is not None]
    limit = 2**30
    if tensors and tensors[0].device.type == "cuda":
        limit = min(limit, torch.cuda.get_device_properties(tensors[0].device).total_memory // 64)
    is_special = any(x is not None for x in (state.slot_table, state.encoder_output, state.recurrent_state))
    if cached.graphed_step.graph is not None and not is_special and sum(t.nbytes for t in tensors) <= limit:
        with _lock:
            _cached_graphs[model] = cached


def take_graph(model: nn.Module, key: GraphKey | None) -> CachedGraph | None:
    """Take the stored step out if it is of this kind; another is dropped."""
    with _lock:
        graphs = _cached_graphs.pop(model, None)
    if graphs is None or graphs.key != key:
        return None
    graphs.state.clear_rows()
    return graphs
