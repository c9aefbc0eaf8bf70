"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners")

Parent  gpt
New     1. pre-norm: the norm moves to the input of each sub-block, with one more after the last block   2. the initial
        weights of residual projections are scaled by 1/√(2·layers)   3. byte-level BPE of 50,257   4. context 1024
Korean  정규화를 각 하위 블록의 앞으로 옮기고 마지막 블록 뒤에 하나를 더합니다. 잔차 사영의 초깃값을 1/√(2·레이어
        수)배로 줄이고, 50,257개의 바이트 단위 BPE와 길이 1,024의 문맥을 씁니다.
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: as gpt
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import HF_ACT_ROW, ConfigMap
from ..family import OURS, CheckpointFormat, Family, GpuSpeed, Head, PaperRecipe, Presets, cite_batch
from ..keymap import KeyMap, TensorOp
from ..nn.attention.attention import Attention
from ..nn.attention.masks import causal
from ..nn.block import Block, BlockStack, TransformerBody
from ..nn.layers import Embeddings, FeedForward, LayerNorm
from ..text.tokenizer_kinds import PublishedForm, TokenizerStyle
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


class GPT2(TransformerBody):
    """A decoder: token + position → pre-norm blocks → norm."""

    def __init__(self, config: GPT2Config):
        c = config
        scale = (c.dim // c.heads) ** -0.5 if c.scale else 1.0
        super().__init__(
            Embeddings(c.dim, c.vocab, positions=c.context, dropout=c.embed_dropout),
            BlockStack(
                Block(
                    Attention(
                        c.dim, c.heads, scale=scale / (i + 1) if c.scale_by_layer else scale,
                        dropout=c.attention_dropout,
                    ),
                    FeedForward(c.dim, c.ff or 4 * c.dim, c.act), norm=lambda: LayerNorm(c.dim, c.eps),
                    dropout=c.dropout,
                )
                for i in range(c.layers)
            ),
            LayerNorm(c.dim, c.eps), masks=[causal],
        )  # fmt: skip


def build_decoder_heads(dropout: float) -> dict[str, dict[str, Head]]:
    """Build the heads that all decoders after GPT share; a classifier reads the last token."""
    return {
        "none": {},
        "lm": {"lm": Head(out="vocab", bias=False)},
        "classify": {"classify": Head(pool="last", bias=False)},
        "tag": {"tag": Head(inner_layers=("dropout",), dropout=dropout)},
        "answer": {"answer": Head(out=2)},
    }


def build_heads(c: GPT2Config) -> dict[str, dict[str, Head]]:
    """Build GPT's heads, and those for tagging and answers."""
    return build_decoder_heads(c.head_dropout) | gpt.build_heads(c)


def build_init_rules(c: GPT2Config) -> dict[str, float]:
    """Scale projections into the residual stream by 1/√(number of such projections), as in §2.3."""
    residual = c.init / math.sqrt(2 * c.layers)
    return {"*": c.init, "*.attn.o.weight": residual, "*.ff.down.weight": residual}


HF_CONFIG = ConfigMap(
    gpt.CONFIG_ROWS | {
        "n_inner": "ff", "activation_function": HF_ACT_ROW, "classifier_dropout": "head_dropout",
        "scale_attn_weights": "scale", "scale_attn_by_inverse_layer_idx": "scale_by_layer",
    },
    aliases=gpt.CONFIG_ALIASES, fixed_values=gpt.FIXED_CONFIG,
    irrelevant_keys=gpt.IRRELEVANT_KEYS | {"reorder_and_upcast_attn"},
)  # fmt: skip


DECODER_HEAD_KEYS: dict[str, dict[str, str | TensorOp]] = {
    "lm": {"lm_head.weight": "out.weight"},
    "classify": {"score.weight": "out.weight"},
    "tag": {"classifier.*": "out.*"},
    "answer": {"qa_outputs.*": "out.*"},
}


def build_key_map(c: GPT2Config, head: str) -> KeyMap:
    """Map the names of GPT-2's files."""
    return KeyMap(
        {
            "wte.weight": "embed.token.weight",
            "wpe.weight": "embed.position.weight",
            **gpt.BLOCK_KEYS,
            "ln_f.*": "norm.*",
        },
        heads=DECODER_HEAD_KEYS | gpt.HEAD_KEYS, prefix="" if head == "none" else "transformer.",
        prefixes=("transformer.",), tied={"lm_head.weight": "wte.weight"} if c.tied else {}, drop=gpt.DROPPED_KEYS,
    )  # fmt: skip


PRESETS: Presets = {
    "gpt2": {},
    "gpt2-medium": {"dim": 1024, "layers": 24, "heads": 16},
    "gpt2-large": {"dim": 1280, "layers": 36, "heads": 20},
    "gpt2-xl": {"dim": 1600, "layers": 48, "heads": 25},
    "gpt2-mini": {"vocab": 8192, "context": 256, "dim": 256, "layers": 4, "heads": 4, "bos": None, "eos": None},
}

BORROWED = "not stated; GPT-3's"
LR_SOURCE = "§3: tuned by hand, not stated; GPT-3's of the nearest size (its table 2.1)"
PAPER = PaperRecipe(
    {
        "objective.name": ("causal", "§2"),
        "objective.across_documents": (True, BORROWED),
        "train.optimizer": ("adamw", BORROWED),
        "train.lr": (6e-4, LR_SOURCE),
        "train.betas": ((0.9, 0.95), BORROWED),
        "train.eps": (1e-8, BORROWED),
        "train.weight_decay": (0.1, BORROWED),
        "train.schedule": ("cosine", BORROWED),
        "train.min_lr_ratio": (0.1, f"{BORROWED}, appendix B"),
        "train.warmup_steps": (715, f"{BORROWED}: 375 M tokens"),
        "train.steps": (600_000, OURS),
        **cite_batch(512, 1024, "§2.3"),
        "train.batch_tokens": (65_536, "§2.3: a batch size of 512, taken as sequences of 1,024"),
        "train.grad_clip": (1.0, BORROWED),
        "model.dropout": (0.1, "not stated; GPT's"),
        "model.embed_dropout": (0.1, "not stated; GPT's"),
        "model.attention_dropout": (0.1, "not stated; GPT's"),
        "data.vocab_size": (50_257, "§2.3"),
    },
    {  # the rates of GPT-3's table 2.1 for 350 M, 760 M and 1.3 B parameters
        "gpt2-medium": {"train.lr": (3e-4, LR_SOURCE)}, "gpt2-large": {"train.lr": (2.5e-4, LR_SOURCE)},
        "gpt2-xl": {"train.lr": (2e-4, LR_SOURCE)},
    },
)  # fmt: skip

SPECIAL_TOKENS = {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
STYLE = TokenizerStyle(
    "gpt2", SPECIAL_TOKENS, (), ("<|endoftext|>",), default_kinds=("bpe", "jamo"),
    published_forms=(PublishedForm(("merges.txt",), special=SPECIAL_TOKENS | {"unk": "<|endoftext|>"}),),
)  # fmt: skip
FAMILY = Family(
    GPT2Config, GPT2, build_heads, pretraining_head="lm", counted_head="lm", build_init_rules=build_init_rules,
    presets=PRESETS, reads_segments=True, tokenizer="bpe", tokenizer_style=STYLE, objective="causal",
    shown_objectives=("causal", "prefix"), paper_recipe=PAPER,
    hub_checkpoints=tuple(f"openai-community/gpt2{size}" for size in ("", "-medium", "-large", "-xl")),
    hf_format=CheckpointFormat("gpt2", {
        "GPT2Model": "none", "GPT2LMHeadModel": "lm", "GPT2DoubleHeadsModel": "double",
        "GPT2ForSequenceClassification": "classify", "GPT2ForTokenClassification": "tag",
        "GPT2ForQuestionAnswering": "answer",
    }, HF_CONFIG, build_key_map),
    h200_speed=GpuSpeed("gpt2", 510_983, 1024),
)  # fmt: skip
