"""The two words by which a model file declares its tokenizer: the kind (`tokenizer`: how pieces are learned) and the
style (`tokenizer_style`: the special tokens, their places in the vocabulary, and the templates of texts).

A new style is an entry of STYLES, a new kind one of TRAINERS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Rust

from ..config import suggest_name
from ..errors import Error
from .tokenizer import Tokenizer

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
        if (count := len(found) + len(self.last_tokens)) > size:
            what = f"{count} characters and marks do not fit into {size} pieces"
            raise Error(what, fix="take a larger size or a smaller alphabet")
        return found

    def add_to_backend(self, rust: Rust, ids: Mapping[str, int]) -> None:
        """Give a Rust tokenizer the marks and the templates."""
        rust.add_special_tokens([  # a mask takes the space before it along, as in RoBERTa and XLNet
            AddedToken(token, special=True, normalized=False, lstrip=token == "<mask>") for token in self.special_tokens
        ])  # fmt: skip
        parts = f"{self.single_template} {self.pair_template}".replace(":", " ").split()
        if used := [(token, ids[token]) for token in self.special_tokens if token in parts]:
            rust.post_processor = processors.TemplateProcessing(self.single_template, self.pair_template, used)

    def finish_tokenizer(self, rust: Rust, ids: Mapping[str, int], where: object = None) -> Tokenizer:
        """The tokenizer of a Rust tokenizer that has all but the marks and the templates."""
        self.add_to_backend(rust, ids)
        return Tokenizer(rust.to_str(pretty=True), self.special, where=where)


def get_style(name: str) -> TokenizerStyle:
    """A family's marks by name."""
    if name not in STYLES:
        raise Error(f"there is no style {name!r}", fix=suggest_name(name, STYLES))
    return STYLES[name]


BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_TOKENS = {
    "bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>", "cls": "<s>", "sep": "</s>",
}  # fmt: skip
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


# Kind → the module of this package and its function, options that the kind fixes, and those that it does not take.
TRAINERS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "bpe": (".trainers.pair_merging", "train_bpe", {}, ("jamo",)),
    "wordpiece": (".trainers.pair_merging", "train_wordpiece", {}, ()),
    "unigram": (".trainers.unigram", "train_unigram", {}, ()),
    "jamo": (".trainers.pair_merging", "train_bpe", {"jamo": True}, ("jamo",)),
    "words": (".word_level", "train_words", {}, ()),
    # The words that an ELMo predicts. What it reads are characters, which nobody has to learn (word_level.py).
    "characters": (".word_level", "train_words", {"style": "elmo"}, ("spaces",)),
}
MAX_VOCAB_SIZE, MAX_WORKERS = 1 << 24, 1024  # pieces, processes


def train_by_kind(kind: str, lines: Iterable[str], vocab_size: int, **options: Any) -> Tokenizer:
    """Train a tokenizer of a kind (bpe, wordpiece, unigram, jamo, words, characters).

    Options are those of the kind's own function (train_bpe, …); all have `style` (whose special tokens), `workers` and
    `tell`. The result is the same, byte for byte, however many processes count the words.
    """
    if kind not in TRAINERS:
        raise Error(f"formers does not train {kind!r} tokenizers", fix=suggest_name(kind, TRAINERS))
    limits = ("vocab_size", vocab_size, MAX_VOCAB_SIZE), ("workers", options.get("workers"), MAX_WORKERS)
    for name, value, most in limits:
        if value is not None and not 1 <= value <= most:
            raise Error(f"{name} cannot be {value:,}", fix=f"take 1 to {most:,}")
    if (alphabet := options.get("alphabet")) is not None and not 1 <= alphabet <= vocab_size:
        raise Error(f"an alphabet cannot have {alphabet:,} characters", fix=f"take 1 to {vocab_size:,}, the vocab_size")
    module, function, fixed, hidden = TRAINERS[kind]
    train = getattr(import_module(module, __package__), function)  # a trainer is imported when it is needed
    known = [name for name in signature(train).parameters if name not in hidden]
    for name in options:
        if name not in known:
            raise Error(f"{kind} has no option {name!r}", fix=suggest_name(name, known[2:]))
    return train(lines, vocab_size, **{**fixed, **options})
