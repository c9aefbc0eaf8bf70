"""GPT-1 (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training")

Parent  transformer (its decoder, without cross attention)
New     1. pretrain as a language model, then fine-tune with the language model as a second loss   2. learned positions
        3. each task is written as one sequence with start, delimiter and classify tokens   4. BPE of 40k   5. tanh-gelu
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: positions count from a document's first real token, also with padding on the left; the
        second head's "last" and "mean" read a text's own tokens, where transformers reads the padding as well
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import ConfigMap, Row, divides, positive, probability, renamed
from ..family import SUMMARY_ACT, TOKENS, Family, Format, Head, Pool
from ..keymap import KeyMap, Op, transposed
from ..nn.attention import Attention
from ..nn.block import Block, Stack
from ..nn.embeddings import Embeddings
from ..nn.feedforward import FeedForward, activation
from ..nn.masks import causal
from ..nn.norms import LayerNorm
from ..nn.trunk import Trunk
from . import bert


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """GPT-1's sizes and rates; the defaults are the published model."""

    vocab: int = 40478
    context: int = 512
    dim: int = 768
    layers: int = 12
    heads: int = 12
    act: str = "gelu_tanh"
    eps: float = 1e-5
    dropout: float = 0.1
    embed_dropout: float = 0.1
    attention_dropout: float = 0.1
    summary: Pool = "last"  # which token the second of the double heads reads
    summary_act: str | None = None
    summary_dropout: float = 0.1
    init: float = 0.02
    tied: bool = True
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = None
    bos: int | None = None
    eos: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        positive(self, "vocab", "context", "dim", "layers", "heads")
        positive(self, "init", least=0)
        probability(self, "dropout", "embed_dropout", "attention_dropout", "summary_dropout")
        divides(self)
        activation(self.act)
        activation(self.summary_act or "linear")


class GPT(Trunk):
    """A decoder: token + position → post-norm blocks."""

    def __init__(self, config: GPTConfig):
        c = config
        super().__init__(
            Embeddings(c.dim, c.vocab, positions=c.context, dropout=c.embed_dropout),
            Stack(
                Block(
                    Attention(c.dim, c.heads, dropout=c.attention_dropout),
                    FeedForward(c.dim, 4 * c.dim, c.act),
                    norm=lambda: LayerNorm(c.dim, c.eps),
                    order="post",
                    dropout=c.dropout,
                )
                for _ in range(c.layers)
            ),
            masks=[causal],
        )


def heads(c: GPTConfig) -> dict[str, dict[str, Head]]:
    """GPT's heads; a classifier reads the last token, the only one that has seen all others."""
    lm = Head(out="vocab", bias=False)
    choose = Head(pool=c.summary, inner=("dropout",), out=1, after=c.summary_act, dropout=c.summary_dropout)
    return {
        "none": {},
        "lm": {"lm": lm},
        "double": {"lm": lm, "choose": choose},
        "classify": {"classify": Head(pool="last", bias=False)},
    }


ROWS: dict[str, str | Row] = {
    "vocab_size": "vocab", "n_positions": "context", "n_embd": "dim", "n_layer": "layers", "n_head": "heads",
    "layer_norm_epsilon": "eps", "resid_pdrop": "dropout", "embd_pdrop": "embed_dropout",
    "attn_pdrop": "attention_dropout",
    "summary_type": renamed("summary", {"cls_index": "last", "last": "last", "first": "first", "mean": "mean"}),
    "summary_activation": SUMMARY_ACT, "summary_first_dropout": "summary_dropout", "initializer_range": "init",
    "tie_word_embeddings": "tied", **TOKENS,
}  # fmt: skip
ALIASES = {
    "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}  # fmt: skip
FIXED = {"add_cross_attention": (False,), "summary_use_proj": (True,), "summary_proj_to_labels": (True,)}
IRRELEVANT = frozenset({"n_ctx", "n_special", "predict_special_tokens", "summary_last_dropout"})
HF_CONFIG = ConfigMap(
    ROWS | {"afn": renamed("act", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"})},
    aliases=ALIASES,
    fixed=FIXED,
    irrelevant=IRRELEVANT,
)

BLOCK: dict[str, str | Op] = {  # Linear weights are stored transposed, as a 1×1 convolution
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
}
HEADS: dict[str, dict[str, str | Op]] = {
    "lm": {"lm_head.weight": "out.weight"},
    "choose": {"multiple_choice_head.summary.*": "out.*"},
    "classify": {"score.weight": "out.weight"},
}
DROP = ("h.{i}.attn.bias", "h.{i}.attn.masked_bias")


def keys(c: GPTConfig, head: str) -> KeyMap:
    """The names of GPT-1's files."""
    return KeyMap(
        {
            "tokens_embed.weight": "embed.token.weight",
            "positions_embed.weight": "embed.position.weight",
            **BLOCK,
        },
        heads=HEADS,
        prefix="" if head == "none" else "transformer.",
        prefixes=("transformer.",),
        tied={"lm_head.weight": "tokens_embed.weight"} if c.tied else {},
        drop=(*DROP, "position_ids"),
    )


PRESETS: dict[str, dict[str, Any]] = {"openai-gpt": {}}

FAMILY = Family(
    GPTConfig, GPT, heads, pretraining="lm", counted="lm", init=bert.init, presets=PRESETS, segments=True,
    tokenizer="bpe", objective="causal", norm_order="post",
    hf=Format("openai-gpt", {
        "OpenAIGPTModel": "none", "OpenAIGPTLMHeadModel": "lm", "OpenAIGPTDoubleHeadsModel": "double",
        "OpenAIGPTForSequenceClassification": "classify",
    }, HF_CONFIG, keys),
)  # fmt: skip
