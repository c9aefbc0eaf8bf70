"""Evaluation of fine-tuned models: predictions for rows, metrics, and tables for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..config import ProgressCallback
from ..data.encoded_examples import EncodedExamples, EncodedSource
from ..former import Former
from ..inputs import get_start_token
from ..objectives.supervised import Supervised, compute_class_weights, compute_label_weights
from ..task import Task
from ..tasks import prediction
from ..tasks.task_encoder import TaskEncoder, encode
from .task_metrics import compute_metrics
from .text_metrics import get_signatures

ExampleRows = Sequence[dict[str, Any]]
MAX_WORST_EXAMPLES, MAX_CONFUSION_CLASSES, MAX_SHOWN_CHARS = (
    20,
    25,
    300,
)  # examples, classes and characters that a report shows


@dataclass
class TaskEvaluation:
    """Predictions beside the references, the confidence in each reference, the metrics and the loss."""

    references: list[Any]
    predictions: list[Any]
    confidences: list[float] = field(default_factory=list)  # higher is better; CONFIDENCE_COLUMNS says what it is
    metrics: dict[str, float] = field(default_factory=dict)
    loss: float = float("nan")


def build_task_objective(
    former: Former, task: Task, data: EncodedExamples, labels: Any = None, *, balance: bool = False,
    label_smoothing: float = 0.0, lm_loss_weight: float = 0.0,
) -> Supervised:  # fmt: skip
    """Build the objective that asks a model for the answers of encoded examples.

    `labels` are the answers of the training examples: class weights (`balance`) and the scale of numbers come from
    them. Evaluation leaves out smoothing and the language model's loss.
    """
    starts_with_last = former.definition.starts_with_last_token
    start = None
    if former.is_encoder_decoder and not (starts_with_last and task.kind != "text"):
        start = get_start_token(former.config)
    weights: tuple[float, ...] = ()
    if balance:
        compute_weights = compute_label_weights if task.kind == "many" else compute_class_weights
        weights = compute_weights(np.asarray(labels), len(former.labels))
    scale = max(1e-6, float(np.std(labels[labels[:, 1] > 0, 0]))) if task.kind == "number" else 1.0
    shifts = former.is_encoder_decoder and task.kind != "text"
    source = EncodedSource(data, task.kind == "text", start, shifts, starts_with_last)
    return Supervised(
        source, task.kind, prediction.get_head_part(former, task), class_weights=weights, target_std=scale,
        label_smoothing=label_smoothing, lm_weight=lm_loss_weight,
    )  # fmt: skip


def evaluate_task(
    former: Former,
    task: Task,
    objective: Supervised,
    rows: ExampleRows,
    tell: ProgressCallback | None = None,
    autocast: Any = None,
) -> TaskEvaluation:
    """Evaluate a model on rows, which `goal` holds encoded; its forward passes run inside `autocast`."""
    if task.label_as_text:
        return evaluate_label_words(former, task, rows, tell)
    if objective.task_kind == "text":
        return evaluate_generated_text(former, task, objective.source.data, rows, tell)
    sums = [0.0, 0.0]

    def accumulate_loss(logits: Any, batch: Any) -> None:
        total, count = objective.compute_head_loss(logits, batch)
        sums[0] += float(total)
        sums[1] += float(count)

    with autocast() if autocast is not None else nullcontext():
        outputs = prediction.compute_outputs(former, objective.source.data, objective.part, tell, accumulate_loss)
    results = OUTPUT_EVALUATORS[task.kind](former, task, objective.source.data, outputs, rows)
    results.loss = sums[0] / max(1.0, sums[1])
    results.metrics = compute_metrics(task.name, results.references, results.predictions)
    return results


REFERENCE_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "class": lambda row: str(row["label"]), "many": lambda row: list(row["label"]),
    "number": lambda row: float(row["label"]), "tags": lambda row: list(row["tags"]),
    "span": lambda row: [answer["text"] for answer in row["answers"]], "choice": lambda row: int(row["label"]),
    "text": lambda row: str(row["target"]),
}  # fmt: skip


def get_references(task: Task, rows: ExampleRows) -> list[Any]:
    """Return the reference answers in the form that the metrics compare."""
    return [REFERENCE_READERS["class" if task.label_as_text else task.kind](row) for row in rows]


def list_metric_names(task: Task, rows: ExampleRows) -> tuple[str, ...]:
    """List the names of the metrics that predictions for these rows will have."""
    references = get_references(task, rows[:1] if task.kind == "text" else rows)  # those of texts are always the same
    return tuple(compute_metrics(task.name, references, [""] * len(references) if task.kind == "span" else references))


def evaluate_classes(
    former: Former, task: Task, data: EncodedExamples, outputs: Any, rows: ExampleRows
) -> TaskEvaluation:
    """Predict one label for each row."""
    probabilities = prediction.average_windows(task, data, outputs)
    index = {label: i for i, label in enumerate(former.labels)}
    references = get_references(task, rows)
    confidences = [
        float(row_probabilities[index[t]]) for row_probabilities, t in zip(probabilities, references, strict=True)
    ]
    return TaskEvaluation(references, [former.labels[i] for i in probabilities.argmax(1)], confidences)


def evaluate_multilabel(
    former: Former, task: Task, data: EncodedExamples, outputs: Any, rows: ExampleRows
) -> TaskEvaluation:
    """Predict any number of labels for each row: those with a probability above one half."""
    probabilities = prediction.average_windows(task, data, outputs)
    references = get_references(task, rows)
    predictions = [
        [name for name, row_probabilities in zip(former.labels, row, strict=True) if row_probabilities > 0.5]
        for row in probabilities
    ]
    confidences = [
        float(np.prod([s if name in t else 1 - s for name, s in zip(former.labels, row, strict=True)]))
        for row, t in zip(probabilities, references, strict=True)
    ]
    return TaskEvaluation(references, predictions, confidences)


def evaluate_numbers(
    former: Former, task: Task, data: EncodedExamples, outputs: Any, rows: ExampleRows
) -> TaskEvaluation:
    """Predict a number for each row; the confidence is minus the absolute error."""
    found = prediction.average_windows(task, data, outputs)[:, 0]
    references = get_references(task, rows)
    return TaskEvaluation(
        references, found.tolist(), [-abs(t - g) for t, g in zip(references, found.tolist(), strict=True)]
    )


def evaluate_tags(former: Former, task: Task, data: EncodedExamples, outputs: Any, rows: ExampleRows) -> TaskEvaluation:
    """Predict a tag for each word; a word without a token gets the first, the most frequent."""
    found = prediction.predict_tags(data, outputs, [len(row["words"]) for row in rows])
    predictions = [[former.labels[max(0, i)] for i in tag] for tag, _ in found]
    references = get_references(task, rows)
    right = [np.mean([a == b for a, b in zip(t, g, strict=True)]) for t, g in zip(references, predictions, strict=True)]
    return TaskEvaluation(references, predictions, [float(r) for r in right])


def evaluate_spans(
    former: Former, task: Task, data: EncodedExamples, outputs: Any, rows: ExampleRows
) -> TaskEvaluation:
    """Predict the best span of each context, or none."""
    left = former.tokenizer is not None and former.tokenizer.is_left_padded
    found = prediction.predict_spans(task, data, outputs, [row["context"] for row in rows], pads_left=left)
    references = get_references(task, rows)
    predictions = [some[0].text if some else "" for some in found]
    return TaskEvaluation(
        references,
        predictions,
        [float(g in t or (not t and not g)) for t, g in zip(references, predictions, strict=True)],
    )


def evaluate_choices(
    former: Former, task: Task, data: EncodedExamples, outputs: Any, rows: ExampleRows
) -> TaskEvaluation:
    """Predict the number of a choice for each row."""
    probabilities = prediction.predict_choices(outputs)
    references = get_references(task, rows)
    return TaskEvaluation(
        references,
        [int(s.argmax()) for s in probabilities],
        [float(s[t]) for s, t in zip(probabilities, references, strict=True)],
    )


OutputEvaluator = Callable[[Former, Task, EncodedExamples, Any, ExampleRows], TaskEvaluation]
OUTPUT_EVALUATORS: dict[str, OutputEvaluator] = {
    "class": evaluate_classes, "many": evaluate_multilabel, "number": evaluate_numbers, "tags": evaluate_tags,
    "span": evaluate_spans, "choice": evaluate_choices,
}  # fmt: skip


def evaluate_label_words(
    former: Former, task: Task, rows: ExampleRows, tell: ProgressCallback | None = None
) -> TaskEvaluation:
    """Predict the label that the decoder is likeliest to generate."""
    reader = TaskEncoder.from_former(former, task)
    probabilities = prediction.score_label_words(
        former, rows, task.labels, lambda some: encode(task, some, reader), tell
    )
    references, index = get_references(task, rows), {label: i for i, label in enumerate(task.labels)}
    predictions = [task.labels[i] for i in probabilities.argmax(1)]
    confidences = [
        float(row_probabilities[index[t]]) for row_probabilities, t in zip(probabilities, references, strict=True)
    ]
    return TaskEvaluation(references, predictions, confidences, compute_metrics(task.name, references, predictions))


def evaluate_generated_text(
    former: Former, task: Task, data: EncodedExamples, rows: ExampleRows, tell: ProgressCallback | None = None
) -> TaskEvaluation:
    """Generate a text for each row greedily, and compare it with its reference."""
    assert former.tokenizer is not None
    tokenizer = former.tokenizer.target or former.tokenizer
    results: list[str] = [""] * len(data)
    done = 0
    for some in prediction.group_by_length(data.lengths, prediction.BATCH_TOKENS.get(former.device.type, 4096)):
        sources = [data.ids[data.starts[i] : data.starts[i + 1]].tolist() for i in some]
        longest = min(task.max_output_tokens, 20 + 2 * max(map(len, sources)))
        for number, ids in zip(some, former.continue_ids(sources, longest, temperature=0), strict=True):
            results[number] = tokenizer.decode(ids).strip()
        done += len(some)
        if tell is not None:
            tell("writing", done, len(data), "texts")
    references = get_references(task, rows)
    return TaskEvaluation(references, results, metrics=compute_metrics(task.name, references, results))


def get_metric_signatures(task: Task, evaluation: TaskEvaluation) -> dict[str, str]:
    """Return sacrebleu's signatures of BLEU and chrF, to be quoted with them; nothing for other tasks."""
    return get_signatures(evaluation.references, evaluation.predictions) if task.name == "translate" else {}


ReportTable = dict[str, Any]  # title, head, rows
# What the worst examples are sorted by, and how it is written; answers are right or wrong, and that is all.
CONFIDENCE_COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "class": ("probability of the truth", "{:.3f}".format),
    "many": ("probability of the truth", "{:.3f}".format),
    "choice": ("probability of the truth", "{:.3f}".format),
    "number": ("error", lambda value: f"{-value:.3f}"),
    "tags": ("share of right tags", "{:.1%}".format),
}


def build_report_tables(
    task: Task, labels: Sequence[str], evaluation: TaskEvaluation, rows: ExampleRows
) -> list[ReportTable]:
    """Build the report's tables: the confusion matrix and the worst examples."""
    found = (
        [build_confusion_matrix(labels, evaluation)]
        if task.kind == "class" and len(labels) <= MAX_CONFUSION_CLASSES
        else []
    )
    if evaluation.confidences:
        order = np.argsort(evaluation.confidences, kind="stable")
        wrong = [i for i in order if evaluation.references[i] != evaluation.predictions[i]][:MAX_WORST_EXAMPLES]
        last = CONFIDENCE_COLUMNS.get("class" if task.label_as_text else task.kind)
        more = [last[0]] if last else []
        lines = [
            [
                format_example(rows[i]),
                format_answer(evaluation.references[i]),
                format_answer(evaluation.predictions[i]),
                *([last[1](evaluation.confidences[i])] if last else []),
            ]
            for i in wrong
        ]
        found.append({"title": "Worst examples", "head": ["text", "truth", "guess", *more], "rows": lines})
    elif task.kind == "text":
        lines = [
            [format_example(rows[i]), format_answer(evaluation.references[i]), format_answer(evaluation.predictions[i])]
            for i in range(min(MAX_WORST_EXAMPLES, len(rows)))
        ]
        found.append({"title": "Examples", "head": ["text", "truth", "written"], "rows": lines})
    return found


def build_confusion_matrix(labels: Sequence[str], evaluation: TaskEvaluation) -> ReportTable:
    """Count how often each label was predicted for each reference."""
    pairs = Counter(zip(evaluation.references, evaluation.predictions, strict=True))
    rows = [[truth, *(f"{pairs[truth, guess]:,}" for guess in labels)] for truth in labels]
    return {"title": "Truth (rows) and guess (columns)", "head": ["", *labels], "rows": rows}


def format_example(row: dict[str, Any]) -> str:
    """Format the text of a row, shortened."""
    text = row.get("question") or row.get("text") or " ".join(row.get("words", ()))
    both = f"{text} ‖ {row['other']}" if row.get("other") else str(text)
    return both if len(both) <= MAX_SHOWN_CHARS else both[: MAX_SHOWN_CHARS - 1] + "…"


def format_answer(value: Any) -> str:
    """Format an answer, shortened."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return (", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))[:MAX_SHOWN_CHARS]
