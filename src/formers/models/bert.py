"""BERT (Devlin et al. 2018, arXiv:1810.04805)

Parent  transformer (its encoder)
New     1. bidirectional attention, trained as a masked language model   2. next sentence prediction
        3. segments A and B, and a [CLS] token whose pooled state represents the sequence   4. WordPiece of 30k
Korean  양쪽 문맥을 모두 보는 마스크 언어 모델입니다. 다음 문장 예측을 함께 학습하고, 세그먼트 A와 B, [CLS] 토큰, 어휘
        30k의 WordPiece를 씁니다.
Shapes  ids (N,), segments (N,) → hidden (N, dim) → mlm logits (M, vocab), nsp logits (D, 2)
Differs from the reference: no known differences
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..config import HF_ACT_ROW, HF_TOKEN_ROWS, ConfigMap, KeyRule, check_sizes
from ..family import CheckpointFormat, Family, GpuSpeed, Head, ModelConfig, PaperRecipe, Presets, Recipe, cite_batch
from ..keymap import KeyMap, TensorOp
from ..nn.attention.attention import Attention
from ..nn.attention.masks import causal
from ..nn.block import Block, BlockStack, TransformerBody
from ..nn.layers import Embeddings, FeedForward, LayerNorm, get_activation
from ..text.tokenizer_kinds import PublishedForm, TokenizerStyle


@dataclass(frozen=True, kw_only=True)
class BERTConfig(ModelConfig):
    """BERT's sizes and rates; the defaults are BERT-base, uncased."""

    vocab: int = 30522
    context: int = 512
    segments: int = 2
    dim: int = 768
    layers: int = 12
    heads: int = 12
    ff: int = 3072
    act: str = "gelu"
    eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float | None = None  # None: dropout
    offset: int = 0  # the row of the position table that the first token reads
    causal: bool = False  # read left to right, as a language model
    init: float = 0.02  # the deviation of all weights (appendix A.2 and the released code)
    tied: bool = True
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = 0
    bos: int | None = None
    eos: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "segments")
        check_sizes(self, "offset", minimum=0)
        get_activation(self.act)


class BERT(TransformerBody):
    """An encoder: token + position + segment → norm → post-norm blocks."""

    def __init__(self, config: BERTConfig):
        c = config
        super().__init__(
            Embeddings(
                c.dim, c.vocab, positions=c.context, segments=c.segments, offset=c.offset, norm=LayerNorm(c.dim, c.eps),
                dropout=c.dropout,
            ),
            BlockStack(
                Block(
                    Attention(c.dim, c.heads, dropout=c.attention_dropout), FeedForward(c.dim, c.ff, c.act),
                    norm=lambda: LayerNorm(c.dim, c.eps), norm_order="post", dropout=c.dropout,
                )
                for _ in range(c.layers)
            ),
            masks=[causal if c.causal else None], stack_name="encoder",
        )  # fmt: skip


def build_heads(c: BERTConfig) -> dict[str, dict[str, Head]]:
    """Build BERT's heads; the pooler is tanh(dense(first token)), and masked tokens get a layer of their own."""
    pooler, dropout = ("dense", "tanh"), c.dropout if c.head_dropout is None else c.head_dropout
    mlm = Head(inner_layers=("dense", c.act, "norm"), out="vocab")
    nsp = Head(pool="first", inner_layers=pooler, out=2)
    return {
        "none": {"pool": Head(pool="first", inner_layers=pooler, out=None, optional=True)},
        "mlm": {"mlm": mlm},
        "lm": {"lm": mlm},
        "nsp": {"nsp": nsp},
        "pretraining": {"mlm": mlm, "nsp": nsp},
        "classify": {"classify": Head(pool="first", inner_layers=(*pooler, "dropout"), dropout=dropout)},
        "tag": {"tag": Head(inner_layers=("dropout",), dropout=dropout)},
        "answer": {"answer": Head(out=2)},
        "choose": {"choose": Head(pool="first", inner_layers=(*pooler, "dropout"), out=1, dropout=dropout)},
    }


CONFIG_ROWS: dict[str, str | KeyRule] = {
    "vocab_size": "vocab", "max_position_embeddings": "context", "type_vocab_size": "segments", "hidden_size": "dim",
    "num_hidden_layers": "layers", "num_attention_heads": "heads", "intermediate_size": "ff", "hidden_act": HF_ACT_ROW,
    "layer_norm_eps": "eps", "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout",
    "classifier_dropout": "head_dropout", "is_decoder": "causal", "initializer_range": "init",
    "tie_word_embeddings": "tied", **HF_TOKEN_ROWS,
}  # fmt: skip
FIXED_CONFIG = {"add_cross_attention": (False,), "position_embedding_type": ("absolute",)}
HF_CONFIG = ConfigMap(CONFIG_ROWS, fixed_values=FIXED_CONFIG, irrelevant_keys=frozenset({
    "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
    "pooler_type",
}))  # fmt: skip

BODY_KEYS: dict[str, str | TensorOp] = {
    "embeddings.word_embeddings.weight": "embed.token.weight",
    "embeddings.position_embeddings.weight": "embed.position.weight",
    "embeddings.token_type_embeddings.weight": "embed.segment.weight",
    "embeddings.LayerNorm.*": "embed.norm.*",
    "encoder.layer.{i}.attention.self.(query|key|value).*": "blocks.{i}.attn.qkv.*",
    "encoder.layer.{i}.attention.output.dense.*": "blocks.{i}.attn.o.*",
    "encoder.layer.{i}.attention.output.LayerNorm.*": "blocks.{i}.attn_norm.*",
    "encoder.layer.{i}.intermediate.dense.*": "blocks.{i}.ff.up.*",
    "encoder.layer.{i}.output.dense.*": "blocks.{i}.ff.down.*",
    "encoder.layer.{i}.output.LayerNorm.*": "blocks.{i}.ff_norm.*",
}
NSP_KEYS = {"nsp": {"@pooler.dense.*": "dense.*", "cls.seq_relationship.*": "out.*"}}
OLD_NORM_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def build_key_map(
    c: BERTConfig, head: str, base: str = "bert", body: Mapping[str, str | TensorOp] = BODY_KEYS, *,
    transform: str = "cls.predictions.transform", norm: str = "LayerNorm", out: str = "cls.predictions",
    pooler: str = "@pooler.dense", heads: Mapping[str, Mapping[str, str]] = NSP_KEYS,
) -> KeyMap:  # fmt: skip
    """Map the names of BERT's own files, or those of its descendants: of the layers before the masked tokens' output
    (`transform` and its `norm`), of that output, of the pooler and of more `heads`. An untied output layer has a weight
    and a bias of its own."""
    weight, bias, own_bias = f"{out}.decoder.weight", f"{out}.bias", f"{out}.decoder.bias"
    pool, classifier = {f"{pooler}.*": "dense.*"}, {"classifier.*": "out.*"}
    mlm = {
        f"{transform}.dense.*": "dense.*", f"{transform}.{norm}.*": "norm.*", weight: "out.weight",
        bias if c.tied else own_bias: "out.bias",
    }  # fmt: skip
    return KeyMap(
        body,
        heads={
            "pool": pool, "mlm": mlm, "lm": mlm, "classify": pool | classifier, "tag": classifier,
            "answer": {"qa_outputs.*": "out.*"}, "choose": pool | classifier, **heads,
        },
        prefix="" if head == "none" else f"{base}.", prefixes=(f"{base}.",),
        tied={weight: "embeddings.word_embeddings.weight", own_bias: bias} if c.tied else {},
        alternate_names={} if c.tied else {bias: own_bias},
        drop=("embeddings.position_ids", "embeddings.token_type_ids"), aliases=OLD_NORM_NAMES,
    )  # fmt: skip


PRESETS: Presets = {
    "bert-base": {},
    "bert-large": {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
    "bert-base-cased": {"vocab": 28996},
    "bert-large-cased": {"vocab": 28996, "dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
    "bert-base-multilingual-cased": {"vocab": 119547},
    "bert-mini": {"vocab": 8192, "context": 256, "dim": 256, "layers": 4, "heads": 4, "ff": 1024},
}

# Short examples: in 1,500 steps a model of this size gets to 3.8 nats with 24 tokens, and to 5.4 with 128.
QUICK_MODEL = {"dim": 96, "layers": 2, "ff": 384, "context": 32}
QUICK_TRAIN = {"steps": 1500, "batch_tokens": 2040, "seq_length": 24, "lr": 1.5e-3}
PAPER = PaperRecipe(
    {
        "objective.name": ("nsp", "§3.1"),
        "objective.mask_rate": (0.15, "§3.1, task 1"),
        "objective.short_seq_prob": (0.1, "released create_pretraining_data.py"),
        "train.optimizer": ("adamw", "§A.2: Adam with weight decay; released optimization.py decouples it"),
        "train.lr": (1e-4, "§A.2"),
        "train.betas": ((0.9, 0.999), "§A.2"),
        "train.eps": (1e-6, "released optimization.py"),
        "train.weight_decay": (0.01, "§A.2"),
        "train.schedule": ("linear", "§A.2"),
        "train.warmup_steps": (10_000, "§A.2"),
        "train.steps": (1_000_000, "§A.2"),
        **cite_batch(256, 512, "§A.2"),
        "train.short_length": (128, "§A.2: for 90 % of the steps; here with as many tokens a step as the rest"),
        "train.grad_clip": (1.0, "released optimization.py"),
        "model.dropout": (0.1, "§A.2"),
        "model.attention_dropout": (0.1, "§A.2: on all layers"),
        "data.vocab_size": (30_000, "§3"),
    }
)

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
STYLE = TokenizerStyle(
    "bert", SPECIAL_TOKENS, tuple(SPECIAL_TOKENS.values()), (), "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1",
    default_kinds=("wordpiece",), published_forms=(PublishedForm(("vocab.txt",)),),
)  # fmt: skip
FAMILY = Family(
    BERTConfig, BERT, build_heads, pretraining_head="pretraining", counted_head="none", presets=PRESETS,
    reads_segments=True, can_be_causal=True,
    tokenizer="wordpiece", tokenizer_style=STYLE, objective="nsp", shown_objectives=("mlm", "whole-word", "ngrams"),
    norm_order="post", is_served_by_tei=True,
    quick_recipe=Recipe(QUICK_TRAIN, QUICK_MODEL),
    paper_recipe=PAPER,
    hub_checkpoints=tuple(
        f"google-bert/bert-{name}"
        for name in ("base-uncased", "large-uncased", "base-cased", "large-cased", "base-multilingual-cased",
                     "base-multilingual-uncased", "base-chinese")
    ),
    hf_format=CheckpointFormat("bert", {
        "BertModel": "none", "BertForPreTraining": "pretraining", "BertForMaskedLM": "mlm", "BertLMHeadModel": "lm",
        "BertForNextSentencePrediction": "nsp", "BertForSequenceClassification": "classify",
        "BertForTokenClassification": "tag", "BertForQuestionAnswering": "answer", "BertForMultipleChoice": "choose",
    }, HF_CONFIG, build_key_map),
    h200_speed=GpuSpeed("bert-base", 635_740, 512),
)  # fmt: skip
