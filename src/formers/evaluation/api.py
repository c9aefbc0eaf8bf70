"""Evaluation on a file: language models by likelihood, fine-tuned ones by the metrics of their task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Unpack

from ..config import ProgressCallback, check_sizes
from ..errors import Error, NonFinite
from ..former import Former
from ..tasks.api import get_task, predict_scores
from ..tasks.encoding import TaskEncoder, encode_examples
from ..tasks.example_tables import FileOptions, Table, read_table
from ..tasks.examples import Columns, Row, parse_columns, read_examples, resolve_columns
from ..text.normalise import normalise
from ..verbs import LM_PARTS, check_verb
from .likelihood import Likelihood, ScoredText, ScoringOptions, compute_likelihood, compute_likelihoods, safe_exp
from .task import build_task_objective, evaluate_task, get_metric_signatures

EVALUATION_KINDS = ("perplexity", "pairs", "choices", "cloze", "task")
PairColumns = dict[str, Any]  # dynamic: by side a column as the caller named it, None if there is none
PAIR_COLUMNS = {
    "good": ("good", "sentence_good", "acceptable", "right"), "bad": ("bad", "sentence_bad", "unacceptable", "wrong"),
}  # fmt: skip


@dataclass(frozen=True)
class EvaluationResult:
    """The kind of evaluation, the number of examples, how the file was read, and the metrics, the main one first."""

    kind: str
    num_examples: int
    summary: str
    metrics: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)  # how BLEU and chrF were computed


def score(
    former: Former,
    texts: Any,  # dynamic: texts or pairs, checked where they are read
    **how: Any,  # dynamic: options of predict_scores or of compute_likelihood, by the model
) -> float | list[float] | Likelihood | list[Likelihood]:
    """Score a text or each of several: a language model gives a `Likelihood` (total_log_prob, perplexity and tokens), a
    model fine-tuned for regression a number."""
    check_verb(former, "score")
    if not is_language_model(former):
        return predict_scores(former, texts, **how)

    def refuse_empty(sizes: Iterable[int]) -> None:
        if place := next((place for place, size in enumerate(sizes, 1) if not size), None):
            raise Error(f"text {place} has no token to predict", fix="leave it out, or give a longer one")

    if isinstance(texts, str | list):  # before all are read
        refuse_empty(text != "" for text in ([texts] if isinstance(texts, str) else texts))
    found = compute_likelihood(former, texts, **how)
    refuse_empty(len(one.log_probs) for one in ([found] if isinstance(found, Likelihood) else found))
    return found


def is_language_model(former: Former) -> bool:
    """Return whether the model is a language model that was not fine-tuned to a task."""
    return LM_PARTS.get(former.head) in former.model.parts and not former.task


def evaluate(
    former: Former, data: object, kind: str | None = None, *, columns: Columns = None, limit: int | None = None,
    column: str | None = None, encoding: str = "utf-8", skip: bool = False, delimiter: str | None = None,
    header: bool | None = None, **how: Any,  # dynamic: options of the kind's own function
) -> EvaluationResult:  # fmt: skip
    """Evaluate a model on a file, rows or a dataset.

    A language model by its perplexity on texts (of an encoder-decoder: of targets), by `pairs` of a good and a bad
    sentence (which is likelier), by `choices` (which is the likeliest behind a text), or by `cloze`: the last word of
    each text. A fine-tuned model by the metrics of its task. The kind is found by the columns and the model if it is
    not named. `column`, `encoding`, `skip`, `delimiter` and `header` say how files are read. `how` goes to likelihood:
    batch, stride, memory_length, tell.
    """
    check_verb(former, "evaluate")
    reading: FileOptions = {
        "column": column, "encoding": encoding, "skip": skip, "delimiter": delimiter, "header": header,
    }  # fmt: skip
    inputs = SimpleNamespace(limit=limit, **{"batch": None, "stride": None, "memory_length": None} | how)
    check_sizes(inputs, "limit", "batch", "stride")
    check_sizes(inputs, "memory_length", minimum=0)
    if kind is not None and kind not in EVALUATION_KINDS:
        raise Error(f"there is no evaluation {kind!r}", fix="choose " + ", ".join(EVALUATION_KINDS))
    kind = kind or detect_kind(former, data, columns, reading)
    if kind == "task":
        return evaluate_task_file(former, data, columns, limit, how.get("tell"), reading)
    if kind == "pairs":
        table, sides = find_pair_columns(data, columns, reading)
        sentences = read_pairs(table, sides)[:limit]
        summary = f"good = column {sides['good']!r}, bad = column {sides['bad']!r}"
        return EvaluationResult(kind, len(sentences), summary, evaluate_pairs(former, sentences, **how))
    task = "choose" if kind == "choices" else "translate" if former.is_encoder_decoder else "lm"
    found = read_examples(data, task, columns, limit=limit, **reading)
    if kind == "choices":
        return EvaluationResult(kind, len(found), found.summary, evaluate_choices(former, found.rows, **how))
    pairs = former.is_encoder_decoder
    texts: list[ScoredText] = [(row["text"], row["target"]) if pairs else row["text"] for row in found.rows]
    measure: Callable[..., dict[str, float]] = evaluate_cloze if kind == "cloze" else evaluate_perplexity
    return EvaluationResult(kind, len(found), found.summary, measure(former, texts, **how))


def detect_kind(former: Former, data: object, columns: Columns, reading: FileOptions) -> str:
    """Choose the kind of evaluation: the task of a fine-tuned model, else what the columns allow."""
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


def find_pair_columns(data: object, columns: Columns, reading: FileOptions) -> tuple[Table, PairColumns]:
    """Read a table, and find its columns of good and of bad sentences, None where there is none."""
    given, names = parse_columns(columns)
    table = read_table(data, names, **reading)
    given = {side: resolve_columns(column, table.column_names) for side, column in given.items()}
    found: PairColumns = dict.fromkeys(PAIR_COLUMNS)
    for side, known in PAIR_COLUMNS.items():
        found[side] = next((name for name in table.column_names if name.lower() in known), None)
    return table, {**found, **given}


def read_pairs(table: Table, sides: PairColumns) -> list[tuple[str, str]]:
    """Read pairs of a good and a bad sentence; refuse a table without both columns."""
    if missing := [side for side in ("good", "bad") if sides.get(side) not in table.column_names]:
        names = ", ".join(map(repr, table.column_names))
        raise Error(f"which column is {missing[0]}? There are {names}", where=table.where, fix="columns='good=A bad=B'")
    rows = []
    for number, row in table.rows:
        good, bad = (row.get(sides[side]) for side in ("good", "bad"))
        if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
            where = f"{table.where or 'the pairs'}, row {number}"
            raise Error("there are no two sentences", where=where, fix="repair it")
        rows.append((good, bad))
    if not rows:
        raise Error("there are no pairs", where=table.where, fix="give at least one")
    return rows


def evaluate_perplexity(former: Former, texts: Sequence[ScoredText], **how: Unpack[ScoringOptions]) -> dict[str, float]:
    """Compute perplexity per token, word and byte, bits per byte, and the accuracy of the likeliest token."""
    found = compute_likelihoods(former, texts, **how)
    if not (tokens := sum(len(one.log_probs) for one in found)):
        raise Error("there is no token to predict", fix="give longer texts")
    nats = -math.fsum(one.total_log_prob for one in found)
    words = sum(len(one.text.split()) for one in found)
    size = sum(len(one.text.encode("utf-8", "ignore")) for one in found)
    right = sum(int(one.is_top.sum()) for one in found)
    return {
        "perplexity": safe_exp(nats / tokens), "perplexity_word": safe_exp(nats / max(1, words)),
        "perplexity_byte": safe_exp(nats / max(1, size)), "bits_byte": nats / max(1, size) / math.log(2),
        "loss": nats / tokens, "accuracy": right / tokens, "tokens": tokens, "words": words, "bytes": size,
    }  # fmt: skip


def evaluate_pairs(former: Former, rows: Sequence[tuple[str, str]], **how: Unpack[ScoringOptions]) -> dict[str, float]:
    """Compute how often the good sentence is likelier than the bad (Warstadt et al. 2020), in total and per token."""
    sentences = [side for row in rows for side in row]
    pairs = former.is_encoder_decoder
    inputs: list[ScoredText] = [(side, side) if pairs else side for side in sentences]
    found = compute_likelihoods(former, inputs, **how)
    totals = [one.total_log_prob for one in found]
    means = [total / max(1, len(one.log_probs)) for total, one in zip(totals, found, strict=True)]
    by = {"accuracy": totals, "accuracy_token": means}
    return {name: sum(a > b for a, b in zip(v[::2], v[1::2], strict=True)) / len(rows) for name, v in by.items()}


def evaluate_choices(
    former: Former, rows: Sequence[Row], separator: str = " ", **how: Unpack[ScoringOptions]
) -> dict[str, float]:
    """Compute how often the right choice is the likeliest continuation of its text: in total, per token and per byte,
    which does not favour short choices. `separator` stands between a text and a choice."""
    inputs, char_starts = list[ScoredText](), list[int]()
    for row in rows:
        front = normalise(" ".join(filter(None, (row["text"], row.get("other")))))
        for choice in map(normalise, row["choices"]):
            whole = f"{front}{separator if front.strip() else ''}{choice}"
            inputs.append((front or " ", choice) if former.is_encoder_decoder else whole)
            char_starts.append(len(whole) - len(choice))
    found = compute_likelihoods(former, inputs, char_starts=None if former.is_encoder_decoder else char_starts, **how)
    right, at = {"accuracy": 0, "accuracy_token": 0, "accuracy_byte": 0}, 0
    for row in rows:
        some = found[at : at + len(row["choices"])]
        at += len(some)
        sizes = {"accuracy": [1] * len(some), "accuracy_token": [max(1, len(one.log_probs)) for one in some],
                 "accuracy_byte": [max(1, len(c.encode())) for c in row["choices"]]}  # fmt: skip
        for name, size in sizes.items():
            scores = [one.total_log_prob / n for one, n in zip(some, size, strict=True)]
            right[name] += scores.index(max(scores)) == row["label"]
    return {name: count / len(rows) for name, count in right.items()}


def evaluate_cloze(former: Former, texts: Sequence[str], **how: Unpack[ScoringOptions]) -> dict[str, float]:
    """Compute accuracy and perplexity of the last word (LAMBADA, Paperno et al. 2016), masked as a whole."""
    if former.is_encoder_decoder:
        raise Error("an encoder-decoder has no last word of its own", fix="measure the perplexity of its targets")
    rows = [normalise(text).rstrip() for text in texts]
    char_starts = [len(text) - len(text.split()[-1]) for text in rows]
    if short := [i for i, text in enumerate(rows, 1) if len(text.split()) < 2]:
        raise Error(f"text {short[0]} has fewer than two words", fix="leave it out")
    found = compute_likelihoods(former, rows, char_starts=char_starts, mask_together=True, **how)
    nats = -math.fsum(one.total_log_prob for one in found)
    right = sum(bool(one.is_top.all()) for one in found)
    return {"accuracy": right / len(found), "perplexity": safe_exp(nats / len(found))}


def evaluate_task_file(
    former: Former, data: object, columns: Columns, limit: int | None, tell: ProgressCallback | None,
    reading: FileOptions,
) -> EvaluationResult:  # fmt: skip
    """Evaluate a fine-tuned model by the metrics of its task."""
    name = former.task["name"] if former.task else None
    found = read_examples(data, name, columns, limit=limit, **reading)
    task = get_task(former, found.task)
    encoder = TaskEncoder.from_former(former, task)
    encoded = encode_examples(task, found.rows, encoder, former.labels)
    summary = "; ".join(filter(None, (found.summary, encoder.describe_unknown(encoded))))
    answers = encoded.labels if task.kind == "tags" else encoded.answers
    objective = build_task_objective(former, task, encoded, answers)
    evaluation = evaluate_task(former, task, objective, found.rows, tell)
    has_loss = task.kind != "text" and not task.label_as_text
    if not all(map(math.isfinite, (*evaluation.confidences, *([evaluation.loss] if has_loss else [])))):
        raise NonFinite(f"answers to {found.task}")
    signatures = get_metric_signatures(task, evaluation)
    return EvaluationResult(found.task, len(found.rows), summary, evaluation.metrics, signatures)
