"""Words by their vectors: how near two are, which lie nearest, and a is to b as c is to …"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import Error
from ..former import Former
from ..tasks.words import look_up


def cosine(former: Former, one: str, other: str) -> float:
    """The cosine of the angle between two words' vectors."""
    first, second = unit(former, [one, other])
    return float(first @ second)


def neighbours(former: Former, word: str, k: int = 10) -> list[tuple[str, float]]:
    """The words nearest to a word, and their cosines; the word itself is left out."""
    return nearest(former, unit(former, [word])[0], k, [word])


def analogy(former: Former, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
    """a is to b as c is to …: the words nearest to b - a + c, all of length 1 (Mikolov et al. 2013b, §4); the three
    words themselves are left out."""
    first, second, third = unit(former, [a, b, c])
    return nearest(former, F.normalize(second - first + third, dim=0), k, [a, b, c])


def unit(former: Former, words: Sequence[str]) -> Tensor:
    """The vectors (n, dim) of words, at length 1; a word without a vector is an Error."""
    vectors, has = look_up(former, words)
    if not has.all():
        lost = words[int((~has).nonzero()[0])]
        raise Error(
            f"there is no vector for {lost!r}", fix="it is not in the vocabulary; only fastText knows new words"
        )
    return F.normalize(vectors.float(), dim=-1)


@torch.inference_mode()
def nearest(former: Former, direction: Tensor, k: int, without: Sequence[str]) -> list[tuple[str, float]]:
    """The k words whose vectors point most into a direction; unknown ones and those named are left out."""
    assert former.tokenizer is not None
    table = former.model.body.table[: former.config.vocab]
    near = torch.mv(table.float(), direction) / table.float().norm(dim=1).clamp(min=1e-12)
    number = former.tokenizer.rust.token_to_id
    names = {form for word in without for form in (word, word.lower())}
    for index in (former.tokenizer.id("unk"), *map(number, names)):
        if index is not None:
            near[index] = -2.0
    best = near.topk(min(k, len(near)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(former.tokenizer.token(i), score) for i, score in pairs if score > -1.5]
