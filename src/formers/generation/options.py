"""Settings of generation: sampling, search, constraints and stopping, with checks that they fit together."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, cast

from ..config import Settings, format_value, suggest_name
from ..errors import Error
from ..option_aliases import resolve_generation_options
from ..text.normalise import normalise

SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "typical_p")
SEARCH_OPTIONS = ("length_penalty", "coverage", "early_stopping", "length_normalisation")
BadWord = int | str | tuple[int, ...]
MAX_FLOAT = sys.float_info.max
# Option → the least and the largest value, and whether these two are allowed.
BOUNDS: dict[str, tuple[float, float, bool, bool]] = {
    "temperature": (0, MAX_FLOAT, True, True),
    "top_k": (1, float("inf"), True, True),
    "top_p": (0, 1, False, True),
    "min_p": (0, 1, True, True),
    "typical_p": (0, 1, False, True),
    "repetition_penalty": (0, MAX_FLOAT, False, True),
    "no_repeat_ngram": (1, float("inf"), True, True),
    "max_new_tokens": (1, 2**24, True, True),
    "min_new_tokens": (0, 2**24, True, True),
    "num_samples": (1, 2**16, True, True),
    "num_beams": (1, 2**12, True, True),
    "seed": (0, 2**63 - 1, True, True),
    "length_penalty": (-MAX_FLOAT, MAX_FLOAT, True, True),
    "coverage": (0, MAX_FLOAT, True, True),
}
INTEGER_OPTIONS = ("top_k", "no_repeat_ngram", "max_new_tokens", "min_new_tokens", "num_samples", "num_beams", "seed")
OPTION_HINTS = {
    "temperature": "0 is greedy, 1 samples from the model's own distribution",
    "top_k": "leave it out to consider all tokens",
    "top_p": "0.9 keeps the likeliest tokens with 90 % of the probability",
    "max_new_tokens": "ask for a number of tokens",
}


@dataclass(frozen=True)
class Options:
    """How each prompt is continued; None means that an option is not used.

    Sampling: `temperature` (0 is greedy), `top_k`, `top_p`, `min_p`, `typical_p`, with a `seed`; every text, sample and
    step has its own random number. Beam search: `num_beams`, scored with `length_penalty` (1.0) and
    `length_normalisation` "length" (log p / n^α, n without the prompt) or "gnmt" (Wu et al. 2016, eq. 14), `coverage`
    (β of the same paper), and `early_stopping`: False stops when no better text is likely, True as soon as there are
    enough, "never" when none is possible. Either way `num_samples` texts for each prompt. Constraints:
    `repetition_penalty`, `no_repeat_ngram`, `bad_words` (tokens, words, or sequences of tokens), `min_new_tokens`.
    Stopping: after `max_new_tokens`, or before a `stop` string."""

    temperature: float | None = None
    top_k: int | None = None
    seed: int = 0
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram: int | None = None
    bad_words: tuple[BadWord, ...] = ()
    max_new_tokens: int = 64
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    num_samples: int = 1
    num_beams: int = 1
    length_penalty: float | None = None
    length_normalisation: Literal["length", "gnmt"] | None = None
    coverage: float | None = None
    early_stopping: Literal[True, False, "never"] | None = None

    def __post_init__(self) -> None:
        for name in ("bad_words", "stop"):
            words = to_tuple(vars(self)[name], name)  # dynamic: a check of several options
            object.__setattr__(self, name, tuple(normalise(w) if isinstance(w, str) else w for w in words))
        for name, bounds in BOUNDS.items():
            value = vars(self)[name]  # dynamic: BOUNDS names the options
            check_bounds(name, value, *bounds)
            if value is not None and name not in INTEGER_OPTIONS:
                object.__setattr__(self, name, float(value))  # torch takes no integer of more than 64 bits
        if self.length_normalisation not in (None, "length", "gnmt"):
            what = f"length_normalisation must be length or gnmt, got {format_value(self.length_normalisation)}"
            raise Error(what, fix="leave it out for length")
        if self.early_stopping not in (None, True, False, "never"):
            what = f"early_stopping must be True, False or 'never', got {format_value(self.early_stopping)}"
            raise Error(what, fix="leave it out for False")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise Error("a stop string must have a character", fix="leave the empty one out")
        if self.min_new_tokens > self.max_new_tokens:
            what = f"at least {self.min_new_tokens} tokens are asked for, and at most {self.max_new_tokens}"
            raise Error(what, fix="raise the maximum, or lower the minimum")
        self.check_consistency()

    def check_consistency(self) -> None:
        """Refuse options that exclude each other: sampling with beam search, search options without beams."""
        values = vars(self)  # dynamic: the two tables name the options
        names = [name for name in (*SAMPLING_OPTIONS, *SEARCH_OPTIONS) if values[name] is not None]
        draws, weighs = ([name for name in names if name in kind] for kind in (SAMPLING_OPTIONS, SEARCH_OPTIONS))
        if self.num_beams > 1:
            if wrong := [name for name in draws if name != "temperature" or self.temperature]:
                what = f"beam search does not sample: {wrong[0]} does not apply"
                raise Error(what, fix=f"leave {wrong[0]} out, or num_beams")
            if self.num_samples > self.num_beams:
                what = f"{self.num_beams} beams do not give {self.num_samples} texts"
                raise Error(what, fix=f"take num_beams={self.num_samples}, or fewer samples")
            return
        if weighs:
            raise Error(f"{weighs[0]} applies to beam search only", fix="leave it out, or take num_beams=4")
        if self.temperature == 0 and len(draws) > 1:
            what = f"temperature 0 is greedy, and {draws[1]} is for sampling"
            raise Error(what, fix=f"leave {draws[1]} out, or take a temperature above 0")
        if self.temperature == 0 and self.num_samples > 1:
            what = f"at temperature 0 all {self.num_samples} samples would be the same"
            raise Error(what, fix="take a temperature above 0, or beams")

    @property
    def rows_per_prompt(self) -> int:
        """The number of rows that are decoded for each prompt."""
        return self.num_beams if self.num_beams > 1 else self.num_samples


def make_options(given: Mapping[str, object], **usual: object) -> Options:
    """Build Options from names and values over defaults; an unknown name is an error with the nearest one."""
    known = [f.name for f in fields(Options)]
    resolved = resolve_generation_options(given, known)
    for name in resolved:
        if name not in known:
            raise Error(f"unknown option {name!r}", fix=suggest_name(name, known))
    values: Settings = {**usual, **{name: value for name, value in resolved.items() if value is not None}}
    return Options(**values)


def to_tuple(value: object, name: str) -> tuple[object, ...]:
    """Return one value or a sequence of them as a tuple."""
    if isinstance(value, str | int):
        return (value,)
    if not isinstance(value, Sequence):
        raise Error(f"{name} must be a list, got {format_value(value)}", fix=f"for example {name}=['x']")
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def check_bounds(name: str, value: object, least: float, most: float, low: bool, high: bool) -> None:
    """Refuse a value of the wrong type or outside its bounds."""
    if value is None:
        return
    if isinstance(value, int if name in INTEGER_OPTIONS else (int, float)) and not isinstance(value, bool):
        number = cast(float, value)  # of NaN no comparison holds
        if (least < number or (low and number == least)) and (number < most or (high and number == most)):
            return
    bounds = f"{'at least' if low else 'above'} {least}"
    if least == -most:
        bounds = "a number"
    elif most == MAX_FLOAT:
        bounds += " and finite"
    elif most != float("inf"):
        bounds += f" and {'at most' if high else 'below'} {most}"
    fix = OPTION_HINTS.get(name, "leave it out for the default")
    raise Error(f"{name} must be {bounds}, got {format_value(value)}", fix=fix)
