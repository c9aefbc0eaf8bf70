"""formers generate, translate, summarise, fill, augment: text out of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ..config import Settings
from ..errors import Error
from ..verbs import can_fill
from . import common
from .common import (
    ColumnRoles,
    FileOption,
    JsonFlag,
    ModelArgument,
    OverwriteFlag,
    Placement,
    TaskOption,
    TextFileOptions,
)
from .terminal import SafeConsole, escape_line, pad_cells, print_json, print_text, show_progress

if TYPE_CHECKING:
    from ..former import Former

TEXTS_PER_BATCH = 32  # texts that are handed over at a time, so that there is progress to show


@Parameter(name="*")
@dataclass(frozen=True)
class GenerationOptions:
    """How text is generated."""

    temperature: Annotated[float | None, Parameter(help="Sampling temperature; 0 is greedy.")] = None
    top_k: Annotated[int | None, Parameter(help="Sample from this many of the likeliest tokens.")] = None
    top_p: Annotated[
        float | None, Parameter(help="Nucleus sampling: the likeliest tokens up to this total probability.")
    ] = None
    min_p: Annotated[
        float | None,
        Parameter(help="Sample from tokens with at least this fraction of the likeliest one's probability."),
    ] = None
    typical_p: Annotated[float | None, Parameter(help="Locally typical sampling, up to this probability mass.")] = None
    seed: Annotated[int, Parameter(help="Random seed of sampling.")] = 0
    num_samples: Annotated[int | None, Parameter(help="Texts to generate for each prompt.")] = None
    num_beams: Annotated[int | None, Parameter(help="Beam search with this many beams.")] = None
    length_penalty: Annotated[
        float | None, Parameter(help="Beam search: exponent of the length; higher prefers longer texts.")
    ] = None
    length_normalisation: Annotated[
        Literal["length", "gnmt"] | None,
        Parameter(help="Beam search: divide log p by n^penalty (length) or by ((5 + n) / 6)^penalty (GNMT)."),
    ] = None
    coverage: Annotated[
        float | None,
        Parameter(help="Beam search: weight of GNMT's coverage penalty, of models that attend to a source."),
    ] = None
    early_stopping: Annotated[
        Literal["yes", "no", "never"] | None,
        Parameter(
            help="Stop beam search with enough texts (yes), or if a better one is unlikely (no) or impossible (never)."
        ),
    ] = None
    no_repeat_ngram: Annotated[int | None, Parameter(help="Never repeat an n-gram of this length.")] = None
    repetition_penalty: Annotated[
        float | None, Parameter(help="Above 1, tokens that have occurred become less likely.")
    ] = None
    bad_words: Annotated[tuple[str, ...], Parameter(help="A word never to generate; may be given several times.")] = ()
    min_new_tokens: Annotated[int | None, Parameter(help="The fewest tokens to generate.")] = None
    stop: Annotated[tuple[str, ...], Parameter(help="Stop before this string; may be given several times.")] = ()

    def to_keywords(self) -> Settings:
        """Return the options as keywords of formers.generate."""
        options = {name: value for name, value in asdict(self).items() if value not in (None, ())}
        if self.early_stopping is not None:
            options["early_stopping"] = {"yes": True, "no": False}.get(self.early_stopping, self.early_stopping)
        return options


def generate(
    model: ModelArgument, prompt: str | None = None, *, file: FileOption = None, max_new_tokens: int = 64,
    draft: str | None = None, as_json: JsonFlag = False, generation: GenerationOptions | None = None,
    placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Continue a text, or answer it with an encoder-decoder; the new text is printed as it is generated.

    formers generate my-gpt2 "Once upon a time" --max-new-tokens 40 --top-p 0.9
    formers generate my-gpt2 --prompt "옛날 옛적에" --seed 7 --num-samples 3
    formers generate my-gpt2 --file prompts.txt --num-beams 4 --as-json
    echo "The meaning of life is" | formers generate my-gpt2 --temperature 0
    formers generate my-gpt2-xl "Once upon a time" --dtype int8 --draft my-gpt2

    Args:
        prompt: The text to continue. Without it and without --file, the standard input is read.
        max_new_tokens: The most tokens to generate.
        draft: A smaller model with the same vocabulary, for speculative decoding.
    """
    prompts = read_prompts(prompt, file, reading, "line")
    how = (generation or GenerationOptions()).to_keywords() | {"max_new_tokens": max_new_tokens}
    former = load_with_progress(model, placement)
    if draft is not None:
        how["draft"] = load_with_progress(draft, placement)
    is_single = len(prompts) == 1 and (prompts[0] or prompt is not None) and not {"num_samples", "num_beams"} & set(how)
    if is_single and draft is None and not as_json:
        with common.summarise_warnings():
            for piece in former.generate(prompts[0], stream=True, **how):
                print_text(piece, end="")
        print_text("")
        return
    run_in_batches("generate", prompts, lambda some: former.generate(some, **how), as_json, prompt is None)


def translate(
    model: str, text: str | None = None, *, to: str | None = None, source: str | None = None,
    task: TaskOption = None, file: FileOption = None, max_new_tokens: int | None = None, as_json: JsonFlag = False,
    generation: GenerationOptions | None = None, placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Translate a text, or every line of a file or of the standard input.

    formers translate my-marian "Wie geht es dir?"
    formers translate my-t5 "How are you?" --to German
    formers translate my-mbart --file sentences.txt --source en_XX --to ko_KR --num-beams 5

    Args:
        model: An encoder-decoder, or a decoder, which is prompted.
        text: What to translate. Without it and without --file, the lines of the standard input are read.
        to: The target language, for models with several: German, or ko_KR for mBART.
        source: The language of the text; English by default.
        max_new_tokens: The most tokens of a translation; by default as the model says, or 64.
    """
    texts = read_prompts(text, file, reading, "line", lines=True)
    how = (generation or GenerationOptions()).to_keywords() | {"max_new_tokens": max_new_tokens}
    former = load_with_progress(model, placement).select_task(task)
    run_in_batches("translate", texts, lambda some: former.translate(some, to, source, **how), as_json, text is None)


def summarise(
    model: str, text: str | None = None, *, task: TaskOption = None, file: FileOption = None,
    max_new_tokens: int | None = None, as_json: JsonFlag = False, generation: GenerationOptions | None = None,
    placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Summarise a text, or every document of a file.

    formers summarise my-bart --file articles.txt
    formers summarise my-t5 --max-new-tokens 80 --num-beams 4 < article.txt
    formers summarise my-gpt2 "A long story …" --top-k 2

    Args:
        model: An encoder-decoder, or a decoder, which is prompted with the text and "TL;DR:".
        text: What to summarise. Without it and without --file, the standard input is read.
        file: A file of documents: txt with blank lines between them, jsonl, csv, tsv, parquet.
        max_new_tokens: The most tokens of a summary; by default as the model says, or 64.
    """
    texts = read_prompts(text, file, reading, "auto")
    how = (generation or GenerationOptions()).to_keywords() | {"max_new_tokens": max_new_tokens}
    former = load_with_progress(model, placement).select_task(task)
    run_in_batches("summarise", texts, lambda some: former.summarise(some, **how), as_json, text is None)


def fill(
    model: str, text: str | None = None, *, file: FileOption = None, top_k: int = 5, as_json: JsonFlag = False,
    placement: Placement | None = None, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Fill the blanks in a text, written ___ (masked language modelling, fill-mask; T5 and BART write spans).

    formers fill my-bert "The capital of France is ___."
    formers fill my-t5 "The capital of France ___ the Seine."
    formers fill my-bert "나는 ___에 가서 ___을 먹었다." --top-k 3
    formers fill my-bert --file blanks.txt --as-json

    Args:
        model: A masked language model, or a T5 or BART, which fill a blank with one or more words.
        text: The text; a blank is three underscores. Without it and without --file, the lines of the standard input are
            read.
        top_k: How many candidates to print for each blank.
    """
    texts = read_prompts(text, file, reading, "line", lines=True)
    former = load_with_progress(model, placement)
    with common.summarise_warnings():
        fillings = iter(former.fill([one for one in texts if one or text is not None], top_k))
    for one in texts:
        guesses = next(fillings) if one or text is not None else []
        blanks = guesses if not one or isinstance(guesses[0], list) else [guesses]
        if as_json:
            print_json({"text": one, "blanks": [[asdict(guess) for guess in blank] for blank in blanks]})
            continue
        if not one:
            print_text("")
        for number, blank in enumerate(blanks, 1):
            if len(texts) > 1 or len(blanks) > 1:
                print_text(one + (f"   (blank {number})" if len(blanks) > 1 else ""))
            for guess in blank:
                print_text(f"  {guess.probability:6.1%}  {pad_cells(guess.token, 16)} {guess.text}")


def augment(
    model: str, *, train: Path, out: Path, method: Literal["fill", "continue"] | None = None, times: int = 1,
    rate: float | None = None, label_filter: str = "linear", min_probability: float = 0.0, teach: float = 0.0,
    label_names: str | None = None, top_k: int = 20, temperature: float = 1.0, max_new_tokens: int = 40, seed: int = 0,
    columns: ColumnRoles = None, overwrite: OverwriteFlag = False, placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Make new labelled examples (data augmentation): a masked model replaces words, or a decoder continues texts.

    formers augment my-bert --train few.tsv --out more.jsonl --times 4
    formers augment my-gpt2 --train few.tsv --out more.jsonl --teach 5 --rate 1 --label-names "0=negative 1=positive"
    formers augment my-bert --train few.tsv --out more.jsonl --label-filter my-classifier --min-probability 0.8

    New examples that repeat an old one, and those whose label the filter does not confirm, are left out. After an
    interruption, the same command continues.

    Args:
        model: A masked language model such as BERT, or a decoder such as GPT-2.
        train: Labelled examples: csv, tsv, jsonl, parquet.
        out: The new examples, a jsonl file.
        method: fill (mask words and fill them in) or continue (generate the rest of a text); by default what the model
            can do.
        times: New examples for each example.
        rate: The fraction of words to mask (0.15 by default), or of the text, from its end, to generate anew
            (0.5 by default; 1 is all of it).
        label_filter: What checks the labels of new examples: linear (a classifier trained on the same file), none, or a
            fine-tuned model.
        min_probability: The lowest probability of the label that the filter accepts.
        teach: First continue pretraining on "label: text" for this many epochs; the adapted model is kept beside OUT.
        label_names: Words for labels, for --teach: "0=negative 1=positive".
        top_k: Sample from this many of the likeliest tokens.
        temperature: Sampling temperature.
        max_new_tokens: The most tokens to generate for an example.
        seed: Random seed.
    """
    from ..generation.augment import augment as run_augmentation
    from ..tasks.examples import parse_columns, read_examples
    from ..training.runs.continue_pretraining import train_conditional

    if out.suffix != ".jsonl":
        raise Error("new examples are written as JSON lines", where=out, fix="name it .jsonl")
    common.check_output_file(out, overwrite)
    if not teach >= 0:
        raise Error(f"a model cannot learn for {teach:g} epochs", fix="take --teach 3, or leave it out")
    examples = read_examples(train, "classify", columns, **(reading or TextFileOptions()).to_keywords())
    console = SafeConsole(stderr=True)
    console.print(examples.summary)
    words = parse_columns(label_names)[0] if label_names else {}
    how: Settings = {
        "times": times, "min_probability": min_probability, "top_k": top_k, "temperature": temperature,
        "max_new_tokens": max_new_tokens, "seed": seed, "conditional": teach > 0, "label_names": words,
    }  # fmt: skip
    with show_progress(console, "augment", delay_seconds=2) as tell, common.summarise_warnings():
        former = common.load_with_notes(model, tell=tell)
        if teach > 0:
            former = train_conditional(
                former, examples, Path(f"{out}.taught"), epochs=teach, label_names=words, tell=tell
            )
        former = common.place_model(former, placement, prepack=False)
        masks = can_fill(former)
        how["method"] = method or ("fill" if masks else "continue")
        how["rate"] = (0.15 if masks else 0.5) if rate is None else rate
        named = {"linear": "linear", "none": None}
        checker = named[label_filter] if label_filter in named else common.load_model(label_filter, placement, tell)
        rows = run_augmentation(former, examples, out, label_filter=checker, tell=tell, overwrite=overwrite, **how)
    SafeConsole().print(f"{escape_line(out)}: {rows.summary}")


def read_prompts(
    text: str | None, file: Path | None, reading: TextFileOptions | None, unit: common.TextUnit, lines: bool = False
) -> list[str]:
    """Read texts from the command line, a file, or the standard input, where each line may be one."""
    if text is not None and file is not None:
        raise Error("a text and --file are two sources", fix="give one of them")
    if text is not None:
        return [text]
    how = reading or TextFileOptions()
    if file is not None:
        return common.read_file_texts(file, how, unit)
    return common.read_file_texts(Path("-"), how) if lines else [common.read_stdin(how.encoding).rstrip("\n")]


def load_with_progress(model: str, placement: Placement | None) -> Former:
    """Load a model, with a bar if that takes long."""
    with show_progress(SafeConsole(stderr=True), "load", delay_seconds=2) as tell:
        return common.load_model(model, placement, tell)


def run_in_batches(
    verb: str, given: list[str], run: Callable[[list[str]], list[Any]],  # dynamic: texts, or lists of them
    as_json: bool, keep_blank_lines: bool,
) -> None:  # fmt: skip
    """Run a verb over texts, some at a time, and print the answers as they come; with `keep_blank_lines`, a blank line
    gives a blank line."""
    several = len(given) > 1
    with common.summarise_warnings(), show_progress(SafeConsole(stderr=True), verb, delay_seconds=2) as tell:
        for at in range(0, len(given), TEXTS_PER_BATCH):
            some = given[at : at + TEXTS_PER_BATCH]
            inputs = [prompt for prompt in some if prompt or not keep_blank_lines]
            answers = iter(run(inputs) if inputs else [])
            for prompt in some:
                results = next(answers) if prompt or not keep_blank_lines else []
                texts = results if isinstance(results, list) else [results]
                if as_json:
                    print_json({"prompt": prompt, "texts": texts})
                else:  # a line for each text, where there are several of them
                    lines = [" ".join(one.split()) for one in texts] if several or len(texts) > 1 else texts
                    print_text("\n".join(lines))
            tell("texts", min(at + TEXTS_PER_BATCH, len(given)), len(given), "")
