"""Sequence to sequence (Sutskever et al. 2014, arXiv:1409.3215; Cho et al. 2014, arXiv:1406.1078)

Parent  recurrence (Elman 1990; Hochreiter & Schmidhuber 1997)
New     1. one network encodes a text into a fixed-size state, another decodes a text from it   2. Cho: the GRU; the
        decoder also reads that state at every step (`feed`)   3. Bahdanau et al. 2015: a bidirectional encoder and
        additive attention queried by the previous state; the context feeds both the decoder's input and its output
        4. Luong et al. 2015: dot, general, concat and local attention queried by the current state; input feeding
        (`feed`)
Korean  인코더가 텍스트를 고정 크기의 상태로 읽고 디코더가 그 상태에서 텍스트를 생성합니다. GRU(Cho), 덧셈 어텐션과
        양방향 인코더(Bahdanau), 내적 어텐션과 입력 피딩(Luong)을 고를 수 있습니다.
Shapes  source ids (S,) → memory (S, dim or 2·dim); target ids (N,) → hidden (N, dim or readout) → logits (N, vocab)
Differs from the reference: torch's GRU applies the reset gate after the product with the state, Cho's before it;
        initial weights are normal instead of uniform, with the same variance; Bahdanau's output layer reads the new
        state (his eq. 4; A.2.2 has the old one)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..batch import Layout
from ..config import check_sizes
from ..errors import Error
from ..family import OURS, TRANSLATION_TUNE, CitedSettings, Family, Head, ModelConfig, PaperRecipe, Presets, Recipe
from ..nn.attention.context import Capture
from ..nn.encoder_decoder import RecurrentEncoderDecoder
from ..nn.layers import Embeddings
from ..nn.recurrent.alignment import Alignment, AlignmentSource, LocalWindow, ScoreKind, build_score
from ..nn.recurrent.rnn import CELL_KERNELS, CellKind, PackedSteps, RecurrentLayer, RecurrentStack, RNNState, run_steps
from ..text.tokenizer_kinds import TokenizerStyle


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(ModelConfig):
    """What every recurrent encoder-decoder has."""

    vocab: int = 30000
    target_vocab: int | None = None  # None: as the source's
    shared: bool = False  # both sides have the same token embeddings
    dim: int = 1000
    dropout: float = 0.0
    init: float = 0.05  # the deviation of all weights: the papers draw from ± 0.08 (Sutskever) or ± 0.1 (Luong)
    tied: bool = False
    pad: int | None = 0
    bos: int | None = 1
    eos: int | tuple[int, ...] | None = 2
    start: int | None = 1  # the decoder's first input


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(RecurrentConfig):
    """Sizes, cell and attention; the defaults are a single LSTM on either side."""

    embed: int = 500
    layers: int = 1
    cell: CellKind = "lstm"
    bidirectional: bool = False  # the encoder
    reverse: bool = False  # the encoder reads the source from its end (Sutskever)
    attention: Literal["none", "additive", "dot", "general", "concat", "local"] = "none"
    score: ScoreKind = "general"  # of local attention,
    predict: bool = True  # which predicts its place (local-p), or takes the target's (local-m),
    window: int = 10  # and attends to this many words on either side
    feed: bool = False  # the next step reads what was looked up (Luong); without attention the fixed context (Cho)
    readout: int | None = None  # the width of the maxout layer of Bahdanau and Cho; None: as the embeddings

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window", "readout")
        if "dot" in (self.attention, self.score if self.attention == "local" else "") and self.bidirectional:
            what = f"states of {self.dim} and a memory of {2 * self.dim} have no dot product"
            name = "attention" if self.attention == "dot" else "score"
            raise Error(what, fix=f"set {name} to general, or bidirectional to false: an encoder of one direction")
        if self.attention == "additive" and self.feed:
            fix = "leave feed out, or set attention to general: Luong's input feeding"
            raise Error("additive attention always feeds its context", fix=fix)
        if self.tied and self.out_dim != self.embed:
            what = f"an output of {self.out_dim} numbers cannot be tied to embeddings of {self.embed}"
            raise Error(what, fix=f"set embed to {self.out_dim}, or tied to false")

    @property
    def encoder_dim(self) -> int:
        """The width of the encoder's output."""
        return self.dim * (2 if self.bidirectional else 1)

    @property
    def has_maxout(self) -> bool:
        """State, embedding and context meet in a maxout layer before the output (Cho, Bahdanau)."""
        return self.attention == "additive" or (self.attention == "none" and self.feed)

    @property
    def out_dim(self) -> int:
        """The width of what the output layer reads."""
        return (self.readout or self.embed) if self.has_maxout else self.dim


class Encoder(nn.Module):
    """Recurrent layers, in one or both directions."""

    def __init__(self, c: Seq2SeqConfig):
        super().__init__()
        widths = [c.embed, *[c.encoder_dim] * (c.layers - 1)]
        layers = (RecurrentLayer(c.cell, width, c.dim, bidirectional=c.bidirectional) for width in widths)
        self.layers, self.reverse = RecurrentStack(layers, c.dropout), c.reverse

    def forward(self, x: Tensor, steps: PackedSteps, capture: Capture | None = None) -> tuple[Tensor, RNNState]:
        """(S, embed) → memory (S, dim or 2·dim), and the last state"""
        if not self.reverse:
            return self.layers(x, steps, capture=capture)
        seen = Capture() if capture is None else Capture(with_hidden=capture.with_hidden)
        y, last = self.layers(steps.reverse_documents(x), steps, capture=seen)
        if capture is not None:
            for state in seen.hidden_states.get("encoder", ()):
                capture.record_hidden("encoder", steps.reverse_documents(state))
        return steps.reverse_documents(y), last


class Decoder(nn.Module):
    """Recurrent layers that begin with the encoder's state, and the attention between. State: that of the layers, and
    one more tensor with `feed`: s̃ of Luong's input feeding, or Cho's context."""

    def __init__(self, c: Seq2SeqConfig):
        super().__init__()
        self.attention_kind, self.feeds_context = c.attention, c.feed
        self.dim, self.state_parts = c.dim, CELL_KERNELS[c.cell][3]
        extra = c.encoder_dim if c.attention == "additive" else c.dim if c.feed else 0
        widths = [c.embed + extra, *[c.dim] * (c.layers - 1)]
        self.layers = RecurrentStack((RecurrentLayer(c.cell, w, c.dim) for w in widths), c.dropout)
        self.context = nn.Linear(c.encoder_dim, c.dim) if self.has_fixed_context else None  # c = tanh(V h)
        local = LocalWindow(c.dim, c.window, predict=c.predict) if c.attention == "local" else None
        kind = c.score if c.attention == "local" else c.attention
        self.align = None if kind == "none" else Alignment(build_score(kind, c.dim, c.encoder_dim), local)
        if c.has_maxout:
            self.readout: nn.Module | None = nn.Linear(c.dim + c.embed + extra, 2 * c.out_dim)
        else:
            self.readout = None if self.align is None else nn.Linear(c.encoder_dim + c.dim, c.dim, bias=False)
        seen = c.encoder_dim if c.attention != "additive" and not self.has_fixed_context else c.dim
        bridged = c.layers * self.state_parts if c.bidirectional or self.has_fixed_context else 0
        self.bridge = nn.ModuleList(nn.Linear(seen, c.dim) for _ in range(bridged))

    @property
    def has_fixed_context(self) -> bool:
        """A fixed context that is read at every step."""
        return self.attention_kind == "none" and self.feeds_context

    def build_initial_state(self, last: RNNState) -> RNNState:
        """Make the decoder's first state from the encoder's last: copied (Sutskever); of two directions through
        tanh(W ·), with additive attention from the backward one alone (A.2.2); of Cho's by way of the context."""
        extra: RNNState = ()
        if self.context is not None:
            extra = (torch.tanh(self.context(last[-self.state_parts])),)
            last = extra * len(last)
        elif self.feeds_context:
            extra = (last[0].new_zeros(len(last[0]), self.dim),)
        elif self.bridge and self.attention_kind == "additive":
            last = tuple(s[:, self.dim :] for s in last)
        if self.bridge:
            last = tuple(torch.tanh(way(s)) for way, s in zip(self.bridge, last, strict=True))
        return *last, *extra

    def prepare_source(self, encoder_output: Tensor, layout: Layout) -> AlignmentSource | None:
        """Prepare the encoder's output for attention; None without attention."""
        return None if self.align is None else self.align.prepare_source(encoder_output, layout)

    def forward(
        self, x: Tensor, steps: PackedSteps, source: AlignmentSource | None, state: RNNState,
        past_lengths: Tensor | None, capture: Capture | None,
    ) -> tuple[Tensor, RNNState]:  # fmt: skip
        """(N, embed) → (N, dim or readout), and the state after each document's last token"""
        layout, own = steps.layout, len(self.layers) * self.state_parts
        weights = None
        if source is not None and (self.feeds_context or self.attention_kind == "additive"):
            hidden, state, weights = self.decode_steps(x, steps, source, state, past_lengths, capture)
        else:
            fixed = state[own].index_select(0, layout.document_ids) if self.has_fixed_context else None  # (N, dim)
            inner = x if fixed is None else torch.cat((x, fixed), 1)
            hidden, after = self.layers(inner, steps, state[:own], capture=capture, stack_name="decoder")
            state = (*after, *state[own:])
            if fixed is not None:
                hidden = self.apply_maxout(hidden, x, fixed)
            elif source is not None and self.align is not None:
                context, weights = self.align.attend_all(hidden, source, layout, past_lengths)
                hidden = self.combine_context(context, hidden)
        if weights is not None and capture is not None and capture.with_attention:
            capture.record_attention("cross", layout.unpack(weights)[:, None])
        return hidden, state

    def decode_steps(
        self, x: Tensor, steps: PackedSteps, source: AlignmentSource, state: RNNState, past_lengths: Tensor | None,
        capture: Capture | None,
    ) -> tuple[Tensor, RNNState, Tensor]:  # fmt: skip
        """Run step by step: a step's context depends on the previous state, or is read at the next step."""
        assert self.align is not None
        attend_step = self.align.build_step_attention(source, steps, past_lengths)
        own = len(self.layers) * self.state_parts
        # h of all layers but the top
        lower = slice(0, own - self.state_parts, self.state_parts) if capture is not None else slice(0)

        def step_additive(t: int, x: Tensor, state: RNNState) -> tuple[RNNState, RNNState]:
            context, weights = attend_step(t, state[-self.state_parts])  # with the previous state
            y, new = self.layers.run_step(torch.cat((x, context), 1), state)
            return (y, weights, context, *new[lower]), new

        def step_input_feeding(t: int, x: Tensor, state: RNNState) -> tuple[RNNState, RNNState]:
            y, new = self.layers.run_step(torch.cat((x, state[own]), 1), state[:own])
            context, weights = attend_step(t, y)  # with the current state
            s = self.combine_context(context, y)
            return (s, weights, context, *new[lower]), (*new, s)

        step = step_input_feeding if self.feeds_context else step_additive
        (y, weights, context, *layers), state = run_steps(steps, x, state, step)
        if capture is not None:
            for read in (x, *layers):
                capture.record_hidden("decoder", read)
        return (y if self.feeds_context else self.apply_maxout(y, x, context)), state, weights

    def combine_context(self, context: Tensor, s: Tensor) -> Tensor:
        """s̃ = tanh(W [a; s]) (Luong, eq. 5)"""
        assert self.readout is not None
        return torch.tanh(self.readout(torch.cat((context, s), -1)))

    def apply_maxout(self, s: Tensor, x: Tensor, context: Tensor) -> Tensor:
        """max over pairs of U s + V x + C context (Cho, appendix; Bahdanau, A.2.2)"""
        assert self.readout is not None
        return self.readout(torch.cat((s, x, context), 1)).unflatten(1, (-1, 2)).amax(-1)


class Seq2Seq(RecurrentEncoderDecoder):
    """An encoder and a decoder of recurrent layers."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__(*build_embeddings(config, config.embed), Encoder(config), Decoder(config))


def build_embeddings(c: RecurrentConfig, width: int) -> tuple[Embeddings, Embeddings | None]:
    """Build the embeddings of source and target; the second is None if they share one table."""
    far = None if c.shared else Embeddings(width, c.output_vocab, dropout=c.dropout)
    return Embeddings(width, c.vocab, dropout=c.dropout), far


def build_heads(c: Seq2SeqConfig) -> dict[str, dict[str, Head]]:
    """Build the output layer's head."""
    return {"none": {}, "lm": {"lm": Head(out="vocab", inner_dim=c.out_dim)}}


LUONG = {
    "vocab": 50000, "embed": 1000, "layers": 4, "dropout": 0.2, "feed": True, "reverse": True, "init": 0.1 / 3**0.5,
}  # fmt: skip
PRESETS: Presets = {
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

# A small model's window of 32 is for bands in a text: a sentence has hardly as many words. Luong's has 10 (§4.1).
QUICK_MODEL = {"layers": 1, "attention": "additive", "cell": "gru", "bidirectional": True, "window": 10}
WORDS = "; a sentence is counted as 30 words: ours"
SGD_RUN: CitedSettings = {  # what Sutskever and Luong have in common
    "train.optimizer": ("sgd", "Sutskever et al. 2014, §3.4; Luong et al. 2015, §4.1"),
    "train.betas": ((0.0, 0.0), "Sutskever et al. 2014, §3.4; Luong et al. 2015, §4.1: without momentum"),
    "train.eps": (1e-8, "not used by SGD"),
    "train.schedule": ("halving", "Sutskever et al. 2014, §3.4; Luong et al. 2015, §4.1"),
    "train.grad_clip": (5.0, "Sutskever et al. 2014, §3.4; Luong et al. 2015, §4.1"),
    "train.accumulate": (1, OURS),
}
LUONG_RUN: CitedSettings = {
    **SGD_RUN,
    "train.lr": (1.0, "Luong et al. 2015, §4.1"),
    "train.steps": (421_875, "Luong et al. 2015, §4.1: with dropout 12 epochs of 4.5 M pairs, 128 a step"),
    "train.decay_start": (281_250, "Luong et al. 2015, §4.1: with dropout after 8 epochs"),
    "train.decay_every": (35_156, "Luong et al. 2015, §4.1: every epoch"),
    "train.seq_length": (50, "Luong et al. 2015, §4.1: pairs of up to 50 words"),
    "train.batch_tokens": (3_840, f"Luong et al. 2015, §4.1: 128 sentences{WORDS}"),
    "model.dropout": (0.2, "Luong et al. 2015, §4.1"),
    "data.vocab_size": (50_000, "Luong et al. 2015, §4.1: words of each language; here pieces of both"),
}
PAPER = PaperRecipe(  # Bahdanau's RNNsearch-50
    {
        "objective.name": ("seq2seq", "Bahdanau et al. 2015, §3"),
        "train.optimizer": ("adadelta", "Bahdanau et al. 2015, §4.2"),
        "train.lr": (1.0, "Zeiler 2012, algorithm 1: Adadelta has no rate"),
        "train.betas": ((0.0, 0.95), "Bahdanau et al. 2015, §B.2: ρ, the second"),
        "train.eps": (1e-6, "Bahdanau et al. 2015, §B.2"),
        "train.weight_decay": (0.0, "none stated"),
        "train.schedule": ("constant", "Zeiler 2012, algorithm 1: Adadelta has no schedule"),
        "train.warmup_steps": (0, "none stated"),
        "train.steps": (288_000, "Bahdanau et al. 2015, table 2: RNNsearch-50"),
        "train.seq_length": (50, "Bahdanau et al. 2015, §4.2: sentences of up to 50 words"),
        "train.batch_tokens": (2_400, f"Bahdanau et al. 2015, §4.2: 80 sentences{WORDS}"),
        "train.accumulate": (1, OURS),
        "train.grad_clip": (1.0, "Bahdanau et al. 2015, §B.2"),
        "model.dropout": (0.0, "none stated"),
        "data.vocab_size": (30_000, "Bahdanau et al. 2015, §4.1: words of each language; here pieces of both"),
    },
    {
        "sutskever-2014": {
            **SGD_RUN,
            "train.lr": (0.7, "Sutskever et al. 2014, §3.4"),
            "train.steps": (703_125, "Sutskever et al. 2014, §3.4: 7.5 epochs of 12 M pairs, 128 a step"),
            "train.decay_start": (468_750, "Sutskever et al. 2014, §3.4: after 5 epochs"),
            "train.decay_every": (46_875, "Sutskever et al. 2014, §3.4: every half epoch"),
            "train.seq_length": (64, OURS),
            "train.batch_tokens": (3_840, f"Sutskever et al. 2014, §3.4: 128 sentences{WORDS}"),
            "data.vocab_size": (
                160_000,
                "Sutskever et al. 2014, §3.1: source words (80,000 target); here pieces of both",
            ),
        },
        "cho-2014": {
            "train.optimizer": ("adadelta", "Cho et al. 2014, §4.1.1"),
            "train.betas": ((0.0, 0.95), "Cho et al. 2014, §4.1.1: ρ, the second"),
            "train.eps": (1e-6, "Cho et al. 2014, §4.1.1"),
            "train.steps": (288_000, "Cho et al. 2014, §4.1.1: three days; as many steps as Bahdanau: ours"),
            "train.seq_length": (50, OURS),
            "train.batch_tokens": (512, "Cho et al. 2014, §4.1.1: 64 phrase pairs, 8 words each: ours"),
            "train.grad_clip": (1.0, OURS),
            "data.vocab_size": (15_000, "Cho et al. 2014, §4.1: words of each language; here pieces of both"),
        },
        "luong-global": LUONG_RUN,
        "luong-local": LUONG_RUN,
    },
)
SCRATCH_TRAIN = {"lr": 1e-3, "schedule": "linear", "warmup_steps": 100, "weight_decay": 0.0, "betas": (0.9, 0.999)}

SPECIAL_TOKENS = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "bos": "<s>"}
STYLE = TokenizerStyle(
    "translation", SPECIAL_TOKENS, ("<pad>", "<unk>", "<s>", "</s>"), (), "$A </s>", "$A </s> $B </s>"
)  # fmt: skip
FAMILY = Family(
    Seq2SeqConfig, Seq2Seq, build_heads, pretraining_head="lm", counted_head="lm", presets=PRESETS,
    tokenizer="bpe", tokenizer_style=STYLE, objective="seq2seq", is_encoder_decoder=True,
    has_recurrent_decoder=True,
    quick_recipe=Recipe(model=QUICK_MODEL),
    paper_recipe=PAPER,
    scratch_recipe=Recipe(SCRATCH_TRAIN, QUICK_MODEL | {"dim": 256, "dropout": 0.3}, tune=TRANSLATION_TUNE),
    onnx_refusal="its recurrent layers run step by step",
    export_remedy="keep the formers directory; formers pretrain transformer trains a translator that exports as Marian",
)  # fmt: skip
