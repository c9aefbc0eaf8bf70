"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners")

Parent  gpt
New     1. the norm moves to the input of each sub-block, and one more stands after the last block
        2. residual projections start smaller by 1/√(2·layers)   3. byte-level BPE of 50,257   4. context 1024
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: as gpt
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..config import ConfigMap, positive, probability
from ..family import ACT, Family, Format, Head
from ..keymap import KeyMap, Op
from ..nn.attention import Attention
from ..nn.block import Block, Stack
from ..nn.embeddings import Embeddings
from ..nn.feedforward import FeedForward
from ..nn.masks import causal
from ..nn.norms import LayerNorm
from ..nn.trunk import Trunk
from . import gpt


@dataclass(frozen=True, kw_only=True)
class GPT2Config(gpt.GPTConfig):
    """GPT-2's sizes and rates; the defaults are the smallest published model."""

    vocab: int = 50257
    context: int = 1024
    ff: int | None = None  # None: 4 · dim
    head_dropout: float = 0.1
    scale: bool = True  # scores by 1/√head_dim,
    scale_by_layer: bool = False  # and by 1/(layer + 1) as well
    bos: int | None = 50256
    eos: int | tuple[int, ...] | None = 50256

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "ff")
        probability(self, "head_dropout")


class GPT2(Trunk):
    """A decoder: token + position → pre-norm blocks → norm."""

    def __init__(self, config: GPT2Config):
        c = config
        scale = (c.dim // c.heads) ** -0.5 if c.scale else 1.0
        super().__init__(
            Embeddings(c.dim, c.vocab, positions=c.context, dropout=c.embed_dropout),
            Stack(
                Block(
                    Attention(
                        c.dim,
                        c.heads,
                        scale=scale / (i + 1) if c.scale_by_layer else scale,
                        dropout=c.attention_dropout,
                    ),
                    FeedForward(c.dim, c.ff or 4 * c.dim, c.act),
                    norm=lambda: LayerNorm(c.dim, c.eps),
                    dropout=c.dropout,
                )
                for i in range(c.layers)
            ),
            LayerNorm(c.dim, c.eps),
            masks=[causal],
        )


def decoder_heads(dropout: float) -> dict[str, dict[str, Head]]:
    """The heads that all decoders after GPT have in common; a classifier reads the last token."""
    return {
        "none": {},
        "lm": {"lm": Head(out="vocab", bias=False)},
        "classify": {"classify": Head(pool="last", bias=False)},
        "tag": {"tag": Head(inner=("dropout",), dropout=dropout)},
        "answer": {"answer": Head(out=2)},
    }


def heads(c: GPT2Config) -> dict[str, dict[str, Head]]:
    """GPT's heads and two more."""
    return decoder_heads(c.head_dropout) | gpt.heads(c)


def init(c: GPT2Config) -> dict[str, float]:
    """§2.3: projections into the residual stream are scaled by 1/√(number of such projections)."""
    residual = c.init / math.sqrt(2 * c.layers)
    return {"*": c.init, "*.attn.o.weight": residual, "*.ff.down.weight": residual}


HF_CONFIG = ConfigMap(
    gpt.ROWS
    | {
        "n_inner": "ff",
        "activation_function": ACT,
        "classifier_dropout": "head_dropout",
        "scale_attn_weights": "scale",
        "scale_attn_by_inverse_layer_idx": "scale_by_layer",
    },
    aliases=gpt.ALIASES,
    fixed=gpt.FIXED,
    irrelevant=gpt.IRRELEVANT | {"reorder_and_upcast_attn"},
)


DECODER_HEADS: dict[str, dict[str, str | Op]] = {
    "lm": {"lm_head.weight": "out.weight"},
    "classify": {"score.weight": "out.weight"},
    "tag": {"classifier.*": "out.*"},
    "answer": {"qa_outputs.*": "out.*"},
}


def keys(c: GPT2Config, head: str) -> KeyMap:
    """The names of GPT-2's files."""
    return KeyMap(
        {"wte.weight": "embed.token.weight", "wpe.weight": "embed.position.weight", **gpt.BLOCK, "ln_f.*": "norm.*"},
        heads=DECODER_HEADS | gpt.HEADS,
        prefix="" if head == "none" else "transformer.",
        prefixes=("transformer.",),
        tied={"lm_head.weight": "wte.weight"} if c.tied else {},
        drop=gpt.DROP,
    )


PRESETS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2-medium": {"dim": 1024, "layers": 24, "heads": 16},
    "gpt2-large": {"dim": 1280, "layers": 36, "heads": 20},
    "gpt2-xl": {"dim": 1600, "layers": 48, "heads": 25},
    "gpt2-mini": {"vocab": 8192, "context": 256, "dim": 256, "layers": 4, "heads": 4, "bos": None, "eos": None},
}

FAMILY = Family(
    GPT2Config, GPT2, heads, pretraining="lm", counted="lm", init=init, presets=PRESETS, segments=True,
    tokenizer="bpe", objective="causal",
    hf=Format("gpt2", {
        "GPT2Model": "none", "GPT2LMHeadModel": "lm", "GPT2DoubleHeadsModel": "double",
        "GPT2ForSequenceClassification": "classify", "GPT2ForTokenClassification": "tag",
        "GPT2ForQuestionAnswering": "answer",
    }, HF_CONFIG, keys),
)  # fmt: skip
