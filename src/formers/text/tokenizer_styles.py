"""Tokenizer styles: the special tokens of each family, their places in the vocabulary, and the templates of texts.

A model file names its style (`tokenizer_style`); a new one is an entry of STYLES.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, processors

from ..config import suggest_name
from ..errors import Error

T5_SENTINELS = tuple(f"<extra_id_{i}>" for i in reversed(range(100)))  # T5: the first sentinel is the very last piece
MBART_LANGUAGES = (
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX", "kk_KZ",
    "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN",
)  # fmt: skip


@dataclass(frozen=True)
class TokenizerStyle:
    """A family's marks: `special` by role, `first_tokens` and `last_tokens` of the vocabulary, and the templates of one
    text and of two ($A and $B are the texts; a number behind a colon is the segment)."""

    special: Mapping[str, str]
    first_tokens: tuple[str, ...] = ()
    last_tokens: tuple[str, ...] = ()
    single_template: str = "$A"
    pair_template: str = "$A $B:1"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """All special tokens."""
        return (*self.first_tokens, *self.last_tokens)

    def begin_vocab(self, pieces: Iterable[str], size: int) -> dict[str, None]:
        """The beginning of a vocabulary of `size`, its last marks not counted: the first marks, then pieces."""
        found = dict.fromkeys([*self.first_tokens, *pieces])
        if len(found) + len(self.last_tokens) > size:
            raise Error(
                f"{len(found) + len(self.last_tokens)} characters and marks do not fit into {size} pieces",
                fix="take a larger size or a smaller alphabet",
            )
        return found

    def add_to_backend(self, rust: Any, ids: Mapping[str, int]) -> None:
        """Give a Rust tokenizer the marks and the templates."""
        rust.add_special_tokens([make_special_token(token) for token in self.special_tokens])
        used = [
            t
            for t in self.special_tokens
            if t in (self.single_template + " " + self.pair_template).replace(":", " ").split()
        ]
        if used:
            rust.post_processor = processors.TemplateProcessing(
                single=self.single_template,
                pair=self.pair_template,
                special_tokens=[(token, ids[token]) for token in used],
            )


def make_special_token(token: str) -> AddedToken:
    """A special token; a mask takes the space before it along, as in RoBERTa and XLNet."""
    return AddedToken(token, special=True, normalized=False, lstrip=token == "<mask>")


def get_style(name: str) -> TokenizerStyle:
    """A family's marks by name."""
    if name not in STYLES:
        raise Error(f"there is no style {name!r}", fix=suggest_name(name, STYLES))
    return STYLES[name]


BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_TOKENS = {
    "bos": "<s>",
    "eos": "</s>",
    "unk": "<unk>",
    "pad": "<pad>",
    "mask": "<mask>",
    "cls": "<s>",
    "sep": "</s>",
}
GPT2_TOKENS = {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"}
T5_TOKENS = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
ALBERT_TOKENS = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
XLNET_TOKENS = {
    "pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "cls": "<cls>", "sep": "<sep>", "mask": "<mask>",
}  # fmt: skip
GPT_TOKENS = {"unk": "<unk>", "bos": "<start>", "sep": "<delimiter>", "cls": "<classify>"}
FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
CLS_SEP_TEMPLATES = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"

STYLES: dict[str, TokenizerStyle] = {
    "bert": TokenizerStyle(BERT_TOKENS, tuple(BERT_TOKENS.values()), (), *CLS_SEP_TEMPLATES),
    "albert": TokenizerStyle(ALBERT_TOKENS, tuple(ALBERT_TOKENS.values()), (), *CLS_SEP_TEMPLATES),
    "roberta": TokenizerStyle(ROBERTA_TOKENS, FAIRSEQ_TOKENS, ("<mask>",), "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "mbart": TokenizerStyle(
        ROBERTA_TOKENS, FAIRSEQ_TOKENS, (*MBART_LANGUAGES, "<mask>"), "$A </s> en_XX", "$A $B </s> en_XX"
    ),
    "gpt": TokenizerStyle(
        GPT_TOKENS, ("<unk>",), ("<start>", "<delimiter>", "<classify>"),
        "<start> $A <classify>", "<start> $A <delimiter> $B <classify>",
    ),
    "gpt2": TokenizerStyle({"bos": "<|endoftext|>", "eos": "<|endoftext|>"}, (), ("<|endoftext|>",)),
    "gpt_neox": TokenizerStyle(
        {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "pad": "<|padding|>"}, ("<|endoftext|>", "<|padding|>")
    ),
    "bloom": TokenizerStyle(
        {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}, ("<unk>", "<s>", "</s>", "<pad>")
    ),
    "t5": TokenizerStyle(T5_TOKENS, ("<pad>", "</s>", "<unk>"), T5_SENTINELS, "$A </s>", "$A </s> $B </s>"),
    "xlnet": TokenizerStyle(
        XLNET_TOKENS, ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"), (),
        "$A <sep> <cls>:2", "$A <sep> $B:1 <sep>:1 <cls>:2",
    ),
    "translation": TokenizerStyle(
        T5_TOKENS | {"bos": "<s>"}, ("<pad>", "<unk>", "<s>", "</s>"), (), "$A </s>", "$A </s> $B </s>"
    ),
    "transformer_xl": TokenizerStyle(
        {"eos": "<eos>", "unk": "<unk>"}, ("<eos>", "<unk>"), (), "$A <eos>", "$A <eos> $B <eos>"
    ),
    "elmo": TokenizerStyle({"bos": "<S>", "eos": "</S>", "unk": "<UNK>"}, ("<S>", "</S>", "<UNK>")),
    "words": TokenizerStyle({"unk": "[UNK]"}, ("[UNK]",)),
}  # fmt: skip
