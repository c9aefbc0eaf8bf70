"""Quantities of a comparison out of its records: one value for each seed of a family, under a budget."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from ..config import JSONObject
from .records import Record

QUANTITIES = {  # name → whether it depends on the budget
    "finetune": True, "bits_byte": True, "bits_byte_sentences": True, "pseudo_perplexity": True, "pairs": True,
    "flops": True, "loss": True, "parameters": False, "body": False, "flops_per_token": False, "speed": False,
    "memory": False,
}  # fmt: skip


class Measures:
    """The records of a comparison by what they are of."""

    def __init__(self, records: Iterable[Record]):
        self.records = [record for record in records if record.status == "done"]
        self.plans = {r.family: r.result for r in self.records if r.kind == "plan" and r.family is not None}
        self.speeds = {r.family: r.result for r in self.records if r.kind == "speed" and r.family is not None}
        self.families = list(self.plans)
        self.budgets = list(dict.fromkeys(r.budget for r in self.records if r.kind == "pretrain" and r.budget))
        self.budgets.sort(key=lambda name: (not name.startswith("epochs"), name))
        self.tasks = list(dict.fromkeys(r.task for r in self.records if r.kind == "tune" and r.task))

    def select(self, kind: str, family: str, budget: str | None = None, task: str | None = None) -> list[Record]:
        """Return the records of a kind for a family, by seed."""
        records = [
            r for r in self.records
            if r.kind == kind and r.family == family and budget in (None, r.budget) and task in (None, r.task)
        ]  # fmt: skip
        return sorted(records, key=lambda r: r.seed or 0)

    def list_task_scores(self, family: str, budget: str, task: str) -> list[float]:
        """Return the scores of a task, one for each seed."""
        return [r.result["score"] for r in self.select("tune", family, budget, task)]

    def list_mean_scores(self, family: str, budget: str) -> list[float]:
        """Return the mean over all tasks for each seed that has a score of every task."""
        by_seed: dict[int, dict[str, float]] = {}
        for r in self.select("tune", family, budget):
            by_seed.setdefault(r.seed or 0, {})[str(r.task)] = r.result["score"]
        return [statistics.fmean(one.values()) for one in by_seed.values() if len(one) == len(self.tasks)]

    def list_values(self, quantity: str, family: str, budget: str | None = None) -> list[float]:
        """Return a quantity of a family, one value for each seed; none where it was not measured. bits_byte is of
        causal models alone, and pseudo_perplexity of masked ones: they are never compared."""
        if quantity.startswith("finetune:"):
            return self.list_task_scores(family, str(budget), quantity.partition(":")[2])
        if quantity == "finetune":
            return self.list_mean_scores(family, str(budget))
        if quantity in ("parameters", "body", "flops_per_token"):
            return [float(self.plans[family][quantity])] if family in self.plans else []
        if quantity in ("speed", "memory"):
            return self.list_machine_values(quantity, family)
        if quantity in ("flops", "loss"):
            return [r.result[quantity] for r in self.select("pretrain", family, budget)]
        scores = [r.result for r in self.select("score", family, budget)]
        return [value for result in scores if (value := read_score(result, quantity)) is not None]

    def list_machine_values(self, quantity: str, family: str) -> list[float]:
        """Return tokens a second or the bytes of the peak, measured alone."""
        speed = self.speeds.get(family)
        if speed is None or family not in self.plans:
            return []
        if quantity == "memory":
            return [float(speed["memory"])]
        return [self.plans[family]["step_tokens"] / speed["seconds_per_step"]]


def read_score(result: JSONObject, quantity: str) -> float | None:
    """Read a quantity of a language model, if it is one of its kind."""
    kind = result.get("kind")
    if quantity == "pairs":
        values = list((result.get("pairs") or {}).values())
        return statistics.fmean(values) if values else None
    if quantity == "pseudo_perplexity":
        return result["documents"]["perplexity"] if kind == "masked" else None
    part = "sentences" if quantity == "bits_byte_sentences" else "documents"
    return result[part]["bits_byte"] if kind == "causal" and part in result else None


def format_spread(values: Sequence[float], digits: int = 3, factor: float = 1.0) -> str:
    """Format the mean, the standard deviation if there are several values, and how many there are."""
    if not values:
        return "–"
    mean = f"{factor * statistics.fmean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {factor * statistics.stdev(values):.{digits}f} ({len(values)})"
