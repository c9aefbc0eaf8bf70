"""What may be written: the caller's prohibitions, and the checkpoint's own of generation_config.json.

What a beam search adds to the score of a finished text (Wu et al. 2016, §7): score = log p / length + coverage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..config import format_value, parse_json_object
from ..errors import Error
from ..former import Former
from ..text.tokenizer import Tokenizer
from .options import BadWord, Options
from .sampling import ban_repeated_ngrams, ban_sequences, ban_tokens, force_tokens, penalise_repetition

CONFIG_FILES = ("generation_config.json", "config.json")  # older checkpoints have the latter only
# What a file says about searching, by our names: the defaults of translate and summarise.
HF_SEARCH_OPTIONS = {
    "num_beams": "num_beams", "length_penalty": "length_penalty", "early_stopping": "early_stopping",
    "no_repeat_ngram_size": "no_repeat_ngram", "repetition_penalty": "repetition_penalty",
    "min_length": "min_new_tokens",
    "max_length": "max_new_tokens",
}  # fmt: skip


@dataclass(frozen=True)
class Constraints:
    """Tokens that end a text, and those that must or must not stand in it."""

    options: Options
    end_ids: tuple[int, ...] = ()
    forced_first: tuple[int, ...] = ()  # the only ones that may begin a text
    forced_last: tuple[int, ...] = ()  # the only ones that may stand at its largest length
    banned_ids: tuple[int, ...] = ()
    banned_first: tuple[int, ...] = ()
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    tokenizer: Tokenizer | None = None  # what finds stop strings in a text

    def has_stop_string(self, ids: list[int]) -> bool:
        """A stop string is in this text."""
        stops = self.options.stop
        text = self.tokenizer.decode(ids) if stops and self.tokenizer is not None else ""
        return any(stop in text for stop in stops)

    @property
    def has_history_rules(self) -> bool:
        """Whether a token may depend on more of the text than the model's scores."""
        o = self.options
        return o.repetition_penalty != 1 or o.no_repeat_ngram is not None or bool(self.banned_sequences)

    def apply(self, scores: Tensor, texts: Tensor | None, step: int) -> Tensor:
        """(rows, vocab) scores of the token number `step`, in transformers' order; `texts` (rows, tokens) are filled
        up with -1 on the left, and None where nothing is read of them."""
        o = self.options
        if texts is not None:
            scores = penalise_repetition(scores, texts, o.repetition_penalty) if o.repetition_penalty != 1 else scores
            scores = ban_repeated_ngrams(scores, texts, o.no_repeat_ngram) if o.no_repeat_ngram is not None else scores
            scores = ban_sequences(scores, texts, self.banned_sequences) if self.banned_sequences else scores
        scores = ban_tokens(scores, self.banned_ids) if self.banned_ids else scores
        if step < o.min_new_tokens and self.end_ids:
            scores = ban_tokens(scores, self.end_ids)
        if step == 0 and self.forced_first:
            scores = force_tokens(scores, self.forced_first)
        if step == o.max_new_tokens - 1 and self.forced_last:
            scores = force_tokens(scores, self.forced_last)
        if self.banned_first and step == (1 if self.forced_first else 0):
            scores = ban_tokens(scores, self.banned_first)
        return scores


def build_constraints(former: Former, options: Options, forced_first: int | None = None) -> Constraints:
    """The rules of a model under these options; `forced_first` is a token to begin with, a language for example."""
    said = read_generation_config(former)
    vocab = getattr(former.config, "target_vocab", None) or former.config.vocab

    def read_token_ids(name: str) -> tuple[int, ...]:
        value = said.get(name)
        value = [value] if type(value) is int else [] if value is None else value
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            raise Error(f"{name}: {format_value(value)} is no token", where=CONFIG_FILES[0], fix="correct it")
        return tuple(one for one in value if 0 <= one < vocab)

    bad = said.get("bad_words_ids") or []
    if not isinstance(bad, list) or not all(isinstance(w, list) and w and all(type(i) is int for i in w) for w in bad):
        raise Error(
            f"bad_words_ids: {format_value(bad)} are no rows of tokens", where=CONFIG_FILES[0], fix="correct it"
        )
    ends = tuple(get_end_ids(former))
    known = [tuple(row) for row in bad if all(0 <= i < vocab for i in row)]  # what is no token cannot come anyway
    rows = [row for row in known if not (len(row) == 1 and row[0] in ends)]
    rows += [row for word in options.bad_words for row in encode_bad_word(former, word, vocab)]
    never = {row[0] for row in rows if len(row) == 1} | set(read_token_ids("suppress_tokens"))
    if former.family == "transformer" and former.config.pad not in (None, *ends):
        never.add(former.config.pad)  # Marian starts with it, and has learnt to write it at will
    if len(never) >= vocab:
        raise Error(f"all {vocab} tokens are banned", fix="leave some of them")
    return Constraints(
        options,
        tuple(end for end in ends if 0 <= end < vocab),
        ()
        if not former.is_encoder_decoder
        else read_token_ids("forced_bos_token_id")
        if forced_first is None
        else (forced_first,),
        read_token_ids("forced_eos_token_id"),
        tuple(sorted(never)),
        read_token_ids("begin_suppress_tokens"),
        tuple(row for row in rows if len(row) > 1),
        former.tokenizer and (former.tokenizer.target or former.tokenizer),
    )


def read_generation_config(former: Former) -> dict[str, Any]:
    """What the checkpoint's files say about writing; generation_config.json if there is one, else config.json."""
    for name in CONFIG_FILES:
        if name in former.source_files:
            return parse_json_object(former.source_files[name].decode("utf-8", "replace"), name)
    return {}


def read_search_options(former: Former, prefix: str | None = None) -> dict[str, Any]:
    """How the checkpoint wants to be searched, as options; T5's config.json says it for each task, by its `prefix`. A
    file's lengths count the token that a decoder begins with."""
    said = read_generation_config(former)
    kept = former.source_files.get("config.json") if prefix else None
    about = {} if kept is None else parse_json_object(kept.decode("utf-8", "replace"), "config.json")
    tasks = about.get("task_specific_params")
    for task in tasks.values() if isinstance(tasks, dict) else ():
        said = said | task if isinstance(task, dict) and task.get("prefix") == prefix else said
    found = {ours: said[theirs] for theirs, ours in HF_SEARCH_OPTIONS.items() if said.get(theirs) is not None}
    for name, value in found.items():
        if not isinstance(value, int | float) and (name, value) != ("early_stopping", "never"):
            raise Error(f"{name}: {format_value(value)} makes no sense", where=CONFIG_FILES[0], fix="correct it")
    lengths = {
        "max_new_tokens": max(1, found.get("max_new_tokens", 65) - 1),
        "min_new_tokens": max(0, found.get("min_new_tokens", 1) - 1),
    }
    if lengths["min_new_tokens"] > lengths["max_new_tokens"]:
        lengths["min_new_tokens"] = 0
    found |= lengths
    found["no_repeat_ngram"] = found.get("no_repeat_ngram") or None
    if found.get("num_beams", 1) == 1:
        found = {
            name: value
            for name, value in found.items()
            if name not in ("length_penalty", "early_stopping", "num_beams")
        }
    return found


def get_end_ids(former: Former) -> set[int]:
    """The tokens at which a text ends, as generation_config.json says if there is one, else as the config."""
    kept, name = former.source_files.get(CONFIG_FILES[0]), "eos_token_id"
    marks = None if kept is None else parse_json_object(kept.decode("utf-8", "replace"), CONFIG_FILES[0]).get(name)
    marks = former.config.eos if marks is None else marks
    marks = marks if isinstance(marks, list | tuple) else [] if marks is None else [marks]
    if not all(type(mark) is int for mark in marks):
        raise Error(f"{name}: {format_value(marks)} is no token", where=CONFIG_FILES[0], fix="correct it")
    return set(marks)


def encode_bad_word(former: Former, word: BadWord, vocab: int) -> list[tuple[int, ...]]:
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
        raise Error(
            f"{format_value(word)} cannot be banned: it is no token of {vocab}", fix="give a word, an id or ids"
        )
    return rows


def compute_length_penalty(length: Any, alpha: float) -> Any:
    """((5 + length) / 6)^α: log p is divided by it; α = 0 does nothing, 1 takes nearly the mean (eq. 14)."""
    return ((5 + length) / 6) ** alpha


def compute_coverage_penalty(weights: Tensor, keep: Tensor | None = None, beta: float = 0.2) -> Tensor:
    """β · Σᵢ log min(Σⱼ pᵢⱼ, 1) of attention weights (..., target, source): source words never looked at cost most.

    `keep` (..., source) is False where the source is padding.
    """
    seen = weights.sum(-2).clamp(max=1.0).log()  # (..., source)
    return beta * (seen if keep is None else torch.where(keep, seen, 0.0)).sum(-1)
