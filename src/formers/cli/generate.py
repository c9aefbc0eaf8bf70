"""formers generate, translate, summarise, fill: text out of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import Error
from .common import Placement, load_model
from .convert import noted
from .progress import progress
from .reading import Reading, Unit, piped
from .reading import lines as of_file
from .screen import Screen, print_json, print_text

AT_ONCE = 32  # texts that are handed over at a time, so that one sees how far it is


@Parameter(name="*")
@dataclass(frozen=True)
class Writing:
    """How text is written."""

    temperature: Annotated[float | None, Parameter(help="0 takes the likeliest token; the higher, the bolder.")] = None
    top_k: Annotated[int | None, Parameter(help="Draw from so many of the likeliest tokens.")] = None
    top_p: Annotated[float | None, Parameter(help="Draw from the likeliest tokens that have this probability.")] = None
    min_p: Annotated[float | None, Parameter(help="Draw from tokens this many times as likely as the first.")] = None
    typical: Annotated[float | None, Parameter(help="Draw from tokens as surprising as usual, up to this mass.")] = None
    seed: Annotated[int, Parameter(help="Another seed, another text.")] = 0
    samples: Annotated[int | None, Parameter(help="Texts for each prompt.")] = None
    beams: Annotated[int | None, Parameter(help="Search for the likeliest text with so many beams.")] = None
    length_penalty: Annotated[float | None, Parameter(help="Of a search: above 0 likes longer texts.")] = None
    normalise: Annotated[Literal["length", "gnmt"] | None, Parameter(help="Of a search: how lengths count.")] = None
    coverage: Annotated[float | None, Parameter(help="Of a search: what it costs to leave source words out.")] = None
    early: Annotated[
        Literal["yes", "no", "never"] | None, Parameter(help="Of a search: stop as soon as there are enough texts.")
    ] = None
    no_repeat: Annotated[int | None, Parameter(help="No so many tokens in a row twice.")] = None
    repetition_penalty: Annotated[float | None, Parameter(help="Above 1, tokens that are there become rarer.")] = None
    banned: Annotated[tuple[str, ...], Parameter(help="A word never to write; may be given several times.")] = ()
    min_tokens: Annotated[int | None, Parameter(help="Tokens at least.")] = None
    stop: Annotated[tuple[str, ...], Parameter(help="End before this string; may be given several times.")] = ()

    def options(self) -> dict[str, Any]:
        """As formers.generate wants them."""
        said = {name: value for name, value in asdict(self).items() if value not in (None, ())}
        if self.early is not None:
            said["early"] = {"yes": True, "no": False}.get(self.early, self.early)
        return said


def generate(
    model: str,
    prompt: str | None = None,
    *,
    file: Path | None = None,
    tokens: int = 64,
    draft: str | None = None,
    as_json: bool = False,
    writing: Writing | None = None,
    placement: Placement | None = None,
    reading: Reading | None = None,
) -> None:
    """Continue a text, or answer with an encoder-decoder; what is written is shown as it comes, without the prompt.

    formers generate my-gpt2 "Once upon a time" --tokens 40 --top-p 0.9
    formers generate my-gpt2 --prompt "옛날 옛적에" --seed 7 --samples 3
    formers generate my-gpt2 --file prompts.txt --beams 4 --as-json
    echo "The meaning of life is" | formers generate my-gpt2 --temperature 0
    formers generate my-gpt2-xl "Once upon a time" --dtype int8 --draft my-gpt2

    Parameters
    ----------
    model
        A formers directory, the folder of a training run, a Hugging Face directory or hub:owner/name.
    prompt
        The text to begin with. Without it and without --file, it is read from the standard input.
    file
        A file of prompts, one on each line, or a table of them. A blank line gives a blank line.
    tokens
        Tokens at most.
    draft
        A smaller model of the same vocabulary, which guesses tokens ahead of this one.
    as_json
        One line of JSON for each prompt.
    """
    given = texts(prompt, file, reading, "line")
    how = (writing or Writing()).options()
    former = ready(model, placement)
    if draft is not None:
        how["draft"] = ready(draft, placement)
    elif len(given) == 1 and (given[0] or prompt is not None) and not as_json and not {"samples", "beams"} & set(how):
        with noted():
            for piece in former.generate(given[0], tokens, stream=True, **how):
                print_text(piece, end="")
        print_text("")
        return
    answered("generate", given, lambda some: former.generate(some, tokens, **how), as_json, prompt is None)


def translate(
    model: str,
    text: str | None = None,
    *,
    to: str | None = None,
    source: str | None = None,
    file: Path | None = None,
    tokens: int | None = None,
    as_json: bool = False,
    writing: Writing | None = None,
    placement: Placement | None = None,
    reading: Reading | None = None,
) -> None:
    """Translate a text, or every line of a file or of the standard input.

    formers translate my-marian "Wie geht es dir?"
    formers translate my-t5 "How are you?" --to German
    formers translate my-mbart --file sentences.txt --source en_XX --to ko_KR --beams 5

    Parameters
    ----------
    model
        A model: an encoder-decoder, or a decoder, which is prompted.
    text
        What to translate. Without it and without --file, lines are read from the standard input.
    to
        The language to translate into, where the model does not know it: German, or ko_KR for mBART.
    source
        The language of the text, if it is not English.
    file
        A file of texts, one on each line, or a table of them.
    tokens
        Tokens of a translation at most; by default as the model says, or 64.
    as_json
        One line of JSON for each text.
    """
    given = texts(text, file, reading, "line", lines=True)
    how = (writing or Writing()).options() | {"tokens": tokens}
    former = ready(model, placement)
    answered("translate", given, lambda some: former.translate(some, to, source, **how), as_json, text is None)


def summarise(
    model: str,
    text: str | None = None,
    *,
    file: Path | None = None,
    tokens: int | None = None,
    as_json: bool = False,
    writing: Writing | None = None,
    placement: Placement | None = None,
    reading: Reading | None = None,
) -> None:
    """Summarise a text, or every document of a file.

    formers summarise my-bart --file articles.txt
    formers summarise my-t5 --tokens 80 --beams 4 < article.txt
    formers summarise my-gpt2 "A long story …" --top-k 2

    Parameters
    ----------
    model
        A model: an encoder-decoder, or a decoder, which reads the text and "TL;DR:".
    text
        What to summarise. Without it and without --file, it is read from the standard input.
    file
        A file of documents: txt with blank lines between them, jsonl, csv, tsv, parquet.
    tokens
        Tokens of a summary at most; by default as the model says, or 64.
    as_json
        One line of JSON for each text.
    """
    given = texts(text, file, reading, "auto")
    how = (writing or Writing()).options() | {"tokens": tokens}
    former = ready(model, placement)
    answered("summarise", given, lambda some: former.summarise(some, **how), as_json, text is None)


def fill(
    model: str,
    text: str | None = None,
    *,
    file: Path | None = None,
    top: int = 5,
    as_json: bool = False,
    placement: Placement | None = None,
    reading: Reading | None = None,
) -> None:
    """Fill the blanks in a text, written ___ (three underscores).

    formers fill my-bert "The capital of France is ___."
    formers fill my-bert "나는 ___에 가서 ___을 먹었다." --top 3
    formers fill my-bert --file blanks.txt --as-json

    Parameters
    ----------
    model
        A masked language model.
    text
        The text with its blanks. Without it and without --file, lines are read from the standard input.
    file
        A file of texts, one on each line, or a table of them.
    top
        How many guesses for each blank.
    as_json
        One line of JSON for each text.
    """
    given = texts(text, file, reading, "line", lines=True)
    former = ready(model, placement)
    with noted():
        found = iter(former.fill([one for one in given if one or text is not None], top))
    for one in given:
        guesses = next(found) if one or text is not None else []
        blanks = guesses if not one or isinstance(guesses[0], list) else [guesses]
        if as_json:
            said = {"text": one, "blanks": [[asdict(guess) for guess in blank] for blank in blanks]}
            print_json(said)
            continue
        if not one:
            print_text("")
        for number, blank in enumerate(blanks, 1):
            if len(given) > 1 or len(blanks) > 1:
                print_text(one + (f"   (blank {number})" if len(blanks) > 1 else ""))
            for guess in blank:
                print_text(f"  {guess.probability:6.1%}  {guess.token:<16} {guess.text}")


def texts(text: str | None, file: Path | None, reading: Reading | None, unit: Unit, lines: bool = False) -> list[str]:
    """Texts of the command line, of a file, or of the standard input, where they may be lines."""
    if text is not None and file is not None:
        raise Error("a text and --file are two sources", fix="give one of them")
    if text is not None:
        return [text]
    if file is not None:
        return of_file(file, reading or Reading(), unit)
    how = reading or Reading()
    return of_file(Path("-"), how) if lines else [piped(how.encoding).rstrip("\n")]


def ready(model: str, placement: Placement | None) -> Any:
    """Load a model, with a bar if that takes long."""
    with progress(Screen(stderr=True), "load", quiet=2) as tell:
        return load_model(model, placement, tell)


def answered(verb: str, given: list[str], run: Callable[[list[str]], list[Any]], as_json: bool, blanks: bool) -> None:
    """Run a verb over texts, some at a time, and print what comes as it comes; a blank line gives one with `blanks`."""
    several = len(given) > 1
    with noted(), progress(Screen(stderr=True), verb, quiet=2) as tell:
        for at in range(0, len(given), AT_ONCE):
            some = given[at : at + AT_ONCE]
            asked = [prompt for prompt in some if prompt or not blanks]
            answers = iter(run(asked) if asked else [])
            for prompt in some:
                made = next(answers) if prompt or not blanks else []
                found = made if isinstance(made, list) else [made]
                if as_json:
                    print_json({"prompt": prompt, "texts": found})
                else:  # a line for each text, where there are several of them
                    said = [" ".join(one.split()) for one in found] if several or len(found) > 1 else found
                    print_text("\n".join(said))
            tell("texts", min(at + AT_ONCE, len(given)), len(given), "")
