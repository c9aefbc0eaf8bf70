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

from ...config import ProgressCallback
from ..morpheme_marks import MORPHEME_MARK
from ..tokenizer import Tokenizer
from ..tokenizer_styles import BERT_TOKENS, get_style
from . import punctuation_spacing
from .bpe import number_pieces
from .pair_merging import MergeCorpus, PairQueue, learn_merges
from .word_counts import WordCutter, choose_alphabet, count_words

CONTINUATION_PREFIX = "##"  # marks a piece that does not begin a word
# Characters of a word; longer ones are unknown, as their time grows with the square. BERT's 100 are too few for Korean
# that is written without spaces: a whole review of 140 characters would be a single unknown word.
MAX_WORD_CHARACTERS = 500


def score_gain(both: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """How much the likelihood rises, the logarithm in whole millionths: so that two gains that are the same number on
    paper are the same here."""
    odds = both / (left.astype(np.float64) * right)
    return both * np.rint(1e6 * np.log(odds * total))


def score_ratio(both: np.ndarray, left: np.ndarray, right: np.ndarray, total: int) -> np.ndarray:
    """The score of the tutorials."""
    return both / (left.astype(np.float64) * right)


def train(
    lines: Iterable[str],
    vocab_size: int = 8192,
    *,
    style: str = "bert",
    min_count: int = 2,
    lower: bool = False,
    alphabet: int | None = None,
    score: Literal["gain", "ratio"] = "gain",
    morphemes: bool = False,
    workers: int | None = None,
    tell: ProgressCallback | None = None,
) -> Tokenizer:
    """Learn `vocab_size` pieces: the most frequent characters, then the best pair again and again.

    At most `alphabet` characters are kept, by default a third of the vocabulary: each is needed twice, at the beginning
    of a word and inside, and Korean alone has thousands of syllables. A word with any other character is unknown. With
    `morphemes` Korean words are cut into morphemes first, and no piece reaches across.

    `score="ratio"` is count(ab)/(count(a)·count(b)), found in tutorials: it prefers the rarest pairs. For teaching.
    """
    marks = get_style(style)
    unknown = marks.special["unk"]
    rust = build_bert_pipeline(lower, unknown, morphemes)
    counts = count_words(
        lines, WordCutter(rust.to_str(), has_morphemes=morphemes, has_spaced_punctuation=True), workers, tell
    )
    kept = choose_alphabet(counts, alphabet or vocab_size // 3) | {MORPHEME_MARK, " "}
    punctuation_spacing.add_spaced_variants(counts)
    words = MergeCorpus({w: c for w, c in counts.items() if kept.issuperset(w)}, split_characters)
    vocab = marks.begin_vocab(words.piece_names[1:], vocab_size)
    queue = PairQueue(words, score_ratio if score == "ratio" else score_gain, min_count, near=False)
    learn_merges(queue, vocab, vocab_size - len(marks.last_tokens), CONTINUATION_PREFIX, tell)
    ids = number_pieces([*vocab, *marks.last_tokens])
    rust.model = models.WordPiece(vocab=ids, unk_token=unknown, max_input_chars_per_word=MAX_WORD_CHARACTERS)
    pieces: list[Any] = [decoders.WordPiece(prefix=CONTINUATION_PREFIX, cleanup=False)]
    rust.decoder = punctuation_spacing.build_decoder(
        [*pieces, decoders.Replace(MORPHEME_MARK, "")] if morphemes else pieces, marks.special_tokens
    )
    marks.add_to_backend(rust, ids)
    return Tokenizer(rust.to_str(pretty=True), marks.special)


def split_characters(word: str) -> list[str]:
    """The characters of a word; one that begins a morpheme keeps the mark before it, and an edge stands between."""
    first, *rest = word.split(MORPHEME_MARK)
    pieces = [*first[:1], *(CONTINUATION_PREFIX + c for c in first[1:])]
    for morpheme in rest:
        pieces += [
            "",
            CONTINUATION_PREFIX + MORPHEME_MARK + morpheme[0],
            *(CONTINUATION_PREFIX + c for c in morpheme[1:]),
        ]
    return pieces


def build_bert_pipeline(lower: bool, unknown: str = BERT_TOKENS["unk"], morphemes: bool = False) -> Rust:
    """An empty tokenizer that cuts text as BERT does, but for the spaces around punctuation, which are kept.

    Punctuation is cut off after morphemes were marked, so that a mark may be left at a word's edge: it is removed.
    """
    rust = Rust(models.WordPiece(vocab={unknown: 0}, unk_token=unknown))
    rust.normalizer = punctuation_spacing.build_normalizer(lower)
    words = punctuation_spacing.build_pre_tokenizer()
    edges = pre_tokenizers.Split(Regex(rf"\A{MORPHEME_MARK}+|{MORPHEME_MARK}+\z"), "removed")
    rust.pre_tokenizer = pre_tokenizers.Sequence([words, edges]) if morphemes else words
    return rust
