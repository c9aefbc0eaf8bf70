"""Objectives by the name under which families declare them.

A new one is a class with `from_tokenizer` and an entry of OBJECTIVES; its options are checked by the tables below it.
`formers show` (cli/show.py) and the model cards (interop/model_card.py) say in words what it asks for.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..config import Settings, coerce_value, format_value, get_schema, suggest_name
from ..data.plans import TextObjective
from ..errors import Error
from ..text.tokenizer import Tokenizer
from .bidirectional import BidirectionalLM
from .causal import CausalLM
from .continual import ContinualTasks
from .denoising import Denoising
from .masking import DialogueLM, MaskedLM, NextSentence, SentenceOrder, UnitMaskedLM, UnitNextSentence
from .permutation import PermutationLM
from .scheduled_sampling import SAMPLING_OPTIONS, ScheduledSampling
from .seq2seq import Seq2Seq
from .span_corruption import SpanCorruption


@dataclass(frozen=True)
class ObjectiveEntry:
    """What a name stands for: a class with some of its options set, and one line of help."""

    objective_class: Any  # dynamic: a dataclass with from_tokenizer, whose fields are its options
    help: str
    options: Mapping[str, object] = field(default_factory=dict)
    takes_pairs: bool = False  # an example is a source and its target, not a stretch of text


OBJECTIVES = {
    "causal": ObjectiveEntry(CausalLM, "the next token, from those before it (GPT)"),
    "prefix": ObjectiveEntry(CausalLM, "next token after a random prefix that is only read", {"is_prefix_lm": True}),
    "seq2seq": ObjectiveEntry(Seq2Seq, "the target of a pair, from its source", takes_pairs=True),
    "bidirectional": ObjectiveEntry(BidirectionalLM, "the next word and the one before, each from its own side (ELMo)"),
    "mlm": ObjectiveEntry(MaskedLM, "hidden tokens, from both sides (RoBERTa)"),
    "whole-word": ObjectiveEntry(MaskedLM, "hidden whole words", {"max_ngram": 1}),
    "ngrams": ObjectiveEntry(MaskedLM, "hidden runs of up to three words", {"max_ngram": 3}),
    "nsp": ObjectiveEntry(NextSentence, "hidden tokens, and whether the second text follows the first (BERT)"),
    "sop": ObjectiveEntry(SentenceOrder, "hidden runs of words, and whether two texts are swapped (ALBERT)"),
    "plm": ObjectiveEntry(PermutationLM, "tokens in a random order, each from those before it in that order (XLNet)"),
    "denoising": ObjectiveEntry(Denoising, "the whole text, from a spoiled one (BART)"),
    "span-corruption": ObjectiveEntry(SpanCorruption, "what is missing in gaps (T5)"),
    "switch": ObjectiveEntry(
        SpanCorruption, "span corruption with a loss that balances the experts (Switch)", {"balance_weight": 0.01}
    ),
    "prefix-spans": ObjectiveEntry(SpanCorruption, "a text's rest, from its beginning (T5)", {"corruption": "prefix"}),
    "deshuffle": ObjectiveEntry(SpanCorruption, "the text, from its tokens shuffled (T5)", {"corruption": "deshuffle"}),
    "ernie-units": ObjectiveEntry(
        UnitMaskedLM, "hidden units: tokens, then phrases, then entities (ERNIE)", {"stage": "all"}
    ),
    "unit-pairs": ObjectiveEntry(UnitNextSentence, "hidden units, and whether two texts follow each other (ERNIE)"),
    "continual": ObjectiveEntry(
        ContinualTasks, "hidden units and six more tasks, added one after the other (ERNIE 2.0)", {"stage": "all"}
    ),
    "dialogue": ObjectiveEntry(DialogueLM, "hidden units, and whether a conversation is real (ERNIE)"),
}
# Earlier names of objectives, which are still accepted wherever a name is given.
OBJECTIVE_ALIASES = {
    "masked": "mlm", "words": "whole-word", "permutation": "plm", "denoise": "denoising", "spans": "span-corruption",
    "prefix_spans": "prefix-spans", "units": "ernie-units", "unit_pairs": "unit-pairs",
}  # fmt: skip
# What is left of an objective of pairs where no text follows another.
UNPAIRED_OBJECTIVES = {
    "nsp": "mlm", "sop": "ngrams", "unit-pairs": "ernie-units", "dialogue": "ernie-units",
    "continual": "ernie-units",
}  # fmt: skip
TOKENIZER_FIELDS = {
    "length", "vocab", "mask", "special", "word_marks", "sentinels", "word_characters", "sep", "cls", "eos", "frame",
    "capitals", "connectives",
}  # fmt: skip

RATIO_OPTIONS = {
    "mask_rate", "noise_density", "mask_ratio", "random_ratio", "infill_ratio", "permute_ratio", "delete_ratio",
    "insert_ratio", "rotate_ratio", "short_seq_prob", "label_smoothing", "target_ratio",
}  # fmt: skip
OPTION_BOUNDS = {
    "max_ngram": (0, 64), "mean_span_length": (0, 64), "context_factor": (1, 1000), "num_turns": (2, 1000),
    "slots": (3, 1000),
}  # fmt: skip
MIN_LENGTH = 3


def resolve_objective(name: object) -> str:
    """Return the registered name of an objective that is given by that name or by an earlier one."""
    known_name = OBJECTIVE_ALIASES.get(name, name) if isinstance(name, str) else name
    if not isinstance(known_name, str) or known_name not in OBJECTIVES:
        raise Error(f"the objective {format_value(name)} is not available", fix=suggest_name(str(name), OBJECTIVES))
    return known_name


def build_objective(name: str, tokenizer: Tokenizer, length: int, /, **options: object) -> TextObjective:
    """Build an objective for a tokenizer, over examples of a length; an option that it does not have is an error."""
    name = resolve_objective(name)
    kind = OBJECTIVES[name].objective_class
    known = list_options(kind)
    for key in options:
        if key not in known:
            raise Error(f"the objective {name!r} has no option {key!r}", fix=suggest_name(key, known))
    if length < MIN_LENGTH:
        raise Error(f"examples of {length} tokens are too short", fix=f"take at least {MIN_LENGTH}")
    return kind.from_tokenizer(tokenizer, length, **check_options(name, options))


def check_options(name: str, given: Mapping[str, object]) -> Settings:
    """Return an objective's options with the types that it declares; refuse values that make no sense, for which no
    tokenizer is needed."""
    kind = OBJECTIVES[name].objective_class
    known = list_options(kind)
    typed = {key: coerce_value(value, known[key], key, f"objective {name}") for key, value in given.items()}
    settings: Settings = {**OBJECTIVES[name].options, **typed}
    check_numbers(settings, kind)
    if issubclass(kind, ScheduledSampling):
        ScheduledSampling(**{key: value for key, value in settings.items() if key in SAMPLING_OPTIONS})
    return settings


def check_numbers(options: Settings, kind: type) -> None:
    """Refuse numbers that make no sense."""
    above = {"mean_span_length", "max_masked", *(("max_ngram",) if kind is PermutationLM else ())}
    for key, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        low, high = OPTION_BOUNDS.get(key, (0, math.inf))
        if key in RATIO_OPTIONS and not 0 <= value <= 1:
            raise Error(f"{key} is a share between 0 and 1, got {value}", fix="15 % is 0.15")
        if not low <= value <= high or (key in above and value == 0):
            least = "above 0" if key in above else f"at least {low}"
            most = "" if high == math.inf else f" and at most {high}"
            raise Error(f"{key} must be {least}{most}, got {value}", fix="leave it out")
    if issubclass(kind, SpanCorruption) and (mean := options.get("mean_span_length", 1)) < 1:
        raise Error(f"mean_span_length={mean} is shorter than a token", fix="take at least 1")
    both = options.get("mask_ratio", 0.8) + options.get("random_ratio", 0.1)
    if issubclass(kind, MaskedLM) and both > 1:
        raise Error(f"mask_ratio and random_ratio are {both:g} together", fix="what is left of 1 stays as it is")


def list_options(kind: Any) -> dict[str, Any]:  # dynamic: an objective_class
    """List an objective's options and their types: its fields, but for those of the tokenizer or unused ones."""
    hints, hidden = get_schema(kind), TOKENIZER_FIELDS.union(kind.unused_options)
    own = inspect.signature(kind.from_tokenizer, eval_str=True).parameters
    named = {n: p.annotation for n, p in own.items() if n not in ("tokenizer", "length", "options", "cls")}
    return {f.name: hints[f.name] for f in fields(kind) if f.name not in hidden} | named
