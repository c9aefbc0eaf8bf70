"""formers embed, formers neighbours: texts as vectors, and what lies near."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ..config import Settings
from ..errors import Error, format_counted
from . import common
from .common import FileOption, ModelArgument, OverwriteFlag, Placement, TextFileOptions
from .terminal import SafeConsole, escape_line, print_text, show_progress

if TYPE_CHECKING:
    from torch import Tensor

    from ..inspection.embed import SpanVectors

TEXTS_PER_WRITE = 512  # texts between two writes


def embed(
    model: ModelArgument, *, out: Path, file: FileOption = None, text: tuple[str, ...] = (),
    level: Literal["sentence", "word", "token"] = "sentence",
    pool: Literal["mean", "first", "last", "max", "sum", "weighted"] = "mean", layers: str = "-1",
    mix: Literal["mean", "sum", "max", "concat"] = "mean", normalise: bool = False,
    special: Annotated[bool, Parameter(negative="--no-special")] = True, window: int | None = None,
    batch_size: int | None = None, overwrite: OverwriteFlag = False, placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Turn texts into vectors (embeddings): one for each text, word or token, from any layer.

    formers embed my-bert --file reviews.tsv --out vectors.npy --normalise
    formers embed hub:sentence-transformers/all-MiniLM-L6-v2 --file lines.txt --out vectors.npy
    formers embed my-gpt2 --text "강을 건넜다" --level word --layers sum4 --out words.jsonl

    After an interruption, the same command continues.

    Args:
        out: vectors.npy, an array (texts, dim) for level sentence; or vectors.jsonl, a line for each text.
        text: A text; may be given several times.
        level: One vector for each text, for each word, or for each token.
        pool: How the vectors of tokens are pooled; weighted counts later tokens more, for decoders.
        layers: A number (-1 is the last, 0 the embeddings), several as 1,2,3, or sum4, mean4, concat4 for the last
            four.
        mix: How several layers are combined.
        normalise: Normalise vectors to length 1.
        special: Include special tokens such as [CLS].
        window: Tokens in a window; the model's context by default. Longer texts are read in overlapping windows.
        batch_size: Texts in a batch; 32 by default, and on a GPU as many as have 16,384 tokens.
    """
    import numpy as np

    from ..atomic_files import ResumableFile

    def save_npy(path: Path, file: IO[bytes]) -> None:
        np.save(file, np.memmap(path, "<f4", "r").reshape(len(texts), -1))

    array = out.suffix == ".npy"
    if out.suffix not in (".npy", ".jsonl") or (array and level != "sentence"):
        what = f"vectors of level {level} are not written as {out.suffix or 'this'}"
        raise Error(what, where=out, fix="name it .jsonl")
    common.check_output_file(out, overwrite)
    texts = read_texts(file, text, reading or TextFileOptions())
    how: Settings = {
        "level": level, "pool": pool, "layers": parse_layers(layers), "mix": mix, "normalise": normalise,
        "special": special, "window": window, "batch_size": batch_size,
    }  # fmt: skip
    with show_progress(SafeConsole(stderr=True), "embed", delay_seconds=2) as tell, common.summarise_warnings():
        former = common.load_model(model, placement, tell, prepack=False)
        width = 4 * former.embed([texts[0].strip()[:64]], **how).shape[1] if array else None
        digest = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
        same = {key: value for key, value in how.items() if key != "batch_size"}
        about = {"model": former.fingerprint, "texts": digest, **same}
        with ResumableFile(out, about, width, overwrite) as output:
            for low in range(output.records_done, len(texts), TEXTS_PER_WRITE):
                some = texts[low : low + TEXTS_PER_WRITE]
                vectors = former.embed(some, **how)
                output.write_records(*(format_record(t, v, array) for t, v in zip(some, vectors, strict=True)))
                tell("texts", output.records_done, len(texts), f"to {out}")
            output.finish(save_npy if array else None)
    SafeConsole().print(f"{escape_line(out)}: {format_counted(len(texts), 'texts')}")


def neighbours(
    model: str, query: str, *, file: FileOption = None, text: tuple[str, ...] = (), word: str | None = None,
    same_word: bool = False, k: int = 10, layers: str = "-1", placement: Placement | None = None,
    reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Find the nearest neighbours of a text, or of a word in its context.

    formers neighbours my-bert "a film about music" --file reviews.txt
    formers neighbours my-bert "배를 타고 건넜다" --word 배 --same-word --file lines.txt
    formers neighbours runs/word2vec-1 king
    formers neighbours glove.6B.100d.txt king

    Args:
        model: A formers directory, a Hugging Face directory, hub:owner/name, the folder of a training run, or a
            published file of word vectors (GloVe, word2vec, fastText).
        query: A text; with word vectors and no texts to search, a word.
        text: A text to search; may be given several times.
        word: A word of the query: compare words in their contexts rather than whole texts.
        same_word: Compare only with other occurrences of that word.
        k: Number of neighbours.
        layers: A number (-1 is the last), several as 1,2,3, or sum4, mean4, concat4 for the last four.
    """
    texts, how = None, Settings()
    if file is not None or text:
        texts = [one for one in read_texts(file, text, reading or TextFileOptions()) if one.strip()]
        how = {"word": word, "same_word": same_word, "layers": parse_layers(layers)}
    with show_progress(SafeConsole(stderr=True), "neighbours", delay_seconds=2) as tell, common.summarise_warnings():
        nearest = common.load_model(model, placement, tell).neighbours(query, k, texts, **how)
    for row in nearest:
        more = "" if len(row) < 4 or row[0] == row[2] else f"  {row[2][: row[3][0]]}[{row[0]}]{row[2][row[3][1] :]}"
        print_text(f"{row[1]:.4f}  {row[0]}{more}")


def read_texts(file: Path | None, text: tuple[str, ...], reading: TextFileOptions) -> list[str]:
    """Read the texts of the command line or of a file."""
    if (file is None) == (not text):
        raise Error("say where the texts are", fix="give --file or --text, one of them")
    if not (texts := list(text) if file is None else common.read_file_texts(file, reading)):
        raise Error("there are no texts", where=file, fix="give at least one")
    return texts


def parse_layers(text: str) -> int | list[int] | str:
    """Parse a choice of layers: -1, 1,2,3 or sum4."""
    try:
        layers = [int(part) for part in text.split(",")]
    except ValueError:
        return text
    return layers[0] if len(layers) == 1 else layers


def format_record(text: str, item: Tensor | SpanVectors, array: bool) -> bytes | dict[str, object]:
    """Format one record of the output: the vector of a text, or those of its parts."""
    from ..inspection.embed import SpanVectors

    if not isinstance(item, SpanVectors):
        return item.numpy().astype("<f4").tobytes() if array else {"text": text, "vector": item.tolist()}
    return {"text": item.text, "names": item.units, "spans": item.spans, "vectors": item.vectors.tolist()}
