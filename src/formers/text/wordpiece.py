"""WordPiece (Schuster & Nakajima 2012; BERT, Devlin et al. 2018), trained as it is meant: by likelihood.

The unit that is added next is the one that raises the unigram likelihood of the training data most:
gain(ab) = count(ab) · log(count(ab) · N / (count(a) · count(b))), with N tokens so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Rust

from ..config import Tell
from . import spacing
from .bpe import numbered
from .counting import Cutter, alphabet_of, count_words
from .joints import JOINT
from .merges import Queue, Words, learn
from .templates import BERT as SPECIAL
from .templates import style as style_of
from .tokenizer import Tokenizer

JOIN = "##"  # marks a piece that does not begin a word
# Characters of a word; longer ones are unknown, as their time grows with the square. BERT's 100 are too few for Korean
# that is written without spaces: a whole review of 140 characters would be a single unknown word.
LONGEST = 500


def gain(both: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """How much the likelihood rises, the logarithm in whole millionths: so that two gains that are the same number on
    paper are the same here."""
    odds = both / (left.astype(np.float64) * right)
    return both * np.rint(1e6 * np.log(odds * total))


def ratio(both: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """The score of the tutorials."""
    return both / (left.astype(np.float64) * right)


def train(
    lines: Iterable[str],
    size: int = 8192,
    *,
    style: str = "bert",
    least: int = 2,
    lower: bool = False,
    alphabet: int | None = None,
    score: Literal["gain", "ratio"] = "gain",
    morphemes: bool = False,
    workers: int | None = None,
    tell: Tell | None = None,
) -> Tokenizer:
    """Learn `size` pieces: the most frequent characters, then the best pair again and again.

    At most `alphabet` characters are kept, by default a third of the size: each is needed twice, at the beginning of
    a word and inside, and Korean alone has thousands of syllables. A word with any other character is unknown. With
    `morphemes` Korean words are cut into morphemes first, and no piece reaches across.

    `score="ratio"` is count(ab)/(count(a)·count(b)), found in tutorials: it prefers the rarest pairs. For teaching.
    """
    marks = style_of(style)
    unknown = marks.special["unk"]
    rust = machine(lower, unknown, morphemes)
    counts = count_words(lines, Cutter(rust.to_str(), morphemes=morphemes, spaced=True), workers, tell)
    kept = alphabet_of(counts, alphabet or size // 3) | {JOINT, " "}
    spacing.add_variants(counts)
    words = Words({w: c for w, c in counts.items() if kept.issuperset(w)}, cut)
    vocab = marks.vocab(words.names[1:], size)
    queue = Queue(words, ratio if score == "ratio" else gain, least, near=False)
    learn(queue, vocab, size - len(marks.last), JOIN, tell)
    ids = numbered([*vocab, *marks.last])
    rust.model = models.WordPiece(vocab=ids, unk_token=unknown, max_input_chars_per_word=LONGEST)
    pieces: list[Any] = [decoders.WordPiece(prefix=JOIN, cleanup=False)]
    rust.decoder = spacing.decoder([*pieces, decoders.Replace(JOINT, "")] if morphemes else pieces, marks.marks)
    marks.finish(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), marks.special)


def cut(word: str) -> list[str]:
    """The characters of a word; one that begins a morpheme keeps the mark before it, and an edge stands between."""
    first, *rest = word.split(JOINT)
    pieces = [*first[:1], *(JOIN + c for c in first[1:])]
    for morpheme in rest:
        pieces += ["", JOIN + JOINT + morpheme[0], *(JOIN + c for c in morpheme[1:])]
    return pieces


def machine(lower: bool, unknown: str = SPECIAL["unk"], morphemes: bool = False) -> Rust:
    """An empty tokenizer that cuts text as BERT does, but for the spaces around punctuation, which are kept.

    Punctuation is cut off after morphemes were marked, so that a mark may be left at a word's edge: it is removed.
    """
    rust = Rust(models.WordPiece(vocab={unknown: 0}, unk_token=unknown))
    rust.normalizer = spacing.normalizer(lower)
    words = spacing.pre_tokenizer()
    edges = pre_tokenizers.Split(Regex(rf"\A{JOINT}+|{JOINT}+\z"), "removed")
    rust.pre_tokenizer = pre_tokenizers.Sequence([words, edges]) if morphemes else words
    return rust
