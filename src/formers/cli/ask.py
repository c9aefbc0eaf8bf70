"""formers classify, score, tag, answer, choose: what fine-tuned models say of texts; JSON lines, one for each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ..errors import Error
from .progress import progress

Texts = Annotated[str, Parameter(allow_leading_hyphen=True)]


def run(model: str, verb: str, *given: Any, device: str | None = None, **how: Any) -> Any:
    """Load a model and ask it."""
    from ..interop.directory import load

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    former = load(model)
    if device is not None:
        former.to(device)
    with progress(console, verb, quiet=2.0) as tell:
        return getattr(former, verb)(*given, tell=tell, **how)


def lines(texts: Iterable[str], file: Path | None, pair: bool = False) -> list[Any]:
    """The texts of the command line, or the lines of a file ("-": what comes in); a pair has a tab between."""
    found: list[Any] = list(texts)
    if file is not None:
        try:
            whole = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Error(f"cannot be read ({error})", where=file, fix="give a text file in UTF-8") from None
        found += [line for line in whole.split("\n") if line.strip()]
    if not found:
        raise Error("there is no text", fix="give texts behind the model, or --file FILE")
    return [tuple(text.split("\t", 1)) if "\t" in text else text for text in found] if pair else found


def put(rows: Iterable[Any]) -> None:
    """One line of JSON for each."""
    for row in rows:
        print(json.dumps(row, ensure_ascii=False))


def classify(
    model: str, *texts: Texts, other: str | None = None, file: Path | None = None, device: str | None = None
) -> None:
    """Print the label of each text, with all probabilities.

    formers classify runs/textcnn-classify-1/model "A fine film." "Dull."
    formers classify runs/bert-classify-1/model --file reviews.txt

    Parameters
    ----------
    model
        A model that was trained to classify.
    texts
        Texts; of a model for pairs, two of them with a tab between.
    other
        The second text of a pair, for all texts.
    file
        A file with a text in each line; - reads what is piped in.
    device
        cuda, cpu.
    """
    rows = [(t, other) if other is not None else t for t in lines(texts, file, pair=True)]
    put(asdict(one) for one in run(model, "classify", rows, device=device))


def score(
    model: str, *texts: Texts, other: str | None = None, file: Path | None = None, device: str | None = None
) -> None:
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
        A file with a text or a pair in each line; - reads what is piped in.
    device
        cuda, cpu.
    """
    rows = [(t, other) if other is not None else t for t in lines(texts, file, pair=True)]
    said = run(model, "score", rows, device=device)
    put({"total": s.total, "tokens": len(s.tokens), "perplexity": s.perplexity} if hasattr(s, "perplexity") else s
        for s in said)  # fmt: skip


def tag(model: str, *texts: Texts, file: Path | None = None, device: str | None = None) -> None:
    """Print the words of each text with their tags and where they stand.

    formers tag runs/bert-tag-1/model "Anna lives in Seoul."

    Parameters
    ----------
    model
        A model that was trained to tag.
    texts
        Texts.
    file
        A file with a text in each line; - reads what is piped in.
    device
        cuda, cpu.
    """
    put([asdict(word) for word in row] for row in run(model, "tag", lines(texts, file), device=device))


def answer(
    model: str, question: str, context: str | None = None, *, file: Path | None = None, best: int = 1,
    abstain: bool | None = None, device: str | None = None,
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
    device
        cuda, cpu.
    """
    if file is not None:
        context = "\n".join(lines([], file))
    if context is None:
        raise Error("there is no context", fix="give it behind the question, or --file FILE")
    found = run(model, "answer", question, context, best=best, abstain=abstain, device=device)
    put(asdict(one) for one in (found if isinstance(found, list) else [found]))


def choose(model: str, question: str, *choices: Texts, device: str | None = None) -> None:
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
    device
        cuda, cpu.
    """
    put([asdict(run(model, "choose", question, list(choices), device=device))])
