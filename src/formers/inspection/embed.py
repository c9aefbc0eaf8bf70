"""Vectors of texts, words and tokens, out of any layer or mix of layers, for every member of the family; how near two
are, which lie nearest, and a is to b as c is to …"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..batch import Batch
from ..config import ProgressCallback, format_value
from ..errors import Error
from ..former import Former
from ..inputs import check_ids, list_texts
from ..model import pool_vectors
from ..tasks.encoding import (
    Span,
    TokenizedText,
    encode_marked_rows,
    find_nearest_window,
    find_window_limit,
    find_words,
    make_windows,
    tokenize_texts,
)
from ..tasks.word_vectors import check_vectors_finite, find_nearest_words, get_unit_vectors, look_up_words
from ..text.normalise import normalise
from ..text.tokenizer import Template

TEXTS_AT_ONCE = 32
GPU_BATCH_TOKENS = 16_384  # on a GPU, a batch of a few texts takes no longer than its launches
TEXTS_AHEAD = 4_096  # that are tokenized while a GPU reads those before them


@dataclass(frozen=True)
class TextStates:
    """Vectors of a text's tokens and of the marks around it, and which tokens are known (to word vectors, not all)."""

    tokenized: TokenizedText
    vectors: Tensor  # (T, dim)
    prefix_vectors: Tensor
    suffix_vectors: Tensor
    known_mask: Tensor  # (T,) bool


@torch.inference_mode()
def compute_states(
    former: Former, texts: Sequence[str | TokenizedText], mix: Callable[[Tensor], Tensor],
    batch_size: int = TEXTS_AT_ONCE, window: int | None = None, layer: int | None = -1,
    tell: ProgressCallback | None = None,
) -> Iterator[tuple[int, TextStates]]:  # fmt: skip
    """Yield the number of each text and its states, the longest texts first; `mix` reduces the layers to one.

    Texts that `tokenize_texts` has tokenized before are taken as they are. A token of a long text has the vector that
    it gets in the window in whose middle it is nearest; marks have the mean of theirs.
    """
    if batch_size < 1:
        raise Error(f"batch_size must be at least 1, got {batch_size}", fix="take 32")
    pieces = [text for text in texts if isinstance(text, TokenizedText)]
    if len(pieces) < len(texts):
        pieces = tokenize_texts(former, [text for text in texts if isinstance(text, str)])
    if former.definition.is_static:
        for number, one in enumerate(pieces):
            vectors, known = look_up_words(former, one.tokens)
            check_vectors_finite(vectors)
            empty = vectors.new_zeros(0, former.config.dim).float().cpu()
            yield number, TextStates(one, vectors.float().cpu(), empty, empty, known.cpu())
        return
    for number, one in enumerate(pieces):
        if not len(one.ids) + len(one.prefix_ids) + len(one.suffix_ids):
            raise Error(f"text {number + 1} is empty", fix="leave empty texts out")
    order = sorted(range(len(pieces)), key=lambda i: -len(pieces[i].ids))
    done = 0
    for low in range(0, len(order), batch_size):
        group = order[low : low + batch_size]
        states = compute_group_states(former, [pieces[i] for i in group], mix, batch_size, window, layer)
        yield from zip(group, states, strict=True)
        done += len(group)
        if tell is not None:
            tell("reading", done, len(order), "texts")


def compute_group_states(
    former: Former, group: list[TokenizedText], mix: Callable[[Tensor], Tensor], batch_size: int, window: int | None,
    layer: int | None,
) -> list[TextStates]:  # fmt: skip
    """Compute the states of texts that are read together, window by window."""
    places = [make_windows(former, piece, window) for piece in group]
    pairs = [(piece, span) for piece, spans in zip(group, places, strict=True) for span in spans]
    rows = [torch.cat((piece.prefix_ids, piece.ids[low:high], piece.suffix_ids)) for piece, (low, high) in pairs]
    parts = [part for piece, spans in zip(group, places, strict=True) for part in locate_window_parts(piece, spans)]
    frame = former.tokenizer.get_template() if former.tokenizer is not None and former.can_read_segments else None
    read: list[tuple[Tensor, ...]] = []
    for low in range(0, len(rows), batch_size):
        some = rows[low : low + batch_size]
        keep = pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in some], batch_first=True)
        beside: dict[str, Tensor] = {} if frame is None else {"segments": make_segment_rows(frame, some)}
        hidden = mix(former.hidden(pad_sequence(some, batch_first=True), keep, layer=layer, **beside)).float().cpu()
        own = parts[low : low + batch_size]  # copies, so that the rest is free
        read += [tuple(x[a:b].clone() for a, b in cuts) for x, cuts in zip(hidden, own, strict=True)]
    states, at = [], 0
    for piece, spans in zip(group, places, strict=True):
        before, vectors, after = zip(*read[at : at + len(spans)], strict=True)
        whole, first, last = torch.cat(vectors), torch.stack(before).mean(0), torch.stack(after).mean(0)
        check_vectors_finite(whole, first, last)
        states.append(TextStates(piece, whole, first, last, torch.ones(len(whole), dtype=torch.bool)))
        at += len(spans)
    return states


def make_segment_rows(frame: Template, rows: Sequence[Tensor]) -> Tensor:
    """Make the segments (B, T) of single texts with their marks; XLNet's last mark has its own."""
    before, own, _, _, after = frame.segments
    segment_rows = [torch.tensor([*before, *[own] * (len(row) - len(before) - len(after)), *after]) for row in rows]
    return pad_sequence(segment_rows, batch_first=True)


def locate_window_parts(piece: TokenizedText, spans: list[Span]) -> list[tuple[Span, Span, Span]]:
    """Return each window's slots: of the marks before, of the tokens nearest to its middle, of the marks after."""
    first, end = len(piece.prefix_ids), len(piece.suffix_ids)
    own = np.searchsorted(find_nearest_window(spans, np.arange(len(piece.ids))), np.arange(len(spans) + 1)).tolist()
    windows = ((low, first + high - low, a, b) for (low, high), a, b in zip(spans, own, own[1:], strict=False))
    return [((0, first), (first + a - low, first + b - low), (last, last + end)) for low, last, a, b in windows]


@torch.inference_mode()
def embed_packed(
    former: Former, texts: Sequence[str | TokenizedText], pool: str, special: bool, window: int | None = None,
    max_tokens: int = GPU_BATCH_TOKENS, tell: ProgressCallback | None = None,
) -> Tensor:  # fmt: skip
    """Embed texts (n, dim) in packed batches of up to `max_tokens` tokens, pooled on the device: what keeps a GPU at
    work. Texts are tokenized on a thread while the batches before them are read. Texts that need several windows are
    read by `compute_states`."""
    assert former.tokenizer is not None
    frame = former.tokenizer.get_template()
    limit = find_window_limit(former, window) or max_tokens
    vectors = torch.zeros(len(texts), former.config.dim)
    long_texts: list[int] = []

    def encode(low: int) -> list[np.ndarray]:
        some = texts[low : low + TEXTS_AHEAD]
        words = [text for text in some if isinstance(text, str)]
        if len(words) == len(some):
            return encode_marked_rows(former, words)
        pieces = [one for one in some if isinstance(one, TokenizedText)]
        return [np.concatenate((one.prefix_ids, one.ids, one.suffix_ids)) for one in pieces]

    with ThreadPoolExecutor(1, "formers-encode") as thread:
        ahead = thread.submit(encode, 0)
        for low in range(0, len(texts), TEXTS_AHEAD):
            rows = ahead.result()
            ahead = thread.submit(encode, low + TEXTS_AHEAD)
            if empty := [i for i, row in enumerate(rows) if not len(row)]:
                raise Error(f"text {low + empty[0] + 1} is empty", fix="leave empty texts out")
            long_texts += [low + i for i, row in enumerate(rows) if len(row) > limit]
            order = sorted((i for i, row in enumerate(rows) if len(row) <= limit), key=lambda i: -len(rows[i]))
            pooled: list[Tensor] = []
            for group in split_by_tokens(order, [len(row) for row in rows], max_tokens):
                pooled.append(pool_rows(former, [rows[i] for i in group], frame, pool, special))
            if pooled:
                vectors[torch.tensor(order) + low] = torch.cat(pooled).cpu()
            if tell is not None:
                tell("reading", low + len(rows), len(texts), "texts")
    check_vectors_finite(vectors)
    whole = [texts[i] for i in long_texts]
    for number, read in compute_states(former, whole, lambda x: x, window=window):
        vectors[long_texts[number]] = embed_sentence(read, pool, special)
    return vectors


def split_by_tokens(order: Sequence[int], lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield groups of rows of up to `max_tokens` tokens together; a longer row is a group of its own."""
    group, total = list[int](), 0
    for number in order:
        if group and total + lengths[number] > max_tokens:
            yield group
            group, total = [], 0
        group.append(number)
        total += lengths[number]
    if group:
        yield group


def pool_rows(former: Former, rows: Sequence[np.ndarray], frame: Template, pool: str, special: bool) -> Tensor:
    """Read rows of ids with their marks as one packed batch, and pool each row's last layer: (rows, dim) float32."""
    lengths = np.array([len(row) for row in rows])
    ids = torch.from_numpy(np.concatenate(rows))
    check_ids(ids, former.definition, former.config, "ids")
    batch = Batch(ids, torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)), int(lengths.max()))
    if former.can_read_segments:
        before, own, _, _, after = frame.segments
        parts = [[*before, *[own] * (n - len(before) - len(after)), *after] for n in lengths.tolist()]
        batch = batch.replace(segments=torch.from_numpy(np.concatenate(parts).astype(np.int64)))
    batch = batch.to(former.device)
    run = former.model.body.encode if former.is_encoder_decoder else former.model.body
    layout = batch.layout
    grid = layout.unpack(run(batch, **former.build_forward_args(None, None)).float())  # (rows, T, dim)
    columns, ends = torch.arange(layout.longest, device=grid.device), layout.lengths[:, None]
    keep = columns < ends
    if not special:  # a text without tokens has nothing but its marks
        inner = (columns >= len(frame.before)) & (columns < ends - len(frame.after))
        keep = inner | (keep & ~inner.any(1, keepdim=True))
    return pool_grid(grid, keep, pool)


def pool_grid(grid: Tensor, keep: Tensor, pool: str) -> Tensor:
    """Pool vectors (rows, T, dim) where `keep` (rows, T) is True, which is one run in each row: (rows, dim)."""
    if pool in ("first", "last"):
        columns = torch.arange(keep.shape[1], device=keep.device)
        at = columns.where(keep, len(columns)).amin(1) if pool == "first" else columns.where(keep, -1).amax(1)
        return grid[torch.arange(len(grid), device=grid.device), at]
    if pool == "max":
        return grid.masked_fill(~keep[..., None], -torch.inf).amax(1)
    weights = keep.float().cumsum(1) * keep if pool == "weighted" else keep.float()
    total = torch.einsum("rtd,rt->rd", grid, weights)
    return total if pool == "sum" else total / weights.sum(1, keepdim=True)


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


Embeddings = Any  # dynamic: a tensor, or `SpanVectors` of one text or of each, by the texts and the level


def embed(
    former: Former, texts: str | Sequence[str | TokenizedText], *, level: str = "sentence", pool: str = "mean",
    layers: int | Sequence[int] | str = -1, mix: str = "mean", normalise: bool = False, special: bool = True,
    batch_size: int | None = None, window: int | None = None, tell: ProgressCallback | None = None,
) -> Embeddings:  # fmt: skip
    """Embed texts: (n, dim), or (dim,) for one string; at level word or token, `SpanVectors` for each text.

    `pool` makes one vector of a text's tokens, or of a word's: mean, first, last, max, sum, or weighted (later tokens
    count more, for decoders). `layers` is one (-1 the last, 0 the embeddings), several with a `mix` of mean, sum, max
    or concat, or a word such as "sum4" for the last four. Without `special`, marks such as [CLS] do not count. A text
    longer than the model's context, or than `window` tokens, is read in windows that overlap. A word that no token
    belongs to, or that word vectors do not know, has zeros. Texts may also be tokenized before (`tokenize_texts`).
    `batch_size` texts are read at once: 32, or on a GPU as many as have 16,384 tokens.
    """
    check_choices(level, pool, mix)
    layer, join = make_layer_mixer(layers, mix)
    alone = isinstance(texts, str)
    rows: list[str | TokenizedText] = [texts] if isinstance(texts, str) else list_texts(texts)
    kind = TokenizedText if rows and isinstance(rows[0], TokenizedText) else str
    if odd := [i for i, text in enumerate(rows, 1) if not isinstance(text, kind)]:
        raise Error(f"text {odd[0]} is not a string", fix="give strings")
    if level == "sentence" and batch_size is None and layer == -1 and rows and can_embed_packed(former):
        whole = embed_packed(former, rows, pool, special, window, tell=tell)
        whole = F.normalize(whole, dim=-1) if normalise else whole
        return whole[0] if alone else whole
    size = TEXTS_AT_ONCE if batch_size is None else batch_size
    results: list[Any] = [None] * len(rows)  # dynamic: a tensor or SpanVectors for each text, by the level
    for number, read in compute_states(former, rows, join, size, window, layer, tell):
        if level == "sentence":
            results[number] = embed_sentence(read, pool, special)
        else:
            one = read.tokenized
            tokens = SpanVectors(one.text, one.tokens, one.spans, read.vectors)  # without marks
            results[number] = embed_spans(read, pool) if level == "word" else tokens
            if normalise:
                results[number] = replace(results[number], vectors=F.normalize(results[number].vectors, dim=-1))
    if level != "sentence":
        return results[0] if alone else results
    whole = torch.stack(results) if results else torch.zeros(0, former.config.dim)
    whole = F.normalize(whole, dim=-1) if normalise else whole
    return whole[0] if alone else whole


def can_embed_packed(former: Former) -> bool:
    """Return whether `embed_packed` applies: on a GPU, a model that reads tokens; a CPU gains nothing."""
    reads_tokens = not (former.definition.is_static or former.definition.reads_characters)
    return reads_tokens and former.tokenizer is not None and former.device.type == "cuda"


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


def embed_spans(read: TextStates, pool: str, spans: Sequence[Span] | None = None) -> SpanVectors:
    """Pool the words of a text, or given spans, each from the tokens that overlap it."""
    text = read.tokenized.text
    spans = find_words(text)[0] if spans is None else list(spans)
    names = [text[low:high] for low, high in spans]
    first, rows = 0, []
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


class Neighbour(NamedTuple):
    """A text, or a word in its text, and its cosine with the query."""

    name: str
    score: float
    text: str
    span: Span  # where in the text


def neighbours(
    former: Former, query: str, k: int = 10, texts: Sequence[str] | None = None, *, word: str | None = None,
    same_word: bool = False, **how: Any,  # dynamic: options of embed
) -> list[Neighbour] | list[tuple[str, float]]:  # fmt: skip
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
    if not (occurrences := find_occurrences(normalise(query), word)):
        raise Error(f"there is no {word!r} in the query", fix="name a word of it")
    clean = [normalise(text) for text in texts]
    spans = [occurrences[:1], *(find_occurrences(t, word) if same_word else find_words(t)[0] for t in clean)]
    if not any(spans[1:]):
        raise Error(f"there is no {word!r} in the texts" if same_word else "there are no words", fix="give other texts")
    (_, direction), *rows = embed_in_context(former, [query, *texts], spans, **how)
    return select_best([row for row, _ in rows], torch.stack([v for _, v in rows]) @ direction, k)


def find_occurrences(text: str, word: str) -> list[Span]:
    """Find a word in a text: as a whole word, else followed by letters, such as Korean particles (배를)."""
    spans = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(normalise(word))}(?!\w)", text, re.IGNORECASE)]
    return spans or [m.span() for m in re.finditer(rf"(?<!\w){re.escape(normalise(word))}", text, re.IGNORECASE)]


def embed_in_context(
    former: Former, texts: Sequence[str], spans: Sequence[Sequence[Span]], pool: str = "mean",
    layers: int | Sequence[int] | str = -1, mix: str = "mean", **how: Any,  # dynamic: options of compute_states
) -> list[tuple[Neighbour, Tensor]]:  # fmt: skip
    """Embed spans of texts in context, at length 1, in the order of the texts."""
    check_choices("word", pool, mix)
    layer, join = make_layer_mixer(layers, mix)
    rows: dict[int, list[tuple[Neighbour, Tensor]]] = {}
    for number, read in compute_states(former, texts, join, layer=layer, **how):
        vectors = embed_spans(read, pool, spans[number])
        named = zip(vectors.units, vectors.spans, F.normalize(vectors.vectors, dim=-1), strict=True)
        rows[number] = [(Neighbour(name, 0.0, vectors.text, span), vector) for name, span, vector in named]
    return [row for number in sorted(rows) for row in rows[number]]


def select_best(rows: Sequence[Neighbour], scores: Tensor, k: int) -> list[Neighbour]:
    """Return the k rows with the highest scores; of equal ones the first."""
    order = scores.argsort(descending=True, stable=True)[:k].tolist()
    return [rows[i]._replace(score=float(scores[i])) for i in order]


def solve_analogy(former: Former, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
    """Solve "a is to b as c is to …": the words nearest to b - a + c, of unit length (Mikolov et al. 2013b, §4)."""
    first, second, third = get_unit_vectors(former, [a, b, c])
    return find_nearest_words(former, F.normalize(second - first + third, dim=0), k, [a, b, c])
