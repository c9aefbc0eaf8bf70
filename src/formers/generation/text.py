"""Generating text: a string in, a string out; a list in, a list out; or pieces, as they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..config import shown
from ..errors import Error
from ..former import Former
from ..registry import member
from ..tasks.inputs import rows_of
from ..text.normalise import normalise
from ..text.tokenizer import Tokenizer
from ..verbs import check_verb
from .engine import AHEAD, Desk, draws, written
from .options import Options, options
from .rules import Rules, rules
from .sample import check
from .stop import Watch

ROWS = 32  # texts at work at a time: more of them gain little and take more memory
Texts = str | list[str] | list[list[str]]


def generate(
    former: Former,
    prompts: str | Sequence[str],
    tokens: int = 64,
    *,
    stream: bool = False,
    draft: Former | None = None,
    **given: Any,
) -> Any:
    """What follows each prompt, without the prompt itself; of an encoder-decoder, what it answers.

    A string gives a string, a list a list; with `samples` above 1, each a list of so many. `stream` gives pieces of
    one text as they are written; joined, they are the text. The other options are those of `Options`: temperature,
    top_k, top_p, min_p, typical, seed, beams, samples, length_penalty, normalise, coverage, early, no_repeat,
    repetition_penalty, banned, min_tokens, stop. A prompt longer than the context of a decoder is read from its end,
    with a warning; a source longer than an encoder's context is an error. An empty prompt begins with the model's mark
    of a text's beginning. A `draft`, a smaller relative, guesses tokens ahead: greedily the text stays the same.
    """
    check_verb(former, "generate")
    how = options(given, tokens=tokens)
    if draft is not None and stream:
        raise Error("a text with a draft is not streamed", fix="leave stream out, or the draft")
    if draft is not None:
        return drafted(former, draft, prompts, how)
    if not stream:
        return write(former, prompts, how)
    if not isinstance(prompts, str) or how.samples > 1 or how.beams > 1:
        raise Error("one text is streamed at a time", fix="give one prompt, without beams and samples")
    return pieces(former, prompts, how)


def write(
    former: Former,
    prompts: str | Sequence[str],
    how: Options,
    *,
    first: int | None = None,
    start: int | None = None,
    swap: Mapping[int, int] | None = None,
    streams: Sequence[Sequence[int]] | None = None,
) -> Any:
    """Texts for prompts, with the options as they are. Of mBART's languages, `first` and `start` are the target's
    token, and `swap` puts the source's into the place of another. Equal prompts give equal texts, unless `streams` has
    numbers of their own for the draws of each, one for each sample."""
    begun = [begin(former, text) for text in listed(prompts)]
    rows = check(former, [[(swap or {}).get(i, i) for i in row] for row in begun], how.tokens) if begun else []
    speaks, law = speaker(former), rules(former, how, first)
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # rows of a length side by side
    made: list[list[str]] = [[] for _ in rows]
    step = max(1, ROWS // how.each)
    for at in range(0, len(order), step):
        chosen = order[at : at + step]
        desk = Desk(former, [rows[i] for i in chosen], how.tokens, how.each, start)
        if streams is not None:
            desk.streams = np.array([number for i in chosen for number in streams[i]], np.uint64)
        for i, found in zip(chosen, spoken(desk, law, speaks), strict=True):
            made[i] = found
    plain = [found[0] if how.samples == 1 else found for found in made]
    return plain[0] if isinstance(prompts, str) else plain


def spoken(desk: Desk, law: Rules, speaks: Tokenizer) -> list[list[str]]:
    """What is written at a desk as texts; a stop string ends a text as soon as it is complete."""
    if law.options.beams > 1:
        made = written(desk, law)
        begun = [desk.texts[at * desk.each][: desk.begun[at * desk.each]] for at in range(len(made))]
        return [[said(desk.former, law, front, one.ids) for one in row] for front, row in zip(begun, made, strict=True)]
    watches = [watch(desk, law, speaks, row) for row in range(len(desk.texts))]
    shown = [""] * len(watches)
    for new in draws(desk, law, 1 if law.options.stop else AHEAD):
        for row, token in enumerate(new):
            if token is not None:
                shown[row] += watches[row].push(token)
                if watches[row].over:
                    desk.end(row)
    shown = [piece + one.end().rstrip("\ufffd") for piece, one in zip(shown, watches, strict=True)]
    return [shown[at : at + desk.each] for at in range(0, len(shown), desk.each)]


def drafted(former: Former, draft: Former, prompts: str | Sequence[str], how: Options) -> Any:
    """The same by speculation, text by text."""
    from .speculate import Speculator

    rows = check(former, [begin(former, text) for text in listed(prompts)], how.tokens)
    guess, law, made = Speculator(former, draft), rules(former, how), []
    for row in rows:
        found = [guess.write(row, law, sample) for sample in range(how.samples)]
        made.append([said(former, law, row, ids) for ids in found])
    plain = [found[0] if how.samples == 1 else found for found in made]
    return plain[0] if isinstance(prompts, str) else plain


def pieces(former: Former, prompt: str, how: Options) -> Iterator[str]:
    """One text, piece by piece."""
    rows = check(former, [begin(former, prompt)], how.tokens)
    desk, law = Desk(former, rows, how.tokens), rules(former, how)
    seen = watch(desk, law, speaker(former), 0)
    for (token,) in draws(desk, law):
        piece = "" if token is None else seen.push(token)
        if piece:
            yield piece
        if seen.over:
            return
    if rest := seen.end().rstrip("\ufffd"):
        yield rest


def watch(desk: Desk, law: Rules, speaks: Tokenizer, row: int) -> Watch:
    """A watch over a row, which goes on behind its prompt."""
    return Watch(speaks, law.options.stop, () if desk.former.pair else desk.texts[row][: desk.begun[row]])


def said(former: Former, law: Rules, prompt: Sequence[int], ids: list[int]) -> str:
    """New ids as text, up to a stop string, with the space that belongs between it and the prompt."""
    seen = Watch(speaker(former), law.options.stop, () if former.pair else prompt)
    return "".join(map(seen.push, ids)) + seen.end().rstrip("\ufffd")


def listed(prompts: Any) -> list[str]:
    """One text or several as a list."""
    texts = [prompts] if isinstance(prompts, str) else rows_of(prompts)
    if not all(isinstance(one, str) for one in texts):
        raise Error(f"a prompt must be text, got {shown(prompts)}", fix="give a string, or a list of them")
    return texts


def begin(former: Former, text: str) -> list[int]:
    """The ids that a text is continued from, or that an encoder reads: as in training, with the marks of a source."""
    tokenizer, config = former.tokenizer, former.config
    if tokenizer is None:
        fix = "load one that has; formers.generation.sample.continue_ids takes ids"
        raise Error("this model has no tokenizer", fix=fix)
    text = normalise(text)  # as texts were when the model was trained
    if not former.pair:
        ids = tokenizer.encode(text, special=False)
        mark = config.bos if config.bos is not None else config.eos
        mark = mark[0] if isinstance(mark, tuple) else mark
        if not ids and mark is None:
            raise Error("the prompt is empty", fix="give some text to begin with")
        return ids or [mark]
    if not text.strip():
        raise Error("the text is empty", fix="give some words to write about")
    end = tokenizer.id("eos") if tokenizer.id("eos") is not None else tokenizer.id("sep")
    if member(former.family).family.objective == "seq2seq" and end is not None:
        return [*tokenizer.encode(text, special=False), end]  # a source as the objective frames it
    return tokenizer.encode(text)


def speaker(former: Former) -> Tokenizer:
    """The tokenizer of what is written: Marian may have one of its own for it."""
    assert former.tokenizer is not None
    return former.tokenizer.target or former.tokenizer
