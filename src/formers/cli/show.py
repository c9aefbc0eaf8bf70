"""formers show: what an objective hides and asks for, on a text of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..errors import Error
from .terminal import SafeConsole, show_progress
from .text_input import TextFileOptions

if TYPE_CHECKING:
    from ..data.store import Store
    from ..text.tokenizer import Tokenizer

RESERVED_OPTIONS = {
    "length": "say --length",
    "tokenizer": "say --tokenizer",
    "name": "the objective comes first: formers show mlm",
}
# The family whose tokenizer suits an objective, where none is given.
TOKENIZER_FAMILIES = {
    "causal": "gpt2", "prefix": "gpt2", "seq2seq": "transformer", "bidirectional": "elmo", "sop": "albert",
    "plm": "xlnet", "denoising": "bart", "span-corruption": "t5", "switch": "t5", "prefix-spans": "t5",
    "deshuffle": "t5",
}  # fmt: skip
MAX_LENGTH = 1 << 16  # tokens of an example that anybody would look at
DEFAULT_LENGTH, SMALL_VOCAB_SIZE, MAX_TOKENIZER_DOCUMENTS = (
    48,
    3000,
    150,
)  # tokens of an example, pieces of a small tokenizer, documents to learn it from


def show(
    objective: str,
    *,
    text: tuple[str, ...] = (),
    data: Path | None = None,
    tokenizer: Path | None = None,
    length: int | None = None,
    seed: int = 0,
    examples: int = 3,
    option: tuple[str, ...] = (),
    reading: TextFileOptions | None = None,
) -> None:
    """Show what a pretraining objective does to a text: what it masks, what the model sees and what it predicts.

    formers show mlm --text "The cat sat on the mat."
    formers show span-corruption --text "옛날 옛적에 호랑이가 담배를 피우던 시절의 이야기입니다."
    formers show nsp --data corpus.txt --length 64 --examples 5
    formers show mlm --data reviews.csv --column review
    formers show ngrams --option mask_rate=0.3
    formers show seq2seq --text "a source" --text "its target"

    Objectives: causal, prefix, seq2seq, bidirectional, mlm, whole-word, ngrams, nsp, sop, plm, denoising,
    span-corruption, switch, prefix-spans, deshuffle, ernie-units, unit-pairs, dialogue.

    Parameters
    ----------
    objective
        Its name.
    text
        A document; may be given several times. Without text and data, the small corpus that comes with formers.
    data
        A file of documents: txt, jsonl, csv, tsv, parquet; in a text file, blank lines separate documents.
    tokenizer
        A tokenizer.json, or a folder with one; by default a small one is trained for this.
    length
        Tokens of an example; 48 by default.
    seed
        Random seed.
    examples
        How many to show.
    option
        An option of the objective, as name=value; may be given several times.
    """
    import numpy as np

    from ..data.plans import gather_examples
    from ..objectives.registry import OBJECTIVES, build_objective, resolve_objective
    from .example_view import render_example

    console = SafeConsole()
    if examples < 1:
        raise Error(f"cannot show {examples} examples", fix="take 1 or more")
    if length is not None and not 1 <= length <= MAX_LENGTH:
        raise Error(f"an example cannot have {length:,} tokens", fix=f"take 1 to {MAX_LENGTH:,}, or leave --length out")
    if not 0 <= seed < 2**63:
        raise Error(f"seed must be a whole number from 0 to 2^63, got {seed}", fix="take 0")
    objective = resolve_objective(objective)
    settings = dict(map(parse_option, option))
    documents = read_documents(text, data, reading or TextFileOptions())
    pieces = get_tokenizer(objective, documents, tokenizer)
    store = build_store(objective, documents, pieces)
    size = length or (min(DEFAULT_LENGTH, len(store.tokens)) if objective == "plm" else DEFAULT_LENGTH)
    goal = build_objective(objective, pieces, size, **settings)
    plan = goal.plan(store, seed, 0)
    numbers = np.arange(min(examples, len(plan)))
    if not len(numbers):
        raise Error("no example can be made of this text", fix="give a longer one")
    raw = gather_examples(store, plan, numbers, numbers)
    batch = goal.corrupt(raw, seed)
    console.print(Text.assemble((objective, "bold"), f": {OBJECTIVES[objective].help}"))
    for row in range(len(numbers)):
        console.print(Text.assemble("\n", (f"example {row + 1}", "bold"), f" of {len(plan):,}"))
        for line in render_example(goal, raw, batch, row, pieces):
            console.print(line)


def read_documents(text: tuple[str, ...], data: Path | None, reading: TextFileOptions) -> list[str]:
    """Documents of the command line, of a file, or those that come with formers."""
    from ..data.readers import load_bundled_corpus
    from ..data.readers import read_documents as read_files
    from ..text.normalise import normalise

    if text and data is not None:
        raise Error("--text and --data are two sources", fix="give one of them")
    if data is not None:
        import itertools

        return list(itertools.islice(read_files(data, **reading.to_keywords()), 5000))
    found = [normalise(document) for document in text if document.strip()]
    if text and not found:
        raise Error("the text is empty", fix="give some words")
    return found or load_bundled_corpus("en")[0]


def get_tokenizer(objective: str, documents: list[str], where: Path | None) -> Tokenizer:
    """The tokenizer that is asked for, or a small one of the kind that suits the objective."""
    from ..data.readers import load_bundled_corpus
    from ..interop.tokenizer_files import load_tokenizer
    from ..registry import train_tokenizer

    if where is not None:
        made = load_tokenizer(where)
        for note in made.notes:
            SafeConsole(stderr=True).print(f"Note: {note}")
        return made
    korean = sum("가" <= letter <= "힣" for document in documents[:100] for letter in document)
    lines = [line for d in documents[:MAX_TOKENIZER_DOCUMENTS] for line in d.split("\n")]
    more = load_bundled_corpus("ko" if korean else "en")[0][:MAX_TOKENIZER_DOCUMENTS]
    known = {letter for line in (*lines, *more) for letter in line}
    with show_progress(SafeConsole(stderr=True), "show", delay_seconds=2) as tell:
        tell("tokenizer", 0, 1, f"a small one is trained for {objective}")
        # What is said twice is worth a piece: the text at hand counts three times.
        made = train_tokenizer(
            TOKENIZER_FAMILIES.get(objective, "bert"), [*lines * 3, *more], max(SMALL_VOCAB_SIZE, 3 * len(known))
        )
        tell("tokenizer", 1, 1, f"{len(made):,} pieces")
    return made


def build_store(objective: str, documents: list[str], tokenizer: Tokenizer) -> Store:
    """The documents as tokens, with sentences, and with units where the objective asks for them."""
    from ..data.preparation.document_encoder import build_unit_finder, learn_phrases
    from ..data.store import Store

    if objective == "seq2seq":
        return build_pair_store(documents, tokenizer)
    units: Any = None
    if objective in ("ernie-units", "unit-pairs", "dialogue"):
        if any("가" <= letter <= "힣" for document in documents[:20] for letter in document):
            from ..text import korean

            units = korean.find_units
        else:
            units = build_unit_finder(learn_phrases(documents, min_count=2, discount=1.0, threshold=10.0))
    return Store.from_documents(documents, tokenizer, sentences="rules", units=units)


def build_pair_store(documents: list[str], tokenizer: Tokenizer) -> Store:
    """Source and target in turn, or with a tab between them, as documents of two sentences."""
    import numpy as np

    from ..data.store import Store

    sides = [side for d in documents for line in d.split("\n") for side in line.split("\t") if side.strip()]
    if len(sides) % 2:
        raise Error(f"{len(sides)} texts are no pairs", fix="give sources and targets in turn, or with a tab between")
    rows = tokenizer.encode_batch(sides, special=False, parse_special=False)
    edges = np.cumsum([0, *map(len, rows)])
    tokens = np.array([i for row in rows for i in row], np.int64)
    return Store(tokens, edges[::2], len(tokenizer), tokenizer.fingerprint, edges)


def parse_option(text: str) -> tuple[str, Any]:
    """name=value, the value as YAML reads it."""
    from ..config import parse_yaml

    name, found, value = text.partition("=")
    if not found:
        raise Error(f"{text!r} is not a setting", fix="write name=value")
    name = name.strip().replace("-", "_")
    if name in RESERVED_OPTIONS:
        raise Error(f"{name} is no setting of the objective", fix=RESERVED_OPTIONS[name])
    try:
        return name, parse_yaml(value)
    except ValueError:
        raise Error(f"{value!r} is not a value", where=name, fix="write a number, a word, true or false") from None
