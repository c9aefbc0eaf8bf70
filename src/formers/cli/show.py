"""formers show: what an objective hides and asks for, on a text of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..errors import Error
from .progress import progress
from .reading import Reading
from .screen import Screen

if TYPE_CHECKING:
    from ..data.store import Store
    from ..text.tokenizer import Tokenizer

OWN = {
    "length": "say --length",
    "tokenizer": "say --tokenizer",
    "name": "the objective comes first: formers show masked",
}
# The family whose tokenizer suits an objective, where none is given.
SUITED = {
    "causal": "gpt2", "prefix": "gpt2", "seq2seq": "transformer", "bidirectional": "elmo", "sop": "albert",
    "permutation": "xlnet", "denoise": "bart", "spans": "t5", "switch": "t5", "prefix_spans": "t5", "deshuffle": "t5",
}  # fmt: skip
LONGEST = 1 << 16  # tokens of an example that anybody would look at
LENGTH, PIECES, CORPUS = 48, 3000, 150  # tokens of an example, pieces of a small tokenizer, documents to learn it from


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
    reading: Reading | None = None,
) -> None:
    """Show what a pretraining objective does to a text: what it hides, what the model sees, what it must answer.

    formers show masked --text "The cat sat on the mat."
    formers show spans --text "옛날 옛적에 호랑이가 담배를 피우던 시절의 이야기입니다."
    formers show nsp --data corpus.txt --length 64 --examples 5
    formers show masked --data reviews.csv --column review
    formers show ngrams --option rate=0.3
    formers show seq2seq --text "a source" --text "its target"

    Objectives: causal, prefix, seq2seq, bidirectional, masked, words, ngrams, nsp, sop, permutation, denoise, spans,
    switch, prefix_spans, deshuffle, units, unit_pairs, dialogue.

    Parameters
    ----------
    objective
        Its name.
    text
        A document; may be given several times. Without text and data, a small corpus that comes with formers.
    data
        A file of documents: txt, jsonl, csv, tsv, parquet; blank lines stand between those of a text file.
    tokenizer
        A tokenizer.json, or a folder with one; by default a small one is trained for the purpose.
    length
        Tokens of an example; 48 by default.
    seed
        Another seed, other draws.
    examples
        How many to show.
    option
        A setting of the objective, as name=value; may be given several times.
    """
    import numpy as np

    from ..data.plans import gather
    from ..objectives.choose import OBJECTIVES
    from ..objectives.choose import objective as choose
    from .pictures import picture

    console = Screen()
    if examples < 1:
        raise Error(f"cannot show {examples} examples", fix="take 1 or more")
    if length is not None and not 1 <= length <= LONGEST:
        raise Error(f"an example cannot have {length:,} tokens", fix=f"take 1 to {LONGEST:,}, or leave --length out")
    if not 0 <= seed < 2**63:
        raise Error(f"seed must be a whole number from 0 to 2^63, got {seed}", fix="take 0")
    settings = dict(map(setting, option))
    documents = read(text, data, reading or Reading())
    pieces = ready(objective, documents, tokenizer)
    store = stored(objective, documents, pieces)
    size = length or (min(LENGTH, len(store.tokens)) if objective == "permutation" else LENGTH)
    goal = choose(objective, pieces, size, **settings)
    plan = goal.plan(store, seed, 0)
    numbers = np.arange(min(examples, len(plan)))
    if not len(numbers):
        raise Error("no example can be made of this text", fix="give a longer one")
    raw = gather(store, plan, numbers, numbers)
    batch = goal.corrupt(raw, seed)
    console.print(Text.assemble((objective, "bold"), f": {OBJECTIVES[objective].help}"))
    for row in range(len(numbers)):
        console.print(Text.assemble("\n", (f"example {row + 1}", "bold"), f" of {len(plan):,}"))
        for line in picture(goal, raw, batch, row, pieces):
            console.print(line)


def read(text: tuple[str, ...], data: Path | None, reading: Reading) -> list[str]:
    """Documents of the command line, of a file, or those that come with formers."""
    from ..data.readers import bundled
    from ..data.readers import read as files
    from ..text.normalise import normalise

    if text and data is not None:
        raise Error("--text and --data are two sources", fix="give one of them")
    if data is not None:
        import itertools

        return list(itertools.islice(files(data, **reading.options()), 5000))
    found = [normalise(document) for document in text if document.strip()]
    if text and not found:
        raise Error("the text is empty", fix="give some words")
    return found or bundled("en")[0]


def ready(objective: str, documents: list[str], where: Path | None) -> Tokenizer:
    """The tokenizer that is asked for, or a small one of the kind that suits the objective."""
    from ..config import suggest
    from ..data.readers import bundled
    from ..interop.tokenizers import load_tokenizer
    from ..objectives.choose import OBJECTIVES
    from ..text.trainers import train

    if objective not in OBJECTIVES:
        raise Error(f"the objective {objective!r} is not available", fix=suggest(objective, OBJECTIVES))
    if where is not None:
        made = load_tokenizer(where)
        for note in made.notes:
            Screen(stderr=True).print(f"Note: {note}")
        return made
    korean = sum("가" <= letter <= "힣" for document in documents[:100] for letter in document)
    lines = [line for d in documents[:CORPUS] for line in d.split("\n")]
    more = bundled("ko" if korean else "en")[0][:CORPUS]
    known = {letter for line in (*lines, *more) for letter in line}
    with progress(Screen(stderr=True), "show", quiet=2) as tell:
        tell("tokenizer", 0, 1, f"a small one is trained for {objective}")
        # What is said twice is worth a piece: the text at hand counts three times.
        made = train(SUITED.get(objective, "bert"), [*lines * 3, *more], max(PIECES, 3 * len(known)))
        tell("tokenizer", 1, 1, f"{len(made):,} pieces")
    return made


def stored(objective: str, documents: list[str], pieces: Tokenizer) -> Store:
    """The documents as tokens, with sentences, and with units where the objective asks for them."""
    from ..data.phrases import finder, learn
    from ..data.store import Store

    if objective == "seq2seq":
        return pairs(documents, pieces)
    units: Any = None
    if objective in ("units", "unit_pairs", "dialogue"):
        if any("가" <= letter <= "힣" for document in documents[:20] for letter in document):
            from ..text import korean

            units = korean.units
        else:
            units = finder(learn(documents, least=2, discount=1.0, threshold=10.0))
    return Store.of(documents, pieces, sentences="rules", units=units)


def pairs(documents: list[str], pieces: Tokenizer) -> Store:
    """Source and target in turn, or with a tab between them, as documents of two sentences."""
    import numpy as np

    from ..data.store import Store

    sides = [side for d in documents for line in d.split("\n") for side in line.split("\t") if side.strip()]
    if len(sides) % 2:
        raise Error(f"{len(sides)} texts are no pairs", fix="give sources and targets in turn, or with a tab between")
    rows = pieces.encode_batch(sides, special=False, parse=False)
    edges = np.cumsum([0, *map(len, rows)])
    tokens = np.array([i for row in rows for i in row], np.int64)
    return Store(tokens, edges[::2], len(pieces), pieces.fingerprint, edges)


def setting(text: str) -> tuple[str, Any]:
    """name=value, the value as YAML reads it."""
    from ..config import read_yaml

    name, found, value = text.partition("=")
    if not found:
        raise Error(f"{text!r} is not a setting", fix="write name=value")
    name = name.strip().replace("-", "_")
    if name in OWN:
        raise Error(f"{name} is no setting of the objective", fix=OWN[name])
    try:
        return name, read_yaml(value)
    except ValueError:
        raise Error(f"{value!r} is not a value", where=name, fix="write a number, a word, true or false") from None
