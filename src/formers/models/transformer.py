"""Transformer (Vaswani et al. 2017, arXiv:1706.03762)

Parent  seq2seq (its attention, without the recurrence)
New     1. no recurrence: multi-head attention alone   2. sinusoidal positions   3. an encoder and a decoder of residual
        blocks, each sub-layer followed by a norm   4. embeddings scaled by √dim and shared by both sides and the output
        5. label smoothing, and a learning rate with warmup (training/optimizer.py)
Korean  순환 없이 멀티 헤드 어텐션만 씁니다. 위치는 사인 함수로 나타내고, 인코더와 디코더, 출력이 임베딩을 공유하며,
        레이블 스무딩과 워밍업을 씁니다.
Shapes  source ids (S,) → memory (S, dim); target ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: the paper's formula interleaves sines and cosines; its released code and Marian's files put
        all sines first (`halves`, the default)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from ..config import ConfigMap, JSONValue, KeyRule, Settings, default_to_encoder
from ..errors import Error
from ..family import OURS, TRANSLATION_TUNE, CheckpointFormat, Family, Head, PaperRecipe, Presets, Recipe, TensorFile
from ..keymap import KeyMap
from ..nn.attention.positions import SinusoidalPositions
from ..nn.encoder_decoder import EncoderDecoder
from ..nn.layers import Embeddings
from ..text.tokenizer_kinds import PublishedForm
from . import bart, seq2seq


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(bart.BARTConfig):
    """The Transformer's sizes and rates; the defaults are the paper's base model."""

    vocab: int = 37000
    target_vocab: int | None = None  # None: as the source's
    dim: int = 512
    layers: int = 6
    heads: int = 8
    ff: int = 2048
    act: str = "relu"
    scaled: bool = True
    halves: bool = True  # all sines before all cosines, as in the released code; False: in turn, as in the paper
    pad: int | None = 0
    bos: int | None = None
    eos: int | tuple[int, ...] | None = 1
    start: int | None = 0


class Transformer(EncoderDecoder):
    """An encoder-decoder: token · √dim + sinusoids → post-norm blocks on both sides."""

    def __init__(self, config: TransformerConfig):
        c = config

        def embed(vocab: int, token: nn.Embedding | None = None) -> Embeddings:
            scale, waves = c.dim**0.5 if c.scaled else 1.0, SinusoidalPositions(c.dim, c.halves)
            return Embeddings(c.dim, vocab, sinusoids=waves, scale=scale, token=token, dropout=c.dropout)

        far = c.output_vocab
        source = embed(c.vocab if c.encoder else far)
        target = None if c.shared or not c.encoder else embed(far)
        encoder = bart.build_stack(c, decoder=False) if c.encoder else None
        super().__init__(source, encoder, bart.build_stack(c, decoder=True), target)


def build_heads(c: TransformerConfig) -> dict[str, dict[str, Head]]:
    """Build the output layer's head; in Marian's files it has a bias."""
    return {name: parts for name, parts in bart.build_heads(c).items() if name in ("none", "lm")}


def build_init_rules(c: TransformerConfig) -> dict[str, float]:
    """Initialise as the released code does: by fan-in and fan-out, embeddings of unit variance after × √dim."""
    wide = math.sqrt(2 / (c.dim + c.ff))
    return {"*": c.dim**-0.5, "*.ff.up.weight": wide, "*.ff.down.weight": wide}


def read_static_positions(value: JSONValue) -> Settings:
    """Read static_position_embeddings: Marian's are fixed, with all sines before the cosines."""
    if value is not True:
        raise Error(f"value {value!r} is not supported", fix="Marian's positions are static")
    return {"halves": True}


def write_static_positions(c: TransformerConfig) -> bool:
    """Write Marian's static_position_embeddings; its format has only one layout of sinusoids."""
    if not c.halves:
        what = "Marian's format has no alternating sinusoids (model.halves false)"
        raise Error(what, fix="train with --model.halves true, the default, to export it later")
    return True


HF_CONFIG = ConfigMap(
    {key: row for key, row in bart.CONFIG_ROWS.items() if key != "classifier_dropout"}
    | {
        "decoder_vocab_size": KeyRule(lambda v: {"target_vocab": v}, lambda c: c.output_vocab),
        "share_encoder_decoder_embeddings": "shared",
        "static_position_embeddings": KeyRule(read_static_positions, write_static_positions),
    },
    aliases={
        key: name for key, name in bart.CONFIG_ALIASES.items() if name in bart.CONFIG_ROWS and key != "classif_dropout"
    },
    fixed_values={key: values for key, values in bart.FIXED_CONFIG.items() if key.endswith("layerdrop")}
    | {
        "normalize_before": (False,), "add_final_layer_norm": (False,), "add_bias_logits": (False,),
        "normalize_embedding": (False,),
    },
    irrelevant_keys=bart.IRRELEVANT_KEYS | {"classifier_dropout", "classif_dropout"},
    defaults={"vocab_size": 58101, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 4096,
              "decoder_ffn_dim": 4096, "encoder_attention_heads": 16, "decoder_attention_heads": 16,
              "activation_function": "gelu", "scale_embedding": False, "pad_token_id": 58100, "eos_token_id": 0,
              "decoder_start_token_id": 58100},
)  # fmt: skip


def adjust_settings(settings: Settings, architecture: str, file: TensorFile) -> Settings:
    """Adjust as BART does; Marian's sines come before its cosines; a decoder alone reads its own vocabulary."""
    changes = bart.adjust_settings(settings, architecture, file) | {"halves": True}
    if not changes["encoder"]:
        return changes | {"vocab": settings.get("target_vocab") or settings["vocab"], "target_vocab": None}
    shared = changes["shared"] and settings.get("shared", True)
    return default_to_encoder(changes, target_vocab="vocab") | {"shared": shared}


def build_key_map(c: TransformerConfig, head: str) -> KeyMap:
    """Map Marian's names are BART's; its position tables are fixed, and not kept. Where the
    two sides could share a table and do not (transformers, untied), the shared one is unused."""
    theirs, far = bart.build_key_map(c, head), "decoder.embed_tokens.weight"
    waves = SinusoidalPositions(c.dim, c.halves)
    tables = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    return replace(
        theirs, tied={**theirs.tied, **({"lm_head.weight": far} if c.tied and not c.shared else {})},
        drop=(*theirs.drop, *(() if c.shared else ("shared.weight",))),
        alternate_names={}, computed_tables=dict.fromkeys(tables, lambda n: waves(torch.arange(n))),
    )  # fmt: skip


PRESETS: Presets = {
    "transformer-base": {},
    "transformer-big": {"dim": 1024, "heads": 16, "ff": 4096, "dropout": 0.3},
    "opus-mt": {"vocab": 58101, "context": 512, "act": "silu", "pad": 58100, "eos": 0, "start": 58100},
}


def compute_noam_lr(dim: int, warmup: int) -> float:
    """Return the highest rate of equation 3, at the end of the warmup."""
    return float((dim * max(1, warmup)) ** -0.5)


INNER_DROPOUT = "none stated; tensor2tensor, models/transformer.py: transformer_base_v1 (0.1 in later versions)"
PAPER = PaperRecipe(
    {
        "objective.name": ("seq2seq", "§3.1"),
        "objective.label_smoothing": (0.1, "§5.4"),
        "train.optimizer": ("adam", "§5.3"),
        "train.lr": (compute_noam_lr(512, 4000), "§5.3, equation 3: (dim · warmup)^-0.5"),
        "train.betas": ((0.9, 0.98), "§5.3"),
        "train.eps": (1e-9, "§5.3"),
        "train.weight_decay": (0.0, "none stated"),
        "train.schedule": ("inverse_sqrt", "§5.3, equation 3"),
        "train.warmup_steps": (4000, "§5.3"),
        "train.steps": (100_000, "§5.2: base models"),
        "train.seq_length": (256, "tensor2tensor, models/transformer.py: max_length"),
        "train.batch_tokens": (25_000, "§5.1: of each side"),
        "train.accumulate": (1, OURS),
        "train.grad_clip": (0.0, "tensor2tensor, models/transformer.py: clip_grad_norm"),
        "model.dropout": (0.1, "§5.4: base models"),
        "model.attention_dropout": (0.0, INNER_DROPOUT),
        "model.act_dropout": (0.0, INNER_DROPOUT),
        "data.vocab_size": (37_000, "§5.1: English and German share them"),
    },
    {"transformer-big": {
        "train.lr": (compute_noam_lr(1024, 4000), "§5.3, equation 3: (dim · warmup)^-0.5"),
        "train.steps": (300_000, "§5.2: big models"),
        "model.dropout": (0.3, "table 3: big"),
    }},
    compute_noam_lr,
)  # fmt: skip
SCRATCH_MODEL = {
    "dim": 256, "layers": 3, "heads": 4, "ff": 1024, "dropout": 0.3, "attention_dropout": 0.1, "tied": True,
    "context": 256,
}  # fmt: skip
SCRATCH_TRAIN = {
    "lr": 2e-3, "schedule": "inverse_sqrt", "warmup_steps": 1000, "weight_decay": 0.0, "betas": (0.9, 0.98),
    "eps": 1e-9,
}  # fmt: skip

STYLE = replace(  # Marian's files have no <s>, and one end for both texts
    seq2seq.STYLE, name="transformer", published_forms=(
        PublishedForm(
            ("source.spm",), special={"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, pair_template="$A $B </s>"
        ),
    ),
)  # fmt: skip
FAMILY = Family(
    TransformerConfig, Transformer, build_heads, pretraining_head="lm", counted_head="lm",
    build_init_rules=build_init_rules, presets=PRESETS, tokenizer="bpe", tokenizer_style=STYLE,
    objective="seq2seq", is_encoder_decoder=True, norm_order="post",
    paper_recipe=PAPER,
    scratch_recipe=Recipe(SCRATCH_TRAIN, SCRATCH_MODEL, tune=TRANSLATION_TUNE | {"epochs": 60}),
    never_writes_pad=True,
    hub_tag="translation",
    hf_format=CheckpointFormat(
        "marian", {"MarianModel": "none", "MarianMTModel": "lm", "MarianForCausalLM": "lm"}, HF_CONFIG, build_key_map,
        adjust_settings, bart.build_architecture_rule("Marian"), config_defaults=bart.NO_FORCED_EOS,
    ),
)  # fmt: skip
