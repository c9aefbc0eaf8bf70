"""GPT-1 (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training")

Parent  transformer (its decoder, without cross attention)
New     1. pretrained as a language model, then fine-tuned with language modelling as an auxiliary loss   2. learned
        positions   3. each task is written as one sequence with start, delimiter and classify tokens   4. BPE of 40k
        5. tanh-gelu
Korean  언어 모델로 사전 학습한 뒤, 언어 모델 손실을 보조 손실로 두고 미세 조정합니다. 과제마다 시작, 구분, 추출
        토큰을 넣어 시퀀스 하나로 만듭니다. 위치 임베딩을 학습하고, 어휘 40k의 BPE를 씁니다.
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: positions count from a document's first real token, even with left padding; in the second
        head, "last" and "mean" read a text's own tokens, where transformers also reads the padding
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import HF_SUMMARY_ROW, HF_TOKEN_ROWS, ConfigMap, KeyRule, rename_key
from ..family import CheckpointFormat, Family, Head, ModelConfig, PaperRecipe, Pooling, Presets, Recipe, cite_batch
from ..keymap import KeyMap, TensorOp, transpose_tensor
from ..nn.attention.attention import Attention
from ..nn.attention.masks import causal
from ..nn.block import Block, BlockStack, TransformerBody
from ..nn.layers import Embeddings, FeedForward, LayerNorm, get_activation
from ..text.tokenizer_kinds import PublishedForm, TokenizerStyle


@dataclass(frozen=True, kw_only=True)
class GPTConfig(ModelConfig):
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
    summary: Pooling = "last"  # which token the second of the double heads reads
    summary_act: str | None = None
    summary_dropout: float = 0.1
    init: float = 0.02
    tied: bool = True
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = None
    bos: int | None = None
    eos: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        get_activation(self.act)
        get_activation(self.summary_act or "linear")


class GPT(TransformerBody):
    """A decoder: token + position → post-norm blocks."""

    def __init__(self, config: GPTConfig):
        c = config
        super().__init__(
            Embeddings(c.dim, c.vocab, positions=c.context, dropout=c.embed_dropout),
            BlockStack(
                Block(
                    Attention(c.dim, c.heads, dropout=c.attention_dropout), FeedForward(c.dim, 4 * c.dim, c.act),
                    norm=lambda: LayerNorm(c.dim, c.eps), norm_order="post", dropout=c.dropout,
                )
                for _ in range(c.layers)
            ),
            masks=[causal],
        )  # fmt: skip


def build_heads(c: GPTConfig) -> dict[str, dict[str, Head]]:
    """Build GPT's heads; a classifier reads the last token, the only one that has seen all others."""
    lm = Head(out="vocab", bias=False)
    choose = Head(pool=c.summary, inner_layers=("dropout",), out=1, out_act=c.summary_act, dropout=c.summary_dropout)
    return {
        "none": {},
        "lm": {"lm": lm},
        "double": {"lm": lm, "choose": choose},
        "classify": {"classify": Head(pool="last", bias=False)},
    }


CONFIG_ROWS: dict[str, str | KeyRule] = {
    "vocab_size": "vocab", "n_positions": "context", "n_embd": "dim", "n_layer": "layers", "n_head": "heads",
    "layer_norm_epsilon": "eps", "resid_pdrop": "dropout", "embd_pdrop": "embed_dropout",
    "attn_pdrop": "attention_dropout",
    "summary_type": rename_key("summary", {"cls_index": "last", "last": "last", "first": "first", "mean": "mean"}),
    "summary_activation": HF_SUMMARY_ROW, "summary_first_dropout": "summary_dropout", "initializer_range": "init",
    "tie_word_embeddings": "tied", **HF_TOKEN_ROWS,
}  # fmt: skip
CONFIG_ALIASES = {
    "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}  # fmt: skip
FIXED_CONFIG = {"add_cross_attention": (False,), "summary_use_proj": (True,), "summary_proj_to_labels": (True,)}
IRRELEVANT_KEYS = frozenset({"n_ctx", "n_special", "predict_special_tokens", "summary_last_dropout"})
HF_CONFIG = ConfigMap(
    CONFIG_ROWS | {"afn": rename_key("act", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"})},
    aliases=CONFIG_ALIASES, fixed_values=FIXED_CONFIG, irrelevant_keys=IRRELEVANT_KEYS,
)  # fmt: skip

BLOCK_KEYS: dict[str, str | TensorOp] = {  # Linear weights are stored transposed, as a 1×1 convolution
    "h.{i}.ln_1.*": "blocks.{i}.attn_norm.*",
    "h.{i}.attn.c_attn.weight": transpose_tensor("blocks.{i}.attn.qkv.weight"),
    "h.{i}.attn.c_attn.bias": "blocks.{i}.attn.qkv.bias",
    "h.{i}.attn.c_proj.weight": transpose_tensor("blocks.{i}.attn.o.weight"),
    "h.{i}.attn.c_proj.bias": "blocks.{i}.attn.o.bias",
    "h.{i}.ln_2.*": "blocks.{i}.ff_norm.*",
    "h.{i}.mlp.c_fc.weight": transpose_tensor("blocks.{i}.ff.up.weight"),
    "h.{i}.mlp.c_fc.bias": "blocks.{i}.ff.up.bias",
    "h.{i}.mlp.c_proj.weight": transpose_tensor("blocks.{i}.ff.down.weight"),
    "h.{i}.mlp.c_proj.bias": "blocks.{i}.ff.down.bias",
}
HEAD_KEYS: dict[str, dict[str, str | TensorOp]] = {
    "lm": {"lm_head.weight": "out.weight"},
    "choose": {"multiple_choice_head.summary.*": "out.*"},
    "classify": {"score.weight": "out.weight"},
}
DROPPED_KEYS = ("h.{i}.attn.bias", "h.{i}.attn.masked_bias")


def build_key_map(c: GPTConfig, head: str) -> KeyMap:
    """Map the names of GPT-1's files."""
    return KeyMap(
        {
            "tokens_embed.weight": "embed.token.weight",
            "positions_embed.weight": "embed.position.weight",
            **BLOCK_KEYS,
        },
        heads=HEAD_KEYS, prefix="" if head == "none" else "transformer.", prefixes=("transformer.",),
        tied={"lm_head.weight": "tokens_embed.weight"} if c.tied else {}, drop=(*DROPPED_KEYS, "position_ids"),
    )  # fmt: skip


PRESETS: Presets = {"openai-gpt": {}}

PAPER = PaperRecipe(
    {
        "objective.name": ("causal", "§3.1"),
        "train.optimizer": ("adamw", "§4.1: Adam with a modified L2 regularisation (Loshchilov & Hutter 2017)"),
        "train.lr": (2.5e-4, "§4.1"),
        "train.betas": ((0.9, 0.999), "released train.py of fine-tuning"),
        "train.eps": (1e-8, "released train.py of fine-tuning"),
        "train.weight_decay": (0.01, "§4.1"),
        "train.schedule": ("cosine", "§4.1"),
        "train.min_lr_ratio": (0.0, "§4.1: annealed to 0"),
        "train.warmup_steps": (2_000, "§4.1"),
        "train.steps": (2_441_406, "§4.1: 100 epochs; of 800 M words (BERT, §3.1), counted as tokens: ours"),
        **cite_batch(64, 512, "§4.1"),
        "train.grad_clip": (1.0, "released train.py of fine-tuning"),
        "model.dropout": (0.1, "§4.1"),
        "model.embed_dropout": (0.1, "§4.1"),
        "model.attention_dropout": (0.1, "§4.1"),
        "data.vocab_size": (40_000, "§4.1: 40,000 merges"),
    }
)

SPECIAL_TOKENS = {"unk": "<unk>", "bos": "<start>", "sep": "<delimiter>", "cls": "<classify>"}
STYLE = TokenizerStyle(
    "gpt", SPECIAL_TOKENS, ("<unk>",), ("<start>", "<delimiter>", "<classify>"),
    "<start> $A <classify>", "<start> $A <delimiter> $B <classify>", has_word_ends=True,
    published_forms=(PublishedForm(("merges.txt",), special={"unk": "<unk>"}),),  # without those of fine-tuning
)  # fmt: skip
FAMILY = Family(
    GPTConfig, GPT, build_heads, pretraining_head="lm", counted_head="lm", presets=PRESETS, reads_segments=True,
    tokenizer="bpe", tokenizer_style=STYLE, objective="causal", norm_order="post",
    quick_recipe=Recipe({"lr": 1e-3}),  # it stalls at rates that other post-norm families bear
    paper_recipe=PAPER,
    finetune_recipe=Recipe(tune={"lm_loss_weight": 0.5}),  # §3.2
    reads_both_orders=True,  # §3.3
    adds_task_tokens=True,
    hub_checkpoints=("openai-community/openai-gpt",),
    hf_format=CheckpointFormat("openai-gpt", {
        "OpenAIGPTModel": "none", "OpenAIGPTLMHeadModel": "lm", "OpenAIGPTDoubleHeadsModel": "double",
        "OpenAIGPTForSequenceClassification": "classify",
    }, HF_CONFIG, build_key_map),
)  # fmt: skip
