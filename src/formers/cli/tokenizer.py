"""formers tokenizer: train one, show its tokens, compare several; formers prepare: text into a token store."""

from __future__ import annotations

import html
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.text import Text

from ..config import Settings, count_noun, parse_byte_size
from ..errors import Error, get_reason
from .common import OverwriteFlag, TextFileOptions, check_output_file
from .terminal import SafeConsole, escape_line, print_table, show_progress

if TYPE_CHECKING:
    from ..data.store import Store
    from ..text.tokenizer import Tokenizer

tokenizer = App(
    name="tokenizer",
    help="Train a tokenizer, show its tokens, or compare several.\n\nformers tokenizer train bert my.txt",
    help_format="plaintext",
)
SMALL_CORPUS_BYTES = 8 << 20  # bytes that are not worth processes of their own
TOKEN_COLOURS = ("on #1d4ed8", "on #b45309", "on #047857", "on #6d28d9")


@tokenizer.command
def train(
    kind: str, files: list[Path], *, vocab_size: int = 8192, out: Path = Path("tokenizer"), style: str | None = None,
    lower: Annotated[bool | None, Parameter(negative="--no-lower")] = None, alphabet: int | None = None,
    score: Literal["gain", "ratio"] | None = None, morphemes: bool = False, workers: int | None = None,
    overwrite: OverwriteFlag = False, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Train a tokenizer of KIND on FILES: bpe, wordpiece, unigram, jamo, words, characters, or a family (bert, t5).

    The same text gives the same tokenizer, byte for byte, with any number of processes.

    formers tokenizer train bert reviews.txt --vocab-size 16000 --out my-tokenizer
    formers tokenizer train unigram a.txt b.txt.xz --style t5 --vocab-size 32000
    formers tokenizer train bpe reviews.csv --column review --encoding cp949
    formers tokenizer train jamo reviews.txt --vocab-size 16000 --style gpt2

    Args:
        kind: A kind of tokenizer, or the family it is for. jamo is BPE over the letters of Hangul syllables.
        files: Files, folders or globs: txt, jsonl, csv, tsv, parquet; also .gz .xz .zst.
        vocab_size: Size of the vocabulary, special tokens included.
        out: The new directory; transformers opens it as well.
        style: The family whose special tokens it has; by default the usual one of the kind.
        lower: Lowercase the text (wordpiece, unigram, words, GPT-1's bpe).
        alphabet: How many different characters to keep (wordpiece, unigram, GPT-1's bpe).
        score: Which pairs wordpiece merges first: gain (likelihood, as published) or ratio (as in tutorials, for
            comparison).
        morphemes: Split Korean words into morphemes first: bpe, wordpiece, unigram, jamo (needs formers[ko], also to
            encode).
        workers: Processes that count words; all cores by default.
    """
    from ..interop.safe_files import check_output_folder
    from ..interop.tokenizer_files import save_tokenizer
    from ..registry import train_tokenizer

    check_output_folder(out, overwrite)
    kind_options: Settings = {"style": style, "lower": lower, "alphabet": alphabet, "score": score}
    kind_options["morphemes"] = morphemes or None
    console = SafeConsole(wrap=True)
    with show_progress(console, "tokenizer") as tell:
        options = {k: v for k, v in kind_options.items() if v is not None}
        result = train_tokenizer(kind, read_lines(files, reading), vocab_size, workers=workers, tell=tell, **options)
    save_tokenizer(result, out, overwrite)
    console.print(f"{len(result):,} pieces, fingerprint {result.fingerprint[:16]}: {escape_line(out)}")


@tokenizer.command
def show(where: str, text: str, /) -> None:
    """Show the tokens of a text in colour, with their ids.

    formers tokenizer show my-tokenizer "안녕하세요, world"

    Args:
        where: A tokenizer.json, or a folder with one: a model, a store, a Hugging Face checkpoint.
        text: The text.
    """
    from ..interop.tokenizer_files import load_tokenizer

    encoder, console = load_tokenizer(where), SafeConsole(wrap=True)
    ids = encoder.encode(text)
    line, begins = Text(), encoder.find_word_starts(ids)
    for number, index in enumerate(ids):
        piece = encoder.get_token_text(index).replace("\n", "⏎")
        line.append(piece or "∅", style=f"bold white {TOKEN_COLOURS[number % len(TOKEN_COLOURS)]}")
    console.print(line)
    rows = [(str(i), repr(encoder.get_token_text(i)), "begins" if b else "") for i, b in zip(ids, begins, strict=True)]
    print_table(rows, ("id", "piece", "word"))
    console.print(f"{count_noun(len(ids), 'piece')} for {count_noun(len(text), 'character')}")
    for note in encoder.notes:
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

    def format_cells(self) -> tuple[str, ...]:
        """Format one row of the table."""
        ratios = f"{self.tokens_per_word:.3f}", f"{self.tokens_per_character:.3f}", f"{self.unknown_rate:.2%}"
        return self.name, f"{self.vocab_size:,}", *ratios, f"{self.megachars_per_second:.2f}"


@tokenizer.command
def compare(
    tokenizers: list[str], *, file: Annotated[list[Path], Parameter(consume_multiple=True)],
    out: Path = Path("tokenizers.html"), overwrite: OverwriteFlag = False, reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Compare TOKENIZERS on a text: tokens for each word and character, unknown tokens, speed.

    formers tokenizer compare my-bert my-gpt2 --file reviews.txt
    formers tokenizer compare a b --file test.csv --column review --out compare.html

    Args:
        tokenizers: Directories, or tokenizer.json files.
        file: The text.
        out: The chart to write (HTML); tokenizers.html by default.
    """
    from ..interop.tokenizer_files import load_tokenizer

    check_output_file(out, overwrite)
    console = SafeConsole(wrap=True)
    if not (text := [line for line in read_lines(file, reading) if line.strip()]):
        raise Error("there is no text in it", where=file[0], fix="give a file with text")
    rows = []
    with show_progress(console, "compare", delay_seconds=2.0) as tell:
        for number, name in enumerate(tokenizers):
            tell("tokenizers", number, len(tokenizers), name)
            rows.append(measure_tokenizer(name, load_tokenizer(name), text))
        tell("tokenizers", len(tokenizers), len(tokenizers), "")
    titles = ("tokenizer", "pieces", "tokens/word", "tokens/character", "unknown", "M characters/s")
    print_table((row.format_cells() for row in rows), titles)
    try:
        out.write_text(render_comparison(rows, ", ".join(map(str, file))), encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError) as error:
        what = f"cannot be written ({get_reason(error)})"
        raise Error(what, where=out, fix="choose another place with --out") from None
    console.print(f"Picture: {escape_line(out)}")


def measure_tokenizer(name: str, tokenizer: Tokenizer, text: list[str]) -> TokenizerStats:
    """Format one row of the table."""
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
    """Render a page with bars for each figure."""
    from ..reports.html import COLOURS, draw_text, render_page, wrap_figure

    kinds = {
        "tokens_per_word": "tokens for each word",
        "tokens_per_character": "tokens for each character",
        "unknown_rate": "unknown, % of tokens",
        "megachars_per_second": "million characters a second",
    }
    body = ["<h1>Tokenizers side by side</h1>", f"<p>{html.escape(source)}</p>"]
    for kind, label in kinds.items():
        scale = 100 if kind == "unknown_rate" else 1
        values = [asdict(row)[kind] * scale for row in rows]
        most, parts = max(values) or 1, []
        for i, (row, value) in enumerate(zip(rows, values, strict=True)):
            y, wide = 26 * i, 380 * value / most
            bar = f'<rect x="200" y="{y + 4}" width="{wide:.1f}" height="16" fill="{COLOURS[i % len(COLOURS)]}"/>'
            name = draw_text(192, y + 16, row.name[-28:], text_anchor="end")
            parts += [name, bar, draw_text(206 + wide, y + 16, f"{value:.3g}")]
        body.append(wrap_figure(660, 26 * len(rows) + 6, "".join(parts), label))
    return render_page("Tokenizers side by side", body)


def read_lines(files: Iterable[Path], reading: TextFileOptions | None = None) -> Iterator[str]:
    """Read the lines of files, document by document."""
    from ..data.readers import find_files, read_documents

    for document in read_documents(find_files(list(files)), **(reading or TextFileOptions()).to_keywords()):
        yield from document.split("\n")


def prepare(
    *files: Annotated[
        str, Parameter(help="Files, folders or globs: txt, jsonl, csv, tsv, parquet; also .gz .xz .zst.")
    ],
    tokenizer: Path, out: Path, unit: Literal["auto", "line", "block", "file"] = "auto",
    splitter: Literal["rules", "kiwi", "tabs", "none"] = "rules", units: str | None = None, validation: str = "0",
    deduplicate: Literal["exact", "near", "no"] = "no", tests: list[str] | None = None, tests_column: str | None = None,
    drop_tests: bool = False, shard_size: str = "256MB", workers: int | None = None, overwrite: OverwriteFlag = False,
    reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Turn text into a token store: memory-mapped, checksummed, the same for any number of workers.

    After an interruption, the same command continues, without --overwrite. Under torchrun each rank prepares some of
    the files.

    formers prepare corpus.txt.zst --tokenizer my-bert --out corpus-store
    formers prepare data/*.jsonl --column text --tokenizer tokenizer.json --out store --validation 1% --workers 8
    formers prepare old.csv --encoding cp949 --skip --tokenizer my-bert --out store
    formers prepare ko.txt --unit line --splitter kiwi --units kiwi --tokenizer my-ernie --out store

    Args:
        tokenizer: A tokenizer.json, or a folder with one: a model, a store, a Hugging Face checkpoint.
        out: The store: a new folder, or an unfinished one; an existing store is replaced only with --overwrite.
        unit: What a document is in text files: a line, a block between blank lines, or a file. auto decides for each
            file.
        splitter: How sentences are split: rules, kiwi (Korean, extra ko), tabs (pairs: a source, a tab, its target), or
            none.
        units: Mark phrases and entities for ERNIE: kiwi (Korean), learn (phrases found in this text), or a file with
            one phrase per line.
        validation: The fraction of documents to hold out for validation, as 1% or 0.01; they become a second part.
        deduplicate: Drop duplicate documents: exact ones, or also near duplicates.
        tests: Test files to check for contamination; reports how many of their examples share text with the
            documents.
        tests_column: The column or key with the text, in test files that are tables.
        drop_tests: Drop documents that share text with a test example.
        shard_size: Approximate size of a file of tokens.
        workers: Processes that encode; by default one for each core, none for a small text.
    """
    from ..data.readers import find_files
    from ..interop.tokenizer_files import load_tokenizer
    from ..interop.tokenizer_files import prepare as build_store

    if not files:
        raise Error("there is nothing to read", fix="give files, folders or globs")
    paths, pieces = find_files(list(files)), load_tokenizer(tokenizer)
    volume = sum(path.stat().st_size for path in paths)
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        workers = 0 if volume < SMALL_CORPUS_BYTES else workers
    console = SafeConsole(stderr=True)
    try:
        with show_progress(console, "prepare", delay_seconds=2) as tell:
            store = build_store(
                paths, pieces, out, overwrite=overwrite, unit=unit, workers=workers,
                **(reading or TextFileOptions()).to_keywords(),
                splitter=None if splitter == "none" else splitter, units=units, validation=parse_fraction(validation),
                deduplicate=None if deduplicate == "no" else deduplicate, tests=tests,
                tests_column=tests_column, drop_tests=drop_tests, tell=tell,
                shard=max(1, parse_byte_size(shard_size) // 2),  # a token has two bytes
            )  # fmt: skip
    except KeyboardInterrupt:
        again = "the same command without --overwrite" if overwrite else "the same command"
        message = f"finished shards stay in {escape_line(out)}; {again} continues from there"
        back = overwrite and (out / "store.json").is_file()
        console.print(f"formers: {f'the earlier store stays in {escape_line(out)}' if back else message}")
        raise
    except Error as error:
        is_store = any((out / name).is_file() for name in ("store.json", "begun.json"))
        if overwrite or not is_store or not (error.fix or "").startswith("choose another directory"):
            raise
        raise Error(error.what, where=error.where, fix="choose another --out, or --overwrite replaces it") from None
    print_store_summary(store, out)
    for note in pieces.notes:
        console.print(f"Note: {note}")


def print_store_summary(store: Store | None, out: Path) -> None:
    """Say what is there now."""
    from ..data.preparation.corpus_filters import FILTER_DESCRIPTIONS as LEFT
    from ..data.preparation.document_encoder import COUNT_DESCRIPTIONS
    from ..data.store import describe_unknown
    from ..text.normalise import CHANGE_DESCRIPTIONS as CHANGED

    words = {**CHANGED, **LEFT, **COUNT_DESCRIPTIONS}
    console, where = SafeConsole(), escape_line(out)
    if store is None or store.directory is None:
        console.print(f"{where}: this rank's share is done; the last rank to end writes store.json")
        return
    for part, about in store.directory.parts.items():
        named = (name for name in ("documents", "sentences", "tokens") if name in about)
        sizes = ", ".join(count_noun(about[name], name.removesuffix("s")) for name in named)
        console.print(f"{where} ({part}): {sizes} in {count_noun(len(about['shards']), 'shard')}")
    counts = {**store.directory.metadata["counts"]}
    notes, seen = counts.pop("notes", []), counts.pop("tests", None)
    remarks = [count_noun(count, words.get(name, name.removesuffix("s"))) for name, count in counts.items() if count]
    if remarks := [*remarks, *notes]:
        console.print("read: " + ", ".join(remarks))
    if (line := describe_unknown(store, store.tokenizer)) is not None:
        console.print(Text(line, "bold yellow"))
    for name, test in (seen or {"tests": {}})["tests"].items():
        short = f" ({test['short']:,} too short to tell)" if test["short"] else ""
        share = f"{test['found']:,} of {test['examples']:,} examples"
        console.print(f"{escape_line(name)}: {share} share text with the documents{short}")


def parse_fraction(text: str) -> float:
    """Parse a fraction as people write it: 1%, 0.01."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise Error(f"{text!r} is not a share", fix="write 1% or 0.01") from None
