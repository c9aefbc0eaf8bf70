"""What a model file declares of its tokenizer: the kind (`tokenizer`: how pieces are learned) and the style
(`tokenizer_style`: the special tokens, their places in the vocabulary, and the templates of texts).

A new style is a TokenizerStyle in a model file, a new kind an entry of TRAINERS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
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


@dataclass(frozen=True, eq=False)
class TokenizerStyle:
    """A family's special tokens (`special` by role; the `first_tokens` and `last_tokens` of the vocabulary), and its
    templates of one text and of two ($A and $B are the texts; the number after a colon is the segment)."""

    name: str  # in files and on the command line: that of the first family with it
    special: Mapping[str, str]
    first_tokens: tuple[str, ...] = ()
    last_tokens: tuple[str, ...] = ()
    single_template: str = "$A"
    pair_template: str = "$A $B:1"
    _: KW_ONLY
    splits_at_spaces: bool = False  # kind words: punctuation stays with its word (Transformer-XL)
    has_word_ends: bool = False  # kind bpe: characters, and </w> at the end of a word, instead of bytes (GPT-1)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """All special tokens."""
        return (*self.first_tokens, *self.last_tokens)

    def begin_vocab(self, pieces: Iterable[str], size: int) -> dict[str, None]:
        """Return a vocabulary of `size` without its last tokens: the first tokens, then pieces."""
        found = dict.fromkeys([*self.first_tokens, *pieces])
        if (count := len(found) + len(self.last_tokens)) > size:
            what = f"{count} characters and special tokens do not fit into {size} pieces"
            raise Error(what, fix="take a larger size or a smaller alphabet")
        return found

    def add_to_backend(self, rust: Rust, ids: Mapping[str, int]) -> None:
        """Give a Rust tokenizer the special tokens and the templates."""
        rust.add_special_tokens([  # a mask takes the space before it along, as in RoBERTa and XLNet
            AddedToken(token, special=True, normalized=False, lstrip=token == "<mask>") for token in self.special_tokens
        ])  # fmt: skip
        parts = f"{self.single_template} {self.pair_template}".replace(":", " ").split()
        if used := [(token, ids[token]) for token in self.special_tokens if token in parts]:
            rust.post_processor = processors.TemplateProcessing(self.single_template, self.pair_template, used)

    def finish_tokenizer(self, rust: Rust, ids: Mapping[str, int], where: object = None) -> Tokenizer:
        """Finish a Rust tokenizer that lacks only the special tokens and the templates."""
        self.add_to_backend(rust, ids)
        return Tokenizer(rust.to_str(pretty=True), self.special, where=where)


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
GPT_NEOX_TOKENS = {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "pad": "<|padding|>"}
TRANSFORMER_XL_TOKENS = {"eos": "<eos>", "unk": "<unk>"}
TRANSLATION_TOKENS = T5_TOKENS | {"bos": "<s>"}
ELMO_TOKENS = {"bos": "<S>", "eos": "</S>", "unk": "<UNK>"}
KNOWN_TOKENS: tuple[Mapping[str, str], ...] = (  # by which the roles in a tokenizer.json are guessed; ties: the first
    BERT_TOKENS, ROBERTA_TOKENS, GPT2_TOKENS, T5_TOKENS, ALBERT_TOKENS, GPT_TOKENS, GPT_NEOX_TOKENS, XLNET_TOKENS,
    TRANSLATION_TOKENS, TRANSFORMER_XL_TOKENS, ELMO_TOKENS, {"unk": "[UNK]"},
)  # fmt: skip
FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
CLS_SEP_TEMPLATES = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"

# The styles that readers of published files recognise (published_files.py), that are the usual one of a kind, or that
# are no family's own. Model files are above this room and need torch: the others are declared there.
STYLES: dict[str, TokenizerStyle] = {style.name: style for style in (
    TokenizerStyle("bert", BERT_TOKENS, tuple(BERT_TOKENS.values()), (), *CLS_SEP_TEMPLATES),
    TokenizerStyle("albert", ALBERT_TOKENS, tuple(ALBERT_TOKENS.values()), (), *CLS_SEP_TEMPLATES),
    TokenizerStyle("roberta", ROBERTA_TOKENS, FAIRSEQ_TOKENS, ("<mask>",), "<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    TokenizerStyle(
        "mbart", ROBERTA_TOKENS, FAIRSEQ_TOKENS, (*MBART_LANGUAGES, "<mask>"), "$A </s> en_XX", "$A $B </s> en_XX"
    ),
    TokenizerStyle("gpt2", {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}, (), ("<|endoftext|>",)),
    TokenizerStyle("t5", T5_TOKENS, ("<pad>", "</s>", "<unk>"), T5_SENTINELS, "$A </s>", "$A </s> $B </s>"),
    TokenizerStyle(
        "xlnet", XLNET_TOKENS, ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"), (),
        "$A <sep> <cls>:2", "$A <sep> $B:1 <sep>:1 <cls>:2",
    ),
    TokenizerStyle(
        "translation", TRANSLATION_TOKENS, ("<pad>", "<unk>", "<s>", "</s>"), (), "$A </s>", "$A </s> $B </s>"
    ),
    TokenizerStyle("elmo", ELMO_TOKENS, tuple(ELMO_TOKENS.values())),
    TokenizerStyle("words", {"unk": "[UNK]"}, ("[UNK]",)),
)}  # fmt: skip


# Kind → the module of this package and its function, options that the kind fixes, and those that it does not take.
TRAINERS: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "bpe": (".trainers.pair_merging", "train_bpe", {}, ("jamo",)),
    "wordpiece": (".trainers.pair_merging", "train_wordpiece", {}, ()),
    "unigram": (".trainers.unigram", "train_unigram", {}, ()),
    "jamo": (".trainers.pair_merging", "train_bpe", {"jamo": True}, ("jamo",)),
    "words": (".word_level", "train_words", {}, ()),
    # The words that an ELMo predicts. What it reads are characters, which nobody has to learn (word_level.py).
    "characters": (".word_level", "train_words", {"style": STYLES["elmo"]}, ("spaces",)),
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
