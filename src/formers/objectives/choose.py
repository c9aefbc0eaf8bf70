"""Objectives by the name under which families declare them."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, fields
from typing import Any

from ..config import coerce, schema, suggest
from ..errors import Error
from ..text.tokenizer import Tokenizer
from .bidirectional import BidirectionalLM
from .causal import CausalLM
from .denoise import Denoising
from .masked import MaskedLM
from .pairs import NextSentence, SentenceOrder
from .permutation import PermutationLM
from .seq2seq import Seq2Seq
from .spans import SpanCorruption
from .units import Dialogue, UnitPairs, Units


@dataclass(frozen=True)
class Choice:
    """What a name stands for: a class with some of its options set, and one line of help."""

    kind: Any
    help: str
    options: tuple[tuple[str, Any], ...] = ()


OBJECTIVES = {
    "causal": Choice(CausalLM, "the next token, from those before it (GPT)"),
    "prefix": Choice(CausalLM, "the same, but a random beginning is only read, left to right", (("prefix", True),)),
    "seq2seq": Choice(Seq2Seq, "the target of a pair, from its source"),
    "bidirectional": Choice(BidirectionalLM, "the next word and the one before, each from its own side (ELMo)"),
    "masked": Choice(MaskedLM, "hidden tokens, from both sides (RoBERTa)"),
    "words": Choice(MaskedLM, "hidden whole words", (("grams", 1),)),
    "ngrams": Choice(MaskedLM, "hidden runs of up to three words", (("grams", 3),)),
    "nsp": Choice(NextSentence, "hidden tokens, and whether the second text follows the first (BERT)"),
    "sop": Choice(SentenceOrder, "hidden runs of words, and whether two texts are swapped (ALBERT)"),
    "permutation": Choice(PermutationLM, "tokens in a random order, each from those before it in that order (XLNet)"),
    "denoise": Choice(Denoising, "the whole text, from a spoiled one (BART)"),
    "spans": Choice(SpanCorruption, "what is missing in gaps (T5)"),
    "switch": Choice(SpanCorruption, "the same, with experts kept busy (Switch)", (("balance", 0.01),)),
    "prefix_spans": Choice(SpanCorruption, "the rest of a text, from its beginning (T5)", (("kind", "prefix"),)),
    "deshuffle": Choice(SpanCorruption, "the text, from its tokens in random order (T5)", (("kind", "deshuffle"),)),
    "units": Choice(Units, "hidden units: tokens, phrases or entities (ERNIE)"),
    "unit_pairs": Choice(UnitPairs, "hidden units, and whether the second text follows the first (ERNIE)"),
    "dialogue": Choice(Dialogue, "hidden units, and whether a conversation is real (ERNIE)"),
}
# What is left of an objective of pairs where no text follows another.
WITHOUT_PAIRS = {"nsp": "masked", "sop": "ngrams", "unit_pairs": "units", "dialogue": "units"}
GIVEN = {"length", "vocab", "mask", "special", "words", "sentinels", "spelling", "sep", "cls", "end", "frame"}

SHARES = {
    "rate", "masked", "random", "infill", "permute", "delete", "insert", "rotate", "short", "smoothing", "share",
}  # fmt: skip
BOUNDS = {"grams": (0, 64), "mean": (0, 64), "context": (1, 1000), "turns": (2, 1000), "slots": (3, 1000)}
SHORTEST = 3


def objective(name: str, tokenizer: Tokenizer, length: int, /, **options: Any) -> Any:
    """An objective for a tokenizer, over examples of a length; an option that it does not have is an error."""
    if name not in OBJECTIVES:
        raise Error(f"the objective {name!r} is not available", fix=suggest(name, OBJECTIVES))
    choice = OBJECTIVES[name]
    known = settings(choice.kind)
    for key in options:
        if key not in known:
            raise Error(f"the objective {name!r} has no option {key!r}", fix=suggest(key, known))
    typed = {key: coerce(value, known[key], key, f"objective {name}") for key, value in options.items()}
    if length < SHORTEST:
        raise Error(f"examples of {length} tokens are too short", fix=f"take at least {SHORTEST}")
    check({**dict(choice.options), **typed}, choice.kind)
    return choice.kind.of(tokenizer, length, **{**dict(choice.options), **typed})


def check(options: dict[str, Any], kind: Any) -> None:
    """Refuse numbers that make no sense."""
    above = {"mean", "most", *(("grams",) if kind is PermutationLM else ())}
    for key, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        low, high = BOUNDS.get(key, (0, math.inf))
        if key in SHARES and not 0 <= value <= 1:
            raise Error(f"{key} is a share between 0 and 1, got {value}", fix="15 % is 0.15")
        if not low <= value <= high or (key in above and value == 0):
            least = "above 0" if key in above else f"at least {low}"
            most = "" if high == math.inf else f" and at most {high}"
            raise Error(f"{key} must be {least}{most}, got {value}", fix="leave it out")
    both = options.get("masked", 0.8) + options.get("random", 0.1)
    if issubclass(kind, MaskedLM) and both > 1:
        raise Error(f"masked and random are {both:g} together", fix="what is left of 1 stays as it is")


def settings(kind: Any) -> dict[str, Any]:
    """The options of an objective and their types: its fields, but for those that the tokenizer gives or that a parent
    alone has a use for."""
    hints, hidden = schema(kind), GIVEN.union(getattr(kind, "ignores", ()))
    own = inspect.signature(kind.of, eval_str=True).parameters
    named = {n: p.annotation for n, p in own.items() if n not in ("tokenizer", "length", "options", "cls")}
    return {f.name: hints[f.name] for f in fields(kind) if f.name not in hidden} | named
