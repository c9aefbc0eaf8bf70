"""The special tokens and templates of the family: which marks a text gets, and where they stand in the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, processors

from ..config import suggest
from ..errors import Error

SENTINELS = tuple(f"<extra_id_{i}>" for i in reversed(range(100)))  # T5: the first sentinel is the very last piece
LANGUAGES = (
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX", "kk_KZ",
    "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN",
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """A family's marks: `special` by role, `first` and `last` in the vocabulary, and the templates of one text and of
    two ($A and $B are the texts; a number behind a colon is the segment)."""

    special: Mapping[str, str]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    single: str = "$A"
    pair: str = "$A $B:1"

    @property
    def marks(self) -> tuple[str, ...]:
        """All special tokens."""
        return (*self.first, *self.last)

    def vocab(self, pieces: Iterable[str], size: int) -> dict[str, None]:
        """The beginning of a vocabulary of `size`, its last marks not counted: the first marks, then pieces."""
        found = dict.fromkeys([*self.first, *pieces])
        if len(found) + len(self.last) > size:
            raise Error(
                f"{len(found) + len(self.last)} characters and marks do not fit into {size} pieces",
                fix="take a larger size or a smaller alphabet",
            )
        return found

    def finish(self, rust: Any, ids: Mapping[str, int]) -> None:
        """Give a Rust tokenizer the marks and the templates."""
        rust.add_special_tokens([mark(token) for token in self.marks])
        used = [t for t in self.marks if t in (self.single + " " + self.pair).replace(":", " ").split()]
        if used:
            rust.post_processor = processors.TemplateProcessing(
                single=self.single, pair=self.pair, special_tokens=[(token, ids[token]) for token in used]
            )


def mark(token: str) -> AddedToken:
    """A special token; a mask takes the space before it along, as in RoBERTa and XLNet."""
    return AddedToken(token, special=True, normalized=False, lstrip=token == "<mask>")


def style(name: str) -> Style:
    """A family's marks by name."""
    if name not in STYLES:
        raise Error(f"there is no style {name!r}", fix=suggest(name, STYLES))
    return STYLES[name]


BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>", "cls": "<s>", "sep": "</s>"}
GPT2 = {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"}
T5 = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
ALBERT = {"pad": "<pad>", "unk": "<unk>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
XLNET = {
    "pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "cls": "<cls>", "sep": "<sep>", "mask": "<mask>",
}  # fmt: skip
GPT = {"unk": "<unk>", "bos": "<start>", "sep": "<delimiter>", "cls": "<classify>"}
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
CLS_SEP = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"

STYLES: dict[str, Style] = {
    "bert": Style(BERT, tuple(BERT.values()), (), *CLS_SEP),
    "albert": Style(ALBERT, tuple(ALBERT.values()), (), *CLS_SEP),
    "roberta": Style(ROBERTA, FAIRSEQ, ("<mask>",), "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "mbart": Style(ROBERTA, FAIRSEQ, (*LANGUAGES, "<mask>"), "$A </s> en_XX", "$A $B </s> en_XX"),
    "gpt": Style(
        GPT, ("<unk>",), ("<start>", "<delimiter>", "<classify>"),
        "<start> $A <classify>", "<start> $A <delimiter> $B <classify>",
    ),
    "gpt2": Style({"bos": "<|endoftext|>", "eos": "<|endoftext|>"}, (), ("<|endoftext|>",)),
    "gpt_neox": Style(
        {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "pad": "<|padding|>"}, ("<|endoftext|>", "<|padding|>")
    ),
    "bloom": Style(
        {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"}, ("<unk>", "<s>", "</s>", "<pad>")
    ),
    "t5": Style(T5, ("<pad>", "</s>", "<unk>"), SENTINELS, "$A </s>", "$A </s> $B </s>"),
    "xlnet": Style(
        XLNET, ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"), (),
        "$A <sep> <cls>:2", "$A <sep> $B:1 <sep>:1 <cls>:2",
    ),
    "translation": Style(T5 | {"bos": "<s>"}, ("<pad>", "<unk>", "<s>", "</s>"), (), "$A </s>", "$A </s> $B </s>"),
    "transformer_xl": Style({"eos": "<eos>", "unk": "<unk>"}, ("<eos>", "<unk>"), (), "$A <eos>", "$A <eos> $B <eos>"),
    "elmo": Style({"bos": "<S>", "eos": "</S>", "unk": "<UNK>"}, ("<S>", "</S>", "<UNK>")),
    "words": Style({"unk": "[UNK]"}, ("[UNK]",)),
}  # fmt: skip

# What each family was published with: the kind of tokenizer, and the style of its marks.
FAMILY: dict[str, tuple[str, str]] = {
    "bert": ("wordpiece", "bert"), "ernie": ("wordpiece", "bert"), "gnmt": ("wordpiece", "translation"),
    "gpt": ("bpe", "gpt"), "gpt2": ("bpe", "gpt2"), "gpt3": ("bpe", "gpt2"), "gpt_neo": ("bpe", "gpt2"),
    "gptj": ("bpe", "gpt2"), "gpt_neox": ("bpe", "gpt_neox"), "bloom": ("bpe", "bloom"),
    "roberta": ("bpe", "roberta"), "bart": ("bpe", "roberta"), "transformer": ("bpe", "translation"),
    "seq2seq": ("bpe", "translation"), "mbart": ("unigram", "mbart"), "t5": ("unigram", "t5"),
    "mt5": ("unigram", "t5"), "switch": ("unigram", "t5"), "albert": ("unigram", "albert"),
    "xlnet": ("unigram", "xlnet"), "transformer_xl": ("words", "transformer_xl"), "elmo": ("characters", "elmo"),
    "textcnn": ("words", "words"), "vectors": ("words", "words"),
}  # fmt: skip
