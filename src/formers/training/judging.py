"""How well a fine-tuned model does its task: guesses for rows, measures, and tables for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..config import Tell
from ..former import Former
from ..generation.sample import Options, continue_ids
from ..objectives.supervised import Supervised
from ..tasks import predict
from ..tasks.encode import encode
from ..tasks.encoded import Encoded
from ..tasks.metrics import judge
from ..tasks.overlap import signatures
from ..tasks.reading import Reader
from ..tasks.task import Task

Rows = Sequence[dict[str, Any]]
WORST, CLASSES, SHOWN = 20, 25, 300  # examples, classes and characters that a report shows


@dataclass
class Verdict:
    """What a model says of rows: its guesses beside the truth, how sure it is of the truth, and the measures."""

    truths: list[Any]
    guesses: list[Any]
    sure: list[float] = field(default_factory=list)  # the higher, the better the guess (SORTED says what it is)
    measures: dict[str, float] = field(default_factory=dict)
    loss: float = float("nan")


def verdict(
    former: Former, task: Task, goal: Supervised, rows: Rows, tell: Tell | None = None, running: Any = None
) -> Verdict:
    """Ask a model about rows that are encoded in `goal`. `running` is entered around its passes."""
    if task.words:
        return worded(former, task, rows, tell)
    if goal.kind == "text":
        return written(former, task, goal.data, rows, tell)
    sums = [0.0, 0.0]

    def also(logits: Any, batch: Any) -> None:
        total, count = goal.judged(logits, batch)
        sums[0] += float(total)
        sums[1] += float(count)

    with running() if running is not None else nullcontext():
        said = predict.outputs(former, goal.data, goal.part, tell, also)
    made = READ[task.kind](former, task, goal.data, said, rows)
    made.loss = sums[0] / max(1.0, sums[1])
    made.measures = judge(task.name, made.truths, made.guesses)
    return made


TRUTH: dict[str, Callable[[dict[str, Any]], Any]] = {
    "class": lambda row: str(row["label"]), "many": lambda row: list(row["label"]),
    "number": lambda row: float(row["label"]), "tags": lambda row: list(row["tags"]),
    "span": lambda row: [answer["text"] for answer in row["answers"]], "choice": lambda row: int(row["label"]),
    "text": lambda row: str(row["target"]),
}  # fmt: skip


def truths_of(task: Task, rows: Rows) -> list[Any]:
    """What is right, in the form in which it is judged."""
    return [TRUTH["class" if task.words else task.kind](row) for row in rows]


def measures_of(task: Task, rows: Rows) -> tuple[str, ...]:
    """The names of the measures that guesses for rows will have."""
    truths = truths_of(task, rows[:1] if task.kind == "text" else rows)  # those of texts are always the same
    return tuple(judge(task.name, truths, [""] * len(truths) if task.kind == "span" else truths))


def classes(former: Former, task: Task, data: Encoded, said: Any, rows: Rows) -> Verdict:
    """One label each."""
    shares = predict.whole(task, data, said)
    index = {label: i for i, label in enumerate(former.labels)}
    truths = truths_of(task, rows)
    sure = [float(share[index[t]]) for share, t in zip(shares, truths, strict=True)]
    return Verdict(truths, [former.labels[i] for i in shares.argmax(1)], sure)


def several(former: Former, task: Task, data: Encoded, said: Any, rows: Rows) -> Verdict:
    """Any number of labels each: those that are likelier than not."""
    shares = predict.whole(task, data, said)
    truths = truths_of(task, rows)
    guesses = [[name for name, share in zip(former.labels, row, strict=True) if share > 0.5] for row in shares]
    sure = [
        float(np.prod([s if name in t else 1 - s for name, s in zip(former.labels, row, strict=True)]))
        for row, t in zip(shares, truths, strict=True)
    ]
    return Verdict(truths, guesses, sure)


def numbers(former: Former, task: Task, data: Encoded, said: Any, rows: Rows) -> Verdict:
    """A number each; the further away, the less sure."""
    found = predict.whole(task, data, said)[:, 0]
    truths = truths_of(task, rows)
    return Verdict(truths, found.tolist(), [-abs(t - g) for t, g in zip(truths, found.tolist(), strict=True)])


def tags(former: Former, task: Task, data: Encoded, said: Any, rows: Rows) -> Verdict:
    """A tag for each word; a word that has no token gets the commonest, the first."""
    found = predict.tags(data, said, [len(row["words"]) for row in rows])
    guesses = [[former.labels[max(0, i)] for i in tag] for tag, _ in found]
    truths = truths_of(task, rows)
    right = [np.mean([a == b for a, b in zip(t, g, strict=True)]) for t, g in zip(truths, guesses, strict=True)]
    return Verdict(truths, guesses, [float(r) for r in right])


def spans(former: Former, task: Task, data: Encoded, said: Any, rows: Rows) -> Verdict:
    """The best place in each context, or none."""
    left = former.tokenizer is not None and former.tokenizer.left
    found = predict.spans(task, data, said, [row["context"] for row in rows], left=left)
    truths = truths_of(task, rows)
    guesses = [some[0].text if some else "" for some in found]
    return Verdict(truths, guesses, [float(g in t or (not t and not g)) for t, g in zip(truths, guesses, strict=True)])


def choices(former: Former, task: Task, data: Encoded, said: Any, rows: Rows) -> Verdict:
    """The number of a choice."""
    shares = predict.choices(said)
    truths = truths_of(task, rows)
    return Verdict(
        truths, [int(s.argmax()) for s in shares], [float(s[t]) for s, t in zip(shares, truths, strict=True)]
    )


Reading = Callable[[Former, Task, Encoded, Any, Rows], Verdict]
READ: dict[str, Reading] = {"class": classes, "many": several, "number": numbers, "tags": tags, "span": spans,
                            "choice": choices}  # fmt: skip


def worded(former: Former, task: Task, rows: Rows, tell: Tell | None = None) -> Verdict:
    """The label that a decoder is likeliest to write."""
    reader = Reader.of(former, task)
    shares = predict.label_words(former, rows, task.labels, lambda some: encode(task, some, reader), tell)
    truths, index = truths_of(task, rows), {label: i for i, label in enumerate(task.labels)}
    guesses = [task.labels[i] for i in shares.argmax(1)]
    sure = [float(share[index[t]]) for share, t in zip(shares, truths, strict=True)]
    return Verdict(truths, guesses, sure, judge(task.name, truths, guesses))


def written(former: Former, task: Task, data: Encoded, rows: Rows, tell: Tell | None = None) -> Verdict:
    """What a decoder writes for each text."""
    assert former.tokenizer is not None
    tokenizer = former.tokenizer.target or former.tokenizer
    made: list[str] = [""] * len(data)
    done = 0
    for some in predict.portions(data.sizes, predict.TOKENS.get(former.device.type, 4096)):
        sources = [data.ids[data.starts[i] : data.starts[i + 1]].tolist() for i in some]
        longest = min(task.output, 20 + 2 * max(map(len, sources)))
        for number, ids in zip(some, continue_ids(former, sources, longest, Options(temperature=0)), strict=True):
            made[number] = tokenizer.decode(ids).strip()
        done += len(some)
        if tell is not None:
            tell("writing", done, len(data), "texts")
    truths = truths_of(task, rows)
    return Verdict(truths, made, measures=judge(task.name, truths, made))


def signatures_of(task: Task, seen: Verdict) -> dict[str, str]:
    """How measures that have variants were computed; to be quoted with them. Of BLEU and chrF, sacrebleu's words."""
    return signatures(seen.truths, seen.guesses) if task.name == "translate" else {}


Table = dict[str, Any]  # title, head, rows
# What the worst examples are sorted by, and how it is written; answers are right or wrong, and that is all.
SORTED: dict[str, tuple[str, Callable[[float], str]]] = {
    "class": ("probability of the truth", "{:.3f}".format),
    "many": ("probability of the truth", "{:.3f}".format),
    "choice": ("probability of the truth", "{:.3f}".format),
    "number": ("error", lambda value: f"{-value:.3f}"),
    "tags": ("share of right tags", "{:.1%}".format),
}


def tables(task: Task, labels: Sequence[str], seen: Verdict, rows: Rows) -> list[Table]:
    """The confusion matrix and the worst examples."""
    found = [confusion(labels, seen)] if task.kind == "class" and len(labels) <= CLASSES else []
    if seen.sure:
        order = np.argsort(seen.sure, kind="stable")
        wrong = [i for i in order if seen.truths[i] != seen.guesses[i]][:WORST]
        last = SORTED.get("class" if task.words else task.kind)
        more = [last[0]] if last else []
        lines = [
            [shown(rows[i]), said(seen.truths[i]), said(seen.guesses[i]), *([last[1](seen.sure[i])] if last else [])]
            for i in wrong
        ]
        found.append({"title": "Worst examples", "head": ["text", "truth", "guess", *more], "rows": lines})
    elif task.kind == "text":
        lines = [[shown(rows[i]), said(seen.truths[i]), said(seen.guesses[i])] for i in range(min(WORST, len(rows)))]
        found.append({"title": "Examples", "head": ["text", "truth", "written"], "rows": lines})
    return found


def confusion(labels: Sequence[str], seen: Verdict) -> Table:
    """How often each truth was taken for each label."""
    pairs = Counter(zip(seen.truths, seen.guesses, strict=True))
    rows = [[truth, *(f"{pairs[truth, guess]:,}" for guess in labels)] for truth in labels]
    return {"title": "Truth (rows) and guess (columns)", "head": ["", *labels], "rows": rows}


def shown(row: dict[str, Any]) -> str:
    """A row in a few words."""
    text = row.get("question") or row.get("text") or " ".join(row.get("words", ()))
    both = f"{text} ‖ {row['other']}" if row.get("other") else str(text)
    return both if len(both) <= SHOWN else both[: SHOWN - 1] + "…"


def said(value: Any) -> str:
    """An answer in a few words."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return (", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))[:SHOWN]
