"""formers classify, score, tag, answer, choose: predictions of fine-tuned models, as text on a terminal and as JSON
lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..errors import Error
from .common import Placement, load_model, summarise_warnings
from .terminal import SafeConsole, escape_line, print_json, print_text, show_progress
from .text_input import TextFileOptions, read_inputs, read_whole_text, split_tab_pairs

TextArgument = Annotated[str, Parameter(allow_leading_hyphen=True)]
FileArgument = Annotated[Path | None, Parameter(allow_leading_hyphen=True)]  # - is a pipe
JsonFlag = Annotated[bool, Parameter(help="JSON lines on a terminal too.")]


def run_verb(model: str, verb: str, *given: Any, placement: Placement | None = None, **how: Any) -> Any:
    """Load a model and ask it; of a list, one answer for each text, None for a blank one."""
    console = SafeConsole(stderr=True)
    with show_progress(console, verb, delay_seconds=2.0) as tell, summarise_warnings():
        former = load_model(model, placement)
        if not isinstance(given[0], list):
            return getattr(former, verb)(*given, tell=tell, **how)
        texts = split_tab_pairs(given[0]) if can_read_pairs(former) else given[0]
        found = iter(getattr(former, verb)([text for text in texts if text], tell=tell, **how))
        return [next(found) if text else None for text in texts]


def can_read_pairs(former: Any) -> bool:
    """A tab may stand between two texts: the model has not learned from single ones alone."""
    if former.task:
        return former.task["name"] in ("classify", "regress") and former.task.get("takes_pairs") is not False
    return former.head == "classify" or (former.is_encoder_decoder and former.head == "lm")


def collect_inputs(
    texts: Iterable[str],
    file: Path | None,
    reading: TextFileOptions | None,
    second_text: str | None = None,
    words: bool = False,
) -> list[Any]:
    """What the command line and a file ask about; a pair is given with --other, or has a tab between. Of a blank row of
    a file nothing is said, but it keeps its place."""
    found: list[Any] = list(texts)
    if blank := next((n for n, text in enumerate(found, 1) if not text.strip()), None):
        raise Error(f"text {blank} is empty", fix="leave empty texts out")
    if file is not None:
        more, note = read_inputs(file, reading or TextFileOptions(), words)
        if gaps := sum(not one for one in more):
            note = "; ".join(filter(None, (note, f"{gaps:,} without text, answered by null")))
        if note:
            SafeConsole(stderr=True).print(f"{escape_line(file)}: {note}")
        found += more
    if not any(found):
        raise Error("there is no text", fix="give texts behind the model, or --file FILE")
    if second_text is not None and any(isinstance(one, tuple) or "\t" in one for one in found):
        raise Error("a pair has its second text already", fix="leave --other out, or name one column: --column NAME")
    return [(one, second_text) if one else one for one in found] if second_text is not None else found


def print_results(rows: Sequence[Any], format_row: Callable[[int, Any], str], as_json: bool) -> None:
    """One line of JSON for each; on a terminal, unless it is asked for, words for people."""
    for number, row in enumerate(rows):
        if as_json or not sys.stdout.isatty():
            print_json(row)
        else:
            print_text("" if row is None else format_row(number, row))


def format_one_line(text: Any) -> str:
    """A text or a pair in one line."""
    return " | ".join(" ".join(str(part).split()) for part in (text if isinstance(text, tuple) else (text,)))


def classify(
    model: str, *texts: TextArgument, other: str | None = None, file: FileArgument = None,
    as_json: JsonFlag = False, placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Print the label of each text and its probability; as JSON, with all probabilities.

    formers classify runs/textcnn-classify-1/model "A fine film." "Dull."
    formers classify runs/bert-classify-1/model --file reviews.txt
    formers classify runs/bert-classify-1/model --file pairs.tsv --column premise,hypothesis > said.jsonl

    Parameters
    ----------
    model
        A model that was trained to classify.
    texts
        Texts; of a model for pairs, two of them with a tab between.
    other
        The second text of a pair, for all texts.
    file
        A text in each line, or a table with a text (or two) in each row; - reads the standard input.
    """
    given = collect_inputs(texts, file, reading, other)
    rows = [one and asdict(one) for one in run_verb(model, "classify", given, placement=placement)]
    wide = max(map(len, next(filter(None, rows))["probabilities"]))

    def format_row(number: int, row: dict[str, Any]) -> str:
        name = ", ".join(row["labels"]) or row["label"]
        return f"{row['probability']:6.1%}  {name:<{wide}}  {format_one_line(given[number])}"

    print_results(rows, format_row, as_json)


def score(
    model: str, *texts: TextArgument, other: str | None = None, file: FileArgument = None,
    as_json: JsonFlag = False, placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Print the score of each text or pair of texts: a rating or similarity; with a language model, the text's
    log-probability in nats and its perplexity.

    formers score runs/bert-regress-1/model "A man is running." --other "Someone runs."
    formers score my-gpt2 "The people of the United States"

    Parameters
    ----------
    model
        A model that was trained to regress, or a language model.
    texts
        Texts; pairs have a tab between.
    other
        The second text of a pair, for all texts.
    file
        A text or a pair in each line, or a table with a text (or two) in each row; - reads the standard input.
    """
    given = collect_inputs(texts, file, reading, other)
    rows = [
        {"total": s.total_log_prob, "tokens": len(s.tokens), "perplexity": s.perplexity}
        if hasattr(s, "perplexity")
        else s
        for s in run_verb(model, "score", given, placement=placement)
    ]

    def format_row(number: int, row: Any) -> str:
        whole = isinstance(row, dict)
        said = f"{row['total']:9.2f} nats  perplexity {row['perplexity']:<9.4g}" if whole else f"{row:9.4f}"
        return f"{said}  {format_one_line(given[number])}"

    print_results(rows, format_row, as_json)


def tag(
    model: str, *texts: TextArgument, file: FileArgument = None, entities: bool = False, as_json: JsonFlag = False,
    placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Print the words of each text with their tags (token classification, NER), or the entities that the tags mark.

    formers tag runs/bert-tag-1/model "Anna lives in Seoul."
    formers tag runs/bert-tag-1/model "Anna lives in Seoul." --entities
    formers tag runs/bert-tag-1/model --file test.conll

    Parameters
    ----------
    model
        A model that was trained to tag.
    texts
        Texts.
    file
        A text in each line, a table with a text in each row, or a conll file, of which the words are read; - reads
        the standard input.
    entities
        Print entities such as persons and places, each with its label, instead of tagged words.
    """
    given = collect_inputs(texts, file, reading, words=True)
    rows = run_verb(model, "tag", given, entities=entities, placement=placement)

    def format_row(number: int, row: list[dict[str, Any]]) -> str:
        named = [
            (w["score"], w["text"], w["label"]) if entities else (w["probability"], w["word"], w["tag"]) for w in row
        ]
        wide = max((len(text) for _, text, _ in named), default=0)
        found = [f"{sure:6.1%}  {text:<{wide}}  {label}" for sure, text, label in named]
        return "\n".join(["", *found] if number else found)

    print_results([None if row is None else [asdict(word) for word in row] for row in rows], format_row, as_json)


def answer(
    model: str, question: str, context: str | None = None, *, file: FileArgument = None, best: int = 1,
    abstain: Annotated[bool | None, Parameter(negative="--no-abstain")] = None, as_json: JsonFlag = False,
    placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Find the answer to a question in a context (extractive question answering).

    formers answer runs/bert-answer-1/model "Who wrote it?" "It was written by Kim Sowol."
    formers answer runs/bert-answer-1/model "Who wrote it?" --file book.txt --best 3

    Parameters
    ----------
    model
        A model that was trained to answer.
    question
        The question.
    context
        The text that contains the answer, of any length.
    file
        A file with that text, instead.
    best
        How many answers to print.
    abstain
        Allow "no answer"; --no-abstain does not. By default as the model was trained.
    """
    if file is not None:
        context = read_whole_text(file, reading or TextFileOptions())
    if context is None:
        raise Error("there is no context", fix="give it behind the question, or --file FILE")
    found = run_verb(model, "answer", question, context, best=best, abstain=abstain, placement=placement)
    rows = [asdict(one) for one in (found if isinstance(found, list) else [found])]

    def format_row(number: int, row: dict[str, Any]) -> str:
        where = f"  ({row['start']}-{row['end']})" if row["start"] >= 0 else "no answer"
        return f"{row['probability']:6.1%}  {format_one_line(row['text'])}{where}"

    print_results(rows, format_row, as_json)


def choose(
    model: str, question: str, *choices: TextArgument, as_json: JsonFlag = False, placement: Placement | None = None
) -> None:
    """Print the likeliest of several choices (multiple choice), with all probabilities.

    formers choose runs/bert-choose-1/model "She opened the umbrella because" "it rained." "it was dry."

    Parameters
    ----------
    model
        A model that was trained to choose.
    question
        The text before the choices.
    choices
        Two or more.
    """
    row = asdict(run_verb(model, "choose", question, list(choices), placement=placement))
    order = sorted(zip(row["probabilities"], choices, strict=True), reverse=True)
    print_results(
        [row], lambda _, __: "\n".join(f"{share:6.1%}  {format_one_line(text)}" for share, text in order), as_json
    )
