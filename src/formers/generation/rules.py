"""What may be written: the caller's prohibitions, and the checkpoint's own of generation_config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..config import shown, table
from ..errors import Error
from ..former import Former
from ..text.tokenizer import Tokenizer
from .choose import no_repeat, no_words, only, repetition, without
from .options import Options, Word

FILES = ("generation_config.json", "config.json")  # older checkpoints have the latter only
# What a file says about searching, by our names: the defaults of translate and summarise.
SEARCH = {
    "num_beams": "beams", "length_penalty": "length_penalty", "early_stopping": "early",
    "no_repeat_ngram_size": "no_repeat", "repetition_penalty": "repetition_penalty", "min_length": "min_tokens",
    "max_length": "tokens",
}  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """Tokens that end a text, and those that must or must not stand in it."""

    options: Options
    ends: tuple[int, ...] = ()
    first: tuple[int, ...] = ()  # the only ones that may begin a text
    last: tuple[int, ...] = ()  # the only ones that may stand at its largest length
    never: tuple[int, ...] = ()
    not_first: tuple[int, ...] = ()
    words: tuple[tuple[int, ...], ...] = ()
    speaks: Tokenizer | None = None  # what finds stop strings in a text

    def stopped(self, ids: list[int]) -> bool:
        """A stop string is in this text."""
        stops = self.options.stop
        text = self.speaks.decode(ids) if stops and self.speaks is not None else ""
        return any(stop in text for stop in stops)

    @property
    def reads(self) -> bool:
        """Whether a token may depend on more of the text than the model's scores."""
        o = self.options
        return o.repetition_penalty != 1 or o.no_repeat is not None or bool(self.words)

    def apply(self, scores: Tensor, texts: Tensor | None, step: int) -> Tensor:
        """(rows, vocab) scores of the token number `step`, in transformers' order; `texts` (rows, tokens) are filled
        up with -1 on the left, and None where nothing is read of them."""
        o = self.options
        if texts is not None:
            scores = repetition(scores, texts, o.repetition_penalty) if o.repetition_penalty != 1 else scores
            scores = no_repeat(scores, texts, o.no_repeat) if o.no_repeat is not None else scores
            scores = no_words(scores, texts, self.words) if self.words else scores
        scores = without(scores, self.never) if self.never else scores
        if step < o.min_tokens and self.ends:
            scores = without(scores, self.ends)
        if step == 0 and self.first:
            scores = only(scores, self.first)
        if step == o.tokens - 1 and self.last:
            scores = only(scores, self.last)
        if self.not_first and step == (1 if self.first else 0):
            scores = without(scores, self.not_first)
        return scores


def rules(former: Former, options: Options, first: int | None = None) -> Rules:
    """The rules of a model under these options; `first` is a token to begin with, a language for example."""
    said = sayings(former)
    vocab = getattr(former.config, "target_vocab", None) or former.config.vocab

    def tokens(name: str) -> tuple[int, ...]:
        value = said.get(name)
        value = [value] if type(value) is int else [] if value is None else value
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            raise Error(f"{name}: {shown(value)} is no token", where=FILES[0], fix="correct it")
        return tuple(one for one in value if 0 <= one < vocab)

    bad = said.get("bad_words_ids") or []
    if not isinstance(bad, list) or not all(isinstance(w, list) and w and all(type(i) is int for i in w) for w in bad):
        raise Error(f"bad_words_ids: {shown(bad)} are no rows of tokens", where=FILES[0], fix="correct it")
    ends = tuple(end_marks(former))
    known = [tuple(row) for row in bad if all(0 <= i < vocab for i in row)]  # what is no token cannot come anyway
    rows = [row for row in known if not (len(row) == 1 and row[0] in ends)]
    rows += [row for word in options.banned for row in spelled(former, word, vocab)]
    never = {row[0] for row in rows if len(row) == 1} | set(tokens("suppress_tokens"))
    if former.family == "transformer" and former.config.pad not in (None, *ends):
        never.add(former.config.pad)  # Marian starts with it, and has learnt to write it at will
    if len(never) >= vocab:
        raise Error(f"all {vocab} tokens are banned", fix="leave some of them")
    return Rules(
        options,
        tuple(end for end in ends if 0 <= end < vocab),
        () if not former.pair else tokens("forced_bos_token_id") if first is None else (first,),
        tokens("forced_eos_token_id"),
        tuple(sorted(never)),
        tokens("begin_suppress_tokens"),
        tuple(row for row in rows if len(row) > 1),
        former.tokenizer and (former.tokenizer.target or former.tokenizer),
    )


def sayings(former: Former) -> dict[str, Any]:
    """What the checkpoint's files say about writing; generation_config.json if there is one, else config.json."""
    for name in FILES:
        if name in former.kept:
            return table(former.kept[name].decode("utf-8", "replace"), name)
    return {}


def searching(former: Former, prefix: str | None = None) -> dict[str, Any]:
    """How the checkpoint wants to be searched, as options; T5's config.json says it for each task, by its `prefix`. A
    file's lengths count the token that a decoder begins with."""
    said = sayings(former)
    kept = former.kept.get("config.json") if prefix else None
    about = {} if kept is None else table(kept.decode("utf-8", "replace"), "config.json")
    tasks = about.get("task_specific_params")
    for task in tasks.values() if isinstance(tasks, dict) else ():
        said = said | task if isinstance(task, dict) and task.get("prefix") == prefix else said
    found = {ours: said[theirs] for theirs, ours in SEARCH.items() if said.get(theirs) is not None}
    for name, value in found.items():
        if not isinstance(value, int | float) and (name, value) != ("early", "never"):
            raise Error(f"{name}: {shown(value)} makes no sense", where=FILES[0], fix="correct it")
    lengths = {"tokens": max(1, found.get("tokens", 65) - 1), "min_tokens": max(0, found.get("min_tokens", 1) - 1)}
    if lengths["min_tokens"] > lengths["tokens"]:
        lengths["min_tokens"] = 0
    found |= lengths
    found["no_repeat"] = found.get("no_repeat") or None
    if found.get("beams", 1) == 1:
        found = {name: value for name, value in found.items() if name not in ("length_penalty", "early", "beams")}
    return found


def end_marks(former: Former) -> set[int]:
    """The tokens at which a text ends, as generation_config.json says if there is one, else as the config."""
    kept, name = former.kept.get(FILES[0]), "eos_token_id"
    marks = None if kept is None else table(kept.decode("utf-8", "replace"), FILES[0]).get(name)
    marks = former.config.eos if marks is None else marks
    marks = marks if isinstance(marks, list | tuple) else [] if marks is None else [marks]
    if not all(type(mark) is int for mark in marks):
        raise Error(f"{name}: {shown(marks)} is no token", where=FILES[0], fix="correct it")
    return set(marks)


def spelled(former: Former, word: Word, vocab: int) -> list[tuple[int, ...]]:
    """A banned word as rows of tokens: as the tokenizer spells it, with a space in front and without."""
    if isinstance(word, str):
        if former.tokenizer is None:
            raise Error(f"the banned word {word!r} needs a tokenizer", fix="give its ids")
        speaks = former.tokenizer.target or former.tokenizer
        ways = (word, " " + word.lstrip()) if word.strip() else (word,)
        rows = sorted(found for found in {tuple(speaks.encode(way, special=False)) for way in ways} if found)
    else:
        rows = [(word,)] if isinstance(word, int) else [tuple(word)] if word else []
    if not rows or not all(type(i) is int and 0 <= i < vocab for row in rows for i in row):
        raise Error(f"{shown(word)} cannot be banned: it is no token of {vocab}", fix="give a word, an id or ids")
    return rows
