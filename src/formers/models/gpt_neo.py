"""GPT-Neo (Black et al. 2021, doi:10.5281/zenodo.5297715)

Parent  gpt2 (after gpt3)
New     1. global and local attention alternate; a local layer sees 256 tokens, including the token itself
        2. scores are not scaled by 1/√head_dim   3. queries, keys and values have no bias
Korean  전체 어텐션과 토큰 256개를 보는 국소 어텐션을 번갈아 씁니다. 점수를 √head_dim으로 나누지 않고, 쿼리·키·값에
        편향이 없습니다.
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: positions count from a document's first real token, even with left padding
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import HF_ACT_ROW, HF_TOKEN_ROWS, ConfigMap, JSONValue, KeyRule, Settings, check_sizes
from ..errors import Error
from ..family import CheckpointFormat, Family, ModelConfig, PaperRecipe, Presets, cite_batch
from ..keymap import KeyMap
from ..nn.attention.attention import Attention
from ..nn.attention.masks import build_layer_masks
from ..nn.block import Block, BlockStack, TransformerBody
from ..nn.layers import Embeddings, FeedForward, LayerNorm, get_activation
from . import gpt2


@dataclass(frozen=True, kw_only=True)
class GPTNeoConfig(ModelConfig):
    """GPT-Neo's sizes and rates; the defaults are the 1.3B model."""

    vocab: int = 50257
    context: int = 2048
    dim: int = 2048
    layers: int = 24
    heads: int = 16
    ff: int | None = None  # None: 4 · dim
    pattern: tuple[str, ...] = ("global", "local")  # of the layers, repeated
    window: int = 256
    act: str = "gelu_tanh"
    eps: float = 1e-5
    dropout: float = 0.0
    embed_dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float = 0.1
    init: float = 0.02  # as transformers; the released code draws q with 1/√(dim · head_dim), k, v and o with 1/√dim
    tied: bool = True
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = None
    bos: int | None = 50256
    eos: int | tuple[int, ...] | None = 50256

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window")
        get_activation(self.act)
        build_layer_masks(self.pattern, self.window, self.layers)


class GPTNeo(TransformerBody):
    """A decoder: token + position → pre-norm blocks, every other one local → norm."""

    def __init__(self, config: GPTNeoConfig):
        c = config
        super().__init__(
            Embeddings(c.dim, c.vocab, positions=c.context, dropout=c.embed_dropout),
            BlockStack(
                Block(
                    Attention(c.dim, c.heads, bias=False, out_bias=True, scale=1.0, dropout=c.attention_dropout),
                    FeedForward(c.dim, c.ff or 4 * c.dim, c.act), norm=lambda: LayerNorm(c.dim, c.eps),
                    dropout=c.dropout,
                )
                for _ in range(c.layers)
            ),
            LayerNorm(c.dim, c.eps), masks=build_layer_masks(c.pattern, c.window, c.layers),
        )  # fmt: skip


def read_attention_types(types: JSONValue) -> Settings:
    """Read [[["global", "local"], 12]], patterns with their repetitions, as the shortest pattern that repeats."""
    pattern = [kind for kinds, times in types for _ in range(min(times, 1000)) for kind in kinds]
    if not pattern or len(pattern) > 1000:
        raise Error("attention_types names no layers, or too many", fix='write for example [[["global", "local"], 12]]')
    every = range(len(pattern))
    period = next(n for n in range(1, len(pattern) + 1) if all(pattern[i] == pattern[i % n] for i in every))
    return {"pattern": tuple(pattern[:period])}


HF_CONFIG = ConfigMap(
    {
        "vocab_size": "vocab", "max_position_embeddings": "context", "hidden_size": "dim", "num_layers": "layers",
        "num_heads": "heads", "intermediate_size": "ff", "window_size": "window",
        "attention_types": KeyRule(
            read_attention_types, lambda c: [[[c.pattern[i % len(c.pattern)] for i in range(c.layers)], 1]]
        ),
        "activation_function": HF_ACT_ROW, "layer_norm_epsilon": "eps", "resid_dropout": "dropout",
        "embed_dropout": "embed_dropout", "attention_dropout": "attention_dropout",
        "classifier_dropout": "head_dropout", "initializer_range": "init", "tie_word_embeddings": "tied",
        **HF_TOKEN_ROWS,
    },
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    irrelevant_keys=frozenset({
        "attention_layers", "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels",
        "summary_first_dropout",
    }),
)  # fmt: skip


def build_key_map(c: GPTNeoConfig, head: str) -> KeyMap:
    """Map GPT-Neo's names; Linear weights are not transposed."""
    return KeyMap(
        {
            "wte.weight": "embed.token.weight",
            "wpe.weight": "embed.position.weight",
            "h.{i}.ln_1.*": "blocks.{i}.attn_norm.*",
            "h.{i}.attn.attention.(q_proj|k_proj|v_proj).weight": "blocks.{i}.attn.qkv.weight",
            "h.{i}.attn.attention.out_proj.*": "blocks.{i}.attn.o.*",
            "h.{i}.ln_2.*": "blocks.{i}.ff_norm.*",
            "h.{i}.mlp.c_fc.*": "blocks.{i}.ff.up.*",
            "h.{i}.mlp.c_proj.*": "blocks.{i}.ff.down.*",
            "ln_f.*": "norm.*",
        },
        heads=gpt2.DECODER_HEAD_KEYS, prefix="" if head == "none" else "transformer.", prefixes=("transformer.",),
        tied={"lm_head.weight": "wte.weight"} if c.tied else {},
        drop=("h.{i}.attn.attention.bias", "h.{i}.attn.attention.masked_bias"),
    )  # fmt: skip


PRESETS: Presets = {
    "gpt-neo-125m": {"dim": 768, "layers": 12, "heads": 12},
    "gpt-neo-1.3b": {},
    "gpt-neo-2.7b": {"dim": 2560, "layers": 32, "heads": 20},
}

CODE = "released configs/gpt3_XL_256_Pile.json"
PAPER = PaperRecipe(
    {
        "objective.name": ("causal", "released README"),
        "objective.across_documents": (True, "released data/create_tfrecords.py: documents are joined"),
        "train.optimizer": ("adamw", "released optimizers.py: AdamWeightDecayOptimizer"),
        "train.lr": (2e-4, CODE),
        "train.betas": ((0.9, 0.95), CODE),
        "train.eps": (1e-8, CODE),
        "train.weight_decay": (0.1, CODE),
        "train.schedule": ("cosine", CODE),
        "train.min_lr_ratio": (0.1, "released optimizers.py: alpha"),
        "train.warmup_steps": (3_000, CODE),
        "train.steps": (362_000, f"model card of gpt-neo-1.3B; 286,150 in {CODE}"),
        **cite_batch(512, 2048, CODE),
        "train.grad_clip": (1.0, CODE),
        "model.dropout": (0.0, CODE),
        "model.embed_dropout": (0.0, CODE),
        "model.attention_dropout": (0.0, CODE),
        "data.vocab_size": (50_257, CODE),
    },
    {
        "gpt-neo-125m": {
            "train.lr": (6e-4, "not published; GPT-3's of this size, table 2.1"),
            "train.steps": (572_300, "model card of gpt-neo-125m"),
            **cite_batch(256, 2048, "model card of gpt-neo-125m: 300 billion tokens"),
        },
        "gpt-neo-2.7b": {
            "train.lr": (1.6e-4, "not published; GPT-3's of this size, table 2.1"),
            "train.steps": (400_000, "model card of gpt-neo-2.7B"),
        },
    },
)

FAMILY = Family(
    GPTNeoConfig, GPTNeo, lambda c: gpt2.build_decoder_heads(c.head_dropout), pretraining_head="lm", counted_head="lm",
    presets=PRESETS, reads_segments=True, tokenizer="bpe", tokenizer_style=gpt2.FAMILY.tokenizer_style,
    objective="causal",
    paper_recipe=PAPER,
    hub_checkpoints=tuple(f"EleutherAI/gpt-neo-{size}" for size in ("125m", "1.3B", "2.7B")),
    hf_format=CheckpointFormat("gpt_neo", {
        "GPTNeoModel": "none", "GPTNeoForCausalLM": "lm", "GPTNeoForSequenceClassification": "classify",
        "GPTNeoForTokenClassification": "tag", "GPTNeoForQuestionAnswering": "answer",
    }, HF_CONFIG, build_key_map),
)  # fmt: skip
