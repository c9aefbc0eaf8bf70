"""Evaluation of fine-tuned models: predictions for rows, metrics, and tables for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ..batch import Batch
from ..config import ProgressCallback
from ..data.encoded_examples import EncodedExamples, EncodedSource
from ..errors import Error
from ..former import Former
from ..inputs import get_start_token
from ..objectives.scheduled_sampling import ONLY_TARGET, ScheduledSampling
from ..objectives.supervised import Supervised, compute_class_weights, compute_label_weights
from ..task import TASKS, Task
from ..tasks import api
from ..tasks.examples import Row
from .metrics import Answer, compute_metrics, get_signatures

ExampleRows = Sequence[Row]
MAX_WORST_EXAMPLES, MAX_CONFUSION_CLASSES, MAX_SHOWN_CHARS = 20, 25, 300  # that a report shows


@dataclass
class TaskEvaluation:
    """Predictions beside the references, the confidence in each reference, the metrics and the loss."""

    references: list[Answer]
    predictions: list[Answer]
    confidences: list[float] = field(default_factory=list)  # higher is better; CONFIDENCE_COLUMNS says what it is
    metrics: dict[str, float] = field(default_factory=dict)
    loss: float = float("nan")


def build_task_objective(
    former: Former, task: Task, data: EncodedExamples, labels: np.ndarray | None = None, *, balance: bool = False,
    label_smoothing: float = 0.0, lm_loss_weight: float = 0.0,
    sampling: ScheduledSampling = ONLY_TARGET,
) -> Supervised:  # fmt: skip
    """Build the objective that asks a model for the answers of encoded examples. `labels` are the answers of the
    training examples: class weights (`balance`) and the scale of numbers come from them. Evaluation leaves out
    smoothing, the language model's loss and scheduled sampling."""
    starts_with_last = former.definition.starts_with_last_token
    needs_start = former.is_encoder_decoder and not (starts_with_last and task.kind != "text")
    start = get_start_token(former.config) if needs_start else None
    weights, answers = tuple[float, ...](), np.asarray(labels)
    if balance:
        compute_weights = compute_label_weights if task.kind == "many" else compute_class_weights
        weights = compute_weights(answers, len(former.labels))
    scale = max(1e-6, float(np.std(answers[answers[:, 1] > 0, 0]))) if task.kind == "number" else 1.0
    shifts = former.is_encoder_decoder and task.kind != "text"
    source = EncodedSource(data, task.kind == "text", start, shifts, starts_with_last)
    return Supervised(
        source, task.kind, api.get_head_part(former, task), class_weights=weights, target_std=scale,
        label_smoothing=label_smoothing, lm_weight=lm_loss_weight, sampling=sampling,
    )  # fmt: skip


def evaluate_task(
    former: Former, task: Task, objective: Supervised, rows: ExampleRows, tell: ProgressCallback | None = None,
    autocast: Callable[[], AbstractContextManager[object]] | None = None,
) -> TaskEvaluation:  # fmt: skip
    """Evaluate a model on rows, which `objective` holds encoded; its forward passes run inside `autocast`."""
    sums = [0.0, 0.0]

    def accumulate_loss(logits: Tensor, batch: Batch) -> None:
        total, count = objective.compute_head_loss(logits, batch)
        sums[0] += float(total)
        sums[1] += float(count)

    if task.label_as_text:  # the label that the decoder is likeliest to generate
        probabilities = api.score_label_words(former, task, rows, tell)
        evaluate_labels = evaluate_classes if task.name == "classify" else evaluate_written_numbers
        results = evaluate_labels(task.labels, probabilities, get_references(task, rows))
    elif objective.task_kind == "text":
        results = evaluate_generated_text(former, task, objective.source.data, rows, tell)
    else:
        with autocast() if autocast is not None else nullcontext():
            outputs = api.compute_outputs(former, objective.source.data, objective.part, tell, accumulate_loss)
        results = evaluate_outputs(former, task, objective.source.data, outputs, rows)
        results.loss = sums[0] / max(1.0, sums[1])
    results.metrics = compute_metrics(task.name, results.references, results.predictions)
    return results


REFERENCE_READERS: dict[str, Callable[[Row], Answer]] = {
    "class": lambda row: str(row["label"]), "many": lambda row: list(row["label"]),
    "number": lambda row: float(row["label"]), "tags": lambda row: list(row["tags"]),
    "span": lambda row: [answer["text"] for answer in row["answers"]], "choice": lambda row: int(row["label"]),
    "text": lambda row: str(row["target"]),
}  # fmt: skip


def get_references(task: Task, rows: ExampleRows) -> list[Answer]:
    """Return the reference answers in the form that the metrics compare."""
    kind = TASKS[task.name][0][0] if task.label_as_text else task.kind  # of a decoder that writes it
    return [REFERENCE_READERS[kind](row) for row in rows]


def check_known_labels(task: Task, rows: ExampleRows) -> None:
    """Refuse a label that a decoder has not learned to write: it could never be right."""
    if not task.label_as_text or task.name != "classify":
        return
    if odd := {str(row["label"]) for row in rows} - set(task.labels):
        known = ", ".join(task.labels[:8]) + (" …" if len(task.labels) > 8 else "")
        raise Error(f"the label {min(odd)!r} was not seen in training", fix=f"known labels: {known}")


def list_metric_names(task: Task, rows: ExampleRows) -> tuple[str, ...]:
    """List the names of the metrics that predictions for these rows will have."""
    references = get_references(task, rows[:1] if task.kind == "text" else rows)  # those of texts are always the same
    return tuple(compute_metrics(task.name, references, [""] * len(references) if task.kind == "span" else references))


def evaluate_outputs(
    former: Former, task: Task, data: EncodedExamples, outputs: list[np.ndarray], rows: ExampleRows
) -> TaskEvaluation:
    """Turn what a head says of encoded examples into predictions for their rows, with the confidence in each truth."""
    references = get_references(task, rows)
    if task.kind == "tags":  # a word without a token gets the first tag, the most frequent
        taggings = api.predict_tags(data, outputs, [len(row["words"]) for row in rows])
        predictions: list[Answer] = [[former.labels[max(0, i)] for i in tags] for tags, _ in taggings]
        pairs = zip(references, predictions, strict=True)
        right = [np.mean([a == b for a, b in zip(t, g, strict=True)]) for t, g in pairs]
        return TaskEvaluation(references, predictions, [float(r) for r in right])
    if task.kind == "span":
        spans = api.predict_spans(former, task, data, outputs, [row["context"] for row in rows])
        predictions = [some[0].text if some else "" for some in spans]
        right = [float(g in t or (not t and not g)) for t, g in zip(references, predictions, strict=True)]
        return TaskEvaluation(references, predictions, right)
    if task.kind == "choice":
        choices = api.predict_choices(outputs)
        confidences = [float(p[t]) for p, t in zip(choices, references, strict=True)]
        return TaskEvaluation(references, [int(p.argmax()) for p in choices], confidences)
    probabilities = api.average_windows(task, data, outputs)
    if task.kind == "class":
        return evaluate_classes(former.labels, probabilities, references)
    if task.kind == "number":
        return evaluate_numbers(probabilities[:, 0].tolist(), references)
    named = [list(zip(former.labels, row, strict=True)) for row in probabilities]  # several labels for each row
    pairs = zip(named, references, strict=True)
    confidences = [float(np.prod([p if name in t else 1 - p for name, p in row])) for row, t in pairs]
    return TaskEvaluation(references, [[name for name, p in row if p > 0.5] for row in named], confidences)


def evaluate_classes(labels: Sequence[str], probabilities: np.ndarray, references: list[Answer]) -> TaskEvaluation:
    """Predict the likeliest label of each row, given (rows, labels) probabilities."""
    index = {label: i for i, label in enumerate(labels)}
    confidences = [float(row[index[t]]) for row, t in zip(probabilities, references, strict=True)]
    return TaskEvaluation(references, [labels[i] for i in probabilities.argmax(1)], confidences)


def evaluate_numbers(numbers: list[float], references: list[Answer]) -> TaskEvaluation:
    """Compare numbers with their references; the confidence is minus the absolute error."""
    return TaskEvaluation(references, numbers, [-abs(t - g) for t, g in zip(references, numbers, strict=True)])


def evaluate_written_numbers(
    labels: Sequence[str], probabilities: np.ndarray, references: list[Answer]
) -> TaskEvaluation:
    """Predict the number that a decoder is likeliest to write, given (rows, numbers) probabilities."""
    return evaluate_numbers(api.read_numbers(labels, probabilities), references)


def evaluate_generated_text(
    former: Former, task: Task, data: EncodedExamples, rows: ExampleRows, tell: ProgressCallback | None = None
) -> TaskEvaluation:
    """Generate a text for each row greedily, and compare it with its reference."""
    assert former.tokenizer is not None
    tokenizer = former.tokenizer.target or former.tokenizer
    results: list[str] = [""] * len(data)
    for some in api.group_examples(former, data, tell, "writing", "texts"):
        sources = [data.ids[data.starts[i] : data.starts[i + 1]].tolist() for i in some]
        longest = min(task.max_output_tokens, 20 + 2 * max(map(len, sources)))
        for number, ids in zip(some, former.continue_ids(sources, longest, temperature=0), strict=True):
            results[number] = tokenizer.decode(ids).strip()
    return TaskEvaluation(get_references(task, rows), results)


def get_metric_signatures(task: Task, evaluation: TaskEvaluation) -> dict[str, str]:
    """Return sacrebleu's signatures of BLEU and chrF, to be quoted with them; nothing for other tasks."""
    return get_signatures(evaluation.references, evaluation.predictions) if task.name == "translate" else {}


ReportTable = dict[str, Any]  # dynamic: title, head, and rows of cells of any type
# What the worst examples are sorted by, and how it is written; answers are right or wrong, and that is all.
CONFIDENCE_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    **dict.fromkeys(("class", "many", "choice"), ("probability of the truth", "{:.3f}".format)),
    "number": ("error", lambda value: f"{-value:.3f}"),
    "tags": ("share of right tags", "{:.1%}".format),
}


def build_report_tables(
    task: Task, labels: Sequence[str], evaluation: TaskEvaluation, rows: ExampleRows
) -> list[ReportTable]:
    """Build the report's tables: the confusion matrix and the worst examples."""
    truths, guesses = evaluation.references, evaluation.predictions
    tables = []
    if task.kind == "class" and len(labels) <= MAX_CONFUSION_CLASSES:
        tables.append(build_confusion_matrix(labels, evaluation))

    def build_lines(places: Iterable[int]) -> list[list[str]]:
        return [[format_example(rows[i]), format_answer(truths[i]), format_answer(guesses[i])] for i in places]

    if evaluation.confidences:
        order = np.argsort(evaluation.confidences, kind="stable")
        wrong = [i for i in order if truths[i] != guesses[i]][:MAX_WORST_EXAMPLES]
        head, lines = ["text", "truth", "guess"], build_lines(wrong)
        if last := CONFIDENCE_COLUMNS.get(TASKS[task.name][0][0] if task.label_as_text else task.kind):
            head.append(last[0])
            lines = [[*line, last[1](evaluation.confidences[i])] for line, i in zip(lines, wrong, strict=True)]
        tables.append({"title": "Worst examples", "head": head, "rows": lines})
    elif task.kind == "text":
        lines = build_lines(range(min(MAX_WORST_EXAMPLES, len(rows))))
        tables.append({"title": "Examples", "head": ["text", "truth", "written"], "rows": lines})
    return tables


def build_confusion_matrix(labels: Sequence[str], evaluation: TaskEvaluation) -> ReportTable:
    """Count how often each label was predicted for each reference."""
    pairs = Counter(zip(evaluation.references, evaluation.predictions, strict=True))
    rows = [[truth, *(f"{pairs[truth, guess]:,}" for guess in labels)] for truth in labels]
    return {"title": "Truth (rows) and guess (columns)", "head": ["", *labels], "rows": rows}


def format_example(row: Row) -> str:
    """Format the text of a row, shortened."""
    text = row.get("question") or row.get("text") or " ".join(row.get("words", ()))
    both = f"{text} ‖ {row['other']}" if row.get("other") else str(text)
    return both if len(both) <= MAX_SHOWN_CHARS else both[: MAX_SHOWN_CHARS - 1] + "…"


def format_answer(value: object) -> str:
    """Format an answer, shortened."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return (", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))[:MAX_SHOWN_CHARS]
