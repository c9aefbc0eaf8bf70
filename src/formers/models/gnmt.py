"""GNMT (Wu et al. 2016, arXiv:1609.08144)

Parent  seq2seq (Bahdanau et al. 2015)
New     1. eight LSTM layers on each side, with residual connections from the third on   2. only the encoder's bottom
        layer is bidirectional   3. attention is queried by the previous output of the decoder's bottom layer, so the
        upper layers need not wait for it; every decoder layer reads its context   4. word pieces   5. beam search with
        a length penalty and a coverage penalty (generation/beam.py)
Korean  인코더와 디코더에 LSTM 레이어 여덟 개씩을 잔차 연결로 쌓습니다. 인코더의 첫 레이어만 양방향이고, 어텐션의
        결과를 디코더의 모든 레이어가 받습니다. 빔 탐색에 길이 페널티와 커버리지 페널티를 씁니다.
Shapes  source ids (S,) → memory (S, dim); target ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: the decoder starts from zeros (the paper does not say); initial weights are normal instead
        of uniform, with the same variance; no clipping for 8-bit inference
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..batch import Layout
from ..config import check_sizes
from ..errors import Error
from ..family import OURS, TRANSLATION_TUNE, Family, Head, PaperRecipe, Presets, Recipe
from ..nn.attention.context import Capture
from ..nn.encoder_decoder import RecurrentEncoderDecoder
from ..nn.recurrent.alignment import AdditiveScore, Alignment, AlignmentSource
from ..nn.recurrent.rnn import PackedSteps, RecurrentLayer, RecurrentStack, RNNState, run_steps
from . import seq2seq

PLAIN_LAYERS = 2  # the lowest layers, which have no residual connection


@dataclass(frozen=True, kw_only=True)
class GNMTConfig(seq2seq.RecurrentConfig):
    """GNMT's sizes and rates; the defaults are the paper's."""

    vocab: int = 32000
    dim: int = 1024
    layers: int = 8
    decoder_layers: int | None = None  # None: as the encoder
    dropout: float = 0.2
    init: float = 0.04 / 3**0.5  # the deviation of ± 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "decoder_layers")
        if self.layers < 2:
            raise Error(
                "the first encoder layer has two directions, and one more must join them", fix="set layers to 2 or more"
            )


class Encoder(nn.Module):
    """A layer of both directions, then layers of one."""

    def __init__(self, c: GNMTConfig):
        super().__init__()
        layers = [RecurrentLayer("lstm", c.dim, c.dim, bidirectional=True)]
        layers += [RecurrentLayer("lstm", c.dim * (2 if i == 1 else 1), c.dim) for i in range(1, c.layers)]
        self.layers = RecurrentStack(layers, c.dropout, PLAIN_LAYERS)

    def forward(self, x: Tensor, steps: PackedSteps, capture: Capture | None = None) -> tuple[Tensor, RNNState]:
        """(S, dim) → memory (S, dim), and the last state"""
        return self.layers(x, steps, capture=capture)


class Decoder(nn.Module):
    """The lowest layer goes step by step with the attention, the others then read the whole text at once."""

    def __init__(self, c: GNMTConfig):
        super().__init__()
        self.bottom = RecurrentLayer("lstm", 2 * c.dim, c.dim)
        upper = (RecurrentLayer("lstm", 2 * c.dim, c.dim) for _ in range(1, c.num_decoder_layers))
        self.layers = RecurrentStack(upper, c.dropout, first_residual=PLAIN_LAYERS - 1)
        self.align, self.dropout = Alignment(AdditiveScore(c.dim, c.dim)), nn.Dropout(c.dropout)
        self.num_layers = c.num_decoder_layers

    def build_initial_state(self, last: RNNState) -> RNNState:
        """Return zeros: two tensors for each layer."""
        return (last[-1].new_zeros(last[-1].shape),) * (2 * self.num_layers)

    def prepare_source(self, encoder_output: Tensor, layout: Layout) -> AlignmentSource:
        """Prepare the encoder's output for attention."""
        return self.align.prepare_source(encoder_output, layout)

    def forward(
        self, x: Tensor, steps: PackedSteps, source: AlignmentSource, state: RNNState, past_lengths: Tensor | None,
        capture: Capture | None,
    ) -> tuple[Tensor, RNNState]:  # fmt: skip
        """(N, dim) → (N, dim), and the state after each document's last token"""
        look = self.align.build_step_attention(source, steps, past_lengths)

        def step(t: int, x: Tensor, state: RNNState) -> tuple[RNNState, RNNState]:
            context, weights = look(t, state[0])  # with the lowest layer's previous output
            (y,), new = self.bottom.run_step(torch.cat((x, context), 1), state)
            return (y, context, weights), new

        (y, context, weights), low = run_steps(steps, x, state[:2], step)
        if capture is not None:
            capture.record_hidden("decoder", x)
            if capture.with_attention:
                capture.record_attention("cross", steps.layout.unpack(weights)[:, None])
        y = self.dropout(y) if len(self.layers) else y
        y, high = self.layers(y, steps, state[2:], extra_input=context, capture=capture, stack_name="decoder")
        return y, (*low, *high)


class GNMT(RecurrentEncoderDecoder):
    """A deep encoder and decoder of LSTMs with attention between their lowest layers."""

    def __init__(self, config: GNMTConfig):
        super().__init__(*seq2seq.build_embeddings(config, config.dim), Encoder(config), Decoder(config))


def build_heads(c: GNMTConfig) -> dict[str, dict[str, Head]]:
    """Build the output layer's head."""
    return {"none": {}, "lm": {"lm": Head(out="vocab")}}


PRESETS: Presets = {
    "gnmt": {},
    "gnmt-4": {"layers": 4},
    "gnmt-mini": {"vocab": 8192, "dim": 128, "layers": 3, "dropout": 0.1, "shared": True, "tied": True},
}

PAPER = PaperRecipe(
    {  # §8.3
        "objective.name": ("seq2seq", "§3"),
        "train.optimizer": ("adam-sgd", "§8.3: Adam, then SGD"),
        "train.lr": (2e-4, "§8.3: of Adam"),
        "train.betas": ((0.9, 0.999), "not stated; Kingma & Ba 2015"),
        "train.eps": (1e-8, "not stated; Kingma & Ba 2015"),
        "train.switch_step": (60_000, "§8.3"),
        "train.switch_lr": (0.5, "§8.3"),
        "train.weight_decay": (0.0, "none stated"),
        "train.schedule": ("halving", "§8.3"),
        "train.warmup_steps": (0, "none stated"),
        "train.decay_start": (1_200_000, "§8.3: WMT English to French"),
        "train.decay_every": (200_000, "§8.3"),
        "train.steps": (2_000_000, "§8.3: 800,000 steps of decay"),
        "train.seq_length": (128, OURS),
        "train.batch_tokens": (3_840, f"§8.3: 128 examples{seq2seq.WORDS}"),
        "train.accumulate": (1, OURS),
        "train.grad_clip": (5.0, "§8.3"),
        "model.dropout": (0.2, "§8.3: of English to French"),
        "data.vocab_size": (32_000, "§4.1 and table 4: WPM-32K"),
    }
)

FAMILY = Family(
    GNMTConfig, GNMT, build_heads, pretraining_head="lm", counted_head="lm", presets=PRESETS,
    tokenizer="wordpiece", tokenizer_style=seq2seq.FAMILY.tokenizer_style, objective="seq2seq", is_encoder_decoder=True,
    has_recurrent_decoder=True,
    quick_recipe=Recipe(model={"layers": 2}), paper_recipe=PAPER,
    scratch_recipe=Recipe(
        seq2seq.SCRATCH_TRAIN | {"grad_clip": 5.0}, {"dim": 256, "layers": 3, "dropout": 0.3}, tune=TRANSLATION_TUNE
    ),
    onnx_refusal="its recurrent layers run step by step",
    export_remedy="keep the formers directory; formers pretrain transformer trains a translator that exports as Marian",
)  # fmt: skip
