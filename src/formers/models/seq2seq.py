"""Sequence to sequence (Sutskever et al. 2014, arXiv:1409.3215; Cho et al. 2014, arXiv:1406.1078)

Parent  recurrence (Elman 1990; Hochreiter & Schmidhuber 1997)
New     1. one network reads a text into a state of fixed size, another writes a text out of it   2. Cho: the GRU; that
        state is also read at every step (`feed`)   3. Bahdanau et al. 2015: additive attention with the previous state
        over a bidirectional encoder; the context joins what the decoder reads and its output   4. Luong et al. 2015:
        dot, general, concat and local attention with the current state; input feeding (`feed`)
Shapes  source ids (S,) → memory (S, dim or 2·dim); target ids (N,) → hidden (N, dim or readout) → logits (N, vocab)
Differs from the reference: torch's GRU resets after the product with the state, Cho's before it; weights start normal,
        not uniform, with the same variance; the output of Bahdanau reads the new state (his eq. 4; A.2.2 has the old)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..batch import Layout
from ..config import positive, probability
from ..errors import Error
from ..family import Family, Head
from ..nn.alignment import Alignment, Local, Score, Source, score
from ..nn.embeddings import Embeddings
from ..nn.pair import RecurrentPair
from ..nn.probe import Probe
from ..nn.recurrent import KERNELS, Kind, Layers, Recurrent, State, Steps, walk


@dataclass(frozen=True, kw_only=True)
class PairConfig:
    """What every recurrent encoder-decoder has."""

    vocab: int = 30000
    target_vocab: int | None = None  # None: as the source's
    shared: bool = False  # both sides have the same token embeddings
    dim: int = 1000
    dropout: float = 0.0
    init: float = 0.05
    tied: bool = False
    pad: int | None = 0
    bos: int | None = 1
    eos: int | tuple[int, ...] | None = 2
    start: int | None = 1  # the decoder's first input

    def __post_init__(self) -> None:
        positive(self, "vocab", "target_vocab", "dim")
        positive(self, "init", least=0)
        probability(self, "dropout")
        if self.shared and self.target_vocab not in (None, self.vocab):
            what = f"sides of {self.vocab} and {self.target_vocab} tokens cannot share their embeddings"
            raise Error(what, fix="set shared to false")


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(PairConfig):
    """Sizes, cell and attention; the defaults are a single LSTM on either side."""

    embed: int = 500
    layers: int = 1
    cell: Kind = "lstm"
    bidirectional: bool = False  # the encoder
    reverse: bool = False  # the encoder reads the source from its end (Sutskever)
    attention: Literal["none", "additive", "dot", "general", "concat", "local"] = "none"
    score: Score = "general"  # of local attention,
    predict: bool = True  # which predicts its place (local-p), or takes the target's (local-m),
    window: int = 10  # and looks so many words to either side
    feed: bool = (
        False  # what was looked up is read at the next step (Luong); without attention: the fixed context (Cho)
    )
    readout: int | None = None  # the width of the maxout layer of Bahdanau and Cho; None: as the embeddings

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "embed", "layers", "window", "readout")
        if "dot" in (self.attention, self.score if self.attention == "local" else "") and self.bidirectional:
            what = f"states of {self.dim} and a memory of {2 * self.dim} have no dot product"
            raise Error(what, fix="take general, or an encoder of one direction")
        if self.attention == "additive" and self.feed:
            raise Error("additive attention always feeds its context", fix="leave feed out")
        if self.tied and self.out != self.embed:
            what = f"an output of {self.out} numbers cannot be tied to embeddings of {self.embed}"
            raise Error(what, fix=f"set embed to {self.out}, or tied to false")

    @property
    def memory(self) -> int:
        """The width of the encoder's output."""
        return self.dim * (2 if self.bidirectional else 1)

    @property
    def deep(self) -> bool:
        """State, embedding and context meet in a maxout layer before the output (Cho, Bahdanau)."""
        return self.attention == "additive" or (self.attention == "none" and self.feed)

    @property
    def out(self) -> int:
        """The width of what the output layer reads."""
        return (self.readout or self.embed) if self.deep else self.dim


class Encoder(nn.Module):
    """Recurrent layers, in one or both directions."""

    def __init__(self, c: Seq2SeqConfig):
        super().__init__()
        widths = [c.embed, *[c.memory] * (c.layers - 1)]
        self.layers = Layers((Recurrent(c.cell, w, c.dim, both=c.bidirectional) for w in widths), c.dropout)
        self.reverse = c.reverse

    def forward(self, x: Tensor, steps: Steps, probe: Probe | None = None) -> tuple[Tensor, State]:
        """(S, embed) → memory (S, dim or 2·dim), and the last state"""
        if not self.reverse:
            return self.layers(x, steps, probe=probe)
        seen = Probe() if probe is None else Probe(hidden=probe.hidden)
        y, last = self.layers(steps.mirror(x), steps, probe=seen)
        if probe is not None:
            for state in seen.states.get("encoder", ()):
                probe.state("encoder", steps.mirror(state))
        return steps.mirror(y), last


class Decoder(nn.Module):
    """Recurrent layers that go on from the encoder's state, and the attention between. State: that of the layers, and
    one more tensor with `feed`: s̃ of Luong's input feeding, or Cho's context."""

    def __init__(self, c: Seq2SeqConfig):
        super().__init__()
        self.kind, self.feed, self.dim, self.parts = c.attention, c.feed, c.dim, KERNELS[c.cell][3]
        extra = c.memory if c.attention == "additive" else c.dim if c.feed else 0
        widths = [c.embed + extra, *[c.dim] * (c.layers - 1)]
        self.layers = Layers((Recurrent(c.cell, w, c.dim) for w in widths), c.dropout)
        self.context = nn.Linear(c.memory, c.dim) if self.cho else None  # c = tanh(V h)
        local = Local(c.dim, c.window, predict=c.predict) if c.attention == "local" else None
        kind = c.score if c.attention == "local" else c.attention
        self.align = None if kind == "none" else Alignment(score(kind, c.dim, c.memory), local)
        if c.deep:
            self.readout: nn.Module | None = nn.Linear(c.dim + c.embed + extra, 2 * c.out)
        else:
            self.readout = None if self.align is None else nn.Linear(c.memory + c.dim, c.dim, bias=False)
        seen = c.memory if c.attention != "additive" and not self.cho else c.dim
        bridged = c.layers * self.parts if c.bidirectional or self.cho else 0
        self.bridge = nn.ModuleList(nn.Linear(seen, c.dim) for _ in range(bridged))

    @property
    def cho(self) -> bool:
        """A fixed context that is read at every step."""
        return self.kind == "none" and self.feed

    def begin(self, last: State) -> State:
        """The encoder's last state, copied (Sutskever); of two directions through tanh(W ·), which with additive
        attention reads the backward one alone (A.2.2); Cho's by way of the context."""
        extra: State = ()
        if self.context is not None:
            extra = (torch.tanh(self.context(last[-self.parts])),)
            last = extra * len(last)
        elif self.feed:
            extra = (last[0].new_zeros(len(last[0]), self.dim),)
        elif self.bridge and self.kind == "additive":
            last = tuple(s[:, self.dim :] for s in last)
        if self.bridge:
            last = tuple(torch.tanh(way(s)) for way, s in zip(self.bridge, last, strict=True))
        return *last, *extra

    def source(self, memory: Tensor, layout: Layout) -> Source | None:
        """The memory ready to be looked at."""
        return None if self.align is None else self.align.source(memory, layout)

    def forward(
        self, x: Tensor, steps: Steps, source: Source | None, state: State, past: Tensor | None, probe: Probe | None
    ) -> tuple[Tensor, State]:
        """(N, embed) → (N, dim or readout), and the state after each document's last token"""
        layout, own = steps.layout, len(self.layers) * self.parts
        weights = None
        if source is not None and (self.feed or self.kind == "additive"):
            hidden, state, weights = self.through(x, steps, source, state, past, probe)
        else:
            fixed = state[own].index_select(0, layout.document) if self.cho else None  # (N, dim)
            inner = x if fixed is None else torch.cat((x, fixed), 1)
            hidden, after = self.layers(inner, steps, state[:own], probe=probe, kind="decoder")
            state = (*after, *state[own:])
            if fixed is not None:
                hidden = self.maxout(hidden, x, fixed)
            elif source is not None and self.align is not None:
                context, weights = self.align.at_once(hidden, source, layout, past)
                hidden = self.join(context, hidden)
        if weights is not None and probe is not None and probe.attention:
            probe.weight("cross", layout.unpack(weights)[:, None])
        return hidden, state

    def through(
        self, x: Tensor, steps: Steps, source: Source, state: State, past: Tensor | None, probe: Probe | None
    ) -> tuple[Tensor, State, Tensor]:
        """Step by step, since what is looked up at a step depends on the one before, or is read at the next."""
        assert self.align is not None
        look, own = self.align.by_step(source, steps, past), len(self.layers) * self.parts
        lower = slice(0, own - self.parts, self.parts) if probe is not None else slice(0)  # h of all layers but the top

        def additive(t: int, x: Tensor, state: State) -> tuple[State, State]:
            context, weights = look(t, state[-self.parts])  # with the previous state
            y, new = self.layers.once(torch.cat((x, context), 1), state)
            return (y, weights, context, *new[lower]), new

        def feeding(t: int, x: Tensor, state: State) -> tuple[State, State]:
            y, new = self.layers.once(torch.cat((x, state[own]), 1), state[:own])
            context, weights = look(t, y)  # with the current state
            s = self.join(context, y)
            return (s, weights, context, *new[lower]), (*new, s)

        step = feeding if self.feed else additive
        (y, weights, context, *layers), state = walk(steps, x, state, step)
        if probe is not None:
            for read in (x, *layers):
                probe.state("decoder", read)
        return (y if self.feed else self.maxout(y, x, context)), state, weights

    def join(self, context: Tensor, s: Tensor) -> Tensor:
        """s̃ = tanh(W [a; s]) (Luong, eq. 5)"""
        assert self.readout is not None
        return torch.tanh(self.readout(torch.cat((context, s), -1)))

    def maxout(self, s: Tensor, x: Tensor, context: Tensor) -> Tensor:
        """max over pairs of U s + V x + C context (Cho, appendix; Bahdanau, A.2.2)"""
        assert self.readout is not None
        return self.readout(torch.cat((s, x, context), 1)).unflatten(1, (-1, 2)).amax(-1)


class Seq2Seq(RecurrentPair):
    """An encoder and a decoder of recurrent layers."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__(*tables(config, config.embed), Encoder(config), Decoder(config))


def tables(c: PairConfig, width: int) -> tuple[Embeddings, Embeddings | None]:
    """The embeddings of source and target; the second is None if they share one table."""
    far = None if c.shared else Embeddings(width, c.target_vocab or c.vocab, dropout=c.dropout)
    return Embeddings(width, c.vocab, dropout=c.dropout), far


def heads(c: Seq2SeqConfig) -> dict[str, dict[str, Head]]:
    """The output layer."""
    return {"none": {}, "lm": {"lm": Head(out="vocab", inner_dim=c.out)}}


def init(c: PairConfig) -> dict[str, float]:
    """One deviation for all: the papers draw from ± 0.08 (Sutskever) or ± 0.1 (Luong)."""
    return {"*": c.init}


LUONG = {
    "vocab": 50000, "embed": 1000, "layers": 4, "dropout": 0.2, "feed": True, "reverse": True, "init": 0.1 / 3**0.5,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "sutskever-2014": {
        "vocab": 160000, "target_vocab": 80000, "embed": 1000, "layers": 4, "reverse": True, "init": 0.08 / 3**0.5,
    },
    "cho-2014": {"vocab": 15000, "embed": 100, "cell": "gru", "feed": True, "readout": 500, "init": 0.01},
    "rnnsearch": {
        "embed": 620, "cell": "gru", "bidirectional": True, "attention": "additive", "readout": 500, "init": 0.01,
    },
    "luong-global": LUONG | {"attention": "general"},
    "luong-local": LUONG | {"attention": "local"},
    "seq2seq-mini": {
        "vocab": 8192, "embed": 128, "dim": 128, "cell": "gru", "bidirectional": True, "attention": "additive",
    },
}  # fmt: skip

FAMILY = Family(
    Seq2SeqConfig, Seq2Seq, heads, pretraining="lm", counted="lm", init=init, presets=PRESETS,
    tokenizer="bpe", objective="seq2seq",
    no_export="keep the formers directory; formers pretrain transformer trains a translator that exports as Marian",
)  # fmt: skip
