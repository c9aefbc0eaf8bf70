"""Corrupted examples for the eye: in colour on a terminal, with marks that also plain text shows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from ..batch import IGNORE_INDEX, Batch
from ..data.plans import RawExamples
from ..objectives.masking import DialogueLM, UnitNextSentence
from ..text.tokenizer import Tokenizer

SUPERSCRIPT_DIGITS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
SPECIAL_STYLE, HIDDEN_STYLE, REPLACED_STYLE, TARGET_STYLE = "dim", "bold red", "bold yellow", "bold green"
PAIR_QUESTIONS = {
    "nsp": ("does the second text follow the first?", ("0: yes", "1: no, it is of another document")),
    "sop": ("are the two texts swapped?", ("0: no", "1: yes")),
    "pair": ("does the second text follow the first?", ("0: no, it is of another document", "1: yes")),
    "dialogue": ("is this a real conversation?", ("0: no, one turn is another's", "1: yes")),
}


def render_example(objective: Any, raw: RawExamples, batch: Batch, row: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """One example: the text, what the model sees, what it must answer."""
    low, high = (int(i) for i in batch.starts[row : row + 2])
    ids = batch.labels if batch.ids.ndim > 1 else batch.ids
    if batch.source is not None:
        yield from render_encoder_decoder(raw, batch, row, tokenizer)
    elif batch.order is not None:
        yield from render_permutation(batch, low, high, tokenizer)
    elif batch.ids.ndim > 1:
        yield from render_bidirectional(ids[low:high], tokenizer)
    elif batch.chosen is None:
        yield from render_causal(ids[low:high], batch.labels[low:high], tokenizer)
    else:
        yield from render_masked(batch, low, high, tokenizer)
    if batch.document_labels is not None:
        own = {DialogueLM: "dialogue", UnitNextSentence: "pair"}
        key = own.get(type(objective), objective.pair_part)
        question, replies = PAIR_QUESTIONS[key]
        yield render_line("question", [(question, ""), (replies[int(batch.document_labels[row])], TARGET_STYLE)])


def render_line(title: str, words: Sequence[tuple[str, str]]) -> Text:
    """A title and some words, each in its style."""
    made = Text(f"  {title:<12}", style="cyan")
    for number, (word, style) in enumerate(words):
        made.append(" " if number else "")
        made.append(word, style=style or "default")
    return made


def format_token(tokenizer: Tokenizer, index: int) -> str:
    """A piece on one line; a space in front of it shows as ▁."""
    token = tokenizer.get_token_text(int(index))
    token = "▁" + token[1:] if token.startswith(" ") else token
    return token.replace("\n", "⏎").replace("\t", "⇥") or "?"


def get_special_ids(tokenizer: Tokenizer) -> set[int]:
    """The ids of special tokens."""
    return {i for role in tokenizer.special if (i := tokenizer.id(role)) is not None}


def style_tokens(tokenizer: Tokenizer, ids: Iterable[int]) -> list[tuple[str, str]]:
    """Pieces, special ones pale."""
    marks = get_special_ids(tokenizer)
    return [(format_token(tokenizer, i), SPECIAL_STYLE if int(i) in marks else "") for i in ids]


def render_masked(batch: Batch, low: int, high: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """What was there, what is seen, and each answer with what stands in its place."""
    mine = (batch.chosen >= low) & (batch.chosen < high) & (batch.labels != IGNORE_INDEX)
    right = dict(zip((batch.chosen[mine] - low).tolist(), batch.labels[mine].tolist(), strict=True))
    seen = style_tokens(tokenizer, batch.ids[low:high])
    text = [
        (f"«{format_token(tokenizer, right[at])}»", HIDDEN_STYLE) if at in right else word
        for at, word in enumerate(seen)
    ]
    shown = [(word, REPLACED_STYLE) if at in right else (word, style) for at, (word, style) in enumerate(seen)]
    yield render_line("text", text)
    if batch.segments is None:
        yield render_line("model sees", shown)
    else:  # one line for each stretch of a segment
        part = batch.segments[low:high]
        cuts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
        for a, b in itertools.pairwise(cuts):
            yield render_line(f"sees, {'AB'[int(part[a])]}" if part.max() < 2 else "sees", shown[a:b])
    answers = []
    for at, label in right.items():
        now, was = seen[at][0], format_token(tokenizer, label)
        how = "stays" if now == was else f"behind {now}"
        answers.append((f"{was} ({how}),", TARGET_STYLE))
    yield render_line("must say", answers or [("nothing: no token was drawn", SPECIAL_STYLE)])


def render_encoder_decoder(raw: RawExamples, batch: Batch, row: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """The encoder's text and the decoder's."""
    low, high = (int(i) for i in batch.starts[row : row + 2])
    first, last = (int(i) for i in batch.source.starts[row : row + 2])  # type: ignore[union-attr]
    source, target = batch.source.ids[first:last], batch.labels[low:high]  # type: ignore[union-attr]
    whole = raw.ids[int(raw.starts[row]) : int(raw.starts[row + 1])]
    fresh = set(source.tolist()) - set(whole.tolist())
    both = fresh & set(target.tolist())
    yield render_line("text", style_tokens(tokenizer, whole))
    marks = get_special_ids(tokenizer) - {tokenizer.id("mask")}

    def style_ids(ids: Iterable[int], usual: str) -> list[tuple[str, str]]:
        new = fresh | both
        return [
            (
                format_token(tokenizer, i),
                SPECIAL_STYLE if int(i) in marks else REPLACED_STYLE if int(i) in new else usual,
            )
            for i in ids
        ]

    yield render_line("encoder", style_ids(source, ""))
    yield render_line("decoder", style_ids(target, TARGET_STYLE))


def render_permutation(batch: Batch, low: int, high: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """The targets with their turn as a small number; from what the first and the last of them are foretold."""
    mine = batch.chosen[(batch.chosen >= low) & (batch.chosen < high)]
    turn = {int(slot) - low: n + 1 for n, slot in enumerate(mine[np.argsort(batch.order[mine], kind="stable")])}
    words = style_tokens(tokenizer, batch.ids[low:high])
    yield render_line("text", [
        (f"«{word}»{str(turn[at]).translate(SUPERSCRIPT_DIGITS)}", HIDDEN_STYLE) if at in turn else (word, style)
        for at, (word, style) in enumerate(words)
    ])  # fmt: skip
    order = batch.order[low:high]
    for at in [a for a, n in turn.items() if n in (1, len(turn))]:
        seen = [(w, s) if order[i] < order[at] else ("·", SPECIAL_STYLE) for i, (w, s) in enumerate(words)]
        seen[at] = ("?", REPLACED_STYLE)
        yield render_line(f"sees, {turn[at]}.", seen)
        yield render_line("must say", [(words[at][0], TARGET_STYLE)])


def render_causal(ids: np.ndarray, labels: np.ndarray, tokenizer: Tokenizer) -> Iterator[Text]:
    """What is read, and from which token on each next one is asked for."""
    words = style_tokens(tokenizer, ids)
    asked = np.flatnonzero(labels != IGNORE_INDEX)
    begin = int(asked[0]) + 1 if len(asked) else len(words)
    yield render_line("reads", words[:begin])
    yield render_line("must say", [(word, TARGET_STYLE) for word, _ in words[begin:]])
    yield render_line("", [("each from all that comes before it", SPECIAL_STYLE)])


def render_bidirectional(words: np.ndarray, tokenizer: Tokenizer) -> Iterator[Text]:
    """Both directions."""
    text = style_tokens(tokenizer, words)
    yield render_line("forward", [(f"{a} → {b},", TARGET_STYLE) for (a, _), (b, _) in itertools.pairwise(text)])
    yield render_line("backward", [(f"{b} → {a},", TARGET_STYLE) for (a, _), (b, _) in itertools.pairwise(text)][::-1])
