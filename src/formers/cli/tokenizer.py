"""formers tokenizer: train one, look at it, hold several side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from ..errors import Error
from .common import Overwrite, check_output
from .reading import Reading
from .screen import Screen, show_line

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

tokenizer = App(name="tokenizer", help="Train a tokenizer, look at one, or compare several.", help_format="plaintext")
SHADES = ("on #1d4ed8", "on #b45309", "on #047857", "on #6d28d9")


@tokenizer.command
def train(
    kind: str,
    files: list[Path],
    *,
    size: int = 8192,
    out: Path = Path("tokenizer"),
    style: str | None = None,
    lower: bool | None = None,
    alphabet: int | None = None,
    score: Literal["gain", "ratio"] | None = None,
    morphemes: bool = False,
    workers: int | None = None,
    overwrite: Overwrite = False,
    reading: Reading | None = None,
) -> None:
    """Train a tokenizer of KIND on FILES: bpe, wordpiece, unigram, jamo, words, characters, or a family (bert, t5).

    The same text gives the same tokenizer, byte for byte, on any number of processes.

    formers tokenizer train bert reviews.txt --size 16000 --out my-tokenizer
    formers tokenizer train unigram a.txt b.txt.xz --style t5 --size 32000
    formers tokenizer train bpe reviews.csv --column review --encoding cp949
    formers tokenizer train jamo reviews.txt --size 16000 --style gpt2

    Parameters
    ----------
    kind
        A kind of tokenizer, or the family that it is for. jamo is bpe over the letters of Hangul syllables.
    files
        Files, folders or globs: txt, jsonl, csv, tsv, parquet; also .gz .xz .zst.
    size
        How many pieces, special tokens included.
    out
        The new directory; transformers opens it as well.
    style
        Whose special tokens it has, if not those of the kind's usual family.
    lower
        Make everything lower case (wordpiece, unigram, words, GPT-1's bpe).
    alphabet
        How many different characters are kept (wordpiece, unigram, GPT-1's bpe).
    score
        What wordpiece joins first: gain (likelihood, as published) or ratio (the tutorials' rule, for comparison).
    morphemes
        Cut Korean words into morphemes first: bpe, wordpiece, unigram, jamo (needs formers[ko], also to read later).
    workers
        Processes that count words; all cores by default.
    """
    from ..interop.safe import free
    from ..interop.tokenizers import save_tokenizer
    from ..text.trainers import train as learn
    from .progress import progress

    free(out, overwrite)
    given: dict[str, Any] = {"style": style, "lower": lower, "alphabet": alphabet, "morphemes": morphemes or None}
    given["score"] = score
    console = Screen(wrap=True)
    with progress(console, "tokenizer") as tell:
        options = {k: v for k, v in given.items() if v is not None}
        made = learn(kind, lines(files, reading), size, workers=workers, tell=tell, **options)
    save_tokenizer(made, out, overwrite)
    console.print(f"{len(made):,} pieces, fingerprint {made.fingerprint[:16]}: {show_line(out)}")


@tokenizer.command
def show(where: str, text: str, /) -> None:
    """Show the pieces of TEXT in colour, with their ids. TOKENIZER is a directory or a tokenizer.json.

    formers tokenizer show my-tokenizer "안녕하세요, world"
    """
    from ..interop.tokenizers import load_tokenizer

    made, console = load_tokenizer(where), Screen(wrap=True)
    ids = made.encode(text)
    line, begins = Text(), made.begins(ids)
    for number, index in enumerate(ids):
        piece = made.token(index).replace("\n", "⏎")
        line.append(piece or "∅", style=f"bold white {SHADES[number % len(SHADES)]}")
    console.print(line)
    table = Table("id", "piece", "word", box=None)
    for index, start in zip(ids, begins, strict=True):
        table.add_row(str(index), Text(repr(made.token(index))), "begins" if start else "")
    console.print(table)
    console.print(f"{len(ids):,} pieces for {len(text):,} characters")
    for note in made.notes:
        console.print(f"Note: {note}")


@dataclass(frozen=True)
class Figures:
    """What a tokenizer makes of a text."""

    name: str
    vocab: int
    word: float  # tokens for each word
    character: float
    unknown: float  # share of tokens
    speed: float  # million characters in a second


@tokenizer.command
def compare(
    tokenizers: list[str],
    *,
    file: Annotated[list[Path], Parameter(consume_multiple=True)],
    out: Path = Path("tokenizers.html"),
    overwrite: Overwrite = False,
    reading: Reading | None = None,
) -> None:
    """Hold TOKENIZERS side by side on a text: tokens for each word and character, unknown pieces, speed.

    formers tokenizer compare my-bert my-gpt2 --file reviews.txt
    formers tokenizer compare a b --file test.csv --column review --out compare.html

    Parameters
    ----------
    tokenizers
        Directories, or tokenizer.json files.
    file
        The text.
    out
        Where a picture goes (HTML); tokenizers.html by default.
    """
    from ..interop.tokenizers import load_tokenizer
    from .progress import progress

    check_output(out, overwrite)
    console = Screen(wrap=True)
    text = [line for line in lines(file, reading) if line.strip()]
    if not text:
        raise Error("there is no text in it", where=file[0], fix="give a file with text")
    rows = []
    with progress(console, "compare", quiet=2.0) as tell:
        for number, name in enumerate(tokenizers):
            tell("tokenizers", number, len(tokenizers), name)
            rows.append(measure(name, load_tokenizer(name), text))
        tell("tokenizers", len(tokenizers), len(tokenizers), "")
    table = Table("tokenizer", "pieces", "tokens/word", "tokens/character", "unknown", "M characters/s", box=None)
    for row in rows:
        numbers = f"{row.word:.3f}", f"{row.character:.3f}", f"{row.unknown:.2%}", f"{row.speed:.2f}"
        table.add_row(show_line(row.name), f"{row.vocab:,}", *numbers)
    console.print(table)
    try:
        out.write_text(picture(rows, ", ".join(map(str, file))), encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Error(f"cannot be written ({reason})", where=out, fix="choose another place with --out") from None
    console.print(f"Picture: {show_line(out)}")


def measure(name: str, made: Tokenizer, text: list[str]) -> Figures:
    """One row of the table."""
    words, characters = sum(len(t.split()) for t in text), sum(map(len, text))
    began = time.perf_counter()
    ids = [i for row in made.encode_batch(text, special=False, parse=False) for i in row]
    seconds = time.perf_counter() - began
    unknown = made.id("unk") if not made.bytes else None
    return Figures(
        name, len(made), len(ids) / max(1, words), len(ids) / max(1, characters),
        sum(i == unknown for i in ids) / max(1, len(ids)), characters / 1e6 / seconds,
    )  # fmt: skip


def picture(rows: list[Figures], source: str) -> str:
    """Bars for each figure, as one page."""
    from ..inspection.html import COLOURS, figure, page, text

    kinds = {
        "word": "tokens for each word",
        "character": "tokens for each character",
        "unknown": "unknown, % of tokens",
        "speed": "million characters a second",
    }
    body = ["<h1>Tokenizers side by side</h1>", f"<p>{escaped(source)}</p>"]
    for kind, label in kinds.items():
        scale = 100 if kind == "unknown" else 1
        values = [getattr(row, kind) * scale for row in rows]
        most, parts = max(values) or 1, []
        for i, (row, value) in enumerate(zip(rows, values, strict=True)):
            y, wide = 26 * i, 380 * value / most
            bar = f'<rect x="200" y="{y + 4}" width="{wide:.1f}" height="16" fill="{COLOURS[i % len(COLOURS)]}"/>'
            parts += [
                text(192, y + 16, row.name[-28:], text_anchor="end"),
                bar,
                text(206 + wide, y + 16, f"{value:.3g}"),
            ]
        body.append(figure(660, 26 * len(rows) + 6, "".join(parts), label))
    return page("Tokenizers side by side", body)


def escaped(words: str) -> str:
    """Words for a page."""
    import html

    return html.escape(words)


def lines(files: Iterable[Path], reading: Reading | None = None) -> Iterator[str]:
    """The lines of files, document by document."""
    from ..data.readers import find, read

    for document in read(find(list(files)), **(reading or Reading()).options()):
        yield from document.split("\n")
