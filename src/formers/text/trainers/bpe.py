"""Byte pair encoding (Sennrich et al. 2015), trained deterministically: on bytes as in GPT-2 and BLOOM (Radford et al.
2019), or on characters with a mark at the end of a word as in GPT-1 (Radford et al. 2018).

Hangul syllables may be taken apart into jamo first: 한 is ᄒ + ᅡ + ᆫ, so that pieces may share a stem whose last
syllable changes (하다, 한다, 했다). The jamo are Unicode's conjoining ones, which NFD makes and NFC puts together
again: they say whether a consonant begins or ends its syllable, so that nothing is ambiguous, and ㅋㅋ (compatibility
jamo) stays what it is. A file can say NFD (every reader of tokenizer.json takes syllables apart alike), but no decoder
of the tokenizers library composes: `Tokenizer.decode` does, other readers get NFD and have to compose it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ...config import ProgressCallback
from ...errors import Error
from ..morpheme_marks import MORPHEME_MARK
from ..tokenizer import BYTE_ALPHABET, Tokenizer
from ..tokenizer_styles import get_style
from . import punctuation_spacing
from .pair_merging import MergeCorpus, PairQueue, learn_merges
from .word_counts import WordCutter, choose_alphabet, count_words

MODERN_JAMO = [
    chr(c) for c in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A8, 0x11C3))
]  # of modern Hangul
BYTE_CHARACTERS = {byte: character for character, byte in BYTE_ALPHABET.items()}
JAMO_SPELLINGS = [
    "".join(BYTE_CHARACTERS[byte] for byte in letter.encode()) for letter in MODERN_JAMO
]  # each is three bytes
JAMO_PREFIXES = sorted({jamo[:2] for jamo in JAMO_SPELLINGS})
JAMO_PIECES = [*JAMO_PREFIXES, *JAMO_SPELLINGS]
JAMO_MERGES = [
    *((lead[0], lead[1]) for lead in JAMO_PREFIXES),
    *((jamo[:2], jamo[2]) for jamo in JAMO_SPELLINGS),
]  # they come before all others
JAMO_PATTERN = re.compile("|".join(map(re.escape, [*JAMO_SPELLINGS, *JAMO_PREFIXES])) + "|.", re.DOTALL)
# GPT-2's, but for accents: taken apart, they stay with their letter.
JAMO_WORD_REGEX = r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


def cut_jamo(word: str) -> list[str]:
    """Cut the byte-level spelling of a word into jamo, and into single bytes where it has other characters."""
    return JAMO_PATTERN.findall(word)


def build_jamo_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer: words as in GPT-2, accents included, then bytes."""
    split = pre_tokenizers.Split(Regex(JAMO_WORD_REGEX), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


END_OF_TEXT = "<|endoftext|>"
END_OF_WORD = "</w>"  # GPT-1's mark


def score_frequency(both: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """BPE's score of a pair: how often it occurs."""
    return both.astype(np.float64)


def train(
    lines: Iterable[str],
    vocab_size: int = 8192,
    *,
    style: str = "gpt2",
    min_count: int = 2,
    nfc: bool = True,
    lower: bool | None = None,
    alphabet: int | None = None,
    morphemes: bool = False,
    jamo: bool = False,
    workers: int | None = None,
    tell: ProgressCallback | None = None,
) -> Tokenizer:
    """Learn `vocab_size` pieces: the 256 bytes, then the most frequent pair again and again (ties: the smaller
    strings).

    `style="gpt"` is GPT-1's: characters in lower case instead of bytes (`lower`, `alphabet`). `nfc=False` leaves text
    as it is, so that decoding gives back every byte; otherwise it gives back the composed text. With `morphemes` Korean
    words are cut into morphemes first, and no piece reaches across. With `jamo` Hangul syllables are taken apart first
    (the kind "jamo"): pieces are made of jamo, and decoding composes them again.
    """
    if jamo and (style == "gpt" or not nfc):
        what = "jamo go with bytes, and are composed again: not with " + ("nfc=False" if style != "gpt" else "GPT-1")
        raise Error(what, fix="leave out " + ("nfc" if style != "gpt" else "the style gpt"))
    if style == "gpt":
        return train_end_of_word(lines, vocab_size, min_count, workers, tell, lower is not False, alphabet, morphemes)
    marks = get_style(style)
    if lower is not None or alphabet is not None:
        raise Error("bytes have no case and no alphabet", fix="lower and alphabet go with the style gpt")
    first = [*sorted(BYTE_ALPHABET), *(JAMO_PIECES if jamo else ())]
    if vocab_size < (least_size := len(first) + len(marks.special_tokens)):
        raise Error(f"a byte-level vocabulary of {vocab_size} is too small", fix=f"take at least {least_size}")
    rust = build_byte_level(nfc, morphemes, jamo)
    cutter = WordCutter(rust.to_str(), is_byte_level=True, has_morphemes=morphemes)
    words = MergeCorpus(count_words(lines, cutter, workers, tell), cut_jamo if jamo else list)
    vocab = marks.begin_vocab(first, vocab_size)
    merges = learn_merges(
        PairQueue(words, score_frequency, min_count, near=True), vocab, vocab_size - len(marks.last_tokens), tell=tell
    )
    merges = [*JAMO_MERGES, *merges] if jamo else merges
    rust.model = models.BPE(vocab=(ids := number_pieces([*vocab, *marks.last_tokens])), merges=merges)
    rust.decoder = decoders.ByteLevel()
    marks.add_to_backend(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), marks.special)


def build_byte_level(nfc: bool, morphemes: bool, jamo: bool = False) -> Rust:
    """An empty tokenizer that cuts text as GPT-2 does."""
    rust = Rust(models.BPE())
    if nfc:
        rust.normalizer = normalizers.NFD() if jamo else normalizers.NFC()
    split = build_jamo_pre_tokenizer() if jamo else pre_tokenizers.ByteLevel(add_prefix_space=False)
    joint = pre_tokenizers.Split(MORPHEME_MARK, "removed")
    rust.pre_tokenizer = pre_tokenizers.Sequence([joint, split]) if morphemes else split
    return rust


def train_end_of_word(
    lines: Iterable[str],
    vocab_size: int,
    min_count: int,
    workers: int | None,
    tell: ProgressCallback | None,
    lower: bool = True,
    alphabet: int | None = None,
    morphemes: bool = False,
) -> Tokenizer:
    """GPT-1's: the last piece of a word ends in </w>. A character that is not in the alphabet is unknown."""
    if morphemes:
        raise Error("GPT-1's pieces cannot be cut into morphemes", fix="take the style gpt2, or another of bytes")
    marks = get_style("gpt")
    rust = Rust(models.BPE(unk_token=marks.special["unk"]))
    rust.normalizer, rust.pre_tokenizer = (
        punctuation_spacing.build_normalizer(lower),
        punctuation_spacing.build_pre_tokenizer(),
    )
    counts = count_words(lines, WordCutter(rust.to_str(), has_spaced_punctuation=True), workers, tell)
    kept = choose_alphabet(counts, alphabet or vocab_size // 3) | {" "}
    punctuation_spacing.add_spaced_variants(counts)
    words = MergeCorpus(
        {w: c for w, c in counts.items() if kept.issuperset(w)}, lambda w: [*w[:-1], w[-1] + END_OF_WORD]
    )
    vocab = marks.begin_vocab(words.piece_names[1:], vocab_size)
    merges = learn_merges(
        PairQueue(words, score_frequency, min_count, near=True), vocab, vocab_size - len(marks.last_tokens), tell=tell
    )
    ids = number_pieces([*vocab, *marks.last_tokens])
    rust.model = models.BPE(
        vocab=ids, merges=merges, unk_token=marks.special["unk"], end_of_word_suffix=END_OF_WORD, fuse_unk=False
    )
    rust.decoder = punctuation_spacing.build_decoder([decoders.BPEDecoder(suffix=END_OF_WORD)], marks.special_tokens)
    marks.add_to_backend(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), marks.special)


def number_pieces(pieces: Iterable[str]) -> dict[str, int]:
    """Pieces in their order."""
    return {piece: i for i, piece in enumerate(pieces)}
