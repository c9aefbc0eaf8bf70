"""formers generate, translate, summarise, fill: text out of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import Error
from .common import Placement, load_model, summarise_warnings
from .terminal import SafeConsole, print_json, print_text, show_progress
from .text_input import TextFileOptions, TextUnit, read_file_texts, read_stdin

TEXTS_PER_BATCH = 32  # texts that are handed over at a time, so that one sees how far it is


@Parameter(name="*")
@dataclass(frozen=True)
class GenerationOptions:
    """How text is generated."""

    temperature: Annotated[float | None, Parameter(help="Sampling temperature; 0 is greedy.")] = None
    top_k: Annotated[int | None, Parameter(help="Sample from this many of the likeliest tokens.")] = None
    top_p: Annotated[float | None, Parameter(help="Nucleus sampling: the likeliest tokens up to this total.")] = None
    min_p: Annotated[
        float | None, Parameter(help="Sample from tokens at least this many times as likely as the first.")
    ] = None
    typical_p: Annotated[float | None, Parameter(help="Locally typical sampling, up to this probability mass.")] = None
    seed: Annotated[int, Parameter(help="Random seed of sampling.")] = 0
    num_samples: Annotated[int | None, Parameter(help="Texts to generate for each prompt.")] = None
    num_beams: Annotated[int | None, Parameter(help="Beam search with this many beams.")] = None
    length_penalty: Annotated[
        float | None, Parameter(help="Beam search: exponent of the length; higher prefers longer texts.")
    ] = None
    length_normalisation: Annotated[
        Literal["length", "gnmt"] | None, Parameter(help="Beam search: how scores are normalised by length.")
    ] = None
    coverage: Annotated[float | None, Parameter(help="Beam search: weight of the coverage penalty (GNMT).")] = None
    early_stopping: Annotated[
        Literal["yes", "no", "never"] | None,
        Parameter(
            help="Beam search stops at enough texts (yes), when a better one is unlikely (no), or impossible (never)."
        ),
    ] = None
    no_repeat_ngram: Annotated[int | None, Parameter(help="Never repeat an n-gram of this length.")] = None
    repetition_penalty: Annotated[
        float | None, Parameter(help="Above 1, tokens that have occurred become less likely.")
    ] = None
    bad_words: Annotated[tuple[str, ...], Parameter(help="A word never to generate; may be given several times.")] = ()
    min_new_tokens: Annotated[int | None, Parameter(help="The fewest tokens to generate.")] = None
    stop: Annotated[tuple[str, ...], Parameter(help="Stop before this string; may be given several times.")] = ()

    def to_keywords(self) -> dict[str, Any]:
        """Return the options as keywords of formers.generate."""
        said = {name: value for name, value in asdict(self).items() if value not in (None, ())}
        if self.early_stopping is not None:
            said["early_stopping"] = {"yes": True, "no": False}.get(self.early_stopping, self.early_stopping)
        return said


def generate(
    model: str,
    prompt: str | None = None,
    *,
    file: Path | None = None,
    max_new_tokens: int = 64,
    draft: str | None = None,
    as_json: bool = False,
    generation: GenerationOptions | None = None,
    placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:
    """Continue a text, or answer it with an encoder-decoder; the new text is printed as it is generated.

    formers generate my-gpt2 "Once upon a time" --max-new-tokens 40 --top-p 0.9
    formers generate my-gpt2 --prompt "옛날 옛적에" --seed 7 --num-samples 3
    formers generate my-gpt2 --file prompts.txt --num-beams 4 --as-json
    echo "The meaning of life is" | formers generate my-gpt2 --temperature 0
    formers generate my-gpt2-xl "Once upon a time" --dtype int8 --draft my-gpt2

    Parameters
    ----------
    model
        A formers directory, the folder of a training run, a Hugging Face directory or hub:owner/name.
    prompt
        The text to continue. Without it and without --file, the standard input is read.
    file
        A file of prompts, one in each line, or a table. A blank line gives a blank line.
    max_new_tokens
        The most tokens to generate.
    draft
        A smaller model with the same vocabulary, for speculative decoding.
    as_json
        One line of JSON for each prompt.
    """
    given = read_prompts(prompt, file, reading, "line")
    how = (generation or GenerationOptions()).to_keywords()
    former = load_with_progress(model, placement)
    if draft is not None:
        how["draft"] = load_with_progress(draft, placement)
    elif (
        len(given) == 1
        and (given[0] or prompt is not None)
        and not as_json
        and not {"num_samples", "num_beams"} & set(how)
    ):
        with summarise_warnings():
            for piece in former.generate(given[0], max_new_tokens, stream=True, **how):
                print_text(piece, end="")
        print_text("")
        return
    run_in_batches(
        "generate", given, lambda some: former.generate(some, max_new_tokens, **how), as_json, prompt is None
    )


def translate(
    model: str,
    text: str | None = None,
    *,
    to: str | None = None,
    source: str | None = None,
    file: Path | None = None,
    max_new_tokens: int | None = None,
    as_json: bool = False,
    generation: GenerationOptions | None = None,
    placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:
    """Translate a text, or every line of a file or of the standard input.

    formers translate my-marian "Wie geht es dir?"
    formers translate my-t5 "How are you?" --to German
    formers translate my-mbart --file sentences.txt --source en_XX --to ko_KR --num-beams 5

    Parameters
    ----------
    model
        An encoder-decoder, or a decoder, which is prompted.
    text
        What to translate. Without it and without --file, the lines of the standard input are read.
    to
        The target language, for models with several: German, or ko_KR for mBART.
    source
        The language of the text; English by default.
    file
        A file of texts, one in each line, or a table.
    max_new_tokens
        The most tokens of a translation; by default as the model says, or 64.
    as_json
        One line of JSON for each text.
    """
    given = read_prompts(text, file, reading, "line", lines=True)
    how = (generation or GenerationOptions()).to_keywords() | {"max_new_tokens": max_new_tokens}
    former = load_with_progress(model, placement)
    run_in_batches("translate", given, lambda some: former.translate(some, to, source, **how), as_json, text is None)


def summarise(
    model: str,
    text: str | None = None,
    *,
    file: Path | None = None,
    max_new_tokens: int | None = None,
    as_json: bool = False,
    generation: GenerationOptions | None = None,
    placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:
    """Summarise a text, or every document of a file.

    formers summarise my-bart --file articles.txt
    formers summarise my-t5 --max-new-tokens 80 --num-beams 4 < article.txt
    formers summarise my-gpt2 "A long story …" --top-k 2

    Parameters
    ----------
    model
        An encoder-decoder, or a decoder, which is prompted with the text and "TL;DR:".
    text
        What to summarise. Without it and without --file, the standard input is read.
    file
        A file of documents: txt with blank lines between them, jsonl, csv, tsv, parquet.
    max_new_tokens
        The most tokens of a summary; by default as the model says, or 64.
    as_json
        One line of JSON for each text.
    """
    given = read_prompts(text, file, reading, "auto")
    how = (generation or GenerationOptions()).to_keywords() | {"max_new_tokens": max_new_tokens}
    former = load_with_progress(model, placement)
    run_in_batches("summarise", given, lambda some: former.summarise(some, **how), as_json, text is None)


def fill(
    model: str,
    text: str | None = None,
    *,
    file: Path | None = None,
    top_k: int = 5,
    as_json: bool = False,
    placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:
    """Fill the blanks in a text, written ___ (three underscores).

    formers fill my-bert "The capital of France is ___."
    formers fill my-bert "나는 ___에 가서 ___을 먹었다." --top-k 3
    formers fill my-bert --file blanks.txt --as-json

    Parameters
    ----------
    model
        A masked language model.
    text
        The text with its blanks. Without it and without --file, the lines of the standard input are read.
    file
        A file of texts, one in each line, or a table.
    top_k
        How many candidates to print for each blank.
    as_json
        One line of JSON for each text.
    """
    given = read_prompts(text, file, reading, "line", lines=True)
    former = load_with_progress(model, placement)
    with summarise_warnings():
        found = iter(former.fill([one for one in given if one or text is not None], top_k))
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


def read_prompts(
    text: str | None, file: Path | None, reading: TextFileOptions | None, unit: TextUnit, lines: bool = False
) -> list[str]:
    """Texts of the command line, of a file, or of the standard input, where they may be lines."""
    if text is not None and file is not None:
        raise Error("a text and --file are two sources", fix="give one of them")
    if text is not None:
        return [text]
    if file is not None:
        return read_file_texts(file, reading or TextFileOptions(), unit)
    how = reading or TextFileOptions()
    return read_file_texts(Path("-"), how) if lines else [read_stdin(how.encoding).rstrip("\n")]


def load_with_progress(model: str, placement: Placement | None) -> Any:
    """Load a model, with a bar if that takes long."""
    with show_progress(SafeConsole(stderr=True), "load", delay_seconds=2) as tell:
        return load_model(model, placement, tell)


def run_in_batches(
    verb: str, given: list[str], run: Callable[[list[str]], list[Any]], as_json: bool, keep_blank_lines: bool
) -> None:
    """Run a verb over texts, some at a time, and print the answers as they come; with `keep_blank_lines`, a blank line
    gives a blank line."""
    several = len(given) > 1
    with summarise_warnings(), show_progress(SafeConsole(stderr=True), verb, delay_seconds=2) as tell:
        for at in range(0, len(given), TEXTS_PER_BATCH):
            some = given[at : at + TEXTS_PER_BATCH]
            asked = [prompt for prompt in some if prompt or not keep_blank_lines]
            answers = iter(run(asked) if asked else [])
            for prompt in some:
                made = next(answers) if prompt or not keep_blank_lines else []
                found = made if isinstance(made, list) else [made]
                if as_json:
                    print_json({"prompt": prompt, "texts": found})
                else:  # a line for each text, where there are several of them
                    said = [" ".join(one.split()) for one in found] if several or len(found) > 1 else found
                    print_text("\n".join(said))
            tell("texts", min(at + TEXTS_PER_BATCH, len(given)), len(given), "")
