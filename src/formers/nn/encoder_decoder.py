"""Encoder-decoders: two sides, joined by cross attention, or by a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from ..batch import Batch, Layout
from ..errors import Error
from .attention.context import AttentionContext, Capture
from .attention.kv_cache import KVCache
from .attention.masks import IndexFunction, causal
from .block import BlockStack
from .layers import Dropout, Embeddings
from .recurrent.alignment import AlignmentSource
from .recurrent.rnn import PackedSteps, RNNState

StackHeadMasks = Mapping[str, Tensor] | None
TokenPredictor = Callable[[Tensor], Tensor]  # hidden states (D, dim) → the next tokens (D,)


class TransformerStack(nn.Module):
    """One side: blocks, which may share a position bias, then a norm (if any)."""

    def __init__(
        self, blocks: BlockStack, norm: nn.Module | None = None, *, decoder: bool = False,
        bias: IndexFunction | None = None, dropout: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        self.blocks, self.norm, self.bias, self.dropout = blocks, norm, bias, Dropout(dropout)
        self.stack_name, self.mask = "decoder" if decoder else "encoder", causal if decoder else None

    def forward(
        self, batch: Batch, layout: Layout, embed: Embeddings, cross_context: AttentionContext | None = None,
        *, cache: KVCache | None = None, head_mask: Tensor | None = None, capture: Capture | None = None,
    ) -> Tensor:  # fmt: skip
        """(N,) → (N, dim); `cross_context` is that of the cross attention."""
        attn_context = AttentionContext.start_pass(
            layout, mask=self.mask, bias=self.bias, positions=batch.positions, cache=cache, head_mask=head_mask,
            capture=capture, stack_name=self.stack_name,
        )  # fmt: skip
        x = self.blocks(embed(batch, layout, attn_context.past_lengths), attn_context, cross_context)
        return self.dropout(x if self.norm is None else self.norm(x))


class EncoderDecoder(nn.Module):
    """An encoder and a decoder; either may be missing. `target` embeds the decoder's tokens, if `embed` does not."""

    def __init__(
        self, embed: Embeddings, encoder: TransformerStack | None, decoder: TransformerStack | None,
        target: Embeddings | None = None,
    ):  # fmt: skip
        super().__init__()
        self.embed, self.target, self.encoder, self.decoder = embed, target, encoder, decoder

    @property
    def embedding_table(self) -> Tensor:
        """The token embeddings that an output layer may be tied to."""
        return (self.target or self.embed).token_weight

    def forward(
        self, batch: Batch, *, cache: KVCache | None = None, head_mask: StackHeadMasks = None,
        capture: Capture | None = None,
    ) -> Tensor:  # fmt: skip
        """(N,) → (N, dim); the batch is the decoder's and its source the encoder's."""
        if self.decoder is None:
            return self.encode(batch, head_mask=head_mask, capture=capture)
        if self.encoder is None:
            return self.decode(batch, cache=cache, head_mask=head_mask, capture=capture)
        known = None if cache is None else cache.encoder_output
        if known is None:
            assert batch.source is not None
            known = self.encode(batch.source, head_mask=head_mask, capture=capture), batch.source.layout
        return self.decode(batch, *known, cache=cache, head_mask=head_mask, capture=capture)

    def encode(self, batch: Batch, *, head_mask: StackHeadMasks = None, capture: Capture | None = None) -> Tensor:
        """Source ids (S,) → (S, dim)"""
        assert self.encoder is not None
        mask = (head_mask or {}).get("encoder")
        return self.encoder(batch, batch.layout, self.embed, head_mask=mask, capture=capture)

    def decode(
        self, batch: Batch, encoder_output: Tensor | None = None, source: Layout | None = None, *,
        cache: KVCache | None = None, head_mask: StackHeadMasks = None, capture: Capture | None = None,
    ) -> Tensor:  # fmt: skip
        """Target ids (N,) and the encoder's output → (N, dim)"""
        layout, masks, cross_context = batch.layout, head_mask or {}, None
        if encoder_output is not None and source is not None:
            grouped = layout.merge_documents(layout.rows // source.rows)  # several rows may attend to one source
            cross_context = AttentionContext(
                grouped, source, encoder_output=encoder_output, cache=cache, head_mask=masks.get("cross"),
                capture=capture, stack_name="cross", ungrouped_layout=None if grouped is layout else layout,
            )  # fmt: skip
        assert self.decoder is not None
        embed, mask = self.target or self.embed, masks.get("decoder")
        x = self.decoder(batch, layout, embed, cross_context, cache=cache, head_mask=mask, capture=capture)
        if cache is not None:
            if encoder_output is not None and source is not None:
                cache.encoder_output = encoder_output, source
            cache.advance(layout)
        return x


class RecurrentDecoder(Protocol):
    """The decoder of a recurrent encoder-decoder, a module."""

    def build_initial_state(self, last: RNNState) -> RNNState:
        """Make the decoder's first state of the encoder's last."""

    def prepare_source(self, encoder_output: Tensor, layout: Layout) -> AlignmentSource | None:
        """Prepare what it attends to; None without attention."""

    def __call__(
        self, x: Tensor, steps: PackedSteps, source: AlignmentSource | None, state: RNNState,
        past_lengths: Tensor | None, capture: Capture | None, /,
    ) -> tuple[Tensor, RNNState]:  # fmt: skip
        """(N, width) → hidden states (N, dim), and the state after them"""


class RecurrentEncoderDecoder(nn.Module):
    """An encoder and a decoder that read token by token. `target` embeds the decoder's tokens, if `embed` does not.

    encoder(x, steps, capture) → its output and last state
    """

    def __init__(self, embed: Embeddings, target: Embeddings | None, encoder: nn.Module, decoder: RecurrentDecoder):
        super().__init__()
        self.embed, self.target, self.encoder, self.decoder = embed, target, encoder, decoder

    @property
    def embedding_table(self) -> Tensor:
        """The token embeddings that an output layer may be tied to."""
        return (self.target or self.embed).token_weight

    def forward(
        self, batch: Batch, *, cache: KVCache | None = None, capture: Capture | None = None,
        predict_token: TokenPredictor | None = None,
    ) -> Tensor:  # fmt: skip
        """(N,) → (N, dim); the batch is the decoder's and its source the encoder's. Where the batch says so, the
        decoder reads what `predict_token` makes of its previous output in place of the token."""
        if cache is not None and cache.encoder_output is not None:
            return self.decode(batch, *cache.encoder_output, cache=cache, capture=capture)
        assert batch.source is not None
        encoder_output, state = self.encode_with_state(batch.source, capture)
        if predict_token is not None:
            return self.decode_predicted(batch, encoder_output, batch.source.layout, state, predict_token)
        return self.decode(batch, encoder_output, batch.source.layout, state=state, cache=cache, capture=capture)

    def encode_with_state(self, batch: Batch, capture: Capture | None = None) -> tuple[Tensor, RNNState]:
        """Source ids (S,) → (S, width), and the state that the decoder begins with"""
        layout = batch.layout
        encoder_output, last = self.encoder(self.embed(batch, layout), PackedSteps(layout), capture)
        return encoder_output, self.decoder.build_initial_state(last)

    def encode(self, batch: Batch, *, cache: KVCache | None = None, capture: Capture | None = None) -> Tensor:
        """Source ids (S,) → (S, width); a cache keeps what the decoder needs of it."""
        encoder_output, state = self.encode_with_state(batch, capture)
        if cache is not None:
            cache.encoder_output, cache.recurrent_state = (encoder_output, batch.layout), state
        return encoder_output

    def decode(
        self, batch: Batch, encoder_output: Tensor, source: Layout, *, state: RNNState | None = None,
        cache: KVCache | None = None, capture: Capture | None = None,
    ) -> Tensor:  # fmt: skip
        """Target ids (N,), the encoder's output and the state to continue from (given, or in the cache) → (N, dim)"""
        layout = batch.layout
        past_lengths = None if cache is None else cache.start_batch(layout)
        if cache is not None and cache.recurrent_state is not None:
            state = cache.recurrent_state
        if state is None:
            what = "a recurrent decoder needs a state to begin with"
            raise Error(what, fix="encode with the same cache, or pass state")
        x, seen = (self.target or self.embed)(batch, layout), self.prepare_source(encoder_output, source, cache)
        hidden, state = self.decoder(x, PackedSteps(layout), seen, state, past_lengths, capture)
        if cache is not None:
            cache.encoder_output, cache.recurrent_state = (encoder_output, source), tuple(s.detach() for s in state)
            cache.advance(layout)
        return hidden

    def decode_predicted(
        self, batch: Batch, encoder_output: Tensor, source: Layout, state: RNNState, predict_token: TokenPredictor
    ) -> Tensor:
        """Target ids (N,) → (N, dim), token by token: where `batch.predicted_inputs` is True, the input is the token
        predicted from the previous output. All documents run as long as the longest, so that shapes are fixed."""
        layout, embed = batch.layout, self.target or self.embed
        attended = self.prepare_source(encoder_output, source, None)
        tokens, predicted = layout.unpack(batch.ids), layout.unpack(batch.predicted_inputs)  # (D, T)
        starts = torch.arange(layout.rows + 1, device=tokens.device, dtype=torch.int32)
        steps = PackedSteps(Layout(starts, 1, layout.rows))
        outputs: list[Tensor] = []
        for t in range(layout.longest):
            token = torch.where(predicted[:, t], predict_token(outputs[-1]), tokens[:, t]) if t else tokens[:, 0]
            x = embed(Batch(token, starts, 1), steps.layout)
            hidden, state = self.decoder(x, steps, attended, state, torch.full_like(starts[1:], t), None)
            outputs.append(hidden)
        return layout.pack(torch.stack(outputs, 1))

    def prepare_source(self, encoder_output: Tensor, layout: Layout, cache: KVCache | None) -> AlignmentSource | None:
        """Prepare the encoder's output for attention and cache it; None for a decoder without attention."""
        if cache is not None and cache[0].cross_kv is not None:
            return AlignmentSource(*cache[0].cross_kv, layout.lengths)
        source = self.decoder.prepare_source(encoder_output, layout)
        if cache is not None and source is not None:
            cache[0].cross_kv = source.keys, source.values
        return source
