"""What a model file declares of its tokenizer: the kind (`tokenizer`: how pieces are learned) and the style
(`tokenizer_style`: the special tokens, their places in the vocabulary, and the templates of texts).

A new style is a TokenizerStyle in a model file, a new kind an entry of TRAINERS. This room stands below the model
files: what needs a style is given one, or all of them, by its caller (registry.py lists them)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from importlib import import_module
from inspect import signature
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Rust

from ..config import suggest_name
from ..errors import Error
from .tokenizer import Tokenizer

SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model")  # the second: ids are fairseq's, not the model's own


@dataclass(frozen=True, eq=False)
class PublishedForm:
    """Files other than tokenizer.json that tokenizers of a style are published in (published_files.py), how they are
    recognised among those of other styles, and what differs from the style there."""

    files: tuple[str, ...]  # vocab.txt, merges.txt, source.spm, vocab.pkl or some of SENTENCEPIECE_FILES
    tokens: tuple[str, ...] = ()  # recognised by all of these pieces in the vocabulary,
    options: Mapping[str, str] = field(default_factory=dict)  # and by an option of tokenizer_config.json: a part of it
    special: Mapping[str, str] | None = None  # by role; None, here and below: as in the style
    last_tokens: tuple[str, ...] | None = None
    single_template: str | None = None
    pair_template: str | None = None
    languages: tuple[str, ...] | None = None
    plain_quotes: bool = False  # SentencePiece: quotation marks become " and accents are stripped before the model
    lower: bool = False  # SentencePiece: text is made lower case, unless its options say otherwise

    def apply_to(self, style: TokenizerStyle) -> TokenizerStyle:
        """Return a style with what this form has in place of the style's own."""
        return replace(
            style,
            special=style.special if self.special is None else self.special,
            last_tokens=style.last_tokens if self.last_tokens is None else self.last_tokens,
            single_template=style.single_template if self.single_template is None else self.single_template,
            pair_template=style.pair_template if self.pair_template is None else self.pair_template,
            languages=style.languages if self.languages is None else self.languages,
        )

    def count_matches(self, pieces: Collection[str], options: Mapping[str, object]) -> int | None:
        """Count what a file is recognised by; None: it is not in this form."""
        if any(token not in pieces for token in self.tokens):
            return None
        if self.options and not any(k in options and w in str(options[k]) for k, w in self.options.items()):
            return None
        return len(self.tokens) + len(self.options)


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
    languages: tuple[str, ...] = ()  # codes among the last tokens; that of a text is in its templates (mBART)
    default_kinds: tuple[str, ...] = ()  # kinds of tokenizer that have this style if no other is named
    published_forms: tuple[PublishedForm, ...] = ()

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """All special tokens."""
        return (*self.first_tokens, *self.last_tokens)

    def begin_vocab(self, pieces: Iterable[str], size: int) -> dict[str, None]:
        """Return a vocabulary of `size` without its last tokens: the first tokens, then pieces."""
        vocab = dict.fromkeys([*self.first_tokens, *pieces])
        if (count := len(vocab) + len(self.last_tokens)) > size:
            what = f"{count} characters and special tokens do not fit into {size} pieces"
            raise Error(what, fix="take a larger size or a smaller alphabet")
        return vocab

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


# Kind → the module of this package and its function, options that the kind fixes, and those that it does not take.
TRAINERS: dict[str, tuple[str, str, dict[str, bool], tuple[str, ...]]] = {
    "bpe": (".trainers.pair_merging", "train_bpe", {}, ("jamo",)),
    "wordpiece": (".trainers.pair_merging", "train_wordpiece", {}, ()),
    "unigram": (".trainers.unigram", "train_unigram", {}, ()),
    "jamo": (".trainers.pair_merging", "train_bpe", {"jamo": True}, ("jamo",)),
    "words": (".word_level", "train_words", {}, ()),
    # The words that an ELMo predicts. What it reads are characters, which nobody has to learn (word_level.py).
    "characters": (".word_level", "train_words", {}, ("spaces",)),
}
MAX_VOCAB_SIZE, MAX_WORKERS = 1 << 24, 1024  # pieces, processes


def train_by_kind(
    kind: str, lines: Iterable[str], vocab_size: int, *, style: TokenizerStyle,
    **options: Any,  # dynamic: those of the kind's own function
) -> Tokenizer:  # fmt: skip
    """Train a tokenizer of a kind (bpe, wordpiece, unigram, jamo, words, characters), with a style's special tokens.
    Options are those of the kind's own function (train_bpe, …); all have `workers` and `tell`. The result is the same,
    byte for byte, however many processes count the words."""
    if kind not in TRAINERS:
        raise Error(f"formers does not train {kind!r} tokenizers", fix=suggest_name(kind, TRAINERS))
    limits = ("vocab_size", vocab_size, MAX_VOCAB_SIZE), ("workers", options.get("workers"), MAX_WORKERS)
    for name, value, most in limits:
        if value is not None and not 1 <= value <= most:
            raise Error(f"{name} cannot be {value:,}", fix=f"take 1 to {most:,}")
    if (alphabet := options.get("alphabet")) is not None and not 1 <= alphabet <= vocab_size:
        raise Error(f"an alphabet cannot have {alphabet:,} characters", fix=f"take 1 to {vocab_size:,}, the vocab_size")
    module, function, fixed, hidden = TRAINERS[kind]
    train = getattr(import_module(module, __package__), function)  # dynamic: TRAINERS names it, imported when needed
    known = [name for name in signature(train).parameters if name not in hidden]
    for name in options:
        if name not in known:
            raise Error(f"{kind} has no option {name!r}", fix=suggest_name(name, known[2:]))
    return train(lines, vocab_size, style=style, **fixed, **options)
