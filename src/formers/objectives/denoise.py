"""Denoising (BART, Lewis et al. 2019): an encoder reads a spoiled text, a decoder writes it whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..data.plans import Plan, Raw, Shape
from ..data.store import Store
from ..errors import Error
from ..tasks.heads import Model
from ..text.tokenizer import Tokenizer
from . import noise
from .frames import Frame, laid
from .ragged import texts
from .targets import Ends, two_sided, two_sided_shape
from .tokens import Counted, named_losses
from .words import begins, word_marks


@dataclass(frozen=True)
class Denoising(Counted):
    """Sentences change places, words are infilled, masks inserted, the text rotated, in this order.

    The default is the paper's best: 30 % of the words infilled (spans Poisson, λ = 3) and all sentences permuted.
    `released` is the released command: λ = 3.5, spans that may meet, 10 % of the masks replaced by random tokens.
    """

    length: int  # of either side, marks included
    vocab: int
    mask: int
    start: int
    end: int
    frame: Frame
    infill: float = 0.3
    mean: float | None = None  # of the spans; None: 3, and 3.5 as released
    permute: float = 1.0
    masked: float = 0.0
    delete: float = 0.0
    insert: float = 0.0
    rotate: float = 0.0
    released: bool = False
    across: bool = False  # texts run over the documents, joined end to end
    words: np.ndarray | None = field(default=None, compare=False, repr=False)
    part: str = "lm"

    @staticmethod
    def of(
        tokenizer: Tokenizer, length: int, start: int | None = None, language: str | None = None, **options: Any
    ) -> Denoising:
        """<s> … </s> on both sides (without <s>, the end mark alone); the decoder starts with </s>.

        With a `language` (mBART), … </s> ko_KR on both sides, and the decoder starts with the language.
        """
        named = None if language is None else tokenizer.rust.token_to_id(language)
        if language is not None and named is None:
            raise Error(f"this tokenizer has no token {language!r}", fix="train or load one for mBART")
        ends, mask = Ends.of(tokenizer, ("eos", "sep"), named if start is None else start), tokenizer.id("mask")
        if mask is None:
            raise Error("this tokenizer has no <mask>", fix="train or load one for BART")
        front = next((i for role in ("bos", "cls") if (i := tokenizer.id(role)) not in (None, ends.end)), None)
        frame = (() if front is None else (front,), (ends.end,)) if named is None else ((), (ends.end, named))
        return Denoising(
            length, len(tokenizer), mask, ends.start, ends.end, frame, words=word_marks(tokenizer), **options
        )

    @property
    def lam(self) -> float:
        """The mean length of a span."""
        return self.mean if self.mean is not None else 3.5 if self.released else 3.0

    @property
    def more(self) -> int:
        """Tokens that a source may have beyond its text: inserted masks."""
        return (noise.SPARE if self.infill else 0) + int(np.ceil(self.insert * self.length))

    def plan(self, store: Store, seed: int, epoch: int) -> Plan:
        """Windows in random order, with room for marks and inserted masks."""
        inner = self.length - sum(map(len, self.frame)) - self.more
        if inner < 2:
            raise Error(f"examples of {self.length} tokens are too short", fix="take longer ones")
        return texts(store, self.end, inner, seed, epoch, self.across)

    def sizes(self, plan: Plan) -> np.ndarray:
        """A source may be longer than its target, if masks are inserted."""
        target = plan.lengths + sum(map(len, self.frame))
        return np.stack((target, target, target + self.more), 1)

    def shape(self, total: int, plan: Plan) -> Shape:
        """Both sides alike."""
        return two_sided_shape(total, self.sizes(plan), (self.length, self.length))

    def corrupt(self, raw: Raw, seed: int) -> Batch:
        """The spoiled text as the source, the text as the target."""
        target = laid(raw, *self.frame)
        ids, starts = self.spoil(raw, seed)
        spoiled = Raw(ids, starts, np.zeros(len(ids), np.int64), np.zeros(len(ids), bool), None, raw.label, raw.sample)
        source = laid(spoiled, *self.frame)
        sides = (source.ids, source.starts), (target.ids, target.starts)
        return two_sided(*sides, self.start, raw.sample, (self.length, self.length))

    def spoil(self, raw: Raw, seed: int) -> noise.Text:
        """Every kind of noise that is asked for, in order."""
        ids, starts, sample, sentence = raw.ids, raw.starts, raw.sample, raw.sentence
        first = sentence.copy()
        first[starts[:-1]] = True
        word = begins(ids, self.words, first)
        if self.permute:
            order = noise.permuted(starts, sentence, self.permute, seed, sample)
            ids, word = ids[order], word[order]
        text = ids, starts
        if self.infill:
            how = noise.overlapped if self.released else noise.infilled
            text = how(text, word, self.infill, self.lam, self.mask, seed, sample)
        if self.masked:
            text = noise.masked(text, self.masked, self.mask, seed, sample)
        if self.delete:
            text = noise.deleted(text, self.delete, seed, sample)
        if self.insert:
            count = np.ceil(self.insert * np.diff(text[1])).astype(np.int64)
            text = noise.inserted(text, count, self.mask, seed, sample)
        if self.rotate:
            text = noise.rotated(text, self.rotate, seed, sample)
        if self.released:
            text = noise.randomised(text, 0.1, self.mask, self.vocab, seed, sample)
        return text

    def loss(self, model: Model, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """The summed cross-entropy of the whole text."""
        return named_losses(model, batch, self.part)
