"""Vectors of texts, words and tokens, out of any layer or mix of layers, for every member of the family."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import ProgressCallback
from ..errors import Error
from ..former import Former
from ..inputs import list_texts
from ..model import pool_vectors
from ..tasks.encoding import Span, find_words
from .states import TextStates, compute_states

LEVELS = ("sentence", "word", "token")
POOLS = ("mean", "first", "last", "max", "sum", "weighted")
MIXES = ("mean", "sum", "max", "concat")
LAST_LAYERS = re.compile(r"(mean|sum|max|concat)(\d+)")


@dataclass(frozen=True)
class SpanVectors:
    """The words or tokens of a text, where each begins and ends in it (composed to NFC), and their vectors."""

    text: str
    units: list[str]
    spans: list[Span]
    vectors: Tensor  # (n, dim)


def embed(
    former: Former,
    texts: str | Sequence[str],
    *,
    level: str = "sentence",
    pool: str = "mean",
    layers: int | Sequence[int] | str = -1,
    mix: str = "mean",
    normalise: bool = False,
    special: bool = True,
    batch: int = 32,
    window: int | None = None,
    tell: ProgressCallback | None = None,
) -> Any:
    """Embed texts: (n, dim), or (dim,) for one string; at level word or token, `SpanVectors` for each text.

    `pool` makes one vector of a text's tokens, or of a word's: mean, first, last, max, sum, or weighted (later tokens
    count more, for decoders). `layers` is one (-1 the last, 0 the embeddings), several with a `mix` of mean, sum, max
    or concat, or a word such as "sum4" for the last four. Without `special`, marks such as [CLS] do not count. A text
    longer than the model's context, or than `window` tokens, is read in windows that overlap. A word that no token
    belongs to, or that word vectors do not know, has zeros.
    """
    check_choices(level, pool, mix)
    layer, join = make_layer_mixer(layers, mix)
    alone = isinstance(texts, str)
    rows: list[str] = [texts] if isinstance(texts, str) else list_texts(texts)
    if odd := [i for i, text in enumerate(rows, 1) if not isinstance(text, str)]:
        raise Error(f"text {odd[0]} is no string", fix="give strings")
    found: list[Any] = [None] * len(rows)
    for number, read in compute_states(former, rows, join, batch, window, layer, tell):
        if level == "sentence":
            found[number] = embed_sentence(read, pool, special)
        else:
            found[number] = embed_spans(read, pool) if level == "word" else embed_tokens(read)
            if normalise:
                found[number] = replace(found[number], vectors=F.normalize(found[number].vectors, dim=-1))
    if level != "sentence":
        return found[0] if alone else found
    whole = torch.stack(found) if found else torch.zeros(0, former.config.dim)
    whole = F.normalize(whole, dim=-1) if normalise else whole
    return whole[0] if alone else whole


def check_choices(level: str, pool: str, mix: str) -> None:
    """Refuse an unknown level, pool or mix."""
    for name, value, known in (("level", level, LEVELS), ("pool", pool, POOLS), ("mix", mix, MIXES)):
        if value not in known:
            raise Error(f"there is no {name} {value!r}", fix="choose " + ", ".join(known))


def make_layer_mixer(layers: int | Sequence[int] | str, mix: str) -> tuple[int | None, Callable[[Tensor], Tensor]]:
    """Return the layer to read (None: all), and the function that mixes (layers, B, T, dim) → (B, T, dim)."""
    if type(layers) is int:
        return layers, lambda x: x
    chosen: list[int]
    if isinstance(layers, int):  # True is one too
        raise Error(f"there are no layers {layers!r}", fix="-1 is the last layer")
    if isinstance(layers, str):
        if (word := LAST_LAYERS.fullmatch(layers)) is None or not int(word[2]):
            raise Error(f"there are no layers {layers!r}", fix='write a number, a list, or for example "sum4"')
        mix, chosen = word[1], list(range(-int(word[2]), 0))
    else:
        chosen = list(layers)
        if not chosen or not all(isinstance(i, int) and not isinstance(i, bool) for i in chosen):
            raise Error(f"there are no layers {layers!r}", fix="give numbers: [1, 2]")

    def join(x: Tensor) -> Tensor:
        if isinstance(layers, str) and len(chosen) > len(x):
            what = f"{layers!r} wants the last {len(chosen)} layers, and this model has {len(x)}: 0, the embeddings, "
            raise Error(what + f"to {len(x) - 1}", fix=f"take {mix}{len(x)} or fewer")
        if wrong := [i for i in chosen if not -len(x) <= i < len(x)]:
            raise Error(f"there is no layer {wrong[0]}", fix=f"choose 0 to {len(x) - 1}")
        some = x[chosen]
        if mix == "concat":
            return torch.cat(list(some), -1)
        return some.amax(0) if mix == "max" else some.mean(0) if mix == "mean" else some.sum(0)

    return None, join


def embed_sentence(read: TextStates, pool: str, special: bool) -> Tensor:
    """Pool the vectors of a text into one."""
    vectors = read.vectors[read.known_mask]
    if special or not len(vectors):  # an empty text has nothing but its marks
        vectors = torch.cat((read.prefix_vectors, vectors, read.suffix_vectors))
    return pool_vectors(vectors, pool)


def embed_tokens(read: TextStates) -> SpanVectors:
    """Return the vectors of the tokens of a text, without marks."""
    return SpanVectors(read.tokenized.text, read.tokenized.tokens, read.tokenized.spans, read.vectors)


def embed_spans(read: TextStates, pool: str, spans: Sequence[Span] | None = None) -> SpanVectors:
    """Pool the words of a text, or given spans, each from the tokens that overlap it."""
    text = read.tokenized.text
    spans = find_words(text)[0] if spans is None else list(spans)
    names = [text[low:high] for low, high in spans]
    first = 0
    rows = []
    for low, high in spans:
        while first < len(read.tokenized.spans) and read.tokenized.spans[first][1] <= low:
            first += 1
        inside = []
        for at in range(first, len(read.tokenized.spans)):
            begin, end = read.tokenized.spans[at]
            if begin >= high:
                break
            if end > low and read.known_mask[at]:
                inside.append(at)
        rows.append(pool_vectors(read.vectors[inside], pool))
    return SpanVectors(text, names, list(spans), torch.stack(rows) if rows else read.vectors[:0])
