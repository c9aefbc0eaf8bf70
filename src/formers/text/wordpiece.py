"""WordPiece (Schuster & Nakajima 2012; BERT, Devlin et al. 2018), trained as it is meant: by likelihood.

The unit that is added next is the one that raises the unigram likelihood of the training data most:
gain(ab) = count(ab) · log(count(ab) · N / (count(a) · count(b))), with N tokens so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Rust

from ..errors import Error
from .merges import Words, count_words
from .tokenizer import Tokenizer

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
JOIN = "##"  # marks a piece that does not begin a word


def train(
    lines: Iterable[str],
    size: int = 8192,
    *,
    least: int = 2,
    lower: bool = False,
    alphabet: int | None = None,
    score: Literal["gain", "ratio"] = "gain",
) -> Tokenizer:
    """Learn `size` pieces: the most frequent characters, then the best pair again and again.

    At most `alphabet` characters are kept, by default a third of the size: each is needed twice, at the beginning of
    a word and inside, and Korean alone has thousands of syllables. A word with any other character is unknown.

    `score="ratio"` is count(ab)/(count(a)·count(b)), found in tutorials: it prefers the rarest pairs. For teaching.
    """
    rust = machine(lower)
    normal: Any = rust.normalizer
    split: Any = rust.pre_tokenizer
    counts = count_words(lines, lambda line: (w for w, _ in split.pre_tokenize_str(normal.normalize_str(line))))
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    kept = {
        letter for letter, _ in sorted(letters.items(), key=lambda item: (-item[1], item[0]))[: alphabet or size // 3]
    }
    words = Words({w: c for w, c in counts.items() if set(w) <= kept}, lambda w: [w[0], *(JOIN + c for c in w[1:])])
    vocab = dict.fromkeys([*SPECIAL.values(), *words.names])  # a dict keeps the order and knows its members
    if len(vocab) > size:
        raise Error(
            f"{len(words.names)} characters do not fit into {size} pieces",
            fix="take a larger size or a smaller alphabet",
        )
    while len(vocab) < size:
        pair = best(words, least, score)
        if pair is None:
            break
        piece = words.names[pair[0]] + words.names[pair[1]].removeprefix(JOIN)
        words.merge(pair, piece)
        vocab[piece] = None
    return assemble(list(vocab), lower)


def best(words: Words, least: int, score: str) -> tuple[int, int] | None:
    """The pair that gains most; ties go to the more frequent, then to the smaller strings."""
    slots = len(words.where)
    both, left, right = (a[:slots] for a in (words.both, words.left, words.right))
    alive = np.flatnonzero(both >= least)
    if not len(alive):
        return None
    both, left, right = both[alive], left[alive], right[alive]
    odds = both / (words.pieces[left].astype(np.float64) * words.pieces[right])
    gain = odds if score == "ratio" else np.round(both * np.log(odds * words.total), 6)
    top = np.flatnonzero(gain == gain.max())
    return min(
        ((int(left[i]), int(right[i])) for i in top),
        key=lambda p: (-words.count(p), words.names[p[0]], words.names[p[1]]),
    )


def machine(lower: bool) -> Rust:
    """An empty tokenizer that cuts text as BERT does. NFC, and accents stay: stripping them would take Hangul apart."""
    rust = Rust(models.WordPiece(vocab={SPECIAL["unk"]: 0}, unk_token=SPECIAL["unk"]))
    bert = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=lower)
    rust.normalizer = normalizers.Sequence([normalizers.NFC(), bert])
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return rust


def assemble(vocab: list[str], lower: bool) -> Tokenizer:
    """A tokenizer out of pieces, with BERT's template [CLS] A [SEP] B [SEP]."""
    rust, index = machine(lower), {piece: i for i, piece in enumerate(vocab)}
    rust.model = models.WordPiece(vocab=index, unk_token=SPECIAL["unk"])
    rust.decoder = decoders.WordPiece(prefix=JOIN)
    rust.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL.values()])
    marks = [(SPECIAL[role], index[SPECIAL[role]]) for role in ("cls", "sep")]
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    return Tokenizer(rust.to_str(pretty=True), SPECIAL)
