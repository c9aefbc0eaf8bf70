"""Corrupted examples for the eye: in colour on a terminal, with marks that also plain text shows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from ..batch import Batch
from ..data.loader import IGNORED
from ..data.plans import Raw
from ..text.tokenizer import Tokenizer

SMALL = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
MARK, GONE, NEW, ASKED = "dim", "bold red", "bold yellow", "bold green"
QUESTIONS = {
    "nsp": ("does the second text follow the first?", ("0: yes", "1: no, it is of another document")),
    "sop": ("are the two texts swapped?", ("0: no", "1: yes")),
    "pair": ("does the second text follow the first?", ("0: no, it is of another document", "1: yes")),
    "dialogue": ("is this a real conversation?", ("0: no, one turn is another's", "1: yes")),
}


def picture(goal: Any, raw: Raw, batch: Batch, row: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """One example: the text, what the model sees, what it must answer."""
    low, high = (int(i) for i in batch.starts[row : row + 2])
    ids = batch.labels if batch.ids.ndim > 1 else batch.ids
    if batch.source is not None:
        yield from two_sided(raw, batch, row, tokenizer)
    elif batch.order is not None:
        yield from ordered(batch, low, high, tokenizer)
    elif batch.ids.ndim > 1:
        yield from both_ways(ids[low:high], tokenizer)
    elif batch.chosen is None:
        yield from onward(ids[low:high], batch.labels[low:high], tokenizer)
    else:
        yield from hidden(batch, low, high, tokenizer)
    if batch.answers is not None:
        kind = type(goal).__name__.lower()
        key = "dialogue" if kind == "dialogue" else "pair" if kind == "unitpairs" else goal.answer
        question, replies = QUESTIONS[key]
        yield line("question", [(question, ""), (replies[int(batch.answers[row])], ASKED)])


def line(title: str, words: Sequence[tuple[str, str]]) -> Text:
    """A title and some words, each in its style."""
    made = Text(f"  {title:<12}", style="cyan")
    for number, (word, style) in enumerate(words):
        made.append(" " if number else "")
        made.append(word, style=style or "default")
    return made


def piece(tokenizer: Tokenizer, index: int) -> str:
    """A piece on one line; a space in front of it shows as ▁."""
    token = tokenizer.token(int(index))
    token = "▁" + token[1:] if token.startswith(" ") else token
    return token.replace("\n", "⏎").replace("\t", "⇥") or "?"


def special(tokenizer: Tokenizer) -> set[int]:
    """The ids of special tokens."""
    return {i for role in tokenizer.special if (i := tokenizer.id(role)) is not None}


def plain(tokenizer: Tokenizer, ids: Iterable[int]) -> list[tuple[str, str]]:
    """Pieces, special ones pale."""
    marks = special(tokenizer)
    return [(piece(tokenizer, i), MARK if int(i) in marks else "") for i in ids]


def hidden(batch: Batch, low: int, high: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """What was there, what is seen, and each answer with what stands in its place."""
    mine = (batch.chosen >= low) & (batch.chosen < high) & (batch.labels != IGNORED)
    right = dict(zip((batch.chosen[mine] - low).tolist(), batch.labels[mine].tolist(), strict=True))
    seen = plain(tokenizer, batch.ids[low:high])
    text = [(f"«{piece(tokenizer, right[at])}»", GONE) if at in right else word for at, word in enumerate(seen)]
    shown = [(word, NEW) if at in right else (word, style) for at, (word, style) in enumerate(seen)]
    yield line("text", text)
    if batch.segments is None:
        yield line("model sees", shown)
    else:  # one line for each stretch of a segment
        part = batch.segments[low:high]
        cuts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
        for a, b in itertools.pairwise(cuts):
            yield line(f"sees, {'AB'[int(part[a])]}" if part.max() < 2 else "sees", shown[a:b])
    answers = []
    for at, label in right.items():
        now, was = seen[at][0], piece(tokenizer, label)
        how = "stays" if now == was else f"behind {now}"
        answers.append((f"{was} ({how}),", ASKED))
    yield line("must say", answers or [("nothing: no token was drawn", MARK)])


def two_sided(raw: Raw, batch: Batch, row: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """The encoder's text and the decoder's."""
    low, high = (int(i) for i in batch.starts[row : row + 2])
    first, last = (int(i) for i in batch.source.starts[row : row + 2])  # type: ignore[union-attr]
    source, target = batch.source.ids[first:last], batch.labels[low:high]  # type: ignore[union-attr]
    whole = raw.ids[int(raw.starts[row]) : int(raw.starts[row + 1])]
    fresh = set(source.tolist()) - set(whole.tolist())
    both = fresh & set(target.tolist())
    yield line("text", plain(tokenizer, whole))
    marks = special(tokenizer) - {tokenizer.id("mask")}

    def shown(ids: Iterable[int], usual: str) -> list[tuple[str, str]]:
        new = fresh | both
        return [(piece(tokenizer, i), MARK if int(i) in marks else NEW if int(i) in new else usual) for i in ids]

    yield line("encoder", shown(source, ""))
    yield line("decoder", shown(target, ASKED))


def ordered(batch: Batch, low: int, high: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """The targets with their turn as a small number; from what the first and the last of them are foretold."""
    mine = batch.chosen[(batch.chosen >= low) & (batch.chosen < high)]
    turn = {int(slot) - low: n + 1 for n, slot in enumerate(mine[np.argsort(batch.order[mine], kind="stable")])}
    words = plain(tokenizer, batch.ids[low:high])
    yield line("text", [
        (f"«{word}»{str(turn[at]).translate(SMALL)}", GONE) if at in turn else (word, style)
        for at, (word, style) in enumerate(words)
    ])  # fmt: skip
    order = batch.order[low:high]
    for at in [a for a, n in turn.items() if n in (1, len(turn))]:
        seen = [(w, s) if order[i] < order[at] else ("·", MARK) for i, (w, s) in enumerate(words)]
        seen[at] = ("?", NEW)
        yield line(f"sees, {turn[at]}.", seen)
        yield line("must say", [(words[at][0], ASKED)])


def onward(ids: np.ndarray, labels: np.ndarray, tokenizer: Tokenizer) -> Iterator[Text]:
    """What is read, and from which token on each next one is asked for."""
    words = plain(tokenizer, ids)
    asked = np.flatnonzero(labels != IGNORED)
    begin = int(asked[0]) + 1 if len(asked) else len(words)
    yield line("reads", words[:begin])
    yield line("must say", [(word, ASKED) for word, _ in words[begin:]])
    yield line("", [("each from all that comes before it", MARK)])


def both_ways(words: np.ndarray, tokenizer: Tokenizer) -> Iterator[Text]:
    """Both directions."""
    text = plain(tokenizer, words)
    yield line("forward", [(f"{a} → {b},", ASKED) for (a, _), (b, _) in itertools.pairwise(text)])
    yield line("backward", [(f"{b} → {a},", ASKED) for (a, _), (b, _) in itertools.pairwise(text)][::-1])
