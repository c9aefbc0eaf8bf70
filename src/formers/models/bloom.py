"""BLOOM (BigScience Workshop 2022, arXiv:2211.05100)

Parent  gpt2
New     1. ALiBi: a penalty linear in the distance replaces positions   2. a norm right after the embeddings
        3. 46 natural and 13 programming languages, with a byte-level BPE of 250k
Korean  위치 임베딩 대신 거리에 비례하는 페널티(ALiBi)를 쓰고, 임베딩 바로 뒤에 정규화를 둡니다. 자연어 46개와
        프로그래밍 언어 13개를 다루며, 어휘 250k의 바이트 단위 BPE를 씁니다.
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: distances are relative; the reference adds a bias by the key's position, which differs by a
        constant for each query and cancels in the softmax
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import HF_TOKEN_ROWS, ConfigMap
from ..family import (
    CheckpointFormat,
    CitedSettings,
    Family,
    GpuSpeed,
    ModelConfig,
    PaperRecipe,
    Presets,
    cite_batch,
    count_growing_steps,
)
from ..keymap import KeyMap, deinterleave_heads
from ..nn.attention.attention import Attention
from ..nn.attention.masks import build_alibi, causal
from ..nn.block import Block, BlockStack, TransformerBody
from ..nn.layers import Embeddings, FeedForward, LayerNorm
from ..text.tokenizer_kinds import TokenizerStyle
from . import gpt2


@dataclass(frozen=True, kw_only=True)
class BLOOMConfig(ModelConfig):
    """BLOOM's sizes and rates; the defaults are the 560m model."""

    vocab: int = 250880
    dim: int = 1024
    layers: int = 24
    heads: int = 16
    eps: float = 1e-5
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init: float = 0.02
    tied: bool = True
    normed_residual: bool = False  # residual connections start after the norm, not before it
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = 3
    bos: int | None = 1
    eos: int | tuple[int, ...] | None = 2


class BLOOM(TransformerBody):
    """A decoder: token → norm → pre-norm blocks that see near tokens best → norm."""

    def __init__(self, config: BLOOMConfig):
        c = config
        super().__init__(
            Embeddings(c.dim, c.vocab, norm=LayerNorm(c.dim, c.eps)),
            BlockStack(
                Block(
                    Attention(c.dim, c.heads, dropout=c.attention_dropout), FeedForward(c.dim, 4 * c.dim, "gelu_tanh"),
                    norm=lambda: LayerNorm(c.dim, c.eps), dropout=c.dropout,
                    norm_order="normed" if c.normed_residual else "pre",
                )
                for _ in range(c.layers)
            ),
            LayerNorm(c.dim, c.eps), masks=[causal], bias=build_alibi(c.heads),
        )  # fmt: skip


HF_CONFIG = ConfigMap(
    {
        "vocab_size": "vocab", "hidden_size": "dim", "n_layer": "layers", "n_head": "heads",
        "layer_norm_epsilon": "eps", "hidden_dropout": "dropout", "attention_dropout": "attention_dropout",
        "initializer_range": "init", "tie_word_embeddings": "tied",
        "apply_residual_connection_post_layernorm": "normed_residual", **HF_TOKEN_ROWS,
    },
    aliases={
        "n_embed": "hidden_size", "n_embd": "hidden_size", "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head", "n_heads": "n_head", "n_layers": "n_layer",
    },
    # transformers' slow_but_exact leaves out biases (if pretraining_tp is above 1)
    fixed_values={"slow_but_exact": (False,)},
    irrelevant_keys=frozenset({
        "pretraining_tp", "masked_softmax_fusion", "bias_dropout_fusion", "offset_alibi",
        "seq_length", "skip_bias_add", "skip_bias_add_qkv", "attention_softmax_in_fp32", "pretraining_pp",
        "unk_token_id", "n_inner",
    }),
    defaults={"hidden_size": 64, "n_layer": 2, "n_head": 8, "pad_token_id": None},
)  # fmt: skip


def build_key_map(c: BLOOMConfig, head: str) -> KeyMap:
    """Map BLOOM's names; queries, keys and values are interleaved by head."""
    return KeyMap(
        {
            "word_embeddings.weight": "embed.token.weight",
            "word_embeddings_layernorm.*": "embed.norm.*",
            "h.{i}.input_layernorm.*": "blocks.{i}.attn_norm.*",
            "h.{i}.self_attention.query_key_value.*": deinterleave_heads("blocks.{i}.attn.qkv.*", c.heads),
            "h.{i}.self_attention.dense.*": "blocks.{i}.attn.o.*",
            "h.{i}.post_attention_layernorm.*": "blocks.{i}.ff_norm.*",
            "h.{i}.mlp.dense_h_to_4h.*": "blocks.{i}.ff.up.*",
            "h.{i}.mlp.dense_4h_to_h.*": "blocks.{i}.ff.down.*",
            "ln_f.*": "norm.*",
        },
        heads=gpt2.DECODER_HEAD_KEYS, prefix="" if head == "none" else "transformer.", prefixes=("transformer.",),
        tied={"lm_head.weight": "word_embeddings.weight"} if c.tied else {},
    )  # fmt: skip


PRESETS: Presets = {
    "bloom-560m": {},
    "bloom-1b1": {"dim": 1536},
    "bloom-1b7": {"dim": 2048},
    "bloom-3b": {"dim": 2560, "layers": 30, "heads": 32},
    "bloom-7b1": {"dim": 4096, "layers": 30, "heads": 32},
    "bloom": {"dim": 14336, "layers": 70, "heads": 112},
}

SPECIAL_TOKENS = {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}
STYLE = TokenizerStyle("bloom", SPECIAL_TOKENS, tuple(SPECIAL_TOKENS.values()))


SCRIPT = "released bigscience, train/tr11-176B-ml/tr11-176B-ml.slurm"
DROPOUT = "§3.5: no dropout, as in the published config.json; the released scripts leave Megatron's default of 0.1"
GROWTH = "released scripts, rampup-batch-size: from 192 sequences, over 20 billion tokens"


def cite_size(lr: float, sequences: int, least: float = 1e-5, tokens: float = 341e9) -> CitedSettings:
    """Return what differs by size in table 3: rate, batch, and tokens as steps. The batch grows over the first 20
    billion tokens, so that the first steps have fewer tokens than the rest."""
    step, source = sequences * 2048, "table 3"
    batch = cite_batch(sequences, 2048, source)
    each, pieces = (int(str(batch[f"train.{name}"][0])) for name in ("batch_tokens", "accumulate"))
    start = 192 * 2048 // each
    growing = round(20e9 / (each * (start + pieces - 1) / 2))  # steps; the number of batches is rounded down
    return {
        **batch,
        "train.batch_rampup_start": (start, GROWTH),
        "train.batch_rampup_steps": (growing, f"{GROWTH}; evenly over the steps, not over the sequences: ours"),
        "train.lr": (lr, source),
        "train.min_lr_ratio": (least / lr, f"{source}: {least:g}"),
        "train.warmup_steps": (count_growing_steps(375e6 / each, start, pieces, growing), f"{source}: 375 M tokens"),
        "train.decay_steps": (growing + round(390e9 / step), f"{source}: 410 billion tokens"),
        "train.steps": (growing + round((tokens - 20e9) / step), f"{source}: {tokens / 1e9:.0f} billion tokens"),
    }


PAPER = PaperRecipe(
    {
        "objective.name": ("causal", "§3.2"),
        "objective.across_documents": (True, "released gpt_dataset.py of Megatron-DeepSpeed: documents are joined"),
        "train.optimizer": ("adamw", "table 3: Adam with weight decay"),
        "train.betas": ((0.9, 0.95), "table 3"),
        "train.eps": (1e-8, SCRIPT),
        "train.weight_decay": (0.1, "table 3"),
        "train.schedule": ("cosine", "table 3"),
        "train.grad_clip": (1.0, "table 3"),
        "model.dropout": (0.0, DROPOUT),
        "model.attention_dropout": (0.0, DROPOUT),
        "data.vocab_size": (250_680, "§3.3 and table 3"),
        **cite_size(3e-4, 256),
    },
    {
        "bloom-1b1": cite_size(2.5e-4, 256), "bloom-1b7": cite_size(2e-4, 512), "bloom-3b": cite_size(1.6e-4, 512),
        "bloom-7b1": cite_size(1.2e-4, 512), "bloom": cite_size(6e-5, 2048, 6e-6, 366e9),
    },
)  # fmt: skip

FAMILY = Family(
    BLOOMConfig, BLOOM, lambda c: gpt2.build_decoder_heads(c.dropout), pretraining_head="lm", counted_head="lm",
    presets=PRESETS, build_init_rules=gpt2.build_init_rules, tokenizer="bpe", tokenizer_style=STYLE,
    objective="causal",
    paper_recipe=PAPER,
    hub_checkpoints=tuple(f"bigscience/bloom{size}" for size in ("-560m", "-1b1", "-1b7", "-3b", "-7b1", "")),
    hf_format=CheckpointFormat("bloom", {
        "BloomModel": "none", "BloomForCausalLM": "lm", "BloomForSequenceClassification": "classify",
        "BloomForTokenClassification": "tag", "BloomForQuestionAnswering": "answer",
    }, HF_CONFIG, build_key_map),
    h200_speed=GpuSpeed({"vocab": 32_000, "dim": 768, "layers": 12, "heads": 12}, 565_960, 1024),
)  # fmt: skip
