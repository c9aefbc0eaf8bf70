"""How well a fine-tuned model does its task: guesses for rows, measures, and tables for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..config import ProgressCallback
from ..data.encoded_examples import EncodedExamples
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
    """What a model says of rows: its guesses beside the truth, how sure it is of the truth, and the measures."""

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
    starts_with_last = getattr(former.config, "starts_with_last_token", False)
    start = None
    if former.is_encoder_decoder and not (starts_with_last and task.kind != "text"):
        start = get_start_token(former.config)
    weights: tuple[float, ...] = ()
    if balance:
        compute_weights = compute_label_weights if task.kind == "many" else compute_class_weights
        weights = compute_weights(np.asarray(labels), len(former.labels))
    scale = max(1e-6, float(np.std(labels[labels[:, 1] > 0, 0]))) if task.kind == "number" else 1.0
    return Supervised(
        data, task.kind, prediction.get_head_part(former, task), start,
        shift_source=former.is_encoder_decoder and task.kind != "text", wrap_last_token=starts_with_last,
        class_weights=weights, target_std=scale, label_smoothing=label_smoothing, lm_weight=lm_loss_weight,
    )  # fmt: skip


def evaluate_task(
    former: Former,
    task: Task,
    goal: Supervised,
    rows: ExampleRows,
    tell: ProgressCallback | None = None,
    autocast: Any = None,
) -> TaskEvaluation:
    """Ask a model about rows that are encoded in `goal`. `autocast` is entered around its passes."""
    if task.label_as_text:
        return evaluate_label_words(former, task, rows, tell)
    if goal.task_kind == "text":
        return evaluate_generated_text(former, task, goal.data, rows, tell)
    sums = [0.0, 0.0]

    def accumulate_loss(logits: Any, batch: Any) -> None:
        total, count = goal.compute_head_loss(logits, batch)
        sums[0] += float(total)
        sums[1] += float(count)

    with autocast() if autocast is not None else nullcontext():
        said = prediction.compute_outputs(former, goal.data, goal.part, tell, accumulate_loss)
    made = OUTPUT_EVALUATORS[task.kind](former, task, goal.data, said, rows)
    made.loss = sums[0] / max(1.0, sums[1])
    made.metrics = compute_metrics(task.name, made.references, made.predictions)
    return made


REFERENCE_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "class": lambda row: str(row["label"]), "many": lambda row: list(row["label"]),
    "number": lambda row: float(row["label"]), "tags": lambda row: list(row["tags"]),
    "span": lambda row: [answer["text"] for answer in row["answers"]], "choice": lambda row: int(row["label"]),
    "text": lambda row: str(row["target"]),
}  # fmt: skip


def get_references(task: Task, rows: ExampleRows) -> list[Any]:
    """What is right, in the form in which it is judged."""
    return [REFERENCE_READERS["class" if task.label_as_text else task.kind](row) for row in rows]


def list_metric_names(task: Task, rows: ExampleRows) -> tuple[str, ...]:
    """The names of the measures that guesses for rows will have."""
    truths = get_references(task, rows[:1] if task.kind == "text" else rows)  # those of texts are always the same
    return tuple(compute_metrics(task.name, truths, [""] * len(truths) if task.kind == "span" else truths))


def evaluate_classes(former: Former, task: Task, data: EncodedExamples, said: Any, rows: ExampleRows) -> TaskEvaluation:
    """One label each."""
    shares = prediction.average_windows(task, data, said)
    index = {label: i for i, label in enumerate(former.labels)}
    truths = get_references(task, rows)
    sure = [float(share[index[t]]) for share, t in zip(shares, truths, strict=True)]
    return TaskEvaluation(truths, [former.labels[i] for i in shares.argmax(1)], sure)


def evaluate_multilabel(
    former: Former, task: Task, data: EncodedExamples, said: Any, rows: ExampleRows
) -> TaskEvaluation:
    """Any number of labels each: those that are likelier than not."""
    shares = prediction.average_windows(task, data, said)
    truths = get_references(task, rows)
    guesses = [[name for name, share in zip(former.labels, row, strict=True) if share > 0.5] for row in shares]
    sure = [
        float(np.prod([s if name in t else 1 - s for name, s in zip(former.labels, row, strict=True)]))
        for row, t in zip(shares, truths, strict=True)
    ]
    return TaskEvaluation(truths, guesses, sure)


def evaluate_numbers(former: Former, task: Task, data: EncodedExamples, said: Any, rows: ExampleRows) -> TaskEvaluation:
    """A number each; the further away, the less sure."""
    found = prediction.average_windows(task, data, said)[:, 0]
    truths = get_references(task, rows)
    return TaskEvaluation(truths, found.tolist(), [-abs(t - g) for t, g in zip(truths, found.tolist(), strict=True)])


def evaluate_tags(former: Former, task: Task, data: EncodedExamples, said: Any, rows: ExampleRows) -> TaskEvaluation:
    """A tag for each word; a word that has no token gets the commonest, the first."""
    found = prediction.predict_tags(data, said, [len(row["words"]) for row in rows])
    guesses = [[former.labels[max(0, i)] for i in tag] for tag, _ in found]
    truths = get_references(task, rows)
    right = [np.mean([a == b for a, b in zip(t, g, strict=True)]) for t, g in zip(truths, guesses, strict=True)]
    return TaskEvaluation(truths, guesses, [float(r) for r in right])


def evaluate_spans(former: Former, task: Task, data: EncodedExamples, said: Any, rows: ExampleRows) -> TaskEvaluation:
    """The best place in each context, or none."""
    left = former.tokenizer is not None and former.tokenizer.is_left_padded
    found = prediction.predict_spans(task, data, said, [row["context"] for row in rows], pads_left=left)
    truths = get_references(task, rows)
    guesses = [some[0].text if some else "" for some in found]
    return TaskEvaluation(
        truths, guesses, [float(g in t or (not t and not g)) for t, g in zip(truths, guesses, strict=True)]
    )


def evaluate_choices(former: Former, task: Task, data: EncodedExamples, said: Any, rows: ExampleRows) -> TaskEvaluation:
    """The number of a choice."""
    shares = prediction.predict_choices(said)
    truths = get_references(task, rows)
    return TaskEvaluation(
        truths, [int(s.argmax()) for s in shares], [float(s[t]) for s, t in zip(shares, truths, strict=True)]
    )


OutputEvaluator = Callable[[Former, Task, EncodedExamples, Any, ExampleRows], TaskEvaluation]
OUTPUT_EVALUATORS: dict[str, OutputEvaluator] = {
    "class": evaluate_classes, "many": evaluate_multilabel, "number": evaluate_numbers, "tags": evaluate_tags,
    "span": evaluate_spans, "choice": evaluate_choices,
}  # fmt: skip


def evaluate_label_words(
    former: Former, task: Task, rows: ExampleRows, tell: ProgressCallback | None = None
) -> TaskEvaluation:
    """The label that a decoder is likeliest to write."""
    reader = TaskEncoder.from_former(former, task)
    shares = prediction.score_label_words(former, rows, task.labels, lambda some: encode(task, some, reader), tell)
    truths, index = get_references(task, rows), {label: i for i, label in enumerate(task.labels)}
    guesses = [task.labels[i] for i in shares.argmax(1)]
    sure = [float(share[index[t]]) for share, t in zip(shares, truths, strict=True)]
    return TaskEvaluation(truths, guesses, sure, compute_metrics(task.name, truths, guesses))


def evaluate_generated_text(
    former: Former, task: Task, data: EncodedExamples, rows: ExampleRows, tell: ProgressCallback | None = None
) -> TaskEvaluation:
    """What a decoder writes for each text."""
    assert former.tokenizer is not None
    tokenizer = former.tokenizer.target or former.tokenizer
    made: list[str] = [""] * len(data)
    done = 0
    for some in prediction.group_by_length(data.lengths, prediction.BATCH_TOKENS.get(former.device.type, 4096)):
        sources = [data.ids[data.starts[i] : data.starts[i + 1]].tolist() for i in some]
        longest = min(task.max_output_tokens, 20 + 2 * max(map(len, sources)))
        for number, ids in zip(some, former.continue_ids(sources, longest, temperature=0), strict=True):
            made[number] = tokenizer.decode(ids).strip()
        done += len(some)
        if tell is not None:
            tell("writing", done, len(data), "texts")
    truths = get_references(task, rows)
    return TaskEvaluation(truths, made, metrics=compute_metrics(task.name, truths, made))


def get_metric_signatures(task: Task, seen: TaskEvaluation) -> dict[str, str]:
    """How measures that have variants were computed; to be quoted with them. Of BLEU and chrF, sacrebleu's words."""
    return get_signatures(seen.references, seen.predictions) if task.name == "translate" else {}


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
    task: Task, labels: Sequence[str], seen: TaskEvaluation, rows: ExampleRows
) -> list[ReportTable]:
    """The confusion matrix and the worst examples."""
    found = (
        [build_confusion_matrix(labels, seen)] if task.kind == "class" and len(labels) <= MAX_CONFUSION_CLASSES else []
    )
    if seen.confidences:
        order = np.argsort(seen.confidences, kind="stable")
        wrong = [i for i in order if seen.references[i] != seen.predictions[i]][:MAX_WORST_EXAMPLES]
        last = CONFIDENCE_COLUMNS.get("class" if task.label_as_text else task.kind)
        more = [last[0]] if last else []
        lines = [
            [
                format_example(rows[i]),
                format_answer(seen.references[i]),
                format_answer(seen.predictions[i]),
                *([last[1](seen.confidences[i])] if last else []),
            ]
            for i in wrong
        ]
        found.append({"title": "Worst examples", "head": ["text", "truth", "guess", *more], "rows": lines})
    elif task.kind == "text":
        lines = [
            [format_example(rows[i]), format_answer(seen.references[i]), format_answer(seen.predictions[i])]
            for i in range(min(MAX_WORST_EXAMPLES, len(rows)))
        ]
        found.append({"title": "Examples", "head": ["text", "truth", "written"], "rows": lines})
    return found


def build_confusion_matrix(labels: Sequence[str], seen: TaskEvaluation) -> ReportTable:
    """How often each truth was taken for each label."""
    pairs = Counter(zip(seen.references, seen.predictions, strict=True))
    rows = [[truth, *(f"{pairs[truth, guess]:,}" for guess in labels)] for truth in labels]
    return {"title": "Truth (rows) and guess (columns)", "head": ["", *labels], "rows": rows}


def format_example(row: dict[str, Any]) -> str:
    """A row in a few words."""
    text = row.get("question") or row.get("text") or " ".join(row.get("words", ()))
    both = f"{text} ‖ {row['other']}" if row.get("other") else str(text)
    return both if len(both) <= MAX_SHOWN_CHARS else both[: MAX_SHOWN_CHARS - 1] + "…"


def format_answer(value: Any) -> str:
    """An answer in a few words."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return (", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))[:MAX_SHOWN_CHARS]
