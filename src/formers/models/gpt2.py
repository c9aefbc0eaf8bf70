"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners")

Parent  gpt
New     1. the norm moves to the input of each sub-block, and one more stands after the last block
        2. residual projections start smaller by 1/√(2·layers)   3. byte-level BPE of 50,257   4. context 1024
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: positions count from a document's first real token, also with padding on the left
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..config import ConfigMap, divides, positive, probability, renamed
from ..family import ACT, TOKENS, Family, Format, Head, Pool
from ..keymap import KeyMap, transposed
from ..nn.attention import Attention
from ..nn.block import Block, Stack
from ..nn.embeddings import Embeddings
from ..nn.feedforward import FeedForward, activation
from ..nn.masks import causal
from ..nn.norms import LayerNorm
from ..nn.trunk import Trunk


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """GPT-2's sizes and rates; the defaults are the smallest published model."""

    vocab: int = 50257
    context: int = 1024
    dim: int = 768
    layers: int = 12
    heads: int = 12
    ff: int | None = None  # None: 4 · dim
    act: str = "gelu_tanh"
    eps: float = 1e-5
    dropout: float = 0.1
    embed_dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float = 0.1
    summary: Pool = "last"  # which token the second of the double heads reads
    summary_act: str | None = None
    summary_dropout: float = 0.1
    scale: bool = True  # scores by 1/√head_dim,
    scale_by_layer: bool = False  # and by 1/(layer + 1) as well
    init: float = 0.02
    tied: bool = True
    pad: int | None = None
    bos: int | None = 50256
    eos: int | tuple[int, ...] | None = 50256

    def __post_init__(self) -> None:
        positive(self, "vocab", "context", "dim", "layers", "heads", "ff")
        positive(self, "init", least=0)
        probability(self, "dropout", "embed_dropout", "attention_dropout", "head_dropout", "summary_dropout")
        divides(self)
        activation(self.act)


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


def heads(c: GPT2Config) -> dict[str, dict[str, Head]]:
    """GPT-2's heads; a classifier reads the last token, the only one that has seen all others."""
    lm = Head(out="vocab", bias=False)
    choose = Head(pool=c.summary, inner=("dropout",), out=1, after=c.summary_act, dropout=c.summary_dropout)
    return {
        "none": {},
        "lm": {"lm": lm},
        "double": {"lm": lm, "choose": choose},
        "classify": {"classify": Head(pool="last", bias=False)},
        "tag": {"tag": Head(inner=("dropout",), dropout=c.head_dropout)},
        "answer": {"answer": Head(out=2)},
    }


def init(c: GPT2Config) -> dict[str, float]:
    """§2.3: projections into the residual stream are scaled by 1/√(number of such projections)."""
    residual = c.init / math.sqrt(2 * c.layers)
    return {"*": c.init, "*.attn.o.weight": residual, "*.ff.down.weight": residual}


HF_CONFIG = ConfigMap(
    {
        "vocab_size": "vocab", "n_positions": "context", "n_embd": "dim", "n_layer": "layers", "n_head": "heads",
        "n_inner": "ff", "activation_function": ACT, "layer_norm_epsilon": "eps", "resid_pdrop": "dropout",
        "embd_pdrop": "embed_dropout", "attn_pdrop": "attention_dropout", "classifier_dropout": "head_dropout",
        "summary_type": renamed("summary", {"cls_index": "last", "last": "last", "first": "first", "mean": "mean"}),
        "summary_activation": "summary_act", "summary_first_dropout": "summary_dropout", "scale_attn_weights": "scale",
        "scale_attn_by_inverse_layer_idx": "scale_by_layer", "initializer_range": "init",
        "tie_word_embeddings": "tied", **TOKENS,
    },
    aliases={
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
    fixed={"add_cross_attention": (False,), "summary_use_proj": (True,), "summary_proj_to_labels": (True,)},
    irrelevant=frozenset({
        "n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn", "summary_last_dropout",
    }),
)  # fmt: skip


def keys(c: GPT2Config, head: str) -> KeyMap:
    """GPT-2 stores Linear weights transposed (as a 1×1 convolution)."""
    return KeyMap(
        {
            "wte.weight": "embed.token.weight",
            "wpe.weight": "embed.position.weight",
            "h.{i}.ln_1.*": "blocks.{i}.attn_norm.*",
            "h.{i}.attn.c_attn.weight": transposed("blocks.{i}.attn.qkv.weight"),
            "h.{i}.attn.c_attn.bias": "blocks.{i}.attn.qkv.bias",
            "h.{i}.attn.c_proj.weight": transposed("blocks.{i}.attn.o.weight"),
            "h.{i}.attn.c_proj.bias": "blocks.{i}.attn.o.bias",
            "h.{i}.ln_2.*": "blocks.{i}.ff_norm.*",
            "h.{i}.mlp.c_fc.weight": transposed("blocks.{i}.ff.up.weight"),
            "h.{i}.mlp.c_fc.bias": "blocks.{i}.ff.up.bias",
            "h.{i}.mlp.c_proj.weight": transposed("blocks.{i}.ff.down.weight"),
            "h.{i}.mlp.c_proj.bias": "blocks.{i}.ff.down.bias",
            "ln_f.*": "norm.*",
        },
        heads={
            "lm": {"lm_head.weight": "out.weight"},
            "choose": {"multiple_choice_head.summary.*": "out.*"},
            "classify": {"score.weight": "out.weight"},
            "tag": {"classifier.*": "out.*"},
            "answer": {"qa_outputs.*": "out.*"},
        },
        prefix="" if head == "none" else "transformer.",
        prefixes=("transformer.",),
        tied={"lm_head.weight": "wte.weight"} if c.tied else {},
        drop=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),
    )


PRESETS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2-medium": {"dim": 1024, "layers": 24, "heads": 16},
    "gpt2-large": {"dim": 1280, "layers": 36, "heads": 20},
    "gpt2-xl": {"dim": 1600, "layers": 48, "heads": 25},
    "gpt2-mini": {"vocab": 8192, "context": 256, "dim": 256, "layers": 4, "heads": 4, "bos": None, "eos": None},
}

FAMILY = Family(
    GPT2Config, GPT2, heads, pretraining="lm", counted="lm", init=init, presets=PRESETS,
    tokenizer="bpe", objective="causal",
    hf=Format("gpt2", {
        "GPT2Model": "none", "GPT2LMHeadModel": "lm", "GPT2DoubleHeadsModel": "double",
        "GPT2ForSequenceClassification": "classify", "GPT2ForTokenClassification": "tag",
        "GPT2ForQuestionAnswering": "answer",
    }, HF_CONFIG, keys),
)  # fmt: skip
