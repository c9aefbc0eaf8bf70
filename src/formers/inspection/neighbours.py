"""Words and texts by their vectors: how near two are, which lie nearest, and a is to b as c is to …"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import format_value
from ..errors import Error
from ..former import Former
from ..tasks.encoding import Span, find_words
from ..tasks.word_vectors import find_nearest_words, get_unit_vectors
from ..text.normalise import normalise
from .embed import check_choices, embed, embed_spans, make_layer_mixer
from .states import compute_states


class Neighbour(NamedTuple):
    """A text, or a word in its text, and its cosine with the query."""

    name: str
    score: float
    text: str
    span: Span  # where in the text


def compute_cosine(former: Former, one: str, other: str) -> float:
    """Return the cosine of the angle between two words' vectors."""
    first, second = get_unit_vectors(former, [one, other])
    return float(first @ second)


def neighbours(
    former: Former,
    query: str,
    k: int = 10,
    texts: Sequence[str] | None = None,
    *,
    word: str | None = None,
    same_word: bool = False,
    **how: Any,
) -> list[Any]:
    """Find what is nearest to a query, the nearest first.

    Of word vectors, and without `texts`: the words nearest to a word, as (word, cosine). With texts: those nearest to
    the query text, as `Neighbour`; with a `word` of the query, the words in the texts that are nearest to it as it is
    meant there, or only that word itself elsewhere (`same_word`). `how` is what embed takes: pool, layers, mix, window,
    batch.
    """
    if not isinstance(k, int) or k < 1:
        raise Error(f"cannot find {format_value(k)} neighbours", fix="take 1 or more; texts to look in are texts=[...]")
    if texts is None:
        if not former.definition.is_static:
            raise Error(f"this {former.family} has no words outside of texts", fix="give some to look in: texts=[...]")
        return find_nearest_words(former, get_unit_vectors(former, [query])[0], k, [query])
    if not texts:
        raise Error("there are no texts to look in", fix="give at least one")
    if word is None:
        vectors = embed(former, [query, *texts], **{**how, "level": "sentence", "normalise": True})
        return select_best([Neighbour(text, 0.0, text, (0, len(text))) for text in texts], vectors[1:] @ vectors[0], k)
    asked = find_occurrences(normalise(query), word)
    if not asked:
        raise Error(f"there is no {word!r} in the query", fix="name a word of it")
    spans = [
        asked[:1],
        *(find_occurrences(normalise(t), word) if same_word else find_words(normalise(t))[0] for t in texts),
    ]
    if not any(spans[1:]):
        raise Error(f"there is no {word!r} in the texts" if same_word else "there are no words", fix="give other texts")
    (_, direction), *rows = embed_in_context(former, [query, *texts], spans, **how)
    return select_best([row for row, _ in rows], torch.stack([v for _, v in rows]) @ direction, k)


def find_occurrences(text: str, word: str) -> list[Span]:
    """Find a word in a text: as a whole word, else followed by letters, such as Korean particles (배를)."""
    found = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(normalise(word))}(?!\w)", text, re.IGNORECASE)]
    return found or [m.span() for m in re.finditer(rf"(?<!\w){re.escape(normalise(word))}", text, re.IGNORECASE)]


def embed_in_context(
    former: Former,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    pool: str = "mean",
    layers: Any = -1,
    mix: str = "mean",
    **how: Any,
) -> list[tuple[Neighbour, Tensor]]:
    """Embed spans of texts in context, at length 1, in the order of the texts."""
    check_choices("word", pool, mix)
    layer, join = make_layer_mixer(layers, mix)
    rows: dict[int, list[tuple[Neighbour, Tensor]]] = {}
    for number, read in compute_states(former, texts, join, layer=layer, **how):
        made = embed_spans(read, pool, spans[number])
        units = F.normalize(made.vectors, dim=-1)
        named = zip(made.units, made.spans, units, strict=True)
        rows[number] = [(Neighbour(name, 0.0, made.text, span), vector) for name, span, vector in named]
    return [row for number in sorted(rows) for row in rows[number]]


def select_best(rows: Sequence[Neighbour], scores: Tensor, k: int) -> list[Neighbour]:
    """Return the k rows with the highest scores; of equal ones the first."""
    order = scores.argsort(descending=True, stable=True)[:k].tolist()
    return [rows[i]._replace(score=float(scores[i])) for i in order]


def solve_analogy(former: Former, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
    """Solve "a is to b as c is to …": the words nearest to b - a + c, all of length 1 (Mikolov et al. 2013b, §4),
    without these three."""
    first, second, third = get_unit_vectors(former, [a, b, c])
    return find_nearest_words(former, F.normalize(second - first + third, dim=0), k, [a, b, c])
