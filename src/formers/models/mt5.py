"""mT5 (Xue et al. 2020, arXiv:2010.11934)

Parent  t5
New     1. version 1.1 trained on 101 languages, including Korean   2. a vocabulary of 250k pieces
Korean  한국어를 포함한 101개 언어로 학습한 T5 1.1입니다. 어휘는 25만 조각입니다.
Shapes  as t5
Differs from the reference: as t5
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import ConfigMap, Settings
from ..family import CheckpointFormat, Family, PaperRecipe, TensorFile, cite_batch
from . import t5


@dataclass(frozen=True, kw_only=True)
class MT5Config(t5.T5Config):
    """mT5's sizes and rates; the defaults are mT5-small."""

    vocab: int = 250112
    layers: int = 8
    heads: int = 6
    ff: int = 1024
    act: str = "gelu_tanh"
    gated: bool = True
    tied: bool = False
    scaled: bool = False


def adjust_settings(settings: Settings, architecture: str, file: TensorFile) -> Settings:
    """Adjust as T5 does, but the head never scales."""
    return t5.adjust_settings(settings, architecture, file) | {"scaled": False}


CONFIG_ROWS = {key: row for key, row in t5.HF_CONFIG.rules.items() if key != "scale_decoder_outputs"}
HF_CONFIG = ConfigMap(
    CONFIG_ROWS, aliases=t5.HF_CONFIG.aliases, irrelevant_keys=t5.HF_CONFIG.irrelevant_keys | {"scale_decoder_outputs"}
)
PRESETS = {f"mt5-{size}": values for size, values in t5.SIZES_V1_1.items()}

PAPER = PaperRecipe(
    {
        **{name: (value, f"as T5, {source}") for name, (value, source) in t5.PAPER.settings.items()},
        **{
            name: (t5.PAPER.settings[name][0], "§3.2: as T5")
            for name in ("train.lr", "train.schedule", "train.warmup_steps")
        },
        "train.steps": (1_000_000, "§3.2"),
        **cite_batch(1024, 1024, "§3.2; released README: 2²⁰ tokens"),
        "model.dropout": (0.0, "§3.2"),
        "data.vocab_size": (250_000, "§3.2"),
    }
)

FAMILY = Family(
    MT5Config, t5.T5, t5.build_heads, pretraining_head="lm", counted_head="lm", build_init_rules=t5.build_init_rules,
    presets=PRESETS, tokenizer="unigram", tokenizer_style=t5.FAMILY.tokenizer_style, objective="span-corruption",
    is_encoder_decoder=True, quick_recipe=t5.FAMILY.quick_recipe,
    paper_recipe=PAPER,
    scratch_recipe=t5.FAMILY.scratch_recipe, finetune_recipe=t5.FAMILY.finetune_recipe,
    hub_checkpoints=tuple(f"google/mt5-{size}" for size in ("small", "base", "large", "xl", "xxl")),
    hf_format=CheckpointFormat(
        "mt5", t5.map_classes("MT5"), HF_CONFIG, t5.build_key_map, adjust_settings, t5.build_architecture_rule("MT5"),
        has_encoder_model=True,
    ),
)  # fmt: skip
