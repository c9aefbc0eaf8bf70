"""Guesses for the blanks of a text: one token by a masked language model, a span of several by T5 and BART. Also texts
with some of their words replaced."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..config import format_value
from ..data.counter_rng import draw_uniform
from ..errors import Error, NonFinite
from ..former import Former
from ..inputs import check_length, list_texts
from ..text.normalise import normalise
from ..text.tokenizer import Tokenizer
from ..text.word_level import WORD_PATTERN
from ..verbs import BLANK, SENTINEL_OBJECTIVES, can_fill, can_fill_spans, check_verb
from .decoding import DecodingBatch, check_prompts, decode_batch
from .logits_processors import build_constraints, get_end_ids
from .options import Options

BATCH_ROWS = 32  # texts that are read at a time
WORD_STREAM, PIECE_STREAM = 70, 71  # what a random number is for
RandomKey = tuple[int, int, int]
MAX_SPAN_TOKENS = 16  # tokens of a span
MIN_BEAMS = 4  # hypotheses of a span, however few are asked for
SENTINEL = re.compile(r"<extra_id_\d+>")


@dataclass(frozen=True)
class Guess:
    """A prediction for a blank: the token as the tokenizer spells it, its probability, and the text with it. In `text`
    a piece that continues a word (##ing) is joined to it, and other blanks have their likeliest pieces. Of T5 and BART
    `token` is a span of several tokens, and its probability that of the span with its end."""

    token: str
    probability: float
    text: str


Guesses = Any  # dynamic: a list of `Guess`, lists of them for several blanks, and a list of these for several texts


def fill(former: Former, texts: str | Sequence[str], top_k: int = 5) -> Guesses:
    """Predict the tokens at the blanks of a text, written ___ or as the mask token, the likeliest first. T5 and BART
    write spans of several tokens, found by beam search; a blank after another is filled knowing the likeliest span of
    the one before.

    A text of one blank gives a list of guesses, one of several a list of such lists; a list of texts gives a list of
    what each of them gives."""
    check_verb(former, "fill")
    if type(top_k) is not int or top_k < 1:
        raise Error(f"top_k must be at least 1, got {format_value(top_k)}", fix="ask for 5 guesses")
    several = [texts] if isinstance(texts, str) else list_texts(texts)
    several = [normalise(text) if isinstance(text, str) else text for text in several]
    if can_fill_spans(former):
        spans = [fill_spans(former, text, top_k) for text in several]
        filled = [blanks[0] if len(blanks) == 1 else blanks for blanks in spans]
        return filled[0] if isinstance(texts, str) else filled
    rows = [encode_blanks(former, text) for text in several]
    for row in rows:
        check_length(len(row), former.context)
    batches = [rows[at : at + BATCH_ROWS] for at in range(0, len(rows), BATCH_ROWS)]
    probabilities = [p for batch in batches for p in predict_blanks(former, batch)]
    guesses = [make_guesses(former, text, p, top_k) for text, p in zip(several, probabilities, strict=True)]
    results = [blanks[0] if len(blanks) == 1 else blanks for blanks in guesses]
    return results[0] if isinstance(texts, str) else results


def encode_blanks(former: Former, text: str) -> list[int]:
    """Encode a text with its blanks; refuse a model without a mask token and a text without blanks."""
    tokenizer = former.tokenizer
    if tokenizer is None or tokenizer.id("mask") is None:
        raise Error("this model has no mask token", fix="load a BERT with its tokenizer")
    check_blank_text(text)
    mask = tokenizer.special["mask"]
    ids = tokenizer.encode(text.replace(BLANK, mask))
    if tokenizer.id("mask") not in ids:
        raise Error("the text has 0 blanks", fix=f"mark at least one with {BLANK} or {mask}")
    return ids


def check_blank_text(text: object) -> None:
    """Refuse what is not a string."""
    if not isinstance(text, str):
        what = f"a text with blanks must be text, got {format_value(text)}"
        raise Error(what, fix="give a string, or a list of them")


@torch.inference_mode()
def predict_blanks(former: Former, rows: list[list[int]]) -> list[Tensor]:
    """Compute the probabilities (blanks, vocab) at the blanks of each row."""
    assert former.tokenizer is not None
    batch, mask = Batch.from_rows(rows, former.device), former.tokenizer.id("mask")
    hidden = former.model(batch)[batch.ids == mask]  # the output layer answers at the blanks alone
    probabilities = former.model.logits(hidden, part="mlm").float().softmax(-1)
    if not probabilities.isfinite().all():
        raise NonFinite("probabilities of pieces")
    return list(probabilities.split([sum(token == mask for token in row) for row in rows]))


def make_guesses(former: Former, text: str, probabilities: Tensor, top: int) -> list[list[Guess]]:
    """Make the `top` guesses for each blank; the rest of the text stays as it was written."""
    tokenizer = former.tokenizer
    assert tokenizer is not None
    between = text.replace(tokenizer.special["mask"], BLANK).split(BLANK)
    known = probabilities[:, : len(tokenizer)]  # a model may have more rows than there are pieces
    values, pieces = (t.tolist() for t in known.topk(min(top, known.shape[-1]), -1))
    words = [[decode_piece(tokenizer, piece) for piece in row] for row in pieces]
    likeliest = [row[0] for row in words]
    guesses: list[list[Guess]] = []
    for blank, row in enumerate(zip(pieces, values, words, strict=True)):
        before, after = likeliest[:blank], likeliest[blank + 1 :]
        guesses.append([
            Guess(tokenizer.get_token_text(piece), value, fill_blanks(between, [*before, word, *after]))
            for piece, value, word in zip(*row, strict=True)
        ])  # fmt: skip
    return guesses


def decode_piece(tokenizer: Tokenizer, piece: int) -> tuple[str, bool]:
    """Return a token's text without sub-word marks (or a special token's name), and whether it continues a word."""
    name = tokenizer.get_token_text(piece)
    continues = not tokenizer.word_starts[piece] and name not in tokenizer.reserved_tokens
    return tokenizer.decode([piece]).strip().removeprefix("##") or name, continues


def fill_blanks(between: Sequence[str], words: Sequence[tuple[str, bool]]) -> str:
    """Fill the blanks of a text; no space is left before a word's continuation."""
    text = between[0]
    for (word, continues), part in zip(words, between[1:], strict=True):
        text = (text.rstrip() if continues else text) + word + part
    return text


def fill_spans(former: Former, text: str, top: int) -> list[list[Guess]]:
    """Make up to `top` guesses for each blank of a text with an encoder-decoder."""
    tokenizer, uses_sentinels = former.tokenizer, former.definition.objective in SENTINEL_OBJECTIVES
    if tokenizer is None:
        raise Error(f"this {former.family} has no tokenizer", fix="load it with its tokenizer")
    if uses_sentinels:
        check_blank_text(text)
        between = SENTINEL.sub(BLANK, text).split(BLANK)
        if len(between) < 2:
            raise Error("the text has 0 blanks", fix=f"mark at least one with {BLANK} or <extra_id_0>")
        sentinels = [tokenizer.backend.token_to_id(f"<extra_id_{i}>") for i in range(len(between))]
        if None in sentinels:
            what = f"this tokenizer has no <extra_id_{sentinels.index(None)}> for a text of {len(between) - 1} blanks"
            raise Error(what, fix="give fewer blanks, or load the tokenizer that the model was pretrained with")
        marked = between[0] + "".join(f"<extra_id_{i}>{part}" for i, part in enumerate(between[1:]))
        source = tokenizer.encode(marked)
        target: SentinelSpans | RestoredSpans = SentinelSpans([i for i in sentinels if i is not None])
    else:
        source = encode_blanks(former, text)
        between = text.replace(tokenizer.special["mask"], BLANK).split(BLANK)
        target = RestoredSpans(between)
    (row,) = check_prompts(former, [source], MAX_SPAN_TOKENS)
    candidates: list[list[tuple[str, float]]] = []
    for blank in range(len(between) - 1):
        candidates.append(target.search(former, row, [spans[0][0] for spans in candidates], max(top, MIN_BEAMS)))
        if not candidates[-1]:
            what = f"this {former.family} writes nothing into blank {blank + 1}"
            raise Error(what, fix="load one that was pretrained by denoising; fine-tuned ones forget it")
    best = [spans[0][0] for spans in candidates]
    return [
        [Guess(span, p, fill_blanks(between, [(one, False) for one in (*best[:blank], span, *best[blank + 1 :])]))
         for span, p in spans[:top]]
        for blank, spans in enumerate(candidates)
    ]  # fmt: skip


def search_spans(
    former: Former, source: list[int], prefix: list[int], beams: int, ends: Sequence[int], stop: str = "",
    banned: Sequence[int] = (),
) -> list[tuple[str, float]]:  # fmt: skip
    """Find the likeliest spans after a decoder's `prefix`, up to one of the end tokens or a `stop` string, with their
    probabilities; equal texts are added up. Spans that do not end are left out where others do."""
    stops = (stop,) if stop else ()
    options = Options(
        num_beams=beams, num_samples=beams, length_penalty=0.0, max_new_tokens=MAX_SPAN_TOKENS, stop=stops
    )
    constraints = dataclasses.replace(
        build_constraints(former, options), end_ids=tuple(ends), forced_first=(), forced_last=(), banned_first=(),
        banned_ids=tuple(banned), banned_sequences=(),
    )  # fmt: skip
    assert constraints.tokenizer is not None
    batch = DecodingBatch(former, [source], MAX_SPAN_TOKENS, beams, prefix=prefix)
    span_probabilities: dict[bool, dict[str, float]] = {True: {}, False: {}}  # by whether a span ends
    for hypothesis in decode_batch(batch, constraints)[0]:
        text = constraints.tokenizer.decode(hypothesis.ids)
        has_end = len(hypothesis.ids) < MAX_SPAN_TOKENS or constraints.has_stop_string(hypothesis.ids)
        span = (text.split(stop)[0] if stop else text).strip()
        if span and math.isfinite(hypothesis.score):
            span_probabilities[has_end][span] = span_probabilities[has_end].get(span, 0.0) + math.exp(hypothesis.score)
    return sorted((span_probabilities[True] or span_probabilities[False]).items(), key=lambda one: -one[1])


@dataclass(frozen=True)
class SentinelSpans:
    """How T5 fills blanks: the source has a sentinel in place of each, the target each sentinel with its span."""

    sentinels: list[int]  # one more than there are blanks: the last ends the last span

    def search(self, former: Former, source: list[int], known: Sequence[str], beams: int) -> list[tuple[str, float]]:
        """Find the likeliest spans of the blank after those that are `known`."""
        tokenizer = former.tokenizer
        assert tokenizer is not None
        spans = [tokenizer.encode(span, special=False, parse_special=False) for span in known]
        prefix = [i for mark, span in zip(self.sentinels, spans, strict=False) for i in (mark, *span)]
        end, every = self.sentinels[len(known) + 1], find_sentinels(tokenizer)
        ends = (end, *get_end_ids(former))
        banned = [i for i in every if i != end and i < former.output_vocab]
        return search_spans(former, source, [*prefix, self.sentinels[len(known)]], beams, ends, banned=banned)


@dataclass(frozen=True)
class RestoredSpans:
    """How BART fills blanks: the source has a mask in place of each, the target is the whole text. A span is written
    after the text before it, and ends where the text continues."""

    between: list[str]

    def search(self, former: Former, source: list[int], known: Sequence[str], beams: int) -> list[tuple[str, float]]:
        """Find the likeliest spans of the blank after those that are `known`."""
        tokenizer = former.tokenizer
        assert tokenizer is not None
        before = fill_blanks(self.between[: len(known) + 1], [(span, False) for span in known]).rstrip()
        frame = tokenizer.get_template()
        prefix = [*frame.before, *tokenizer.encode(before, special=False, parse_special=False)]
        following = re.match(r"\s*\S+", self.between[len(known) + 1])
        stop = following[0] if following else ""
        banned = [i for i in (tokenizer.id("mask"), tokenizer.id("pad"), tokenizer.id("bos")) if i is not None]
        ends = sorted(get_end_ids(former))
        banned = [i for i in banned if i not in ends]
        return search_spans(former, source, prefix, beams, ends, stop, banned)


def find_sentinels(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of all sentinels of a tokenizer, and of its padding."""
    sentinels, number = [], 0
    while (one := tokenizer.backend.token_to_id(f"<extra_id_{number}>")) is not None:
        sentinels.append(one)
        number += 1
    pad = tokenizer.id("pad")
    return [*sentinels, *([] if pad is None else [pad])]


def infill_texts(
    former: Former, texts: Sequence[str], fronts: Sequence[str], keys: Sequence[RandomKey], rate: float, top: int,
    temperature: float,
) -> list[str]:  # fmt: skip
    """Replace a share of the words of each text, at least one; everything else stays as it is. The words are masked and
    predicted anew, token by token. `fronts` are read before the texts and never changed. All draws come from a text's
    key. A long text is changed in the part that fits into the context."""
    if former.tokenizer is None or former.tokenizer.id("mask") is None or not can_fill(former):
        what = f"this {former.family} with head {former.head!r} fills no blanks"
        raise Error(what, fix="load a BERT with head='mlm'")
    each = zip(fronts, texts, keys, strict=True)
    infills = [InfillText(former, normalise(front), normalise(text), key, rate) for front, text, key in each]
    allowed = make_piece_mask(former)
    while unfinished := [one for one in infills if one.open_slots]:
        for one, probabilities in zip(unfinished, predict_blanks(former, [one.ids for one in unfinished]), strict=True):
            one.fill_next(probabilities[0].cpu(), top, temperature, allowed)
    return [one.build_text() for one in infills]


def make_piece_mask(former: Former) -> Tensor:
    """Return a mask (vocab, 2) of the tokens that may continue or begin a word: no special tokens, no signs."""
    tokenizer = former.tokenizer
    assert tokenizer is not None
    size = min(len(tokenizer), former.config.vocab)
    reserved = {tokenizer.backend.token_to_id(token) for token in tokenizer.reserved_tokens} | {tokenizer.id("unk")}
    mask = torch.zeros(former.config.vocab, 2, dtype=torch.bool)
    starts = torch.from_numpy(tokenizer.word_starts[:size])
    mask[:size, 1], mask[:size, 0] = starts, ~starts
    mask[[i for i in reserved if i is not None and i < former.config.vocab]] = False
    wordy = torch.tensor([any(c.isalnum() for c in tokenizer.get_token_text(i)) for i in range(size)])
    mask[:size] &= wordy[:, None]
    return mask


class InfillText:
    """A text with masked words: its ids, and the slots of each masked word."""

    def __init__(self, former: Former, front: str, text: str, key: RandomKey, rate: float):
        assert former.tokenizer is not None
        tokenizer = self.tokenizer = former.tokenizer
        self.prefix, self.full_text, self.key = front, front + text, key
        frame = tokenizer.get_template()
        ids, spans = tokenizer.encode_with_offsets(self.full_text, special=False, parse_special=False)
        if former.context is not None:
            room = former.context - len(frame.before) - len(frame.after)
            ids, spans = ids[:room], spans[:room]
        self.frame_length, mask = len(frame.before), tokenizer.id("mask")
        self.ids = [*frame.before, *ids, *frame.after]
        starts = tokenizer.find_word_starts(ids).tolist()
        self.word_start_flags = [*[True] * self.frame_length, *starts, *[True] * len(frame.after)]
        self.hidden_words = self.choose_words(spans, rate)
        self.open_slots = [slot for _, slots in self.hidden_words for slot in slots]
        for slot in self.open_slots:
            assert mask is not None
            self.ids[slot] = mask

    def choose_words(self, spans: Sequence[tuple[int, int]], rate: float) -> list[tuple[tuple[int, int], list[int]]]:
        """Choose words to mask, each with its slots; a word that shares a token with another is left out."""
        words = []
        for word in WORD_PATTERN.finditer(self.full_text, len(self.prefix)):
            low, high = word.span()
            slots = [i for i, (a, b) in enumerate(spans) if a < high and b > low]
            apart = slots and all(not self.full_text[spans[i][0] : low].strip() and spans[i][1] <= high for i in slots)
            if apart and any(c.isalnum() for c in word.group()) and spans[slots[-1]][1] == high:
                words.append(((low, high), [self.frame_length + i for i in slots]))
        if not words:
            return []
        draws = draw_uniform(*self.key, WORD_STREAM, np.arange(len(words)))
        count = max(1, round(rate * len(words)))
        return [words[i] for i in sorted(np.argsort(draws, kind="stable")[:count].tolist())]

    def fill_next(self, probabilities: Tensor, top: int, temperature: float, allowed: Tensor) -> None:
        """Fill the first mask by sampling from the likeliest allowed tokens."""
        slot = self.open_slots.pop(0)
        mask = allowed[:, int(self.word_start_flags[slot])]
        best = (probabilities * mask if mask.any() else probabilities).topk(min(top, len(probabilities)))
        weights = best.values.double().clamp(min=1e-30).log().div(temperature).softmax(0)
        draw = float(draw_uniform(*self.key, PIECE_STREAM, slot))
        self.ids[slot] = int(best.indices[int((weights.cumsum(0) <= draw).sum().clamp(max=len(weights) - 1))])

    def build_text(self) -> str:
        """Return the text with its new words."""
        parts, last = [], len(self.prefix)
        for (low, high), slots in self.hidden_words:
            parts += [self.full_text[last:low], self.tokenizer.decode([self.ids[s] for s in slots]).strip()]
            last = high
        return "".join([*parts, self.full_text[last:]])
