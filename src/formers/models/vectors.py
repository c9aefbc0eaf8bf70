"""word2vec, GloVe and fastText (Mikolov et al. 2013, arXiv:1310.4546; Pennington et al. 2014; Bojanowski et al. 2016)

Parent  –
New     1. each word has one vector, whatever its context; words that occur in similar contexts lie close together
        2. skip-gram (a word predicts its neighbours) and CBOW (the neighbours predict the word), with negative sampling
        instead of a softmax and subsampling of frequent words   3. GloVe: least squares on the logarithms of
        co-occurrence counts   4. fastText: a word is the sum of its character n-grams, so unseen words have vectors too
        (training/word_vectors/word2vec.py; published files: interop/word_vectors.py)
Korean  단어를 문맥과 무관한 벡터 하나로 나타냅니다. word2vec은 단어로 주변 단어를 예측하거나(skip-gram) 주변 단어로 그
        단어를 예측하며(CBOW), 소프트맥스 대신 네거티브 샘플링을 씁니다. GloVe는 동시 출현 횟수의 로그를 최소제곱법으로
        맞추고, fastText는 문자 n-gram의 합을 써서 처음 보는 단어에도 벡터를 줍니다.
Shapes  ids (N,) → vectors (N, dim)
Differs from the reference: skip-gram draws its negatives for a stretch of text rather than for each pair, with the same
        expectation, and as in the paper a negative may be the true word; the table stores the finished vectors of
        fastText's known words, as its .vec files do; GloVe updates on many counts at once
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from ..batch import Batch
from ..config import Settings, check_sizes
from ..errors import Error
from ..family import Family, Head, ModelConfig, Presets
from ..text.tokenizer_kinds import TokenizerStyle

VectorKind = Literal["skipgram", "cbow", "glove", "fasttext"]


@dataclass(frozen=True, kw_only=True)
class VectorsConfig(ModelConfig):
    """Sizes, and how the vectors were made; METHODS say which defaults are those of the released programs."""

    kind: VectorKind = "skipgram"
    vocab: int = 400_001  # words, with one for the unknown
    dim: int = 100
    window: int = 5  # the farthest neighbour on either side
    negatives: int = 5  # drawn words for each true one
    sample: float = 1e-3  # words more frequent than this share are thinned out; 0: none
    min_count: int = 5  # rarer words are left out
    buckets: int = 2_000_000  # of fastText's n-grams, and
    min_n: int = 3  # their shortest and
    max_n: int = 6  # longest, in characters
    x_max: float = 100.0  # GloVe's weight grows up to this count
    alpha: float = 0.75  # and with this power

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "window", "negatives", "min_count", "buckets", "min_n", "max_n")
        if self.min_n > self.max_n:
            raise Error(f"min_n {self.min_n} is more than max_n {self.max_n}", fix="set min_n to at most max_n")
        if not 0 <= self.sample <= 1:
            raise Error(f"sample must be a share from 0 to 1, got {self.sample}", fix="set it to something like 0.001")
        if self.x_max <= 0 or self.alpha < 0:
            raise Error(f"x_max {self.x_max} and alpha {self.alpha} give no weight", fix="take 100 and 0.75")

    @property
    def num_rows(self) -> int:
        """Rows of the table: words, then fastText's buckets."""
        return self.vocab + (self.buckets if self.kind == "fasttext" else 0)


class Vectors(nn.Module):
    """One table: the words' vectors, then (fastText) those of the n-grams that make up unseen words."""

    def __init__(self, c: VectorsConfig):
        super().__init__()
        self.word = nn.Embedding(c.num_rows, c.dim)

    @property
    def embedding_table(self) -> Tensor:
        """The table."""
        return self.word.weight

    def forward(self, batch: Batch, **unread: object) -> Tensor:
        """(N,) → (N, dim); there is no context, so a cache, a capture and masks of heads find nothing."""
        return self.word(batch.ids)


def build_heads(c: VectorsConfig) -> dict[str, dict[str, Head]]:
    """Build no head: every task is up to the model that reads the vectors."""
    return {"none": {}}


def build_init_rules(c: VectorsConfig) -> dict[str, float]:
    """Initialise with the spread of the released programs' uniform start, (-1/2 … 1/2)/dim."""
    return {"*": 12**-0.5 / c.dim}


@dataclass(frozen=True)
class VectorMethod:
    """A way to train word vectors, known by the name of its program."""

    kinds: tuple[VectorKind, ...]  # how it may train, the usual one first
    epochs: int
    sources: Mapping[str, str]  # where each default stands, in the paper or the released program
    model: Settings = field(default_factory=dict)  # what differs from VectorsConfig's defaults,
    korean_model: Settings = field(default_factory=dict)  # and for text in Korean


@dataclass(frozen=True)
class KindDefaults:
    """How vectors of a kind are trained (training/word_vectors/word2vec.py)."""

    lr: float  # the released program's
    block_negatives: int = 0  # words drawn for a block of text: as good as five for each pair


WORD2VEC = "released word2vec.c"
FASTTEXT = "released args.cc"
METHODS = {  # the registry has their names and help
    "word2vec": VectorMethod(
        ("skipgram", "cbow"), 5,
        {
            "model.kind": "Mikolov et al. 2013, arXiv:1310.4546, §2; the program has cbow as well",
            "model.dim": WORD2VEC, "model.window": WORD2VEC, "model.negatives": WORD2VEC, "model.sample": WORD2VEC,
            "model.min_count": WORD2VEC, "train.epochs": WORD2VEC, "train.lr": f"{WORD2VEC}: 0.05 of cbow",
        },
    ),
    "glove": VectorMethod(
        ("glove",), 15,
        {
            "model.dim": "ours; 50 in the released demo.sh",
            "model.window": "ours; 15 in the released demo.sh, 10 in Pennington et al. 2014, §4.2",
            "model.min_count": "released demo.sh",
            "model.x_max": "Pennington et al. 2014, §3; 10 in the released demo.sh",
            "model.alpha": "Pennington et al. 2014, §3",
            "train.epochs": "released demo.sh; 50 below 300 dimensions in Pennington et al. 2014, §4.2",
            "train.lr": "Pennington et al. 2014, §4.2: of AdaGrad",
        },
    ),
    # The released 2,000,000 buckets take 800 MB at 100 numbers each; a syllable is what two or three letters are
    # elsewhere.
    "fasttext": VectorMethod(
        ("fasttext",), 5,
        {
            "model.dim": FASTTEXT, "model.window": FASTTEXT, "model.negatives": FASTTEXT,
            "model.sample": f"ours, as word2vec; 0.0001 in the {FASTTEXT}", "model.min_count": FASTTEXT,
            "model.buckets": f"ours; 2,000,000 in Bojanowski et al. 2016, §3.2, and in the {FASTTEXT}",
            "model.min_n": f"Bojanowski et al. 2016, §3.2; {FASTTEXT}; 2 for Korean text: ours",
            "model.max_n": f"Bojanowski et al. 2016, §3.2; {FASTTEXT}; 4 for Korean text: ours",
            "train.epochs": FASTTEXT, "train.lr": FASTTEXT,
        },
        {"buckets": 200_000}, {"min_n": 2, "max_n": 4},
    ),
}  # fmt: skip
KINDS: dict[VectorKind, KindDefaults] = {
    "skipgram": KindDefaults(0.025, 64), "cbow": KindDefaults(0.05, 32), "fasttext": KindDefaults(0.05, 64),
    "glove": KindDefaults(0.05),
}  # fmt: skip
CRAWL_SETTINGS = {"kind": "fasttext", "dim": 300, "window": 5, "negatives": 10, "min_n": 5, "max_n": 5}
PRESETS: Presets = {
    "word2vec-google-news-300": {"kind": "cbow", "vocab": 3_000_000, "dim": 300},
    **{f"glove-6b-{n}d": {"kind": "glove", "vocab": 400_000, "dim": n, "window": 10} for n in (50, 100, 200, 300)},
    "fasttext-cc-300": {**CRAWL_SETTINGS, "vocab": 2_000_000},
    "vectors-mini": {"vocab": 20_000},
}

STYLE = TokenizerStyle("words", {"unk": "[UNK]"}, ("[UNK]",), default_kinds=("words",))
FAMILY = Family(
    VectorsConfig, Vectors, build_heads, pretraining_head="none", counted_head="none",
    build_init_rules=build_init_rules, presets=PRESETS, is_static=True, tokenizer="words", tokenizer_style=STYLE,
    onnx_refusal="it is a table of words",
    export_remedy="formers.interop.word_vectors.write_word_vectors(f, 'vectors.txt') writes the files of word2vec, "
    "GloVe and fastText",
)  # fmt: skip
