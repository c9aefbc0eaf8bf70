"""Word vectors put to use: looked up by word, and as the first layer of another model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import Error, NonFinite
from ..former import Former
from ..text.normalise import normalise
from ..text.tokenizer import Tokenizer
from ..text.word_level import hash_ngrams


@dataclass(frozen=True)
class VocabCoverage:
    """How much of a vocabulary has a vector: how many of how many pieces, and the first that have none."""

    num_found: int
    total: int
    missing: tuple[str, ...]
    known_rows: Tensor | None = field(default=None, compare=False, repr=False)  # (rows,) which rows got a vector

    def __str__(self) -> str:
        return f"{self.num_found:,} of {self.total:,} pieces have a vector ({self.num_found / max(1, self.total):.1%})"


def look_up_words(former: Former, words: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the vectors (n, dim) of words, and (n,) which of them have one; the others get zeros. A word is looked for
    as it is, then in lower case; fastText makes up vectors for the rest from their n-grams."""
    if former.tokenizer is None or not former.definition.is_static:
        raise Error(f"this {former.family} has no words", fix="take word vectors (family vectors) with a vocabulary")
    c, table, number = former.config, former.model.body.embedding_table.detach(), former.tokenizer.backend.token_to_id
    unknown, words = former.tokenizer.id("unk"), [normalise(word) for word in words]
    ids = [next((i for i in (number(w), number(w.lower())) if i not in (None, unknown)), -1) for w in words]
    rows = torch.tensor(ids, dtype=torch.long, device=table.device)
    has = rows >= 0
    vectors = table[rows.clamp(min=0)] * has[:, None]
    if c.kind == "fasttext":
        for place in (~has).nonzero()[:, 0].tolist():
            if parts := hash_ngrams(words[place], c.min_n, c.max_n, c.buckets) if words[place] else []:
                vectors[place] = table[torch.tensor(parts, device=table.device) + c.vocab].mean(0)
                has[place] = True
    return vectors, has


def get_unit_vectors(former: Former, words: Sequence[str]) -> Tensor:
    """Return the vectors (n, dim) of words, at length 1; a word without a vector is an Error."""
    vectors, has = look_up_words(former, words)
    if not has.all():
        lost = words[int((~has).nonzero()[0])]
        fix = "it is not in the vocabulary; only fastText knows new words"
        raise Error(f"there is no vector for {lost!r}", fix=fix)
    return F.normalize(vectors.float(), dim=-1)


@torch.inference_mode()
def find_nearest_words(former: Former, direction: Tensor, k: int, without: Sequence[str]) -> list[tuple[str, float]]:
    """Find the k words whose vectors are nearest to a direction, without the unknown token and those in `without`."""
    assert former.tokenizer is not None
    table = former.model.body.embedding_table[: former.config.vocab]
    near = torch.mv(table.float(), direction) / table.float().norm(dim=1).clamp(min=1e-12)
    number = former.tokenizer.backend.token_to_id
    names = {form for word in without for form in (normalise(word), normalise(word).lower())}
    for index in (former.tokenizer.id("unk"), *map(number, names)):
        if index is not None:
            near[index] = -2.0
    check_vectors_finite(near)
    best = near.topk(min(k, len(near)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(former.tokenizer.get_token_text(i), score) for i, score in pairs if score > -1.5]


def check_vectors_finite(*groups: Tensor) -> None:
    """Raise NonFinite if a vector holds NaN or infinity."""
    if not all(bool(vectors.isfinite().all()) for vectors in groups):
        raise NonFinite("vectors")


@torch.no_grad()
def fill_embedding(
    embedding: nn.Embedding, tokenizer: Tokenizer, vectors: Former, *, frozen: bool = False
) -> VocabCoverage:
    """Give an embedding table the vectors of its vocabulary's pieces; pieces without one keep their row. `frozen`
    leaves the whole table out of training. The marks of sub-words (##, ▁, Ġ) are not part of a word."""
    size, dim = embedding.weight.shape
    if dim != (own := vectors.config.dim):
        fix = f"build the model with embeddings of {own}: --model.embed or --model.dim"
        raise Error(f"the vectors have {own} numbers, the embedding {dim}", fix=fix)
    special = set(tokenizer.special.values())
    names = [tokenizer.get_token_text(i) for i in range(min(size, len(tokenizer)))]
    places = [i for i, name in enumerate(names) if name and name not in special]
    words = [names[i].strip().removeprefix("##").lstrip("▁") for i in places]
    rows, has = look_up_words(vectors, words)
    at = torch.tensor(places, dtype=torch.long)[has.cpu()]
    weight = embedding.weight
    weight[at.to(weight.device)] = rows[has].to(weight)
    weight.requires_grad_(not frozen)
    missing = tuple(word for word, ok in zip(words, has.tolist(), strict=True) if not ok)
    known = torch.zeros(size, dtype=torch.bool, device=weight.device)
    known[at.to(weight.device)] = True
    return VocabCoverage(int(has.sum()), len(places), missing[:20], known)
