"""Decoding steps as one CUDA graph: its kernels are launched together, without the host."""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.attention.kv_cache import KVCache

StepFunction = Callable[..., Tensor]


class GraphedStep:
    """A step for one token of each row. The first `warm` ones run as usual, then one is recorded; what the graph gives
    is overwritten by the next step. A step that cannot be recorded goes on as usual, and says so once."""

    def __init__(self, warm: int = 1) -> None:
        self.warmup_left = warm
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, run: StepFunction, *given: Tensor, kept: Any = None) -> Tensor:
        """Return `run` of some tensors. `run` is not kept, as the graph may outlive it; `kept` is, because the graph
        reads its tensors."""
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

    def capture_graph(self, run: StepFunction, given: tuple[Tensor, ...], kept: Any) -> bool:
        """Capture a step without running it; returns whether that was possible."""
        self.static_inputs, self.kept_alive = [one.clone() for one in given], kept
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
                self.static_output = run(*self.static_inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # what is wrong with the step itself, the next one will say
            said = " ".join(str(error).split())[:150]
            warnings.warn(f"steps are not recorded, and slower for it: {said}", stacklevel=2)
            return False
        self.graph = graph
        return True


@dataclass
class CachedGraph:
    """A captured step with the tensors that it reads and writes, for the next runner of the same kind."""

    key: tuple[Any, ...]
    graphed_step: GraphedStep
    state: KVCache
    padded_output: tuple[Tensor, Tensor | None] | None


_cached_graphs: weakref.WeakKeyDictionary[nn.Module, CachedGraph] = (
    weakref.WeakKeyDictionary()
)  # one for each model, freed with it
_lock = threading.RLock()  # a runner may be freed, and hand over its step, while another is being made


def make_graph_key(model: nn.Module, rows: int, size: int) -> tuple[Any, ...]:
    """Return what a captured step depends on: sizes, the addresses of all weights, and how the model is run."""
    weights = itertools.chain(model.parameters(), model.buffers())
    places = tuple((w.data_ptr(), w.shape, w.dtype) for w in weights)
    how = model.training, torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return rows, size, how, places


def store_graph(model: nn.Module, held: CachedGraph) -> None:
    """Store a captured step in place of the last one, unless it needs much memory or belongs to one beam search."""
    layers = held.state.layers.values()
    tensors = [t for layer in layers for t in (layer.keys, layer.values) if t is not None]
    small = sum(t.nbytes for t in tensors) <= get_cache_limit(tensors[0].device) if tensors else True
    special = (
        held.state.slot_table is not None
        or held.state.encoder_output is not None
        or held.state.recurrent_state is not None
    )
    if held.graphed_step.graph is not None and not special and small:
        with _lock:
            _cached_graphs[model] = held


def get_cache_limit(device: torch.device) -> int:
    """Return the bytes of keys and values that are kept with a captured step."""
    there = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 2**36
    return min(2**30, there // 64)


def take_graph(model: nn.Module, key: tuple[Any, ...] | None) -> CachedGraph | None:
    """Take the stored step out if it is of this kind; another is dropped."""
    with _lock:
        found = _cached_graphs.pop(model, None)
    if found is None or found.key != key:
        return None
    found.state.clear_rows()
    return found
