"""mBART (Liu et al. 2020, arXiv:2001.08210)

Parent  bart
New     1. BART trained on 25 languages, including Korean   2. pre-norm, with a final norm on each side   3. the
        language token ends a source and begins a target
Korean  한국어를 포함한 25개 언어로 학습한 BART입니다. 정규화를 하위 블록의 앞으로 옮기고, 언어 토큰을
        원문의 끝과 번역문의 처음에 둡니다.
Shapes  as bart
Differs from the reference: as bart
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config import ConfigMap
from ..family import CheckpointFormat, Family, PaperRecipe, cite_batch
from ..nn.block import NormOrder
from ..text.tokenizer_kinds import PublishedForm, TokenizerStyle
from . import bart, roberta


@dataclass(frozen=True, kw_only=True)
class MBARTConfig(bart.BARTConfig):
    """mBART's sizes and rates; the defaults are mBART-large of 25 languages."""

    vocab: int = 250027
    order: NormOrder = "pre"
    scaled: bool = True
    start: int | None = None  # None: generation begins with bos


HF_CONFIG = ConfigMap(
    bart.CONFIG_ROWS, aliases=bart.CONFIG_ALIASES,
    fixed_values=bart.FIXED_CONFIG | {"normalize_before": (True,), "add_final_layer_norm": (True,)},
    irrelevant_keys=bart.IRRELEVANT_KEYS, defaults={"vocab_size": 50265, "scale_embedding": False},
)  # fmt: skip

INNER_DROPOUT = "not stated; released models/bart/model.py: default of mbart_large"
PAPER = PaperRecipe(
    {
        **bart.PAPER.settings,
        "objective.infill_ratio": (0.35, "§2.2"),
        "objective.mean_span_length": (3.5, "§2.2"),
        "objective.permute_ratio": (1.0, "§2.2"),
        "train.optimizer": ("adamw", "§2.2: Adam"),
        "train.betas": ((0.9, 0.98), "§2.2: β₂; β₁ not stated, RoBERTa's"),
        "train.eps": (1e-6, "§2.2"),
        "train.schedule": ("linear", "§2.2"),
        "train.steps": (500_000, "§2.2"),
        **cite_batch(
            8000, 512, "§2.2: 'matching BART'; its 128K tokens on each of 256 GPUs would be eight times as many"
        ),
        "model.dropout": (0.1, "§2.2: 0.05 after 250,000 steps and 0 after 400,000, which is left out here"),
        "model.attention_dropout": (0.0, INNER_DROPOUT),
        "model.act_dropout": (0.0, INNER_DROPOUT),
        "data.vocab_size": (250_000, "§2.1"),
    }
)

LANGUAGES = (
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX", "kk_KZ",
    "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN",
)  # fmt: skip
LANGUAGES_50 = (
    *LANGUAGES, "af_ZA", "az_AZ", "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN",
    "mn_MN", "mr_IN", "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN", "th_TH", "tl_XX", "uk_UA", "ur_PK",
    "xh_ZA", "gl_ES", "sl_SI",
)  # fmt: skip
STYLE = TokenizerStyle(
    "mbart", roberta.SPECIAL_TOKENS, roberta.FAIRSEQ_TOKENS, (*LANGUAGES, "<mask>"), "$A </s> en_XX",
    "$A $B </s> en_XX", languages=LANGUAGES,
    published_forms=(
        PublishedForm(  # mBART-50, which comes first: what says MBart50 says MBart as well
            ("sentencepiece.bpe.model",), options={"tokenizer_class": "MBart50", "additional_special_tokens": "sl_SI"},
            last_tokens=(*LANGUAGES_50, "<mask>"), single_template="en_XX $A </s>", pair_template="en_XX $A $B </s>",
            languages=LANGUAGES_50,
        ),
        PublishedForm(("sentencepiece.bpe.model",), options={"tokenizer_class": "MBart", "src_lang": ""}),
    ),
)  # fmt: skip
FAMILY = Family(
    MBARTConfig, bart.BART, bart.build_heads, pretraining_head="lm", counted_head="lm",
    presets={"mbart-large-cc25": {}, "mbart-large-50": {"vocab": 250054, "start": 2}},
    tokenizer="unigram", tokenizer_style=STYLE, objective="denoising", is_encoder_decoder=True,
    starts_with_last_token=True, has_language_codes=True,
    paper_recipe=PAPER,
    hub_checkpoints=("facebook/mbart-large-cc25", "facebook/mbart-large-50"),
    hf_format=CheckpointFormat(
        "mbart", bart.map_classes("MBart"), HF_CONFIG, bart.build_key_map, bart.adjust_settings,
        bart.build_architecture_rule("MBart"), config_defaults=bart.NO_FORCED_EOS,
    ),
)  # fmt: skip
