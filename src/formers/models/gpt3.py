"""GPT-3 (Brown et al. 2020, arXiv:2005.14165)

Parent  gpt2
New     1. dense and locally banded sparse attention alternate   2. context 2048   3. in-context learning: tasks are
        given in the prompt
Korean  전체 어텐션과 국소 어텐션을 번갈아 쓰고 문맥 길이는 2,048입니다. 과제를 프롬프트로 줍니다.
Shapes  ids (N,) → hidden (N, dim) → logits (N, vocab)
Differs from the reference: the width of the band was not published; here it is a setting
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import check_sizes
from ..family import CitedSettings, Family, PaperRecipe, Presets, cite_batch, count_growing_steps
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


# Table 2.1, where two rows contradict themselves: XL prints 24 heads of 128 in a width of 2,048, and 13B 40 heads of
# 128 in a width of 5,140. Here XL has 16 heads, and 13B a width of 5,120.
PRESETS: Presets = {
    "gpt3-small": {},
    "gpt3-medium": {"dim": 1024, "layers": 24, "heads": 16},
    "gpt3-large": {"dim": 1536, "layers": 24, "heads": 16},
    "gpt3-xl": {"dim": 2048, "layers": 24, "heads": 16},
    "gpt3-2.7b": {"dim": 2560, "layers": 32, "heads": 32},
    "gpt3-6.7b": {"dim": 4096, "layers": 32, "heads": 32},
    "gpt3-13b": {"dim": 5120, "layers": 40, "heads": 40},
    "gpt3-175b": {"dim": 12288, "layers": 96, "heads": 96},
}


def cite_size(lr: float, sequences: int) -> CitedSettings:
    """Return what differs by size: table 2.1's rate and batch, and the tokens of appendix B as steps. The batch grows
    over the first 4 billion tokens, so that the first steps have fewer tokens than the rest."""
    stated = {256: "0.5 M", 512: "1 M", 1024: "2 M", 1568: "3.2 M"}[sequences]
    batch = cite_batch(sequences, 2048, f"table 2.1: {stated} tokens")
    tokens, pieces = (int(str(batch[f"train.{name}"][0])) for name in ("batch_tokens", "accumulate"))
    growing = round(4e9 / (tokens * pieces / 2))  # steps
    return {
        **batch,
        "train.seq_length": (2048, "§2.1: n_ctx"),
        "train.lr": (lr, "table 2.1"),
        "train.batch_rampup_steps": (
            growing,
            "appendix B: from 32k tokens, over 4 to 12 billion; from a single batch, over 4 billion: ours",
        ),
        "train.warmup_steps": (count_growing_steps(375e6 / tokens, 1, pieces, growing), "appendix B: 375 M tokens"),
        "train.decay_steps": (growing + round(256e9 / (tokens * pieces)), "appendix B: 260 billion tokens"),
        "train.steps": (growing + round(296e9 / (tokens * pieces)), "table 2.1: 300 billion tokens"),
    }


PAPER = PaperRecipe(
    {
        "objective.name": ("causal", "§2"),
        "objective.across_documents": (True, "appendix B: several documents in a window, none of them masked"),
        "train.optimizer": ("adamw", "appendix B: Adam, and weight decay of Loshchilov & Hutter"),
        "train.betas": ((0.9, 0.95), "appendix B"),
        "train.eps": (1e-8, "appendix B"),
        "train.weight_decay": (0.1, "appendix B"),
        "train.schedule": ("cosine", "appendix B"),
        "train.min_lr_ratio": (0.1, "appendix B"),
        "train.grad_clip": (1.0, "appendix B"),
        "model.dropout": (0.1, "not stated; GPT's"),
        "model.embed_dropout": (0.1, "not stated; GPT's"),
        "model.attention_dropout": (0.1, "not stated; GPT's"),
        "data.vocab_size": (50_257, "§2.1: as GPT-2"),
        **cite_size(6e-4, 256),
    },
    {
        "gpt3-medium": cite_size(3e-4, 256), "gpt3-large": cite_size(2.5e-4, 256), "gpt3-xl": cite_size(2e-4, 512),
        "gpt3-2.7b": cite_size(1.6e-4, 512), "gpt3-6.7b": cite_size(1.2e-4, 1024),
        "gpt3-13b": cite_size(1e-4, 1024), "gpt3-175b": cite_size(0.6e-4, 1568),
    },
)  # fmt: skip

FAMILY = Family(
    GPT3Config, GPT3, gpt2.build_heads, pretraining_head="lm", counted_head="lm",
    build_init_rules=gpt2.build_init_rules, presets=PRESETS, reads_segments=True,
    tokenizer="bpe", tokenizer_style=gpt2.FAMILY.tokenizer_style, objective="causal",
    paper_recipe=PAPER,
    export_remedy="pretrain gpt2, the same model without bands, or gpt_neo, whose bands transformers knows",
)  # fmt: skip
