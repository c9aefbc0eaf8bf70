"""Trainers as they are defined: everything is counted anew after each merge. Slow, and easy to read."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise


def count_pieces(words):
    pieces, pairs = Counter(), Counter()
    for word, count in words.items():
        for piece in word:
            pieces[piece] += count
        for pair in pairwise(word):
            pairs[pair] += count
    return pieces, pairs


def merge_in_word(word, pair, piece):
    out, i = [], 0
    while i < len(word):
        if word[i : i + 2] == pair:
            out.append(piece)
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def merge_in_words(words, pair, piece):
    new = Counter()
    for word, count in words.items():
        new[merge_in_word(word, pair, piece)] += count
    return new


def train_bpe(words, vocab, size, least=2):
    """The most frequent pair, smaller strings first; the merges and the vocabulary."""
    vocab, merges = list(vocab), []
    while len(vocab) < size:
        _, pairs = count_pieces(words)
        if not pairs or max(pairs.values()) < least:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        merges.append(best)
        words = merge_in_words(words, best, "".join(best))
        if "".join(best) not in vocab:
            vocab.append("".join(best))
    return merges, vocab


def train_wordpiece(words, marks, size, score="gain", least=2):
    """The pair that raises the unigram likelihood most; the vocabulary."""
    words = Counter({(w[0], *("##" + c for c in w[1:])): c for w, c in words.items()})
    vocab = [*marks, *sorted({p for w in words for p in w})]
    while len(vocab) < size:
        pieces, pairs = count_pieces(words)
        total = sum(pieces.values())

        def score_pair(pair, pieces=pieces, pairs=pairs, total=total):
            odds = pairs[pair] / (pieces[pair[0]] * pieces[pair[1]])
            return odds if score == "ratio" else pairs[pair] * round(1e6 * math.log(odds * total))

        gains = {pair: score_pair(pair) for pair, n in pairs.items() if n >= least}
        if not gains:
            break
        best = min(gains, key=lambda p: (-gains[p], -pairs[p], p))
        piece = best[0] + best[1].removeprefix("##")
        words = merge_in_words(words, best, piece)
        if piece not in vocab:
            vocab.append(piece)
    return vocab


def list_ways(word, pieces):
    """All ways to cut a word."""
    if not word:
        yield ()
    for length in range(1, len(word) + 1):
        if word[:length] in pieces:
            for rest in list_ways(word[length:], pieces):
                yield (word[:length], *rest)
