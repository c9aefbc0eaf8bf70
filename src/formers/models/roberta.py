"""RoBERTa (Liu et al. 2019, arXiv:1907.11692)

Parent  bert
New     1. no next sentence prediction   2. dynamic masking: new masks in every epoch   3. byte-level BPE of 50k
        4. positions start at row pad + 1 of their table   5. a classifier with its own dense layer, no pooler
Korean  다음 문장 예측을 없애고 에포크마다 마스크를 새로 뽑습니다. 어휘 50k의 바이트 단위 BPE를 씁니다.
Shapes  ids (N,) → hidden (N, dim) → mlm logits (M, vocab)
Differs from the reference: a pad id inside the text is an ordinary token; only `keep` marks padding
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config import ConfigMap, KeyRule, Settings
from ..errors import Error
from ..family import CheckpointFormat, Family, Head, PaperRecipe, Presets, TensorFile, cite_batch
from ..keymap import KeyMap
from ..text.tokenizer_kinds import PublishedForm, TokenizerStyle
from . import bert


@dataclass(frozen=True, kw_only=True)
class RoBERTaConfig(bert.BERTConfig):
    """RoBERTa's sizes and rates; the defaults are RoBERTa-base."""

    vocab: int = 50265
    segments: int = 1
    eps: float = 1e-5
    offset: int = 0  # always pad + 1
    pad: int | None = 1
    bos: int | None = 0
    eos: int | tuple[int, ...] | None = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pad is None:
            raise Error("pad is missing, and positions start after it", fix="set pad (1 in RoBERTa)")
        if self.offset not in (0, self.pad + 1):
            raise Error(f"offset must be pad + 1, got {self.offset}", fix="leave offset out")
        object.__setattr__(self, "offset", self.pad + 1)  # the way to set a field of a frozen dataclass


def build_heads(c: RoBERTaConfig) -> dict[str, dict[str, Head]]:
    """Build RoBERTa's heads: the masked-token layer always has the exact gelu, whatever the blocks use."""
    mine, dropout = dict(bert.build_heads(c)), c.dropout if c.head_dropout is None else c.head_dropout
    del mine["nsp"], mine["pretraining"]
    mlm = replace(mine["mlm"]["mlm"], inner_layers=("dense", "gelu", "norm"))
    inner = ("dropout", "dense", "tanh", "dropout")
    choose = replace(mine["choose"]["choose"], dropout=c.dropout)
    return mine | {"mlm": {"mlm": mlm}, "lm": {"lm": mlm}, "choose": {"choose": choose},
                   "classify": {"classify": Head(pool="first", inner_layers=inner, dropout=dropout)}}  # fmt: skip


def adjust_settings(settings: Settings, architecture: str, file: TensorFile) -> Settings:
    """Subtract the unused first rows of their position table, up to and including that of the pad id."""
    return settings | {"context": settings["context"] - settings["pad"] - 1}


HF_CONFIG = ConfigMap(
    bert.CONFIG_ROWS | {"max_position_embeddings": KeyRule(lambda v: {"context": v}, lambda c: c.context + c.offset)},
    fixed_values=bert.FIXED_CONFIG,
    defaults={"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 1},
)


def build_key_map(c: RoBERTaConfig, head: str) -> KeyMap:
    """Map BERT's names for the body, fairseq's for the masked-token layer."""
    heads = {"classify": {"classifier.dense.*": "dense.*", "classifier.out_proj.*": "out.*"}}
    return bert.build_key_map(c, head, "roberta", transform="lm_head", norm="layer_norm", out="lm_head", heads=heads)


PRESETS: Presets = {
    "roberta-base": {},
    "roberta-large": {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
}

PAPER = PaperRecipe(
    {
        "objective.name": ("mlm", "§4.1 and §4.2: dynamic masking, no next sentence prediction"),
        "objective.mask_rate": (0.15, "§2.3"),
        "objective.across_documents": (True, "§4.2: FULL-SENTENCES"),
        "objective.whole_sentences": (True, "§4.2: FULL-SENTENCES"),
        "train.optimizer": ("adamw", "§2.4 and §3.1"),
        "train.lr": (6e-4, "table 9: base"),
        "train.betas": ((0.9, 0.98), "table 9"),
        "train.eps": (1e-6, "table 9"),
        "train.weight_decay": (0.01, "table 9"),
        "train.schedule": ("linear", "table 9"),
        "train.warmup_steps": (24_000, "table 9: base"),
        "train.steps": (500_000, "table 9"),
        **cite_batch(8192, 512, "table 9: 8k"),
        "train.seq_length": (512, "§3.1"),
        "train.grad_clip": (0.0, "table 9"),
        "model.dropout": (0.1, "table 9"),
        "model.attention_dropout": (0.1, "table 9"),
        "data.vocab_size": (50_000, "§4.4"),
    },
    {"roberta-large": {"train.lr": (4e-4, "table 9: large"), "train.warmup_steps": (30_000, "table 9: large")}},
)

SPECIAL_TOKENS = {
    "bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>", "cls": "<s>", "sep": "</s>",
}  # fmt: skip
FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")  # which fairseq puts before all other pieces
STYLE = TokenizerStyle(
    "roberta", SPECIAL_TOKENS, FAIRSEQ_TOKENS, ("<mask>",), "<s> $A </s>", "<s> $A </s> </s> $B </s>",
    published_forms=(PublishedForm(("merges.txt",), ("<mask>", "<s>")), PublishedForm(("sentencepiece.bpe.model",))),
)  # fmt: skip
FAMILY = Family(
    RoBERTaConfig, bert.BERT, build_heads, pretraining_head="mlm", counted_head="mlm",
    presets=PRESETS, reads_segments=True, can_be_causal=True,
    tokenizer="bpe", tokenizer_style=STYLE, objective="mlm", norm_order="post", is_served_by_tei=True,
    quick_recipe=bert.FAMILY.quick_recipe,
    paper_recipe=PAPER,
    hub_checkpoints=("FacebookAI/roberta-base", "FacebookAI/roberta-large"),
    hf_format=CheckpointFormat("roberta", {
        "RobertaModel": "none", "RobertaForMaskedLM": "mlm", "RobertaForCausalLM": "lm",
        "RobertaForSequenceClassification": "classify", "RobertaForTokenClassification": "tag",
        "RobertaForQuestionAnswering": "answer", "RobertaForMultipleChoice": "choose",
    }, HF_CONFIG, build_key_map, adjust_settings=adjust_settings),
)  # fmt: skip
