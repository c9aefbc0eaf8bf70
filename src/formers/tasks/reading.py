"""How texts become tokens for a task: the family's marks around them, windows over what is too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import Error
from ..text import chars
from ..text.offsets import Offsets
from ..text.tokenizer import Frame, Tokenizer
from ..text.words import WORD
from .task import Task

TASKS = ("classify", "tag", "answer", "beam", "choose")  # heads whose texts end with a mark, if the tokenizer has none
Ids = np.ndarray  # (n,) tokens, or (n, slots) characters


@dataclass(frozen=True)
class Reader:
    """What one model needs to read texts."""

    tokenizer: Tokenizer
    one: Frame  # around a text
    two: Frame  # around a pair
    length: int
    segments: bool
    slots: int | None  # the characters of a word, of models that read those
    prefix: str = ""

    @staticmethod
    def of(former: Any, task: Task) -> Reader:
        """For a model and its task."""
        tokenizer = former.tokenizer
        if tokenizer is None:
            raise Error("this model has no tokenizer", fix="put its tokenizer.json beside it")
        slots = getattr(former.config, "slots", None)
        frames = (spelled(slots), spelled(slots)) if slots else (framed(tokenizer, False), framed(tokenizer, True))
        limit = getattr(former.config, "context", None)
        length = task.length if limit is None else min(task.length, limit)
        return Reader(tokenizer, *frames, length, reads_segments(former), slots, task.prefix)

    def tokens(self, texts: Sequence[str]) -> list[Ids]:
        """The tokens of texts, without marks; a text of no tokens is one unknown one."""
        texts = [self.prefix + text for text in texts]
        if self.slots:
            words = [WORD.findall(text) or ["?"] for text in texts]
            return [chars.sentence(row, self.slots, marks=False) for row in words]
        rows = self.tokenizer.encode_batch(texts, special=False, parse=False)
        return [np.array(row or [self.blank], np.int64) for row in rows]

    def placed(self, texts: Sequence[str]) -> list[tuple[Ids, Offsets]]:
        """The tokens of texts, and where in its text each stands."""
        if self.slots:
            found = [list(WORD.finditer(text)) for text in texts]
            return [
                (chars.sentence([m[0] for m in row], self.slots, marks=False), [m.span() for m in row]) for row in found
            ]
        rows = self.tokenizer.encode_batch_with_offsets(texts, special=False, parse=False)
        return [(np.array(ids, np.int64), offsets) for ids, offsets in rows]

    def unknown(self, data: Any) -> str:
        """How many of the tokens of examples the tokenizer does not know, in words; nothing where it knows all."""
        index = None if self.slots or self.tokenizer.bytes else self.tokenizer.id("unk")
        sides = [data.ids] if index is not None else []
        count = sum(int(np.count_nonzero(side == index)) for side in sides)
        return f"{count:,} of {sum(map(len, sides)):,} tokens unknown" if count else ""

    @property
    def blank(self) -> int:
        """What stands for a text of no tokens."""
        return next((i for r in ("unk", "eos", "pad") if (i := self.tokenizer.id(r)) is not None), 0)

    def room(self, pair: bool = False) -> int:
        """Tokens of text that fit between the marks."""
        frame = self.two if pair else self.one
        left = self.length - len(frame.before) - len(frame.between) * pair - len(frame.after)
        if left < 2:
            raise Error(f"{self.length} tokens leave no room for text", fix="take a larger length")
        return left

    def laid(self, first: Ids, second: Ids | None = None) -> tuple[Ids, np.ndarray | None, int, int]:
        """The ids with their marks, the segments if the model reads them, and where the two texts begin."""
        frame = self.one if second is None else self.two
        parts = [frame.before, first, frame.between, second, frame.after] if second is not None else None
        parts = [frame.before, first, frame.after] if parts is None else parts
        ids = np.concatenate([np.asarray(p, np.int64).reshape(-1, *first.shape[1:]) for p in parts if p is not None])
        begin = len(frame.before)
        then = begin + len(first) + (len(frame.between) if second is not None else 0)
        if not self.segments:
            return ids, None, begin, then
        before, a, between, b, after = frame.segments
        row = [*before, *[a] * len(first)]
        row += [*after] if second is None else [*between, *[b] * len(second), *after]
        return ids, np.array(row, np.int64), begin, then

    def windows(self, count: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
        """Stretches of at most `room` tokens over so many, sharing up to `stride` with the next one."""
        step = room - min(stride, room // 2)
        low = 0
        while True:
            yield low, min(count, low + room)
            if low + room >= count:
                return
            low += step


def reads_segments(former: Any) -> bool:
    """True if the model tells the two texts of a pair apart by segments."""
    return getattr(former.config, "segments", 0) > 1 or hasattr(former.model.body, "blank")


def framed(tokenizer: Tokenizer, pair: bool) -> Frame:
    """The tokenizer's own template; where it has none, the end mark behind each text."""
    frame, end = tokenizer.frame(pair), tokenizer.id("eos")
    if frame.before or frame.after or end is None:
        return frame
    a, b = frame.segments[1], frame.segments[3]
    return Frame((), (end,), (end,), ((), a, (a,), b, (b,)))


def spelled(slots: int) -> Frame:
    """The marks of a sentence of words spelled out."""
    begin, end = (np.array([chars.fill([mark], slots)]) for mark in (chars.BEGIN, chars.END))
    return Frame(begin, end, end, ((0,), 0, (0,), 0, (0,)))  # type: ignore[arg-type]
