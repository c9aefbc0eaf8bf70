"""Word vectors put to use: looked up by word, and as the first layer of another model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
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


def look_up_words(former: Any, words: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The vectors (n, dim) of words, and (n,) which of them have one; the others get zeros.

    A word is looked for as it is, then in lower case; fastText makes up vectors for the rest from their n-grams.
    """
    if former.tokenizer is None or not hasattr(former.model.body, "word"):
        raise Error(f"this {former.family} has no words", fix="take word vectors (family vectors) with a vocabulary")
    c, table, number = former.config, former.model.body.embedding_table.detach(), former.tokenizer.backend.token_to_id
    unknown, words = former.tokenizer.id("unk"), [normalise(word) for word in words]
    ids = [next((i for i in (number(w), number(w.lower())) if i not in (None, unknown)), -1) for w in words]
    rows = torch.tensor(ids, dtype=torch.long, device=table.device)
    has = rows >= 0
    vectors = table[rows.clamp(min=0)] * has[:, None]
    if c.kind == "fasttext":
        for place in (~has).nonzero()[:, 0].tolist():
            parts = hash_ngrams(words[place], c.min_n, c.max_n, c.buckets) if words[place] else []
            if parts:
                vectors[place] = table[torch.tensor(parts, device=table.device) + c.vocab].mean(0)
                has[place] = True
    return vectors, has


@torch.no_grad()
def fill_embedding(
    embedding: nn.Embedding, tokenizer: Tokenizer, vectors: Any, *, frozen: bool = False
) -> VocabCoverage:
    """Give an embedding table the vectors of its vocabulary's pieces; pieces without one keep their row.

    `frozen` leaves the whole table out of training. The marks of sub-words (##, ▁, Ġ) are not part of a word.
    """
    size, dim = embedding.weight.shape
    if dim != vectors.config.dim:
        raise Error(
            f"the vectors have {vectors.config.dim} numbers, the embedding {dim}",
            fix=f"build the model with embeddings of {vectors.config.dim}: --model.embed or --model.dim",
        )
    special = set(tokenizer.special.values())
    names = [tokenizer.get_token_text(i) for i in range(min(size, len(tokenizer)))]
    places = [i for i, name in enumerate(names) if name and name not in special]
    words = [names[i].strip().removeprefix("##").lstrip("▁") for i in places]
    found, has = look_up_words(vectors, words)
    at = torch.tensor(places, dtype=torch.long)[has.cpu()]
    weight = embedding.weight
    weight[at.to(weight.device)] = found[has].to(weight)
    weight.requires_grad_(not frozen)
    missing = tuple(word for word, ok in zip(words, has.tolist(), strict=True) if not ok)
    known = torch.zeros(size, dtype=torch.bool, device=weight.device)
    known[at.to(weight.device)] = True
    return VocabCoverage(int(has.sum()), len(places), missing[:20], known)
