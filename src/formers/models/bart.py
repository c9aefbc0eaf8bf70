"""BART (Lewis et al. 2019, arXiv:1910.13461)

Parent  transformer
New     1. a bidirectional encoder as in BERT and an autoregressive decoder as in GPT   2. pretrained to reconstruct
        corrupted text: token masking, deletion, infilling, sentence permutation, document rotation   3. learned
        positions, starting at row 2 of their table   4. a norm after the embeddings of both sides
Korean  BERT의 인코더와 GPT의 디코더를 합칩니다. 마스킹, 삭제, 채우기, 문장 섞기, 문서 회전으로 손상한 텍스트에서
        원문을 복원하도록 학습합니다.
Shapes  source ids (S,) → memory (S, dim); target ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: no layers are dropped in training (a layerdrop other than 0 is refused)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ..config import HF_ACT_ROW, HF_TOKEN_ROWS, ConfigMap, KeyRule, Settings, check_sizes, default_to_encoder
from ..family import CheckpointFormat, Family, GpuSpeed, Head, ModelConfig, PaperRecipe, TensorFile, cite_batch
from ..keymap import KeyMap, TensorOp
from ..nn.attention.attention import Attention
from ..nn.block import Block, BlockStack, NormOrder
from ..nn.encoder_decoder import EncoderDecoder, TransformerStack
from ..nn.layers import Embeddings, FeedForward, LayerNorm, get_activation
from . import roberta

POSITION_OFFSET = 2  # the first row of the position tables
DECODER_SIZES = {"decoder_layers": "layers", "decoder_heads": "heads", "decoder_ff": "ff"}  # and what None stands for


@dataclass(frozen=True, kw_only=True)
class BARTConfig(ModelConfig):
    """BART's sizes and rates; the defaults are BART-large."""

    vocab: int = 50265
    context: int = 1024
    dim: int = 1024
    layers: int = 12
    decoder_layers: int | None = None  # None: as the encoder
    heads: int = 16
    decoder_heads: int | None = None
    ff: int = 4096
    decoder_ff: int | None = None
    order: NormOrder = "post"  # pre, with a last norm on both sides, is mBART's
    act: str = "gelu"
    eps: float = 1e-5
    dropout: float = 0.1
    attention_dropout: float = 0.0
    act_dropout: float = 0.0
    head_dropout: float = 0.0
    scaled: bool = False  # embeddings by √dim
    shared: bool = True  # both sides have the same token embeddings
    encoder: bool = True  # False: the decoder alone, as a language model
    init: float = 0.02
    tied: bool = True
    pruned: tuple[str, ...] = ()  # attention heads taken out: "stack.layer.head"
    pad: int | None = 1
    bos: int | None = 0
    eos: int | tuple[int, ...] | None = 2
    start: int | None = 2  # the decoder's first input

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, *DECODER_SIZES)
        get_activation(self.act)


def build_stack(c: BARTConfig, decoder: bool) -> TransformerStack:
    """Build blocks with learned norms; pre-norm sides end with one more."""
    heads, ff = (c.decoder_heads or c.heads, c.decoder_ff or c.ff) if decoder else (c.heads, c.ff)

    def norm() -> LayerNorm:
        return LayerNorm(c.dim, c.eps)

    return TransformerStack(
        BlockStack(
            Block(
                Attention(c.dim, heads, dropout=c.attention_dropout),
                FeedForward(c.dim, ff, c.act, dropout=c.act_dropout), norm=norm, norm_order=c.order,
                cross=Attention(c.dim, heads, dropout=c.attention_dropout, cross=True) if decoder else None,
                dropout=c.dropout,
            )
            for _ in range(c.num_decoder_layers if decoder else c.layers)
        ),
        norm() if c.order == "pre" else None, decoder=decoder,
    )  # fmt: skip


class BART(EncoderDecoder):
    """An encoder-decoder whose sides share the token embeddings and have positions of their own."""

    def __init__(self, config: BARTConfig):
        c = config

        def embed(token: nn.Module | None = None) -> Embeddings:
            return Embeddings(
                c.dim, c.vocab, positions=c.context, offset=POSITION_OFFSET, norm=LayerNorm(c.dim, c.eps),
                dropout=c.dropout, scale=c.dim**0.5 if c.scaled else 1.0, token=token,
            )  # fmt: skip

        source = embed()
        target = embed(source.token if c.shared else None) if c.encoder else None
        encoder = build_stack(c, decoder=False) if c.encoder else None
        super().__init__(source, encoder, build_stack(c, decoder=True), target)


def build_heads(c: BARTConfig) -> dict[str, dict[str, Head]]:
    """Build BART's heads; a classifier reads the decoder at the source's end mark."""
    inner = ("dropout", "dense", "tanh", "dropout")
    return {
        "none": {},
        "lm": {"lm": Head(out="vocab", bias=c.encoder, frozen_bias=True)},
        "classify": {"classify": Head(pool="eos", inner_layers=inner, dropout=c.head_dropout)},
        "answer": {"answer": Head(out=2)},
    }


CONFIG_ROWS: dict[str, str | KeyRule] = {
    "vocab_size": "vocab", "max_position_embeddings": "context", "d_model": "dim", "encoder_layers": "layers",
    "decoder_layers": KeyRule(lambda v: {"decoder_layers": v}, lambda c: c.num_decoder_layers),
    "encoder_attention_heads": "heads",
    "decoder_attention_heads": KeyRule(lambda v: {"decoder_heads": v}, lambda c: c.decoder_heads or c.heads),
    "encoder_ffn_dim": "ff", "decoder_ffn_dim": KeyRule(lambda v: {"decoder_ff": v}, lambda c: c.decoder_ff or c.ff),
    "activation_function": HF_ACT_ROW, "dropout": "dropout",
    "attention_dropout": "attention_dropout", "activation_dropout": "act_dropout",
    "classifier_dropout": "head_dropout", "scale_embedding": "scaled", "init_std": "init",
    "tie_word_embeddings": "tied", "decoder_start_token_id": "start", **HF_TOKEN_ROWS,
}  # fmt: skip
CONFIG_ALIASES = {
    "num_attention_heads": "encoder_attention_heads", "hidden_size": "d_model", "num_hidden_layers": "encoder_layers",
    "classif_dropout": "classifier_dropout",
}  # fmt: skip
ZERO_ONLY = (0, 0.0)
FIXED_CONFIG = {
    "encoder_layerdrop": ZERO_ONLY, "decoder_layerdrop": ZERO_ONLY, "add_bias_logits": (False,),
    "normalize_embedding": (True,), "static_position_embeddings": (False,),
}  # fmt: skip
IRRELEVANT_KEYS = frozenset({
    "is_encoder_decoder", "is_decoder", "extra_pos_embeddings", "force_bos_token_to_be_generated",
})  # fmt: skip
HF_CONFIG = ConfigMap(
    CONFIG_ROWS, aliases=CONFIG_ALIASES, irrelevant_keys=IRRELEVANT_KEYS,
    fixed_values=FIXED_CONFIG | {"normalize_before": (False,), "add_final_layer_norm": (False,)},
)  # fmt: skip


def adjust_settings(settings: Settings, architecture: str, file: TensorFile) -> Settings:
    """Set whether there is an encoder, by their class, and whether the sides share embeddings, by the tensors."""
    alone = architecture.endswith("ForCausalLM")
    tables = [name for name in file if name.endswith("coder.embed_tokens.weight")]
    shared = alone or len(tables) < 2 or file.is_equal(*tables)
    return default_to_encoder(settings, **DECODER_SIZES) | {"encoder": not alone, "shared": shared}


def map_body_names(decoder_only: bool = False) -> dict[str, str | TensorOp]:
    """Map the names of both sides."""
    table: dict[str, str | TensorOp] = {}
    for one, embed in (("decoder", "embed"),) if decoder_only else (("encoder", "embed"), ("decoder", "target")):
        layer, ours = f"{one}.layers.{{i}}", f"{one}.blocks.{{i}}"
        table |= {
            f"{one}.embed_positions.weight": f"{embed}.position.weight",
            f"{one}.layernorm_embedding.*": f"{embed}.norm.*",
            f"{one}.layer_norm.*": f"{one}.norm.*",
            f"{layer}.self_attn.(q_proj|k_proj|v_proj).*": f"{ours}.attn.qkv.*",
            f"{layer}.self_attn.out_proj.*": f"{ours}.attn.o.*",
            f"{layer}.self_attn_layer_norm.*": f"{ours}.attn_norm.*",
            f"{layer}.encoder_attn.q_proj.*": f"{ours}.cross.q.*",
            f"{layer}.encoder_attn.(k_proj|v_proj).*": f"{ours}.cross.kv.*",
            f"{layer}.encoder_attn.out_proj.*": f"{ours}.cross.o.*",
            f"{layer}.encoder_attn_layer_norm.*": f"{ours}.cross_norm.*",
            f"{layer}.fc1.*": f"{ours}.ff.up.*",
            f"{layer}.fc2.*": f"{ours}.ff.down.*",
            f"{layer}.final_layer_norm.*": f"{ours}.ff_norm.*",
        }
    return table


def build_key_map(c: BARTConfig, head: str) -> KeyMap:
    """Map the names of fairseq's BART as transformers keeps them."""
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    first = names[0 if c.shared else 1] if c.encoder else names[2]
    tables = {first: "embed.token.weight"} | ({} if c.shared else {names[2]: "target.token.weight"})
    copies = [name for name in names if name not in tables] if c.shared else []
    if c.tied:
        copies.append("lm_head.weight")
    return KeyMap(
        {**tables, **map_body_names(not c.encoder)},
        heads={
            "lm": {
                "lm_head.weight": "out.weight",
                "final_logits_bias": TensorOp("out.bias", lambda t: t.flatten(), lambda t: t[None]),
            },
            "classify": {"classification_head.dense.*": "dense.*", "classification_head.out_proj.*": "out.*"},
            "answer": {"qa_outputs.*": "out.*"},
        },
        prefix="" if head == "none" else "model.", prefixes=("model.",), tied=dict.fromkeys(copies, first),
        alternate_names={} if c.shared else {names[0]: first},
        drop=("encoder.version", "decoder.version", *(() if c.encoder else ("encoder.**",))),
    )  # fmt: skip


def map_classes(name: str) -> dict[str, str]:
    """Map their classes to our heads."""
    heads = {
        "Model": "none", "ForConditionalGeneration": "lm", "ForCausalLM": "lm", "ForSequenceClassification": "classify",
        "ForQuestionAnswering": "answer",
    }  # fmt: skip
    return {name + ending: head for ending, head in heads.items()}


def build_architecture_rule(name: str) -> Callable[[BARTConfig, str], str | None]:
    """Return the rule that a language model without an encoder is a class of its own."""
    return lambda c, head: f"{name}ForCausalLM" if head == "lm" and not c.encoder else None


NO_FORCED_EOS = {"forced_eos_token_id": None}  # their classes end every text of full length with token 2 (Marian: 0)
PRESETS = {"bart-base": {"dim": 768, "layers": 6, "heads": 12, "ff": 3072}, "bart-large": {}}

BORROWED = "not stated; RoBERTa's, table 9: large"
INNER_DROPOUT = "not stated; released models/bart/model.py: default of bart_large; 0.1 in the published config.json"
PAPER = PaperRecipe(
    {
        "objective.name": ("denoising", "§2.2"),
        "objective.infill_ratio": (0.3, "§5.1"),
        "objective.mean_span_length": (3.0, "§2.2"),
        "objective.permute_ratio": (1.0, "§5.1"),
        "train.optimizer": ("adamw", BORROWED),
        "train.lr": (4e-4, BORROWED),
        "train.betas": ((0.9, 0.98), BORROWED),
        "train.eps": (1e-6, BORROWED),
        "train.weight_decay": (0.01, BORROWED),
        "train.schedule": ("linear", BORROWED),
        "train.warmup_steps": (30_000, BORROWED),
        "train.steps": (500_000, "§5.1"),
        **cite_batch(8000, 512, "§5.1 for the batch; the length is not stated, RoBERTa's"),
        "train.grad_clip": (0.0, BORROWED),
        "model.dropout": (
            0.1,
            "§5.1: none in the last tenth of the steps, which is left out here; the rate is RoBERTa's",
        ),
        "model.attention_dropout": (0.0, INNER_DROPOUT),
        "model.act_dropout": (0.0, INNER_DROPOUT),
        "data.vocab_size": (50_257, "§5.1: as GPT-2"),
    }
)

FAMILY = Family(
    BARTConfig, BART, build_heads, pretraining_head="lm", counted_head="lm", presets=PRESETS, tokenizer="bpe",
    tokenizer_style=roberta.STYLE, objective="denoising", is_encoder_decoder=True, norm_order="post",
    paper_recipe=PAPER,
    hub_checkpoints=("facebook/bart-base", "facebook/bart-large"),
    hf_format=CheckpointFormat(
        "bart", map_classes("Bart"), HF_CONFIG, build_key_map, adjust_settings, build_architecture_rule("Bart"),
        config_defaults=NO_FORCED_EOS,
    ),
    h200_speed=GpuSpeed("bart-base", 692_152, 512, target_share=0.57),
)  # fmt: skip
