"""GPT-3 (Brown et al. 2020, arXiv:2005.14165)

Parent  gpt2
New     1. dense and locally banded sparse attention alternate   2. context 2048   3. in-context learning: tasks are
        given in the prompt
Korean  전체 어텐션과 국소 어텐션을 번갈아 쓰고 문맥은 2,048입니다. 과제를 프롬프트로 줍니다.
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: the width of the band was not published; here it is a setting
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import check_sizes
from ..family import Family, Presets, Recipe
from ..nn.attention.masks import build_layer_masks
from . import gpt2


@dataclass(frozen=True, kw_only=True)
class GPT3Config(gpt2.GPT2Config):
    """GPT-3's sizes and rates; the defaults are the smallest model of table 2.1."""

    context: int = 2048
    pattern: tuple[str, ...] = ("global", "local")  # of the layers, repeated
    window: int = 256  # tokens that a local layer sees, the token itself included

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window")
        build_layer_masks(self.pattern, self.window, self.layers)


class GPT3(gpt2.GPT2):
    """GPT-2 whose layers see everything and a band in turn."""

    def __init__(self, config: GPT3Config):
        super().__init__(config)
        self.masks = tuple(build_layer_masks(config.pattern, config.window, config.layers))


PRESETS: Presets = {  # table 2.1; 2.7B and 6.7B as printed, 13B with heads of 128
    "gpt3-small": {},
    "gpt3-medium": {"dim": 1024, "layers": 24, "heads": 16},
    "gpt3-large": {"dim": 1536, "layers": 24, "heads": 16},
    "gpt3-xl": {"dim": 2048, "layers": 24, "heads": 16},
    "gpt3-2.7b": {"dim": 2560, "layers": 32, "heads": 32},
    "gpt3-6.7b": {"dim": 4096, "layers": 32, "heads": 32},
    "gpt3-13b": {"dim": 5120, "layers": 40, "heads": 40},
    "gpt3-175b": {"dim": 12288, "layers": 96, "heads": 96},
}

PAPER_TRAIN = {**gpt2.PAPER_TRAIN, "seq_length": 2048}

FAMILY = Family(
    GPT3Config, GPT3, gpt2.build_heads, pretraining_head="lm", counted_head="lm",
    build_init_rules=gpt2.build_init_rules, presets=PRESETS, reads_segments=True,
    tokenizer="bpe", tokenizer_style=gpt2.FAMILY.tokenizer_style, objective="causal",
    paper_recipe=Recipe(PAPER_TRAIN),
    export_remedy="pretrain gpt2, the same model without bands, or gpt_neo, whose bands transformers knows",
)  # fmt: skip
