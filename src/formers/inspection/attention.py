"""Attention of a text: weights of every side, layer and head, computed beside the kernel that makes the output, norms
of what they carry, rollout over layers, and one head's scores dimension by dimension.

L layers, H heads, Q queries, K keys (of a memory first, M of them), D numbers of a head.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import format_value
from ..errors import Error, NonFinite
from ..former import Former
from ..nn.attention.context import Capture, HeadVectors
from ..nn.encoder_decoder import RecurrentEncoderDecoder
from ..nn.head_pruning import find_attentions
from .recording import QUERY_STREAM, Recording, is_all_finite, record_pass
from .sides import Side, TextInputs, encode_inputs

MAX_SHOWN = 12  # pieces that a repr names
ALIGNMENT = "alignment"  # a recurrent decoder's attention over its source


@dataclass(frozen=True)
class NeuronView:
    """Queries (Q, D) and keys (K, D) of one head; a score is scale · Σ q · k, plus what positions add."""

    layer: int
    head: int
    queries: Tensor
    keys: Tensor
    scale: float


@dataclass(frozen=True)
class AttentionMap:
    """One kind of attention: the sides of its queries and keys, and the weights (H, Q, K) of all heads, layer by layer.

    A pruned head has zeros. The first `memory` keys are earlier tokens. What is computed of the weights goes layer by
    layer: of a long text, all layers at once would not fit a cache.
    """

    queries: str
    keys: str
    layers: tuple[Tensor, ...]
    value_norms: Tensor | None = None  # (L, H, K) lengths of the values after the output projection
    vectors: tuple[HeadVectors, ...] = ()  # of each layer, the heads that are left
    kept_heads: tuple[tuple[int, ...], ...] = ()  # of each layer
    memory: int = 0

    @functools.cached_property
    def weights(self) -> Tensor:
        """The weights (L, H, Q, K) of all layers in one tensor."""
        return torch.stack(self.layers)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The numbers of layers, heads, queries and keys."""
        heads, queries, keys = self.layers[0].shape
        return len(self.layers), heads, queries, keys

    @property
    def norms(self) -> Tensor | None:
        """Norm-weighted attention (L, H, Q, K): ||weight · value · output projection|| (Kobayashi et al. 2020)."""
        return None if self.value_norms is None else self.weights * self.value_norms[:, :, None]

    @property
    def rollout(self) -> Tensor | None:
        """Attention followed down to the first layer (L, Q, K), half of each step for the residual connection (Abnar &
        Zuidema 2020, arXiv:2005.00928); None between two sides, and with a memory."""
        if self.queries != self.keys or self.memory:
            return None
        own = torch.eye(self.shape[-1], dtype=self.layers[0].dtype)
        total, layers = own, []
        for layer in self.layers:
            weights = layer.mean(0)
            step = (weights + own) / (weights + own).sum(-1, keepdim=True).clamp(min=1e-12)
            total = step @ total
            layers.append(total)
        return torch.stack(layers)

    @property
    def entropy(self) -> Tensor:
        """Mean entropy (L, H) of a query's weights, in bits: 0 for one key, log₂ K for all alike."""
        bits = [torch.special.entr(layer.float()).sum(-1).mean(-1) for layer in self.layers]
        return torch.stack(bits) / math.log(2)

    @property
    def distance(self) -> Tensor | None:
        """Mean distance (L, H) in tokens between a query and what it reads; None between two sides."""
        if self.queries != self.keys:
            return None
        query = torch.arange(self.shape[2])[:, None] + self.memory
        steps = (query - torch.arange(self.shape[3])).abs().float().flatten()
        return torch.stack([layer.float().flatten(1) @ steps for layer in self.layers]) / self.shape[2]

    def get_neurons(self, layer: int, head: int) -> NeuronView:
        """Return the queries and keys of one head."""
        self.check_head(layer, head)
        if not self.vectors:
            raise Error("this attention has no queries and keys by dimension", fix="look at a Transformer")
        if head not in self.kept_heads[layer]:
            raise Error(f"head {head} of layer {layer} was pruned", fix=f"it has {list(self.kept_heads[layer])}")
        vectors, at = self.vectors[layer], self.kept_heads[layer].index(head)
        return NeuronView(layer, head, vectors.queries[0, at].float(), vectors.keys[0, at].float(), vectors.scale)

    def check_head(self, layer: int, head: int) -> None:
        """Refuse a layer or a head that is not there; both count from 0."""
        for name, value, count in (("layer", layer, self.shape[0]), ("head", head, self.shape[1])):
            if type(value) is not int or not 0 <= value < count:
                raise Error(f"there is no {name} {format_value(value)}", fix=f"choose 0 to {count - 1}")


@dataclass(frozen=True, repr=False)
class Attention:
    """The sides of a text and its attention by kind: encoder, decoder, cross; alignment; XLNet's content and query."""

    sides: dict[str, Side]
    maps: dict[str, AttentionMap]

    @property
    def tokens(self) -> list[str]:
        """The pieces of the first kind's queries."""
        first = next(iter(self.maps.values()))
        return [token.piece for token in self.sides[first.queries].tokens]

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights (L, H, Q, K) by kind."""
        return {kind: one.weights for kind, one in self.maps.items()}

    def __repr__(self) -> str:
        """Describe the pieces and the shapes of the weights in one line."""
        some = " ".join(self.tokens[:MAX_SHOWN]) + (" …" if len(self.tokens) > MAX_SHOWN else "")
        tables = ", ".join(f"weights[{kind!r}] {tuple(table.shape)}" for kind, table in self.weights.items())
        return f"Attention({len(self.tokens)} pieces: {some}; {tables})"


def attention(former: Former, text: str, second: str | None = None, before: str | None = None) -> Attention:
    """Compute the attention weights of a text in every layer and head, on all sides.

    `second` is the second text of a pair, or an encoder-decoder's target, which it writes itself if there is none;
    `before` is what a model with a memory has read earlier. Weights show where a layer reads from, and do not explain
    why the model answers as it does (Jain & Wallace 2019, Wiegreffe & Pinter 2019).
    """
    inputs = encode_inputs(former, text, second, before)
    maps = {} if inputs.batch is None else read_attention(former, inputs, record_attention(former, inputs))
    if not maps:
        raise Error(f"{former.family} has no attention within a text", fix="look at another member of the family")
    return Attention(inputs.sides, maps)


def record_attention(former: Former, inputs: TextInputs) -> Recording:
    """Record a pass with its attention; of XLNet, both streams, the second from left to right."""
    recording = record_pass(former, inputs, with_hidden=True, with_attention=True, with_vectors=True)
    if former.is_two_stream and former.head == "lm":
        order = torch.arange(inputs.get_batch().ids.shape[0], device=former.device)
        second = record_pass(former, inputs, order, with_attention=True, with_vectors=True).capture
        recording.capture.attention_weights[QUERY_STREAM] = second.attention_weights[QUERY_STREAM]
        recording.capture.head_vectors[QUERY_STREAM] = second.head_vectors[QUERY_STREAM]
    return recording


def read_attention(former: Former, inputs: TextInputs, recording: Recording) -> dict[str, AttentionMap]:
    """Read the attention of a recorded pass, by kind; families without attention have none."""
    capture, is_recurrent = recording.capture, isinstance(former.model.body, RecurrentEncoderDecoder)
    memory = len(inputs.sides["text"].memory) if "text" in inputs.sides else 0
    maps = {}
    for stack in capture.attention_weights:
        sides = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}
        queries, keys = sides[stack] if "source" in inputs.sides else ("text", "text")
        kind = ALIGNMENT if is_recurrent else stack
        maps[kind] = build_map(former, capture, stack, queries, keys, memory)
    return maps


def build_map(
    former: Former, capture: Capture, stack: str, queries: str, keys: str, memory: int
) -> AttentionMap:  # fmt: skip
    """Stack the layers of one kind of attention; heads that were pruned become rows of zeros."""
    known = find_attentions(former.model.body)
    layers, vectors = capture.attention_weights[stack], tuple(capture.head_vectors.get(stack, ()))
    modules = [known.get((stack, i)) or known.get(("decoder", i)) for i in range(len(layers))]
    total = max([weights.shape[1] for weights in layers] + [m[1].original_heads for m in modules if m is not None])
    kept = tuple(
        tuple(range(total)) if module is None or module[1].kept_heads is None else module[1].kept_heads
        for module in modules
    )
    weights = tuple(spread_heads(w[0], heads, total) for w, heads in zip(layers, kept, strict=True))
    if not all(is_all_finite(one) for one in weights):
        raise NonFinite("attention weights")
    value_norms = [one.value_norms[0] for one in vectors if one.value_norms is not None]
    norms = None
    if value_norms and len(value_norms) == len(layers):
        norms = torch.stack([spread_heads(x, heads, total) for x, heads in zip(value_norms, kept, strict=True)])
    return AttentionMap(queries, keys, weights, norms, vectors, kept, memory)


def spread_heads(x: Tensor, heads: tuple[int, ...], total: int) -> Tensor:
    """(heads left, …) → (total, …) on the host, zeros for heads that were pruned."""
    x = x.to(torch.promote_types(x.dtype, torch.float32)).cpu()
    if len(heads) == total == len(x):
        return x
    full = x.new_zeros(total, *x.shape[1:])
    full[list(heads)] = x
    return full
