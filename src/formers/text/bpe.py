"""Byte pair encoding (Sennrich et al. 2015), trained deterministically: on bytes as in GPT-2 and BLOOM (Radford et al.
2019), or on characters with a mark at the end of a word as in GPT-1 (Radford et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, normalizers, pre_tokenizers

from ..config import Tell
from ..errors import Error
from . import jamo as jamo_units
from . import spacing
from .counting import Cutter, alphabet_of, count_words
from .joints import JOINT
from .merges import Queue, Words, learn
from .templates import style as style_of
from .tokenizer import ALPHABET, Tokenizer

END = "<|endoftext|>"
WORD_END = "</w>"  # GPT-1's mark


def frequency(both: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """BPE's score of a pair: how often it occurs."""
    return both.astype(np.float64)


def train(
    lines: Iterable[str],
    size: int = 8192,
    *,
    style: str = "gpt2",
    least: int = 2,
    nfc: bool = True,
    lower: bool | None = None,
    alphabet: int | None = None,
    morphemes: bool = False,
    jamo: bool = False,
    workers: int | None = None,
    tell: Tell | None = None,
) -> Tokenizer:
    """Learn `size` pieces: the 256 bytes, then the most frequent pair again and again (ties: the smaller strings).

    `style="gpt"` is GPT-1's: characters in lower case instead of bytes (`lower`, `alphabet`). `nfc=False` leaves text
    as it is, so that decoding gives back every byte; otherwise it gives back the composed text. With `morphemes` Korean
    words are cut into morphemes first, and no piece reaches across. With `jamo` Hangul syllables are taken apart first
    (the kind "jamo"): pieces are made of jamo, and decoding composes them again.
    """
    if jamo and (style == "gpt" or not nfc):
        what = "jamo go with bytes, and are composed again: not with " + ("nfc=False" if style != "gpt" else "GPT-1")
        raise Error(what, fix="leave out " + ("nfc" if style != "gpt" else "the style gpt"))
    if style == "gpt":
        return train_ends(lines, size, least, workers, tell, lower is not False, alphabet, morphemes)
    marks = style_of(style)
    if lower is not None or alphabet is not None:
        raise Error("bytes have no case and no alphabet", fix="lower and alphabet go with the style gpt")
    first = [*sorted(ALPHABET), *(jamo_units.PIECES if jamo else ())]
    if size < (least_size := len(first) + len(marks.marks)):
        raise Error(f"a byte-level vocabulary of {size} is too small", fix=f"take at least {least_size}")
    rust = machine(nfc, morphemes, jamo)
    cutter = Cutter(rust.to_str(), bytes=True, morphemes=morphemes)
    words = Words(count_words(lines, cutter, workers, tell), jamo_units.cut_jamo if jamo else list)
    vocab = marks.vocab(first, size)
    merges = learn(Queue(words, frequency, least, near=True), vocab, size - len(marks.last), tell=tell)
    merges = [*jamo_units.MERGES, *merges] if jamo else merges
    rust.model = models.BPE(vocab=(ids := numbered([*vocab, *marks.last])), merges=merges)
    rust.decoder = decoders.ByteLevel()
    marks.finish(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), marks.special)


def machine(nfc: bool, morphemes: bool, jamo: bool = False) -> Rust:
    """An empty tokenizer that cuts text as GPT-2 does."""
    rust = Rust(models.BPE())
    if nfc:
        rust.normalizer = normalizers.NFD() if jamo else normalizers.NFC()
    split = jamo_units.split_words() if jamo else pre_tokenizers.ByteLevel(add_prefix_space=False)
    joint = pre_tokenizers.Split(JOINT, "removed")
    rust.pre_tokenizer = pre_tokenizers.Sequence([joint, split]) if morphemes else split
    return rust


def train_ends(
    lines: Iterable[str],
    size: int,
    least: int,
    workers: int | None,
    tell: Tell | None,
    lower: bool = True,
    alphabet: int | None = None,
    morphemes: bool = False,
) -> Tokenizer:
    """GPT-1's: the last piece of a word ends in </w>. A character that is not in the alphabet is unknown."""
    if morphemes:
        raise Error("GPT-1's pieces cannot be cut into morphemes", fix="take the style gpt2, or another of bytes")
    marks = style_of("gpt")
    rust = Rust(models.BPE(unk_token=marks.special["unk"]))
    rust.normalizer, rust.pre_tokenizer = spacing.normalizer(lower), spacing.pre_tokenizer()
    counts = count_words(lines, Cutter(rust.to_str(), spaced=True), workers, tell)
    kept = alphabet_of(counts, alphabet or size // 3) | {" "}
    spacing.add_variants(counts)
    words = Words({w: c for w, c in counts.items() if kept.issuperset(w)}, lambda w: [*w[:-1], w[-1] + WORD_END])
    vocab = marks.vocab(words.names[1:], size)
    merges = learn(Queue(words, frequency, least, near=True), vocab, size - len(marks.last), tell=tell)
    ids = numbered([*vocab, *marks.last])
    rust.model = models.BPE(
        vocab=ids, merges=merges, unk_token=marks.special["unk"], end_of_word_suffix=WORD_END, fuse_unk=False
    )
    rust.decoder = spacing.decoder([decoders.BPEDecoder(suffix=WORD_END)], marks.marks)
    marks.finish(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), marks.special)


def numbered(pieces: Iterable[str]) -> dict[str, int]:
    """Pieces in their order."""
    return {piece: i for i, piece in enumerate(pieces)}
