"""Words of a text hidden and written anew by a masked language model, one piece after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..data.draws import uniform
from ..errors import Error
from ..former import Former
from ..text.normalise import normalise
from ..text.words import WORD
from ..verbs import fills
from .fill import probabilities

WHICH, WHAT = 70, 71  # what a random number is for
Key = tuple[int, int, int]


def refill(
    former: Former, texts: Sequence[str], fronts: Sequence[str], keys: Sequence[Key], rate: float, top: int,
    temperature: float,
) -> list[str]:  # fmt: skip
    """Texts with a share of their words replaced, at least one of them; everything else stays as it is.

    `fronts` are read before the texts and never changed. All draws come from a text's key. A long text is changed in
    the part that fits into the context.
    """
    tokenizer = former.tokenizer
    if tokenizer is None or tokenizer.id("mask") is None or not fills(former):
        raise Error(
            f"this {former.family} with head {former.head!r} fills no blanks", fix="load a BERT with head='mlm'"
        )
    plans = [Plan(former, normalise(f), normalise(t), k, rate) for f, t, k in zip(fronts, texts, keys, strict=True)]
    allowed = permitted(former)
    while some := [plan for plan in plans if plan.open]:
        for plan, chances in zip(some, probabilities(former, [plan.ids for plan in some]), strict=True):
            plan.take(chances[0].cpu(), top, temperature, allowed)
    return [plan.text() for plan in plans]


def permitted(former: Former) -> torch.Tensor:
    """(vocab, 2) which pieces may stand inside and at the beginning of a word: no marks, no unknown ones."""
    tokenizer = former.tokenizer
    assert tokenizer is not None
    size = min(len(tokenizer), former.config.vocab)
    reserved = {tokenizer.rust.token_to_id(token) for token in tokenizer.reserved} | {tokenizer.id("unk")}
    good = torch.zeros(former.config.vocab, 2, dtype=torch.bool)
    starts = torch.from_numpy(tokenizer.word_starts[:size])
    good[:size, 1], good[:size, 0] = starts, ~starts
    good[[i for i in reserved if i is not None and i < former.config.vocab]] = False
    wordy = torch.tensor([any(c.isalnum() for c in tokenizer.token(i)) for i in range(size)])
    good[:size] &= wordy[:, None]
    return good


class Plan:
    """One text on its way: its ids with blanks, and which words they belong to."""

    def __init__(self, former: Former, front: str, text: str, key: Key, rate: float):
        tokenizer = former.tokenizer
        assert tokenizer is not None
        self.tokenizer, self.front, self.whole, self.key = tokenizer, front, front + text, key
        frame = tokenizer.frame()
        ids, spans = tokenizer.encode_with_offsets(self.whole, special=False, parse=False)
        limit = getattr(former.config, "context", None)
        if limit is not None:
            room = limit - len(frame.before) - len(frame.after)
            ids, spans = ids[:room], spans[:room]
        self.shift, mask = len(frame.before), tokenizer.id("mask")
        self.ids = [*frame.before, *ids, *frame.after]
        self.kinds = [*[True] * self.shift, *tokenizer.begins(ids).tolist(), *[True] * len(frame.after)]
        self.chosen = self.choose(spans, rate)
        self.open = [slot for _, slots in self.chosen for slot in slots]
        for slot in self.open:
            assert mask is not None
            self.ids[slot] = mask

    def choose(self, spans: Sequence[tuple[int, int]], rate: float) -> list[tuple[tuple[int, int], list[int]]]:
        """Words to hide, each with the slots of its tokens; a word that shares a token with another is left alone."""
        found = []
        for word in WORD.finditer(self.whole, len(self.front)):
            low, high = word.span()
            slots = [i for i, (a, b) in enumerate(spans) if a < high and b > low]
            apart = slots and all(not self.whole[spans[i][0] : low].strip() and spans[i][1] <= high for i in slots)
            if apart and any(c.isalnum() for c in word.group()) and spans[slots[-1]][1] == high:
                found.append(((low, high), [self.shift + i for i in slots]))
        if not found:
            return []
        draws = uniform(*self.key, WHICH, np.arange(len(found)))
        count = max(1, round(rate * len(found)))
        return [found[i] for i in sorted(np.argsort(draws, kind="stable")[:count].tolist())]

    def take(self, chances: torch.Tensor, top: int, temperature: float, allowed: torch.Tensor) -> None:
        """Fill the first blank by a draw among the likeliest pieces that may stand there."""
        slot = self.open.pop(0)
        good = chances * allowed[:, int(self.kinds[slot])] if allowed[:, int(self.kinds[slot])].any() else chances
        best = good.topk(min(top, len(good)))
        weights = best.values.double().clamp(min=1e-30).log().div(temperature).softmax(0)
        draw = float(uniform(*self.key, WHAT, slot))
        self.ids[slot] = int(best.indices[int((weights.cumsum(0) <= draw).sum().clamp(max=len(weights) - 1))])

    def text(self) -> str:
        """The text with the new words in it."""
        parts, last = [], len(self.front)
        for (low, high), slots in self.chosen:
            parts += [self.whole[last:low], self.tokenizer.decode([self.ids[s] for s in slots]).strip()]
            last = high
        return "".join([*parts, self.whole[last:]])
