"""GPT-NeoX (Black et al. 2022, arXiv:2204.06745)

Parent  gptj
New     1. the rotated quarter of each head pairs its first half with its second, not neighbours   2. separate norms for
        attention and feed-forward, which still run in parallel   3. biases in attention, none in the output layer
Korean  각 헤드에서 회전하는 4분의 1은 앞 절반과 뒤 절반을 쌍으로 묶습니다. 어텐션과 피드포워드가 병렬로 계산되지만
        정규화를 따로 쓰고, 어텐션에는 편향이 있지만 출력 레이어에는 없습니다.
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: positions count from a document's first real token, even with left padding
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import HF_ACT_ROW, HF_TOKEN_ROWS, ConfigMap, JSONValue, KeyRule, Settings, format_value
from ..errors import Error
from ..family import CheckpointFormat, CitedSettings, Family, ModelConfig, PaperRecipe, Presets, cite_batch
from ..keymap import KeyMap, deinterleave_heads
from ..nn.attention.attention import Attention
from ..nn.attention.masks import causal
from ..nn.attention.positions import RotaryEmbedding
from ..nn.block import Block, BlockStack, TransformerBody
from ..nn.layers import Embeddings, FeedForward, LayerNorm, get_activation
from ..text.tokenizer_kinds import TokenizerStyle
from . import gpt2


@dataclass(frozen=True, kw_only=True)
class GPTNeoXConfig(ModelConfig):
    """GPT-NeoX's sizes and rates; the defaults are the 20B model."""

    vocab: int = 50432
    context: int = 2048
    dim: int = 6144
    layers: int = 44
    heads: int = 64
    ff: int = 24576
    rotary_fraction: float = 0.25  # share of each head that is turned
    base: float = 10000.0
    parallel: bool = True
    bias: bool = True  # of the attention's layers
    act: str = "gelu_tanh"
    eps: float = 1e-5
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float = 0.1
    init: float = 0.02
    tied: bool = False
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = None
    bos: int | None = 0
    eos: int | tuple[int, ...] | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        width = self.dim // self.heads
        if not 0 < self.rotary_dim <= width or self.rotary_dim % 2:
            share = f"rotary_fraction {self.rotary_fraction:g} of a head's {width} numbers"
            what = f"{share} is {self.rotary_dim}: it must be even, from 2 to {width}"
            raise Error(what, fix="set rotary_fraction to 1, or dim to a multiple of 8 · heads")
        if self.base <= 0:
            raise Error(f"base must be above 0, got {self.base}", fix="take 10000")
        get_activation(self.act)

    @property
    def rotary_dim(self) -> int:
        """How many numbers of each head are turned."""
        return int(self.dim // self.heads * self.rotary_fraction)


class GPTNeoX(TransformerBody):
    """A decoder: token → parallel blocks with two norms each → norm."""

    def __init__(self, config: GPTNeoXConfig):
        c = config
        rotary = RotaryEmbedding(c.rotary_dim, base=c.base)
        super().__init__(
            Embeddings(c.dim, c.vocab, dropout=c.dropout),
            BlockStack(
                Block(
                    Attention(c.dim, c.heads, bias=c.bias, dropout=c.attention_dropout, rotary=rotary),
                    FeedForward(c.dim, c.ff, c.act), norm=lambda: LayerNorm(c.dim, c.eps),
                    norm_order="parallel" if c.parallel else "pre", dropout=c.dropout,
                )
                for _ in range(c.layers)
            ),
            LayerNorm(c.dim, c.eps), masks=[causal],
        )  # fmt: skip


def build_init_rules(c: GPTNeoXConfig) -> dict[str, float]:
    """Initialise as in §2.1: residual outputs at 2/(layers·√dim), all else at √(2/(5·dim)) ("small init")."""
    residual = 2 / (c.layers * math.sqrt(c.dim))
    small = math.sqrt(2 / (5 * c.dim))
    return {"*": small, "*.attn.o.weight": residual, "*.ff.down.weight": residual}


def read_rope_settings(value: JSONValue) -> Settings:
    """Read their table of rotary settings; only the plain kind is the paper's."""
    if value is None:
        return {}
    kind = value.get("rope_type", value.get("type", "default"))
    other = set(value) - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    if kind != "default" or other:
        raise Error(f"formers cannot honour {format_value(value)}, only the plain rotary positions", fix="remove it")
    names = {"rope_theta": "base", "partial_rotary_factor": "rotary_fraction"}
    return {ours: value[theirs] for theirs, ours in names.items() if theirs in value}


HF_CONFIG = ConfigMap(
    {
        "vocab_size": "vocab", "max_position_embeddings": "context", "hidden_size": "dim",
        "num_hidden_layers": "layers", "num_attention_heads": "heads", "intermediate_size": "ff",
        "rope_parameters": KeyRule(read_rope_settings, lambda c: {
            "rope_type": "default", "rope_theta": c.base, "partial_rotary_factor": c.rotary_fraction,
        }),
        "use_parallel_residual": "parallel", "attention_bias": "bias", "hidden_act": HF_ACT_ROW,
        "layer_norm_eps": "eps", "hidden_dropout": "dropout", "attention_dropout": "attention_dropout",
        "classifier_dropout": "head_dropout", "initializer_range": "init", "tie_word_embeddings": "tied",
        **HF_TOKEN_ROWS,
    },
    legacy_rules={
        "rotary_pct": lambda v: {"rotary_fraction": v}, "rotary_emb_base": lambda v: {"base": v},
        "rope_scaling": read_rope_settings,
    },
    irrelevant_keys=frozenset({  # of old files; transformers passes over them
        "attention_probs_dropout_prob", "hidden_dropout_prob", "rope_theta", "partial_rotary_factor",
    }),
    defaults={"hidden_act": "gelu", "eos_token_id": 2},
)  # fmt: skip


def build_key_map(c: GPTNeoXConfig, head: str) -> KeyMap:
    """Map GPT-NeoX's names; queries, keys and values are interleaved by head."""
    return KeyMap(
        {
            "embed_in.weight": "embed.token.weight",
            "layers.{i}.input_layernorm.*": "blocks.{i}.attn_norm.*",
            "layers.{i}.attention.query_key_value.*": deinterleave_heads("blocks.{i}.attn.qkv.*", c.heads),
            "layers.{i}.attention.dense.*": "blocks.{i}.attn.o.*",
            "layers.{i}.post_attention_layernorm.*": "blocks.{i}.ff_norm.*",
            "layers.{i}.mlp.dense_h_to_4h.*": "blocks.{i}.ff.up.*",
            "layers.{i}.mlp.dense_4h_to_h.*": "blocks.{i}.ff.down.*",
            "final_layer_norm.*": "norm.*",
        },
        heads=gpt2.DECODER_HEAD_KEYS | {"lm": {"embed_out.weight": "out.weight"}},
        prefix="" if head == "none" else "gpt_neox.",
        prefixes=("gpt_neox.",),
        tied={"embed_out.weight": "embed_in.weight"} if c.tied else {},
        drop=(
            "layers.{i}.attention.bias", "layers.{i}.attention.masked_bias",
            "layers.{i}.attention.rotary_emb.inv_freq", "rotary_emb.inv_freq",
        ),
        aliases={"lm_head.weight": "embed_out.weight"},
    )  # fmt: skip


PYTHIA = {"vocab": 50304, "act": "gelu", "bos": 0, "eos": 0}
PRESETS: Presets = {
    "gpt-neox-20b": {},
    "pythia-70m": PYTHIA | {"dim": 512, "layers": 6, "heads": 8, "ff": 2048},
    "pythia-160m": PYTHIA | {"dim": 768, "layers": 12, "heads": 12, "ff": 3072},
    "pythia-410m": PYTHIA | {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
}

SPECIAL_TOKENS = {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "pad": "<|padding|>"}
STYLE = TokenizerStyle("gpt_neox", SPECIAL_TOKENS, ("<|endoftext|>", "<|padding|>"))
CODE = "released configs/20B.yml"


def cite_pythia(lr: float, size: str) -> CitedSettings:
    """Return what Pythia's models (Biderman et al. 2023) have in place of GPT-NeoX-20B's."""
    source = f"Pythia, released models/{size}/pythia-{size.lower()}.yml"
    return {
        "train.lr": (lr, source), "train.weight_decay": (0.1, source), "train.warmup_steps": (1_430, f"{source}: 1 %"),
        "train.steps": (143_000, source), **cite_batch(1024, 2048, source),
    }  # fmt: skip


PAPER = PaperRecipe(
    {
        "objective.name": ("causal", "§2"),
        "objective.across_documents": (True, "released gpt2_dataset.py: documents are joined"),
        "train.optimizer": ("adamw", CODE),
        "train.lr": (9.7e-5, CODE),
        "train.betas": ((0.9, 0.95), CODE),
        "train.eps": (1e-8, CODE),
        "train.weight_decay": (0.01, CODE),
        "train.schedule": ("cosine", CODE),
        "train.min_lr_ratio": (0.1, f"{CODE}: min_lr"),
        "train.warmup_steps": (1_500, f"{CODE}: 1 %"),
        "train.steps": (150_000, CODE),
        **cite_batch(1536, 2048, f"{CODE}: 4 × 32 on each of 12 replicas"),
        "train.grad_clip": (1.0, CODE),
        "model.dropout": (0.0, CODE),
        "model.attention_dropout": (0.0, CODE),
        "data.vocab_size": (50_257, "§3.2: as many as GPT-2"),
    },
    {
        "pythia-70m": cite_pythia(1e-3, "70M"),
        "pythia-160m": cite_pythia(6e-4, "160M"),
        "pythia-410m": cite_pythia(3e-4, "410M"),
    },
)

FAMILY = Family(
    GPTNeoXConfig, GPTNeoX, lambda c: gpt2.build_decoder_heads(c.head_dropout), pretraining_head="lm",
    counted_head="lm", presets=PRESETS, build_init_rules=build_init_rules, tokenizer="bpe", tokenizer_style=STYLE,
    objective="causal",
    paper_recipe=PAPER,
    hub_checkpoints=("EleutherAI/gpt-neox-20b", *(f"EleutherAI/pythia-{size}" for size in ("70m", "160m", "410m"))),
    hf_format=CheckpointFormat("gpt_neox", {
        "GPTNeoXModel": "none", "GPTNeoXForCausalLM": "lm", "GPTNeoXForSequenceClassification": "classify",
        "GPTNeoXForTokenClassification": "tag", "GPTNeoXForQuestionAnswering": "answer",
    }, HF_CONFIG, build_key_map),
)  # fmt: skip
