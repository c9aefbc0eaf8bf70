"""GNMT (Wu et al. 2016, arXiv:1609.08144)

Parent  seq2seq (Bahdanau et al. 2015)
New     1. eight LSTM layers on either side, with residual connections from the third on   2. only the lowest layer of
        the encoder reads both ways   3. attention asks with the lowest decoder layer's previous output, so that the
        other layers need not wait for it; its context goes to every decoder layer   4. word pieces   5. a beam search
        with a length penalty and a coverage penalty (generation/penalties.py)
Shapes  source ids (S,) → memory (S, dim); target ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: the decoder starts from zeros (the paper does not say); weights start normal, not uniform,
        with the same variance; no clipping for 8-bit inference
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Layout
from ..config import positive
from ..errors import Error
from ..family import Family, Head
from ..nn.alignment import Additive, Alignment, Source
from ..nn.pair import RecurrentPair
from ..nn.probe import Probe
from ..nn.recurrent import Layers, Recurrent, State, Steps, walk
from . import seq2seq

PLAIN = 2  # the lowest layers, which have no residual connection


@dataclass(frozen=True, kw_only=True)
class GNMTConfig(seq2seq.PairConfig):
    """GNMT's sizes and rates; the defaults are the paper's."""

    vocab: int = 32000
    dim: int = 1024
    layers: int = 8
    decoder_layers: int | None = None  # None: as the encoder
    dropout: float = 0.2
    init: float = 0.04 / 3**0.5  # the deviation of ± 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "layers", "decoder_layers")
        if self.layers < 2:
            raise Error("an encoder of 1 layer has a memory of two directions", fix="take 2 layers or more")

    @property
    def depth(self) -> int:
        """The number of the decoder's layers."""
        return self.layers if self.decoder_layers is None else self.decoder_layers


class Encoder(nn.Module):
    """A layer of both directions, then layers of one."""

    def __init__(self, c: GNMTConfig):
        super().__init__()
        layers = [Recurrent("lstm", c.dim, c.dim, both=True)]
        layers += [Recurrent("lstm", c.dim * (2 if i == 1 else 1), c.dim) for i in range(1, c.layers)]
        self.layers = Layers(layers, c.dropout, PLAIN)

    def forward(self, x: Tensor, steps: Steps, probe: Probe | None = None) -> tuple[Tensor, State]:
        """(S, dim) → memory (S, dim), and the last state"""
        return self.layers(x, steps, probe=probe)


class Decoder(nn.Module):
    """The lowest layer goes step by step with the attention, the others then read the whole text at once."""

    def __init__(self, c: GNMTConfig):
        super().__init__()
        self.bottom = Recurrent("lstm", 2 * c.dim, c.dim)
        self.layers = Layers(
            (Recurrent("lstm", 2 * c.dim, c.dim) for _ in range(1, c.depth)), c.dropout, residual=PLAIN - 1
        )
        self.align, self.dropout, self.depth = Alignment(Additive(c.dim, c.dim)), nn.Dropout(c.dropout), c.depth

    def begin(self, last: State) -> State:
        """Zeros: two of each layer."""
        return (last[-1].new_zeros(last[-1].shape),) * (2 * self.depth)

    def source(self, memory: Tensor, layout: Layout) -> Source:
        """The memory ready to be looked at."""
        return self.align.source(memory, layout)

    def forward(
        self, x: Tensor, steps: Steps, source: Source, state: State, past: Tensor | None, probe: Probe | None
    ) -> tuple[Tensor, State]:
        """(N, dim) → (N, dim), and the state after each document's last token"""
        look = self.align.by_step(source, steps, past)

        def step(t: int, x: Tensor, state: State) -> tuple[State, State]:
            context, weights = look(t, state[0])  # with the lowest layer's previous output
            (y,), new = self.bottom.once(torch.cat((x, context), 1), state)
            return (y, context, weights), new

        (y, context, weights), low = walk(steps, x, state[:2], step)
        if probe is not None:
            probe.state("decoder", x)
            if probe.attention:
                probe.weight("cross", steps.layout.unpack(weights)[:, None])
        y, high = self.layers(
            self.dropout(y) if len(self.layers) else y, steps, state[2:], beside=context, probe=probe, kind="decoder"
        )
        return y, (*low, *high)


class GNMT(RecurrentPair):
    """A deep encoder and decoder of LSTMs with attention between their lowest layers."""

    def __init__(self, config: GNMTConfig):
        super().__init__(*seq2seq.tables(config, config.dim), Encoder(config), Decoder(config))


def heads(c: GNMTConfig) -> dict[str, dict[str, Head]]:
    """The output layer."""
    return {"none": {}, "lm": {"lm": Head(out="vocab")}}


PRESETS: dict[str, dict[str, Any]] = {
    "gnmt": {},
    "gnmt-4": {"layers": 4},
    "gnmt-mini": {"vocab": 8192, "dim": 128, "layers": 3, "dropout": 0.1, "shared": True, "tied": True},
}

FAMILY = Family(
    GNMTConfig, GNMT, heads, pretraining="lm", counted="lm", init=seq2seq.init, presets=PRESETS,
    tokenizer="wordpiece", objective="seq2seq",
    no_export="keep the formers directory; formers pretrain transformer trains a translator that exports as Marian",
)  # fmt: skip
