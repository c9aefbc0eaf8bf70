"""formers classify, score, tag, answer, choose, evaluate: a model's predictions, as text on a terminal and as JSON
lines in a pipe, and its metrics on a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ..config import JSONObject
from ..errors import Error
from . import common
from .common import (
    ColumnRoles,
    CommandInput,
    FileOption,
    JsonFlag,
    ModelArgument,
    Placement,
    TextArgument,
    TextFileOptions,
)
from .terminal import SafeConsole, escape_line, print_json, print_text, show_progress

if TYPE_CHECKING:
    from ..former import Former

Result = Any  # dynamic: what a verb says of a text
OtherOption = Annotated[str | None, Parameter(help="The second text of a pair, for all texts.")]


def run_verb(
    model: str, verb: str, inputs: str | list[CommandInput], *more: object, placement: Placement | None,
    **options: object,
) -> Result:  # fmt: skip
    """Load a model and apply a verb of it; of a list, one result for each text, None for a blank one."""
    with show_progress(SafeConsole(stderr=True), verb, delay_seconds=2.0) as tell, common.summarise_warnings():
        former = common.load_model(model, placement)
        method = getattr(former, verb)  # dynamic: a verb by its name
        if isinstance(inputs, str):
            return method(inputs, *more, tell=tell, **options)
        pairs = can_read_pairs(former)  # with a tab between the two
        texts = [tuple(t.split("\t", 1)) if pairs and isinstance(t, str) and "\t" in t else t for t in inputs]
        results = iter(method([text for text in texts if text], tell=tell, **options))
        return [next(results) if text else None for text in texts]


def can_read_pairs(former: Former) -> bool:
    """Return whether a tab may separate two texts: the model was not trained on single texts alone."""
    if former.task:
        return former.task["name"] in ("classify", "regress") and former.task.get("takes_pairs") is not False
    return former.head == "classify" or (former.is_encoder_decoder and former.head == "lm")


def collect_inputs(
    texts: Iterable[str], file: Path | None, reading: TextFileOptions | None, other: str | None, words: bool = False
) -> list[CommandInput]:
    """Collect the texts of the command line and of a file; a pair is given with --other, or has a tab between. A blank
    row of a file keeps its place."""
    found: list[CommandInput] = list(texts)
    if blank := next((n for n, text in enumerate(found, 1) if not text.strip()), None):
        raise Error(f"text {blank} is empty", fix="leave empty texts out")
    if file is not None:
        more, note = common.read_inputs(file, reading or TextFileOptions(), words)
        if gaps := sum(not one for one in more):
            note = "; ".join(filter(None, (note, f"{gaps:,} without text, answered by null")))
        if note:
            SafeConsole(stderr=True).print(f"{escape_line(file)}: {note}")
        found += more
    if not any(found):
        raise Error("there is no text", fix="give texts behind the model, or --file FILE")
    if other is None:
        return found
    if any(isinstance(one, tuple) or "\t" in one for one in found):
        raise Error("a pair has its second text already", fix="leave --other out, or name one column: --column NAME")
    return [(one, other) if one else one for one in found]


def print_results(rows: Sequence[Result], format_row: Callable[[int, Result], str], as_json: bool) -> None:
    """Print one line of JSON for each result; on a terminal, unless JSON is asked for, text for people."""
    for number, row in enumerate(rows):
        if as_json or not sys.stdout.isatty():
            print_json(row)
        else:
            print_text("" if row is None else format_row(number, row))


def format_one_line(text: str | tuple[str, ...] | list[str]) -> str:
    """Format a text or a pair in one line."""
    return " | ".join(" ".join(str(part).split()) for part in (text if isinstance(text, tuple) else (text,)))


def classify(
    model: ModelArgument, *texts: TextArgument, other: OtherOption = None, file: FileOption = None,
    as_json: JsonFlag = False, placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Print the label of each text and its probability (text classification); as JSON, with all probabilities.

    formers classify runs/textcnn-classify-1/model "A fine film." "Dull."
    formers classify runs/bert-classify-1/model --file reviews.txt
    formers classify runs/bert-classify-1/model --file pairs.tsv --column premise,hypothesis > labels.jsonl

    Args:
        texts: Texts; of a model for pairs, two of them with a tab between.
    """
    inputs = collect_inputs(texts, file, reading, other)
    rows = [one and asdict(one) for one in run_verb(model, "classify", inputs, placement=placement)]
    wide = max(map(len, next(filter(None, rows))["probabilities"]))

    def format_row(number: int, row: JSONObject) -> str:
        name = ", ".join(row["labels"]) or row["label"]
        return f"{row['probability']:6.1%}  {name:<{wide}}  {format_one_line(inputs[number])}"

    print_results(rows, format_row, as_json)


def score(
    model: ModelArgument, *texts: TextArgument, other: OtherOption = None, file: FileOption = None,
    as_json: JsonFlag = False, placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Print the score of each text or pair (regression): a rating or similarity; with a language model, the text's
    log-probability in nats and its perplexity.

    formers score runs/bert-regress-1/model "A man is running." --other "Someone runs."
    formers score my-gpt2 "The people of the United States"

    Args:
        texts: Texts; pairs have a tab between.
    """
    inputs = collect_inputs(texts, file, reading, other)
    rows = [
        {"total": s.total_log_prob, "tokens": len(s.tokens), "perplexity": s.perplexity}
        if s is not None and not isinstance(s, float)
        else s
        for s in run_verb(model, "score", inputs, placement=placement)
    ]

    def format_row(number: int, row: dict[str, float] | float) -> str:
        form = "{total:9.2f} nats  perplexity {perplexity:<9.4g}"
        result = form.format(**row) if isinstance(row, dict) else f"{row:9.4f}"
        return f"{result}  {format_one_line(inputs[number])}"

    print_results(rows, format_row, as_json)


def tag(
    model: ModelArgument, *texts: TextArgument, file: FileOption = None, entities: bool = False,
    as_json: JsonFlag = False, placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Print the words of each text with their tags (token classification, NER), or the entities that the tags mark.

    formers tag runs/bert-tag-1/model "Anna lives in Seoul."
    formers tag runs/bert-tag-1/model "Anna lives in Seoul." --entities
    formers tag runs/bert-tag-1/model --file test.conll

    Args:
        texts: Texts. A file may also be a conll file, of which the words are read.
        entities: Print entities such as persons and places, each with its label, instead of tagged words.
    """
    inputs = collect_inputs(texts, file, reading, None, words=True)
    rows = run_verb(model, "tag", inputs, entities=entities, placement=placement)

    def format_row(number: int, row: list[JSONObject]) -> str:
        keys = ("score", "text", "label") if entities else ("probability", "word", "tag")
        cells = [tuple(word[key] for key in keys) for word in row]
        wide = max((len(text) for _, text, _ in cells), default=0)
        lines = [f"{probability:6.1%}  {text:<{wide}}  {label}" for probability, text, label in cells]
        return "\n".join(["", *lines] if number else lines)

    print_results([None if row is None else [asdict(word) for word in row] for row in rows], format_row, as_json)


def answer(
    model: ModelArgument, question: str, context: str | None = None, *, file: FileOption = None, best: int = 1,
    abstain: Annotated[bool | None, Parameter(negative="--no-abstain")] = None, as_json: JsonFlag = False,
    placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Find the answer to a question in a context (extractive question answering).

    formers answer runs/bert-answer-1/model "Who wrote it?" "It was written by Kim Sowol."
    formers answer runs/bert-answer-1/model "Who wrote it?" --file book.txt --best 3

    Args:
        question: The question.
        context: The text that contains the answer, of any length; or give it with --file.
        best: How many answers to print.
        abstain: Allow "no answer"; --no-abstain does not. By default as the model was trained.
    """
    if file is not None:
        context = common.read_whole_text(file, reading or TextFileOptions())
    if context is None:
        raise Error("there is no context", fix="give it behind the question, or --file FILE")
    found = run_verb(model, "answer", question, context, best=best, abstain=abstain, placement=placement)
    rows = [asdict(one) for one in (found if isinstance(found, list) else [found])]

    def format_row(number: int, row: JSONObject) -> str:
        where = f"  ({row['start']}-{row['end']})" if row["start"] >= 0 else "no answer"
        return f"{row['probability']:6.1%}  {format_one_line(row['text'])}{where}"

    print_results(rows, format_row, as_json)


def choose(
    model: ModelArgument, question: str, *choices: TextArgument, as_json: JsonFlag = False,
    placement: Placement | None = None,
) -> None:  # fmt: skip
    """Print the likeliest of several choices (multiple choice), with all probabilities.

    formers choose runs/bert-choose-1/model "She opened the umbrella because" "it rained." "it was dry."

    Args:
        question: The text before the choices.
        choices: Two or more.
    """
    row = asdict(run_verb(model, "choose", question, list(choices), placement=placement))
    order = sorted(zip(row["probabilities"], choices, strict=True), reverse=True)
    lines = [f"{probability:6.1%}  {format_one_line(text)}" for probability, text in order]
    print_results([row], lambda *_: "\n".join(lines), as_json)


def evaluate(
    model: ModelArgument, *, data: Path, kind: Literal["perplexity", "pairs", "choices", "cloze", "task"] | None = None,
    columns: ColumnRoles = None, stride: int | None = None, memory_length: int | None = None, batch: int = 16,
    limit: int | None = None, as_json: Annotated[bool, Parameter(help="Print one line of JSON.")] = False,
    placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Evaluate a model on a file: perplexity, minimal pairs, choices, last words, or the metrics of its task.

    formers evaluate my-gpt2 --data test.txt --stride 256
    formers evaluate my-bert --data blimp.jsonl
    formers evaluate my-gpt2 --data copa.jsonl --kind choices
    formers evaluate runs/bert-classify-1/model --data nsmc.test.tsv
    formers evaluate runs/bert-classify-1/model --data old.csv --encoding cp949 --delimiter ";"

    Args:
        data: Texts, pairs (good and bad), choices, or labelled examples: txt, jsonl, csv, tsv, parquet, conll,
            SQuAD's json.
        kind: What to compute; by default the columns and the model decide. cloze is the last word of each text.
        stride: For texts longer than the context: how many tokens of each window count; half of the context by default.
        memory_length: How many hidden states Transformer-XL and XLNet keep in memory; by default as the model says.
        batch: Texts in a batch.
        limit: Only the first so many examples.
    """
    from ..evaluation.api import evaluate as run_evaluation

    options: JSONObject = {"batch": batch, "stride": stride, "memory_length": memory_length, "limit": limit}
    options |= (reading or TextFileOptions()).to_keywords()
    with show_progress(SafeConsole(stderr=True), "evaluate", delay_seconds=2) as tell, common.summarise_warnings():
        former = common.load_model(model, placement, tell)
        found = run_evaluation(former, data, kind, columns=columns, tell=tell, **options)
    if as_json:
        quoted = {"signatures": found.signatures} if found.signatures else {}
        print_json({"kind": found.kind, "examples": found.num_examples, **found.metrics, **quoted})
        return
    console = SafeConsole()
    console.print(f"{found.kind}, {found.num_examples:,} examples ({found.summary})")
    for name, value in found.metrics.items():
        number = f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value > 1e4 else f"{value:.4f}"
        console.print(f"{name:<18} {number}")
    for name, words in found.signatures.items():
        console.print(f"{name:<18} {words}")
