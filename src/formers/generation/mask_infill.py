"""Mask infilling: words of a text are masked and predicted anew by a masked language model, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..data.counter_rng import draw_uniform
from ..errors import Error
from ..former import Former
from ..text.normalise import normalise
from ..text.word_level import WORD_PATTERN
from ..verbs import can_fill
from .fill import predict_blanks

WORD_STREAM, PIECE_STREAM = 70, 71  # what a random number is for
RandomKey = tuple[int, int, int]


def infill_texts(
    former: Former, texts: Sequence[str], fronts: Sequence[str], keys: Sequence[RandomKey], rate: float, top: int,
    temperature: float,
) -> list[str]:  # fmt: skip
    """Replace a share of the words of each text, at least one; everything else stays as it is.

    `fronts` are read before the texts and never changed. All draws come from a text's key. A long text is changed in
    the part that fits into the context.
    """
    tokenizer = former.tokenizer
    if tokenizer is None or tokenizer.id("mask") is None or not can_fill(former):
        raise Error(
            f"this {former.family} with head {former.head!r} fills no blanks", fix="load a BERT with head='mlm'"
        )
    plans = [
        InfillText(former, normalise(f), normalise(t), k, rate) for f, t, k in zip(fronts, texts, keys, strict=True)
    ]
    allowed = make_piece_mask(former)
    while some := [plan for plan in plans if plan.open_slots]:
        for plan, chances in zip(some, predict_blanks(former, [plan.ids for plan in some]), strict=True):
            plan.fill_next(chances[0].cpu(), top, temperature, allowed)
    return [plan.build_text() for plan in plans]


def make_piece_mask(former: Former) -> torch.Tensor:
    """Return a mask (vocab, 2) of the tokens that may continue or begin a word: no special tokens, no signs."""
    tokenizer = former.tokenizer
    assert tokenizer is not None
    size = min(len(tokenizer), former.config.vocab)
    reserved = {tokenizer.backend.token_to_id(token) for token in tokenizer.reserved_tokens} | {tokenizer.id("unk")}
    good = torch.zeros(former.config.vocab, 2, dtype=torch.bool)
    starts = torch.from_numpy(tokenizer.word_starts[:size])
    good[:size, 1], good[:size, 0] = starts, ~starts
    good[[i for i in reserved if i is not None and i < former.config.vocab]] = False
    wordy = torch.tensor([any(c.isalnum() for c in tokenizer.get_token_text(i)) for i in range(size)])
    good[:size] &= wordy[:, None]
    return good


class InfillText:
    """A text with masked words: its ids, and the slots of each masked word."""

    def __init__(self, former: Former, front: str, text: str, key: RandomKey, rate: float):
        tokenizer = former.tokenizer
        assert tokenizer is not None
        self.tokenizer, self.prefix, self.full_text, self.key = tokenizer, front, front + text, key
        frame = tokenizer.get_template()
        ids, spans = tokenizer.encode_with_offsets(self.full_text, special=False, parse_special=False)
        limit = former.context
        if limit is not None:
            room = limit - len(frame.before) - len(frame.after)
            ids, spans = ids[:room], spans[:room]
        self.frame_length, mask = len(frame.before), tokenizer.id("mask")
        self.ids = [*frame.before, *ids, *frame.after]
        self.word_start_flags = [
            *[True] * self.frame_length,
            *tokenizer.find_word_starts(ids).tolist(),
            *[True] * len(frame.after),
        ]
        self.hidden_words = self.choose_words(spans, rate)
        self.open_slots = [slot for _, slots in self.hidden_words for slot in slots]
        for slot in self.open_slots:
            assert mask is not None
            self.ids[slot] = mask

    def choose_words(self, spans: Sequence[tuple[int, int]], rate: float) -> list[tuple[tuple[int, int], list[int]]]:
        """Choose words to mask, each with its slots; a word that shares a token with another is left out."""
        found = []
        for word in WORD_PATTERN.finditer(self.full_text, len(self.prefix)):
            low, high = word.span()
            slots = [i for i, (a, b) in enumerate(spans) if a < high and b > low]
            apart = slots and all(not self.full_text[spans[i][0] : low].strip() and spans[i][1] <= high for i in slots)
            if apart and any(c.isalnum() for c in word.group()) and spans[slots[-1]][1] == high:
                found.append(((low, high), [self.frame_length + i for i in slots]))
        if not found:
            return []
        draws = draw_uniform(*self.key, WORD_STREAM, np.arange(len(found)))
        count = max(1, round(rate * len(found)))
        return [found[i] for i in sorted(np.argsort(draws, kind="stable")[:count].tolist())]

    def fill_next(self, chances: torch.Tensor, top: int, temperature: float, allowed: torch.Tensor) -> None:
        """Fill the first mask by sampling from the likeliest allowed tokens."""
        slot = self.open_slots.pop(0)
        good = (
            chances * allowed[:, int(self.word_start_flags[slot])]
            if allowed[:, int(self.word_start_flags[slot])].any()
            else chances
        )
        best = good.topk(min(top, len(good)))
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
