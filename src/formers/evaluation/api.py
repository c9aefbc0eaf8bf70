"""What a model is worth on a file: language models by likelihood, fine-tuned ones by their task's measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ..config import ProgressCallback, check_sizes
from ..errors import Error, NonFinite
from ..former import Former
from ..task import get_task
from ..tasks.api import predict_scores as number
from ..tasks.column_roles import resolve_columns
from ..tasks.example_tables import Table, read_table
from ..tasks.examples import parse_columns, read_examples
from ..tasks.task_encoder import TaskEncoder, encode
from ..text.normalise import normalise
from ..verbs import LM_PARTS, check_verb
from .likelihood import Likelihood, compute_likelihood, safe_exp
from .task import build_task_objective, evaluate_task, get_metric_signatures

EVALUATION_KINDS = ("perplexity", "pairs", "choices", "cloze", "task")
GOOD_COLUMNS, BAD_COLUMNS = (
    ("good", "sentence_good", "acceptable", "right"),
    ("bad", "sentence_bad", "unacceptable", "wrong"),
)


@dataclass(frozen=True)
class EvaluationResult:
    """What was measured, on how many examples, what was understood of the file, and the measures, the main first."""

    kind: str
    num_examples: int
    summary: str
    metrics: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)  # how BLEU and chrF were computed


def score(former: Former, texts: Any, **how: Any) -> Any:
    """What a model gives a text or each of many: of a language model its `Likelihood` (total_log_prob, perplexity and
    tokens), of one fine-tuned to numbers, the number."""
    check_verb(former, "score")
    if not is_language_model(former):
        return number(former, texts, **how)
    some = [texts] if isinstance(texts, str) else texts
    if isinstance(some, list) and "" in some:  # before all are read
        what = f"text {some.index('') + 1} has no token to foretell"
        raise Error(what, fix="leave it out, or give a longer one")
    found = compute_likelihood(former, texts, **how)
    for place, one in enumerate([found] if isinstance(found, Likelihood) else found, 1):
        if not len(one.log_probs):
            raise Error(f"text {place} has no token to foretell", fix="leave it out, or give a longer one")
    return found


def is_language_model(former: Former) -> bool:
    """The model is a language model, and was not taught a task."""
    return LM_PARTS.get(former.head) in former.model.parts and not former.task


def evaluate(
    former: Former, data: Any, kind: str | None = None, *, columns: Any = None, limit: int | None = None,
    column: str | None = None, encoding: str = "utf-8", skip: bool = False, delimiter: str | None = None,
    header: bool | None = None, **how: Any,
) -> EvaluationResult:  # fmt: skip
    """Measure a model on a file, rows or a dataset.

    A language model by its perplexity on texts (of an encoder-decoder: of targets), by `pairs` of a good and a bad
    sentence (which is likelier), by `choices` (which is the likeliest behind a text), or by `cloze`: the last word of
    each text. A fine-tuned model by the measures of its task. The kind is found by the columns and the model if it is
    not named. `column`, `encoding`, `skip`, `delimiter` and `header` say how files are read. `how` goes to likelihood:
    batch, stride, memory_length, tell.
    """
    check_verb(former, "evaluate")
    reading: dict[str, Any] = {
        "text_column": column, "encoding": encoding, "skip": skip, "delimiter": delimiter, "header": header,
    }  # fmt: skip
    asked = SimpleNamespace(limit=limit, **{"batch": None, "stride": None, "memory_length": None} | how)
    check_sizes(asked, "limit", "batch", "stride")
    check_sizes(asked, "memory_length", minimum=0)
    if kind is not None and kind not in EVALUATION_KINDS:
        raise Error(f"there is no measure {kind!r}", fix="choose " + ", ".join(EVALUATION_KINDS))
    kind = kind or detect_kind(former, data, columns, reading)
    if kind == "task":
        return evaluate_task_file(former, data, columns, limit, how.get("tell"), **reading)
    if kind == "pairs":
        table, sides = find_pair_columns(data, columns, reading)
        sentences = read_pairs(table, sides)[:limit]
        said = f"good = column {sides['good']!r}, bad = column {sides['bad']!r}"
        return EvaluationResult(kind, len(sentences), said, evaluate_pairs(former, sentences, **how))
    task = "choose" if kind == "choices" else "translate" if former.is_encoder_decoder else "lm"
    found = read_examples(data, task, columns, limit=limit, **reading)
    if kind == "choices":
        return EvaluationResult(kind, len(found), found.summary, evaluate_choices(former, found.rows, **how))
    texts: list[Any] = [
        (row["text"], row["target"]) if former.is_encoder_decoder else row["text"] for row in found.rows
    ]
    return EvaluationResult(
        kind,
        len(found),
        found.summary,
        (evaluate_cloze if kind == "cloze" else evaluate_perplexity)(former, texts, **how),
    )


def detect_kind(former: Former, data: Any, columns: Any, reading: dict[str, Any]) -> str:
    """What there is to measure: the task of a fine-tuned model, else what the columns are good for."""
    if not is_language_model(former):
        return "task"
    table, sides = find_pair_columns(data, columns, reading)
    if all(sides[side] in table.column_names for side in ("good", "bad")):
        return "pairs"
    try:
        task = read_examples(data, columns=columns, limit=20, **reading).task
    except Error:  # there must be a text, or it is said later what is missing
        return "perplexity"
    return "choices" if task == "choose" else "perplexity"


def find_pair_columns(data: Any, columns: Any, reading: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """A table, and which of its columns are the good and the bad sentence, if there are such."""
    given, names = parse_columns(columns)
    files = {name: value for name, value in reading.items() if name != "text_column"}
    table = read_table(data, names, column=reading["text_column"], **files)
    given = {side: resolve_columns(column, table.column_names) for side, column in given.items()}
    return table, {"good": find_column(table, GOOD_COLUMNS), "bad": find_column(table, BAD_COLUMNS), **given}


def find_column(table: Table, known: Sequence[str]) -> str | None:
    """The first known column."""
    return next((name for name in table.column_names if name.lower() in known), None)


def read_pairs(table: Table, sides: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a good and a bad sentence."""
    lost = [side for side in ("good", "bad") if sides.get(side) not in table.column_names]
    if lost:
        names = ", ".join(map(repr, table.column_names))
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


def evaluate_perplexity(
    former: Former, texts: Sequence[Any], tell: ProgressCallback | None = None, **how: Any
) -> dict[str, float]:
    """Perplexity by token, by word (between spaces) and by byte, bits by byte, and the share of right first guesses."""
    found: list[Likelihood] = compute_likelihood(former, list(texts), tell=tell, **how)
    tokens = sum(len(one.log_probs) for one in found)
    if not tokens:
        raise Error("there is no token to foretell", fix="give longer texts")
    nats = -math.fsum(one.total_log_prob for one in found)
    words = sum(len(one.text.split()) for one in found)
    size = sum(len(one.text.encode("utf-8", "ignore")) for one in found)
    return {
        "perplexity": safe_exp(nats / tokens),
        "perplexity_word": safe_exp(nats / max(1, words)),
        "perplexity_byte": safe_exp(nats / max(1, size)),
        "bits_byte": nats / max(1, size) / math.log(2),
        "nats": nats / tokens,
        "right": sum(int(one.is_top.sum()) for one in found) / tokens,
        "tokens": tokens,
        "words": words,
        "bytes": size,
    }


def evaluate_pairs(former: Former, rows: Sequence[tuple[str, str]], **how: Any) -> dict[str, float]:
    """How often the good sentence is likelier than the bad one (Warstadt et al. 2020), as a whole and by token."""
    both = [side for row in rows for side in row]
    asked: list[Any] = [(side, side) for side in both] if former.is_encoder_decoder else both
    found: list[Likelihood] = compute_likelihood(former, asked, **how)
    by = {
        "accuracy": [one.total_log_prob for one in found],
        "accuracy_token": [compute_mean_log_prob(one) for one in found],
    }
    return {name: sum(a > b for a, b in zip(v[::2], v[1::2], strict=True)) / len(rows) for name, v in by.items()}


def compute_mean_log_prob(one: Likelihood) -> float:
    """The log-probability by token."""
    return one.total_log_prob / max(1, len(one.log_probs))


def evaluate_choices(
    former: Former, rows: Sequence[dict[str, Any]], separator: str = " ", **how: Any
) -> dict[str, float]:
    """How often the right choice is the likeliest behind its text: as a whole, by token and by byte (longer choices are
    not worse then). `separator` stands between a text and a choice."""
    asked: list[Any] = []
    begins: list[int] = []
    for row in rows:
        front = normalise(" ".join(filter(None, (row["text"], row.get("other")))))
        for choice in map(normalise, row["choices"]):
            whole = f"{front}{separator if front.strip() else ''}{choice}"
            asked.append((front or " ", choice) if former.is_encoder_decoder else whole)
            begins.append(len(whole) - len(choice))
    found = compute_likelihood(former, asked, char_starts=None if former.is_encoder_decoder else begins, **how)
    right = {"accuracy": 0, "accuracy_token": 0, "accuracy_byte": 0}
    at = 0
    for row in rows:
        some = found[at : at + len(row["choices"])]
        at += len(some)
        sizes = {"accuracy": [1] * len(some), "accuracy_token": [max(1, len(one.log_probs)) for one in some],
                 "accuracy_byte": [max(1, len(c.encode())) for c in row["choices"]]}  # fmt: skip
        for name, size in sizes.items():
            scores = [one.total_log_prob / n for one, n in zip(some, size, strict=True)]
            right[name] += scores.index(max(scores)) == row["label"]
    return {name: count / len(rows) for name, count in right.items()}


def evaluate_cloze(former: Former, texts: Sequence[str], **how: Any) -> dict[str, float]:
    """How often the last word is foretold rightly, as LAMBADA has it (Paperno et al. 2016), and its perplexity; a
    masked model has all of that word hidden."""
    if former.is_encoder_decoder:
        raise Error("an encoder-decoder has no last word of its own", fix="measure the perplexity of its targets")
    rows = [normalise(text).rstrip() for text in texts]
    begins = [len(text) - len(text.split()[-1]) for text in rows]
    if short := [i for i, text in enumerate(rows, 1) if len(text.split()) < 2]:
        raise Error(f"text {short[0]} has fewer than two words", fix="leave it out")
    found: list[Likelihood] = compute_likelihood(former, rows, char_starts=begins, mask_together=True, **how)
    nats = -math.fsum(one.total_log_prob for one in found)
    return {
        "accuracy": sum(bool(one.is_top.all()) for one in found) / len(found),
        "perplexity": safe_exp(nats / len(found)),
    }


def evaluate_task_file(
    former: Former, data: Any, columns: Any, limit: int | None, tell: ProgressCallback | None, **reading: Any
) -> EvaluationResult:  # fmt: skip
    """A fine-tuned model, by the measures of its task."""
    name = former.task["name"] if former.task else None
    found = read_examples(data, name, columns, limit=limit, **reading)
    task = get_task(former, found.task)
    reader = TaskEncoder.from_former(former, task)
    coded = encode(task, found.rows, reader, former.labels)
    said = "; ".join(filter(None, (found.summary, reader.describe_unknown(coded))))
    answers = coded.labels if task.kind == "tags" else coded.answers
    goal = build_task_objective(former, task, coded, answers)
    seen = evaluate_task(former, task, goal, found.rows, tell)
    if not all(map(math.isfinite, seen.confidences)) or not (
        task.kind == "text" or task.label_as_text or math.isfinite(seen.loss)
    ):
        raise NonFinite(f"answers to {found.task}")
    return EvaluationResult(found.task, len(found.rows), said, seen.metrics, get_metric_signatures(task, seen))
