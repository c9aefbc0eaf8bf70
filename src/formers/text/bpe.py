"""Byte-level BPE (Sennrich et al. 2015; bytes as in GPT-2, Radford et al. 2019), trained deterministically."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ..errors import Error
from .merges import Words, count_words
from .tokenizer import ALPHABET, Tokenizer

END = "<|endoftext|>"


def train(lines: Iterable[str], size: int = 8192, *, least: int = 2) -> Tokenizer:
    """Learn `size` pieces: the 256 bytes, then the most frequent pair again and again (ties: the smaller strings)."""
    if size < len(ALPHABET) + 1:
        raise Error(f"a byte-level vocabulary of {size} is too small", fix=f"take at least {len(ALPHABET) + 1}")
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = Words(count_words(lines, lambda line: (w for w, _ in split.pre_tokenize_str(line))), list)
    names = words.names
    vocab, merges = sorted(ALPHABET), []

    def entry(pair: tuple[int, int]) -> tuple[int, str, str]:
        return -words.count(pair), names[pair[0]], names[pair[1]]

    heap = [entry(pair) for pair in words.slot]
    heapq.heapify(heap)
    while len(vocab) < size - 1 and heap:
        count, left, right = heapq.heappop(heap)
        pair = words.number[left], words.number[right]
        if words.count(pair) != -count:
            continue  # an old entry: the pair has been counted anew since
        if -count < least:
            break
        merges.append((left, right))
        vocab.append(left + right)
        for other in words.merge(pair, left + right):
            if words.count(other) >= least:
                heapq.heappush(heap, entry(other))
    return assemble([*vocab, END], merges)


def assemble(vocab: list[str], merges: list[tuple[str, str]]) -> Tokenizer:
    """A tokenizer out of pieces and merges; the last piece is the end mark."""
    rust = Rust(models.BPE(vocab={piece: i for i, piece in enumerate(vocab)}, merges=merges))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    return Tokenizer(rust.to_str(pretty=True), {"bos": END, "eos": END})
