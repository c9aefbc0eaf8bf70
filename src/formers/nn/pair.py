"""Encoder-decoders: two sides, joined by cross attention, or by a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..batch import Batch, Layout
from ..errors import Error
from .alignment import Source
from .block import Stack
from .cache import Cache
from .door import Sight
from .dropout import Dropout
from .embeddings import Embeddings
from .masks import Index, causal
from .probe import Probe
from .recurrent import State, Steps

HeadMasks = Mapping[str, Tensor] | None


class Side(nn.Module):
    """One side: blocks, which may share a position bias, then a norm (if any)."""

    def __init__(
        self,
        blocks: Stack,
        norm: nn.Module | None = None,
        *,
        decoder: bool = False,
        bias: Index | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.blocks, self.norm, self.bias, self.dropout = blocks, norm, bias, Dropout(dropout)
        self.kind, self.mask = "decoder" if decoder else "encoder", causal if decoder else None

    def forward(self, batch: Batch, layout: Layout, embed: Embeddings, view: Sight | None = None, **how: Any) -> Tensor:
        """(N,) → (N, dim); `view` is the sight of the cross attention."""
        sight = Sight(layout, mask=self.mask, bias=self.bias, kind=self.kind, positions=batch.positions, **how)
        x = self.blocks(embed(batch, layout, sight.past), sight, view)
        return self.dropout(x if self.norm is None else self.norm(x))


class Pair(nn.Module):
    """An encoder and a decoder; either may be missing. `target` embeds the decoder's tokens, if `embed` does not."""

    def __init__(self, embed: Embeddings, encoder: Side | None, decoder: Side | None, target: Embeddings | None = None):
        super().__init__()
        self.embed, self.target, self.encoder, self.decoder = embed, target, encoder, decoder

    @property
    def table(self) -> Tensor:
        """The token embeddings that an output layer may be tied to."""
        return (self.target or self.embed).token.weight

    def forward(
        self, batch: Batch, *, cache: Cache | None = None, heads: HeadMasks = None, probe: Probe | None = None
    ) -> Tensor:
        """(N,) → (N, dim); the batch is the decoder's and its source the encoder's."""
        if self.decoder is None:
            return self.encode(batch, heads=heads, probe=probe)
        if self.encoder is None:
            return self.decode(batch, cache=cache, heads=heads, probe=probe)
        known = None if cache is None else cache.memory
        if known is None:
            assert batch.source is not None
            known = self.encode(batch.source, heads=heads, probe=probe), batch.source.layout
        return self.decode(batch, *known, cache=cache, heads=heads, probe=probe)

    def encode(self, batch: Batch, *, heads: HeadMasks = None, probe: Probe | None = None) -> Tensor:
        """Source ids (S,) → memory (S, dim)"""
        assert self.encoder is not None
        return self.encoder(batch, batch.layout, self.embed, heads=(heads or {}).get("encoder"), probe=probe)

    def decode(
        self,
        batch: Batch,
        memory: Tensor | None = None,
        source: Layout | None = None,
        *,
        cache: Cache | None = None,
        heads: HeadMasks = None,
        probe: Probe | None = None,
    ) -> Tensor:
        """Target ids (N,) and the encoder's output → (N, dim)"""
        layout, masks, view = batch.layout, heads or {}, None
        if memory is not None and source is not None:
            crossed = masks.get("cross")
            near = layout.joined(layout.rows // source.rows)  # several rows may look at one source
            view = Sight(near, source, memory=memory, cache=cache, heads=crossed, probe=probe, kind="cross")
            view.single = None if near is layout else layout
        assert self.decoder is not None
        embed = self.target or self.embed
        x = self.decoder(batch, layout, embed, view, cache=cache, heads=masks.get("decoder"), probe=probe)
        if cache is not None:
            if memory is not None and source is not None:
                cache.memory = memory, source
            cache.advance(layout)
        return x


class RecurrentPair(nn.Module):
    """An encoder and a decoder that read token by token. `target` embeds the decoder's tokens, if `embed` does not.

    encoder(x, steps, probe) → memory and its last state; decoder.begin(last state) → the decoder's first state;
    decoder.source(memory, layout) → what it looks at; decoder(x, steps, source, state, past, probe) → hidden, state.
    """

    def __init__(self, embed: Embeddings, target: Embeddings | None, encoder: nn.Module, decoder: Any):
        super().__init__()
        self.embed, self.target, self.encoder, self.decoder = embed, target, encoder, decoder

    @property
    def table(self) -> Tensor:
        """The token embeddings that an output layer may be tied to."""
        return (self.target or self.embed).token.weight

    def forward(self, batch: Batch, *, cache: Cache | None = None, probe: Probe | None = None) -> Tensor:
        """(N,) → (N, dim); the batch is the decoder's and its source the encoder's."""
        if cache is not None and cache.memory is not None:
            return self.decode(batch, *cache.memory, cache=cache, probe=probe)
        assert batch.source is not None
        memory, state = self.read(batch.source, probe)
        return self.decode(batch, memory, batch.source.layout, state=state, cache=cache, probe=probe)

    def read(self, batch: Batch, probe: Probe | None = None) -> tuple[Tensor, State]:
        """Source ids (S,) → memory (S, width), and the state that the decoder begins with"""
        layout = batch.layout
        memory, last = self.encoder(self.embed(batch, layout), Steps(layout), probe)
        return memory, self.decoder.begin(last)

    def encode(self, batch: Batch, *, cache: Cache | None = None, probe: Probe | None = None) -> Tensor:
        """Source ids (S,) → memory (S, width); a cache keeps what the decoder needs of it."""
        memory, state = self.read(batch, probe)
        if cache is not None:
            cache.memory, cache.state = (memory, batch.layout), state
        return memory

    def decode(
        self,
        batch: Batch,
        memory: Tensor,
        source: Layout,
        *,
        state: State | None = None,
        cache: Cache | None = None,
        probe: Probe | None = None,
    ) -> Tensor:
        """Target ids (N,) and what the encoder left: its memory, and the state to go on from (here or in the cache)"""
        layout = batch.layout
        past = None if cache is None else cache.begin(layout)
        if cache is not None and cache.state is not None:
            state = cache.state
        if state is None:
            raise Error(
                "a recurrent decoder needs a state to begin with", fix="encode with the same cache, or pass state"
            )
        x = (self.target or self.embed)(batch, layout)
        hidden, state = self.decoder(x, Steps(layout), self.look(memory, source, cache), state, past, probe)
        if cache is not None:
            cache.memory, cache.state = (memory, source), tuple(s.detach() for s in state)
            cache.advance(layout)
        return hidden

    def look(self, memory: Tensor, layout: Layout, cache: Cache | None) -> Source | None:
        """The memory ready to be looked at, which a cache keeps; None if the decoder does not look."""
        if cache is not None and cache[0].source is not None:
            return Source(*cache[0].source, layout.lengths)
        source = self.decoder.source(memory, layout)
        if cache is not None and source is not None:
            cache[0].source = source.keys, source.values
        return source
