"""formers classify, score, tag, answer, choose: what fine-tuned models say of texts; to read on a terminal, JSON lines
by a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..errors import Error
from .common import Placement, load_model
from .convert import noted
from .progress import progress
from .reading import Reading, items, paired, whole
from .screen import Screen, print_json, print_text, show_line

Texts = Annotated[str, Parameter(allow_leading_hyphen=True)]
File = Annotated[Path | None, Parameter(allow_leading_hyphen=True)]  # - is a pipe
Json = Annotated[bool, Parameter(help="JSON lines on a terminal too.")]


def run(model: str, verb: str, *given: Any, placement: Placement | None = None, **how: Any) -> Any:
    """Load a model and ask it; of a list, one answer for each text, None for a blank one."""
    console = Screen(stderr=True)
    with progress(console, verb, quiet=2.0) as tell, noted():
        former = load_model(model, placement)
        if not isinstance(given[0], list):
            return getattr(former, verb)(*given, tell=tell, **how)
        texts = paired(given[0]) if knows_pairs(former) else given[0]
        found = iter(getattr(former, verb)([text for text in texts if text], tell=tell, **how))
        return [next(found) if text else None for text in texts]


def knows_pairs(former: Any) -> bool:
    """A tab may stand between two texts: the model has not learned from single ones alone."""
    if former.task:
        return former.task["name"] in ("classify", "regress") and former.task.get("pair") is not False
    return former.head == "classify" or (former.pair and former.head == "lm")


def asked(
    texts: Iterable[str], file: Path | None, reading: Reading | None, other: str | None = None, words: bool = False
) -> list[Any]:
    """What the command line and a file ask about; a pair is given with --other, or has a tab between. Of a blank row of
    a file nothing is said, but it keeps its place."""
    found: list[Any] = list(texts)
    if blank := next((n for n, text in enumerate(found, 1) if not text.strip()), None):
        raise Error(f"text {blank} is empty", fix="leave empty texts out")
    if file is not None:
        more, note = items(file, reading or Reading(), words)
        if gaps := sum(not one for one in more):
            note = "; ".join(filter(None, (note, f"{gaps:,} without text, answered by null")))
        if note:
            Screen(stderr=True).print(f"{show_line(file)}: {note}")
        found += more
    if not any(found):
        raise Error("there is no text", fix="give texts behind the model, or --file FILE")
    if other is not None and any(isinstance(one, tuple) or "\t" in one for one in found):
        raise Error("a pair has its second text already", fix="leave --other out, or name one column: --column NAME")
    return [(one, other) if one else one for one in found] if other is not None else found


def put(rows: Sequence[Any], plain: Callable[[int, Any], str], as_json: bool) -> None:
    """One line of JSON for each; on a terminal, unless it is asked for, words for people."""
    for number, row in enumerate(rows):
        if as_json or not sys.stdout.isatty():
            print_json(row)
        else:
            print_text("" if row is None else plain(number, row))


def line(text: Any) -> str:
    """A text or a pair in one line."""
    return " | ".join(" ".join(str(part).split()) for part in (text if isinstance(text, tuple) else (text,)))


def classify(
    model: str, *texts: Texts, other: str | None = None, file: File = None,
    as_json: Json = False, placement: Placement | None = None, reading: Reading | None = None,
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
        A text in each line, or a table with a text (or two) in each row; - reads what is piped in.
    """
    given = asked(texts, file, reading, other)
    rows = [one and asdict(one) for one in run(model, "classify", given, placement=placement)]
    wide = max(map(len, next(filter(None, rows))["probabilities"]))

    def plain(number: int, row: dict[str, Any]) -> str:
        name = ", ".join(row["labels"]) or row["label"]
        return f"{row['probability']:6.1%}  {name:<{wide}}  {line(given[number])}"

    put(rows, plain, as_json)


def score(
    model: str, *texts: Texts, other: str | None = None, file: File = None,
    as_json: Json = False, placement: Placement | None = None, reading: Reading | None = None,
) -> None:  # fmt: skip
    """Print the number that a model gives each text, or pair of texts: a rating, a similarity; of a language model, how
    likely a text is, in nats, and its perplexity.

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
        A text or a pair in each line, or a table with a text (or two) in each row; - reads what is piped in.
    """
    given = asked(texts, file, reading, other)
    rows = [
        {"total": s.total, "tokens": len(s.tokens), "perplexity": s.perplexity} if hasattr(s, "perplexity") else s
        for s in run(model, "score", given, placement=placement)
    ]

    def plain(number: int, row: Any) -> str:
        whole = isinstance(row, dict)
        said = f"{row['total']:9.2f} nats  perplexity {row['perplexity']:<9.4g}" if whole else f"{row:9.4f}"
        return f"{said}  {line(given[number])}"

    put(rows, plain, as_json)


def tag(
    model: str, *texts: Texts, file: File = None, entities: bool = False, as_json: Json = False,
    placement: Placement | None = None, reading: Reading | None = None,
) -> None:  # fmt: skip
    """Print the words of each text with their tags and where they stand, or the entities that the tags mark.

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
        what is piped in.
    entities
        Print persons, places and so on as a whole, each with its label, in place of tagged words.
    """
    given = asked(texts, file, reading, words=True)
    rows = run(model, "tag", given, entities=entities, placement=placement)

    def plain(number: int, row: list[dict[str, Any]]) -> str:
        named = [
            (w["score"], w["text"], w["label"]) if entities else (w["probability"], w["word"], w["tag"]) for w in row
        ]
        wide = max((len(text) for _, text, _ in named), default=0)
        found = [f"{sure:6.1%}  {text:<{wide}}  {label}" for sure, text, label in named]
        return "\n".join(["", *found] if number else found)

    put([None if row is None else [asdict(word) for word in row] for row in rows], plain, as_json)


def answer(
    model: str, question: str, context: str | None = None, *, file: File = None, best: int = 1,
    abstain: bool | None = None, as_json: Json = False, placement: Placement | None = None,
    reading: Reading | None = None,
) -> None:  # fmt: skip
    """Print where in a context the answer to a question stands.

    formers answer runs/bert-answer-1/model "Who wrote it?" "It was written by Kim Sowol."
    formers answer runs/bert-answer-1/model "Who wrote it?" --file book.txt --best 3

    Parameters
    ----------
    model
        A model that was trained to answer.
    question
        The question.
    context
        The text that holds the answer,
    file
        or a file with it; of any length.
    best
        How many answers.
    abstain
        "No answer" may be one.
    """
    if file is not None:
        context = whole(file, reading or Reading())
    if context is None:
        raise Error("there is no context", fix="give it behind the question, or --file FILE")
    found = run(model, "answer", question, context, best=best, abstain=abstain, placement=placement)
    rows = [asdict(one) for one in (found if isinstance(found, list) else [found])]

    def plain(number: int, row: dict[str, Any]) -> str:
        where = f"  ({row['start']}-{row['end']})" if row["start"] >= 0 else "no answer"
        return f"{row['probability']:6.1%}  {line(row['text'])}{where}"

    put(rows, plain, as_json)


def choose(
    model: str, question: str, *choices: Texts, as_json: Json = False, placement: Placement | None = None
) -> None:
    """Print which choice a model takes, with all probabilities.

    formers choose runs/bert-choose-1/model "She opened the umbrella because" "it rained." "it was dry."

    Parameters
    ----------
    model
        A model that was trained to choose.
    question
        The text in front.
    choices
        Two or more.
    """
    row = asdict(run(model, "choose", question, list(choices), placement=placement))
    order = sorted(zip(row["probabilities"], choices, strict=True), reverse=True)
    put([row], lambda _, __: "\n".join(f"{share:6.1%}  {line(text)}" for share, text in order), as_json)
