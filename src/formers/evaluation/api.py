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
from ..verbs import LM_PARTS, check_verb, is_pretrained_only
from .few_shot import FewShotResult, evaluate_shots
from .likelihood import (
    Ending,
    Likelihood,
    ScoredText,
    ScoringOptions,
    compute_ending_likelihoods,
    compute_likelihood,
    compute_likelihoods,
    safe_exp,
)
from .minimal_pairs import find_bundled_pairs
from .task import build_task_objective, check_known_labels, evaluate_task, get_metric_signatures

EVALUATION_KINDS = ("perplexity", "pairs", "choices", "cloze", "task")
PairColumns = dict[str, Any]  # dynamic: by side a column as the caller named it, None if there is none
PAIR_COLUMNS = {
    "good": ("good", "sentence_good", "acceptable", "right"), "bad": ("bad", "sentence_bad", "unacceptable", "wrong"),
}  # fmt: skip
PHENOMENON_COLUMNS = ("phenomenon", "uid", "linguistics_term")  # the kind of a pair; BLiMP's rows have the last two


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
    *,
    task: str | None = None,
    **how: Any,  # dynamic: options of predict_scores or of compute_likelihood, by the model
) -> float | list[float] | Likelihood | list[Likelihood]:
    """Score a text or each of several: a language model gives a `Likelihood` (total_log_prob, perplexity and tokens), a
    model fine-tuned for regression a number. `task` names one of a model that learned a mixture."""
    former = former.select_task(task)
    check_verb(former, "score")
    if not is_language_model(former):
        return predict_scores(former, texts, **how)

    def refuse_empty(sizes: Iterable[int]) -> None:
        if place := next((place for place, size in enumerate(sizes, 1) if not size), None):
            raise Error(f"text {place} has no token to predict", fix="leave it out, or give a longer one")

    if isinstance(texts, str | list):  # before all are read
        refuse_empty(text != "" for text in ([texts] if isinstance(texts, str) else texts))
    likelihood = compute_likelihood(former, texts, **how)
    refuse_empty(len(one.log_probs) for one in ([likelihood] if isinstance(likelihood, Likelihood) else likelihood))
    return likelihood


def is_language_model(former: Former) -> bool:
    """Return whether the model is a language model that was not fine-tuned to a task."""
    return LM_PARTS.get(former.head) in former.model.parts and is_pretrained_only(former)


def evaluate(
    former: Former, data: object, kind: str | None = None, *, columns: Columns = None, limit: int | None = None,
    column: str | None = None, encoding: str = "utf-8", skip: bool = False, delimiter: str | None = None,
    header: bool | None = None, task: str | None = None, shots: Sequence[int] | int | str | None = None,
    **how: Any,  # dynamic: options of the kind's own function
) -> EvaluationResult | FewShotResult:  # fmt: skip
    """Evaluate a model on a file, rows or a dataset.

    A language model by its perplexity on texts (of an encoder-decoder: of targets), by `pairs` of a good and a bad
    sentence (which is likelier; by phenomenon too, where a column names it), by `choices` (which one best continues a
    text), or by `cloze`: the last word of each text. A fine-tuned model by the metrics of its task. The kind is found
    by the columns and the model if it is not named. "minimal-pairs-en" and "minimal-pairs-ko" as `data` are pairs of
    our own. `column`, `encoding`, `skip`, `delimiter` and `header` say how files are read. `how` goes to likelihood:
    batch_size, stride, memory_length, tell. `task` names one of a model that learned a mixture. With `shots`, a task is
    put to a language model as a prompt, with that many solved examples (`evaluate_shots`, to which `task` and `how`
    then go).
    """
    former = former.select_task(task if shots is None else None)
    check_verb(former, "evaluate")
    if shots is not None:
        if kind not in (None, "task"):
            raise Error(f"shots are of a task, not of {kind}", fix="leave kind out")
        return evaluate_shots(
            former, data, shots, task=task, columns=columns, limit=limit, column=column, encoding=encoding, skip=skip,
            delimiter=delimiter, header=header, **how,
        )  # fmt: skip
    reading: FileOptions = {
        "column": column, "encoding": encoding, "skip": skip, "delimiter": delimiter, "header": header,
    }  # fmt: skip
    inputs = SimpleNamespace(limit=limit, **{"batch_size": None, "stride": None, "memory_length": None} | how)
    check_sizes(inputs, "limit", "batch_size", "stride")
    check_sizes(inputs, "memory_length", minimum=0)
    if (bundled_pairs := find_bundled_pairs(data)) is not None:
        data = bundled_pairs
    if kind is not None and kind not in EVALUATION_KINDS:
        raise Error(f"there is no evaluation {kind!r}", fix="choose " + ", ".join(EVALUATION_KINDS))
    kind = kind or detect_kind(former, data, columns, reading)
    if kind == "task":
        return evaluate_task_file(former, data, columns, limit, how.get("tell"), reading)
    if kind == "pairs":
        table, sides = find_pair_columns(data, columns, reading)
        sentences = read_pairs(table, sides)[:limit]
        summary = f"good = column {sides['good']!r}, bad = column {sides['bad']!r}"
        named = next((name for name in table.column_names if name.lower() in PHENOMENON_COLUMNS), None)
        phenomena = None if named is None else [str(row.get(named)) for _, row in table.rows][:limit]
        metrics = evaluate_pairs(former, sentences, phenomena, **how)
        return EvaluationResult(kind, len(sentences), summary, metrics)
    form = "choose" if kind == "choices" else "translate" if former.is_encoder_decoder else "lm"
    examples = read_examples(data, form, columns, limit=limit, **reading)
    if kind == "choices":
        return EvaluationResult(kind, len(examples), examples.summary, evaluate_choices(former, examples.rows, **how))
    pairs = former.is_encoder_decoder
    texts: list[ScoredText] = [(row["text"], row["target"]) if pairs else row["text"] for row in examples.rows]
    measure: Callable[..., dict[str, float]] = evaluate_cloze if kind == "cloze" else evaluate_perplexity
    return EvaluationResult(kind, len(examples), examples.summary, measure(former, texts, **how))


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
    columns_by_role, names = parse_columns(columns)
    table = read_table(data, names, **reading)
    columns_by_role = {side: resolve_columns(column, table.column_names) for side, column in columns_by_role.items()}
    roles: PairColumns = dict.fromkeys(PAIR_COLUMNS)
    for side, known in PAIR_COLUMNS.items():
        roles[side] = next((name for name in table.column_names if name.lower() in known), None)
    return table, {**roles, **columns_by_role}


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
    likelihoods = compute_likelihoods(former, texts, **how)
    if not (tokens := sum(len(one.log_probs) for one in likelihoods)):
        raise Error("there is no token to predict", fix="give longer texts")
    nats = -math.fsum(one.total_log_prob for one in likelihoods)
    words = sum(len(one.text.split()) for one in likelihoods)
    size = sum(len(one.text.encode("utf-8", "ignore")) for one in likelihoods)
    right = sum(int(one.is_top.sum()) for one in likelihoods)
    return {
        "perplexity": safe_exp(nats / tokens), "perplexity_word": safe_exp(nats / max(1, words)),
        "perplexity_byte": safe_exp(nats / max(1, size)), "bits_byte": nats / max(1, size) / math.log(2),
        "loss": nats / tokens, "accuracy": right / tokens, "tokens": tokens, "words": words, "bytes": size,
    }  # fmt: skip


def evaluate_pairs(
    former: Former, rows: Sequence[tuple[str, str]], phenomena: Sequence[str] | None = None,
    **how: Unpack[ScoringOptions],
) -> dict[str, float]:  # fmt: skip
    """Compute how often the good sentence is likelier than the bad (Warstadt et al. 2020), in total and per token.
    `phenomena` names the kind of each pair: the accuracy in total is then also given for each kind, and their mean."""
    sentences = [side for row in rows for side in row]
    pairs = former.is_encoder_decoder
    inputs: list[ScoredText] = [(side, side) if pairs else side for side in sentences]
    likelihoods = compute_likelihoods(former, inputs, **how)
    totals = [one.total_log_prob for one in likelihoods]
    means = [total / max(1, len(one.log_probs)) for total, one in zip(totals, likelihoods, strict=True)]
    by = {"accuracy": totals, "accuracy_token": means}
    is_right = {name: [a > b for a, b in zip(v[::2], v[1::2], strict=True)] for name, v in by.items()}
    metrics = {name: sum(flags) / len(rows) for name, flags in is_right.items()}
    if phenomena is None:
        return metrics
    flags_by_kind: dict[str, list[bool]] = {}
    for kind, flag in zip(phenomena, is_right["accuracy"], strict=True):
        flags_by_kind.setdefault(kind, []).append(flag)
    shares = {kind: sum(flags) / len(flags) for kind, flags in flags_by_kind.items()}
    return metrics | {"accuracy_mean": sum(shares.values()) / len(shares)} | shares


def evaluate_choices(
    former: Former, rows: Sequence[Row], separator: str = " ", **how: Unpack[ScoringOptions]
) -> dict[str, float]:
    """Compute how often the right choice is the likeliest continuation of its text: in total, per token and per byte,
    which does not favour short choices. `separator` stands between a text and a choice."""
    groups: list[list[Ending]] = []
    for row in rows:
        front = normalise(" ".join(filter(None, (row["text"], row.get("other")))))
        front = f"{front}{separator if front.strip() else ''}" or (" " if former.is_encoder_decoder else "")
        start = len(front.rstrip())
        groups.append([Ending(front + choice, start) for choice in map(normalise, row["choices"])])
    right = {"accuracy": 0, "accuracy_token": 0, "accuracy_byte": 0}
    for row, some in zip(rows, compute_ending_likelihoods(former, groups, **how), strict=True):
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
    likelihoods = compute_likelihoods(former, rows, char_starts=char_starts, mask_together=True, **how)
    nats = -math.fsum(one.total_log_prob for one in likelihoods)
    right = sum(bool(one.is_top.all()) for one in likelihoods)
    return {"accuracy": right / len(likelihoods), "perplexity": safe_exp(nats / len(likelihoods))}


def evaluate_task_file(
    former: Former, data: object, columns: Columns, limit: int | None, tell: ProgressCallback | None,
    reading: FileOptions,
) -> EvaluationResult:  # fmt: skip
    """Evaluate a fine-tuned model by the metrics of its task."""
    name = former.task["name"] if former.task else None
    examples = read_examples(data, name, columns, limit=limit, **reading)
    task = get_task(former, examples.task)
    check_known_labels(task, examples.rows)
    encoder = TaskEncoder.from_former(former, task)
    encoded = encode_examples(task, examples.rows, encoder, former.labels)
    summary = "; ".join(filter(None, (examples.summary, encoder.describe_unknown(encoded))))
    answers = encoded.labels if task.kind == "tags" else encoded.answers
    objective = build_task_objective(former, task, encoded, answers)
    evaluation = evaluate_task(former, task, objective, examples.rows, tell)
    has_loss = task.kind != "text" and not task.label_as_text
    if not all(map(math.isfinite, (*evaluation.confidences, *([evaluation.loss] if has_loss else [])))):
        raise NonFinite(f"answers to {examples.task}")
    signatures = get_metric_signatures(task, evaluation)
    return EvaluationResult(examples.task, len(examples.rows), summary, evaluation.metrics, signatures)
