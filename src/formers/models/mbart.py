"""mBART (Liu et al. 2020, arXiv:2001.08210)

Parent  bart
New     1. BART trained on 25 languages, Korean among them   2. norms move to the input of each sub-block, and one more
        stands at the end of each side   3. a language's own token begins its text
Shapes  as bart
Differs from the reference: as bart
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import ConfigMap
from ..family import Family, Format
from ..nn.block import Order
from . import bart, bert


@dataclass(frozen=True, kw_only=True)
class MBARTConfig(bart.BARTConfig):
    """mBART's sizes and rates; the defaults are mBART-large of 25 languages."""

    vocab: int = 250027
    order: Order = "pre"
    scaled: bool = True
    start: int | None = None  # None: generation begins with bos

    wraps = True  # a text shifted right begins with its own last token, which names the language


HF_CONFIG = ConfigMap(
    bart.ROWS,
    aliases=bart.ALIASES,
    fixed=bart.FIXED | {"normalize_before": (True,), "add_final_layer_norm": (True,)},
    irrelevant=bart.IRRELEVANT,
    defaults={"vocab_size": 50265, "scale_embedding": False},
)

FAMILY = Family(
    MBARTConfig, bart.BART, bart.heads, pretraining="lm", counted="lm", init=bert.init,
    presets={"mbart-large-cc25": {}, "mbart-large-50": {"vocab": 250054}},
    tokenizer="unigram", objective="denoise",
    hf=Format("mbart", bart.classes("MBart"), HF_CONFIG, bart.keys, bart.adjust, bart.architecture("MBart"),
              config_defaults=bart.UNFORCED),
)  # fmt: skip
