"""RoBERTa (Liu et al. 2019, arXiv:1907.11692)

Parent  bert
New     1. no next sentence prediction   2. masks drawn anew in every epoch   3. byte-level BPE of 50k
        4. positions start at row pad + 1 of their table   5. a classifier with its own dense layer, no pooler
Shapes  ids (N,) → hidden (N, dim) → mlm logits (M, vocab)
Differs from the reference: a pad id inside the text is a token like any other; only `keep` tells what is padding
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..config import ConfigMap, Row
from ..errors import Error
from ..family import Family, Format, Head
from ..keymap import KeyMap
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
            raise Error("pad is missing, and positions start behind it", fix="set pad (1 in RoBERTa)")
        if self.offset not in (0, self.pad + 1):
            raise Error(f"offset must be pad + 1, got {self.offset}", fix="leave offset out")
        object.__setattr__(self, "offset", self.pad + 1)  # the way to set a field of a frozen dataclass


def heads(c: RoBERTaConfig) -> dict[str, dict[str, Head]]:
    """RoBERTa's heads: the masked-token layer always has the exact gelu, whatever the blocks use."""
    mine, dropout = dict(bert.heads(c)), c.dropout if c.head_dropout is None else c.head_dropout
    del mine["nsp"], mine["pretraining"]
    mlm = replace(mine["mlm"]["mlm"], inner=("dense", "gelu", "norm"))
    inner = ("dropout", "dense", "tanh", "dropout")
    choose = replace(mine["choose"]["choose"], dropout=c.dropout)
    return mine | {"mlm": {"mlm": mlm}, "lm": {"lm": mlm}, "choose": {"choose": choose},
                   "classify": {"classify": Head(pool="first", inner=inner, dropout=dropout)}}  # fmt: skip


def adjust(settings: dict[str, Any], architecture: str, file: Any) -> dict[str, Any]:
    """Their position table counts its unused first rows as well, up to and including that of the pad id."""
    return settings | {"context": settings["context"] - settings["pad"] - 1}


HF_CONFIG = ConfigMap(
    bert.ROWS | {"max_position_embeddings": Row(lambda v: {"context": v}, lambda c: c.context + c.offset)},
    fixed=bert.FIXED,
    defaults={"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 1},
)


def keys(c: RoBERTaConfig, head: str) -> KeyMap:
    """BERT's names for the body, fairseq's for the masked-token layer."""
    pooler = {"@pooler.dense.*": "dense.*"}
    mlm = {
        "lm_head.dense.*": "dense.*",
        "lm_head.layer_norm.*": "norm.*",
        "lm_head.decoder.weight": "out.weight",
        "lm_head.bias" if c.tied else "lm_head.decoder.bias": "out.bias",
    }
    tied = {"lm_head.decoder.weight": "embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"}
    return KeyMap(
        bert.BODY,
        heads={
            "pool": pooler,
            "mlm": mlm,
            "lm": mlm,
            "classify": {"classifier.dense.*": "dense.*", "classifier.out_proj.*": "out.*"},
            "tag": {"classifier.*": "out.*"},
            "answer": {"qa_outputs.*": "out.*"},
            "choose": {**pooler, "classifier.*": "out.*"},
        },
        prefix="" if head == "none" else "roberta.",
        prefixes=("roberta.",),
        tied=tied if c.tied else {},
        second={} if c.tied else {"lm_head.bias": "lm_head.decoder.bias"},
        drop=("embeddings.position_ids", "embeddings.token_type_ids"),
        aliases=bert.OLD,
    )


PRESETS: dict[str, dict[str, Any]] = {
    "roberta-base": {},
    "roberta-large": {"dim": 1024, "layers": 24, "heads": 16, "ff": 4096},
}

FAMILY = Family(
    RoBERTaConfig, bert.BERT, heads, pretraining="mlm", counted="mlm", init=bert.init, presets=PRESETS, segments=True,
    tokenizer="bpe", objective="masked", norm_order="post",
    hf=Format("roberta", {
        "RobertaModel": "none", "RobertaForMaskedLM": "mlm", "RobertaForCausalLM": "lm",
        "RobertaForSequenceClassification": "classify", "RobertaForTokenClassification": "tag",
        "RobertaForQuestionAnswering": "answer", "RobertaForMultipleChoice": "choose",
    }, HF_CONFIG, keys, adjust=adjust),
)  # fmt: skip
