"""What a model is worth on a file: language models by likelihood, fine-tuned ones by their task's measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import Tell
from ..errors import Error
from ..former import Former
from ..tasks.ask import score as number
from ..tasks.examples import read_columns, read_examples
from ..tasks.records import Table, read_table
from ..text.normalise import normalise
from .likelihood import HEADS, Likelihood, likelihood

KINDS = ("perplexity", "pairs", "choices", "cloze", "task")
GOOD, BAD = ("good", "sentence_good", "acceptable", "right"), ("bad", "sentence_bad", "unacceptable", "wrong")


@dataclass(frozen=True)
class Worth:
    """What was measured, on how many examples, what was understood of the file, and the measures, the main first."""

    kind: str
    examples: int
    said: str
    measures: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)  # how BLEU and chrF were computed


def score(former: Former, texts: Any, **how: Any) -> Any:
    """What a model gives a text or each of many: of a language model its `Likelihood` (total, perplexity and tokens),
    of one fine-tuned to numbers, the number."""
    if not speaks(former):
        return number(former, texts, **how)
    some = [texts] if isinstance(texts, str) else texts
    if isinstance(some, list) and "" in some:  # before all are read
        what = f"text {some.index('') + 1} has no token to foretell"
        raise Error(what, fix="leave it out, or give a longer one")
    found = likelihood(former, texts, **how)
    for place, one in enumerate([found] if isinstance(found, Likelihood) else found, 1):
        if not len(one.logs):
            raise Error(f"text {place} has no token to foretell", fix="leave it out, or give a longer one")
    return found


def speaks(former: Former) -> bool:
    """The model is a language model, and was not taught a task."""
    return former.head in HEADS and HEADS[former.head] in former.model.parts and not former.task


def evaluate(
    former: Former, data: Any, kind: str | None = None, *, columns: Any = None, skip: bool = False,
    encoding: str = "utf-8", limit: int | None = None, **how: Any,
) -> Worth:  # fmt: skip
    """Measure a model on a file, rows or a dataset.

    A language model by its perplexity on texts (of an encoder-decoder: of targets), by `pairs` of a good and a bad
    sentence (which is likelier), by `choices` (which is the likeliest behind a text), or by `cloze`: the last word of
    each text. A fine-tuned model by the measures of its task. The kind is found by the columns and the model if it is
    not named. `how` goes to likelihood: batch, stride, memory, tell.
    """
    reading: dict[str, Any] = {"skip": skip, "encoding": encoding}
    if kind is not None and kind not in KINDS:
        raise Error(f"there is no measure {kind!r}", fix="choose " + ", ".join(KINDS))
    kind = kind or kind_of(former, data, columns, reading)
    if kind == "task":
        return by_task(former, data, columns, limit, how.get("tell"), **reading)
    if kind == "pairs":
        table, sides = sided(data, columns, reading)
        sentences = two_sides(table, sides)[:limit]
        said = f"good = column {sides['good']!r}, bad = column {sides['bad']!r}"
        return Worth(kind, len(sentences), said, pairs(former, sentences, **how))
    task = "choose" if kind == "choices" else "translate" if former.pair else "lm"
    found = read_examples(data, task, columns, limit=limit, **reading)
    if kind == "choices":
        return Worth(kind, len(found), found.said, choices(former, found.rows, **how))
    texts: list[Any] = [(row["text"], row["target"]) if former.pair else row["text"] for row in found.rows]
    return Worth(kind, len(found), found.said, (cloze if kind == "cloze" else perplexity)(former, texts, **how))


def kind_of(former: Former, data: Any, columns: Any, reading: dict[str, Any]) -> str:
    """What there is to measure: the task of a fine-tuned model, else what the columns are good for."""
    if not speaks(former):
        return "task"
    table, sides = sided(data, columns, reading)
    if all(sides[side] in table.names for side in ("good", "bad")):
        return "pairs"
    try:
        task = read_examples(data, columns=columns, limit=20, **reading).task
    except Error:  # there must be a text, or it is said later what is missing
        return "perplexity"
    return "choices" if task == "choose" else "perplexity"


def sided(data: Any, columns: Any, reading: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """A table, and which of its columns are the good and the bad sentence, if there are such."""
    given, header = read_columns(columns)
    table = read_table(data, header, **reading)
    return table, {"good": first(table, GOOD), "bad": first(table, BAD), **given}


def first(table: Table, known: Sequence[str]) -> str | None:
    """The first known column."""
    return next((name for name in table.names if name.lower() in known), None)


def two_sides(table: Table, sides: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a good and a bad sentence."""
    lost = [side for side in ("good", "bad") if sides.get(side) not in table.names]
    if lost:
        names = ", ".join(map(repr, table.names))
        raise Error(f"which column is {lost[0]}? There are {names}", where=table.where, fix="columns='good=A bad=B'")
    rows = []
    for number_, row in table.rows:
        good, bad = (row.get(sides[side]) for side in ("good", "bad"))
        if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
            raise Error(
                "there are no two sentences", where=f"{table.where or 'the pairs'}, row {number_}", fix="repair it"
            )
        rows.append((good, bad))
    if not rows:
        raise Error("there are no pairs", where=table.where, fix="give at least one")
    return rows


def perplexity(former: Former, texts: Sequence[Any], tell: Tell | None = None, **how: Any) -> dict[str, float]:
    """Perplexity by token, by word (between spaces) and by byte, bits by byte, and the share of right first guesses."""
    found: list[Likelihood] = likelihood(former, list(texts), tell=tell, **how)
    tokens = sum(len(one.logs) for one in found)
    if not tokens:
        raise Error("there is no token to foretell", fix="give longer texts")
    nats = -math.fsum(one.total for one in found)
    words = sum(len(one.text.split()) for one in found)
    size = sum(len(one.text.encode("utf-8", "ignore")) for one in found)
    return {
        "perplexity": power(nats / tokens),
        "perplexity_word": power(nats / max(1, words)),
        "perplexity_byte": power(nats / max(1, size)),
        "bits_byte": nats / max(1, size) / math.log(2),
        "nats": nats / tokens,
        "right": sum(int(one.right.sum()) for one in found) / tokens,
        "tokens": tokens,
        "words": words,
        "bytes": size,
    }


def power(nats: float) -> float:
    """e to a power, infinite where it is too large."""
    return math.exp(nats) if nats < 700 else math.inf


def pairs(former: Former, rows: Sequence[tuple[str, str]], **how: Any) -> dict[str, float]:
    """How often the good sentence is likelier than the bad one (Warstadt et al. 2020), as a whole and by token."""
    both = [side for row in rows for side in row]
    asked: list[Any] = [(side, side) for side in both] if former.pair else both
    found: list[Likelihood] = likelihood(former, asked, **how)
    by = {"accuracy": [one.total for one in found], "accuracy_token": [mean(one) for one in found]}
    return {name: sum(a > b for a, b in zip(v[::2], v[1::2], strict=True)) / len(rows) for name, v in by.items()}


def mean(one: Likelihood) -> float:
    """The log-probability by token."""
    return one.total / max(1, len(one.logs))


def choices(former: Former, rows: Sequence[dict[str, Any]], between: str = " ", **how: Any) -> dict[str, float]:
    """How often the right choice is the likeliest behind its text: as a whole, by token and by byte (longer choices are
    not worse then). `between` stands between a text and a choice."""
    asked: list[Any] = []
    begins: list[int] = []
    for row in rows:
        front = normalise(" ".join(filter(None, (row["text"], row.get("other")))))
        for choice in map(normalise, row["choices"]):
            whole = f"{front}{between if front.strip() else ''}{choice}"
            asked.append((front or " ", choice) if former.pair else whole)
            begins.append(len(whole) - len(choice))
    found = likelihood(former, asked, begins=None if former.pair else begins, **how)
    right = {"accuracy": 0, "accuracy_token": 0, "accuracy_byte": 0}
    at = 0
    for row in rows:
        some = found[at : at + len(row["choices"])]
        at += len(some)
        sizes = {"accuracy": [1] * len(some), "accuracy_token": [max(1, len(one.logs)) for one in some],
                 "accuracy_byte": [max(1, len(c.encode())) for c in row["choices"]]}  # fmt: skip
        for name, size in sizes.items():
            scores = [one.total / n for one, n in zip(some, size, strict=True)]
            right[name] += scores.index(max(scores)) == row["label"]
    return {name: count / len(rows) for name, count in right.items()}


def cloze(former: Former, texts: Sequence[str], **how: Any) -> dict[str, float]:
    """How often the last word is foretold rightly, as LAMBADA has it (Paperno et al. 2016), and its perplexity; a
    masked model has all of that word hidden."""
    if former.pair:
        raise Error("an encoder-decoder has no last word of its own", fix="measure the perplexity of its targets")
    rows = [normalise(text).rstrip() for text in texts]
    begins = [len(text) - len(text.split()[-1]) for text in rows]
    if short := [i for i, text in enumerate(rows, 1) if len(text.split()) < 2]:
        raise Error(f"text {short[0]} has fewer than two words", fix="leave it out")
    found: list[Likelihood] = likelihood(former, rows, begins=begins, together=True, **how)
    nats = -math.fsum(one.total for one in found)
    return {
        "accuracy": sum(bool(one.right.all()) for one in found) / len(found),
        "perplexity": power(nats / len(found)),
    }


def by_task(
    former: Former, data: Any, columns: Any, limit: int | None, tell: Tell | None, **reading: Any
) -> Worth:  # fmt: skip
    """A fine-tuned model, by the measures of its task."""
    from ..tasks.encode import encode
    from ..tasks.reading import Reader
    from ..tasks.task import task_of
    from ..training.judging import signatures_of, verdict
    from ..training.learner import goal_of
    from ..training.tuning import Tune

    name = former.task["name"] if former.task else None
    found = read_examples(data, name, columns, limit=limit, **reading)
    task = task_of(former, found.task)
    coded = encode(task, found.rows, Reader.of(former, task), former.labels)
    answers = coded.labels if task.kind == "tags" else coded.answers
    goal = goal_of(former, task, coded, Tune(), answers, train=False)
    seen = verdict(former, task, goal, found.rows, tell)
    return Worth(found.task, len(found.rows), found.said, seen.measures, signatures_of(task, seen))
