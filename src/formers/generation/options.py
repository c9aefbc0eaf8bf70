"""How text is written: one set of options for choosing, searching and ending; what contradicts itself is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from ..config import shown, suggest
from ..errors import Error
from ..text.normalise import normalise
from .choose import draw, numbers, warp

SAMPLED = ("temperature", "top_k", "top_p", "min_p", "typical")
SEARCHED = ("length_penalty", "coverage", "early", "normalise")
Word = int | str | tuple[int, ...]
# Option → the least and the largest value, and whether these two are allowed.
BOUNDS: dict[str, tuple[float, float, bool, bool]] = {
    "temperature": (0, float("inf"), True, False),
    "top_k": (1, float("inf"), True, True),
    "top_p": (0, 1, False, True),
    "min_p": (0, 1, True, True),
    "typical": (0, 1, False, True),
    "repetition_penalty": (0, float("inf"), False, False),
    "no_repeat": (1, float("inf"), True, True),
    "tokens": (1, 2**24, True, True),
    "min_tokens": (0, 2**24, True, True),
    "samples": (1, 2**16, True, True),
    "beams": (1, 2**12, True, True),
    "seed": (0, 2**63 - 1, True, True),
    "length_penalty": (-float("inf"), float("inf"), False, False),
    "coverage": (0, float("inf"), True, False),
}
WHOLE = ("top_k", "no_repeat", "tokens", "min_tokens", "samples", "beams", "seed")
ADVICE = {
    "temperature": "0 takes the likeliest token, 1 samples as learnt",
    "top_k": "leave it out to consider all tokens",
    "top_p": "0.9 keeps the likeliest tokens that are 90 % together",
    "tokens": "ask for a number of tokens",
}


@dataclass(frozen=True)
class Options:
    """How each text is continued. None means: not asked for.

    Choosing: `temperature` (0 takes the likeliest token), `top_k`, `top_p`, `min_p`, `typical`, drawn with `seed`, of
    which every text, sample and step has its own number. Searching: `beams`, weighed by `length_penalty` (1.0), with
    `normalise` "length" (log p / n^α, n without the prompt) or "gnmt" (Wu et al. 2016, eq. 14), `coverage` (β of the
    same), and `early`: False stops when no better text is likely, True as soon as there are enough, "never" when none
    is possible. Either way `samples` texts for each prompt. Forbidding: `repetition_penalty`, `no_repeat` (n-grams),
    `banned` (tokens, words, or rows of tokens), `min_tokens`. Ending: `tokens` at most, or at a `stop` string.
    """

    temperature: float | None = None
    top_k: int | None = None
    seed: int = 0
    top_p: float | None = None
    min_p: float | None = None
    typical: float | None = None
    repetition_penalty: float = 1.0
    no_repeat: int | None = None
    banned: tuple[Word, ...] = ()
    tokens: int = 64
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    samples: int = 1
    beams: int = 1
    length_penalty: float | None = None
    normalise: Literal["length", "gnmt"] | None = None
    coverage: float | None = None
    early: Literal[True, False, "never"] | None = None

    def __post_init__(self) -> None:
        for name in ("banned", "stop"):
            words = listed(getattr(self, name), name)
            object.__setattr__(self, name, tuple(normalise(w) if isinstance(w, str) else w for w in words))
        for name, bounds in BOUNDS.items():
            check(name, getattr(self, name), *bounds)
        if self.normalise not in (None, "length", "gnmt"):
            raise Error(f"normalise must be length or gnmt, got {shown(self.normalise)}", fix="leave it out for length")
        if self.early not in (None, True, False, "never"):
            raise Error(f"early must be True, False or 'never', got {shown(self.early)}", fix="leave it out for False")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise Error("a stop string must have a character", fix="leave the empty one out")
        if self.min_tokens > self.tokens:
            what = f"at least {self.min_tokens} tokens and at most {self.tokens} contradict each other"
            raise Error(what, fix="ask for more tokens, or for fewer at least")
        self.agree()

    def agree(self) -> None:
        """Refuse options that have nothing to do with each other."""
        draws, weighs = self.given(SAMPLED), self.given(SEARCHED)
        if self.beams > 1:
            wrong = [name for name in draws if name != "temperature" or self.temperature]
            if wrong:
                what = f"beams search for the likeliest texts, and {wrong[0]} is for drawing at random"
                raise Error(what, fix=f"leave {wrong[0]} out, or beams")
            if self.samples > self.beams:
                what = f"{self.beams} beams do not give {self.samples} texts"
                raise Error(what, fix=f"take beams={self.samples}, or fewer samples")
            return
        if weighs:
            raise Error(f"{weighs[0]} weighs the texts of a beam search", fix="leave it out, or take beams=4")
        if self.temperature == 0 and len(draws) > 1:
            what = f"temperature 0 takes the likeliest token, and {draws[1]} is for drawing at random"
            raise Error(what, fix=f"leave {draws[1]} out, or take a temperature above 0")
        if self.temperature == 0 and self.samples > 1:
            what = f"at temperature 0 all {self.samples} samples would be the same"
            raise Error(what, fix="take a temperature above 0, or beams")

    def given(self, names: Sequence[str]) -> list[str]:
        """Which of these options are asked for."""
        return [name for name in names if getattr(self, name) is not None]

    @property
    def each(self) -> int:
        """How many rows are at work for each prompt."""
        return self.beams if self.beams > 1 else self.samples

    def pick(self, logits: Tensor, step: Any, sample: Any = 0) -> Tensor:
        """(rows, vocab) → (rows,) tokens. A row's draw depends on the seed, its sample's number and the step alone."""
        return self.take(logits, None if self.temperature == 0 else self.numbers(step, sample, logits.device))

    def numbers(self, step: Any, sample: Any, device: torch.device) -> Tensor:
        """What draws are decided by."""
        return numbers(self.seed, sample, step, device)

    def take(self, logits: Tensor, number: Tensor | None) -> Tensor:
        """(rows, vocab) → (rows,) the likeliest tokens, or those drawn by (rows,) numbers."""
        return logits.max(-1).indices if number is None else draw(warp(logits, self), number)


def options(given: dict[str, Any], **usual: Any) -> Options:
    """Options by name; an unknown one is an error that names its neighbour."""
    known = [f.name for f in fields(Options)]
    for name in given:
        if name not in known:
            raise Error(f"unknown option {name!r}", fix=suggest(name, known))
    return Options(**{**usual, **{name: value for name, value in given.items() if value is not None}})


def listed(value: Any, name: str) -> tuple[Any, ...]:
    """One of something, or several, as a tuple."""
    if isinstance(value, str | int):
        return (value,)
    if not isinstance(value, Sequence):
        raise Error(f"{name} must be a list, got {shown(value)}", fix=f"for example {name}=['x']")
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def check(name: str, value: Any, least: float, most: float, low: bool, high: bool) -> None:
    """Refuse a value of the wrong kind, or outside its bounds."""
    if value is None:
        return
    kind = int if name in WHOLE else (int, float)
    good = isinstance(value, kind) and not isinstance(value, bool) and value == value
    if good and (least < value or (low and value == least)) and (value < most or (high and value == most)):
        return
    if least == -most:
        bounds = "a number"
    else:
        bounds = f"{'at least' if low else 'above'} {least}"
        bounds += (
            (" and finite" if not high else "")
            if most == float("inf")
            else f" and {'at most' if high else 'below'} {most}"
        )
    raise Error(f"{name} must be {bounds}, got {shown(value)}", fix=ADVICE.get(name, "leave it out for the usual"))
