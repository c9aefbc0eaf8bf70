"""Hypotheses of the race: written down before the runs in hypotheses.yaml, and answered from the records alone.

A hypothesis is a sum of terms, each the mean of a quantity over some families under a kind of budget, times a weight.
It is supported if the sum exceeds its margin by more than the noise, refuted if it stays below by more than the noise,
and undecided in between. The noise is two standard errors, from the deviation between seeds. A family with one seed is
taken to be as uncertain as those of its term that have several, or, if none of them has, as those of the whole
comparison; where no family has two seeds, the noise is not known, and the answer says so. With `log`, terms are
logarithms: the sum is that of a ratio."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from ..config import JSONObject, build_config, parse_yaml
from ..errors import Error
from ..registry import find_family
from .measures import QUANTITIES, Measures

Verdict = Literal["supported", "refuted", "undecided", "open"]


@dataclass(frozen=True, kw_only=True)
class Term:
    """A mean of a quantity over families, with its weight in the sum."""

    weight: float
    quantity: str
    families: tuple[str, ...]
    budget: Literal["epochs", "flops"] | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A statement in both languages and the rule that decides it."""

    name: str
    en: str
    ko: str
    terms: tuple[Term, ...]
    margin: float = 0.0
    log: bool = False


@dataclass(frozen=True)
class Answer:
    """What the records say of a hypothesis."""

    hypothesis: Hypothesis
    verdict: Verdict
    value: float | None = None
    noise: float | None = None  # None: no family has two seeds
    missing: tuple[str, ...] = ()  # what has no record yet


def load_hypotheses() -> list[Hypothesis]:
    """Load the hypotheses, each checked."""
    file = resources.files("formers.comparison").joinpath("hypotheses.yaml")
    table = parse_yaml(file.read_text(encoding="utf-8"))
    return [parse_hypothesis(name, values) for name, values in table.items()]


def parse_hypothesis(name: str, values: JSONObject) -> Hypothesis:
    """Read a hypothesis, and check that it names families and quantities that exist."""
    terms = tuple(build_config(Term, term, where=name) for term in values["terms"])
    for term in terms:
        quantity = term.quantity.partition(":")[0]
        if quantity not in QUANTITIES or QUANTITIES[quantity] != (term.budget is not None):
            raise Error(f"{term.quantity} with budget {term.budget} is no quantity", where=name, fix="see QUANTITIES")
        for family in term.families:
            find_family(family)
    more = {key: values[key] for key in ("margin", "log") if key in values}
    return Hypothesis(name, values["en"], values["ko"], terms, **more)


def answer_hypothesis(hypothesis: Hypothesis, measures: Measures) -> Answer:
    """Decide a hypothesis by the records; open while some are missing."""
    total, variance, missing = 0.0, 0.0, list[str]()
    known_noise = False
    for term in hypothesis.terms:
        budget = find_budget(term, measures)
        values = {f: measures.list_values(term.quantity, f, budget) for f in term.families}
        lost = [f for f, some in values.items() if not some or (term.budget is not None and budget is None)]
        if lost:
            place = f" ({term.budget})" if term.budget else ""
            missing += [f"{term.quantity}{place} of {family}" for family in lost]
            continue
        means = [statistics.fmean(some) for some in values.values()]
        mean = statistics.fmean(means)
        if hypothesis.log and mean <= 0:
            missing.append(f"{term.quantity} above 0")
            continue
        every = (measures.list_values(term.quantity, f, budget) for f in measures.families)
        deviations = list_variances(values.values()) or list_variances(every)
        of_one_run = statistics.fmean(deviations) if deviations else 0.0
        error = of_one_run * sum(1 / len(some) for some in values.values()) / len(values) ** 2
        known_noise = known_noise or bool(deviations)
        total += term.weight * (math.log(mean) if hypothesis.log else mean)
        variance += term.weight**2 * (error / mean**2 if hypothesis.log else error)
    if missing:
        return Answer(hypothesis, "open", missing=tuple(dict.fromkeys(missing)))
    noise = 2 * math.sqrt(variance)
    excess = total - hypothesis.margin
    verdict: Verdict = "supported" if excess > noise else "refuted" if excess < -noise else "undecided"
    return Answer(hypothesis, verdict, total, noise if known_noise else None)


def list_variances(values: Iterable[Sequence[float]]) -> list[float]:
    """List the variance between the seeds of each family that has several."""
    return [statistics.variance(some) for some in values if len(some) > 1]


def find_budget(term: Term, measures: Measures) -> str | None:
    """Return the first budget of a term's kind that has records."""
    return next((name for name in measures.budgets if name.startswith(str(term.budget))), None)


def answer_all(measures: Measures, hypotheses: Sequence[Hypothesis] | None = None) -> list[Answer]:
    """Answer all hypotheses in their order."""
    chosen = load_hypotheses() if hypotheses is None else hypotheses
    return [answer_hypothesis(one, measures) for one in chosen]


def format_rule(hypothesis: Hypothesis, language: str = "en") -> str:
    """Write the rule of a hypothesis in words."""
    words: Mapping[str, str] = {"epochs": "A", "flops": "B"}
    parts = list[str]()
    for term in hypothesis.terms:
        sign = "−" if term.weight < 0 else "+" if parts else ""
        size = "" if abs(term.weight) == 1 else f"{abs(term.weight):g} · "
        where = f", {words[term.budget]}" if term.budget else ""
        inner = f"{term.quantity}({', '.join(term.families)}{where})"
        parts.append(f"{sign} {size}{f'ln {inner}' if hypothesis.log else inner}".strip())
    return f"{' '.join(parts)} > {hypothesis.margin:g}"
