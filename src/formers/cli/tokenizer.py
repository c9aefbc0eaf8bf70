"""formers tokenizer: train one, show its tokens, compare several."""

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
from .common import OverwriteFlag, check_output_file
from .terminal import SafeConsole, escape_line
from .text_input import TextFileOptions

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

tokenizer = App(
    name="tokenizer", help="Train a tokenizer, show its tokens, or compare several.", help_format="plaintext"
)
TOKEN_COLOURS = ("on #1d4ed8", "on #b45309", "on #047857", "on #6d28d9")


@tokenizer.command
def train(
    kind: str,
    files: list[Path],
    *,
    vocab_size: int = 8192,
    out: Path = Path("tokenizer"),
    style: str | None = None,
    lower: Annotated[bool | None, Parameter(negative="--no-lower")] = None,
    alphabet: int | None = None,
    score: Literal["gain", "ratio"] | None = None,
    morphemes: bool = False,
    workers: int | None = None,
    overwrite: OverwriteFlag = False,
    reading: TextFileOptions | None = None,
) -> None:
    """Train a tokenizer of KIND on FILES: bpe, wordpiece, unigram, jamo, words, characters, or a family (bert, t5).

    The same text gives the same tokenizer, byte for byte, with any number of processes.

    formers tokenizer train bert reviews.txt --vocab-size 16000 --out my-tokenizer
    formers tokenizer train unigram a.txt b.txt.xz --style t5 --vocab-size 32000
    formers tokenizer train bpe reviews.csv --column review --encoding cp949
    formers tokenizer train jamo reviews.txt --vocab-size 16000 --style gpt2

    Parameters
    ----------
    kind
        A kind of tokenizer, or the family it is for. jamo is BPE over the letters of Hangul syllables.
    files
        Files, folders or globs: txt, jsonl, csv, tsv, parquet; also .gz .xz .zst.
    vocab_size
        Size of the vocabulary, special tokens included.
    out
        The new directory; transformers opens it as well.
    style
        The family whose special tokens it has; by default the usual one of the kind.
    lower
        Lowercase the text (wordpiece, unigram, words, GPT-1's bpe).
    alphabet
        How many different characters to keep (wordpiece, unigram, GPT-1's bpe).
    score
        Which pairs wordpiece merges first: gain (likelihood, as published) or ratio (as in tutorials, for comparison).
    morphemes
        Split Korean words into morphemes first: bpe, wordpiece, unigram, jamo (needs formers[ko], to encode too).
    workers
        Processes that count words; all cores by default.
    """
    from ..interop.safe_files import check_output_folder
    from ..interop.tokenizer_files import save_tokenizer
    from ..registry import train_tokenizer
    from .terminal import show_progress

    check_output_folder(out, overwrite)
    given: dict[str, Any] = {
        "style": style,
        "lower": lower,
        "alphabet": alphabet,
        "morphemes": morphemes or None,
    }
    given["score"] = score
    console = SafeConsole(wrap=True)
    with show_progress(console, "tokenizer") as tell:
        options = {k: v for k, v in given.items() if v is not None}
        made = train_tokenizer(kind, read_lines(files, reading), vocab_size, workers=workers, tell=tell, **options)
    save_tokenizer(made, out, overwrite)
    console.print(f"{len(made):,} pieces, fingerprint {made.fingerprint[:16]}: {escape_line(out)}")


@tokenizer.command
def show(where: str, text: str, /) -> None:
    """Show the tokens of TEXT in colour, with their ids. WHERE is a directory or a tokenizer.json.

    formers tokenizer show my-tokenizer "안녕하세요, world"
    """
    from ..interop.tokenizer_files import load_tokenizer

    made, console = load_tokenizer(where), SafeConsole(wrap=True)
    ids = made.encode(text)
    line, begins = Text(), made.find_word_starts(ids)
    for number, index in enumerate(ids):
        piece = made.get_token_text(index).replace("\n", "⏎")
        line.append(piece or "∅", style=f"bold white {TOKEN_COLOURS[number % len(TOKEN_COLOURS)]}")
    console.print(line)
    table = Table("id", "piece", "word", box=None)
    for index, start in zip(ids, begins, strict=True):
        table.add_row(str(index), Text(repr(made.get_token_text(index))), "begins" if start else "")
    console.print(table)
    console.print(f"{len(ids):,} pieces for {len(text):,} characters")
    for note in made.notes:
        console.print(f"Note: {note}")


@dataclass(frozen=True)
class TokenizerStats:
    """What a tokenizer makes of a text."""

    name: str
    vocab_size: int
    tokens_per_word: float  # tokens for each word
    tokens_per_character: float
    unknown_rate: float  # share of tokens
    megachars_per_second: float  # million characters in a second


@tokenizer.command
def compare(
    tokenizers: list[str],
    *,
    file: Annotated[list[Path], Parameter(consume_multiple=True)],
    out: Path = Path("tokenizers.html"),
    overwrite: OverwriteFlag = False,
    reading: TextFileOptions | None = None,
) -> None:
    """Compare TOKENIZERS on a text: tokens for each word and character, unknown tokens, speed.

    formers tokenizer compare my-bert my-gpt2 --file reviews.txt
    formers tokenizer compare a b --file test.csv --column review --out compare.html

    Parameters
    ----------
    tokenizers
        Directories, or tokenizer.json files.
    file
        The text.
    out
        The chart to write (HTML); tokenizers.html by default.
    """
    from ..interop.tokenizer_files import load_tokenizer
    from .terminal import show_progress

    check_output_file(out, overwrite)
    console = SafeConsole(wrap=True)
    text = [line for line in read_lines(file, reading) if line.strip()]
    if not text:
        raise Error("there is no text in it", where=file[0], fix="give a file with text")
    rows = []
    with show_progress(console, "compare", delay_seconds=2.0) as tell:
        for number, name in enumerate(tokenizers):
            tell("tokenizers", number, len(tokenizers), name)
            rows.append(measure_tokenizer(name, load_tokenizer(name), text))
        tell("tokenizers", len(tokenizers), len(tokenizers), "")
    table = Table("tokenizer", "pieces", "tokens/word", "tokens/character", "unknown", "M characters/s", box=None)
    for row in rows:
        numbers = (
            f"{row.tokens_per_word:.3f}",
            f"{row.tokens_per_character:.3f}",
            f"{row.unknown_rate:.2%}",
            f"{row.megachars_per_second:.2f}",
        )
        table.add_row(escape_line(row.name), f"{row.vocab_size:,}", *numbers)
    console.print(table)
    try:
        out.write_text(render_comparison(rows, ", ".join(map(str, file))), encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Error(f"cannot be written ({reason})", where=out, fix="choose another place with --out") from None
    console.print(f"Picture: {escape_line(out)}")


def measure_tokenizer(name: str, tokenizer: Tokenizer, text: list[str]) -> TokenizerStats:
    """One row of the table."""
    words, characters = sum(len(t.split()) for t in text), sum(map(len, text))
    began = time.perf_counter()
    ids = [i for row in tokenizer.encode_batch(text, special=False, parse_special=False) for i in row]
    seconds = time.perf_counter() - began
    unknown = tokenizer.id("unk") if not tokenizer.is_byte_level else None
    return TokenizerStats(
        name, len(tokenizer), len(ids) / max(1, words), len(ids) / max(1, characters),
        sum(i == unknown for i in ids) / max(1, len(ids)), characters / 1e6 / seconds,
    )  # fmt: skip


def render_comparison(rows: list[TokenizerStats], source: str) -> str:
    """Bars for each figure, as one page."""
    from ..reports.html import COLOURS, draw_text, render_page, wrap_figure

    kinds = {
        "tokens_per_word": "tokens for each word",
        "tokens_per_character": "tokens for each character",
        "unknown_rate": "unknown, % of tokens",
        "megachars_per_second": "million characters a second",
    }
    body = ["<h1>Tokenizers side by side</h1>", f"<p>{escape_html(source)}</p>"]
    for kind, label in kinds.items():
        scale = 100 if kind == "unknown_rate" else 1
        values = [getattr(row, kind) * scale for row in rows]
        most, parts = max(values) or 1, []
        for i, (row, value) in enumerate(zip(rows, values, strict=True)):
            y, wide = 26 * i, 380 * value / most
            bar = f'<rect x="200" y="{y + 4}" width="{wide:.1f}" height="16" fill="{COLOURS[i % len(COLOURS)]}"/>'
            parts += [
                draw_text(192, y + 16, row.name[-28:], text_anchor="end"),
                bar,
                draw_text(206 + wide, y + 16, f"{value:.3g}"),
            ]
        body.append(wrap_figure(660, 26 * len(rows) + 6, "".join(parts), label))
    return render_page("Tokenizers side by side", body)


def escape_html(words: str) -> str:
    """Words for a page."""
    import html

    return html.escape(words)


def read_lines(files: Iterable[Path], reading: TextFileOptions | None = None) -> Iterator[str]:
    """The lines of files, document by document."""
    from ..data.readers import find_files, read_documents

    for document in read_documents(find_files(list(files)), **(reading or TextFileOptions()).to_keywords()):
        yield from document.split("\n")
